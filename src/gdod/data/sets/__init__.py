"""The data sets that have a name: `SOURCES` holds them by it."""

from gdod.data.sets.ads import SimulatedAds
from gdod.data.sets.bookcrossing import BookCrossing
from gdod.data.sets.census import CensusIncome
from gdod.data.sets.drugs import DrugConsumption
from gdod.data.sets.ijcai15 import Ijcai15
from gdod.data.sets.source import Source

_ALL: tuple[Source, ...] = (CensusIncome(), BookCrossing(), Ijcai15(), DrugConsumption(), SimulatedAds())

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
