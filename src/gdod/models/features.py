"""The first layer of every model: the embedding vectors of an example's ids, and its numbers, side by side."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gdod.errors import InputError
from gdod.models.config import Config
from gdod.models.cross import CrossLayers
from gdod.models.fm import pairwise_products
from gdod.models.layers import Members
from gdod.models.piecewise_linear import PiecewiseLinear
from gdod.models.pretrained import Pretrained
from gdod.schema import Batch, Schema

# Small, so that an id without much data behind it starts out near "unknown", which is zero.
_SPREAD = 0.05


class Features(nn.Module):
    """Turn a batch into one vector for each example: ids [B, F], sequences [B, L], numbers [B, G] -> [B, width].

        ids ────────► table of all fields ──► [B, F, d] ─┐
        sequences ──► a table each, mean ───► [B, S, d] ─┼─► [B, (F + S) · d + G]
        numbers ────────────────────────────► [B, G] ────┘

    All categorical fields lie in one table, one after the other, so that they cost one lookup. Id 0
    of a field starts as a zero vector, and learns where the training data has missing values.
    Numeric fields with bins become several numbers; cross layers, if there are any, come on top, then products of the
    vectors (`fm`); an ensemble of k members gives [B * k, width].
    """

    first: Tensor  # where each field begins in the table [F]
    largest: Tensor  # the largest id of each field [F]

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__()
        self.schema = schema
        dim, sparse = config.embedding, config.sparse
        self.dim = dim
        sizes = torch.tensor([field.cardinality + 1 for field in schema.categorical]).long()  # [F]
        self.register_buffer("first", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("largest", sizes - 1, persistent=False)
        rows = sum(field.cardinality + 1 for field in schema.categorical)
        self.table = nn.Embedding(rows, dim, sparse=sparse) if rows else None
        # Lookups and a mean of their own: torch.export fixes the batch size of an nn.EmbeddingBag.
        self.lists = nn.ModuleList(
            nn.Embedding(field.cardinality + 1, dim, padding_idx=0, sparse=sparse) for field in schema.sequences
        )
        self.id_dropout = nn.Dropout(config.id_dropout) if config.id_dropout else nn.Identity()
        binned = any(field.bins for field in schema.numeric)
        self.encoding = PiecewiseLinear(schema.numeric) if binned else None
        fields = len(schema.categorical) + len(schema.sequences)
        self.vectors = fields * dim  # how many of the numbers of an example are those of vectors, which come first
        self.width = self.vectors + (len(schema.numeric) if self.encoding is None else self.encoding.width)
        with torch.no_grad():
            for weight in self.parameters():
                weight.normal_(std=_SPREAD)
            if self.table is not None:
                self.table.weight[self.first] = 0
            for table in self.lists:
                table.get_parameter("weight")[0] = 0
        self.pretrained = nn.ModuleDict(
            {str(at): Pretrained(field, dim) for at, field in enumerate(schema.categorical) if field.vectors}
        )
        self.cross = CrossLayers(config.cross, config.cross_rank, self.width) if config.cross else None
        self.fm = config.fm
        if self.fm:
            if fields < 2:
                raise InputError(
                    "fm=True multiplies the vectors of different columns with each other, and the schema has "
                    f"{fields} column(s) of ids (categorical or sequences); expected at least two, or fm=False"
                )
            self.width += dim
        self.members = Members(config.ensemble, self.width) if config.ensemble > 1 else None

    def forward(self, batch: Batch) -> Tensor:
        if not torch.compiler.is_compiling():
            self.check(batch)
        parts = []
        if self.table is not None:
            ids = batch.categorical + self.first  # [B, F]
            vectors = self.table(ids)  # [B, F, d]
            if self.pretrained:
                vectors = self._with_pretrained(batch.categorical, vectors)
            parts.append(self.id_dropout(vectors.flatten(1)))  # [B, F, d] -> [B, F * d]
        for table, ids in zip(self.lists, batch.sequences, strict=True):
            count = (ids > 0).sum(1, keepdim=True).clamp(min=1)  # [B, 1]
            parts.append(self.id_dropout(table(ids).sum(1) / count))  # [B, L, d] -> [B, d]
        if self.schema.numeric:
            numbers = batch.numeric if self.encoding is None else self.encoding(batch.numeric)  # [B, G or more]
            parts.append(numbers.to(parts[0].dtype) if parts else numbers)
        x: Tensor = torch.cat(parts, 1) if len(parts) > 1 else parts[0]  # [B, width]
        products = self._products(x) if self.fm else None  # [B, d]
        if self.cross is not None:
            x = self.cross(x)  # [B, width]
        if products is not None:
            x = torch.cat([x, products], 1)  # [B, width + d]
        return x if self.members is None else self.members(x)  # [B * k, width]

    def _with_pretrained(self, ids: Tensor, vectors: Tensor) -> Tensor:
        """Return the vectors [B, F, d] of ids [B, F] with what is known of fields that have given vectors."""
        columns = list(vectors.unbind(1))  # F of [B, d]
        for at, pretrained in self.pretrained.items():
            columns[int(at)] = pretrained(ids[:, int(at)], columns[int(at)])
        return torch.stack(columns, 1)

    def set_vectors(self, vectors: Mapping[str, Tensor]) -> None:
        """Begin with these vectors of ids, by field: [cardinality + 1, p], nan where there is none."""
        assert self.table is not None
        for at, field in enumerate(self.schema.categorical):
            if field.vectors:
                first, last = int(self.first[at]), int(self.first[at] + self.largest[at] + 1)
                self.pretrained[str(at)].fill(vectors[field.name], self.table.weight.detach()[first:last])  # type: ignore[operator]

    def _products(self, x: Tensor) -> Tensor:
        """Return the products of an example's vectors, which are the first numbers of x: [B, width] -> [B, d]."""
        vectors = x[:, : self.vectors].unflatten(1, (-1, self.dim))  # [B, F + S, d]
        return pairwise_products(vectors)

    def check(self, batch: Batch) -> None:
        """Raise if a batch does not fit the schema.

        An id too large would not fail by itself: it would read the vectors of the next field.
        """
        if not isinstance(batch, Batch):
            raise InputError(
                f"the input is a {type(batch).__name__}; expected a gdod.models.Batch, "
                "for instance from schema.batch(columns)"
            )
        schema, size = self.schema, len(batch.categorical)
        _check_shape("categorical", batch.categorical, (size, len(schema.categorical)))
        _check_shape("numeric", batch.numeric, (size, len(schema.numeric)))
        if len(batch.sequences) != len(schema.sequences):
            raise InputError(f"{len(batch.sequences)} sequences, for a schema that has {len(schema.sequences)}")
        names = [field.name for field in schema.categorical]
        _check_ids(names, batch.categorical, self.largest)
        for field, ids in zip(schema.sequences, batch.sequences, strict=True):
            _check_shape(f"sequence {field.name!r}", ids, (size, ids.shape[-1]))
            _check_ids([field.name] * ids.shape[1], ids, field.cardinality)


def _check_shape(name: str, values: Tensor, shape: tuple[int, int]) -> None:
    if values.shape != shape:
        raise InputError(f"{name} has shape {list(values.shape)}; expected {list(shape)}")


def _check_ids(names: list[str], ids: Tensor, largest: Tensor | int) -> None:
    """Raise if one of the ids [B, F] is not one of its field; names has the field of each column."""
    if ids.dtype != torch.int64:
        raise InputError(f"ids have the type {ids.dtype}; expected torch.int64, e.g. by .long()")
    outside = (ids < 0) | (ids > largest)  # [B, F]
    if bool(outside.any()):
        row, column = (int(at) for at in outside.nonzero()[0])
        limit = int(largest[column]) if isinstance(largest, Tensor) else largest
        raise InputError(
            f"field {names[column]!r} has the id {int(ids[row, column])} in example {row}; expected "
            f"1 to {limit}, or 0 for missing or never seen"
        )
