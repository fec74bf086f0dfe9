"""What a convolution is: its sizes, which pixels see which taps, and the sum over these. Start at `Window`, `Taps`, `weight_grad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod

from tracegrad.codegen.kernel.index.index import ZERO, Index, bounded, constant, ravel, unravel
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Select
from tracegrad.codegen.kernel.ir.vectors import ceil_div, computed_in, index_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.fused import Fused, Strided, as_it_lies, plainly
from tracegrad.codegen.matmul.problem import Operand, Product
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.program import ElementAt
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Plain, Target

Pair = tuple[int, int]
Address = tuple[Index, Sequence[Expression]]          # of an element, and what has to hold for it to be there


class Window(Plain):
    """The sizes of a forward convolution: x is (n, c, h, w), the weights (o, c / groups, kh, kw), the result (n, o, oh, ow).

    `padding` stands in front of the first row and column.
    """

    n: int
    c: int
    h: int
    w: int
    o: int
    kh: int
    kw: int
    oh: int
    ow: int
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @classmethod
    def of(cls, node: Node) -> Window:
        """The convolution that a node is, or is a gradient of."""
        a, b = node.operands
        x, w, y = {"conv2d": (a, b, node), "conv2d_input_grad": (node, b, a), "conv2d_weight_grad": (a, node, b)}[node.fn.name]
        (n, c, height, width), (o, _, kh, kw), (_, _, oh, ow), attrs = x.shape, w.shape, y.shape, node.attrs
        (top, _), (left, _) = attrs["padding"]
        return cls(n, c, height, width, o, kh, kw, oh, ow, attrs["stride"], (top, left), attrs["dilation"], attrs["groups"])

    @property
    def flops(self) -> int:
        """Of the sum, and of those of its gradients: a multiply-add for each tap of each window."""
        return 2 * self.n * self.o * self.oh * self.ow * (self.c // self.groups) * self.kh * self.kw

    @property
    def phases(self) -> Pair:
        """Places of pixels of x between the strides, along both axes: those at the same one see the same taps."""
        return min(self.stride[0], self.h), min(self.stride[1], self.w)

    @property
    def reach(self) -> Pair:
        """How far the last tap of a window lies from its first, along both axes."""
        return (self.kh - 1) * self.dilation[0], (self.kw - 1) * self.dilation[1]


class Axis(Plain):
    """The taps along an axis through which y sees pixels f, f + stride, ... of x, of each phase f: every `step`th, `dilation` pixels of y
    apart, or none.

    Its tap k is that at k * step + k0 of the kernel, and of pixel i of the phase it sees pixel i + i0 - k * dilation of y (see `begin`).
    common: the divisor of the stride and of the dilation that is `given`, of the forward convolution; counts: of each phase's taps; starts,
    before: of the phases that have taps, `i0`, and how far in front of the first pixel of y the phase's pixel 0 reaches, at most.
    """

    name: str
    stride: int
    given: int
    padding: int
    size: int
    taps: tuple[range, ...]
    common: int
    step: int
    dilation: int
    counts: tuple[int, ...]
    starts: tuple[int, ...]
    before: int

    @classmethod
    def of(cls, v: Window, axis: int) -> Axis:
        stride, given, padding, size = v.stride[axis], v.dilation[axis], v.padding[axis], (v.kh, v.kw)[axis]
        common = gcd(stride, given)
        step = stride // common

        def seen(f: int) -> range:
            return range(next((t for t in range(min(step, size)) if (f + padding - t * given) % stride == 0), size), size, step)

        found = tuple(seen(f) for f in range(v.phases[axis]))
        starts = tuple((f + padding - taps.start * given) // stride for f, taps in enumerate(found) if taps)
        before = max([0, *(-(f + padding - taps[-1] * given) // stride for f, taps in enumerate(found) if taps)])
        return cls("yx"[axis], stride, given, padding, size, found, common, step, given // common, tuple(map(len, found)), starts, before)

    def begin(self, f: Fused, phase: Index) -> None:
        """Declares a phase's first tap along an axis, the pixel of y that it sees from pixel 0, and the number of taps."""
        w, first = f.writer, ZERO
        if self.step > 1:
            first = (phase + self.padding % self.stride) // self.common * pow(self.dilation, -1, self.step) % self.step
        first = f.noted[f"k{self.name}0"] = w.indexed(f"k{self.name}0", first)
        starts, counts = set(self.starts), set(self.counts)
        seen = (phase + self.padding - first * self.given) // self.stride if len(starts) > 1 else constant(min(starts, default=0))
        f.noted[f"i{self.name}0"] = w.indexed(f"i{self.name}0", seen)
        count = constant(max(counts))
        if len(counts) > 1:
            if len(counts - {0}) > 1 or self.step > 1:
                count = (self.size + self.step - 1 - first) // self.step
            if self.common > 1:
                has = Infix("==", w.at((phase + self.padding % self.stride) % self.common), 0)
                count = w.known(f"t{self.name}", max(counts) + 1, Select(has, w.at(count), 0)).index
            else:
                count = w.indexed(f"t{self.name}", count)
        f.noted[f"t{self.name}"] = count


