"""Rows of a batch that lies in several processes: the same questions as in one, and the same answers on every rank."""

from gdod.rows.distributed.several_processes import SeveralProcesses

__all__ = ["SeveralProcesses"]
