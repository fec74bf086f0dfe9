"""The pools beyond max_pool1d/2d and avg_pool1d/2d (windows.py): 3-d, adaptive, power-average; max_unpool; unfold and fold of images."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from tracegrad import dtypes
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.function import REGISTRY, bind, const, iota, refuse_complex
from tracegrad.ir import Node
from tracegrad.operators import functional
from tracegrad.ops import movement as mv
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.convolution import out_size, per_dim
from tracegrad.ops.elementwise import where
from tracegrad.ops.indexing import scatter_rows, take_rows
from tracegrad.ops.pointwise import abs_, lt, sign
from tracegrad.ops.pointwise import pow as power
from tracegrad.ops.ranges import in_range
from tracegrad.ops.reduction import total
from tracegrad.ops.shaping import full_like_shape, movedim
from tracegrad.ops.statistics import ValuesIndices
from tracegrad.ops.windows import _avg_pool, _max_pool, overlapped, windows

Array = Any      # a Node or a Tensor


@functional
@on_nodes
def max_pool3d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Any:
    """The largest of each window of (N, C, D, H, W) or (C, D, H, W), see max_pool2d. stride: kernel_size if None."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@functional
@on_nodes
def avg_pool3d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Array:
    """The mean of each window of (N, C, D, H, W) or (C, D, H, W). stride: kernel_size if None."""
    return _avg_pool("avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _power_pool(name: str, n: int, x: Node, p: float, kernel: Any, stride: Any, ceil_mode: bool) -> Any:
    sizes = per_dim(name, "kernel_size", kernel, n)
    y = _avg_pool(name, n, power(x, p), sizes, stride, 0, ceil_mode, True, None)
    return power(sign(y) * where(lt(abs_(y), 0.0), 0.0, abs_(y)) * float(prod(sizes)), 1.0 / p)


@functional
@on_nodes
def lp_pool1d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, L))^(1/p), p = norm_type."""
    return _power_pool("lp_pool1d", 1, input, float(norm_type), kernel_size, stride, ceil_mode)


@functional
@on_nodes
def lp_pool2d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, H, W))^(1/p), p = norm_type."""
    return _power_pool("lp_pool2d", 2, input, float(norm_type), kernel_size, stride, ceil_mode)


@functional
@on_nodes
def lp_pool3d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, D, H, W))^(1/p), p = norm_type."""
    return _power_pool("lp_pool3d", 3, input, float(norm_type), kernel_size, stride, ceil_mode)


# ----------------------------------------------------------------------------------------------------------------- adaptive


def _cells(name: str, n: int, x: Node, output_size: Any) -> tuple[int, ...]:
    """The sizes of the grid of cells; None keeps the input's."""
    if x.ndim not in (n + 1, n + 2):
        raise ShapeError(f"{name}: takes an input of {n + 2} dimensions (N, C, spatial) or {n + 1}, got {x.shape}")
    image = x.shape[x.ndim - n:]
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * n
    if len(given) != n:
        raise ArgumentError(f"{name}: output_size must be an integer or {n} of them, got {output_size!r}")
    sizes = tuple(s if o is None else per_dim(name, "output_size", o, 1, 0)[0] for o, s in zip(given, image, strict=True))
    if 0 in image:
        raise ShapeError(f"{name}: the input {x.shape} has nothing to pool")
    return sizes


def _bounds(size: int, cells: int) -> tuple[Any, Any]:
    """Where the cells start and end: floor(i size / cells) and ceil((i + 1) size / cells)."""
    i = iota((cells,), 0)
    return i * size // cells, ((i + 1) * size + (cells - 1)) // cells


def _average_along(x: Node, d: int, cells: int) -> Any:
    """Means over `cells` cells along d. After n / gcd(n, cells) elements their sizes repeat, so that many sums are written out.

    (No product with a matrix of weights: 0 times the inf or NaN of another cell is NaN.)
    """
    n = x.shape[d]
    if cells in (0, n):
        return mv.narrow(x, d, 0, cells)
    rounds = gcd(n, cells)
    n, cells = n // rounds, cells // rounds
    x = mv.reshape(x, (*x.shape[:d], rounds, n, *x.shape[d + 1:]))
    means = []
    for i in range(cells):
        start, stop = i * n // cells, -(-(i + 1) * n // cells)
        mean = total(mv.narrow(x, d + 1, start, stop - start), (d + 1,)) * (1.0 / (stop - start))
        means.append(mv.reshape(mean, (*x.shape[:d + 1], 1, *x.shape[d + 2:])))
    return mv.reshape(mv.concat(means, d + 1), (*x.shape[:d], rounds * cells, *x.shape[d + 2:]))