class Source(Plain):
    """A node of a group as a convolution reads it: `flat` is the element at some indices, each below one of `sizes`."""

    group: Group
    context: Context
    node: Node
    sizes: tuple[int, ...]
    flat: Callable[..., Index]

    def plain(self) -> Callable[[Fused], ElementAt] | None:
        """Its elements where they are stored, if they lie there as they are computed with."""
        found = plainly(self.strided(), self.node)
        return None if found is None else lambda f: f.plain(found)

    def strided(self) -> Strided | None:
        """How it lies in memory, if it is a stored array."""
        return as_it_lies(self.group, self.context, self.node, self.sizes, self.flat)

    def stride(self, axis: int) -> int:
        """How far apart it is stored along an axis; 0 if that is nothing regular."""
        found = self.strided()
        return 0 if found is None else 1 if self.sizes[axis] == 1 else found.strides[axis]

    def computed(self, f: Fused) -> ElementAt:
        """Its elements, with all that is computed where they are read."""
        return f.operand(self.node, lambda f, at: (self.flat(*at), ()))


class Sum(Plain):
    """A convolution, or one of its gradients: a sum of products, which a group of the schedule ends in."""

    group: Group
    context: Context
    name: str
    v: Window

    @property
    def dtype(self) -> DType:
        return computed_in(self.group.anchor.dtype)

    @property
    def target(self) -> Target:
        return self.context.target

    @property
    def bytes(self) -> int:
        """What is read and written once."""
        return sum(node.aval.size for node in (*self.group.anchor.operands, self.group.anchor)) * self.dtype.itemsize

    def source(self, node: Node) -> Source:
        """An operand, at the indices of its dimensions."""
        return Source(self.group, self.context, node, node.shape, lambda *at: ravel(at, node.shape))


