"""Save what a torchjd object remembers as tensors and plain values, and load it again.

torchjd's weightings and scalarizers keep their memory in attributes and unset buffers, which
`Module.state_dict` leaves out. Here everything is saved that is a tensor, an array, a number, a list or
tuple of those, or an Adam; what is not (functions, solvers, problems of cvxpy) is made anew.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = set(vars(nn.Module()))


class _NotKept(Exception):
    """The value is of a kind that is not saved."""


def module_state(module: nn.Module) -> dict[str, Any]:
    """Return the values of the attributes of a module and its sub-modules, by "path.name"."""
    state: dict[str, Any] = {}
    for path, part in module.named_modules():
        for name, value in _attributes(part).items():
            try:
                state[f"{path}.{name}"] = _pack(value)
            except _NotKept:
                continue
    return state


def load_module_state(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Give a module the attributes that `module_state` returned for another one of its kind."""
    parts = dict(module.named_modules())
    for key, packed in state.items():
        path, _, name = key.rpartition(".")
        _put(parts[path], name, packed)
    for part in parts.values():
        # torchjd's Nash-MTL makes its problem at the first step, and would not again.
        if hasattr(part, "_init_optim_problem") and vars(part).get("step"):
            part._init_optim_problem()


def _attributes(part: nn.Module) -> dict[str, Any]:
    own = {name: value for name, value in vars(part).items() if name not in _OF_EVERY_MODULE}
    return {**own, **part._parameters, **part._buffers}


def _pack(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            return value.detach().clone()
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": str(value)}
        case torch.optim.Adam():
            return {"adam": value.state_dict()}
        case list():
            return [_pack(item) for item in value]
        case tuple():
            return {"tuple": [_pack(item) for item in value]}
        case _ if type(value).__name__ == "ndarray":  # numpy, which only Nash-MTL needs
            return {"array": torch.as_tensor(value).clone()}
    raise _NotKept


def _unpack(packed: Any, part: nn.Module) -> Any:
    match packed:
        case Tensor():
            return packed.clone()
        case list():
            return [_unpack(item, part) for item in packed]
        case {"array": array}:
            return array.clone().numpy()
        case {"dtype": name}:
            return getattr(torch, name)
        case {"device": name}:
            return torch.device(name)
        case {"tuple": items}:
            return tuple(_unpack(item, part) for item in items)
        case {"adam": state}:
            adam = torch.optim.Adam(part.parameters(recurse=False))
            adam.load_state_dict(state)
            return adam
    return packed


def _put(part: nn.Module, name: str, packed: Any) -> None:
    value = _unpack(packed, part)
    if name in part._parameters:
        parameter = part._parameters[name]
        assert parameter is not None
        with torch.no_grad():
            parameter.copy_(value)
    elif name in part._buffers:
        part._buffers[name] = value
    else:
        vars(part)[name] = value
