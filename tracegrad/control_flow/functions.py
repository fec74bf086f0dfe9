"""Control flow that can be captured: cond, while_loop, scan, with the meaning of jax.lax. Start at `cond`.

Where values can be read (outside @trace and vmap), `cond` and `while_loop` are plain Python on them. Elsewhere
- `cond` records both branches and selects between their results. Its derivative is a cond again (`Choice`), so that what the
  branch not taken would give (often NaN) reaches neither value nor derivative, at any order (cond.py);
- `while_loop` is a kernel that holds the condition and the body, or a step of the plan that runs programs of them (while_loop.py);
- `scan` is one operation whose body is recorded and compiled once (scan.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import optree

from tracegrad.autodiff.derivatives import dense, stand_in
from tracegrad.control_flow.cond import cond
from tracegrad.control_flow.loop import Body
from tracegrad.control_flow.loop_detection import DetectedLoop
from tracegrad.control_flow.recorded import agreed, flattened, on_one_device, read_outside
from tracegrad.control_flow.scan import iteration_draws, loop_nodes
from tracegrad.control_flow.while_loop import while_nodes
from tracegrad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TraceError, type_name
from tracegrad.graph.ir import Aval, Node, own_nodes, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import REGISTRY, as_node, bind, cast, const, iota, placeholder
from tracegrad.graph.substitution import substituted
from tracegrad.ops.arrays.joining import cat, stack
from tracegrad.ops.arrays.logical import logical_not
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.primitives.movement import concat, narrow, reshape
from tracegrad.support import dtypes, random_state
from tracegrad.support.modes import state
from tracegrad.tensors.scopes import Recorded
from tracegrad.tensors.tensor import Tensor, new_tensor

__all__ = ["cond", "scan", "while_loop"]
_VARIABLE, _DETACH, _OUTPUT, _PLACEHOLDER = (REGISTRY[name] for name in ("variable", "detach", "output", "placeholder"))

# ------------------------------------------------------------------------------------------------------------ while_loop


@public("while_loop", method=False)
def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], init: Any = None, *, carried_inputs: Sequence[Any] | None = None,
    max_iterations: int | None = None,
) -> Any:
    """value = init; while cond_fn(value): value = body_fn(value).

    init: a (nested container of) tensors, whose structure, shapes and dtypes body_fn keeps, as in JAX; or, by name, torch's carried_inputs:
    a tuple for functions of so many arguments, as long as the one that body_fn returns. (Given by place, a tuple is one value: functions
    of one argument could mean either.) cond_fn returns one element. max_iterations: the loop ends after so many iterations even if
    cond_fn still holds, with the value that it has then: call cond_fn on the result to know. (Without it, a loop that never ends
    hangs.) Inside @trace the loop is one kernel, condition included, where one core does an iteration in a few microseconds; else a
    step of the plan that waits for the condition at every iteration. Its derivative, at any order, runs the body again as often, keeps
    values, and pulls back one iteration after the other; a kernel keeps up to 4 MiB of them and computes the others twice. There it
    must not draw random numbers or change outside tensors (TraceError), and cond_fn and body_fn may be called twice. So it is under
    vmap from where the condition depends on the example, for each example by itself. Else it is Python's own loop. For a known number
    of iterations, or a stack of results, use `scan`.
    What the functions are given is their own: a value that they change in place is another one for them only.
    Raises ShapeError or DTypeError if body_fn changes a shape or dtype, ArgumentError for both init and carried_inputs, and for a
    max_iterations that is no number from 0 on.

    >>> tg.while_loop(lambda x: x.norm() > 1, lambda x: x / 2, tg.ones(3) * 10)
    >>> tg.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), carried_inputs=(tg.tensor(0), tg.ones(3)))
    """
    if carried_inputs is not None:
        if init is not None or not isinstance(carried_inputs, (tuple, list)):
            raise ArgumentError(f"while_loop: carried_inputs must be a tuple, and stands for init; got {type(carried_inputs).__name__}")
        return while_loop(lambda value: cond_fn(*value), lambda value: _in_tuple(body_fn(*value)), tuple(carried_inputs),
                          max_iterations=max_iterations)
    if max_iterations is not None and (type(max_iterations) is not int or max_iterations < 0):
        raise ArgumentError(f"while_loop: max_iterations must be a number of iterations, 0 or more, got {max_iterations!r}")
    flat, tree = optree.tree_flatten(init, none_is_leaf=True)
    if not flat or not all(isinstance(x, (Tensor, int, float, complex)) for x in flat):
        raise DTypeError(f"while_loop: init must hold tensors, got {[type(x).__name__ for x in flat]}")
    trace = state.trace
    if trace is None:
        value, goes_on, left = _pythons_loop(cond_fn, body_fn, init, max_iterations)
        if goes_on is None:
            return value
        flat, beside = optree.tree_leaves(value, none_is_leaf=True), goes_on
    else:
        beside, left = _first(flat, trace), max_iterations
    on_one_device("while_loop", [beside, *flat])
    device = beside.device
    nodes = [x._node() if isinstance(x, Tensor) else as_node(x) for x in flat]
    nodes = [cast(n, dtypes.default_of(n.dtype)) if n.aval.weak else n for n in nodes]
    drawn = _drawn()
    varies = [n.needs_grad for n in nodes]
    while True:                        # until it is known which values have a derivative
        inputs = [_stand_in(n.aval, f"value_{i}" if len(nodes) > 1 else "value", v)
                  for i, (n, v) in enumerate(zip(nodes, varies, strict=True))]
        value = optree.tree_unflatten(tree, [Tensor(n, device, trace) for n in inputs])
        with Recorded("while_loop"):
            condition = cond_fn(_own(value))
            _check_condition(condition)
            (test, *more), _ = flattened("while_loop", condition, beside)
            outs, out_tree = flattened("while_loop", body_fn(_own(value)), beside)
        if _drawn() != drawn:
            raise TraceError("while_loop: a random number inside @trace or vmap would be the same at every iteration; draw outside the "
                             "loop, or use scan")
        if more or test.aval.size != 1:
            raise ShapeError(f"while_loop: cond_fn must return one element, got {[test.aval, *(n.aval for n in more)]}")
        if out_tree != tree:
            raise ArgumentError(f"while_loop: body_fn returns {out_tree}, init is {tree}")
        outs = [cast(o, n.dtype) if o.aval.weak else o for o, n in zip(outs, nodes, strict=True)]
        for o, n in zip(outs, nodes, strict=True):
            agreed("while_loop: init and body_fn's result are", n, o)
        grown = [v or (o.needs_grad and state.grad) for v, o in zip(varies, outs, strict=True)]
        if grown == varies:
            break
        varies = grown
    outer = read_outside([test, *outs], set(inputs), lambda n: not n.constant)        # constants have no derivative: of exponents, NaN
    given = [cast(n, dtypes.default_of(n.dtype)) if n.aval.weak else n for n in outer]
    free = [placeholder(n.aval, "") for n in given]
    new = dict(zip([*inputs, *outer], [*inputs, *free], strict=True))
    plain = {v: v.operands[0] for v in inputs if v.fn is _VARIABLE}
    (test,), outs = substituted([reshape(test, ())], new | plain), substituted(outs, new | plain)
    body = Body([*(plain.get(v, v) for v in inputs), *free], outs, len(nodes), 0)
    results = while_nodes(test, body, [*nodes, *given], device, left)
    return optree.tree_unflatten(tree, [Tensor(r, device, trace) for r in results])


def _pythons_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], value: Any, left: int | None) -> tuple[Any, Any, int | None]:
    """The loop by Python, of at most `left` iterations: its value, None, and how many are left.

    Where the condition depends on the example of a vmap, the loop has to be recorded from there on: then the condition stands for None.
    """
    while left != 0:
        with Recorded("while_loop") if state.examples else nullcontext():
            goes_on = cond_fn(_own(value))
        if _of_examples(goes_on):
            return value, goes_on, left
        _check_condition(goes_on)
        if not goes_on:
            break
        value = _kept("while_loop: body_fn", value, body_fn(_own(value)))
        left = None if left is None else left - 1
    return value, None, left


def _check_condition(test: Any) -> None:
    """Raise unless it is a bool, a number or a tensor: of a container Python would go on for ever."""
    if not isinstance(test, (Tensor, bool, int, float, np.bool_, np.number)):
        raise ArgumentTypeError(f"while_loop: cond_fn must return a bool, or a tensor of one element, got {type_name(test)}")


def _of_examples(test: Any) -> bool:
    """Whether it depends on what vmap maps, so that it has no value."""
    return bool(state.examples) and isinstance(test, Tensor) and any(n.fn is _PLACEHOLDER for n in topological([test._node()]))


def _drawn() -> int:
    """How many random numbers have been drawn."""
    return random_state.offset() if state.trace is None else state.trace.draws


def _in_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------------------------ scan


@public("scan", method=False)
def scan(f: Callable[[Any, Any], Any], init: Any, xs: Any = None, length: int | None = None, reverse: bool = False,
         checkpoint: int | None = None, until: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
    """carry, y = f(carry, x) along the first dimension of xs; (the last carry, the ys stacked).

    init: a (nested container of) tensors or numbers, whose structure, shapes and dtypes f keeps. xs: the same of tensors, with one first
    dimension, or None with `length`. y may be None. reverse: from the last row to the first. Inside @trace the loop is one operation: f is
    recorded once (or twice: it must not depend on how often it is called), compiled once, and its derivative is a loop, too, at any order.
    What f is given is its own: changed in place (`carry += x`), it is another value, and neither init nor xs change. Outside it is
    Python's own loop, of which iterations that are alike become one operation afterwards; so it is in a trace where f changes outside
    tensors in place. checkpoint: the derivative needs the carries (and products, reductions and gathers) of every iteration, which are
    kept: k keeps every k-th carry instead, and computes the rest again, k iterations at a time. By default everything is kept up to 1 GiB
    of carries, and beyond that every sqrt(length)-th carry (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016). until: a
    function of the carry that returns one element. From where it is true f is not applied any more: the carry stays as it is, and the rows
    of y that are left are zeros. Derivatives, at any order, are those of the iterations that were made. Raises ShapeError if the first
    dimensions differ or f changes the carry's shape, DTypeError if it changes the dtype, ArgumentError if the length is not known, f
    returns no pair, or checkpoint is not positive.

    >>> tg.scan(lambda c, x: (c + x, c * x), tg.tensor(0.0), tg.arange(4.0))
    >>> tg.scan(lambda c, x: (c * x, c), tg.tensor(1.0), tg.ones(9) * 2, until=lambda c: c > 100)
    """
    if until is not None:
        (carry, _), ys = scan(_until(until, f), (init, new_tensor(const(False, dtypes.bool_))), xs, length, reverse, checkpoint)
        return carry, ys
    flat, tree = optree.tree_flatten(xs, none_is_leaf=False)
    for x in flat:
        if not isinstance(x, Tensor) or not x.shape:
            seen = x.shape if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"scan: xs must hold tensors of at least one dimension, got {seen}")
    sizes: set[int] = {x.shape[0] for x in flat} | ({length} if length is not None else set())
    if not sizes:
        raise ArgumentError("scan: without xs, give length")
    if len(sizes) != 1:
        raise ShapeError(f"scan: the first dimensions of xs and length must be one number, got {sorted(sizes)}")
    n = sizes.pop()
    if n < 0:
        raise ArgumentError(f"scan: length must not be negative, got {n}")
    if checkpoint is not None and checkpoint < 1:
        raise ArgumentError(f"scan: checkpoint must be a positive number of iterations, got {checkpoint!r}")
    trace = state.trace
    if trace is not None:
        segment = _segment(init, n) if checkpoint is None else checkpoint
        try:
            if segment >= n:
                return _Iteration(f, init, flat, tree, n, reverse, trace).run()
            return _in_segments(f, init, flat, tree, n, reverse, segment)
        except _ChangesOutside:
            pass
    return _unrolled(f, init, flat, tree, n, reverse)


def _until(until: Callable[[Any], Any], f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The iteration of a scan that ends where `until` holds, of f's: its carry has a flag beside, whether it has ended."""
    made: list[Any] = []                                   # the parts of y, and how they are put together

    def iteration(carried: Any, x: Any) -> Any:
        before, over = carried
        over = over | until(_own(before))

        def on(carry: Any, x: Any) -> Any:
            step = f(carry, x)
            if not isinstance(step, tuple) or len(step) != 2:
                raise ArgumentError(f"scan: f must return a pair (carry, y), got {type(step).__name__}")
            made[:] = optree.tree_flatten(step[1], none_is_leaf=False)
            return step[0], made[0]

        def off(carry: Any, x: Any) -> Any:
            if not made:
                on(_own(carry), _own(x))                   # to know what y is made of
            return carry, [_zeros_of(y) for y in made[0]]

        carry, ys = cond(logical_not(over), on, off, before, x)
        return (carry, over), optree.tree_unflatten(made[1], ys)

    return iteration


