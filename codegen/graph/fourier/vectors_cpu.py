"""The operation of `lower/fourier/vectors_cpu.py`: transforms by a CPU's vectors, a work-item each. Start at `VectorTransform`.

`stages` says by which butterflies, `factors` what these are multiplied by, `pays` for which transforms; `Vectors` makes it of them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.graph.complex_pairs import parts
from tracegrad.codegen.graph.fourier.lines_gpu import radices
from tracegrad.codegen.graph.rewrite import op
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import Primitive, bind, data
from tracegrad.ops.primitives.movement import narrow, reshape
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning

FEW_COLUMNS = 2             # beside whole vectors, that are done one by one: a spectrum of real numbers has one
ALONE = 1 << 16             # points of columns up to which one core does them where there are more


class VectorTransform(Primitive):
    """Sums over j < n of x[j] exp(-2 pi i j k / n) along the middle of (outer, n, inner), times scale. re and im: the parts of x.

    of: "complex"; "real", where x[j] is number 2 j of 2 n real ones, plus i times the one behind it, and the result the transform of
    these, n + 1 numbers; "half", the other way round: re and im have n + 1 numbers, the result is real and has 2 n. backwards: with +.
    factors: see `factors`. The result is (outer, n or n + 1, inner, 2) or (outer, 2 n, inner).
    """

    family, differentiable, expensive = "fourier", False, True

    def __init__(self) -> None:
        super().__init__()
        self.name = "fourier_vectors"  # type: ignore[misc]

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        x, n, of = operands[0], attrs["n"], attrs["of"]
        outer, _, inner = x.shape
        shape = (outer, 2 * n, inner) if of == "half" else (outer, n + (of == "real"), inner, 2)
        return Aval(shape, x.dtype)

    def numpy(self, re: Any, im: Any, factors: Any, *, n: int, of: str, scale: float, backwards: bool) -> Any:
        z = re + 1j * im
        if of == "half":
            return (np.fft.irfft(z, 2 * n, axis=1) * (2 * n * scale)).astype(re.dtype)
        if of == "real":
            y = np.fft.rfft(np.stack([re, im], 2).reshape(re.shape[0], 2 * n, -1), axis=1)
        else:
            y = np.fft.ifft(z, axis=1) * n if backwards else np.fft.fft(z, axis=1)
        return np.stack([y.real * scale, y.imag * scale], -1).astype(re.dtype)


VECTORS = VectorTransform()


@memoize(256)
def stages(n: int, rows: bool) -> tuple[int, ...] | None:
    """The radices of the butterflies, in their order, for n points; None: kernels of vectors do no such transforms.

    Rows begin with 8 or 4, whose results are exchanged between vectors (16: 0.9 to 1.1 of the time, and twice the compiler's).
    """
    largest = tuning().fourier_butterfly
    if not rows:
        return radices(n, largest)
    for first in (8, 4):
        if n % first == 0 and n // first >= 4 and (rest := radices(n // first, largest)) is not None:
            return (first, *rest)
    return None


def factors(n: int, of: str, rows: bool, dtype: DType) -> Any:
    """exp(-2 pi i t / n) for all stages, one behind the other: where butterfly p of m has r points, its points k > 0 are multiplied by
    those of t = p k. In the first stage of rows these are vectors: (k, part, p); elsewhere (p, k, part). Then, of real numbers,
    exp(-pi i k / n), (part, k) for k <= n.
    """
    found, left = [], n
    for number, r in enumerate(stages(n, rows) or ()):
        m = left // r
        z = _turns(np.outer(np.arange(1, r), np.arange(m)), left)
        parts = np.stack([z.real, z.imag], 1)                # (k, part, p)
        if m > 1:
            found.append(parts if rows and number == 0 else parts.transpose(2, 0, 1))
        left = m
    if of != "complex":
        z = _turns(np.arange(n + 1), 2 * n)
        found.append(np.stack([z.real, z.imag]))
    return np.concatenate([each.reshape(-1) for each in found] or [np.zeros(1)]).astype(dtype)


def _turns(t: Any, n: int) -> Any:
    return np.exp(-2j * np.pi * (t % n) / n)


def pays(node: Node, target: Target) -> bool:
    """Whether vectors do a transform, and in less time than the host's function: where the points that a work-item keeps are few."""
    real, shape = node.fn.name != "dft", node.operands[0].shape
    itemsize = dtypes.real_of(node.dtype).itemsize
    for dim in (node.attrs["dim"],) if real else node.attrs["dims"]:
        d = dim + len(shape)
        n, inner = node.attrs["n"] if node.fn.name == "half_dft" else shape[d], prod(shape[d + 1:])
        if (real and n % 2) or 1 < inner < 4 or target.simd_bytes < 2 * itemsize:
            return False
        n = n // 2 if real else n
        left = inner % (target.simd_bytes // itemsize)
        if left > FEW_COLUMNS and prod(shape[:d]) < target.cores and n * inner > ALONE:
            return False
        if n < 2 or stages(n, inner == 1) is None or 4 * n * min(inner * itemsize, target.simd_bytes) > tuning().fourier_kept:
            return False
    return True


class Vectors:
    """Makes these operations of the nodes that are worth it; equal tables are one."""

    def __init__(self) -> None:
        self.tables: dict[Any, Node] = {}

    def made(self, node: Node, x: Node) -> Node:
        """What `node` computes, of x."""
        attrs, rank = node.attrs, len(x.shape)
        if node.fn.name == "dft":
            dims = [d + rank for d in attrs["dims"]]
            for d in dims:
                shape = x.shape
                scale = factor(attrs["scale"], prod(shape[e] for e in dims)) if d == dims[-1] else 1.0
                z = reshape(x, (prod(shape[:d]), shape[d], prod(shape[d + 1:])))
                y = self.bound(op("real", z), op("imag", z), shape[d], "complex", scale, attrs["inverse"])
                x = reshape(op("complex", *parts(y)), shape)
            return x
        d, shape = attrs["dim"] + rank, x.shape
        outer, inner = prod(shape[:d]), prod(shape[d + 1:])
        if node.fn.name == "real_dft":
            h = shape[d] // 2
            z = reshape(x, (outer, h, 2, inner))
            re, im = (reshape(narrow(z, 2, k, 1), (outer, h, inner)) for k in (0, 1))
            y = self.bound(re, im, h, "real", factor(attrs["scale"], shape[d]), False)
            return reshape(op("complex", *parts(y)), node.shape)
        n = attrs["n"]
        z = reshape(narrow(x, d, 0, n // 2 + 1), (outer, n // 2 + 1, inner))
        return reshape(self.bound(op("real", z), op("imag", z), n // 2, "half", factor(attrs["scale"], n), True), node.shape)

    def bound(self, re: Node, im: Node, n: int, of: str, scale: float, backwards: bool) -> Node:
        key = n, of, re.shape[2] == 1, re.dtype
        if key not in self.tables:
            array = factors(*key)
            self.tables[key] = data(Aval(array.shape, array.dtype), array)
        return bind(VECTORS, (re, im, self.tables[key]), dict(n=n, of=of, scale=scale, backwards=backwards))


def factor(scale: str, n: int) -> float:
    """By what a transform of n points is multiplied."""
    return {"one": 1.0, "root": float(n ** -0.5), "whole": 1.0 / n}[scale]
