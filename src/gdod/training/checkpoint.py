"""Checkpoint files: dictionaries of tensors and plain values, written whole and read without running code."""

from pathlib import Path
from typing import Any

import torch

from gdod._files import write
from gdod.errors import InputError

FORMAT = 1


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint; one that is there already stays whole until the new one is."""
    write(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint that `save` wrote, as tensors on ``device`` and plain values, never code (``weights_only``)."""
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"there is no checkpoint {path}") from error
    except Exception as error:  # torch raises many kinds for a damaged or a hostile file
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"the checkpoint {path} cannot be read safely: {reason[0]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        stored = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"the checkpoint {path} has the format {stored!r}; this version reads {FORMAT}")
    return content


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of torch's random numbers, which dropout draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the state that `random_state` returned."""
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