def _zeros_of(y: Any) -> Any:
    return new_tensor(full_like_shape(y.shape, 0, y.dtype), y.device) if isinstance(y, Tensor) else type(y)(0)


KEPT = 1 << 30           # bytes of carries that a derivative may need before only some of them are kept


def _segment(init: Any, n: int) -> int:
    """After how many iterations a carry is kept."""
    carried = sum(x._node().aval.nbytes for x in optree.tree_leaves(init) if isinstance(x, Tensor))
    return n if not state.grad or carried * n <= KEPT else math.isqrt(n - 1) + 1


def _in_segments(f: Any, init: Any, flat: list[Tensor], tree: Any, n: int, reverse: bool, k: int) -> tuple[Any, Any]:
    """A loop over segments of k iterations, each a loop, and one over what is left."""
    trace = state.trace
    assert trace is not None
    whole = n // k * k
    carry, parts = init, []

    def segment(carry: Any, rows: Any) -> Any:
        return _Iteration(f, carry, optree.tree_leaves(rows), tree, k, reverse, trace).run()

    def some(low: int, high: int) -> list[Tensor]:
        return [x[low:high] for x in flat]

    for low, high in ((whole, n), (0, whole)) if reverse else ((0, whole), (whole, n)):
        if low == high:
            continue
        if high - low == whole:
            rows = [x.reshape(whole // k, k, *x.shape[1:]) for x in some(low, high)]
            structure = optree.tree_flatten(rows)[1]  # type: ignore[arg-type]
            carry, ys = _Iteration(segment, carry, rows, structure, whole // k, reverse, trace, keep_values=False).run()
            ys = optree.tree_map(lambda y: y.reshape(whole, *y.shape[2:]), ys)
        else:
            carry, ys = _Iteration(f, carry, some(low, high), tree, high - low, reverse, trace).run()
        parts.append(ys)
    if reverse:
        parts.reverse()
    return carry, parts[0] if len(parts) == 1 else optree.tree_map(lambda a, b: cat([a, b]), *parts)


class _ChangesOutside(BaseException):
    """f changes a tensor from outside in place. (No Exception: what f catches is none of its business.)"""


class _Iteration:
    """Records one iteration of a scan, as often as it takes to know which carries have a derivative, and of what dtype numbers become."""

    def __init__(
        self, f: Any, init: Any, xs: list[Tensor], tree: Any, length: int, reverse: bool, trace: Any, keep_values: bool = True
    ) -> None:
        self.f, self.xs, self.tree, self.length, self.reverse, self.trace = f, xs, tree, length, reverse, trace
        self.keep_values = keep_values
        leaves, self.carry_tree = optree.tree_flatten(init, none_is_leaf=False)
        for x in leaves:
            if not isinstance(x, (Tensor, bool, int, float, complex, np.generic)):
                raise DTypeError(f"scan: init must hold tensors and numbers, got {type(x).__name__}")
        self.init = [x._node() if isinstance(x, Tensor) else as_node(x) for x in leaves]
        code = getattr(f, "__code__", None)
        names: Sequence[str] = code.co_varnames if code is not None and code.co_argcount == 2 else ("carry", "row")
        self.carry_name, self.row_name = names[:2]
        self.beside = _first([*leaves, *xs], trace)
        on_one_device("scan", [self.beside, *leaves, *xs])

    def run(self) -> tuple[Any, Any]:
        """The results of the loop."""
        avals = [n.aval for n in self.init]
        varies = [n.needs_grad for n in self.init]
        for _ in range(2 * len(avals) + 2):
            carries = [_stand_in(Aval(a.shape, _strong(a)), f"{self.carry_name}{i if len(avals) > 1 else ''}", v)
                       for i, (a, v) in enumerate(zip(avals, varies, strict=True))]
            rows, start, drawn, outs, ys, y_tree = self.record(carries)
            found = [o.aval if a.weak and not o.aval.weak and o.shape == a.shape else a for a, o in zip(avals, outs, strict=True)]
            grown = [v or (o.needs_grad and state.grad) for v, o in zip(varies, outs, strict=True)]
            if found == avals and grown == varies:
                break
            avals, varies = found, grown
        init, outs = list(self.init), list(outs)
        for i, a in enumerate(avals):
            aval = Aval(a.shape, _strong(a))
            init[i], outs[i] = (cast(x, aval.dtype) if x.aval.weak or x is init[i] else x for x in (init[i], outs[i]))
            if (outs[i].shape, outs[i].dtype) != (aval.shape, aval.dtype):
                kind = ShapeError if outs[i].shape != aval.shape else DTypeError
                raise kind(f"scan: f makes {outs[i].dtype}{list(outs[i].shape)} of a carry of {aval.dtype}{list(aval.shape)}; it must keep "
                           "shape and dtype")
        ys = [cast(y, _strong(y.aval)) if y.aval.weak else y for y in ys]
        scanned = [x._node() for x in self.xs]
        if drawn:
            rows, scanned = [*rows, start], [*scanned, self.draws(drawn)]
        with own_nodes():
            lasts, stacks = loop_nodes(carries, rows, outs, ys, init, scanned, self.length, self.reverse, keep_values=self.keep_values)
        carry, stacked = ([Tensor(n, self.beside.device, self.trace) for n in nodes] for nodes in (lasts, stacks))
        return optree.tree_unflatten(self.carry_tree, carry), optree.tree_unflatten(y_tree, stacked)

    def record(self, carries: list[Node]) -> Any:
        """One iteration."""
        rows = [_stand_in(Aval(x.shape[1:], x.dtype), f"{self.row_name}{i if len(self.xs) > 1 else ''}", x._node().needs_grad)
                for i, x in enumerate(self.xs)]
        start = placeholder(Aval((), dtypes.int64), "draws")
        with iteration_draws(start) as drawn, Recorded("scan", _ChangesOutside):
            carry, row = ([Tensor(n, self.beside.device, self.trace) for n in nodes] for nodes in (carries, rows))
            step = self.f(optree.tree_unflatten(self.carry_tree, carry), optree.tree_unflatten(self.tree, row))
        if not isinstance(step, tuple) or len(step) != 2:
            raise ArgumentError(f"scan: f must return a pair (carry, y), got {type(step).__name__}")
        outs, tree = flattened("scan", step[0], self.beside, none_is_leaf=False)
        if tree != self.carry_tree:
            raise ArgumentError(f"scan: f returns {tree} for a carry of {self.carry_tree}")
        ys, y_tree = flattened("scan", step[1], self.beside, none_is_leaf=False)
        return rows, start, drawn[0], outs, ys, y_tree

    def draws(self, count: int) -> Node:
        """Where in the stream the numbers of each iteration begin, which draws `count`: in the order of the iterations."""
        _, start = self.trace.random(count * self.length)
        iteration: Any = iota((self.length,), 0, dtypes.int64)
        iteration = (self.length - 1) - iteration if self.reverse else iteration
        return cast(start, dtypes.int64) + iteration * count  # type: ignore[no-any-return]


def _strong(aval: Aval) -> Any:
    """The dtype that a Python number becomes in a loop."""
    return dtypes.default_of(aval.dtype) if aval.weak else aval.dtype


def _stand_in(aval: Aval, label: str, varies: bool) -> Node:
    node = placeholder(aval, label)
    return stand_in(node) if varies else node


def _unrolled(f: Any, init: Any, flat: list[Tensor], tree: Any, n: int, reverse: bool) -> tuple[Any, Any]:
    rows = [unstack(x) for x in flat]
    iterations = DetectedLoop(flat, rows, n, reverse)
    carry, parts = init, []
    carries: list[Any] = []
    carry_tree: Any = None
    y_tree: Any = None
    held, comparing = state.holds, state.comparing
    state.comparing = comparing or iterations.usable
    try:
        step: Any
        for i in reversed(range(n)) if reverse else range(n):
            step = f(*_own((carry, optree.tree_unflatten(tree, [r[i] for r in rows]))))
            if not isinstance(step, tuple) or len(step) != 2:
                raise ArgumentError(f"scan: f must return a pair (carry, y), got {type(step).__name__}")
            carry = _kept("scan: f", carry, step[0])
            ys, y_tree = optree.tree_flatten(step[1], none_is_leaf=False)
            parts.append(ys)
            if iterations.usable:
                carries, carry_tree = optree.tree_flatten(carry, none_is_leaf=False)
                if not iterations.note(i, carries, ys):              # no longer compared: the others need not wait
                    state.holds, state.comparing = held, comparing
    finally:
        state.holds, state.comparing = held, comparing
    if y_tree is None:
        return carry, None
    if iterations.usable:
        step = carry = None                     # what they hold would be taken for the user's
        made = iterations.loop(carries, parts)
        if made is not None:
            return optree.tree_unflatten(carry_tree, made[0]), optree.tree_unflatten(y_tree, made[1])
        carry = optree.tree_unflatten(carry_tree, carries)
    if reverse:
        parts.reverse()
    stacked = [stack([p[k] if isinstance(p[k], Tensor) else new_tensor(as_node(p[k])) for p in parts]) for k in range(len(parts[0]))]
    return carry, optree.tree_unflatten(y_tree, stacked)


def unstack(x: Tensor) -> list[Tensor]:
    """The slices along the first dimension, with a derivative that stacks (that of n single slices would add n arrays of x's size)."""
    node = x._node()
    source = bind(_DETACH, (node,), {}) if node.needs_grad else node
    raw = [reshape(narrow(source, 0, i, 1), x.shape[1:]) for i in range(x.shape[0])]
    if node.needs_grad and raw:
        call = bind(_UNSTACK, (*raw, node), {})
        raw = [bind(_OUTPUT, (call,), {"index": i, "aval": r.aval}) for i, r in enumerate(raw)]
    return [x._tensor_of(r) for r in raw]


class Unstack(CustomCall):
    """Slices as differentiation sees them: operands are the slices and the whole."""

    structural = True

    def __init__(self) -> None:
        self.name = "unstack"  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return operands[:-1]

    def tracked(self, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """The whole."""
        return operands[-1:]

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        parts = dense(ct, operands[:-1])
        return (*[None] * len(parts), concat([reshape(p, (1, *p.shape)) for p in parts], 0))


_UNSTACK = Unstack()


# --------------------------------------------------------------------------------------------------------------- recording


def _first(values: Sequence[Any], trace: Any) -> Tensor:
    """A tensor on the device that a loop in a trace is on: that of its values, else the trace's."""
    return next((x for x in values if isinstance(x, Tensor) and not x._n.aval.weak), new_tensor(const(0, dtypes.int64), trace.device))


def _own(values: Any) -> Any:
    """The same values, in tensors of an iteration's own: what it writes to them in place reaches nobody else's."""
    return optree.tree_map(lambda x: Tensor(x._node(), x._device, state.trace) if isinstance(x, Tensor) else x, values, none_is_leaf=True)


def _kept(what: str, before: Any, after: Any) -> Any:
    """`after`, which must have the structure, shapes and dtypes of `before`."""
    old, tree = optree.tree_flatten(before, none_is_leaf=True)
    new, new_tree = optree.tree_flatten(after, none_is_leaf=True)
    if tree != new_tree:
        raise ArgumentError(f"{what} returns {new_tree} for a carry of {tree}")
    for a, b in zip(old, new, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor) and (a.shape != b.shape or a.dtype != b.dtype):
            kind = ShapeError if a.shape != b.shape else DTypeError
            raise kind(f"{what} makes {b.dtype}{list(b.shape)} of a carry of {a.dtype}{list(a.shape)}; it must keep shape and dtype")
    return after
