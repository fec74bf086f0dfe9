"""Elementwise kernels of GPUs that read something transposed: through tiles in local memory. Start at `turned`.

Work-items side by side write neighbouring elements. What they would read a column apart comes by tiles of 32 x 32: read as it lies, put
into local memory, and taken from there the other way, in rows of 33 so that a column is in 32 banks. The loops over the elements are
those in which every index is a sum (`peeling.breakpoints`); a tile is of the last of them and of the one along which the operand lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from math import prod

from tracegrad.codegen.kernel.index.index import Index, Var, bounded, constant, ravel, unravel
from tracegrad.codegen.kernel.index.peeling import breakpoints
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Load, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Access, Array
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows.shape import reads
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning

SIDE = 32                     # of a tile: a row of it is what comes from memory together


class Transposed(Plain):
    """A value that is read transposed, and at which element."""

    node: Node
    at: Index

    def moved(self, to: Mapping[Var, Index]) -> Index:
        """Its element where the variables are these."""
        found: Index = constant(self.at.constant)
        for var, index in to.items():
            found = found + index * (self.at.stride(var) or 0)
        return found


def turned(group: Group, context: Context) -> Kernel | None:
    """The kernel of an elementwise group with its transposed reads through tiles; None if there are none that are worth it."""
    target = context.target
    if not group.positional or group.size < tuning().tiled or target.max_work_group < SIDE:
        return None
    at = Var("at", group.size)
    found = reads(group, context, at.index)
    points = breakpoints(found.indices, at)
    if found.guards or not points:
        return None
    ends = [1, *points, group.size]
    axes = [Var("axis", b // a) for a, b in pairwise(ends)][::-1]
    wanted = candidates(group, context, axes)
    across = Counter(along(w, axes) for w in wanted).most_common(1)
    if not across:
        return None
    row = across[0][0]
    size = (SIDE + 1) * SIDE
    tiles: list[Transposed] = []
    for one in wanted:
        if along(one, axes) == row and size * sum(max(4, t.node.dtype.itemsize) for t in (*tiles, one)) <= target.local_memory:
            tiles.append(one)
    return written(group, context, axes, row, tiles) if tiles else None


def along(turned: Transposed, axes: Sequence[Var]) -> int:
    """The number of the axis along which its elements are neighbours."""
    return next(n for n, axis in enumerate(axes) if turned.at.stride(axis) == 1)


def candidates(group: Group, context: Context, axes: Sequence[Var]) -> list[Transposed]:
    """What is read transposed when the kernel is written with these loops, each once."""
    w = context.writer(group)
    ev = context.evaluator(group, w)
    found: dict[tuple[Node, str], Transposed] = {}

    def look(node: Node, flat: Index) -> Expression | None:
        if ev.storage(node) is not None and node.dtype.kind != "b":
            at = flat.opened()
            strides = [at.stride(axis) for axis in axes]
            lies = [n for n, step in enumerate(strides) if step == 1 and (axes[n].hi + 1) >= SIDE // 2]
            linear = None not in strides and at.vars <= set(axes)
            if linear and lies and (strides[-1] or 0) > 1 and axes[-1].hi + 1 >= SIDE // 2:
                found.setdefault((node, at.key), Transposed(node, at))
        return None

    ev.given = look
    for axis in axes:
        w.bind(axis, 0)
    where = ravel([axis.index for axis in axes], [axis.hi + 1 for axis in axes])
    for root in group.stored:
        for x in root.operands if root.fn.family == "pair" else (root,):
            ev.value(x, where)
    return list(found.values())


def written(group: Group, context: Context, axes: Sequence[Var], row: int, tiles: Sequence[Transposed]) -> Kernel:
    """The kernel: work-group (c, r, rest) does the tile at those of the last axis, of axis `row`, and of the others."""
    w = context.writer(group)
    ev = context.evaluator(group, w)
    lines = min(8, 1 << ((context.target.max_work_group // SIDE).bit_length() - 1))
    sizes = [axis.hi + 1 for axis in axes]
    rows, cols = sizes[row], sizes[-1]
    others = [n for n in range(len(axes) - 1) if n != row]
    rest = prod(sizes[n] for n in others)
    arrays = [w.array(f"{w.base(t.node)}_tile", register_type(t.node.dtype), SIDE * (SIDE + 1), shared=True) for t in tiles]
    item, lane = w.item("item", SIDE, 0, "local", "int"), w.item("lane", lines, 1, "local", "int")
    col0, row0 = (w.item(name, -(-n // SIDE), axis, "group") for name, n, axis in (("col_tile", cols, 0), ("row_tile", rows, 1)))
    fixed = dict(zip([axes[n] for n in others], unravel(w.item("rest", rest, 2, "group").index, [sizes[n] for n in others]), strict=True)) \
        if rest > 1 else {axes[n]: constant(0) for n in others}

    def places(inside: ExitStack, down: Index, right: Index) -> dict[Var, Index]:
        """Where in its axes an item is that is so far down and to the right in the tile; the axes end there."""
        found = dict(fixed)
        for axis, tile, by, n in ((axes[row], row0, down, rows), (axes[-1], col0, right, cols)):
            at = tile.index * SIDE + by
            if n % SIDE:
                inside.enter_context(w.branch(Infix("<", w.at(at), whole(n)), (("range", at, 0, n),)))
                for var in at.vars:
                    w.bind(var)
                at = bounded(at, 0, n)
            found[axis] = at
        return found

    iteration = Var("iteration", SIDE - lines + 1)
    with ExitStack() as inside:
        inside.enter_context(w.loop(iteration, 0, SIDE, lines, unrolled=True))
        to = places(inside, item.index, lane.index + iteration.index)
        for tile, array in zip(tiles, arrays, strict=True):
            w.store(Access(array, (lane.index + iteration.index) * (SIDE + 1) + item.index), ev.value(tile.node, tile.moved(to)), tile.node)
    w.barrier()
    iteration = Var("iteration", SIDE - lines + 1)
    with ExitStack() as inside:
        inside.enter_context(w.loop(iteration, 0, SIDE, lines, unrolled=True))
        to = places(inside, lane.index + iteration.index, item.index)
        known = {(t.node, t.moved(to).opened().key): array for t, array in zip(tiles, arrays, strict=True)}

        def given(node: Node, flat: Index) -> Expression | None:
            array = known.get((node, flat.opened().key))
            return None if array is None else taken(w, node, array, item.index * (SIDE + 1) + lane.index + iteration.index)

        ev.given = given
        context.store(ev, group, group.stored, ravel([to[axis] for axis in axes], sizes))
    return context.finish(group, w, (-(-cols // SIDE) * SIDE, -(-rows // SIDE) * lines, rest), (SIDE, lines, 1), True)


def taken(w: Writer, node: Node, array: Array, at: Index) -> Expression:
    return w.declare(f"{w.base(node)}_i", Load(Access(array, at), node.dtype))
