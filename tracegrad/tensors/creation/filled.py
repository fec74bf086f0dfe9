"""Tensors of known numbers: full, zeros, ones, empty, arange, linspace, eye, the indices of triangles, and what is like another tensor."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.execute.devices import find_device
from tracegrad.execute.eager_executor import made_eagerly
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operators import PUBLIC, public
from tracegrad.graph.primitive import cast, exact_number, iota, scalar
from tracegrad.ops.arguments import integer
from tracegrad.ops.primitives.movement import expand
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.creation.arguments import (
    create,
    float_dtype,
    like,
    like_function,
    number_or_node,
    python_number,
    shape_of,
)
from tracegrad.tensors.tensor import Tensor, from_array, holding, new_tensor, older


@create()
def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (a sequence of ints, or one) filled with a number, whose kind gives the dtype unless dtype does.

    fill_value may be a tensor of no dimensions: a Python float given to a @trace function is one.
    Raises DTypeError if fill_value is no number, or does not fit dtype.

    >>> tg.full((2, 3), 0.5)
    """
    if not isinstance(fill_value, Tensor):
        return _filled("full", (size,), fill_value, dtype, device, requires_grad)
    if fill_value.shape:
        raise ShapeError(f"full: fill_value has shape {fill_value.shape}; give a number or a tensor of no dimensions")
    node = fill_value._node()
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.get_default_dtype() if node.aval.weak else node.dtype
    out = fill_value.detach().to(dtype=found, device=device)
    return new_tensor(expand(out._node(), shape_of("full", (size,))), out.device, requires_grad)


