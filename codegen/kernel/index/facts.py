"""What can be told of values before they are computed: where an element comes from, its sign, sums that pick one element.

Facts are proved with symbolic indices (see `index`), so they hold however the user spelled it: `x - x.amax(1, keepdim=True)`,
the same through reshapes, or the softmax of the library.

What a kernel looks like may depend on what made the arrays that it reads. Whoever makes kernels asks that by a `Fact` only, and the key of
equal kernels (planning/lowering_cache.py) carries the answers of all facts. In `only`, which tests lower in, another question is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, ravel, unravel
from tracegrad.errors import CompilerBug
from tracegrad.graph.intervals import interval, may_wrap
from tracegrad.graph.ir import Node
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import dtype_kind

NARROW = 8.0               # the angle up to which cosines have a short reduction (mathlib/trig.py)


class Fact:
    """A question about a node whose answer may depend on how its operands were made: `fact(node)`, None where it has no meaning.

    concerns(node): whether it has one. tell(node): the answer.
    """

    __slots__ = ("concerns", "name", "tell")

    def __init__(self, name: str, concerns: Callable[[Node], bool], tell: Callable[[Node], Hashable]) -> None:
        self.name, self.concerns, self.tell = name, concerns, tell

    def __repr__(self) -> str:
        return self.name

    def __call__(self, node: Node) -> Any:
        if not self.concerns(node):
            return None
        carried = _carried.get()
        if carried is not None and (self, node) not in carried:
            raise CompilerBug(f"codegen: a kernel depends on {self.name} of {node!r}, computed at {node.loc}, which the key of equal "
                              "kernels does not carry: add the fact to lowering_cache.FACTS")
        return self.tell(node)


_carried: ContextVar[Collection[tuple[Fact, Node]] | None] = ContextVar("carried", default=None)


@contextmanager
def only(carried: Collection[tuple[Fact, Node]] | None) -> Iterator[None]:
    """Inside, a fact that is not one of `carried` must not be asked; None: all may be."""
    token = _carried.set(carried)
    try:
        yield
    finally:
        _carried.reset(token)


def operand_index(operand: Node, node: Node, flat: Index) -> Index:
    """The element of an elementwise operand, broadcast as numpy does, that element `flat` of `node` is computed from."""
    if operand.aval.size == node.aval.size:
        return flat
    if operand.aval.size == 1:
        return ZERO
    return _broadcast(flat, node.shape, operand.shape)


@memoize(512)                                              # asked for what is read, and again when it is
def _broadcast(flat: Index, shape: tuple[int, ...], of: tuple[int, ...]) -> Index:
    tail = unravel(flat, shape)[len(shape) - len(of):]
    return ravel([i if n != 1 else 0 for i, n in zip(tail, of, strict=True)], of)


def origin(node: Node, flat: Index) -> tuple[Node, Index]:
    """The node and the index that element `flat` is moved from, as far back as it takes no condition to tell."""
    while node.fn.family == "movement" and node.aval.size:      # (no elements: nothing to tell)
        if node.fn.name != "reshape":
            fn: Any = node.fn
            branches = list(fn.locate(unravel(flat, node.shape), *[o.aval for o in node.operands], **node.attrs))
            if len(branches) != 1 or branches[0][2]:
                break
            operand, at, _ = branches[0]
            flat = ravel(at, node.operands[operand].shape)
            node = node.operands[operand]
        else:
            node = node.operands[0]
    return node, flat


def never_positive(node: Node) -> bool:
    """Whether a float value is known to be at most 0, or NaN: the operand of the exponential in a softmax, a Gaussian, a softplus."""
    node, _ = origin(node, ZERO)
    if node.fn.name == "where":                              # x < 0 ? x : -x
        condition, a, b = node.operands
        return condition.fn.name == "lt" and condition.operands[0] is a and is_zero(condition.operands[1]) and (
            b.fn.name == "neg" and b.operands[0] is a)
    return sign(node) < 0 or (node.fn.name == "sub" and subtracts_maximum(node))


def sign(node: Node, steps: int = 8) -> int:
    """1: an element is known to be at least 0, or NaN, -1: at most 0, or NaN; as far as `steps` operations tell. 0: that is not known."""
    node, _ = origin(node, ZERO)
    name, operands = node.fn.name, node.operands
    if name == "const":
        value = node.attrs["value"]
        return 0 if dtype_kind(node.dtype) not in "fiu" else 1 if value >= 0 else -1 if value < 0 else 0
    if node.fn.nonnegative:
        return 1
    if not steps or dtype_kind(node.dtype) != "f":
        return 0
    if name == "neg":
        return -sign(operands[0], steps - 1)
    if name == "mul" and _magnitude(operands[0]) is _magnitude(operands[1]):     # x x, and -x x
        return 1 if _negations(operands[0]) == _negations(operands[1]) else -1
    if name != "add" and name not in ("mul", "div"):
        return 0
    first = sign(operands[0], steps - 1)
    second = sign(operands[1], steps - 1) if first else 0
    return first * second if name != "add" else first if first == second else 0


def _magnitude(node: Node) -> Node:
    return node.operands[0] if node.fn.name == "neg" else node


def _negations(node: Node) -> bool:
    return node.fn.name == "neg"


def divides(node: Node) -> int:
    """What is known of a division of integers: 2, that the divisor is positive and the other not negative, 1, that it is positive; or 0."""
    a, b = map(interval, node.operands)
    return 0 if b[0] < 1 else 1 if a[0] < 0 else 2


def largest(node: Node, steps: int = 8) -> float:
    """A bound of the magnitude of an element, as far as `steps` operations tell: the angle in a normal random number, say."""
    node, _ = origin(node, ZERO)
    name, operands = node.fn.name, node.operands
    if name == "const":
        return abs(float(node.attrs["value"])) if dtype_kind(node.dtype) in "fiu" else math.inf
    if node.dtype.kind == "u" and name == "bitwise_right_shift" and operands[1].fn.name == "const":
        return 2.0 ** (8 * node.dtype.itemsize - int(operands[1].attrs["value"]))
    if steps and dtype_kind(node.dtype) == "f" and name in ("cast", "mul"):
        each = [largest(x, steps - 1) for x in operands]
        return math.inf if 0.0 in each else math.prod(each)
    return math.inf


def subtracts_maximum(node: Node) -> bool:
    """Whether `node` is x - m, where m is the maximum of a row that the element of x is in."""
    if not node.aval.size:
        return False
    flat = Var("p", node.aval.size).index
    x, at = origin(node.operands[0], operand_index(node.operands[0], node, flat))
    m, row = origin(node.operands[1], operand_index(node.operands[1], node, flat))
    if m.fn.name != "amax" or m.operands[0].aval.size != node.aval.size or m.attrs["dim"] != (len(m.operands[0].shape) - 1,):
        return False
    if row != flat // m.operands[0].shape[-1]:
        return False
    source, there = origin(m.operands[0], flat)
    return source is x and there == at


def is_zero(node: Node) -> bool:
    node, _ = origin(node, ZERO)
    return node.fn.name == "const" and not node.attrs["value"]


def picked(reduction: Node, row: Index, col: Index) -> tuple[tuple[Node, Index], tuple[Node, Index]] | None:
    """A sum over rows of `where(position == label, x, 0)` has one term: (x, its index in column `col`), (label, its index). Else None."""
    rows, cols = reduction.operands[0].shape[0], reduction.operands[0].shape[-1]
    if reduction.fn.name != "sum" or reduction.operands[0].shape != (rows, cols) or dtype_kind(reduction.dtype) != "f":
        return None
    where, flat = origin(reduction.operands[0], row * cols + col)
    if where.fn.name != "where" or not is_zero(where.operands[2]):
        return None
    condition, at = origin(where.operands[0], operand_index(where.operands[0], where, flat))
    if condition.fn.name != "eq":
        return None
    for a, b in (condition.operands, condition.operands[::-1]):
        position, place = origin(a, operand_index(a, condition, at))
        label, there = origin(b, operand_index(b, condition, at))
        if position.fn.family == "index" and label.dtype.kind in "iu" and col.vars.isdisjoint(there.vars) and (
            unravel(place, position.shape)[position.attrs["dim"]] == col
        ):
            x = where.operands[1]
            return (x, operand_index(x, where, flat)), (label, there)
    return None


NEVER_POSITIVE = Fact("never_positive", lambda n: n.fn.name == "exp", lambda n: never_positive(n.operands[0]))
NARROW_ANGLE = Fact("narrow_angle", lambda n: n.fn.name == "cos", lambda n: largest(n.operands[0]) <= NARROW)
DIVIDES = Fact("divides", lambda n: n.fn.name in ("remainder", "floor_divide") and n.operands[-1].dtype.kind in "iu", divides)
MAY_WRAP = Fact("may_wrap", lambda n: n.fn.wraps and n.fn.family == "elementwise" and n.operands[-1].dtype.kind == "i", may_wrap)
