"""Complex numbers: their parts, and what is made of them. Start at `complex_`; the primitives are in ops/primitives/elementwise.py, and
here the views.

A complex tensor's memory holds real and imaginary part in turn, as numpy's and torch's. In kernels there are only real numbers: every op
that takes complex numbers says by its `pair` rule what it does to the parts (codegen/graph/complex_pairs.py; the formulas are in
ops/primitives/complex_parts.py).
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

from tracegrad.errors import DTypeError, ShapeError
from tracegrad.graph.ir import Aval
from tracegrad.graph.operation import Pair
from tracegrad.graph.operation_families import Movement
from tracegrad.graph.operators import Operators, public
from tracegrad.graph.primitive import REGISTRY, bind, call, cast, const
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.arrays.pointwise import abs_, atan2, cos, detach, eq, lt, ne, sign, sin
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor
_REAL, _IMAG, _COMPLEX, _CONJ = (REGISTRY[n] for n in ("real", "imag", "complex", "conj"))
_SHAPES = ((2, 3), (4,), (), (0, 3))


class ViewAsReal(Movement):
    """Complex (*) as real (*, 2): its parts."""
    name, required, locate = "view_as_real", ("aval", "numpy", "pair"), None

    def aval(self, z: Aval) -> Aval:
        if z.dtype.kind != "c":
            raise DTypeError(f"view_as_real: takes complex tensors, got {z.dtype}")
        return Aval((*z.shape, 2), dtypes.real_of(z.dtype))

    def numpy(self, z: Any) -> Any: return np.stack([z.real, z.imag], -1)
    def vjp(self, ct: Any, y: Any, z: Any) -> Any: return (bind(REGISTRY["view_as_complex"], (ct,), {}),)

    def pair(self, z: Pair) -> Any:
        return mv.concat([mv.reshape(part, (*part.shape, 1)) for part in z], len(z.re.shape))

    cases = [((np.arange(6.0).reshape(2, 3) * (1 - 2j),), {}), ((np.array(1 + 2j),), {})]


class ViewAsComplex(Movement):
    """Real (*, 2) as complex (*)."""
    name, required, locate = "view_as_complex", ("aval", "numpy", "pair"), None

    def aval(self, x: Aval) -> Aval:
        if x.dtype not in (dtypes.float32, dtypes.float64):
            raise DTypeError(f"view_as_complex: takes float32 and float64 tensors, got {x.dtype}; cast first, for example x.float()")
        if not x.shape or x.shape[-1] != 2:
            raise ShapeError(f"view_as_complex: the last dimension must be of size 2, got {x.shape}")
        return Aval(x.shape[:-1], dtypes.complex_of(x.dtype))

    def numpy(self, x: Any) -> Any: return _COMPLEX.numpy(x[..., 0], x[..., 1])
    def vjp(self, ct: Any, y: Any, x: Any) -> Any: return (bind(REGISTRY["view_as_real"], (ct,), {}),)

    def pair(self, x: Any) -> Pair:
        last = len(x.shape) - 1
        return Pair(*(mv.reshape(mv.narrow(x, last, k, 1), x.shape[:-1]) for k in (0, 1)))

    cases = [(((2, 3, 2),), {}), (((2,),), {})]


def is_complex_(x: Any) -> bool:
    """Whether x (a Tensor or a Node) is of a complex dtype."""
    return bool(x.dtype.kind == "c")


@public("is_complex")
def is_complex(input: Array) -> bool:
    """Whether the dtype is complex64 or complex128. Any shape. Raises DTypeError for what is no tensor.

    >>> tg.is_complex(tg.tensor([1j]))
    """
    if not isinstance(input, Operators):
        raise DTypeError(f"is_complex: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays, lists and numbers")
    return is_complex_(input)


# --------------------------------------------------------------------------------------------------------------- making them


@public("complex", method=False)
@on_nodes
def complex_(real: Array, imag: Array) -> Array:
    """real + i imag, broadcast together, of two float32 tensors (complex64) or float64 ones (complex128). Raises DTypeError for others.

    >>> tg.complex(tg.tensor([1.0, 2.0]), tg.tensor([3.0, 4.0]))
    """
    if real.dtype != imag.dtype:
        raise DTypeError(f"complex: real {real.dtype} and imag {imag.dtype} must have one dtype; cast one of them")
    return call(_COMPLEX, (real, imag), {})


@public("polar", method=False)
@on_nodes
def polar(abs: Array, angle: Array) -> Array:
    """The complex numbers of these absolute values and angles: abs (cos(angle) + i sin(angle)); float32 or float64, both of one dtype.

    Raises DTypeError for others.

    >>> tg.polar(tg.tensor([1.0]), tg.tensor([tg.pi / 2]))
    """
    if abs.dtype != angle.dtype:
        raise DTypeError(f"polar: abs {abs.dtype} and angle {angle.dtype} must have one dtype; cast one of them")
    return call(_COMPLEX, (abs * cos(angle), abs * sin(angle)), {})


# ------------------------------------------------------------------------------------------------------------------- parts


@public("view_as_real")
@on_nodes
def view_as_real(input: Array) -> Array:
    """Complex (*) as a real tensor (*, 2) of its parts: a view, so that writing to it writes to input. Raises DTypeError for real tensors.

    >>> tg.view_as_real(tg.tensor([1 + 2j]))
    """
    return bind(REGISTRY["view_as_real"], (input,), {})


@public("view_as_complex")
@on_nodes
def view_as_complex(input: Array) -> Array:
    """A real tensor (*, 2) as a complex one (*): a view, so that writing to it writes to input.

    float32 or float64; else DTypeError. Raises ShapeError unless the last size is 2.

    >>> tg.view_as_complex(tg.tensor([[1.0, 2.0]]))
    """
    return bind(REGISTRY["view_as_complex"], (input,), {})


@public("real", method=False)
@on_nodes
def real(input: Array) -> Array:
    """The real part, as a view; of real numbers they themselves. Raises DTypeError for what is no tensor.

    >>> tg.real(tg.tensor([1 + 2j]))
    """
    return bind(_REAL, (input,), {}) if is_complex_(input) else input


@public("imag", method=False)
@on_nodes
def imag(input: Array) -> Array:
    """The imaginary part, as a view. Raises DTypeError for real tensors, as torch does. Shapes stay; the result is float.

    >>> tg.imag(tg.tensor([1 + 2j]))
    """
    if not is_complex_(input):
        raise DTypeError(f"imag: takes complex tensors, got {input.dtype}: the imaginary part of real numbers is 0")
    return bind(_IMAG, (input,), {})


@public("conj", "conj_physical")
@on_nodes
def conj(input: Array) -> Array:
    """The conjugate: the imaginary part with the other sign. Real numbers come back as they are. A tensor of its own, no view.

    Any dtype, which the result has. Raises DTypeError for what is no tensor.

    >>> tg.conj(tg.tensor([1 + 2j]))
    """
    return bind(_CONJ, (input,), {}) if is_complex_(input) else input


@public("resolve_conj", "resolve_neg")
@on_nodes
def resolve_conj(input: Array) -> Array:
    """The tensor itself: conjugates are computed here, never marked. Any shape and dtype. Raises DTypeError for what is no tensor.

    >>> tg.resolve_conj(tg.tensor([1j]))
    Tensor([0.+1.j], device='cpu')
    """
    return input


@public("is_conj", "is_neg")
def is_conj(input: Array) -> bool:
    """False, of any shape and dtype: conjugates are computed here, never marked.

    >>> tg.is_conj(tg.ones(2))
    False
    """
    return False


@on_nodes
def H(input: Array) -> Array:
    """The conjugate transpose of a matrix (or a scalar)."""
    if input.ndim not in (0, 2):
        raise ShapeError(f"H: takes a matrix, got {input.shape}; use x.mH for batches of them")
    return conj(mv.permute(input, tuple(reversed(range(input.ndim)))))


@public("adjoint")
@on_nodes
def adjoint(input: Array) -> Array:
    """The conjugate transposes of matrices (*, m, n): (*, n, m). Any dtype. Raises ShapeError for fewer dimensions.

    >>> tg.adjoint(tg.ones(2, 3))
    """
    n = input.ndim
    if n < 2:
        raise ShapeError(f"adjoint: takes at least 2 dimensions, got {input.shape}")
    return conj(mv.permute(input, (*range(n - 2), n - 1, n - 2)))


Operators.H = property(H)  # type: ignore[attr-defined]
Operators.mH = property(adjoint)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------- made of parts


@public("isreal")
@on_nodes
def isreal(input: Array) -> Array:
    """For each element, whether its imaginary part is 0 (of real numbers: True).

    The result is bool. Raises DTypeError for what is no tensor.

    >>> tg.isreal(tg.tensor([1 + 0j, 1j]))
    """
    return eq(imag(input), 0.0) if is_complex_(input) else mv.expand(const(True, dtypes.bool_), input.shape)


@public("angle")
@on_nodes
def angle(input: Array) -> Array:
    """The angle of a complex number, in (-pi, pi]; of a real one pi where it is negative, else 0 (its derivative is 0), and NaN for NaN.

    input: any shape and dtype; the result float. Raises DTypeError for what is no tensor.

    >>> tg.angle(tg.tensor([1j, -1.0 + 0j]))
    """
    if is_complex_(input):
        return atan2(imag(input), real(input))
    x = detach(input if dtype_kind(input.dtype) == "f" else cast(input, dtypes.get_default_dtype()))
    return where(ne(x, x), x, where(lt(x, 0), const(pi, x.dtype), const(0, x.dtype)))


@public("sgn")
@on_nodes
def sgn(input: Array) -> Array:
    """The number of absolute value 1 in the direction of a complex number: x / |x|, and 0 of 0; of real numbers their sign.

    Any dtype, which the result has. Raises DTypeError for what is no tensor.

    >>> tg.sgn(tg.tensor([3 + 4j]))
    """
    if not is_complex_(input):
        return sign(input)
    size = abs_(input)
    zero = eq(size, 0.0)
    return where(zero, 0.0, input / where(zero, 1.0, size))
