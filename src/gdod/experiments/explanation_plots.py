"""The pictures of `gdod explain`: bars of the columns' importance, weights of experts, conflict by layer."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import NDArray

from gdod.experiments.plots import BLUE, GREEN, ORANGE, SKY, label, open_figure, save
from gdod.report.numbers import number
from gdod.training.explain import Conflict, Entries, ExpertUse, Importance

_BARS = 20
_PAIRS = 28  # of tasks; of more, each task with all others together
_INK = "#444444"
_COLOURS = LinearSegmentedColormap.from_list("conflict and agreement", [ORANGE, "#FFFFFF", SKY])


def draw_explanation(entries: Entries, out: Path) -> None:
    """Write the picture of one part of an explanation, whose entries are all of one kind, as PNG."""
    if columns := [one for one in entries if isinstance(one, Importance)]:
        _draw_importance(columns, out)
    elif experts := [one for one in entries if isinstance(one, ExpertUse)]:
        _draw_experts(experts, out)
    else:
        _draw_conflict([one for one in entries if isinstance(one, Conflict)], out)


def _draw_importance(found: Sequence[Importance], out: Path) -> None:
    tasks = list(dict.fromkeys(one.task for one in found))
    bars = {task: [one for one in found if one.task == task][:_BARS] for task in tasks}
    wide = min(3, len(tasks))
    tall = -(-len(tasks) // wide)
    most = max(map(len, bars.values()))
    figure, axes = open_figure(tall, wide, (5.0 * wide, tall * (1.2 + 0.28 * most)), dpi=110)
    for axis, (task, shown) in zip(axes, bars.items(), strict=False):
        means = [one.importance for one in shown]
        ends = [[one.importance - one.low for one in shown], [one.high - one.importance for one in shown]]
        places = range(len(shown))  # two long names may look the same once they are cut
        axis.barh(places, means, xerr=ends, color=BLUE, ecolor=_INK)
        axis.set_yticks(places, [label(one.column, 30) for one in shown])
        axis.invert_yaxis()
        axis.set_title(label(task, 50), fontsize=10)
        metric = shown[0].metric.replace("_", " ")
        axis.set_xlabel("AUC lost when shuffled" if metric == "auc" else f"rise of the {metric} when shuffled")
        axis.grid(axis="x", alpha=0.25)
    for axis in axes[len(tasks) :]:
        axis.set_visible(False)
    figure.set_layout_engine("constrained")
    save(figure, out)


def _draw_experts(found: Sequence[ExpertUse], out: Path) -> None:
    levels = [[one for one in found if one.level == level] for level in dict.fromkeys(one.level for one in found)]
    names = [(_names(level, "branch"), _own_first(level)) for level in levels]
    wide = max(len(experts) for _, experts in names)
    tall = sum(len(branches) for branches, _ in names)
    figure, axes = open_figure(len(levels), 1, (3.0 + 0.62 * wide, 2.0 * len(levels) + 0.42 * tall), dpi=110)
    for axis, level, (branches, experts) in zip(axes, levels, names, strict=True):
        weights = {(one.branch, one.expert): one.weight for one in level}
        values = np.array([[weights.get((branch, expert), np.nan) for expert in experts] for branch in branches])
        _heat(axis, values, branches, experts, top=max(1.0, float(np.nanmax(np.abs(values)))))
        axis.set_title("weights of experts" if len(levels) == 1 else f"level {level[0].level}", fontsize=10)
    figure.set_layout_engine("constrained")
    save(figure, out)


def _own_first(level: Sequence[ExpertUse]) -> list[str]:
    """Return the experts of a level, those of few branches before those that all branches share."""
    experts = [one.expert for one in level]
    return sorted(dict.fromkeys(experts), key=experts.count)


def _draw_conflict(found: Sequence[Conflict], out: Path) -> None:
    layers = _names(found, "layer")
    pairs = list(dict.fromkeys((one.task, one.other) for one in found))
    cosines = {(one.layer, one.task, one.other): one.cosine for one in found}
    if len(pairs) <= _PAIRS:
        columns = [f"{label(task, 16)}, {label(other, 16)}" for task, other in pairs]
        values = np.array([[cosines.get((layer, *pair), np.nan) for pair in pairs] for layer in layers])
    else:
        columns = list(dict.fromkeys(chain(*pairs)))
        values = np.array([[_with_others(found, layer, task) for task in columns] for layer in layers])
    size = 4.2 + 0.62 * len(columns) + 3.2, 2.2 + 0.36 * len(layers)
    figure, axes = open_figure(1, 2, size, dpi=110)
    grid = axes[0].get_gridspec()
    assert grid is not None
    grid.set_width_ratios([1.2 + 0.62 * len(columns), 3.0])
    top = max(0.05, float(np.nanmax(np.abs(values))))
    _heat(axes[0], values, layers, columns, top=top)
    axes[0].set_title("cosine between the gradients of two tasks", fontsize=10)
    kept = [next(one for one in found if one.layer == layer) for layer in layers]
    places = np.arange(len(layers))
    axes[1].barh(places - 0.2, [one.energy_kept for one in kept], 0.38, color=BLUE, label="energy")
    axes[1].barh(places + 0.2, [one.directions_kept for one in kept], 0.38, color=GREEN, label="directions")
    axes[1].set_yticks([])
    axes[1].set_ylim(len(layers) - 0.5, -0.5)
    axes[1].set_xlim(0, 1)
    axes[1].grid(axis="x", alpha=0.25)
    axes[1].set_title("share that GDOD would keep", fontsize=10)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower right", ncols=2, fontsize=8)
    figure.set_layout_engine("constrained")
    save(figure, out)


def _with_others(found: Sequence[Conflict], layer: str, task: str) -> float:
    """Return the mean cosine of a task with all others."""
    own = [one.cosine for one in found if one.layer == layer and task in (one.task, one.other)]
    return float(np.mean(own)) if own else float("nan")


def _heat(axis: Axes, values: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], top: float) -> None:
    """Draw numbers from -top to top as colours, with the numbers written in; nan stays empty."""
    axis.imshow(values, cmap=_COLOURS, vmin=-top, vmax=top, aspect="auto")
    axis.set_yticks(range(len(rows)), [label(name, 40) for name in rows])
    turned = max(map(len, columns)) > 4
    axis.set_xticks(
        range(len(columns)),
        [label(name, 36) for name in columns],
        rotation=40 if turned else 0,
        ha="right" if turned else "center",
        rotation_mode="anchor",
    )
    axis.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            axis.text(column, row, number(value, 2), ha="center", va="center", fontsize=8)


def _names(entries: Sequence[ExpertUse] | Sequence[Conflict], what: str) -> list[str]:
    return list(dict.fromkeys(getattr(one, what) for one in entries))
