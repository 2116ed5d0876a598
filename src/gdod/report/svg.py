"""Draw small pictures in SVG, as text. Colours are CSS variables of the page, so that they follow its theme.

Lines differ in colour, dash and marker, and every picture has a title and a description in words.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count

from gdod.report.numbers import number, short

Point = tuple[float, float]

COLOURS = 9
"""--c0 to --c8 in page.css: Okabe and Ito's and one more. The first is that of text, for the baseline alone."""
DASHES = ("", "6 3", "2 2.5", "9 3 2 3", "4 2", "1 3", "12 3", "6 2 2 2 2 2", "3 5")
MARKERS = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",  # disc
    "M-2.9 -2.9h5.8v5.8h-5.8z",  # square
    "M0 -3.8L3.6 2.6H-3.6z",  # triangle
    "M0 -4.2L3.6 0L0 4.2L-3.6 0z",  # diamond
    "M0 3.8L3.6 -2.6H-3.6z",  # triangle, pointing down
    "M-1.2 -4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",  # plus
    "M-3.6 -2.2l1.4 -1.4L0 -1.4l2.2 -2.2l1.4 1.4L1.4 0l2.2 2.2l-1.4 1.4L0 1.4l-2.2 2.2l-1.4 -1.4L-1.4 0z",  # cross
    "M0 -4.3L1.2 -1.4L4.2 -1.3L1.9 0.6L2.7 3.6L0 1.9L-2.7 3.6L-1.9 0.6L-4.2 -1.3L-1.2 -1.4z",  # star
    "M3.9 0L1.95 3.4H-1.95L-3.9 0L-1.95 -3.4H1.95z",  # hexagon
)

_WIDTH, _HEIGHT = 380, 262
_BROAD, _BROAD_HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 16, 22, 38
_CELL = 48  # of a grid of numbers
_LONGEST_NAME = 30

_ids = count(1)


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    style: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """(x, lowest, highest) over seeds; drawn when the line is singled out."""


