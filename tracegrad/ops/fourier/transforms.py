"""tg.fft: discrete Fourier transforms under torch.fft's names. Start at `Transform`; `fftn` is the function that most others are.

Three primitives: of complex numbers over some dimensions (`Dft`), of real ones over one (`RealDft`, the half of the spectrum that tells the
rest), and that one's inverse (`HalfDft`). All are linear, and each one's derivative is another one, so derivatives have any order, run
forward, are batched and traced. They are computed by kernels, or by pocketfft (scipy's, if that is there, or numpy's) where
that takes less time and the host shares the device's memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from math import log2
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.operators import fourier
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import integer, on_nodes, one_dim
from tracegrad.ops.arrays.complex_numbers import conj
from tracegrad.ops.arrays.shaping.reordering import roll
from tracegrad.ops.linalg.lapack import spread
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor
Dims = tuple[int, ...]
CORES = os.cpu_count() or 1
_COMPLEX = spread(2, 3, 8).view(complex)        # operands of the tests over the registry


class Transform(Shared):
    """Base of the three. Attributes: dims or dim, counted from the end; scale: by what the sum is multiplied: "one", "root"

    (1 / sqrt(n)) or "whole" (1 / n), n being the number of its terms.
    """

    family, differentiable, batches = "host_call", True, True
    takes: ClassVar[str] = "c"

    def aval(self, x: Aval, **attrs: Any) -> Aval:
        if dtype_kind(x.dtype) != self.takes or dtypes.is_half(x.dtype):
            raise DTypeError(f"{self.name}: takes {'complex' if self.takes == 'c' else 'float32 and float64'} tensors, got {x.dtype}")
        return super().aval(x, **attrs)

    def numpy(self, x: Any, *, index: int, **attrs: Any) -> Any:
        return self.results(x, **attrs)[0]

    def work(self, y: Aval, x: Aval, **attrs: Any) -> float:
        return 2000 + 2 * x.size * log2(max(2, x.size))


@memoize(1)
def _library() -> Any:
    """scipy.fft, if it is there (for batches of float32 it takes a third of numpy's time), else numpy.fft."""
    try:
        return import_module("scipy.fft")
    except ImportError:
        return np.fft


MANY = 1 << 16                              # elements from which on it is worth to wake threads


@memoize(1)
def _pocketfft() -> Any:
    """scipy's pocketfft without scipy.fft, which takes 3 us a call and has no `out`. None if it is not there, or is another one."""
    try:
        found = import_module("scipy.fft._pocketfft.pypocketfft")
        out, back = np.zeros(2, complex), np.zeros(2)
        found.r2c(np.array([3.0, 1.0]), (-1,), True, 0, out, 1)
        found.c2r(out, (-1,), 2, False, 2, back, 1)
        found.c2c(out.copy(), (-1,), True, 0, out, 1)
        return found if (*back, *out.real) == (3.0, 1.0, 6.0, 2.0) else None
    except (ImportError, AttributeError, TypeError):
        return None


_NUMBERS = {"one": 0, "root": 1, "whole": 2}           # pocketfft's of scales


def _computed(function: str, x: Any, dims: Dims, inverse: bool, scale: str, out: Any, *sizes: int) -> Any:
    """pocketfft's c2c, r2c or c2r of x, along `dims`, written to `out` if that is given. sizes: of the result along the last, for c2r."""
    direct, workers = _pocketfft(), CORES if x.size > MANY else 1
    if direct is not None and x.flags.aligned and (out is None or not np.may_share_memory(x, out)):
        return getattr(direct, function)(x, dims, *sizes, not inverse, _NUMBERS[scale], out, workers)
    library, norm = _library(), _norm(scale, inverse)
    name = {"c2c": "ifftn" if inverse else "fftn", "r2c": "rfft", "c2r": "irfft"}[function]
    named: dict[str, Any] = {"axes": dims} if function == "c2c" else {"axis": dims[0]}
    if library is np.fft:
        return getattr(library, name)(x, *sizes, norm=norm, out=out, **named)
    y = getattr(library, name)(x, *sizes, norm=norm, workers=workers, **named)
    if out is not None:
        out[...] = y
    return y


def _norm(scale: str, inverse: bool) -> Any:
    """numpy's name of a scale."""
    return {"one": "forward" if inverse else "backward", "root": "ortho", "whole": "backward" if inverse else "forward"}[scale]


class Dft(Transform):
    """The sum over j of x[j] exp(-2 pi i j k / n) along each of `dims` (inverse: with +), of complex numbers."""
    name = "dft"
    cases = [((_COMPLEX,), dict(dims=(-1,), inverse=False, scale="one", index=0)),
             ((_COMPLEX,), dict(dims=(-3, -1), inverse=True, scale="whole", index=0)),
             ((_COMPLEX[0, 0],), dict(dims=(-1,), inverse=False, scale="root", index=0))]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]: return operands

    def results(self, x: Any, *, dims: Dims, inverse: bool, scale: str) -> list[Any]:
        if not x.size:
            return [x]
        return [_computed("c2c", x, dims, inverse, scale, None)]

    def into(self, outs: Sequence[Any], x: Any, *, dims: Dims, inverse: bool, scale: str) -> None:
        _computed("c2c", x, dims, inverse, scale, outs[0])

    def vjp(self, ct: Node, y: Node, x: Node, *, dims: Dims, inverse: bool, scale: str, index: int) -> tuple[Any, ...]:
        return (dft(ct, dims, not inverse, scale),)

    def python(self, define: Any, operands: Sequence[str], *, dims: Dims, inverse: bool, scale: str, **attrs: Any) -> str:
        return f"tg.fft.{'ifftn' if inverse else 'fftn'}({operands[0]}, dim={dims}, norm={_norm(scale, inverse)!r})"


