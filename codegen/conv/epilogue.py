"""What becomes of the result of a kernel that is text. Start at `Epilogue`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np

from tracegrad.codegen.kernel.statements import Parameter
from tracegrad.codegen.kernel.vectors import Term
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning

DType = np.dtype[Any]
W = TypeVar("W")


class Epilogue(Generic[W], Plain):
    """What becomes of the result: the fused operations and the store, and the kernel parameters they need."""

    write: W
    params: tuple[Parameter, ...]
    lanes: bool = False              # whether each lane is stored by itself

    def long(self, times: int, *where: Term, value: str, width: int) -> bool:
        """Whether to write it `times` times, for `width` lanes each, takes so many lines that a driver is slow to build them."""
        lines: list[str] = []
        self.write(lines.append, *where, value, width)  # type: ignore[operator]
        return times * len(lines) > tuning().written_out
