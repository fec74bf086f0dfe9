"""Resampling: interpolate in all of torch's modes, grid_sample and affine_grid. Gathers at computed places, weighted."""

from __future__ import annotations

from math import floor as whole
from math import pi, prod
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import Operators, functional
from tracegrad.graph.primitive import cast, const, iota
from tracegrad.ops.arguments import integer, on_nodes, rounded_once
from tracegrad.ops.arrays.indexing import gather, take_rows
from tracegrad.ops.arrays.joining import stack
from tracegrad.ops.arrays.pointwise import abs_, clamp, detach, eq, floor, fmod, ge, gt, le, lt, round_, sign, sin
from tracegrad.ops.arrays.reductions import sum_
from tracegrad.ops.arrays.shaping.reordering import movedim
from tracegrad.ops.arrays.shaping.reshaping import unsqueeze
from tracegrad.ops.convolution.adaptive_pooling import adaptive_average
from tracegrad.ops.convolution.byte_resampling import REACH, resampled_bytes
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor
_SMOOTH = {"linear": 1, "bilinear": 2, "bicubic": 2, "lanczos": 2, "trilinear": 3}      # mode: of how many spatial dimensions


# -------------------------------------------------------------------------------------------------------------- interpolate


@functional
def interpolate(input: Array, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
                recompute_scale_factor: bool | None = None, antialias: bool = False) -> Array:
    """(N, C, spatial) resampled to `size`, or to scale_factor times its size: an integer or number, or one for each dimension.

    mode: "nearest", "nearest-exact", "linear" (3-d inputs), "bilinear", "bicubic", "lanczos" (4-d), "trilinear" (5-d), "area".
    align_corners: whether the outermost samples, or the edges of the outermost pixels, fall on each other. antialias ("bilinear",
    "bicubic", and always with "lanczos"): where it makes smaller, the filter is as much wider, as in Pillow.
    dtype: float, with "nearest" any real one; "bilinear", "bicubic" and "lanczos" take uint8 and round as torch does. Raises ShapeError for
    other shapes, ArgumentError for other modes.

    >>> nn.functional.interpolate(tg.tensor([[[1.0, 2.0]]]), scale_factor=2)
    """
    if isinstance(input, Operators) and not isinstance(input, Node) and _SMOOTH.get(mode) == 2 and str(input.dtype).endswith("uint8"):
        sizes, scales = _sizes(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
        return resampled_bytes(input, sizes, scales, mode, bool(align_corners), antialias)
    return _interpolated(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)


@on_nodes
@rounded_once
def _interpolated(input: Array, size: Any, scale_factor: Any, mode: str, align_corners: Any, recompute_scale_factor: Any,
                  antialias: bool) -> Any:
    sizes, scales = _sizes(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    if dtype_kind(input.dtype) != "f" and not mode.startswith("nearest"):
        raise DTypeError(f"interpolate: mode {mode!r} takes a float tensor, got {input.dtype}; use x.float()")
    if mode == "area":
        return adaptive_average("interpolate", len(sizes), input, sizes)
    return resampled(input, sizes, scales, mode, bool(align_corners), antialias)


def _sizes(input: Array, size: Any, scale_factor: Any, mode: str, align_corners: Any, recompute_scale_factor: Any, antialias: bool) -> Any:
    """The result's sizes and the factors that hold for them, of valid arguments."""
    n = input.ndim - 2
    if n not in (1, 2, 3):
        raise ShapeError(f"interpolate: takes an input (N, C, spatial) of 3 to 5 dimensions, got {input.shape}")
    if mode not in (*_SMOOTH, "nearest", "nearest-exact", "area"):
        raise ArgumentError(f"interpolate: mode must be one of nearest, nearest-exact, area, {', '.join(_SMOOTH)}, got {mode!r}")
    if mode in _SMOOTH and _SMOOTH[mode] != n:
        raise ArgumentError(f"interpolate: mode {mode!r} takes an input of {_SMOOTH[mode] + 2} dimensions, got {input.shape}")
    if align_corners is not None and mode not in _SMOOTH:
        raise ArgumentError(f"interpolate: align_corners is for the modes {', '.join(_SMOOTH)}, not {mode!r}")
    refuse_complex("interpolate", input)
    if antialias and _SMOOTH.get(mode) != 2:
        raise ArgumentError(f"interpolate: antialias is for the modes 'bilinear', 'bicubic' and 'lanczos', not {mode!r}")
    if mode == "lanczos" and (not antialias or align_corners):
        raise ArgumentError("interpolate: mode 'lanczos' is with antialias=True, and without align_corners")
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: give size or scale_factor, and not both")
    image = input.shape[2:]
    scales: list[float | None] = [None] * n
    if size is not None:
        if recompute_scale_factor:
            raise ArgumentError("interpolate: recompute_scale_factor is for scale_factor, not for size")
        sizes = [integer("interpolate", "size", s) for s in _per_dim("size", size, n)]
    else:
        factors = [float(f) for f in _per_dim("scale_factor", scale_factor, n)]
        sizes = [whole(s * f) for s, f in zip(image, factors, strict=True)]
        if not recompute_scale_factor:
            scales = list(factors)
    if any(s < 1 for s in (*sizes, *image)):
        raise ShapeError(f"interpolate: input {image} and output {tuple(sizes)} sizes must be positive")
    return sizes, scales


def resampled(x: Any, sizes: Any, scales: Any, mode: str, align_corners: bool, antialias: bool) -> Any:
    """(N, C, spatial) resampled to sizes, one dimension after the other; scales are what the user gave, or None."""
    image = x.shape[2:]
    for i, (out, scale) in enumerate(zip(sizes, scales, strict=True)):
        d, s = 2 + i, image[i]
        if antialias:
            x = _antialiased(x, d, out, scale, align_corners, mode)
        elif mode == "nearest" and (scale is None or scale == int(scale)) and out % s == 0 and (scale is None or out == s * scale):
            x = _repeated(x, d, out // s)
        elif mode.startswith("nearest"):
            x = _nearest(x, d, out, scale, 0.5 if mode == "nearest-exact" else 0.0)
        elif out != s or (mode == "bicubic" and scale not in (None, 1.0)):
            at = _places(x, d, out, scale, align_corners, mode == "bicubic")
            x = (_cubic if mode == "bicubic" else _linear)(x, d, at)
    return x


def _per_dim(what: str, value: Any, n: int) -> Any:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * n
    if len(values) != n:
        raise ArgumentError(f"interpolate: {what} must be one number or {n} of them, got {value!r}")
    return values


def _antialiased(x: Node, d: int, out: int, scale: float | None, align_corners: bool, mode: str) -> Any:
    """x resampled to `out` places along d by a filter as wide as the samples are apart, whose weights add up to 1."""
    s = x.shape[d]
    step = ((s - 1) / (out - 1) if out > 1 else 0.0) if align_corners else s / out if scale is None else 1.0 / scale
    wide = max(step, 1.0)
    support = REACH[mode] * wide
    taps = min(s, 2 * int(support) + 3)
    centre = (cast(iota((out, 1), 0), x.dtype) + 0.5) * step
    first = clamp(cast(floor(centre - support + 0.5), dtypes.int64), 0, s)
    end = clamp(cast(floor(centre + support + 0.5), dtypes.int64), 0, s)
    place = first + iota((out, taps), 1)
    away = abs_((cast(place, x.dtype) - centre + 0.5) * (1.0 / wide))
    if mode == "lanczos":
        turn = away * pi
        weight = where(gt(turn, 0.0), sin(turn) * sin(turn * (1.0 / 3.0)) * 3.0 / (turn * turn), 1.0)
        weight = where(lt(away, 3.0), weight, 0.0)
    elif mode == "bicubic":                         # Keys' kernel with a = -1/2, as in Pillow
        near = (away * 1.5 - 2.5) * away * away + 1.0
        weight = where(lt(away, 1.0), near, where(lt(away, 2.0), ((away - 5.0) * away + 8.0) * away * -0.5 + 2.0, 0.0))
    else:
        weight = where(lt(away, 1.0), 1.0 - away, 0.0)
    inside = lt(place, end)
    weight = where(inside, weight, 0.0)
    weight = weight / sum_(weight, 1, True)
    rows = take_rows(movedim(x, d, 0), where(inside, place, 0))                     # (out, taps, ...)
    shape = (out, taps, *[1] * (x.ndim - 1))
    held = where(mv.reshape(inside, shape), rows, const(0, x.dtype))                # (an inf outside is not multiplied with 0)
    return movedim(total(held * mv.reshape(weight, shape), (1,)), 0, d)


def _repeated(x: Node, d: int, times: int) -> Any:
    shape = x.shape
    x = mv.expand(mv.reshape(x, (*shape[:d + 1], 1, *shape[d + 1:])), (*shape[:d + 1], times, *shape[d + 1:]))
    return mv.reshape(x, (*shape[:d], shape[d] * times, *shape[d + 1:]))


def _picked(x: Node, d: int, index: Node) -> Any:
    return movedim(take_rows(movedim(x, d, 0), index), 0, d)


def _nearest(x: Node, d: int, out: int, scale: float | None, shift: float) -> Any:
    n = x.shape[d]
    i = iota((out,), 0)
    if scale is None:
        index: Any = (i * (2 * n) + (n if shift else 0)) // (2 * out)
    else:
        index = cast(floor((cast(i, dtypes.float32) + shift) * (1.0 / scale)), dtypes.int64)
    return _picked(x, d, where(ge(index, n), n - 1, index))


def _places(x: Node, d: int, out: int, scale: float | None, align_corners: bool, cubic: bool) -> Any:
    """Where the samples lie in the input, in the dtype of the arithmetic."""
    n = x.shape[d]
    i = cast(iota((out,), 0), dtypes.float32 if dtypes.is_half(x.dtype) else x.dtype)
    if align_corners:
        return i * ((n - 1) / (out - 1) if out > 1 else 0.0)
    at = (i + 0.5) * (n / out if scale is None else 1.0 / scale) - 0.5
    return at if cubic else where(lt(at, 0.0), 0.0, at)


def _along(weight: Node, x: Node, d: int) -> Any:
    return mv.reshape(cast(weight, x.dtype), tuple(weight.shape[0] if k == d else 1 for k in range(x.ndim)))


def _linear(x: Node, d: int, at: Any) -> Any:
    n = x.shape[d]
    low = floor(at)
    weight = at - low
    first = cast(low, dtypes.int64)
    first = where(ge(first, n), n - 1, first)
    second = where(ge(first, n - 1), first, first + 1)
    a, b = _picked(x, d, first), _picked(x, d, second)
    w = _along(weight, a, d)
    return a * (1.0 - w) + b * w


def _cubic_weights(t: Any) -> list[Any]:
    """The weights of four neighbours at distance t behind the second: Keys 1981, with a = -3/4."""
    a = -0.75

    def near(s: Any) -> Any:
        return ((a + 2.0) * s - (a + 3.0)) * s * s + 1.0

    def far(s: Any) -> Any:
        return ((s - 5.0) * s + 8.0) * s * a - 4.0 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _cubic(x: Node, d: int, at: Any) -> Any:
    n = x.shape[d]
    low = floor(at)
    base = cast(low, dtypes.int64)
    out: Any = None
    for k, weight in enumerate(_cubic_weights(at - low)):
        index = base + (k - 1)
        part = _picked(x, d, where(lt(index, 0), 0, where(ge(index, n), n - 1, index)))
        part = part * _along(weight, part, d)
        out = part if out is None else out + part
    return out


@functional
def upsample(input: Array, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None) -> Array:
    """interpolate, by its older name. The shapes and dtypes are those; it raises what that raises.

    >>> nn.functional.upsample(tg.tensor([[[1.0, 2.0]]]), scale_factor=2)
    """
    return interpolate(input, size, scale_factor, mode, align_corners)


@functional
def upsample_nearest(input: Array, size: Any = None, scale_factor: Any = None) -> Array:
    """interpolate(mode="nearest"). The shapes and dtypes are those; it raises what that raises.

    >>> nn.functional.upsample_nearest(tg.tensor([[[1.0, 2.0]]]), scale_factor=2)
    """
    return interpolate(input, size, scale_factor)


@functional
def upsample_bilinear(input: Array, size: Any = None, scale_factor: Any = None) -> Array:
    """interpolate(mode="bilinear", align_corners=True). (N, C, H, W), float; it raises what that raises.

    >>> nn.functional.upsample_bilinear(tg.rand(1, 1, 2, 2), scale_factor=2)
    """
    return interpolate(input, size, scale_factor, "bilinear", True)


# ------------------------------------------------------------------------------------------------------------------- grids


@functional
@on_nodes
def affine_grid(theta: Array, size: Any, align_corners: bool | None = None) -> Array:
    """The places to sample for affine maps theta (N, 2, 3) of images of size (N, C, H, W), or (N, 3, 4) and (N, C, D, H, W).

    Returns (N, H, W, 2), x before y in [-1, 1], or (N, D, H, W, 3): the `grid` of grid_sample. dtype: float. Raises ShapeError for others.

    >>> nn.functional.affine_grid(tg.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]), (1, 1, 2, 2), False)
    """
    n = len(size) - 2
    if n not in (2, 3) or theta.shape != (size[0], n, n + 1) or dtype_kind(theta.dtype) != "f":
        raise ShapeError(f"affine_grid: takes theta (N, 2, 3) for size (N, C, H, W), or (N, 3, 4) for (N, C, D, H, W), got "
                         f"{theta.aval} and {tuple(size)}")
    spatial = tuple(size[2:])
    coordinates = []
    for d in reversed(range(n)):                                # x is the last dimension
        s = spatial[d]
        i, step = cast(iota(spatial, d), theta.dtype), 2.0 / max(1, s - 1)
        # From both ends, as torch counts: the map that changes nothing then falls on the same side of the same pixels.
        corners = where(i < s // 2, i * step - 1.0, 1.0 - ((s - 1.0) - i) * step) if s > 1 else i * 0.0
        coordinates.append(corners if align_corners else corners * (s - 1.0) / float(s))
    coordinates.append(mv.expand(const(1, theta.dtype), spatial))
    base = mv.reshape(stack(coordinates, -1), (1, prod(spatial), n + 1))
    return mv.reshape(matmul(base, theta.mT), (size[0], *spatial, n))


@functional
@on_nodes
@rounded_once
def grid_sample(input: Array, grid: Array, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None) -> Array:
    """Images (N, C, H, W) at the places grid (N, H', W', 2), x before y in [-1, 1]: (N, C, H', W'); or 5-d with a grid (..., 3).

    mode: "bilinear", "nearest" or "bicubic". padding_mode: beyond the edges "zeros", the "border", or its "reflection".
    dtype: float, which the result has. Raises ShapeError for other shapes, ArgumentError for other modes.

    >>> nn.functional.grid_sample(tg.ones(1, 1, 2, 2), tg.zeros(1, 1, 1, 2), align_corners=False)
    """
    n = input.ndim - 2
    if n not in (2, 3) or grid.ndim != n + 2 or grid.shape[-1] != n or grid.shape[0] != input.shape[0]:
        raise ShapeError(f"grid_sample: takes (N, C, H, W) with a grid (N, H', W', 2), or (N, C, D, H, W) with (N, D', H', W', 3), got "
                         f"{input.shape} and {grid.shape}")
    if input.dtype != grid.dtype or dtype_kind(input.dtype) != "f":
        raise DTypeError(f"grid_sample: takes two float tensors of one dtype, got {input.dtype} and {grid.dtype}")
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ArgumentError(f"grid_sample: mode must be 'bilinear', 'nearest' or 'bicubic', got {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(f"grid_sample: padding_mode must be 'zeros', 'border' or 'reflection', got {padding_mode!r}")
    if 0 in input.shape[2:]:
        raise ShapeError(f"grid_sample: the images {input.shape} are empty")
    sizes = input.shape[2:]
    at: list[Any] = []
    for d in range(n):
        s = sizes[d]
        v = mv.reshape(mv.narrow(grid, grid.ndim - 1, n - 1 - d, 1), grid.shape[:-1])
        at.append((v + 1.0) * (0.5 * (s - 1)) if align_corners else ((v + 1.0) * s - 1.0) * 0.5)
    sampler = _Sampler(input, padding_mode, bool(align_corners), grid.shape[1:-1])
    if mode != "bicubic":
        at = [sampler.inside(v, s) for v, s in zip(at, sizes, strict=True)]
    if mode == "nearest":
        one = sign(sign(at[0]) + 2.0)                           # whose derivative is 0, as that of the result is by the grid
        return sampler.at([round_(detach(v)) for v in at]) * unsqueeze(one, 1)
    low = [floor(detach(v)) for v in at]
    taps = []
    for v, base in zip(at, low, strict=True):
        t = v - base
        taps.append(list(zip((-1.0, 0.0, 1.0, 2.0), _cubic_weights(t), strict=True)) if mode == "bicubic" else [(0.0, 1.0 - t), (1.0, t)])
    return _combined(sampler, low, taps, [], None, mode == "bicubic", sizes)


def _combined(sampler: _Sampler, low: list[Any], taps: list[Any], chosen: list[Any], weight: Any, wrap: bool, sizes: Any) -> Any:
    """The sum over all corners (one tap of each dimension) of its value times the product of its weights."""
    d = len(chosen)
    if d == len(low):
        places = [sampler.inside(p, s) for p, s in zip(chosen, sizes, strict=True)] if wrap else chosen
        return sampler.at(places) * unsqueeze(weight, 1)
    out: Any = None
    for shift, w in taps[d]:
        part = _combined(sampler, low, taps, [*chosen, low[d] + shift], w if weight is None else weight * w, wrap, sizes)
        out = part if out is None else out + part
    return out


class _Sampler:
    """Images flattened to (N, C, pixels), read at whole places."""

    def __init__(self, x: Node, padding: str, align_corners: bool, out: tuple[int, ...]) -> None:
        self.sizes, self.padding, self.align_corners, self.out = x.shape[2:], padding, align_corners, out
        self.flat = mv.reshape(x, (*x.shape[:2], prod(x.shape[2:])))

    def inside(self, v: Any, size: int) -> Any:
        """A coordinate brought into the image as the padding mode says. (No gradient where it was limited, as in torch.)"""
        if self.padding == "reflection":
            low, span = (0.0, size - 1.0) if self.align_corners else (-0.5, float(size))
            if span == 0.0:
                v = v * 0.0
            else:
                far = abs_(v - low)
                rest, turns = fmod(far, span), floor(detach(far) * (1.0 / span))
                even = eq(turns - floor(turns * 0.5) * 2.0, 0.0)
                v = where(even, rest + low, span - rest + low)
        if self.padding == "zeros":
            return v
        return where(gt(v, 0.0), where(lt(v, size - 1.0), v, size - 1.0), 0.0)

    def at(self, places: list[Any]) -> Any:
        """The pixels at whole places (one for each dimension): (N, C, *out), zero outside."""
        index: Any = None
        held: Any = None
        for v, s in zip(places, self.sizes, strict=True):
            within = ge(v, 0.0) & le(v, s - 1.0)
            held = within if held is None else held & within
            i = cast(where(within, v, 0.0), dtypes.int64)
            index = i if index is None else index * s + i
        n, c = self.flat.shape[:2]
        count = prod(self.out)
        rows = mv.expand(mv.reshape(index, (n, 1, count)), (n, c, count))
        y = mv.reshape(gather(self.flat, 2, rows), (n, c, *self.out))
        return y if self.padding != "zeros" else where(unsqueeze(held, 1), y, 0.0)


