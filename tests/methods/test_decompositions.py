"""The eigendecomposition of small matrices, compiled or torch's own."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gdod._kernels import compiled
from gdod.methods import decompositions
from gdod.methods.decompositions import eigh

EPS = torch.finfo(torch.float64).eps


@pytest.fixture(params=["wide", "narrow", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "torch":
        monkeypatch.setattr(decompositions, "compiled", None)
        yield request.param
        return
    if compiled is None or compiled.use_wide(request.param == "wide") != (request.param == "wide"):
        pytest.skip("not compiled, or no wide vectors here")
    yield request.param
    compiled.use_wide(True)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


KINDS = {
    "full": lambda n: draw(n, 2 * n),
    "of low rank": lambda n: draw(n, 1 + n // 4) @ draw(1 + n // 4, 2 * n),
    "repeated rows": lambda n: draw(1 + n // 3, 2 * n).repeat(3, 1)[:n],
    "scales far apart": lambda n: draw(n, 2 * n) * 10.0 ** torch.linspace(-60, 60, n, dtype=torch.float64).unsqueeze(1),
    "huge": lambda n: draw(n, 2 * n) * 1e150,
    "tiny": lambda n: draw(n, 2 * n) * 1e-150,
    "zero": lambda n: torch.zeros(n, n, dtype=torch.float64),
    "unit": lambda n: torch.eye(n, dtype=torch.float64),
    "some zero rows": lambda n: draw(n, 2 * n) * (torch.arange(n) % 3 > 0).unsqueeze(1),
}


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 32, 48, 100, 192])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_orthonormal_and_give_the_matrix_back(kind: str, size: int) -> None:
    rows = KINDS[kind](size)
    matrix = rows @ rows.T
    values, vectors = eigh(matrix)
    largest = float(values.abs().max())
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(size, dtype=torch.float64), rtol=0, atol=8 * EPS * size)
    assert bool((values.diff() >= 0).all())
    assert float((matrix @ vectors - vectors * values).abs().max()) <= 8 * EPS * size * largest
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrix), rtol=0, atol=8 * EPS * size * largest)


def test_what_is_not_finite_is_refused_in_words() -> None:
    matrix = torch.full((3, 3), torch.nan, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"linalg\.eigh"):
        eigh(matrix)
