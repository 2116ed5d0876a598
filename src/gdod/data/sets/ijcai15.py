"""IJCAI-15 (Tmall): whether a shopper who clicked an item makes it a favourite, and then buys it.

https://tianchi.aliyun.com/dataset/42, form 1: a log of events with dates but no times, and a table of
shoppers. One example for each (shopper, item) that was clicked.

Features are what is known when the item is first clicked: who, what, the date, and how often the
shopper and the item were clicked *before that date*. Nothing comes from favourites, carts or
purchases, nor from clicks on that date or later: who wants a thing clicks it again.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from gdod.data.sets.options import Options
from gdod.data.sets.published import BadRows, Published, PublishedSet, reading_notes
from gdod.data.sets.source import RawTables
from gdod.data.tables.table_schema import MISSING, TableSchema
from gdod.errors import InputError

Type = DataType | DataTypeClass
VERSION = 1
LOG, SHOPPERS = "user_log_format1.csv", "user_info_format1.csv"
ROWS = {LOG: 54_925_330, SHOPPERS: 424_170}
LOG_COLUMNS = ("user_id", "item_id", "cat_id", "seller_id", "brand_id", "time_stamp", "action_type")
SHOPPER_COLUMNS = ("user_id", "age_range", "gender")
WIDE: Mapping[str, Type] = {"time_stamp": pl.Int16, "action_type": pl.Int8}
SMALL: Mapping[str, Type] = {**dict.fromkeys(("cat_id", "seller_id", "brand_id"), pl.Int32), **WIDE}
"""Types of columns that halve the memory of the log, which has 55 million rows."""
CLICK, CART, PURCHASE, FAVOURITE = range(4)


class Ijcai15(PublishedSet):
    """The IJCAI-15 data set.

    Its options: ``conditional`` (buying is known of favourites only), ``seed`` of the split, ``test`` (share of the
    examples).
    """

    name = "ijcai15"
    title = "IJCAI-15 (Tmall)"
    files = (LOG, SHOPPERS)
    archives = ("data_format1.zip", "data_format1 .zip")  # Tianchi's own file has the space in its name

    def schema(self, options: Mapping[str, object]) -> TableSchema:
        return table_schema(*_options(options))

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        conditional, seed, test = _options(options)
        files = self.find(folder)
        events, notes = read_log(files[LOG])
        shoppers, more = read_shoppers(files[SHOPPERS])
        pairs, rest = examples(events, shoppers, conditional=conditional)
        return RawTables(pairs, None, table_schema(conditional, seed, test), (*notes, *more, *rest))

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        conditional, seed, test = _options(options)
        return f"ijcai15 {VERSION} conditional={conditional} seed={seed} test={test} {self.hashes(folder)}"


def read_log(file: Published) -> tuple[pl.DataFrame, list[str]]:
    """Return the events as whole numbers, and notes on those left out: without shopper, item, date or known action."""
    table, notes = _read_numbers(file, LOG, LOG_COLUMNS)
    month, day = pl.col("time_stamp") // 100, pl.col("time_stamp") % 100
    usable = (
        pl.col("user_id").is_not_null()
        & pl.col("item_id").is_not_null()
        & month.is_between(1, 12)
        & day.is_between(1, 31)
        & pl.col("action_type").is_between(CLICK, FAVOURITE)
    ).fill_null(False)
    events = table.filter(usable)
    if bad := len(table) - len(events):
        notes.append(f"{file.short}: left out {bad:,} events without a shopper, item, date or action from 0 to 3")
    missing = {name: int(events[name].null_count()) for name in ("cat_id", "seller_id", "brand_id")}
    notes += [f"{file.short}: {count:,} events without {name}" for name, count in missing.items() if count]
    if not len(events):
        raise InputError(f"{file} has no event that can be used; expected the columns {', '.join(LOG_COLUMNS)}")
    return events, notes


def read_shoppers(file: Published) -> tuple[pl.DataFrame, list[str]]:
    """Return age range and gender of shoppers, and notes; 0 and 2, which stand for "unknown" there, become null."""
    table, notes = _read_numbers(file, SHOPPERS, SHOPPER_COLUMNS)
    known = table.filter(pl.col("user_id").is_not_null()).unique("user_id", keep="first", maintain_order=True)
    if bad := len(table) - len(known):
        notes.append(f"{file.short}: left out {bad:,} rows without a shopper, or of a shopper who was there before")
    return known.with_columns(
        age_range=pl.when(pl.col("age_range") != 0).then("age_range"),
        gender=pl.when(pl.col("gender") != 2).then("gender"),
    ), notes


def examples(
    events: pl.DataFrame, shoppers: pl.DataFrame, *, conditional: bool = False
) -> tuple[pl.DataFrame, list[str]]:
    """Return one row for each clicked (shopper, item), in their order, with features and both labels, and notes.

    A purchase counts from the day of the first favourite on: the log has no times within a day.
    """
    pair = ["user_id", "item_id"]
    clicks = events.filter(pl.col("action_type") == CLICK)
    if not len(clicks):
        raise InputError("the log has no click (action_type 0); there is an example for each clicked item only")
    pairs = clicks.group_by(pair).agg(
        # The smallest of its values where they differ, so that the order of the log does not matter.
        pl.col("cat_id", "seller_id", "brand_id").min(),
        first_click=pl.col("time_stamp").min(),
    )
    favourites = _first(events.filter(pl.col("action_type") == FAVOURITE), pair, "favoured")
    purchases = events.filter(pl.col("action_type") == PURCHASE).join(favourites, on=pair)
    bought = _first(purchases.filter(pl.col("time_stamp") >= pl.col("favoured")), pair, "bought")
    pairs = (
        pairs.join(favourites, on=pair, how="left")
        .join(bought, on=pair, how="left")
        .join(shoppers, on="user_id", how="left")
        .join(_clicks_before(clicks, "user_id", "user_clicks"), on=["user_id", "first_click"], how="left")
        .join(_clicks_before(clicks, "item_id", "item_clicks"), on=["item_id", "first_click"], how="left")
    )
    labelled = pairs.with_columns(
        favourite=pl.col("favoured").is_not_null().cast(pl.Int8),
        buy=pl.col("bought").is_not_null().cast(pl.Int8),
        month=(pl.col("first_click") // 100).cast(pl.Int8),
    )
    if conditional:
        labelled = labelled.with_columns(buy=pl.when(pl.col("favourite") == 1).then("buy"))
    earlier = int((labelled["favoured"] < labelled["first_click"]).sum())
    made = labelled.drop("favoured", "bought").rename({"first_click": "date"}).sort(pair)
    return made, _example_notes(made, earlier)


def _first(events: pl.DataFrame, pair: list[str], name: str) -> pl.DataFrame:
    """Return the first day of an event for each pair that has one, in the column ``name``."""
    return events.group_by(pair).agg(pl.col("time_stamp").min().alias(name))


def _clicks_before(clicks: pl.DataFrame, whose: str, name: str) -> pl.DataFrame:
    """Return the number of clicks of each shopper (or item) before each day on which there is one."""
    return (
        clicks.group_by(whose, "time_stamp")
        .len()
        .sort(whose, "time_stamp")
        .select(
            whose,
            pl.col("time_stamp").alias("first_click"),
            (pl.col("len").cum_sum().over(whose) - pl.col("len")).cast(pl.Int32).alias(name),
        )
    )


def table_schema(conditional: bool, seed: int, test: float) -> TableSchema:
    categorical = ("user_id", "item_id", "cat_id", "seller_id", "brand_id", "age_range", "gender", "date", "month")
    columns: dict[str, object] = dict.fromkeys(categorical, "categorical")
    columns |= {name: {"type": "numeric", "scale": "log"} for name in ("user_clicks", "item_clicks")}
    columns["favourite"] = {"type": "label", "kind": "binary"}
    columns["buy"] = {"type": "label", "kind": "binary"} | ({"when": "favourite"} if conditional else {})
    split = {"by": "random", "seed": seed, "validation": 0.1, "test": test}
    return TableSchema.model_validate({"columns": columns, "split": split})


def _read_numbers(file: Published, name: str, columns: tuple[str, ...]) -> tuple[pl.DataFrame, list[str]]:
    """Return columns as whole numbers, without bad rows, and notes on these.

    "7069.0" is 7069. Ids take half the memory unless one of them is too large for that.

    A line is a row, whatever quotes or bytes it has, so that a bad one costs only itself.
    """
    with _on_disk(file) as path:
        try:
            header = _lines(path).head(1).collect()
            first = (header.item() if len(header) else None) or ""
            present = [field.strip(' "') for field in first.lstrip("\ufeff").split(",")]
            if missing := [column for column in columns if column not in present]:
                raise InputError(f"{file} has the columns {', '.join(present) or 'none'}; {', '.join(missing)} missing")
            # Of one field more than there are columns the last is null, unless the line is too long.
            fields = pl.col("line").str.split_exact(",", len(present)).alias("fields")
            split = _lines(path, skip=1).select(fields, empty=pl.col("line").is_null()).unnest("fields")
            for types in (SMALL, WIDE):
                numbers = _numbers(present, columns, types, quoted='"' in first)
                table = split.select(numbers).collect(engine="streaming")
                if not table["large"].any():
                    break
        except pl.exceptions.PolarsError as error:
            raise InputError(f"{file} cannot be read as a table ({str(error).splitlines()[0]})") from error
    lines = table["bad"].arg_true()
    kept = table.filter(~pl.col("bad")).drop("bad", "large")
    reason = f"not {len(present)} fields, or no whole number where one belongs"
    bad = BadRows(len(lines), lines[0] + 2 if len(lines) else None, reason)
    return kept, reading_notes(file, len(kept) + bad.count, ROWS[name], bad)


def _lines(path: Path, skip: int = 0) -> pl.LazyFrame:
    """Scan a file as one column of lines, null for an empty one. The separator is what no line has: its end."""
    return pl.scan_csv(
        path,
        has_header=False,
        skip_lines=skip,
        schema={"line": pl.String},
        separator="\n",
        quote_char=None,
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
        raise_if_empty=False,
        glob=False,
    )


def _numbers(present: list[str], columns: tuple[str, ...], types: Mapping[str, Type], quoted: bool) -> list[pl.Expr]:
    """Return expressions for each column, for whether the line is bad, and whether an id is too large for its type.

    Both are null for an empty line.
    """
    last, beyond = pl.col(f"field_{len(present) - 1}"), pl.col(f"field_{len(present)}")
    numbers, wrong, large = [], [last.is_null(), beyond.is_not_null()], [pl.lit(False)]
    for name in columns:
        text = pl.col(f"field_{present.index(name)}")
        if quoted:
            inside = text.str.strip_prefix('"').str.strip_suffix('"')
            text = pl.when(text.str.starts_with('"') & text.str.ends_with('"')).then(inside).otherwise(text)
        number = text.cast(pl.Float64, strict=False)
        numbers.append(number.cast(types.get(name, pl.Int64), strict=False).alias(name))
        if types.get(name) == pl.Int32:
            large.append(number.is_finite() & (number.cast(pl.Int32, strict=False) != number).fill_null(True))
        whole = (number == number.floor()) & number.is_finite()
        wrong.append(~whole.fill_null(False) & ~text.is_in(MISSING))
    there = pl.when(~pl.col("empty"))
    flags = {"bad": pl.any_horizontal(wrong), "large": pl.any_horizontal(large) & ~pl.any_horizontal(wrong)}
    return [*numbers, *(there.then(flag).alias(name) for name, flag in flags.items())]


@contextmanager
def _on_disk(file: Published) -> Iterator[Path]:
    """Give the path of the file, or of an unpacked copy while it is read: the log is too large to hold as text."""
    if not file.inside and file.path.suffix == ".csv":
        yield file.path
        return
    with tempfile.TemporaryDirectory(prefix="gdod-") as folder:
        path = Path(folder) / "table.csv"
        file.copy_to(path)
        yield path


def _example_notes(made: pl.DataFrame, earlier: int) -> list[str]:
    favoured = int(made["favourite"].sum())
    bought = int((made["buy"] == 1).sum())
    notes = [
        f"{len(made):,} clicked (shopper, item) pairs, {favoured:,} made favourites ({favoured / len(made):.1%}), "
        f"{bought:,} of those bought after it"
    ]
    if earlier:
        notes.append(f"{earlier:,} pairs were favourites before the day of their first click in the log; they count")
    if unknown := int((made["age_range"].is_null() & made["gender"].is_null()).sum()):
        notes.append(f"{unknown:,} pairs of shoppers without age and gender")
    return notes


def _options(options: Mapping[str, object]) -> tuple[bool, int, float]:
    given = Options("ijcai15", options)
    conditional = given.flag("conditional", False)
    seed = given.whole("seed", 0, at_least=0)
    test = given.number("test", 0.2, low=0.0, high=0.9)
    given.done()
    return conditional, seed, test
