"""Elementwise primitives: arithmetic, comparisons, bits, rounding. One class per op, derivative beside meaning.

Functions of floats (`exp`, `sin`, `erf`, ...) are in `float_functions.py`, composed functions in `ops/arrays/pointwise.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import DTypeError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation import Pair
from tracegrad.graph.operation_families import Elementwise, by_parts, by_value, common_dtype, selected
from tracegrad.graph.primitive import REGISTRY, bind, call, cast, fixed, saving_nothing
from tracegrad.ops.primitives import complex_parts
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind


class Identity(Elementwise):
    """Base of ops that hand their operand through."""

    saves, kinds, exact, moves, pair, monotone = False, "biufc", True, True, by_parts, True

    def numpy(self, x: Any, **attrs: Any) -> Any: return x
    def opencl(self, x: str, **attrs: Any) -> str: return x


class Copy(Identity):
    """A copy of its own: `clone()`."""
    name, placeless = "copy", True
    flops = 0
    def vjp(self, ct, y, x): return (ct,)
    def numpy_with(self, **attrs: Any) -> Any: return np.asarray           # x, in a third of a function's time


class Materialize(Identity):
    """The same value, of which a program keeps an array: no reader computes it again."""
    name, stored = "materialize", True
    flops = 0
    def vjp(self, ct, y, x): return (ct,)


class Detach(Identity):
    """The same value, constant to differentiation."""
    name, differentiable, boundary = "detach", False, True
    flops = 0


class Variable(Identity):
    """The same value, as something to differentiate with respect to. `uid` keeps two variables of one value apart."""
    name, boundary = "variable", True
    flops = 0
    def aval(self, x, *, uid): return Aval(x.shape, x.dtype)
    def vjp(self, ct, y, x, *, uid): return (ct,)
    cases = (((((2, 3),), {"uid": 0})),)


class Overwritten(Identity):
    """The value of the first operand, with the history of the second: a tensor written where no history is recorded, as in torch."""
    name, nin, boundary = "overwritten", 2, True
    flops = 0
    def numpy(self, x: Any, old: Any) -> Any: return x
    def opencl(self, x: str, old: str) -> str: return x
    def aval(self, x, old):
        if x.shape != old.shape:
            raise ShapeError(f"{self.name}: what is written has shape {x.shape}, what was there {old.shape}")
        return Aval(x.shape, x.dtype)
    def vjp(self, ct, y, x, old): return None, ct
    cases = (((((2, 3), (2, 3)), {})),)


class Refilled(Overwritten):
    """The value of the first operand, which does not depend on the second, whose derivative is 0: `zero_()` where history is recorded."""
    name = "refilled"
    def vjp(self, ct, y, x, old): return ct, 0


# ------------------------------------------------------------------------------------------------------------- arithmetic


class Add(Elementwise):
    """a + b."""
    name, nin, kinds, saves, pair, placeless = "add", 2, "biufc", False, by_parts, True
    operator = ("+", 6)
    wraps, mixes, scalar_polymorphic, monotone = True, True, True, True
    numpy = staticmethod(np.add)
    def vjp(self, ct, y, a, b): return ct, ct
    def opencl(self, a, b): return f"({a} + {b})"
    def interval(self, node, *x): return (x[0][0] + x[1][0], x[0][1] + x[1][1]) if x else None
    def logic(self, a, b): return bitwise_or(a, b)


class Sub(Elementwise):
    """a - b. No operand is a bool, also beside numbers: as in torch, where a mask is meant to be inverted."""
    name, nin, kinds, saves, pair, placeless = "sub", 2, "iufc", False, by_parts, True
    operator = ("-", 6)
    wraps, mixes, scalar_polymorphic, promotes_bools = True, True, True, False
    numpy = staticmethod(np.subtract)
    def vjp(self, ct, y, a, b): return ct, -ct
    def opencl(self, a, b): return f"({a} - {b})"
    def interval(self, node, *x): return (x[0][0] - x[1][1], x[0][1] - x[1][0]) if x else None


class Mul(Elementwise):
    """a * b."""
    name, nin, kinds, holomorphic, placeless = "mul", 2, "biufc", True, True
    operator = ("*", 7)
    wraps, mixes, single, scalar_polymorphic = True, True, True, True
    numpy = staticmethod(np.multiply)
    def vjp(self, ct, y, a, b): return None if fixed(a) else ct * b, None if fixed(b) else ct * a
    def pair(self, a, b): return complex_parts.mul(a, b)
    def opencl(self, a, b): return f"({a} * {b})"

    def interval(self, node, *x):
        ends = [a * b for a in x[0] for b in x[1]] if x else []
        return (min(ends), max(ends)) if x else None
    def logic(self, a, b): return bitwise_and(a, b)


class Div(Elementwise):
    """a / b, always a float."""
    name, nin, result, kinds, domain, holomorphic, placeless = "div", 2, "float", "fc", (0.5, 2.0), True, True
    operator = ("/", 7)
    flops, mixes, single, scalar_polymorphic = 4, True, True, True
    numpy = staticmethod(np.divide)
    def pair(self, a, b): return complex_parts.div(a, b)

    def vjp(self, ct, y, a, b):
        if a.fn.name == "const" and a.attrs["value"] == 1:   # 1 / b: no division, which takes as long as four products
            return None, -ct * y * y
        return ct / b, None if fixed(b) else -ct * y / b

    def opencl(self, a, b): return f"({a} / {b})"


class FloorDivide(Elementwise):
    """The largest integer not above a / b (torch.floor_divide). Its derivative is 0."""
    name, nin, kinds, domain, cost = "floor_divide", 2, "iuf", (0.6, 4.0), 23.0
    operator = ("//", 7)
    flops, single = 8, True
    numpy = staticmethod(np.floor_divide)
    def vjp(self, ct, y, a, b): return 0, 0
    def opencl(self, a, b): return f"tg_floordiv({a}, {b})"


class TruncDivide(Elementwise):
    """a / b of floats, rounded towards 0: div(..., rounding_mode="trunc"). Its derivative is 0."""
    name, nin, kinds, domain = "trunc_divide", 2, "f", (0.6, 4.0)
    flops = 5
    def numpy(self, a, b): return np.trunc(np.divide(a, b))
    def vjp(self, ct, y, a, b): return 0, 0
    def opencl(self, a, b): return f"trunc({a} / {b})"


class Remainder(Elementwise):
    """a - b * floor(a / b): the sign of b (torch.remainder, Python's %)."""
    name, nin, kinds, domain, cost = "remainder", 2, "iuf", (0.6, 4.0), 10.0
    operator = ("%", 7)
    flops = 8
    numpy = staticmethod(np.remainder)
    def vjp(self, ct, y, a, b): return ct, -ct * floor_divide(a, b)
    def opencl(self, a, b): return f"tg_remainder({a}, {b})"
    def interval(self, node, *x): return (0, x[1][1] - 1) if x and x[1][0] > 0 else None


class Fmod(Elementwise):
    """a - b * trunc(a / b): the sign of a (C's fmod)."""
    name, nin, kinds, domain, cost = "fmod", 2, "iuf", (0.6, 4.0), 15.0
    flops, exact = 8, True
    numpy = staticmethod(np.fmod)
    def vjp(self, ct, y, a, b): return ct, -ct * trunc_divide(a, b)
    def opencl(self, a, b): return f"fmod({a}, {b})"


class Neg(Elementwise):
    """-x. Not of bools, as in torch."""
    name, kinds, saves, pair, placeless = "neg", "iufc", False, by_parts, True
    operator = ("-", 8)
    wraps, mixes, exact, promotes_bools = True, True, True, False
    numpy = staticmethod(np.negative)
    def vjp(self, ct, y, x): return (-ct,)
    def opencl(self, x): return f"(-{x})"


class Abs(Elementwise):
    """|x|, a real number; its derivative at 0 is 0."""
    name, kinds, result, exact, placeless, nonnegative = "abs", "iufc", "real", True, True, True
    numpy = staticmethod(np.abs)

    def vjp(self, ct, y, x):
        if x.dtype.kind != "c":
            return (ct * sign(x),)
        zero = eq(y, 0.0)
        return (x * where(zero, 0.0, ct / where(zero, 1.0, y)),)

    def opencl(self, x): return f"abs({x})"
    def pair(self, x): return complex_parts.absolute(x)


class Sign(Elementwise):
    """-1, 0 or 1, and 0 for NaN; its derivative is 0, as in torch."""
    name, kinds, saves, exact, placeless = "sign", "iuf", False, True, True
    def numpy(self, x): return ((x > 0).astype(x.dtype) - (x < 0)).astype(x.dtype)
    def vjp(self, ct, y, x): return (0,)
    def opencl(self, x): return f"sign({x})"


class Maximum(Elementwise):
    """The larger; NaN if either is. Where they are equal each gets half the gradient, as in torch."""
    name, nin, exact, monotone = "maximum", 2, True, True
    numpy = staticmethod(np.maximum)
    def vjp(self, ct, y, a, b): return _extremum_vjp(ct, a, b, gt)
    def opencl(self, a, b): return f"tg_max({a}, {b})"
    def interval(self, node, *x): return (max(x[0][0], x[1][0]), max(x[0][1], x[1][1])) if x else None
    def logic(self, a, b): return bitwise_or(a, b)


class Minimum(Elementwise):
    """The smaller; NaN if either is. Where they are equal each gets half the gradient, as in torch."""
    name, nin, exact, monotone = "minimum", 2, True, True
    numpy = staticmethod(np.minimum)
    def vjp(self, ct, y, a, b): return _extremum_vjp(ct, a, b, lt)
    def opencl(self, a, b): return f"tg_min({a}, {b})"
    def interval(self, node, *x): return (min(x[0][0], x[1][0]), min(x[0][1], x[1][1])) if x else None
    def logic(self, a, b): return bitwise_and(a, b)


def _extremum_vjp(ct: Node, a: Node, b: Node, wins: Any) -> tuple[Any, Any]:
    share = where(eq(a, b), ct * 0.5, ct)                # a NaN wins over nothing and loses to nothing: both get it all, as in torch
    return where(wins(b, a), 0.0, share), where(wins(a, b), 0.0, share)


class ClampMin(Elementwise):
    """x, at least low; NaN if either is. Where they are equal x gets the gradient, where one is NaN neither, as in torch."""
    name, nin, monotone = "clamp_min", 2, True
    numpy = staticmethod(np.maximum)
    def vjp(self, ct, y, x, low): return where(ge(x, low), ct, 0.0), where(lt(x, low), ct, 0.0)
    def opencl(self, x, low): return f"tg_max({low}, {x})"              # which looks for NaN in its first argument, most often a number
    def interval(self, node, *x): return (max(x[0][0], x[1][0]), max(x[0][1], x[1][1])) if x else None
    def logic(self, x, low): return bitwise_or(x, low)


class ClampMax(Elementwise):
    """x, at most high; NaN if either is. Where they are equal x gets the gradient, where one is NaN neither, as in torch."""
    name, nin, monotone = "clamp_max", 2, True
    numpy = staticmethod(np.minimum)
    def vjp(self, ct, y, x, high): return where(le(x, high), ct, 0.0), where(gt(x, high), ct, 0.0)
    def opencl(self, x, high): return f"tg_min({high}, {x})"
    def interval(self, node, *x): return (min(x[0][0], x[1][0]), min(x[0][1], x[1][1])) if x else None
    def logic(self, x, high): return bitwise_and(x, high)


# --------------------------------------------------------------------------------------------------------- complex numbers


class Real(Elementwise):
    """The real part."""
    name, kinds, result, saves, part = "real", "c", "real", False, True
    def numpy(self, z): return np.real(z)
    def vjp(self, ct, y, z): return (ct,)
    def pair(self, z): return z.re


class Imag(Elementwise):
    """The imaginary part."""
    name, kinds, result, saves, part = "imag", "c", "real", False, True
    def numpy(self, z): return np.imag(z)
    def vjp(self, ct, y, z): return (call(make_complex, (0.0, ct), {}),)
    def pair(self, z): return z.im


class Complex(Elementwise):
    """a + i b, of real numbers."""
    name, nin, kinds, saves = "complex", 2, "f", False

    def aval(self, *operands):
        real = super().aval(*operands)
        if dtypes.is_half(real.dtype):
            raise DTypeError(f"complex: takes float32 and float64 tensors, got {real.dtype}; cast first, for example x.float()")
        return Aval(real.shape, dtypes.complex_of(real.dtype), real.weak)

    def numpy(self, a, b):
        z = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), dtypes.complex_of(a.dtype))
        z.real, z.imag = a, b
        return z

    def vjp(self, ct, y, a, b): return real(ct), imag(ct)

    def pair(self, a, b):
        shape = np.broadcast_shapes(a.shape, b.shape)
        expand = REGISTRY["expand"]
        return Pair(*(x if x.shape == shape else bind(expand, (x,), {"shape": shape}) for x in (a, b)))


