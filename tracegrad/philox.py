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