@dataclass(frozen=True)
class Mark:
    """A point of a picture with two figures as its axes."""

    name: str
    style: int
    point: Point
    across: tuple[float, float] | None = None
    """The ends of its interval along the x axis."""
    up: tuple[float, float] | None = None
    """The ends of its interval along the y axis."""
    text: str = ""
    """What is written beside it."""
    small: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis is called, and its two ends."""

    label: str
    low: float
    high: float


def line_chart(
    title: str,
    description: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    diagonal: bool = False,
    square: bool = False,
    broad: bool = False,
) -> str:
    """Return lines over an x axis; with `diagonal`, a line where both are equal, and a marker at every point."""
    width, height = (_BROAD, _BROAD_HEIGHT) if broad else (_WIDTH, _HEIGHT)
    if square:
        height = width - _LEFT - _RIGHT + _TOP + _BOTTOM
    frame = _Frame(x, y, width, height)
    clip = f"clip{next(_ids)}"
    parts = [_axes(frame), f'<clipPath id="{clip}"><rect {frame.box(4)}/></clipPath><g clip-path="url(#{clip})">']
    if diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        ends = frame.place(low, low), frame.place(high, high)
        parts.append(f'<path class="diagonal" d="{_path(ends)}"/>')
    for order, line in enumerate(lines):
        parts.append(_line(frame, line, order, len(lines), every_point=diagonal))
    parts.append("</g>")
    return _svg(title, description, width, height, "".join(parts), _attributes(frame, broad))


def scatter_chart(
    title: str,
    description: str,
    marks: Sequence[Mark],
    line: Sequence[Point],
    dotted: Sequence[Point],
    x: Axis,
    y: Axis,
    *,
    broad: bool = False,
) -> str:
    """Return marks with their intervals, and below them a line in the colour of style 0 and a dotted one."""
    width, height = (_BROAD, _BROAD_HEIGHT + 60) if broad else (_WIDTH, _HEIGHT + 30)
    frame = _Frame(x, y, width, height)
    clip = f"clip{next(_ids)}"
    parts = [_axes(frame), f'<clipPath id="{clip}"><rect {frame.box(4)}/></clipPath><g clip-path="url(#{clip})">']
    if dotted:
        parts.append(f'<path class="diagonal" d="{_path(frame.place(*point) for point in dotted)}"/>')
    if line:
        parts.append(f'<path class="line front s0" d="{_path(frame.place(*point) for point in line)}"/>')
    parts += [*(_mark(frame, mark) for mark in marks), "</g>"]
    return _svg(title, description, width, height, "".join(parts), _attributes(frame, broad))


def heat_map(
    title: str, description: str, names: Sequence[str], values: Sequence[Sequence[float | None]], top: float
) -> str:
    """Return a square of numbers from -top to top as colours, with the numbers written in; its diagonal is empty."""
    own = [[None if row == column else value for column, value in enumerate(line)] for row, line in enumerate(values)]
    left, head, size = 74, 20, _CELL * len(names) + 2
    across = "".join(
        f'<text class="tick" x="{left + _CELL * place + _CELL // 2}" y="{head - 7}" text-anchor="middle">'
        f"{_clipped(name, 8)}</text>"
        for place, name in enumerate(names)
    )
    width, height = left + size, head + size
    content = across + _cells([_clipped(name, 11) for name in names], own, top, left, head)
    return _svg(title, description, width, height, content, 'class="heat"')


def number_grid(
    title: str,
    description: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    top: float,
) -> str:
    """Return numbers from -top to top in rows and columns as colours, with the numbers written in; None stays empty.

    The names of columns are written at a slant. A grid that is wider than its place on the page scrolls.
    """
    left = 16 + round(6.4 * min(_LONGEST_NAME, max(map(len, rows))))
    slant = min(_LONGEST_NAME, max(map(len, columns)))
    head, room = 24 + round(4.4 * slant), round(3.6 * min(_LONGEST_NAME, len(columns[-1])))
    across = []
    for place, name in enumerate(columns):
        x, y = left + _CELL * (place + 0.5), head - 7
        turn = f'transform="rotate(-40 {x:.0f} {y})"'
        across.append(f'<text class="tick" x="{x:.0f}" y="{y}" {turn}>{_clipped(name, _LONGEST_NAME)}</text>')
    width, height = left + _CELL * len(columns) + room, head + _CELL * len(rows) + 2
    content = "".join(across) + _cells([_clipped(name, _LONGEST_NAME) for name in rows], values, top, left, head)
    # Never larger than drawn, and on a phone not so small that nobody can read it.
    size = f'style="max-width: {width}px; min-width: {round(0.8 * width)}px"'
    drawing = _svg(title, description, width, height, content, f'class="heat wide" {size}')
    return f'<div class="sideways" tabindex="0" role="region" aria-label="{escape(title)}">{drawing}</div>'


def bar_chart(
    title: str, description: str, names: Sequence[str], bars: Sequence[tuple[float, float, float]], label: str
) -> str:
    """Return bars that begin at zero, one below the other, each (length, low, high) with its interval."""
    left, step, width = 20 + round(6.4 * min(_LONGEST_NAME, max(map(len, names)))), 22, _WIDTH
    ends = [end for bar in bars for end in bar]
    axis = axis_for(label, [0.0, *ends])
    height, bottom = step * len(bars) + 44, step * len(bars) + 4

    def place(value: float) -> float:
        return left + (value - axis.low) / (axis.high - axis.low) * (width - left - 10)

    parts = []
    for value, text in _labelled(ticks(axis.low, axis.high, 4)):
        x = place(value)
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    for row, (name, (length, low, high)) in enumerate(zip(names, bars, strict=True)):
        middle, begin, end = step * row + 13, *sorted((place(0), place(length)))
        text = _clipped(name, _LONGEST_NAME)
        parts.append(f'<text class="tick" x="{left - 8}" y="{middle + 4}" text-anchor="end">{text}</text>')
        colour = "warm" if length < 0 else "cool"
        box = f'x="{begin:.1f}" y="{middle - 7}" width="{max(0.5, end - begin):.1f}" height="14"'
        parts.append(f'<rect class="{colour}" {box}/>')
        parts.append(f'<path class="ends" d="M{place(low):.1f} {middle}H{place(high):.1f}"/>')
    parts.append(f'<path class="axis" d="M{place(0):.1f} 0V{bottom}"/>')
    parts.append(f'<text class="label" x="{width - 10}" y="{bottom + 36}" text-anchor="end">{escape(label)}</text>')
    return _svg(title, description, width, height, "".join(parts), 'class="bars"')


def interval(mean: float | None, low: float | None, high: float | None, points: Iterable[float], reach: float) -> str:
    """Return a difference with its interval on a line from -reach to reach; seeds as small strokes."""
    width, height, middle = 150, 44, 22

    def place(value: float) -> float:
        return width / 2 + max(-1.0, min(1.0, value / reach)) * (width / 2 - 5)

    parts = [f'<path class="zero" d="M{width / 2} 0V{height}"/>']
    if low is not None and high is not None:
        parts.append(f'<path class="whisker" d="M{place(low):.1f} {middle}H{place(high):.1f}"/>')
        for value, back in ((low, 4), (high, -4)):
            end = place(value)
            cut = abs(value) > reach  # an arrow: it goes on
            tip = f"M{end + back:.1f} {middle - 3.5}L{end:.1f} {middle}L{end + back:.1f} {middle + 3.5}"
            parts.append(f'<path class="whisker" d="{tip if cut else f"M{end:.1f} {middle - 4}V{middle + 4}"}"/>')
    parts += [f'<path class="seed" d="M{place(value):.1f} {middle - 8}V{middle + 8}"/>' for value in points]
    if mean is not None:
        parts.append(f'<circle class="mean" cx="{place(mean):.1f}" cy="{middle}" r="3.6"/>')
    return (
        f'<svg class="interval" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-hidden="true">{"".join(parts)}</svg>'
    )


def swatch(style: int) -> str:
    """Return the line and marker of a style, for a legend."""
    return (
        f'<svg class="swatch {_colour(style)}" viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">'
        f'<path class="line" d="M1 6H33"{_dash(style)}/>{_marker(17, 6, style)}</svg>'
    )


def axis_for(
    label: str, values: Iterable[float], *, trim_low: float = 0, trim_high: float = 0, zero: bool = False
) -> Axis:
    """Return an axis around values, without the trimmed shares of them: first evaluations would hide what follows."""
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return Axis(label, 0, 1)
    low = known[int(trim_low * (len(known) - 1))]
    high = known[math.ceil((1 - trim_high) * (len(known) - 1))]
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return Axis(label, 0.0 if zero else low - room, high + (0 if zero else room))


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers between two ends."""
    raw = (high - low) / most
    size = 10 ** math.floor(math.log10(raw)) if raw > 0 else 1
    step = next((factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * (1 - 1e-9)), 10 * size)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


