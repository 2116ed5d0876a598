"""Which files a table consists of, and of what kind they are."""

import glob
from pathlib import Path

from gdod._checks import listed, nearest
from gdod.errors import InputError

TEXT = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
COMPRESSED = (".gz", ".zst", ".bz2")


def find_files(source: str | Path) -> tuple[Path, ...]:
    """A file, the data files of a folder, or those that a pattern such as "logs/*.csv.gz" names; by name."""
    path = Path(source).expanduser()
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = [file for file in path.iterdir() if file.is_file() and file.name[0] not in "._" and kind(file)]
        if not found:
            raise InputError(f"the folder {path} has no file that ends in {_endings()}")
    elif _is_pattern(str(source)):
        found = [Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
        if not found:
            raise InputError(f"no file fits the pattern {str(source)!r}")
    else:
        names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"there is no file or folder {str(source)!r}{nearest(path.name, names)}")
    for file in found:
        if not kind(file):
            raise InputError(f"{file} is of an unknown kind; expected a name that ends in {_endings()}")
    if len({kind(file) in PARQUET for file in found}) > 1:
        raise InputError(f"{source} has both text and Parquet files: {listed(file.name for file in sorted(found))}")
    return tuple(sorted(found))


def base_folder(source: str | Path) -> Path:
    """The folder that holds all files of the source: of a pattern, what comes before its first sign."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    while _is_pattern(str(path)):
        path = path.parent
    return path


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def kind(path: Path) -> str | None:
    """The ending that says what a file holds, without the one that says how it is compressed."""
    name = path.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return next((ending for ending in (*TEXT, *PARQUET) if name.endswith(ending)), None)


def _endings() -> str:
    return f"{', '.join((*TEXT, *PARQUET))} (text may be compressed: {', '.join(COMPRESSED)})"
