"""Time to simulate a million impressions on one core: python -m benchmarks.ads

The aim is below 10 seconds; a run with the same seed must give the same bytes.
"""

import argparse
import hashlib
import os
import time

# Before polars starts its threads.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from gdod.data.sets.ads import AdsOptions, describe, simulate


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to simulate ads on one core.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=100_000)
    chosen = parser.parse_args()
    digests = []
    for run in (1, 2):
        start = time.perf_counter()
        made = simulate(AdsOptions(rows=chosen.rows, users=chosen.users))
        seconds = time.perf_counter() - start
        digests.append(hashlib.sha256(made.table.hash_rows(seed=0).to_numpy().tobytes()).hexdigest())
        print(f"run {run}: {chosen.rows:,} rows in {seconds:.1f} s")
    print("the same rows both times" if digests[0] == digests[1] else "THE RUNS DIFFER")
    print("\n".join(describe(made.table, made.truth)))


if __name__ == "__main__":
    main()
