"""Tensors from nothing and from host data: tensor, zeros, arange, rand, ... Random ones draw from the stream of `random_state`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import ceil, isfinite, prod
from typing import Any

import numpy as np

from tracegrad import dtypes, random_state
from tracegrad.errors import ArgumentError, DTypeError, TraceError
from tracegrad.function import Shape, cast, data, iota, scalar
from tracegrad.ir import Aval, Node, user_location
from tracegrad.operators import public
from tracegrad.ops import random_bits
from tracegrad.ops.arguments import integer
from tracegrad.ops.movement import expand
from tracegrad.tensor import Tensor, from_array, new_tensor, state

_create = functools.partial(public, method=False)


def _shape(call: str, size: Sequence[Any]) -> Shape:
    """The shape given as f(2, 3) or f((2, 3))."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    out = []
    for n in size:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
            raise ArgumentError(f"{call}: sizes are non-negative ints, got {tuple(size)}")
        out.append(int(n))
    return tuple(out)


def _sized(make: Any) -> Any:
    """Decorator: what `make` takes as *size may also be given by name, as f(size=(2, 3))."""

    @functools.wraps(make)
    def entry(*args: Any, **kwargs: Any) -> Tensor:
        if "size" in kwargs:
            args = (*args, kwargs.pop("size"))
        return make(*args, **kwargs)  # type: ignore[no-any-return]

    return entry


def _number(call: str, value: Any) -> Any:
    """A Python number for one, or for a numpy scalar or a tensor of one element."""
    if isinstance(value, (Tensor, np.generic)):
        value = value.item()
    if not isinstance(value, (int, float)):
        raise ArgumentError(f"{call}: expected a number, got {value!r}")
    return value


def _float(dtype: Any) -> Any:
    return dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)


@_create()
def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of `data`: a number, nested lists, a numpy array, or a Tensor.

    Without dtype: Python floats give the default float dtype, ints int64, numpy arrays keep theirs.
    Raises ArgumentError for ragged lists and DTypeError for a dtype that is not supported.
    """
    if isinstance(data, Tensor):
        out = data.detach().clone()
        out = out.to(device=device) if device is not None else out
        out = out.to(dtype=dtype) if dtype is not None else out
        return out.requires_grad_() if requires_grad else out
    if isinstance(data, np.ndarray) and state.trace is not None:
        raise TraceError(
            f"tensor at {user_location()}: inside @trace ({state.trace.name}) a numpy array would be frozen into the program; "
            "make the tensor outside, or pass the array as an argument"
        )
    if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        data = [x.detach().numpy() if isinstance(x, Tensor) else x for x in data]
    known = isinstance(data, (np.ndarray, np.generic)) or (isinstance(data, (list, tuple)) and any(isinstance(x, np.ndarray) for x in data))
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ArgumentError(f"tensor: the nested lists are ragged ({error}); every row needs the same length") from None
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"tensor: cannot make a tensor of {type(data).__name__} ({array.dtype}); give numbers, bools, or arrays of them")
    if dtype is None and not known and array.dtype.kind == "f":
        dtype = dtypes.get_default_dtype()
    if dtype is not None:
        found = dtypes.as_dtype(dtype)
        if not known and dtypes.is_int(found) and array.size:
            limits = np.iinfo(found)
            if not (limits.min <= array.min() and array.max() <= limits.max):
                raise DTypeError(f"tensor: values from {array.min()} to {array.max()} do not fit {found}; use a wider dtype")
        array = array.astype(found)
    return from_array(array, device, requires_grad)


@_create()
def from_numpy(array: Any) -> Tensor:
    """A tensor with a copy of a numpy array (later changes of the array do not show)."""
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"from_numpy: expected a numpy array, got {type(array).__name__}; use tg.tensor")
    return tensor(array)


@_create()
def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` itself if it is a Tensor of that dtype and device, else a tensor made of it."""
    return data.to(dtype=dtype, device=device) if isinstance(data, Tensor) else tensor(data, dtype=dtype, device=device)


asarray = _create("asarray")(as_tensor)


@_create()
def from_dlpack(external: Any) -> Tensor:
    """A tensor with a copy of an object that supports DLPack."""
    return tensor(np.from_dlpack(external))


