"""Methods of torchjd by their names in `gdod.METHODS`, with the options of their torchjd classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from gdod.errors import InputError
from gdod.methods.base import Method
from gdod.methods.mgda import MGDA
from gdod.methods.torchjd.borrowed import Borrowed, BorrowedAcrossBatches, BorrowedScalarizer, BorrowedWeighting
from gdod.methods.torchjd.parts import aggregation, scalarization
from gdod.methods.torchjd.to_torchjd import ExactProjector, GDODWeighting


@dataclass(frozen=True)
class Maker:
    """How the method of one name is made."""

    make: Callable[..., nn.Module]
    """Make the torchjd object, from the number of tasks and the options of its class."""
    method: Callable[..., Borrowed]
    """Make the method, from a function that makes the torchjd object when the number of tasks is known."""
    own_options: tuple[str, ...] = ("seed",)
    """Which options are meant for the method and not for the torchjd object."""

    def build(self, name: str, options: Mapping[str, Any]) -> Method:
        """Return the method. Own options that are None have their default."""
        own = {key: options[key] for key in self.own_options if options.get(key) is not None}
        theirs = {key: value for key, value in options.items() if key not in self.own_options}
        make = partial(self.make, **theirs)
        try:
            make(2)  # so that wrong options and missing packages show at once
        except ImportError as error:
            raise ImportError(f"method {name!r} needs packages that are not installed: {error}") from error
        except ValueError as error:
            raise InputError(f"method {name!r}: {error}") from error
        method = self.method(make, **own)
        method.title = f"{name}({', '.join(f'{key}={value!r}' for key, value in theirs.items())})"
        return method


def _for_any_tasks(kind: Callable[..., nn.Module], **defaults: Any) -> Callable[..., nn.Module]:
    """Return a function that makes an object of a class that need not know the number of tasks."""
    return lambda tasks, **options: kind(**{**defaults, **options})


def _nash_mtl(tasks: int, **options: Any) -> nn.Module:
    # torchjd's problem has no form for one task, which bargains with nobody.
    return aggregation.NashMTL(tasks, **options).weighting if tasks > 1 else aggregation.SumWeighting()


def _cr_mogm(tasks: int, **options: Any) -> nn.Module:
    return aggregation.CRMOGMWeighting(GDODWeighting(tasks, MGDA()), **options)


_mean_of_present = partial(BorrowedWeighting, only_present=True, times_tasks=True)
_positive_losses = partial(BorrowedScalarizer, positive=True)

MAKERS: dict[str, Maker] = {
    "upgrad": Maker(_for_any_tasks(aggregation.UPGradWeighting, projector=ExactProjector()), _mean_of_present),
    "dualproj": Maker(_for_any_tasks(aggregation.DualProjWeighting, projector=ExactProjector()), _mean_of_present),
    "aligned-mtl": Maker(_for_any_tasks(aggregation.AlignedMTLWeighting), _mean_of_present),
    "imtl-g": Maker(
        _for_any_tasks(aggregation.IMTLGWeighting), partial(BorrowedWeighting, only_present=True, unit_scale=True)
    ),
    "fairgrad": Maker(
        _for_any_tasks(aggregation.FairGradWeighting, alpha=2.0), partial(BorrowedWeighting, only_present=True)
    ),
    "krum": Maker(_for_any_tasks(aggregation.KrumWeighting, n_byzantine=0), BorrowedWeighting),
    "gradvac": Maker(_for_any_tasks(aggregation.GradVacWeighting), partial(BorrowedWeighting, unit_scale=True)),
    "pcd": Maker(_for_any_tasks(aggregation.PCDWeighting), BorrowedWeighting),
    "nash-mtl": Maker(_nash_mtl, BorrowedWeighting),
    "cr-mogm": Maker(_cr_mogm, BorrowedWeighting),
    "modo": Maker(_for_any_tasks(aggregation.MoDoWeighting), partial(BorrowedAcrossBatches, batches=2)),
    "sdmgrad": Maker(_for_any_tasks(aggregation.SDMGradWeighting), partial(BorrowedAcrossBatches, batches=3)),
    "random": Maker(_for_any_tasks(scalarization.Random), BorrowedScalarizer, ("seed", "lr")),
    "dwa": Maker(_for_any_tasks(scalarization.DWA), partial(_positive_losses, window=100), ("seed", "lr", "window")),
    "famo": Maker(scalarization.FAMO, _positive_losses, ("seed", "lr")),
    "imtl-l": Maker(scalarization.IMTLL, BorrowedScalarizer, ("seed", "lr")),
    "geometric-mean": Maker(_for_any_tasks(scalarization.GeometricMean), _positive_losses, ("seed", "lr")),
    "stch": Maker(_for_any_tasks(scalarization.STCH, mu=0.1), BorrowedScalarizer, ("seed", "lr")),
}