class _Frame:
    """Maps values to places in the picture."""

    def __init__(self, x: Axis, y: Axis, width: int, height: int) -> None:
        self.x, self.y = x, y
        self.left, self.right, self.top, self.bottom = _LEFT, width - _RIGHT, _TOP, height - _BOTTOM

    def place(self, x: float, y: float) -> Point:
        across = (x - self.x.low) / ((self.x.high - self.x.low) or 1)
        up = (y - self.y.low) / ((self.y.high - self.y.low) or 1)
        # Far outside is as good as just outside, and keeps the text short.
        across, up = max(-1.0, min(2.0, across)), max(-1.0, min(2.0, up))
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def box(self, room: int = 0) -> str:
        width, height = self.right - self.left + 2 * room, self.bottom - self.top + 2 * room
        return f'x="{self.left - room}" y="{self.top - room}" width="{width}" height="{height}"'

    @property
    def corners(self) -> str:
        return f"{self.left} {self.right} {self.top} {self.bottom}"


def _attributes(frame: _Frame, broad: bool) -> str:
    """Return the attributes of a chart, from which the page's script reads values under the pointer."""
    x, y = frame.x, frame.y
    reading = f'data-x="{x.low:.8g} {x.high:.8g}" data-y="{y.low:.8g} {y.high:.8g}" data-box="{frame.corners}"'
    labels = f'data-xlabel="{escape(x.label)}" data-ylabel="{escape(y.label)}"'
    return f'class="{"chart broad" if broad else "chart"}" {reading} {labels}'


