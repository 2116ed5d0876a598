"""Runs that go on from another one with the rows of a new day: weights, optimizer, average, files, refusals."""

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.preparing.test_bring_forward import day, schema
from tests.training import tiny, together
from tests.training.test_loop import check_same
from tests.training.test_ranks import check_close
from tests.training.test_resume import check_same_result, kill, wait_for_lines

from gdod import InputError, MultiTaskModel
from gdod._files import read_json, write_json
from gdod.ranks import Ranks
from gdod.report.runs import read_run
from gdod.training import Folder, Silent, TrainConfig, check_config, load_run, read_config, train
from gdod.training.checkpoint import keep_weights_only, load
from gdod.training.export import export_run
from gdod.training.loop import Trainer
from gdod.training.train_run import _trainer, load_data, preview
from gdod.training.updating import Parent
from gdod.yaml_toml import parse_yaml

SIZES = {"embedding": 4, "bottom": [16], "dropout": 0.2}
SMALL = {"threads": 1, "device": "cpu", "tensorboard": False, "log_every": 7, "checkpoint_every": 5}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three days as files, and the run of the first, by the strong and by the paper's recipe."""
    folder = tmp_path_factory.mktemp("days")
    for number in range(3):
        day(number, 500).write_parquet(folder / f"{number}.parquet")
    described = schema().to_json()
    described["columns"] = {
        name: {key: value for key, value in column.items() if key not in ("rare", "limit")}
        for name, column in described["columns"].items()
    }
    (folder / "days.yaml").write_text(json.dumps(described))
    assert parse_yaml((folder / "days.yaml").read_text(), "")
    for recipe in ("strong", "paper"):
        data: dict[str, Any] = {"source": str(folder / "0.parquet"), "schema": str(folder / "days.yaml")}
        data["cache"] = str(folder / "cache")
        if recipe == "strong":
            data["features"] = {"rare": 14, "folds": 4}
        model = {
            "name": "mmoe" if recipe == "paper" else "shared-bottom",
            "options": SIZES if recipe == "strong" else {},
        }
        settings = {"recipe": recipe, "data": data, "model": model, "epochs": 3, **SMALL}
        train(check_config(settings), folder / recipe)
    return folder


def update(days: Path, before: str | Path, number: int = 1, **settings: Any) -> TrainConfig:
    """Return the configuration of an update with the rows of a day."""
    place = days / before if isinstance(before, str) else before
    given = {"update.from": str(place), "data.source": str(days / f"{number}.parquet"), **settings}
    return read_config(None, given)


def begun(config: TrainConfig, folder: Path) -> tuple[Parent, Trainer]:
    """Return the run to go on from, and an update that has made no step yet."""
    assert config.update is not None
    parent = Parent.open(config.update)
    trainer = _trainer(config, load_data(config), Folder(folder), torch.device("cpu"), Silent(), Ranks())
    parent.begin(trainer)
    return parent, trainer


@pytest.mark.parametrize("recipe", ["strong", "paper"])
def test_before_any_step_rows_of_yesterday_are_predicted_as_before(recipe: str, days: Path, tmp_path: Path) -> None:
    """Statistics that were brought forward are another input, so those of before are put in their place."""
    parent, trainer = begun(update(days, recipe), tmp_path)
    old, new = (encoder.encode(day(0, 500), labels=False) for encoder in (parent.run.encoder, trainer.dataset.encoder))
    (before,), (after,) = (list(part.batches(1000)) for part in (old, new))
    # A value of a sequence that got a vector is no longer left out of the row's mean.
    same = torch.stack(
        [(a == b).all(1) for a, b in zip(before.batch.sequences, after.batch.sequences, strict=True)]
    ).all(0)
    assert same.float().mean() > 0.5
    if recipe == "strong":
        assert not torch.equal(before.batch.numeric, after.batch.numeric)  # the statistics
        assert not torch.equal(before.batch.categorical, after.batch.categorical)  # ids that got a vector
    else:
        assert torch.equal(before.batch.numeric, after.batch.numeric)
    model = trainer.evaluated_model.eval()
    with torch.no_grad():
        wanted = parent.run.model(before.batch)
        got = model(after.batch._replace(numeric=before.batch.numeric))
    for task, logits in wanted.items():
        assert torch.equal(got[task][same], logits[same])


