"""Pictures for the documents:

python -m gdod.experiments.pictures toy OUT.png                   the paths of all methods on CAGrad's toy problem
python -m gdod.experiments.pictures parts OUT.png [x1 y1 x2 y2]   kept and conflicting parts of two gradients
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch import Tensor

from gdod.errors import InputError
from gdod.experiments import toy
from gdod.experiments.plots import BLACK, BLUE, GREEN, GREY, ORANGE, RED, open_figure, save
from gdod.methods.base import Method
from gdod.methods.cagrad import CAGrad
from gdod.methods.gdod import GDOD, WeightedGDOD
from gdod.methods.gradnorm import GradNorm
from gdod.methods.gradreg import GradReg
from gdod.methods.mgda import MGDA
from gdod.methods.pcgrad import PCGrad
from gdod.methods.sum import Sum
from gdod.methods.torchjd import torchjd_methods
from gdod.methods.uncertainty import Uncertainty

_BORROWED = torchjd_methods()
TOY_METHODS: Mapping[str, Callable[[], Method]] = {
    "sum (Adam)": Sum,
    "uncertainty": Uncertainty,
    "GradNorm": GradNorm,
    "GradReg": GradReg,
    "MGDA": MGDA,
    "PCGrad": PCGrad,
    "CAGrad, c = 0.5": CAGrad,
    "GDOD": GDOD,
    "Weighted-GDOD": WeightedGDOD,
    "UPGrad (torchjd)": _BORROWED["upgrad"],
    "Aligned-MTL (torchjd)": _BORROWED["aligned-mtl"],
    "IMTL-G (torchjd)": _BORROWED["imtl-g"],
    "FAMO (torchjd)": _BORROWED["famo"],
    "FairGrad (torchjd)": _BORROWED["fairgrad"],
    "GradVac (torchjd)": _BORROWED["gradvac"],
}


def draw_toy(out: Path, methods: Mapping[str, Callable[[], Method]] = TOY_METHODS, *, steps: int = 6000) -> None:
    """Draw the paths of each method from the paper's three starts, over the contours of the mean loss."""
    starts = toy.STARTS
    made = [make() for make in methods.values() for _ in starts]
    places = toy.paths(made, list(starts) * len(methods), steps=steps)  # [steps + 1, methods * starts, 2]
    columns = min(5, len(methods))
    rows = -(-len(methods) // columns)
    figure, axes = open_figure(rows, columns, (3.1 * columns, 3.25 * rows + 0.5), dpi=150, shared=True)
    for axis in axes[len(methods) :]:
        axis.set_visible(False)
    for number, (title, axis) in enumerate(zip(methods, axes, strict=False)):
        _landscape(axis)
        axis.set_title(title, fontsize=11)
        for which, colour in enumerate((BLUE, RED, ORANGE)):
            way = places[:, number * len(starts) + which].tolist()
            axis.plot(*zip(*way, strict=True), color=colour, lw=1.8, zorder=4)
            axis.plot(*way[0], "o", ms=6, mfc="white", mec=colour, mew=1.8, zorder=6)
            axis.plot(*way[-1], "o", ms=6, color=colour, mec="white", mew=0.6, zorder=7)
    legend = [
        Line2D([], [], marker="o", ls="", mfc="white", mec=BLACK, label="start"),
        Line2D([], [], marker="o", ls="", color=BLACK, label=f"after {steps:,} steps"),
        Line2D([], [], color=GREY, lw=6, label="Pareto set"),
        Line2D([], [], marker="*", ms=12, ls="", color=BLACK, label="minimum of the mean loss"),
    ]
    figure.legend(handles=legend, loc="lower center", ncols=4, frameon=False, fontsize=11)
    figure.supxlabel("x₁", y=0.045, fontsize=11)
    figure.supylabel("x₂", fontsize=11)
    figure.tight_layout(rect=(0, 0.045, 1, 1))
    save(figure, out)


def _landscape(axis: Axes) -> None:
    line = torch.linspace(-11, 11, 300, dtype=torch.float64)
    x, y = torch.meshgrid(line, line, indexing="xy")
    height = toy.losses(torch.stack([x, y], -1)).mean(-1)
    axis.contour(
        line.tolist(),
        line.tolist(),
        height.tolist(),
        levels=18,
        colors="#b5b5b5",
        linestyles="solid",
        linewidths=0.7,
        zorder=1,
    )
    lowest = -8.355
    axis.plot([-7, 7], [lowest, lowest], color=GREY, lw=6, solid_capstyle="butt", zorder=2)
    axis.plot(0, lowest, "*", ms=13, color=BLACK, mec="white", mew=0.6, zorder=5)
    axis.set(xlim=(-11, 11), ylim=(-11, 11), xticks=(-10, -5, 0, 5, 10), yticks=(-10, -5, 0, 5, 10), aspect="equal")
    axis.tick_params(labelsize=9)


def draw_parts(out: Path, first: Sequence[float] = (1.0, 0.35), second: Sequence[float] = (-0.25, 0.9)) -> None:
    """Draw figure 1 of the GDOD paper for two gradients in the plane: the basis, and what GDOD keeps."""
    if len(first) != 2 or len(second) != 2:
        raise InputError(f"gradients {first!r} and {second!r}; expected two numbers each")
    gradients = torch.tensor([first, second], dtype=torch.float64)
    parts = GDOD().decompose(gradients.unsqueeze(0))  # one group
    nowhere = torch.zeros(2, dtype=torch.float64)
    figure, (left, right) = open_figure(1, 2, (11, 5.4), dpi=150, shared=True)
    shown = torch.cat(
        [
            gradients,
            parts.kept,
            parts.conflict,
            gradients.sum(0, keepdim=True),
            parts.update.unsqueeze(0),
            nowhere.unsqueeze(0),
        ]
    )
    x, y = ((shown.amax(0) + shown.amin(0)) / 2).tolist()
    reach = 0.62 * float((shown.amax(0) - shown.amin(0)).max())
    for axis in (left, right):
        for number, vector in enumerate(parts.basis, 1):
            agreed = float((parts.conflict @ vector).abs().max()) < 1e-9 * float(gradients.norm())
            look = {"color": GREEN, "ls": "-"} if agreed else {"color": GREY, "ls": (0, (6, 4))}
            name = f"along $b_{number}$ the tasks {'agree' if agreed else 'conflict'}"
            axis.axline((0, 0), tuple(vector.tolist()), lw=1, zorder=0, label=name, **look)
        axis.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach))
        axis.set_aspect("equal")
        axis.tick_params(labelsize=9)

    left.set_title("Task gradients, and their projections on the basis", fontsize=11)
    for number, vector in enumerate(parts.basis, 1):
        up = -vector if vector[1] < 0 else vector  # its sign is arbitrary
        _arrow(left, nowhere, 0.45 * reach * up, BLACK, f"$b_{number}$", style="--", width=1.5)
    for number, (gradient, colour) in enumerate(zip(gradients, (BLUE, RED), strict=True), 1):
        _arrow(left, nowhere, gradient, colour, f"$g_{number}$")
        for vector, size in zip(parts.basis, parts.projections[:, number - 1], strict=True):
            foot = size * vector
            left.plot(*zip(gradient.tolist(), foot.tolist(), strict=True), color=colour, lw=1, ls=":")
            left.plot(*foot.tolist(), "o", color=colour, ms=5)

    left.legend(loc="best", fontsize=10, frameon=False)

    right.set_title("Kept parts add up to the update; conflicting parts are left out", fontsize=11)
    _arrow(right, nowhere, gradients.sum(0), "#777777", "plain sum", style="--", width=2)
    right.plot(*zip((0, 0), parts.update.tolist(), strict=True), color=GREEN, lw=9, alpha=0.4, solid_capstyle="butt")
    _label(right, nowhere, parts.update, GREEN, "update", 0.08)
    tail = nowhere
    for number, (kept, conflict, colour) in enumerate(zip(parts.kept, parts.conflict, (BLUE, RED), strict=True), 1):
        _arrow(right, tail, kept, colour, rf"$g_{number}^{{\mathrm{{sh}}}}$", aside=-0.06)
        _arrow(right, nowhere, conflict, colour, rf"$g_{number}^{{\mathrm{{con}}}}$", style=":", width=2)
        tail = tail + kept
    figure.tight_layout()
    save(figure, out)


