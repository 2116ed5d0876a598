"""Prepared data is put into the cache whole, whatever other processes do there."""

import shutil
from pathlib import Path

import pytest

import gdod.data.preparing.cache as cache


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "removed by another process"])
def test_a_damaged_folder_is_replaced(gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "prepared" / "abc"
    target.mkdir(parents=True)
    (target / "old").write_text("half of it")

    def is_whole(folder: Path) -> bool:
        if gone:
            shutil.rmtree(folder, ignore_errors=True)
        return False

    def build(work: Path) -> None:
        (work / "new").write_text("all of it")

    monkeypatch.setattr(cache, "is_whole", is_whole)
    cache.build_folder(target, build)
    assert [path.name for path in target.iterdir()] == ["new"]
    assert [path.name for path in target.parent.iterdir()] == ["abc"]
