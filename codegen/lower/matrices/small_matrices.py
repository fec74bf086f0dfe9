"""Factorisations of many small matrices (see graph/small_matrices.py). Start at `lower_matrices`, then `TEXTS`.

A work-item holds whole matrices in arrays of its own: on a CPU as many as a vector has lanes, one a lane; on a GPU one. What a matrix
decides (which row is the pivot) is a selection, so lanes never part. The steps are LAPACK's, as are pivots and signs: what differs are
roundings. On CPUs float32 is computed in float64, as NumPy does it, but for LU factors; vectors are half as many lanes there.
Symmetric eigenvalues and singular values are Jacobi's (jacobi.py), whose iteration is the same for all lanes; LAPACK's is not. Those of
general matrices: eig_qr.py. Exponentials: expm.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Access, Array, Literal, Parts, Verbatim
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Kernel
from tracegrad.codegen.kernel.ir.statements import BoundLike, product
from tracegrad.codegen.kernel.ir.types import mask_type
from tracegrad.codegen.kernel.ir.vectors import LANES, ctype
from tracegrad.codegen.kernel.text.markup import used
from tracegrad.codegen.kernel.text.names import SMALL_MATRICES
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.host_call import siblings
from tracegrad.codegen.lower.matrices import complex_matrices, eig_qr, expm, jacobi
from tracegrad.codegen.lower.serial import KernelBuilder, parts
from tracegrad.codegen.mathlib import library as mathlib
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind, float64, int32
from tracegrad.support.plan import MatrixCheck


@lowering("small_matrices")
def lower_matrices(group: Group, context: Context) -> list[Kernel]:
    results = siblings(group, context)
    if results is None:
        return []
    one = Matrices(group, context, results)
    size = " and ".join(f"{m} x {n}" for m, n in one.shapes)
    how = next((how for end, how in STEPS.items() if one.name.endswith(end)), "LAPACK's steps")
    return [replace(one.kernel(), note=f"{how} for {one.batch} of {size}, {one.lanes} at a time in a work-item")]


class Matrices(KernelBuilder):
    """One kernel while it is written. results: where each result of the call goes; Temps are not wanted."""

    def __init__(self, group: Group, context: Context, results: list[Any]) -> None:
        super().__init__(group, context)
        self.writer.reserve(SMALL_MATRICES)
        self.results = [r if isinstance(r, Node) else None for r in results]
        self.name: str = self.node.fn.name
        self.attrs = self.node.attrs
        self.shapes = [o.shape[-2:] for o in self.node.operands]
        self.m, self.n = self.shapes[0]
        self.batch = prod(self.node.operands[0].shape[:-2])
        target, dtype = context.target, self.node.operands[0].dtype
        cpu = target.kind == "cpu"
        wide = cpu and target.fp64 and dtype_kind(dtype) == "f" and not self.name.endswith("lu_factor")
        self.dtype = float64 if wide else dtype
        self.lanes = 1
        while cpu and self.lanes < min(16, target.simd_bytes // self.dtype.itemsize) and 2 * self.lanes <= self.batch:
            self.lanes *= 2
        self.type, self.mask = self.types(self.lanes)
        self.writer.text_types.add((self.dtype, self.lanes))
        self.info: Array | None = None                       # which pivot (from 1) is the first that is not there; 0

    def types(self, lanes: int) -> tuple[str, str]:
        """The C types of a number, and of an index of it or what is known of it."""
        return ctype(self.dtype, lanes), mask_type(self.dtype.itemsize, lanes) if lanes > 1 else "int"

    def kernel(self) -> Kernel:
        w, lanes, batch = self.writer, self.lanes, self.batch
        if self.context.target.kind == "gpu":
            self.matrix = self.item("matrix", batch)
            TEXTS[self.name](self)
            return self.finish()
        if batch == 1:
            self.matrix = constant(0)
            TEXTS[self.name](self)
            return self.finish()
        length = max(lanes, batch // parts(self.context) // lanes * lanes)
        if batch % lanes == 0:
            low, high = self.part("matrix", batch, length)
            each = Var("matrix", batch)
        else:
            low, high = self.parts_of(length)
            each = Var("next_matrix", batch)
        with w.loop(each, low, high, lanes):
            self.matrix = each.index
            if batch % lanes:                                # the last vector of matrices may do some again
                read = (each, high) if isinstance(high, Var) else (each,)
                first = Verbatim(f"min(next_matrix, {high} - {lanes})", w.index_dtype, 1, read)
                self.matrix = w.computed("matrix", batch - lanes + 1, first, self.node).index
            TEXTS[self.name](self)
        return self.finish()

    def parts_of(self, length: int) -> tuple[BoundLike, BoundLike]:
        """The range of matrices that this work-item owns: the last one, what is left, too, for no part is to be less than a vector."""
        w, batch, count = self.writer, self.batch, self.batch // length
        if count == 1:
            return 0, batch
        part = next(iter(self.item("matrix_part", count).vars))
        first = w.bounding("first", batch, product(part, length))
        end = Verbatim(f"matrix_part == {count - 1} ? {batch} : first + {length}", w.index_dtype, 1, (part, first))
        return first, w.computed("last", batch + 1, end, self.node)

    # -- between buffers and arrays

    def array(self, base: str, size: int, whole: bool = False) -> Array:
        """An array of `size` numbers (whole: of integers) of every matrix."""
        return self.writer.array(base, self.mask if whole else self.type, size, node=self.node)

    def load(self, number: int, base: str, transposed: bool = False, room: int = 0) -> Array:
        """The matrices of an operand, in an array with room for so many numbers."""
        node, w, lanes = strip(self.node.operands[number]), self.writer, self.lanes
        stored = self.ev.storage(node)
        assert stored is not None
        size = prod(self.shapes[number])
        pointer = w.buffer(stored.ref, w.base(node), node.dtype, stored.access)
        array = self.array(base, max(size, room))
        rows, columns = self.shapes[number]
        with self.elements(rows, columns, transposed) as (e, place):
            at = self.matrix * size + e
            if lanes > 1:
                text = f"{used(f'STRIDED{lanes}', ctype(node.dtype, lanes))}, {pointer} + {at.c()}, {size})"
                if node.dtype != self.dtype:
                    clang = self.context.target.clang_builtins
                    text = f"__builtin_convertvector({text}, {self.type})" if clang else f"convert_{self.type}({text})"
            else:
                text = f"{pointer}[{at.c()}]"
            reads = [Access(pointer, at + lane * size) for lane in range(lanes)]
            w.raw(f"{array}[{place.c()}] = {text};", self.node, (*reads, array), writes=(array,))
        return array

    @contextmanager
    def elements(self, rows: int, columns: int, transposed: bool) -> Iterator[tuple[Index, Index]]:
        """A loop over the elements of matrices: where they are, and where in arrays, which may hold the matrices transposed."""
        if not transposed:
            with self.loop("e", rows * columns) as e:
                yield e, e
            return
        with self.loop("r", rows) as r, self.loop("c", columns) as c:
            yield r * columns + c, c * rows + r

    def empty(self, base: str, rows: int, columns: int, diagonal: int = 0) -> Array:
        """An array of zeros, or of the unit matrices."""
        array = self.array(base, rows * columns)
        one = f" = c == r ? {self.number(1)} : {self.number(0)};" if diagonal else f" = {self.number(0)};"
        self.lines(array, [
            f"for (int r = 0; r < {rows}; r++)",
            f"  for (int c = 0; c < {columns}; c++)",
            f"    {array}[r * {columns} + c]{one}",
        ])
        return array

    def store(self, index: int, array: Array | None, transposed: tuple[int, int] | None = None) -> None:
        """The array as result `index`, if it is wanted. transposed: the result's rows and columns, if the array has its columns as rows."""
        node, w = self.results[index], self.writer
        if node is None:
            return
        assert array is not None
        size = node.aval.size // self.batch
        stored = self.context.output(self.group, node)
        pointer = w.buffer(stored.ref, w.base(node), node.dtype, stored.access)
        cast = "" if array.type == ctype(node.dtype, self.lanes) else f"({ctype(node.dtype)})"
        with self.elements(*(transposed or (1, size)), transposed is not None) as (e, place):
            for lane in range(self.lanes):
                at = (self.matrix + lane) * size + e
                of = f".s{LANES[lane]}" if self.lanes > 1 else ""
                text = f"{cast}{array}[{place.c()}]{of}"
                reads: Parts = (array, *e.vars)
                if self.batch % self.lanes == 0:
                    w.store(Access(pointer, at), Verbatim(text, node.dtype, 1, reads), node)
                else:                                        # work-items' matrices are apart, which the index does not show
                    w.raw(f"{pointer}[{at.c()}] = {text};", node, (*reads, *at.vars), writes=(Access(pointer, None),))

    def report(self) -> None:
        """Note the first matrix that is impossible: the largest note is kept."""
        w, lanes = self.writer, self.lanes
        macro = f"IMPOSSIBLE{lanes if lanes > 1 else ''}"
        faults, place = w.buffer(FAULTS, "faults", FAULTS.dtype, "inout"), w.scalar(self.context.fault(self.node), "fault", int32)
        first = f"({self.batch} - {self.matrix.c()}) * {MatrixCheck.PIVOTS}" if self.matrix.vars else str(MatrixCheck.PIVOTS)
        info = self.info
        assert info is not None
        w.raw(f"{used(macro)}({info}[0], {first}, {MatrixCheck.PIVOTS}, {faults} + {place});", self.node, (info, *self.matrix.vars, place),
              writes=(faults,))

    # -- text

    def number(self, x: float) -> str:
        text = str(Literal(x, self.dtype))
        return f"({self.type})({text})" if self.lanes > 1 else text

    def whole(self, text: str) -> str:
        return f"({self.mask})({text})" if self.lanes > 1 else text

    def power(self, x: str) -> str:
        """The power of two that is in x."""
        limits, bits = np.finfo(self.dtype), self.dtype.itemsize * 8
        integer = {32: "int", 64: "long"}[bits] + (str(self.lanes) if self.lanes > 1 else "")
        exponent = f"{((1 << limits.nexp) - 1) << limits.nmant}{'L' * (bits == 64)}"
        return f"as_{self.type}(as_{integer}({x}) & {f'({integer})({exponent})' if self.lanes > 1 else exponent})"

    def any(self, mask: str) -> str:
        """Whether it holds of any of the matrices."""
        return " | ".join(f"{mask}.s{LANES[lane]}" for lane in range(self.lanes)) if self.lanes > 1 else mask

    def call(self, expression: str) -> str:
        text, helpers = mathlib.translate(expression, self.context.target, self.type)
        self.writer.helper(helpers)
        return text

    def lines(self, array: Array, lines: list[str], *others: Array) -> None:
        """C text that writes the arrays."""
        self.writer.text(lines, self.node, (array, *others), (array, *others))

    def scalar(self, base: str, value: str) -> Array:
        """The array of one number."""
        array = self.array(base, 1)
        self.lines(array, [f"{array}[0] = {value};"])
        return array

    def row_numbers(self) -> Array:
        order = self.array("order", self.m, True)
        self.lines(order, [f"for (int i = 0; i < {self.m}; i++)", f"  {order}[i] = {self.whole('i')};"])
        return order

    def clear_upper(self, a: Array) -> None:
        self.lines(a, [
            f"for (int r = 0; r < {self.n}; r++)",
            f"  for (int c = r + 1; c < {self.n}; c++)",
            f"    {a}[r * {self.n} + c] = {self.number(0)};",
        ])

    def upper(self, a: Array, rows: int) -> Array:
        """The first rows of the upper triangle."""
        r = self.array("upper", rows * self.n)
        self.lines(r, [
            f"for (int r = 0; r < {rows}; r++)",
            f"  for (int c = 0; c < {self.n}; c++)",
            f"    {r}[r * {self.n} + c] = c < r ? {self.number(0)} : {a}[r * {self.n} + c];",
        ], a)
        return r

    def note(self) -> Array:
        """`info`, of zeros."""
        self.info = self.array("info", 1, True)
        self.lines(self.info, [f"{self.info}[0] = {self.whole('0')};"])
        return self.info

    def noting(self, bad: str) -> str:
        """The statement that notes pivot j where it is `bad`."""
        at = f"{self.info}[0]"
        return f"  {at} = (({at} == {self.whole('0')}) & ({bad})) ? {self.whole('j + 1')} : {at};"

    def pivot(self, size: Callable[[str], str], orders: tuple[Array, ...], swap: list[str], pivots: Array | None, sign: bool) -> list[str]:
        """The start of step j of an elimination: the row with the largest element of column j, `best` in size, comes to row j.

        size: that of the element of a line; a NaN is the largest. swap: exchanges rows i and j where `here`; the rest as in `_eliminate`.
        """
        type_, mask, m = self.type, self.mask, self.m
        for order in orders:
            swap = [
                *swap,
                f"    const {mask} mine = {order}[j], other = {order}[i];",
                f"    {order}[j] = here ? other : mine;",
                f"    {order}[i] = here ? mine : other;",
            ]
        return [
            f"  {type_} best = {size('j')};",
            f"  {mask} row = {self.whole('j')};",
            f"  for (int i = j + 1; i < {m}; i++) {{",
            f"    const {type_} size = {size('i')};",
            f"    const {mask} larger = (size > best) | ((size != size) & (best == best));",
            "    best = larger ? size : best;",
            f"    row = larger ? {self.whole('i')} : row;",
            "  }",
            *([f"  {pivots}[j] = row + 1;"] if pivots else []),
            *([f"  sign = row == {self.whole('j')} ? sign : -sign;"] if sign else []),
            f"  for (int i = j + 1; i < {m}; i++) {{",
            f"    const {mask} here = row == {self.whole('i')};",
            *swap,
            "  }",
        ]