def adaptive_average(name: str, n: int, x: Node, output_size: Any) -> Any:
    """Means over a grid of cells of the last n dimensions."""
    refuse_complex(name, x)
    if x.dtype.kind != "f":
        raise DTypeError(f"{name}: takes a float tensor, got {x.dtype}; use x.float()")
    sizes = _cells(name, n, x, output_size)
    y: Any = x
    for i, cells in enumerate(sizes):
        y = _average_along(y, x.ndim - n + i, cells)
    return y


def _adaptive_max(name: str, n: int, x: Node, output_size: Any, return_indices: bool) -> Any:
    sizes = _cells(name, n, x, output_size)
    lead = x.ndim - n
    largest: Any = REGISTRY["first_max"]
    lowest = const(largest.identity(x.dtype), x.dtype)
    y: Any = x
    taps, starts = [], []
    for i, cells in enumerate(sizes):                           # (..., size, ...) -> (..., cells, taps, ...)
        d, s = lead + 2 * i, x.shape[lead + i]
        start, end = _bounds(s, cells)
        k = max((-(-(c + 1) * s // cells) - c * s // cells for c in range(cells)), default=1)
        place = mv.reshape(start, (cells, 1)) + iota((cells, k), 1)
        inside = lt(place, mv.reshape(end, (cells, 1)))
        rows = take_rows(movedim(y, d, 0), where(inside, place, 0))
        y = movedim(rows, (0, 1), (d, d + 1))
        shape = (1,) * d + (cells, k) + (1,) * (y.ndim - d - 2)
        y = where(mv.reshape(inside, shape), y, lowest)
        taps.append(k)
        starts.append(start)
    order = (*range(lead), *(lead + 2 * i for i in range(n)), *(lead + 2 * i + 1 for i in range(n)))
    grouped = mv.permute(y, order)
    best = bind(largest, (grouped,), {"dim": tuple(range(lead + n, lead + 2 * n))})
    if not return_indices:
        return best
    tap: Any = bind(REGISTRY["argmax"], (mv.reshape(grouped, (*best.shape, prod(taps))),), {"dim": best.ndim})
    index: Any = const(0, dtypes.int64)
    for i in range(n):
        at = mv.reshape(starts[i], tuple(sizes[i] if d == lead + i else 1 for d in range(best.ndim)))
        index = index * x.shape[lead + i] + at + tap // prod(taps[i + 1:]) % taps[i]
    return ValuesIndices(best, index)


@functional
@on_nodes
def adaptive_avg_pool1d(input: Array, output_size: Any) -> Array:
    """Means over output_size cells of (N, C, L): cell i goes from floor(i L / size) to ceil((i + 1) L / size)."""
    return adaptive_average("adaptive_avg_pool1d", 1, input, output_size)


@functional
@on_nodes
def adaptive_avg_pool2d(input: Array, output_size: Any) -> Array:
    """Means over a grid of output_size (an integer or two; None: the image's) cells of (N, C, H, W); see adaptive_avg_pool1d."""
    return adaptive_average("adaptive_avg_pool2d", 2, input, output_size)


@functional
@on_nodes
def adaptive_avg_pool3d(input: Array, output_size: Any) -> Array:
    """Means over a grid of output_size (an integer or three; None: the input's) cells of (N, C, D, H, W); see adaptive_avg_pool1d."""
    return adaptive_average("adaptive_avg_pool3d", 3, input, output_size)


@functional
@on_nodes
def adaptive_max_pool1d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of output_size cells of (N, C, L); see adaptive_avg_pool1d. return_indices: its place, too."""
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, return_indices)


@functional
@on_nodes
def adaptive_max_pool2d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each cell of a grid of output_size over (N, C, H, W). return_indices: its place in the flattened image, too."""
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, return_indices)


@functional
@on_nodes
def adaptive_max_pool3d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each cell of a grid of output_size over (N, C, D, H, W). return_indices: its place when flattened, too."""
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, return_indices)


# ------------------------------------------------------------------------------------------------------------------- unpool


def _unpool(name: str, n: int, x: Node, indices: Node, kernel: Any, stride: Any, padding: Any, output_size: Any) -> Any:
    if x.ndim not in (n + 1, n + 2) or indices.shape != x.shape:
        raise ShapeError(f"{name}: takes an input of {n + 2} or {n + 1} dimensions and indices of its shape, got {x.shape} and "
                         f"{indices.shape}")
    sizes = per_dim(name, "kernel_size", kernel, n)
    steps = sizes if stride is None else per_dim(name, "stride", stride, n)
    edges = per_dim(name, "padding", padding, n, 0)
    lead = x.ndim - n
    usual = tuple((s - 1) * st - 2 * p + k for s, st, p, k in zip(x.shape[lead:], steps, edges, sizes, strict=True))
    if output_size is None:
        size = usual
    else:
        size = tuple(int(s) for s in output_size)[-n:]
        if len(size) != n or any(not u - st < s < u + st for s, u, st in zip(size, usual, steps, strict=True)):
            raise ShapeError(f"{name}: output_size {tuple(output_size)} must be within a stride {steps} of {usual}")
    images, pixels, room = prod(x.shape[:lead]), prod(x.shape[lead:]), prod(size)
    place = in_range(mv.reshape(indices, (images, pixels)), room, name, "indices", f"an output of {size}")
    place = place + mv.reshape(iota((images,), 0, place.dtype), (images, 1)) * room
    flat = scatter_rows("scatter_set", full_like_shape((images * room,), 0, x.dtype), mv.reshape(place, (images * pixels,)),
                        mv.reshape(x, (images * pixels,)))
    return mv.reshape(flat, (*x.shape[:lead], *size))


@functional
@on_nodes
def max_unpool1d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool1d, from its values and indices: zero wherever no maximum was."""
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


@functional
@on_nodes
def max_unpool2d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool2d, from its values and indices: zero wherever no maximum was."""
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


@functional
@on_nodes
def max_unpool3d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool3d, from its values and indices: zero wherever no maximum was."""
    return _unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)


# ----------------------------------------------------------------------------------------------------------- unfold and fold


class _Patches:
    """The arguments of unfold and fold, checked."""

    def __init__(self, name: str, kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
        self.name = name
        self.kernel, self.gaps = per_dim(name, "kernel_size", kernel, 2), per_dim(name, "dilation", dilation, 2)
        self.edges, self.steps = per_dim(name, "padding", padding, 2, 0), per_dim(name, "stride", stride, 2)

    def counts(self, image: tuple[int, ...]) -> tuple[int, ...]:
        each = zip(image, self.kernel, self.steps, self.edges, self.gaps, strict=True)
        found = tuple(out_size(s, k, step, (p, p), gap) for s, k, step, p, gap in each)
        if min(found) < 1:
            raise ShapeError(f"{self.name}: a kernel of {self.kernel} (dilation {self.gaps}) is larger than the image {image} with padding "
                             f"{self.edges}")
        return found


@functional
@on_nodes
def unfold(input: Array, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """The patches of images (N, C, H, W) or (C, H, W) as columns: (N, C kh kw, number of patches). x.unfold cuts along one dimension."""
    if input.ndim not in (3, 4):
        raise ShapeError(f"unfold: takes images (N, C, H, W) or (C, H, W), got {input.shape}")
    patches = _Patches("unfold", kernel_size, dilation, padding, stride)
    x = input if input.ndim == 4 else mv.reshape(input, (1, *input.shape))
    counts = patches.counts(x.shape[2:])
    x = mv.pad(x, (0, 0, *patches.edges), (0, 0, *patches.edges))
    for i in range(2):
        x = windows(x, 2 + i, patches.kernel[i], patches.steps[i], patches.gaps[i])
        x = mv.narrow(x, 2 + i, 0, counts[i])
    n, c = x.shape[:2]
    y = mv.reshape(mv.permute(x, (0, 1, 4, 5, 2, 3)), (n, c * prod(patches.kernel), prod(counts)))
    return y if input.ndim == 4 else mv.reshape(y, y.shape[1:])


@functional
@on_nodes
def fold(input: Array, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """The adjoint of unfold: patches (N, C kh kw, L) or (C kh kw, L) added up where they came from, in images of output_size."""
    patches = _Patches("fold", kernel_size, dilation, padding, stride)
    size = per_dim("fold", "output_size", output_size, 2)
    counts, taps = patches.counts(size), prod(patches.kernel)
    if input.ndim not in (2, 3) or input.shape[-2] % taps or input.shape[-1] != prod(counts):
        raise ShapeError(f"fold: takes (N, a multiple of {taps}, {prod(counts)}) for output_size {size} and kernel_size {patches.kernel}, "
                         f"got {input.shape}")
    n, c = input.shape[0] if input.ndim == 3 else 1, input.shape[-2] // taps
    x: Any = mv.permute(mv.reshape(input, (n, c, *patches.kernel, *counts)), (0, 1, 4, 5, 2, 3))
    for i in (1, 0):
        x = overlapped(x, 2 + i, size[i] + 2 * patches.edges[i], patches.steps[i], patches.gaps[i])
    for i in range(2):
        x = mv.narrow(x, 2 + i, patches.edges[i], size[i])
    return x if input.ndim == 3 else mv.reshape(x, x.shape[1:])


