"""What is said of parameters that need a backward pass for each row: which, why, and what it costs."""

import gc
import warnings
from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from gdod.errors import MixingWarning, SlowPathWarning

_MIXED = WeakTensorKeyDictionary()  # parameters of models that were warned of
_SAID: set[frozenset[tuple[tuple[int, ...], str]]] = set()  # shapes and reasons that were warned of
_NAMED = 4  # names that are spelled out for each reason

Slow = tuple[Tensor, str, bool]
"""A parameter, the reason why it is slow, and whether that is that examples mix."""


def warn_of_slow_path(slow: Sequence[Slow], shared: int, groups: int, tasks: int) -> None:
    """Warn that parameters need a pass for each row: once a model if examples mix, else once for their shapes.

    Args:
        shared: the number of shared parameters.
        groups: the number of groups of the batch.
        tasks: the number of tasks that have labels.
    """
    mixed = [parameter for parameter, _, mixes in slow if mixes]
    if mixed and any(parameter in _MIXED for parameter in mixed):
        return
    key = frozenset((tuple(parameter.shape), reason) for parameter, reason, _ in slow)
    if not mixed and key in _SAID:
        return
    for parameter in mixed:
        _MIXED[parameter] = True
    _SAID.add(key)
    cost = (
        f"{len(slow)} of {shared} shared parameters need a backward pass for each row, about {groups * tasks} more "
        f"passes a step ({groups} groups of {tasks} tasks): {_listed(slow)}. The result is exact, the step slower"
    )
    if not mixed:
        warnings.warn(f"{cost}; fewer groups take fewer passes", SlowPathWarning, stacklevel=5)
        return
    warnings.warn(
        "examples of the batch influence each other's losses (batch norm in training, in-batch negatives, ...), or "
        f"their places cannot be followed, or a hook changes gradients depending on their size: {cost}, except for "
        "such a hook, whose rows have no scale to go by; layer norm in place of batch norm avoids it",
        MixingWarning,
        stacklevel=5,
    )


def _listed(slow: Sequence[Slow]) -> str:
    """Return the parameters by their names, reason by reason."""
    names = names_of([parameter for parameter, _, _ in slow])
    by_reason: dict[str, list[str]] = {}
    for parameter, reason, _ in slow:
        by_reason.setdefault(reason, []).append(names.get(id(parameter), f"one of shape {tuple(parameter.shape)}"))
    return "; ".join(
        f"{', '.join(some[:_NAMED])}{f' and {len(some) - _NAMED} more' if len(some) > _NAMED else ''} ({reason})"
        for reason, some in by_reason.items()
    )


def names_of(parameters: Sequence[Tensor]) -> dict[int, str]:
    """Return the longest name that each parameter has in any module of this process, by its id.

    Losses do not tell the modules behind them, so they are looked for; it takes a moment, and is done once a warning.
    """
    wanted = set(map(id, parameters))
    names: dict[int, str] = {}
    for one in gc.get_objects():
        if issubclass(type(one), nn.Module):  # isinstance would ask the object, which may be a proxy
            for name, parameter in one.named_parameters():
                if id(parameter) in wanted and len(name) > len(names.get(id(parameter), "")):
                    names[id(parameter)] = name
    return names