class Conj(Elementwise):
    """The conjugate: the imaginary part with the other sign."""
    name, kinds, saves = "conj", "c", False
    def numpy(self, z): return np.conj(z)
    def vjp(self, ct, y, z): return (conjugate(ct),)
    def pair(self, z): return Pair(z.re, -z.im)


# ----------------------------------------------------------------------------------------------------- comparison and logic


class Comparison(Elementwise):
    """Base of comparisons: a bool, no derivative."""
    nin, result, differentiable, mixes, placeless = 2, "bool", False, True, True
    def prepare(self, args: list[Any]) -> tuple[Node, ...]: return super().prepare([*by_value(args)])
    def opencl(self, a: str, b: str) -> str: return f"({a} {self.operator[0]} {b})"


class Eq(Comparison):
    """a == b."""
    name, kinds = "eq", "biufc"
    operator = ("==", 1)
    numpy = staticmethod(np.equal)
    def pair(self, a, b): return eq(a.re, b.re) & eq(a.im, b.im)
    def logic(self, a, b): return bitwise_not(bitwise_xor(a, b))


class Ne(Comparison):
    """a != b."""
    name, kinds = "ne", "biufc"
    operator = ("!=", 1)
    numpy = staticmethod(np.not_equal)
    def pair(self, a, b): return ne(a.re, b.re) | ne(a.im, b.im)
    def logic(self, a, b): return bitwise_xor(a, b)


