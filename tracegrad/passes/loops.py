"""A loop's body in two parts: what is computed before the iterations, and in each of them. Start at `shortened` and `hoisted`.

Nodes of the body are told apart by what they depend on (`dependence`). What depends on constants alone is computed once, before the loop.
What no carry goes into may be computed for all iterations together, before the loop, as one operation on arrays with a row an iteration.

NumPy does both (`shortened`) where arrays are small: it takes as long to begin an operation as it computes for a thousand elements. Kernels
do only the first, for what is slow (`hoisted`): the rest would be stored and read again, where it now stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tracegrad.autodiff.batching import batch
from tracegrad.graph.ir import Aval, Graph, Node, topological
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import bind, placeholder
from tracegrad.graph.substitution import rebound, replaced, substituted, that_matter

CONSTANT, ROW, CARRIED = range(3)      # what a node of a body depends on: nothing that changes, what is scanned, a carry


def dependence(graph: Graph, carries: int, rows: int, early: Callable[[Node], bool] = lambda node: True) -> dict[Node, int]:
    """What each node of a body depends on. Of its inputs the first `carries` are carries, the next `rows` are rows.

    early: which nodes of rows may be computed before the loop; others count as an iteration's own.
    """
    found = {n: CARRIED if i < carries else ROW if i < carries + rows else CONSTANT for i, n in enumerate(graph.inputs)}
    for node in graph:
        if node not in found:
            of = max((found[o] for o in node.operands), default=CONSTANT)
            found[node] = CARRIED if of == ROW and not early(node) else of
    return found


def reaching(outs: Sequence[Node], sources: Sequence[Node]) -> set[Node]:
    """`sources`, and the nodes before `outs` that depend on one of them."""
    found = set(sources)
    for node in topological(outs, found.__contains__):
        if any(o in found for o in node.operands):
            found.add(node)
    return found


def reached(outs: Sequence[Node], sources: Sequence[Node], exactly: bool = False) -> dict[Node, None]:
    """Which of `sources` there are before `outs`; exactly: which their values depend on."""
    wanted = set(sources)
    return {n: None for n in topological(outs, wanted.__contains__, that_matter if exactly else None) if n in wanted}


def border(ends: Sequence[Node], inside: Callable[[Node], bool], inputs: Collection[Node]) -> list[Node]:
    """What is not `inside`, nor one of `inputs`, and read where `ends` are computed. Numbers are nothing to compute elsewhere."""
    found: dict[Node, None] = {}
    for node in topological(ends, lambda n: n in inputs or not inside(n)):
        if node not in inputs and not inside(node) and node.operands:
            found[node] = None
    return list(found)


def hoisted(graph: Graph) -> Graph:
    """The graph with products, reductions and whatever else is slow before its loops, where they depend on a loop's constants alone."""
    known: dict[Any, tuple[Any, list[Node]]] = {}

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        fn: Any = node.fn
        if fn.family == "loop":
            if fn not in known:
                known[fn] = _without_slow(fn)
            loop, slow = known[fn]
            own = fn.body.carries + fn.body.rows
            if slow:
                with located(node.loc):
                    operands = (*operands, *substituted(slow, dict(zip(fn.graph.inputs[own:], operands[own:], strict=True))))
                    return bind(loop, operands, node.attrs)
        return rebound(node, operands)

    return graph.rebuilt(replace) if any(node.fn.family == "loop" for node in graph) else graph


def _without_slow(loop: Any) -> tuple[Any, list[Node]]:
    """The loop with further constants, and the nodes of its body that these are."""
    graph, body = hoisted(loop.graph), loop.body
    depends = dependence(graph, body.carries, body.rows)
    slow = {n for n in graph if n.operands and depends[n] == CONSTANT and n.fn.expensive and n.fn.registered and not n.fn.reports}
    if not slow and graph.outputs == loop.graph.outputs:
        return loop, []
    found = border(graph.outputs, lambda n: n not in slow, set(graph.inputs))
    stand_ins = {n: placeholder(n.aval) for n in found}
    return loop.of_body([*graph.inputs, *stand_ins.values()], substituted(graph.outputs, stand_ins)), found


