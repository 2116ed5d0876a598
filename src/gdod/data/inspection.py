"""Look at a table, guess what its columns are, and write a schema to edit."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from gdod._checks import listed, nearest
from gdod.data.label_words import positive_values
from gdod.data.preparing.vocabulary import ENOUGH, NEARLY_ALL, ValueCounts
from gdod.data.tables.columns import list_texts
from gdod.data.tables.files import find_files
from gdod.data.tables.frames import AnyFrame, as_frame, is_pattern
from gdod.data.tables.raw_table import FrameTable
from gdod.data.tables.read import columns_of, read_chunks
from gdod.data.tables.table_schema import FileFormat, TableSchema
from gdod.data.tables.times import moments
from gdod.data.tables.values import text, usable
from gdod.data.written_numbers import WrittenNumbers, written_numbers
from gdod.errors import InputError

_LONGEST_NAME = 1000  # signs
# Enough to tell what a column holds; more rows are left alone, and the result says so.
MOST_ROWS = 1_000_000
# Whole numbers with at most so many different values are taken for names of things.
_FEW = 20
# Whole numbers that occur so often each, on average, may be names of things.
_OFTEN = 3

_LABEL = re.compile(
    r"(^|[_\W])(label|target|click(ed|s)?|visit(ed|s)?|conver(t|ted|sion|sions)|buy|bought|purchase[ds]?|order(ed)?|cart"
    r"|favou?rited?|liked?|shared?|follow(ed)?|comment(ed)?|forward(ed)?|subscribed?|install(ed)?)\d*$"
)
_TRUTH = re.compile(r"^true[_\W]")  # as `gdod data ads --truth` writes them
_WEIGHT = re.compile(r"^((sample|instance|example|case)[_\W])?weights?$")
_NAMES = re.compile(
    r"(^|[_\W])(id|ids|code|isbn|zip|zipcode|postcode|user|item|sku|customer|product|ad"
    r"|advertiser|campaign|creative|category|brand|seller|merchant|shop|store|publisher|channel|region|segment|usuario|cliente|producto|utilisateur"
    r"|client|produit|benutzer|nutzer|kunde|artikel|utente|prodotto|пользователь|клиент|товар|użytkownik|用户|商品"
    r"|ユーザー)$|[a-z]Id$|[a-z]ID$"
)
_TIME = re.compile(r"(^|[_\W])(time|timestamp|date|datetime|ts|created|updated)([_\W]at)?$")
_DATE = re.compile(r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?$")
_CLOCK = re.compile(r"\d[:/.-]\d")
_EARLIEST = 1e7  # numbers of a time are seconds from 1970 on, or written as 19000101
# Of the rows of a binary label so many, or a single one, may hold a third value: that is a slip, not a class.
_ODD_LABELS = 0.01
_SPELLINGS = 8  # of two words, such as yes, Yes and YES


@dataclass(frozen=True)
class ColumnReport:
    """The values of a column in short, and the type that it is taken for."""

    name: str
    type: str
    options: dict[str, Any]
    """The keys of the column in the schema besides its type."""
    values: int
    """The number of different values; for a sequence, of its members."""
    missing: int
    """The number of rows without a value."""
    low: float | None = None
    high: float | None = None
    """The smallest and the largest finite number, if it is a column of numbers."""
    rate: float | None = None
    """The share of positive labels, for a binary label; None if it is not known which value counts as 1."""
    examples: tuple[str, ...] = ()
    """The most frequent values."""
    why: str = ""
    """The reason why a column is ignored, or what has to be said about it."""

    def summary(self, rows: int) -> str:
        """Return the values of the column in a few words; ``rows``: the number of rows looked at."""
        words = [f"{self.values:,} value{'s' * (self.values != 1)}"]
        if self.rate is not None:
            words = [f"{self.rate:.2%} positive{self._positive}"]
        elif self.low is not None and self.type in ("numeric", "weight", "label"):
            words = [f"{self.low:g} to {self.high:g}"]
        if self.missing:
            words.append(f"{self.missing:,} missing ({self.missing / rows:.1%})")
        return ", ".join([*words, *([self.why] if self.why else [])])

    @property
    def _positive(self) -> str:
        """The value that counts as 1, if it is a word."""
        return f" ({', '.join(self.options['positive'])})" if "positive" in self.options else ""

    @property
    def unclear(self) -> bool:
        """Whether it is a binary label of which nobody has said yet which value counts as 1."""
        return self.type == "label" and self.options["kind"] == "binary" and self.rate is None


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`: a report on each column, from which a schema can be made."""

    source: str
    rows: int
    """The number of rows looked at."""
    whole: bool
    """Whether these are all rows of the table."""
    columns: tuple[ColumnReport, ...]
    format: FileFormat

    def schema(self) -> TableSchema:
        """Return the inferred schema; raise if no column looks like a label, or a label needs a decision."""
        labels = [column.name for column in self.columns if column.type == "label"]
        if not labels:
            two = [column.name for column in self.columns if column.values == 2]
            raise InputError(
                f"{self.source}: no column looks like a label; name what is to be predicted (--label NAME, or "
                f"labels=[...]), or write a schema. Columns with two values: {listed(two)}"
            )
        for column in self.columns:
            if column.unclear:
                raise InputError(
                    f"{self.source}: the label {column.name!r}: {column.why}. Write a schema to say so: gdod data "
                    f"inspect ... --label {column.name} --out schema.yaml (in Python: inspect(...).to_yaml())"
                )
        return TableSchema(
            columns={column.name: {"type": column.type, **column.options} for column in self.columns},
            file=self.format,
        )

    def to_yaml(self) -> str:
        """Return the inferred schema as YAML to edit, with the reports on columns as comments."""
        looked = f"{self.rows:,} rows" if self.whole else f"the first {self.rows:,} rows"
        lines = [
            f"# From {looked} of {_printable(self.source)}. Change what is wrong:",
            "# categorical, numeric, sequence, time, weight, label (kind: binary, regression or multiclass) or ignore.",
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
        """Return the reports as plain values, for `json.dump`."""
        return {
            "source": self.source,
            "rows": self.rows,
            "whole": self.whole,
            "columns": [asdict(column) for column in self.columns],
        }


def inspect(
    source: str | Path | AnyFrame,
    *,
    labels: Iterable[str] = (),
    format: FileFormat | None = None,
    most_rows: int = MOST_ROWS,
) -> Inspection:
    """Return columns, types, numbers of values, missing values and label rates of a table.

    Args:
        source: a file, a folder of parts, a pattern, or a table in memory: polars, pandas or pyarrow.
        labels: columns to predict. Without it: columns of 0 and 1 whose name says so, such as "click".
            With it such columns are ignored: they may give away what is to be predicted.
        format: the way text files are written; None: the usual one, with a guessed separator.
        most_rows: the number of rows to look at, from the first on.
    """
    format, labels = format or FileFormat(), tuple(labels)
    if isinstance(source, str | Path):
        files = find_files(source)
        where, names = str(source), columns_of(files, format)
        chunks = read_chunks(files, format, names)
    else:
        table = FrameTable(as_frame(source), "the table")
        where, names = table.where, tuple(table.frame.columns)
        chunks = table.chunks(names)
    for label in labels:
        if label not in names:
            raise InputError(f"{where} has no column {label!r}{nearest(label, names)}; it has {listed(names)}")
    columns = [_Column(name, format.missing) for name in names]
    rows, whole = 0, True
    for chunk in chunks:
        frame = chunk.frame[: most_rows - rows]
        for column in columns:
            column.add(frame[column.name])
        rows, whole = rows + len(frame), whole and len(frame) == len(chunk.frame)
        if not whole:
            break
    if not rows:
        raise InputError(f"{where} has columns, {listed(names)}, but no rows")
    reports = tuple(column.report(labels) for column in columns)
    return Inspection(where, rows, whole, reports, format)


class _Column:
    """The values of a column, counted chunk by chunk; its type is guessed from them."""

    def __init__(self, name: str, missing: tuple[str, ...]) -> None:
        self.name, self.tokens = name, missing
        self.lists = self.temporal = self.categories = False
        self.unusable = "" if name else "has no name, as the row numbers that some programs write"
        if is_pattern(name):
            self.unusable = "has a name that polars takes for a pattern"
        self.missing = 0
        self._counts = ValueCounts()

    def add(self, column: pl.Series) -> None:
        kind, column = column.dtype, column.alias("")
        self.lists |= isinstance(kind, pl.List | pl.Array)
        self.temporal |= kind.is_temporal()
        self.categories |= kind in (pl.Categorical, pl.Enum)
        if not usable(kind):
            self.unusable = f"holds {kind}, of which nothing can be made"
            column = pl.Series([None], dtype=pl.String).new_from_index(0, len(column))
        if self.lists and usable(kind):
            lists = list_texts(column, " ", self.tokens, 1 << 30)
            values, self.missing = lists.values, self.missing + lists.empty
        else:
            values = text(column, self.tokens)
            self.missing += values.null_count()
        self._counts.add(values.drop_nulls())

    @cached_property
    def counts(self) -> pl.DataFrame:
        """The columns "value" and "count" after the last chunk, the most frequent value first."""
        return self._counts.merged().sort(["count", "value"], descending=[True, False])

    @cached_property
    def written(self) -> WrittenNumbers | None:
        """The numbers among the values, if it is a column of numbers."""
        return None if self.lists or self.counts.is_empty() else written_numbers(self.counts, _FEW)

    @property
    def numbers(self) -> pl.Series | None:
        """The different numbers, if it is a column of numbers."""
        return None if self.written is None else self.written.known

    @cached_property
    def two(self) -> pl.DataFrame:
        """`counts` without values that hardly occur, if two are left that make a binary label; else all."""
        rows = int(self.counts["count"].sum())
        most = max(1, int(_ODD_LABELS * rows))
        if rows - int(self.counts["count"][:_SPELLINGS].sum()) > most:
            return self.counts
        usual = self.counts.filter(pl.col("count") > most)
        odd = rows - int(usual["count"].sum())
        return usual if odd <= most and positive_values(usual["value"]) else self.counts

    @property
    def values(self) -> int:
        """The number of different values."""
        return len(self.counts)

    @property
    def positive(self) -> tuple[str, ...]:
        """What counts as 1, if the values are two words, in any spelling, and it is plain."""
        return positive_values(self.two["value"])

    @property
    def binary(self) -> bool:
        """Whether the values are 0 and 1, or true and false: then a schema need not say which counts as 1."""
        return set(self.two["value"].str.to_lowercase()) in ({"0", "1"}, {"true", "false"})

    @property
    def odd_label(self) -> str:
        """What does not fit a binary label, and in how many rows."""
        odd = self.counts.join(self.two, on="value", how="anti", maintain_order="left")
        if odd.is_empty():
            return ""
        rows, refused = int(odd["count"].sum()), "refused" if self.binary else "taken as 0"
        return f"{odd['value'][0]!r} does not fit, in {rows:,} row{'s' * (rows != 1)}: {refused}"

    @property
    def a_time(self) -> bool:
        """Whether the values are times; of numbers and odd spellings, the column's name must say so, too."""
        first = self.counts["value"][:50]
        if self.temporal or first.str.contains(_DATE.pattern).all():
            return True
        if not _TIME.search(self.name.lower()):
            return False
        if self.numbers is not None:
            return bool((self.numbers >= _EARLIEST).all())
        return first.str.contains(_CLOCK.pattern).all()

    @property
    def all_differ(self) -> bool:
        rows = int(self.counts["count"].sum())
        return rows >= ENOUGH and self.values > NEARLY_ALL * rows

    def report(self, labels: tuple[str, ...]) -> ColumnReport:
        """Return the report on the column, in a table with these labels to predict."""
        if self.unusable and self.name in labels:
            raise InputError(f"the label {self.name!r} {self.unusable}")
        unusable: Guess | None = ("ignore", {}, self.unusable) if self.unusable else None
        type, options, why = unusable or _label_type(self, labels) or _feature_type(self)
        values = self.counts["value"]
        numbers = None if self.written is None else self.written.finite
        known = numbers is not None and not numbers.is_empty()
        return ColumnReport(
            self.name,
            type,
            options,
            self.values if type != "sequence" or self.lists else _members(values, options["separator"]),
            self.missing,
            float(numbers.min()) if known else None,  # type: ignore[arg-type, union-attr]
            float(numbers.max()) if known else None,  # type: ignore[arg-type, union-attr]
            _rate(self.counts, self.positive) if type == "label" and options["kind"] == "binary" else None,
            tuple(values[:3].to_list()),
            why,
        )


Guess = tuple[str, dict[str, Any], str]


def _label_type(column: _Column, labels: tuple[str, ...]) -> Guess | None:
    if column.name not in labels:
        if not column.positive or not _LABEL.search(column.name.lower()):
            return None
        if labels:
            return "ignore", {}, "looks like another label: as a feature it may give the answer away"
    if column.binary:
        return "label", {"kind": "binary"}, column.odd_label
    if column.positive:
        return "label", {"kind": "binary", "positive": list(column.positive)}, column.odd_label
    fractions = column.numbers is not None and bool((column.numbers != column.numbers.floor()).any())
    if column.values == 2 and not fractions:
        one, other = (_flow([value]) for value in column.counts["value"])
        return "label", {"kind": "binary"}, f"which value counts as 1 has to be said, `positive: {one}` or {other}"
    if fractions or (column.numbers is not None and column.values > _FEW):
        return "label", {"kind": "regression"}, ""
    if column.values > ENOUGH:
        raise InputError(
            f"the label {column.name!r} has {column.values:,} different texts; expected classes or numbers"
        )
    return "label", {"kind": "multiclass"}, ""


def _feature_type(column: _Column) -> Guess:
    if _TRUTH.search(column.name.lower()):
        return "ignore", {}, "named as a truth: as a feature it may give the answer away"
    if column.lists:
        return "sequence", {}, ""
    if column.values < 2:
        return "ignore", {}, "says nothing: it never changes"
    if column.a_time:
        # Not by its name alone: numbers may count from anywhere, and a span is no moment.
        read = column.written is None and moments(column.counts["value"][:50], ()).null_count() == 0
        return ("time", {}, "") if read else ("ignore", {}, "a time: of use to split by")
    if column.categories:  # the table says so itself, also where they look like numbers
        return ("ignore", {}, "nearly every row has another value") if column.all_differ else ("categorical", {}, "")
    if column.written is not None:
        return _number_type(column, column.written)
    if separator := _separator(column):
        return "sequence", {"separator": separator}, ""
    if column.all_differ:
        return "ignore", {}, "nearly every row has another value"
    return "categorical", {}, ""


def _number_type(column: _Column, written: WrittenNumbers) -> Guess:
    numbers = written.known
    if _WEIGHT.search(column.name.lower()) and bool((numbers >= 0).all()):
        return "weight", {}, written.note
    if bool((numbers != numbers.floor()).any()):
        return "numeric", written.options, written.note
    if _NAMES.search(column.name) or _NAMES.search(column.name.lower()):
        return ("ignore", {}, "nearly every row has another value") if column.all_differ else ("categorical", {}, "")
    if column.values <= _FEW:
        return "categorical", {}, ""
    often = int(column.counts["count"].sum()) >= _OFTEN * column.values
    hint = "whole numbers: if they are names of things, write categorical" if often and not written.form else ""
    return "numeric", written.options, written.note or hint


def _separator(column: _Column) -> str | None:
    """Return the separator of members, if most values have several, out of fewer than there are values.

    A space also stands in names, and a comma in addresses, so there the members must be numbers.
    """
    values = column.counts["value"][:1000]
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


def _rate(counts: pl.DataFrame, positive: tuple[str, ...]) -> float | None:
    if not positive:
        return None
    return int(counts.filter(pl.col("value").is_in(list(positive)))["count"].sum()) / int(counts["count"].sum())


def _entry(column: ColumnReport) -> str:
    name, kind = _flow(column.name), _flow({"type": column.type, **column.options}) if column.options else column.type
    # YAML takes longer names for no names unless they are marked.
    return f"{name}: {kind}" if len(name) < _LONGEST_NAME else f"? {name}\n  : {kind}"


def _flow(value: object) -> str:
    """Return a value as YAML on one line."""
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
    """Return words with signs that YAML takes for the end of a line, or has no place for, as \\U00002028."""
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in words)
