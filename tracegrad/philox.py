"""The random bits: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in numpy.

The same bits as the OpenCL helper `tg_philox`: a pure function of a 64-bit key and a 128-bit counter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

UInts = np.ndarray[Any, np.dtype[np.uint32]]

_LOW = np.uint64(0xFFFFFFFF)


def philox_numpy(key: tuple[int, int], counter: UInts) -> UInts:
    """Four random words for each row of four counter words: an array of `counter`'s shape (..., 4), dtype uint32."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(10):
        p = c0 * np.uint64(0xD2511F53)
        q = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (q >> np.uint64(32)) ^ c1 ^ np.uint64(k0), q & _LOW, (p >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p & _LOW
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def philox_block(key_low: Any, key_high: Any, low: Any, high: Any) -> tuple[UInts, ...]:
    """The four words for keys and 64-bit counters given as uint32 arrays (low and high halves), which broadcast together."""
    k0, k1, c0, c1 = (np.asarray(v, np.uint64) for v in (key_low, key_high, low, high))
    c0, c1, k0, k1 = np.broadcast_arrays(c0, c1, k0, k1)
    c2 = c3 = np.zeros_like(c0)
    for _ in range(10):
        p, q = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (q >> np.uint64(32)) ^ c1 ^ k0, q & _LOW, (p >> np.uint64(32)) ^ c3 ^ k1, p & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return tuple(c.astype(np.uint32) for c in (c0, c1, c2, c3))
