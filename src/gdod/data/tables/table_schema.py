"""The schema of a table: what its columns are, and how it is split; written in Python, YAML or TOML.

columns:
  age:     numeric
  city:    {type: categorical, rare: 5}
  history: {type: sequence, separator: " ", longest: 50}
  seen_at: time
  click:   {type: label, kind: binary}
  buy:     {type: label, kind: binary, when: click}
  id:      ignore
split: {by: random, seed: 0, validation: 0.1, test: 0.2}
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from gdod._checks import listed, nearest
from gdod.data.tables.frames import is_pattern
from gdod.data.tables.times import Unit
from gdod.errors import InputError
from gdod.schema import Kind
from gdod.yaml_toml import PlainWordsLoader, parse_toml, parse_yaml

# Text that means "no value". A category that is really called NA needs a list of its own in `file`.
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")


def _text(value: object) -> str:
    """Return a value of YAML as text: 1 and true are a number and a truth value there, and text in a table."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(value: object) -> object:
    """Return a column's name, which may be a number, as text; other values as they are, to be refused later."""
    return _text(value) if isinstance(value, bool | int | float) else value


def _cell(value: object) -> str:
    """Return a value as `gdod.data.tables.values.text` writes cells, for comparison: "2" for 2.0, without spaces."""
    if value is None:
        return "null"  # as YAML has it without quotation marks
    return re.sub(r"^(-?\d+)\.0$", r"\1", _text(value).strip())


def _cells(values: object) -> object:
    return tuple(map(_cell, values)) if isinstance(values, list | tuple) else values


_Name = Annotated[str, BeforeValidator(_name)]
_Cells = Annotated[tuple[str, ...], BeforeValidator(_cells)]


class _Strict(BaseModel):
    """Base class that refuses unknown keys: a misspelled one would otherwise be ignored in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class CategoricalColumn(_Strict):
    """A column of text or whole numbers that name things; each value becomes an id."""

    type: Literal["categorical"] = "categorical"
    rare: int = Field(default=1, ge=1)
    """Values with fewer occurrences than this in the training part share the reserved id 0."""
    limit: int | None = Field(default=None, ge=1)
    """More values than this are refused. Without it: 10 million, or a column of values that all differ."""


class NumericColumn(_Strict):
    """A column of numbers, scaled to mean 0 and standard deviation 1 over the training part."""

    type: Literal["numeric"] = "numeric"
    scale: Literal["standard", "log", "none"] = "standard"
    """The scaling: "log" takes the logarithm first, for columns with a few very large values; "none" does nothing."""
    decimal: Literal[".", ","] = "."
    """The sign before the fraction, in text."""
    thousands: Literal[",", ".", " ", "'"] | None = None
    """The sign between groups of three digits, in text; None: there is none."""
    missing: _Cells = ()
    """Texts that mean "no value" in this column, besides those of the file."""

    @model_validator(mode="after")
    def _two_signs(self) -> Self:
        if self.decimal == self.thousands:
            raise ValueError(f"`decimal` and `thousands` are both {self.decimal!r}; they must differ")
        return self

    @model_serializer(mode="wrap")
    def _short(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the values without those that earlier versions did not know, so that fingerprints stay the same."""
        written: dict[str, Any] = values(self)
        for name in ("decimal", "thousands", "missing"):
            if getattr(self, name) == type(self).model_fields[name].default:
                written.pop(name, None)
        return written


class SequenceColumn(_Strict):
    """A column with several values in a row, such as "12 7 40", or a list in Parquet."""

    type: Literal["sequence"] = "sequence"
    separator: str = Field(default=" ", min_length=1)
    longest: int = Field(default=50, ge=1)
    """The most values of a row; of longer sequences the last values are kept."""
    rare: int = Field(default=1, ge=1)
    limit: int | None = Field(default=None, ge=1)


class TimeColumn(_Strict):
    """A column of dates or times. If features are made of the columns: hour, weekday, month and age are made of it.

    All times are taken in UTC, those without a zone too. A time that cannot be read counts as missing.
    """

    type: Literal["time"] = "time"
    format: str | None = None
    """The way a time is written, e.g. "%d/%m/%Y"; ISO dates need none."""
    unit: Unit | None = None
    """The unit of numbers that count from the beginning of 1970. Without it numbers are refused."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.format is not None and self.unit is not None:
            raise ValueError("`format` is for text and `unit` for numbers; give one of them")
        return self


class WeightColumn(_Strict):
    """A column that says how much an example counts; scaled to mean 1 over the training part."""

    type: Literal["weight"] = "weight"
    of: _Name | None = None
    """The label that it is the weight of, where that has one of its own; None: of all. An example that has both counts
    their product."""

    @model_serializer(mode="wrap")
    def _short(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the values without what earlier versions did not know, so that fingerprints stay the same."""
        written: dict[str, Any] = values(self)
        if self.of is None:
            written.pop("of", None)
        return written


