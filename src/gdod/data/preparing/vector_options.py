"""Which file has vectors of a column's values, and what becomes of them."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class VectorOptions(BaseModel):
    """A file with vectors of a column's values. The name of a file alone is short for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path
    """A Parquet, CSV, TSV or NPZ file, see `gdod.data.preparing.vectors.read_vectors`."""
    frozen: bool = False
    """Whether a value with a vector has that alone; otherwise it also learns a difference from it, as all values learn
    their vectors."""

    @model_validator(mode="before")
    @classmethod
    def _long_form(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str | Path) else value
