"""Random numbers as a pure function of seed and offset: Philox-4x32-10 (Salmon et al., SC 2011), the same stream on every device.

Number i of a draw uses the counter offset + i: an n-element draw advances the stream by n whatever its dtype or distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, prod
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import Elementwise
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota, named
from tracegrad.ops.arrays.pointwise import cos, log, sqrt
from tracegrad.ops.primitives import movement as mv
from tracegrad.support import dtypes, random_state
from tracegrad.support.dtypes import DType, dtype_kind
from tracegrad.support.mersenne.rejection import rrelu_slopes
from tracegrad.support.philox import philox_block


class Philox(Elementwise):
    """Word `word` (0 to 3) of the block that Philox-4x32-10 makes of a 64-bit key and a 64-bit counter, each as two uint32 (low, high)."""
    name, makes, nin, kinds, differentiable, expensive, cost = "philox", "random_bits", 4, "u", False, True, 20.0
    cases = [(tuple(np.array(v, np.uint32) for v in ([1, 2], 3, [4, 5], 6)), dict(word=word)) for word in range(4)]

    def numpy(self, key_low, key_high, low, high, *, word): return philox_block(key_low, key_high, low, high)[word]
    def opencl(self, key_low, key_high, low, high, *, word): return f"tg_philox{word}({key_low}, {key_high}, {low}, {high})"


def _words(seed: Node, offset: Node, shape: tuple[int, ...], count: int) -> list[Node]:
    """`count` random uint32 for each element of `shape`."""
    counter = named(mv.reshape(iota((prod(shape),), 0, dtypes.int64), shape) + offset, "counter")
    low, high = _halves(counter, "counter")
    key_low, key_high = _halves(cast(seed, dtypes.int64), "seed")
    return [named(bind(REGISTRY["philox"], (key_low, key_high, low, high), {"word": word}), "word") for word in range(count)]


def _halves(x: Any, role: str) -> list[Node]:
    halves = (x & 0xFFFFFFFF, f"{role}_low"), (x >> 32, f"{role}_high")
    return [named(cast(named(half, name), dtypes.uint32), name) for half, name in halves]


def _unit(words: list[Any], dtype: DType, above_zero: bool = False) -> Any:
    """Random words as multiples of 2**-24 (float32; 2**-53 for float64, 2**-11 for float16, 2**-8 for bfloat16) in [0, 1), or in (0, 1]."""
    extra = 1.0 if above_zero else 0.0
    if dtype == dtypes.float64:
        return (cast(words[0] >> 5, dtype) * float(2**26) + cast(words[1] >> 6, dtype) + extra) * 2.0**-53
    bits = dtypes.finfo(dtype).nmant + 1
    unit = named(cast(named(words[0] >> (32 - bits), "bits"), dtypes.float32), "whole")
    return cast(named((unit + extra if above_zero else unit) * 2.0**-bits, "uniform"), dtype)


def drawn_in_order(order: Sequence[int] | None, shape: Sequence[int], draw: Callable[[tuple[int, ...]], Any]) -> Any:
    """An array of that shape whose numbers `draw`, which is given a shape, makes as they lie in memory: `order` has the dimensions from the

    slowest to the fastest (None: as they stand). torch draws so for views and in place.
    """
    if order is None:
        return draw(tuple(shape))
    return np.ascontiguousarray(draw(tuple([shape[d] for d in order])).transpose(np.argsort(order)))


def kept(like: Any, p: float, shape: tuple[int, ...] | None = None) -> Any:
    """Which elements of `like` a dropout of probability p keeps: a tensor of bools, of `shape` where that is another one.

    torch draws for elements as they lie in memory, which of a transposed view is another order.
    """
    host = random_state.torchs(prod(like.shape if shape is None else shape))
    if host is not None:
        order = like._memory_order() if shape is None and hasattr(like, "_memory_order") else None
        found = drawn_in_order(order, like.shape if shape is None else shape, lambda laid: host.bernoulli(laid, 1.0 - p))
        return like._of_own(found) if hasattr(like, "_of_own") else PUBLIC["asarray"](found, device=like.device, copy=False)
    keep = PUBLIC["rand"](like.shape if shape is None else shape, dtype=dtypes.float32, device=like.device) >= p
    node = getattr(keep, "_n", None)
    if type(node) is Node:                                   # (of another kind, where nothing is recorded)
        named(node, "keep")
    return keep


def slopes(x: Any, low: float, high: float) -> Any:
    """For each element a number between low and high, of x's dtype. torch's are 1 where x is positive, and draws none there."""
    host = random_state.torchs(prod(x.shape))
    if host is not None:
        drawn = rrelu_slopes(host, np.asarray(x.detach().numpy() <= 0), low, high)
        return PUBLIC["asarray"](drawn.astype(x.dtype), device=x.device, copy=False)
    return PUBLIC["rand"](x.shape, dtype=x.dtype, device=x.device) * (high - low) + low


def _float(name: str, dtype: DType) -> DType:
    if dtype_kind(dtype) != "f":
        raise DTypeError(f"{name}: makes floats, not {dtype}; use randint for integers")
    return dtype


def uniform(seed: Node, offset: Node, shape: tuple[int, ...], dtype: DType) -> Any:
    """Uniform in [0, 1): 24 random bits (float64: 53, float16: 11, bfloat16: 8)."""
    return _unit(_words(seed, offset, shape, 2 if _float("rand", dtype) == dtypes.float64 else 1), dtype)


def normal(seed: Node, offset: Node, shape: tuple[int, ...], dtype: DType) -> Node:
    """Standard normal, by Box and Muller (1958): sqrt(-2 log u) cos(2 pi v). 16 bits are computed as float32."""
    inner = dtypes.float32 if dtypes.is_half(_float("randn", dtype)) else dtype
    words = _words(seed, offset, shape, 4 if inner == dtypes.float64 else 2)
    half = len(words) // 2
    radius = sqrt(log(_unit(words[:half], inner, above_zero=True)) * -2.0)
    return cast(radius * cos(_unit(words[half:], inner) * (2.0 * pi)), dtype)


def randint(seed: Node, offset: Node, low: int, high: int, shape: tuple[int, ...], dtype: DType) -> Node:
    """Integers from low (inclusive) to high (exclusive). Up to 2**31 values by scaling 32 bits, more by 63 bits modulo their number."""
    count = high - low
    if count <= 0 or count >= 2**63:
        raise ArgumentError(f"randint: low must be below high, and their distance below 2**63, got {low} and {high}")
    drawn = [cast(w, dtypes.int64) for w in _words(seed, offset, shape, 1 if count <= 2**31 else 2)]
    return cast(_below(drawn, count) + const(low, dtypes.int64), dtype)


def _below(word: Sequence[Any], count: int) -> Any:
    return (word[0] * count) >> 32 if count <= 2**31 else (((word[0] >> 1) << 32) | word[1]) % count
