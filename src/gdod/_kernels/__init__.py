"""The compiled part: inner products and sums of rows, and a small eigendecomposition, in C.

It is compiled when the package is installed. Where there was no C compiler, or with ``GDOD_KERNELS=0`` in the
environment, `compiled` is None, and torch's own operations do the same in two to five times the time.
"""

import os

try:
    from gdod._kernels import compiled as _compiled
except ImportError:  # not compiled, or for another kind of processor
    _compiled = None  # type: ignore[assignment]

compiled = None if os.environ.get("GDOD_KERNELS") == "0" else _compiled
