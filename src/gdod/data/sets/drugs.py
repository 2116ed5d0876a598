"""Drug consumption: 1,885 people, and which of twelve substances each has used within the last year.

https://archive.ics.uci.edu/dataset/373/drug+consumption+quantified. One file without a header: an id, twelve numbers on
a person, and for each of 19 substances when it was last used, from CL0 (never) to CL6 (the last day).
"""

import io
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from gdod.data.sets.options import Options
from gdod.data.sets.published import BadRows, Published, PublishedSet, reading_notes
from gdod.data.sets.source import RawTables
from gdod.data.tables.table_schema import TableSchema
from gdod.errors import InputError

VERSION = 1
FILE = "drug_consumption.data"
ROWS = 1_885
PERSON = ("age", "gender", "education", "country", "ethnicity", "n", "e", "o", "a", "c", "imp", "ss")
"""Numbers on a person: five facts, and scores of neuroticism, extraversion, openness, agreeableness,
conscientiousness, impulsiveness and sensation seeking."""
SUBSTANCES = (
    "Alcohol",
    "Amphet",
    "Amyl",
    "Benzos",
    "Caff",
    "Cannabis",
    "Choc",
    "Coke",
    "Crack",
    "Ecstasy",
    "Heroin",
    "Ketamine",
    "Legalh",
    "LSD",
    "Meth",
    "Mushrooms",
    "Nicotine",
    "Semer",
    "VSA",
)
TASKS = tuple(name for name in SUBSTANCES if name not in ("Alcohol", "Caff", "Choc", "Crack", "Heroin", "Semer", "VSA"))
"""Substances that enough people have used, and enough have not."""
_COLUMNS = ("id", *PERSON, *SUBSTANCES)
_LAST_YEAR = ("CL3", "CL4", "CL5", "CL6")
_CLASSES = ("CL0", "CL1", "CL2", *_LAST_YEAR)


class DrugConsumption(PublishedSet):
    """The drug consumption data set, with twelve tasks. It has no options."""

    name = "drugs"
    title = "Drug consumption"
    files = (FILE,)
    archives = ("drug+consumption+quantified.zip",)

    def schema(self, options: Mapping[str, object]) -> TableSchema:
        Options(self.name, options).done()
        columns = {**dict.fromkeys(PERSON, "numeric"), **dict.fromkeys(TASKS, "label")}
        return TableSchema.model_validate({"columns": columns})

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        schema, (file,) = self.schema(options), self.find(folder).values()
        frame, bad = parse(file)
        used = [pl.col(name).is_in(_LAST_YEAR).cast(pl.Int8) for name in TASKS]
        notes = reading_notes(file, len(frame), ROWS, bad)
        return RawTables(frame.with_columns(used).select(*PERSON, *TASKS), None, schema, tuple(notes))

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        Options(self.name, options).done()
        return f"drugs {VERSION} {self.hashes(folder)}"


def parse(file: Published) -> tuple[pl.DataFrame, BadRows]:
    """Return all columns, those of a person as float64, and the rows left out."""
    expected = f"expected {len(_COLUMNS)} fields separated by commas, the last {len(SUBSTANCES)} from CL0 to CL6"
    try:
        text = file.read().decode("utf-8")
        table = pl.read_csv(
            io.StringIO(text), has_header=False, infer_schema=False, quote_char=None, truncate_ragged_lines=True
        )
    except (UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{file} cannot be read ({str(error).splitlines()[0]}); {expected}") from error
    if len(table.columns) != len(_COLUMNS):
        raise InputError(f"{file} has {len(table.columns)} fields a line; {expected}")
    table = table.rename(dict(zip(table.columns, _COLUMNS, strict=True)))
    table = table.with_columns(pl.col(PERSON).str.strip_chars().cast(pl.Float64, strict=False))
    numbers, classes = pl.col(PERSON).is_finite().fill_null(False), pl.col(SUBSTANCES).is_in(_CLASSES).fill_null(False)
    sound = table.select(pl.all_horizontal(numbers, classes)).to_series()
    if not sound.any():
        raise InputError(f"{file} has no sound row among its {len(table):,} lines; {expected}")
    bad = (~sound).arg_true()
    reason = "no number where one belongs, or a class other than CL0 to CL6"
    return table.filter(sound), BadRows(len(bad), int(bad[0]) + 1 if len(bad) else None, reason)
