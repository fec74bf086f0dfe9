"""torch.types: names for annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any

from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.devices import device
from tracegrad.torch_api.dtypes import dtype

Number = int | float | bool
Device = device | str | int | None
FileLike = str | os.PathLike[str] | IO[bytes]
Storage = Any
_int, _float, _bool, _dtype, _device, _size = int, float, bool, dtype, device, Sequence[int]
_TensorOrTensors = Tensor | Sequence[Tensor]
