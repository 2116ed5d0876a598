"""Tests of a run's folder: what it holds, what is never written over, what is never executed."""

import json
import os
import pickle
import shutil
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny
from tests.training.test_loop import Interrupting

from gdod import InputError
from gdod._files import check_space, check_writable, whole, write_json
from gdod.models import build
from gdod.training import Folder, Interrupted, load_run, name_of, resume_command, train
from gdod.training.checkpoint import keep_weights_only, load, save


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = tiny.config(steps=20, method={"name": "gdod", "options": {"groups": 4}})
    train(config, folder, dataset=tiny.dataset(), command=["gdod", "train"])
    return folder


def test_it_says_everything_about_itself(run: Path) -> None:
    assert {path.name for path in run.iterdir()} == {
        "config.json", "about.json", "encoder.json", "metrics.jsonl", "checkpoints", "result.json",
    }  # fmt: skip
    about = json.loads((run / "about.json").read_text())
    assert about["command"] == ["gdod", "train"]
    assert about["data"] == {
        "name": "tiny",
        "fingerprint": "tiny-1200-0",
        "rows": {"train": 1200, "validation": 300, "test": 300},
        "notes": [],
    }
    assert about["versions"]["torch"] == version("torch")
    assert about["tasks"] == [{"name": "click", "kind": "binary"}, {"name": "buy", "kind": "binary"}]
    assert about["method"] == {"name": "gdod", "options": {"groups": 4}}
    assert about["model"]["parameters"] == sum(one.numel() for one in load_run(run).model.parameters())
    assert (about["seed"], about["threads"], about["device"], about["precision"]) == (0, 1, "cpu", "float32")
    result = json.loads((run / "result.json").read_text())
    assert set(result) >= {"best_step", "steps", "seconds", "milliseconds_per_step", "validation", "test", "stopped"}
    assert sum(one["count"] for one in result["calibration"]["click"]) == 300


def test_the_configuration_is_complete_and_reads_back(run: Path) -> None:
    stored = json.loads((run / "config.json").read_text())
    assert stored["optimizer"] == {"name": "adam", "lr": 0.01, "weight_decay": 0.0, "id_decay": None, "momentum": 0.0}
    assert Folder(run).read_config().model_dump(mode="json") == stored


