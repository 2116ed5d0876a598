"""Id tables that have grown: every model predicts as before, and new ids begin as unknown ones were."""

import pytest
import torch

from gdod.models import MODELS, Batch, Categorical, Numeric, Schema, Sequence, Task, build
from gdod.models.growth import table_growth

TASKS = [Task("click"), Task("buy"), Task("size", "multiclass", 3)]
CHAIN = {"chain": ["click", "buy"]}
BEFORE = Schema([Categorical("user", 5), Categorical("item", 3)], [Numeric("age")], [Sequence("seen", 4)])
AFTER = Schema([Categorical("user", 8), Categorical("item", 3)], [Numeric("age")], [Sequence("seen", 6)])


def batch(schema: Schema, rows: int = 40) -> Batch:
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, field.cardinality + 1, (rows,), generator=draw) for field in schema.categorical]
    lists = torch.randint(0, schema.sequences[0].cardinality + 1, (rows, 3), generator=draw)
    return Batch(torch.stack(ids, 1), torch.randn(rows, 1, generator=draw), (lists,))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_has_grown_predicts_the_same(name: str) -> None:
    options = CHAIN if name in ("esmm", "aitm") else {}
    old = build(name, BEFORE, TASKS, seed=1, **options).eval()
    with torch.no_grad():  # also the vectors of id 0, as after training
        for parameter in old.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    new = build(name, AFTER, TASKS, seed=3, **options).eval()
    growth = table_growth(new, BEFORE)
    new.load_state_dict(
        {key: growth[key].weights(one) if key in growth else one for key, one in old.state_dict().items()}
    )
    known = batch(BEFORE)
    unknown = known._replace(categorical=torch.where(known.categorical == 0, torch.tensor([7, 0]), known.categorical))
    assert (unknown.categorical == 7).any()
    for given in (known, unknown):
        for task, logits in old(known).items():
            torch.testing.assert_close(new(given)[task], logits, rtol=0, atol=0)


def test_the_moments_of_new_ids_are_zero_and_others_stay() -> None:
    model = build("shared-bottom", AFTER, TASKS)
    growth = table_growth(model, BEFORE)
    assert set(growth) == {"features.table.weight", "features.lists.0.weight"}
    moments = torch.rand(6 + 4, 2) + 1  # user: ids 0 to 5, item: 0 to 3
    grown = growth["features.table.weight"].moments(moments)
    assert torch.equal(grown[:6], moments[:6])
    assert torch.equal(grown[9:], moments[6:])
    assert (grown[6:9] == 0).all()
    lists = torch.rand(5, 2) + 1
    grown = growth["features.lists.0.weight"].moments(lists)
    assert torch.equal(grown[:5], lists)
    assert (grown[5:] == 0).all()
