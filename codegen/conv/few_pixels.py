"""Convolutions whose results have few pixels, and their gradients, as matrix products on CPUs. Start at `few_pixels`.

A tile of the direct kernel is pixels of one image (see `layout`). Where these do not fill a vector, some of its lanes compute nothing, and
all weights are read again for each image. So the images of a batch are lines of one product, which is summed over channels and taps. (The
last layers of a network; 512 channels of 2 x 2 pixels, 8 images, vectors of 16: 0.3 of the time, the gradients 0.04 and 0.2.)
"""

from __future__ import annotations

from tracegrad.codegen.conv.problem import Window
from tracegrad.codegen.kernel.index.varying import any_vary
from tracegrad.codegen.kernel.ir.vectors import lanes
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.substitution import replaced
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import matmul, swap_last
from tracegrad.ops.primitives.windows import overlapped, windows
from tracegrad.support.dtypes import is_half
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning


def few_pixels(graph: Graph, target: Target) -> Graph:
    """The graph with such convolutions as products of matrices."""
    return replaced(graph, lambda node: node.fn.family == "conv" and _suits(node, target),
                    lambda node, *operands: _MADE[node.fn.name](node, Window.of(node), *operands))


def _suits(node: Node, target: Target) -> bool:
    """Whether an image is at most a vector of pixels, and the weights take the time, not the windows that are copied."""
    if not target.traits.long_items or is_half(node.dtype) or any_vary():         # (between two kernels halves would be rounded)
        return False
    v = Window.of(node)
    pixels = v.oh * v.ow
    few = v.groups == 1 and v.n > 0 and 0 < pixels <= lanes(node.dtype, target)
    return few and v.o * v.c * v.kh * v.kw >= tuning().conv_weights * pixels**2


def _rows(y: Node) -> Node:
    """(N, O, OH, OW) as a matrix with a row for each pixel of each image."""
    return mv.reshape(mv.permute(y, (0, 2, 3, 1)), (y.aval.size // y.shape[1], y.shape[1]))


def _windows(node: Node, v: Window, x: Node) -> Node:
    """The same of the window that each pixel of the result sees: channels and taps."""
    (top, bottom), (left, right) = node.attrs["padding"]
    x = mv.pad(x, (0, 0, top, left), (0, 0, bottom, right))
    x = windows(x, 2, v.kh, v.stride[0], v.dilation[0])                            # (N, C, OH, W, kh)
    x = windows(x, 3, v.kw, v.stride[1], v.dilation[1])                            # (N, C, OH, OW, kh, kw)
    return mv.reshape(mv.permute(x, (0, 2, 3, 1, 4, 5)), (v.n * v.oh * v.ow, v.c * v.kh * v.kw))


def _conv(node: Node, v: Window, x: Node, w: Node) -> Node:
    y = matmul(mv.reshape(w, (v.o, v.c * v.kh * v.kw)), swap_last(_windows(node, v, x)))
    return mv.permute(mv.reshape(y, (v.o, v.n, v.oh, v.ow)), (1, 0, 2, 3))


def _input_grad(node: Node, v: Window, g: Node, w: Node) -> Node:
    parts = matmul(_rows(g), mv.reshape(w, (v.o, v.c * v.kh * v.kw)))
    parts = mv.permute(mv.reshape(parts, (v.n, v.oh, v.ow, v.c, v.kh, v.kw)), (0, 3, 1, 2, 4, 5))
    (top, bottom), (left, right) = node.attrs["padding"]
    x = overlapped(parts, 3, left + v.w + right, v.stride[1], v.dilation[1])
    x = overlapped(x, 2, top + v.h + bottom, v.stride[0], v.dilation[0])
    return mv.narrow(mv.narrow(x, 2, top, v.h), 3, left, v.w)


def _weight_grad(node: Node, v: Window, x: Node, g: Node) -> Node:
    return mv.reshape(matmul(swap_last(_rows(g)), _windows(node, v, x)), node.shape)


_MADE = {"conv2d": _conv, "conv2d_input_grad": _input_grad, "conv2d_weight_grad": _weight_grad}
