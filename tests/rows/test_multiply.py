"""Matrix products by either library agree with the product in float64."""

import pytest
import torch
from torch import Tensor

from gdod.rows import multiply
from gdod.rows.multiply import product


def factors(rows: int, summands: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(rows, summands, generator=generator, dtype=dtype)
    return a, torch.randn(summands, columns, generator=generator, dtype=dtype)


def assert_product(a: Tensor, b: Tensor) -> None:
    with torch.no_grad():
        exact = a.double() @ b.double()
        result = product(a, b)
    assert result.dtype == a.dtype
    assert float((result.double() - exact).norm()) <= 16 * torch.finfo(a.dtype).eps * float(exact.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 2, 1), (256, 256, 33), (130, 256, 64), (256, 2000, 64), (64, 0, 64)], ids=str)
def test_products_are_those_of_float64(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    a, b = factors(*shape, dtype)
    for left, right in [(a, b), (a, b.T.contiguous().T), (a.T.contiguous().T, b)]:
        assert_product(left, right)


def test_parts_of_larger_matrices_are_left_to_the_library_that_can() -> None:
    a, b = factors(512, 512, 512, torch.float32)
    with torch.no_grad():  # oneDNN would take a second for the parts
        assert multiply._suits(a, b.T)
        assert not multiply._suits(a[:, :256], b[:256])
        assert not multiply._suits(a, b[:, :256])
    assert_product(a[:, :256], b[:256])


def test_products_can_be_differentiated() -> None:
    a, b = factors(256, 256, 64, torch.float32)
    (grad,) = torch.autograd.grad(product(a.requires_grad_(), b).sum(), a)
    torch.testing.assert_close(grad, b.sum(1).expand_as(a))
