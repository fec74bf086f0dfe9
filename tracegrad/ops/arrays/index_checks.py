"""Indices that must lie in a range: the primitive InRange, and `in_range`, which makes it where `interval` cannot tell that all fit.

Whether an index fits is known at the call for constants and for what cannot be larger (arange, argmax, randint, ...); otherwise only on
the device, which cannot raise. There InRange notes what it sees, and whoever reads a value computed with it gets the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracegrad.errors import DTypeError, IndexOutOfRange
from tracegrad.graph.intervals import interval
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import Elementwise
from tracegrad.graph.primitive import REGISTRY, bind, cast, const
from tracegrad.ops.primitives.elementwise import eq, lt, where
from tracegrad.support import dtypes
from tracegrad.support.plan import Check, DomainCheck

_UNSIGNED = {dtypes.int32: np.uint32, dtypes.int64: np.uint64}
_conditions: list[Node] = []           # what must hold for the code being recorded to count (see `counts_where`)


class InRange(Elementwise):
    """x (negative ones counted from the end if `wrap`), which must lie in 0 ... size - 1 (wrap: from -size on), or be `ignore`.

    What does not is reported when a value computed with it is read, as an error of `call` about `what`, an index into `of`.
    position: where the program that this is part of has the node whose line the error names (-1: the line is this node's own).
    """

    name, nin, kinds, differentiable, reports = "in_range", 1, "iu", False, True
    cases = [((np.array(i, dtype),), dict(size=3, wrap=wrap, ignore=ignore, call="f", what="index", of="a", position=-1))
             for i, dtype, wrap, ignore in (([0, 2, -3], "int64", True, None), ([[0, 2], [-100, 1]], "int32", False, -100))]

    def aval(self, x: Aval, **attrs: Any) -> Aval:
        if x.dtype not in (dtypes.int32, dtypes.int64):
            raise DTypeError(f"in_range: takes int32 and int64, got {x.dtype}")
        return Aval(x.shape, x.dtype)

    def numpy(self, x: Any, *, size: int, wrap: bool, **attrs: Any) -> Any:
        return np.where(x < 0, x + size, x).astype(x.dtype) if wrap else x

    def opencl(self, x: str, *, size: int, wrap: bool, **attrs: Any) -> str:
        return f"({x} < 0 ? {x} + {size} : {x})" if wrap else x

    def excess(self, x: Any, node: Node) -> tuple[int, int]:
        """By how much the worst elements are above and below the range; 0 for none."""
        a = node.attrs
        if x.size and not a["wrap"] and np.maximum.reduce(x.view(_UNSIGNED[x.dtype]), None) < a["size"]:       # as nearly always
            return 0, 0
        if a["ignore"] is not None:
            x = x[x != a["ignore"]]
        if not x.size:
            return 0, 0
        high, low = int(np.maximum.reduce(x, None)), int(np.minimum.reduce(x, None))
        return max(0, high - a["size"] + 1), max(0, -low - (a["size"] if a["wrap"] else 0))

    def checks(self, node: Node) -> tuple[Check, ...]:
        return (self.check(node),)

    def check(self, node: Node) -> Check:
        """What the runtime has to know of a node of this op."""
        a = node.attrs
        low = -a["size"] if a["wrap"] else 0
        return Check(a["call"], a["what"], a["of"], low, a["size"] - 1, a["ignore"], str(node.loc), a["position"])


class AsKnown(InRange):
    """x, how much a tensor differs from what `call` was told of it as `what`: 0, else an error when what was made with it is read."""

    name = "as_known"
    cases = [((np.array([0, 0], "int64"),), dict(size=1, wrap=False, ignore=None, call="f", what="known[0]", of="", position=-1))]

    def check(self, node: Node) -> Check:
        """What the runtime has to know of a node of this op."""
        a = node.attrs
        error = (f"the tensor of {a['what']} does not hold the values that were given for it, so other entries may differ from zero; give "
                 "the values that it will hold, or record the call for these")
        return DomainCheck(a["call"], error, "", 0, 0, None, str(node.loc), a["position"])


class InDomain(InRange):
    """x, integers that lie in 0 ... size - 1 where values that `call` was given are allowed; `what` is the error for others."""

    name = "in_domain"
    cases = [((np.array([0, 1], "int64"),), dict(size=2, wrap=False, ignore=None, call="f", what="x must be positive", of="", position=-1))]

    def check(self, node: Node) -> Check:
        """What the runtime has to know of a node of this op."""
        a = node.attrs
        return DomainCheck(a["call"], a["what"], a["of"], 0, a["size"] - 1, None, str(node.loc), a["position"])


def in_domain(index: Node, size: int, call: str, what: str, of: str = "") -> Node:
    """An index (int64) below `size`; negative ones are errors of `call` that say `what` (of="matrices": LinAlgErrors)."""
    attrs = dict(size=size, wrap=False, ignore=None, call=call, what=what, of=of, position=-1)
    for condition in _conditions:
        index = where(condition, index, const(0, index.dtype))
    return bind(REGISTRY["in_domain"], (index,), attrs) if index.aval.size else index


def must_hold(test: Node, call: str, what: str, of: str = "") -> Any:
    """`test` (bools), which must be true everywhere: else reading what is made of this is an error of `call` that says `what`."""
    zero = const(0, dtypes.int64)
    return eq(in_domain(where(test, zero, const(-1, dtypes.int64)), 1, call, what, of), zero)


def in_range(index: Node, size: int, call: str, what: str, of: str, *, wrap: bool = False, ignore: int | None = None) -> Any:
    """An index for a dimension of `size`, as int32 or int64. Negative ones are counted from the end if `wrap`, else they are errors.

    call: the function that the user called, what: the name of its argument, of: what is indexed, for the error. ignore: what may pass.
    Raises IndexOutOfRange for indices that are known here, DTypeError for floats and bools.
    """
    if index.dtype.kind not in "iu":
        raise DTypeError(f"{call}: {what} must hold integers, got {index.dtype}; use {what}.long()")
    if index.dtype not in (dtypes.int32, dtypes.int64) or index.aval.weak or size > np.iinfo(index.dtype).max:
        index = cast(index, dtypes.int64)
    if not index.aval.size:
        return index
    if not size:
        raise IndexOutOfRange(f"{call}: {index.aval.size} indices in {what}, but {of} has size 0")
    attrs = dict(size=size, wrap=wrap, ignore=ignore, call=call, what=what, of=of, position=-1)
    low, high = interval(index)
    if low >= (-size if wrap else 0) and high < size:
        return where(lt(index, const(0, index.dtype)), index + size, index) if low < 0 else index
    if not _conditions and ignore is None and (low >= size or high < (-size if wrap else 0)):
        check = REGISTRY["in_range"].check(bind(REGISTRY["in_range"], (index,), attrs))  # type: ignore[attr-defined]
        raise IndexOutOfRange(check.message(low if low >= size else high, ""))
    for condition in _conditions:
        index = where(condition, index, const(0, index.dtype))
    return bind(REGISTRY["in_range"], (index,), attrs)


@contextmanager
def counts_where(condition: Node) -> Iterator[None]:
    """What is recorded inside counts only where `condition` (a 0-d bool) holds: elsewhere its indices may be anything."""
    _conditions.append(condition)
    try:
        yield
    finally:
        _conditions.pop()