def _axes(frame: _Frame) -> str:
    parts = []
    for value, text in _labelled(ticks(frame.y.low, frame.y.high, 5)):
        _, y = frame.place(frame.x.low, value)
        parts.append(f'<path class="grid" d="M{frame.left} {y:.1f}H{frame.right}"/>')
        parts.append(f'<text class="tick" x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in _labelled(ticks(frame.x.low, frame.x.high, 6)):
        x, _ = frame.place(value, frame.y.low)
        parts.append(f'<path class="grid" d="M{x:.1f} {frame.top}V{frame.bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 16}" text-anchor="middle">{text}</text>')
    parts.append(f'<path class="axis" d="M{frame.left} {frame.top}V{frame.bottom}H{frame.right}"/>')
    middle, below = (frame.left + frame.right) / 2, frame.bottom + 33
    parts.append(f'<text class="label" x="{middle}" y="{below}" text-anchor="middle">{escape(frame.x.label)}</text>')
    parts.append(f'<text class="label" x="2" y="{frame.top - 11}">{escape(frame.y.label)}</text>')
    return "".join(parts)


def _labelled(values: Sequence[float]) -> list[tuple[float, str]]:
    """Return ticks with their text, all with the same number of decimals."""
    texts = [short(value) for value in values]
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    if not decimals or any(text[-1:] in "kMG" or "e" in text for text in texts):
        return list(zip(values, texts, strict=True))
    return [(value, number(value, decimals)) for value in values]


def _line(frame: _Frame, line: Line, order: int, lines: int, *, every_point: bool) -> str:
    places = [frame.place(x, y) for x, y in line.points]
    if not places:
        return ""
    band = ""
    if line.band:
        upper = [frame.place(x, high) for x, _, high in line.band]
        lower = [frame.place(x, low) for x, low, _ in reversed(line.band)]
        band = f'<path class="band" d="{_path([*upper, *lower])}Z"/>'
    marked = places if every_point else _some(places, order, lines)
    markers = "".join(_marker(x, y, line.style) for x, y in marked)
    return (
        f'<g class="series {_colour(line.style)}" data-name="{escape(line.name)}" data-series="{line.style}">{band}'
        f'<path class="line" d="{_path(places)}"{_dash(line.style)}/>{markers}</g>'
    )


def _mark(frame: _Frame, mark: Mark) -> str:
    x, y = frame.place(*mark.point)
    parts = []
    if mark.across is not None:
        low, high = (frame.place(end, mark.point[1])[0] for end in mark.across)
        parts.append(f'<path class="reach" d="M{low:.1f} {y:.1f}H{high:.1f}"/>')
    if mark.up is not None:
        low, high = (frame.place(mark.point[0], end)[1] for end in mark.up)
        parts.append(f'<path class="reach" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
    scale = 0.8 if mark.small else 1.5
    text = f'<text class="tick" x="{x + 7:.1f}" y="{y - 6:.1f}">{escape(mark.text)}</text>' if mark.text else ""
    # A line of one point draws nothing; it is where the page's script finds the value under the pointer.
    return (
        f'<g class="series {_colour(mark.style)}" data-name="{escape(mark.name)}" data-series="{mark.style}">'
        f'{"".join(parts)}<path class="line" d="{_path([(x, y)])}"/>{_marker(x, y, mark.style, scale)}{text}</g>'
    )


def _some(places: Sequence[Point], order: int, lines: int) -> list[Point]:
    """Return where markers go: five on a line, shifted so that those of different lines do not meet."""
    gap = max(1, len(places) // 5)
    first = int(gap * order / max(1, lines))
    return list(places[first::gap])


def _path(places: Iterable[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _colour(style: int) -> str:
    return f"s{style if style < COLOURS else 1 + (style - 1) % (COLOURS - 1)}"


def _dash(style: int) -> str:
    dash = DASHES[style % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _marker(x: float, y: float, style: int, scale: float = 1) -> str:
    size = "" if scale == 1 else f" scale({scale:g})"
    return f'<path class="marker" transform="translate({x:.1f} {y:.1f}){size}" d="{MARKERS[style % len(MARKERS)]}"/>'


def _cells(rows: Sequence[str], values: Sequence[Sequence[float | None]], top: float, left: int, head: int) -> str:
    """Return the cells of a grid of numbers, with the names of its rows, which are escaped already, before them."""
    parts = []
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        y = head + _CELL * row
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + _CELL // 2 + 4}" text-anchor="end">{name}</text>')
        parts += [_cell(left + _CELL * column, y, value, top) for column, value in enumerate(line)]
    return "".join(parts)


def _cell(x: int, y: int, value: float | None, top: float) -> str:
    box = f'x="{x + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_CELL - 2}" rx="4"'
    if value is None:
        return f'<rect class="blank" {box}/>'
    colour, strength = ("warm" if value < 0 else "cool"), min(1.0, abs(value) / top) * 0.8
    middle = f'x="{x + _CELL // 2}" y="{y + _CELL // 2 + 4}"'
    return (
        f'<rect class="blank" {box}/><rect class="{colour}" fill-opacity="{strength:.2f}" {box}/>'
        f'<text class="value" {middle} text-anchor="middle">{number(value, 2)}</text>'
    )


def _clipped(name: str, length: int) -> str:
    return escape(name if len(name) <= length else name[: length - 1] + "…")


def _svg(title: str, description: str, width: int, height: int, content: str, attributes: str) -> str:
    name = f"picture{next(_ids)}"
    return (
        f'<svg {attributes} viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}t {name}d">'
        f'<title id="{name}t">{escape(title)}</title><desc id="{name}d">{escape(description)}</desc>{content}</svg>'
    )
