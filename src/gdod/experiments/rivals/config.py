"""The configuration of a rival's run, and what is checked of it before any work."""

from importlib.util import find_spec
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gdod._checks import check_choice, nearest
from gdod.errors import InputError
from gdod.experiments.rivals.boosters import RIVALS, BoosterOptions
from gdod.report.runs import RIVAL
from gdod.training.config import DataConfig, MethodConfig, ModelConfig, StoppingConfig, TrainConfig


class RivalConfig(BaseModel):
    """All settings of a rival's run: those of the comparison that concern it, by the same names."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    data: DataConfig
    """That of the comparison, of which a rival is given the columns alone."""
    model: ModelConfig = ModelConfig(name=RIVAL)
    method: MethodConfig
    """The booster and its options."""
    stopping: StoppingConfig = StoppingConfig()
    """What a search goes by; each task's own training goes by the task's own figure."""
    task_weights: dict[str, Annotated[float, Field(ge=0)]] | None = None
    sample_weights: bool = True
    weighted_metrics: bool = False
    seed: int = Field(default=0, ge=0, lt=2**63)
    threads: int | None = Field(default=None, ge=1)
    device: str = "cpu"

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        """Return the configuration of the rival that the run of a comparison names as its method."""
        return cls(
            data=config.data,
            method=config.method,
            stopping=StoppingConfig(monitor=config.stopping.monitor),
            task_weights=config.task_weights,
            sample_weights=config.sample_weights,
            weighted_metrics=config.weighted_metrics,
            seed=config.seed,
            threads=config.threads,
        )


def rival_options(method: MethodConfig) -> BoosterOptions:
    """Return the options of a rival, all of them; raise an InputError for names or values that it does not take."""
    check_choice("rival", method.name, RIVALS)
    kind = RIVALS[method.name].options
    known = tuple(kind.model_fields)
    try:
        return kind(**method.options)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            hint = nearest(name, known)
            raise InputError(
                f"rival {method.name!r}: the option {name!r} is unknown; expected one of {', '.join(known)}{hint}"
            ) from None
        raise InputError(f"rival {method.name!r}: {name}={first['input']!r}: {first['msg'].lower()}") from None


def check_rival(config: RivalConfig) -> None:
    """Raise an InputError if the rival's name or options are wrong, or if its library is not installed."""
    rival_options(config.method)
    booster = RIVALS[config.method.name]
    if find_spec(booster.package) is None:
        raise InputError(
            f"the rival {config.method.name!r} needs {booster.title}, which is not installed. "
            "Install it with: pip install 'gdod[rivals]'"
        )
