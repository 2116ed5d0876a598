"""Methods that take layers apart are refused across ranks, before any work."""

from pathlib import Path

from tests.distributed.launch import torchrun


def test_a_scope_is_refused_across_ranks() -> None:
    done = torchrun(Path(__file__).with_name("scope.py"), ranks=2, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