# ------------------------------------------------------------------------------------------------------------- the algorithms


def _element(array: Array, line: str, columns: int) -> str:
    """The element of an array of so many columns in a line, at column c."""
    return f"{array}[{line} * {columns} + c]" if columns > 1 else f"{array}[{line}]"


def _across(columns: int, line: str) -> list[str]:
    """The line for each column c."""
    return [f"for (int c = 0; c < {columns}; c++)", f"  {line}"] if columns > 1 else [line]


def _eliminate(k: Matrices, a: Array, *others: tuple[Array, int], orders: tuple[Array, ...] = (), pivots: Array | None = None,
               keep: bool = False, sign: bool = False) -> None:
    """LU with partial pivoting of a (m x n), as getrf: the first of the largest is the pivot, a NaN before all.

    others: arrays (m x columns) that take the same steps (right sides). keep: L, too. orders: arrays (m) whose rows are exchanged as
    well. pivots: gets LAPACK's. sign: the variable `sign` is that of the exchanges.
    """
    m, n, type_, mask = k.m, k.n, k.type, k.mask
    exchanged = [(a, n, "0" if keep else "j"), *((b, columns, "0") for b, columns in others)]
    swap = []
    for array, columns, start in exchanged:
        upper, lower = (_element(array, line, columns) for line in "ji")
        swap += [
            f"    for (int c = {start}; c < {columns}; c++) {{" if columns > 1 else "    {",
            f"      const {type_} x = {upper}, y = {lower};",
            f"      {upper} = here ? y : x;",
            f"      {lower} = here ? x : y;",
            "    }",
        ]
    k.lines(a, [
        f"for (int j = 0; j < {min(m, n)}; j++) {{",
        *k.pivot(lambda line: k.call(f"fabs({a}[{line} * {n} + j])"), orders, swap, pivots, sign),
        f"  const {mask} flat = best == {k.number(0)};",
        *([k.noting(f"(best > {k.number(0)}) == {k.whole('0')}")] if k.info else []),
        f"  const {type_} pivot = flat ? {k.number(1)} : {a}[j * {n} + j];",
        f"  for (int i = j + 1; i < {m}; i++) {{",
        f"    const {type_} factor = {a}[i * {n} + j] / pivot;",
        *([f"    {a}[i * {n} + j] = factor;"] if keep else []),
        f"    for (int c = j + 1; c < {n}; c++)",
        f"      {a}[i * {n} + c] -= factor * {a}[j * {n} + c];",
        *(f"    {line}" for b, columns in others for line in _across(
            columns, f"{_element(b, 'i', columns)} -= factor * {_element(b, 'j', columns)};")),
        "  }",
        "}",
    ], *(b for b, _ in others), *orders, *(x for x in (pivots, k.info) if x is not None))


