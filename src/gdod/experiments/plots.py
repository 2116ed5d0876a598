"""Pictures by matplotlib: figures, colours, saving, and panels of lines with their spread."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdod._checks import visible
from gdod._files import whole

# The colours of Okabe and Ito, told apart by colour-blind readers too.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#999999"
COLOURS = (BLACK, ORANGE, SKY, GREEN, RED, PINK, GREY, BLUE, "#7F3C8D", "#B8860B")
MARKERS = "os^vDPX<>*"
_LONGEST = 40  # signs of a name


@dataclass(frozen=True)
class Series:
    """A line of a panel: at each x a mean, and the ends of what it spreads over if they are known."""

    name: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One plot of a picture: its lines and what the axes are called."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    level: float | None = None
    """The height of a line across, which shows what the others are compared with."""
    ticks: Sequence[str] | None = None
    """The names of x = 0, 1, 2 ..., for levels that are no numbers; None: x are numbers."""


def open_figure(
    rows: int, columns: int, size: tuple[float, float], dpi: int, *, shared: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``size`` inches and its axes, row by row; ``shared``: all of them show the same range."""
    figure = Figure(figsize=size, dpi=dpi)
    axes = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
    return figure, list(axes.flat)


def draw(panels: Sequence[Panel], out: Path, columns: int = 2) -> None:
    """Write a PNG with one panel beside the other, and one legend if all panels have the same lines."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = open_figure(rows, columns, (5.4 * columns, 3.6 * rows), dpi=110)
    for place, axis in enumerate(axes):
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
        if panel.ticks is not None:
            axis.set_xticks(range(len(panel.ticks)), list(panel.ticks))
            axis.margins(x=0.15)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        axis.grid(alpha=0.25)
    shown = [axis for axis, _ in zip(axes, panels, strict=False)]
    legends = [axis.get_legend_handles_labels() for axis in shown]
    if any(labels != legends[0][1] for _, labels in legends):
        for axis in shown:
            axis.legend(fontsize=8)
    elif len(legends[0][1]) > 1:
        figure.legend(*legends[0], loc="outside lower center", ncols=min(5, len(legends[0][1])), fontsize=8)
    figure.set_layout_engine("constrained")
    save(figure, out)


def label(name: str, longest: int = _LONGEST) -> str:
    """Return a name as matplotlib shows it: dollar signs are no mathematics, and long names are cut."""
    shown = visible(name if len(name) <= longest else f"{name[: longest - 1]}…")
    return shown.replace("\n", " ").replace("$", r"\$")


def save(figure: Figure, out: Path) -> None:
    """Write the figure to a PNG file, in a folder that is made if need be."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole(out) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # it is shown as a box
        # Without the name of the software the same picture does not change with its version.
        figure.savefig(part, format=out.suffix[1:] or "png", metadata={"Software": None})
