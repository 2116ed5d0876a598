"""A trained model as a program without Python: the same predictions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.cases import BINNED, batch_of, build, losses_of

import gdod
from gdod.models import MODELS, Model, export

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bins, cross layers and an ensemble": {"schema": BINNED, "cross": 1, "ensemble": 3, "id_dropout": 0.2},
}


def trained(form: str, options: str = "plain") -> Model:
    model = build(form, **OPTIONS[options])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        gdod.backward(losses_of(model).losses)
        optimizer.step()
    return model


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", [*MODELS, "mmoe, deep experts"])
def test_an_exported_model_predicts_the_same(form: str, options: str, tmp_path: Path) -> None:
    model = trained(form, options)
    program = export(model, batch_of(5))
    assert model.training  # as it was
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    model.eval()
    for size in (1, 5, 64):
        batch = batch_of(size, seed=size)
        for name, logit in loaded(*batch).items():
            torch.testing.assert_close(logit, model(batch)[name])


def test_sequences_of_any_length() -> None:
    model = trained("mmoe").eval()
    program = export(model, batch_of(5)).module()
    batch = batch_of(6)
    for length in (1, 2, 9):
        longer = batch._replace(sequences=(torch.randint(0, 13, (6, length)),))
        torch.testing.assert_close(program(*longer)["click"], model(longer)["click"])


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch warns of its own code
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_onnx_predicts_the_same(name: str, options: str) -> None:
    pytest.importorskip("onnxscript", reason="torch's ONNX exporter needs onnxscript")
    onnx = pytest.importorskip("onnx.reference", reason="needs onnx")
    model = trained(name, options).eval()
    batch = batch_of(6)
    tasks = [task.name for task in model.tasks]
    program = torch.onnx.export(export(model, batch_of(5)), output_names=tasks)
    assert program is not None
    assert [value.name for value in program.model_proto.graph.output] == tasks
    evaluator = onnx.ReferenceEvaluator(program.model_proto)
    inputs = [batch.categorical, batch.numeric, *batch.sequences]
    names = [value.name for value in program.model_proto.graph.input]
    outputs = evaluator.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    for output, logit in zip(outputs, model(batch).values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(output), logit.detach(), rtol=1e-4, atol=1e-5)
