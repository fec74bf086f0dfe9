"""Methods that make tensors like another or overwrite one with random numbers: `x.new_zeros(2)`, `x.normal_()`."""

from __future__ import annotations

from functools import partial, wraps
from math import log1p, pi, prod
from types import NoneType
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, ArgumentTypeError, DTypeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import fails
from tracegrad.ops.arrays.random_bits import drawn_in_order
from tracegrad.support import dtypes, random_state
from tracegrad.tensors.attributes import lies_row_by_row, memory_order
from tracegrad.tensors.creation.filled import empty, empty_strided, full, ones, zeros
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.tensors.creation.random_numbers import (
    check_positive,
    computed_dtype,
    draw_bernoulli,
    draw_exponential,
    draw_integers,
    draw_normal,
    draw_uniform,
    rand,
    randn,
)
from tracegrad.tensors.tensor import Tensor, from_own

_NUMBERS = frozenset((int, float))


def fills(draw: Any, ordered: bool = True) -> Any:
    """Decorator: a function that draws numbers like a tensor, as the method of its name that overwrites the tensor with them.

    ordered: torch's numbers are drawn in the order in which the elements lie in memory; else `draw` sees to it.
    What `draw` takes after the tensor are numbers. The generator that the method is given is in force while `draw` runs, which need not
    ask for it.
    """
    name, code = draw.__name__, draw.__code__
    names = code.co_varnames[1:code.co_argcount]

    @wraps(draw)
    def method(self: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        for argument, value in (*zip(names, args, strict=False), *kwargs.items()) if args or kwargs else ():
            if value.__class__ in _NUMBERS:
                continue
            if not isinstance(value, (int, float, np.floating, np.integer, Tensor, NoneType)) or (value is None and name != "random_"):
                raise ArgumentTypeError(f"{name}: {argument} must be a number, got {value!r}")
        order = memory_order(self) if ordered and self._base is not None and random_state.is_torchs() else None
        like = self
        if order is not None:                                   # with it turn probabilities of an element each
            like = self.detach().permute(order)
            args = tuple([a.expand(self.shape).permute(order) if isinstance(a, Tensor) and a.ndim else a for a in args])
            kwargs = {k: a.expand(self.shape).permute(order) if isinstance(a, Tensor) and a.ndim else a for k, a in kwargs.items()}
        if generator is None:
            drawn = draw(like, *args, **kwargs)
        else:
            with random_state.using(name, generator):
                drawn = draw(like, *args, **kwargs)
        if order is not None:
            drawn = drawn.permute(np.argsort(order).tolist())
        if (node := drawn._node()).aval is self._n.aval and not node.needs_grad and drawn._device is self._device:
            return self._rebind(node, name)                     # what was just drawn nobody else has: no copy is made
        return self.copy_(drawn if drawn.dtype == self.dtype else drawn.to(dtype=self.dtype))

    method.__doc__ = f"Overwrite with random numbers ({name[:-1]})."
    setattr(Tensor, name, method)
    return method


@fills
def uniform_(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    if fails(low <= high):
        raise ArgumentError(f"uniform_: the range must go up, got {low} to {high}")
    if not x.is_complex():
        computed_dtype("uniform_", x)               # refuses integers by this name
    return draw_uniform(x.shape, x._n.aval.dtype, x._device, low, high)  # type: ignore[no-any-return]


@partial(fills, ordered=False)
def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    if fails(std >= 0):
        raise ArgumentError(f"normal_: std must not be negative, got {std}")
    kind = x._n.aval.dtype.kind
    if kind not in "cf":
        computed_dtype("normal_", x)
    host = random_state.torchs(x.numel()) if x._base is not None and kind != "c" and not lies_row_by_row(x) else None
    if host is not None:                            # torch draws so, one by one, where elements do not lie one behind the other
        drawn = drawn_in_order(memory_order(x), x.shape, lambda shape: host.normals(prod(shape)).reshape(shape))
        return from_own((drawn * std + mean).astype(x.dtype), x.device)
    return draw_normal(x.shape, x._n.aval.dtype, x._device, mean, std)  # type: ignore[no-any-return]


@fills
def cauchy_(x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Tensor:
    check_positive("cauchy_", "sigma", sigma)
    host = random_state.torchs(x.numel())
    if host is not None:
        return from_own((sigma * np.tan(pi * (host.doubles(x.numel()) - 0.5)) + median).reshape(x.shape), x.device)
    u = rand(x.shape, dtype=computed_dtype("cauchy_", x), device=x.device)
    return ((u - 0.5) * pi).tan() * sigma + median  # type: ignore[no-any-return]


@fills
def geometric_(x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    if not 0.0 < p <= 1.0:
        raise ArgumentError(f"geometric_: p must be above 0 and at most 1, got {p}")
    if dtypes.dtype_kind(x.dtype) not in "iuf":
        raise DTypeError(f"geometric_: makes numbers of trials, not {x.dtype}; use it on an integer or a float tensor")
    host = random_state.torchs(x.numel())
    if host is not None:
        with np.errstate(divide="ignore"):
            return from_own(np.ceil(np.log(host.doubles(x.numel())) / np.log1p(-p)).reshape(x.shape), x.device)
    u = rand(x.shape, dtype=dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32, device=x.device)
    return ((-u).log1p() * (1.0 / log1p(-p) if p < 1.0 else 0.0)).ceil().clamp(min=1.0)  # type: ignore[no-any-return]


@fills
def log_normal_(x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    check_positive("log_normal_", "std", std)
    host = random_state.torchs(x.numel())
    if host is not None:
        return from_own(np.exp(host.normals(x.numel()) * std + mean).reshape(x.shape), x.device)
    return (randn(x.shape, dtype=computed_dtype("log_normal_", x), device=x.device) * std + mean).exp()  # type: ignore[no-any-return]


@fills
def random_(x: Tensor, low: int | None = None, high: int | None = None, *, generator: Any = None) -> Tensor:
    dtype = x._n.aval.dtype
    if dtypes.dtype_kind(dtype) == "c":
        raise DTypeError(f"random_: makes integers, not {x.dtype}; use it on x.real and x.imag")
    host = random_state.torchs(x.numel()) if low is None and high is None else None
    if host is not None:
        return from_own(host.any_integers(x.shape, dtype), x._device)
    if high is None and low is None:                            # up to what the dtype holds exactly
        digits = dtypes.finfo(dtype).nmant + 1 if dtypes.is_float(dtype) else 1
        low = min(np.iinfo(dtype).max, 2**63 - 2) + 1 if dtypes.is_int(dtype) else 2**digits
    low, high = (0, low) if high is None else (low, high)       # random_(to)
    drawn = draw_integers("random_", low, high, x._n.aval.shape, dtypes.int64, x._device)
    return drawn if dtype == dtypes.int64 else drawn.to(dtype=dtype)


@fills
def bernoulli_(x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return draw_bernoulli("bernoulli_", x, p)


@fills
def exponential_(x: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    return draw_exponential(x, lambd)


def _new(make: Any) -> Any:
    """A creation function as a method: with the tensor's dtype and device unless given."""

    def method(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **size: Any) -> Tensor:
        given = dict(dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)
        return make(*args, **given, **size)  # type: ignore[no-any-return]

    method.__name__ = f"new_{make.__name__}"
    method.__doc__ = f"Like `tg.{make.__name__}`, with this tensor's dtype and device unless given."
    return method


for _make in (tensor, zeros, ones, empty, full, empty_strided):
    setattr(Tensor, f"new_{_make.__name__}", _new(_make))
for _name in ("bernoulli", "multinomial"):
    setattr(Tensor, _name, PUBLIC[_name])
