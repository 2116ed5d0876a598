"""Gradient rows: one for each group of examples and task, over all shared parameters.

The autograd graph lives in this package and nowhere else. `Processes` runs the backward passes and returns `Rows`,
which answers the two questions a method needs: the rows' inner products, and a weighted sum of them as gradients
of the parameters.
"""

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
