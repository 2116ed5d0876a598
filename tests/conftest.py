"""Settings that every test shares."""

import pytest
import torch
from hypothesis import settings

# The same examples on every run: GDOD is discontinuous, so a test may not depend on luck.
settings.register_profile("gdod", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("gdod")

# The tensors are tiny: more threads only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    kind: torch.dtype = request.param
    return kind
