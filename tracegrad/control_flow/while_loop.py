"""Loops whose number of turns is known only while they run: `tg.while_loop` in a trace. Start at `while_nodes`.

Such a loop is a step of the plan that the host drives: it runs compiled programs of the condition and of the body, and counts the turns.
To differentiation it is F(n), its body n times over (`TurnsCall`). The derivative of F(n) is a step that runs the body again, keeps every
carry, and pulls the cotangents back from turn to turn (`Pull`). What that depends on linearly is the tangent of F(n), whose loop carries
tangents beside values and needs no more than the count; so the derivative of `Pull` is such a loop, and its `Pull`: at any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.derivatives import dense, substituted, variable, zeros_like
from tracegrad.control_flow.loop import Body, needed_inputs
from tracegrad.control_flow.scan import outputs
from tracegrad.execute.devices import upload
from tracegrad.execute.program import Program
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaves import CustomCall, Shared
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support import dtypes
from tracegrad.support.dtypes import differentiable
from tracegrad.support.modes import state

_DETACH, _OUTPUT = REGISTRY["detach"], REGISTRY["output"]
COUNT = Aval((), dtypes.int64)


def while_nodes(test: Node, body: Body, operands: Sequence[Node], device: Any) -> list[Node]:
    """The last values of a loop. test: a 0-d bool of the body's inputs. operands: the first values, and the constants."""
    return _call(WhileLoop(test, body, device), operands)[:body.carries]


