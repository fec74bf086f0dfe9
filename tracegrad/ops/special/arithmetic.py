"""Elementwise functions of torch that are composed of the primitives: comparisons with tolerance, parts of numbers, fused arithmetic."""

from __future__ import annotations

from math import pi
from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import by_value, common_dtype, refuse_complex
from tracegrad.graph.operators import Operators, public
from tracegrad.graph.primitive import cast, const, holds, scalar
from tracegrad.ops.arguments import held, on_nodes, rounded_once
from tracegrad.ops.arrays.complex_numbers import complex_, imag, real
from tracegrad.ops.arrays.logical import isfinite
from tracegrad.ops.arrays.pointwise import (
    abs_,
    clamp,
    detach,
    div,
    eq,
    exp2,
    floor,
    floor_divide,
    ge,
    gt,
    le,
    log2,
    lt,
    maximum,
    minimum,
    ne,
    sub,
    trunc,
)
from tracegrad.ops.arrays.pointwise import pow as power
from tracegrad.ops.arrays.reductions import any_
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import times, where
from tracegrad.ops.primitives.reduction import total
from tracegrad.ops.special.functions import copysign, gcd
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor
_INF = float("inf")


# ---------------------------------------------------------------------------------------------------- larger and smaller


@public("fmax")
@on_nodes
def fmax(input: Array, other: Array) -> Array:
    """The larger; a number where one of the two is NaN. Where they are equal input gets the gradient, as in torch.

    The shapes broadcast. dtype: real, promoted. Raises DTypeError for complex numbers.

    >>> tg.fmax(tg.tensor([1.0, float("nan")]), tg.tensor([0.0, 2.0]))
    """
    return _first_if("fmax", ge, input, other)


@public("fmin")
@on_nodes
def fmin(input: Array, other: Array) -> Array:
    """The smaller; a number where one of the two is NaN. Where they are equal input gets the gradient, as in torch.

    The shapes broadcast. dtype: real, promoted. Raises DTypeError for complex numbers.

    >>> tg.fmin(tg.tensor([1.0, float("nan")]), tg.tensor([0.0, 2.0]))
    """
    return _first_if("fmin", le, input, other)


def _first_if(name: str, better: Any, input: Any, other: Any) -> Any:
    """input where it is as good, or other is NaN; else other."""
    a, b = common_dtype([input, other], name=name)
    return where(better(a, b) | ne(b, b) if dtype_kind(b.dtype) == "f" else better(a, b), a, b)


@public("clamp_min")
@on_nodes
def clamp_min(input: Array, min: Any) -> Array:
    """input, at least min (a number or a tensor). dtype: real, promoted with min's. Raises DTypeError for complex numbers.

    >>> tg.clamp_min(tg.tensor([1.0, 3.0]), 2.0)
    """
    return clamp(input, min=min)


@public("clamp_max")
@on_nodes
def clamp_max(input: Array, max: Any) -> Array:
    """input, at most max (a number or a tensor). dtype: real, promoted with max's. Raises DTypeError for complex numbers.

    >>> tg.clamp_max(tg.tensor([1.0, 3.0]), 2.0)
    """
    return clamp(input, max=max)


@public("heaviside")
@on_nodes
def heaviside(input: Array, values: Array) -> Array:
    """0 where input is negative (or NaN, as in torch), 1 where it is positive, values where it is 0. Both of one dtype; no derivative.

    The shapes broadcast. dtype: real. Raises DTypeError for complex numbers.

    >>> tg.heaviside(tg.tensor([-1.0, 0.0, 2.0]), tg.tensor(0.5))
    """
    if input.dtype != values.dtype:
        raise DTypeError(f"heaviside: input {input.dtype} and values {values.dtype} must have one dtype; cast one of them")
    return detach(where(eq(input, 0), values, cast(gt(input, 0), input.dtype)))


# ------------------------------------------------------------------------------------------------------------ comparison