def test_the_optimizer_the_average_and_the_method_go_on(days: Path, tmp_path: Path) -> None:
    parent, trainer = begun(update(days, "strong"), tmp_path)
    last = parent.last
    names = trainer.optimizers.names(trainer.model)[0]
    was, now = last["optimizers"][0]["state"], trainer.optimizers.state()[0]["state"]
    assert was.keys() == now.keys() == set(range(len(names)))
    for number, name in enumerate(names):
        for key in ("exp_avg", "exp_avg_sq", "step"):
            if name not in ("features.table.weight", "features.lists.0.weight"):
                assert torch.equal(was[number][key], now[number][key])
    number = names.index("features.lists.0.weight")
    old, new = was[number]["exp_avg_sq"], now[number]["exp_avg_sq"]
    assert len(new) > len(old)
    assert torch.equal(new[: len(old)], old)
    assert old.any()
    assert not new[len(old) :].any()
    if parent.run.step == last["state"]["step"]:
        assert torch.equal(trainer.model.state_dict()["bottom.0.weight"], last["model"]["bottom.0.weight"])
    assert trainer.average is not None
    for name, weights in parent.run.model.state_dict().items():
        if not name.startswith("features."):
            assert torch.equal(trainer.average.model.state_dict()[name], weights)
    assert trainer.state.before == last["state"]["step"] > 0
    # A new average would forget what it was: by (1 + 1) / (10 + 1) a step.
    before = trainer.average.model.state_dict()["features.table.weight"].clone()
    with torch.no_grad():
        trainer.model.get_parameter("features.table.weight").add_(1.0)
    trainer.average.update(5, before=trainer.state.before)
    raw = trainer.model.state_dict()["features.table.weight"]
    share = ((trainer.average.model.state_dict()["features.table.weight"] - before) / (raw - before)).mean()
    steps = trainer.state.before + 5
    assert float(share) == pytest.approx(1 - min(0.995, (1 + steps) / (10 + steps)) ** 5, rel=1e-2)


def test_weights_that_were_better_than_the_last_are_gone_on_from(days: Path, tmp_path: Path) -> None:
    shutil.copytree(days / "strong", tmp_path / "run")
    folder = Folder(tmp_path / "run")
    best = load(folder.best)
    best["model"] = {name: one + 1 if one.is_floating_point() else one for name, one in best["model"].items()}
    best["step"] = 1
    torch.save(best, folder.best)
    _, trainer = begun(update(days, tmp_path / "run"), tmp_path / "new")
    assert trainer.average is not None
    for model in (trainer.model, trainer.average.model):
        assert torch.equal(model.state_dict()["bottom.0.weight"], best["model"]["bottom.0.weight"])


def test_a_chain_of_days(days: Path, tmp_path: Path) -> None:
    one = train(update(days, "strong", 1), tmp_path / "one")
    train(update(days, tmp_path / "one", 2, **{"update.test": 0.2}), tmp_path / "two")
    about = read_json(tmp_path / "two" / "about.json", "")
    told = about["update"]
    assert told["from"] == str(tmp_path / "one")
    assert told["updates"] == 2
    sizes = [
        read_json(place / "about.json", "")["data"]["rows"]
        for place in (days / "strong", tmp_path / "one", tmp_path / "two")
    ]
    assert told["rows_seen"] == sum(size["train"] for size in sizes)
    assert [size["test"] > 0 for size in sizes] == [False, False, True]
    assert told["grown"]["user"]["values_added"] > 0
    assert told["grown"]["user"]["vectors_added"] > 0
    runs = [load_run(place) for place in (days / "strong", tmp_path / "one", tmp_path / "two")]
    assert [run.encoder.vector_counts["user"] for run in runs][-1] == told["grown"]["user"]["vectors"]
    for run in runs[1:]:
        assert run.encoder.label_scales == runs[0].encoder.label_scales != {}
        assert run.config.optimizer.lr == pytest.approx(0.3 * runs[0].config.optimizer.lr)  # not lower each day
        assert run.predict(day(2, 50)).height == 50
        assert run.evaluate(day(2, 50))["mean_auc"] is not None
    assert one["test"] is None
    assert read_run(tmp_path / "two").status == "finished"
    shutil.rmtree(tmp_path / "one")  # a run is whole by itself
    assert load_run(tmp_path / "two").predict(day(2, 50)).equals(runs[2].predict(day(2, 50)))
    assert export_run(load_run(tmp_path / "two"), tmp_path / "two.pt2", table=days / "2.parquet")
    assert "counts" not in json.loads((tmp_path / "two.encoder.json").read_text())