def test_a_run_is_never_written_over(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a run already; go on with it with gdod train --resume"):
        train(tiny.config(), run, dataset=tiny.dataset())
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        train(tiny.config(), tmp_path, dataset=tiny.dataset())
    with pytest.raises(InputError, match="is a file"):
        train(tiny.config(), tmp_path / "thesis.txt", dataset=tiny.dataset())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_run_that_was_killed_as_it_began_can_begin_again(run: Path, tmp_path: Path) -> None:
    """The files are those that a run writes first, in their order."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in ("encoder.json", "about.json"):
        shutil.copy(run / name, tmp_path / "run")
        (tmp_path / "run" / f".{name}.0.part").touch()
        folder = shutil.copytree(tmp_path / "run", tmp_path / name)
        assert train(tiny.config(steps=1), folder, dataset=tiny.dataset(seed=1), resume=True)["steps"] == 1
        assert not list(Path(folder).rglob("*.part"))


def test_checkpoints_without_a_run_are_not_gone_on_with(run: Path, tmp_path: Path) -> None:
    """Without a configuration nobody knows which model they belong to."""
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(InputError, match="holds other files"):
        train(tiny.config(), tmp_path, dataset=tiny.dataset())


def test_another_configuration_does_not_go_on(run: Path) -> None:
    changed = Folder(run).read_config().model_copy(update={"batch": 7})
    with pytest.raises(InputError, match="batch is 64, not 7"):
        train(changed, run, dataset=tiny.dataset(), resume=True)


def test_a_folder_that_cannot_be_written_to_is_noticed_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "run", Path("/proc/nothing/run")):
        with pytest.raises(InputError, match=r"cannot be written to|is a file"):
            train(tiny.config(), folder, dataset=tiny.dataset())
        with pytest.raises(InputError, match="cannot be written to"):
            check_writable(folder)


def test_a_full_disk_is_noticed_first(tmp_path: Path) -> None:
    check_space(tmp_path, 1000)
    with pytest.raises(InputError, match=r"GB free; checkpoints and records need about 1000000000\.0 GB"):
        check_space(tmp_path, 10**18)


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_a_file_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"good": 1})

    def write() -> None:
        with whole(tmp_path / "x.json") as part:
            part.symlink_to("/dev/full")  # a disk that is full, as real as it gets
            part.write_bytes(bytes(100_000))

    with pytest.raises(OSError, match="No space left"):
        write()
    assert json.loads((tmp_path / "x.json").read_text()) == {"good": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("limit", [100, 10_000, 100_000, 250_000, 800_000, 801_000])
def test_a_checkpoint_that_the_disk_has_no_room_for_names_its_file(tmp_path: Path, limit: int) -> None:
    resource = pytest.importorskip("resource")
    weights = {"first": torch.zeros(50_000), "second": torch.zeros(150_000), "third": torch.zeros(3)}
    save(tmp_path / "last.pt", {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*last\.pt'"):
            save(tmp_path / "last.pt", {"step": 2, "model": weights})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load(tmp_path / "last.pt")["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["torch", "pickle", "rubbish", "empty", "missing", "other"])
def test_a_checkpoint_never_runs_code(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "last.pt"
    if kind == "torch":
        torch.save({"format": 1, "model": Harmful(tmp_path / "executed")}, path)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Harmful(tmp_path / "executed")))
    elif kind == "rubbish":
        path.write_bytes(os.urandom(1000))
    elif kind == "empty":
        path.touch()
    elif kind == "other":
        torch.save({"format": 99}, path)
    with pytest.raises(InputError, match=r"last\.pt"):
        load(path)
    assert not (tmp_path / "executed").exists()


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    content = {"model": {"w": torch.randn(3)}, "state": {"step": 3, "best": None, "losses": [[1.0, float("inf")]]}}
    save(tmp_path / "x.pt", content)
    assert tiny.same({key: value for key, value in load(tmp_path / "x.pt").items() if key != "format"}, content)


@pytest.mark.parametrize("damage", ["config.json", "encoder.json", "checkpoints/best.pt"])
def test_a_damaged_run_is_one_of_our_errors(run: Path, tmp_path: Path, damage: str) -> None:
    for content in (None, b"{", b"[1]", b"{}", b"\xff\xfe"):
        folder = tmp_path / f"copy{content!r}"
        shutil.copytree(run, folder)
        (folder / damage).unlink()
        if content is not None:
            (folder / damage).write_bytes(content)
        with pytest.raises(InputError):
            load_run(folder)


def changed_copy(run: Path, folder: Path, name: str, at: int) -> Path:
    """Copy a run, and change one bit of one of its files."""
    shutil.copytree(run, folder)
    content = bytearray((folder / name).read_bytes())
    content[at] ^= 0x40
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_changed_bit_of_a_checkpoint_is_noticed(run: Path, tmp_path: Path, name: str) -> None:
    path, whole = run / f"checkpoints/{name}.pt", load(run / f"checkpoints/{name}.pt")
    refused = {}
    for at in range(0, path.stat().st_size, path.stat().st_size // 60):
        copy = tmp_path / str(at) / f"{name}.pt"
        copy.parent.mkdir()
        content = bytearray(path.read_bytes())
        content[at] ^= 0x40
        copy.write_bytes(content)
        try:
            assert tiny.same(load(copy), whole)  # a bit that says nothing, such as one that fills up a line
        except InputError as error:
            refused[copy] = str(error)
    assert len(refused) > 30
    assert all(str(copy) in said and "Put a copy in its place" in said for copy, said in refused.items())
    weight = path.read_bytes().index(next(iter(whole["model"].values())).numpy().tobytes()[:64])
    with pytest.raises(InputError, match=rf"checkpoints/{name}\.pt is damaged or was changed: the checksum of"):
        load_run(changed_copy(run, tmp_path / "run", f"checkpoints/{name}.pt", weight), weights=name)


def test_a_changed_encoder_is_noticed(run: Path, tmp_path: Path) -> None:
    place = (run / "encoder.json").read_bytes().index(b"city3")
    with pytest.raises(InputError, match=r"encoder\.json is damaged or was changed"):
        load_run(changed_copy(run, tmp_path / "run", "encoder.json", place))


def test_a_run_of_an_earlier_version_has_no_checksums_and_still_opens(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    about = json.loads((folder / "about.json").read_text())
    del about["checksums"]
    (folder / "about.json").write_text(json.dumps(about))
    frame = tiny.frame(20, seed=5)
    assert load_run(folder).predict(frame).equals(load_run(run).predict(frame))


def test_a_checkpoint_can_keep_its_weights_only(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    keep_weights_only(folder / "checkpoints/last.pt")
    assert (folder / "checkpoints/last.pt").stat().st_size < (run / "checkpoints/last.pt").stat().st_size / 2
    frame = tiny.frame(20, seed=5)
    assert load_run(folder, weights="last").predict(frame).equals(load_run(run, weights="last").predict(frame))
    assert load_run(folder, weights="last").step == 20


def test_nobody_is_advised_to_load_a_checkpoint_unsafely(tmp_path: Path) -> None:
    torch.save({"format": 1, "model": Harmful(tmp_path / "executed")}, tmp_path / "best.pt")
    with pytest.raises(InputError, match="something else than numbers") as refused:
        load(tmp_path / "best.pt")
    assert "weights_only" not in str(refused.value)
    assert "trust" not in str(refused.value)


def rewritten(run: Path, folder: Path, **weights: torch.Tensor) -> Path:
    """Copy a run, with some of its best weights replaced."""
    shutil.copytree(run, folder)
    content = load(folder / "checkpoints/best.pt")
    save(folder / "checkpoints/best.pt", {**content, "model": {**content["model"], **weights}})
    return folder


def test_weights_that_are_not_finite_are_refused(run: Path, tmp_path: Path) -> None:
    name, weight = next(iter(load(run / "checkpoints/best.pt")["model"].items()))
    wrong = weight.clone()
    wrong.view(-1)[-1] = float("nan")
    with pytest.raises(InputError, match=rf"best\.pt .*{name} holds nan or infinity"):
        load_run(rewritten(run, tmp_path / "run", **{name: wrong}))


def test_a_packed_checkpoint_is_refused_before_it_is_unpacked(run: Path, tmp_path: Path) -> None:
    """A few kilobytes can be packed so that they become gigabytes."""
    folder = shutil.copytree(run, tmp_path / "run")
    with zipfile.ZipFile(folder / "checkpoints/best.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("best/data.pkl", b"")
        archive.writestr("best/data/0", bytes(10_000_000))
    with pytest.raises(InputError, match=r"best\.pt is damaged or was changed: it is packed"):
        load_run(folder)


@pytest.mark.parametrize("option", [{"experts": 10_000_000}, {"tower": [10_000_000_000]}, {"ensemble": 10_000_000}])
def test_a_configuration_beyond_all_measure_is_refused_at_once(tmp_path: Path, option: dict[str, Any]) -> None:
    config = tiny.config(steps=1, model={"name": "mmoe", "options": {"embedding": 4, "tower": [4]}})
    train(config, tmp_path / "run", dataset=tiny.dataset())
    stored = json.loads((tmp_path / "run/config.json").read_text())
    stored["model"]["options"] |= option
    (tmp_path / "run/config.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match=r"it has other settings than the checkpoint was written with"):
        load_run(tmp_path / "run")
    best = tmp_path / "run/checkpoints/best.pt"
    save(best, {name: one for name, one in load(best).items() if name != "settings"})  # as of an earlier version
    with pytest.raises(InputError, match=r"best\.pt does not fit the configuration beside it: the size of"):
        load_run(tmp_path / "run")
    # Nor does a checkpoint help that only seems to be as large.
    with torch.device("meta"):
        sizes = build("mmoe", tiny.dataset().schema, tiny.dataset().tasks, **stored["model"]["options"]).state_dict()
    weights = {name: torch.zeros(()).expand(one.shape) for name, one in sizes.items()}
    save(tmp_path / "run/checkpoints/best.pt", {"step": 1, "model": weights})
    with pytest.raises(InputError, match=r"best\.pt .* longer than the file"):
        load_run(tmp_path / "run")


def test_a_run_in_one_line(run: Path) -> None:
    frame = tiny.frame(50, seed=5)
    predicted = load_run(run).predict(frame)
    assert predicted.columns == ["click", "buy"]
    assert len(predicted) == 50
    assert predicted.select("click").to_series().is_between(0, 1).all()
    best, last = load_run(run), load_run(run, weights="last")
    assert (best.step, last.step) == (json.loads((run / "result.json").read_text())["best_step"], 20)
    with pytest.raises(InputError, match="'best' or 'last'"):
        load_run(run, weights="worst")
    with pytest.raises(InputError, match="is no run"):
        load_run(run / "checkpoints")


def test_its_evaluation_is_that_of_training(run: Path) -> None:
    """The whole way from the raw table gives what the loop measured on its tensors."""
    loaded = load_run(run)
    assert loaded.result is not None
    evaluated = loaded.evaluate(tiny.frame(1800)[1500:])
    for task, metrics in loaded.result["test"]["tasks"].items():
        for name, value in metrics.items():
            assert evaluated["tasks"][task][name] == pytest.approx(value, rel=1e-6)


def test_an_unfinished_run_can_be_used(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny.config(steps=30), tmp_path / "run", dataset=tiny.dataset(), progress=Interrupting(7))
    loaded = load_run(tmp_path / "run", weights="last")
    assert (loaded.step, loaded.result) == (7, None)


def test_names_and_commands() -> None:
    config = tiny.config(data={"source": "/some where/My clicks (1).csv"}, seed=3)
    assert name_of(config) == "My-clicks-1-shared-bottom-sum-seed3"
    assert name_of(tiny.config(data={"source": "../.."})) == "data-shared-bottom-sum-seed0"
    assert resume_command(Path("runs/my run")) == "gdod train --resume --out 'runs/my run'"