class Lt(Comparison):
    """a < b."""
    name = "lt"
    operator = ("<", 1)
    numpy = staticmethod(np.less)
    def logic(self, a, b): return bitwise_and(bitwise_not(a), b)


class Le(Comparison):
    """a <= b."""
    name = "le"
    operator = ("<=", 1)
    numpy = staticmethod(np.less_equal)
    def logic(self, a, b): return bitwise_or(bitwise_not(a), b)


class Gt(Comparison):
    """a > b."""
    name = "gt"
    operator = (">", 1)
    numpy = staticmethod(np.greater)
    def logic(self, a, b): return bitwise_and(a, bitwise_not(b))


class Ge(Comparison):
    """a >= b."""
    name = "ge"
    operator = (">=", 1)
    numpy = staticmethod(np.greater_equal)
    def logic(self, a, b): return bitwise_or(a, bitwise_not(b))


class Isnan(Comparison):
    """Whether x is NaN (of a complex number: a part of it)."""
    name, nin, kinds = "isnan", 1, "biufc"
    numpy = staticmethod(np.isnan)
    def pair(self, x): return self(x.re) | self(x.im)
    def opencl(self, x): return f"({x} != {x})"


class BitwiseAnd(Elementwise):
    """a & b; logical and of bools."""
    name, makes, nin, kinds, differentiable = "bitwise_and", "bits", 2, "biu", False
    operator = ("&", 4)
    mixes = True
    numpy = staticmethod(np.bitwise_and)
    def opencl(self, a, b): return f"({a} & {b})"
    def interval(self, node, *x): return (0, min(high for low, high in x if low >= 0)) if x and max(x)[0] >= 0 else None


