"""A kernel of many small matrices: which a work-item has, how they are read and stored. Start at `Matrices`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from tracegrad.codegen.graph.small_matrices import InParts
from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Access, Cast, Convert, Expression, Infix, Lanes, Load, Select
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Kernel
from tracegrad.codegen.kernel.ir.statements import BoundLike
from tracegrad.codegen.kernel.ir.vectors import bit_floor, ctype
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.matrices.language import Language
from tracegrad.codegen.lower.matrices.values import Numbers, Value
from tracegrad.codegen.lower.serial import KernelBuilder, parts
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind, float64, int32
from tracegrad.support.plan import MatrixCheck


class Matrices(KernelBuilder, Language):
    """One kernel while it is written. results: where each result of the call goes; Temps are not wanted."""

    info: Numbers                                            # of `note`: which pivot (from 1) is the first that is not there; 0

    def __init__(self, group: Group, context: Context, results: list[Any]) -> None:
        super().__init__(group, context)
        fn = self.node.fn
        self.name: str = fn.name
        self.parts = fn.parts if isinstance(fn, InParts) else 1
        self.results = _grouped(self.node, [r if isinstance(r, Node) else None for r in results])
        self.attrs = self.node.attrs
        self.shapes = [o.shape[-2:] for o in self.node.operands[::self.parts]]
        self.m, self.n = self.shapes[0]
        self.batch = prod(self.node.operands[0].shape[:-2])
        self.target, dtype = context.target, self.node.operands[0].dtype
        wide = self.target.traits.quick_float64 and self.target.fp64 and dtype_kind(dtype) == "f" and not self.name.endswith("lu_factor")
        self.dtype = float64 if wide else dtype
        self.lanes = bit_floor(min(16, self.target.simd_bytes // self.dtype.itemsize, self.batch)) if self.target.traits.vectors else 1
        self.noted = False

    def kernel(self, algorithm: Callable[[Matrices], None]) -> Kernel:
        for matrix in self.matrices():
            self.matrix = matrix
            algorithm(self)
        return self.finish()

    def matrices(self) -> Iterator[Index]:
        """The loop over the matrices of a work-item: the first of each vector."""
        w, lanes, batch = self.writer, self.lanes, self.batch
        if not self.target.traits.long_items or batch == 1:
            yield self.item("matrix", batch)
            return
        length = max(lanes, batch // parts(self.context) // lanes * lanes)
        if batch % lanes == 0:
            low, high = self.part("matrix", batch, length)
            each = Var("matrix", batch)
        else:
            low, high = self.parts_of_batch(length)
            each = Var("next_matrix", batch)
        with w.loop(each, low, high, lanes):
            if batch % lanes == 0:
                yield each.index
            else:                                            # the last vector of matrices may do some again
                last = (high.index if isinstance(high, Var) else constant(batch)) - lanes
                yield w.computed("matrix", batch - lanes + 1, w.least(each, last), self.node).index

    def parts_of_batch(self, length: int) -> tuple[BoundLike, BoundLike]:
        """The range of matrices that this work-item owns: the last one, what is left, too, for no part is to be less than a vector."""
        w, batch, count = self.writer, self.batch, self.batch // length
        if count == 1:
            return 0, batch
        part = self.item("matrix_part", count)
        first = w.bounding("matrix_first", batch, part * length)
        end = Select(Infix("==", w.at(part), count - 1), w.at(batch), w.at(first.index + length))
        return first, w.known("matrix_last", batch + 1, end, node=self.node)

    # -- between buffers and arrays

    def load(self, number: int, base: str, transposed: bool = False, room: int = 0) -> Numbers:
        """The matrices of an operand, in an array with room for so many numbers."""
        w, lanes = self.writer, self.lanes
        rows, columns = self.shapes[number]
        size, made = rows * columns, self.array(base, *((columns, rows) if transposed else (rows, columns)), self.parts, room=room)
        for part, array in enumerate(made.arrays):
            given = self.node.operands[number * self.parts + part]
            pointer = self.operand_buffer(given)
            for e, place in self.elements(rows, columns, transposed):
                vector = Access(pointer, self.matrix * size + e, each=(lanes - 1) * size + 1)
                x: Expression = Load(vector, given.dtype, lanes, size)
                w.store(Access(array, place), Convert(x, self.dtype) if lanes > 1 and given.dtype != self.dtype else x, self.node)
        return made

    def elements(self, rows: int, columns: int, transposed: bool) -> Iterator[tuple[Index, Index]]:
        """A loop over the elements of matrices: where they are, and where in arrays, which may hold the matrices transposed."""
        if transposed:
            for r, c in self.pairs(rows, columns):
                yield r * columns + c, c * rows + r
        else:
            for e in self.range("e", rows * columns):
                yield e, e

    def wanted(self, index: int) -> bool:
        return any(r is not None for r in self.results[index])

    def store(self, index: int, numbers: Numbers | None, transposed: tuple[int, int] | None = None) -> None:
        """The numbers as result `index`, if it is wanted. transposed: its rows and columns, if they have its columns as rows."""
        for part, node in enumerate(self.results[index]):
            if node is None:
                continue
            assert numbers is not None
            size = node.aval.size // self.batch
            for e, place in self.elements(*(transposed or (1, size)), transposed is not None):
                self._store(node, e, Load(Access(numbers.arrays[part], place), numbers.dtype, self.lanes))

    def store_number(self, index: int, value: Value) -> None:
        """One number of each matrix as result `index`, if it is wanted."""
        if self.wanted(index):
            for node, part in zip(self.results[index], self.let("result", value).parts, strict=True):
                if node is not None:
                    self._store(node, constant(0), part)

    def _store(self, node: Node, e: Index, x: Expression) -> None:
        """Element e of a result of each matrix."""
        pointer, size = self.output(node), node.aval.size // self.batch
        for lane in range(self.lanes):
            value = Lanes(x, lane) if self.lanes > 1 else x
            at = (self.matrix + lane) * size + e
            # Work-items' matrices are apart where the last vector of one does some again, too, which the index does not show.
            place = Access(pointer, at) if self.batch % self.lanes == 0 else Access(pointer, None, place=self.writer.at(at))
            self.writer.store(place, value if x.type == ctype(node.dtype, self.lanes) else Cast(value, node.dtype), node)

    # -- what is impossible

    def note(self) -> Numbers:
        """`info`, of zeros."""
        self.info, self.noted = self.array("info", 1, whole=True), True
        self.info[0] = self.whole(0)
        return self.info

    def note_pivot(self, j: Index, bad: Value) -> None:
        """Note pivot j, the first that is `bad`."""
        self.info[0] = self.where((self.info[0] == 0) & bad, self.whole(j + 1), self.info[0])

    def report(self) -> None:
        """Note the first matrix that is impossible: the largest note is kept."""
        w, faults = self.writer, self.writer.buffer(FAULTS, "faults", FAULTS.dtype, "inout")
        place = w.scalar(self.context.fault(self.node), "fault", int32)
        first = w.at((self.batch - self.matrix) * MatrixCheck.PIVOTS)
        w.report(f"IMPOSSIBLE{self.lanes if self.lanes > 1 else ''}", (self.info[0].parts[0], first, w.at(MatrixCheck.PIVOTS)),
                 faults, place, self.node)


def _grouped(node: Node, results: list[Node | None]) -> list[list[Node | None]]:
    """The results, each with as many as it has parts."""
    if not isinstance(node.fn, InParts):
        return [[r] for r in results]
    attrs = {name: x for name, x in node.attrs.items() if name != "index"}
    left = iter(results)
    return [[next(left) for _ in range(2 if a.dtype.kind == "c" else 1)]
            for a in node.fn.whole([o.aval for o in node.operands], attrs)]
