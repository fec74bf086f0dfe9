"""topk of the last dimension: one pass over a row that keeps the best k in a heap. Start at `lower_selection`.

The root of the heap is the worst of the kept ones: most elements are compared with it and no more. A long row that would leave cores
idle is cut in chunks; a second kernel then selects among what the chunks kept, in order, so that the first of equals comes first.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index import Index, Var
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.writer import register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import Owner, parts
from tracegrad.codegen.lower.sort import precedes
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import int64


@lowering("selection")
def lower_selection(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    assert node is not None
    k, n = node.shape[-1], node.operands[0].shape[-1]
    rows = node.aval.size // k
    chunks = max(1, min(-(-parts(context) // rows), n // max(tuning().select_chunk, 16 * k)))
    length = -(-n // chunks)
    chunks = -(-n // length)
    if chunks == 1:
        return [_select(group, context, length, None)]
    kept = Temp("kept", node, rows * chunks * k, int64)
    return [_select(group, context, length, kept), _select_kept(group, context, length, kept)]


def _start(o: Owner) -> None:
    w, k = o.writer, o.node.shape[-1]
    w.line(f"{register_type(o.node.operands[0].dtype)} keys[{k}];", o.node)
    w.line(f"{w.index} order[{k}];", o.node)
    w.line(f"{w.index} length = 0;", o.node)


def _offer(o: Owner, row: Index, at: Index) -> None:
    """Element `at` of the row takes its place in the heap; it comes after all that are there, so of equals it is the worse one."""
    w, k = o.writer, o.node.shape[-1]
    x = o.node.operands[0]
    value = o.ev.value(x, row * x.shape[-1] + at).text
    w.open(f"if (length < {k}) {{", ())
    w.line(f"{w.index} place = length++;", o.node)
    w.line(f"for (; place > 0 && !{precedes(o, value, 'keys[(place - 1) / 2]')}; place = (place - 1) / 2) {{ "
           "keys[place] = keys[(place - 1) / 2]; order[place] = order[(place - 1) / 2]; }", o.node)
    w.line(f"keys[place] = {value};", o.node)
    w.line(f"order[place] = {at.c()};", o.node)
    w.close()
    w.open(f"else if {precedes(o, value, 'keys[0]')} {{", ())
    _sink(o, value, at.c(), str(k))
    w.close()


def _sink(o: Owner, key: str, number: str, length: str) -> None:
    """The element moves down from the root, past all that are worse."""
    w = o.writer
    for line in (
        f"{w.index} place = 0;",
        f"for ({w.index} child = 1; child < {length}; child = 2 * place + 1) {{",
        f"  if (child + 1 < {length} && ({precedes(o, 'keys[child]', 'keys[child + 1]')} ||",
        f"      (!{precedes(o, 'keys[child + 1]', 'keys[child]')} && order[child + 1] > order[child]))) child++;",
        f"  if (!{precedes(o, key, 'keys[child]')} && ({precedes(o, 'keys[child]', key)} || order[child] < {number})) break;",
        "  keys[place] = keys[child];",
        "  order[place] = order[child];",
        "  place = child;",
        "}",
        f"keys[place] = {key};",
        f"order[place] = {number};",
    ):
        w.line(line, o.node)


def _finish(o: Owner, pointer: str, first: Index) -> Kernel:
    """Takes the worst out of the heap until it is in order, and writes it."""
    w, node = o.writer, o.node
    w.open(f"for ({w.index} last = length - 1; last > 0; last--) {{")
    w.line(f"const {register_type(node.operands[0].dtype)} mine = keys[last];", node)
    w.line(f"const {w.index} from = order[last];", node)
    w.line("keys[last] = keys[0];", node)
    w.line("order[last] = order[0];", node)
    _sink(o, "mine", "from", "last")
    w.close()
    with o.loop("j", o.node.shape[-1], last="length") as j:
        w.line(f"{pointer}[{(first + j).c()}] = order[{j.c()}];", node)
    return o.finish()


def _select(group: Group, context: Context, length: int, kept: Temp | None) -> Kernel:
    """The best k of each chunk of each row, in order."""
    o = Owner(group, context)
    n, k = o.node.operands[0].shape[-1], o.node.shape[-1]
    chunks, rows = -(-n // length), o.node.aval.size // k
    chunk, row = o.item("chunk", chunks), o.item("row", rows)
    _start(o)
    end = (chunk * length + length).c()
    with o.loop("i", n, (chunk * length).c(), end if n % length == 0 else f"({end} < {n} ? {end} : {n})") as i:
        _offer(o, row, i)
    out = context.output(group, o.node)
    pointer = o.writer.buffer(kept, "kept", int64, "out") if kept else o.writer.buffer(out.ref, o.writer.base(o.node), int64, out.access)
    return _finish(o, pointer, (row * chunks + chunk) * k)


def _select_kept(group: Group, context: Context, length: int, kept: Temp) -> Kernel:
    """The best k of what the chunks of each row kept."""
    o = Owner(group, context)
    w, n, k = o.writer, o.node.operands[0].shape[-1], o.node.shape[-1]
    chunks, rows = -(-n // length), o.node.aval.size // k
    source = w.buffer(kept, "kept", int64, "const")
    row = o.item("row", rows)
    _start(o)
    last = n - (chunks - 1) * length                        # elements of the last chunk: it may have kept fewer than k
    with o.loop("chunk", chunks) as chunk, o.loop("j", k, last="" if last >= k else f"(chunk < {chunks - 1} ? {k} : {last})") as j:
        at = Var(w.declare(w.index, "at", f"{source}[{((row * chunks + chunk) * k + j).c()}]", o.node), n)
        w.blocks[-1].vars |= {at}
        _offer(o, row, at.index)
    out = context.output(group, o.node)
    return _finish(o, w.buffer(out.ref, w.base(o.node), int64, out.access), row * k)
