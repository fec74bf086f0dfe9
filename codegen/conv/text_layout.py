"""How CPU convolutions lay out images: output pixels in vector-wide units, input channels in padded planes. Start at `Units`, `Planes`.

A unit is the pixels that one vector register holds: a stretch of one row, or, where rows are narrower than half a vector, several
rows side by side. A padded plane is a copy of one channel with its zeros around it, the columns sorted by their place between
the horizontal strides, so that a unit under any tap is contiguous (or one contiguous stretch for each of its rows).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.codegen.conv.text_problem import Array, Pair
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import item
from tracegrad.codegen.kernel.statements import Parameter
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import Compound, Emit, Term, ceil_div, ctype, inside, lanes, load, plus
from tracegrad.support.plan import Plain, Target


class Units(Plain):
    """The units of an output of `out` pixels: `rows` rows of `piece` lanes each. Overlapping: a last unit of a row starts early."""

    out: Pair
    piece: int
    rows: int
    overlapping: bool

    @property
    def width(self) -> int:
        return self.piece * self.rows

    @property
    def across(self) -> int:
        return ceil_div(self.out[1], self.piece)

    @property
    def count(self) -> int:
        return ceil_div(self.out[0], self.rows) * self.across

    @property
    def exact(self) -> bool:
        """Whether the units cover the output with nothing over."""
        return self.out[1] % self.piece == 0 and self.out[0] % self.rows == 0

    def y(self, unit: Term) -> Term:
        """The first row of unit number `unit`."""
        row = unit if self.across == 1 else Compound(f"({unit}) / {self.across}")
        return Compound(f"({row}) * {self.rows}") if self.rows > 1 else row

    def x(self, unit: Term) -> Term:
        """The first column of unit number `unit`."""
        if self.across == 1:
            return 0
        exact = not self.overlapping or self.out[1] % self.piece == 0
        return inside(Compound(f"({unit}) % {self.across} * {self.piece}"), self.out[1] - self.piece, exact)

    def load(self, dtype: np.dtype[Any], address: Term, row: int, private: bool = False) -> str:
        """The expression that reads a unit at `address`, with rows `row` elements apart."""
        if self.rows == 1:
            return load(dtype, self.width, address, private)
        parts = [load(dtype, self.piece, plus(address, r * row), private) for r in range(self.rows)]
        return f"({ctype(dtype, self.width)})({', '.join(parts)})"


def units(out: Pair, dtype: np.dtype[Any], target: Target, overlapping: bool) -> Units:
    """The units for `out` pixels; `overlapping` is for sums that may compute a pixel twice (it is stored once)."""
    width = lanes(dtype, target)
    piece = min(width, 1 << (out[1] - 1).bit_length())
    rows = min(width // piece, 1 << (out[0] - 1).bit_length())
    return Units(out, piece, rows, overlapping and out[1] >= piece)


class Planes(Plain):
    """Where the channels of the input lie: strides in elements, `phase` between the columns' places within the stride."""

    pointer: str
    params: tuple[Parameter, ...]
    image: int
    channel: int
    row: int
    phase: int = 0
    height: int = 0
    width: int = 0
    phases: int = 1


def in_place(x: Array, image: Pair, u: Units, reach: Pair, stride: Pair, padding: Pair) -> Planes | None:
    """`x` itself as planes, if every unit under every tap can be read from it."""
    fits = u.out[0] % u.rows == 0 and (u.overlapping or u.out[1] % u.piece == 0)
    fits = fits and all((out - 1) * s + beyond < n for out, s, beyond, n in zip(u.out, stride, reach, image, strict=True))
    if x.strided is None or padding != (0, 0) or stride[1] != 1 or x.strided[1][3] != 1 or not fits:
        return None
    pointer, (n, c, y, _) = x.strided
    return Planes(pointer, x.params, n, c, y)


def padded(channels: int, u: Units, reach: Pair, stride: Pair) -> Planes:
    """The layout of padded planes for `channels` channels; pointer and parameters are the caller's to fill in."""
    height = (ceil_div(u.out[0], u.rows) * u.rows - 1) * stride[0] + reach[0] + 1
    width = (u.out[1] if u.overlapping else u.across * u.piece) + reach[1] // stride[1]
    row = stride[1] * width
    return Planes("padded", (), channels * height * row, height * row, row, width, height, width, stride[1])


def fill(emit: Emit, x: Array, image: Pair, p: Planes, stride: Pair, padding: Pair, n: Term, channel: Term, to: str) -> None:
    """Emits the loops that fill the plane at pointer `to` with channel `channel` of image `n` and zeros around it."""
    emit(f"for (int y = 0; y < {p.height}; y++) {{")
    stretches = []
    for phase in range(p.phases):
        first = min(p.width, max(0, ceil_div(padding[1] - phase, stride[1])))
        stop = max(first, min(p.width, (image[1] - 1 + padding[1] - phase) // stride[1] + 1))
        stretches.append((phase * p.width, first, stop))
    outside = [f"y < {padding[0]}"] if padding[0] > 0 else []
    outside += [f"y >= {image[0] + padding[0]}"] if p.height > image[0] + padding[0] else []
    if outside:
        emit(f"if ({' || '.join(outside)}) {{")
        _zeros(emit, "y", p.row, to, 0, p.row)
        emit("} else {")
    for start, first, stop in stretches:
        _zeros(emit, "y", p.row, to, start, start + first)
        if stop > first:
            emit(f"for (int x = {first}; x < {stop}; x++) {{")
            column = plus(("x", stride[1]), start // max(1, p.width) - padding[1])
            value = x.load(emit, n, channel, plus("y", -padding[0]), column)
            emit(f"{to}[{plus(('y', p.row), 'x', start)}] = {value};")
            emit("}")
        _zeros(emit, "y", p.row, to, start + stop, start + p.width)
    if outside:
        emit("}")
    emit("}")


def _zeros(emit: Emit, y: Term, row: int, to: str, first: int, stop: int) -> None:
    if stop > first + 1:
        emit(f"for (int x = {first}; x < {stop}; x++) {{")
        emit(f"{to}[{plus((y, row), 'x')}] = 0;")
        emit("}")
    elif stop > first:
        emit(f"{to}[{plus((y, row), first)}] = 0;")


def pad(
    name: str, owner: Any, x: Array, n: int, channels: int, image: Pair, p: Planes, stride: Pair, padding: Pair, dtype: np.dtype[Any]
) -> tuple[Planes, Kernel]:
    """The kernel that copies all channels into padded planes, and the planes with their pointer."""
    temp = Temp(f"{name}_padded", owner, n * p.image, dtype)
    params = merge(x.params, (temp.buffer("padded", "out"),))
    apart = f", columns {p.phases} apart together." if p.phases > 1 else "."
    emit = Text(f"{name}_pad", f"Copies each channel to a zero-padded plane of {p.height} rows of {p.row}{apart}", params)
    emit(f"const int c = {item(0)}, n = {item(1)};")
    offset = plus((Compound("(size_t)n") if n * p.image >> 31 else "n", p.image), ("c", p.channel))
    emit(f"__global {ctype(dtype)} *plane = padded + {offset};")
    fill(emit, x, image, p, stride, padding, "n", "c", "plane")
    moved = (temp.size + n * channels * image[0] * image[1]) * dtype.itemsize
    kernel = emit.kernel((channels, n), (1, 1), bytes=moved, note=f"pads the input of {name}")
    made = Planes("padded", (temp.buffer("padded", "const"),), p.image, p.channel, p.row, p.phase, p.height,
                  p.width, p.phases)
    return made, kernel
