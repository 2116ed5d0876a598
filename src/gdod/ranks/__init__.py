"""Processes that work together, the ranks: how they find each other, agree, and notice that one is lost."""

from gdod.ranks.exchange import Alone, Exchange, LostError, ProcessGroup, exchange_over, is_distributed
from gdod.ranks.ranks import Ranks

__all__ = ["Alone", "Exchange", "LostError", "ProcessGroup", "Ranks", "exchange_over", "is_distributed"]
