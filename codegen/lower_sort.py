"""argsort of the last dimension: insertion sort of short runs, then merges that double them. Start at `lower_sort`.

A merge cuts the result of each pair of runs into parts of equal length; a work-item finds by binary search where its part starts
in either run (the "merge path"), then merges serially. Left runs come first among equals, so the sort is stable.
"""

from __future__ import annotations

from tracegrad.codegen.kernel import Kernel, Temp
from tracegrad.codegen.lower import Context, lowering
from tracegrad.codegen.opencl import register_type
from tracegrad.codegen.owners import Owner, scratch
from tracegrad.codegen.schedule import Group
from tracegrad.codegen.vectors import ctype
from tracegrad.dtypes import int32, int64

RUN = 32            # elements that one work-item sorts by insertion
PART = {"cpu": 4096, "gpu": 16}         # elements that one work-item merges


@lowering("sort")
def lower_sort(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    assert node is not None
    n = node.shape[-1]
    dtype = scratch(node.operands[0].dtype)
    index = int32 if n < 1 << 31 else int64
    pairs = [(Temp(f"keys_{side}", node, node.aval.size, dtype), Temp(f"order_{side}", node, node.aval.size, index)) for side in "ab"]
    kernels = [_runs(group, context, None if n <= RUN else pairs[0])]
    run, side = RUN, 0
    while run < n:
        kernels.append(_merge(group, context, run, pairs[side], None if 2 * run >= n else pairs[1 - side]))
        run, side = 2 * run, 1 - side
    return kernels


def _precedes(o: Owner, a: str, b: str) -> str:
    """Whether key a must stand before key b."""
    descending, is_float = o.node.attrs["descending"], o.node.operands[0].dtype.kind == "f"
    plain = f"{a} {'>' if descending else '<'} {b}"
    nan, other = (a, b) if descending else (b, a)
    return f"({plain} || ({nan} != {nan} && {other} == {other}))" if is_float else f"({plain})"


def _runs(group: Group, context: Context, into: tuple[Temp, Temp] | None) -> Kernel:
    """Sorts runs of RUN elements; `into` takes keys and order (None: this is the result)."""
    o = Owner(group, context)
    node, w, ev = o.node, o.writer, o.ev
    n, x = node.shape[-1], node.operands[0]
    rows = node.aval.size // n
    key, length = register_type(x.dtype, w.target), min(RUN, n)
    run = o.item("run", -(-n // RUN))
    row = o.item("row", rows)
    if n % RUN and n > RUN:
        length_text = w.declare(w.index, "length", f"{n} - {(run * RUN).c()} < {RUN} ? {n} - {(run * RUN).c()} : {RUN}", node)
    else:
        length_text = str(length)
    w.line(f"{key} keys[{length}];", node)
    w.line(f"{w.index} order[{length}];", node)
    with o.loop("i", length, "0", length_text) as i:
        value = ev.value(x, row * n + run * RUN + i)
        w.line(f"{w.index} place = {i.c()};", node)
        w.line(f"for (; place > 0 && {_precedes(o, value.text, 'keys[place - 1]')}; place--) {{ "
               "keys[place] = keys[place - 1]; order[place] = order[place - 1]; }", node)
        w.line(f"keys[place] = {value.text};", node)
        w.line(f"order[place] = {(run * RUN + i).c()};", node)
    names = _pointers(o, into)
    with o.loop("j", length, "0", length_text) as j:
        at = (row * n + run * RUN + j).c()
        if into:
            w.line(f"{names[0]}[{at}] = keys[{j.c()}];", node)
        w.line(f"{names[1]}[{at}] = order[{j.c()}];", node)
    return o.finish()


def _pointers(o: Owner, into: tuple[Temp, Temp] | None) -> tuple[str, str]:
    """Where keys and order are written."""
    if into is None:
        out = o.context.output(o.group, o.node)
        return "", o.writer.buffer(out.ref, o.writer.base(o.node), o.node.dtype, out.access)
    keys, order = into
    return o.writer.buffer(keys, "keys_out", keys.dtype, "out"), o.writer.buffer(order, "order_out", order.dtype, "out")


def _merge(group: Group, context: Context, run: int, source: tuple[Temp, Temp], into: tuple[Temp, Temp] | None) -> Kernel:
    """Merges each pair of runs of `run` elements."""
    o = Owner(group, context)
    node, w = o.node, o.writer
    n, index = node.shape[-1], w.index
    part = min(PART[context.target.kind], 2 * run)
    keys, order = (w.buffer(t, name, t.dtype, "const") for t, name in zip(source, ("keys_in", "order_in"), strict=True))
    keys_out, order_out = _pointers(o, into)
    first = o.item("part", -(-n // part)) * part
    row = o.item("row", node.aval.size // n)
    lines = [
        f"const {index} first = {first.c()};",
        f"const {index} last = first + {part} < {n} ? first + {part} : {n};",
        f"const {index} start = first / {2 * run} * {2 * run};                  // of the pair of runs",
        f"const {index} middle = start + {run} < {n} ? start + {run} : {n};",
        f"const {index} stop = start + {2 * run} < {n} ? start + {2 * run} : {n};",
        f"__global const {ctype(source[0].dtype)} *key = {keys} + {(row * n).c()};",
        f"{index} done = first - start;",
        f"{index} low = done > stop - middle ? done - (stop - middle) : 0;      // how many come from the left run",
        f"{index} high = done < middle - start ? done : middle - start;",
        "while (low < high) {",
        f"  const {index} probe = (low + high) / 2;",
        f"  const {ctype(source[0].dtype)} mine = key[start + probe], other = key[middle + done - probe - 1];",
        f"  if {_precedes(o, 'other', 'mine')} high = probe; else low = probe + 1;",
        "}",
        f"{index} left = start + low, right = middle + done - low;",
        f"for ({index} to = first; to < last; to++) {{",
        f"  const int from_right = left >= middle || (right < stop && {_precedes(o, 'key[right]', 'key[left]')});",
        f"  const {index} at = from_right ? right++ : left++;",
        *([f"  {keys_out}[{(row * n).c()} + to] = key[at];"] if into else []),
        f"  {order_out}[{(row * n).c()} + to] = {order}[{(row * n).c()} + at];",
        "}",
    ]
    for line in lines:
        w.line(line, node)
    return o.finish()
