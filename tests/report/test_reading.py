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


def test_a_variant_without_options_is_called_by_its_name_alone(tmp_path: Path) -> None:
    for number, options in enumerate(({}, {"c": 0.5})):
        make_run(tmp_path / str(number), method="cagrad", options=options, evaluations=2)
    (study,) = load_studies([tmp_path])
    assert [setting.method for setting in study.settings] == ["cagrad", "cagrad (c=0.5)"]


def test_variants_of_a_model_have_baselines_of_their_own(tmp_path: Path) -> None:
    for experts in (4, 8):
        for method in ("sum", "gdod"):
            for seed in (0, 1):
                place, options = tmp_path / f"{experts}-{method}-{seed}", {"experts": experts, "embedding": 8}
                make_run(place, model="mmoe", method=method, seed=seed, model_options=options, evaluations=2)
    (study,) = load_studies([tmp_path])
    assert study.models == ("mmoe (experts=4)", "mmoe (experts=8)")
    assert [setting.method for setting in study.settings] == ["sum", "gdod"] * 2
    assert study.baseline == "sum"
    for place in (1, 3):
        base = study.baseline_of(study.settings[place])
        assert base is study.settings[place - 1]
        assert set(study.settings[place].finished) == {0, 1}
    assert all(ratio is not None for _, ratio in study.step_times())
    assert "mmoe (experts=8)" in gdod_report(tmp_path)


def ask(folder: Path, **changes: object) -> Path:
    """A comparison.json as `gdod compare` writes it, for settings given as `gdod compare` takes them."""
    from gdod.experiments.plan import make_plan

    asked = make_plan({"data": "ads", **changes}).to_json()
    write_json(folder / "comparison.json", {"data": "ads", **asked})
    return folder


def test_methods_and_models_with_options_keep_the_order_asked_for(tmp_path: Path) -> None:
    models, methods = ["mmoe:experts=8", "mmoe", "ple"], ["pcgrad", "cagrad:c=0.9", "sum", "cagrad", "cagrad:c=0.1"]
    folder = ask(tmp_path, models=models, methods=methods, seeds=1, baseline="cagrad:c=0.9")
    for model, options in (("mmoe", {}), ("ple", {}), ("mmoe", {"experts": 8})):
        for method, c in (("sum", None), ("cagrad", 0.1), ("cagrad", None), ("cagrad", 0.9), ("pcgrad", None)):
            label = method if c is None else f"{method}_c={c}"
            made = f"mmoe_experts=8-{label}-seed0" if options else f"{model}-{label}-seed0"
            make_run(
                folder / "runs" / made,
                model=model,
                method=method,
                options={} if c is None else {"c": c},
                model_options=options,
                evaluations=2,
            )
    assert {run.status for run in collect([folder]).runs} == {"finished"}
    (study,) = load_studies([folder])
    assert study.baseline == "cagrad (c=0.9)"
    assert study.models == ("mmoe (experts=8)", "mmoe", "ple")
    order = ["cagrad (c=0.9)", "pcgrad", "sum", "cagrad", "cagrad (c=0.1)"]  # the baseline comes first
    assert [setting.method for setting in study.settings] == order * 3


def test_runs_with_options_that_are_missing_belong_to_the_other_seeds(tmp_path: Path) -> None:
    folder = ask(tmp_path, models=["mmoe:experts=8", "mmoe"], methods=["sum", "cagrad:c=0.3", "cagrad"], seeds=2)
    for model in ("mmoe_experts=8", "mmoe"):
        for label in ("sum", "cagrad_c=0.3", "cagrad"):
            make_run(
                folder / "runs" / f"{model}-{label}-seed0",
                model="mmoe",
                method=label.split("_")[0],
                options={"c": 0.3} if "_" in label else {},
                model_options={"experts": 8} if "_" in model else {},
                evaluations=2,
            )
    (study,) = load_studies([folder])
    found = [(setting.model, setting.method, [run.status for run in setting.runs]) for setting in study.settings]
    both = ["finished", "not started"]
    methods = ("sum", "cagrad (c=0.3)", "cagrad")
    assert [(model, method, sorted(states)) for model, method, states in found] == [
        (model, method, both) for model in ("mmoe (experts=8)", "mmoe") for method in methods
    ]


def test_a_model_with_options_that_only_tuning_gave_stays_one_model(tmp_path: Path) -> None:
    folder = ask(tmp_path, models=["mmoe"], methods=["sum", "gdod"], seeds=1)
    for method, options in (("sum", {}), ("gdod", {"experts": 8})):
        make_run(folder / f"runs/mmoe-{method}-seed0", model="mmoe", method=method, model_options=options)
    (study,) = load_studies([folder])
    assert study.models == ("mmoe",)
    assert study.baseline_of(study.settings[1]) is study.settings[0]


def test_a_run_that_failed_before_it_had_a_configuration_is_recognised(tmp_path: Path) -> None:
    folder = ask(tmp_path, models=["shared-bottom"], methods=["sum", "cagrad:c=0.3"], seeds=2)
    make_run(folder / "runs/shared-bottom-sum-seed0", method="sum", model_options={}, evaluations=2)
    write_json(folder / "runs/shared-bottom-cagrad_c=0.3-seed1/error.json", {"message": "no memory"})
    runs = {run.name: run for run in collect([folder]).runs}
    failed = runs["shared-bottom-cagrad_c=0.3-seed1"]
    assert (failed.status, failed.reason) == ("failed", "no memory")
    assert (failed.model, failed.method, failed.seed) == ("shared-bottom", "cagrad", 1)
    assert len(runs) == 4
    (study,) = load_studies([folder])
    assert [(setting.model, setting.method) for setting in study.settings] == [
        ("shared-bottom", "sum"),
        ("shared-bottom", "cagrad"),
    ]
    alone = tmp_path / "alone" / "run"
    write_json(alone / "error.json", {"message": "no memory"})
    assert [run.status for run in collect([tmp_path / "alone"]).runs] == ["failed"]


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
