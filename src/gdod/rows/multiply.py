"""Matrix products of float32 numbers on a CPU, by the quicker of the two libraries that torch has.

``a @ b`` is MKL's on x86, which uses no more than half of the vector units of many processors that are not Intel's.
oneDNN, which torch brings for other operations, writes its code for the processor that it finds: with AVX-512 on an AMD
EPYC it takes 0.4 to 0.5 of the time (256 to 1536 rows, 32 to 256 columns and summands). It prepares itself for each new
shape, which takes longer than a product does, so it is for shapes that come again in every step.
"""

import platform

import torch
from torch import Tensor

# Multiplications below which a call costs more than it saves.
_FEWEST = 2**20
# Summands of an element of the product: rounding errors grow with their number.
_MOST_SUMMANDS = 512
# Rows from which on it pays to leave out the lower half of their inner products.
_MANY_ROWS = 48


def _has_onednn() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()


_ONEDNN = _has_onednn()
GRAM_ERROR = 2.0 if _ONEDNN else 1.0
"""How many times their last digit the inner products of float32 rows are rounded to: twice with oneDNN."""


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` of two matrices.

    Which library multiplies depends on shapes and types alone, so that a run that is resumed computes in the same way.
    """
    if not _ONEDNN or not _suits(a, b):
        return a @ b
    return _multiply(a, b.T)


def steady_gram(rows: Tensor) -> Tensor | None:
    """Return the inner products ``rows @ rows.T`` as float64, or None where MKL makes them better.

    oneDNN adds some thousand numbers in float32 before it begins anew. Relative to the rows' lengths its inner products
    are off by 1e-8 to 3e-8 in the mean square, three to six times as much as those of MKL whose parts are summed in
    float64; where all numbers have one sign, by up to 1.7e-7.
    """
    count, size = rows.shape
    suits = rows.dtype == torch.float32 and rows.device.type == "cpu" and rows.is_contiguous()
    if not _ONEDNN or not suits or count < 2 or count * count * size < _FEWEST or torch.is_grad_enabled():
        return None
    if count < _MANY_ROWS:
        return _multiply(rows, rows).double()
    half = count // 2
    upper, lower = _multiply(rows[:half], rows), _multiply(rows[half:], rows[half:])
    whole = rows.new_empty(count, count, dtype=torch.float64)
    whole[:half], whole[half:, half:], whole[half:, :half] = upper, lower, upper[:, half:].T
    return whole


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b.T`` by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")  # type: ignore[no-any-return]


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