def _filled(call: str, size: Sequence[Any], value: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    if isinstance(value, np.generic):
        value = value.item()
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.promote_scalar(dtypes.bool_, value)
    where, aval = find_device(device), Aval(shape_of(call, size), found)
    if not made_eagerly(where, aval):
        return new_tensor(expand(scalar(call, value, found), aval.shape), device, requires_grad)
    nothing = value.__class__ is int and not value
    array = np.zeros(aval.shape, found) if nothing else np.full(aval.shape, exact_number(call, value, found), found)
    out = holding(where, aval, {"aval": aval, "range": (int(value), int(value))} if found.kind in "iu" else {"aval": aval},
                  HostBuffer(where, array))
    return out.requires_grad_() if requires_grad else out


@create(sized=True)
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros.

    size: ints, or one sequence of them. dtype: any; default: the default float one. Raises ArgumentError for negative sizes.

    >>> tg.zeros(2, 3)
    """
    return _filled("zeros", size, 0, float_dtype(dtype), device, requires_grad)


@create(sized=True)
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones.

    size: ints, or one sequence of them. dtype: any; default: the default float one. Raises ArgumentError for negative sizes.

    >>> tg.ones(2, 3)
    """
    return _filled("ones", size, 1, float_dtype(dtype), device, requires_grad)


@create(sized=True)
def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor to be overwritten; filled with zeros, so that nothing depends on what memory held.

    The shape and dtype as of `zeros`; raises what that raises.

    >>> tg.empty(2, 3)
    """
    return _filled("empty", size, 0, float_dtype(dtype), device, requires_grad)


def _typed(name: str, dtype: dtypes.DType) -> None:
    def fn(*data: Any, device: Any = None) -> Tensor:
        return older(data, dtype, device=device)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""torch's older constructor of tensors of dtype {dtype}: of sizes (zeros), or of what `tensor` takes, and raises.

    >>> tg.{name}(2, 3)
    """
    public(name, method=False)(fn)


for _name, _dtype in dtypes.OLDER.items():
    _typed(f"{_name}Tensor", _dtype)


@create()
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`empty(size)`. stride: accepted, but for its length: memory has no layout here, so nobody can tell.

    The shape and dtype as of `zeros`. Raises ArgumentError for another length.

    >>> tg.empty_strided((2, 3), (3, 1))
    """
    shape, steps = shape_of("empty_strided", (size,)), shape_of("empty_strided", (stride,))
    if len(shape) != len(steps):
        raise ArgumentError(f"empty_strided: size {shape} and stride {steps} must be equally many numbers")
    return _filled("empty_strided", shape, 0, float_dtype(dtype), device, requires_grad)


@create()
def empty_permuted(size: Any, physical_layout: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`empty(size)`. physical_layout: an order of the dimensions, accepted: memory has no layout here, so nobody can tell.

    The shape and dtype as of `zeros`. Raises ArgumentError for no such order.

    >>> tg.empty_permuted((2, 3), (1, 0))
    """
    shape = shape_of("empty_permuted", (size,))
    if sorted(physical_layout) != list(range(len(shape))):
        raise ArgumentError(f"empty_permuted: physical_layout {tuple(physical_layout)} must name each of the {len(shape)} dimensions once")
    return _filled("empty_permuted", shape, 0, float_dtype(dtype), device, requires_grad)


zeros_like = like_function("zeros", lambda s, d, v, g: _filled("zeros_like", s, 0, d, v, g))
ones_like = like_function("ones", lambda s, d, v, g: _filled("ones_like", s, 1, d, v, g))
empty_like = like_function("empty", lambda s, d, v, g: _filled("empty_like", s, 0, d, v, g))


@create("full_like")
def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Like `full`, with the shape, dtype and device of `input` unless given. Raises DTypeError unless input is a tensor.

    >>> tg.full_like(tg.ones(2, 3), 0.5)
    """
    dtype, device = like("full_like", input, dtype, device)
    return full(input.shape, fill_value, dtype=dtype, device=device, requires_grad=requires_grad)


@create(again=True)
def arange(
    start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, ... below end (or 0, 1, ... below start): nothing if end comes first. int64 if all are ints, else the

    default float. Floats with dtype int64 are rounded towards 0 first; of narrower integers the values are, as in torch.
    Raises ArgumentError for a step of 0 and for numbers that are not finite.

    >>> tg.arange(5)
    """
    if end is None:
        start, end = 0, start
    start, end, step = (python_number("arange", v) for v in (start, end, step))
    if dtype is not None and dtypes.as_dtype(dtype) == dtypes.int64 and all(map(isfinite, (start, end, step))):
        start, end, step = int(start), int(end), int(step)
    if step == 0 or not all(map(isfinite, (start, end, step))):
        raise ArgumentError(f"arange: start and end must be finite, and step not 0, got {start}, {end} and {step}")
    exact = all(isinstance(v, int) for v in (start, end, step))
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.int64 if exact else dtypes.get_default_dtype()
    if found.kind == "c":
        raise DTypeError(f"arange: does not make {found}; use arange(...).to(dtype)")
    n = max(0, ceil((end - start) / step))
    inner = dtypes.float64 if found == dtypes.float64 else dtypes.float32
    node: Node = iota((n,), 0, dtypes.int64)
    if dtypes.is_int(found):                                    # floats are rounded towards 0 first, as in torch
        node = node * int(step) + int(start)
    elif exact:
        node = cast(node * int(step) + int(start), found)
    else:
        node = cast(node, inner) * step + start
    return new_tensor(cast(node, found), device, requires_grad)


@create(again=True)
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` values from start to end, both included, evenly spaced; complex if one of them is. Of an integer dtype: from int(start)

    to int(end), rounded towards 0, as in torch. Raises DTypeError for bool, and for ends that the dtype does not hold.

    >>> tg.linspace(0, 1, 5)
    """
    start, end = (number_or_node("linspace", v, dtype) for v in (start, end))
    found = _of_ends("linspace", start, end, dtype)
    (steps,) = shape_of("linspace", (steps,))
    if found.kind == "b":
        raise DTypeError("linspace: does not make bools; compare a linspace with a number")
    if found.kind == "c":
        a, b, real = complex(start), complex(end), dtypes.real_of(found)
        parts = (linspace(x, y, steps, dtype=real, device=device) for x, y in ((a.real, b.real), (a.imag, b.imag)))
        z = PUBLIC["complex"](*parts)
        return new_tensor(z._node(), z.device, requires_grad)
    if dtype_kind(found) != "f":
        low, high = (int(scalar("linspace", int(v), found).attrs["value"]) for v in (start, end))
        return from_array(np.trunc(np.linspace(low, high, steps)).astype(found), device)
    i = cast(iota((steps,), 0, dtypes.int64), found)
    step = (end - start) / max(1, steps - 1)
    node = (i * step + start).where(i < steps // 2, end - (steps - 1 - i) * step) if steps > 1 else i + start
    return new_tensor(cast(node, found), device, requires_grad)


def _of_ends(call: str, start: Any, end: Any, dtype: Any) -> Any:
    """The dtype of what goes from start to end."""
    is_complex = isinstance(start, complex) or isinstance(end, complex)
    if dtype is None:
        return dtypes.complex_of(float_dtype(None)) if is_complex else float_dtype(None)
    found = dtypes.as_dtype(dtype)
    if is_complex and found.kind != "c":
        raise DTypeError(f"{call}: from {start} to {end} there are complex numbers, which {found} does not hold; take a complex dtype")
    return found


@create(again=True)
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal of an n x m (default n x n) matrix of zeros.

    Shape (n, m). dtype: any; default: the default float one. Raises ArgumentError for negative sizes.

    >>> tg.eye(2)
    """
    shape = shape_of("eye", (n, n if m is None else m))
    return new_tensor(cast(iota(shape, 0).eq(iota(shape, 1)), float_dtype(dtype)), device, requires_grad)


def _triangle(call: str, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    shape = shape_of(call, (row, col))
    found = np.dtype(np.int64) if dtype is None else dtypes.as_dtype(dtype)
    Aval(shape, dtypes.bool_)                                # which refuses what no index reaches
    inside = np.tril if call == "tril_indices" else np.triu
    places = np.nonzero(inside(np.ones(shape, np.bool_), integer(call, "offset", offset)))
    return PUBLIC["tensor"](np.stack(places).tolist(), dtype=found, device=device)  # type: ignore[no-any-return]


@create()
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The places (2, n), rows and columns, of the elements on and below a diagonal of a row x col matrix, row by row.

    dtype: int64 unless given. Raises ArgumentError for negative sizes.

    >>> tg.tril_indices(2, 2)
    """
    return _triangle("tril_indices", row, col, offset, dtype, device)


@create()
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The places (2, n), rows and columns, of the elements on and above a diagonal of a row x col matrix, row by row.

    dtype: int64 unless given. Raises ArgumentError for negative sizes.

    >>> tg.triu_indices(2, 2)
    """
    return _triangle("triu_indices", row, col, offset, dtype, device)


@create()
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` powers of base, whose exponents go from start to end (complex, too) evenly, both included. Of an integer dtype: start and

    end, and then the powers, are rounded towards 0, as in torch.
    Raises DTypeError for bool, and for an integer dtype that does not hold the values.

    >>> tg.logspace(0, 2, 3)
    """
    start, end, base = python_number("logspace", start, True), python_number("logspace", end, True), python_number("logspace", base)
    found = _of_ends("logspace", start, end, dtype)
    if dtype_kind(found) in "fc":
        exponents = linspace(start, end, steps, dtype=found, device=device)
        return new_tensor((float(base) ** exponents)._node(), exponents.device, requires_grad)
    if found.kind == "b":
        raise DTypeError("logspace: does not make bools; compare a logspace with a number")
    (steps,) = shape_of("logspace", (steps,))
    values = np.logspace(int(start), int(end), steps, base=base)
    limits = np.iinfo(found)
    if steps and not (limits.min <= values.min() and values.max() <= limits.max):
        raise DTypeError(f"logspace: values up to {values.max()} do not fit {found}; use a wider dtype")
    return from_array(values.astype(found), device)


@create()
def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A 0-d tensor of the number s, of the default float dtype unless dtype is given. Raises DTypeError unless s is a number.

    >>> tg.scalar_tensor(2)
    """
    return full((), s, dtype=float_dtype(dtype), device=device, requires_grad=requires_grad)
