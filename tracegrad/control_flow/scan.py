"""What `tg.scan` records: a loop of a known length, and its derivative. Start at `loop_nodes`; `LoopCall.vjp` is the derivative.

The loop itself is one operation (loop.py). As in `cond`, differentiation sees it through a custom call beside it (`LoopCall`). Its
derivative is a loop again, which runs the other way over what the first one kept: its carries, and what is slow to compute again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.batching import batch, spread
from tracegrad.autodiff.derivatives import dense, stand_in, zeros_like
from tracegrad.control_flow.loop import Body, Loop
from tracegrad.control_flow.loop_sums import after_loop, base_of, terms_of, whole_sum
from tracegrad.graph.canonical import Key, canonical
from tracegrad.graph.ir import Aval, Node, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.primitive import REGISTRY, bind, placeholder, to_keep
from tracegrad.graph.substitution import HOOKS, substituted
from tracegrad.passes.loops import reached, reaching
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import differentiable
from tracegrad.support.modes import state

_VARIABLE, _DETACH, _OUTPUT = REGISTRY["variable"], REGISTRY["detach"], REGISTRY["output"]
_NEG = REGISTRY["neg"]


class LoopCall(CustomCall):
    """A loop as differentiation sees it. Operands: its results (those of the user, and what its derivative may read), then its own."""

    partial = selects = True

    def __init__(self, loop: Loop, results: int, kept: Sequence[tuple[str, int]], keep_values: bool) -> None:
        """results: how many the user has. kept: what each of the further results is: ("carry", its number) or ("value", the result's).

        keep_values: whether its derivative keeps values for a further one, besides its carries.
        """
        self.loop, self.count, self.kept, self.keep_values = loop, results, list(kept), keep_values
        self.name = "scan"  # type: ignore[misc]
        self.structural = loop.structural

    @classmethod
    def of(cls, loop: Loop, results: int, kept: Sequence[tuple[str, int]], keep_values: bool) -> LoopCall:
        """The call of these, one for as long as the loop is there."""
        key = (results, tuple(kept), keep_values)
        if key not in loop._calls:
            loop._calls[key] = cls(loop, results, kept, keep_values)
        found: LoopCall = loop._calls[key]
        return found

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
        inner = [stand_in(p) if differentiable(p.dtype) else p for p in (*carries, *scanned, *own[n + rows:])]
        outs = body(inner)
        cts = [stand_in(placeholder(carries[i].aval, "ct")) for i in floats]
        given = [i for i in range(n, total) if ct[i] is not None]
        ct_rows = [stand_in(placeholder(outs[i].aval, "ct")) for i in given]
        rows_wanted = [i for i in range(n, n + rows) if asked[i]]
        sums_wanted = [i for i in range(n + rows, len(own)) if asked[i]]
        sums = [stand_in(placeholder(own[i].aval, "sum")) for i in sums_wanted]
        targets = [*floats, *rows_wanted, *sums_wanted]
        found = derivatives.vjp([outs[i] for i in (*floats, *given)], [inner[i] for i in targets], [*cts, *ct_rows])
        pulled = dense(found, [inner[i] for i in targets])
        f, r = len(floats), len(rows_wanted)
        split = [terms_of(g) if g is not None and self.keep_values else ([], g) for g in found[f + r:]]
        factors = {base_of(x) for terms, _ in split for term, _ in terms if term.fn.name == "matmul" for x in term.operands}
        split = [after_loop(terms, rest, factors) for terms, rest in split]
        added = [s if g is None else s + g for s, (_, g) in zip(sums, split, strict=True)]
        pulled_back = [*pulled[:f], *added]
        # What the first loop kept is scanned again.
        kept: list[Node] = []
        sources: list[Node] = []
        replace: dict[Node, Node] = {}
        for at, (kind, i) in enumerate(self.kept, self.count):
            source = bind(_OUTPUT, (y,), {"index": at, "aval": raw[at].aval}) if differentiable(raw[at].dtype) else raw[at]
            if kind == "carry":
                kept.append(inner[i])
            else:
                value = placeholder(outs[at].aval, "kept")
                replace[outs[at]] = value = stand_in(value) if differentiable(value.dtype) else value
                kept.append(value)
            sources.append(source)
        shared = {inner[i]: own[i] for i in range(n + rows, len(own)) if inner[i] is not own[i]}
        late = [x for terms, _ in split for term, _ in terms for x in term.operands]
        pulled_back, ys, late = _in_parts(substituted([*pulled_back, *pulled[f:f + r], *late], replace | shared), len(pulled_back), r)
        # A sum of products over all iterations is one product, of what the iterations stack; and so is a sum of what is stacked for it.
        rows_in = [*kept, *(inner[n + k] for k in range(rows)), *ct_rows]
        rows_of = [*sources, *own[n:n + rows], *(ct[i] for i in given)]
        stacks_of = dict(zip(rows_in, rows_of, strict=True))
        made = [b for b in dict.fromkeys(base_of(x, stacks_of) for x in late) if b not in stacks_of and b not in ys]
        init = [*(zeros_like(raw[i]) if ct[i] is None else ct[i] for i in floats), *(zeros_like(own[i]) for i in sums_wanted)]
        lasts, stacks = loop_nodes(
            [*cts, *sums], rows_in, pulled_back, [*ys, *made], init, rows_of, loop.length, not loop.reverse,
            [*(asked[i] for i in floats), *(True for _ in sums)], self.keep_values)
        stacks_of |= dict(zip([*ys, *made], stacks, strict=True))
        out: list[Any] = [None] * len(own)
        for i, last in zip(floats, lasts, strict=False):
            out[i] = last if asked[i] else None
        for i, stack in zip(rows_wanted, stacks, strict=False):
            out[i] = stack
        bases = [base_of(x, stacks_of) for x in late]
        wholes = iter([batch([x], {b: stacks_of[b]}, loop.length)[0] for x, b in zip(late, bases, strict=True)])
        for i, last, (terms, _) in zip(sums_wanted, lasts[f:], split, strict=True):
            out[i] = last
            for term, moves in terms:
                out[i] = out[i] + whole_sum(term, moves, [next(wholes) for _ in term.operands])
        return (*[None] * total, *out)

    def kept_results(self, call: Node) -> list[Node]:
        """The loop's results, and which of the further ones a derivative reads: a program that ends before its backward hands them out."""
        total = len(self.loop._avals)
        cts = [stand_in(placeholder(a, "ct")) if differentiable(a.dtype) and i < self.count else None
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
    """A recorded iteration as a loop: (the last carries, the rows of results stacked).

    carries, rows: what stood for them while the iteration was recorded, placeholders or variables of those. carry_outs, ys: what it made,
    of those and of any other nodes, which become the loop's constants. init, scanned: the values to start with and to scan. needed: whose
    last carry is wanted (the others may come out as None). keep_values: whether what is slow to compute is kept for a derivative, besides
    the carries.
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
    found = {c: o.operands[0] for c, o in zip(carries, outs, strict=False) if o.fn is _NEG and o not in HOOKS}
    others = set(carries) - found.keys()
    return {c: o for c, o in found.items() if o in others}


def scan_nodes(f: Callable[[list[Node], list[Node]], tuple[Sequence[Node], Sequence[Node]]], init: Sequence[Node], scanned: Sequence[Node],
           reverse: bool) -> tuple[list[Node], list[Node]]:
    """(the last carries, the rows of results stacked) of a scan by f: carries and rows to carries and ys, over nodes. It keeps dtypes."""
    varies = [n.needs_grad for n in init]

    def fresh(aval: Aval, live: bool) -> Node:
        return stand_in(placeholder(aval)) if live else placeholder(aval)

    while True:
        carries = [fresh(n.aval, v) for n, v in zip(init, varies, strict=True)]
        rows = [fresh(Aval(x.shape[1:], x.dtype), x.needs_grad) for x in scanned]
        outs, ys = f(carries, rows)
        grown = [v or (o.needs_grad and state.grad) for v, o in zip(varies, outs, strict=True)]
        if grown == varies:
            return loop_nodes(carries, rows, outs, ys, init, scanned, scanned[0].shape[0], reverse)
        varies = grown


_loops: weakref.WeakValueDictionary[Key, Loop] = listed("loops", weakref.WeakValueDictionary())


def _one_of(loop: Loop) -> Loop:
    """The loop, or an equal one that is there: untraced, the same work at the next iteration of the user's own loop is then known."""
    if state.trace is not None or not loop.structural or loop.reports:      # its lines are told: by explain(), by errors
        return loop
    body = loop.body
    key = canonical(body.outs, body.inputs, leaf=lambda node: None).key(body.outs, loop.length, loop.reverse, body.carries, body.rows)
    return _loops.setdefault(key, loop)


def _stacked(y: Node, length: int) -> Node:
    """Rows that are all alike (there are none: the loop does not iteration)."""
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
    """What an iteration reads from outside: nodes that depend on none of `inputs`.

    What only moves elements, and what is made of constants by arithmetic alone, is part of the iteration: it costs nothing there.
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


@contextmanager
def iteration_draws(start: Node) -> Iterator[list[int]]:
    """Random numbers inside are counted from `start`, the iteration's place in the stream. Gives a list that gets how many there were."""
    trace = state.trace
    drawn: list[int] = []
    if trace is None:
        yield drawn
        return
    before, trace.draws = (trace.draws, trace.iteration), 0
    trace.iteration = start
    try:
        yield drawn
    finally:
        drawn.append(trace.draws)
        trace.draws, trace.iteration = before
