"""Training: from data and a configuration to a run on disk, and from a run to predictions.

config = read_config(Path("train.yaml"))
result = train(config, "runs/mine")
probabilities = load_run("runs/mine").predict(frame)
"""

from gdod.training.config import TrainConfig, check_config, read_config
from gdod.training.job import Result, check, resume_command, train
from gdod.training.progress import Progress, Shown, Silent
from gdod.training.run import Folder, Run, load_run, name_of
from gdod.training.stops import Interrupted, NonFiniteError

__all__ = [
    "Folder",
    "Interrupted",
    "NonFiniteError",
    "Progress",
    "Result",
    "Run",
    "Shown",
    "Silent",
    "TrainConfig",
    "check",
    "check_config",
    "load_run",
    "name_of",
    "read_config",
    "resume_command",
    "train",
]
