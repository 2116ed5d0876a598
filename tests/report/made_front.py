"""The folder of a front as `gdod front` writes it, made without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdod.report.front import Front

KINDS = {"gdod": "method", "pcgrad": "method", "single-task": "single-task", "lightgbm": "rival"}


def make_front(
    folder: Path,
    scores: Mapping[str, Sequence[Sequence[float]]],
    tasks: Sequence[str] = ("click", "buy"),
    places: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> Front:
    """Write a front whose weightings and methods have these scores, by seed and task; methods lie at these places."""
    candidates = [_candidate(name, seeds, tasks) for name, seeds in scores.items()]
    verdicts = [_verdict(name, place, next(iter(scores)), tasks) for name, place in (places or {}).items()]
    results = {
        "tasks": [{"name": task, "metric": "AUC"} for task in tasks],
        "rows": {"validation": 100, "test": 200},
        "draws": 1000,
        "candidates": candidates,
        "verdicts": verdicts,
        "hypervolume": {
            "reference": [0.5] * len(tasks),
            "front": 0.1,
            "added_percent": dict.fromkeys(places or {}, 0.25),
        },
        "warnings": list(warnings),
    }
    asked = {
        "data": "made",
        "fingerprint": "0",
        "seeds": [0, 1],
        "tune": ["own"],
        "runs": 4,
        "command": ["gdod", "front"],
    }
    asked |= {"started": "2026-01-01", "versions": {}, "settings": {"batch": 64}, "failed": {}}
    for one in candidates:
        for run in one["runs"]:
            (folder / "runs" / run).mkdir(parents=True)
    (folder / "front.json").write_text(json.dumps({**asked, "results": results}))
    return Front.read(folder)


def _candidate(name: str, seeds: Sequence[Sequence[float]], tasks: Sequence[str]) -> dict[str, Any]:
    means = {task: sum(seed[place] for seed in seeds) / len(seeds) for place, task in enumerate(tasks)}
    kind = KINDS.get(name, "front")
    interval = {"value": 0.0, "low": -0.01, "high": 0.02}
    return {
        "name": name,
        "kind": kind,
        "weights": dict.fromkeys(tasks, 1.0) if kind == "front" else None,
        "rate": "own",
        "validation": means,
        "test": means,
        "difference": None if name in ("1:1", "equal") else dict.fromkeys(tasks, interval),
        "seconds": 1.0,
        "runs": {f"{name}-seed{seed}": dict(zip(tasks, one, strict=True)) for seed, one in enumerate(seeds)},
    }


def _verdict(name: str, place: str, weighting: str, tasks: Sequence[str]) -> dict[str, Any]:
    d = {"value": -0.0123, "low": -0.02, "high": -0.001}
    return {
        "method": name,
        "place": place,
        "weighting": weighting,
        "validation": -0.01,
        "d": d,
        "p": 0.02,
        "p_holm": 0.04,
        "gap": 0.001,
        "leads": dict.fromkeys(tasks, d),
    }
