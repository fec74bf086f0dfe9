"""Convolution: three primitives that are each other's derivatives, and conv1d, conv2d and their transposes made of them.

Conv2d is bilinear in input and weight; its two adjoints are Conv2dInputGrad (the transposed convolution) and Conv2dWeightGrad. Each
derivative of each of the three is one of the three. Attributes: stride (sh, sw), padding ((top, bottom), (left, right)), dilation
(dh, dw), groups; the two gradients carry the `size` of what they make. dtype: float32, for 16-bit floats that are rounded later.
"""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import bilinear, common_dtype
from tracegrad.graph.operators import functional
from tracegrad.graph.primitive import REGISTRY, Primitive, bind
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import plus, rounded
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

FEW = 16         # pixels of an image up to which the images of a batch are columns of one product
Array = Any      # a Node or a Tensor
Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def out_size(n: int, kernel: int, stride: int, padding: Pair, dilation: int) -> int:
    """How many positions a window of `kernel` taps has on n elements."""
    return (n + padding[0] + padding[1] - dilation * (kernel - 1) - 1) // stride + 1


def _windows(x: Any, kernel: Pair, stride: Pair, padding: Padding, dilation: Pair) -> Any:
    """(N, C, H, W) -> (N, C, kh, kw, OH, OW): a strided view of the padded array."""
    n, c, h, w = x.shape
    (top, bottom), (left, right) = padding
    if top or bottom or left or right:                      # np.pad and as_strided do the same in 40 us more
        padded = np.zeros((n, c, h + top + bottom, w + left + right), x.dtype)
        padded[:, :, top:top + h, left:left + w] = x
        x = padded
    elif not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)
    oh, ow = (out_size(s, k, st, (0, 0), d) for s, k, st, d in zip(x.shape[2:], kernel, stride, dilation, strict=True))
    a, b, p, q = x.strides
    strides = (a, b, p * dilation[0], q * dilation[1], p * stride[0], q * stride[1])
    return np.ndarray((n, c, *kernel, max(oh, 0), max(ow, 0)), x.dtype, x, 0, strides)


def _side_by_side(x: Any) -> Any:
    """(N, *, OH, OW) as a matrix with a column for each pixel of each image."""
    n, *rows, oh, ow = x.shape
    return np.moveaxis(x, 0, -3).reshape(prod(rows), n * oh * ow)


class Conv(Primitive):
    """Base of the three; x (N, C, H, W), w (O, C / groups, kh, kw), y (N, O, OH, OW). roles: what operands and result are of these."""
    roles: ClassVar[str]
    family, expensive, holomorphic, pair = "conv", True, True, bilinear

    def check(self, a: Aval, b: Aval) -> None:
        if len(a.shape) != 4 or len(b.shape) != 4:
            raise ShapeError(f"{self.name}: takes 4-d operands, got {a.shape} and {b.shape}")
        if a.dtype != b.dtype or dtype_kind(a.dtype) not in "fc":
            raise DTypeError(f"{self.name}: takes two float tensors of one dtype, got {a.dtype} and {b.dtype}")

    def numpy(self, a, b, *, dtype=None, **attrs):
        if a.dtype != np.float16:
            return self.compute(a, b, **attrs)
        made = self.compute(a.astype(np.float32), b.astype(np.float32), **attrs)              # BLAS takes no halfs
        return made.astype(dtype or a.dtype, copy=False)

    def compute(self, a, b, **attrs):
        """`numpy` for float32 and float64: products of matrices whose columns are windows."""
        raise NotImplementedError

    def product(self, y: Aval, w: Aval, groups: int) -> float:
        """`work` where y is what the convolution makes or its cotangent: the windows are copied, then multiplied (0.02 ns a flop)."""
        taps = w.size / max(1, w.shape[0])
        return 3 * y.size / max(1, y.shape[1]) * taps * groups + 0.04 * y.size * taps


