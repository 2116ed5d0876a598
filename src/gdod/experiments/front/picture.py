"""The picture of a front as PNG, for documents."""

from itertools import combinations
from pathlib import Path

from matplotlib.axes import Axes

from gdod.experiments.plots import BLACK, COLOURS, GREY, MARKERS, label, open_figure, save
from gdod.report.front import FRONT, Front, FrontPoint

_MOST = 15  # pairs of tasks


def draw_front(front: Front, out: Path) -> None:
    """Write a PNG: for each pair of tasks the front as a line, methods with their intervals, and references."""
    pairs = list(combinations(front.tasks, 2))[:_MOST]
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    size = (6.4, 4.6) if len(pairs) == 1 else (4.2 * columns, 3.4 * rows)
    figure, axes = open_figure(rows, columns, size, dpi=110)
    for axis in axes[len(pairs) :]:
        axis.set_visible(False)
    for axis, (first, second) in zip(axes, pairs, strict=False):
        _draw_pair(axis, front, first, second)
    labels = axes[0].get_legend_handles_labels()
    most = 3 if len(pairs) == 1 else 4  # side by side
    figure.legend(*labels, loc="outside lower center", ncols=min(most, len(labels[1])), fontsize=8)
    figure.set_layout_engine("constrained")
    save(figure, out)


def _draw_pair(axis: Axes, front: Front, first: str, second: str) -> None:
    weightings = [(point.test[first], point.test[second]) for point in front.front]
    axis.plot(*zip(*front.undominated(first, second), strict=True), color=BLACK, linewidth=1.4, label="front")
    if path := front.by_weight(first, second):
        axis.plot(*zip(*path, strict=True), ":", color=GREY, linewidth=1)
    axis.plot(*zip(*weightings, strict=True), "o", color=GREY, markersize=4, label="weightings of the sum")
    if len(front.tasks) == 2:
        for point in (front.front[0], front.front[-1]):
            place = (point.test[first], point.test[second])
            axis.annotate(label(point.name), place, (4, 4), textcoords="offset points", fontsize=7, color="#555555")
    for point in front.points:
        if point.kind != FRONT:
            _draw_point(axis, point, first, second, front.legend(point))
    x, y = front.axis(first), front.axis(second)
    axis.set_xlim(x.low, x.high)
    axis.set_ylim(y.low, y.high)
    axis.set_xlabel(label(x.label), fontsize=9)
    axis.set_ylabel(label(y.label), fontsize=9)
    axis.tick_params(labelsize=8)
    axis.locator_params(nbins=5)
    axis.grid(alpha=0.25)


def _draw_point(axis: Axes, point: FrontPoint, first: str, second: str, name: str) -> None:
    colour, marker = COLOURS[point.style % len(COLOURS)], MARKERS[point.style % len(MARKERS)]
    x, y = point.test[first], point.test[second]
    for task, draw in ((first, axis.hlines), (second, axis.vlines)):
        if (ends := point.interval(task)) is not None:
            draw(y if task == first else x, *ends, color=colour, linewidth=1)
    axis.plot(x, y, marker, color=colour, markersize=7, label=label(name))
