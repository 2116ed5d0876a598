"""Find the files of a table, and tell of what kind they are."""

import glob
from pathlib import Path

from gdod._checks import listed, nearest
from gdod.errors import InputError

TEXT = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
COMPRESSED = (".gz", ".zst", ".bz2")


def find_files(source: str | Path) -> tuple[Path, ...]:
    """Return the file, the data files of the folder, or those a pattern such as "logs/*.csv.gz" names, sorted."""
    path = Path(source).expanduser()
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = [file for file in path.iterdir() if file.is_file() and file.name[0] not in "._" and kind(file)]
        if not files:
            raise InputError(f"the folder {path} has no file that ends in {_endings()}")
    elif _is_pattern(str(source)):
        files = [Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
        if not files:
            raise InputError(f"no file fits the pattern {str(source)!r}")
    else:
        names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"there is no file or folder {str(source)!r}{nearest(path.name, names)}")
    for file in files:
        if not kind(file):
            raise InputError(f"{file} is of an unknown kind; expected a name that ends in {_endings()}")
    if len({kind(file) in PARQUET for file in files}) > 1:
        raise InputError(f"{source} has both text and Parquet files: {listed(file.name for file in sorted(files))}")
    return tuple(sorted(files))


def base_folder(source: str | Path) -> Path:
    """Return the folder that holds all files of the source; for a pattern, the one before its first sign."""
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
    """Return the ending that says what a file holds, without that of its compression; None if it is unknown."""
    name = path.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return next((ending for ending in (*TEXT, *PARQUET) if name.endswith(ending)), None)


def _endings() -> str:
    return f"{', '.join((*TEXT, *PARQUET))} (text may be compressed: {', '.join(COMPRESSED)})"
