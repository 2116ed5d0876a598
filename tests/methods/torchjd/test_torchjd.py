"""Methods borrowed from torchjd, and ours lent to it."""

import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torchjd.aggregation as aggregation
import torchjd.scalarization as scalarization
from tests.methods.samples import ROWS, assert_continues, assert_near, gram_of, randn, training, update
from torch import Tensor, nn
from torchjd.autogram import Engine
from torchjd.autojac import backward, jac_to_grad

import gdod
from gdod.errors import InputError
from gdod.methods import GDOD, Method, WeightedGDOD
from gdod.methods.pcgrad import PCGrad
from gdod.methods.torchjd import ExactProjector, GDODAggregator, GDODWeighting, as_method, torchjd_methods

NEEDS_CVXPY = any(find_spec(name) is None for name in ("cvxpy", "ecos"))
without_cvxpy = pytest.mark.skipif(NEEDS_CVXPY, reason='needs pip install "torchjd[nash_mtl]"')
NAMES = [pytest.param(name, marks=without_cvxpy) if name == "nash-mtl" else name for name in torchjd_methods()]


@pytest.fixture(autouse=True)
def quiet_cvxpy() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in (".*not DPP.*", ".*may be inaccurate.*", "divide by zero.*", "invalid value.*"):
            warnings.filterwarnings("ignore", message=message)
        yield


def make(name: str, **options: Any) -> Method:
    return torchjd_methods()[name](**options)


AGGREGATORS: dict[str, Callable[[], aggregation.Aggregator]] = {
    "upgrad": lambda: aggregation.UPGrad(projector=ExactProjector()),
    "dualproj": lambda: aggregation.DualProj(projector=ExactProjector()),
    "aligned-mtl": aggregation.AlignedMTL,
    "imtl-g": aggregation.IMTLG,
    "fairgrad": lambda: aggregation.FairGrad(2.0),
    "krum": lambda: aggregation.Krum(0),
    "pcd": aggregation.PCD,
}
FOR_THE_MEAN = {"upgrad", "dualproj", "aligned-mtl"}


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("seed", range(4))
def test_by_name_it_is_torchjds_aggregation(name: str, seed: int) -> None:
    rows = randn(4, 12, seed=seed)
    expected = AGGREGATORS[name]()(rows) * (4 if name in FOR_THE_MEAN else 1)
    assert_near(update(make(name), rows), expected, rows, 1e-7)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_by_object_it_is_torchjds_aggregation(name: str) -> None:
    rows = randn(5, 12)
    kept, expected = AGGREGATORS[name](), AGGREGATORS[name]()(rows)
    assert_near(update(as_method(kept), rows), expected, rows, 1e-7)
    if isinstance(kept, aggregation.GramianWeightedAggregator):
        assert_near(update(as_method(AGGREGATORS[name]().gramian_weighting), rows), expected, rows, 1e-7)


@without_cvxpy
def test_nash_mtl_is_torchjds() -> None:
    expected, named = aggregation.NashMTL(3), make("nash-mtl")
    for seed in range(4):
        rows = randn(3, 9, seed=seed)
        assert_near(update(named, rows), expected(rows), rows, 1e-5)


