"""Run folders of all kinds and states: read as far as they go, never a crash."""

import csv
import json
import re
from pathlib import Path

import pytest
from tests.report.made_runs import make_comparison, make_run, write_json

import gdod
from gdod.report import collect, load_studies, read_run, result_tables, studies
from gdod.report.figures import conflict_chapters, conflict_of
from gdod.report.page import page
from gdod.report.result_tables import to_markdown


def test_a_whole_comparison(tmp_path: Path) -> None:
    (study,) = load_studies([make_comparison(tmp_path / "c", evaluations=4)])
    assert study.name == "ads"
    assert study.baseline == "sum"
    assert study.part == "test"
    assert [setting.method for setting in study.settings][:3] == ["sum", "uncertainty", "gradnorm"]
    assert all({run.seed for run in setting.finished} == {0, 1} for setting in study.settings)


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
    models = ("shared-bottom", "single-task")
    folder = make_comparison(tmp_path / "c", models=models, methods=("sum", "gdod"), evaluations=2)
    (folder / "runs" / "shared-bottom-gdod-seed1" / "result.json").unlink()
    write_json(folder / "runs" / "shared-bottom-gdod-seed1" / "error.json", {"message": "the disk is full"})
    asked = json.loads((folder / "comparison.json").read_text())
    write_json(folder / "comparison.json", {**asked, "seeds": [0, 1, 2]})
    runs = {run.name: run for run in collect([folder]).runs}
    assert runs["shared-bottom-gdod-seed1"].status == "failed"
    assert runs["shared-bottom-gdod-seed1"].reason == "the disk is full"
    assert runs["shared-bottom-gdod-seed2"].status == "not started"
    assert runs["single-task-sum-seed2"].status == "not started"
    (study,) = studies(collect([folder]))
    assert len(study.settings) == 3
    assert len(study.runs) == 9


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
    for number in (1, 3):
        base = study.baseline_of(study.settings[number])
        assert base is study.settings[number - 1]
        assert {run.seed for run in study.settings[number].finished} == {0, 1}
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


def with_batch(folder: Path, batch: int) -> Path:
    """The same runs with another size of batches."""
    for path in folder.glob("**/config.json"):
        write_json(path, {**json.loads(path.read_text()), "batch": batch})
    return folder


def test_comparisons_with_other_settings_have_baselines_of_their_own(tmp_path: Path) -> None:
    for batch in (64, 128):
        models = ("shared-bottom", "single-task")
        with_batch(
            make_comparison(tmp_path / f"b{batch}", models=models, methods=("sum", "gdod"), evaluations=2), batch
        )
    (study,) = load_studies([tmp_path / "b64", tmp_path / "b128"])
    assert study.baseline == "sum"
    assert [base.method for base in study.bases] == ["sum (batch=64)", "sum (batch=128)"]
    found = {setting.method: setting for setting in study.settings if not setting.is_single_task}
    for batch in (64, 128):
        ours = found[f"gdod (batch={batch})"]
        assert study.baseline_of(ours) is found[f"sum (batch={batch})"]
        assert study.baseline_of(found[f"sum (batch={batch})"]) is None
    compared = dict(zip(study.settings, study.compare("auc")[None], strict=True))
    assert [one.difference is None for s, one in compared.items() if s.method.startswith("gdod")] == [False, False]
    assert all(gain is not None for s, gain in zip(study.settings, study.gains(), strict=True) if not s.is_single_task)
    assert "difference from sum" in gdod_report(tmp_path)
    with (tmp_path / "t.csv").open() as file:
        bases = {(row["model"], row["method"]): row["baseline"] for row in csv.DictReader(file)}
    assert bases["shared-bottom", "gdod (batch=128)"] == "sum (batch=128)"
    assert bases["single-task", "sum (batch=128)"] == ""


def test_runs_of_another_folder_are_compared_with_the_baseline_that_is_most_alike(tmp_path: Path) -> None:
    for batch in (64, 128):
        with_batch(make_run(tmp_path / f"sums/{batch}", method="sum", evaluations=2), batch)
        with_batch(make_run(tmp_path / f"others/{batch}", method="gdod", evaluations=2), batch)
    with_batch(make_run(tmp_path / "others/32", method="mgda", evaluations=2), 32)
    (study,) = load_studies([tmp_path])
    bases = {setting.method: study.base_of(setting) for setting in study.settings}
    assert {name: base and base.method for name, base in bases.items()} == {
        "sum (batch=64)": "sum (batch=64)",
        "sum (batch=128)": "sum (batch=128)",
        "gdod (batch=64)": "sum (batch=64)",
        "gdod (batch=128)": "sum (batch=128)",
        "mgda (batch=32)": None,  # nobody can tell which
    }


