"""What a convolution is to the generators: sizes, operands and the epilogue by callback. Start at `Window` and `Taps`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import gcd
from typing import Protocol

from tracegrad.codegen.kernel.statements import Parameter
from tracegrad.codegen.kernel.vectors import Emit, Term
from tracegrad.codegen.matmul.problem import DType, Epilogue
from tracegrad.plan import Target

Pair = tuple[int, int]


class Load(Protocol):
    def __call__(self, emit: Emit, n: Term, c: Term, y: Term, x: Term, /) -> str:
        """The C expression of element (n, c, y, x) in the compute dtype; may emit statements first. Never called out of bounds."""


class Write(Protocol):
    def __call__(self, emit: Emit, n: Term, c: Term, y: Term, x: Term, value: str, width: int, /) -> None:
        """Emits the statements that store `value` (`width` lanes) as elements (n, c, y, x .. x + width - 1)."""


@dataclass(frozen=True)
class Array:
    """A four-dimensional operand: an image (n, c, y, x) or weights (o, c, ky, kx).

    strided: (pointer name, the four strides in elements) if it is a plain buffer of the compute dtype.
    """

    load: Load
    params: tuple[Parameter, ...]
    strided: tuple[str, tuple[int, int, int, int]] | None = None


Store = Epilogue[Write]


@dataclass(frozen=True)
class Window:
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

    def taps(self, axis: int, f: int) -> range:
        """The taps along `axis` through which y sees pixels f, f + stride, ... of x: every (stride / gcd(stride, dilation))th, or none."""
        stride, dilation, size = self.stride[axis], self.dilation[axis], (self.kh, self.kw)[axis]
        step = stride // gcd(stride, dilation)
        first = next((t for t in range(min(step, size)) if (f + self.padding[axis] - t * dilation) % stride == 0), size)
        return range(first, size, step)


class LoadWeight(Protocol):
    def __call__(self, emit: Emit, g: Term, o: Term, c: Term, ky: Term, kx: Term, /) -> str:
        """The C expression of the weight of group g from its input channel c to its output channel o at tap (ky, kx)."""


@dataclass(frozen=True)
class Weights:
    """The weights of a `Taps`. strided: (pointer name, offset, strides of group, output channel, input channel, ky, kx)."""

    load: LoadWeight
    params: tuple[Parameter, ...]
    strided: tuple[str, int, tuple[int, int, int, int, int]] | None = None


@dataclass(frozen=True)
class Taps:
    """out[n,g,o,y,x] = sum over c, ky, kx of w[g,o,c,ky,kx] * in[n,g,c, y * stride + ky * dilation - padding, ...]; zeros outside `in`.

    `c` and `o` are channels of one group; `padding` may be negative.
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

    @property
    def flops(self) -> int:
        return 2 * self.n * self.groups * self.o * self.out[0] * self.out[1] * self.c * self.size[0] * self.size[1]

    @property
    def bytes(self) -> int:
        images = self.n * self.groups * (self.c * self.image[0] * self.image[1] + self.o * self.out[0] * self.out[1])
        return (images + self.groups * self.o * self.c * self.size[0] * self.size[1]) * self.dtype.itemsize