def test_the_estimator_gives_the_same_to_the_bit(days: Path, tmp_path: Path) -> None:
    train(update(days, "strong", 1, **{"update.half_life": 3.0}), tmp_path / "command")
    model = MultiTaskModel.load(days / "strong", verbose=False)
    model.update(pl.read_parquet(days / "1.parquet"), half_life=3.0, out=tmp_path / "model")
    ours, theirs = (load(tmp_path / name / "checkpoints" / "last.pt") for name in ("model", "command"))
    assert tiny.same(ours, theirs)
    assert model.predict_proba(day(2, 50)).equals(load_run(tmp_path / "command").predict(day(2, 50)))
    before = model.run_.step
    labels = ["click", "size", "price"]
    frame = pl.read_parquet(days / "2.parquet")
    model.update(frame.drop(labels), frame.select(labels))  # in a temporary folder, labels apart
    assert model.result_ is not None
    assert read_json(model.run_.folder.about, "")["update"]["updates"] == 2
    assert before >= 0
    with pytest.raises(InputError, match="resume=True needs out="):
        model.update(frame, resume=True)


def work(settings: dict[str, Any], folder: Path) -> None:
    train(TrainConfig.model_validate(settings), folder, resume=True)


class Stopping(Silent):
    """Ends a run at the second of its log times."""

    def trained(self, step: int, loss: float) -> None:
        if step >= 14:
            raise RuntimeError("stopped")


def test_resumed_it_ends_the_same(days: Path, tmp_path: Path) -> None:
    config = update(days, "strong", 1, epochs=4)
    train(config, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped"):
        train(config, tmp_path / "stopped", progress=Stopping())
    assert load(tmp_path / "stopped" / "checkpoints" / "last.pt")["state"]["step"] > 0
    train(Folder(tmp_path / "stopped").read_config(), tmp_path / "stopped", resume=True)
    check_same(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_killed_and_resumed_it_ends_the_same(days: Path, tmp_path: Path) -> None:
    config = update(days, "strong", 1, epochs=8, evaluate_every=23)
    train(config, tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "gdod.training.train_run", "gdod.data"])
    killed = 0
    for lines in (2, 5):
        process = context.Process(target=work, args=(config.model_dump(mode="json"), tmp_path / "killed"))
        process.start()
        wait_for_lines(tmp_path / "killed", lines, process)
        killed += kill(process)
    assert killed
    train(Folder(tmp_path / "killed").read_config(), tmp_path / "killed", resume=True)
    check_same(tmp_path / "killed", tmp_path / "whole")
    check_same_result(tmp_path / "killed", tmp_path / "whole")
    for name in ("encoder.json", "statistics.parquet", "counts.parquet"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def in_ranks(ranks: Ranks, settings: dict[str, Any], folder: Path) -> Any:
    return train(TrainConfig.model_validate(settings), folder, ranks=ranks)


@pytest.mark.slow
def test_two_ranks_update_as_one_does(days: Path, tmp_path: Path) -> None:
    settings = update(days, "paper", 1, epochs=3).model_dump(mode="json")
    results = together.together(2, tmp_path, in_ranks, settings, tmp_path / "several")
    assert results[0] == results[1]
    train(TrainConfig.model_validate(settings), tmp_path / "one")
    check_close(tmp_path / "several", tmp_path / "one")


def test_what_is_chosen_is_said(days: Path) -> None:
    config, said = preview(update(days, "strong"))
    assert said[0].startswith(f"update of the run in {days / 'strong'}")
    assert any("1 pass" in sentence and "learning rate 0.0009" in sentence for sentence in said)
    assert any(sentence.startswith("half-life of counts: ") for sentence in said)
    assert config.epochs == 1
    settings: dict[str, Any] = {"optimizer.lr": 0.01, "update.half_life": 4}
    own = update(days, "strong", epochs=2, **settings)
    assert (own.epochs, own.optimizer.lr, own.update and own.update.half_life) == (2, 0.01, 4)
    assert update(days, "strong", steps=9).steps == 9


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "mmoe"}, "model is .*'mmoe'.*cannot change"),
        ({"model.options.embedding": 8}, "model is .*cannot change"),
        ({"optimizer.name": "sgd"}, "optimizer.name is 'sgd', and 'adamw'"),
        ({"average": None}, "average is None, and 0.995"),
        ({"data.labels": ["other"]}, "data.labels is .*'other'"),
        ({"data.features": None}, "data.features is None"),
        ({"recipe": "paper"}, "recipe is 'paper', and 'strong'"),
        ({"update.half_life": 0}, "update.half_life=0"),
        ({"update.halflife": 2}, "update.halflife is not a setting .did you mean 'half_life'"),
    ],
)
def test_settings_that_cannot_change_are_refused(settings: dict[str, Any], said: str, days: Path) -> None:
    with pytest.raises(InputError, match=said):
        update(days, "strong", **settings)