def with_settings(folder: Path, **settings: object) -> Path:
    write_json(folder / "config.json", {**json.loads((folder / "config.json").read_text()), **settings})
    return folder


def test_methods_with_other_settings_are_named_with_them(tmp_path: Path) -> None:
    """Nobody takes what a larger batch does for what a method does."""
    made: dict[str, dict[str, object]] = {"sum": {"batch": 64}, "gdod": {"batch": 128, "epochs": 4.0, "threads": 2}}
    for method, settings in made.items():
        with_settings(make_run(tmp_path / method, method=method, evaluations=2), **settings)
    (study,) = load_studies([tmp_path])
    assert [setting.method for setting in study.settings] == [
        "sum (batch=64, epochs=2.0)",
        "gdod (batch=128, epochs=4.0)",
    ]
    assert study.unequal == ("batch", "epochs")
    tables = to_markdown(result_tables(study))
    assert "gdod (batch=128, epochs=4.0)" in tables
    assert "they differ in batch, epochs" in tables
    # Of many that are alike, those that are not are named; settings that an older version did not store say nothing.
    for method in ("pcgrad", "mgda", "cagrad"):
        with_settings(make_run(tmp_path / method, method=method, evaluations=2), batch=64, averaged=None)
    (study,) = load_studies([tmp_path])
    names = {setting.method for setting in study.settings}
    assert names == {"sum", "gdod (batch=128, epochs=4.0)", "pcgrad", "mgda", "cagrad"}
    assert load_studies([tmp_path / "sum", tmp_path / "pcgrad"])[0].unequal == ()


def test_each_data_set_has_the_baseline_of_its_comparison(tmp_path: Path) -> None:
    for data, base in (("ads", "sum"), ("census", "gdod")):
        write_json(tmp_path / data / "comparison.json", {"data": data, "methods": ["sum", "gdod"], "baseline": base})
        for method in ("sum", "gdod"):
            make_run(tmp_path / data / f"runs/m-{method}-seed0", method=method, data=data, evaluations=2)
    assert [(study.name, study.baseline) for study in load_studies([tmp_path])] == [("ads", "sum"), ("census", "gdod")]


def test_a_baseline_may_be_named_as_compare_takes_it(tmp_path: Path) -> None:
    for c in (0.1, 0.3):
        make_run(tmp_path / f"{c}", method="cagrad", options={"c": c}, evaluations=2)
    make_run(tmp_path / "gdod", method="gdod", options={"groups": 8}, evaluations=2)
    for name, label in (("cagrad:c=0.3", "cagrad (c=0.3)"), ("cagrad (c=0.1)",) * 2, ("gdod", "gdod (groups=8)")):
        assert load_studies([tmp_path], baseline=name)[0].baseline == label
    with pytest.raises(gdod.InputError, match=r"is several of the methods: 'cagrad \(c=0.1\)', 'cagrad \(c=0.3\)'"):
        load_studies([tmp_path], baseline="cagrad")
    with pytest.raises(gdod.InputError, match="did you mean 'cagrad"):
        load_studies([tmp_path], baseline="cagrad:c=0.5")


def test_options_that_were_given_are_shown(tmp_path: Path) -> None:
    made: dict[str, dict[str, object]] = {"cagrad": {"c": 0.3}, "gdod": {"groups": 16}, "strange": {"x": 1}, "sum": {}}
    for method, options in made.items():
        make_run(tmp_path / method, method=method, options=options, evaluations=2)
    (study,) = load_studies([tmp_path])
    assert {setting.method for setting in study.settings} == {
        "cagrad (c=0.3)",
        "gdod (groups=16)",
        "strange (x=1)",
        "sum",
    }


def test_single_task_models_have_no_conflict(tmp_path: Path) -> None:
    make_comparison(tmp_path / "c", models=("single-task", "shared-bottom"), methods=("sum", "gdod"), evaluations=2)
    for path in tmp_path.glob("c/runs/single-task*/metrics.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record["kind"] == "train":
                record["conflict"]["cosines"] = [[float(a == b) for a in range(3)] for b in range(3)]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (study,) = load_studies([tmp_path])
    single = next(setting for setting in study.settings if setting.is_single_task)
    assert conflict_of(single, 3) is None
    assert conflict_chapters(study, single.model) == []
    assert conflict_chapters(study, "shared-bottom") != []
    card = re.search(r"Least agreement</h3>.*?</p>", gdod_report(tmp_path))
    assert card is not None
    assert "under sum in shared-bottom" in card[0]

    alone = load_studies([make_run(tmp_path / "alone", model="single-task", method="sum", evaluations=2)])
    assert "share no parameters" in page(alone)


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
        ("shared-bottom", "cagrad (c=0.3)"),
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
