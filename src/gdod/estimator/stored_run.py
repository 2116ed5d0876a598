"""The folder of a run that belongs to an estimator: kept for a while, copied, packed into a pickle."""

import shutil
import tempfile
import weakref
from pathlib import Path

from gdod.errors import InputError
from gdod.training import Folder

# What only going on with training, or looking at it, needs.
_NOT_PACKED = ("checkpoints/last.pt", "tensorboard")


class TemporaryFolder:
    """A folder that is removed when nobody has this object any more, or the program ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gdod-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def copy_run(folder: Path, to: Path) -> None:
    """Copy all files of a run to a place that is new or empty."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} is there already; choose a new folder to save the run in")
    try:
        shutil.copytree(folder, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    except OSError as error:
        raise InputError(f"the run cannot be saved in {to}: {error}; choose another folder") from error


def packed(folder: Path) -> dict[str, bytes]:
    """Return the content of the files of a run that predictions and reports need, by their paths below its folder."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith((*_NOT_PACKED, "."))}


def unpack(files: dict[str, bytes], folder: Path) -> None:
    """Write what `packed` returned into a folder."""
    for name, content in files.items():
        place = folder / name
        if not place.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"the pickle of an estimator holds a file {name!r}, which is outside of its run")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    assert Folder(folder).is_run
