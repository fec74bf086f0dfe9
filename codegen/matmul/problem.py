"""What a matrix product is to the generators: operands by callback, the epilogue by callback, sizes. Start at `Product`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tracegrad.codegen.kernel.statements import Parameter
from tracegrad.codegen.kernel.vectors import Emit, Term, index_type
from tracegrad.codegen.tuning import tuning
from tracegrad.plan import Plain, Target

DType = np.dtype[Any]
W = TypeVar("W")


class Load(Protocol):
    def __call__(self, emit: Emit, b: Term, i: Term, j: Term, /) -> str:
        """The C expression of element (b, i, j) in the compute dtype; may emit statements first."""


class Write(Protocol):
    def __call__(self, emit: Emit, b: Term, i: Term, j: Term, value: str, width: int, /) -> None:
        """Emits the statements that store `value` (`width` lanes) as elements (b, i, j .. j + width - 1)."""


class Matrix(Plain):
    """An operand: how to read it, and the kernel parameters that reading needs.

    strided: (pointer name, batch stride, row stride, column stride) in elements if it is a plain buffer of the compute dtype
    whose pointer is one of `params`. batched: False if it does not depend on the batch index (it is then packed once). steady: whether it
    is the same in all turns of a loop, so that it is packed once for all of them.
    """

    load: Load
    params: tuple[Parameter, ...]
    strided: tuple[str, int, int, int] | None = None
    batched: bool = True
    steady: bool = False


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


Store = Epilogue[Write]


class Operand(Plain):
    """A matrix seen as lines (rows of A, columns of B) along k; `strides` are those of batch, line and k. steady: see `Matrix`."""

    name: str
    lines: int
    load: Load                                  # (emit, b, line, k)
    params: tuple[Parameter, ...]
    batched: bool
    pointer: str | None = None
    strides: tuple[int, int, int] = (0, 0, 0)
    steady: bool = False


class View(Plain):
    """How a kernel reads an operand: element (line, k) of the tile is at base(b, panel, first line)[line * step + k * along]."""

    params: tuple[Parameter, ...]
    base: Callable[[Term, Term, Term], Term]
    step: int
    along: int


class Product(Plain):
    """One contraction and the choices made for it."""

    name: str
    batch: int
    a: Operand
    b: Operand
    k: int
    dtype: DType
    store: Store
    target: Target
    owner: Hashable

    @property
    def m(self) -> int:
        return self.a.lines

    @property
    def n(self) -> int:
        return self.b.lines

    @property
    def index(self) -> str:
        return index_type(*(self.batch * x * y for x, y in ((self.m, self.k), (self.k, self.n), (self.m, self.n))))

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) * self.dtype.itemsize
