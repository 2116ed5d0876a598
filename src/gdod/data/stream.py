"""Batches of a part that is read from disk while it is used, in memory that does not grow with its size."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from gdod.data.parts.part import Examples, Minibatch, Part, check_position, cut, generator
from gdod.data.parts.rank_shares import given_by_rank
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.stored import examples
from gdod.data.tables.frames import polars


@dataclass(frozen=True)
class StreamPart(Part):
    """A part of a data set in a Parquet file, read while it is used.

    Row groups come in random order, ``window`` of them at a time in memory, where their rows are mixed. The
    training part is stored in random order already, so rows that meet in a batch are as good as drawn from all of
    it. Each rank reads row groups of its own, so which rows meet depends on how many ranks there are.
    """

    path: Path
    encoder: Encoder
    window: int = 16

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        """The number of rows in each row group. [R]"""
        about = pq.read_metadata(self.path)
        return np.array([about.row_group(at).num_rows for at in range(about.num_row_groups)], np.int64)

    def __len__(self) -> int:
        return int(self._groups.sum())

    def batches(
        self, size: int, *, seed: int | None = None, epoch: int = 0, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[Minibatch]:
        check_position(size, start, rank, ranks)
        order = np.arange(len(self._groups))
        if seed is not None:
            order = torch.randperm(len(order), generator=generator(seed, epoch)).numpy()
        mix = None if seed is None else (seed, epoch) if ranks == 1 else (seed, epoch, rank)
        return self._batches(size, order, mix, start, rank, ranks)

    def _batches(
        self, size: int, order: NDArray[np.int64], mix: tuple[int, ...] | None, start: int, rank: int, ranks: int
    ) -> Iterator[Minibatch]:
        tasks, steps, at = tuple(self.encoder.table_schema.labels), self.steps(size), start
        rows = [int(self._groups[order[one::ranks]].sum()) for one in range(ranks)]

        def sizes(last: int) -> NDArray[np.int64]:
            """Return how many examples of each batch, from the present one to the last, are this rank's."""
            return np.diff(given_by_rank(rows, rank, np.minimum(np.arange(at, last + 1) * size, sum(rows))))

        if start >= steps:
            return
        with pq.ParquetFile(self.path) as file:
            rest = self._read(file, order[:0])  # less than a batch, for the next window
            skip = int(given_by_rank(rows, rank, np.array([start * size]))[0])
            for block in self._blocks(file, order[rank::ranks], mix, skip):
                block = _joined(rest, block) if rest.size else block
                shares = sizes(min(steps, at + (block.size + 1) * ranks // size + 1))
                whole = shares[: np.searchsorted(shares.cumsum(), block.size, "right")].tolist()
                yield from cut(block.slice(0, sum(whole)), tasks, whole)
                rest, at = block.slice(sum(whole), block.size), at + len(whole)
        yield from cut(rest, tasks, sizes(steps).tolist())

    def _blocks(
        self, file: pq.ParquetFile, order: NDArray[np.int64], mix: tuple[int, ...] | None, skip: int
    ) -> Iterator[Examples]:
        """Yield the rows of window after window, without the first ``skip``."""
        for at in range(0, len(order), self.window):
            groups = order[at : at + self.window]
            rows = int(self._groups[groups].sum())
            if rows <= skip:  # before the start: not even read
                skip -= rows
                continue
            block = self._read(file, groups)
            if mix is not None:
                block = block.take(torch.randperm(rows, generator=generator(*mix, 1 + at)))
            yield block.slice(skip, rows)
            skip = 0

    def _read(self, file: pq.ParquetFile, groups: NDArray[np.int64]) -> Examples:
        return examples(polars(file.read_row_groups(groups.tolist(), use_threads=False)), self.encoder)


def _joined(first: Examples, second: Examples) -> Examples:
    weights = None
    if first.weights is not None and second.weights is not None:
        weights = torch.cat([first.weights, second.weights], -1)
    return Examples(
        torch.cat([first.categorical, second.categorical]),
        torch.cat([first.numeric, second.numeric]),
        tuple(torch.cat(pair) for pair in zip(first.sequences, second.sequences, strict=True)),
        torch.cat([first.labels, second.labels], 1),
        weights,
    )