class Taps(Sum):
    """out[n,g,o,y,x] = sum over c, ky, kx of w[g,o,c,ky,kx] * in[n,g,c, y * stride + ky * dilation - padding, ...]; zeros outside `in`.

    `c` and `o` are channels of one group; `padding` may be negative. phases: it is done for each phase of a strided convolution's gradient,
    and `out` is the largest one's size; the sum is over the taps that the phase has, `taps` at most, where they look. reach: how far the
    last pixel that is seen lies from the first, along both axes.
    """

    c: int
    o: int
    out: Pair
    taps: Pair
    reach: Pair
    stride: Pair
    dilation: Pair
    padding: Pair
    x: Source
    w: Source
    phases: tuple[Axis, ...] = ()

    @classmethod
    def of(cls, sum_: Sum) -> Taps:
        """What a convolution is, or its gradient by the image: output channels by pixels, or input channels by those of a phase."""
        v, (first, second) = sum_.v, sum_.group.anchor.operands
        c, o, x = v.c // v.groups, v.o // v.groups, sum_.source(first)

        def weights(sizes: tuple[int, ...], at: Callable[..., Sequence[Index]]) -> Source:
            return Source(sum_.group, sum_.context, second, (v.groups, *sizes), lambda *k: ravel(at(*k), second.shape))

        given = sum_.group, sum_.context, sum_.name, v
        if sum_.group.anchor.fn.name == "conv2d":
            w = weights((o, c, v.kh, v.kw), lambda g, i, k, ky, kx: (g * o + i, k, ky, kx))
            return cls(*given, c, o, (v.oh, v.ow), (v.kh, v.kw), v.reach, v.stride, v.dilation, v.padding, x, w)
        phases = down, right = Axis.of(v, 0), Axis.of(v, 1)
        if v.phases != (1, 1):
            w = weights((c, o, v.kh, v.kw), lambda g, i, k, ky, kx: (g * o + k, i, ky, kx))
            out = ceil_div(v.h, v.stride[0]), ceil_div(v.w, v.stride[1])
            taps, reach = (max(down.counts), max(right.counts)), (max(down.starts) + down.before, max(right.starts) + right.before)
            dilation, padding = (-down.dilation, -right.dilation), (down.before, right.before)
            return cls(*given, o, c, out, taps, reach, (1, 1), dilation, padding, x, w, phases)
        ty, tx = down.taps[0], right.taps[0]
        reach = (len(ty) - 1) * down.dilation, (len(tx) - 1) * right.dilation
        w = weights((c, o, len(ty), len(tx)), lambda g, i, k, ky, kx: (g * o + k, i, ty[-1] - ky * ty.step, tx[-1] - kx * tx.step))
        top, left = (beyond - axis.starts[0] for beyond, axis in zip(reach, phases, strict=True))
        return cls(*given, o, c, (v.h, v.w), (len(ty), len(tx)), reach, (1, 1), (down.dilation, right.dilation), (top, left), x, w)

    @property
    def image(self) -> Pair:
        return self.x.sizes[2], self.x.sizes[3]

    @property
    def count(self) -> Pair:
        """How many phases there are, along both axes."""
        return (len(self.phases[0].taps), len(self.phases[1].taps)) if self.phases else (1, 1)

    @property
    def index(self) -> str:
        """The type that indices need."""
        return index_type(2 * prod(self.x.sizes), prod(self.w.sizes), self.group.anchor.aval.size)


def apart(f: Fused, x: Index, names: Sequence[str], sizes: Sequence[int]) -> list[Index]:
    """The coordinates, called so, of an element of an array of these sizes."""
    return [f.writer.indexed(name, i) for name, i in zip(names, unravel(x, sizes), strict=True)]


def inside(f: Fused, at: Sequence[Index], image: Pair) -> tuple[list[Index], list[Expression]]:
    """The pixel (iy, ix), and what has to hold for it to be in the image."""
    places: list[Index] = []
    tests: list[Expression] = []
    for name, x, size in zip(("iy", "ix"), at, image, strict=True):
        x = f.writer.indexed(name, x)
        tests += [Infix(">=", f.writer.at(x), 0)] * (x.lo < 0) + [Infix("<", f.writer.at(x), size)] * (x.hi >= size)
        places.append(bounded(x, 0, size))
    return places, tests


def weight_grad(s: Sum) -> Product:
    """The gradient by the weights as a product: output channels by the weights of one, added up over the pixels of all images."""
    v, result = s.v, s.group.anchor
    og, cg = v.o // v.groups, v.c // v.groups
    x, gy = map(s.source, result.operands)
    taps, pixels = (cg, v.kh, v.kw), (v.n, v.oh, v.ow)

    def grad(f: Fused, at: Sequence[Index]) -> Address:
        g, line, k = at
        n, oy, ox = apart(f, k, ("n", "oy", "ox"), pixels)
        return gy.flat(n, g * og + line, oy, ox), ()

    def pixel(f: Fused, at: Sequence[Index]) -> Address:
        g, line, k = at
        channel, *tap = apart(f, line, ("channel", "ky", "kx"), taps)
        n, *place = apart(f, k, ("n", "oy", "ox"), pixels)
        seen = [i * by + k * d - p for i, by, k, d, p in zip(place, v.stride, tap, v.dilation, v.padding, strict=True)]
        places, tests = inside(f, seen, (v.h, v.w))
        return x.flat(n, g * cg + channel, *places), tests

    return Product(
        s.group, s.context, s.name, v.groups, v.n * v.oh * v.ow, s.dtype, Operand("a", og, gy.node, grad, False),
        Operand("b", cg * v.kh * v.kw, x.node, pixel, False), result,
        lambda f, at: (ravel((at[0] * og + at[1], at[2]), (v.o, cg * v.kh * v.kw)), ()), s.bytes)
