"""argsort of the last dimension: insertion sort of short runs, then merges that double them. Start at `lower_sort`.

Of short rows a CPU counts for each element how many stand before it, in vectors (`_counted`): no step depends on what the elements are.
Of longer ones a work-item first sorts a block that fits its cache, runs and merges. A merge of blocks cuts the result of each pair of them
into parts of equal length; a work-item finds by binary search where its part starts in either (the "merge path"), then merges
serially. Left runs come first among equals, so the sort is stable. On a GPU work-groups do it (sort_gpu.py).
"""

from __future__ import annotations

from dataclasses import replace

from tracegrad.codegen.kernel.index.index import ZERO, Index, Mutable, Var, bounded
from tracegrad.codegen.kernel.index.varying import varies
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Load, Local, Operand, Select, Splat, element, place, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, Array, Bound, BoundLike, Declare, Pointer, bound
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.kernel.ir.vectors import bit_floor
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.rows.shape import vector_width
from tracegrad.codegen.lower.search.keys import key, key_dtype, number_of, plain, same
from tracegrad.codegen.lower.serial import KernelBuilder, parts, scratch
from tracegrad.codegen.lower.workgroup import precedes
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.support.dtypes import int32, int64
from tracegrad.support.tuning import tuning

Pair = tuple[Temp, Temp]                # keys, and where they came from
_COMPARISON = 3                         # ns, with what it decides: half of the time the CPU guesses wrong


