"""Products of many float32 factors where the device has no float64. Start at `product`.

Each multiplication rounds, and what it loses the product has lost, in whatever order they are done. So they are done with pairs: a number,
and what rounding lost of it (see mathlib/pairs.py). Sixteen parts of the factors are multiplied element by element, and so is what they
make, until one is left. An element of all the parts is one work-item's, so neighbours read neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegrad.graph.families import Elementwise
from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import Primitive, bind, filled
from tracegrad.ops.primitives.movement import narrow, pad
from tracegrad.support.dtypes import float32
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning


class _Times(Elementwise):
    """A pair (a, a_low) times a number b or a pair (b, b_low): the number of the result, or what it lacks.

    Internal to the code generator (it has no name in the registry).
    """

    differentiable, flops = False, 8
    of: Callable[[Any, Any], Any]

    def __init__(self, name: str, of: Callable[[Any, Any], Any]) -> None:
        self.__dict__.update(name=name, of=of)

    def numpy(self, *operands: Any) -> Any:
        a, a_low, b, *b_low = (np.asarray(x, np.float64) for x in operands)
        exact = (a + a_low) * (b + b_low[0] if b_low else b)
        return self.of(exact.astype(np.float32), exact)

    def opencl(self, *operands: str) -> str:
        return f"tg_pair_{self.name}({', '.join(operands)})"


_NUMBER = _Times("times", lambda number, exact: number)
_LOW = _Times("times_low", lambda number, exact: np.where(np.isfinite(number), exact - number, 0).astype(np.float32))


def needs_pairs(fn: Primitive, x: Node, factors: int, target: Target) -> bool:
    """Whether a reduction is a product that loses digits in the numbers that the device has."""
    return fn.name == "prod" and x.dtype == float32 and not target.fp64 and factors > tuning().unrolled


def product(x: Node, dims: list[int]) -> Node:
    """The product of x over dims, which have one element then."""
    factors: tuple[Node, ...] = (x,)                          # numbers, or pairs
    for dim in dims:
        while factors[0].shape[dim] > 1:
            factors = _multiplied(factors, dim)
    return factors[0]


def _multiplied(factors: tuple[Node, ...], dim: int) -> tuple[Node, ...]:
    """Up to sixteen parts of the factors along dim, multiplied element by element."""
    n = factors[0].shape[dim]
    length = -(-n // tuning().unrolled)
    first, *others = (tuple(_part(x, dim, start, length, float(x is factors[0])) for x in factors) for start in range(0, n, length))
    number, low = first if len(first) == 2 else (first[0], filled(0, first[0]))
    for other in others:
        number, low = (bind(fn, (number, low, *other), {}) for fn in (_NUMBER, _LOW))
    return number, low


def _part(x: Node, dim: int, start: int, length: int, missing: float) -> Node:
    """`length` elements from `start` along dim; those that are not there are `missing`."""
    there = min(length, x.shape[dim] - start)
    none = (0,) * len(x.shape)
    return pad(narrow(x, dim, start, there), none, tuple((length - there) * (d == dim) for d in range(len(x.shape))), None, missing)
