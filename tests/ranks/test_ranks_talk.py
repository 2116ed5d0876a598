"""Several real processes tell each other all that `Ranks` has words for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.training import together

from gdod import InputError
from gdod.ranks import Ranks


def talking(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """All that `Ranks` does, once."""
    found: dict[str, Any] = {
        "first": ranks.first(lambda: ranks.rank + 10),
        "most": ranks.most([ranks.rank, -ranks.rank, 7]),
        "tell": ranks.tell(f"rank {ranks.rank}"),
        "gather": ranks.gather(torch.full((2 - ranks.rank, 3), float(ranks.rank))),
    }

    def turn() -> int:
        with (folder / "turns.txt").open("a") as file:
            print(ranks.rank, "begins", file=file, flush=True)
            time.sleep(0.2)
            print(ranks.rank, "ends", file=file)
        return ranks.rank

    found["turn"] = ranks.in_turns(turn)

    def fails(rank: int, error: Exception) -> Any:
        def work() -> int:
            if ranks.rank == rank:
                raise error
            return 1

        return work

    calls: dict[str, Callable[[], object]] = {
        "mine": lambda: ranks.agree(fails(1, InputError("not like this"))),
        "first's": lambda: ranks.first(fails(0, OSError("no room"))),
        "unforeseen": lambda: ranks.agree(fails(1, KeyError("where"))),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_ranks_talk(tmp_path: Path) -> None:
    found = together.together(2, tmp_path, talking, tmp_path)
    for rank, one in enumerate(found):
        assert one["first"] == 10
        assert one["most"] == [1, 0, 7]
        assert one["tell"] == ["rank 0", "rank 1"]
        assert one["turn"] == rank
        assert one["first's"] == "OSError: no room"
    assert found[0]["gather"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3]
    assert found[0]["mine"] == "InputError: rank 1: not like this"
    assert found[1]["mine"] == "InputError: not like this"
    assert found[0]["unforeseen"] == "LostError: rank 1 failed: KeyError: 'where'"
    assert (tmp_path / "turns.txt").read_text().split("\n")[:4] == ["0 begins", "0 ends", "1 begins", "1 ends"]
