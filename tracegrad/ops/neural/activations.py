"""Activations (tracegrad.nn.functional): elu, hardtanh, selu, celu, hardswish, mish, prelu, rrelu, gumbel_softmax, ..."""

from __future__ import annotations

from functools import wraps
from inspect import Parameter, signature
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import not_taken, refuse_complex
from tracegrad.graph.operators import FUNCTIONAL, F, functional, public
from tracegrad.graph.primitive import cast, holds
from tracegrad.ops.arguments import on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.pointwise import abs_, detach, erf, exp, expm1, ge, gt, into, le, log1p, lt, sigmoid, tanh
from tracegrad.ops.arrays.pointwise import where as select
from tracegrad.ops.arrays.random_bits import slopes
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


def _or_in_place(fn: F) -> F:
    """Decorator: a function of Tensors that also has torch's last argument `inplace`, with which the result is written into input."""
    known = signature(fn)
    parameters = [*known.parameters.values(), Parameter("inplace", Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation="bool")]
    whole = known.replace(parameters=parameters)

    @wraps(fn)
    def entry(input: Any, *args: Any, **kwargs: Any) -> Any:
        given = whole.bind(input, *args, **kwargs).arguments
        inplace = given.pop("inplace", False)
        result = fn(**given)
        return given["input"].copy_(result) if inplace else result

    entry.__signature__ = whole  # type: ignore[attr-defined]
    return entry  # type: ignore[return-value]


@public("leaky_relu", functional=True, method=False)
def leaky_relu(input: Array, negative_slope: float = 0.01, inplace: bool = False) -> Array:
    """x where positive, else negative_slope * x. inplace: the result is written into input.
    Any shape. dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> nn.functional.leaky_relu(tg.tensor([-1.0, 2.0]), 0.1)
    Tensor([-0.1,  2. ], device='cpu')
    """
    return into(input, _leaky_relu(input, negative_slope), inplace)


@on_nodes
def _leaky_relu(input: Any, negative_slope: float) -> Any:
    refuse_complex("leaky_relu", input)
    return select(input > 0, input, input * negative_slope)


@public("gelu", functional=True, method=False)
@on_nodes
@rounded_once
def gelu(input: Array, approximate: str = "none") -> Array:
    """x times the normal distribution function of x (Hendrycks & Gimpel 2016), exact, or with approximate="tanh".
    Any shape. dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> nn.functional.gelu(tg.tensor([-1.0, 0.0, 1.0]))
    Tensor([-0.1587,  0.    ,  0.8413], device='cpu')
    """
    refuse_complex("gelu", input)
    if approximate == "tanh":
        return input * 0.5 * (tanh((input + input * input * input * 0.044715) * 0.7978845608028654) + 1.0)
    if approximate != "none":
        raise ArgumentError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return input * 0.5 * (erf(input * 0.7071067811865476) + 1.0)


@public("silu", functional=True, method=False)
def silu(input: Array, inplace: bool = False) -> Array:
    """x * sigmoid(x). inplace: the result is written into input.
    dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> nn.functional.silu(tg.tensor([-1.0, 0.0, 1.0]))
    Tensor([-0.2689,  0.    ,  0.7311], device='cpu')
    """
    return into(input, _silu(input), inplace)


@on_nodes
@rounded_once
def _silu(input: Any) -> Any:
    return input * sigmoid(input)