class RealDft(Transform):
    """The sum over j of x[j] exp(-2 pi i j k / n) along `dim`, of real numbers, for k from 0 to n / 2: the others are conjugates."""
    name, takes = "real_dft", "f"
    cases = [((_COMPLEX.real,), dict(dim=-1, scale="one", index=0)), ((_COMPLEX.imag,), dict(dim=-2, scale="root", index=0)),
             ((_COMPLEX[0].real,), dict(dim=-1, scale="whole", index=0))]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        x, dim = operands[0], attrs["dim"]
        return (Aval(_resized(x.shape, dim, x.shape[dim] // 2 + 1), dtypes.complex_of(x.dtype)),)

    def results(self, x: Any, *, dim: int, scale: str) -> list[Any]:
        if not x.size:
            return [np.empty(_resized(x.shape, dim, x.shape[dim] // 2 + 1), dtypes.complex_of(x.dtype))]
        return [_computed("r2c", x, (dim,), False, scale, None)]

    def into(self, outs: Sequence[Any], x: Any, *, dim: int, scale: str) -> None:
        _computed("r2c", x, (dim,), False, scale, outs[0])

    def vjp(self, ct: Node, y: Node, x: Node, *, dim: int, scale: str, index: int) -> tuple[Any, ...]:
        n = x.shape[dim]
        return (half_dft(_weighted(ct, dim, n, 0.5), dim, n, scale),)      # which counts those twice that stand for their conjugates, too

    def python(self, define: Any, operands: Sequence[str], *, dim: int, scale: str, **attrs: Any) -> str:
        return f"tg.fft.rfft({operands[0]}, dim={dim}, norm={_norm(scale, False)!r})"


class HalfDft(Transform):
    """The `n` real numbers of which this is the half of the spectrum: the sum over all k of x[k] exp(2 pi i j k / n), along `dim`.

    Imaginary parts of what must be real (k = 0, and k = n / 2 of an even n) do not count.
    """
    name = "half_dft"
    cases = [((_COMPLEX,), dict(dim=-1, n=6, scale="one", index=0)), ((_COMPLEX,), dict(dim=-2, n=5, scale="root", index=0)),
             ((_COMPLEX[0],), dict(dim=-1, n=7, scale="whole", index=0))]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        x = operands[0]
        return (Aval(_resized(x.shape, attrs["dim"], attrs["n"]), dtypes.real_of(x.dtype)),)

    def results(self, x: Any, *, dim: int, n: int, scale: str) -> list[Any]:
        if not x.size:
            return [np.zeros(_resized(x.shape, dim, n), dtypes.real_of(x.dtype))]
        return [_computed("c2r", x, (dim,), True, scale, None, n)]

    def into(self, outs: Sequence[Any], x: Any, *, dim: int, n: int, scale: str) -> None:
        _computed("c2r", x, (dim,), True, scale, outs[0], n)

    def vjp(self, ct: Node, y: Node, x: Node, *, dim: int, n: int, scale: str, index: int) -> tuple[Any, ...]:
        return (_weighted(real_dft(ct, dim, scale), dim, n, 2.0),)

    def python(self, define: Any, operands: Sequence[str], *, dim: int, n: int, scale: str, **attrs: Any) -> str:
        return f"tg.fft.irfft({operands[0]}, n={n}, dim={dim}, norm={_norm(scale, True)!r})"


class TurnedDft(Transform):
    """The transform `of` with dimensions in another order: `taken` of those of x are the operand's, `given` of those of its result are this
    one's. pocketfft reads and writes in any order. The code generator makes it (codegen/graph/fourier/turned.py)."""
    name, differentiable, batches = "turned_dft", False, False
    cases = [((_COMPLEX.real,), dict(of="real_dft", taken=(0, 1, 2), given=(0, 2, 1), dim=-1, scale="one", index=0)),
             ((_COMPLEX,), dict(of="half_dft", taken=(2, 1, 0), given=(1, 2, 0), dim=-2, n=5, scale="whole", index=0)),
             ((_COMPLEX,), dict(of="dft", taken=(1, 0, 2), given=(1, 0, 2), dims=(-1, -3), inverse=True, scale="root", index=0))]

    def aval(self, x: Aval, **attrs: Any) -> Aval:
        return self.avals(x, **attrs)[0]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        x, (of, taken, given, own) = operands[0], _order(attrs)
        y = of.aval(Aval(tuple([x.shape[d] for d in taken]), x.dtype), **own, index=0)
        return (Aval(tuple([y.shape[d] for d in given]), y.dtype),)

    def results(self, x: Any, **attrs: Any) -> list[Any]:
        of, taken, given, own = _order(attrs)
        return [np.ascontiguousarray(of.results(x.transpose(taken), **own)[0].transpose(given))]

    def into(self, outs: Sequence[Any], x: Any, **attrs: Any) -> None:
        of, taken, given, own = _order(attrs)
        of.into([outs[0].transpose(np.argsort(given))], x.transpose(taken), **own)

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        of, taken, given, own = _order(attrs)
        return f"{of.python(define, [f'{operands[0]}.permute({taken})'], **own)}.permute({given})"


def _order(attrs: dict[str, Any]) -> tuple[Any, Dims, Dims, dict[str, Any]]:
    """The transform that a TurnedDft stands for, its orders, and the transform's own attributes."""
    own = {k: v for k, v in attrs.items() if k not in ("of", "taken", "given", "index")}
    return REGISTRY[attrs["of"]], attrs["taken"], attrs["given"], own


_DFT, _REAL_DFT, _HALF_DFT = REGISTRY["dft"], REGISTRY["real_dft"], REGISTRY["half_dft"]


def _resized(shape: Dims, dim: int, n: int) -> Dims:
    """shape with n at `dim`, which counts from the end."""
    return tuple(n if d == dim + len(shape) else m for d, m in enumerate(shape))


def _weighted(half: Node, dim: int, n: int, weight: float) -> Any:
    """The half of a spectrum of n, times `weight` where an element stands for its conjugate at n - k, too."""
    d = dim + len(half.shape)
    k = iota(tuple(m if e == d else 1 for e, m in enumerate(half.shape)), d, dtypes.int32)
    alone = (k < 1) | (k * 2 > n - 1)
    return half * where(alone, 1.0, const(weight, dtypes.real_of(half.dtype)))


def dft(x: Node, dims: Dims, inverse: bool = False, scale: str = "one") -> Node:
    """The transform of complex numbers over `dims`, which count from the end."""
    return bind(_DFT, (x,), {"dims": dims, "inverse": inverse, "scale": scale, "index": 0})


def real_dft(x: Node, dim: int, scale: str = "one") -> Node:
    """The half of the transform of real numbers along `dim`."""
    return bind(_REAL_DFT, (x,), {"dim": dim, "scale": scale, "index": 0})


def half_dft(x: Node, dim: int, n: int, scale: str = "one") -> Node:
    """The real numbers whose transform has the half x."""
    return bind(_HALF_DFT, (x,), {"dim": dim, "n": n, "scale": scale, "index": 0})


# ------------------------------------------------------------------------------------------------------------- arguments


_SCALES = {None: "one", "backward": "one", "ortho": "root", "forward": "whole"}


def _scale(name: str, norm: Any, inverse: bool) -> str:
    if norm not in _SCALES or isinstance(norm, bool):
        raise ArgumentError(f"{name}: norm must be 'forward', 'backward' or 'ortho' (or None, the same as 'backward'), got {norm!r}")
    scale = _SCALES[norm]
    return scale if not inverse else {"one": "whole", "whole": "one"}.get(scale, scale)


def _operand(name: str, x: Any, real: bool) -> Node:
    """x as complex numbers (real: as floats), integers and bools as the default float dtype."""
    if real and x.dtype.kind == "c":
        raise DTypeError(f"{name}: takes real tensors, got {x.dtype}; use x.real, or the transform of complex numbers")
    if dtypes.is_half(x.dtype):
        raise DTypeError(f"{name}: does not take {x.dtype}; cast first, for example x.float()")
    if dtype_kind(x.dtype) not in "fc":
        x = cast(x, dtypes.get_default_dtype())
    return x if real else cast(x, dtypes.complex_of(x.dtype))


def _places(name: str, x: Any, s: Any, dim: Any, default: Any) -> tuple[list[int], list[int]]:
    """The dimensions (not negative) and the sizes that are asked for there (-1: as it is)."""
    if isinstance(s, int):
        s = (s,)
    if dim is None:
        dim = default if s is None or default is not None else range(x.ndim - len(s), x.ndim)
        if s is not None and default is None and len(s) > x.ndim:
            raise ArgumentError(f"{name}: s={tuple(s)} has more sizes than the tensor of shape {x.shape} has dimensions")
        dim = range(x.ndim) if dim is None else dim
    dims = [one_dim(name, d, x.ndim) for d in ((dim,) if isinstance(dim, int) else dim)]
    if not x.ndim and dims:
        raise IndexOutOfRange(f"{name}: takes a tensor of at least one dimension, got a 0-d tensor")
    if len(set(dims)) != len(dims):
        raise ArgumentError(f"{name}: dim {tuple(dim)} names a dimension twice")
    sizes = [-1] * len(dims) if s is None else [integer(name, "s", n) for n in s]
    if len(sizes) != len(dims):
        raise ArgumentError(f"{name}: s {tuple(sizes)} and dim {tuple(dims)} must have the same length")
    return dims, sizes


def _fitted(name: str, x: Node, dims: Sequence[int], sizes: Sequence[int]) -> Node:
    """x cut off, or filled up with zeros, to `sizes` at `dims`."""
    low = (0,) * x.ndim
    for d, n in zip(dims, sizes, strict=True):
        if n == -1:
            n = x.shape[d]
        if n < 1:
            raise ArgumentError(f"{name}: the number of points must be positive, got {n} for dimension {d} of shape {x.shape}")
        if n < x.shape[d]:
            x = mv.narrow(x, d, 0, n)
        x = mv.pad(x, low, tuple(n - m if e == d else 0 for e, m in enumerate(x.shape)))
    return x


def _back(x: Node, dims: Sequence[int]) -> Dims:
    """dims, counted from the end."""
    return tuple(sorted(d - x.ndim for d in dims))


# ----------------------------------------------------------------------------------------------- the transforms, by kind


def _complex_transform(name: str, input: Any, s: Any, dim: Any, norm: Any, inverse: bool, default: Any) -> Any:
    x = _operand(name, input, False)
    dims, sizes = _places(name, x, s, dim, default)
    scale = _scale(name, norm, inverse)
    if not dims:
        return x
    return dft(_fitted(name, x, dims, sizes), _back(x, dims), inverse, scale)


def _real_transform(name: str, input: Any, s: Any, dim: Any, norm: Any, default: Any, adjoint: bool = False) -> Any:
    """rfftn; adjoint: ihfftn, the conjugate of it with the inverse's scale."""
    x = _operand(name, input, True)
    dims, sizes = _places(name, x, s, dim, default)
    if not dims:
        raise ArgumentError(f"{name}: must transform at least one dimension")
    scale = _scale(name, norm, adjoint)
    x = _fitted(name, x, dims, sizes)
    y = real_dft(x, dims[-1] - x.ndim, scale)
    y = dft(y, _back(y, dims[:-1]), False, scale) if dims[:-1] else y
    return conj(y) if adjoint else y


def _half_transform(name: str, input: Any, s: Any, dim: Any, norm: Any, default: Any, adjoint: bool = False) -> Any:
    """irfftn; adjoint: hfftn, that of the conjugate with the forward transform's scale."""
    x = _operand(name, input, False)
    dims, sizes = _places(name, x, s, dim, default)
    if not dims:
        raise ArgumentError(f"{name}: must transform at least one dimension")
    scale = _scale(name, norm, not adjoint)
    last = dims[-1]
    n = 2 * (x.shape[last] - 1) if sizes[-1] == -1 else sizes[-1]
    if n < 1:
        raise ArgumentError(f"{name}: the number of points must be positive, got {n} for dimension {last} of shape {x.shape}; give it, "
                            f"for example as {'n' if name in ('irfft', 'hfft') else 's'}")
    x = _fitted(name, x, dims, [*sizes[:-1], n // 2 + 1])
    x = conj(x) if adjoint else x
    x = dft(x, _back(x, dims[:-1]), True, scale) if dims[:-1] else x
    return half_dft(x, last - x.ndim, n, scale)


# ---------------------------------------------------------------------------------------------------------- torch's functions

_DOC = """{what}

    input: (*), {takes}.
    {size}
    norm: by what it is scaled: "backward" (the default; the inverse by 1/n), "ortho" (both by 1/sqrt(n)) or "forward" (the other by 1/n).
    Returns {result}.
    Raises ArgumentError for a size below 1, an unknown norm or a dim named twice, DTypeError for floats of 16 bits.

    >>> tg.fft.{name}(tg.ones({example}))
    """
_ONE = "n: how many points along dim (default: as many as there are): input is cut off, or filled up with zeros."
_MANY = "s: how many points along each of dim (default: as many as there are; -1, too): input is cut off, or filled up with zeros."
_KINDS: dict[str, tuple[Any, dict[str, Any], str, str, str]] = {
    # stem: (function, keywords, what it is, what it takes, what it returns)
    "fft": (_complex_transform, {"inverse": False}, "The discrete Fourier transform", "real or complex numbers", "complex numbers"),
    "ifft": (_complex_transform, {"inverse": True}, "The inverse discrete Fourier transform", "real or complex numbers", "complex numbers"),
    "rfft": (_real_transform, {}, "The discrete Fourier transform of real numbers, the half that tells the rest", "real numbers",
             "complex numbers, n // 2 + 1 in the last of the dimensions"),
    "irfft": (_half_transform, {}, "The inverse of rfft", "complex numbers (the half of a spectrum)",
              "real numbers, n (default: 2 (m - 1), of m) in the last of the dimensions"),
    "hfft": (_half_transform, {"adjoint": True}, "The discrete Fourier transform of a Hermitian signal, of which one half is given",
             "complex numbers", "real numbers, n (default: 2 (m - 1), of m) in the last of the dimensions"),
    "ihfft": (_real_transform, {"adjoint": True}, "The inverse of hfft", "real numbers",
              "complex numbers, n // 2 + 1 in the last of the dimensions"),
}


def _define(stem: str) -> None:
    transform, named, what, takes, result = _KINDS[stem]

    def one(input: Array, n: int | None = None, dim: int = -1, norm: str | None = None) -> Array:
        if not isinstance(dim, (int, np.integer)):
            raise ArgumentError(f"{stem}: dim must be an integer, got {dim!r}; use {stem}n for several")
        if isinstance(n, (int, np.integer)) and n < 1:          # in the sizes of several, -1 is the size that is there
            raise ArgumentError(f"{stem}: the number of points must be positive, got {n}")
        return transform(stem, input, None if n is None else (n,), (dim,), norm, default=None, **named)

    def two(input: Array, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
        return transform(f"{stem}2", input, s, dim, norm, default=None, **named)

    def many(input: Array, s: Sequence[int] | None = None, dim: Sequence[int] | None = None, norm: str | None = None) -> Array:
        return transform(f"{stem}n", input, s, dim, norm, default=None, **named)

    for fn, suffix, where_, size, example in ((one, "", " along dim.", _ONE, "8"), (two, "2", " over two dimensions.", _MANY, "4, 4"),
                                              (many, "n", " over dim (default: all, or the last len(s)).", _MANY, "4, 4")):
        fn.__name__ = stem + suffix
        fn.__doc__ = _DOC.format(what=what + where_, takes=takes, size=size, result=result, name=fn.__name__, example=example)
        fourier()(on_nodes(fn))


for _stem in _KINDS:
    _define(_stem)


# --------------------------------------------------------------------------------------------------------------- frequencies


@fourier()
@on_nodes
def fftshift(input: Array, dim: Any = None) -> Array:
    """The elements of a spectrum so that frequency 0 is in the middle of each of dim (default: all): rolled by half their sizes.

    Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.fft.fftshift(tg.fft.fftfreq(4))
    """
    return _shifted("fftshift", input, dim, 0)


@fourier()
@on_nodes
def ifftshift(input: Array, dim: Any = None) -> Array:
    """The inverse of fftshift. Any shape and dtype. Raises IndexOutOfRange for other dims.

    >>> tg.fft.ifftshift(tg.tensor([-2.0, -1.0, 0.0, 1.0]))
    """
    return _shifted("ifftshift", input, dim, 1)


def _shifted(name: str, x: Any, dim: Any, more: int) -> Any:
    dims = [one_dim(name, d, x.ndim) for d in (range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim)]
    return roll(x, tuple((x.shape[d] + more) // 2 for d in dims), tuple(dims)) if dims else x
