"""Methods of Tensor that are made of functions: views that remember their base, in-place twins, dtype shorthands. Start at `install`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tracegrad.errors import DTypeError
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, Operators
from tracegrad.tensors.cached_views import recalled
from tracegrad.tensors.numpy_subscripts import joining, reading, rebinding, stacked, writing
from tracegrad.tensors.tensor import Tensor

_VIEWS = (
    "view",
    "reshape",
    "permute",
    "transpose",
    "swapaxes",
    "t",
    "squeeze",
    "unsqueeze",
    "expand",
    "expand_as",
    "narrow",
    "flatten",
    "unflatten",
    "unfold",
    "movedim",
    "split",
    "chunk",
    "unbind",
    "broadcast_to",
    "view_as",
    "select",
    "diagonal",
    "tensor_split",
    "hsplit",
    "vsplit",
    "dsplit",
    "split_with_sizes",
    "real",
    "imag",
    "view_as_real",
    "view_as_complex",
    "as_strided",
    "adjoint",
    "conj",
    "positive",
    "resolve_conj",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "sum_to_size",
)


_VIEWS_OF_EACH = ("broadcast_tensors", "meshgrid")
_IN_PLACE = {f"tracegrad.ops.{family}" for family in ("arrays.pointwise", "arrays.logical", "arrays.complex_numbers", "arrays.indexing",
                                                      "arrays.scattering", "special.arithmetic", "special.functions", "special.gamma",
                                                      "special.exports")}
_ALSO = ("cumsum", "cumprod", "tril", "triu", "addmm", "addmv", "addr", "addbmm", "baddbmm", "renorm")
# those that would change the shape or the dtype, or write a thing into another: torch has no such methods either
_NOT_IN_PLACE = ("as_strided", "gather", "index_select", "isclose", "isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal",
                 "masked_select", "one_hot", "select_scatter", "slice_scatter", "diagonal_scatter", "signbit", "sum_to_size", "take",
                 "take_along_axis", "take_along_dim", "to_dtype", "where", "real", "angle", "conj", "positive")  # fmt: skip
_IN_PLACE_FUNCTIONS = """
abs_ acos_ acosh_ addmv_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ asin_ asinh_ atan_ atanh_ ceil_ clamp_ clamp_max_ clamp_min_
clip_ conj_physical_ cos_ cosh_ deg2rad_ detach_ erf_ erfc_ exp2_ exp_ expm1_ fill_ fix_ floor_ frac_ gcd_ i0_ index_put_ lcm_ ldexp_
log10_ log1p_ log2_ log_ logit_ nan_to_num_ neg_ negative_ rad2deg_ reciprocal_ relu_ resize_as_ round_ rsqrt_ sigmoid_ sin_ sinc_ sinh_
sqrt_ square_ tan_ tanh_ trunc_ xlogy_ zero_
"""
_OPERANDS = {"addmv_": "tg.ones(2), tg.ones(2, 3), tg.ones(3)", "gcd_": "tg.tensor([4, 9]), tg.tensor([6, 6])",
             "index_put_": "tg.zeros(3), (tg.tensor([0, 2]),), tg.ones(2)", "lcm_": "tg.tensor([4, 9]), tg.tensor([6, 6])",
             "ldexp_": "tg.ones(2), tg.tensor([1, 2])", "xlogy_": "tg.ones(2), tg.tensor([1.0, 2.0])"}       # in examples; else one tensor
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and": "&", "or": "|",
              "xor": "^", "lshift": "<<", "rshift": ">>"}  # fmt: skip


def _as_view(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A movement function whose result, if it is given a Tensor, remembers its base, but where torch copies what cannot be a view."""

    @functools.wraps(fn)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not args:
            args = (kwargs.pop("tensor" if "tensor" in kwargs else "input", None),)
        input, result = args[0], fn(*args, **kwargs)
        if not isinstance(input, Tensor):
            return result
        return input._view(result) if isinstance(result, Tensor) else type(result)(input._view(r) for r in result)

    return recalled(function)  # type: ignore[no-any-return]


