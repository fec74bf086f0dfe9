"""Primitives: what a node of the graph applies. Start at `Primitive`; `families.py` says what an op class must give.

One op is one class in `tracegrad/ops/`: name, shape rule, numpy meaning, derivative and OpenCL expression together. A class
that lacks a rule fails at import. `REGISTRY` (name -> the op's one instance) is the only list of ops; tests run over it.

`bind` makes nodes. Calling an op (`sqrt(x)`) takes Nodes, Tensors and Python scalars: it promotes dtypes, makes constants
of the scalars, and gives back what it was given (Tensors if any operand is one).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tracegrad.errors import DeviceError, DTypeError, OutOfMemoryError, printable, type_name
from tracegrad.graph.cached_calls import calls, describe, learn
from tracegrad.graph.canonical import number_of, without_number
from tracegrad.graph.ir import INTERN, Aval, Entry, Node, enter, tell
from tracegrad.graph.locations import LINE, Location
from tracegrad.graph.operation import Operation
from tracegrad.graph.operators import Operators
from tracegrad.support import dtypes
from tracegrad.support.cache import Cache
from tracegrad.support.dtypes import DType, dtype_kind
from tracegrad.support.modes import state

REGISTRY: dict[str, Primitive] = {}
def own_name(name: str) -> str:
    """What an operation that a user gave this name is called: never as one of ours, which passes know by their names."""
    return f"{name}_" if name in REGISTRY else printable(name)


class _Primitives:
    """The ops of the registry by name, for what `f.source()` shows: `primitive.scatter_add(x, index, y)`."""

    def __getattr__(self, name: str) -> Primitive:
        try:
            return REGISTRY[name]
        except KeyError:
            raise AttributeError(f"tracegrad has no operation {name!r}") from None


primitive = _Primitives()
Shape = tuple[int, ...]
REAL_SCALARS = (bool, int, float)            # numpy.float64 is a float: to torch, too, a Python number that promotes nothing
PYTHON_SCALARS = (*REAL_SCALARS, complex)


_new_node = Node.__new__


class Primitive(Operation):
    """Base of all ops.

    A subclass that sets `name` is an op and must define the rules of its family: `aval` (shape and dtype), `numpy`
    (meaning), `vjp` (derivative; or `differentiable = False`), and what its kernels need (`opencl`, `locate`, or a lowering
    of the code generator that is named by `family`).
    """

    @cached_property
    def memo(self) -> Cache:
        """What calls with the tensors and numbers of users made: see cached_calls.py."""
        return calls()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__dict__.get("name"):
            return
        missing = [rule for rule in cls.required if getattr(cls, rule, None) is getattr(Primitive, rule, None)]
        if cls.differentiable and cls.vjp is Primitive.vjp:
            missing.append("vjp (or differentiable = False)")
        if missing:
            raise TypeError(f"op class {cls.__name__} lacks {', '.join(missing)}")
        if cls.name in REGISTRY:
            raise TypeError(f"op class {cls.__name__}: the name {cls.name!r} is taken by {type(REGISTRY[cls.name]).__name__}")
        REGISTRY[cls.name] = cls()
        cls.registered = True
        cls.structural = cls.__dict__.get("structural", True)

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        return call(self, args, attrs)

    def prepare(self, args: list[Any]) -> tuple[Node, ...]:
        """Turn Nodes and Python scalars into operand nodes. Most families only accept tensors."""
        return tuple(as_node(a, self.name) for a in args)


def bind(fn: Operation, operands: tuple[Node, ...], attrs: dict[str, Any]) -> Node:
    """The node that applies `fn`: the one that exists, or a new one. Operands are nodes of the right dtypes already, attrs hashable.

    One that a derivative may go through is shared within one call of the user's only: see `ir.own_nodes`. One without operands is
    shared within its program only: see `ir.own_leaves`.
    """
    key = (fn, operands, *attrs.items()) if attrs else (fn, operands)
    own = state.own if operands else state.leaves
    if own is not None and (not operands or needs_grad(fn, operands)):
        node: Node | None = own.get(key)
        if node is None:
            node = own[key] = Node(fn, operands, attrs, fn.aval(*[o.aval for o in operands], **attrs), bool(operands))
        return node
    entry = INTERN.get(key)
    node = None if entry is None else entry()
    if node is None:
        node = Node(fn, operands, attrs, fn.aval(*[o.aval for o in operands], **attrs), needs_grad(fn, operands))
        enter(key, node)
    return node


def needs_grad(fn: Operation, operands: Sequence[Node]) -> bool:
    """Whether a derivative may go through `fn` to one of its operands."""
    if fn.differentiable:
        for o in operands:
            if o.needs_grad:
                return True
    return False


def saves(node: Node) -> bool:
    """Whether the derivative at `node` reads values, so that a backward without retain_graph frees it."""
    return node.needs_grad and (node.operands[0] if node.fn.family == "output" and node.operands else node).fn.saves


def numpy_time(node: Node) -> float:
    """About the nanoseconds that numpy takes for a node."""
    return node.fn.cost * node.fn.work(node.aval, *[o.aval for o in node.operands], **node.attrs)


def to_keep(found: Iterable[Node]) -> list[Node]:
    """Those of the nodes, in topological order, that a derivative may have kept, where it computes everything else anew.

    Not what was picked (an extremum, a threshold that topk found) out of elements that are computed anew: what computes those may round
    otherwise (numpy after kernels, all iterations of a loop at once), and then nothing would be equal to what was kept.
    """
    kept: dict[Node, None] = {}

    def anew(x: Node) -> bool:
        while x not in kept and len(x.operands) == 1 and (x.fn.family == "movement" or x.fn.name == "detach"):
            x = x.operands[0]
        return x not in kept and bool(x.operands) and x.fn.name != "variable"

    for node in found:
        if not (node.fn.selects_elements and any(dtype_kind(o.dtype) == "f" and anew(o) for o in node.operands)):
            kept[node] = None
    return list(kept)


def fixed(x: Node) -> bool:
    """Whether nobody differentiates with respect to x: a constant that no variable holds."""
    return x.constant and not x.needs_grad


def saving_nothing(op: Primitive) -> Any:
    """The op for operands of which only constants are read by its derivative, which a composed function brings: a mean's 1/n, tril's mask.

    torch has functions of their own for these, through which a second backward may go. Not for `x * 2`: there torch saves the 2.
    """
    return type(type(op).__name__, (type(op),), {"__doc__": type(op).__doc__, "saves": False, "executed": op})()


def call(fn: Primitive, args: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Apply `fn` to Nodes, Tensors and scalars; the result is a Tensor if any argument is one."""
    outside = args and type(args[0]) is not Node
    known = describe(args, attrs) if outside else None
    generic_key = None
    if known is not None:
        key, nodes, first = known
        memo = fn.memo
        template = memo[key]
        if template is not None:
            return first._recalled(template, nodes)
        generic_key = None if attrs else without_number(key, args)
        template = None if generic_key is None or key in memo else memo[generic_key]
        if template is not None:                            # a number that was not met yet: it may never come again
            learn(memo, key, nodes, None)
            return first._recalled(template, [nodes[0], a_number(number_of(args), nodes[0].aval.dtype)])
    wrapper = None
    plain = list(args)
    for i, a in enumerate(plain):
        if not isinstance(a, Node) and isinstance(a, Operators):
            plain[i] = a._operand()
            if wrapper is not None and a._device is not wrapper._device:
                if a._n.aval.weak:                          # a number that was given to a @trace function: it is on any device
                    continue
                if not wrapper._n.aval.weak:
                    raise different_devices(fn.name, wrapper, a)
            wrapper = a
    operands = fn.prepare(plain)
    rounded = fn.single and dtypes.is_half(half := operands[0].aval.dtype) and any(_lost(a, half) for a in plain)
    if rounded:
        operands = fn.prepare([cast(a, dtypes.float32) if isinstance(a, Node) and a.dtype == half else a for a in plain])
    if wrapper is None:
        if plain and not isinstance(plain[0], Node) and not any(isinstance(a, Node) for a in plain):
            given = ", ".join(type(a).__name__ for a in plain)
            raise DTypeError(f"{fn.name}: expected a Tensor, got {given}; use tg.tensor(...) for arrays, lists and numbers")
        made = bind(fn, operands, attrs)
        if state.watch and LINE.location is None:               # an in-place method's
            tell(fn.name, operands, made)
        return cast(made, half) if rounded else made
    try:
        for o in operands:
            if o.needs_grad and fn.differentiable:
                # A user's tensor gets a node of its own, so that a hook on it sees its gradient and no other's; passes share it later.
                node = Node(fn, operands, attrs, fn.aval(*[o.aval for o in operands], **attrs), True)
                break
        else:
            node = bind(fn, operands, attrs)
    except OutOfMemoryError as error:
        error.called(fn.name)
        raise
    if state.watch and LINE.location is None:
        tell(fn.name, operands, node)
    if rounded:
        node = cast(node, half)
    if known is not None:
        learn(memo, key, nodes, node)
        if generic_key is not None and node.fn is fn and memo[generic_key] is None:
            x, = nodes
            numbers = [o for o in operands if o.fn is REGISTRY["const"] and o.aval is Aval((), x.aval.dtype)]
            if numbers and x in operands and dtypes.is_float(x.dtype) and not dtypes.is_half(x.dtype):     # (which may round it: `_lost`)
                twin = Node(fn, operands, dict(attrs), node.aval, node.needs_grad)         # what tells of which template a node is
                learn(memo, generic_key, [x, *numbers], twin)
    return wrapper._tensor_of(node)


