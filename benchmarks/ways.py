"""The ways to make one step's gradients: the plain sum, GDOD four ways, and torchjd's PCGrad.

Each takes a model and a batch, runs the forward pass, and leaves the gradients in ``.grad``.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import gdod
from benchmarks.case import Batch, Case, SharedBottom, forward

if TYPE_CHECKING:  # it takes seconds to import, and most processes do not need it
    from torchjd.aggregation import GramianWeightedAggregator

Way = Callable[[SharedBottom, Batch], None]


def plain(case: Case) -> Way:
    def step(model: SharedBottom, batch: Batch) -> None:
        _, losses = forward(model, batch)
        torch.stack([loss.mean() for loss in losses]).sum().backward()

    return step


def gdod_engine(case: Case) -> Way:
    method = gdod.GDOD(groups=case.groups)

    def step(model: SharedBottom, batch: Batch) -> None:
        _, losses = forward(model, batch)
        gdod.backward(losses, method)

    return step


def naive(case: Case) -> Way:
    """Return the paper's Algorithm 1 as it is written: one backward pass a row, M in memory, its SVD."""

    def step(model: SharedBottom, batch: Batch) -> None:
        _, losses = forward(model, batch)
        shared = model.shared()
        chunks = [loss.tensor_split(min(case.groups, case.batch)) for loss in losses]
        rows = []
        for chunk in zip(*chunks, strict=True):
            for loss in chunk:
                grads = torch.autograd.grad(loss.mean(), shared, retain_graph=True)
                rows.append(torch.cat([grad.flatten() for grad in grads]))
        m = torch.stack(rows)  # [N, D]
        del rows
        task_gradients = averages(case) @ m  # [K, N] x [N, D] -> [K, D]
        _, sigma, basis = torch.linalg.svd(m, full_matrices=False)
        basis = basis[sigma > sigma[0] * len(m) ** 0.5 * torch.finfo(m.dtype).eps]  # [r, D]
        projections = task_gradients @ basis.T  # [K, r]
        update = (projections.sum(0) * agreement(projections)) @ basis  # [D]
        write(shared, update.split([parameter.numel() for parameter in shared]))
        write_private(model, losses)

    return step


def batched(case: Case) -> Way:
    """Return a step with the N rows in one backward pass that vmap batches, then GDOD on their Gram matrix."""

    def step(model: SharedBottom, batch: Batch) -> None:
        _, losses = forward(model, batch)
        shared = model.shared()
        stacked = torch.stack(losses, dim=1)  # [batch, K]
        # torch warns that an embedding's backward has no batching rule: that is the finding here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = torch.autograd.grad(
                stacked, shared, row_cotangents(case), retain_graph=True, is_grads_batched=True
            )  # [N, *shape] for each parameter
        flat = [row.flatten(1) for row in rows]
        gram = torch.stack([row @ row.T for row in flat]).sum(0).double()
        spectrum, vectors = torch.linalg.eigh(gram)  # [N], [N, N]
        sigma = spectrum.clamp(min=0).sqrt()
        u = vectors[:, sigma > sigma[-1] * len(gram) ** 0.5 * torch.finfo(stacked.dtype).eps]
        projections = averages(case).double() @ u  # [K, r]; the singular values cancel
        weights = (u @ (projections.sum(0) * agreement(projections))).to(stacked.dtype)  # [N]
        write(shared, [weights @ row for row in flat])
        write_private(model, losses)

    return step


def torchjd(make: "Callable[[], GramianWeightedAggregator]") -> Callable[[Case], Way]:
    """Return torchjd's PCGrad, with the option that spares it a copy of the Jacobian, which is faster here."""

    def way(case: Case) -> Way:
        from torchjd.autojac import jac_to_grad, mtl_backward

        aggregator = make()

        def step(model: SharedBottom, batch: Batch) -> None:
            features, losses = forward(model, batch)
            mtl_backward([loss.mean() for loss in losses], features=features)
            jac_to_grad(model.shared(), aggregator, optimize_gramian_computation=True)

        return step

    return way


def pcgrad() -> "GramianWeightedAggregator":
    from torchjd.aggregation import PCGrad

    return PCGrad()


def cagrad() -> "GramianWeightedAggregator":
    from torchjd.aggregation import CAGrad

    return CAGrad(c=0.5)


@dataclass(frozen=True)
class Competitor:
    """A way with its name, and whether it holds the whole of M in memory."""

    name: str
    way: Callable[[Case], Way]
    holds_m: bool = False

    def refuses(self, case: Case) -> str | None:
        """Return why this case is left out, or None: several copies of M must fit in memory."""
        gigabytes = case.rows * case.columns * 4 / 1e9
        return f"M is {gigabytes:.1f} GB" if self.holds_m and gigabytes > 1.5 else None


PLAIN = Competitor("plain", plain)
GDOD = Competitor("GDOD", gdod_engine)
NAIVE = Competitor("loop + SVD", naive, holds_m=True)
BATCHED = Competitor("vmap", batched, holds_m=True)
TORCHJD = Competitor("torchjd PCGrad", torchjd(pcgrad))
TORCHJD_CAGRAD = Competitor("torchjd CAGrad", torchjd(cagrad))
COMPETITORS = (PLAIN, GDOD, TORCHJD, BATCHED, NAIVE)


def averages(case: Case) -> Tensor:
    """Return C [K, N]: task i's gradient is C[i] @ M. Rows go group by group; groups count by size."""
    groups = min(case.groups, case.batch)
    sizes = torch.tensor([len(part) for part in torch.arange(case.batch).tensor_split(groups)])
    shares = sizes / case.batch  # [n]
    # [n, 1, 1] x [K, K] -> [n, K, K] -> [K, N]
    return (shares[:, None, None] * torch.eye(case.tasks)).transpose(0, 1).flatten(1)


def row_cotangents(case: Case) -> Tensor:
    """Return [N, batch, K]: what picks row (g, i), task i's mean over group g, out of the losses."""
    groups = min(case.groups, case.batch)
    members = torch.zeros(groups, case.batch)
    for group, part in enumerate(torch.arange(case.batch).tensor_split(groups)):
        members[group, part] = 1 / len(part)
    # [n, 1, batch, 1] x [1, K, 1, K] -> [n, K, batch, K] -> [N, batch, K]
    return (members[:, None, :, None] * torch.eye(case.tasks)[None, :, None]).flatten(0, 1)


def agreement(projections: Tensor) -> Tensor:
    """Return whether no two tasks have opposite signs on each basis vector. [r]"""
    return ~((projections > 0).any(0) & (projections < 0).any(0))


def write(parameters: list[torch.nn.Parameter], grads: list[Tensor] | tuple[Tensor, ...]) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.view_as(parameter)


def write_private(model: SharedBottom, losses: list[Tensor]) -> None:
    private = model.private()
    total = torch.stack([loss.mean() for loss in losses]).sum()
    write(private, torch.autograd.grad(total, private))
