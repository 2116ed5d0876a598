"""What a run has learned: which columns matter, which experts the tasks use, and in which layers they conflict."""

from gdod.training.explain.columns import Importance, importance
from gdod.training.explain.experts import ExpertUse, expert_use
from gdod.training.explain.layers import Conflict, layer_conflict, layers_of
from gdod.training.explain.stored import FILE, keep
from gdod.training.explain.table_rows import read_rows
from gdod.training.explain.whole import PARTS, Entries, Settings, tell, tellable

__all__ = [
    "FILE",
    "PARTS",
    "Conflict",
    "Entries",
    "ExpertUse",
    "Importance",
    "Settings",
    "expert_use",
    "importance",
    "keep",
    "layer_conflict",
    "layers_of",
    "read_rows",
    "tell",
    "tellable",
]
