"""Train a model from a configuration into a run folder, and predict with a run.

config = read_config(Path("train.yaml"))
result = train(config, "runs/mine")
probabilities = load_run("runs/mine").predict(frame)
"""

from gdod.training.config import TrainConfig, check_config, read_config
from gdod.training.interruption import Interrupted, NonFiniteError
from gdod.training.preflight import check
from gdod.training.progress import Progress, Shown, Silent
from gdod.training.run import Folder, Run, load_run, name_of, resume_command
from gdod.training.train_run import Result, train

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