def _substitute(k: Matrices, a: Array, b: Array, columns: int, upper: bool = True, unit: bool = False) -> None:
    """b (n x columns) becomes X in A X = B, A the upper or lower triangle of a."""
    n = k.n
    rows = "int i = 0; i < j; i++" if upper else f"int i = j + 1; i < {n}; i++"
    k.lines(b, [
        f"for (int j = {n - 1 if upper else 0}; j {'>= 0; j--' if upper else f'< {n}; j++'}) {{",
        *([] if unit else [f"  {line}" for line in _across(columns, f"{_element(b, 'j', columns)} /= {a}[j * {n} + j];")]),
        f"  for ({rows}) {{",
        f"    const {k.type} factor = {a}[i * {n} + j];",
        *(f"    {line}" for line in _across(columns, f"{_element(b, 'i', columns)} -= factor * {_element(b, 'j', columns)};")),
        "  }",
        "}",
    ], a)


def _solve(k: Matrices) -> None:
    a, b = k.load(0, "a"), k.load(1, "b")
    _solved(k, a, b, k.shapes[1][1])
    k.store(0, b)


def _solved(k: Matrices, a: Array, b: Array, columns: int) -> None:
    k.note()
    _eliminate(k, a, (b, columns))
    k.report()
    _substitute(k, a, b, columns)