@lowering("sort")
def lower_sort(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    n = node.shape[-1]
    few = 4 <= n <= tuning().sort_vectors * vector_width(group, context)
    if few and context.target.clang_builtins and plain(node.operands[0], context) and not varies(n):       # (Oclgrind counts 255 for 1)
        return [_counted(group, context)]
    dtype = scratch(node.operands[0].dtype)
    index = int32 if n < 1 << 31 else int64
    pairs = [(Temp(f"keys_{side}", node, node.aval.size, dtype), Temp(f"order_{side}", node, node.aval.size, index)) for side in "ab"]
    run = tuning().sort_block if context.target.traits.long_items else tuning().sort_run
    side = _passes(min(n, run)) % 2
    comparisons = node.aval.size * max(1, (min(n, run) - 1).bit_length())
    made = [replace(_blocks(group, context, run, pairs), slow=_COMPARISON * comparisons)]
    while run < n:
        merge = _merge(group, context, run, pairs[side], None if 2 * run >= n else pairs[1 - side])
        made.append(replace(merge, slow=_COMPARISON * node.aval.size))
        run, side = 2 * run, 1 - side
    return made


def _counted(group: Group, context: Context) -> Kernel:
    """Rows whose elements go where they belong: behind all of lower keys (descending: of higher ones) and the equal ones before them.

    (Rows of 16 to 101: 0.2 of the time that insertion and merges take; of 256: 0.3, but 3 times that of merges where all is in order.)
    """
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x, out = node.operands[0], o.output()
    n, width = x.shape[-1], min(bit_floor(x.shape[-1]), vector_width(group, context))
    number, before = key_dtype(x), ">" if node.attrs["descending"] else "<"
    vectors = ((0, n - n % width), (n - width, n))[:1 + (n % width > 0)]                   # the last one overlaps the one before
    first, last = o.part("row", node.aval.size // n, -(-node.aval.size // n // parts(context)))
    with o.loop("row", node.aval.size // n, first, last) as row:
        keys, places = (w.array(name, register_type(number), n, node=node) for name in ("keys", "places"))
        for low, high in vectors:
            var = Var("i", n)
            with w.loop(var, low, high, width), ev.along(var, width):
                w.store(Access(keys, var.index, width, var), key(o, ev.vector(ev.value(x, row * n + var.index))), node)
        for low, high in vectors:
            var = Var("i", n)
            with w.loop(var, low, high, width), ev.along(var, width):
                mine = w.declare("mine", Load(Access(keys, var.index, width, var), number, width), node)
                numbers = number_of(ev.lanes_of(var.index), number)
                count, after = w.declare("place", same(0, number, width), node), var.index + width
                for start, stop, by in ((0, var, before + "="), (var, after, before), (after, n, before)):
                    if (start == 0 and high == width) or (stop == n and low + width == n):
                        continue                             # nothing stands there
                    j = Var("j", n)
                    with w.loop(j, bound(start), bound(stop)):
                        other = Splat(element(keys, j), width)
                        stands: Expression = Infix(by, other, mine)
                        if start is var:                     # it is one of the lanes
                            earlier = Infix("<", Splat(number_of(w.at(j), number), width), numbers)
                            stands = Infix("|", stands, Infix("&", Infix("==", other, mine), earlier))
                        w.assign(count, Select(stands, Infix("+", count, same(1, number, width)), count), node)
                w.store(Access(places, var.index, width, var), count, node)
        with o.loop("i", n) as i:
            to = w.computed("to", n, element(places, i), node)
            w.store(place(out, row * n + to.index), w.at(i), node)
    return replace(o.finish(), slow=node.aval.size * n // (2 * width))


def _passes(n: int) -> int:
    """How often runs must be merged to sort n elements."""
    return max(0, (-(-n // tuning().sort_run) - 1).bit_length())


def _blocks(group: Group, context: Context, block: int, pairs: list[Pair]) -> Kernel:
    """Sorts blocks, one a work-item: into one of `pairs` (see _passes), or, if there is only one block, to the result."""
    o = KernelBuilder(group, context)
    node, w = o.node, o.writer
    n, short = node.shape[-1], node.shape[-1] <= tuning().sort_run
    passes = _passes(min(n, block))
    first, last = o.part("part", n, block)
    row = o.item("row", node.aval.size // n)
    sides = pairs[:0 if short else min(passes, 1) + 1]
    buffers = [[w.buffer(t, f"{name}_{side}", t.dtype, "inout") for t, name in zip(pair, ("keys", "order"), strict=True)]
               for pair, side in zip(sides, "ab", strict=False)]
    pointers = [[w.pointer(f"{name}_{side}", pair[i], tuple(b[i] for b in buffers if b is not pair), row * n, n)
                 for i, name in enumerate(("key", "from"))] for pair, side in zip(buffers, "ab", strict=False)]
    result = o.output() if n <= block else None
    start, size = Var("start", n), min(tuning().sort_run, n)
    with w.loop(start, first, last, tuning().sort_run):
        length, left = Local("length", w.index_dtype), Infix("-", bound(last).value, start)
        w.define(length, Select(Infix("<", left, tuning().sort_run), left, tuning().sort_run), node, const=True)
        stop = Bound(length, ZERO, None, size)
        mine, numbers = _insertion(o, row, start, size, stop)
        i = Var("i", size)
        with w.loop(i, 0, stop, known=(("range", start.index + i.index, 0, n),)):
            to = bounded(start.index + i.index, 0, n)
            if short and result:
                w.store(place(result, row * n + to), element(numbers, i), node)
            else:
                w.store(place(pointers[0][0], to), element(mine, i), node)
                w.store(place(pointers[0][1], to), element(numbers, i), node)
    if passes:
        _merges(o, pointers, first, last, tuning().sort_run << passes)
    if result and not short:
        i = Var("i", n)
        with w.loop(i, 0, n):
            w.store(place(result, row * n + i.index), element(pointers[0][1], i), node)
    return o.finish()


def _insertion(o: KernelBuilder, row: Index, start: Var, size: int, stop: Bound) -> tuple[Array, Array]:
    """The keys of a run of up to `size` elements from `start` on, in order, and their numbers."""
    w, node, x = o.writer, o.node, o.node.operands[0]
    n = x.shape[-1]
    keys = w.array("keys", register_type(x.dtype), tuning().sort_run, node=node)
    order = w.array("order", w.index, tuning().sort_run, node=node)
    i = Var("i", size)
    with w.loop(i, 0, stop, known=(("range", start.index + i.index, 0, n),)):
        value = o.ev.value(x, row * n + start.index + i.index)
        to = w.variable("place", size, i)
        with w.repeat(Infix("&&", Infix(">", to, 0), precedes(node, value, element(keys, to.index - 1)))):
            w.store(place(keys, to), element(keys, to.index - 1), node)
            w.store(place(order, to), element(order, to.index - 1), node)
            w.update(to, "-", 1)
        w.store(place(keys, to), value, node)
        w.store(place(order, to), w.at(start.index + i.index), node)
    return keys, order


def _merges(o: KernelBuilder, pointers: list[list[Pointer]], first: BoundLike, last: BoundLike, size: int) -> None:
    """Merges the runs from `first` to `last`, until there is one of `size`, to and fro between two pairs of pointers; the first pair is
    what points to it in the end.
    """
    w, n = o.writer, o.node.shape[-1]
    (key_a, from_a), (key_b, from_b) = pointers
    run, start, to = Mutable("run", size), Mutable("start", n), Var("to", n)
    ends = bound(first), bound(last)
    with w.counting(run, tuning().sort_run, Infix("<", run, size), "*", 2):
        with w.counting(start, ends[0].value, Infix("<", start, ends[1].value), "+", run.index * 2, (("between", start.index, *ends),)):
            middle, stop = (w.known(name, n + 1, w.least(start.index + run.index * half, ends[1].value))
                            for name, half in (("middle", 1), ("stop", 2)))
            left, right = w.variable("left", n + 1, start), w.variable("right", n + 1, middle)
            with w.loop(to, start, Bound(w.at(stop), None, ends[1].high)):
                at = _next(o, key_a, left, right, middle, stop)
                w.store(place(key_b, to), element(key_a, at))
                w.store(place(from_b, to), element(from_a, at))
        for name, a, b in (("key", key_a, key_b), ("order", from_a, from_b)):
            held = Pointer(name, a.of, a.base, a.size)
            w.add(Declare(held, held.type, a))
            w.assign(a, b)
            w.assign(b, held)


def _next(o: KernelBuilder, key: Pointer, left: Var, right: Var, middle: Operand, stop: Operand) -> Var:
    """The number of the element that comes next in the merge of what is left of two runs, `left` to `middle` and `right` to `stop`."""
    w = o.writer
    better = precedes(o.node, element(key, right), element(key, left))
    at = w.variable("at", key.size, left)
    with w.branch(Infix("||", Infix(">=", left, middle), Infix("&&", Infix("<", right, stop), better))):
        w.assign(at, right)
        w.update(right, "+", 1)
    with w.otherwise():
        w.update(left, "+", 1)
    return at


def _merge(group: Group, context: Context, run: int, source: Pair, into: Pair | None) -> Kernel:
    """Merges each pair of runs of `run` elements."""
    o = KernelBuilder(group, context)
    node, w = o.node, o.writer
    n = node.shape[-1]
    part = min(tuning().sort_part if context.target.traits.long_items else tuning().sort_part_gpu, 2 * run)
    keys, order = (w.buffer(t, name, t.dtype, "const") for t, name in zip(source, ("keys_in", "order_in"), strict=True))
    written = [o.temp(t, name, "out") for t, name in zip(into, ("keys_out", "order_out"), strict=True)] if into else [o.output()]
    first, last = o.part("part", n, part)
    row = o.item("row", node.aval.size // n)
    begin = bound(first).high
    assert begin is not None
    start = w.known("start", n, begin // (2 * run) * (2 * run), "of the pair of runs")
    middle, stop = (w.known(name, n + 1, w.least(start.index + length, n)) for name, length in (("middle", run), ("stop", 2 * run)))
    key = w.pointer("key", keys, (), row * n, n)
    done = w.known("done", n, begin - start.index)
    low = _cut(o, key, start, middle, stop, done)
    left, right = w.variable("left", n + 1, start.index + low.index), w.variable("right", n + 1, middle.index + done.index - low.index)
    to = Var("to", n)
    with w.loop(to, first, last):
        at = _next(o, key, left, right, middle, stop)
        if into:
            w.store(place(written[0], row * n + to.index), element(key, at), node)
        w.store(place(written[-1], row * n + to.index), element(order, row * n + at.index), node)
    return o.finish()


def _cut(o: KernelBuilder, key: Pointer, start: Var, middle: Var, stop: Var, done: Var) -> Var:
    """How many of the first `done` elements of a merge come from the left run, which begins at `start`: a binary search."""
    w, n = o.writer, key.size
    left_out = w.at(done.index - (stop.index - middle.index))
    low = w.variable("low", n + 1, Select(Infix("<", left_out, 0), whole(0), left_out), "how many come from the left run")
    high = w.variable("high", n + 1, w.least(done, middle.index - start.index))
    with w.repeat(Infix("<", low, high)):
        probe = w.known("probe", n, Infix("+", low, Infix("/", Infix("-", high, low), 2)))
        mine = w.let("mine", element(key, w.at(start.index + probe.index)), o.node)
        other = w.let("other", element(key, w.at(middle.index + done.index - probe.index - 1)), o.node)
        with w.branch(precedes(o.node, other, mine)):
            w.assign(high, probe)
        with w.otherwise():
            w.assign(low, probe.index + 1)
    return low
