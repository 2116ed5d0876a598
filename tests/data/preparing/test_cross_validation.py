"""Folds: each row tested once, groups whole, validation out of the other folds, and no label of a test row used."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from tests.data.clicks_table import clicks, schema, write

from gdod import InputError
from gdod.data import Dataset, FeatureOptions, Fold, load
from gdod.data.preparing.cross_validation import assign_fold
from gdod.data.preparing.split import TEST, VALIDATION
from gdod.data.tables.raw_table import FrameTable
from gdod.data.tables.table_schema import MISSING, Split


def parts(frame: pl.DataFrame, number: int, of: int = 5, validation: float = 0.1, **split: Any) -> NDArray[np.uint8]:
    fold = Fold(number=number, of=of)
    return assign_fold(FrameTable(frame, "t"), Split(**split), MISSING, fold, validation=validation).parts


@pytest.mark.parametrize("rows", [6, 1003, 70_001])
def test_each_row_is_tested_once_and_folds_are_even(rows: int) -> None:
    frame = pl.DataFrame({"x": np.zeros(rows)})
    placed = np.stack([parts(frame, number) for number in range(1, 6)])  # [5, rows]
    assert ((placed == TEST).sum(0) == 1).all()
    tests = (placed == TEST).sum(1)
    assert tests.max() - tests.min() <= 1
    assert ((placed == VALIDATION).sum(1) == np.round((rows - tests) * 0.1)).all()


def test_folds_go_by_the_seed_of_the_split_alone() -> None:
    frame = pl.DataFrame({"x": np.zeros(5000)})
    assert (parts(frame, 2, seed=3) == parts(frame, 2, seed=3)).all()
    assert ((parts(frame, 2, seed=3) == TEST) != (parts(frame, 2, seed=4) == TEST)).mean() > 0.2


def test_a_group_is_in_one_part_and_folds_have_about_the_same_number_of_rows() -> None:
    frame = clicks(3000)
    placed = np.stack([parts(frame, number, by="group", column="user") for number in range(1, 6)])
    assert ((placed == TEST).sum(0) == 1).all()
    for each in placed:
        together = frame.with_columns(part=pl.Series(each)).group_by("user").agg(pl.col("part").n_unique())
        assert together["part"].max() == 1
        assert np.bincount(each, minlength=3) / 3000 == pytest.approx([0.72, 0.08, 0.2], abs=0.03)


def test_what_cannot_be_cut_into_folds_is_refused() -> None:
    with pytest.raises(InputError, match=r"rows of later times.*Leave the folds out"):
        parts(clicks(100), 1, by="time", column="day")
    with pytest.raises(InputError, match=r"'city'.* has 3 different values; expected more than folds"):
        parts(clicks(100), 1, by="group", column="city")
    with pytest.raises(InputError, match="the table has 4 rows; expected more rows than folds"):
        parts(clicks(4), 1)
    with pytest.raises(InputError, match="fold is a tuple"):
        load(clicks(100), schema=schema(), fold=(1, 5))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fold 6 of 5"):
        Fold(number=6, of=5)


def fields(data: Dataset, part: str) -> NDArray[np.float32]:
    """Return all numbers of a part's examples, [n, ...], without labels."""
    (batch,) = [step.batch for step in getattr(data, part).batches(10_000)]
    return np.concatenate([batch.numeric.numpy(), batch.categorical.numpy()], 1)


@pytest.mark.parametrize("split", [{"by": "random"}, {"by": "group", "column": "user"}])
def test_labels_of_the_test_fold_change_nothing_that_a_model_is_given(split: dict[str, Any], tmp_path: Path) -> None:
    """Target statistics, vocabularies, scales and bins come from the other folds; with them, the test rows' labels."""
    frame = clicks(900)
    options = FeatureOptions(rare=1, rows_per_value=10_000, noise=True)
    tested = parts(frame, 2, **split) == TEST
    flipped = frame.with_columns(
        (pl.when(pl.Series(tested)).then(1 - pl.col(name)).otherwise(pl.col(name))).alias(name)
        for name in ("click", "buy")
    )
    given = {"schema": schema(split, user="categorical"), "features": options, "cache": tmp_path}
    one, other = (load(table, fold=Fold(number=2, of=5), **given) for table in (frame, flipped))  # type: ignore[arg-type]
    assert one.encoder.added is not None
    assert one.encoder.added.statistics
    assert len(one.test) == int(tested.sum())
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(fields(one, part), fields(other, part))
    # The same labels flipped in a training fold do change them, so the comparison can fail.
    (third,) = [load(flipped, fold=Fold(number=3, of=5), **given)]  # type: ignore[arg-type]
    assert not np.array_equal(fields(third, "test"), fields(load(frame, fold=Fold(number=3, of=5), **given), "test"))  # type: ignore[arg-type]


def test_folds_share_what_names_the_table_and_are_cached_each(tmp_path: Path) -> None:
    table = write(tmp_path)
    given: dict[str, Any] = {"schema": schema(), "cache": tmp_path / "cache"}
    whole = load(table, **given)
    first, second = (load(table, fold=Fold(number=number, of=3), **given) for number in (1, 2))
    assert (whole.fold, first.fold, second.fold) == (None, Fold(number=1, of=3), Fold(number=2, of=3))
    assert first.whole == second.whole == whole.fingerprint
    assert len({whole.fingerprint, first.fingerprint, second.fingerprint}) == 3
    assert (
        first.notes[0] == "fold 1 of 3: its 200 rows are the test part; of the other folds 360 rows are trained on "
        "and 40 are for validation"
    )


def test_a_test_table_of_its_own_is_not_looked_at(tmp_path: Path) -> None:
    """Its labels are none at all, which would be refused if it were read."""
    write(tmp_path, clicks(300), "log/train.csv")
    write(tmp_path, clicks(100).with_columns(click=pl.lit("neither")), "log/test.csv")
    files = schema({"by": "files", "test": "test.csv"})
    data = load(tmp_path / "log", schema=files, cache=tmp_path / "cache", fold=Fold(number=1, of=3))
    assert len(data.test) == 100
    assert len(data.train) + len(data.validation) == 200
    assert "the folds are those of the training table; the test table is not looked at" in data.notes
    with pytest.raises(InputError, match="neither"):
        load(tmp_path / "log", schema=files, cache=tmp_path / "cache")


def test_a_validation_file_stays_the_validation_part(tmp_path: Path) -> None:
    write(tmp_path, clicks(300), "log/train.csv")
    write(tmp_path, clicks(50, seed=1), "log/held.csv")
    files = schema({"by": "files", "validation": "held.csv", "test": 0})
    data = load(tmp_path / "log", schema=files, cache=tmp_path / "cache", fold=Fold(number=3, of=3))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [200, 50, 100]
