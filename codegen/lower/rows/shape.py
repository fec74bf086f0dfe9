"""How the (rows, cols) of a group are cut into loops and work-items on CPUs. Start at `shape_of`."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod

from tracegrad.codegen.kernel.index.guards import Reads
from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.index.peeling import breakpoints, peeled, scattered
from tracegrad.codegen.kernel.ir.vectors import turns
from tracegrad.codegen.lower.context import Context, computed
from tracegrad.codegen.schedule.access_maps import IDENTITY
from tracegrad.codegen.schedule.grouping import Chunks, Flat, Granularity, Group, Rows, cost, is_inline, is_reduction, small_reduction
from tracegrad.support.dtypes import dtype_kind, is_half
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning


class Shape(Plain):
    """The loops of a kernel: rows, and columns as nested loops of sizes `cols` (outer ones plain, the last vectorised).

    parts: the elements of a row are (*cols[:-1], parts, cols[-1]), and those of all parts are computed side by side, in the last loop.
    outer_vectorized: vectors are of as many rows, each with its few elements (all of them parts).
    pieces: where in a row loops of their own end, one behind the other; `length` elements of a row are a work-item's, more or less.
    """

    rows: int
    cols: tuple[int, ...]
    width: int
    block: int                       # rows a work-item does
    length: int | None               # chunk of the (single) column loop that a work-item does; None: all
    across: bool = False             # the loop over the rows is inside that over the columns
    parts: int = 1
    pieces: tuple[int, ...] = ()
    outer_vectorized: bool = False

    @property
    def row_size(self) -> int:
        n = self.parts
        for c in self.cols:
            n *= c
        return n


def reads(group: Group, context: Context, flat: Index) -> Reads:
    """All that the kernel reads to compute element `flat`."""
    reductions = {s for s in group.roots if is_reduction(s)}
    found = Reads(context.storage(group), reductions | context.scalars.keys())
    for root in group.roots:
        if root in reductions:
            found.add(root.operands[0], flat)
        elif group.place[root] is Granularity.ELEMENT and root in group.stored:
            found.add(root, flat)
    return found


def vector_width(group: Group, context: Context) -> int:
    """Lanes: a register of the widest float in the group."""
    floats = [n.dtype.itemsize for n in (*group.reads, *group.roots) if dtype_kind(n.dtype) == "f"]
    return max(1, min(16, context.target.simd_bytes // max(4, max(floats, default=4))))


def shape_of(group: Group, context: Context) -> Shape:
    """How the domain of a group is cut into loops and work-items.

    Where something is read transposed, the lines that a vector of columns lies in are used for all rows of the block at once.
    """
    if isinstance(group.kind, Flat) and group.kind.parts:
        put_together = _side_by_side if group.kind.alike else _behind_one_another
        return put_together(group.kind, vector_width(group, context), context.target.cores)
    if group.into:                                           # rows of the slices: elsewhere results are not at even distances
        at = Var("at", group.size)
        return _row_by_row(group, context, breakpoints([context.at(group, s, at.index).opened() for s in group.stored], at))
    if isinstance(group.kind, Flat) and (shared := shared_reductions(group, context)):
        return _side_by_side_rows(group, context, *shared)
    at = Var("at", group.size)
    points = [] if _plain(group) or not isinstance(group.kind, Flat) else breakpoints(reads(group, context, at.index).indices, at)
    if points and (few := _few_columns(group, context, points)) and not any(is_half(s.dtype) for s in group.roots):
        return _side_by_side_rows(group, context, few, 1)
    shape = _written_out(_row_by_row(group, context, points), group, context, points)
    if shape.parts > 1 or group.size < 8 * tuning().item or _plain(group):          # little enough for a cache, or read as it lies
        return shape
    if shape.length is not None or len(shape.cols) > 1 or shape.rows < tuning().line_bytes // 4:
        return shape
    if not isinstance(group.kind, Flat):
        return shape
    row, col = Var("row", shape.rows), Var("col", shape.cols[0])
    found = reads(group, context, row.index * shape.cols[0] + col.index).indices
    apart = [k for i in found if (k := i.stride(row)) in (1, 2) and (i.stride(col) or 0) > k]         # two: parts of complex numbers
    if not apart:
        return shape
    return replace(shape, block=tuning().line_bytes // (4 * max(apart)), across=True)


def _few_columns(group: Group, context: Context, points: list[int]) -> int:
    """How long the rows are that are done as many at once as a vector has lanes; 0: no rows are.

    What is read for the rows of a small matrix may differ from row to row (a gradient of its elements, one by one): then it is the matrices
    (20,000 of 3 x 3, the gradient of a determinant: 0.1 of the time).
    """
    n, most = points[0], tuning().max_statements
    if n >= tuning().few_columns and not _costly_rows(group, context, n):
        return 0
    for longer in points[1:]:
        if longer <= turns(context.target) and group.statements * longer <= 4 * most and _regular(group, context, longer) \
                and not _regular(group, context, n):
            return longer
    return n if group.statements * n <= most else 0


def _regular(group: Group, context: Context, n: int) -> bool:
    """Whether rows of `n` elements read at even distances, all of them the same."""
    row, col = Var("row", group.size // n), Var("col", n)
    return all(i.stride(row) is not None for i in reads(group, context, row.index * n + col.index).indices)


def _costly_rows(group: Group, context: Context, n: int) -> bool:
    """Whether rows of `n` elements, fewer than a vector has, each have a value in common that takes long: with a row in each lane it is
    computed for as many at once (rows of 4 to 8 times the tanh of a number each, and their gradient: 0.2 of the time)."""
    if n >= vector_width(group, context) or n > turns(context.target):
        return False
    return any(node.aval.size * n == group.size and cost(node) >= tuning().costly for node in computed(group, context) if is_inline(node))


def _plain(group: Group) -> bool:
    """Whether everything is read at its own element, at its row, or as a whole."""
    return not group.positional and all(maps <= {IDENTITY, group.cols, group.size} for maps in group.reads.values())


def _written_out(shape: Shape, group: Group, context: Context, points: list[int]) -> Shape:
    """The same, with the few columns of the last loop as parts if they come from about as many places (numbers or vectors, stacked)."""
    if not group.positional or shape.length is not None or group.statements > tuning().max_statements:
        return shape
    n = shape.cols[-1]
    if len(shape.cols) == 1 and points:                      # rows that are shorter than a vector
        n = points[0]
    if not 1 < n <= tuning().stacked_columns:
        return shape
    row, col = Var("row", group.size // n), Var("col", n)
    if not scattered(reads(group, context, row.index * n + col.index).guards, col, n):
        return shape
    in_turn = isinstance(group.kind, Flat) and len(shape.cols) == 1 and n <= turns(context.target)
    if in_turn and group.statements * n <= tuning().max_statements and not any(is_half(s.dtype) for s in group.roots):
        return _side_by_side_rows(group, context, n, 1)
    if n == shape.cols[-1]:
        return replace(shape, cols=(*shape.cols[:-1], 1), parts=n)
    rows = group.size // n
    return Shape(rows, (1,), shape.width, max(1, min(rows, -(-tuning().item // n))), None, parts=n)


def shared_reductions(group: Group, context: Context) -> tuple[int, int] | None:
    """Of how many elements, and how far apart, the reductions are that are written out for each of these elements: softmax over few.

    None if there are none, or they are not of the same elements, or all that is computed would be too long for one kernel. Nor where
    rows are whole vectors, whose elements have them in common anyway (0.8 of the time).
    """
    found, nodes = set(), computed(group, context)
    for node in nodes:
        x = node.operands[0] if small_reduction(node) else node
        if x is not node and x.aval.size == group.size and node.aval.size < group.size:
            dims = sorted(node.attrs["dim"])
            found.add((prod(x.shape[dims[0]:dims[-1] + 1]), prod(x.shape[dims[-1] + 1:])))
    if len(found) != 1:
        return None
    (n, inner), = found
    fits = group.size % (n * inner) == 0 and 1 < n <= tuning().unrolled and n * len(nodes) <= 2 * tuning().max_statements
    return (n, inner) if fits and (inner > 1 or n % vector_width(group, context)) else None


def _side_by_side_rows(group: Group, context: Context, n: int, inner: int) -> Shape:
    """The loops where `n` elements, `inner` apart, share reductions: all of them are computed at once."""
    cores, width = context.target.cores, vector_width(group, context)
    share, rows = _share(group.size, cores), group.size // (n * inner)
    plain = not any(s.fn.family == "pair" or is_half(s.dtype) for s in group.roots)
    if plain and n * inner <= tuning().unrolled and rows >= width > 1:
        block = -(-max(1, share // (n * inner)) // width) * width
        return Shape(rows, (1,), width, min(block, rows), None, parts=n * inner, outer_vectorized=True)
    while width > inner:
        width //= 2
    return Shape(rows, (inner,), width, max(1, min(rows, share // (n * inner))), None, parts=n)


def _side_by_side(kind: Flat, width: int, cores: int) -> Shape:
    """The loops over the elements of a list of equal parts."""
    parts, inner, each = len(kind.parts), kind.parts[0], sum(kind.parts)
    rows = kind.size // each
    while width > inner:                                     # 4 numbers are a vector of 4; of 3, one is one of 2, and one is left
        width //= 2
    share = _share(kind.size, cores)
    if each > 2 * share and inner > 2 * (length := -(-share // parts // 64) * 64):
        return Shape(rows, (inner,), width, 1, length, parts=parts)
    return Shape(rows, (inner,), width, max(1, min(rows, share // each)), None, parts=parts)


def _behind_one_another(kind: Flat, width: int, cores: int) -> Shape:
    """The loops over the elements of a list of other parts."""
    each, share = sum(kind.parts), _share(kind.size, cores)
    rows, pieces = kind.size // each, tuple(accumulate(kind.parts))
    if each > 2 * share:
        return Shape(rows, (each,), width, 1, -(-share // 64) * 64, pieces=pieces)
    return Shape(rows, (each,), width, max(1, min(rows, share // each)), None, pieces=pieces)


def _share(size: int, cores: int) -> int:
    """How many elements a work-item does, about."""
    return min(max(tuning().item, -(-size // (16 * cores))), tuning().most_items)


def _row_by_row(group: Group, context: Context, at: list[int]) -> Shape:
    """at: where the elements of a flat group had better be cut into rows, ascending."""
    cores, width = context.target.cores, vector_width(group, context)
    simple = _plain(group)
    kind = group.kind
    if isinstance(kind, Chunks):
        return Shape(kind.rows, (kind.cols,), width, 1, kind.length)
    if isinstance(kind, Rows):
        cols, rows = kind.cols, kind.rows
        row, col = Var("row", rows), Var("col", cols)
        found = [] if simple else breakpoints(reads(group, context, row.index * cols + col.index).indices, col)
        points = [k for k in found if k >= 2 * width]
        inner = points[0] if points else cols
        block = kind.length or max(1, min(tuning().item // cols, -(-rows // (4 * cores))))
        return Shape(rows, (cols,) if inner == cols else (cols // inner, inner), width, block, None)
    few = 1 if group.into else tuning().few_columns
    points = [k for k in at if k >= few]
    cols = points[0] if points else group.size
    while width > cols >= few:
        width //= 2
    rows = group.size // cols
    share = _share(group.size, cores)
    if cols > 2 * share and cols > (length := -(-share // 64) * 64):
        return Shape(rows, (cols,), width, 1, length, pieces=() if simple else _certain(group, context, rows, cols, width))
    return Shape(rows, (cols,), width, max(1, min(rows, share // cols)), None)


def _certain(group: Group, context: Context, rows: int, cols: int, width: int) -> tuple[int, ...]:
    """Where the pieces of a row end in which every guard is certain; none if there is but one, or there are too many."""
    row, col = Var("row", rows), Var("col", cols)
    most = min(tuning().ranges, tuning().max_statements // max(1, group.statements))
    found = peeled(reads(group, context, row.index * cols + col.index).guards, col, cols, width, most)
    return (*(end for _, end in found[:-1]), cols) if len(found) > 1 else ()


class Run(Plain):
    """Pieces of a row, (begin, end) each, that work-items `start` to `stop` do: one all of them, or several the only one."""

    start: int
    stop: int
    pieces: tuple[tuple[int, int], ...]


def runs(ends: tuple[int, ...], length: int | None) -> list[Run]:
    """Who does which of the pieces that end there, about `length` elements each; None: one does all."""
    found: list[Run] = []
    few: list[tuple[int, int]] = []                          # short ones that are next to each other
    for begin, end in pairwise((0, *ends)):
        if few and length is not None and end - few[0][0] > length:
            found.append(Run(at := found[-1].stop if found else 0, at + 1, tuple(few)))
            few = []
        if length is not None and end - begin > length:
            found.append(Run(at := found[-1].stop if found else 0, at - (begin - end) // length, ((begin, end),)))
        else:
            few.append((begin, end))
    if few:
        found.append(Run(at := found[-1].stop if found else 0, at + 1, tuple(few)))
    return found