def counted_before(graph: Graph) -> Graph:
    """The graph with counters of elementwise loops as loops of their own, before them: what they count is scanned.

    A counter is a carry of one number that depends on such numbers alone. Without it the elements of the other carries depend on nothing
    but themselves, and a kernel does all iterations for some of them.
    """
    known: dict[Any, _Counters | None] = {}
    first: dict[Any, list[Node]] = {}

    def counters(loop: Any) -> _Counters | None:
        if loop not in known:
            known[loop] = _counters(loop)
        return known[loop]

    def made(node: Node, *operands: Node) -> Node:
        found = counters(node.fn)
        assert found is not None
        return found.result(node.attrs["index"], operands, first)

    return replaced(graph, lambda node: node.fn.family == "loop" and counters(node.fn) is not None, made)


_MANY = 1 << 14              # elements of a carry, from which on it is worth a loop more: of fewer, one core does all iterations as soon


class _Counters:
    """A loop in two. own: the numbers of the carries and rows of counters; early: results that depend on these alone."""

    def __init__(self, loop: Any, own: set[int], early: set[int]) -> None:
        inputs, outs, n, rows = list(loop.graph.inputs), list(loop.graph.outputs), loop.body.carries, loop.body.rows
        self.own, self.early, self.carries, self.rows = own, early, n, rows
        self.counts, self.others = ([i for i in range(n) if (i in own) == mine] for mine in (True, False))
        scanned = range(n, n + rows)
        constants = range(n + rows, len(inputs))
        self.before = [*self.counts, *(i for i in scanned if i in own), *constants]
        self.after = [*self.others, *scanned, *constants]
        stacked = [i for i in range(n, len(outs)) if i in early]
        self.counter = loop.of_parts([inputs[i] for i in self.before], [*(outs[i] for i in (*self.counts, *stacked)),
                                     *(inputs[i] for i in self.counts)], len(self.counts), sum(i in own for i in scanned))
        self.ends = {i: k for k, i in enumerate((*self.counts, *stacked))}
        wanted = [i for i in range(len(outs)) if i not in self.ends]
        k = len(self.others)
        self.rest = loop.of_parts([inputs[i] for i in (*self.others, *self.counts, *self.after[k:])], [outs[i] for i in wanted], k,
                                  len(self.counts) + rows)
        self.place = {i: k for k, i in enumerate(wanted)}

    def result(self, index: int, operands: Sequence[Node], known: dict[Any, list[Node]]) -> Node:
        """The result that had this number in the loop, for the loop's operands."""
        given = tuple([operands[i] for i in self.before])
        if index in self.ends:
            return bind(self.counter, given, {"index": self.ends[index]})
        if (self, given) not in known:
            known[self, given] = [bind(self.counter, given, {"index": len(self.ends) + k}) for k in range(len(self.counts))]
        k = len(self.others)
        rest = (*(operands[i] for i in self.others), *known[self, given], *(operands[i] for i in self.after[k:]))
        return bind(self.rest, rest, {"index": self.place[index]})


def _counters(loop: Any) -> _Counters | None:
    """The counters of an elementwise loop, if it has some."""
    graph, n, rows = loop.graph, loop.body.carries, loop.body.rows
    inputs, outs = list(graph.inputs), list(graph.outputs)
    large = {p.aval.size for p in inputs[:n]} - {1}
    counts = {i for i in range(n) if inputs[i].aval.size == 1}
    if len(large) != 1 or not counts or (size := large.pop()) < _MANY:
        return None
    few = set(inputs[n:])
    few -= {p for p in inputs[n:n + rows] if p.aval.size > 1}

    def depends(i: int) -> bool:
        return any(x not in few and inputs.index(x) not in counts for x in reached([outs[i]], inputs))

    while away := {i for i in counts if depends(i)}:
        counts -= away
    if not counts:
        return None
    early = {i for i in range(n, len(outs)) if not depends(i)}
    own = counts | {i for i in range(n, n + rows) if inputs[i] in few}
    left = [o for i, o in enumerate(outs) if i not in counts and i not in early]
    if not all(_by_element(x, size) for x in topological(left)) or any(o.aval.size != size for o in left):
        return None
    return _Counters(loop, own, early)


