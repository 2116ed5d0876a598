"""ESMM and AITM against their formulas, far into the tails; labels that are no chain are refused."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from itertools import pairwise

import pytest
import torch
from tests.models.cases import STEPS, batch_of, build, labels_of, losses_of, shuffled
from torch import Tensor
from torch.nn.functional import logsigmoid

import gdod
from gdod.models import AITM, ESMM, per_example_losses
from gdod.models.chains import logit_of_product

# Logits of a step from surely not to surely, of which float32 can represent no probability.
TAILS = [-300.0, -80.0, -30.0, -3.0, -0.1, 0.0, 0.1, 3.0, 30.0, 80.0, 300.0]


def probability(logit: float) -> Decimal:
    """Return σ(logit) with as many digits as the context has."""
    return 1 / (1 + (-Decimal(logit)).exp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logit_of_a_product_is_exact_everywhere(dtype: torch.dtype) -> None:
    a, b = (one.flatten() for one in torch.meshgrid(*[torch.tensor(TAILS, dtype=dtype)] * 2, indexing="ij"))
    with localcontext(prec=400):
        products = [probability(x) * probability(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        expected = torch.tensor([float((p / (1 - p)).ln()) for p in products], dtype=dtype)
    torch.testing.assert_close(logit_of_product(a, b), expected)


def test_the_gradient_of_its_loss_is_finite_and_right_everywhere() -> None:
    """With the label 0 the loss is -log(1 - σ(a) σ(b)), of which the slope in a is p (1 - σ(a)) / (1 - p)."""
    a, b = (one.flatten().requires_grad_() for one in torch.meshgrid(*[torch.tensor(TAILS)] * 2, indexing="ij"))
    losses = per_example_losses({"click": logit_of_product(a, b)}, {"click": torch.zeros(len(a))}, STEPS[:1]).losses
    slopes = torch.autograd.grad(losses["click"].sum(), (a, b))
    with localcontext(prec=400):
        for slope, own, other in ((slopes[0], a, b), (slopes[1], b, a)):
            each = [(probability(x), probability(y)) for x, y in zip(own.tolist(), other.tolist(), strict=True)]
            expected = [float(p * q * (1 - p) / (1 - p * q)) for p, q in each]
            torch.testing.assert_close(slope, torch.tensor(expected))


def test_esmm_multiplies_the_probabilities_of_its_towers() -> None:
    model, batch = shuffled(build("esmm, three steps")).double(), batch_of(10)
    assert isinstance(model, ESMM)
    batch = batch._replace(numeric=batch.numeric.double())
    h = model.bottom(model.features(batch))
    own = [tower(h).sigmoid() for tower in model.towers]
    logits = model(batch)
    for count, task in enumerate(STEPS, 1):
        torch.testing.assert_close(logits[task.name].sigmoid(), torch.stack(own[:count]).prod(0))
    assert model.chain == ("click", "buy", "pay")


def test_in_esmm_a_step_is_never_more_probable_than_the_one_before() -> None:
    model, batch = shuffled(build("esmm, three steps", ensemble=3)).eval(), batch_of(200)
    for before, after in pairwise(model(batch)[task.name] for task in STEPS):
        assert bool((after < before).all())


def test_the_order_of_the_chain_is_that_of_the_option() -> None:
    model, batch = shuffled(build("esmm", chain=("buy", "click"))), batch_of(10)
    logits = model(batch)
    assert list(logits) == ["click", "buy", "stay", "kind"]
    assert bool((logits["click"] < logits["buy"]).all())


def test_the_loss_of_a_later_step_reaches_the_towers_of_those_before() -> None:
    """So that p(buy | click) is learned over all rows, with the losses of the two probabilities that are seen."""
    model = build("esmm, three steps")
    assert isinstance(model, ESMM)
    losses = losses_of(model).losses
    owners = {parameter: place for place, tower in enumerate(model.towers) for parameter in tower.parameters()}
    for number, task in enumerate(STEPS):
        slopes = torch.autograd.grad(losses[task.name].sum(), list(owners), retain_graph=True, allow_unused=True)
        reached = [slope is not None and bool(slope.any()) for slope in slopes]
        assert reached == [place <= number for place in owners.values()]


def test_aitm_by_hand() -> None:
    model, batch = shuffled(build("aitm, three steps")).eval(), batch_of(10)
    assert isinstance(model, AITM)
    h = model.bottom(model.features(batch))
    z, logits = None, model(batch)
    for number, task in enumerate(STEPS):
        q = model.towers[number](h)
        if z is None:
            z = q
        else:
            transfer = model.transfers[number - 1]
            h1, h2, h3 = transfer.get_parameter("projections.weight").chunk(3)  # [H, H] each
            both = (transfer.get_submodule("passed")(z), q)
            scores = torch.stack([((u @ h2.T) * (u @ h3.T)).sum(1) / 6**0.5 for u in both])  # [2, B]
            weights = scores.exp() / scores.exp().sum(0)
            z = weights[0][:, None] * (both[0] @ h1.T) + weights[1][:, None] * (both[1] @ h1.T)
        torch.testing.assert_close(logits[task.name], model.outputs[number](z).squeeze(1), rtol=1e-4, atol=1e-5)


def test_the_calibrator_asks_that_a_step_is_no_more_probable_than_the_one_before() -> None:
    model = build("aitm, three steps", calibrator=0.5)
    logits = {"click": torch.tensor([0.0, 2.0]), "buy": torch.tensor([1.0, 0.0]), "pay": torch.tensor([-1.0, 0.5])}
    p = {name: logit.sigmoid() for name, logit in logits.items()}
    added = model.example_penalties(logits)
    assert list(added) == ["buy", "pay"]
    torch.testing.assert_close(added["buy"], 0.5 * torch.stack([p["buy"][0] - p["click"][0], torch.zeros(())]))
    torch.testing.assert_close(added["pay"], 0.5 * torch.stack([torch.zeros(()), p["pay"][1] - p["buy"][1]]))
    assert build("aitm, three steps", calibrator=0).example_penalties(logits) == {}


def test_penalties_are_added_to_losses_and_weighted_with_them() -> None:
    logits, labels = {"click": torch.randn(6), "buy": torch.randn(6)}, labels_of(6)
    added, weights = torch.rand(6), torch.rand(6)
    plain = per_example_losses(logits, labels, STEPS[:2], weights=weights).losses
    losses = per_example_losses(logits, labels, STEPS[:2], weights=weights, penalties={"buy": added}).losses
    assert torch.equal(losses["click"], plain["click"])
    torch.testing.assert_close(losses["buy"], plain["buy"] + weights * added)
    with pytest.raises(gdod.InputError, match=r"penalties of task 'buy' has shape \[5\]; expected \[6\]"):
        per_example_losses(logits, labels, STEPS[:2], penalties={"buy": added[:5]})


def test_training_with_the_calibrator_leaves_fewer_contradictions() -> None:
    def above(calibrator: float) -> float:
        model, batch = build("aitm", STEPS[:2], calibrator=calibrator), batch_of(64)
        labels = labels_of(64)
        labels["buy"] = labels["click"]  # equally frequent, so that neither is above the other by itself
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(30):
            optimizer.zero_grad()
            logits = model(batch)
            losses, mask = per_example_losses(logits, labels, model.tasks, penalties=model.example_penalties(logits))
            gdod.backward(losses, mask=mask)
            optimizer.step()
        logits = model.eval()(batch)
        return float((logits["buy"].sigmoid() - logits["click"].sigmoid()).detach().relu().mean())

    assert above(10.0) < 0.5 * above(0.0)


def nowhere(labels: dict[str, Tensor]) -> None:
    labels["buy"][labels["click"] == 0] = torch.nan


def without_click(labels: dict[str, Tensor]) -> None:
    labels["buy"][:] = 1 - labels["click"]


def sometimes_missing(labels: dict[str, Tensor]) -> None:
    labels["buy"][::3] = torch.nan
    labels["click"][1::3] = torch.nan


@pytest.mark.parametrize("form", ["esmm", "aitm"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_click, r"rows have 'buy' without 'click', which comes before it in the chain click, buy"),
        (nowhere, r"'buy' has a label only where 'click' is 1, .* leave out `when: click`"),
        (sometimes_missing, None),
    ],
)
def test_labels_that_are_no_chain_are_refused(
    form: str, change: Callable[[dict[str, Tensor]], None], message: str | None
) -> None:
    model, labels = build(form), labels_of(50)
    model.check_labels(labels)
    change(labels)
    build("mmoe").check_labels(labels)
    if message is None:
        model.check_labels(labels)
    else:
        with pytest.raises(gdod.InputError, match=message):
            model.check_labels(labels)


def test_half_precision_is_left_before_probabilities_are_multiplied() -> None:
    model, batch = build("esmm", STEPS[:2]), batch_of(10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch)
    assert {logit.dtype for logit in logits.values()} == {torch.float32}
    assert bool((logsigmoid(logits["buy"]) < logsigmoid(logits["click"])).all())