def test_gradvac_is_torchjds_with_the_same_draws() -> None:
    named, kept = make("gradvac", seed=7), aggregation.GradVac()
    rows = [randn(4, 9, seed=seed) - 0.5 for seed in range(5)]
    torch.manual_seed(7)
    for one in rows:
        assert_near(update(named, one), kept(one), one, 1e-6)


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("quadprog", "qpsolvers")),
    reason='needs pip install "torchjd[quadprog_projector]"',
)
@pytest.mark.parametrize("seed", range(4))
def test_our_projector_is_quadprogs(seed: int) -> None:
    from torchjd.linalg import QuadprogProjector

    rows = randn(4, 9, seed=seed) - 0.4
    expected = aggregation.UPGrad(projector=QuadprogProjector(reg_eps=1e-13))(rows)
    assert_near(aggregation.UPGrad(projector=ExactProjector())(rows), expected, rows, 1e-6)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_projection_is_the_nearest_in_the_cone(rows: Tensor) -> None:
    """s + e has no negative inner product with any gradient, and e = Σ zᵢ gᵢ is at right angles to it, z ≥ 0."""
    wanted = torch.ones(len(rows), dtype=torch.float64)
    projected = ExactProjector()(wanted, rows @ rows.T)  # type: ignore[arg-type]
    added = projected - wanted
    assert float(added.min()) >= 0
    update = projected @ rows
    lengths = rows.norm(dim=1)
    scale = float(lengths.sum())
    assert bool((rows @ update >= -1e-9 * lengths * scale).all())
    assert abs(float((added @ rows) @ update)) <= 1e-9 * scale**2


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("name", NAMES)
def test_degenerate_gradients_give_finite_updates(name: str, rows: Tensor) -> None:
    if name == "krum" and len(rows) < 3:
        pytest.skip("Krum needs three tasks")
    method = make(name)
    if (method.groups or 1) > 1:
        rows = rows.repeat(method.groups or 1, 1)
    losses = torch.rand(len(rows) // (method.groups or 1), dtype=torch.float64) + 0.1
    for _ in range(2):
        weights = method.weigh(gram_of(rows, losses, method.groups or 1))
        assert bool((weights.rows @ rows).isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_continues_where_it_was_saved(name: str) -> None:
    groups = make(name).groups or 1
    assert_continues(lambda: make(name), training(tasks=4, steps=10, groups=groups))


@pytest.mark.parametrize("name", ["upgrad", "dualproj", "aligned-mtl", "imtl-g", "fairgrad"])
def test_a_zero_gradient_takes_no_part(name: str) -> None:
    rows = ROWS["zero rows 0"]
    assert_near(update(make(name), rows), update(make(name), rows[[0, 2, 3]]), rows)


@pytest.mark.parametrize("name", ["upgrad", "dualproj", "aligned-mtl", "gradvac"])
def test_without_conflict_or_difference_it_is_the_plain_sum(name: str) -> None:
    rows = randn(1, 9).repeat(3, 1) if name == "aligned-mtl" else randn(3, 9).abs()
    combined = update(make(name), rows)
    cosine = float(combined @ rows.sum(0) / combined.norm() / rows.sum(0).norm())
    assert cosine == pytest.approx(1, abs=1e-9)
    if name != "aligned-mtl":
        assert_near(combined, rows.sum(0), rows, 1e-7)


@pytest.mark.parametrize("scale", [1e-15, 1e15])
@pytest.mark.parametrize("name", ["upgrad", "dualproj", "aligned-mtl", "imtl-g", "gradvac", "krum"])
def test_the_scale_of_gradients_does_not_matter(name: str, scale: float) -> None:
    rows = randn(4, 9, seed=2)
    assert_near(update(make(name), rows * scale), scale * update(make(name), rows), rows * scale, 1e-7)


# Two batches: MoDo and SDMGrad


def test_modo_uses_the_two_halves_of_a_batch() -> None:
    rows = randn(8, 9)  # two groups of four tasks
    weights = aggregation.MoDoWeighting()(rows[:4] @ rows[4:].T)
    combined = make("modo").weigh(gram_of(rows, groups=2)).rows @ rows
    torch.testing.assert_close(combined, weights @ (rows[:4] + rows[4:]) / 2)
    assert_near(as_method(aggregation.MoDoWeighting()).weigh(gram_of(rows, groups=2)).rows @ rows, combined, rows)


def test_sdmgrad_uses_three_thirds_of_a_batch() -> None:
    rows = randn(12, 9)
    weights = aggregation.SDMGradWeighting()(rows[:4] @ rows[4:8].T)
    combined = make("sdmgrad").weigh(gram_of(rows, groups=3)).rows @ rows
    torch.testing.assert_close(combined, weights @ rows[8:])
    assert make("sdmgrad").weigh(gram_of(rows[:4])).rows.shape == (4,)


# Losses


SCALARIZERS: dict[str, Callable[[], scalarization.Scalarizer]] = {
    "dwa": scalarization.DWA,
    "famo": lambda: scalarization.FAMO(3),
    "imtl-l": lambda: scalarization.IMTLL(3),
    "geometric-mean": scalarization.GeometricMean,
    "stch": lambda: scalarization.STCH(0.1),
    "random": scalarization.Random,
}


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("name", SCALARIZERS)
def test_factors_are_the_derivatives(name: str, by_name: bool) -> None:
    method = make(name) if by_name else as_method(SCALARIZERS[name]())
    losses = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    SCALARIZERS[name]()(losses).backward()
    assert losses.grad is not None
    weights = method.weigh(gram_of(randn(3, 5), losses.detach()))
    torch.testing.assert_close(weights.rows, losses.grad, rtol=1e-6, atol=1e-8)
    assert weights.heads is not None
    torch.testing.assert_close(weights.heads, losses.grad, rtol=1e-6, atol=1e-8)


def test_a_scalarizers_parameters_are_learned() -> None:
    kept = scalarization.UW(2)
    method = as_method(kept, lr=0.1)
    reference = scalarization.UW(2)
    stepper = torch.optim.Adam(reference.parameters(), lr=0.1)
    for step in range(10):
        losses = randn(2, seed=step).abs().float()
        method.weigh(gram_of(randn(2, 5), losses.double()))
        stepper.zero_grad()
        reference(losses).backward()
        stepper.step()
    torch.testing.assert_close(kept.log_var, reference.log_var, rtol=1e-5, atol=1e-6)


def test_famo_learns_from_the_losses_after_a_step() -> None:
    method, reference = make("famo"), scalarization.FAMO(2)
    gram = gram_of(randn(2, 5), torch.tensor([1.0, 2.0], dtype=torch.float64))
    after = torch.tensor([0.9, 1.0])
    method.weigh(gram)
    method.after_step(after)  # type: ignore[attr-defined]
    reference(torch.tensor([1.0, 2.0]))
    reference.update(after)
    torch.testing.assert_close(method.object._w, reference._w)  # type: ignore[attr-defined]
    # Without that call the next batch's losses take their place.
    method.weigh(gram)
    before = method.object._w.detach().clone()  # type: ignore[attr-defined]
    method.weigh(gram_of(randn(2, 5), torch.tensor([0.5, 2.0], dtype=torch.float64)))
    assert not torch.equal(before, method.object._w)  # type: ignore[attr-defined]


def test_dwa_compares_windows() -> None:
    method = make("dwa", window=2)
    for losses in ([2.0, 2.0], [2.0, 2.0], [1.0, 2.0], [1.0, 2.0]):
        assert method.weigh(gram_of(randn(2, 5), torch.tensor(losses, dtype=torch.float64))).rows.tolist() == [1, 1]
    slow = method.weigh(gram_of(randn(2, 5), torch.ones(2, dtype=torch.float64))).rows
    assert float(slow[1]) > 1 > float(slow[0])


@pytest.mark.parametrize("name", SCALARIZERS)
def test_missing_labels_and_zero_losses(name: str) -> None:
    method = make(name)
    nan = torch.nan
    for values in ([nan, nan, nan], [1.0, nan, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, nan], [nan, nan, nan]):
        losses = torch.tensor(values, dtype=torch.float64)
        weights = method.weigh(gram_of(randn(3, 5), losses))
        assert bool(weights.rows.isfinite().all())
        assert bool((weights.rows[losses.isnan()] == 0).all())


# Objects


def test_wrapped_and_composed_objects() -> None:
    rows = randn(3, 9)
    inner = aggregation.AlignedMTLWeighting
    expected = aggregation.AlignedMTL()(rows)
    assert_near(update(as_method(aggregation.CRMOGMWeighting(inner())), rows), expected, rows)
    assert_near(update(as_method(aggregation.GramianWeightedAggregator(inner())), rows), expected, rows)
    composed = aggregation.GramianWeightedAggregator(inner()).weighting
    assert_near(update(as_method(aggregation.WeightedAggregator(composed)), rows), expected, rows)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert_near(update(as_method(aggregation.Constant(weights)), rows), weights @ rows, rows)
    assert_near(update(as_method(aggregation.Sum()), rows), rows.sum(0), rows)


def test_a_users_own_weighting() -> None:
    class Shortest(aggregation.Weighting[Any]):
        def forward(self, stat: Tensor, /) -> Tensor:
            return nn.functional.one_hot(stat.diagonal().argmin(), len(stat)).double()

    rows = randn(3, 9)
    assert_near(update(as_method(Shortest()), rows), rows[rows.norm(dim=1).argmin()], rows)


@pytest.mark.parametrize("kept", [aggregation.UPGrad(projector=ExactProjector()), scalarization.UW(3)])
def test_an_object_gives_the_same_method_again(kept: nn.Module) -> None:
    method = as_method(kept)
    method.weigh(gram_of(randn(3, 4), torch.ones(3, dtype=torch.float64)))
    assert as_method(kept) is method
    copied = as_method(pickle.loads(pickle.dumps(kept)))
    assert copied is not method
    gram = gram_of(randn(3, 4, seed=1), torch.ones(3, dtype=torch.float64))
    assert torch.equal(copied.weigh(gram).rows, method.weigh(gram).rows)
    assert as_method(kept, seed=1) is not method


def test_our_own_methods_pass_through() -> None:
    method = PCGrad()
    assert as_method(method) is method


@pytest.mark.parametrize(
    "kept",
    [
        aggregation.GradDrop(),
        aggregation.ConFIG(),
        aggregation.TrimmedMean(1),
        aggregation.ExcessMTL(),
        aggregation.ExcessMTLWeighting(),
        aggregation.CRMOGMWeighting(aggregation.ExcessMTLWeighting()),
        aggregation.MeanWeighting() << (lambda matrix: matrix),
    ],
    ids=lambda kept: type(kept).__name__,
)
def test_refuses_what_needs_coordinates(kept: object) -> None:
    with pytest.raises(InputError, match="inner products"):
        as_method(kept)


@pytest.mark.parametrize("kept", [None, "pcgrad", torch.ones(2), nn.Linear(2, 2)])
def test_refuses_other_objects(kept: object) -> None:
    with pytest.raises(InputError, match="expected a method"):
        as_method(kept)


def test_refuses_options() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        make("aligned-mtl", nonsense=1)
    with pytest.raises(TypeError, match="window"):
        make("stch", window=1)
    with pytest.raises(InputError, match="beta"):
        make("gradvac", beta=3.0)
    with pytest.raises(InputError, match="seed"):
        make("gradvac", seed="x")
    method = make("imtl-l")
    method.weigh(gram_of(randn(2, 4), torch.ones(2, dtype=torch.float64)))
    with pytest.raises(InputError, match="there are 3"):
        method.weigh(gram_of(randn(3, 4), torch.ones(3, dtype=torch.float64)))


@pytest.mark.skipif(not NEEDS_CVXPY, reason="cvxpy is installed")
def test_a_missing_package_is_named_with_the_way_to_get_it() -> None:
    with pytest.raises(ImportError, match="pip install"):
        make("nash-mtl")


def test_does_not_touch_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    update(make("gradvac"), randn(4, 9))
    assert torch.equal(before, torch.get_rng_state())


# GDOD for torchjd


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.body(features)
        return outputs


def problem(seed: int = 0) -> tuple[Shared, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = Shared()
    return model, randn(24, 5, seed=seed), randn(24, 2, seed=seed + 1)


def grads(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("method", [GDOD, WeightedGDOD, lambda: GDOD(groups=5), lambda: GDOD(groups=None), PCGrad])
def test_with_torchjds_engine_the_gradient_is_that_of_backward(method: Callable[[], Method]) -> None:
    model, features, targets = problem()
    engine = Engine(model.body, batch_dim=0)
    losses = (model(features) - targets) ** 2
    weights = GDODWeighting(2, method())(engine.compute_gramian(losses))
    losses.backward(weights.view_as(losses))
    with_torchjd = grads(model)
    model.zero_grad()
    losses = (model(features) - targets) ** 2
    gdod.backward(losses, method(), shared=list(model.parameters()))
    torch.testing.assert_close(with_torchjd, grads(model), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("optimize", [True, False])
def test_with_jac_to_grad_it_is_the_same(optimize: bool) -> None:
    model, features, targets = problem()
    losses = (model(features) - targets) ** 2
    backward(list(losses.flatten()))
    aggregator = GDODAggregator(2)
    weights = jac_to_grad(model.parameters(), aggregator, optimize_gramian_computation=optimize)
    assert weights.shape == (48,)
    with_torchjd = grads(model)
    model.zero_grad()
    gdod.backward((model(features) - targets) ** 2, GDOD(), shared=list(model.parameters()))
    torch.testing.assert_close(with_torchjd, grads(model), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torchjds_loop_learns(dtype: torch.dtype) -> None:
    model, features, _ = problem()
    model, features = model.to(dtype), features.to(dtype)
    targets = torch.stack([features.sum(1), features[:, 0] - features[:, 1]], 1)
    engine, weighting = Engine(model.body, batch_dim=0), GDODWeighting(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    history = []
    for _ in range(60):
        losses = (model(features) - targets) ** 2
        history.append(float(losses.detach().mean()))
        weights = weighting(engine.compute_gramian(losses))
        assert weights.dtype == dtype
        losses.backward(weights.view_as(losses))
        optimizer.step()
        optimizer.zero_grad()
    assert history[-1] < 0.5 * history[0]


def test_gdod_weighting_refuses() -> None:
    with pytest.raises(InputError, match="multiple of tasks=2"):
        GDODWeighting(2)(torch.eye(3))
    with pytest.raises(InputError, match="tasks="):
        GDODWeighting(0)
    with pytest.raises(InputError, match="span"):
        GDODWeighting(2, GDOD(decomposition="random"))(torch.eye(4))


def test_every_recipe_has_its_name() -> None:
    from gdod.methods.torchjd import NAMES
    from gdod.methods.torchjd.by_name import MAKERS

    assert tuple(MAKERS) == NAMES


def test_torchjd_is_loaded_when_it_is_used() -> None:
    code = (
        "import sys, gdod; gdod.backward; gdod.method('gdod'); assert 'torchjd' not in sys.modules; gdod.GDODWeighting"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
