"""The compiled part: inner products and sums of rows, and a small eigendecomposition, in C.

It is compiled when the package is installed. Where there was no C compiler, or with ``GDOD_KERNELS=0`` in the
environment, `compiled` is None, and torch's own operations do the same in two to five times the time. It takes AVX-512
where the processor has it, and AVX2 elsewhere or with ``GDOD_KERNELS=avx2``.
"""

import os

try:
    from gdod._kernels import compiled as _compiled
except ImportError:  # not compiled, or for another kind of processor
    _compiled = None  # type: ignore[assignment]

_wanted = os.environ.get("GDOD_KERNELS")
compiled = None if _wanted == "0" else _compiled
if compiled is not None and _wanted == "avx2":
    compiled.use_wide(False)
