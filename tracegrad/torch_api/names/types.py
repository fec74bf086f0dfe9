"""torch.types: names for annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any

import tracegrad as tg
from tracegrad import Tensor
from tracegrad.torch_api.devices import device

Number = int | float | bool
Device = device | str | int | None
FileLike = str | os.PathLike[str] | IO[bytes]
Storage = Any
_int, _float, _bool, _dtype, _device, _size = int, float, bool, tg.dtype, device, Sequence[int]
_TensorOrTensors = Tensor | Sequence[Tensor]