def _lost(a: Any, half: DType) -> bool:
    """Whether an operand of a result of 16 bits may be changed by its dtype: a number that it rounds, what has another dtype.

    (Then it has no dimensions, or the result had its dtype; integers with dimensions are converted first, as in torch.)
    """
    if isinstance(a, Node):
        return not a.shape and a.dtype != half
    with np.errstate(over="ignore"):
        return bool(float(half.type(a)) != a)


def different_devices(name: str, a: Any, b: Any) -> DeviceError:
    """The error for tensors of two devices in one operation."""
    return DeviceError(f"{name}: the operands are on different devices, {a._device} and {b._device}; move one with x.to(device)")


def as_node(value: Any, name: str = "") -> Node:
    """A Node for a Node or a Python or numpy scalar (a constant; weak if it is a Python scalar). name: the op's, for errors."""
    if isinstance(value, Node):
        return value
    if isinstance(value, PYTHON_SCALARS):
        kind = next(t for t in PYTHON_SCALARS if isinstance(value, t))
        return const(value, dtypes.as_dtype(kind), weak=True)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return const(value.item(), dtypes.as_dtype(value.dtype))
    call = f"{name}: " if name else ""
    raise DTypeError(f"{call}expected a Tensor or a Python scalar, got {type_name(value)}; use tg.tensor(...) for arrays and lists")


