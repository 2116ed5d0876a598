"""Looks at a table: what its columns hold, and what they are taken for. The result is a schema to edit."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from gdod._checks import listed, nearest
from gdod.data.preparing.vocabulary import ENOUGH, NEARLY_ALL
from gdod.data.tables.columns import list_texts
from gdod.data.tables.files import find_files
from gdod.data.tables.read import columns_of, read_chunks
from gdod.data.tables.table_schema import FileFormat, TableSchema
from gdod.data.tables.values import text, usable
from gdod.errors import InputError

# Enough to tell what a column holds; more rows are left alone, and the result says so.
MOST_ROWS = 1_000_000
# Whole numbers with at most so many different values are taken for names of things.
_FEW = 20

_LABEL = re.compile(
    r"(^|[_\W])(label|target|click(ed|s)?|visit(ed|s)?|conver(t|ted|sion|sions)|buy|bought|purchase[ds]?|order(ed)?|cart"
    r"|favou?rited?|liked?|shared?|follow(ed)?|comment(ed)?|forward(ed)?|subscribed?|install(ed)?)\d*$"
)
_TRUTH = re.compile(r"^true[_\W]")  # as `gdod data ads --truth` writes them
_WEIGHT = re.compile(r"^((sample|instance|example|case)[_\W])?weights?$")
_NAMES = re.compile(r"(^|[_\W])(id|ids|code|isbn|zip|zipcode|postcode|user|item|sku)$|[a-z]Id$|[a-z]ID$")
_TIME = re.compile(r"(^|[_\W])(time|timestamp|date|datetime|ts|created|updated)([_\W]at)?$")
_DATE = re.compile(r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?$")


@dataclass(frozen=True)
class ColumnReport:
    """What a column holds, and what it is taken for."""

    name: str
    type: str
    options: dict[str, Any]
    """What the schema says besides the type."""
    values: int
    """Different ones; in a sequence those of its members."""
    missing: int
    low: float | None = None
    high: float | None = None
    rate: float | None = None
    """Of a binary label: share of positive ones."""
    examples: tuple[str, ...] = ()
    why: str = ""
    """Why a column is ignored."""

    def summary(self, rows: int) -> str:
        """A few words, for a comment."""
        words = [f"{self.values:,} value{'s' * (self.values != 1)}"]
        if self.rate is not None:
            words = [f"{self.rate:.2%} positive"]
        elif self.low is not None and self.type in ("numeric", "weight", "label"):
            words = [f"{self.low:g} to {self.high:g}"]
        if self.missing:
            words.append(f"{self.missing:,} missing ({self.missing / rows:.1%})")
        return ", ".join([*words, *([self.why] if self.why else [])])


@dataclass(frozen=True)
class Inspection:
    source: str
    rows: int
    whole: bool
    """False: there are more rows, which were not looked at."""
    columns: tuple[ColumnReport, ...]
    format: FileFormat

    def schema(self) -> TableSchema:
        """The inferred schema; refused if there is no label to predict."""
        labels = [column.name for column in self.columns if column.type == "label"]
        if not labels:
            two = [column.name for column in self.columns if column.values == 2]
            raise InputError(
                f"{self.source}: no column looks like a label; name what is to be predicted (--label NAME, or "
                f"labels=[...]), or write a schema. Columns with two values: {listed(two)}"
            )
        return TableSchema(
            columns={column.name: {"type": column.type, **column.options} for column in self.columns},
            file=self.format,
        )

    def to_yaml(self) -> str:
        """A schema to edit, with what was found as comments."""
        looked = f"{self.rows:,} rows" if self.whole else f"the first {self.rows:,} rows"
        lines = [
            f"# From {looked} of {_printable(self.source)}. Change what is wrong:",
            "# categorical, numeric, sequence, weight, label (kind: binary, regression or multiclass) or ignore.",
            "columns:",
        ]
        if not any(column.type == "label" for column in self.columns):
            lines.insert(2, "# No column looks like a label: mark at least one, `name: {type: label, kind: binary}`.")
        entries = [(_entry(column), column.summary(self.rows)) for column in self.columns]
        width = min(60, max(len(entry) for entry, _ in entries))
        lines += [f"  {entry:<{width}}  # {_printable(summary)}" for entry, summary in entries]
        lines += ["split: {by: random, seed: 0, validation: 0.1, test: 0.2}"]
        changed = self.format.model_dump(mode="json", exclude_defaults=True)
        lines += [f"file: {_flow(changed)}"] if changed else []
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "rows": self.rows,
            "whole": self.whole,
            "columns": [asdict(column) for column in self.columns],
        }


def inspect(
    source: str | Path, *, labels: Iterable[str] = (), format: FileFormat | None = None, most_rows: int = MOST_ROWS
) -> Inspection:
    """Columns, types, numbers of values, missing values and label rates of a table.

    Args:
        source: a file, a folder of parts, or a pattern.
        labels: columns to predict. Without it: columns of 0 and 1 whose name says so, such as "click".
            With it such columns are ignored: they may give away what is to be predicted.
        most_rows: how many rows are looked at.
    """
    format, labels = format or FileFormat(), tuple(labels)
    files = find_files(source)
    names = columns_of(files, format)
    for label in labels:
        if label not in names:
            raise InputError(f"{source} has no column {label!r}{nearest(label, names)}; it has {listed(names)}")
    looks = [_Look(name, format.missing) for name in names]
    rows, whole = 0, True
    for chunk in read_chunks(files, format, names):
        frame = chunk.frame[: most_rows - rows]
        for look in looks:
            look.add(frame[look.name])
        rows, whole = rows + len(frame), whole and len(frame) == len(chunk.frame)
        if not whole:
            break
    if not rows:
        raise InputError(f"{source} has columns, {listed(names)}, but no rows")
    reports = tuple(look.report(rows, labels) for look in looks)
    return Inspection(str(source), rows, whole, reports, format)


class _Look:
    """What is known of a column after some chunks."""

    def __init__(self, name: str, missing: tuple[str, ...]) -> None:
        self.name, self.tokens = name, missing
        self.lists = self.temporal = False
        self.unusable = "" if name else "has no name, as the row numbers that some programs write"
        self.missing = 0
        self._counts: list[pl.DataFrame] = []

    def add(self, column: pl.Series) -> None:
        kind = column.dtype
        self.lists |= isinstance(kind, pl.List | pl.Array)
        self.temporal |= kind.is_temporal()
        if not usable(kind):
            self.unusable = f"holds {kind}, of which nothing can be made"
            column = pl.Series(self.name, [None], dtype=pl.String).new_from_index(0, len(column))
        if self.lists and usable(kind):
            found = list_texts(column, " ", self.tokens, 1 << 30)
            values, self.missing = found.values, self.missing + found.empty
        else:
            values = text(column, self.tokens)
            self.missing += values.null_count()
        counts = values.drop_nulls().rename("value").value_counts(name="count")
        self._counts.append(counts.with_columns(pl.col("count").cast(pl.UInt64)))
        if len(self._counts) > 16:
            self._counts = [self._merged()]

    def _merged(self) -> pl.DataFrame:
        return pl.concat(self._counts).group_by("value").agg(pl.col("count").sum())

    def report(self, rows: int, labels: tuple[str, ...]) -> ColumnReport:
        counts = self._merged().sort(["count", "value"], descending=[True, False])
        numbers = counts["value"].cast(pl.Float64, strict=False)
        numeric = not self.lists and len(counts) > 0 and numbers.null_count() == 0
        found = _Found(self.name, rows - self.missing, counts, numbers if numeric else None, self.lists, self.temporal)
        if self.unusable and self.name in labels:
            raise InputError(f"the label {self.name!r} {self.unusable}")
        guess = ("ignore", {}, self.unusable) if self.unusable else _label_type(found, labels) or _feature_type(found)
        type, options, why = guess
        return ColumnReport(
            self.name,
            type,
            options,
            len(counts) if type != "sequence" or self.lists else _members(counts["value"], options["separator"]),
            self.missing,
            float(numbers.min()) if numeric else None,  # type: ignore[arg-type]
            float(numbers.max()) if numeric else None,  # type: ignore[arg-type]
            _rate(counts, options) if type == "label" and options["kind"] == "binary" else None,
            tuple(counts["value"][:3].to_list()),
            why,
        )


@dataclass(frozen=True)
class _Found:
    name: str
    rows: int  # with a value
    counts: pl.DataFrame  # value, count; most frequent first
    numbers: pl.Series | None  # the values as numbers, if all of them are
    lists: bool
    temporal: bool

    @property
    def values(self) -> int:
        return len(self.counts)

    @property
    def two(self) -> bool:
        return set(self.counts["value"].str.to_lowercase()) in ({"0", "1"}, {"true", "false"})

    @property
    def all_differ(self) -> bool:
        return self.rows >= ENOUGH and self.values > NEARLY_ALL * self.rows


Guess = tuple[str, dict[str, Any], str]


def _label_type(found: _Found, labels: tuple[str, ...]) -> Guess | None:
    if found.name not in labels:
        if not found.two or not _LABEL.search(found.name.lower()):
            return None
        if labels:
            return "ignore", {}, "looks like another label: as a feature it may give the answer away"
        return "label", {"kind": "binary"}, ""
    if found.two:
        return "label", {"kind": "binary"}, ""
    if found.values == 2:
        return "label", {"kind": "binary", "positive": [found.counts["value"][1]]}, ""
    if found.numbers is not None and (found.values > _FEW or bool((found.numbers != found.numbers.floor()).any())):
        return "label", {"kind": "regression"}, ""
    if found.values > ENOUGH:
        raise InputError(f"the label {found.name!r} has {found.values:,} different texts; expected classes or numbers")
    return "label", {"kind": "multiclass"}, ""


def _feature_type(found: _Found) -> Guess:
    if _TRUTH.search(found.name.lower()):
        return "ignore", {}, "named as a truth: as a feature it may give the answer away"
    if found.lists:
        return "sequence", {}, ""
    if found.values < 2:
        return "ignore", {}, "says nothing: it never changes"
    if (
        found.temporal
        or _TIME.search(found.name.lower())
        or found.counts["value"][:50].str.contains(_DATE.pattern).all()
    ):
        return "ignore", {}, "a time: of use to split by"
    if found.numbers is not None:
        return _number_type(found, found.numbers)
    if separator := _separator(found):
        return "sequence", {"separator": separator}, ""
    if found.all_differ:
        return "ignore", {}, "nearly every row has another value"
    return "categorical", {}, ""


def _number_type(found: _Found, numbers: pl.Series) -> Guess:
    if _WEIGHT.search(found.name.lower()) and bool((numbers >= 0).all()):
        return "weight", {}, ""
    if bool((numbers != numbers.floor()).any()):
        return "numeric", {}, ""
    if _NAMES.search(found.name) or _NAMES.search(found.name.lower()):
        return ("ignore", {}, "nearly every row has another value") if found.all_differ else ("categorical", {}, "")
    return ("categorical", {}, "") if found.values <= _FEW else ("numeric", {}, "")


def _separator(found: _Found) -> str | None:
    """What stands between the members, if most values have several, out of fewer than there are values.

    A space also stands in names, and a comma in addresses, so there the members must be numbers.
    """
    values = found.counts["value"][:1000]
    for separator in ("|", ";", " ", ","):
        members = values.str.split(separator).explode(empty_as_null=True, keep_nulls=True).str.strip_chars()
        several = values.str.contains(separator, literal=True).mean()
        if not isinstance(several, float) or several < 0.5:
            continue
        numeric = members.cast(pl.Float64, strict=False).null_count() == 0
        if numeric or (separator in "|;" and members.n_unique() < len(values)):
            return separator
    return None


def _members(values: pl.Series, separator: str) -> int:
    return values.str.split(separator).explode(empty_as_null=True, keep_nulls=True).n_unique()


def _rate(counts: pl.DataFrame, options: dict[str, Any]) -> float:
    positive = options.get("positive") or ["1", "true", "True", "TRUE"]
    return int(counts.filter(pl.col("value").is_in(positive))["count"].sum()) / int(counts["count"].sum())


def _entry(column: ColumnReport) -> str:
    name = _flow(column.name)
    return f"{name}: {_flow({'type': column.type, **column.options}) if column.options else column.type}"


def _flow(value: object) -> str:
    """YAML on one line."""
    if isinstance(value, str):
        # What could be read as a number, a truth value or a sign of YAML gets quotation marks.
        plain = re.fullmatch(r"[A-Za-z_][\w ./-]*\w|[A-Za-z_]", value) and isinstance(yaml.safe_load(value), str)
        return value if plain else _printable(json.dumps(value, ensure_ascii=False))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value)


def _printable(words: str) -> str:
    """Signs that YAML takes for the end of a line, or has no place for, as it writes them: \\U00002028."""
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in words)