class _Host(Shared):
    """Base of loops that the host drives. Operands: the values to start with, what the loop reads from outside, and more."""

    family, described = "host_call", ()
    device: Any
    programs: Sequence[tuple[str, Program]]

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        functions = ", ".join(f"{what}: {define(what.replace(' ', '_'), program.graph)}" for what, program in self.programs)
        name = define(self.name, f"...      # runs the functions below as often as the loop turned; {functions}")
        return f"{name}({', '.join(operands)})"

    def loaded(self, arrays: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        return [upload(self.device, np.asarray(a, o.dtype)) for a, o in zip(arrays, avals, strict=True)]


class WhileLoop(_Host):
    """while test: body. Results: the last values, and how often the loop turned."""

    def __init__(self, test: Node, body: Body, device: Any) -> None:
        super().__init__()
        self.name = "while_loop"  # type: ignore[misc]
        self.body, self.device = body, device
        self.carried = tuple(o.aval for o in body.outs)
        self.test, self.turn = Program(body.inputs, [test], device, results=["goes_on"]), Program(body.inputs, body.outs, device)
        self.programs = (("condition", self.test), ("body", self.turn))

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return *self.carried, COUNT

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        n = len(self.carried)
        test, body = define("condition", self.test.graph), define("body", self.turn.graph)
        first = operands[0] if n == 1 else f"({', '.join(operands[:n])})"
        given = ", ".join(["value[0]" if n == 1 else "*value[0]", *operands[n:]])
        step = f"lambda value: ({body}({given}){'[0]' * (n == 1)}, value[1] + 1)"
        loop = f"tg.while_loop(lambda value: {test}({given})[0], {step}, ({first}, tg.tensor(0)))"
        return loop if n == 1 else f"{define('flat', 'lambda made: (*made[0], made[1])')}({loop})"

    def results(self, *arrays: Any, **attrs: Any) -> Sequence[Any]:
        values = self.loaded(arrays, [p.aval for p in self.body.inputs])
        n, turns = len(self.carried), 0
        while bool(self.test(values)[0].download((), self.test.graph.outputs[0].dtype)):
            values[:n] = self.turn(values)
            turns += 1
        return [*(v.download(aval.shape, aval.dtype) for v, aval in zip(values, self.carried, strict=False)), np.int64(turns)]


class Counted(_Host):
    """The body as often as the last operand says. Results: the last values."""

    def __init__(self, body: Body, device: Any) -> None:
        super().__init__()
        self.name = "counted_loop"  # type: ignore[misc]
        self.body, self.device = body, device
        self.turn = Program(body.inputs, body.outs, device, later=True)
        self.programs = (("body", self.turn),)

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(o.aval for o in self.body.outs)

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        return [*needed_inputs(self.body, [index]), len(self.body.inputs)]

    def results(self, *arrays: Any, **attrs: Any) -> Sequence[Any]:
        run = compiled(self.turn)
        values = self.loaded(arrays[:-1], [p.aval for p in self.body.inputs])
        n = self.body.carries
        for _ in range(int(arrays[-1])):
            values[:n] = run(values)
        return [v.download(o.shape, o.dtype) for v, o in zip(values, self.body.outs, strict=False)]


class Pull(_Host):
    """Cotangents of a counted loop's operands that are floats: `pull` makes them of those of one turn's results.

    Operands: those of the loop, how often it turned, cotangents of the last values that are floats.
    """

    def __init__(self, body: Body, pull: Body, device: Any) -> None:
        """pull: from (cotangents, sums; values, constants) to (cotangents, sums)."""
        super().__init__()
        self.name = "counted_loop_backward"  # type: ignore[misc]
        self.body, self.pull, self.device = body, pull, device
        self.turn = Program(body.inputs, body.outs, device, later=True)
        self.back = Program(pull.inputs, pull.outs, device, later=True)
        self.programs = (("body", self.turn), ("derivative of the body", self.back))

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(o.aval for o in self.pull.outs)

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        return pull_relevant(self.body, self.pull, index)

    def results(self, *arrays: Any, **attrs: Any) -> Sequence[Any]:
        run, back = compiled(self.turn), compiled(self.back)
        own = len(self.body.inputs)
        values = self.loaded(arrays[:own], [p.aval for p in self.body.inputs])
        n, turns, kept = self.body.carries, int(arrays[own]), []
        for k in range(turns):
            kept.append(values[:n])
            if k < turns - 1:
                values[:n] = run(values)
        zeros = [np.zeros(p.shape, p.dtype) for p in self.pull.inputs[len(arrays) - own - 1:self.pull.carries]]
        cts = self.loaded([*arrays[own + 1:], *zeros], [p.aval for p in self.pull.inputs[:self.pull.carries]])
        while kept:
            cts = back([*cts, *kept.pop(), *values[n:]])
        return [v.download(o.shape, o.dtype) for v, o in zip(cts, self.pull.outs, strict=True)]


def pull_relevant(body: Body, pull: Body, index: int) -> list[int]:
    """The numbers of a Pull's operands (the loop's own, the count, cotangents) that its result `index` depends on."""
    n, own, sums = body.carries, len(body.inputs), pull.carries
    found = needed_inputs(pull, [index])
    direct = [i - sums for i in found if i >= sums]
    values = needed_inputs(body, [i for i in direct if i < n])
    cts = sum(differentiable(p.dtype) for p in body.inputs[:n])
    return sorted({*direct, *values, own, *(own + 1 + i for i in found if i < cts)})


def compiled(program: Program) -> Program:
    """The program, which is compiled when it first runs: most derivatives that are recorded are never needed."""
    if not program.ready:
        program.compile()
    return program


# ------------------------------------------------------------------------------------------------------ as derivatives see them


def _call(loop: WhileLoop | Counted, operands: Sequence[Node]) -> list[Node]:
    """The results of a loop, with the way to its derivative."""
    sources = tuple(bind(_DETACH, (o,), {}) if o.needs_grad else o for o in operands)
    raw = [bind(loop, sources, {"index": k}) for k in range(len(loop.avals()))]
    if not state.grad or not any(o.needs_grad for o in operands):
        return raw
    turns = raw[-1] if isinstance(loop, WhileLoop) else operands[-1]
    own = operands[:len(loop.body.inputs)]
    return _results(TurnsCall(loop.body, loop.device), [*raw[:loop.body.carries], turns, *own], loop.body.carries)


def _results(call: CustomCall, operands: Sequence[Node], count: int) -> list[Node]:
    node = bind(call, tuple(operands), {})
    return outputs(node, operands[:count])


class TurnsCall(CustomCall):
    """A body n times over. Operands: the results, n, the values to start with, the constants."""

    def __init__(self, body: Body, device: Any) -> None:
        self.body, self.device = body, device
        self.name = "while_loop"  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(o.aval for o in self.body.outs)

    def tracked(self, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """The loop's own operands."""
        return operands[self.body.carries + 1:]

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        n = self.body.carries
        return [n, *(n + 1 + i for i in needed_inputs(self.body, [index]))]

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        n = self.body.carries
        own = operands[n + 1:]
        cts = [zeros_like(o) if c is None else c for c, o in zip(ct, operands[:n], strict=True) if differentiable(o.dtype)]
        found = iter(_pulled(self.body, self.device, own, operands[n], cts))
        return (*[None] * (n + 1), *(next(found) if differentiable(o.dtype) else None for o in own))


def _pulled(body: Body, device: Any, own: Sequence[Node], turns: Node, cts: Sequence[Node]) -> list[Node]:
    """The cotangents of the operands that are floats."""
    loop = Pull(body, _pull(body), device)
    given = (*own, turns, *cts)
    raw = [bind(loop, tuple(bind(_DETACH, (o,), {}) if o.needs_grad else o for o in given), {"index": k}) for k in range(len(loop.avals()))]
    if not state.grad or not any(o.needs_grad for o in given):
        return raw
    return _results(PullCall(body, loop.pull, device, len(raw)), [*raw, *given], len(raw))


class PullCall(CustomCall):
    """The derivative of a body n times over. Operands: its results, the loop's own operands, n, the cotangents."""

    selects = True

    def __init__(self, body: Body, pull: Body, device: Any, count: int) -> None:
        self.body, self.pull, self.device, self.count = body, pull, device, count
        self.name = "while_loop"  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return operands[:self.count]

    def tracked(self, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """All but the results."""
        return operands[self.count:]

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        return [self.count + i for i in pull_relevant(self.body, self.pull, index)]

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """<ct, pull(u)> = <tangent(ct), u>: for u the tangent of the loop along ct, for the rest the derivative of that, pulled along u."""
        body, count = self.body, self.count
        end = count + len(body.inputs)
        own, turns, cts = operands[count:end], operands[end], operands[end + 1:]
        wanted = attrs["wanted"][count:]
        floats = [i for i, p in enumerate(body.inputs) if differentiable(p.dtype)]
        along = dense(ct, [own[i] for i in floats])
        n = body.carries
        carried = sum(i < n for i in floats)
        lifted = _tangent(body)
        given = [*own[:n], *along[:carried], *own[n:], *along[carried:]]
        out: list[Any] = [None] * len(operands)
        if any(wanted[len(own) + 1:]):
            moved = _call(Counted(lifted, self.device), [*given, turns])[n:]
            out[end + 1:] = moved
        if any(wanted[:len(own)]):
            zeros = [zeros_like(own[i]) for i in floats[:carried]]
            found = _pulled(lifted, self.device, given, turns, [*zeros, *cts])
            # In the order of the lifted loop's operands: values, tangents of them, constants, tangents of those.
            places = [*floats[:carried], *[-1] * carried, *floats[carried:], *[-1] * (len(floats) - carried)]
            for i, g in zip(places, found, strict=True):
                if i >= 0 and wanted[i]:
                    out[count + i] = g
        return tuple(out)


def _fresh(body: Body) -> tuple[list[Node], list[Node], list[int]]:
    """New inputs for a body, as placeholders and (floats) as variables, and which are floats."""
    plain = [placeholder(p.aval, p.attrs["label"]) for p in body.inputs]
    floats = [i for i, p in enumerate(plain) if differentiable(p.dtype)]
    return plain, [variable(p) if differentiable(p.dtype) else p for p in plain], floats


def _closed(outs: Sequence[Node], inputs: Sequence[Node], inner: Sequence[Node], carries: int) -> Body:
    """A body whose inputs are placeholders, not the variables of them."""
    return Body(inputs, substituted(outs, {v: p for v, p in zip(inner, inputs, strict=True) if v is not p}), carries, 0)


def _pull(body: Body) -> Body:
    """One turn's derivative: (cotangents of the float values, sums for the float constants; values, constants) -> the first two."""
    plain, inner, floats = _fresh(body)
    n = body.carries
    outs = body(inner)
    carried = [i for i in floats if i < n]
    before = [placeholder(plain[i].aval, "ct" if i < n else "sum") for i in floats]
    live = [variable(p) for p in before]
    found = derivatives.vjp([outs[i] for i in carried], [inner[i] for i in floats], live[:len(carried)])
    made = dense(found, [inner[i] for i in floats])
    made[len(carried):] = [s if g is None else s + g for s, g in zip(live[len(carried):], found[len(carried):], strict=True)]
    return _closed(made, [*before, *plain], [*live, *inner], len(before))


def _tangent(body: Body) -> Body:
    """The body with tangents: (values, tangents of floats; constants, tangents of floats) -> (values, tangents)."""
    plain, inner, floats = _fresh(body)
    n = body.carries
    outs = body(inner)
    tangents = [placeholder(plain[i].aval, "tangent") for i in floats]
    live = [variable(t) for t in tangents]
    found = derivatives.jvp([outs[i] for i in floats if i < n], [inner[i] for i in floats], live)
    moved = dense(found, [outs[i] for i in floats if i < n])
    c = len(moved)
    inputs = [*plain[:n], *tangents[:c], *plain[n:], *tangents[c:]]
    return _closed([*outs, *moved], inputs, [*inner[:n], *live[:c], *inner[n:], *live[c:]], n + c)
