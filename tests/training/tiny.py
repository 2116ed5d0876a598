"""A small table with two or more tasks, as a file, as a frame and as a data set in memory."""

from pathlib import Path

import numpy as np
import polars as pl
import torch

from gdod.data.dataset import Dataset
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.scaling import Scaling
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.table_schema import TableSchema
from gdod.training import TrainConfig, check_config

CITIES = [f"city{number}" for number in range(8)]
ITEMS = [f"item{number}" for number in range(20)]
SCHEMA = """\
columns:
  city: categorical
  item: categorical
  age: numeric
  seen: {type: sequence, separator: " ", longest: 4}
  w: weight
  click: label
  buy: {type: label, when: click}
  id: ignore
split: {by: random, seed: 0, validation: 0.2, test: 0.2}
"""


def frame(rows: int, seed: int = 0) -> pl.DataFrame:
    """Return a table in which city and age decide clicks, and item and city (the other way) purchases after a click."""
    random = np.random.default_rng(seed)
    city, item = random.integers(8, size=rows), random.integers(20, size=rows)
    age = random.normal(40, 12, rows)
    click = (city - 3.5) / 2 + (age - 40) / 12 + random.normal(size=rows) > 0
    buy = click & ((item - 9.5) / 6 - (city - 3.5) / 3 + random.normal(size=rows) > 0)
    return pl.DataFrame(
        {
            "id": np.arange(rows),
            "city": [CITIES[one] for one in city],
            "item": [ITEMS[one] for one in item],
            "age": age,
            "seen": [" ".join(ITEMS[one] for one in random.integers(20, size=one % 5)) for one in item],
            "w": random.uniform(0.5, 1.5, rows),
            "click": click.astype(np.int8),
            "buy": buy.astype(np.int8),
        }
    )


def encoder(conditional: bool = True) -> Encoder:
    """Return the encoder of the table; ``conditional``: whether a purchase has a label only where there is a click."""
    schema = SCHEMA if conditional else SCHEMA.replace("{type: label, when: click}", "label")
    return Encoder(
        TableSchema.parse(schema, Path("schema.yaml")),
        {"city": Vocabulary(CITIES), "item": Vocabulary(ITEMS), "seen": Vocabulary(ITEMS)},
        {"age": Scaling("standard", 40.0, 12.0)},
        longest={"seen": 4},
    )


def dataset(
    rows: int = 1200, validation: int = 300, test: int = 300, seed: int = 0, *, conditional: bool = True
) -> Dataset:
    made = encoder(conditional)
    whole = frame(rows + validation + test, seed)
    return Dataset(
        name="tiny",
        schema=made.model_schema,
        tasks=made.tasks,
        train=made.encode(whole[:rows]),
        validation=made.encode(whole[rows : rows + validation]),
        test=made.encode(whole[rows + validation :]),
        fingerprint=f"tiny-{rows}-{seed}",
        encoder=made,
    )


def config(**settings: object) -> TrainConfig:
    """Return a configuration of a small, quick run, with these settings in place of its own.

    It leaves nothing to choose by the size of the data.
    """
    return check_config(small_settings(**settings))


def small_settings(**settings: object) -> dict[str, object]:
    """Return the settings of a small, quick run, with these in place of its own."""
    small: dict[str, object] = {
        "recipe": "paper",
        "data": "tiny",
        "model": {"name": "shared-bottom", "options": {"embedding": 4, "bottom": [16], "tower": [8], "dropout": 0.1}},
        "method": "sum",
        "optimizer": {"lr": 0.01},
        "batch": 64,
        "threads": 1,
        "device": "cpu",
        "log_every": 7,
        "tensorboard": False,
    }
    return {**small, **settings}


def same(one: object, other: object) -> bool:
    """Return whether two checkpoints hold the same, bit for bit, times left out."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        assert isinstance(other, dict)
        times = {"seconds", "recorded"}
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one if key not in times)
    if isinstance(one, list | tuple):
        return isinstance(other, type(one)) and len(one) == len(other) and all(map(same, one, other))
    return one == other