class LabelColumn(_Strict):
    """A column to predict: one task."""

    type: Literal["label"] = "label"
    kind: Kind = "binary"
    when: _Name | None = None
    """The label exists only where this column is 1 or true."""
    positive: _Cells | None = None
    """For a binary task: the values that count as 1, all others as 0. Without it 0 and 1 are expected."""
    classes: _Cells | None = None
    """For a multiclass task: its values in order. Without it those of the training part, sorted."""

    @field_validator("positive", "classes", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        """Return one value as a list of one."""
        return value if value is None or isinstance(value, list | tuple) else [value]

    @field_validator("positive", mode="before")
    @classmethod
    def _spellings(cls, value: object) -> object:
        """Return a truth value, as YAML has it without quotation marks, in all its spellings."""
        if value is None:
            return value
        return [
            word
            for one in (value if isinstance(value, list | tuple) else [value])
            for word in ((str(one).lower(), str(one), str(one).upper()) if isinstance(one, bool) else (one,))
        ]

    @model_validator(mode="after")
    def _fits_kind(self) -> Self:
        if self.positive is not None and self.kind != "binary":
            raise ValueError(f"`positive` is for kind: binary, not {self.kind}")
        if self.classes is not None and self.kind != "multiclass":
            raise ValueError(f"`classes` is for kind: multiclass, not {self.kind}")
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError("`classes` needs at least two values, all different")
        return self


class IgnoredColumn(_Strict):
    """A column that is not used."""

    type: Literal["ignore"] = "ignore"


Column = CategoricalColumn | NumericColumn | SequenceColumn | TimeColumn | WeightColumn | LabelColumn | IgnoredColumn
COLUMN_TYPES: dict[str, type[_Strict]] = {kind.model_fields["type"].default: kind for kind in get_args(Column)}


class Split(_Strict):
    """The way rows become train, validation and test. Validation is always taken from what test leaves."""

    by: Literal["random", "time", "group", "files"] = "random"
    """The kind of split. time: the latest rows are test, the latest of the rest validation. group: all rows with
    the same value of `column` are in one part. files: `test` (and `validation`, if you have one) are files."""
    column: _Name | None = None
    format: str | None = None
    """The way a time is written, e.g. "%d/%m/%Y"; ISO dates and numbers need none."""
    seed: int = Field(default=0, ge=0)
    validation: float | str = 0.1
    """The share of the rows that test leaves, or a file."""
    test: float | str = 0.2
    """The share of all rows, or a file."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.by in ("time", "group") and self.column is None:
            raise ValueError(f"by: {self.by} needs `column`")
        if self.by in ("random", "files") and self.column is not None:
            raise ValueError(f"by: {self.by} has no use for `column`; use by: time or by: group")
        if self.format is not None and self.by != "time":
            raise ValueError("`format` is for by: time")
        for name in ("validation", "test"):
            share = getattr(self, name)
            if isinstance(share, str) and self.by != "files":
                raise ValueError(f"`{name}` is a file; then write by: files")
            if not isinstance(share, str) and not 0 <= share < 1:
                raise ValueError(f"`{name}` is {share}; expected a share from 0 to below 1")
        if self.by == "files" and not isinstance(self.test, str):
            if "test" in self.model_fields_set and self.test != 0:
                raise ValueError("by: files needs `test` as a file (or 0, for none)")
            object.__setattr__(self, "test", 0.0)
        return self


class FileFormat(_Strict):
    """The way a text file is written. Parquet needs none of it."""

    separator: str | None = Field(default=None, min_length=1, max_length=1)
    """None: a tab for .tsv; otherwise the one of comma, semicolon, tab and | that the header has most."""
    quote: str | None = Field(default='"', max_length=1)
    escape: str | None = Field(default=None, max_length=1)
    encoding: str = "utf-8"
    header: tuple[_Name, ...] | None = None
    """The names of the columns, for a file that does not begin with them."""
    missing: _Cells = MISSING
    """Texts that mean "no value"."""

    @field_validator("separator", "quote", "escape")
    @classmethod
    def _one_byte(cls, value: str | None) -> str | None:
        if value and (not value.isascii() or value in "\r\n\0"):
            raise ValueError(f"{value!r} cannot be used here; expected a sign of ASCII, such as a comma or a semicolon")
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            "".encode(value)
        except (LookupError, ValueError):
            raise ValueError(f"{value!r} is no encoding of text; expected e.g. utf-8, latin-1 or utf-16") from None
        return value


class TableSchema(_Strict):
    """The columns of a table and how it is split."""

    columns: dict[str, Annotated[Column, Field(discriminator="type")]] = Field(min_length=1)
    split: Split = Split()
    file: FileFormat = FileFormat()

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InputError(_explain(error)) from None

    @field_validator("columns", mode="before")
    @classmethod
    def _long_form(cls, value: object) -> object:
        """Return `age: numeric` as `age: {type: numeric}`."""
        if not isinstance(value, Mapping):
            return value
        return {_text(name): {"type": kind} if isinstance(kind, str) else kind for name, kind in value.items()}

    @model_validator(mode="after")
    def _has_what_training_needs(self) -> Self:
        self._check_weights()
        if not self.features:
            raise ValueError("no column is categorical, numeric or a sequence; a model needs at least one")
        if not isinstance(self.columns.get("", IgnoredColumn()), IgnoredColumn):
            raise ValueError("the column without a name can only be ignored; give it one: `file: {header: [...]}`")
        if patterns := [name for name in self.needed if is_pattern(name)]:
            raise ValueError(
                f"the column {patterns[0]!r} can only be ignored, since polars takes its name for a pattern; give it "
                "another one"
            )
        for name, label in self.of(LabelColumn).items():
            if label.when == name:
                raise ValueError(f"columns.{name}: `when` names the column itself")
        return self

    def _check_weights(self) -> None:
        """Raise unless there is at most one weight column for all labels, and one for each."""
        weights: dict[str, WeightColumn] = self.of(WeightColumn)
        for label in dict.fromkeys(column.of for column in weights.values()):
            of_it = [name for name, column in weights.items() if column.of == label]
            if len(of_it) > 1:
                raise ValueError(
                    f"more than one weight column{f' of {label!r}' if label else ''}: {', '.join(of_it)}"
                    + ("" if label else "; a weight of one label names it: `{type: weight, of: buy}`")
                )
            if label is not None and label not in self.labels:
                near = nearest(label, self.labels)
                raise ValueError(f"columns.{of_it[0]}: `of` names {label!r}, which is no label{near}")

    def of(self, kind: type[Any]) -> dict[str, Any]:
        """Return the columns of one type, by name."""
        return {name: column for name, column in self.columns.items() if isinstance(column, kind)}

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns that a model sees."""
        kinds = (CategoricalColumn, NumericColumn, SequenceColumn)
        return tuple(name for name, column in self.columns.items() if isinstance(column, kinds))

    @property
    def labels(self) -> dict[str, LabelColumn]:
        """The columns to predict, by name."""
        return self.of(LabelColumn)

    @property
    def weight(self) -> str | None:
        """The name of the weight column of all labels, if there is one."""
        return next((name for name, column in self.of(WeightColumn).items() if column.of is None), None)

    @property
    def label_weights(self) -> dict[str, str]:
        """The names of the weight columns of single labels, by label."""
        return {column.of: name for name, column in self.of(WeightColumn).items() if column.of is not None}

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of all columns that preparing the table reads."""
        names = [name for name, column in self.columns.items() if not isinstance(column, IgnoredColumn)]
        names += [label.when for label in self.labels.values() if label.when]
        names += [self.split.column] if self.split.column else []
        return tuple(dict.fromkeys(names))

    def check_columns(self, present: Iterable[str], where: str) -> None:
        """Raise if a table lacks a column of the schema; the error names the nearest that it has."""
        present = dict.fromkeys(present)
        for name in (*self.columns, *self.needed):
            if name not in present:
                raise InputError(f"{where} has no column {name!r}{nearest(name, present)}; it has {listed(present)}")

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the schema in a file that ends in .yaml, .yml or .toml."""
        path = Path(path)
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise InputError(f"the schema {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"the schema {path} is not UTF-8: {error}") from error
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Self:
        """Return the schema in a text; the ending of ``path`` tells YAML from TOML."""
        content: object
        if path.suffix == ".toml":
            content = parse_toml(text, f"the schema {path}")
        elif path.suffix in (".yaml", ".yml"):
            content = parse_yaml(text, f"the schema {path}", PlainWordsLoader)
        else:
            raise InputError(f"the schema {path} ends in {path.suffix!r}; expected .yaml, .yml or .toml")
        if not isinstance(content, dict):
            raise InputError(f"the schema {path} holds no keys; expected at least `columns:`")
        try:
            return cls(**{str(key): value for key, value in content.items()})
        except InputError as error:
            raise InputError(f"the schema {path}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `TableSchema(**values)` makes the same schema again."""
        return self.model_dump(mode="json")


_SECTIONS: dict[str, type[_Strict]] = {"split": Split, "file": FileFormat}


def _explain(error: ValidationError) -> str:
    """Return the first thing that is wrong, in words, with its place in the schema."""
    # A misspelled key says more than the key that is missing because of it.
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    path = [str(step) for step in first["loc"]]
    if len(path) > 2 and path[0] == "columns":
        tag = path.pop(2)  # pydantic puts the column's type between its name and its keys
        owner: type[BaseModel] = COLUMN_TYPES.get(tag, TableSchema)
    else:
        owner = _SECTIONS.get(path[0], TableSchema) if len(path) > 1 else TableSchema
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"{where}: the key {path[-1]!r} is unknown{nearest(path[-1], owner.model_fields)}; expected one of " + (
            listed(owner.model_fields)
        )
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kind = first.get("ctx", {}).get("tag")
        said = f"the type {kind!r} is unknown{nearest(str(kind), COLUMN_TYPES)}" if kind else "it has no `type`"
        return f"{where}: {said}; expected one of {listed(COLUMN_TYPES)}"
    if first["type"] == "literal_error":
        known = re.findall(r"'(.*?)'", first["ctx"]["expected"])
        given = first["input"]
        return f"{where}={given!r} is unknown{nearest(str(given), known)}; expected one of {listed(known)}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
