"""An exported model without this library: its encoder written anew, in plain Python, from the files beside it.

`main` trains a small model, exports it, and compares what both say. docs/export.md explains the steps.
"""

import json
from datetime import UTC, datetime
from math import log1p
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pyarrow.parquet as pq

Row = dict[str, Any]


class Encoder:
    """Turns rows, values by column name, into the inputs of the program."""

    def __init__(self, path: Path) -> None:
        self.content = json.loads(path.read_text(encoding="utf-8"))
        self.columns = self.content["table"]["columns"]
        self.no_value = set(self.content["table"]["file"]["missing"])
        self.ids = {
            column: {value: place for place, value in enumerate(values, 1)}
            for column, values in self.content["vocabularies"].items()
        }
        self.added = self.content.get("added", {"kept": {}, "missing": [], "sources": [], "times": []})
        self.places = {
            column: {value: place for place, value in enumerate(values, 1)}
            for column, values in self.added.get("number_values", {}).items()
        }
        self.statistics: list[dict[int, list[float]]] = [{} for _ in self.added["sources"]]
        if self.statistics:
            for line in pq.read_table(path.with_suffix("").with_suffix(".statistics.parquet")).to_pylist():
                self.statistics[line["source"]][line["key"]] = line["numbers"]

    def encode(self, row: Row) -> dict[str, list[Any]]:
        """Return the ids and numbers of one row, in the order of the program's inputs."""
        row = {**row, **self.of_times(row)}
        inputs = self.content["inputs"]
        added = [float(self.number(row, column) is None) for column in self.added["missing"]]
        for source, table in zip(self.added["sources"], self.statistics, strict=True):
            added += self.statistic(source, table, row)
        scaled = [self.scaled(row, name) for name in self.content["scalings"]]
        return {
            "categorical": [self.shown(name, self.id(name, row.get(name))) for name in inputs["categorical"]],
            "numeric": [*scaled, *added],
            **{one["input"]: self.sequence(one["name"], row) for one in inputs["sequences"]},
        }

    def text(self, value: Any) -> str | None:
        """Return a value as text: a whole number without a fraction; None where there is none."""
        if value is None or (isinstance(value, float) and value != value):
            return None
        if isinstance(value, bool):
            return str(value).lower()
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        return None if text in self.no_value else text

    def id(self, column: str, value: Any) -> int:
        """Return the id of a value: its place in the vocabulary, 0 if it is missing, one above all if it is unknown."""
        text = self.text(value)
        if text is not None and column in self.places:
            return self.places[column].get(float(text), len(self.places[column]) + 1)
        return 0 if text is None else self.ids[column].get(text, len(self.ids[column]) + 1)

    def shown(self, column: str, id: int) -> int:
        """Return the id that the program sees: 0 for values that are unknown or too rare."""
        promoted: list[int] = self.added.get("promoted", {}).get(column, [])  # by updates of the run
        first: int = self.added["kept"].get(column, len(self.ids[column])) - len(promoted)
        if id in promoted:
            return first + 1 + promoted.index(id)
        return id if id <= first else 0

    def members(self, column: str, row: Row) -> list[int]:
        """Return the ids of the values of a sequence."""
        options, value = self.columns[column], row.get(column)
        values = value if isinstance(value, list) else (self.text(value) or "").split(options["separator"])
        return [self.id(column, one) for one in values if self.text(one) is not None][-options["longest"] :]

    def sequence(self, column: str, row: Row) -> list[int]:
        """Return the last ids that the program sees, filled up with 0."""
        length = self.content["longest"][column]
        shown = [id for id in (self.shown(column, id) for id in self.members(column, row)) if id][-length:]
        return shown + [0] * (length - len(shown))

    def number(self, row: Row, column: str) -> float | None:
        text = self.text(row.get(column))
        return None if text is None else float(text)

    def scaled(self, row: Row, column: str) -> float:
        """Return a number at the scale that the program knows; a missing one is the mean, 0."""
        number, how = self.number(row, column), self.content["scalings"][column]
        if number is None or not how["sd"]:
            return 0.0
        if how["scale"] == "log":
            number = log1p(abs(number)) * (1 if number > 0 else -1)
        return float(np.clip((number - how["mean"]) / how["sd"], -1e6, 1e6))

    def statistic(self, source: Row, table: dict[int, list[float]], row: Row) -> list[float]:
        """Return the target statistics of a column, of a pair of columns, or the means of a sequence's values."""
        first, *second = source["columns"]
        width = len(self.added["targets"]) + 1
        if self.columns.get(first, {}).get("type") == "sequence":
            keys = self.members(first, row)
        else:
            keys = [self.id(first, row.get(first))]
            for column in second:
                times = 2**28 if source.get("wide") else len(self.ids[column]) + 2
                keys = [keys[0] * times + self.id(column, row.get(column))]
        found = [table.get(hashed(key, source["buckets"]), [0.0] * width) for key in keys]
        means = np.mean(found, 0).tolist() if found else [0.0] * width
        return [*means[:-1], means[-1] / 5]

    def of_times(self, row: Row) -> Row:
        """Return the columns that are made of ISO dates and times, in UTC."""
        made: Row = {}
        for fields in self.added["times"]:
            text = self.text(row.get(fields["column"]))
            time = None if text is None else datetime.fromisoformat(text)
            if time is not None:
                time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
            for name, what in fields["made"].items():
                made[name] = None if time is None else self.aspect(time, what, fields)
        return made

    def aspect(self, time: datetime, what: str, fields: Row) -> float:
        if what == "age":
            microseconds = round(time.timestamp() * 1e6)
            return float((min(max(microseconds, fields["first"]), fields["last"]) - fields["first"]) / 86_400_000_000)
        return {"hour": time.hour, "weekday": time.isoweekday(), "month": time.month}[what]