def _by_element(node: Node, size: int) -> bool:
    """Whether an element of a value of so many depends on that element alone, and on what is one number."""
    fn = node.fn
    if fn.family in ("leaf", "index") or not node.operands:
        return True
    if fn.family == "movement":
        return all(o.aval.size == 1 for o in node.operands) or node.aval.size == 1 or (
            fn.name == "reshape" and node.aval.size in (1, size))
    return fn.family == "elementwise" and not fn.reports and node.aval.size in (1, size)


def shortened(graph: Graph, early: Callable[[Node, int], bool]) -> Graph:
    """The graph with, before its loops, what no carry goes into: for all iterations together, as far as somebody reads it.

    early(node, length): whether an operation on rows is better done so.
    """
    used: dict[Any, set[int]] = {}
    for node in graph:
        if node.fn.family == "loop":
            used.setdefault((node.fn, node.operands), set()).add(node.attrs["index"])

    def made(node: Node, *operands: Node) -> Node:
        fn: Any = node.fn
        key = tuple(sorted(used[fn, node.operands]))
        if key not in fn.prepared:
            fn.prepared[key] = _Shortened(fn, key, early)
        found: _Shortened = fn.prepared[key]
        return found.result(node.attrs["index"], operands)

    return replaced(graph, lambda node: node.fn.family == "loop", made)


class _Shortened:
    """A loop without what is computed before it, and that: of scanned arrays and constants (`given`) the nodes `before`.

    `ahead` of these are rows that iterations read, the last ones are the same for all iterations, and between them are results.
    """

    def __init__(self, loop: Any, used: Sequence[int], early: Callable[[Node, int], bool]) -> None:
        graph, n, length = loop.graph, loop.body.carries, loop.length
        inputs, outs, m = list(graph.inputs), list(graph.outputs), n + loop.body.rows
        depends = dependence(graph, n, loop.body.rows, lambda node: early(node, length))
        wanted = dict.fromkeys(outs[i] for i in used if i >= n)
        whole, inner = ([x for x in wanted if (depends[x] == CARRIED) == own] for own in (False, True))
        ends = [*outs[:n], *inner]
        read = border(ends, lambda x: depends[x] == CARRIED, set(inputs))
        rows, same = ([x for x in read if depends[x] == kind] for kind in (ROW, CONSTANT))
        stand_ins = {x: placeholder(x.aval) for x in read}
        new = substituted(ends, stand_ins)
        there = set(topological(new))
        self.scanned = [i for i in range(n, m) if inputs[i] in there]
        self.loop = loop.of_parts([*inputs[:n], *(inputs[i] for i in self.scanned), *(stand_ins[x] for x in rows), *inputs[m:],
                                   *(stand_ins[x] for x in same)], new, n, len(self.scanned) + len(rows))
        wholes = {p: placeholder(Aval((length, *p.shape), p.dtype)) for p in inputs[n:m]}
        self.given, self.before = [*wholes.values(), *inputs[m:]], [*batch([*rows, *whole], wholes, length), *same]
        self.carries, self.rows, self.ahead, self.same = n, m, len(rows), len(same)
        self.whole = {i: len(rows) + whole.index(outs[i]) for i in used if i >= n and outs[i] in whole}
        self.inner = {i: i if i < n else n + inner.index(outs[i]) for i in used if i not in self.whole}

    def result(self, index: int, operands: Sequence[Node]) -> Node:
        """The result that had this number in the loop, for the loop's operands."""
        found = substituted(self.before, dict(zip(self.given, operands[self.carries:], strict=True)))
        if index in self.whole:
            return found[self.whole[index]]
        ahead, same = found[:self.ahead], found[len(found) - self.same:]
        moving = (*operands[:self.carries], *(operands[i] for i in self.scanned), *ahead)
        return bind(self.loop, (*moving, *operands[self.rows:], *same), {"index": self.inner[index]})
