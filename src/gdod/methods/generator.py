"""The random numbers of a method."""

import torch

from gdod.errors import InputError


def generator_of(seed: object) -> torch.Generator:
    """Return ``seed`` if it is a generator, or a new one that starts at the seed."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r}; expected a whole number or a torch.Generator")
    return torch.Generator().manual_seed(seed)
