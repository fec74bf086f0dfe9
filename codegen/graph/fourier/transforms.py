"""Fourier transforms as kernels: of CPUs' vectors (`vectors_cpu.py`), and for devices with memory of their own. Start at `in_kernels`.

A transform of n = a b points is one of a points over the columns of an a x b matrix, factors exp(-2 pi i j k / n), and one of b points
over its rows (J. Cooley, J. Tukey, 1965; the result comes out in order, as Stockham has it, because each step writes another array). Where
work-groups have local memory, a transform of up to some thousand points is one kernel, a longer one two (`lines_gpu.py`). Elsewhere
those of up to DIRECT points are products with the matrix of the factors. Sizes with a large prime factor are convolutions of a power of
two (L. Bluestein, "A linear filtering approach to the computation of the discrete Fourier transform", 1970). What stands before a
transform is fused with it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.graph.complex_pairs import parts
from tracegrad.codegen.graph.fourier.lines_gpu import LINES, halves, shape_of
from tracegrad.codegen.graph.fourier.turned import turned
from tracegrad.codegen.graph.fourier.vectors_cpu import Vectors, factor, pays
from tracegrad.codegen.graph.rewrite import op
from tracegrad.config import config
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, data
from tracegrad.graph.substitution import replaced
from tracegrad.ops.primitives.contraction import matmul
from tracegrad.ops.primitives.movement import concat, flip, narrow, pad, permute, reshape
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Target

DIRECT = 32                                 # points of a transform that is one product
_DFT, _REAL_DFT, _HALF_DFT = (REGISTRY[n] for n in ("dft", "real_dft", "half_dft"))


def in_kernels(graph: Graph, target: Target) -> Graph:
    """The graph without transforms, where the device does not share the host's memory (or config.fourier says "kernels").

    Elsewhere it is without those that vectors do (`vectors_cpu.py`), and the host's read and write arrays as they lie (`turned`).
    """
    wanted = config.fourier == "kernels" or (config.fourier != "host" and not target.host_memory)
    transforms = (_DFT, _REAL_DFT, _HALF_DFT)
    if not [node for node in graph if node.fn in transforms]:
        return graph
    if config.fourier != "host" and target.traits.vectors:
        graph = replaced(graph, lambda node: _is_transform(node) and pays(node, target), Vectors().made)
    if not wanted:
        return turned(graph, transforms)
    return replaced(graph, _is_transform, _Composer(target).composed)


def _is_transform(node: Node) -> bool:
    return node.fn in (_DFT, _REAL_DFT, _HALF_DFT) and node.aval.size > 0


class _Composer:
    """Makes transforms of nodes that kernels compute. Numbers are complex nodes in arrays (outer, n, inner), transformed along n."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tables: dict[Any, Node] = {}

    def table(self, *of: Any) -> Node:
        """Factors as a constant of the plan, one for all transforms (see `_table`)."""
        if of not in self.tables:
            array = _table(*of)
            self.tables[of] = data(Aval(array.shape, array.dtype), array)
        return self.tables[of]

    def composed(self, node: Node, x: Node) -> Node:
        attrs, rank = node.attrs, len(x.shape)
        if node.fn is _DFT:
            y = x
            dims = [d + rank for d in attrs["dims"]]
            for d in dims:
                scale = factor(attrs["scale"], prod(x.shape[e] for e in dims)) if d == dims[-1] else 1.0
                y = self.along(y, d, attrs["inverse"], scale)
            return y
        d = attrs["dim"] + rank
        if node.fn is _REAL_DFT:
            scale = factor(attrs["scale"], x.shape[d])
            return self.along(cast(x, dtypes.complex_of(x.dtype)), d, False, scale, node.shape[d])
        n = attrs["n"]
        rest = (n - 1) // 2                   # elements that are conjugates of others
        x = narrow(x, d, 0, n // 2 + 1)
        if rest:
            x = concat([x, flip(op("conj", narrow(x, d, 1, rest)), (d,))], d)
        return self.along(x, d, True, factor(attrs["scale"], n), real=True)

    def along(self, x: Node, d: int, backwards: bool, scale: float, keep: int = 0, real: bool = False) -> Node:
        """The sums of complex numbers along dimension d, times scale. keep: so many of them (0: all); real: their real parts."""
        shape, n = x.shape, x.shape[d]
        y = self.points(reshape(x, (prod(shape[:d]), n, prod(shape[d + 1:]))), backwards, scale, keep or n, real)
        return reshape(y, (*shape[:d], keep or n, *shape[d + 1:]))

    def points(self, x: Node, backwards: bool, scale: float, keep: int, real: bool) -> Node:
        """The same of an array (outer, n, inner), along n."""
        outer, n, inner = x.shape
        if n > 1:
            if self.fits(n, outer * inner, x.dtype):
                return self.lines(x, backwards, scale, keep, real)
            x = self.bluestein(x, backwards) if not _direct(n) else self.products(x, backwards)
        y = narrow(x, 1, 0, keep)
        y = y if scale == 1.0 else op("mul", y, const(scale, y.dtype))
        return op("real", y) if real else y

    def fits(self, n: int, lines: int, dtype: DType) -> bool:
        """Whether work-groups do it in their local memory, in several kernels if need be."""
        if not self.target.local_memory:
            return False
        real = dtypes.real_of(dtype)
        if shape_of(n, False, lines, real, self.target) is not None:
            return True
        found = halves(n, lines, real, self.target)
        return found is not None and self.fits(found[1], lines * found[0], dtype)

    # -- in work-groups

    def lines(self, x: Node, backwards: bool, scale: float, keep: int, real: bool) -> Node:
        outer, n, inner = x.shape
        dtype = dtypes.real_of(x.dtype)
        if shape_of(n, inner > 1, outer * inner, dtype, self.target) is not None:
            return self.step(x, (outer, keep, inner), n, inner, inner, keep * inner, backwards, scale, real)
        found = halves(n, outer * inner, dtype, self.target)
        if found is None:                     # (one column at a time, where there is no room for several)
            return self.step(x, (outer, keep, inner), n, inner, inner, keep * inner, backwards, scale, real)
        a, b = found                          # j = j1 b + j2, k = k1 + a k2
        y = self.step(x, (outer * a, b, inner), a, b * inner, b * inner, n * inner, backwards, 1.0, False, n, inner)
        if shape_of(b, True, outer * a * inner, dtype, self.target) is not None:
            return self.step(y, (outer, keep, inner), b, inner, a * inner, keep * inner, backwards, scale, real)
        y = reshape(self.lines(y, backwards, scale, b, real), (outer, a, b, inner))
        return narrow(reshape(permute(y, (0, 2, 1, 3)), (outer, n, inner)), 1, 0, keep)

    def step(self, x: Node, shape: tuple[int, ...], n: int, read: int, write: int, most: int, backwards: bool, scale: float, real: bool,
             whole: int = 0, apart: int = 1) -> Node:
        """One kernel: see `FourierLines`."""
        dtype = dtypes.real_of(x.dtype)
        tables = [self.table(n, n, 1, dtype)]
        if whole:
            size = 1 << (whole.bit_length() + 1) // 2
            tables += [self.table(whole, size, 1, dtype), self.table(whole, -(-whole // size), size, dtype)]
        y = bind(LINES, (op("real", x), op("imag", x), *tables), dict(
            shape=shape, n=n, read=read, write=write, most=most, scale=scale, backwards=backwards, real=real, whole=whole, apart=apart))
        return y if real else op("complex", *parts(y))

    # -- by products

    def products(self, x: Node, backwards: bool) -> Node:
        outer, n, inner = x.shape
        rows = reshape(permute(x, (0, 2, 1)), (outer * inner, n))
        return permute(reshape(_rows(rows, backwards), (outer, inner, n)), (0, 2, 1))

    def bluestein(self, x: Node, backwards: bool) -> Node:
        """By jk = (j² + k² - (k - j)²) / 2: a convolution with exp(pi i j² / n)."""
        n = x.shape[1]
        size = 1 << (2 * n - 2).bit_length()
        chirp, spectrum = (_constant(c.reshape(1, -1, 1), x) for c in _chirps(n, size, backwards))
        y = pad(op("mul", x, chirp), (0, 0, 0), (0, size - n, 0))
        y = self.points(y, False, 1.0, size, False)
        y = self.points(op("mul", y, spectrum), True, 1.0, n, False)
        return op("mul", y, chirp)


def _direct(n: int) -> bool:
    """Whether it is products of matrices up to DIRECT x DIRECT."""
    return n <= DIRECT or _smooth(n)


def _rows(x: Node, backwards: bool) -> Node:
    """Of each row of a matrix (m, n), by products."""
    m, n = x.shape
    if n <= DIRECT:
        return matmul(x, _constant(_factors(n, n, n, backwards), x)) if n > 1 else x
    a = next(k for k in range(DIRECT, 1, -1) if n % k == 0)
    b = n // a                                # j = j1 b + j2, k = k1 + a k2
    columns = reshape(permute(reshape(x, (m, a, b)), (0, 2, 1)), (m * b, a))
    y = reshape(_rows(columns, backwards), (m, b, a))
    y = op("mul", permute(y, (0, 2, 1)), _constant(_factors(n, a, b, backwards), x))
    y = reshape(_rows(reshape(y, (m * a, b)), backwards), (m, a, b))
    return reshape(permute(y, (0, 2, 1)), (m, n))


def _smooth(n: int) -> bool:
    for p in (2, 3, 5, 7):
        while n % p == 0:
            n //= p
    return n == 1


@memoize(64)
def _factors(n: int, rows: int, columns: int, backwards: bool) -> Any:
    """exp(-2 pi i j k / n) for j < rows, k < columns, exact: multiples of 2 pi are taken out before."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % n
    return np.exp((2j if backwards else -2j) * np.pi * turns / n)


@memoize(64)
def _chirps(n: int, size: int, backwards: bool) -> tuple[Any, Any]:
    """exp(-pi i j² / n) (n), and the spectrum of its conjugate, wrapped around, divided by size: (size)."""
    j = np.arange(n)
    chirp = np.exp((1j if backwards else -1j) * np.pi * (j * j % (2 * n)) / n)
    wrapped = np.zeros(size, np.complex128)
    wrapped[:n] = chirp.conj()
    wrapped[size - n + 1:] = chirp.conj()[:0:-1]
    return chirp, np.fft.fft(wrapped) / size


@memoize(64)
def _table(n: int, count: int, step: int, dtype: DType) -> Any:
    """The parts (count, 2) of exp(-2 pi i t step / n) for t < count."""
    z = np.exp(-2j * np.pi * (np.arange(count) * step % n) / n)
    return np.stack([z.real, z.imag], -1).astype(dtype)


def _constant(array: Any, like: Node) -> Node:
    """`array` as a constant of the plan, in like's dtype."""
    value: Any = array.astype(like.dtype)
    return data(Aval(value.shape, like.dtype), value)
