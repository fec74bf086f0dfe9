"""What a convolution is to the generators: sizes, operands and the epilogue by callback. Start at `Window` and `Taps`."""

from __future__ import annotations

from collections.abc import Hashable
from math import gcd
from typing import Protocol

from tracegrad.codegen.conv.epilogue import DType, Epilogue
from tracegrad.codegen.kernel.statements import Parameter
from tracegrad.codegen.kernel.vectors import Compound, Emit, Term, plus
from tracegrad.support.plan import Plain, Target

Pair = tuple[int, int]


class Load(Protocol):
    def __call__(self, emit: Emit, n: Term, c: Term, y: Term, x: Term, /) -> str:
        """The C expression of element (n, c, y, x) in the compute dtype; may emit statements first. Never called out of bounds."""


class Write(Protocol):
    def __call__(self, emit: Emit, n: Term, c: Term, y: Term, x: Term, value: str, width: int, /) -> None:
        """Emits the statements that store `value` (`width` lanes) as elements (n, c, y, x .. x + width - 1)."""


class Array(Plain):
    """A four-dimensional operand: an image (n, c, y, x) or weights (o, c, ky, kx).

    strided: (pointer name, the four strides in elements) if it is a plain buffer of the compute dtype.
    """

    load: Load
    params: tuple[Parameter, ...]
    strided: tuple[str, tuple[int, int, int, int]] | None = None


Store = Epilogue[Write]


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

    Its tap k is that at k * step + `first` of the kernel, and of pixel i of the phase it sees pixel i + `at` - k * dilation of y. What a
    phase's number, the C text `f`, tells of it is a number where all phases agree.
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

    def first(self, f: str) -> Term:
        if self.step == 1:
            return 0
        place, inverse = plus(f, self.padding % self.stride), pow(self.dilation, -1, self.step)
        divided = f" / {self.common}" * (self.common > 1) + f" * {inverse}" * (inverse > 1)
        return Compound(f"({place}){divided} % {self.step}")

    def at(self, f: str, first: Term) -> Term:
        known = set(self.starts)
        return Compound(f"({plus(f, self.padding, (first, -self.given))}) / {self.stride}") if len(known) > 1 else known.pop()

    def count(self, f: str, first: Term) -> Term:
        known = set(self.counts)
        if len(known) == 1:
            return known.pop()
        number = f"({self.size + self.step - 1} - {first}) / {self.step}" if len(known - {0}) > 1 or self.step > 1 else str(max(known))
        if self.common > 1:
            number = f"({plus(f, self.padding % self.stride)}) % {self.common} == 0 ? {number} : 0"
        return Compound(number)


class LoadWeight(Protocol):
    def __call__(self, emit: Emit, g: Term, o: Term, c: Term, ky: Term, kx: Term, /) -> str:
        """The C expression of the weight of group g from its input channel c to its output channel o at tap (ky, kx)."""


class Weights(Plain):
    """The weights of a `Taps`. strided: (pointer name, offset, strides of group, output channel, input channel, ky, kx)."""

    load: LoadWeight
    params: tuple[Parameter, ...]
    strided: tuple[str, int, tuple[int, int, int, int, int]] | None = None


class Taps(Plain):
    """out[n,g,o,y,x] = sum over c, ky, kx of w[g,o,c,ky,kx] * in[n,g,c, y * stride + ky * dilation - padding, ...]; zeros outside `in`.

    `c` and `o` are channels of one group; `padding` may be negative. phases: it is done for each phase of a strided convolution's gradient,
    and `out` is the largest one's size; the sum is over the taps of `size` that the phase has, where they look: see `Axis`.
    """

    name: str
    n: int
    groups: int
    c: int
    o: int
    image: Pair
    out: Pair
    size: Pair
    stride: Pair
    dilation: Pair
    padding: Pair
    dtype: DType
    x: Array
    w: Weights
    store: Store
    target: Target
    owner: Hashable
    phases: tuple[Axis, Axis] | None = None

    @property
    def taps(self) -> Pair:
        """How many taps a pixel sees at most, along both axes."""
        if self.phases is None:
            return self.size
        y, x = self.phases
        return max(y.counts), max(x.counts)

    @property
    def count(self) -> Pair:
        """How many phases there are, along both axes."""
        return (1, 1) if self.phases is None else (len(self.phases[0].taps), len(self.phases[1].taps))

    @property
    def reach(self) -> Pair:
        """How far the last that a pixel sees lies from the first, along both axes; in all phases, where there are several."""
        if self.phases is None:
            return (self.size[0] - 1) * self.dilation[0], (self.size[1] - 1) * self.dilation[1]
        y, x = (max(axis.starts) + padding for axis, padding in zip(self.phases, self.padding, strict=True))
        return y, x

    @property
    def flops(self) -> int:
        return 2 * self.n * self.groups * self.o * self.out[0] * self.out[1] * self.c * self.size[0] * self.size[1]

    @property
    def bytes(self) -> int:
        images = self.n * self.groups * (self.c * self.image[0] * self.image[1] + self.o * self.out[0] * self.out[1])
        return (images + self.groups * self.o * self.c * self.size[0] * self.size[1]) * self.dtype.itemsize