def _as_views_of_each(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A movement function of several tensors, whose results are views of one each."""

    @functools.wraps(fn)
    def function(*tensors: Any, **kwargs: Any) -> Any:
        results = fn(*tensors, **kwargs)
        given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
        return tuple([x._view(r) if isinstance(x, Tensor) and isinstance(r, Tensor) else r for x, r in zip(given, results, strict=True)])

    return function


def _of_one(einsum: Callable[..., Any]) -> Callable[..., Any]:
    """einsum, whose result is a view of a single operand that it only turns."""

    @functools.wraps(einsum)
    def function(equation: Any, *operands: Any, **kwargs: Any) -> Any:
        result = einsum(equation, *operands, **kwargs)
        given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
        return given[0]._view(result) if len(given) == 1 and isinstance(given[0], Tensor) and not kwargs else result

    return function


def _in_place(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function as a method that writes its result into the first operand."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = fn(self, *args, **kwargs)
        return result if result is NotImplemented else self._rebind(result._node(), name)

    method.__wrapped__ = fn  # type: ignore[attr-defined]    # whose parameters are the method's
    method.__name__, method.__doc__ = name, f"""In-place version of `{name[:-1]}`: the tensor keeps its shape and dtype.

    Raises ShapeError if the result has another shape, DTypeError if it is of a higher kind (floats for integers), and AutogradError
    for a leaf that requires grad.
    """
    if name in _IN_PLACE_FUNCTIONS.split():
        limit = ", 0.3" if name.startswith(("clamp", "clip")) else ""
        method.__doc__ += f"\n    >>> tg.{name}({_OPERANDS.get(name, f'tg.tensor([0.25, 0.5]){limit}')})\n    "
    return method


def _as_function(name: str) -> Callable[..., Any]:
    """A method of Tensor as a function."""
    method = getattr(Tensor, name)

    @functools.wraps(method)
    def function(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Tensor):
            raise DTypeError(f"{name}: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays, lists and numbers")
        return method(input, *args, **kwargs)

    return function


def export_functions() -> None:
    """Export methods, mostly those that work in place, as functions, which they are in torch, too: tg.relu_(x) is x.relu_()."""
    for name in (*_IN_PLACE_FUNCTIONS.split(), "get_device", "is_distributed", "is_inference"):
        PUBLIC[name] = _as_function(name)
    for name in ("celu_", "rrelu_", "selu_", "threshold_"):
        PUBLIC[name] = FUNCTIONAL[name]


def install() -> None:
    """Make the view methods, the in-place twins and the dtype shorthands, from the functions that the ops export."""
    views = {PUBLIC[name]: _as_view(PUBLIC[name]) for name in _VIEWS}
    for name, fn in PUBLIC.items():
        if fn in views:  # also under its other names
            PUBLIC[name] = views[fn]
            if hasattr(Operators, name) and name not in ("real", "imag"):           # those are properties
                setattr(Tensor, name, views[fn])
    PUBLIC.update({name: _as_views_of_each(PUBLIC[name]) for name in _VIEWS_OF_EACH})
    PUBLIC["einsum"] = _of_one(PUBLIC["einsum"])
    joined = {PUBLIC["cat"]: joining(PUBLIC["cat"], np.concatenate), PUBLIC["stack"]: joining(PUBLIC["stack"], stacked)}
    PUBLIC.update({name: joined[fn] for name, fn in PUBLIC.items() if fn in joined})
    setattr(Tensor, "__getitem__", reading(recalled(Tensor.__getitem__)))  # noqa: B010 - to mypy it is another class's method
    setattr(Tensor, "__setitem__", writing(Tensor.__setitem__))  # noqa: B010
    setattr(Tensor, "_rebind", rebinding(Tensor._rebind))  # noqa: B010
    for name in ("T", "mT", "H", "mH"):
        getter = getattr(Operators, name, None)
        if isinstance(getter, property) and getter.fget is not None:
            setattr(Tensor, name, property(_as_view(getter.fget)))
    for name, fn in PUBLIC.items():
        pointwise = fn.__module__ in _IN_PLACE and fn.__annotations__.get("return") == "Array"      # a bool or a pair has no such twin
        if (pointwise or name in _ALSO) and name not in _NOT_IN_PLACE and not hasattr(Tensor, f"{name}_"):
            setattr(Tensor, f"{name}_", _in_place(getattr(Operators, name, fn), f"{name}_"))
    for name, sign in _OPERATORS.items():
        setattr(Tensor, f"__i{name}__", _in_place(getattr(Operators, f"__{name}__"), f"{sign}="))
    for name, dtype in {
        "float": "float32",
        "double": "float64",
        "half": "float16",
        "bfloat16": "bfloat16",
        "char": "int8",
        "short": "int16",
        "int": "int32",
        "long": "int64",
        "byte": "uint8",
        "bool": "bool",
        "cfloat": "complex64",
        "cdouble": "complex128",
    }.items():
        setattr(Tensor, name, lambda self, dtype=dtype: self.to(dtype=dtype))
    for name in ("clone", "numel", "is_floating_point"):
        PUBLIC[name] = _as_function(name)
