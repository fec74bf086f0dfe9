"""What a kernel computes, as trees of typed expressions, and the variables and elements they are made of. Start at `base.Expression`.

An expression knows its dtype, its lanes and the variables it depends on. All that is asked of a kind of expression stands in its class: how
C has it, what it means for `kernel.run`, which vectors fit together. Nobody looks into text to learn something. Trees are small: what an op
computes is a variable of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions.accesses import Access, Array, Buffer
from tracegrad.codegen.kernel.ir.expressions.arithmetic import (
    Bits,
    Call,
    Cast,
    Convert,
    Infix,
    Op,
    Position,
    Prefix,
    Select,
    Spelling,
    combined,
)
from tracegrad.codegen.kernel.ir.expressions.base import (
    At,
    Expression,
    Held,
    Limit,
    Literal,
    Local,
    Made,
    Named,
    Number,
    Operand,
    Zeros,
    is_zero,
    nodes,
    value,
    whole,
)
from tracegrad.codegen.kernel.ir.expressions.reads import Address, Load, Pointer, element, place
from tracegrad.codegen.kernel.ir.expressions.terms import COMPARISONS
from tracegrad.codegen.kernel.ir.expressions.vectors import (
    Interleaved,
    Joined,
    Lanes,
    Splat,
    Spread,
    Steps,
    StridedLoad,
    Transposed,
    Vector,
    Zip,
)
from tracegrad.support.dtypes import DType

__all__ = [
    "COMPARISONS", "Access", "Address", "Array", "At", "Bits", "Buffer", "Call", "Cast", "Convert", "Expression", "Held", "Infix",
    "Interleaved", "Joined", "Lanes", "Limit", "Literal", "Load", "Local", "Made", "Named", "Number", "Op", "Operand", "Parameter",
    "Part", "Parts", "Pointer", "Position", "Prefix", "Select", "Spelling", "Splat", "Spread", "Steps", "StridedLoad", "Symbol",
    "Transposed", "Vector", "Zeros", "Zip", "combined", "element", "is_zero", "nodes", "place", "types_of", "value", "whole",
]

Parameter = Buffer | Number
Symbol = Buffer | Number | Local | Array | Pointer | Var
Part = Symbol | Access | Index | Expression
Parts = tuple[Part, ...]


def types_of(parts: Iterable[Part]) -> set[tuple[DType, int]]:
    """The types that expressions have in registers: of one lane, and how many."""
    todo = [part for part in parts if isinstance(part, Expression)]
    found: dict[tuple[DType, int, int], Expression] = {}     # one of each
    while todo:
        x = todo.pop()
        found[x.dtype, x.lanes, x.mask] = x
        todo += x.operands
    return {(x.held, x.lanes) for x in found.values()}
