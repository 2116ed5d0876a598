"""Run and comparison folders as training writes them, made without training."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METHODS = ("sum", "uncertainty", "gradnorm", "gradreg", "mgda", "pcgrad", "cagrad", "gdod", "weighted-gdod")
TASKS = ("click", "cart", "buy")
_GAINS = {"uncertainty": 0.001, "gradnorm": 0.0005, "mgda": -0.006, "pcgrad": 0.0015, "cagrad": 0.002, "gdod": 0.003}
_TIMES = {"sum": 1.0, "uncertainty": 1.02, "gradnorm": 1.3, "gradreg": 2.2, "mgda": 1.35, "pcgrad": 1.4, "cagrad": 1.45}


def make_comparison(
    folder: Path,
    *,
    models: Sequence[str] = ("shared-bottom",),
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = (0, 1),
    tasks: Sequence[str] = TASKS,
    evaluations: int = 40,
) -> Path:
    asked: dict[str, Any] = {"data": "ads", "methods": list(methods), "seeds": list(seeds), "baseline": "sum"}
    asked["models"] = [model for model in models if model != "single-task"]
    alone = {"name": "single-task", "model": "single-task", "options": {}}
    asked["single_task"] = alone if "single-task" in models else None
    write_json(folder / "comparison.json", asked)
    for model in models:
        for method in methods if model != "single-task" else methods[:1]:
            for seed in seeds:
                path = folder / "runs" / f"{model}-{method}-seed{seed}"
                make_run(path, model=model, method=method, seed=seed, tasks=tasks, evaluations=evaluations)
    return folder


def make_run(
    path: Path,
    *,
    model: str = "shared-bottom",
    method: str = "gdod",
    seed: int = 0,
    tasks: Sequence[str] = TASKS,
    evaluations: int = 40,
    data: str = "ads",
    options: dict[str, Any] | None = None,
    model_options: dict[str, Any] | None = None,
    finished: bool = True,
) -> Path:
    noise = random.Random(f"{model} {method} {seed}")
    path.mkdir(parents=True)
    write_json(path / "config.json", _config(model, method, seed, data, options or {}, model_options))
    write_json(path / "about.json", _about(model, method, seed, data, tasks, options or {}))
    write_json(path / "encoder.json", {})
    milliseconds = 4 * _TIMES.get(method, 1.6) * noise.uniform(0.98, 1.02)
    lines = []
    for step in range(10, evaluations * 50 + 1, 10):
        lines.append(_train(step, milliseconds, method, tasks, noise))
        if step % 50 == 0:
            lines.append(_evaluation(step, milliseconds, model, method, seed, tasks, noise))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        last = lines[-1]
        found = {"tasks": last["tasks"], "mean_auc": last["mean_auc"]}
        write_json(
            path / "result.json",
            {
                "best_step": evaluations * 50,
                "steps": evaluations * 50,
                "seconds": last["seconds"],
                "milliseconds_per_step": milliseconds,
                "validation": found,
                "test": found,
                "calibration": {task: _calibration(place, noise) for place, task in enumerate(tasks)},
                "stopped": "early" if seed else "finished",
            },
        )
    return path


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def _config(
    model: str,
    method: str,
    seed: int,
    data: str,
    options: dict[str, Any],
    model_options: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "data": {"source": data, "schema": None, "folder": None, "options": {}},
        "model": {"name": model, "options": {"embedding": 8} if model_options is None else model_options},
        "method": {"name": method, "options": options},
        "optimizer": {"name": "adam", "lr": 0.001, "weight_decay": 0.0, "momentum": 0.0},
        "schedule": {"name": "constant", "warmup": 0, "floor": 0.0, "every": None, "factor": 0.1},
        "batch": 256,
        "epochs": 2.0,
        "steps": None,
        "clip": None,
        "task_weights": None,
        "seed": seed,
        "device": "cpu",
        "precision": "float32",
        "threads": 1,
    }


def _about(
    model: str, method: str, seed: int, data: str, tasks: Sequence[str], options: dict[str, Any]
) -> dict[str, Any]:
    return {
        "command": ["gdod", "train", "--data", data, "--model", model, "--method", method, "--seed", str(seed)],
        "versions": {"gdod": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "platform": "Linux x86_64"},
        "started": "2026-01-02T03:04:05+00:00",
        "data": {
            "name": data,
            "fingerprint": (data.encode().hex() + "0" * 64)[:64],
            "rows": {"train": 512000, "validation": 64000, "test": 64000},
            "notes": ["Simulated: three tasks, conflict 0.5.", "Positive labels: click 12 %, cart 4 %, buy 1.5 %."],
        },
        "tasks": [{"name": task, "kind": "binary"} for task in tasks],
        "model": {"name": model, "parameters": 1_234_567},
        "method": {"name": method, "options": options},
        "seed": seed,
        "threads": 1,
        "device": "cpu",
        "precision": "float32",
    }


def _train(step: int, milliseconds: float, method: str, tasks: Sequence[str], noise: random.Random) -> dict[str, Any]:
    losses = {
        task: 0.4 / (place + 1) * (0.75 + 0.5 * math.exp(-step / 300)) * noise.uniform(0.93, 1.07)
        for place, task in enumerate(tasks)
    }
    count = len(tasks)
    cosines = [[1.0] * count for _ in tasks]
    for row in range(count):
        for column in range(row + 1, count):
            mean = 0.25 * math.exp(-step / 500) + 0.05 - 0.11 * (row + column - 1) + (0.02 if method == "gdod" else 0)
            cosines[row][column] = cosines[column][row] = max(-1, min(1, noise.gauss(mean, 0.04)))
    keeps = "gdod" in method or method == "pcgrad"
    conflict = {
        "cosines": cosines,
        "energy_kept": noise.uniform(0.55, 0.6) + 0.2 * math.exp(-step / 400) if keeps else None,
        "directions_kept": noise.uniform(0.24, 0.28) if "gdod" in method else None,
        "norms": [noise.uniform(0.5, 1.5) for _ in tasks],
    }
    return {
        "kind": "train",
        "step": step,
        "epoch": step / 1000,
        "seconds": step * milliseconds / 1000,
        "losses": losses,
        "loss": sum(losses.values()),
        "lr": 0.001,
        "conflict": None if method == "uncertainty" else conflict,
    }


def _evaluation(
    step: int, milliseconds: float, model: str, method: str, seed: int, tasks: Sequence[str], noise: random.Random
) -> dict[str, Any]:
    found = {}
    for place, task in enumerate(tasks):
        top = 0.78 - 0.02 * place + _GAINS.get(method, 0) + 0.002 * seed + (0.004 if model == "mmoe" else 0)
        auc = top - 0.22 * math.exp(-step / (250 + 30 * place)) + noise.gauss(0, 0.0012)
        loss = 0.4 / (place + 1) * (0.8 + 0.3 * math.exp(-step / 300)) - 0.2 * _GAINS.get(method, 0)
        found[task] = {
            "auc": auc,
            "log_loss": loss + noise.gauss(0, 0.0008),
            "positives": 7680 // (place + 1),
            "labelled": 64000,
        }
    return {
        "kind": "evaluation",
        "part": "validation",
        "step": step,
        "epoch": step / 1000,
        "seconds": step * milliseconds / 1000,
        "tasks": found,
        "mean_auc": sum(task["auc"] for task in found.values()) / len(found),
        "best": True,
    }


def _calibration(place: int, noise: random.Random) -> list[dict[str, float]]:
    top = 0.5 / (place + 1)
    return [
        {
            "mean_predicted": top * (bin + 0.5) / 10,
            "mean_observed": top * (bin + 0.5) / 10 * noise.uniform(0.85, 1.1),
            "count": 6400,
        }
        for bin in range(10)
    ]
