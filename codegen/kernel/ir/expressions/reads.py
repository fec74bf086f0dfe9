"""What is read of memory, and pointers to it. Start at `Load`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions.accesses import Access, Array, Buffer
from tracegrad.codegen.kernel.ir.expressions.base import Expression, Named, Operand
from tracegrad.codegen.kernel.ir.expressions.printing import Printer, Python
from tracegrad.codegen.kernel.ir.expressions.terms import Term, single
from tracegrad.codegen.kernel.ir.vectors import LANES, ctype
from tracegrad.codegen.kernel.text.literals import ATOM, SUM
from tracegrad.codegen.kernel.text.markup import used
from tracegrad.support.dtypes import OPENCL, DType, is_half


class Pointer(Named):
    """A variable of a work-item that points to elements `base` to `base + size - 1` of one of the buffers `of`."""

    __slots__ = ("base", "of", "size")

    def __init__(self, name: str, of: tuple[Buffer, ...], base: Index, size: int) -> None:
        self.dtype, self.lanes, self.mask = of[0].dtype, 1, 0
        self.name, self.of, self.base, self.size = name, of, base, size

    @property
    def vars(self) -> frozenset[Any]:  # type: ignore[override]
        """Itself, as of a `Local`."""
        return frozenset((self,))

    @property
    def type(self) -> str:
        return f"__global {'const ' * all(b.access == 'const' for b in self.of)}{OPENCL[self.dtype]} *"


class Address(Expression):
    """Where element `base` of a buffer is, or the one that is `more` elements behind it."""

    __slots__ = ("base", "memory", "more")

    def __init__(self, memory: Buffer, base: Index, more: Expression | None = None) -> None:
        vars: frozenset[Any] = base.vars
        super().__init__(memory.dtype, 1, 0, vars if more is None else vars | more.vars)
        self.memory, self.base, self.more = memory, base, more

    @property
    def operands(self) -> tuple[Expression, ...]:
        return () if self.more is None else (self.more,)

    @property
    def key(self) -> Any:
        return id(self.memory), self.base.key, self.more

    def c(self, p: Printer) -> tuple[str, int]:
        more = "" if self.more is None else f" + {p.operand(self.more, SUM)}"
        return f"{p.address(Access(self.memory, self.base))}{more}", SUM

    def python(self, v: Python) -> Term:
        more = "" if self.more is None else f".moved({self.more.python(v).code})"
        return Term(f"{v.address(Access(self.memory, self.base))}{more}", self.dtype)


class Load(Expression):
    """Elements that are read. A vector: `stride` elements apart, or at the indices `places`, and 0 where the mask `only` is not.

    together: whether `places` are one behind the other.
    """

    __slots__ = ("access", "only", "places", "stride", "together")

    def __init__(
        self, access: Access, dtype: DType, lanes: int = 1, stride: int = 1, places: Expression | None = None,
        only: Expression | None = None, together: bool = False,
    ) -> None:
        vars: frozenset[Any] = access.at.vars if access.at is not None else frozenset()
        for x in (places, only, access.place):
            if x is not None:
                vars |= x.vars
        super().__init__(dtype, lanes, 0, vars)
        self.access, self.stride, self.places, self.only, self.together = access, stride, places, only, together

    @property
    def macro(self) -> str:
        """The function that reads a vector of what does not lie together."""
        if self.lanes == 1 or is_half(self.dtype) or not isinstance(self.access.memory, Buffer):
            return ""
        if self.places is not None:
            if self.only is not None:
                return f"{'LOAD' if self.together else 'GATHER'}{self.lanes}_IF"
            return f"{'FAR_' * (self.places.dtype.itemsize > 4)}GATHER{self.lanes}"
        return f"STRIDED{self.lanes}" * (self.stride != 1)

    @property
    def operands(self) -> tuple[Expression, ...]:
        return tuple([x for x in (self.places, self.only, self.access.place) if x is not None])

    def c(self, p: Printer) -> tuple[str, int]:
        access, memory, lanes = self.access, self.access.memory, self.lanes
        half = isinstance(memory, Buffer) and is_half(memory.dtype)
        if lanes == 1:
            if half and p.place(access):
                return f"{p.moved('load', access)}({p.place(access)}, {p.name(memory)})", ATOM
            return p.element(access), ATOM
        if isinstance(memory, Array) and memory.lanes == lanes:
            return p.element(access), ATOM
        if not isinstance(memory, Buffer):
            return f"{used(p.reached(memory), f'{memory.type}{lanes}')}, {p.address(access)})", ATOM
        type_ = ctype(memory.dtype, lanes)
        if self.places is not None:
            places, only = p.atom(self.places), "" if self.only is None else p.atom(self.only)
            if half:
                each = [f"{p.moved('load', access)}({places}.s{LANES[i]}, {p.name(memory)})" for i in range(lanes)]
                each = [f"({only}.s{LANES[i]} ? {e} : 0)" if only else e for i, e in enumerate(each)]
                return f"({self.type})({', '.join(each)})", ATOM
            return f"{used(self.macro, type_)}, {p.name(memory)}, {places}{only and f', {only}'})", ATOM
        if half:
            return f"{p.moved('load', access, lanes)}(0, {p.address(access)})", ATOM
        if self.macro:
            return f"{used(self.macro, type_)}, {p.address(access)}, {p.whole(self.stride)})", ATOM
        return f"{used('LOAD_ALIGNED' if access.aligned else 'LOAD', type_)}, {p.address(access)})", ATOM

    def python(self, v: Python) -> Term:
        access, memory, lanes, dtype = self.access, self.access.memory, self.lanes, self.access.held
        if isinstance(memory, Array) and memory.lanes > 1 and lanes in (1, memory.lanes):
            return Term(f"{v.vector(access)}.vector({memory.lanes})", dtype, memory.lanes)
        if lanes == 1:
            code = f"{v.name(memory)}.load({v.place(access)})"
            return Term(single(code, dtype) if dtype.kind in "iu" or dtype != memory.dtype else code, dtype)
        if self.places is not None:
            given = ", ".join([x.python(v).code for x in (self.places, self.only) if x is not None])
            code = f"{v.name(memory)}.picked({given})"
        elif self.stride != 1:
            code = f"{v.address(access)}.picked({v.constant(np.arange(lanes) * self.stride)})"
        else:
            code = f"{v.address(access)}{v.aligned(access, lanes)}.vector({lanes})"
        return Term(f"{code}.astype(d_{dtype.name})" if dtype != memory.dtype else code, dtype, lanes)


def place(memory: Buffer | Array | Pointer, at: Operand) -> Access:
    """One element. At an index: proved to be there; at what another expression computes: the running program's to know."""
    if isinstance(at, Expression):
        return Access(memory, None, place=at)
    return Access(memory, at.index if isinstance(at, Var) else at if isinstance(at, Index) else constant(at))


def element(memory: Buffer | Array | Pointer, at: Operand) -> Load:
    """What is there (see `place`)."""
    return Load(place(memory, at), memory.dtype)