_ANYWHERE = 65504               # no float dtype overflows up to it
_consts = Cache("constants", 1000)               # by value and dtype, Entries: a short way to nodes that are alive
NOWHERE = Location("", 0, "")
_uid = [0]


def unique() -> int:
    """A number never given before (in this process)."""
    _uid[0] += 1
    return _uid[0]


def const(value: Any, dtype: DType, weak: bool = False) -> Node:
    """A compile-time scalar."""
    key = (type(value), value, dtype, weak)
    entry = _consts[key] if state.leaves is None else None
    node = None if entry is None else entry()
    if node is None:
        exact = _exact(value, dtype)
        bits = dtype.str.encode() + exact.tobytes()     # tells 0 from 0.0 and from -0.0, which are equal and hash alike
        node = bind(REGISTRY["const"], (), {"value": exact, "bits": bits, "weak": weak})
        # Not a zero of floats, which may be -0.0, as may a part of a complex one.
        if (value or type(value) is int) and exact.dtype.kind != "c" and state.leaves is None:
            _consts[key] = Entry(node)
    return node


def a_number(value: float, dtype: DType) -> Node:
    """The same of a float below canonical.MOST that may never come again, as a node of its own."""
    node = Node.__new__(Node)
    exact = dtype.type(value)
    node.fn, node.operands, node.aval, node.loc = REGISTRY["const"], (), Aval((), dtype), NOWHERE
    node.attrs = {"value": exact, "bits": dtype.str.encode() + exact.tobytes(), "weak": False}
    node.needs_grad, node.constant, node.value = False, True, None
    return node


def scalar(name: str, value: Any, dtype: DType, weak: bool = False) -> Node:
    """The number `value`, an argument of the function `name`, as a constant of `dtype`; DTypeError if it is none or does not fit."""
    if isinstance(value, Node) and not value.shape:     # a run-time number of a trace
        return cast(value, dtype)
    value = _number(name, value, dtype)
    try:
        return const(value, dtype, weak)
    except DTypeError as error:
        error.called(name)
        raise


def exact_number(name: str, value: Any, dtype: DType) -> Any:
    """The same as a number of NumPy's, where no node is to be made."""
    value = _number(name, value, dtype)
    try:
        return _exact(value, dtype)
    except DTypeError as error:
        error.called(name)
        raise


