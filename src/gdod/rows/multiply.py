"""Matrix products of float32 numbers on a CPU, by the quicker of the two libraries that torch has.

``a @ b`` is MKL's on x86, which uses no more than half of the vector units of many processors that are not Intel's.
oneDNN, which torch brings for other operations, writes its code for the processor that it finds: with AVX-512 on an AMD
EPYC it takes 0.4 to 0.5 of the time (256 to 1536 rows, 32 to 256 columns and summands). Its sums are added one number
after the other, so it is for sums of a few hundred numbers; those of inner products of whole rows are not made here.
"""

import platform

import torch
from torch import Tensor

# Multiplications below which a call costs more than it saves.
_FEWEST = 2**20
# Summands of an element of the product: rounding errors grow with their number.
_MOST_SUMMANDS = 512


def _has_onednn() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()


_ONEDNN = _has_onednn()


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` of two matrices.

    Which library multiplies depends on shapes and types alone, so that a run that is resumed computes in the same way.
    """
    if not _ONEDNN or not _suits(a, b):
        return a @ b
    return torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")  # type: ignore[no-any-return]


def _suits(a: Tensor, b: Tensor) -> bool:
    """Return whether oneDNN is the quicker one. With gaps between rows it is slower by a factor of a thousand."""
    rows, summands = a.shape
    columns = b.shape[1]
    return (
        rows * summands * columns >= _FEWEST
        and 1 < summands <= _MOST_SUMMANDS
        and columns > 1
        and a.dtype == torch.float32 == b.dtype
        and a.device.type == "cpu" == b.device.type
        and a.is_contiguous()
        and (b.is_contiguous() or b.mT.is_contiguous())
        and not torch.is_grad_enabled()
    )
