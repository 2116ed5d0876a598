"""The interface of a data set with a name: it reads its owner's files into tables with a schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from gdod.data.tables.table_schema import TableSchema


@dataclass(frozen=True)
class RawTables:
    """The tables of a data set as they were read, before anything is fitted or encoded."""

    train: pl.DataFrame | pl.LazyFrame
    test: pl.DataFrame | None
    """The owner's test table; None: the split of the schema takes test rows from ``train``."""
    schema: TableSchema
    notes: tuple[str, ...] = ()
    """Sentences for a person: rows left out, differences from published counts."""


class Source(Protocol):
    """A data set with a name, as `gdod.data.SOURCES` holds them."""

    @property
    def name(self) -> str:
        """The name that `gdod.data.load` knows it by."""

    @property
    def title(self) -> str:
        """The name as people write it."""

    def schema(self, options: Mapping[str, object]) -> TableSchema:
        """Return the schema of the tables without reading a file; raise for an unknown option."""

    def is_here(self, folder: Path | None = None, file: str | None = None) -> bool:
        """Return whether `read` would find its files, or the one named ``file``. Without a folder: as downloaded."""

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        """Read the tables from the files in ``folder``; without one, from where downloads are put."""

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        """Return a text that changes with the content of the files, the options and this code's version."""
