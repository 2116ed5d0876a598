"""Everything of torchjd that this package uses, in one place, because some of it is private to torchjd.

Private parts may change with any release, so another one than the one they were read in is refused here.
"""

from importlib.metadata import version

from gdod._checks import version_problem

if problem := version_problem("torchjd", version("torchjd"), "0.18"):
    raise ImportError(problem)

from torchjd import aggregation, linalg, scalarization
from torchjd._linalg import compute_gramian
from torchjd.aggregation._nash_mtl import _NashMTLWeighting as NashWeighting
from torchjd.aggregation._weighting_bases import _Composition as Composed
from torchjd.aggregation._weighting_bases import _MatrixWeighting as MatrixWeighting

__all__ = ["Composed", "MatrixWeighting", "NashWeighting", "aggregation", "compute_gramian", "linalg", "scalarization"]