def _arrow(
    axis: Axes,
    tail: Tensor,
    way: Tensor,
    colour: str,
    label: str,
    *,
    style: str = "-",
    width: float = 2.6,
    aside: float | None = None,
) -> None:
    """Draw an arrow, with its label beyond the head, or ``aside`` its middle at a share of the picture's size."""
    left, right = axis.get_xlim()
    length, size = float(way.norm()), right - left
    if length < 1e-6 * size:
        return
    x, y = (tail + way).tolist()
    look = {"color": colour, "lw": width, "ls": style, "shrinkA": 0, "shrinkB": 0}
    axis.annotate(
        "", xy=(x, y), xytext=tuple(tail.tolist()), arrowprops={"arrowstyle": "-|>,head_width=.3", **look}, zorder=3
    )
    _label(axis, tail, way, colour, label, aside)


def _label(axis: Axes, tail: Tensor, way: Tensor, colour: str, label: str, aside: float | None) -> None:
    left, right = axis.get_xlim()
    size = right - left
    along = way / way.norm().clamp(min=1e-300)
    across = torch.stack([-along[1], along[0]])
    place = tail + way + 0.05 * size * along if aside is None else tail + way / 2 + aside * size * across
    x, y = place.tolist()
    axis.text(x, y, label, color=colour, fontsize=12, ha="center", va="center", zorder=5)


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["toy", out]:
            draw_toy(Path(out))
        case ["parts", out]:
            draw_parts(Path(out))
        case ["parts", out, x1, y1, x2, y2]:
            draw_parts(Path(out), (float(x1), float(y1)), (float(x2), float(y2)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
