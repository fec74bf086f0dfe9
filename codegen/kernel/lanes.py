"""What is a vector and what is not: values along a loop that goes in steps of several lanes. Start at `Vectors`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions import At, Convert, Expression, Held, Infix, Local, Number, Splat, Spread, Steps, Zeros, whole
from tracegrad.codegen.kernel.numbering import Numbering
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.support.dtypes import int16


class Vectors(Numbering):
    """lane: the variable along which values are vectors of `width` (None in scalar code).

    vector_vars: opaque variables that are vectors themselves (gathered indices).
    """

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.lane: Var | None = None
        self.width = 1
        self.vector_vars: frozenset[Var] = frozenset()

    @contextmanager
    def along(self, lane: Var, width: int) -> Iterator[None]:
        """`with`: values along `lane` are vectors of `width`, if that is more than 1."""
        self.lane, self.width = (lane, width) if width > 1 else (None, 1)
        yield
        self.lane, self.width = None, 1

    def varies(self, x: Index) -> bool:
        """Whether an index differs between lanes."""
        if self.width == 1:
            return False
        if not self.vector_vars.isdisjoint(x.vars):
            return True
        return self.lane is not None and self.lane in x.vars and x.stride_of(self.lane, self.width) != 0

    def counts_lanes(self) -> bool:
        """Whether something was computed of the number of each lane."""
        return self.lane is not None and self.recall(("lanes", self.lane, self.width)) is not None

    def lane_numbers(self, lane: Var) -> Local:
        """The values of the lane variable, a vector."""
        key = ("lanes", lane, self.width)
        found = self.recall(key)
        if found is None:
            dtype = self.writer.index_dtype
            value = Infix("+", At(lane.index, dtype), Steps(dtype, self.width))
            found = self.let(f"{lane.name}s", value)
            self.remember(key, found, frozenset((lane,)))
        return found  # type: ignore[no-any-return]

    def lanes_of(self, x: Index) -> Expression:
        """x as a vector, one index a lane."""
        dtype, lane = self.writer.index_dtype, self.lane
        if not self.varies(x):
            return Splat(At(x, dtype), self.width)
        if lane is None or lane not in x.vars:
            return At(x, dtype, self.width)
        each = self.lane_numbers(lane)
        return each if x == lane.index else At(x, dtype, self.width, lane, each)

    def places(self, x: Index) -> Expression:
        """The same as a variable: each lane of it is looked at."""
        found = self.lanes_of(x)
        if is_name(found):
            return found
        key = ("indices", x.key, self.width)
        known = self.recall(key)
        if known is None:
            known = self.let("at", found)
            self.remember(key, known, found.vars)
        return known  # type: ignore[no-any-return]

    def vector(self, x: Expression, mask: int = 4) -> Expression:
        """The value as a vector (a bool: as lane masks of `mask` bytes)."""
        if x.dtype.kind == "b":
            if x.lanes == 1:
                return Spread(x, self.width, mask)
            if x.mask == mask:
                return x
            found = Convert(x, x.dtype, mask)
            if mask <= x.mask:
                return found
            # (Mesa 22.3 takes the sign of a widened mask to be 0.)
            return Infix("!=", found, Zeros(int16, x.lanes) if mask == 2 else whole(0))
        return x if x.lanes > 1 else Splat(x, self.width)


def is_name(x: Expression) -> bool:
    """Whether it is a variable."""
    if isinstance(x, Held):
        return is_name(x.x)
    if isinstance(x, At):
        index = x.index
        alone = len(index.terms) == 1 and index.terms[0][1] == 1 and not index.constant
        return alone and x.each is None and index.terms[0][0].var is not None
    return isinstance(x, (Local, Number))