class BitwiseOr(Elementwise):
    """a | b; logical or of bools."""
    name, makes, nin, kinds, differentiable = "bitwise_or", "bits", 2, "biu", False
    operator = ("|", 2)
    mixes = True
    numpy = staticmethod(np.bitwise_or)
    def opencl(self, a, b): return f"({a} | {b})"


class BitwiseXor(Elementwise):
    """a ^ b; exclusive or of bools."""
    name, makes, nin, kinds, differentiable = "bitwise_xor", "bits", 2, "biu", False
    operator = ("^", 3)
    mixes = True
    numpy = staticmethod(np.bitwise_xor)
    def opencl(self, a, b): return f"({a} ^ {b})"


class BitwiseNot(Elementwise):
    """~x; logical not of bools (which are 0 or 1, or lane masks in vectors: the code generator negates those with !)."""
    name, makes, kinds, differentiable = "bitwise_not", "bits", "biu", False
    operator = ("~", 8)
    numpy = staticmethod(np.invert)
    def opencl(self, x): return f"(~{x})"


class ShiftLeft(Elementwise):
    """a << b, for b below the number of bits; what more gives is the device's choice."""
    name, makes, nin, kinds, differentiable, domain = "bitwise_left_shift", "shifted", 2, "iu", False, (0, 5)
    operator = ("<<", 5)
    numpy = staticmethod(np.left_shift)
    def opencl(self, a, b): return f"({a} << {b})"


