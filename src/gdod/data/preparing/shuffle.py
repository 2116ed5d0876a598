"""Put the rows of a part in random order, in bounded memory.

Each row goes to a random bucket on disk; then the buckets, one after the other, are shuffled in memory.
Every order of the rows is equally likely, as with a shuffle in memory. A file that is sorted by user or
by label is so as good for training as any other, though epochs only shuffle within a window of it.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from gdod.data.preparing.stored import ROW_GROUP, PartWriter
from gdod.data.tables.frames import polars

# What a bucket may take in memory; and, of the rows that wait to be written, all buckets together.
_BUCKET_BYTES = 32 << 20
# Of very large tables the buckets are larger: each is an open file.
_MOST_BUCKETS = 256


class Shuffler:
    """Takes rows in any order, keeps them in buckets in a folder, and hands them on in random order."""

    def __init__(self, folder: Path, rows: int, row_bytes: int, seed: int) -> None:
        self.draw = np.random.default_rng([seed, 0x5BFF])
        self.buckets = min(_MOST_BUCKETS, max(1, -(-rows * row_bytes // _BUCKET_BYTES)))
        self._waiting: list[pl.DataFrame] = []
        group = max(512, min(ROW_GROUP, _BUCKET_BYTES // (self.buckets * row_bytes)))
        paths = [folder / f"bucket-{at:05d}.parquet" for at in range(self.buckets)]
        self._writers = [PartWriter(path, group, together=1) for path in paths]

    def write(self, frame: pl.DataFrame) -> None:
        if self.buckets == 1:
            self._waiting.append(frame)
            return
        bucket = self.draw.integers(self.buckets, size=len(frame))
        order = np.argsort(bucket, kind="stable")
        sorted_frame, ends = frame[order], np.bincount(bucket, minlength=self.buckets).cumsum()
        for at, (first, last) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            self._writers[at].write(sorted_frame[int(first) : int(last)])

    def finish(self, out: PartWriter) -> None:
        """Write all rows to ``out``, in random order."""
        for writer in self._writers:
            if self.buckets == 1:
                frame = pl.concat(self._waiting)
            else:
                writer.close()
                frame = polars(pq.read_table(writer.path, use_threads=False))
                writer.path.unlink()
            out.write(frame[self.draw.permutation(len(frame))])
