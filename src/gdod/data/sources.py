"""The data sets that have a name."""

from gdod.data.ads import SimulatedAds
from gdod.data.bookcrossing import BookCrossing
from gdod.data.census import CensusIncome
from gdod.data.ijcai15 import Ijcai15
from gdod.data.source import Source

_ALL: tuple[Source, ...] = (CensusIncome(), BookCrossing(), Ijcai15(), SimulatedAds())

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
