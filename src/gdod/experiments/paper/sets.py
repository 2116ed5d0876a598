"""The data sets of the paper, and where their files are on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdod.errors import InputError


@dataclass(frozen=True)
class PaperSet:
    """A data set, and what was chosen for it because the paper does not say."""

    name: str
    """What the paper calls it."""
    source: str
    """The name by which `gdod.data.load` knows it."""
    folders: tuple[str, ...]
    """The names that its folder may have."""
    epochs: int
    """Passes over the training data: as many as the plain sum's validation AUC, over two seeds that nothing else
    uses, rose for, and a bit more for methods that are slower (docs/results/README.md has the figures)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    front: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its front that are not `gdod front`'s own, to keep a large set within an hour or two of one core."""


_LARGE = {"tune": 3}
ADS = PaperSet("Simulated ads", "ads", (), 2, {"rows": 200_000, "conflict": 0.5}, {**_LARGE, "points": 12})
SETS: dict[str, PaperSet] = {
    "bookcrossing": PaperSet("BookCrossing", "bookcrossing", ("book-crossing", "bookcrossing"), 2, front=_LARGE),
    "ijcai15": PaperSet("IJCAI-15", "ijcai15", ("ijcai15", "ijcai-15"), 3),
    "ads": ADS,
    "census": PaperSet(
        "Census-Income", "census", ("census-income-kdd", "census-income", "census"), 4, front={**_LARGE, "points": 16}
    ),
}
FRONT_SETS: dict[str, PaperSet] = {
    **SETS,
    "drugs": PaperSet("Drug consumption", "drugs", ("drug-consumption", "drugs"), 20),
}
"""Those that methods are put against the front on: also one that is not the paper's, small and with many tasks."""
PRINTED_NAMES = {"bookcrossing": "BookCrossing", "ijcai15": "IJCAI-15", "ads": "Alipay", "census": "Census-Income"}
"""What the printed figures call them. The paper's Alipay data is private; simulated ads have its shape."""


@dataclass(frozen=True)
class AvailableSet:
    """A data set that runs can be made on."""

    key: str
    paper_set: PaperSet
    folder: Path | None
    stands_in: bool
    """Whether it is simulated ads, in place of a set whose files are not there."""

    @property
    def title(self) -> str:
        return f"{FRONT_SETS[self.key].name} (not there: simulated ads)" if self.stands_in else self.paper_set.name

    @property
    def is_printed(self) -> bool:
        """Whether the paper has figures for this very data set."""
        return self.key != "ads" and not self.stands_in


def find_sets(data_folder: Path | None, sets: Mapping[str, PaperSet] = SETS) -> dict[str, AvailableSet]:
    """Return each set with its folder, in ``data_folder`` or where `gdod data download` puts it; else simulated ads."""
    if data_folder is not None and not data_folder.is_dir():
        raise InputError(f"the data folder {data_folder} is not there; expected one with folders such as ijcai15/")
    return {key: _find(key, one, data_folder) for key, one in sets.items()}


def _find(key: str, one: PaperSet, data_folder: Path | None) -> AvailableSet:
    if one.source == "ads":
        return AvailableSet(key, one, None, stands_in=False)
    for folder in _places(one, data_folder):
        if folder.is_dir() and any(folder.iterdir()):
            return AvailableSet(key, one, folder.absolute(), stands_in=False)
    return AvailableSet(key, ADS, None, stands_in=True)


def _places(one: PaperSet, data_folder: Path | None) -> list[Path]:
    from gdod.data.sets.published import downloads_folder

    named = [] if data_folder is None else [data_folder / name for name in one.folders]
    return [*named, downloads_folder(one.source)]
