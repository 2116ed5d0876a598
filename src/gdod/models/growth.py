"""Let the id tables of a model grow: ids that are new get rows of their own, those that are there keep theirs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdod.models.features import Features
from gdod.schema import Schema


@dataclass(frozen=True)
class Growth:
    """How the rows of a table that has grown come from those it had."""

    row: Tensor  # [V], the earlier row that each begins as
    is_new: Tensor  # [V], whether it is the row of a new id

    def weights(self, before: Tensor) -> Tensor:
        """Return the table: rows of ids that were there, and for each new id a copy of its field's row of id 0.

        That is what it was looked up as before, unless it is one of a sequence, so that predictions stay the same.
        """
        return before[self.row.to(before.device)]

    def moments(self, before: Tensor) -> Tensor:
        """Return an optimizer's numbers for the table, zero for new ids."""
        return torch.where(self.is_new[:, None].to(before.device), 0, before[self.row.to(before.device)])


def table_growth(model: nn.Module, before: Schema) -> dict[str, Growth]:
    """Return the growth of each id table of a model, by the name of the parameter or buffer.

    Args:
        model: a model whose schema has at least as many ids in each field as ``before``, the fields being the same.
        before: the schema of the model that it goes on from.
    """
    grown = {}
    for name, module in model.named_modules():
        if isinstance(module, Features):
            prefix = f"{name}." if name else ""
            grown.update({f"{prefix}{table}": growth for table, growth in _tables(module.schema, before)})
    return grown


def _tables(now: Schema, before: Schema) -> Iterator[tuple[str, Growth]]:
    if now.categorical:
        yield "table.weight", _growth(_sizes(before.categorical), _sizes(now.categorical))
    for at, fields in enumerate(zip(before.categorical, now.categorical, strict=True)):
        if fields[1].vectors:  # id 0 has no vector of a file, and neither have new ids, which begin as copies of it
            growth = _growth(_sizes(fields[:1]), _sizes(fields[1:]))
            yield f"pretrained.{at}.vectors", growth
            yield f"pretrained.{at}.known", growth
    for at, (old, new) in enumerate(zip(before.sequences, now.sequences, strict=True)):
        yield f"lists.{at}.weight", _growth(_sizes([old]), _sizes([new]))


def _sizes(fields: Iterable[object]) -> list[int]:
    """Return how many rows each field has, that of id 0 among them."""
    return [field.cardinality + 1 for field in fields]  # type: ignore[attr-defined]


def _growth(before: Sequence[int], now: Sequence[int]) -> Growth:
    """Return the growth of a table in which fields of these sizes lie one after the other."""
    rows, new, first = [], [], 0
    for old, size in zip(before, now, strict=True):
        ids = torch.arange(size)
        rows.append(torch.where(ids < old, ids, 0) + first)
        new.append(ids >= old)
        first += old
    return Growth(torch.cat(rows), torch.cat(new))
