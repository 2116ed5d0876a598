"""Starts a script under torchrun, as users do."""

import subprocess
import sys
from pathlib import Path


def torchrun(script: Path, *arguments: str, ranks: int, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    """Runs it in ``ranks`` processes on a free port."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*start, str(script), *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
