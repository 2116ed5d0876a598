"""Tests of the moving average of weights: its numbers, and that it is what is evaluated, kept and resumed with."""

import copy
from pathlib import Path

import pytest
import torch
from tests.training import tiny
from tests.training.test_loop import Interrupting, broken, check_same, lines
from tests.training.test_resume import check_same_result, config, finish, killed_often

import gdod
from gdod.errors import InputError
from gdod.training import Interrupted, check_config, load_run, train
from gdod.training.averaging import EVERY, Average
from gdod.training.checkpoint import load
from gdod.training.evaluation import predict_part
from gdod.training.seeds import seed_for


def by_hand(weights: list[torch.Tensor], decay: float) -> torch.Tensor:
    """Return the average after the last of these steps; ``weights`` has those of step 0, 1, ..."""
    average, total = weights[0].double(), len(weights) - 1
    for step in range(1, total + 1):
        if step % EVERY == 0 or step == total:
            keep = min(decay, (1 + step) / (10 + step)) ** (step % EVERY or EVERY)
            average = keep * average + (1 - keep) * weights[step].double()
    return average


@pytest.mark.parametrize("total", [1, 4, 5, 23, 60])
@pytest.mark.parametrize("decay", [0.5, 0.95])
def test_it_is_the_average_written_by_hand(total: int, decay: float) -> None:
    data = tiny.dataset()
    model = gdod.models.build("shared-bottom", data.schema, data.tasks)
    average, weights = Average(model, decay), [copy.deepcopy(list(model.parameters()))]
    for step in range(1, total + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        weights.append(copy.deepcopy(list(model.parameters())))
        average.update(step, last=step == total)
    for number, parameter in enumerate(average.model.parameters()):
        expected = by_hand([one[number].detach() for one in weights], decay)
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-5, atol=1e-5)


def test_buffers_are_those_of_the_model() -> None:
    """They are whole numbers, such as where fields begin in the table, which an average would break."""
    data = tiny.dataset()
    model = gdod.models.build("shared-bottom", data.schema, data.tasks)
    average = Average(model, 0.9)
    model.get_buffer("features.first").add_(1000)
    average.update(EVERY)
    assert tiny.same(dict(average.model.named_buffers()), dict(model.named_buffers()))


def test_weights_that_stand_still_are_their_average() -> None:
    data = tiny.dataset()
    model = gdod.models.build("mmoe", data.schema, data.tasks)
    average = Average(model, 0.9)
    assert tiny.same(dict(average.model.state_dict()), dict(model.state_dict()))
    for step in range(1, 30):
        average.update(step)
    assert tiny.same(dict(average.model.state_dict()), dict(model.state_dict()))
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_it_does_not_change_the_weights_in_training(tmp_path: Path) -> None:
    for name, average in (("with", 0.9), ("without", None)):
        train(tiny.config(steps=33, average=average), tmp_path / name, dataset=tiny.dataset())
    averaged, plain = (load(tmp_path / name / "checkpoints" / "last.pt") for name in ("with", "without"))
    assert set(averaged) - set(plain) == {"average"}
    for name in ("model", "optimizers", "random"):
        assert tiny.same(averaged[name], plain[name])


def test_it_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    data = tiny.dataset()
    result = train(tiny.config(steps=33, average=0.9, evaluate_every=11), tmp_path / "run", dataset=data)
    checkpoints = tmp_path / "run" / "checkpoints"
    last, best = load(checkpoints / "last.pt"), load(checkpoints / "best.pt")
    evaluation = lines(tmp_path / "run", "evaluation")[-1]
    model = load_run(tmp_path / "run", weights="last").model
    assert tiny.same(dict(model.state_dict()), last["average"])
    predictions = predict_part(model, data.validation, 4096, torch.device("cpu"))
    assert predictions is not None
    assert predictions.metrics()["mean_auc"] == evaluation["mean_auc"]
    assert best["step"] == result["best_step"] == 33
    assert tiny.same(best["model"], last["average"])
    assert not tiny.same(last["average"], last["model"])


def test_the_average_of_a_run_is_that_of_its_steps(tmp_path: Path) -> None:
    """The weights after each step are those of a run that ends there."""
    data = tiny.dataset()
    options = tiny.config().model.options
    model = gdod.models.build("shared-bottom", data.schema, data.tasks, seed=seed_for("model", 0), **options)
    weights = [model.get_parameter("bottom.0.weight").detach()]
    for steps in range(1, 14):
        train(tiny.config(steps=steps, average=0.8), tmp_path / f"{steps}", dataset=data)
        content = load(tmp_path / f"{steps}" / "checkpoints" / "last.pt")
        weights.append(content["model"]["bottom.0.weight"])
        expected = by_hand(weights, 0.8)
        torch.testing.assert_close(content["average"]["bottom.0.weight"].double(), expected, rtol=1e-4, atol=1e-6)


def test_skipped_steps_leave_it_finite(tmp_path: Path) -> None:
    given = tiny.config(steps=40, average=0.9, non_finite="skip", batch=8)
    result = train(given, tmp_path / "run", dataset=broken(float("nan"), slice(0, None, 16)))
    assert result["skipped"] > 5
    average = load(tmp_path / "run" / "checkpoints" / "last.pt")["average"]
    assert all(bool(one.isfinite().all()) for one in average.values())


@pytest.mark.parametrize("steps", [7, 21])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, steps: int) -> None:
    given = tiny.config(steps=40, average=0.95, evaluate_every=9)
    train(given, tmp_path / "whole", dataset=tiny.dataset())
    with pytest.raises(Interrupted):
        train(given, tmp_path / "run", dataset=tiny.dataset(), progress=Interrupting(steps))
    train(given, tmp_path / "run", dataset=tiny.dataset(), resume=True)
    check_same(tmp_path / "run", tmp_path / "whole")
    assert not tiny.same(*(load(tmp_path / "run" / "checkpoints" / "last.pt")[name] for name in ("model", "average")))


def test_killed_at_random_points_it_ends_the_same(tmp_path: Path) -> None:
    settings = config("sum", average=0.95, optimizer={"name": "adamw", "lr": 0.01, "id_decay": 0.1})
    finish(settings, tmp_path / "whole")
    assert killed_often(settings, tmp_path / "killed", seed=1, kills=4) >= 2
    check_same(tmp_path / "killed", tmp_path / "whole")
    check_same_result(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("average", [0, 1, -0.5, 1.5])
def test_decays_that_are_none_are_refused(average: float) -> None:
    with pytest.raises(InputError, match="average="):
        check_config({"data": "ads", "average": average})
