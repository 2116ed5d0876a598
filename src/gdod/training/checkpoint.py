"""Checkpoints: plain dictionaries of tensors and numbers, written whole, read without running code."""

from pathlib import Path
from typing import Any

import torch

from gdod._files import write
from gdod.errors import InputError

FORMAT = 1


def save(path: Path, content: dict[str, Any]) -> None:
    write(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What `save` wrote. Only tensors and plain values are read, never code (``weights_only``)."""
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"there is no checkpoint {path}") from error
    except Exception as error:  # torch raises many kinds for a damaged or a hostile file
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"the checkpoint {path} cannot be read safely: {reason[0]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"the checkpoint {path} has the format {found!r}; this version reads {FORMAT}")
    return content


def random_state(device: torch.device) -> dict[str, Any]:
    """Where torch's own random numbers are: dropout and the like."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
