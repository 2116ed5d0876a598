"""One step in several processes, and the same step in one."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gdod

# As in tests/reference.py: a share of the update, and of the sum of the task gradients.
TOLERANCE = {torch.float64: (1e-9, 1e-11), torch.float32: (1e-4, 1e-6)}


@dataclass(frozen=True)
class Data:
    """Inputs and labels of a batch; each tensor has an example in each row."""

    inputs: dict[str, Tensor]
    mask: dict[str, Tensor] | None = None

    def part(self, start: int, end: int) -> "Data":
        mask = None if self.mask is None else {name: known[start:end] for name, known in self.mask.items()}
        return Data({name: value[start:end] for name, value in self.inputs.items()}, mask)

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


Losses = Callable[[nn.Module, Mapping[str, Tensor]], Any]


@dataclass
class Step:
    model: nn.Module
    losses: Losses
    make: Callable[[], gdod.Method]
    data: Data
    sizes: Sequence[int] | None = None  # of the ranks' batches; by default as even as can be
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 2
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model

    def own(self) -> Data:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sizes = self.sizes or [len(part) for part in torch.arange(len(self.data)).tensor_split(ranks)]
        start = sum(sizes[:rank])
        assert sum(sizes) == len(self.data)
        return self.data.part(start, start + sizes[rank])

    def check(self, tolerance: tuple[float, float] | None = None) -> tuple[gdod.Info, gdod.Info]:
        """Gradients, and what `Info` tells, are those of one process, and the same bits on all ranks."""
        alone = copy.deepcopy(self.model)
        together = self.wrap(self.model)
        first, second = self.make(), self.make()
        part = self.own()
        for _ in range(self.steps):
            alone.zero_grad()
            together.zero_grad()
            want = gdod.backward(
                self.losses(alone, self.data.inputs), first, mask=self.data.mask, process_group=None, **self.options
            )
            got = gdod.backward(self.losses(together, part.inputs), second, mask=part.mask, **self.options)
            self._compare(alone, got, want, tolerance)
            for model in (self.model, alone):  # both from the same gradients, or rounding adds up
                with torch.no_grad():
                    for parameter, other in zip(model.parameters(), alone.parameters(), strict=True):
                        if other.grad is not None:
                            parameter.sub_(0.05 * dense(other))
        return got, want

    def _compare(
        self, alone: nn.Module, got: gdod.Info, want: gdod.Info, tolerance: tuple[float, float] | None
    ) -> None:
        of_update, of_total = tolerance or TOLERANCE[next(alone.parameters()).dtype]
        ours, theirs = flat(self.model), flat(alone)
        scale = max(of_update * float(theirs.norm()), of_total * float(size_of(want, theirs)))
        error = float((ours - theirs).norm())
        assert error <= scale, f"|delta| = {error:.3g}, allowed {scale:.3g}, of {float(theirs.norm()):.3g}"
        for (name, one), other in zip(self.model.named_parameters(), alone.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None and other.grad is not None:
                assert one.grad.is_sparse == other.grad.is_sparse, name
                assert one.grad.dtype == one.dtype, name
                bound = 100 * of_update * max(float(dense(other).norm()), float(theirs.norm()) / 100)
                assert float((dense(one) - dense(other)).norm()) <= bound, name
        torch.testing.assert_close(got.losses, want.losses, rtol=1e-6, atol=1e-9, equal_nan=True)
        if want.gram is not None:
            torch.testing.assert_close(got.norms, want.norms, rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(got.cosines, want.cosines, rtol=1e-3, atol=1e-4)
            assert got.gram is not None
            same_everywhere(got.gram.matrix, "the Gram matrix")
        torch.testing.assert_close(got.energy_kept, want.energy_kept, rtol=1e-3, atol=1e-4, equal_nan=True)
        same_everywhere(got.losses, "the losses")
        same_everywhere(ours, "the gradient")


def size_of(info: gdod.Info, update: Tensor) -> Tensor:
    return update.norm() if info.gram is None else info.norms.sum()


def dense(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def flat(model: nn.Module) -> Tensor:
    grads = [dense(p).reshape(-1).double() for p in model.parameters() if p.grad is not None]
    return torch.cat(grads) if grads else torch.zeros(0)


def same_everywhere(values: Tensor, what: str) -> None:
    every = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(every, values.contiguous())
    for other in every:
        assert torch.equal(other.nan_to_num(7.0), values.nan_to_num(7.0)), f"{what} differs between ranks"
