"""Max pooling as one operation, the places of the largest elements as another, and the gradient as a third. Start at `MaxPool`.

All three go through planes: x is (B, *S), what is found (B, *O). The gradient reads the places, so that no window is looked at again. The
code generator (codegen/graph/pooling.py) replaces the first two by what they are composed of, which is elementwise and fuses, and the
third where its kernel does not pay. Attributes have an entry for each dimension: kernel, stride, padding (in front), dilation, image (S)
and size (O).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracegrad.errors import DTypeError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast, const, iota
from tracegrad.ops.arrays.indexing import take_rows
from tracegrad.ops.arrays.pointwise import eq
from tracegrad.ops.arrays.reductions import WRITTEN_OUT, first_winner, of_winner
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.windows import overlapped, windows
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

_LINE = dict(kernel=(3,), stride=(2,), padding=(1,), dilation=(1,), image=(8,), size=(4,))
_PLANE = dict(kernel=(2, 3), stride=(1, 2), padding=(0, 1), dilation=(2, 1), image=(4, 6), size=(2, 3))
_APART = dict(kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), image=(4, 5), size=(2, 2))


class _Windows(Primitive):
    """Base of what looks at the windows of (B, *image)."""
    family, expensive = "pool", True
    cases = [(((2, 8),), _LINE), (((2, 4, 6),), _PLANE), (((3, 4, 5),), _APART)]

    def aval(self, x, **attrs):
        refuse_complex(self.name, x)
        if x.shape[1:] != attrs["image"]:
            raise ShapeError(f"{self.name}: takes planes of {attrs['image']}, got {x.shape}")
        return Aval((x.shape[0], *attrs["size"]), x.dtype)

    def work(self, y, x, **attrs):
        return y.size * prod(attrs["kernel"])


class MaxPool(_Windows):
    """The largest element of each window; NaN if any is. The gradient goes to the first of equals."""
    name, selects_elements = "max_pool", True

    def numpy(self, x, **attrs):
        return _cut(x, **attrs).max(tuple(range(x.ndim, 2 * x.ndim - 1)))

    def composed(self, x, **attrs):
        n, kernel = len(attrs["image"]), attrs["kernel"]
        if prod(kernel) <= WRITTEN_OUT or not any(k > step for k, step in zip(kernel, attrs["stride"], strict=True)):
            return bind(REGISTRY["first_max"], (cut(x, **attrs),), {"dim": tuple(range(1 + n, 1 + 2 * n))})
        x = padded(x, **attrs)                               # large ones that overlap: dimension by dimension, for all that share a part
        for i in reversed(range(n)):                         # the last one first: so the first of equals is the first of the window
            x = bind(REGISTRY["first_max"], (along(x, i, **attrs),), {"dim": (1 + n,)})
        return x

    def vjp(self, ct, y, x, **attrs):
        return (bind(REGISTRY["max_pool_gradient"], (ct, bind(REGISTRY["max_pool_places"], (x,), attrs)), attrs),)


class MaxPoolPlaces(_Windows):
    """Where in its plane, flattened, the first of the largest elements of each window is; the first NaN if there is any."""
    name, differentiable = "max_pool_places", False

    def aval(self, x, **attrs):
        return Aval(super().aval(x, **attrs).shape, _counted(prod(attrs["image"])))

    def numpy(self, x, **attrs):
        cut = _cut(x, **attrs)
        dtype = _counted(prod(attrs["image"]))
        tap = np.argmax(cut.reshape(*cut.shape[:x.ndim], prod(attrs["kernel"])), -1).astype(dtype)
        numbers = np.ix_(*(np.arange(n, dtype=dtype) for n in tap.shape))[1:]
        start, first = _starts(numbers, np.where, **attrs)
        return np.where(tap == 0, first, start + _offset(tap, **attrs))

    def composed(self, x, **attrs):
        shape, n, dtype = (x.shape[0], *attrs["size"]), prod(attrs["kernel"]), _counted(prod(attrs["image"]))
        numbers = [iota(shape, 1 + i, dtype) for i in range(len(attrs["image"]))]
        start, first = _starts(numbers, where, **attrs)
        groups = mv.reshape(cut(x, **attrs), (*shape, n))
        if n <= WRITTEN_OUT:
            later = [const(_offset(tap, **attrs), dtype) for tap in range(1, n)]
            ahead = first - start if any(attrs["padding"]) else const(0, dtype)
            return start + of_winner("argmax", groups, [ahead, *later])
        tap = cast(first_winner("argmax", groups), dtype)
        return where(eq(tap, 0), first, start + _offset(tap, **attrs))

    def interval(self, node, *operands):
        return (0, prod(node.attrs["image"]) - 1)


class MaxPoolGradient(Primitive):
    """ct (B, *O) added up at the places (B, *O) of planes that are zero otherwise: (B, *image). In the order of the windows."""
    name, family, expensive, cost = "max_pool_gradient", "pool", True, 10.0
    cases = [(((2, 4), np.array([[1, 1, 4, 7], [0, 3, 3, 6]], np.int32)), _LINE),
             (((1, 2, 3), np.array([[[0, 14, 17], [6, 20, 17]]], np.int32)), _PLANE),
             (((1, 2, 2), np.array([[[0, 8], [15, 12]]], np.int32)), _APART)]

    def aval(self, ct, places, **attrs):
        refuse_complex(self.name, ct)
        if dtype_kind(ct.dtype) != "f":
            raise DTypeError(f"{self.name}: takes a cotangent of floats, got {ct.dtype}")
        if ct.shape != places.shape or ct.shape[1:] != attrs["size"] or places.dtype.kind != "i":
            raise ShapeError(f"{self.name}: takes planes of {attrs['size']} and as many places (integers), got {ct} and {places}")
        return Aval((ct.shape[0], *attrs["image"]), ct.dtype)

    def numpy(self, ct, places, *, image, size, **attrs):
        room = prod(image)
        flat = np.zeros(ct.shape[0] * room, ct.dtype)
        np.add.at(flat, (places.reshape(len(ct), prod(size)) + room * np.arange(len(ct))[:, None]).ravel(), ct.ravel())
        return flat.reshape(len(ct), *image)

    def composed(self, ct, places, *, kernel, stride, padding, dilation, image, size):
        """An element looks at the windows that it is in, and takes what came from those that it is the place of."""
        among = [-(-(d * (k - 1) + 1) // s) for k, s, d in zip(kernel, stride, dilation, strict=True)]
        if prod(among) <= WRITTEN_OUT:
            return _gathered(ct, places, among, stride, padding, image)
        n, shape, ones = len(image), (*ct.shape, *kernel), (1,) * len(image)
        expected: Any = const(0, places.dtype)
        for i, s in enumerate(image):
            number, tap = (iota(shape, d, places.dtype) for d in (1 + i, 1 + n + i))
            expected = expected * s + (number * stride[i] - padding[i] + tap * dilation[i])
        hit = eq(mv.reshape(places, (*places.shape, *ones)), expected)
        x: Any = where(hit, mv.reshape(ct, (*ct.shape, *ones)), const(0, ct.dtype))
        behind = _padding(kernel, stride, padding, dilation, image, size)
        for i in reversed(range(n)):
            x = overlapped(x, 1 + i, padding[i] + image[i] + behind[i], stride[i], dilation[i])
            x = mv.narrow(x, 1 + i, padding[i], image[i])
        return x

    def vjp(self, ct, y, g, places, **attrs):
        planes, room = ct.shape[0], prod(attrs["image"])
        index = cast(places, _counted(planes * room))
        return take_rows(mv.reshape(ct, (planes * room,)), index + iota(places.shape, 0, index.dtype) * room), None


def _gathered(ct: Any, places: Any, among: Sequence[int], stride: Any, padding: Any, image: Any) -> Any:
    """Each element asks the windows that it may be in, `among` of them one after the other along each dimension, in order."""
    shape, dtype = (ct.shape[0], *image), places.dtype
    mine: Any = const(0, dtype)
    for i, size in enumerate(image):
        mine = mine * size + iota(shape, 1 + i, dtype)

    def window(x: Any, nothing: int, behind: Sequence[int]) -> Any:
        """For each element what `x` has of the window so many `behind` the last that begins before it; `nothing` where there is none."""
        for i, s in enumerate(stride):
            lead, (count, *rest) = x.shape[:1 + i], x.shape[1 + i:]
            x = mv.reshape(mv.expand(mv.reshape(x, (*lead, count, 1, *rest)), (*lead, count, s, *rest)), (*lead, count * s, *rest))
            before, need = behind[i] * s, padding[i] + image[i]
            low, high = ((*(0,) * (1 + i), n, *(0,) * len(rest)) for n in (before, max(0, need - before - count * s)))
            x = mv.narrow(mv.pad(x, low, high, None, nothing), 1 + i, padding[i], image[i])
        return x

    total: Any = None
    for behind in product(*(range(n - 1, -1, -1) for n in among)):
        found = where(eq(window(places, -1, behind), mine), window(ct, 0, behind), const(0, ct.dtype))
        total = found if total is None else total + found
    return total


def _counted(n: int) -> dtypes.DType:
    """The dtype of places in n elements."""
    return dtypes.int32 if n < 2**31 else dtypes.int64


def _padding(kernel: Any, stride: Any, padding: Any, dilation: Any, image: Any, size: Any) -> tuple[int, ...]:
    """How many elements behind the image the last windows need."""
    each = zip(kernel, stride, padding, dilation, image, size, strict=True)
    return tuple(max(0, (o - 1) * st + d * (k - 1) + 1 - s - p) for k, st, p, d, s, o in each)


def apart(kernel: Any, stride: Any, dilation: Any, **attrs: Any) -> bool:
    """Whether no element is in two windows."""
    return all(d * (k - 1) < st for k, st, d in zip(kernel, stride, dilation, strict=True))


def _lowest(dtype: dtypes.DType) -> Any:
    largest: Any = REGISTRY["first_max"]
    return largest.identity(dtype)


def _cut(x: np.ndarray[Any, Any], **attrs: Any) -> np.ndarray[Any, Any]:
    """The windows of an array: (B, *O, *kernel)."""
    if any(attrs["padding"]) or any(_padding(**attrs)):
        x = np.pad(x, [(0, 0), *zip(attrs["padding"], _padding(**attrs), strict=True)], constant_values=_lowest(x.dtype))
    kernel, dilation = attrs["kernel"], attrs["dilation"]
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    x = sliding_window_view(x, reach, axis=tuple(range(1, x.ndim)))
    starts = (slice(0, (o - 1) * s + 1, s) for o, s in zip(attrs["size"], attrs["stride"], strict=True))
    return x[(slice(None), *starts, *(slice(None, None, d) for d in dilation))]


def _starts(numbers: Any, choose: Any, *, kernel: Any, stride: Any, padding: Any, dilation: Any, image: Any, size: Any) -> tuple[Any, Any]:
    """Where windows start in the flattened plane, were there no padding, and where their first elements are that are no padding.

    numbers: those of the windows along each dimension. (Of a window that has padding only, some element of the plane.)
    """
    start: Any = 0
    first: Any = 0
    for i, number in enumerate(numbers):
        at = number * stride[i] - padding[i]
        start = start * image[i] + at
        if padding[i]:
            at = choose(at < 0, at % dilation[i] % image[i] if dilation[i] > 1 else 0, at)
        first = first * image[i] + at
    return start, first


def _offset(tap: Any, *, kernel: Any, dilation: Any, image: Any, **attrs: Any) -> Any:
    """How far behind a window's start its element number `tap` is."""
    return sum(tap // prod(kernel[i + 1:]) % kernel[i] * (dilation[i] * prod(image[i + 1:])) for i in range(len(kernel)))


def cut(x: Node, **attrs: Any) -> Any:
    """The windows of a node: (B, *O, *kernel)."""
    x = padded(x, **attrs)
    for i in range(len(attrs["size"])):
        x = along(x, i, **attrs)
    return x


def padded(x: Node, **attrs: Any) -> Any:
    """A node with what no window finds around it."""
    return mv.pad(x, (0, *attrs["padding"]), (0, *_padding(**attrs)), None, _lowest(x.dtype))


def along(x: Node, i: int, **attrs: Any) -> Any:
    """The windows of a node along dimension i of its planes, their elements last."""
    x = windows(x, 1 + i, attrs["kernel"][i], attrs["stride"][i], attrs["dilation"][i])
    return mv.narrow(x, 1 + i, 0, attrs["size"][i])
