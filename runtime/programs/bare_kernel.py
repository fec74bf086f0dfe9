"""Kernels without the Python that pyopencl writes to call them.

For each kernel pyopencl generates a function that takes all arguments at once, or reads it from a database: 0.25 ms a kernel, a tenth of a
transformer's first call where the plan and the machine code are on the disk. Launches here set one argument after the other.
"""

from __future__ import annotations

import threading
from typing import Any

import pyopencl as cl
from pyopencl import invoker

_thread = threading.local()         # .bare: whether this thread is making one
_generate = getattr(invoker, "generate_enqueue_and_set_args", None)


def bare_kernel(program: cl.Program, name: str) -> cl.Kernel:
    """A kernel of a built program, for `set_arg` and `cl.enqueue_nd_range_kernel`; calling it is a TypeError. Raises cl.Error."""
    _thread.bare = True
    try:
        return cl.Kernel(program, name)
    finally:
        _thread.bare = False


def _generated(*args: Any, **given: Any) -> Any:
    """What pyopencl asks for whenever a kernel is made: anybody else's are as they were."""
    return (_refuse, _refuse) if getattr(_thread, "bare", False) else _generate(*args, **given)  # type: ignore[misc]


def _refuse(*args: Any, **given: Any) -> None:
    raise TypeError("a bare kernel has no call of its own: set its arguments one by one, and enqueue it")


if _generate is not None:           # (a name that pyopencl does not promise: without it, kernels are pyopencl's ordinary ones)
    invoker.generate_enqueue_and_set_args = _generated
