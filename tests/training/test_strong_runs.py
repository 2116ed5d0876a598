"""Whole runs of the strong recipe on a file with features of every kind: killed, in several processes, exported."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.training import tiny, together
from tests.training.test_loop import check_same
from tests.training.test_ranks import check_close
from tests.training.test_resume import check_same_result, kill, wait_for_lines

from gdod.models import Batch, export
from gdod.ranks import Ranks
from gdod.training import TrainConfig, check_config, load_run, train
from gdod.training.checkpoint import load
from gdod.training.train_run import preview

SIZES = {"embedding": 4, "bottom": [16], "dropout": 0.2, "ensemble": 4}


def frame(rows: int) -> pl.DataFrame:
    """Return the tiny table with gaps among its numbers and with times."""
    draw = np.random.default_rng(7)
    seconds = pl.Series(draw.integers(0, 400 * 86_400, rows)).cast(pl.Duration("ms")) * 1000
    return tiny.frame(rows).with_columns(
        age=pl.when(pl.Series(draw.random(rows) > 0.1)).then("age"), when=pl.lit(np.datetime64("2024-01-01")) + seconds
    )


def config(folder: Path, **more: Any) -> TrainConfig:
    """Return settings of a short run on a file in the folder."""
    table = folder / "table.parquet"
    if not table.exists():
        frame(1300).write_parquet(table)
        (folder / "table.yaml").write_text(tiny.SCHEMA.replace("  id: ignore", "  when: time\n  id: ignore"))
    return check_config(
        {
            "recipe": "strong",
            "data": {"source": str(table), "schema": str(folder / "table.yaml"), "cache": str(folder / "cache")},
            "model": {"options": SIZES},
            "steps": 60,
            "average": 0.9,
            "log_every": 7,
            "evaluate_every": 23,
            "checkpoint_every": 5,
            "threads": 1,
            "device": "cpu",
            "tensorboard": False,
            **more,
        }
    )


def test_what_is_made_of_times_is_said(tmp_path: Path) -> None:
    settings = config(tmp_path)
    assert any(sentence.startswith("times: hour, weekday") for sentence in preview(settings)[1])
    without = {**settings.data.model_dump(), "features": {"times": False}}
    said = preview(config(tmp_path, data=without))[1]
    assert any(sentence.startswith("recipe strong") for sentence in said)
    assert not any(sentence.startswith("times") for sentence in said)


def work(settings: dict[str, Any], folder: Path) -> None:
    train(TrainConfig.model_validate(settings), folder, resume=True)


@pytest.mark.slow
def test_killed_at_random_points_it_ends_the_same(tmp_path: Path) -> None:
    settings = config(tmp_path)
    train(settings, tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "gdod.training.train_run", "gdod.data"])
    killed = 0
    for lines in (2, 7, 9):
        process = context.Process(target=work, args=(settings.model_dump(mode="json"), tmp_path / "killed"))
        process.start()
        wait_for_lines(tmp_path / "killed", lines, process)
        killed += kill(process)
    assert killed >= 2
    work(settings.model_dump(mode="json"), tmp_path / "killed")
    check_same(tmp_path / "killed", tmp_path / "whole")
    check_same_result(tmp_path / "killed", tmp_path / "whole")
    for name in ("encoder.json", "statistics.parquet"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def in_ranks(ranks: Ranks, settings: dict[str, Any], folder: Path) -> Any:
    return train(TrainConfig.model_validate(settings), folder, ranks=ranks)


def test_two_ranks_train_as_one_does(tmp_path: Path) -> None:
    """Each loads the data itself; one of them has prepared it."""
    settings = config(tmp_path, model={"options": {**SIZES, "dropout": 0.0}}).model_dump(mode="json")
    results = together.together(2, tmp_path, in_ranks, settings, tmp_path / "several")
    assert results[0] == results[1]
    train(TrainConfig.model_validate(settings), tmp_path / "one")
    check_close(tmp_path / "several", tmp_path / "one")
    averages = [load(tmp_path / name / "checkpoints" / "last.pt")["average"] for name in ("several", "one")]
    for name, values in averages[0].items():
        torch.testing.assert_close(values, averages[1][name], rtol=1e-3, atol=1e-4)
    assert len(list((tmp_path / "cache" / "prepared").iterdir())) == 1
    test = frame(1300)[1000:]
    one, several = (load_run(tmp_path / name).predict(test) for name in ("one", "several"))
    np.testing.assert_allclose(one.to_numpy(), several.to_numpy(), atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch warns of its own code
def test_an_exported_run_predicts_the_same_from_what_the_encoder_gives(tmp_path: Path) -> None:
    train(config(tmp_path), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert any(field.bins for field in run.model.schema.numeric)
    test = frame(1400)[1300:]
    (minibatch,) = run.encoder.encode(test, labels=False).batches(1000)
    batch: Batch = minibatch.batch
    expected = torch.from_numpy(run.predict(test).to_numpy()).float()
    program = export(run.model, batch)
    with torch.no_grad():
        logits = torch.stack(list(program.module()(*batch).values()), 1)
    torch.testing.assert_close(logits.sigmoid(), expected, rtol=1e-5, atol=1e-6)
    pytest.importorskip("onnxscript", reason="torch's ONNX exporter needs onnxscript")
    onnx = pytest.importorskip("onnx.reference", reason="needs onnx")
    made = torch.onnx.export(program)
    assert made is not None
    names = [value.name for value in made.model_proto.graph.input]
    inputs = [batch.categorical, batch.numeric, *batch.sequences]
    outputs = onnx.ReferenceEvaluator(made.model_proto).run(
        None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    )
    found = torch.stack([torch.from_numpy(output) for output in outputs], 1).sigmoid()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
