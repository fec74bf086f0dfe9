"""torch._C._nn, beside what `tracegrad.nn.functional` has: how modules read the arguments of `to`."""

from __future__ import annotations

from typing import Any

from tracegrad.support import dtypes
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import devices
from tracegrad.torch_api import dtypes as torchs


def _parse_to(*args: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False, copy: bool = False,
              memory_format: Any = None) -> tuple[Any, Any, bool, Any]:
    """The device, dtype, non_blocking and memory format that `x.to(*args)` asks for; None where it asks for none."""
    for argument in args:
        if isinstance(argument, Tensor):
            device, dtype = argument.device, argument.dtype
        elif isinstance(argument, bool):
            non_blocking = argument
            break                                               # after it comes `copy`
        elif dtypes.is_dtype(argument):
            dtype = argument
        else:
            device = argument
    named: Any = devices.device
    wanted = None if dtype is None else torchs.users(dtypes.as_dtype(dtype))
    return None if device is None else named(device), wanted, non_blocking, memory_format
