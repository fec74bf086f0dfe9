"""What the text generators share: OpenCL type names, vector access, register tiles. Start at `ctype`, `prelude`.

Vectors are read and written through `LOAD(float8, p)` and `STORE(float8, p, v)`, macros that `prelude` defines: `vload8` is
an out-of-line call on some CPU drivers and spills every accumulator; a pointer to an element-aligned vector type is not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import OPENCL, float32, is_half
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning

WIDTHS = (2, 4, 8, 16)
LANES = "0123456789abcdef"


@memoize(None)
def ctype(dtype: np.dtype[Any], width: int = 1) -> str:
    """The OpenCL type of `width` elements of `dtype`: `float`, `float8`."""
    return OPENCL[np.dtype(dtype)] + (str(width) if width > 1 else "")


@memoize(None)
def computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of arithmetic on values of `dtype`. Floats of 16 bits are storage: on every device they are computed as float, as torch's
    CPU kernels do it, because drivers' and our math functions have no good half versions.
    """
    return float32 if is_half(dtype) else dtype


def lanes(dtype: np.dtype[Any], target: Target) -> int:
    """How many elements of `dtype` one vector register holds (OpenCL has no vectors over 16)."""
    return max(1, min(16, target.simd_bytes // np.dtype(dtype).itemsize))


def turns(target: Target) -> int:
    """Of how many vectors, at most, elements that lie in turn are put together or taken apart: each takes an instruction with AVX-512, and
    a few elsewhere. 1: of none, where there are no vectors.
    """
    if not target.traits.vectors:
        return 1
    return tuning().turns if target.simd_bytes >= 64 else min(4, tuning().turns)


ACCESS = {"LOAD": "p", "LOCAL": "p", "STORE": "p, v"}


def prelude(uses: Collection[tuple[str, str]], target: Target) -> list[str]:
    """The LOAD and STORE macros that are in use, each of its types: once in front of a program whose kernels use them."""
    names = {name for name, _ in uses}
    out = [f"#define {name}(V, {given}) {name}_##V({given})" for name, given in ACCESS.items() if name in names]
    using: dict[str, set[str]] = {}
    for name, type_ in uses:
        if name in ACCESS:
            using.setdefault(type_, set()).add(name)
    sizes = {scalar: dtype.itemsize for dtype, scalar in OPENCL.items()
             if not is_half(dtype) and (dtype != np.float64 or target.fp64)}
    for scalar, size in sorted(sizes.items()):
        for width in WIDTHS:
            own = using.get(v := f"{scalar}{width}")
            if not own:
                continue
            if target.clang_builtins:
                aligned = [f"typedef {v} __attribute__((aligned({size}))) {v}_u;"]
                how = {"LOAD": f"(p) (*(__global const {v}_u *)(p))", "STORE": f"(p, v) (*(__global {v}_u *)(p) = (v))"}
            else:
                aligned = []
                how = {"LOAD": f"(p) vload{width}(0, p)", "STORE": f"(p, v) vstore{width}(v, 0, p)"}
            if "LOCAL" in own:
                out.append(f"#define LOCAL_{v}(p) (*(__local {v} *)(p))")
            out += aligned
            out += [f"#define {name}_{v}{text}" for name, text in how.items() if name in own]
    return out


def pieces(first: int, stop: int) -> list[tuple[int, int]]:
    """Lanes first..stop-1 cut into (start, width) with widths 16, 8, 4, 2 and 1: a tail in few stores."""
    out = []
    while first < stop:
        width = bit_floor(stop - first)
        out.append((first, width))
        first += width
    return out


def index_type(*sizes: int) -> str:
    """The C type for indices into buffers of `sizes` elements. (A part of one may end so far behind the last, before it is clipped.)"""
    return "int" if max(sizes, default=0) <= 1 << 30 else "long"


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def bit_floor(n: int) -> int:
    """The largest power of two that is not above n, which is 1 or more."""
    return 1 << (n.bit_length() - 1)


def bit_ceil(n: int) -> int:
    """The least power of two that is not below n, which is 1 or more."""
    return 1 << (n - 1).bit_length()


def register_tile(rows: int, vectors: int, target: Target) -> tuple[int, int]:
    """(rows, vectors) of the accumulator tile that covers `rows` x `vectors` with the least work: 6 x 2 on 16 registers if both are many.

    A step of the inner loop costs three, its multiply-adds, and a quarter for each load; at least its loads, and at least what hides
    the latency of ten multiply-adds. Vectors that end within a cache line cost one more, as the line comes twice. (Fitted to times of
    64x100x1000 and 1000x100x64 in tiles of 4 to 8 rows.) Rows are spread evenly over the tiles.
    """
    best: tuple[int, int, int, int] | None = None
    for v in range(1, min(vectors, 8) + 1):
        limit = min(rows, 8) if v == 1 else min(rows, (target.registers - v - 1) // v)
        if limit < 1 and v <= min(8, target.registers - 2):
            limit = 1
        for r in range(1, limit + 1):
            step = max(4 * r * v + r + v, 4 * (r + v), 40) + 4 * (v * target.simd_bytes % 64 > 0) + 12
            cost = ceil_div(rows, r) * ceil_div(vectors, v) * step
            rank = (cost, r + v, -r, v)
            if best is None or rank < best:
                best = rank
    assert best is not None
    return -best[2], best[3]
