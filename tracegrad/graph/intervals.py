"""Between which integers the elements of a node lie, as far as its operations tell: `interval`. Each op's rule is `Primitive.interval`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.graph.ir import Node
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import DType

Interval = tuple[int, int]              # two integers, the ends included
NODES = 64                              # how far `interval` looks
_whole: dict[DType, Interval] = listed("ranges of dtypes", {})


def interval(node: Node) -> Interval:
    """Two integers between which every element of an integer node lies, the ends included. (Iterative; gives up after NODES nodes.)

    Of bools 0 and 1, whatever they are made of.
    """
    if not node.aval.bounded or not has_range(node.fn):
        return all_of(node.aval.dtype)
    if not node.operands:
        return all_of(node.aval.dtype) if len(node.attrs) == 1 and node.fn.name == "data" else _kept(node)     # of which nothing is known
    if len(node.operands) == 1 and not node.operands[0].operands:               # as of a view
        return _kept(node, interval(node.operands[0]))
    known: dict[Node, Interval] = {}
    stack = [node]
    while stack:
        n = stack[-1]
        if n not in known:
            rule = n.aval.bounded and has_range(n.fn)
            missing = [o for o in n.operands if o not in known] if rule else []
            if missing and len(known) + len(stack) + len(missing) <= NODES:
                stack += missing
                continue
            known[n] = _kept(n, *(known[o] for o in n.operands)) if rule and not missing else all_of(n.dtype)
        stack.pop()
    return known[node]


def _kept(node: Node, *operands: Interval) -> Interval:
    """What the rule of the operation says, if that is known and no more than the dtype holds."""
    found = node.fn.interval(node, *operands)
    low, high = whole = all_of(node.aval.dtype)
    return found if found is not None and low <= found[0] and found[1] <= high else whole


def has_range(fn: Any) -> bool:
    """Whether a primitive's integers may be known to lie between others than all of the dtype's."""
    return bool(type(fn).interval.__qualname__ != "Primitive.interval")


def all_of(dtype: DType) -> Interval:
    """What a dtype holds; nothing is known of floats."""
    found = _whole.get(dtype)
    if found is None:
        info = np.iinfo(dtype if dtype.kind in "iu" else np.int64)
        found = _whole[dtype] = (0, 1) if dtype.kind == "b" else (int(info.min), int(info.max))
    return found


def may_wrap(node: Node) -> bool:
    """Whether an integer result may be beyond its dtype: it then wraps, which C leaves undefined for signed types."""
    found = node.fn.interval(node, *map(interval, node.operands))
    low, high = all_of(node.dtype)
    return found is None or found[0] < low or found[1] > high
