"""torch.utils.dlpack: tensors as capsules, which older programs hand over by themselves."""

from __future__ import annotations

from typing import Any

from tracegrad.tensors.creation import from_data
from tracegrad.tensors.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


class _Capsule:
    """A capsule as the object that it came from; of the host's memory, as all that we can take."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0                                             # kDLCPU


def to_dlpack(tensor: Tensor) -> Any:
    """The tensor as a capsule, which is taken once."""
    return tensor.__dlpack__()


def from_dlpack(ext_tensor: Any, **how: Any) -> Tensor:
    """A tensor of an object with `__dlpack__`, or of a capsule."""
    return from_data.from_dlpack(ext_tensor if hasattr(ext_tensor, "__dlpack__") else _Capsule(ext_tensor), **how)