def _number(name: str, value: Any, dtype: DType) -> Any:
    """The argument `value` of the function `name` as a Python number; DTypeError if it is none, or does not fit the dtype's kind."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, PYTHON_SCALARS):
        raise DTypeError(f"{name}: expected a number, got {type(value).__name__}")
    if isinstance(value, complex):
        if dtype.kind != "c":
            raise DTypeError(f"{name}: the complex number {value} does not fit {dtype}; cast the tensor first, as x.to(tg.complex64)")
    elif dtype.kind in "iu" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise DTypeError(f"{name}: the number {value} does not fit {dtype}; cast to a wider dtype")
    return value


def _exact(value: Any, dtype: DType) -> Any:
    """A Python number in a dtype: rounded, or infinite where it is too large for a float. DTypeError where it cannot be."""
    try:
        if abs(value) <= _ANYWHERE:
            return dtype.type(value)
        with np.errstate(over="ignore"):
            return dtype.type(value)
    except OverflowError:
        raise DTypeError(f"the number {value} does not fit {dtype}; give a float") from None


def _known(test: Any) -> bool | None:
    """What a test of a number among the arguments says; None of a Python float given to a @trace function, which is a run-time number:
    such a test is a node (or a tensor without a value).
    """
    if isinstance(test, (bool, np.bool_)):
        return bool(test)
    return None if isinstance(test, Node) or state.trace is not None else bool(test)


def holds(test: Any) -> bool:
    """Whether a test of a number among the arguments is known to hold."""
    return _known(test) is True


def fails(test: Any) -> bool:
    """Whether it is known not to hold (of NaN, no comparison does)."""
    return _known(test) is False


def named(x: Node, role: str) -> Node:
    """x, which kernels call by what it is for, unless the user has a name for it."""
    if x.operands and not x.loc.role:
        x.loc = x.loc.of_role(role)
    return x


def placeholder(aval: Aval, label: str = "") -> Node:
    """A fresh input."""
    return bind(REGISTRY["placeholder"], (), {"uid": unique(), "aval": aval, "label": label})


def data(aval: Aval, value: Any, attrs: dict[str, Any] | None = None) -> Node:
    """A fresh leaf that holds `value`. (A replay makes one per result, so this takes no detours: nobody else can have the node.)

    attrs: its attributes, where they were made before.
    """
    node = _new_node(Node)
    node.fn, node.operands, node.attrs, node.aval = REGISTRY["data"], (), {"aval": aval} if attrs is None else attrs, aval
    node.loc, node.needs_grad, node.constant, node.value = NOWHERE, False, False, value
    return node


def detached(x: Node) -> Node:
    """x's value, constant to differentiation: what `no_grad` makes of results, so it takes no detours."""
    node = Node.__new__(Node)
    node.fn, node.operands, node.attrs, node.aval = REGISTRY["detach"], (x,), {}, x.aval
    node.loc, node.needs_grad, node.constant, node.value = x.loc, False, False, None
    return node


def renewed(variable: Node, value: Any) -> Node:
    """The variable node of the same leaf, which has got another value. (A step makes one per parameter: no detours here, either.)"""
    aval = variable.aval
    held, node = _new_node(Node), _new_node(Node)
    held.fn, held.operands, held.attrs, held.aval = REGISTRY["data"], (), {"aval": aval}, aval
    held.loc, held.needs_grad, held.constant, held.value = NOWHERE, False, False, value
    node.fn, node.operands, node.attrs, node.aval = variable.fn, (held,), variable.attrs, aval
    node.loc, node.needs_grad, node.constant, node.value = variable.loc, True, False, None
    return node


def iota(shape: Shape, dim: int, dtype: DType = dtypes.int64) -> Node:
    """0, 1, 2, ... along `dim`."""
    return bind(REGISTRY["iota"], (), {"shape": shape, "dim": dim, "dtype": dtype})


def cast(x: Node, dtype: DType) -> Node:
    """x converted to `dtype` (x itself if it has it); never weak."""
    if x.aval.dtype == dtype and not x.aval.weak:
        return x
    if x.fn is REGISTRY["const"]:
        with np.errstate(all="ignore"):
            value = x.attrs["value"]
            return const(value.real if value.dtype.kind == "c" and dtype.kind not in "cb" else value, dtype)
    return bind(REGISTRY["cast"], (x,), {"dtype": dtype, "weak": False})


def filled(value: Any, like: Node) -> Node:
    """`value` in the shape and dtype of `like`."""
    c = const(value, like.dtype)
    return c if not like.shape else bind(REGISTRY["expand"], (c,), {"shape": like.shape})
