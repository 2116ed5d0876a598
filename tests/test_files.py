"""Files of JSON that may be damaged, and text that is written whole."""

from pathlib import Path

import pytest

from gdod._files import read_json, read_json_lines, try_read_json, whole, write_text
from gdod.errors import InputError


def test_an_object_is_read_and_everything_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"auc": NaN, "loss": 0.5}')
    assert try_read_json(path) == ({"auc": None, "loss": 0.5}, None)
    path.write_text('{"auc": 0.')
    assert try_read_json(path) == (None, "a.json cannot be read: JSONDecodeError")
    path.write_text("[" * 100_000)
    assert try_read_json(path) == (None, "a.json cannot be read: RecursionError")
    path.write_text("[1, 2]")
    assert try_read_json(path) == (None, "a.json holds no object")
    with pytest.raises(InputError, match=r"a\.json holds a list; expected a result"):
        read_json(path, "a result")


def test_a_missing_file_is_nothing_wrong_unless_it_is_needed(tmp_path: Path) -> None:
    assert try_read_json(tmp_path / "a.json") == (None, None)
    assert read_json_lines(tmp_path / "a.jsonl") == ([], 0)
    with pytest.raises(InputError, match="is missing; expected a result"):
        read_json(tmp_path / "a.json", "a result")


def test_damaged_lines_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1, "loss": Infinity}\n\n[1]\n{"step": 2}\n{"st\xff\n{"step": 3}\n{"step"')
    assert read_json_lines(path) == ([{"step": 1, "loss": None}, {"step": 2}, {"step": 3}], 3)


def test_text_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "größer\n")
    assert path.read_text("utf-8") == "größer\n"
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text("utf-8") == "größer\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), OSError("No space left on device (os error 28)")],
    ids=["of the system", "of a library"],
)
def test_a_disk_that_is_full_names_the_file(tmp_path: Path, error: OSError) -> None:
    def fail() -> None:
        with whole(tmp_path / "x.csv"):
            raise error

    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: '.*x\.csv'$"):
        fail()
    assert not list(tmp_path.iterdir())
