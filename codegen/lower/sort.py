"""argsort of the last dimension: insertion sort of short runs, then merges that double them. Start at `lower_sort`.

On a CPU a work-item first sorts a block that fits its cache, runs and merges. A merge of blocks cuts the result of each pair of them
into parts of equal length; a work-item finds by binary search where its part starts in either (the "merge path"), then merges
serially. Left runs come first among equals, so the sort is stable. On a GPU work-groups do it (sort_gpu.py).
"""

from __future__ import annotations

from tracegrad.codegen.kernel.expressions import Infix, Load, Local, Select, whole
from tracegrad.codegen.kernel.index import ZERO, Var
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import with_comment
from tracegrad.codegen.kernel.statements import Access, Allocate, Array, Bound, Pointer, Symbol, bound
from tracegrad.codegen.kernel.types import register_type
from tracegrad.codegen.kernel.vectors import ctype
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder, scratch
from tracegrad.codegen.lower.sort_gpu import sorts
from tracegrad.codegen.lower.workgroup import precedes
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import int32, int64

Pair = tuple[Temp, Temp]                # keys, and where they came from


@lowering("sort")
def lower_sort(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    if context.target.kind == "gpu":
        kernels = sorts(group, context)
        if kernels is not None:
            return kernels
    n = node.shape[-1]
    dtype = scratch(node.operands[0].dtype)
    index = int32 if n < 1 << 31 else int64
    pairs = [(Temp(f"keys_{side}", node, node.aval.size, dtype), Temp(f"order_{side}", node, node.aval.size, index)) for side in "ab"]
    run = tuning().sort_block if context.target.kind == "cpu" else tuning().sort_run
    side = _passes(min(n, run)) % 2
    made = [_blocks(group, context, run, pairs)]
    while run < n:
        made.append(_merge(group, context, run, pairs[side], None if 2 * run >= n else pairs[1 - side]))
        run, side = 2 * run, 1 - side
    return made


def _passes(n: int) -> int:
    """How often runs must be merged to sort n elements."""
    return max(0, (-(-n // tuning().sort_run) - 1).bit_length())


def _blocks(group: Group, context: Context, block: int, pairs: list[Pair]) -> Kernel:
    """Sorts blocks, one a work-item: into one of `pairs` (see _passes), or, if there is only one block, to the result."""
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    n, x = node.shape[-1], node.operands[0]
    key, short, passes = register_type(x.dtype), n <= tuning().sort_run, _passes(min(n, block))
    first, last = o.part("part", n, block)
    row = o.item("row", node.aval.size // n)
    base = (row * n).c()
    there: list[Symbol] = []                               # the four pointers that runs are merged between
    for (keys, order), side in zip(pairs[:0 if short else min(passes, 1) + 1], "ab", strict=False):
        for what, temp in (("key", keys), ("from", order)):
            pointer = w.buffer(temp, f"{'keys' if what == 'key' else 'order'}_{side}", temp.dtype, "inout")
            there.append(Pointer(f"{what}_{side}"))
            w.raw(f"__global {ctype(temp.dtype)} *{there[-1]} = {pointer} + {base};", node, (pointer, row), (there[-1],))
    start, i = Var("start", n), Var("i", min(tuning().sort_run, n))
    ends = bound(first), bound(last)
    with w.loop(start, first, last, tuning().sort_run):
        length, left = Local("length", w.index_dtype), Infix("-", ends[1].value, w.at(start))
        run = whole(tuning().sort_run)
        w.define(length, Select(Infix("<", left, run), left, run), node, const=True)
        mine, order_here = Array("keys", key, tuning().sort_run, False), Array("order", w.index, tuning().sort_run, False)
        w.add(Allocate(mine, node))
        w.add(Allocate(order_here, node))
        stop = Bound(length, ZERO, None, min(tuning().sort_run, n))
        with w.loop(i, 0, stop, known=(("range", start.index + i.index, 0, n),)):
            value = ev.value(x, row * n + start.index + i.index)
            w.text([
                f"{w.index} place = i;",
                f"for (; place > 0 && {precedes(node, value.text, 'keys[place - 1]')}; place--) {{ "
                "keys[place] = keys[place - 1]; order[place] = order[place - 1]; }",
                f"keys[place] = {value.text};",
                "order[place] = start + i;",
            ], node, (value, start, i, mine, order_here), (mine, order_here))
        out = context.output(group, node)
        result = w.buffer(out.ref, w.base(node), node.dtype, out.access) if n <= block else None
        each = Var("i", min(tuning().sort_run, n))
        with w.loop(each, 0, stop, known=(("range", start.index + each.index, 0, n),)):
            if short and result:
                at = row * n + start.index + each.index
                w.store(Access(result, at), Load(Access(order_here, each.index), w.index_dtype), node)
            else:
                both = ["key_a[start + i] = keys[i];", "from_a[start + i] = order[i];"]
                w.text(both, node, (start, each, mine, order_here), tuple(there))
    if passes:
        w.text([
            f"for ({w.index} run = {tuning().sort_run}; run < {tuning().sort_run << passes}; run *= 2) {{",
            f"  for ({w.index} start = {first}; start < {last}; start += 2 * run) {{",
            f"    const {w.index} middle = min(start + run, {last}), stop = min(start + 2 * run, {last});",
            f"    {w.index} left = start, right = middle;",
            f"    for ({w.index} to = start; to < stop; to++) {{",
            f"      const int from_right = left >= middle || (right < stop && {precedes(node, 'key_a[right]', 'key_a[left]')});",
            f"      const {w.index} at = from_right ? right++ : left++;",
            "      key_b[to] = key_a[at];",
            "      from_b[to] = from_a[at];",
            "    }",
            "  }",
            f"  __global {ctype(pairs[0][0].dtype)} *key = key_a; key_a = key_b; key_b = key;",
            f"  __global {ctype(pairs[0][1].dtype)} *order = from_a; from_a = from_b; from_b = order;",
            "}",
        ], node, (*there, ends[0].value, ends[1].value), tuple(there))
    if result and not short:
        writes = (Access(result, None),)
        w.raw(f"for ({w.index} i = 0; i < {n}; i++) {result}[{base} + i] = from_a[i];", node, (*there, row), writes=writes)
    return o.finish()


def _merge(group: Group, context: Context, run: int, source: Pair, into: Pair | None) -> Kernel:
    """Merges each pair of runs of `run` elements."""
    o = KernelBuilder(group, context)
    node, w = o.node, o.writer
    n, index = node.shape[-1], w.index
    part = min(tuning().sort_part if context.target.kind == "cpu" else tuning().sort_part_gpu, 2 * run)
    keys, order = (w.buffer(t, name, t.dtype, "const") for t, name in zip(source, ("keys_in", "order_in"), strict=True))
    if into is None:
        out = context.output(group, node)
        written = [w.buffer(out.ref, w.base(node), node.dtype, out.access)]
    else:
        written = [w.buffer(t, name, t.dtype, "out") for t, name in zip(into, ("keys_out", "order_out"), strict=True)]
    first = o.item("part", -(-n // part)) * part
    row = o.item("row", node.aval.size // n)
    w.text([
        f"const {index} first = {first.c()};",
        f"const {index} last = first + {part} < {n} ? first + {part} : {n};",
        with_comment(f"const {index} start = first / {2 * run} * {2 * run};", "of the pair of runs"),
        f"const {index} middle = start + {run} < {n} ? start + {run} : {n};",
        f"const {index} stop = start + {2 * run} < {n} ? start + {2 * run} : {n};",
        f"__global const {ctype(source[0].dtype)} *key = {keys} + {(row * n).c()};",
        f"{index} done = first - start;",
        with_comment(f"{index} low = done > stop - middle ? done - (stop - middle) : 0;", "how many come from the left run"),
        f"{index} high = done < middle - start ? done : middle - start;",
        "while (low < high) {",
        f"  const {index} probe = low + (high - low) / 2;",
        f"  const {ctype(source[0].dtype)} mine = key[start + probe], other = key[middle + done - probe - 1];",
        f"  if {precedes(node, 'other', 'mine')} high = probe; else low = probe + 1;",
        "}",
        f"{index} left = start + low, right = middle + done - low;",
        f"for ({index} to = first; to < last; to++) {{",
        f"  const int from_right = left >= middle || (right < stop && {precedes(node, 'key[right]', 'key[left]')});",
        f"  const {index} at = from_right ? right++ : left++;",
        *([f"  {written[0]}[{(row * n).c()} + to] = key[at];"] if into else []),
        f"  {written[-1]}[{(row * n).c()} + to] = {order}[{(row * n).c()} + at];",
        "}",
    ], node, (first, row, keys, order), tuple(Access(b, None) for b in written))
    return o.finish()
