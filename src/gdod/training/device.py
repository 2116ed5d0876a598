"""The device on which a model is trained and used."""

import torch

from gdod.errors import InputError


def find_device(name: str) -> torch.device:
    """Return the device of this name if it can be used; "auto": a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={name!r} cannot be used: {reason}; expected 'auto', 'cpu' or e.g. 'cuda'") from error
    return device