def _inv(k: Matrices) -> None:
    a, b = k.load(0, "a"), k.empty("b", k.n, k.n, 1)
    _solved(k, a, b, k.n)
    k.store(0, b)


def _triangle(k: Matrices) -> None:
    a, b = k.load(0, "a"), k.load(1, "b")
    if not k.attrs["unit"]:
        info = k.note()
        k.lines(info, [f"for (int j = 0; j < {k.n}; j++)", k.noting(f"{a}[j * {k.n} + j] == {k.number(0)}")], a)
        k.report()
    _substitute(k, a, b, k.shapes[1][1], k.attrs["upper"], k.attrs["unit"])
    k.store(0, b)


def _cholesky_factor(k: Matrices, a: Array, nan: bool) -> None:
    """The lower triangle of a becomes that of L. nan: a pivot that is NaN is noted, too."""
    n, type_ = k.n, k.type
    bad = f"(x > {k.number(0)}) == {k.whole('0')}" if nan else f"x <= {k.number(0)}"
    info = k.note()
    k.lines(a, [
        f"for (int j = 0; j < {n}; j++) {{",
        f"  const {type_} x = {a}[j * {n} + j];",
        k.noting(bad),
        f"  const {type_} pivot = {k.call('sqrt(x)')};",
        f"  {a}[j * {n} + j] = pivot;",
        f"  for (int i = j + 1; i < {n}; i++)",
        f"    {a}[i * {n} + j] /= pivot;",
        f"  for (int i = j + 1; i < {n}; i++) {{",
        f"    const {type_} factor = {a}[i * {n} + j];",
        "    for (int c = j + 1; c <= i; c++)",
        f"      {a}[i * {n} + c] -= factor * {a}[c * {n} + j];",
        "  }",
        "}",
    ], info)


