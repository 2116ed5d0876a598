"""Run folders of all kinds and states: read as far as they go, never a crash."""

import json
from pathlib import Path

import pytest
from tests.report.made_runs import make_comparison, make_run, write_json

import gdod
from gdod.report import collect, load_studies, read_run, studies


def test_a_whole_comparison(tmp_path: Path) -> None:
    (study,) = load_studies([make_comparison(tmp_path / "c", evaluations=4)])
    assert study.name == "ads"
    assert study.baseline == "sum"
    assert study.part == "test"
    assert [setting.method for setting in study.settings][:3] == ["sum", "uncertainty", "gradnorm"]
    assert all(set(setting.finished) == {0, 1} for setting in study.settings)


def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", evaluations=2, finished=False)
    whole = read_run(path)
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text[:-30])
    cut = read_run(path)
    assert cut.status == "unfinished"
    assert "1 unreadable line" in str(cut.reason)
    assert len(cut.train) + len(cut.evaluations) == len(whole.train) + len(whole.evaluations) - 1


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff", '{"steps": NaN', "[" * 100_000])
@pytest.mark.parametrize("name", ["about.json", "config.json", "result.json", "metrics.jsonl"])
def test_damaged_files_never_crash(tmp_path: Path, name: str, text: str) -> None:
    make_run(tmp_path / "runs" / "good", seed=0, evaluations=2)
    bad = make_run(tmp_path / "runs" / "bad", seed=1, evaluations=2)
    (bad / name).write_text(text, encoding="utf-8")
    out = gdod_report(tmp_path)
    assert "bad" in out
    if name == "result.json":
        assert read_run(bad).status == "unfinished"
        assert "result.json" in str(read_run(bad).reason)


@pytest.mark.parametrize("value", [None, 3, "text", [], [1], {"a": 1}, True])
def test_values_of_another_type_never_crash(tmp_path: Path, value: object) -> None:
    for name in ("about", "result", "config"):
        whole = json.loads((make_run(tmp_path / "first" / name, evaluations=2) / f"{name}.json").read_text())
        for place, key in enumerate(whole):
            path = make_run(tmp_path / f"runs-{name}" / f"{place}", seed=place, evaluations=2)
            write_json(path / f"{name}.json", {**whole, key: value})
    lines = make_run(tmp_path / "lines" / "run", evaluations=2) / "metrics.jsonl"
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    changed = [{**record, key: value} for record in records[:6] for key in record]
    lines.write_text("".join(json.dumps(record) + "\n" for record in changed))
    gdod_report(tmp_path)


def test_steps_repeated_after_an_interruption_count_once(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", evaluations=2)
    text = (path / "metrics.jsonl").read_text()
    before = read_run(path)
    (path / "metrics.jsonl").write_text(text + text)
    after = read_run(path)
    assert (len(after.train), len(after.evaluations)) == (len(before.train), len(before.evaluations))


def test_missing_and_failed_runs_of_a_comparison_are_listed(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "c", methods=("sum", "gdod"), evaluations=2)
    (folder / "runs" / "shared-bottom-gdod-seed1" / "result.json").unlink()
    write_json(folder / "runs" / "shared-bottom-gdod-seed1" / "error.json", {"message": "the disk is full"})
    asked = json.loads((folder / "comparison.json").read_text())
    write_json(folder / "comparison.json", {**asked, "seeds": [0, 1, 2]})
    runs = {run.name: run for run in collect([folder]).runs}
    assert runs["shared-bottom-gdod-seed1"].status == "failed"
    assert runs["shared-bottom-gdod-seed1"].reason == "the disk is full"
    assert runs["shared-bottom-gdod-seed2"].status == "not started"
    (study,) = studies(collect([folder]))
    assert len(study.settings) == 2
    assert len(study.runs) == 6


def test_options_in_which_runs_differ_make_them_different_methods(tmp_path: Path) -> None:
    for c in (0.1, 0.5):
        for seed in (0, 1):
            make_run(tmp_path / f"{c}-{seed}", method="cagrad", seed=seed, options={"c": c}, evaluations=2)
    (study,) = load_studies([tmp_path])
    assert [setting.method for setting in study.settings] == ["cagrad (c=0.1)", "cagrad (c=0.5)"]


def test_data_sets_are_kept_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data="ads", evaluations=2)
    make_run(tmp_path / "b", data="census", evaluations=2)
    assert [study.name for study in load_studies([tmp_path])] == ["ads", "census"]


def test_the_same_run_given_twice_counts_once(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", evaluations=2)
    assert len(collect([path, path, tmp_path]).runs) == 1


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gdod.InputError, match="is not a folder"):
        collect([tmp_path / "nothing"])
    with pytest.raises(gdod.InputError, match="holds no run"):
        collect([tmp_path])
    with pytest.raises(gdod.InputError, match="at least one folder"):
        collect([])
    make_run(tmp_path / "run", evaluations=2)
    with pytest.raises(gdod.InputError, match="baseline='nothing' is not among the methods"):
        load_studies([tmp_path], baseline="nothing")


def gdod_report(folder: Path) -> str:
    from gdod.report import write_report

    files = folder / "report.html", folder / "t.md", folder / "t.csv"
    write_report([folder], files[0], markdown=files[1], csv=files[2])
    return files[0].read_text(encoding="utf-8")
