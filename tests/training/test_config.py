"""Tests of configurations: what they may say, which setting wins, and what is refused."""

from pathlib import Path

import pytest

from gdod import InputError
from gdod.training import TrainConfig, check_config, read_config
from gdod.training.config import ScheduleConfig
from gdod.training.optimizers import lr_factor


def write(folder: Path, text: str, name: str = "train.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_defaults_of_the_recipe_paper_are_those_of_the_paper() -> None:
    config = check_config({"data": "ads", "recipe": "paper"})
    assert (config.batch, config.optimizer.name, config.optimizer.lr) == (256, "adam", 1e-3)
    assert (config.data.source, config.model.name, config.method.name) == ("ads", "shared-bottom", "gdod")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.yaml", "data: ads\nmodel: {name: mmoe, options: {experts: 3}}\nbatch: 32\n"),
        ("train.toml", 'data = "ads"\nbatch = 32\n[model]\nname = "mmoe"\noptions = {experts = 3}\n'),
        ("train.json", '{"data": "ads", "batch": 32, "model": {"name": "mmoe", "options": {"experts": 3}}}'),
    ],
)
def test_files_of_each_kind_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    config = read_config(write(tmp_path, text, name))
    assert config == check_config({"data": "ads", "batch": 32, "model": {"name": "mmoe", "options": {"experts": 3}}})


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "data: ads\nbatch: 32\noptimizer: {lr: 0.1, weight_decay: 0.2}\nepochs: 3\n")
    config = read_config(file, {"batch": 64, "optimizer.lr": 0.5})
    assert (config.batch, config.optimizer.lr, config.optimizer.weight_decay, config.epochs) == (64, 0.5, 0.2, 3)


def test_another_model_does_not_inherit_the_options_of_the_one_in_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "data: ads\nmodel: {name: mmoe, options: {experts: 3}}\n")
    assert read_config(file, {"model.name": "ple"}).model.options == {}
    assert read_config(file, {"model.name": "mmoe"}).model.options == {"experts": 3}
    assert read_config(file, {"model.options.dropout": 0.1}).model.options == {"experts": 3, "dropout": 0.1}


def test_a_short_form_and_an_option_below_it_go_together(tmp_path: Path) -> None:
    file = write(tmp_path, "data: ads\nmodel: mmoe\n")
    config = read_config(file, {"model.options.experts": 2, "data.options.rows": 10})
    assert (config.model.name, config.model.options, config.data.options) == ("mmoe", {"experts": 2}, {"rows": 10})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data": "ads", "bach": 3}, "did you mean 'batch'"),
        ({"data": "ads", "optimizer": {"learning_rate": 1}}, "optimizer.learning_rate is not a setting"),
        ({"data": {"source": "ads", "shema": "x"}}, "did you mean 'schema'"),
        ({"data": "ads", "batch": 0}, "batch=0"),
        ({"data": "ads", "batch": 2.5}, "batch=2.5"),
        ({"data": "ads", "optimizer": {"lr": float("nan")}}, "optimizer.lr"),
        ({"data": "ads", "epochs": 1, "steps": 1}, "both `epochs` and `steps`"),
        ({"data": "ads", "optimizer": "adagrad"}, "optimizer.name='adagrad'"),
        ({"data": "ads", "schedule": "step"}, "needs `every`"),
        ({"data": "ads", "optimizer": {"momentum": 0.9}}, "momentum=0.9 is for sgd"),
        ({"data": "ads", "log_every": 50, "conflict_every": 30}, "no multiple of log_every"),
        ({}, "data is missing"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=r"the configuration is not valid") as caught:
        check_config(settings)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "a: [1\n", "1: 2\n", "!!python/object/apply:os.system ['true']"])
def test_files_that_are_no_settings_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"train\.yaml"):
        read_config(write(tmp_path, text))


@pytest.mark.parametrize("path", ["../outside.csv", "/etc/hostname", "sub/../../outside.csv", "link/outside.csv"])
def test_paths_in_a_file_stay_in_its_folder(tmp_path: Path, path: str) -> None:
    inside = tmp_path / "project"
    inside.mkdir()
    (tmp_path / "outside.csv").write_text("a\n1\n")
    (inside / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="leads out of the folder"):
        read_config(write(inside, f"data: {{source: {path}}}\n"))
    with pytest.raises(InputError, match="leads out of the folder"):
        read_config(write(inside, f"data: {{source: ads, schema: {path}}}\n"))


def test_paths_in_a_file_start_at_its_folder(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "data: {source: table.csv, schema: schema.yaml}\n"))
    assert config.data.source == str(tmp_path / "table.csv")
    assert config.data.schema_file == tmp_path / "schema.yaml"
    # What a person types is theirs to decide.
    assert read_config(None, {"data.source": "../x.csv"}).data.source == "../x.csv"


def test_it_goes_through_json_and_back() -> None:
    config = check_config({"data": {"source": "x.csv", "schema": "x.yaml"}, "task_weights": {"a": 2}, "epochs": 0.5})
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config
    assert config.model_dump(mode="json")["data"]["schema"] == "x.yaml"


def test_schedules() -> None:
    def shares(total: int = 100, **settings: object) -> list[float]:
        schedule = ScheduleConfig.model_validate(settings)
        return [lr_factor(schedule, step, total) for step in range(total)]

    assert set(shares(name="constant")) == {1.0}
    warm = shares(name="constant", warmup=10)
    assert warm[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert warm[9:] == [1.0] * 91
    assert shares(name="linear")[::25] == pytest.approx([1, 0.75, 0.5, 0.25])
    cosine = shares(name="cosine", floor=0.1)
    assert cosine[0] == 1
    assert cosine[50] == pytest.approx(0.55)
    assert cosine == sorted(cosine, reverse=True)
    assert cosine[-1] == pytest.approx(0.1, abs=1e-3)
    assert shares(name="step", every=40, factor=0.5)[::40] == [1, 0.5, 0.25]