def hashed(key: int, buckets: int | None) -> int:
    """Return the bucket of a key, if there are buckets (the finaliser of SplitMix64)."""
    if buckets is None:
        return key
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB % 2**64
    return (key ^ (key >> 31)) % buckets


def predict(program: Path, rows: list[Row]) -> dict[str, Any]:
    """Return the predictions of an exported program by task, for rows of values by column name."""
    encoder = Encoder(program.with_suffix(".encoder.json"))
    encoded = [encoder.encode(row) for row in rows]
    session = onnxruntime.InferenceSession(program)
    kinds = {"numeric": np.float32}
    inputs = {
        one.name: np.array([row[one.name] for row in encoded], kinds.get(one.name, np.int64))
        for one in session.get_inputs()
    }
    tasks = [one["name"] for one in encoder.content["outputs"]]
    return dict(zip(tasks, session.run(tasks, inputs), strict=True))


def main() -> float:
    """Return the largest difference between the exported program, with the encoder above, and the model itself."""
    import polars as pl

    from gdod import MultiTaskModel
    from gdod.training.export import export_run

    random = np.random.default_rng(0)
    user, item = random.integers(0, 300, 3000), random.integers(0, 40, 3000)
    click = random.normal(0, 1, 300)[user] + random.normal(0, 1, 40)[item] + random.normal(0, 1, 3000) > 0
    frame = pl.DataFrame(
        {
            "user": user,
            "item": [f"i{number}" for number in item],
            "price": [None if number % 7 == 0 else number * 1.25 for number in item],
            "seen": ["|".join(f"i{one}" for one in random.integers(0, 50, number % 5)) for number in item],
            "at": [f"2024-05-{1 + row % 30:02d} {row % 24:02d}:00:00" for row in range(3000)],
            "click": click.astype(int),
            "paid": click * item * 0.5,
        }
    )
    settings = {"data.cache": "cache", "data.features.keys": 500}
    model = MultiTaskModel(epochs=1, threads=1, verbose=False, settings=settings)
    model.fit(frame.head(1500), labels=["click", "paid"]).update(frame.tail(1500))
    new = frame.head(500).with_columns(user=pl.Series(range(250, 750)))  # some users are unknown
    new.write_parquet("new.parquet")
    export_run(model.run_, Path("model.onnx"), table="new.parquet", overwrite=True)
    ours, theirs = predict(Path("model.onnx"), new.to_dicts()), model.predict_proba(new)
    return max(float(np.abs(ours[task] - theirs[task].to_numpy()).max()) for task in theirs.columns)


if __name__ == "__main__":
    difference = main()
    print(f"the largest difference is {difference:.1g}")
    assert difference < 1e-4
