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
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from gdod.data.sets.options import Options
from gdod.data.sets.published import Published, find_all, hashes
from gdod.data.sets.source import RawTables
from gdod.data.tables.table_schema import MISSING, TableSchema
from gdod.errors import InputError

VERSION = 1
ARCHIVES = ("data_format1.zip", "data_format1 .zip")  # Tianchi's own file has the space in its name
LOG, SHOPPERS = "user_log_format1.csv", "user_info_format1.csv"
ROWS = {LOG: 54_925_330, SHOPPERS: 424_170}
LOG_COLUMNS = ("user_id", "item_id", "cat_id", "seller_id", "brand_id", "time_stamp", "action_type")
SHOPPER_COLUMNS = ("user_id", "age_range", "gender")
SMALL = {
    "cat_id": pl.Int32,
    "seller_id": pl.Int32,
    "brand_id": pl.Int32,
    "time_stamp": pl.Int16,
    "action_type": pl.Int8,
}
"""Types that half the memory of the log, which has 55 million rows."""
CLICK, CART, PURCHASE, FAVOURITE = range(4)


@dataclass(frozen=True)
class Ijcai15:
    """Options: ``conditional`` (buying is known of favourites only), ``seed``, ``test`` (share)."""

    name: str = "ijcai15"
    title: str = "IJCAI-15 (Tmall)"

    def schema(self, options: Mapping[str, object]) -> TableSchema:
        return table_schema(*_options(options))

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        conditional, seed, test = _options(options)
        files = _files(folder)
        events, notes = read_log(files[LOG])
        shoppers, more = read_shoppers(files[SHOPPERS])
        pairs, rest = examples(events, shoppers, conditional=conditional)
        return RawTables(pairs, None, table_schema(conditional, seed, test), (*notes, *more, *rest))

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        conditional, seed, test = _options(options)
        inputs = hashes(_files(folder).values())
        return f"ijcai15 {VERSION} conditional={conditional} seed={seed} test={test} {inputs}"


def read_log(file: Published) -> tuple[pl.DataFrame, list[str]]:
    """The events as whole numbers, those without a shopper, item, date or known action counted out."""
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
    """Age range and gender; 0 and 2, which stand for "unknown" there, as missing."""
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
    """One row for each clicked (shopper, item), in their order, with features and both labels.

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
    """The first day of such an event, for each pair that has one."""
    return events.group_by(pair).agg(pl.col("time_stamp").min().alias(name))


def _clicks_before(clicks: pl.DataFrame, whose: str, name: str) -> pl.DataFrame:
    """Clicks of each shopper (or item) before each day on which there is one."""
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
    categorical = (
        "user_id",
        "item_id",
        "cat_id",
        "seller_id",
        "brand_id",
        "age_range",
        "gender",
        "date",
        "month",
    )
    columns: dict[str, object] = dict.fromkeys(categorical, "categorical")
    columns |= {name: {"type": "numeric", "scale": "log"} for name in ("user_clicks", "item_clicks")}
    columns["favourite"] = {"type": "label", "kind": "binary"}
    columns["buy"] = {"type": "label", "kind": "binary"} | ({"when": "favourite"} if conditional else {})
    split = {"by": "random", "seed": seed, "validation": 0.1, "test": test}
    return TableSchema.model_validate({"columns": columns, "split": split})


def _read_numbers(file: Published, name: str, columns: tuple[str, ...]) -> tuple[pl.DataFrame, list[str]]:
    """The columns as whole numbers, bad rows counted out. "7069.0" is 7069; what is too large for its type is missing.

    A line is a row, whatever quotes or bytes it has, so that a bad one costs only itself.
    """
    with _on_disk(file) as path:
        try:
            header = _lines(path).head(1).collect()
            first = (header.item() if len(header) else None) or ""
            found = [field.strip(' "') for field in first.lstrip("\ufeff").split(",")]
            if missing := [column for column in columns if column not in found]:
                raise InputError(f"{file} has the columns {', '.join(found) or 'none'}; {', '.join(missing)} missing")
            # Of one field more than there are columns the last is null, unless the line is too long.
            fields = pl.col("line").str.split_exact(",", len(found)).alias("fields")
            split = _lines(path, skip=1).select(fields, empty=pl.col("line").is_null()).unnest("fields")
            table = split.select(_numbers(found, columns, quoted='"' in first)).collect(engine="streaming")
        except pl.exceptions.PolarsError as error:
            raise InputError(f"{file} cannot be read as a table ({str(error).splitlines()[0]})") from error
    bad = table["bad"].arg_true()
    kept = table.filter(~pl.col("bad")).drop("bad")
    notes = []
    if len(bad):
        reason = f"not {len(found)} fields, or no whole number where one belongs; the first is line {bad[0] + 2}"
        notes.append(f"{file.short}: left out {len(bad):,} bad rows ({reason})")
    return kept, notes + _row_notes(file, name, len(kept) + len(bad))


def _lines(path: Path, skip: int = 0) -> pl.LazyFrame:
    """One column of text, null for an empty line. The separator is a byte that no text has."""
    return pl.scan_csv(
        path,
        has_header=False,
        skip_lines=skip,
        schema={"line": pl.String},
        separator="\x01",
        quote_char=None,
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
        raise_if_empty=False,
        glob=False,
    )


def _numbers(found: list[str], columns: tuple[str, ...], quoted: bool) -> list[pl.Expr]:
    """Each column from the fields of a line, and whether the line is bad; that is null for an empty line."""
    last, beyond = pl.col(f"field_{len(found) - 1}"), pl.col(f"field_{len(found)}")
    numbers, wrong = [], [last.is_null(), beyond.is_not_null()]
    for name in columns:
        text = pl.col(f"field_{found.index(name)}")
        if quoted:
            inside = text.str.strip_prefix('"').str.strip_suffix('"')
            text = pl.when(text.str.starts_with('"') & text.str.ends_with('"')).then(inside).otherwise(text)
        number = text.cast(pl.Float64, strict=False)
        numbers.append(number.cast(SMALL.get(name, pl.Int64), strict=False).alias(name))
        whole = (number == number.floor()) & number.is_finite()
        wrong.append(~whole.fill_null(False) & ~text.is_in(MISSING))
    return [*numbers, pl.when(~pl.col("empty")).then(pl.any_horizontal(wrong)).alias("bad")]


@contextmanager
def _on_disk(file: Published) -> Iterator[Path]:
    """The file itself, or an unpacked copy while it is read: the log is too large to hold as text."""
    if not file.inside and file.path.suffix == ".csv":
        yield file.path
        return
    with tempfile.TemporaryDirectory(prefix="gdod-") as folder:
        path = Path(folder) / "table.csv"
        file.copy_to(path)
        yield path


def _row_notes(file: Published, name: str, rows: int) -> list[str]:
    return [] if rows == ROWS[name] else [f"{file.short}: {rows:,} rows; as published there are {ROWS[name]:,}"]


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


def _files(folder: Path | None) -> dict[str, Published]:
    return find_all("ijcai15", folder, (LOG, SHOPPERS), ARCHIVES)


def _options(options: Mapping[str, object]) -> tuple[bool, int, float]:
    given = Options("ijcai15", options)
    conditional = given.flag("conditional", False)
    seed = given.whole("seed", 0, at_least=0)
    test = given.number("test", 0.2, low=0.0, high=0.9)
    given.done()
    return conditional, seed, test
