"""Everything of torchjd that this package uses, in one place, because some of it is private to torchjd.

Private parts may change with any release, so another one than the one they were read in is refused here.
"""

from importlib.metadata import version

from gdod._checks import version_problem

if problem := version_problem("torchjd", version("torchjd"), "0.18"):
    raise ImportError(problem)

from torchjd import aggregation, scalarization
from torchjd._linalg import compute_gramian
from torchjd.aggregation import Aggregator, GramianWeightedAggregator, WeightedAggregator, Weighting
from torchjd.aggregation._nash_mtl import _NashMTLWeighting as NashMTLWeighting
from torchjd.aggregation._weighting_bases import _Composition as Composition
from torchjd.aggregation._weighting_bases import _MatrixWeighting as MatrixWeighting
from torchjd.linalg import DualConeProjector, PSDMatrix
from torchjd.scalarization import Scalarizer

__all__ = [
    "Aggregator",
    "Composition",
    "DualConeProjector",
    "GramianWeightedAggregator",
    "MatrixWeighting",
    "NashMTLWeighting",
    "PSDMatrix",
    "Scalarizer",
    "WeightedAggregator",
    "Weighting",
    "aggregation",
    "compute_gramian",
    "scalarization",
]
