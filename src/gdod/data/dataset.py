"""A data set as training takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdod.data.parts.part import Part
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.fold import Fold
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
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """The vectors of the ids of columns that have some from a file, [cardinality + 1, p]; nan where there is none."""
    notes: tuple[str, ...] = ()
    """Sentences for a person: missing values, differences from published counts, ..."""
    fold: Fold | None = None
    """The fold of a cross-validation that is the test part; None: the test part is as the schema says."""
    whole: str | None = None
    """The fingerprint without the fold, which all folds of a table have in common; None: made before there were any."""