@public("isclose")
@on_nodes
def isclose(input: Array, other: Array, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Array:
    """Whether |input - other| <= atol + rtol |other|, or both are equal (or, with equal_nan, both NaN). Both of one dtype.

    Of complex numbers |.| is the absolute value.
    The shapes broadcast. The result is bool. Raises DTypeError for two dtypes, ShapeError where shapes do not broadcast.

    >>> tg.isclose(tg.tensor([1.0]), tg.tensor([1.000001]))
    """
    _one_dtype("isclose", input, other)
    if holds(rtol < 0) or holds(atol < 0):
        raise ArgumentError(f"isclose: rtol and atol must not be negative, got {rtol} and {atol}")
    close = eq(input, other)
    if equal_nan:
        close = close | (ne(input, input) & ne(other, other))
    if holds(rtol == 0) and holds(atol == 0):
        return close
    if dtype_kind(input.dtype) not in "fc":
        input, other = (cast(x, dtypes.float64 if x.dtype.itemsize > 2 else dtypes.float32) for x in (input, other))
    difference = abs_(input - other)
    return close | (isfinite(difference) & le(difference, abs_(other) * rtol + atol))


def _one_dtype(name: str, input: Node, other: Node) -> None:
    if input.dtype != other.dtype:
        raise DTypeError(f"{name}: input {input.dtype} and other {other.dtype} must have one dtype; cast one of them")


@public("allclose")
def allclose(input: Array, other: Array, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all of isclose(input, other) holds, as a Python bool: not inside @trace (there use isclose(...).all()).

    The shapes broadcast. Raises DTypeError for two dtypes, TraceError in a trace.

    >>> tg.allclose(tg.tensor([1.0]), tg.tensor([1.000001]))
    """
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


@public("equal")
def equal(input: Array, other: Array) -> bool:
    """Whether both have one shape and equal elements, as a Python bool: not inside @trace (there use (x == y).all()).

    Raises TraceError in a trace.

    >>> tg.equal(tg.ones(2), tg.ones(2))
    """
    for x in (input, other):
        if not isinstance(x, Operators):
            raise DTypeError(f"equal: expected a Tensor, got {type(x).__name__}; use tg.tensor(...) for arrays, lists and numbers")
    if input.shape != other.shape:
        return False
    a, b = held(input), held(other)
    if a is None or b is None or a.dtype != b.dtype or input._device is not other._device:
        return bool(eq(input, other).all())
    return bool((a == b).all())


@public("isin", method=False)
@on_nodes
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Array:
    """For each element, whether it is one of test_elements (of any shape). One of the two may be a number.

    dtype: any; the result is bool, of elements' shape. Raises DTypeError for what is no tensor.

    >>> tg.isin(tg.tensor([1, 2, 3]), tg.tensor([2, 5]))
    """
    a, b = common_dtype(by_value([elements, test_elements]), name="isin")
    flat = mv.reshape(b, (b.aval.size,))
    found = any_(eq(mv.reshape(a, (*a.shape, 1)), flat), -1)
    return found.logical_not() if invert else found


@public("isposinf")
@on_nodes
def isposinf(input: Array) -> Array:
    """Whether x is +inf. Any shape and real dtype; the result is bool. Raises DTypeError for complex numbers.

    >>> tg.isposinf(tg.tensor([1.0, float("inf")]))
    """
    refuse_complex("isposinf", input)
    return eq(input, _INF) if dtype_kind(input.dtype) == "f" else ne(input, input)


@public("isneginf")
@on_nodes
def isneginf(input: Array) -> Array:
    """Whether x is -inf. Any shape and real dtype; the result is bool. Raises DTypeError for complex numbers.

    >>> tg.isneginf(tg.tensor([1.0, -float("inf")]))
    """
    refuse_complex("isneginf", input)
    return eq(input, -_INF) if dtype_kind(input.dtype) == "f" else ne(input, input)


@public("signbit")
@on_nodes
def signbit(input: Array) -> Array:
    """Whether the sign bit is set: of negative numbers and of -0.0. dtype: real; the result is bool. Raises DTypeError for complex numbers.

    >>> tg.signbit(tg.tensor([-0.0, 1.0]))
    """
    if dtype_kind(input.dtype) != "f":
        return lt(input, 0)
    return lt(copysign(const(1, input.dtype), detach(input)), 0.0)


# ---------------------------------------------------------------------------------------------------- parts of a number


class MantissaExponent(NamedTuple):
    """What frexp returns."""

    mantissa: Any
    exponent: Any


@public("frexp")
@on_nodes
def frexp(input: Array) -> Any:
    """(mantissa, exponent): input = mantissa * 2**exponent, 0.5 <= |mantissa| < 1, exponent int32. 0, inf and NaN keep exponent 0.

    Any shape. input: float, else DTypeError.

    >>> tg.frexp(tg.tensor([8.0]))
    """
    refuse_complex("frexp", input)
    if dtype_kind(input.dtype) != "f":
        raise DTypeError(f"frexp: takes a float tensor, got {input.dtype}; use x.float()")
    x = detach(input)
    if dtypes.is_half(x.dtype):
        x = cast(x, dtypes.float32)
    regular = isfinite(x) & ne(x, 0.0)
    size = where(regular, abs_(x), 1.0)
    denormal = lt(size, float(dtypes.finfo(x.dtype).tiny))
    size = where(denormal, size * 2.0**64, size)
    exponent = floor(log2(size)) + 1.0                              # one off at most, next to powers of two
    mantissa = _halved(size, exponent)
    exponent = exponent + cast(ge(mantissa, 1.0), x.dtype) - cast(lt(mantissa, 0.5), x.dtype)
    scale = [where(regular, part, 1.0) for part in _powers(exponent)]
    lift = where(denormal, 2.0**64, 1.0)
    number = cast(cast(input, x.dtype) * lift * scale[0] * scale[1], input.dtype)
    whole = where(regular, exponent - where(denormal, 64.0, 0.0), 0.0)
    return MantissaExponent(number, cast(whole, dtypes.int32))


def _powers(exponent: Node) -> tuple[Any, Any]:
    """2**-exponent as two factors, each in range."""
    half = floor(exponent * 0.5)
    return exp2(-half), exp2(half - exponent)


def _halved(size: Any, exponent: Node) -> Any:
    first, second = _powers(exponent)
    return size * first * second


@public("ldexp")
@on_nodes
def ldexp(input: Array, other: Array) -> Array:
    """input * 2**other; of integers `other`, also where 2**other itself is infinite or 0 in input's dtype.

    The shapes broadcast. input: any dtype, integers as the default float one. ShapeError where shapes do not broadcast.

    >>> tg.ldexp(tg.tensor([1.0]), tg.tensor([3]))
    """
    if not isinstance(other, Node) or not isinstance(input, Node) or other.dtype.kind not in "iu" or dtype_kind(input.dtype) != "f":
        return input * power(2.0, other)
    counted = dtypes.float32 if dtypes.is_half(input.dtype) else input.dtype
    most = 3.0 * (dtypes.finfo(counted).maxexp - 1)                     # more than from the least number to the largest
    exponent = minimum(maximum(cast(other, counted), -most), most)
    third = floor(exponent * (1 / 3))
    half = floor((exponent - third) * 0.5)
    scaled = cast(input, counted) * exp2(third) * exp2(half) * exp2(exponent - third - half)
    return cast(scaled, input.dtype)


@public("frac")
@on_nodes
def frac(input: Array) -> Array:
    """x - trunc(x): the part behind the point, with x's sign. dtype: float, which the result has, else DTypeError.

    >>> tg.frac(tg.tensor([1.5, -0.25]))
    """
    refuse_complex("frac", input)
    if dtype_kind(input.dtype) != "f":
        raise DTypeError(f"frac: takes a float tensor, got {input.dtype}; integers have no fraction")
    return input - trunc(input)


@public("nan_to_num")
@on_nodes
def nan_to_num(input: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    """NaN, inf and -inf replaced: by nan (0), posinf and neginf (the largest and the smallest number of the dtype) unless given.

    Of complex numbers, in each part. The shape and dtype (any) stay. Raises DTypeError for what is no tensor.

    >>> tg.nan_to_num(tg.tensor([1.0, float("nan")]))
    """
    if input.dtype.kind == "c":
        return complex_(nan_to_num(real(input), nan, posinf, neginf), nan_to_num(imag(input), nan, posinf, neginf))
    if dtype_kind(input.dtype) != "f":
        return input
    most = float(dtypes.finfo(input.dtype).max)
    x = where(ne(input, input), scalar("nan_to_num", 0.0 if nan is None else nan, input.dtype), input)
    x = where(eq(input, _INF), scalar("nan_to_num", most if posinf is None else posinf, input.dtype), x)
    return where(eq(input, -_INF), scalar("nan_to_num", -most if neginf is None else neginf, input.dtype), x)


@public("positive")
@on_nodes
def positive(input: Array) -> Array:
    """x itself; bools are refused, as in torch. The shape and dtype stay.

    >>> tg.positive(tg.tensor([-1.0]))
    """
    if input.dtype.kind == "b":
        raise DTypeError("positive: does not take bools; cast first, for example x.to(tg.int64)")
    return input


setattr(Operators, "__pos__", positive)  # noqa: B010  (as the operators of pointwise.py)


# ------------------------------------------------------------------------------------------------------------ arithmetic


@public("deg2rad")
def deg2rad(input: Array) -> Array:
    """Degrees to radians. Any shape. dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> tg.deg2rad(tg.tensor([180.0]))
    """
    return times(input, pi / 180.0)


@public("rad2deg")
def rad2deg(input: Array) -> Array:
    """Radians to degrees. Any shape. dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> tg.rad2deg(tg.tensor([1.0]))
    """
    return times(input, 180.0 / pi)


@public("lcm")
@on_nodes
def lcm(input: Array, other: Array) -> Array:
    """The least common multiple, never negative; 0 where one of the two is. The shapes broadcast.
    dtype: integer, promoted, else DTypeError.

    >>> tg.lcm(tg.tensor([4]), tg.tensor([6]))
    """
    a, b = common_dtype([input, other], name="lcm")
    shared = gcd(a, b)
    return abs_(floor_divide(a, where(eq(shared, 0), 1, shared)) * b)


@public("float_power")
@on_nodes
def float_power(input: Any, exponent: Any) -> Array:
    """input to the power exponent, computed as float64, or as complex128 if one of the two is complex.

    The shapes broadcast. ShapeError where shapes do not broadcast.

    >>> tg.float_power(tg.tensor([2, 3]), 2)
    """
    wide = any(isinstance(x, complex) or (isinstance(x, Node) and x.dtype.kind == "c") for x in (input, exponent))
    a, b = (cast(x, dtypes.complex128 if wide else dtypes.float64) if isinstance(x, Node) else complex(x) if wide else float(x)
            for x in (input, exponent))
    return power(a, b)


@public("rsub")
def rsub(input: Array, other: Array, *, alpha: float = 1) -> Array:
    """other - alpha * input. The shapes broadcast. dtype: any but bool, promoted. Raises DTypeError for bools.

    >>> tg.rsub(tg.tensor([1.0]), 3.0)
    """
    return sub(other, input, alpha=alpha)


@public("addcmul")
@on_nodes
@rounded_once
def addcmul(input: Array, tensor1: Array, tensor2: Array, *, value: float = 1) -> Array:
    """input + value * tensor1 * tensor2. The shapes broadcast. dtype: any, promoted. ShapeError where shapes do not broadcast.

    >>> tg.addcmul(tg.zeros(2), tg.ones(2), tg.ones(2), value=0.5)
    """
    input, tensor1, tensor2 = common_dtype([input, tensor1, tensor2], name="addcmul")
    product = tensor1 * tensor2
    return input + (product if value == 1 else product * value)


@public("addcdiv")
@on_nodes
@rounded_once
def addcdiv(input: Array, tensor1: Array, tensor2: Array, *, value: float = 1) -> Array:
    """input + value * tensor1 / tensor2. Integers are refused, as in torch: use addcmul, or cast.

    The shapes broadcast. dtype: float or complex, else DTypeError.

    >>> tg.addcdiv(tg.zeros(2), tg.ones(2), tg.ones(2), value=0.5)
    """
    if all(dtype_kind(x.dtype) not in "fc" for x in (tensor1, tensor2)):
        raise DTypeError(f"addcdiv: a quotient of {tensor1.dtype} and {tensor2.dtype} is not defined, as in torch; cast to float")
    input, tensor1, tensor2 = common_dtype([input, tensor1, tensor2], name="addcdiv")
    quotient = div(tensor1, tensor2)
    return input + (quotient if value == 1 else quotient * value)


@public("sum_to_size")
@on_nodes
def sum_to_size(input: Array, *size: Any) -> Array:
    """input summed to a size that broadcasts to its own.

    dtype: any; bools and integers are summed as int64. Raises ArgumentError for another size.

    >>> tg.sum_to_size(tg.ones(2, 3), 2, 1)
    """
    from_shape, wanted = input.shape, tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    lead = len(from_shape) - len(wanted)
    if lead < 0 or any(w not in (1, n) for w, n in zip(wanted, from_shape[lead:], strict=True)):
        raise ArgumentError(f"sum_to_size: size {wanted} does not broadcast to {from_shape}")
    dims = tuple(d for d, n in enumerate(from_shape) if d < lead or (wanted[d - lead] == 1 and n != 1))
    x = cast(input, dtypes.int64) if input.dtype.kind in "biu" and (dims or not wanted) else input   # as sum
    return mv.reshape(total(x, dims), wanted)
