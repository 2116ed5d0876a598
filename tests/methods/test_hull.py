"""The active-set solvers where a Gram matrix in float64 can hardly tell gradients apart."""

import pytest
import torch
from tests.methods.samples import randn
from torch import Tensor

from gdod.methods.cagrad import CAGrad
from gdod.methods.mgda import MGDA
from gdod.methods.torchjd import ExactProjector


def nearly(kind: str, seed: int) -> Tensor:
    rows = randn(3 + seed % 12, 2 + seed % 7, seed=seed)
    blur = 1e-8 * randn(rows.shape[1], seed=seed + 1)
    match kind:
        case "equal":
            rows[1] = rows[0] + blur
        case "opposite":
            rows[-1] = -rows[0] + blur
        case "in the plane":
            rows[2] = rows[0] - 0.3 * rows[1] + blur
    return rows


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["equal", "opposite", "in the plane"])
def test_results_stay_right_to_what_can_be_told(kind: str, seed: int) -> None:
    rows = nearly(kind, seed)
    gram, lengths = rows @ rows.T, rows.norm(dim=1)
    weights = MGDA().weigh_tasks(gram)
    shortest = weights @ rows
    assert bool((rows @ shortest - shortest @ shortest >= -1e-7 * lengths * float(weights @ lengths)).all())

    projected = ExactProjector()(torch.ones_like(lengths), gram) @ rows  # type: ignore[arg-type]
    assert bool((rows @ projected >= -1e-7 * lengths * float(lengths.sum())).all())
    assert float(projected.norm()) <= float(rows.sum(0).norm()) * (1 + 1e-9)

    for c in (0.3, 0.9, 1.5):
        direction, plain = CAGrad(c).weigh_tasks(gram) @ rows, rows.sum(0)
        assert float((direction - plain).norm()) <= c * float(plain.norm()) + 1e-7 * float(lengths.sum())
        assert float((rows @ direction).min()) >= float((rows @ plain).min()) - 1e-6
