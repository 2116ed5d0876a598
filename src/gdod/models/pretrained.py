"""Vectors of ids that were learned elsewhere, such as those of items from their texts."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from gdod.errors import InputError
from gdod.models.layers import linear
from gdod.schema import Categorical


class Pretrained(nn.Module):
    """Add what is known of ids to their own vectors, [B] and [B, d] -> [B, d]: e_i + P v_i.

    v_i is the given vector of id i, of p numbers; it is never changed. P projects it to the length of all vectors of
    the model and is learned; it begins as the identity if the lengths are equal. So files with vectors of any length
    fit, all columns keep one length, which products of vectors need, and a large p makes no layer above wider. e_i is
    the id's own vector: it begins at 0 where there is a v_i, and learns the difference, unless given vectors are
    frozen: then it does not count there. Ids without a given vector have e_i alone, as in every other column.
    """

    vectors: Tensor  # [cardinality + 1, p], 0 where none is given
    known: Tensor  # [cardinality + 1, 1] 1 where one is given, else 0

    def __init__(self, field: Categorical, dim: int) -> None:
        super().__init__()
        self.field = field
        self.register_buffer("vectors", torch.zeros(field.cardinality + 1, field.vectors))
        self.register_buffer("known", torch.zeros(field.cardinality + 1, 1))
        self.projection = linear(field.vectors, dim, bias=False)
        if field.vectors == dim:
            nn.init.eye_(self.projection.weight)

    def forward(self, ids: Tensor, own: Tensor) -> Tensor:
        if self.field.frozen:
            own = own * (1 - embedding(ids, self.known))  # [B, d] x [B, 1]
        given: Tensor = self.projection(embedding(ids, self.vectors))  # [B, p] -> [B, d]
        return own + given

    def fill(self, vectors: Tensor, own: Tensor) -> None:
        """Take the given vectors [cardinality + 1, p], nan where there is none, and begin ``own`` vectors there at 0.

        They are brought to a mean square of 1, so that their unit does not matter.
        """
        if vectors.shape != self.vectors.shape:
            given, expected = list(vectors.shape), list(self.vectors.shape)
            raise InputError(f"the vectors of {self.field.name!r} have shape {given}; expected {expected}")
        known = ~vectors.isnan().any(1, keepdim=True)  # [cardinality + 1, 1]
        filled = torch.where(known, vectors, 0.0).to(self.vectors)
        scale = filled.double().square().sum() / (known.sum() * self.field.vectors).clamp(min=1)
        with torch.no_grad():
            self.vectors.copy_(filled / scale.sqrt().clamp(min=torch.finfo(filled.dtype).tiny))
            self.known.copy_(known)
            own.masked_fill_(known, 0.0)
