"""A data set as training takes it."""

from dataclasses import dataclass

from gdod.data.parts.part import Part
from gdod.data.preparing.encoder import Encoder
from gdod.schema import Schema, Task


@dataclass(frozen=True)
class Dataset:
    """Three parts of examples, what they hold, and the encoder that made them."""

    name: str
    schema: Schema
    """The fields of the model's input, for `gdod.models.build`."""
    tasks: tuple[Task, ...]
    train: Part
    validation: Part
    test: Part
    """The test part, which may be empty."""
    fingerprint: str
    """A hash of the content of the input, the table's schema, the options and the prepared form."""
    encoder: Encoder
    """The way from raw tables to ids and numbers."""
    notes: tuple[str, ...] = ()
    """Sentences for a person: missing values, differences from published counts, ..."""
