"""Account for the lines of a text file: count them while it is read, and find a quotation mark that swallows rows."""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

# So many separators within one value, each line with exactly those of a row, are no accident.
_NO_ACCIDENT = 6


class CountedLines:
    """A stream of bytes that counts the lines that hold something, as they are read from another stream."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._ended = 0
        self._within = False  # a line has begun and not yet ended

    @property
    def count(self) -> int:
        """The number of lines so far that are not empty."""
        return self._ended + self._within

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def read(self, size: int = -1) -> bytes:
        block: bytes = self._stream.read(size)
        if not block:
            return block
        if b"\r" not in block and b"\n\n" not in block and not block.startswith(b"\n"):  # several times as fast
            self._ended += block.count(b"\n")
            self._within = not block.endswith(b"\n")
            return block
        signs = np.frombuffer(block, np.uint8)
        ends = (signs == ord("\n")) | (signs == ord("\r"))  # [size]
        self._ended += int(self._within and ends[0]) + int(np.count_nonzero(ends[1:] & ~ends[:-1]))
        self._within = not ends[-1]
        return block

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True)
class StrayQuote:
    """A quotation mark at the start of a value that takes rows for a part of it."""

    line: int
    """The line where the value begins."""
    last: int | None
    """The line where it seems to end; None: it does not, up to the end of the file."""


def find_stray_quote(lines: Iterable[str], quote: str, escape: str | None, separator: str) -> StrayQuote | None:
    """Return the first quotation mark that was not meant to open a value of several lines, if there is one.

    A value of several lines is taken for a mistake if it never ends, if its closing mark is followed by something
    else than a separator or the end of a line, or if each of its lines has the separators of a whole row.

    Args:
        lines: the lines of the file, with their ends.
        quote: the sign that values of several lines stand between; it opens a value at its start only.
        escape: the sign that makes the next one ordinary.
        separator: the sign between values.
    """
    mark, between = re.escape(quote), re.escape(separator)
    opening = re.compile(f"(?:^|{between}){mark}")
    inside = re.compile(f"(?:[^{mark}]++|{mark}{mark})*+")
    closed = re.compile(f"{mark}[ \t]*(?:{between}|[\r\n]|$)")
    escaped = re.compile(f"{re.escape(escape)}.", re.DOTALL) if escape else None
    opened: int | None = None  # the line where the present value begins
    usual, as_rows = None, False
    number = 0
    for number, line in enumerate(lines, 1):
        if escaped is not None:
            line = escaped.sub("  ", line)
        if usual is None and line.strip():
            usual = _separators(line, quote, separator)
        as_row = line.count(separator) == usual
        as_rows &= as_row
        at = 0
        while True:
            if opened is None:
                found = opening.search(line, at)
                if found is None:
                    break
                opened, as_rows, at = number, as_row, found.end()
            at = inside.match(line, at).end()  # type: ignore[union-attr]
            if at == len(line):
                break  # the value goes on in the next line
            if opened < number:
                like_rows = as_rows and (number - opened) * (usual or 0) >= _NO_ACCIDENT
                if like_rows or not closed.match(line, at):
                    return StrayQuote(opened, number)
            opened, at = None, at + 1
    return None if opened is None else StrayQuote(opened, None)


def _separators(line: str, quote: str, separator: str) -> int:
    """Return the number of separators in a line, without those in a value that the line also closes."""
    try:
        return len(next(csv.reader([line], delimiter=separator, quotechar=quote, strict=True))) - 1
    except csv.Error:
        return line.count(separator)
