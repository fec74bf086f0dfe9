"""torch.utils.cpp_extension: operations in C++ are made for torch's own tensors, and are refused."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import UnsupportedError

CUDA_HOME = ROCM_HOME = None
IS_HIP_EXTENSION = False


def load(name: str, *_: Any, **__: Any) -> Any:
    """Refused: see `tg.opencl_function` for kernels of one's own."""
    raise UnsupportedError(f"torch.utils.cpp_extension: {name!r} is compiled for torch's tensors; write a kernel by "
                           "tracegrad.opencl_function, or take the program's own way without it")


load_inline = load
