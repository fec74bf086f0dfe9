"""torch.__config__: how torch was built; what is here is not built."""

from __future__ import annotations

from tracegrad.torch_api.requirements import VERSION


def show() -> str:
    """One line."""
    return f"tracegrad, with the names of PyTorch {VERSION}\n"


def parallel_info() -> str:
    """The same: threads are the OpenCL driver's."""
    return show()
