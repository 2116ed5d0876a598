"""Columns that decide a label matter, others do not; experts and conflict by layer; and what `gdod explain` writes."""

import copy
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tests import reference
from tests.training import tiny
from typer.testing import CliRunner

from gdod import InputError, MultiTaskModel
from gdod.cli import app
from gdod.models import gate_weights, per_example_losses
from gdod.training import Run, load_run, metrics, train
from gdod.training.explain import expert_use, importance, layer_conflict, layers_of, read_rows
from gdod.training.explain.table_rows import encoded_part


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(tiny.config(epochs=4), folder, dataset=tiny.dataset())
    return load_run(folder)


def test_columns_matter_to_the_tasks_that_they_decide(run: Run) -> None:
    found = importance(run, tiny.frame(600, seed=7))
    by = {(one.task, one.column): one for one in found}
    assert by.keys() == {(task, column) for task in ("click", "buy") for column in ("city", "item", "age", "seen")}
    assert [one.task for one in found] == ["click"] * 4 + ["buy"] * 4
    assert {one.column for one in found[:2]} == {"city", "age"}
    assert {one.column for one in found[4:6]} == {"city", "item"}
    assert by["click", "city"].low > 0.1 > by["click", "item"].high
    assert by["buy", "item"].low > by["click", "item"].high
    for one in found:
        assert one.low <= one.importance <= one.high
        assert one.metric == "auc"
    assert [one.importance for one in found[:4]] == sorted((one.importance for one in found[:4]), reverse=True)


def test_the_importance_is_what_shuffling_costs(run: Run) -> None:
    frame = tiny.frame(300, seed=7)
    click = next(one for one in importance(run, frame, repeats=40) if (one.task, one.column) == ("click", "city"))
    labels = frame["click"].to_numpy()
    whole = metrics.auc(labels, run.predict(frame)["click"].to_numpy())
    assert whole is not None
    assert click.value == pytest.approx(whole)
    draw, after = np.random.default_rng(5), []
    for _ in range(40):
        shuffled = frame.with_columns(frame["city"].gather(draw.permutation(300)))
        after.append(metrics.auc(labels, run.predict(shuffled)["click"].to_numpy()))
    assert click.importance == pytest.approx(whole - np.mean([one for one in after if one is not None]), abs=0.02)
    again = importance(run, frame, repeats=2, seed=1)
    assert again == importance(run, frame, repeats=2, seed=1) != importance(run, frame, repeats=2, seed=2)


