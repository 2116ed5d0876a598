"""GDOD, and the other methods of this library, for loops written with torchjd (https://torchjd.org)."""

import torch
from torch import Tensor

from gdod._checks import check_positive
from gdod.errors import InputError
from gdod.methods import hull
from gdod.methods.base import Method
from gdod.methods.gdod import GDOD
from gdod.methods.gram import Gram
from gdod.methods.torchjd.parts import aggregation, linalg


class ExactProjector(linalg.DualConeProjector):
    """Projects onto the dual cone of the gradients exactly, by active sets, without quadprog.

    It takes the place of torchjd's `QuadprogProjector`, which adds 1e-4 to the diagonal and takes gradients
    shorter than 0.01 for zero, also in torchjd itself: ``UPGrad(projector=ExactProjector())``.
    """

    def __call__(self, U: Tensor, G: linalg.PSDMatrix) -> Tensor:
        units = hull.Units.of(G.detach().to("cpu", torch.float64).tolist())
        rows = U.detach().to("cpu", torch.float64).view(-1, len(G)).tolist()  # one or more of [K]
        projected = torch.tensor([self._project(units, row) for row in rows], dtype=torch.float64)
        return projected.view(U.shape).to(G)

    def _project(self, units: hull.Units, weights: list[float]) -> list[float]:
        if not units.present:
            return weights
        amounts = [weights[i] * n for i, n in zip(units.present, units.lengths, strict=True)]
        scale = sum(map(abs, amounts)) or 1.0
        slope = [hull.dot(row, amounts) / scale for row in units.correlations]
        added = hull.onto_dual_cone(units, slope, noise=1.0)
        projected = list(weights)
        for i, z, n in zip(units.present, added, units.lengths, strict=True):
            projected[i] += scale * z / n
        return projected

    def __repr__(self) -> str:
        return "ExactProjector()"


class GDODWeighting(aggregation.Weighting[linalg.PSDMatrix]):
    """GDOD, or another method of this library, as a torchjd `Weighting`.

    For a matrix of losses [examples, tasks], such as torchjd's instance-wise multi-task learning uses:

        engine = Engine(model, batch_dim=0)
        weighting = GDODWeighting(tasks=2)
        weights = weighting(engine.compute_gramian(losses))  # [examples * tasks]
        losses.backward(weights.view_as(losses))

    The gradient is that of `gdod.backward` for the same losses on the engine's modules: examples are
    cut into the method's groups, and their gradients averaged. All parameters count as shared.

    Args:
        tasks: the number of tasks; the Gramian's rows are ordered example by example.
        method: a method that needs no losses, because a Gramian does not hold them; `GDOD()` by default.
    """

    def __init__(self, tasks: int, method: Method | None = None) -> None:
        super().__init__()
        check_positive("tasks", tasks)
        self.tasks = tasks
        self.method = GDOD() if method is None else method

    def forward(self, stat: linalg.PSDMatrix, /) -> Tensor:
        if stat.dim() != 2 or stat.shape[0] != stat.shape[1] or len(stat) == 0 or len(stat) % self.tasks:
            raise InputError(
                f"the Gramian has shape {tuple(stat.shape)}; expected [N, N], N a multiple of tasks={self.tasks}"
            )
        matrix = stat.detach().to("cpu", torch.float64)
        examples = len(matrix) // self.tasks
        count = examples if self.method.groups is None else min(self.method.groups, examples)
        parts = torch.arange(examples).tensor_split(count)
        of_example = torch.zeros(count, examples, dtype=torch.float64)  # [n, examples]
        for group, members in enumerate(parts):
            of_example[group, members] = 1 / len(members)
        rows = torch.kron(of_example, torch.eye(self.tasks, dtype=torch.float64))  # group means [n K, examples K]
        shares = torch.tensor([len(members) / examples for members in parts], dtype=torch.float64)
        averages = torch.kron(shares, torch.eye(self.tasks, dtype=torch.float64))  # [K, n K]
        # No more exact matrix is to be had: what is below its rounding error is no direction.
        gram = Gram(rows @ matrix @ rows.T, averages, row_error=torch.finfo(stat.dtype).eps ** 0.5)
        weights = self.method.weigh(gram)
        if weights.update is not None:
            raise InputError(f"{self.method!r} makes an update of its own, of a model's parameters; use gdod.backward")
        return (weights.rows @ rows).to(stat)

    def __repr__(self) -> str:
        return f"GDODWeighting(tasks={self.tasks}, method={self.method!r})"


class GDODAggregator(aggregation.GramianWeightedAggregator):
    """`GDODWeighting` as an aggregator of Jacobians, for torchjd's `jac_to_grad`."""

    def __init__(self, tasks: int, method: Method | None = None) -> None:
        super().__init__(GDODWeighting(tasks, method))

    def __repr__(self) -> str:
        return f"GDODAggregator(tasks={self.gramian_weighting.tasks}, method={self.gramian_weighting.method!r})"