class ShiftRight(Elementwise):
    """a >> b (arithmetic on signed integers), for b below the number of bits; what more gives is the device's choice."""
    name, makes, nin, kinds, differentiable, domain = "bitwise_right_shift", "shifted", 2, "iu", False, (0, 5)
    operator = (">>", 5)
    numpy = staticmethod(np.right_shift)
    def opencl(self, a, b): return f"({a} >> {b})"
    def interval(self, node, *x): return (x[0][0] >> x[1][0], x[0][1] >> x[1][0]) if x and 0 <= x[1][0] == x[1][1] else None


class Where(Elementwise):
    """a where the bool condition holds, else b."""
    name, nin, kinds, exact, moves, pair, placeless = "where", 3, "biufc", True, True, by_parts, True

    def prepare(self, args):
        condition, *rest = args
        condition, = common_dtype([condition], name="where")
        if condition.dtype != dtypes.bool_:
            if condition.dtype != dtypes.uint8 and not condition.aval.weak:
                raise DTypeError(f"where: the condition must be bool, got {condition.dtype}; use condition != 0")
            condition = call(ne, (condition, 0), {})
        a, b = common_dtype(rest, name="where")
        if a.aval.weak and not condition.aval.weak and dtype_kind(a.dtype) in "fc":        # two Python numbers
            a, b = (cast(x, dtypes.default_of(a.dtype)) for x in (a, b))
        return (condition, a, b)

    numpy = staticmethod(selected)
    def vjp(self, ct, y, c, a, b): return None, where(c, ct, 0.0), where(c, 0.0, ct)
    def opencl(self, c, a, b): return f"({c} ? {a} : {b})"

    def interval(self, node, *x):
        if not x:
            return None
        condition, a, b = node.operands
        low, high = min, max
        if condition.fn.name in ("lt", "le", "gt", "ge") and condition.operands == (b, a):           # b limited by a, as clamp does
            low = high = max if condition.fn.name in ("lt", "le") else min
        return low(x[1][0], x[2][0]), high(x[1][1], x[2][1])


# --------------------------------------------------------------------------------------------------------------- rounding


class Rounding(Elementwise):
    """Base of rounding ops (integers never get here: they are what they round to); the derivative is zero, as in torch."""
    kinds, saves, exact = "f", False, True
    def vjp(self, ct: Node, y: Node, x: Node) -> tuple[Any, ...]: return (0,)


class Floor(Rounding):
    """The largest integer not above x."""
    name = "floor"
    def numpy(self, x): return np.floor(x).astype(x.dtype)
    def opencl(self, x): return f"floor({x})"


class Ceil(Rounding):
    """The smallest integer not below x."""
    name = "ceil"
    def numpy(self, x): return np.ceil(x).astype(x.dtype)
    def opencl(self, x): return f"ceil({x})"


class Round(Rounding):
    """The nearest integer, halves to even."""
    name = "round"
    def numpy(self, x): return np.rint(x).astype(x.dtype)
    def opencl(self, x): return f"rint({x})"


class Trunc(Rounding):
    """The integer part."""
    name = "trunc"
    def numpy(self, x): return np.trunc(x).astype(x.dtype)
    def opencl(self, x): return f"trunc({x})"


# ------------------------------------------------------------------------------------------- the instances, for the rules above

floor_divide, trunc_divide, sign = (REGISTRY[n] for n in ("floor_divide", "trunc_divide", "sign"))
eq, ne, lt, le, gt, ge, where = (REGISTRY[n] for n in ("eq", "ne", "lt", "le", "gt", "ge", "where"))
times, over, choose = (saving_nothing(REGISTRY[n]) for n in ("mul", "div", "where"))     # by constants that no user gave
bitwise_and, bitwise_or, bitwise_xor, bitwise_not = (REGISTRY[f"bitwise_{n}"] for n in ("and", "or", "xor", "not"))
real, imag, make_complex, conjugate = (REGISTRY[n] for n in ("real", "imag", "complex", "conj"))
