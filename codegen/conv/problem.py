"""What a convolution is: its sizes, and which pixels see which taps. Start at `Window`, `Axis`."""

from __future__ import annotations

from math import gcd

from tracegrad.codegen.kernel.index.index import ZERO, Index, constant
from tracegrad.codegen.kernel.ir.expressions import Infix, Select
from tracegrad.codegen.lower.fused import Fused
from tracegrad.support.plan import Plain

Pair = tuple[int, int]


class Window(Plain):
    """The sizes of a forward convolution: x is (n, c, h, w), w is (o, c / groups, kh, kw).

    `padding` stands in front of the first row and column; `behind`, if it differs, after the last.
    """

    n: int
    c: int
    h: int
    w: int
    o: int
    kh: int
    kw: int
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    behind: Pair | None = None

    @property
    def oh(self) -> int:
        return (self.h + self.padding[0] + (self.behind or self.padding)[0] - self.dilation[0] * (self.kh - 1) - 1) // self.stride[0] + 1

    @property
    def ow(self) -> int:
        return (self.w + self.padding[1] + (self.behind or self.padding)[1] - self.dilation[1] * (self.kw - 1) - 1) // self.stride[1] + 1

    @property
    def phases(self) -> Pair:
        """Places of pixels of x between the strides, along both axes: those at the same one see the same taps."""
        return min(self.stride[0], self.h), min(self.stride[1], self.w)

    @property
    def reach(self) -> Pair:
        """How far the last tap of a window lies from its first, along both axes."""
        return (self.kh - 1) * self.dilation[0], (self.kw - 1) * self.dilation[1]

    def taps(self, axis: int, f: int) -> range:
        """The taps along `axis` through which y sees pixels f, f + stride, ... of x: every (stride / gcd(stride, dilation))th, or none."""
        stride, dilation, size = self.stride[axis], self.dilation[axis], (self.kh, self.kw)[axis]
        step = stride // gcd(stride, dilation)
        first = next((t for t in range(min(step, size)) if (f + self.padding[axis] - t * dilation) % stride == 0), size)
        return range(first, size, step)

    def alone(self, axis: int) -> tuple[int, int, int, int, int]:
        """(first tap, taps, tap step, dilation, padding) of the convolution that yields the pixels of x along an axis with one phase."""
        stride, dilation = self.stride[axis], self.dilation[axis]
        taps, common = self.taps(axis, 0), gcd(stride, dilation)
        if not taps:
            return 0, 0, 1, 1, 0
        return taps[0], len(taps), taps.step, dilation // common, (
            (len(taps) - 1) * (dilation // common) - (self.padding[axis] - taps[0] * dilation) // stride
        )


class Axis(Plain):
    """The taps of each phase f of a stride along an axis (`Window.taps`): every `step`th, `dilation` pixels of y apart.

    Its tap k is that at k * step + k0 of the kernel, and of pixel i of the phase it sees pixel i + i0 - k * dilation of y (see `begin`).
    """

    name: str
    stride: int
    given: int                # the dilation of the forward convolution
    padding: int
    size: int
    taps: tuple[range, ...]

    @classmethod
    def of(cls, v: Window, axis: int) -> Axis:
        return cls("yx"[axis], v.stride[axis], v.dilation[axis], v.padding[axis], (v.kh, v.kw)[axis],
                   tuple(v.taps(axis, f) for f in range(v.phases[axis])))

    @property
    def common(self) -> int:
        return gcd(self.stride, self.given)

    @property
    def step(self) -> int:
        return self.stride // self.common

    @property
    def dilation(self) -> int:
        return self.given // self.common

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(taps) for taps in self.taps)

    @property
    def starts(self) -> tuple[int, ...]:
        """`at` of the phases that have taps."""
        return tuple((f + self.padding - taps.start * self.given) // self.stride for f, taps in enumerate(self.taps) if taps)

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
                count = w.known(w.own(f"t{self.name}"), max(counts) + 1, Select(has, w.at(count), 0)).index
            else:
                count = w.indexed(f"t{self.name}", count)
        f.noted[f"t{self.name}"] = count