@_create()
def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (a sequence of ints, or one) filled with a number, whose kind gives the dtype unless dtype does.

    Raises DTypeError if fill_value is no number, or does not fit dtype.
    """
    return _filled("full", (size,), fill_value, dtype, device, requires_grad)


def _filled(call: str, size: Sequence[Any], value: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    if isinstance(value, np.generic):
        value = value.item()
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.promote_scalar(dtypes.bool_, value)
    return new_tensor(expand(scalar(call, value, found), _shape(call, size)), device, requires_grad)


@_create()
@_sized
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return _filled("zeros", size, 0, _float(dtype), device, requires_grad)


@_create()
@_sized
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _filled("ones", size, 1, _float(dtype), device, requires_grad)


@_create()
@_sized
def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor to be overwritten; filled with zeros, so that nothing depends on what memory held."""
    return _filled("empty", size, 0, _float(dtype), device, requires_grad)


def _like(name: str, make: Any) -> Any:
    def fn(input: Tensor, *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        if not isinstance(input, Tensor):
            raise DTypeError(f"{name}_like: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays and lists")
        found = input.dtype if dtype is None else dtypes.as_dtype(dtype)
        return make(input.shape, *args, found, input.device if device is None else device, requires_grad)  # type: ignore[no-any-return]

    fn.__name__ = fn.__qualname__ = f"{name}_like"
    fn.__doc__ = f"Like `{name}`, with the shape, dtype and device of `input` unless given."
    return _create(f"{name}_like")(fn)


zeros_like = _like("zeros", lambda s, d, v, g: _filled("zeros_like", s, 0, d, v, g))
ones_like = _like("ones", lambda s, d, v, g: _filled("ones_like", s, 1, d, v, g))
empty_like = _like("empty", lambda s, d, v, g: _filled("empty_like", s, 0, d, v, g))
full_like = _like("full", lambda s, fill_value, d, v, g: _filled("full_like", s, fill_value, d, v, g))


@_create()
def arange(
    start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, ... below end (or 0, 1, ... below start): nothing if end comes first. int64 if all are ints, else the

    default float. Raises ArgumentError for a step of 0 and for numbers that are not finite.
    """
    if end is None:
        start, end = 0, start
    start, end, step = (_number("arange", v) for v in (start, end, step))
    if step == 0 or not all(map(isfinite, (start, end, step))):
        raise ArgumentError(f"arange: start and end must be finite, and step not 0, got {start}, {end} and {step}")
    exact = all(isinstance(v, int) for v in (start, end, step))
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.int64 if exact else dtypes.get_default_dtype()
    n = max(0, ceil((end - start) / step))
    inner = found if dtypes.is_int(found) and exact else dtypes.float64 if found == dtypes.float64 else dtypes.float32
    node: Node = iota((n,), 0, dtypes.int64)
    if dtypes.is_int(found) and exact:
        node = node * int(step) + int(start)
    elif exact:
        node = cast(node * int(step) + int(start), found)
    else:
        node = cast(node, inner) * step + start
    return new_tensor(cast(node, found), device, requires_grad)


@_create()
def linspace(start: float, end: float, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`steps` values from start to end, both included, evenly spaced."""
    found = _float(dtype)
    (steps,) = _shape("linspace", (steps,))
    start, end = _number("linspace", start), _number("linspace", end)
    i = cast(iota((steps,), 0, dtypes.int64), found)
    step = (end - start) / max(1, steps - 1)
    node = (i * step + start).where(i < steps // 2, end - (steps - 1 - i) * step) if steps > 1 else i + start
    return new_tensor(cast(node, found), device, requires_grad)


@_create()
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal of an n x m (default n x n) matrix of zeros."""
    shape = _shape("eye", (n, n if m is None else m))
    return new_tensor(cast(iota(shape, 0).eq(iota(shape, 1)), _float(dtype)), device, requires_grad)


# ---------------------------------------------------------------------------------------------------------------- random


def _draw(shape: Shape, numbers: int) -> tuple[Node, Node]:
    """Seed and offset for `numbers` draws per element of `shape`."""
    count = prod(shape) * numbers
    if state.trace is not None:
        return state.trace.random(count)
    seed = data(Aval((), dtypes.int64, True), random_state.seed())
    offset = data(Aval((), dtypes.int64, True), random_state.offset())
    random_state.advance(count)
    return seed, offset


@_create()
@_sized
def rand(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform in [0, 1)."""
    shape = _shape("rand", size)
    return new_tensor(random_bits.uniform(*_draw(shape, 1), shape, _float(dtype)), device, requires_grad)


@_create()
@_sized
def randn(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal."""
    shape = _shape("randn", size)
    return new_tensor(random_bits.normal(*_draw(shape, 1), shape, _float(dtype)), device, requires_grad)


rand_like = _like("rand", lambda s, d, v, g: rand(s, dtype=d, device=v, requires_grad=g))
randn_like = _like("randn", lambda s, d, v, g: randn(s, dtype=d, device=v, requires_grad=g))


@_create()
def randint(low: Any = 0, high: Any = None, size: Any = None, *, dtype: Any = dtypes.int64, device: Any = None) -> Tensor:
    """Integers from low (inclusive) to high (exclusive): randint(low, high, size), or randint(high, size) from 0 on.

    Raises ArgumentError if there is no integer between them, DTypeError if one does not fit dtype.
    """
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    return _integers("randint", low, high, (size,), dtype, device)


def _integers(call: str, low: Any, high: Any, size: Sequence[Any], dtype: Any, device: Any) -> Tensor:
    low, high = integer(call, "low", low), integer(call, "high", high)
    if not low < high:
        raise ArgumentError(f"{call}: low must be below high, got {low} and {high}")
    found, shape = dtypes.as_dtype(dtype), _shape(call, size)
    for bound in (low, high - 1):
        scalar(call, bound, found)
    return new_tensor(random_bits.randint(*_draw(shape, 1), low, high, shape, found), device)


@_create()
def randint_like(input: Tensor, low: Any = 0, high: Any = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Like `randint`, with the shape, dtype and device of `input` unless given: randint_like(x, high) or randint_like(x, low, high)."""
    if not isinstance(input, Tensor):
        raise DTypeError(f"randint_like: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays, lists and numbers")
    low, high = (0, low) if high is None else (low, high)
    return _integers("randint_like", low, high, input.shape, dtype or input.dtype, device or input.device)


@_create()
def randperm(n: int, *, device: Any = None) -> Tensor:
    """A random order of 0 ... n - 1."""
    return rand(_shape("randperm", (n,)), device=device).argsort()  # type: ignore[no-any-return]


@_create()
def bernoulli(input: Tensor) -> Tensor:
    """1 with probability `input`, else 0; its shape and dtype."""
    return (rand_like(input) < input).to(dtype=input.dtype)  # type: ignore[no-any-return]


def fill_randomly(name: str, draw: Any) -> Any:
    """An in-place method that overwrites a tensor with random numbers."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.copy_(draw(self, *args, **kwargs))

    method.__name__, method.__doc__ = name, f"Overwrite with random numbers ({name[:-1]})."
    return method


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return rand(x.shape, dtype=x.dtype, device=x.device) * (high - low) + low  # type: ignore[no-any-return]


def _normal(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return randn(x.shape, dtype=x.dtype, device=x.device) * std + mean  # type: ignore[no-any-return]


Tensor.uniform_ = fill_randomly("uniform_", _uniform)  # type: ignore[attr-defined]
Tensor.normal_ = fill_randomly("normal_", _normal)  # type: ignore[attr-defined]
Tensor.bernoulli_ = fill_randomly("bernoulli_", lambda x, p=0.5: (rand(x.shape, device=x.device) < p).to(dtype=x.dtype))  # type: ignore[attr-defined]


def _new(make: Any) -> Any:
    """A creation function as a method: with the tensor's dtype and device unless given."""

    def method(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **size: Any) -> Tensor:
        given = dict(dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)
        return make(*args, **given, **size)  # type: ignore[no-any-return]

    method.__name__ = f"new_{make.__name__}"
    method.__doc__ = f"Like `tg.{make.__name__}`, with this tensor's dtype and device unless given."
    return method


for _make in (tensor, zeros, ones, empty, full):
    setattr(Tensor, f"new_{_make.__name__}", _new(_make))
