"""torch.types: names for annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any

from tracegrad.tensors.tensor import Tensor
from tracegrad.tensors.type_info import dtype
from tracegrad.torch_api.devices import device

Number = int | float | bool
Device = device | str | int | None
FileLike = str | os.PathLike[str] | IO[bytes]
Storage = Any
_int, _float, _bool, _dtype, _device, _size = int, float, bool, dtype, device, Sequence[int]
_TensorOrTensors = Tensor | Sequence[Tensor]
