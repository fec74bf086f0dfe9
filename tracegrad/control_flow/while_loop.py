"""Loops whose number of iterations is known only while they run: `tg.while_loop` in a trace. Start at `while_nodes`.

To differentiation such a loop is F(n), its body n times over (`IterationsCall`). The derivative of F(n) is a step that runs the body again,
keeps carries, and pulls the cotangents back from iteration to iteration (`Pull`). What that depends on linearly is the tangent of F(n),
whose loop carries tangents beside values and needs no more than the count; so the derivative of `Pull` is such a loop, and its `Pull`: at
any order.

Where one core does an iteration in less time than its launches take, all iterations are in one kernel (codegen/planning/while_steps.py),
which is written from `kernel`: a `Repeated`, or a graph of such loops. Else the loop is a step of the plan that the host drives: it runs
compiled programs of the condition and of the body, and counts the iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.batching import spread
from tracegrad.autodiff.derivatives import dense, stand_in, zeros_like
from tracegrad.control_flow.loop import Body, Loop, first_row, given_once, merged, needed_inputs, repeats
from tracegrad.control_flow.repeated import Repeated
from tracegrad.control_flow.scan import outputs, scan_nodes
from tracegrad.control_flow.while_backward import COUNT, backward_graph
from tracegrad.execute.compile import executable_graph
from tracegrad.execute.devices import upload
from tracegrad.execute.program import Program
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.leaf_operations import CustomCall, Shared
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.graph.substitution import substituted
from tracegrad.passes.loops import reaching
from tracegrad.support.dtypes import differentiable
from tracegrad.support.modes import enable_grad, state

_DETACH, _OUTPUT = REGISTRY["detach"], REGISTRY["output"]


def while_nodes(test: Node, body: Body, operands: Sequence[Node], device: Any, limit: int | None = None) -> list[Node]:
    """The last values of a loop. test: a 0-d bool of the body's inputs. operands: the first values, and the constants.

    limit: the loop ends after so many iterations, though the test holds.
    """
    return _call(WhileLoop(test, body, device, limit), operands)[:body.carries]


_Loop = TypeVar("_Loop")
MOST = 256                              # operations of an iteration of a loop of a batch; four of them are some twenty lines
Batched = tuple[_Loop, Sequence[bool], Sequence[bool]]        # a loop of a batch, which operands have one, and which results


class _Host(Shared):
    """Base of these loops. Operands: the values to start with, what the loop reads from outside, and more.

    programs: what the host runs, if it drives the loop.
    """

    family = "while_loop"
    device: Any
    programs: Sequence[tuple[str, Program]]

    def __init__(self) -> None:
        super().__init__()
        self._over: dict[Any, Loop] = {}                   # scans over batches of operands, and
        self._batched: dict[Any, Any] = {}                 # loops of batches
        self._once: dict[tuple[int, ...], Shared] = {}     # see `once`

    kernel: Repeated | Graph                 # (of Pull: from its operands to its results)

    @property
    def described(self) -> tuple[Any, ...]:
        return self.kernel.described if isinstance(self.kernel, Repeated) else (self.kernel,)

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        functions = ", ".join(f"{what}: {define(what.replace(' ', '_'), program.graph)}" for what, program in self.programs)
        name = define(self.name, f"...      # runs the functions below as often as the loop iterated; {functions}")
        return f"{name}({', '.join(operands)})"

    def batched(self, flags: Sequence[bool], size: int) -> Batched[_Host] | None:
        """The loop of a batch of operands (those with a flag), if all examples make as many iterations and its kernel is not too long."""
        raise NotImplementedError

    def batched_result(self, node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
        """The rule of batching for one result: a loop of the batch; or a scan, in which each example's loop iterates as often as its own
        condition says.
        """
        index, differs = node.attrs["index"], _differ(operands, flags)
        key = (tuple(differs), size)
        if key not in self._batched:
            self._batched[key] = self.batched(differs, size)
        if self._batched[key] is not None:
            loop, given, has_batch = self._batched[key]
            made = bind(loop, tuple(map(_fitted, operands, flags, given, repeat(size))), {"index": index})
            return _fitted(made, has_batch[index], True, size)
        mapped, rest = ([o for o, f in zip(operands, flags, strict=True) if f is wanted] for wanted in (True, False))
        key = (tuple(flags), size)
        if key not in self._over:
            own = [placeholder(o.aval, str(o.attrs.get("label", ""))) for o in node.operands]
            rows, constants = ([p for p, f in zip(own, flags, strict=True) if f is wanted] for wanted in (True, False))
            outs = [bind(self, tuple(own), {"index": k}) for k in range(len(self.avals(*[p.aval for p in own])))]
            self._over[key] = Loop(Body([*rows, *constants], outs, 0, len(rows)), size, False)
        return bind(self._over[key], (*mapped, *rest), {"index": index})

    def loaded(self, arrays: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        return [upload(self.device, np.asarray(a, o.dtype)) for a, o in zip(arrays, avals, strict=True)]


class WhileLoop(_Host):
    """while test: body, no more than `limit` iterations. Results: the last values, and how often the loop iterated."""

    def __init__(self, test: Node, body: Body, device: Any, limit: int | None = None) -> None:
        super().__init__()
        self.name = "while_loop"  # type: ignore[misc]
        self.body, self.device, self.limit, self.goes_on = body, device, limit, test
        self.carried = tuple(o.aval for o in body.outs)
        self.test = Program(body.inputs, [test], device, results=["goes_on"], later=True)
        self.iteration = Program(body.inputs, body.outs, device, later=True)
        self.programs = (("condition", self.test), ("body", self.iteration))

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return *self.carried, COUNT

    def once(self, operands: tuple[Node, ...]) -> tuple[Shared, tuple[Node, ...]]:
        def made(places: tuple[int, ...]) -> WhileLoop:
            test, body = merged(places, self.body, [self.goes_on])
            return WhileLoop(test[0], body, self.device, self.limit)

        return given_once(self, self.body, operands, self._once, made)

    def batched(self, flags: Sequence[bool], size: int) -> Batched[_Host] | None:
        body, mapped, has_batch = self.body.batched(flags, size)
        if self.goes_on in reaching([self.goes_on], [p for p, f in zip(self.body.inputs, mapped, strict=True) if f]):
            return None
        return None if _are_long(body) else (WhileLoop(self.goes_on, body, self.device, self.limit), mapped, [*has_batch, False])

    @cached_property
    def kernel(self) -> Repeated:  # type: ignore[override]
        body, count = self.body, placeholder(COUNT, "iteration")
        n = body.carries
        with located(self.goes_on.loc):
            test = self.goes_on if self.limit is None else (count < self.limit) & self.goes_on
            return Repeated(body.inputs[:n], count, (), body.inputs[n:], body.outs, (), test)

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        n = len(self.carried)
        test, body = define("condition", self.test.graph), define("body", self.iteration.graph)
        first = operands[0] if n == 1 else f"({', '.join(operands[:n])})"
        given = ", ".join(["value[0]" if n == 1 else "*value[0]", *operands[n:]])
        step = f"lambda value: ({body}({given}){'[0]' * (n == 1)}, value[1] + 1)"
        most = "" if self.limit is None else f", max_iterations={self.limit}"
        loop = f"tg.while_loop(lambda value: {test}({given})[0], {step}, ({first}, tg.tensor(0)){most})"
        return loop if n == 1 else f"{define('flat', 'lambda made: (*made[0], made[1])')}({loop})"

    def results(self, *arrays: Any, **attrs: Any) -> Sequence[Any]:
        test, iteration = compiled(self.test), compiled(self.iteration)
        values = self.loaded(arrays, [p.aval for p in self.body.inputs])
        n, iterations = len(self.carried), 0
        while iterations != self.limit and bool(test(values)[0].download((), test.graph.outputs[0].dtype)):
            values[:n] = iteration(values)
            iterations += 1
        return [*(v.download(aval.shape, aval.dtype) for v, aval in zip(values, self.carried, strict=False)), np.int64(iterations)]


class Counted(_Host):
    """The body as often as the last operand says. Results: the last values."""

    def __init__(self, body: Body, device: Any) -> None:
        super().__init__()
        self.name = "counted_loop"  # type: ignore[misc]
        self.body, self.device = body, device
        self.iteration = Program(body.inputs, body.outs, device, later=True)
        self.programs = (("body", self.iteration),)

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(o.aval for o in self.body.outs)

    def once(self, operands: tuple[Node, ...]) -> tuple[Shared, tuple[Node, ...]]:
        return given_once(self, self.body, operands, self._once, lambda places: Counted(merged(places, self.body)[1], self.device))

    def batched(self, flags: Sequence[bool], size: int) -> Batched[_Host] | None:
        body, mapped, has_batch = self.body.batched(flags[:-1], size)
        return None if flags[-1] or _are_long(body) else (Counted(body, self.device), [*mapped, False], has_batch)

    @cached_property
    def kernel(self) -> Repeated:  # type: ignore[override]
        body, count, iterations = self.body, placeholder(COUNT, "iteration"), placeholder(COUNT, "length")
        n = body.carries
        with located(body.outs[0].loc):
            return Repeated(body.inputs[:n], count, (), [*body.inputs[n:], iterations], body.outs, (), count < iterations)

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        return [*needed_inputs(self.body, [index]), len(self.body.inputs)]

    def results(self, *arrays: Any, **attrs: Any) -> Sequence[Any]:
        run = compiled(self.iteration)
        values = self.loaded(arrays[:-1], [p.aval for p in self.body.inputs])
        n = self.body.carries
        for _ in range(int(arrays[-1])):
            values[:n] = run(values)
        return [v.download(o.shape, o.dtype) for v, o in zip(values, self.body.outs, strict=False)]


class Pull(_Host):
    """Cotangents of a counted loop's operands that are floats: `pull` makes them of those of one iteration's results.

    Operands: those of the loop, how often it iterated, cotangents of the last values that are floats.
    """

    def __init__(self, body: Body, pull: Body, device: Any) -> None:
        """pull: from (cotangents, sums; values, constants) to (cotangents, sums)."""
        super().__init__()
        self.name = "counted_loop_backward"  # type: ignore[misc]
        self.body, self.pull, self.device = body, pull, device
        self.iteration = Program(body.inputs, body.outs, device, later=True)
        self.back = Program(pull.inputs, pull.outs, device, later=True)
        self.programs = (("body", self.iteration), ("derivative of the body", self.back))

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(o.aval for o in self.pull.outs)

    def batched(self, flags: Sequence[bool], size: int) -> Batched[_Host] | None:
        found = _pull_of_batch(self.body, self.pull, flags, size)
        return found and (Pull(*found[0], self.device), *found[1:])

    @cached_property
    def kernel(self) -> Graph:  # type: ignore[override]
        with located(self.pull.outs[0].loc):
            return executable_graph(backward_graph(self.body, self.pull))

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        return pull_relevant(self.body, self.pull, index)

    def results(self, *arrays: Any, **attrs: Any) -> Sequence[Any]:
        run, back = compiled(self.iteration), compiled(self.back)
        own = len(self.body.inputs)
        values = self.loaded(arrays[:own], [p.aval for p in self.body.inputs])
        n, iterations, kept = self.body.carries, int(arrays[own]), []
        for k in range(iterations):
            kept.append(values[:n])
            if k < iterations - 1:
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
        program.compile(results=program.graph.output_names)
    return program


# ------------------------------------------------------------------------------------------------------ as derivatives see them


def _call(loop: WhileLoop | Counted, operands: Sequence[Node]) -> list[Node]:
    """The results of a loop, with the way to its derivative."""
    sources = tuple(bind(_DETACH, (o,), {}) if o.needs_grad else o for o in operands)
    raw = [bind(loop, sources, {"index": k}) for k in range(len(loop.avals()))]
    if not state.grad or not any(o.needs_grad for o in operands):
        return raw
    iterations = raw[-1] if isinstance(loop, WhileLoop) else operands[-1]
    own = operands[:len(loop.body.inputs)]
    return _results(IterationsCall(loop.body, loop.device), [*raw[:loop.body.carries], iterations, *own], loop.body.carries)


def _results(call: CustomCall, operands: Sequence[Node], count: int) -> list[Node]:
    node = bind(call, tuple(operands), {})
    return outputs(node, operands[:count])


def _differ(operands: Sequence[Node], flags: Sequence[bool]) -> list[bool]:
    """Which operands, of those with a flag, are not the same for all examples."""
    return [f and not repeats(o) for o, f in zip(operands, flags, strict=True)]


def _fitted(x: Node, has_batch: bool, wanted: bool, size: int) -> Node:
    """A value with a batch in front, or (of one that all examples share) without."""
    return x if has_batch == wanted else spread(x, size) if wanted else first_row(x)


def _are_long(*bodies: Body) -> bool:
    """Whether a kernel may be too long for all of this (Tuning.looped_lines), while that of one example may not."""
    return sum(len(body.graph) for body in bodies) > MOST


def _pull_of_batch(body: Body, pull: Body, flags: Sequence[bool], size: int, matching: bool = False) -> Batched[tuple[Body, Body]] | None:
    """The bodies of a `Pull` of a batch of operands (those with a flag).

    matching: an operand has a batch wherever its cotangent has one, so that the pull is the derivative of the body, as `PullCall` has it.
    """
    own = len(body.inputs)
    cts = len(flags) - own - 1
    floats = [i for i, p in enumerate(body.inputs) if differentiable(p.dtype)]
    if flags[own]:
        return None
    lifted, mapped, _ = body.batched(flags[:own], size)
    back, given, has_batch = pull.batched([*flags[own + 1:], *[False] * (pull.carries - cts), *mapped], size)
    more = [i for i, f in zip(floats, given, strict=False) if f and not mapped[i]]
    if matching and more:
        return _pull_of_batch(body, pull, [f or i in more for i, f in enumerate(flags)], size, matching)
    return None if _are_long(lifted, back) else ((lifted, back), [*mapped, False, *given[:cts]], has_batch)


def _results_of_batch(call: CustomCall, given: Sequence[bool], has_batch: Sequence[bool], operands: Sequence[Node],
                      flags: Sequence[bool], size: int) -> list[Node]:
    """The results, with a batch in front, of a call of a batch, whose first operands they are; given: which others have a batch."""
    fitted = list(map(_fitted, operands, flags, [*has_batch, *given], repeat(size)))
    return list(map(_fitted, _results(call, fitted, len(has_batch)), has_batch, repeat(True), repeat(size)))


def _over_examples(call: CustomCall, operands: Sequence[Node], flags: Sequence[bool], count: int) -> list[Node]:
    """The results of a call, which are its first `count` operands, for each example: a scan over those with a flag."""

    def iteration(carries: list[Node], rows: list[Node]) -> tuple[list[Node], list[Node]]:
        left = iter(rows)
        given = [next(left) if f else o for o, f in zip(operands, flags, strict=True)]
        return [], outputs(bind(call, tuple(given), {}), given[:count])

    return scan_nodes(iteration, [], [o for o, f in zip(operands, flags, strict=True) if f], False)[1]


class IterationsCall(CustomCall):
    """A body n times over. Operands: the results, n, the values to start with, the constants."""

    partial = True

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

    def batched(self, operands: Sequence[Node], flags: Sequence[bool], size: int) -> list[Node]:
        """The results for operands of which those with a flag have a batch in front."""
        n, differs = self.body.carries, _differ(operands, flags)
        body, mapped, has_batch = self.body.batched(differs[n + 1:], size)
        if differs[n] or _are_long(body):
            return _over_examples(self, operands, flags, n)
        return _results_of_batch(IterationsCall(body, self.device), [False, *mapped], has_batch, operands, flags, size)

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        n = self.body.carries
        own = operands[n + 1:]
        cts = [zeros_like(o) if c is None else c for c, o in zip(ct, operands[:n], strict=True) if differentiable(o.dtype)]
        found = iter(_pulled(self.body, self.device, own, operands[n], cts))
        return (*[None] * (n + 1), *(next(found) if differentiable(o.dtype) else None for o in own))


def _pulled(body: Body, device: Any, own: Sequence[Node], iterations: Node, cts: Sequence[Node]) -> list[Node]:
    """The cotangents of the operands that are floats."""
    loop = Pull(body, _pull(body), device)
    given = (*own, iterations, *cts)
    raw = [bind(loop, tuple(bind(_DETACH, (o,), {}) if o.needs_grad else o for o in given), {"index": k}) for k in range(len(loop.avals()))]
    if not state.grad or not any(o.needs_grad for o in given):
        return raw
    return _results(PullCall(body, loop.pull, device, len(raw)), [*raw, *given], len(raw))


class PullCall(CustomCall):
    """The derivative of a body n times over. Operands: its results, the loop's own operands, n, the cotangents."""

    selects = partial = True

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

    def batched(self, operands: Sequence[Node], flags: Sequence[bool], size: int) -> list[Node]:
        """The results for operands of which those with a flag have a batch in front."""
        found = _pull_of_batch(self.body, self.pull, _differ(operands, flags)[self.count:], size, True)
        if found is None:
            return _over_examples(self, operands, flags, self.count)
        bodies, given, has_batch = found
        return _results_of_batch(PullCall(*bodies, self.device, self.count), given, has_batch, operands, flags, size)

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """<ct, pull(u)> = <tangent(ct), u>: for u the tangent of the loop along ct, for the rest the derivative of that, pulled along u."""
        body, count = self.body, self.count
        end = count + len(body.inputs)
        own, iterations, cts = operands[count:end], operands[end], operands[end + 1:]
        wanted = attrs["wanted"][count:]
        floats = [i for i, p in enumerate(body.inputs) if differentiable(p.dtype)]
        along = dense(ct, [own[i] for i in floats])
        n = body.carries
        carried = sum(i < n for i in floats)
        lifted = _tangent(body)
        given = [*own[:n], *along[:carried], *own[n:], *along[carried:]]
        out: list[Any] = [None] * len(operands)
        if any(wanted[len(own) + 1:]):
            moved = _call(Counted(lifted, self.device), [*given, iterations])[n:]
            out[end + 1:] = moved
        if any(wanted[:len(own)]):
            zeros = [zeros_like(own[i]) for i in floats[:carried]]
            found = _pulled(lifted, self.device, given, iterations, [*zeros, *cts])
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
    return plain, [stand_in(p) if differentiable(p.dtype) else p for p in plain], floats


