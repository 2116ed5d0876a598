"""What training gets: the fields, the tasks, three parts, and how raw tables become ids."""

from dataclasses import dataclass

from gdod.data.parts.part import Part
from gdod.data.preparing.encoder import Encoder
from gdod.schema import Schema, Task


@dataclass(frozen=True)
class Dataset:
    name: str
    schema: Schema
    tasks: tuple[Task, ...]
    train: Part
    validation: Part
    test: Part  # may be empty
    fingerprint: str
    """Changes with the content of the input, the table's schema, the options and the prepared form."""
    encoder: Encoder
    notes: tuple[str, ...] = ()
    """What a person should know: missing values, differences from published counts, ..."""
