"""Load your own tables, and data sets with a name, as batches of tensors.

data = gdod.data.load("ads.csv", schema="ads.yaml")
for step in data.train.batches(256, seed=0):
    logits = model(step.batch)  # and step.labels, step.weights
"""

from gdod.data.dataset import Dataset
from gdod.data.inspection import Inspection, inspect
from gdod.data.loading import load, open_prepared, prepare
from gdod.data.parts.part import MemoryPart, Minibatch, Part
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.fold import Fold
from gdod.data.preparing.vector_options import VectorOptions
from gdod.data.sets import SOURCES
from gdod.data.sets.source import RawTables, Source
from gdod.data.stream import StreamPart
from gdod.data.tables.table_schema import TableSchema

__all__ = [
    "SOURCES",
    "Dataset",
    "Encoder",
    "FeatureOptions",
    "Fold",
    "Inspection",
    "MemoryPart",
    "Minibatch",
    "Part",
    "RawTables",
    "Source",
    "StreamPart",
    "TableSchema",
    "VectorOptions",
    "inspect",
    "load",
    "open_prepared",
    "prepare",
]
