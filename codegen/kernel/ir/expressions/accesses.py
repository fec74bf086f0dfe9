"""What expressions read and statements write: pointer parameters, arrays, and elements of them. Start at `Access`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.types import dtype_of, lanes_of
from tracegrad.codegen.kernel.text.markup import marked
from tracegrad.support import plan
from tracegrad.support.dtypes import OPENCL, DType, float32, is_half, uint8

if TYPE_CHECKING:
    from tracegrad.codegen.kernel.ir.expressions.base import Expression
    from tracegrad.codegen.kernel.ir.expressions.reads import Pointer


class Buffer:
    """A pointer parameter. ref: what it binds to; size: elements (None: not known); access: "const", "out" or "inout"."""

    __slots__ = ("access", "dtype", "name", "ref", "restrict", "size")

    def __init__(self, ref: Any, name: str, dtype: DType, size: int | None, access: str) -> None:
        self.ref, self.name, self.dtype, self.size, self.access = ref, name, dtype, size, access
        self.restrict = access != "inout"                    # what is updated in place may be read by another name

    def __str__(self) -> str:
        return self.name

    @property
    def declaration(self) -> str:
        return self.plain(marked(self.name)).declaration

    def plain(self, name: str) -> plan.Parameter:
        """It as a plan has it, called so."""
        return plan.Parameter(OPENCL[self.dtype], name, True, self.access == "const", self.restrict)


class Array:
    """An array of `size` elements of the C type `type`: a work-item's own, or (shared) a work-group's.

    aligned: it begins at a multiple of so many bytes, if not 0; zeros: that is what it holds at first. row: it is in rows of so many,
    if not 0. (PoCL makes vectors of a work-group's items where indices tell that rows do not overlap: 0.2 of the time.)
    spilled: it is to be in memory, not in registers.
    """

    __slots__ = ("aligned", "name", "row", "shared", "size", "spilled", "type", "zeros")

    def __init__(self, name: str, type_: str, size: int, shared: bool, aligned: int = 0, zeros: bool = False, row: int = 0) -> None:
        self.name, self.type, self.size, self.shared = name, type_, size, shared
        self.aligned, self.zeros, self.row, self.spilled = aligned, zeros, row, False

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> DType:
        """That of an element, or of its lanes."""
        return dtype_of(self.type)

    @property
    def lanes(self) -> int:
        """Of an element that is a vector."""
        return lanes_of(self.type)


class Access:
    """Elements that a statement reads or writes: `at`, where `guards` hold; with `lanes` the elements for as many values of `lane`.

    each: so many from there on, for every lane: the parts of a complex number are two. skip: where among these a vector that has not all
    of them begins. whole: it begins at a multiple of its size, as
    who makes it knows, in one of the device's own buffers.

    at: None if only the running program knows. It may say that something is in a range (`index.bounded`); what proves it is a guard.
    place: what computes it then, if that is no text.
    """

    __slots__ = ("at", "each", "guards", "lane", "lanes", "memory", "place", "skip", "whole")

    def __init__(
        self, memory: Buffer | Array | Pointer, at: Index | None, lanes: int = 1, lane: Var | None = None, guards: tuple[Any, ...] = (),
        each: int = 1, skip: int | None = None, place: Expression | None = None, whole: bool = False,
    ) -> None:
        self.memory, self.at, self.lanes, self.lane, self.guards, self.each = memory, at, lanes, lane, guards, each
        self.skip, self.place, self.whole = skip, place, whole

    @property
    def count(self) -> int:
        """How many elements a vector has."""
        return self.lanes * (self.each if self.skip is None else 1)

    @property
    def aligned(self) -> bool:
        """Whether what a vector reads or writes begins at a multiple of its size, for certain.

        (The device's own buffers begin at one of 128 bytes; arrays of the host's, which CPUs work on, may begin anywhere.)
        """
        if self.at is None or self.lane is None or not self.lane.aligned:
            return self.whole
        return self.at.opened().multiple % (self.lanes * self.each) == 0

    @property
    def held(self) -> DType:
        """What C has for the elements once they are read."""
        if isinstance(self.memory, Buffer) and is_half(self.memory.dtype):
            return float32
        return uint8 if self.memory.dtype.kind == "b" else self.memory.dtype