_STRIDED = dict(stride=(2, 1), padding=((1, 0), (1, 1)), dilation=(1, 2), groups=1)
_GROUPED = dict(stride=(1, 1), padding=((1, 1), (0, 0)), dilation=(1, 1), groups=2)


class Conv2d(Conv):
    """y[n, o, i, j] = sum over c, p, q of x[n, c, i sh + p dh - top, j sw + q dw - left] w[o, c, p, q]."""
    name, roles = "conv2d", "xwy"
    cases = [(((2, 3, 5, 6), (4, 3, 3, 2)), _STRIDED), (((1, 4, 4, 3), (2, 2, 3, 1)), _GROUPED)]

    def aval(self, x, w, *, stride, padding, dilation, groups, dtype=None):
        self.check(x, w)
        if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ShapeError(f"conv2d: input {x.shape} and weight {w.shape} do not fit with groups={groups}: the weight must be "
                             f"(a multiple of {groups}, {x.shape[1]} / {groups}, kh, kw)")
        size = tuple(out_size(*v) for v in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True))
        if min(size) < 0 or (min(size) == 0 and min(x.shape[2:]) > 0):
            raise ShapeError(f"conv2d: a kernel of {w.shape[2:]} with dilation {dilation} is larger than the input of {x.shape[2:]} "
                             f"with padding {padding}")
        return Aval((x.shape[0], w.shape[0], *size), dtype or x.dtype)

    def compute(self, x, w, *, stride, padding, dilation, groups):
        cols = _windows(x, w.shape[2:], stride, padding, dilation)
        n, c, kh, kw, oh, ow = cols.shape
        taps = c // groups * kh * kw
        if groups == 1 and oh * ow <= FEW < n * oh * ow:
            y = np.matmul(w.reshape(len(w), taps), _side_by_side(cols)).reshape(len(w), n, oh, ow)
            return np.ascontiguousarray(y.swapaxes(0, 1))
        cols = cols.reshape(n, groups, taps, oh * ow)
        return np.matmul(w.reshape(groups, w.shape[0] // groups, taps), cols).reshape(n, w.shape[0], oh, ow)

    def work(self, y, x, w, *, groups, **attrs): return self.product(y, w, groups)

    def vjp(self, ct, y, x, w, *, dtype=None, **attrs):
        ct = rounded(ct, x.dtype)
        return (input_grad(ct, w, size=x.shape[2:], **attrs) if x.needs_grad else None,
                weight_grad(x, ct, size=w.shape[2:], **attrs) if w.needs_grad else None)


class Conv2dInputGrad(Conv):
    """The adjoint of Conv2d in its input: g (N, O, OH, OW), w (O, C / groups, kh, kw) -> (N, C, *size)."""
    name, roles = "conv2d_input_grad", "ywx"
    cases = [(((2, 4, 2, 6), (4, 3, 3, 2)), dict(_STRIDED, size=(5, 6))), (((1, 2, 4, 3), (2, 2, 3, 1)), dict(_GROUPED, size=(4, 3)))]

    def aval(self, g, w, *, stride, padding, dilation, groups, size, dtype=None):
        self.check(g, w)
        if g.shape[1] != w.shape[0] or w.shape[0] % groups:
            raise ShapeError(f"conv_transpose2d: input {g.shape} and weight {w.shape} do not fit with groups={groups}: the weight must be "
                             f"({g.shape[1]}, out / {groups}, kh, kw)")
        expected = tuple(out_size(*v) for v in zip(size, w.shape[2:], stride, padding, dilation, strict=True))
        if expected != g.shape[2:]:
            raise ShapeError(f"conv_transpose2d: an output of {size} does not belong to an input of {g.shape[2:]} "
                             f"(a convolution would make it {expected})")
        return Aval((g.shape[0], w.shape[1] * groups, *size), dtype or g.dtype)

    def compute(self, g, w, *, stride, padding, dilation, groups, size):
        n, o, oh, ow = g.shape
        _, c, kh, kw = w.shape
        reach = [d * (k - 1) for d, k in zip(dilation, (kh, kw), strict=True)]
        edges = tuple([(r - p[0], s + p[0] - m) for r, p, s, m in zip(reach, padding, size, (oh, ow), strict=True)])
        if groups == 1 and stride == (1, 1) and o <= c and w.size <= g.size and min(*edges[0], *edges[1]) >= 0:
            turned = w[:, :, ::-1, ::-1].swapaxes(0, 1)         # the convolution with it writes each element once
            return REGISTRY["conv2d"].numpy(g, turned, stride=stride, padding=edges, dilation=dilation, groups=1)
        if groups == 1 and oh * ow <= FEW < n * oh * ow:
            cols = np.matmul(w.reshape(o, c * kh * kw).T, _side_by_side(g)).reshape(c, kh, kw, n, oh, ow).transpose(3, 0, 1, 2, 4, 5)
        else:
            cols = np.matmul(w.reshape(groups, o // groups, c * kh * kw).swapaxes(1, 2), g.reshape(n, groups, o // groups, oh * ow))
            cols = cols.reshape(n, c * groups, kh, kw, oh, ow)
        (top, bottom), (left, right) = padding
        out = np.zeros((n, c * groups, size[0] + top + bottom, size[1] + left + right), g.dtype)
        for p in range(kh):
            for q in range(kw):
                at, to = p * dilation[0], q * dilation[1]
                out[:, :, at:at + oh * stride[0]:stride[0], to:to + ow * stride[1]:stride[1]][:, :, :oh, :ow] += cols[:, :, p, q]
        return np.ascontiguousarray(out[:, :, top:top + size[0], left:left + size[1]])

    def work(self, y, g, w, *, groups, **attrs): return self.product(g, w, groups)

    def vjp(self, ct, y, g, w, *, size, dtype=None, **attrs):
        ct = rounded(ct, g.dtype)
        return (conv(ct, w, **attrs) if g.needs_grad else None, weight_grad(ct, g, size=w.shape[2:], **attrs) if w.needs_grad else None)


class Conv2dWeightGrad(Conv):
    """The adjoint of Conv2d in its weight: x (N, C, H, W), g (N, O, OH, OW) -> (O, C / groups, *size)."""
    name, roles = "conv2d_weight_grad", "xyw"
    cases = [(((2, 3, 5, 6), (2, 4, 2, 6)), dict(_STRIDED, size=(3, 2))), (((1, 4, 4, 3), (1, 2, 4, 3)), dict(_GROUPED, size=(3, 1)))]

    def aval(self, x, g, *, stride, padding, dilation, groups, size):
        self.check(x, g)
        expected = tuple(out_size(*v) for v in zip(x.shape[2:], size, stride, padding, dilation, strict=True))
        if x.shape[0] != g.shape[0] or expected != g.shape[2:] or x.shape[1] % groups or g.shape[1] % groups:
            raise ShapeError(f"conv2d_weight_grad: input {x.shape} and output gradient {g.shape} do not fit for a kernel of {size}")
        return Aval((g.shape[1], x.shape[1] // groups, *size), x.dtype)

    def compute(self, x, g, *, stride, padding, dilation, groups, size):
        cols = _windows(x, size, stride, padding, dilation)
        n, c, kh, kw, oh, ow = cols.shape
        o, taps = g.shape[1], c // groups * kh * kw
        if groups == 1 and o * taps > (o + taps) * oh * ow:     # a matrix for each image is more than the images
            return np.matmul(_side_by_side(g), _side_by_side(cols).T).reshape(o, c, kh, kw)
        cols = cols.reshape(n, groups, taps, oh * ow)
        g = g.reshape(n, groups, o // groups, oh * ow)
        found = np.matmul(cols, g.swapaxes(2, 3)).sum(axis=0, dtype=x.dtype)
        return np.ascontiguousarray(found.swapaxes(1, 2)).reshape(o, c // groups, kh, kw)

    def work(self, y, x, g, *, groups, **attrs): return self.product(g, y, groups)

    def vjp(self, ct, y, x, g, *, size, **attrs):
        return (input_grad(g, ct, size=x.shape[2:], **attrs) if x.needs_grad else None, conv(x, ct, **attrs) if g.needs_grad else None)


def _integer_conv(x: Node, w: Node, *, stride: Pair, padding: Padding, dilation: Pair, groups: int) -> Any:
    """The convolution of integers, which wrap: a sum of products over windows."""
    (n, c), (o, _, kh, kw) = x.shape[:2], w.shape
    x = mv.pad(x, (0, 0, padding[0][0], padding[1][0]), (0, 0, padding[0][1], padding[1][1]))
    for d, size in ((2, kh), (3, kw)):
        x = bind(REGISTRY["unfold"], (x,), {"dim": d, "size": size, "step": stride[d - 2], "gap": dilation[d - 2]})
    x = mv.reshape(x, (n, groups, 1, c // groups, *x.shape[2:]))
    w = mv.reshape(w, (1, groups, o // groups, c // groups, 1, 1, kh, kw))
    y: Node = bind(REGISTRY["sum"], (x * w,), {"dim": (3, 6, 7)})
    return mv.reshape(y, (n, o, *y.shape[3:]))


def _integer_input_grad(g: Node, w: Node, *, size: tuple[int, ...], stride: Pair, padding: Padding, dilation: Pair, groups: int) -> Any:
    """The adjoint of `_integer_conv` in its input: the convolution of g, spread out by the stride, with the reversed kernel."""
    (o, c), kernel = w.shape[:2], w.shape[2:]
    w = mv.flip(mv.permute(mv.reshape(w, (groups, o // groups, c, *kernel)), (0, 2, 1, 3, 4)), (3, 4))
    spread = mv.pad(g, (0,) * 4, (0,) * 4, (0, 0, stride[0] - 1, stride[1] - 1))
    edges = []
    for d, (n, k, p, gap) in enumerate(zip(size, kernel, padding, dilation, strict=True)):
        low = gap * (k - 1) - p[0]
        edges.append((low, n - (spread.shape[2 + d] + low - gap * (k - 1))))
    cut = [(max(0, -a), max(0, -b)) for a, b in edges]
    spread = mv.slice_(spread, (0, 0, cut[0][0], cut[1][0]),
                       (*spread.shape[:2], *(s - b for s, (_, b) in zip(spread.shape[2:], cut, strict=True))), (1,) * 4)
    (top, bottom), (left, right) = ((max(0, a), max(0, b)) for a, b in edges)
    return _integer_conv(spread, mv.reshape(w, (groups * c, o // groups, *kernel)), stride=(1, 1), padding=((top, bottom), (left, right)),
                         dilation=dilation, groups=groups)


def conv(x: Node, w: Node, **attrs: Any) -> Node:
    """The convolution of a node with a weight."""
    if dtype_kind(x.dtype) not in "fc":
        return _integer_conv(x, w, **attrs)  # type: ignore[no-any-return]
    return bind(REGISTRY["conv2d"], (x, w), attrs)


def input_grad(g: Node, w: Node, *, size: tuple[int, ...], **attrs: Any) -> Node:
    """The adjoint of `conv` in its input."""
    if dtype_kind(g.dtype) not in "fc":
        return _integer_input_grad(g, w, size=tuple(size), **attrs)  # type: ignore[no-any-return]
    return bind(REGISTRY["conv2d_input_grad"], (g, w), {**attrs, "size": tuple(size)})


def weight_grad(x: Node, g: Node, *, size: tuple[int, ...], **attrs: Any) -> Node:
    """The adjoint of `conv` in its weight."""
    return bind(REGISTRY["conv2d_weight_grad"], (x, g), {**attrs, "size": tuple(size)})


# ------------------------------------------------------------------------------------------------------- torch's functions


def per_dim(name: str, what: str, value: Any, n: int, least: int = 1) -> tuple[int, ...]:
    """`value` (an integer or n of them) as n integers."""
    try:
        out = tuple(index(v) for v in (value if isinstance(value, (tuple, list)) else (value,)))
    except TypeError:
        out = ()
    if len(out) == 1:
        out *= n
    if len(out) != n or any(not least <= v < 1 << 63 for v in out):
        raise ArgumentError(f"{name}: {what} must be an integer of at least {least}, or {n} of them, got {value!r}")
    return out


def _padding(name: str, padding: Any, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[Pair, ...]:
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ArgumentError(f"{name}: padding='same' needs stride 1, got {stride}")
        gaps = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((g // 2, g - g // 2) for g in gaps)
    if isinstance(padding, str):
        raise ArgumentError(f"{name}: padding must be numbers, 'same' or 'valid', got {padding!r}")
    return tuple((p, p) for p in per_dim(name, "padding", padding, len(kernel), 0))


def _batched(name: str, input: Any, weight: Any, n: int) -> tuple[Node, Node, bool]:
    """(N, C, *spatial) and the weight, of one dtype and as 2-d images; and whether the input came without its batch dimension."""
    if not isinstance(input, Node) or not isinstance(weight, Node) or weight.ndim != n + 2 or input.ndim not in (n + 1, n + 2):
        shapes = " and ".join(str(getattr(a, "shape", type(a).__name__)) for a in (input, weight))
        few = isinstance(input, Node) and input.ndim == n
        raise ShapeError(f"{name}: takes an input of {n + 2} dimensions (N, C, spatial) or {n + 1}, and a weight of {n + 2}, got {shapes}"
                         f"{'; input.unsqueeze(0) has one channel' if few else ''}")
    x, w = common_dtype([input, weight])
    if x.dtype.kind == "b":
        raise DTypeError(f"{name}: takes an input and a weight of numbers, got {input.dtype} and {weight.dtype}; use x.float()")
    if 0 in w.shape[2:]:
        raise ShapeError(f"{name}: the kernel of the weight {weight.shape} is empty")
    alone = x.ndim == n + 1
    x = mv.reshape(x, (1, *x.shape)) if alone else x
    if n == 1:
        x, w = (mv.reshape(v, (*v.shape[:2], 1, v.shape[2])) for v in (x, w))
    return x, w, alone


def _finished(name: str, y: Node, bias: Node | None, n: int, alone: bool) -> Node:
    if bias is not None:
        if bias.shape != y.shape[1:2]:
            raise ShapeError(f"{name}: bias {bias.shape} must be ({y.shape[1]},), one number for each channel of the result")
        if dtypes.category(bias.dtype) > dtypes.category(y.dtype):
            raise DTypeError(f"{name}: the bias is {bias.dtype}, the result {y.dtype}; cast one of them")
        y = plus(y, mv.reshape(bias, (*bias.shape, 1, 1)))
    shape = y.shape if n == 2 else (*y.shape[:2], y.shape[3])
    return mv.reshape(y, shape[1:] if alone else shape)


def _convolution(name: str, n: int, input: Node, weight: Node, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Node:
    x, w, alone = _batched(name, input, weight, n)
    steps, gaps = per_dim(name, "stride", stride, n), per_dim(name, "dilation", dilation, n)
    edges = _padding(name, padding, w.shape[4 - n:], steps, gaps)
    if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        last = input.shape[-1] == w.shape[1] * groups
        raise ShapeError(f"{name}: input {input.shape} and weight {weight.shape} do not fit with groups={groups}: the input has "
                         f"{x.shape[1]} channels, the weight takes {w.shape[1]} per group"
                         f"{f'; where channels are last, use input.movedim(-1, {0 if alone else 1})' if last else ''}")
    for size, k, e, d in zip(x.shape[4 - n:], w.shape[4 - n:], edges, gaps, strict=True):
        if out_size(size, k, 1, e, d) < 1:
            raise ShapeError(f"{name}: a kernel of {k} (dilation {d}) is larger than the padded input, {size} + {e[0]} + {e[1]}; pad more")
    one = 2 - n
    y = conv(x, w, stride=(1,) * one + steps, padding=((0, 0),) * one + edges, dilation=(1,) * one + gaps, groups=groups)
    return _finished(name, y, bias, n, alone)


def _transposed(name: str, n: int, input: Node, weight: Node, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int,
                dilation: Any) -> Node:
    x, w, alone = _batched(name, input, weight, n)
    steps, gaps = per_dim(name, "stride", stride, n), per_dim(name, "dilation", dilation, n)
    edges, extra = per_dim(name, "padding", padding, n, 0), per_dim(name, "output_padding", output_padding, n, 0)
    if groups < 1 or x.shape[1] != w.shape[0] or w.shape[0] % groups:
        raise ShapeError(f"{name}: input {input.shape} and weight {weight.shape} do not fit with groups={groups}: the weight must be "
                         f"({x.shape[1]}, out / groups, kernel)")
    if any(e >= max(s, d) for e, s, d in zip(extra, steps, gaps, strict=True)):
        raise ArgumentError(f"{name}: output_padding {extra} must be smaller than stride {steps} or dilation {gaps}")
    kernel = w.shape[4 - n:]
    # Output padding gives back what padding has cut off at the end. Beyond that no tap reaches: less than a stride more belongs to the
    # same convolution, the rest is padded.
    cut = tuple(max(0, p - e) for p, e in zip(edges, extra, strict=True))
    more = tuple(max(0, e - p) for p, e in zip(edges, extra, strict=True))
    size = tuple((m - 1) * s - p - c + d * (k - 1) + 1 + min(e, s - 1)
                 for m, s, p, c, d, k, e in zip(x.shape[4 - n:], steps, edges, cut, gaps, kernel, more, strict=True))
    if min(size) < 1:
        raise ShapeError(f"{name}: padding {edges} leaves nothing of the result ({size})")
    one = 2 - n
    y = input_grad(x, w, size=(1,) * one + size, stride=(1,) * one + steps, padding=((0, 0),) * one + tuple(zip(edges, cut, strict=True)),
                   dilation=(1,) * one + gaps, groups=groups)
    y = mv.pad(y, (0,) * 4, (0,) * (4 - n) + tuple(max(0, e - s + 1) for e, s in zip(more, steps, strict=True)))
    return _finished(name, y, bias, n, alone)


@functional
@on_nodes
def conv1d(input: Array, weight: Array, bias: Array = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Array:
    """input (N, C, L) or (C, L), weight (O, C / groups, k), bias (O) -> (N, O, L'). padding: numbers, "same" or "valid".

    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.conv1d(tg.ones(1, 1, 4), tg.ones(1, 1, 2))
    """
    return _convolution("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@functional
@on_nodes
def conv2d(input: Array, weight: Array, bias: Array = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Array:
    """input (N, C, H, W) or (C, H, W), weight (O, C / groups, kh, kw), bias (O) -> (N, O, H', W'). padding: numbers, "same" or "valid".

    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.conv2d(tg.ones(1, 1, 3, 3), tg.ones(1, 1, 2, 2))
    """
    return _convolution("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@functional
@on_nodes
def conv_transpose1d(input: Array, weight: Array, bias: Array = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
                     groups: int = 1, dilation: Any = 1) -> Array:
    """The adjoint of conv1d in its input: input (N, C, L), weight (C, O / groups, k) -> (N, O, (L - 1) s - 2 p + d (k - 1) + op + 1).

    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.conv_transpose1d(tg.ones(1, 1, 4), tg.ones(1, 1, 2))
    """
    return _transposed("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@functional
@on_nodes
def conv_transpose2d(input: Array, weight: Array, bias: Array = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
                     groups: int = 1, dilation: Any = 1) -> Array:
    """The adjoint of conv2d in its input: input (N, C, H, W), weight (C, O / groups, kh, kw) -> (N, O, H', W').

    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.conv_transpose2d(tg.ones(1, 1, 3, 3), tg.ones(1, 1, 2, 2))
    """
    return _transposed("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation)