def _cholesky(k: Matrices) -> None:
    a = k.load(0, "a")
    _cholesky_factor(k, a, False)
    k.report()
    k.clear_upper(a)
    k.store(0, a)


def _info(k: Matrices) -> None:
    a = k.load(0, "a")
    if k.attrs["cholesky"]:
        _cholesky_factor(k, a, True)
    else:
        k.note()
        _eliminate(k, a)
    assert k.info is not None
    k.store(0, k.info)


def _lu(k: Matrices) -> None:
    a = k.load(0, "a")
    pivots = k.array("pivots", min(k.m, k.n), True) if k.results[1] is not None else None
    orders = (k.row_numbers(),) if k.results[2] is not None else ()
    _eliminate(k, a, orders=orders, pivots=pivots, keep=True)
    k.store(0, a)
    if pivots:
        k.store(1, pivots)
    for order in orders:
        k.store(2, order)


def _order(k: Matrices) -> None:
    """The numbers of rows, in the order that exchanges lead to."""
    rows, mask = k.attrs["rows"], k.mask
    pivots, order, info = k.load(0, "pivots"), k.array("order", rows, True), k.note()
    k.lines(order, [
        f"for (int i = 0; i < {rows}; i++)",
        f"  {order}[i] = {k.whole('i')};",
        f"for (int j = 0; j < {k.n}; j++) {{",
        f"  const {mask} row = {pivots}[j] - 1, mine = {order}[j];",
        f"  {info}[0] = (row >= 0) & (row < {rows}) ? {info}[0] : {k.whole('1')};",
        f"  {mask} other = mine;",
        f"  for (int i = 0; i < {rows}; i++) {{",
        f"    const {mask} here = row == i;",
        f"    other = here ? {order}[i] : other;",
        f"    {order}[i] = here ? mine : {order}[i];",
        "  }",
        f"  {order}[j] = other;",
        "}",
    ], pivots, info)
    k.report()
    k.store(0, order)


