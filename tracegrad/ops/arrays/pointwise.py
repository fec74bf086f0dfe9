"""Pointwise functions: elementwise primitives as functions, methods and operators, and what is composed of them.

Everything here takes Tensors or Nodes (derivative rules use the same functions) and Python scalars, broadcasts, and promotes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import common_dtype, refuse_bools, refuse_complex
from tracegrad.graph.operators import PUBLIC, Operators, by_itself, method, public, write
from tracegrad.graph.primitive import REGISTRY, call, cast, saving_nothing
from tracegrad.ops.arguments import documented, integer, on_nodes, rounded_once
from tracegrad.ops.primitives.elementwise import times
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor (or, where one of several operands is one, a Python scalar)


def _unary(name: str, *aliases: str) -> Any:
    op = REGISTRY[name]

    def fn(input: Array, *, out: Array = None) -> Array:
        result = call(op, (input,), {})
        return result if out is None else write(fn.__name__, out, result)

    fn.__name__ = fn.__qualname__ = aliases[0] if aliases else name
    by_itself(fn)
    fn.__doc__ = documented(op, fn.__name__)
    return public(*(aliases or (name,)))(fn)


def _rounding(name: str, *aliases: str) -> Any:
    op = REGISTRY[name]

    def fn(input: Array) -> Array:
        return call(op, (input,), {}) if _dtype_kind(input) in "fc" else input       # of complex numbers an error

    fn.__name__ = fn.__qualname__ = aliases[0] if aliases else name
    fn.__doc__ = f"""{type(op).__doc__}

    input: tensor of any shape and any real dtype, which the result has; integers and bools come back as they are.
    Raises DTypeError for complex numbers and for what is no tensor.

    >>> tg.{fn.__name__}(tg.tensor([-1.5, 0.5]))
    """
    return public(*(aliases or (name,)))(fn)


def _binary(name: str, *aliases: str, check: Any = None) -> Any:
    op = REGISTRY[name]
    by_number = op if check is None else saving_nothing(op)

    def fn(input: Array, other: Array, *, out: Array = None) -> Array:
        tensor = isinstance(other, Operators)
        if check is not None and not tensor:
            check(name, input, other)
        result = call(op if tensor else by_number, (input, other), {})
        return result if out is None else write(fn.__name__, out, result)

    fn.__name__ = fn.__qualname__ = aliases[0] if aliases else name
    by_itself(fn)
    fn.__doc__ = documented(op, fn.__name__)
    return public(*(aliases or (name,)))(fn)


def _no_zero(name: str, input: Array, other: Any) -> None:
    """Refuse to divide integers by the number zero; zeros among a tensor's elements give 0."""
    if isinstance(other, (int, np.integer)) and other == 0 and _dtype_kind(input) in "iub":
        shape = list(getattr(input, "shape", ()))
        raise ArgumentError(f"{name}: integers {as_scalar_dtype(input)}{shape} divided by zero; of floats that is inf or NaN")


abs_ = _unary("abs", "abs", "absolute")
neg = _unary("neg", "neg", "negative")
exp, exp2, expm1 = _unary("exp"), _unary("exp2"), _unary("expm1")
log, log2, log10, log1p = _unary("log"), _unary("log2"), _unary("log10"), _unary("log1p")
sqrt, rsqrt = _unary("sqrt"), _unary("rsqrt")
sin, cos, tan = _unary("sin"), _unary("cos"), _unary("tan")
asin, acos, atan = _unary("asin", "asin", "arcsin"), _unary("acos", "acos", "arccos"), _unary("atan", "atan", "arctan")
sinh, cosh, tanh = _unary("sinh"), _unary("cosh"), _unary("tanh")
erf, isnan, bitwise_not = _unary("erf"), _unary("isnan"), _unary("bitwise_not", "bitwise_not")
floor, ceil, trunc = _rounding("floor"), _rounding("ceil"), _rounding("trunc", "trunc", "fix")
real, imag = REGISTRY["real"], REGISTRY["imag"]            # of complex numbers only; see complex_numbers.py