def test_losses_and_errors_count_when_they_rise(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=800)
    size = pl.Series(["small", "medium", "large"]).gather(np.digitize(x, [-0.5, 0.5]))
    table = pl.DataFrame({"x": x, "other": random.normal(size=800), "paid": 2 * x, "size": size})
    model = MultiTaskModel(recipe="paper", steps=120, lr=0.01, batch=64, monitor="loss", threads=1, verbose=False)
    model.set_params(settings={"data.cache": str(tmp_path)}).fit(table, labels=["paid", "size"])
    found = importance(model.run_, table, repeats=3)
    assert [(one.task, one.column, one.metric) for one in found] == [
        ("paid", "x", "rmse"),
        ("paid", "other", "rmse"),
        ("size", "x", "log_loss"),
        ("size", "other", "log_loss"),
    ]
    assert found[0].low > 0.5
    assert found[2].low > 0.2


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of PLE, an ensemble with dropout."""
    folder = tmp_path_factory.mktemp("runs") / "mixed"
    options = {"experts": 4, "expert": [8], "ensemble": 3, "dropout": 0.2}
    config = tiny.config(steps=30, batch=32, model={"name": "ple", "options": options}, task_weights={"buy": 2.0})
    train(config, folder, dataset=tiny.dataset())
    return load_run(folder)


def test_experts_are_used_as_the_gates_say(mixed: Run) -> None:
    frame = tiny.frame(100, seed=7)
    found = expert_use(mixed, frame)
    (batch,) = encoded_part(mixed, frame).batches(100)
    own = [one for one in found if (one.level, one.branch) == (1, "click")]
    assert [one.expert for one in own] == ["click 1", "shared 1", "shared 2"]
    assert sum(one.weight for one in own) == pytest.approx(1)
    weights = gate_weights(mixed.model, batch.batch)[0].weights.double()
    assert [one.weight for one in own] == pytest.approx(weights.mean(0).tolist())
    assert [one.deviation for one in own] == pytest.approx(weights.std(0, correction=0).tolist())
    assert {(one.level, one.branch) for one in found} == {
        *((level, task) for level in (1, 2) for task in ("click", "buy")),
        (1, "shared branch"),
    }
    assert expert_use(mixed, frame.drop("click", "buy")) == found  # gates need no labels


def test_the_conflict_of_a_layer_is_that_of_its_gradients(mixed: Run) -> None:
    """Against one dense gradient a row, in float64, by the reference of Algorithm 1."""
    frame = tiny.frame(70, seed=7)
    found = layer_conflict(mixed, frame, batches=1, seed=3)
    model = copy.deepcopy(mixed.model).double().train()
    batch, labels, weights, _ = next(iter(encoded_part(mixed, frame).batches(32, seed=3)))
    with torch.random.fork_rng():
        torch.manual_seed(3)  # the dropout that was
        logits = model(batch._replace(numeric=batch.numeric.double()))
    known, mask = per_example_losses(logits, labels, model.tasks, weights=weights)
    names = {id(one): name for name, one in model.named_parameters()}
    layers = layers_of(model)
    assert len(layers) > 5
    for layer, parameters in {"all shared": model.shared_parameters(), **layers}.items():
        own = [names[id(one)] for one in parameters]
        dense = reference.expected(
            model, known, groups=16, mask=mask, task_weights={"click": 1.0, "buy": 2.0}, shared=own
        ).algorithm
        click, buy = dense.gradients
        (one,) = (one for one in found if one.layer == layer)
        assert (one.task, one.other, one.batches) == ("click", "buy", 1)
        assert one.parameters == sum(parameter.numel() for parameter in parameters)
        assert one.cosine == pytest.approx(float(click @ buy / click.norm() / buy.norm()), abs=1e-4)
        energy = (dense.factors * dense.projections).square().sum() / dense.projections.square().sum()
        assert one.energy_kept == pytest.approx(float(energy), abs=2e-3), layer
        assert one.directions_kept == pytest.approx(float(dense.factors[:, 0].mean()), abs=0.04), layer


def test_the_run_stays_as_it_is(mixed: Run) -> None:
    before = {name: one.clone() for name, one in mixed.model.state_dict().items()}
    state = torch.get_rng_state()
    again = layer_conflict(mixed, tiny.frame(200, seed=7), batches=3, seed=1)
    expert_use(mixed, tiny.frame(50))
    assert torch.equal(torch.get_rng_state(), state)
    assert again == layer_conflict(mixed, tiny.frame(200, seed=7), batches=3, seed=1)
    assert again != layer_conflict(mixed, tiny.frame(200, seed=7), batches=3, seed=2)
    assert {one.batches for one in again} == {3}
    assert all(one.low < one.cosine < one.high for one in again)
    assert not mixed.model.training
    assert all(one.grad is None for one in mixed.model.parameters())
    assert all(not module._forward_hooks for module in mixed.model.modules())
    assert all(torch.equal(one, before[name]) for name, one in mixed.model.state_dict().items())


def test_the_command_writes_tables_pictures_and_what_the_report_shows(mixed: Run, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    tiny.frame(400, seed=7).write_csv(table)
    command = ["explain", str(mixed.folder.path), str(table), "--rows", "300", "--repeats", "2", "--batches", "2"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "new" / "why"), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["rows"], said["notes"]) == (300, [])
    stored = json.loads((tmp_path / "new" / "why" / "explanation.json").read_text())
    for part in ("importance", "experts", "conflict"):
        csv_file, picture = (tmp_path / "new" / "why" / f"{part}.{end}" for end in ("csv", "png"))
        assert said["files"][part] == [str(csv_file), str(picture)]
        with csv_file.open() as file:
            lines = list(csv.DictReader(file))
        assert lines == [{name: str(value) for name, value in one.items()} for one in said[part]]
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert stored[part]["entries"] == said[part]
        assert (stored[part]["table"], stored[part]["rows"], stored[part]["step"]) == (str(table), 300, mixed.step)
    assert (stored["experts"]["members"], stored["conflict"]["batch"], stored["conflict"]["batches"]) == (3, 32, 2)
    shown = CliRunner().invoke(app, [*command, "--only", "experts"])
    assert shown.exit_code == 0, shown.output
    assert "shared branch" in shown.output
    assert sorted(json.loads((mixed.folder.path / "explanation.json").read_text())) == ["experts"]
    (mixed.folder.path / "explanation.json").write_text('{"experts": {"old": 1}, "other"')  # damaged: written anew
    assert CliRunner().invoke(app, [*command, "--only", "conflict"]).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--only", "experts"]).exit_code == 0
    assert sorted(json.loads((mixed.folder.path / "explanation.json").read_text())) == ["conflict", "experts"]
    reported = CliRunner().invoke(app, ["report", str(mixed.folder.path), "--out", str(tmp_path / "report.html")])
    assert reported.exit_code == 0, reported.output
    assert "Where the tasks conflict" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_a_run_does_not_have_is_said_in_a_line(run: Run, tmp_path: Path) -> None:
    tiny.frame(60, seed=7).write_csv(tmp_path / "table.csv")
    tiny.frame(60, seed=7).drop("click", "buy").write_csv(tmp_path / "bare.csv")
    tiny.frame(60, seed=7).drop("buy").write_csv(tmp_path / "one.csv")
    command = ["explain", str(run.folder.path), "--out", str(tmp_path / "why"), "--repeats", "2"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "table.csv"), "--json"])
    assert json.loads(done.stdout)["notes"] == [
        "the model shared-bottom has no gates, so there are no weights of experts; "
        "mmoe, ple, stem, snr and cross-stitch have"
    ]
    one = CliRunner().invoke(app, [*command, str(tmp_path / "one.csv"), "--json"])
    assert "the table has the label 'click' alone; expected at least 2" in json.loads(one.stdout)["notes"][1]
    refused = {
        ("table.csv", "experts"): "has no gates",
        ("one.csv", "conflict"): "the label 'click' alone",
        ("bare.csv", "importance"): "the table has no label",
        ("table.csv", "column"): "--only",
    }
    for (table, part), words in refused.items():
        done = CliRunner().invoke(app, [*command, str(tmp_path / table), "--only", part])
        assert done.exit_code == 2
        assert words in done.output
    done = CliRunner().invoke(app, [*command, str(tmp_path / "bare.csv")])
    assert done.exit_code == 2
    assert "--only experts" not in done.output  # it has none


def test_without_labels_experts_alone_can_be_told(mixed: Run, tmp_path: Path) -> None:
    bare = tiny.frame(60, seed=7).drop("click", "buy")
    bare.write_csv(tmp_path / "bare.csv")
    command = ["explain", str(mixed.folder.path), "--out", str(tmp_path / "why"), str(tmp_path / "bare.csv")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "the table has no label" in done.output
    assert "--only experts" in done.output
    assert not (tmp_path / "why").exists()
    assert CliRunner().invoke(app, [*command, "--only", "experts"]).exit_code == 0
    model = MultiTaskModel.load(mixed.folder.path, verbose=False)
    with pytest.raises(InputError, match=r'only=\["experts"\]'):
        model.explain(bare)
    told = model.explain(bare, only=["experts"])
    assert list(told) == ["experts"]
    assert told["experts"].equals(pl.DataFrame(expert_use(mixed, bare)))


def test_one_task_or_nothing_shared_cannot_conflict(tmp_path: Path) -> None:
    frame = tiny.frame(300)
    model = MultiTaskModel(recipe="paper", steps=2, threads=1, verbose=False, settings={"data.cache": str(tmp_path)})
    alone = model.fit(frame.drop("buy", "id", "w"), labels=["click"])
    with pytest.raises(InputError, match="the run has one task, 'click', so no two tasks can conflict"):
        layer_conflict(alone.run_, frame)
    apart = model.set_params(model="single-task").fit(frame.drop("id", "w"), labels=["click", "buy"])
    with pytest.raises(InputError, match="share no parameters"):
        layer_conflict(apart.run_, frame)
    assert list(apart.explain(frame, repeats=2)) == ["importance"]


def test_it_can_be_stopped_and_keeps_what_is_done(mixed: Run, tmp_path: Path) -> None:
    tiny.frame(3000, seed=7).write_csv(tmp_path / "table.csv")
    words = ["explain", str(mixed.folder.path), str(tmp_path / "table.csv"), "--out", str(tmp_path / "why")]
    command = [sys.executable, "-m", "gdod", *words, "--repeats", "2", "--batches", "100000", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    deadline = time.monotonic() + 120
    while not (tmp_path / "why" / "experts.csv").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "gdod: stopped\n")
    assert (tmp_path / "why" / "importance.png").exists()
    assert "importance" in json.loads((tmp_path / "why" / "explanation.json").read_text())
    assert not list((tmp_path / "why").glob(".*"))


def test_tables_that_tell_nothing_are_refused(run: Run, tmp_path: Path) -> None:
    frame = tiny.frame(50)
    with pytest.raises(InputError, match="the table has no label"):
        importance(run, frame.drop("click", "buy"))
    with pytest.raises(InputError, match="no task has a metric on these rows"):
        importance(run, frame.filter(pl.col("click") == 0))
    with pytest.raises(InputError, match="none of the columns"):
        importance(run, frame.select("click"))
    with pytest.raises(InputError, match="repeats=1"):
        importance(run, frame, repeats=1)
    frame[:1].write_csv(tmp_path / "one.csv")
    with pytest.raises(InputError, match="fewer than 2 rows"):
        read_rows(run, tmp_path / "one.csv")
    assert CliRunner().invoke(app, ["explain", str(run.folder.path), "x.csv", "--out", "why.csv"]).exit_code == 2


def test_no_name_of_a_column_steers_the_terminal_or_spoils_the_picture(tmp_path: Path) -> None:
    names = ["\x1b[31mred", "$x_{", "[/bold]", "列", "n" * 300, "n" * 299 + "m"]
    random = np.random.default_rng(0)
    numbers = pl.DataFrame({name: random.normal(size=300) for name in names})
    table = numbers.with_columns(click=pl.Series((random.random(300) < 0.4).astype(int)))
    table.write_csv(tmp_path / "odd.csv")
    start = ["train", "--data", str(tmp_path / "odd.csv"), "--label", "click", "--steps", "2", "--threads", "1"]
    for command in (
        [*start, "--out", str(tmp_path / "run")],
        ["explain", str(tmp_path / "run"), str(tmp_path / "odd.csv"), "--out", str(tmp_path / "why")],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
    assert "\\x1b[31mred" in done.output
    assert set(pl.read_csv(tmp_path / "why/importance.csv")["column"]) == set(names)
