"""How numpy is to compute here: `quiet`, without warnings, and with one thread for its matrix products and for LAPACK's of small matrices.

OpenBLAS, which numpy's wheels bring, shares products from 128x32 times 32x96 on with its threads. They spin and yield while they wait for
each other: 8 us on an idle machine, and up to 30 ms where others want the cores, such as a driver's compiler. Small work gains nothing
by them, and its bits would depend on the number of cores. Eigenvalues of 65x65 take 0.3 ms, and 8 to 90 so. For factorizations of
500x500 two idle cores take 0.9 of the time that one takes (inverses 0.75), of 1000x1000 0.7; where others want them they take longer.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

set_warnings: Callable[[Any], Any]      # of what NumPy warns from now on, `SILENT`: of nothing; gives what `reset_warnings` takes back
reset_warnings: Callable[[Any], Any]
SILENT: Any
try:                                    # what numpy.errstate does, in a fifth of its time: half of what an operation on few elements takes
    from numpy._core._ufunc_config import _extobj_contextvar, _make_extobj  # type: ignore[attr-defined]

    set_warnings, reset_warnings, SILENT = _extobj_contextvar.set, _extobj_contextvar.reset, _make_extobj(all="ignore")
except (ImportError, TypeError):        # another numpy
    set_warnings = reset_warnings = lambda how: np.seterr(**how)
    SILENT = {"all": "ignore"}


class _Silent(threading.local):
    """Per thread: `call(fn, *args)` is fn(*args), in which numpy does not warn. (To enter a context takes half of what two changes take.)

    RuntimeError where the thread is in such a call.
    """

    def __init__(self) -> None:
        context = contextvars.Context()
        context.run(set_warnings, SILENT)
        self.call: Callable[..., Any] = context.run


silent = _Silent()


def _controls() -> tuple[Any, Any] | None:
    """OpenBLAS's functions that get and set the number of its threads, or None where numpy has another BLAS.

    Python's lock is kept around them (PyDLL): they take 0.1 us, to get the lock back from a thread that compiles up to 5 ms.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.PyDLL(_multiarray_umath.__file__)        # what it is linked to is found through it
        for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
            name = f"{prefix}openblas_{{}}_num_threads{suffix}"
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


_found = _controls()
LARGE = 1 << 27          # m n min(m, n) of matrices whose factorization is shared among threads


def shared_among_threads(a: Any, b: Any) -> bool:
    """Whether OpenBLAS might use several threads for the product of matrices of these shapes; it does not below twice as much work."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    return bool(m * k * n > (1 << 17 if min(m, n) > 1 else 1 << 12))


def factored(shapes: Sequence[tuple[int, ...]]) -> contextlib.AbstractContextManager[None]:
    """What LAPACK is to be called in, for operands of these shapes: with one thread unless their matrices are large."""
    matrices = [s[-2:] for s in shapes if len(s) > 1]
    small = all(m * n * min(m, n) <= LARGE for m, n in matrices)
    return quiet() if small else contextlib.nullcontext()


class quiet:
    """numpy inside does not warn, and its products are made by the calling thread alone (meanwhile those of other threads are, too)."""

    __slots__ = ("_before", "_threads", "_warnings")

    def __init__(self, products: bool = True) -> None:
        """products: whether there are any."""
        self._threads = products and _found is not None

    def __enter__(self) -> None:
        if self._threads:
            get, put = _found  # type: ignore[misc]
            self._before = get()
            put(1)
        self._warnings = set_warnings(SILENT)

    def __exit__(self, *exc: object) -> None:
        reset_warnings(self._warnings)
        if self._threads:
            _found[1](self._before)  # type: ignore[index]