mul = _binary("mul", "mul", "multiply")
floor_divide, remainder, fmod = (_binary(name, check=_no_zero) for name in ("floor_divide", "remainder", "fmod"))
atan2 = _binary("atan2", "atan2", "arctan2")
maximum, minimum = _binary("maximum"), _binary("minimum")
eq, ne, lt, le, gt, ge = (_binary(n, n, long) for n, long in (
    ("eq", "equal_to"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal")))
bitwise_and, bitwise_or, bitwise_xor = _binary("bitwise_and"), _binary("bitwise_or"), _binary("bitwise_xor")
bitwise_left_shift, bitwise_right_shift = _binary("bitwise_left_shift"), _binary("bitwise_right_shift")


@public("add")
def add(input: Array, other: Array, *, alpha: float = 1) -> Array:
    """input + alpha * other, broadcast together.
    dtype: any, promoted. Raises DTypeError for what is no tensor, ShapeError where shapes do not broadcast.

    >>> tg.add(tg.tensor([1.0, 2.0]), tg.tensor([0.5, 1.0]), alpha=2)
    """
    return _sum("add", input, other, alpha)


@public("sub", "subtract")
def sub(input: Array, other: Array, *, alpha: float = 1) -> Array:
    """input - alpha * other, broadcast together. Bools are refused, as in torch: use `^` or logical_not.
    dtype: any but bool, which the result has. Raises DTypeError for bools, ShapeError where shapes do not broadcast.

    >>> tg.sub(tg.tensor([5.0, 6.0]), tg.tensor([1.0, 2.0]), alpha=2)
    Tensor([3., 2.], device='cpu')
    """
    if isinstance(alpha, Operators) or alpha != 1:              # with a factor they would be integers
        refuse_bools("sub", (input, other))
    return _sum("sub", input, other, alpha)


def _sum(name: str, input: Any, other: Any, alpha: Any) -> Any:
    """input and alpha * other, added or subtracted."""
    if alpha.__class__ is int and alpha == 1:
        return call(REGISTRY[name], (input, other), {})
    if alpha.__class__ is float and isinstance(input, Operators) and isinstance(other, Operators):
        dtype = input.dtype
        if dtype is other.dtype and dtype.itemsize > 2 and dtype_kind(dtype) == "f":           # (of 16 bits it is rounded once)
            return call(REGISTRY[name], (input, times(other, alpha)), {})
    if not isinstance(alpha, Operators):
        alpha = _factor(name, input, other, alpha)
    both = isinstance(input, Operators) and isinstance(other, Operators)
    if both and input.dtype == other.dtype and dtypes.is_half(input.dtype) and not isinstance(alpha, Operators) and alpha != 1:
        return _sum_of_halves(name, input, other, alpha)
    return call(REGISTRY[name], (input, scaled(input, other, alpha)), {})


def _factor(name: str, input: Any, other: Any, alpha: Any) -> Any:
    """alpha, as a factor in the sum of the two: of bools a bool. A float of integers is an error, as in torch."""
    given = [x.dtype if isinstance(x, Operators) else dtypes.promote_scalar(dtypes.bool_, x) for x in (input, other, alpha)]
    *kinds, own = map(dtypes.category, given)
    if own > max(*kinds, 1):
        has, way = ("a real sum", "a real number") if own == 3 else ("an integer sum", "an integer")
        raise DTypeError(f"{name}: alpha is {alpha!r}, but {given[0]} and {given[1]} have {has}; pass {way}, or cast one of them")
    return alpha if max(kinds) else bool(alpha)


@on_nodes
def _sum_of_halves(name: str, input: Array, other: Array, alpha: float) -> Array:
    """Computed in float32 and rounded once, as in torch."""
    a, b = (cast(x, dtypes.float32) for x in (input, other))
    return cast(call(REGISTRY[name], (a, times(b, alpha)), {}), input.dtype)


def scaled(input: Any, other: Any, alpha: Any) -> Any:
    """alpha * other, in the dtype that it has once it is added to input: 2 * 200 is no uint8, but a float32."""
    if not isinstance(alpha, Operators) and alpha == 1:
        return other
    mixed = isinstance(input, Operators) and isinstance(other, Operators) and input.dtype != other.dtype
    factor = _in_common(input, other) if mixed else other
    return factor * alpha if isinstance(alpha, Operators) or not isinstance(other, Operators) else times(factor, alpha)


@on_nodes
def _in_common(input: Array, other: Array) -> Array:
    """other, in the dtype that the two promote to."""
    return common_dtype([input, other])[1]


@public("div", "divide", "true_divide")
def div(input: Array, other: Array, *, rounding_mode: str | None = None) -> Array:
    """input / other as floats; rounding_mode "floor" or "trunc" rounds the quotient, as in torch.
    dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor, ShapeError where shapes do not
    broadcast.

    >>> tg.div(tg.tensor([7, -7]), 2)
    Tensor([ 3.5, -3.5], device='cpu')
    >>> tg.div(tg.tensor([7, -7]), 2, rounding_mode="floor")
    Tensor([ 3, -4], device='cpu')
    """
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
        if any(_dtype_kind(a) == "f" for a in (input, other)):
            return call(REGISTRY["trunc_divide"], (input, other), {})
        below = floor_divide(input, other)
        return below + ((below < 0) & ne(below * other, input))
    if rounding_mode is not None:
        raise ArgumentError(f"div: rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}")
    return call(REGISTRY["div"], (input, other), {})


def as_scalar_dtype(a: Array) -> Any:
    """The dtype of an array or of a Python scalar."""
    return a.dtype if hasattr(a, "dtype") else dtypes.as_dtype(type(a))


def _dtype_kind(a: Array) -> str:
    return str(dtype_kind(as_scalar_dtype(a)))


@public("pow")
def pow(input: Array, exponent: Array) -> Array:
    """input to the power exponent, broadcast together. The powers 0.5 and -0.5 are sqrt and rsqrt, as in torch.

    Raises ArgumentError for integers to a negative integer power; where only the elements tell, it is 1, -1 or 0.
    dtype: any but bool, which the result has. DTypeError for bools, ShapeError where shapes do not broadcast.

    >>> tg.pow(tg.tensor([1.0, 2.0, 3.0]), 2)
    Tensor([1., 4., 9.], device='cpu')
    """
    if isinstance(exponent, float) and abs(exponent) == 0.5:
        return sqrt(input) if exponent > 0 else rsqrt(input)
    if isinstance(exponent, (int, np.integer)) and not isinstance(exponent, bool) and exponent < 0 and _dtype_kind(input) in "iu":
        raise ArgumentError("pow: integers to negative integer powers are not allowed; cast to a float first")
    return call(REGISTRY["pow"], (input, exponent), {})


@public("where", method=False)
def where(condition: Array, input: Array = None, other: Array = None) -> Array:
    """input where condition (bool) holds, else other; all broadcast together. Of a condition alone: `nonzero(condition, as_tuple=True)`.
    dtype: any, promoted. Raises DTypeError unless condition is bool, ShapeError where shapes do not broadcast.

    >>> tg.where(tg.tensor([True, False]), tg.tensor([1.0, 2.0]), 0.0)
    """
    if input is None and other is None:
        return PUBLIC["nonzero"](condition, as_tuple=True)
    if input is None or other is None:
        raise ArgumentError("where: give both input and other, or neither for the places where the condition holds")
    return call(REGISTRY["where"], (condition, input, other), {})


@method("where")
def where_(self: Array, condition: Array, other: Array) -> Array:
    """self where condition (bool) holds, else other; all broadcast together."""
    return where(condition, self, other)


@public("round")
def round_(input: Array, *, decimals: int = 0) -> Array:
    """The nearest integer (halves to even), or the nearest multiple of 10**-decimals.
    The shape and dtype stay; real dtypes. Raises DTypeError for complex numbers, and for decimals below 0 of integers.

    >>> tg.round(tg.tensor([0.5, 1.5, 2.25]))
    Tensor([0., 2., 2.], device='cpu')
    >>> tg.round(tg.tensor([0.123, 4.567]), decimals=1)
    Tensor([0.1, 4.6], device='cpu')
    """
    decimals = integer("round", "decimals", decimals)
    scale = 10.0**decimals
    if _dtype_kind(input) not in "fc":
        if decimals < 0:
            raise DTypeError(f"round: decimals={decimals} of {input.dtype}: integers are not rounded to tens; use a float, input.double()")
        return input
    if decimals and dtypes.is_half(input.dtype):                                   # whose largest number times 10 is infinite
        return to_dtype(round_(to_dtype(input, dtypes.float32), decimals=decimals), input.dtype)
    return call(REGISTRY["round"], (input * scale,), {}) / scale if decimals else call(REGISTRY["round"], (input,), {})


@public("to_dtype", method=False)
def to_dtype(input: Array, dtype: Any) -> Array:
    """input converted to dtype; floats to integers truncate towards zero (what does not fit wraps, or beyond int32 is undefined).
    Any shape. Raises DTypeError for a dtype that is not supported.

    >>> tg.to_dtype(tg.tensor([1.7, -1.7]), tg.int32)
    Tensor([ 1, -1], dtype=int32, device='cpu')
    """
    found = dtypes.as_dtype(dtype)
    if input.dtype == found and not (isinstance(input, Node) and input.aval.weak):
        return input
    return cast(input, found) if isinstance(input, Node) else input._tensor_of(cast(input._node(), found))


@public("reciprocal")
def reciprocal(input: Array) -> Array:
    """1 / input. Any shape. dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> tg.reciprocal(tg.tensor([2, 4]))
    Tensor([0.5 , 0.25], device='cpu')
    """
    return 1.0 / input


@public("sign")
def sign(input: Array) -> Array:
    """-1, 0 or 1 by the element's sign, 0 for NaN; bools come back as they are. The derivative is 0, as in torch.
    The shape and dtype stay. Raises DTypeError for complex numbers.

    >>> tg.sign(tg.tensor([-2.0, 0.0, 3.0]))
    Tensor([-1.,  0.,  1.], device='cpu')
    """
    return input if _dtype_kind(input) == "b" else call(REGISTRY["sign"], (input,), {})


@public("square")
def square(input: Array) -> Array:
    """input * input; of bools int64, as in torch. The shape and other dtypes stay. Raises DTypeError for what is no tensor.

    >>> tg.square(tg.tensor([-2.0, 3.0]))
    Tensor([4., 9.], device='cpu')
    """
    x = call(REGISTRY["cast"], (input,), {"dtype": dtypes.int64, "weak": False}) if _dtype_kind(input) == "b" else input
    return x * x


@public("sigmoid", functional=True)
def sigmoid(input: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow.
    Any shape. dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> tg.sigmoid(tg.tensor([0.0, 2.0]))
    """
    return call(REGISTRY["sigmoid"], (input,), {})


@public("relu", functional=True)
def relu(input: Array, inplace: bool = False) -> Array:
    """max(x, 0); its derivative at 0 is 0, as in torch. NaN stays NaN. inplace: the result is written into input.
    dtype: real, bools as int64. Raises DTypeError for complex numbers.

    >>> tg.relu(tg.tensor([-1.0, 2.0]))
    """
    return into(input, _relu(input), inplace)


@on_nodes
def _relu(input: Any) -> Any:
    refuse_complex("relu", input)
    return where(input <= 0, 0, input)


def into(input: Array, result: Array, inplace: bool) -> Array:
    """The result, written into input if it is wanted there."""
    return input.copy_(result) if inplace else result


@public("clamp", "clip")
@on_nodes
def clamp(input: Array, min: Array = None, max: Array = None) -> Array:
    """input limited to [min, max] (scalars or tensors; None for no limit; max wins where min > max; NaN where a limit is NaN).

    The gradient passes where min <= x <= max; a tensor's limit has it elsewhere: as in torch.
    dtype: real, promoted with the limits'. Raises ArgumentError if both limits are None, DTypeError for complex numbers.

    >>> tg.clamp(tg.tensor([1.0, 2.0]), max=1.5)
    """
    if min is None and max is None:
        raise ArgumentError("clamp: at least one of min and max must be given")
    refuse_complex("clamp", input)
    if all(isinstance(limit, Node) and not limit.aval.weak for limit in (min, max)):
        input, min, max = common_dtype([input, min, max], name="clamp")          # of all three: one may not fit that of two
    out = input
    for limit, limited in ((min, "clamp_min"), (max, "clamp_max")):
        if limit is not None:
            out = call(REGISTRY[limited], (out, limit), {})
    return out


def abs_squared(x: Array) -> Array:
    """|x|², a real number."""
    if x.dtype.kind != "c":
        return x * x
    a, b = real(x), imag(x)
    return a * a + b * b


@on_nodes
def _in_the_dtype_of(number: Array, like: Array) -> Array:
    """A number of run time (a Python float given to a @trace function) in `like`'s dtype, which a choice between two does not know."""
    return common_dtype([number, like])[0] if number.aval.weak and isinstance(like, Node) else number


@public("lerp")
@on_nodes
@rounded_once
def lerp(input: Array, end: Array, weight: Any) -> Array:
    """input + weight * (end - input); from a weight of 1/2 on computed from the end, so that it is end for a weight of 1.
    The shapes broadcast. dtype: float or complex; integers give the default float one. Raises DTypeError for bools, ShapeError where
    shapes do
    not broadcast.

    >>> tg.lerp(tg.tensor([0.0, 10.0]), tg.tensor([4.0, 20.0]), 0.25)
    Tensor([ 1. , 12.5], device='cpu')
    """
    if isinstance(weight, Operators):
        weight = _in_the_dtype_of(weight, end)
    near = abs_(weight) < 0.5 if isinstance(weight, Operators) else abs(weight) < 0.5
    if isinstance(near, bool):
        return input + times(end - input, weight) if near else end - times(end - input, 1 - weight)
    return where(near, input, end) + (end - input) * where(near, weight, weight - 1)


@public("detach", method=False)
def detach(input: Array) -> Array:
    """The same value, constant to differentiation. The shape and dtype stay. Raises DTypeError for what is no tensor.

    >>> x = tg.ones(2, requires_grad=True)
    >>> tg.detach(x * 3).requires_grad
    False
    """
    return call(REGISTRY["detach"], (input,), {})


@public("materialize", method=False)
def materialize(input: Array) -> Array:
    """The same value, as a hint: a program stores it here, once, and all that use the result read it from memory.

    Without it the compiler decides whether a value that several kernels need is stored, or computed again by each. Use it where
    `explain()` or `profile()` shows that it decided badly. The derivative is that of the identity, and the hint says nothing of its
    cotangent. It changes nothing where it is called untraced, and in a loop's body that is one kernel.
    dtype: any. Raises DTypeError for what is no tensor.

    >>> f = tg.trace(lambda x: (lambda y: (y.sum(0), y.sum(1)))(tg.materialize(x * 2)))
    >>> sums = f(tg.ones(30, 40))
    >>> print(f.explain())
    """
    return call(REGISTRY["materialize"], (input,), {})


# -------------------------------------------------------------------------------------------------------- operators


def _reflected(fn: Any) -> Any:
    return lambda self, other: fn(other, self) if acceptable(other) else NotImplemented


def _straight(fn: Any) -> Any:
    return lambda self, other: fn(self, other) if isinstance(other, Operators) or acceptable(other) else NotImplemented


def acceptable(other: Any) -> bool:
    """Whether `other` can be an operand of an operator."""
    own = isinstance(other, (Operators, bool, int, float, complex))
    return own or (hasattr(other, "dtype") and not hasattr(other, "__torch_function__"))         # which has operators of its own


def _plain(name: str) -> tuple[Any, Any]:
    """An operator and the one with its operands exchanged, which are the operation itself where its other arguments are left out."""
    op = REGISTRY[name]
    return (lambda self, other: call(op, (self, other), {}) if isinstance(other, Operators) or acceptable(other) else NotImplemented,
            lambda self, other: call(op, (other, self), {}) if acceptable(other) else NotImplemented)


for _name, _op in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}.items():
    for _kind, _fn in zip(("", "r"), _plain(_op), strict=True):
        setattr(Operators, f"__{_kind}{_name}__", _fn)
for _name, _fn in {"floordiv": floor_divide, "mod": remainder, "pow": pow,
                   "and": bitwise_and, "or": bitwise_or, "xor": bitwise_xor, "lshift": bitwise_left_shift,
                   "rshift": bitwise_right_shift}.items():
    setattr(Operators, f"__{_name}__", _straight(_fn))
    setattr(Operators, f"__r{_name}__", _reflected(_fn))
setattr(Operators, "__rdiv__", Operators.__rtruediv__)  # noqa: B010  (torch's, from Python 2)
for _name, _fn in {"lt": lt, "le": le, "gt": gt, "ge": ge}.items():   # == and != only on Tensor: Nodes are keys of dicts and graphs
    setattr(Operators, f"__{_name}__", _straight(_fn))
for _name, _fn in {"neg": neg, "abs": abs_, "invert": bitwise_not}.items():
    setattr(Operators, f"__{_name}__", _fn)
