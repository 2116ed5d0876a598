"""What compiled.c offers. Whole numbers are addresses of memory, sizes and flags, and nothing is checked."""

def find_threads() -> bool: ...
def use_wide(wide: bool) -> bool: ...
def product_gram(
    x: int, d: int, bounds: int, groups: int, largest: int, experts: int, places: int, inputs: int, outputs: int,
    ones: int, tasks: int, by_rows: int, gram: int, threads: int, /,
) -> None: ...  # fmt: skip
def task_gram(
    x: int, d: int, experts: int, places: int, inputs: int, outputs: int, ones: int, tasks: int, gram: int,
    threads: int, /,
) -> None: ...  # fmt: skip
def product_sum(
    x: int, d: int, weights: int, group: int, experts: int, places: int, inputs: int, outputs: int, tasks: int,
    weight: int, bias: int, threads: int, /,
) -> None: ...  # fmt: skip
def product_with(
    x: int, d: int, group: int, experts: int, places: int, inputs: int, outputs: int, ones: int, tasks: int,
    groups: int, count: int, weights: int, products: int, /,
) -> None: ...  # fmt: skip
def eigh(matrix: int, size: int, values: int, vectors: int, /) -> bool: ...
def weigh(
    matrix: int, averages: int, size: int, tasks: int, rank: int, agreement: int, error: float, row_error: float,
    balanced: float, eigh_error: float, told_apart: float, doubt: float, zero: float, of_update: float, of_sum: float,
    rows: int, projections: int, values: int, noise: int, along: int, spread: int, turn: int, vectors: int, /,
) -> int: ...  # fmt: skip
def rounding(
    matrix: int, values: int, vectors: int, averages: int, size: int, tasks: int, error: float, least: float,
    noise: int, along: int, turn: int, spread: int, /,
) -> None: ...  # fmt: skip
def moved(turn: int, lengths: int, kept: int, factors: int, along: int, size: int, tasks: int, /) -> float: ...
def table_gram(
    ids: int, group: int, values: int, entries: int, tasks: int, width: int, groups: int, gram: int, threads: int, /
) -> None: ...
def table_sum(
    ids: int, group: int, values: int, step: int, entries: int, tasks: int, width: int, weights: int, grad: int, /
) -> None: ...
