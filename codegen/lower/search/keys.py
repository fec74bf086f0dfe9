"""Elements as integers in their order, so that vectors of a CPU are compared by one instruction. Start at `key`."""

from __future__ import annotations

import numpy as np

from tracegrad.codegen.kernel.ir.expressions import Bits, Cast, Convert, Expression, Infix, Literal, Prefix, Select, Splat
from tracegrad.codegen.kernel.ir.vectors import index_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.serial import KernelBuilder
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, dtype_kind


def plain(x: Node, context: Context) -> bool:
    """Whether elements may be compared in vectors. The number of an element has to be as wide as the element."""
    return context.target.traits.vectors and x.dtype.name in ("float32", "float64", "int32", "int64") and index_type(x.aval.size) == "int"


def key_dtype(x: Node) -> DType:
    """The integers that are as wide as an element."""
    return np.dtype(f"i{x.dtype.itemsize}")


def key(o: KernelBuilder, x: Expression, least: bool = False) -> Expression:
    """Higher where an element is larger, or (least) where it is less; equals are equal, NaN is the highest.

    (Bits of floats are in order as they are, those of negative ones backwards; integers are as they are.)
    """
    if dtype_kind(x.dtype) != "f":
        return Prefix("~", x) if least else x
    w, number, bits = o.writer, np.dtype(f"i{x.dtype.itemsize}"), 8 * x.dtype.itemsize
    highest = same(2 ** (bits - 1) - 1, number, x.lanes)
    found = w.declare("bits", Bits(Infix("+", x, same(0.0, x.dtype, x.lanes)), number), o.node)          # -0.0 is 0.0
    in_order: Expression = Infix("^", found, Infix("&", Infix(">>", found, same(bits - 1, number, x.lanes)), highest))
    return Select(Infix("!=", x, x), highest, Prefix("~", in_order) if least else in_order)


def same(value: float, dtype: DType, lanes: int) -> Expression:
    """A number, or a vector of it."""
    return Splat(Literal(value, dtype), lanes) if lanes > 1 else Literal(value, dtype)


def number_of(x: Expression, dtype: DType) -> Expression:
    """The number of an element, as wide as one of `dtype` is."""
    number = np.dtype(f"i{dtype.itemsize}")
    return x if x.dtype == number else Convert(x, number) if x.lanes > 1 else Cast(x, number)