def _closed(outs: Sequence[Node], inputs: Sequence[Node], inner: Sequence[Node], carries: int) -> Body:
    """A body whose inputs are placeholders, not the variables of them."""
    return Body(inputs, substituted(outs, {v: p for v, p in zip(inner, inputs, strict=True) if v is not p}), carries, 0)


def _pull(body: Body) -> Body:
    """One iteration's derivative: (cotangents of the float values, sums for the float constants; values, constants) -> the first two."""
    plain, inner, floats = _fresh(body)
    n = body.carries
    outs = body(inner)
    carried = [i for i in floats if i < n]
    before = [placeholder(plain[i].aval, "ct" if i < n else "sum") for i in floats]
    live = [stand_in(p) for p in before]
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
    live = [stand_in(t) for t in tangents]
    with enable_grad():                        # it is differentiated, also where nobody differentiates what comes of that
        found = derivatives.jvp([outs[i] for i in floats if i < n], [inner[i] for i in floats], live)
    moved = dense(found, [outs[i] for i in floats if i < n])
    c = len(moved)
    inputs = [*plain[:n], *tangents[:c], *plain[n:], *tangents[c:]]
    return _closed([*outs, *moved], inputs, [*inner[:n], *live[:c], *inner[n:], *live[c:]], n + c)
