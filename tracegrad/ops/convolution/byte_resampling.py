"""interpolate of bytes (uint8), to torch's bit: whole numbers as weights, and bytes between two dimensions. Start at `resampled_bytes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.graph.operators import PUBLIC
from tracegrad.support import dtypes
from tracegrad.support.modes import state

REACH = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}         # mode: how far its filter reaches, in samples


def resampled_bytes(x: Any, sizes: Any, scales: Any, mode: str, align_corners: bool, antialias: bool) -> Any:
    """(N, C, H, W) of uint8 resampled to sizes, first along W; scales are what the user gave, or None. The result is uint8."""
    for d in (3, 2):
        s, out, scale = x.shape[d], sizes[d - 2], scales[d - 2]
        step = ((s - 1) / (out - 1) if out > 1 else 0.0) if align_corners else s / out if scale is None else 1.0 / scale
        rows = (_antialiased if antialias else _between)(s, out, step, mode, align_corners)
        x = _weighted(x, d, rows)
    return x


def _antialiased(size: int, out: int, step: float, mode: str, _: bool) -> list[tuple[int, np.ndarray]]:
    """For each place of the result the first sample that it has a part of, and the weights of that and those behind it."""
    wide = max(step, 1.0)
    rows = []
    for i in range(out):
        centre = step * (i + 0.5)
        first, end = max(int(centre - REACH[mode] * wide + 0.5), 0), min(int(centre + REACH[mode] * wide + 0.5), size)
        t = np.abs((np.arange(first, end) - centre + 0.5) / wide)
        if mode == "bilinear":
            w = np.where(t < 1, 1 - t, 0)
        elif mode == "bicubic":
            w = _keys(t, -0.5)
        else:
            w = np.where(t < 3, np.sinc(t) * np.sinc(t / 3), 0)
        rows.append((first, w / w.sum()))
    return rows


def _between(size: int, out: int, step: float, mode: str, align_corners: bool) -> list[tuple[int, np.ndarray]]:
    """The same of the two or four samples around a place; those outside count to the one at the edge."""
    reach = int(REACH[mode])
    rows = []
    for i in range(out):
        at = i * step if align_corners else (i + 0.5) * step - 0.5
        at = max(at, 0.0) if mode == "bilinear" else at
        low = min(int(np.floor(at)), size - 1)
        t = np.abs(np.arange(1 - reach, reach + 1) - min(max(at - low, 0.0), 1.0))
        place = np.clip(np.arange(low - reach + 1, low + reach + 1), 0, size - 1)
        w = np.zeros(place.max() - place.min() + 1)
        np.add.at(w, place - place.min(), 1 - t if mode == "bilinear" else _keys(t, -0.75))
        rows.append((int(place.min()), w))
    return rows


def _keys(t: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel of 1981 at distances t."""
    return np.where(t <= 1, ((a + 2) * t - (a + 3)) * t * t + 1, np.where(t < 2, (((t - 5) * t + 8) * t - 4) * a, 0))


def _weighted(x: Any, d: int, rows: list[tuple[int, np.ndarray]]) -> Any:
    """The weighted sums along d. Weights are whole numbers over a power of 2: the highest that lets all of them have 16 bits."""
    largest = max(w.max() for _, w in rows)
    bits = 0
    while bits < 22 and int(0.5 + largest * 2.0 ** (bits + 1)) < 1 << 15:
        bits += 1
    taps = max(len(w) for _, w in rows)
    weights, places = np.zeros((len(rows), taps), np.int32), np.zeros((len(rows), taps), np.int64)
    for i, (first, w) in enumerate(rows):
        weights[i, :len(w)] = np.trunc(w * 2.0**bits + np.where(w < 0, -0.5, 0.5))
        places[i, :len(w)] = first + np.arange(len(w))
    picked = x.movedim(d, 0)[_tensor(places, x)].to(dtypes.int32)                           # (out, taps, ...)
    sums = (picked * _tensor(weights, x).reshape(*weights.shape, *[1] * (x.ndim - 1))).sum(1, dtype=dtypes.int32)
    return ((sums + (1 << bits >> 1)) >> bits).clamp(0, 255).to(dtypes.uint8).movedim(0, d)


def _tensor(values: np.ndarray, like: Any) -> Any:
    given = values if state.trace is None else values.tolist()          # a trace takes no arrays of the user's; this is none
    return PUBLIC["tensor"](given, dtype=values.dtype, device=like.device)