def _triangular(k: Matrices) -> Array:
    """U of the operand; the variable `sign` is that of the exchanges."""
    a = k.load(0, "a")
    k.writer.text([f"{k.type} sign = {k.number(1)};"], k.node)
    _eliminate(k, a, sign=True)
    return a


def _logarithm(k: Matrices, a: Array) -> list[str]:
    """`logarithm`, that of the determinant's size; `sign` becomes the determinant's."""
    n, at = k.n, f"{a}[j * {k.n} + j]"
    return [
        f"{k.type} logarithm = {k.number(0)};",
        f"for (int j = 0; j < {n}; j++) {{",
        f"  logarithm += {k.call(f'log(fabs({at}))')};",
        f"  sign = {at} < {k.number(0)} ? -sign : {at} > {k.number(0)} ? sign : sign * {at};",
        "}",
    ]


def _slogdet(k: Matrices) -> None:
    a = _triangular(k)
    k.writer.text(_logarithm(k, a), k.node, (a,))
    k.store(0, k.scalar("signs", "sign"))
    k.store(1, k.scalar("logarithms", "logarithm"))


def _det(k: Matrices) -> None:
    """The product of the pivots; where one on the way is too large or too small, by logarithms."""
    a = _triangular(k)
    n, low, high = k.n, float(np.finfo(k.dtype).tiny) * 1e6, float(np.finfo(k.dtype).max) / 2
    size = k.call("fabs(determinant)")
    k.writer.text([
        f"{k.type} determinant = sign;",
        f"{k.mask} safe = {k.whole('1')} == {k.whole('1')};",
        f"for (int j = 0; j < {n}; j++) {{",
        f"  determinant *= {a}[j * {n} + j];",
        f"  safe &= ({size} > {k.number(low)}) & ({size} < {k.number(high)});",
        "}",
        *_logarithm(k, a),
    ], k.node, (a,))
    k.store(0, k.scalar("determinants", f"safe ? determinant : sign * {k.call('exp(logarithm)')}"))


