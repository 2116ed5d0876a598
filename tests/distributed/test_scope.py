"""Methods that take layers apart are refused across ranks, before any work."""

from pathlib import Path

from tests.distributed.launch import torchrun


def test_a_scope_is_refused_across_ranks() -> None:
    done = torchrun(Path(__file__).with_name("scope.py"), ranks=2, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    refused = [line for line in done.stdout.splitlines() if line.startswith("refused:")]
    for scope in ("layer", "dense"):
        assert sum(f"scope='{scope}' works in a single process only" in line for line in refused) == 2, done.stdout
