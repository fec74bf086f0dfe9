"""torch's words for how tensors lie in memory: `layout` and `memory_format`. They are taken where torch takes them, and mean nothing here.

Every tensor has its elements row by row (views are index arithmetic), so there is one layout, and a memory format is a wish without effect.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError


class layout(Enum):
    """`tg.strided`, the layout of every tensor; the others are those of programs written for torch (`torch_api/sparse`).

    >>> tg.ones(2).layout
    tracegrad.strided
    """

    strided = "strided"
    sparse_coo = "sparse_coo"
    sparse_csr = "sparse_csr"
    sparse_csc = "sparse_csc"

    def __repr__(self) -> str:
        return f"tracegrad.{self.value}"


class memory_format(Enum):
    """An order of the dimensions in memory, as torch names them. Results are always row by row.

    >>> y = tg.ones(1, 2, 3, 3).contiguous(memory_format=tg.channels_last)
    """

    contiguous_format = "contiguous_format"
    preserve_format = "preserve_format"
    channels_last = "channels_last"
    channels_last_3d = "channels_last_3d"

    def __repr__(self) -> str:
        return f"tracegrad.{self.value}"


strided = layout.strided
contiguous_format, preserve_format = memory_format.contiguous_format, memory_format.preserve_format
channels_last, channels_last_3d = memory_format.channels_last, memory_format.channels_last_3d


def accept(call: str, options: dict[str, Any]) -> None:
    """Take layout, memory_format and pin_memory out of a call's keyword arguments. Raises ArgumentError for what there is not."""
    found = options.pop("layout", None)
    if found not in (None, strided):
        raise ArgumentError(f"{call}: layout {found!r} is not supported; there are dense tensors only, of tg.strided")
    accept_format(call, options.pop("memory_format", None))
    if options.pop("pin_memory", False):
        raise ArgumentError(f"{call}: pin_memory=True is not supported: OpenCL's drivers copy from any memory; leave it out")


def accept_format(call: str, wish: Any) -> None:
    """Raise ArgumentTypeError for what is no memory format."""
    if wish is not None and not isinstance(wish, memory_format):
        raise ArgumentTypeError(f"{call}: memory_format must be one, such as tg.contiguous_format, got {wish!r}")
