"""Gradient rows: one for each group of examples and task, over all shared parameters.

No other package knows the autograd graph. `Processes` runs the backward passes and returns `Rows`, which
answers the two questions a method needs: the rows' inner products, and a weighted sum of them as
gradients of the parameters.
"""

import torch

from gdod._checks import version_problem

# Autograd nodes are read by what they save (`_saved_...`), which torch does not promise to keep.
if problem := version_problem("torch", torch.__version__, "2.13"):
    raise ImportError(problem)

from gdod.rows.groups import Groups
from gdod.rows.parts import slice_of
from gdod.rows.processes import Accumulated, LocalLosses, OneProcess, Processes
from gdod.rows.rows import Rows, SlowPath
from gdod.rows.shares import Shares, labels_in
from gdod.rows.targets import Target, before_stacking

__all__ = [
    "Accumulated",
    "Groups",
    "LocalLosses",
    "OneProcess",
    "Processes",
    "Rows",
    "Shares",
    "SlowPath",
    "Target",
    "before_stacking",
    "labels_in",
    "slice_of",
]
