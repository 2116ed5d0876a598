"""Tests of a run's folder that a stranger wrote, or that was damaged: nothing of it is made use of unnoticed."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny
from tests.training.test_loop import Interrupting

from gdod import InputError
from gdod.models import build
from gdod.training import Folder, Interrupted, load_run, train
from gdod.training.calibration import Steps, calibrator_content, fit_line
from gdod.training.checkpoint import load, save
from gdod.training.config import TrainConfig, checksum


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = tiny.config(steps=4, calibrate="platt", negatives_kept={"click": 0.5})
    train(config, folder, dataset=tiny.dataset())
    return folder


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


class Bytes:
    """Becomes a bytearray of two gigabytes when it is unpickled, of which torch would let pass any length."""

    def __reduce__(self) -> Any:
        return bytearray, (2 << 30,)


def test_a_checkpoint_makes_nothing_that_is_longer_than_it(tmp_path: Path) -> None:
    torch.save({"format": 1, "model": Bytes()}, tmp_path / "best.pt")
    with pytest.raises(InputError, match=r"best\.pt is damaged or was changed: it holds something else than numbers"):
        load(tmp_path / "best.pt")
    # Nor by a way of naming things that torch does not write.
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("other/data.pkl", pickle.dumps(Bytes(), protocol=4))
    with pytest.raises(InputError, match="something else than numbers"):
        load(tmp_path / "other.pt")


@pytest.mark.parametrize("kind", ["complex", "whole numbers", "sparse", "meta"])
@pytest.mark.parametrize("name", ["best", "last"])
def test_weights_of_another_kind_are_refused(run: Path, tmp_path: Path, kind: str, name: str) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    path = folder / f"checkpoints/{name}.pt"
    content = load(path)
    first, weight = next(iter(content["model"].items()))
    other = {
        "complex": lambda: weight.to(torch.complex64),
        "whole numbers": lambda: weight.to(torch.int8),
        "sparse": weight.to_sparse,
        "meta": lambda: weight.to("meta"),
    }[kind]()
    save(path, {**content, "model": {**content["model"], first: other}})
    use = load_run if name == "best" else resume
    with pytest.raises(InputError, match=rf"{name}\.pt is damaged or was changed: (it holds|{first} holds another)"):
        use(folder)


def resume(folder: Path) -> None:
    (folder / "result.json").unlink()
    train(Folder(folder).read_config(), folder, dataset=tiny.dataset(), resume=True)


@pytest.mark.parametrize("part", ["model", "average", "optimizers", "method", "state", "random"])
def test_a_checkpoint_of_another_run_is_refused_in_words(tmp_path: Path, part: str) -> None:
    """A last.pt, or a part of it, that does not belong to its folder."""
    config = tiny.config(steps=4, average=0.9, method="gradnorm")
    train(config, tmp_path / "run", dataset=tiny.dataset())
    path = tmp_path / "run/checkpoints/last.pt"
    content = load(path)
    moments = {"exp_avg": torch.zeros(2), "step": torch.zeros(())}
    wrong = {
        "model": {name: one[:1] for name, one in content["model"].items()},
        "average": {name: one * float("nan") for name, one in content["average"].items()},
        "optimizers": [{**content["optimizers"][0], "state": {0: moments}}],
        "method": {"weights": 3},
        "state": ["step"],
        "random": {"cpu": torch.zeros(2)},
    }
    save(path, {**content, part: wrong[part]})
    with pytest.raises(InputError, match=r"last\.pt (is damaged or was changed: |does not fit the configuration)"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("setting", [{"negatives_kept": {"click": 0.4}}, {"calibrate": "none"}])
def test_settings_that_predictions_depend_on_are_those_of_training(
    run: Path, tmp_path: Path, setting: dict[str, Any]
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    change(folder / "config.json", **setting)
    with pytest.raises(InputError, match=r"config.json beside .*best\.pt is damaged or was changed"):
        load_run(folder)


def test_a_run_goes_on_with_the_settings_it_began_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(tiny.config(steps=20), folder, dataset=tiny.dataset(), progress=Interrupting(7))
    optimizer = json.loads((folder / "config.json").read_text())["optimizer"]
    change(folder / "config.json", optimizer={**optimizer, "lr": optimizer["lr"] * 1.25})  # one bit of a digit
    with pytest.raises(InputError, match=r"config.json beside .*last\.pt is damaged or was changed"):
        train(Folder(folder).read_config(), folder, dataset=tiny.dataset(), resume=True)
    # Where it works and what it notes on the way may be another machine's.
    change(folder / "config.json", optimizer=optimizer, log_every=3, threads=None)
    train(Folder(folder).read_config(), folder, dataset=tiny.dataset(), resume=True)


@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_best_weights_that_are_lost_are_missed_before_the_work(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(tiny.config(steps=20), folder, dataset=tiny.dataset(), progress=Interrupting(7))
    best = folder / "checkpoints/best.pt"
    content = best.read_bytes()
    best.unlink() if damage == "removed" else best.write_bytes(content[:-100])
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"checkpoint .*best\.pt"):
        train(Folder(folder).read_config(), folder, dataset=tiny.dataset(), resume=True)
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_settings_at_their_defaults_are_no_part_of_the_checksum() -> None:
    """So it stays the same in versions that have more settings."""

    class Later(TrainConfig):
        another: int = 3

    plain = tiny.config(steps=4)
    assert checksum(Later(**plain.model_dump())) == checksum(plain)
    assert checksum(plain) == checksum(plain.model_copy(update={"clip": None, "steps": 5, "device": "cuda"}))
    assert checksum(plain) != checksum(plain.model_copy(update={"clip": 1.0}))


LINE = {"kind": "platt", "slope": 1.0, "intercept": 0.0}
STEPS = {"kind": "isotonic", "probabilities": [0.0, 0.5, 1.0], "rates": [0.0, 0.4, 1.0]}


@pytest.mark.parametrize(
    "content",
    [
        None,
        ["click"],
        {"click": "platt"},
        {"nobody": LINE},
        {"click": {**LINE, "slope": float("nan")}},
        {"click": {**STEPS, "rates": [0.0, 1.0]}},
        {"click": {**STEPS, "rates": ["a", "b", "c"]}},
        {"click": {**STEPS, "probabilities": [0.0, 0.0, 1.0]}},
        {"click": {"kind": "isotonic", "probabilities": [], "rates": []}},
    ],
)
def test_a_calibration_that_cannot_be_is_refused(run: Path, tmp_path: Path, content: Any) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result.pop("calibrators_checksum")  # as an earlier version wrote it
    (folder / "result.json").write_text(json.dumps({**result, "calibrators": content}))
    with pytest.raises(InputError, match=r"calibration in result.json is damaged or was changed: "):
        load_run(folder)


def test_a_changed_digit_of_the_calibration_is_noticed(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    stored = json.loads((folder / "result.json").read_text())["calibrators"]
    assert load_run(folder).calibrators["click"].to_json() == stored["click"]
    stored["click"]["slope"] += 0.25
    change(folder / "result.json", calibrators=stored)
    with pytest.raises(InputError, match=r"calibration in result.json .* its checksum is wrong"):
        load_run(folder)


def test_a_checksum_of_a_calibration_outlives_its_file() -> None:
    content = calibrator_content({"click": fit_line(torch.tensor([0.0, 1, 1]), torch.tensor([0.2, 0.3, 0.9]))})
    assert json.loads(json.dumps(content)) == content


def test_many_steps_of_a_calibration_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.linspace(0, 1, 50).double()
    steps = Steps(tuple(points.tolist()), tuple((points**2).tolist()))
    probability = torch.rand(300, generator=torch.Generator().manual_seed(0))
    expected = steps(probability)
    monkeypatch.setattr("gdod.training.calibration._AT_ONCE", 1000)
    largest = 0
    clamp = torch.Tensor.clamp

    def measured(values: torch.Tensor, *bounds: float) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, values.numel())
        return clamp(values, *bounds)

    monkeypatch.setattr(torch.Tensor, "clamp", measured)
    assert torch.equal(steps(probability), expected)
    assert 0 < largest <= 1000


@pytest.mark.parametrize(
    "option", [{"cross": 10_000_000}, {"tower": [1] * 1000}, {"bottom": [4] * 1000}, {"bottom": [10**30]}]
)
def test_a_model_beyond_all_measure_is_refused_at_once(option: dict[str, Any]) -> None:
    dataset = tiny.dataset()
    with pytest.raises(InputError, match=r"at most 100|too large to be made"):
        build("shared-bottom", dataset.schema, dataset.tasks, **option)
