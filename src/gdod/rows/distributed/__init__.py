"""Rows of a batch that lies in several processes: the same questions as in one, and the same answers on every rank."""

from gdod.rows.distributed.accumulated_rows import JoinedRows
from gdod.rows.distributed.column_exchange import Slice
from gdod.rows.distributed.distributed_rows import Across, DistributedRows, Survey, slices_of
from gdod.rows.distributed.exchange import Exchange, ProcessGroup, exchange_over, is_distributed

__all__ = [
    "Across",
    "DistributedRows",
    "Exchange",
    "JoinedRows",
    "ProcessGroup",
    "Slice",
    "Survey",
    "exchange_over",
    "is_distributed",
    "slices_of",
]
