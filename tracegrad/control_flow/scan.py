"""Loops of a known length as nodes: what `tg.scan` records. Start at `loop_nodes`; `Loop` is what runs, `LoopCall.vjp` the derivative.

A loop's body is recorded once, as a closed graph (`Body`): carries, rows of what is scanned and constants in, new carries and rows of
results out. A `Loop` is one operation with several results, a node each, like a factorization: the last carries and the stacked rows. As
in `cond`, differentiation sees it through a custom call beside it (`LoopCall`), whose derivative is a loop again, which runs the other way
over what the first one kept: its carries, and what is slow to compute again. What nobody reads of that is never computed (`Loop.trimmed`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.batching import batch, spread
from tracegrad.autodiff.derivatives import dense, substituted, variable, zeros_like
from tracegrad.execute.compile import executable_graph
from tracegrad.graph.canonical import Key, canonical
from tracegrad.graph.ir import Aval, Graph, Node, topological
from tracegrad.graph.primitive import REGISTRY, CustomCall, Shared, bind, in_registry, placeholder, to_keep
from tracegrad.numpy_backend.interpreter import run_loop
from tracegrad.ops.primitives.movement import narrow, permute, reshape
from tracegrad.passes.loops import reached, reaching
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import differentiable
from tracegrad.support.modes import state
from tracegrad.support.plan import Check

_VARIABLE, _DETACH, _OUTPUT = REGISTRY["variable"], REGISTRY["detach"], REGISTRY["output"]
_NEG = REGISTRY["neg"]


class Body:
    """One turn of a loop, as a graph of its own. inputs: placeholders of `carries` carries, then of `rows` rows, then of constants;

    outs: the new carries, then the rows of the results.
    """

    def __init__(self, inputs: Sequence[Node], outs: Sequence[Node], carries: int, rows: int) -> None:
        self.inputs, self.outs, self.carries, self.rows = list(inputs), list(outs), carries, rows

    def __call__(self, values: Sequence[Node]) -> list[Node]:
        return substituted(self.outs, dict(zip(self.inputs, values, strict=True)))

    @property
    def graph(self) -> Graph:
        return Graph.capture(self.inputs, self.outs)


def needed_inputs(body: Body, results: Sequence[int]) -> list[int]:
    """The numbers of the inputs that some results of a loop over the body depend on, after any number of turns."""
    n, inputs, outs = body.carries, body.inputs, body.outs
    last = [inputs[i] for i in results if i < n]
    live = dict.fromkeys(last)
    while True:
        turned = [outs[i] for i in range(n) if inputs[i] in live]
        found = dict.fromkeys(last) | reached([*(outs[i] for i in results), *turned], inputs, exactly=True)
        if len(found) == len(live):
            return [i for i, p in enumerate(inputs) if p in live]
        live = found


class Loop(Shared):
    """`length` turns of a body (the last row first if `reverse`). Operands: the first carries, what is scanned, the constants.

    Results: the last carries, then the rows of each turn, stacked. Not in REGISTRY: an instance per loop.
    """

    family = "loop"

    def __init__(self, body: Body, length: int, reverse: bool) -> None:
        super().__init__()
        self.name = "scan"  # type: ignore[misc]
        self.body, self.length, self.reverse = body, length, reverse
        self._batched: dict[Any, tuple[Loop, list[bool], list[bool]]] = {}
        self._trimmed: dict[Any, Any] = {}
        self._relevant: dict[int, list[int]] = {}
        self._calls: dict[Any, LoopCall] = {}
        self.prepared: dict[Any, Any] = {}                # what a backend keeps of it, for as long as it is there
        n = body.carries
        self._avals = (*(o.aval for o in body.outs[:n]), *(Aval((length, *o.shape), o.dtype) for o in body.outs[n:]))
        self._graph: Graph | None = None
        self._executable = False                          # whether the body has nothing for differentiation

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        """Those of the results; ValueError if the operands are not what the body takes (the graph checker asks)."""
        n, rows = self.body.carries, self.body.rows
        for i, (o, p) in enumerate(zip(operands, self.body.inputs, strict=True)):
            wanted = (self.length, *p.shape) if n <= i < n + rows else p.shape
            if (o.shape, o.dtype) != (wanted, p.dtype):
                raise ValueError(f"operand {i} is {o}, the body takes {p.aval}")
        for p, out in zip(self.body.inputs[:n], self.body.outs, strict=False):
            if (p.shape, p.dtype) != (out.shape, out.dtype):
                raise ValueError(f"the body makes {out.aval} of a carry {p.aval}")
        return self._avals

    @property
    def described(self) -> tuple[Any, ...]:
        return self.length, self.reverse, self.body.carries, self.body.rows, self.graph

    @property
    def graph(self) -> Graph:
        """The body without what only differentiation cares about: what runs."""
        if self._graph is None:
            self._graph = executable_graph(self.body.graph)
        return self._graph

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        return run_loop(self, arrays)[0]

    def of_body(self, inputs: Sequence[Node], outs: Sequence[Node]) -> Loop:
        """The loop with another executable body, of as many carries and rows."""
        loop = Loop(Body(inputs, outs, self.body.carries, self.body.rows), self.length, self.reverse)
        loop._executable = True
        return loop

    @cached_property
    def ordinary(self) -> bool:
        """Whether a turn is made of the library's own operations alone."""
        return all(n.fn.ordinary if isinstance(n.fn, (Loop, LoopCall)) else in_registry(n.fn) for n in self.body.graph)

    @cached_property
    def reports(self) -> bool:  # type: ignore[override]
        return any(n.fn.reports for n in self.graph)

    def checks(self, node: Node | None = None) -> tuple[Check, ...]:
        """What the body's operations have to report."""
        found = [n for n in self.graph if n.fn.reports]
        return tuple(c for n in found for c in n.fn.checks(n))  # type: ignore[attr-defined]

    # -- as text

    @property
    def shown(self) -> list[tuple[str, Any]]:
        """What the text of a graph says of it."""
        return [("length", self.length), *([("reverse", True)] if self.reverse else [])]

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        n, rows = self.body.carries, self.body.rows
        carry = [f"c{i}" if n > 1 else "c" for i in range(n)]
        row = [f"x{i}" if rows > 1 else "x" for i in range(rows)]
        turn = define("turn", self.graph)

        def tupled(parts: Sequence[str]) -> str:
            return f"({', '.join(parts)}{',' * (len(parts) == 1)})"

        ends = f"{tupled(operands[:n])}, {tupled(operands[n:n + rows])}, length={self.length}{', reverse=True' * self.reverse}"
        arguments = ", ".join([*(["*carry"] if carry else []), *(["*row"] if row else []), *operands[n + rows:]])
        step = f"lambda carry, row: pair({arguments})"
        pair = define("pair", f"lambda *values: ((made := {turn}(*values))[:{n}], made[{n}:])")
        call = f"sum(tg.scan({step.replace('pair(', pair + '(')}, {ends}), ())"
        return f"{call}[0]" if len(self._avals) == 1 else call

    # -- what is left of it

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        if index not in self._relevant:
            self._relevant[index] = needed_inputs(self.body, [index])
        return self._relevant[index]

    def trimmed(self, used: Sequence[int], operands: Sequence[Node]) -> tuple[Loop, tuple[Node, ...], dict[int, int]]:
        """The loop that computes the results `used` and nothing else, its operands, and where it has each of those results."""
        body = self.body
        n, rows = body.carries, body.rows
        graph = self.graph
        inputs, outs = list(graph.inputs), list(graph.outputs)
        level = tuple(_repeats(o) for o in operands[n:n + rows])
        key = (tuple(used), level)
        if key not in self._trimmed:
            wanted = {i for i in used if i < n}
            kept_ys = [i for i in used if i >= n]
            live = reached([outs[i] for i in (*wanted, *kept_ys)], inputs)
            while True:
                more = {i for i in range(n) if inputs[i] in live} | wanted
                found = reached([outs[i] for i in (*more, *kept_ys)], inputs)
                if found == live:
                    break
                live = found
            carries = [i for i in range(n) if inputs[i] in live or i in wanted]
            scanned = [i for i in range(n, n + rows) if inputs[i] in live and not level[i - n]]
            rest = [i for i in range(n, len(inputs)) if inputs[i] in live and (i >= n + rows or level[i - n])]
            new = Body([inputs[i] for i in (*carries, *scanned, *rest)], [outs[i] for i in (*carries, *kept_ys)], len(carries),
                       len(scanned))
            place = {i: k for k, i in enumerate(carries) if i in wanted} | {i: len(carries) + k for k, i in enumerate(kept_ys)}
            all_of_it = len(new.inputs) == len(inputs) and len(new.outs) == len(outs) and new.rows == rows and self._executable
            self._trimmed[key] = self if all_of_it else Loop(new, self.length, self.reverse), carries, scanned, rest, place
            self._trimmed[key][0]._executable = True
        loop, carries, scanned, rest, place = self._trimmed[key]
        first = [reshape(narrow(operands[i], 0, 0, 1), operands[i].shape[1:]) if i < n + rows else operands[i] for i in rest]
        return loop, (*(operands[i] for i in carries), *(operands[i] for i in scanned), *first), place

    # -- over a batch

    def batched(self, flags: Sequence[bool], size: int) -> tuple[Loop, list[bool], list[bool]]:
        """The loop over a batch of operands (those with a flag), which carries then have a batch, and which results."""
        key = (tuple(flags), size)
        if key not in self._batched:
            body = self.body
            n, rows = body.carries, body.rows
            mapped = list(flags)
            while True:
                depends = reaching(body.outs, [p for p, f in zip(body.inputs, mapped, strict=True) if f])
                grown = [f or body.outs[i] in depends for i, f in enumerate(mapped[:n])]
                if grown == mapped[:n]:
                    break
                mapped[:n] = grown
            inputs = [placeholder(Aval((size, *p.shape), p.dtype), p.attrs["label"]) if f else p
                      for p, f in zip(body.inputs, mapped, strict=True)]
            # Of variables, so that what is there for differentiation stays there.
            live = {p: variable(p) if differentiable(p.dtype) else p for p in (*body.inputs, *inputs)}
            lifted = batch(substituted(body.outs, {p: live[p] for p in body.inputs}),
                           {live[p]: live[q] for p, q, f in zip(body.inputs, inputs, mapped, strict=True) if f}, size)
            outs = substituted(lifted, {v: p for p, v in live.items()})
            flags_out = [*mapped[:n], *(o in depends for o in body.outs[n:])]
            outs = [o if f else original for o, original, f in zip(outs, body.outs, flags_out, strict=True)]
            self._batched[key] = Loop(Body(inputs, outs, n, rows), self.length, self.reverse), mapped, flags_out
        return self._batched[key]

    def batched_operands(self, operands: Sequence[Node], flags: Sequence[bool], size: int) -> list[Node]:
        """Operands (those with a flag have a batch in front) as `batched` takes them: the batch of what is scanned is in its rows."""
        mapped = self.batched(flags, size)[1]
        n, rows = self.body.carries, self.body.rows
        out = [spread(o, size) if m and not f else o for o, f, m in zip(operands, flags, mapped, strict=True)]
        return [swapped(o) if n <= i < n + rows and mapped[i] else o for i, o in enumerate(out)]

    def unbatched(self, index: int, result: Node, has_batch: bool, size: int) -> Node:
        """Result number `index` of `batched` with the batch in front."""
        if not has_batch:
            return spread(result, size)
        return swapped(result) if index >= self.body.carries else result

    def batched_result(self, node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
        """The rule of batching for one result."""
        loop, _, has_batch = self.batched(flags, size)
        index = node.attrs["index"]
        result = bind(loop, tuple(self.batched_operands(operands, flags, size)), {"index": index})
        return self.unbatched(index, result, has_batch[index], size)


class LoopCall(CustomCall):
    """A loop as differentiation sees it. Operands: its results (those of the user, and what its derivative may read), then its own."""

    partial = selects = True

    def __init__(self, loop: Loop, results: int, kept: Sequence[tuple[str, int]], keep_values: bool) -> None:
        """results: how many the user has. kept: what each of the further results is: ("carry", its number) or ("value", the result's).

        keep_values: whether its derivative keeps values for a further one, besides its carries.
        """
        self.loop, self.count, self.kept, self.keep_values = loop, results, list(kept), keep_values
        self.name = "scan"  # type: ignore[misc]
        self.structural = self.ordinary = loop.ordinary  # type: ignore[misc]

    @classmethod
    def of(cls, loop: Loop, results: int, kept: Sequence[tuple[str, int]], keep_values: bool) -> LoopCall:
        """The call of these, one for as long as the loop is there."""
        key = (results, tuple(kept), keep_values)
        if key not in loop._calls:
            loop._calls[key] = cls(loop, results, kept, keep_values)
        return loop._calls[key]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return self.loop._avals

    def tracked(self, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """The loop's own operands."""
        return operands[len(self.loop._avals):]

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        return [len(self.loop._avals) + i for i in self.loop.relevant(index)]

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """A loop that runs the other way: its carries are the cotangents of the carries, and sums of those of the constants."""
        loop, body = self.loop, self.loop.body
        n, rows, total = body.carries, body.rows, len(loop._avals)
        raw, own = operands[:total], operands[total:]
        asked = [o.needs_grad and w for o, w in zip(own, attrs["wanted"][total:], strict=True)]
        carries = [placeholder(p.aval, p.attrs["label"]) for p in body.inputs[:n]]
        scanned = [placeholder(p.aval, p.attrs["label"]) for p in body.inputs[n:n + rows]]
        floats = [i for i in range(n) if differentiable(carries[i].dtype)]
        inner = [variable(p) if differentiable(p.dtype) else p for p in (*carries, *scanned, *own[n + rows:])]
        outs = body(inner)
        cts = [variable(placeholder(carries[i].aval, "ct")) for i in floats]
        given = [i for i in range(n, total) if ct[i] is not None]
        ct_rows = [variable(placeholder(outs[i].aval, "ct")) for i in given]
        rows_wanted = [i for i in range(n, n + rows) if asked[i]]
        sums_wanted = [i for i in range(n + rows, len(own)) if asked[i]]
        sums = [variable(placeholder(own[i].aval, "sum")) for i in sums_wanted]
        targets = [*floats, *rows_wanted, *sums_wanted]
        found = derivatives.vjp([outs[i] for i in (*floats, *given)], [inner[i] for i in targets], [*cts, *ct_rows])
        pulled = dense(found, [inner[i] for i in targets])
        f, r = len(floats), len(rows_wanted)
        split = [_terms(g) if g is not None and self.keep_values else ([], g) for g in found[f + r:]]
        factors = {_base(x) for terms, _ in split for term, _ in terms if term.fn.name == "matmul" for x in term.operands}
        split = [_after(terms, rest, factors) for terms, rest in split]
        added = [s if g is None else s + g for s, (_, g) in zip(sums, split, strict=True)]
        turned = [*pulled[:f], *added]
        # What the first loop kept is scanned again.
        kept: list[Node] = []
        sources: list[Node] = []
        replace: dict[Node, Node] = {}
        for at, (kind, i) in enumerate(self.kept, self.count):
            source = bind(_OUTPUT, (y,), {"index": at, "aval": raw[at].aval}) if differentiable(raw[at].dtype) else raw[at]
            if kind == "carry":
                kept.append(inner[i])
            else:
                stand_in = placeholder(outs[at].aval, "kept")
                replace[outs[at]] = stand_in = variable(stand_in) if differentiable(stand_in.dtype) else stand_in
                kept.append(stand_in)
            sources.append(source)
        shared = {inner[i]: own[i] for i in range(n + rows, len(own)) if inner[i] is not own[i]}
        late = [x for terms, _ in split for term, _ in terms for x in term.operands]
        turned, ys, late = _in_parts(substituted([*turned, *pulled[f:f + r], *late], replace | shared), len(turned), r)
        # A sum of products over all turns is one product, of what the turns stack; and so is a sum of what is stacked for it.
        rows_in = [*kept, *(inner[n + k] for k in range(rows)), *ct_rows]
        rows_of = [*sources, *own[n:n + rows], *(ct[i] for i in given)]
        stacks_of = dict(zip(rows_in, rows_of, strict=True))
        made = [b for b in dict.fromkeys(_base(x, stacks_of) for x in late) if b not in stacks_of and b not in ys]
        init = [*(zeros_like(raw[i]) if ct[i] is None else ct[i] for i in floats), *(zeros_like(own[i]) for i in sums_wanted)]
        lasts, stacks = loop_nodes(
            [*cts, *sums], rows_in, turned, [*ys, *made], init, rows_of, loop.length, not loop.reverse,
            [*(asked[i] for i in floats), *(True for _ in sums)], self.keep_values)
        stacks_of |= dict(zip([*ys, *made], stacks, strict=True))
        out: list[Any] = [None] * len(own)
        for i, last in zip(floats, lasts, strict=False):
            out[i] = last if asked[i] else None
        for i, stack in zip(rows_wanted, stacks, strict=False):
            out[i] = stack
        bases = [_base(x, stacks_of) for x in late]
        wholes = iter([batch([x], {b: stacks_of[b]}, loop.length)[0] for x, b in zip(late, bases, strict=True)])
        for i, last, (terms, _) in zip(sums_wanted, lasts[f:], split, strict=True):
            out[i] = last
            for term, moves in terms:
                out[i] = out[i] + _whole(term, moves, [next(wholes) for _ in term.operands])
        return (*[None] * total, *out)

    def kept_results(self, call: Node) -> list[Node]:
        """The loop's results, and which of the further ones a derivative reads: a program that ends before its backward hands them out."""
        total = len(self.loop._avals)
        cts = [variable(placeholder(a, "ct")) if differentiable(a.dtype) and i < self.count else None
               for i, a in enumerate(self.loop._avals)]
        pulled = self.vjp(cts, call, *call.operands, wanted=[True] * len(call.operands))
        read = topological([p for p in pulled if p is not None], lambda n: n is call)
        raw = {n: i for i, n in enumerate(call.operands[:total])}
        found = {n.attrs["index"] for n in read if n.fn is _OUTPUT and n.operands[0] is call} | {raw[n] for n in read if n in raw}
        return [call.operands[i] for i in range(total) if i < self.count or i in found]

    def batched(self, operands: Sequence[Node], flags: Sequence[bool], size: int) -> list[Node]:
        """The results for operands of which those with a flag have a batch in front."""
        total = len(self.loop._avals)
        own, marks = operands[total:], flags[total:]
        loop, _, has_batch = self.loop.batched(marks, size)
        results = _call(loop, self.loop.batched_operands(own, marks, size), self.count, self.kept,
                        self.keep_values)
        return [self.loop.unbatched(i, r, h, size) for i, (r, h) in enumerate(zip(results, has_batch, strict=True))]


Term = tuple[Node, list[Node]]                                # a node, and the reshapes and permutes that come after it


def _terms(g: Node) -> tuple[list[Term], Node | None]:
    """A sum as terms that may be made after the loop (see `_after`), and the rest.

    Products those where it costs less to stack the factors than to add up the product in every turn; and sums over some dimensions.
    """
    terms: list[Term] = []
    rest = None
    todo: list[Term] = [(g, [])]
    while todo:
        node, moves = todo.pop()
        if node.fn.name == "add" and all(o.shape == node.shape for o in node.operands):
            todo += [(o, moves) for o in node.operands]
        elif node.fn.name in ("reshape", "permute"):
            todo.append((node.operands[0], [node, *moves]))
        elif node.fn.name == "sum" or (
                node.fn.name == "matmul" and len(node.shape) == 2 and sum(o.aval.size for o in node.operands) <= 2 * node.aval.size):
            terms.append((node, moves))
        else:
            rest = _plus(rest, _moved(node, moves))
    return terms, rest


def _after(terms: list[Term], rest: Node | None, factors: Collection[Node]) -> tuple[list[Term], Node | None]:
    """The terms that are made after the loop, and the rest. A sum is, where it is one of what is stacked for a product in any case."""
    late = []
    for node, moves in terms:
        if node.fn.name == "matmul" or _base(node.operands[0]) in factors:
            late.append((node, moves))
        else:
            rest = _plus(rest, _moved(node, moves))
    return late, rest


def _plus(a: Node | None, b: Node) -> Node:
    return b if a is None else a + b


def _moved(x: Node, moves: Sequence[Node]) -> Node:
    for move in moves:
        x = bind(move.fn, (x,), move.attrs)
    return x


def _base(x: Node, rows: Collection[Node] = ()) -> Node:
    """What x is when it was moved about: one of `rows`, else the first that is no larger than it."""
    found = base = x
    while base not in rows and base.fn.family == "movement" and len(base.operands) == 1:
        base = base.operands[0]
        if base.aval.size <= found.aval.size:
            found = base
    return base if base in rows else found


def _whole(term: Node, moves: Sequence[Node], stacked: Sequence[Node]) -> Node:
    """The sum of a term over the turns, from its stacked operands."""
    if term.fn.name == "sum":
        whole = bind(term.fn, tuple(stacked), {"dim": (0, *(d + 1 for d in term.attrs["dim"]))})
    else:
        a, b = stacked
        turns, m, k = a.shape
        whole = bind(term.fn, (reshape(permute(a, (1, 0, 2)), (m, turns * k)), reshape(b, (turns * k, b.shape[2]))), term.attrs)
    return _moved(whole, moves)


def _in_parts(nodes: Sequence[Node], first: int, second: int) -> tuple[list[Node], list[Node], list[Node]]:
    """The first ones, the second ones, and the others."""
    return list(nodes[:first]), list(nodes[first:first + second]), list(nodes[first + second:])


def _call(loop: Loop, operands: Sequence[Node], count: int, kept: Sequence[tuple[str, int]], keep_values: bool) -> list[Node]:
    """The results of a loop, with the way to its derivative."""
    sources = tuple(bind(_DETACH, (o,), {}) if o.needs_grad else o for o in operands)
    raw = [bind(loop, sources, {"index": k}) for k in range(len(loop._avals))]
    if not any(o.needs_grad for o in operands):
        return raw
    call = bind(LoopCall.of(loop, count, kept, keep_values), (*raw, *operands), {})
    return outputs(call, raw)


def outputs(call: Node, raw: Sequence[Node]) -> list[Node]:
    """The results of a loop as differentiation sees them: those of `call` where numbers have derivatives."""
    return [bind(_OUTPUT, (call,), {"index": i, "aval": r.aval}) if differentiable(r.dtype) else r for i, r in enumerate(raw)]


def loop_nodes(
    carries: Sequence[Node], rows: Sequence[Node], carry_outs: Sequence[Node], ys: Sequence[Node], init: Sequence[Node],
    scanned: Sequence[Node], length: int, reverse: bool, needed: Sequence[bool] = (), keep_values: bool = True,
) -> tuple[list[Any], list[Node]]:
    """A recorded turn as a loop: (the last carries, the rows of results stacked).

    carries, rows: what stood for them while the turn was recorded, placeholders or variables of those. carry_outs, ys: what it made, of
    those and of any other nodes, which become the loop's constants. init, scanned: the values to start with and to scan. needed: whose last
    carry is wanted (the others may come out as None). keep_values: whether what is slow to compute is kept for a derivative, besides the
    carries.
    """
    carries, rows, init, scanned = list(carries), list(rows), list(init), list(scanned)
    needed = list(needed) or [True] * len(carries)
    plain = {v: v.operands[0] for v in (*carries, *rows) if v.fn is _VARIABLE}
    carries, rows = [plain.get(c, c) for c in carries], [plain.get(x, x) for x in rows]
    outs = substituted([*carry_outs, *ys], plain)
    outs_c, outs_y = outs[:len(carries)], outs[len(carries):]
    lasts: list[Any] = [None] * len(carries)
    left = list(range(len(carries)))                       # the carries that the loop has
    while True:                                            # one that stays as it is is a constant
        still = {carries[i]: init[i] for i in left if outs_c[i] is carries[i]}
        if not still:
            break
        for i in [i for i in left if carries[i] in still]:
            lasts[i] = init[i]
            left.remove(i)
        new = substituted([*(outs_c[i] for i in left), *outs_y], still)
        for i, o in zip(left, new, strict=False):
            outs_c[i] = o
        outs_y = new[len(left):]
    live = set(reached([*(outs_c[i] for i in left if needed[i]), *outs_y], carries))
    while True:
        found = set(reached([*(outs_c[i] for i in left if needed[i] or carries[i] in live), *outs_y], carries))
        if found == live:
            break
        live = found
    left = [i for i in left if needed[i] or carries[i] in live]
    results = [*(outs_c[i] for i in left), *outs_y]
    used = set(reached(results, rows))
    places = [i for i, x in enumerate(rows) if x in used]
    if not results or not length:
        return [init[i] if lasts[i] is None else lasts[i] for i in range(len(carries))], \
            [_stacked(y, length) for y in outs_y]
    signs = _signs([carries[i] for i in left], results)
    if signs:                                              # these are carried with the other sign
        new = substituted(results, {c: _negative(c) for c in signs})
        results = [*(signs.get(carries[i], o) for i, o in zip(left, new, strict=False)), *new[len(left):]]
        init = [_negative(x) if c in signs else x for c, x in zip(carries, init, strict=True)]
    inputs = [*(carries[i] for i in left), *(rows[i] for i in places)]
    operands = [*(init[i] for i in left), *(scanned[i] for i in places)]
    outer = _constants(results, inputs)
    stand_ins = {n: placeholder(n.aval, _label(n)) for n in outer}
    own = {p: placeholder(p.aval, p.attrs["label"]) for p in inputs}
    outs = substituted(results, {**own, **stand_ins})
    inputs = [*own.values(), *stand_ins.values()]
    operands += outer
    n, count = len(left), len(outs)
    kept: list[tuple[str, int]] = []
    if state.grad and any(o.needs_grad for o in operands):
        outs += inputs[:n]
        kept += [("carry", i) for i in range(n)]
        values = _slow(outs[:count], inputs[:n + len(places)]) if keep_values else []
        kept += [("value", count + n + k) for k in range(len(values))]
        outs += values
    found_ = _call(_one_of(Loop(Body(inputs, outs, n, len(places)), length, reverse)), operands, count, kept, keep_values)
    if not state.grad:
        found_ = [bind(_DETACH, (r,), {}) if r.needs_grad else r for r in found_]
    for i, last in zip(left, found_, strict=False):
        lasts[i] = _negative(last) if carries[i] in signs else last
    return lasts, found_[n:count]


def _negative(x: Node) -> Node:
    return bind(_NEG, (x,), {})


def _signs(carries: Sequence[Node], outs: Sequence[Node]) -> dict[Node, Node]:
    """Carries that become the negative of another one, and those: with the other sign nothing is computed (a leapfrog's cotangents)."""
    found = {c: o.operands[0] for c, o in zip(carries, outs, strict=False) if o.fn is _NEG and o not in derivatives.HOOKS}
    others = set(carries) - found.keys()
    return {c: o for c, o in found.items() if o in others}


def turned(f: Callable[[list[Node], list[Node]], tuple[Sequence[Node], Sequence[Node]]], init: Sequence[Node], scanned: Sequence[Node],
           reverse: bool) -> tuple[list[Node], list[Node]]:
    """(the last carries, the rows of results stacked) of a scan by f: carries and rows to carries and ys, over nodes. It keeps dtypes."""
    varies = [n.needs_grad for n in init]

    def stand_in(aval: Aval, live: bool) -> Node:
        return variable(placeholder(aval)) if live else placeholder(aval)

    while True:
        carries = [stand_in(n.aval, v) for n, v in zip(init, varies, strict=True)]
        rows = [stand_in(Aval(x.shape[1:], x.dtype), x.needs_grad) for x in scanned]
        outs, ys = f(carries, rows)
        grown = [v or (o.needs_grad and state.grad) for v, o in zip(varies, outs, strict=True)]
        if grown == varies:
            return loop_nodes(carries, rows, outs, ys, init, scanned, scanned[0].shape[0], reverse)
        varies = grown


_loops: weakref.WeakValueDictionary[Key, Loop] = listed("loops", weakref.WeakValueDictionary())


def _one_of(loop: Loop) -> Loop:
    """The loop, or an equal one that is there: untraced, the same work at the next turn of the user's own loop is then known."""
    if state.trace is not None or not loop.ordinary or loop.reports:      # its lines are told: by explain(), by errors
        return loop
    body = loop.body
    key = canonical(body.outs, body.inputs, leaf=lambda node: None).key(body.outs, loop.length, loop.reverse, body.carries, body.rows)
    return _loops.setdefault(key, loop)


def _stacked(y: Node, length: int) -> Node:
    """Rows that are all alike (there are none: the loop does not turn)."""
    return spread(zeros_like(y), length)


def _label(node: Node) -> str:
    return str(node.attrs.get("label", ""))


def _slow(outs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """Values on the way that take long to compute: products, reductions, gathers, inner loops.

    Of a product, instead, what a derivative reads if it reads no more: the gates' values, not what they are of.
    """
    depends = reaching(outs, inputs)
    found: list[Node] = []
    for node in topological(outs, set(inputs).__contains__):
        if node not in depends or node in outs or node in inputs:
            continue
        if isinstance(node.fn, LoopCall):
            raw = node.operands[:len(node.fn.loop._avals)]
            found += outputs(node, raw)
        elif node.fn.expensive and node.fn.family != "loop" and node.fn.name != "philox":
            found.append(node)
    found = [n for n in dict.fromkeys(found) if n not in outs]
    users: dict[Node, list[Node]] = {}
    for node in topological(outs, set(inputs).__contains__):
        for o in node.operands:
            users.setdefault(o, []).append(node)
    kept: dict[Node, None] = {}
    for node in found:
        kept |= dict.fromkeys((_read_of(node, users) if node.fn.name == "matmul" else None) or [node])
    return to_keep(kept)


def _read_of(x: Node, users: dict[Node, list[Node]]) -> list[Node] | None:
    """The values that a derivative reads of all that is made of x (a part of it, a gate's value); None if they are larger than x."""
    found: dict[Node, None] = {}
    todo, seen = [x], {x}
    while todo:
        node = todo.pop()
        for user in users.get(node, ()):
            if isinstance(user.fn, LoopCall):
                return None
            if user.fn.of_value:
                found[user] = None
            elif user.fn.saves:
                found[node] = None
            elif user not in seen:
                seen.add(user)
                todo.append(user)
    return list(found) if found and sum(n.aval.nbytes for n in found) <= x.aval.nbytes else None


def _constants(outs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """What a turn reads from outside: nodes that depend on none of `inputs`.

    What only moves elements, and what is made of constants by arithmetic alone, is part of the turn: it costs nothing there.
    """
    stop = set(inputs)
    inside = reaching(outs, inputs)
    todo = [o for n in topological(outs, stop.__contains__) if n in inside and n not in stop for o in n.operands] + list(outs)
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    for root in todo:
        stack = [root]
        while stack:
            node = stack.pop()
            if node in inside or node in seen:
                continue
            seen.add(node)
            if node.fn.family in ("index", "leaf") and node.constant and not node.aval.weak:
                continue
            moves = node.fn.family == "movement" and len(node.operands) == 1
            cheap = node.constant and node.fn.family == "elementwise" and node.operands
            if node.value is None and node.operands and (moves or cheap) and not node.aval.weak:
                stack += reversed(node.operands)
            else:
                found[node] = None
    return list(found)


def _repeats(node: Node) -> bool:
    """Whether all rows along the first dimension are one."""
    while node.fn is _DETACH or node.fn is _VARIABLE:
        node = node.operands[0]
    if node.fn.name != "expand" or node.shape[0] == 1:
        return False
    source = node.operands[0]
    return len(source.shape) < len(node.shape) or source.shape[0] == 1


def swapped(node: Node) -> Node:
    """With the first two dimensions exchanged."""
    return permute(node, (1, 0, *range(2, len(node.shape))))


@contextmanager
def turn_draws(start: Node) -> Iterator[list[int]]:
    """Random numbers inside are counted from `start`, a turn's own place in the stream. Gives a list that gets how many there were."""
    trace = state.trace
    drawn: list[int] = []
    if trace is None:
        yield drawn
        return
    before, trace.draws = (trace.draws, trace.turn), 0
    trace.turn = start
    try:
        yield drawn
    finally:
        drawn.append(trace.draws)
        trace.draws, trace.turn = before
