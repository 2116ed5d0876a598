"""Numbers as text: fixed digits, a true minus sign, a dash where there is nothing to say."""

import math

NOTHING = "–"


def number(value: float | None, digits: int = 4, sign: str = "") -> str:
    """Return a number with fixed digits; a dash for what is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return _minus(f"{value:{sign},.{digits}f}")


def signed(value: float | None, digits: int = 4) -> str:
    """Return a number with fixed digits and its sign, also if it is a plus."""
    return number(value, digits, "+")


def whole(value: float | None) -> str:
    return number(value, 0)


def short(value: float) -> str:
    """Return a few significant digits, thousands as k and millions as M: for axes."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if sign == 'k' else size):g}{sign}".replace("-", "−")
    return f"{value:.6g}".replace("-", "−")


def with_spread(mean: float | None, sd: float | None, digits: int = 4) -> str:
    return number(mean, digits) if sd is None else f"{number(mean, digits)} ± {number(sd, digits)}"


def p_value(p: float | None) -> str:
    if p is None:
        return NOTHING
    return "< 0.001" if p < 0.001 else number(p, 3)


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(count: float | None) -> str:
    """Return a number of bytes as text, such as "1.2 MB"."""
    if count is None or not math.isfinite(count):
        return NOTHING
    for bytes_, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count:.0f} B"


def _minus(text: str) -> str:
    """Return the text with a true minus sign, and no sign before a zero."""
    return text.replace("-", "−") if any(digit in text for digit in "123456789") else text.lstrip("+-")
