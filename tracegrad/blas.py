"""One thread for numpy's matrix products: `one_thread`.

OpenBLAS, which numpy's wheels bring, shares products from 128x32 times 32x96 on with its threads. They spin and yield while they wait for
each other: 8 us on an idle machine, and up to 30 ms where others want the cores, such as a driver's compiler. Small work gains nothing
by them, and its bits would depend on the number of cores.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from numpy._core import _multiarray_umath  # type: ignore[attr-defined]


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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """numpy's products inside are made by the calling thread alone (0.3 us). Meanwhile those of other threads are, too."""
    if _found is None:
        yield
        return
    get, put = _found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)