@public("softplus", functional=True, method=False)
@on_nodes
@rounded_once
def softplus(input: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold, as in torch.
    Any shape. dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> nn.functional.softplus(tg.tensor([-1.0, 0.0, 30.0]))
    Tensor([ 0.3133,  0.6931, 30.    ], device='cpu')
    """
    refuse_complex("softplus", input)
    scaled = input * beta
    small = select(scaled > threshold, 0.0, scaled)
    return select(scaled > threshold, input, log1p(exp(small)) / beta)


@public("logsigmoid", method=False, functional=True)
@on_nodes
@rounded_once
def logsigmoid(input: Array) -> Array:
    """log(sigmoid(x)), without overflow.

    dtype: float; of integers the default one. Raises DTypeError for bools and complex numbers.

    >>> nn.functional.logsigmoid(tg.tensor([-1.0, 1.0]))
    """
    negative = lt(input, 0.0)
    return where(negative, input, 0.0) - log1p(exp(where(negative, input, -input)))


@functional
@_or_in_place
@on_nodes
@rounded_once
def elu(input: Array, alpha: float = 1.0) -> Array:
    """x where positive, else alpha (exp(x) - 1).

    dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> nn.functional.elu(tg.tensor([-1.0, 1.0]))
    """
    negative = le(input, 0.0)
    return where(negative, expm1(where(negative, input, 0.0)) * alpha, input)


@functional
@_or_in_place
@on_nodes
@rounded_once
def selu(input: Array) -> Array:
    """elu scaled so that activations keep mean 0 and variance 1 (Klambauer et al. 2017).

    Any shape. dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> nn.functional.selu(tg.tensor([-1.0, 1.0]))
    """
    return elu(input, 1.6732632423543772) * 1.0507009873554805


@functional
@_or_in_place
@on_nodes
def hardtanh(input: Array, min_val: Any = -1.0, max_val: Any = 1.0) -> Array:
    """x limited to [min_val, max_val], which integers limit to integers; no gradient at the limits, as in torch. DTypeError for bools.

    Any shape.

    >>> nn.functional.hardtanh(tg.tensor([-2.0, 0.5]))
    """
    if holds(min_val > max_val):
        raise ArgumentError(f"hardtanh: min_val {min_val} is above max_val {max_val}")
    if input.dtype.kind in "bc":
        raise not_taken("hardtanh", input.dtype)
    if dtype_kind(input.dtype) != "f":
        ends = np.iinfo(input.dtype)
        min_val, max_val = (cast(v, input.dtype) if isinstance(v, Node) else int(min(max(v, ends.min), ends.max))
                            for v in (min_val, max_val))
    return where(le(input, min_val), min_val, where(ge(input, max_val), max_val, input))


@functional
@_or_in_place
@on_nodes
def relu6(input: Array) -> Array:
    """x limited to [0, 6]. The shape and dtype (float or integer) stay. Raises DTypeError for bools.

    >>> nn.functional.relu6(tg.tensor([-1.0, 7.0]))
    """
    return hardtanh(input, 0.0, 6.0)


@functional
@on_nodes
@rounded_once
def glu(input: Array, dim: int = -1) -> Array:
    """a * sigmoid(b) of the two halves of input along dim (Dauphin et al. 2017).

    dtype: any; of integers and bools the default float one. Raises ShapeError for an odd size.

    >>> nn.functional.glu(tg.tensor([1.0, 0.0]))
    """
    d = one_dim("glu", dim, input.ndim)
    n = input.shape[d] if input.ndim else 1
    if n % 2:
        raise ShapeError(f"glu: dimension {d} of {input.shape} must be even")
    return mv.narrow(input, d, 0, n // 2) * sigmoid(mv.narrow(input, d, n // 2, n // 2))


@functional
def celu(input: Array, alpha: float = 1.0, inplace: bool = False) -> Array:
    """x where positive, else alpha (exp(x / alpha) - 1) (Barron 2017). Any shape; real dtypes, integers as floats (complex: DTypeError).

    >>> nn.functional.celu(tg.tensor([-1.0, 2.0]))
    Tensor([-0.6321,  2.    ], device='cpu')
    """
    if holds(alpha == 0):
        raise ArgumentError("celu: alpha must not be 0")
    return into(input, _celu(input, alpha), inplace)


@on_nodes
@rounded_once
def _celu(input: Any, alpha: float) -> Any:
    negative = lt(input, 0.0)
    return select(negative, expm1(select(negative, input, 0.0) * (1.0 / alpha)) * alpha, input)


@functional
def hardsigmoid(input: Array, inplace: bool = False) -> Array:
    """x / 6 + 1/2, limited to [0, 1]; no gradient at the limits. Any shape; real dtypes, integers as floats (complex: DTypeError).

    >>> nn.functional.hardsigmoid(tg.tensor([-4.0, 0.0, 1.5]))
    Tensor([0.  , 0.5 , 0.75], device='cpu')
    """
    return into(input, _hardsigmoid(input), inplace)


@on_nodes
@rounded_once
def _hardsigmoid(input: Any) -> Any:
    inside = gt(input, -3.0) & lt(input, 3.0)
    beyond = select(le(input, -3.0), 0.0, select(ge(input, 3.0), 1.0, detach(input)))       # or NaN, which has no gradient in torch
    return select(inside, input * (1.0 / 6.0) + 0.5, beyond)


@functional
def hardswish(input: Array, inplace: bool = False) -> Array:
    """x hardsigmoid(x) (Howard et al. 2019): 0 up to -3, x from 3 on. Real dtypes, integers as floats (complex: DTypeError).

    >>> nn.functional.hardswish(tg.tensor([-4.0, 0.0, 4.0]))
    Tensor([0., 0., 4.], device='cpu')
    """
    return into(input, _hardswish(input), inplace)


@on_nodes
@rounded_once
def _hardswish(input: Any) -> Any:
    below, inside = le(input, -3.0), lt(input, 3.0)
    near = select(inside & ~below, input, 0.0)              # or infinite numbers would have NaN as their derivative
    return select(below, 0.0, select(inside, near * (near + 3.0) * (1.0 / 6.0), input))


@functional
def mish(input: Array, inplace: bool = False) -> Array:
    """x tanh(softplus(x)) (Misra 2019). dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> nn.functional.mish(tg.tensor([-1.0, 1.0]))
    Tensor([-0.3034,  0.8651], device='cpu')
    """
    return into(input, _mish(input), inplace)


@on_nodes
@rounded_once
def _mish(input: Any) -> Any:
    return input * tanh(softplus(input))


@public("prelu", functional=True)
@on_nodes
def prelu(input: Array, weight: Array) -> Array:
    """x where positive, else weight * x; weight: one number, or one for each channel (dim 1) (He et al. 2015).
    dtype: any real one, which the result has. Raises DTypeError unless weight has input's dtype.

    >>> nn.functional.prelu(tg.tensor([-1.0, 2.0]), tg.tensor([0.5]))
    Tensor([-0.5,  2. ], device='cpu')
    """
    if weight.ndim > 1:
        raise ShapeError(f"prelu: weight must be a number or a vector, got {weight.shape}")
    if weight.dtype != input.dtype:
        raise DTypeError(f"prelu: weight {weight.dtype} and input {input.dtype} must have one dtype; cast one of them")
    n, channels = weight.aval.size, input.shape[1] if input.ndim > 1 else 1
    if n != 1 and n != channels:
        raise ShapeError(f"prelu: weight {weight.shape} must hold one number, or one for each of the {channels} channels of {input.shape}")
    slope = mv.reshape(weight, (n, *[1] * (input.ndim - 2)) if n != 1 else ())
    return where(gt(input, 0.0), input, input * slope)


@public("rrelu", method=False, functional=True)
def rrelu(input: Array, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False) -> Array:
    """x where positive, else a x: a uniform in [lower, upper] for each element when training, else their mean (Xu et al. 2015).
    dtype: real; of integers and bools the default float one. Raises ArgumentError if lower > upper.

    >>> nn.functional.rrelu(tg.tensor([-3.0, 2.0]), 0.25, 0.75)
    Tensor([-1.5,  2. ], device='cpu')
    """
    if holds(lower > upper):
        raise ArgumentError(f"rrelu: lower {lower} must not be above upper {upper}")
    slope: Any = (lower + upper) / 2
    if training:
        slope = slopes(input, lower, upper)
    return into(input, select(ge(input, 0.0) if training else gt(input, 0.0), input, input * slope), inplace)


@functional
@on_nodes
@rounded_once
def softsign(input: Array) -> Array:
    """x / (1 + |x|). Any shape. dtype: any but bool; integers as the default float one. Raises DTypeError for bools.

    >>> nn.functional.softsign(tg.tensor([-1.0, 3.0]))
    Tensor([-0.5 ,  0.75], device='cpu')
    """
    return input / (abs_(input) + 1.0)


@functional
@on_nodes
@rounded_once
def tanhshrink(input: Array) -> Array:
    """x - tanh(x). dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> nn.functional.tanhshrink(tg.tensor([0.0, 1.0]))
    Tensor([0.    , 0.2384], device='cpu')
    """
    return input - tanh(input)


@functional
def softshrink(input: Array, lambd: float = 0.5) -> Array:
    """x drawn towards 0 by lambd, 0 in between. Any shape; real dtypes, integers as floats. ArgumentError for lambd < 0.

    >>> nn.functional.softshrink(tg.tensor([-1.0, 0.3]))
    Tensor([-0.5,  0. ], device='cpu')
    """
    if holds(lambd < 0):
        raise ArgumentError(f"softshrink: lambd must not be negative, got {lambd}")
    inside = ge(input, -lambd) & le(input, lambd)
    return select(inside, 0.0, select(gt(input, lambd), input - lambd, input + lambd))


@functional
def hardshrink(input: Array, lambd: float = 0.5) -> Array:
    """x where |x| > lambd, else 0. Any shape; real dtypes, integers as floats (complex: DTypeError).

    >>> nn.functional.hardshrink(tg.tensor([-1.0, 0.3]))
    Tensor([-1.,  0.], device='cpu')
    """
    return select(ge(input, -lambd) & le(input, lambd), 0.0, input)


@public("threshold", method=False, functional=True)
def threshold(input: Array, threshold: float, value: float, inplace: bool = False) -> Array:
    """x where it is above the threshold, else value. Any shape; real dtypes (complex: DTypeError), which the result has: of integers both
    numbers are cut off, as in torch.

    >>> nn.functional.threshold(tg.tensor([-1.0, 2.0]), 0.0, 9.0)
    Tensor([9., 2.], device='cpu')
    """
    if input.dtype.kind in "iu":
        numbers: list[Any] = [threshold, value]
        threshold, value = (int(n) if isinstance(n, float) else n for n in numbers)
    return into(input, select(le(input, threshold), value, input), inplace)


def _twin(name: str) -> None:
    """torch's nn.functional.relu_(x) and so on: the function, its result written into input."""
    whole = FUNCTIONAL[name]

    @wraps(whole)
    def fn(input: Array, *args: Any, **kwargs: Any) -> Array:
        return whole(input, *args, **kwargs, inplace=True)

    fn.__name__ = fn.__qualname__ = f"{name}_"
    fn.__doc__ = f"""`{name}`, its result written into input, whose shape and dtype stay.

    Raises what `{name}` raises, and AutogradError for a leaf that requires grad.

    >>> nn.functional.{name}_(tg.tensor([-1.0, 1.0]){", 0.5, 0.0" if name == "threshold" else ""})
    """
    FUNCTIONAL[f"{name}_"] = fn


for _name in ("celu", "elu", "hardtanh", "leaky_relu", "relu", "rrelu", "selu", "threshold"):
    _twin(_name)
