"""Pictures of results: lines with their spread over seeds, in colours that colour-blind readers tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#999999", "#0072B2", "#7F3C8D", "#B8860B")
MARKERS = "os^vDPX<>*"


@dataclass(frozen=True)
class Series:
    """One line: at each x a mean, and (if several seeds) what it spreads over."""

    name: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    level: float | None = None
    """A line across: what others are compared with."""


def draw(panels: Sequence[Panel], out: Path, columns: int = 2) -> None:
    """Writes a PNG with one panel beside the other."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.4 * columns, 3.6 * rows), squeeze=False, dpi=110)
    for place, axis in enumerate(axes.flat):
        if place >= len(panels):
            axis.set_visible(False)
            continue
        panel = panels[place]
        for number, line in enumerate(panel.series):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            width = 2.6 if line.name == "GDOD" else 1.3
            axis.plot(line.x, line.mean, color=colour, marker=marker, markersize=4, linewidth=width, label=line.name)
            if line.low is not None and line.high is not None:
                axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.12, linewidth=0)
        if panel.level is not None:
            axis.axhline(panel.level, color="#666666", linewidth=0.8, linestyle="--")
        if panel.log_x:
            axis.set_xscale("log", base=2)
            ticks = sorted({x for line in panel.series for x in line.x})
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        axis.grid(alpha=0.25)
    shown = [axis for axis, _ in zip(axes.flat, panels, strict=False)]
    legends = [axis.get_legend_handles_labels() for axis in shown]
    if any(labels != legends[0][1] for _, labels in legends):
        for axis in shown:
            axis.legend(fontsize=8)
    elif len(legends[0][1]) > 1:
        figure.legend(*legends[0], loc="outside lower center", ncols=min(5, len(legends[0][1])), fontsize=8)
    figure.set_layout_engine("constrained")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Software": None})
    plt.close(figure)