def test_runs_that_cannot_go_on_are_refused(days: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no run to go on from"):
        update(days, tmp_path / "nothing")

    def changed(name: str) -> Folder:
        shutil.copytree(days / "strong", tmp_path / name)
        return Folder(tmp_path / name)

    folder = changed("unfinished")
    folder.result.unlink()
    with pytest.raises(InputError, match=r"has not finished.*--resume"):
        update(days, folder.path)
    folder = changed("rival")
    write_json(folder.config, {**read_json(folder.config, ""), "model": {"name": "rival", "options": {}}})
    with pytest.raises(InputError, match="holds a model 'rival' of a comparison"):
        update(days, folder.path)
    folder = changed("alone")
    keep_weights_only(folder.last)
    with pytest.raises(InputError, match="has the weights alone"):
        train(update(days, folder.path), tmp_path / "out")
    folder = changed("damaged")
    folder.counts.write_bytes(b"x" + folder.counts.read_bytes()[1:])
    with pytest.raises(InputError, match=r"counts\.parquet is damaged"):
        train(update(days, folder.path), tmp_path / "out")
    folder = changed("old")
    content = read_json(folder.encoder, "")
    del content["counts"]
    write_json(folder.encoder, content)
    write_json(folder.about, {**read_json(folder.about, ""), "checksums": folder.described_files()})
    assert load_run(folder.path).predict(day(1, 20)).height == 20  # for predictions it is as good as ever
    with pytest.raises(InputError, match="written by a version that did not keep"):
        train(update(days, folder.path), tmp_path / "out")
    folder = changed("cut")
    folder.last.write_bytes(folder.last.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged or was changed"):
        train(update(days, folder.path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_day_without_one_label_still_updates_the_others(days: Path, tmp_path: Path) -> None:
    frame = pl.read_parquet(days / "1.parquet").with_columns(price=pl.lit(None, pl.Float64))
    frame.write_parquet(tmp_path / "day.parquet")
    settings: dict[str, Any] = {"data.source": str(tmp_path / "day.parquet")}
    train(update(days, "strong", **settings), tmp_path / "out")
    notes = read_json(tmp_path / "out" / "about.json", "")["data"]["notes"]
    assert any("'price' is missing in every training row" in note for note in notes)
    assert np.isfinite(load_run(tmp_path / "out").predict(frame)["price"].to_numpy()).all()
