"""The ways must compute the same thing, or their times say nothing."""

from pathlib import Path

import pytest
import torch

from benchmarks import real
from benchmarks.case import Case, SharedBottom, batches
from benchmarks.measure import Skipped, Timing, time_competitors
from benchmarks.report import Results, contract
from benchmarks.ways import BATCHED, GDOD, NAIVE, PLAIN, TORCHJD, Competitor

SMALL = Case(tasks=3, groups=3, table_rows=20, batch=16)


def gradients(competitor: Competitor, case: Case) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = SharedBottom(case)
    competitor.way(case)(model, next(batches(case)))
    grads = [parameter.grad for parameter in [*model.shared(), *model.private()]]
    assert all(grad is not None for grad in grads)
    return [grad for grad in grads if grad is not None]


@pytest.mark.parametrize("way", [NAIVE, BATCHED], ids=lambda way: way.name)
def test_other_ways_to_gdod_agree_with_the_engine(way: Competitor) -> None:
    for grad, expected in zip(gradients(way, SMALL), gradients(GDOD, SMALL), strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-6)


def test_torchjd_leaves_the_heads_their_plain_gradient() -> None:
    heads = len(SharedBottom(SMALL).private())
    plain, pcgrad = gradients(PLAIN, SMALL)[-heads:], gradients(TORCHJD, SMALL)[-heads:]
    for grad, expected in zip(pcgrad, plain, strict=True):
        torch.testing.assert_close(grad, expected)


def test_a_bar_is_judged_only_if_the_machine_was_steady() -> None:
    def promise(plain: float, measured: float, pairs: int = 50) -> str:
        timings = [
            Timing(Case(), name, ratio, low=ratio, high=ratio, milliseconds=1.0, pairs=pairs)
            for name, ratio in ((PLAIN.name, plain), (GDOD.name, measured))
        ]
        return contract(Results("test", [*timings]))[0].verdict(2.5)

    assert promise(plain=1.05, measured=2.4) == "ok"
    assert promise(plain=1.05, measured=2.6) == "missed"
    assert promise(plain=0.6, measured=2.4) == "machine too busy to tell"
    assert promise(plain=1.0, measured=2.4, pairs=3) == "machine too busy to tell"
    assert promise(plain=0.8, measured=1.5) == "ok"
    assert promise(plain=0.8, measured=3.5) == "missed"


def test_a_measurement_reaches_the_report() -> None:
    results = Results("test", time_competitors(SMALL, [PLAIN, GDOD], seconds=0.05))
    plain = results.timings[0]
    assert isinstance(plain, Timing)
    assert plain.low <= plain.ratio <= plain.high
    assert str(SMALL) in results.as_markdown()
    assert "GDOD" in results.as_json()


def test_a_figure_says_what_became_of_freed_memory() -> None:
    def timing(ratio: float) -> list[Timing | Skipped]:
        return [Timing(Case(), name, ratio, ratio, ratio, 1.0, pairs=50) for name in (PLAIN.name, GDOD.name)]

    results = Results("test", timing(1.5), kept=timing(3.25))
    first, second = contract(results)[:2]
    assert (first.measured, second.measured) == (1.5, 3.25)
    assert "given back" in first.what
    assert "kept" in second.what
    lines = [line for line in results.as_markdown().splitlines() if line.startswith(f"| {Case()}")]
    assert ["given back" in lines[0], "3.25" in lines[1], "kept" in lines[1]] == [True, True, True]


def test_results_on_real_tables_are_kept_and_measured_again(tmp_path: Path) -> None:
    def measured(case: real.Case, ratio: float) -> real.Measured:
        return real.Measured(case, real.PLAIN, ratio, ratio, ratio, 1.0, 1.0, rounds=30, second=0.0, noise=1.0)

    first, second, *_ = real.cases()
    real.write([measured(second, 2.0)], tmp_path)
    results = real.merged(real.kept_results(tmp_path / "real.json"), [measured(first, 3.0), measured(second, 4.0)])
    assert [(one.case, one.ratio) for one in results] == [(first, 3.0), (second, 4.0)]
    assert str(second) in (tmp_path / "real.md").read_text()
