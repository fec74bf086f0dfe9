"""How CPU convolutions lay out images: output pixels in vector-wide units, input channels in padded planes. Start at `Units`, `padded`.

A unit is the pixels that one vector register holds: a stretch of one row, or, where rows are narrower than half a vector, several
rows side by side. A padded plane is a copy of one channel with its zeros around it, the columns sorted by their place between
the horizontal strides, so that a unit under any tap is contiguous (or one contiguous stretch for each of its rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tracegrad.codegen.conv.problem import Pair, Source
from tracegrad.codegen.kernel.index.index import Index, bounded
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.vectors import bit_ceil, ceil_div, computed_in, index_type, lanes
from tracegrad.codegen.lower.fused import Fused
from tracegrad.codegen.tile.program import ALONE, Axis, Digit, Element, ElementAt, Fill, Held, Program
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Plain, Target


class Units(Plain):
    """The units of an output of `out` pixels: `rows` rows of `piece` pixels each."""

    out: Pair
    piece: int
    rows: int

    @property
    def width(self) -> int:
        return self.piece * self.rows

    @property
    def covered(self) -> Pair:
        """How many rows and columns they reach over: more than there are where one unit is larger."""
        return max(self.out[0], self.rows), max(self.out[1], self.piece)

    @property
    def across(self) -> int:
        return ceil_div(self.out[1], self.piece)

    @property
    def count(self) -> int:
        return ceil_div(self.out[0], self.rows) * self.across

    def axes(self, unit: Axis) -> tuple[Axis, Axis]:
        """Rows and columns of the output, in tiles that are numbered along `unit`."""
        return (Axis("y", self.out[0], (Digit(Held.REGISTER, self.rows),), self.rows, True, (unit, self.across)),
                Axis("x", self.out[1], (Digit(Held.REGISTER, self.piece),), self.piece, False, (unit, 1)))


def units(out: Pair, dtype: DType, target: Target) -> Units:
    """The units for `out` pixels. (The last ones of a row or column begin early: sums may be computed twice.)"""
    width = lanes(dtype, target)
    piece = min(width, bit_ceil(out[1]))
    return Units(out, piece, min(width // piece, bit_ceil(out[0])))


Read = Callable[[Fused], ElementAt]


def in_place(x: Source, u: Units, reach: Pair, stride: Pair, padding: Pair) -> Read | None:
    """`x` itself as planes, at (image, channel, row, 0, column), if every unit under every tap can be read from it."""
    needed = zip(u.out, stride, reach, x.sizes[2:], strict=True)
    fits = u.covered == u.out and all((n - 1) * s + beyond < size for n, s, beyond, size in needed)
    plain = x.plain() if padding == (0, 0) and stride[1] == 1 and fits and x.stride(3) == 1 else None
    if plain is None:
        return None

    def source(f: Fused, plain: Read = plain) -> ElementAt:
        read = plain(f)
        return lambda n, c, y, phase, x: read(n, c, y, x)

    return source


def padded(channels: int, u: Units, reach: Pair, stride: Pair) -> tuple[int, int, int, int]:
    """The shape of an image's padded planes: channels, rows, places within the stride, columns."""
    height, width = (u.covered[0] - 1) * stride[0] + reach[0] + 1, u.covered[1] + reach[1] // stride[1]
    return channels, height, stride[1], width


def fill(f: Fused, x: Source, axes: Sequence[Axis], shape: Sequence[int], stride: Pair, padding: Pair, to: ElementAt, dtype: DType) -> Fill:
    """Fills padded planes of `shape`. axes: of what tells an image and a channel; the last is that of channels, in `to` and in `x`, if
    there is one, or they are those of the group and of channels in it.
    """
    y = Axis("y", shape[1])
    phase, column = Axis("phase", shape[2], (Digit(Held.REGISTER, shape[2]),)), Axis("x", shape[3])
    computed = x.computed(f)

    def inside(axis: Axis, at: Sequence[Index]) -> range:
        if axis is y:
            return range(max(0, padding[0]), max(0, padding[0], min(axis.size, padding[0] + x.sizes[2])))
        if axis is not column:
            return range(axis.size)
        first = padding[1] - at[-1].constant
        start = min(axis.size, max(0, ceil_div(first, stride[1])))
        return range(start, max(start, min(axis.size, (x.sizes[3] - 1 + first) // stride[1] + 1)))

    def source(n: Index, *at: Index) -> Element:
        *group, channel, y, phase, x_ = at
        channel = group[0] * shape[0] + channel if group else channel
        place = y - padding[0], x_ * stride[1] + phase - padding[1]
        return computed(n, channel, *[bounded(i, 0, size) for i, size in zip(place, x.sizes[2:], strict=True)])

    return Fill((*axes, y, phase, column), source, to, dtype, inside)


def pad(made: list[Kernel], x: Source, name: str, shape: tuple[int, ...], stride: Pair, padding: Pair) -> Read:
    """All channels in padded planes; the kernel that copies them there joins `made`."""
    n, dtype = x.sizes[0], computed_in(x.node.dtype)
    axes = Axis.of_items("n", n, 1), Axis.of_items("channel", shape[0])
    apart = f", columns {shape[2]} apart together." if shape[2] > 1 else "."
    about = f"Copies each channel to a zero-padded plane of {shape[1]} rows of {shape[2] * shape[3]}{apart}"
    return copied(made, x, f"{name}_pad", "padded", (n, *shape), dtype, about, f"pads the input of {name}",
                  lambda f, to: fill(f, x, axes, shape, stride, padding, to, dtype))


def laid_out(
    made: list[Kernel], x: Source, called: str, names: Sequence[str], shape: tuple[int, ...], of: str, about: str, note: str
) -> Read:
    """An array of `shape`, along axes of these names, of the elements of `x`, and 0 beyond; the kernel that copies them joins `made`."""
    dtype = computed_in(x.node.dtype)
    outer = Axis.of_items(names[0], shape[0], 1), Axis.of_items(names[1], shape[1])
    axes = *outer, *[Axis(name, n) for name, n in zip(names[2:], shape[2:], strict=True)]

    def inside(axis: Axis, at: Sequence[Index]) -> range:
        return range(x.sizes[axes.index(axis)])

    return copied(made, x, f"{of}_{called}", called, shape, dtype, about, f"{note} {of}",
                  lambda f, to: Fill(axes, x.computed(f), to, dtype, inside))


def copied(
    made: list[Kernel], x: Source, entry: str, called: str, shape: tuple[int, ...], dtype: DType, about: str, note: str,
    filled: Callable[[Fused, ElementAt], Fill]
) -> Read:
    """An array of `shape` between two kernels that is made of `x`. The kernel that makes it, an item for each index of some axes, joins
    `made`."""
    temp = Temp(f"{entry}_{called}", x.group.anchor, prod(shape), dtype)
    f = Fused(x.group, x.context, index_type(temp.size))
    step = filled(f, f.scratch(temp, called, "out", shape))
    axes = tuple([axis for axis in step.axes if axis.digits and axis.digits[0].held is Held.GLOBAL])
    moved = (temp.size + prod(x.sizes)) * dtype.itemsize
    made.append(f.kernel(Program(axes, ALONE, (step,)), entry, about, 0, moved, note))
    return lambda f: f.scratch(temp, called, "const", shape)
