"""How a data set with a name plugs in: it reads its owner's files into tables with a schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from gdod.data.tables.table_schema import TableSchema


@dataclass(frozen=True)
class RawTables:
    train: pl.DataFrame | pl.LazyFrame
    test: pl.DataFrame | None  # None: the schema's split cuts it off
    schema: TableSchema
    notes: tuple[str, ...] = ()


class Source(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def schema(self, options: Mapping[str, object]) -> TableSchema:
        """Of the tables, known without any file; an option that it does not know is refused."""
        ...

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        """The tables, from the files in ``folder``."""
        ...

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        """Changes with the content of the files, the options and this code's version. Cheap."""
        ...
