"""Fourier transforms as kernels, for devices with memory of their own: a pass that composes them of products. Start at `in_kernels`.

A transform of n = a b points is one of a points over the columns of an a x b matrix, factors exp(-2 pi i j k / n), and one of b points
over its rows (J. Cooley, J. Tukey, 1965; the result comes out in order, as Stockham has it, because each step writes another array). Up
to DIRECT points it is a product with the matrix of those factors. Sizes with a prime factor above 7 are convolutions of a power of two
(L. Bluestein, "A linear filtering approach to the computation of the discrete Fourier transform", 1970). Products, factors and scales are
nodes like any other, so they fuse with what stands around them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.graph.rewrite import at, op
from tracegrad.config import config
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, data
from tracegrad.ops.primitives.contraction import matmul
from tracegrad.ops.primitives.movement import concat, flip, inverse, narrow, pad, permute, reshape
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.plan import Target

DIRECT = 32                                 # points of a transform that is one product
_DFT, _REAL_DFT, _HALF_DFT = (REGISTRY[n] for n in ("dft", "real_dft", "half_dft"))


def in_kernels(graph: Graph, target: Target) -> Graph:
    """The graph without transforms, where the device does not share the host's memory (or config.fourier says "kernels")."""
    wanted = config.fourier == "kernels" or (config.fourier != "host" and not target.host_memory)
    if not wanted or not any(node.fn in (_DFT, _REAL_DFT, _HALF_DFT) for node in graph):
        return graph

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        with at(node.loc):
            if node.fn in (_DFT, _REAL_DFT, _HALF_DFT) and node.aval.size:
                return _composed(node, operands[0])
            same = all(a is b for a, b in zip(operands, node.operands, strict=True))
            return node if same else bind(node.fn, operands, node.attrs)

    return graph.rebuilt(replace)


def _composed(node: Node, x: Node) -> Node:
    attrs, rank = node.attrs, len(x.shape)
    if node.fn is _DFT:
        y = x
        for d in attrs["dims"]:
            y = _along(y, d + rank, attrs["inverse"])
        return _scaled(y, attrs["scale"], prod(x.shape[d] for d in attrs["dims"]))
    d = attrs["dim"] + rank
    if node.fn is _REAL_DFT:
        whole = _along(cast(x, dtypes.complex_of(x.dtype)), d, False)
        return _scaled(narrow(whole, d, 0, node.shape[d]), attrs["scale"], x.shape[d])
    n = attrs["n"]
    rest = (n - 1) // 2                       # elements that are conjugates of others
    x = narrow(x, d, 0, n // 2 + 1)
    if rest:
        x = concat([x, flip(op("conj", narrow(x, d, 1, rest)), (d,))], d)
    return _scaled(op("real", _along(x, d, True)), attrs["scale"], n)


def _scaled(y: Node, scale: str, n: int) -> Node:
    factor = {"one": 1.0, "root": n ** -0.5, "whole": 1.0 / n}[scale]
    return y if factor == 1.0 else op("mul", y, const(factor, y.dtype))


def _along(x: Node, d: int, backwards: bool) -> Node:
    """The sums of complex numbers along dimension d."""
    order = (*(e for e in range(len(x.shape)) if e != d), d)
    moved = permute(x, order)
    rows = reshape(moved, (prod(moved.shape[:-1]), x.shape[d]))
    return permute(reshape(_rows(rows, backwards), moved.shape), inverse(order))


def _rows(x: Node, backwards: bool) -> Node:
    """Of each row of a matrix (m, n)."""
    m, n = x.shape
    if n == 1:
        return x
    if n <= DIRECT:
        return matmul(x, _constant(_factors(n, n, n, backwards), x))
    a = next((k for k in range(DIRECT, 1, -1) if n % k == 0), 1) if _smooth(n) else 1
    if a == 1:
        return _bluestein(x, backwards)
    b = n // a                                # j = j1 b + j2, k = k1 + a k2
    columns = reshape(permute(reshape(x, (m, a, b)), (0, 2, 1)), (m * b, a))
    y = reshape(_rows(columns, backwards), (m, b, a))
    y = op("mul", permute(y, (0, 2, 1)), _constant(_factors(n, a, b, backwards), x))
    y = reshape(_rows(reshape(y, (m * a, b)), backwards), (m, a, b))
    return reshape(permute(y, (0, 2, 1)), (m, n))


def _bluestein(x: Node, backwards: bool) -> Node:
    """By jk = (j² + k² - (k - j)²) / 2: a convolution with exp(pi i j² / n)."""
    n = x.shape[1]
    size = 1 << (2 * n - 2).bit_length()
    chirp, spectrum = _chirps(n, size, backwards)
    y = op("mul", x, _constant(chirp, x))
    y = _rows(pad(y, (0, 0), (0, size - n)), False)
    y = _rows(op("mul", y, _constant(spectrum, x)), True)
    return op("mul", narrow(y, 1, 0, n), _constant(chirp, x))


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


def _constant(array: Any, like: Node) -> Node:
    """`array` as a constant of the plan, in like's dtype."""
    value: Any = array.astype(like.dtype)
    return data(Aval(value.shape, like.dtype), value)
