"""Checkpoint files: dictionaries of tensors and plain values, written whole and read without running code."""

import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from gdod._files import write
from gdod.errors import InputError

FORMAT = 1
# What a checkpoint is made of besides plain values. torch would also make, say, a bytearray of any length.
_KNOWN = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch (\w+Storage|[a-z]\w+|Size)"
)


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint; one that is there already stays whole until the new one is."""

    def put(file: BinaryIO) -> None:
        try:
            torch.save({"format": FORMAT, **content}, file)
        except RuntimeError as error:
            # After a disk has refused a part, torch complains that the parts do not add up.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise

    write(path, put)


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint that `save` wrote, as tensors on ``device`` and plain values, never code (``weights_only``).

    Its checksums are verified first, and that nothing in it takes more memory than the file is long.
    """
    try:
        with path.open("rb") as file:
            problem = _problem(file)
        content = torch.load(path, map_location=device, weights_only=True) if problem is None else None
    except FileNotFoundError as error:
        raise InputError(f"there is no checkpoint {path}") from error
    except MemoryError as error:
        raise InputError(f"the checkpoint {path} does not fit into memory") from error
    except OSError as error:
        raise InputError(f"the checkpoint {path} cannot be read: {error.strerror or error}") from error
    # torch raises many kinds of errors for a hostile file, and some of them advise to load it all the same.
    except Exception as error:
        raise InputError(damaged(path, _NOT_PLAIN)) from error
    if problem is not None:
        raise InputError(damaged(path, problem))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        stored = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"the checkpoint {path} has the format {stored!r}; this version reads {FORMAT}")
    return content


def keep_weights_only(path: Path) -> None:
    """Write a checkpoint anew without what only going on with training needs: the states of optimizer and method."""
    content = load(path)
    if "optimizers" in content:
        save(path, {name: content[name] for name in ("settings", "model", "average", "state") if name in content})


def _problem(file: BinaryIO) -> str | None:
    """Return what is wrong with the zip archive that a checkpoint is, or None; it is not unpacked for that.

    Each part of the archive has a checksum (CRC-32), which torch writes and does not verify.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
            if any(part.compress_type != zipfile.ZIP_STORED or part.compress_size != part.file_size for part in parts):
                return "it is packed, which a checkpoint never is"
            if sum(part.file_size for part in parts) > size or archive.comment:
                return "its parts are longer than the file"
            changed = archive.testzip()
            if changed is None and not all(_is_plain(archive.read(part)) for part in parts if _is_pickle(part)):
                return _NOT_PLAIN
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error, RuntimeError) as error:
        return f"it is cut off, or no checkpoint ({error})"
    return None if changed is None else f"the checksum of its part {changed} is wrong"


_NOT_PLAIN = "it holds something else than numbers and names"


def _is_pickle(part: zipfile.ZipInfo) -> bool:
    return part.filename.endswith(".pkl")


def _is_plain(pickle: bytes) -> bool:
    """Return whether a pickle makes nothing but what `save` writes; it is read for that, and nothing is made of it."""
    return all(
        isinstance(value, str) and _KNOWN.fullmatch(value)
        for code, value, _ in pickletools.genops(pickle)
        if code.name in ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4")
    )


def check_settings(content: Mapping[str, Any], settings: str, path: Path) -> None:
    """Raise if a checkpoint was written with settings of another checksum; those of earlier versions have none."""
    if content.get("settings", settings) != settings:
        raise InputError(
            f"the config.json beside the checkpoint {path} is damaged or was changed: it has other settings than the "
            "checkpoint was written with. Put a copy of the file in its place, or train again in another folder with "
            "--out"
        )


def check_weights(weights: object, expected: Mapping[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint; raise unless they are finite and of the names and sizes that are expected."""
    if not isinstance(weights, dict) or any(not isinstance(one, torch.Tensor) for one in weights.values()):
        raise InputError(damaged(path, "it holds no weights"))
    sizes, wanted = ({name: tuple(one.shape) for name, one in held.items()} for held in (weights, expected))
    for name in (*wanted, *sizes):
        if sizes.get(name) != wanted.get(name):
            raise InputError(
                f"the checkpoint {path} does not fit the configuration beside it: the size of {name} is "
                f"{sizes.get(name, 'missing')}, and by the configuration {wanted.get(name, 'missing')}; put the "
                "config.json of this run in its place"
            )
    for name, one in weights.items():
        if one.dtype != expected[name].dtype or one.layout != torch.strided or one.is_meta:
            raise InputError(damaged(path, f"{name} holds another kind of numbers, {one.dtype}"))
    if sum(one.nbytes for one in weights.values()) > path.stat().st_size:
        raise InputError(damaged(path, "its weights are longer than the file"))
    for name, one in weights.items():
        if one.is_floating_point() and not bool(one.isfinite().all()):
            raise InputError(damaged(path, f"{name} holds nan or infinity, and so would predictions"))
    return weights


def damaged(path: Path, problem: str) -> str:
    """Return what to say of a checkpoint that is not as it was written."""
    return (
        f"the checkpoint {path} is damaged or was changed: {problem}. Put a copy in its place, or train again in "
        "another folder with --out"
    )


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