def _reflections(k: Matrices) -> tuple[Array, Array]:
    """Householder's, as geqrf: R and the vectors below it, and their factors."""
    m, n, type_, mask, zero = k.m, k.n, k.type, k.mask, k.number(0)
    least = min(m, n)
    a = k.load(0, "a")
    factors = k.array("factors", least)
    k.lines(a, [
        f"for (int j = 0; j < {least}; j++) {{",
        f"  const {type_} alpha = {a}[j * {n} + j];",
        f"  {type_} best = {k.call('fabs(alpha)')};",
        f"  {mask} flat = {k.whole('1')} == {k.whole('1')};",
        f"  for (int i = j + 1; i < {m}; i++) {{",
        f"    const {type_} size = {k.call(f'fabs({a}[i * {n} + j])')};",
        "    best = size > best ? size : best;",
        f"    flat &= size == {zero};",
        "  }",
        f"  const {type_} pivot = best > {zero} ? best : {k.number(1)};",
        f"  {type_} norm = (alpha / pivot) * (alpha / pivot);",
        f"  for (int i = j + 1; i < {m}; i++)",
        f"    norm += ({a}[i * {n} + j] / pivot) * ({a}[i * {n} + j] / pivot);",
        f"  norm = pivot * {k.call('sqrt(norm)')};",
        f"  const {type_} beta = flat ? alpha : -{k.call('copysign(norm, alpha)')};",
        f"  {factors}[j] = flat ? {zero} : (beta - alpha) / beta;",
        f"  for (int i = j + 1; i < {m}; i++)",
        f"    {a}[i * {n} + j] = flat ? {zero} : {a}[i * {n} + j] / (alpha - beta);",
        f"  {a}[j * {n} + j] = beta;",
        f"  for (int c = j + 1; c < {n}; c++) {{",
        f"    {type_} x = {a}[j * {n} + c];",
        f"    for (int i = j + 1; i < {m}; i++)",
        f"      x += {a}[i * {n} + j] * {a}[i * {n} + c];",
        f"    x *= {factors}[j];",
        f"    {a}[j * {n} + c] -= x;",
        f"    for (int i = j + 1; i < {m}; i++)",
        f"      {a}[i * {n} + c] -= x * {a}[i * {n} + j];",
        "  }",
        "}",
    ], factors)
    return a, factors


def _geqrf(k: Matrices) -> None:
    for index, array in enumerate(_reflections(k)):
        k.store(index, array)


def _qr(k: Matrices) -> None:
    """The reflections' product from the last one on, as orgqr."""
    m, n, type_ = k.m, k.n, k.type
    least = min(m, n)
    columns = m if k.attrs["complete"] else least
    a, factors = _reflections(k)
    if k.results[0] is not None:
        q = k.empty("q", m, columns, 1)
        k.lines(q, [
            f"for (int j = {least - 1}; j >= 0; j--)",
            f"  for (int c = j; c < {columns}; c++) {{",
            f"    {type_} x = {q}[j * {columns} + c];",
            f"    for (int i = j + 1; i < {m}; i++)",
            f"      x += {a}[i * {n} + j] * {q}[i * {columns} + c];",
            f"    x *= {factors}[j];",
            f"    {q}[j * {columns} + c] -= x;",
            f"    for (int i = j + 1; i < {m}; i++)",
            f"      {q}[i * {columns} + c] -= x * {a}[i * {n} + j];",
            "  }",
        ], a, factors)
        k.store(0, q)
    if k.results[1] is not None:
        k.store(1, k.upper(a, columns))


STEPS = {"eigh": "Jacobi's rotations", "svd": "Jacobi's rotations", "_exp": "scaling and squaring",
         "eig": "QR steps"}      # the others are LAPACK's
TEXTS = {"solve": _solve, "inv": _inv, "solve_triangular": _triangle, "det": _det, "slogdet": _slogdet, "cholesky": _cholesky,
         "lu_factor": _lu, "qr": _qr, "geqrf": _geqrf, "pivot_order": _order, "factor_info": _info, "eigh": jacobi.eigh, "svd": jacobi.svd,
         "eig": eig_qr.eig, "complex_eig": eig_qr.eig, "matrix_exp": expm.exp, "frechet_exp": expm.derivative,
         **complex_matrices.TEXTS}
