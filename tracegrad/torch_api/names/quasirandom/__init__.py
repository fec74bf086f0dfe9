"""torch.quasirandom: torch's Sobol sequences, point by point, from scipy's direction numbers."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import PUBLIC
from tracegrad.support import dtypes
from tracegrad.tensors.tensor import Tensor, from_own
from tracegrad.torch_api.random_numbers import Generator


class SobolEngine:
    """Points of a Sobol sequence in `dimension` dimensions, each coordinate in [0, 1): the points that torch draws.

    scramble: a linear matrix scramble and a digital shift, both random. seed: of these; None: the default generator's. Needs scipy.

    Point k is the exclusive or of direction numbers, one for each bit that is set in k's Gray code. (Joe and Kuo, "Constructing Sobol
    sequences with better two-dimensional projections", 2008; Matousek, "On the L2-discrepancy for anchored boxes", 1998.)

    Raises ArgumentError for a dimension that is not in 1 to 21,201, ImportError without scipy.

    >>> import tracegrad.as_torch, torch
    >>> torch.quasirandom.SobolEngine(2).draw(3).tolist()
    [[0.0, 0.0], [0.5, 0.5], [0.75, 0.25]]
    """

    MAXBIT, MAXDIM = 30, 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        if not 1 <= dimension <= self.MAXDIM:
            raise ArgumentError(f"SobolEngine: dimension is from 1 to {self.MAXDIM}, got {dimension}")
        self.dimension, self.scramble, self.seed, self.num_generated = dimension, scramble, seed, 0
        qmc: Any = import_module("scipy.stats.qmc")
        self._directions: Any = qmc.Sobol(dimension, scramble=False, bits=self.MAXBIT)._sv.astype(np.int64)
        self._shift: Any = np.zeros(dimension, np.int64)
        if scramble:
            self._scramble()

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """The next n points (n, dimension), of `dtype` (the default one if None); written to `out` if it is given.

        Raises ArgumentError where the sequence has no n more points: it has 2**30.
        """
        first, last = self.num_generated, self.num_generated + n
        if n < 1 or last > 2**self.MAXBIT:
            raise ArgumentError(f"SobolEngine.draw: n is from 1 to the {2**self.MAXBIT - first} points that are left, got {n}")
        gray = np.arange(first, last) ^ np.arange(first, last) >> 1
        points = np.repeat(self._shift[None], n, 0)
        for bit in range(last.bit_length()):
            points ^= np.where(gray[:, None] >> bit & 1, self._directions[:, bit], 0)
        self.num_generated = last
        default: Any = dtypes.get_default_dtype()
        wanted: Any = default if dtype is None else dtypes.as_dtype(dtype)
        found = points.astype(wanted)
        if first == 0:
            found[0] = points[0].astype(default)                # of the default dtype in torch, whatever is asked for
        result: Any = from_own(found * wanted.type(2.0**-self.MAXBIT), "cpu")
        if out is not None:
            result = out.resize_as_(result).copy_(result)
        return cast(Tensor, result)

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """The next 2**m points: see `draw`. ArgumentError where the number of all points drawn would be no power of 2."""
        total = self.num_generated + 2**m
        if total & (total - 1):
            raise ArgumentError(f"draw_base2: after {self.num_generated} points, 2**{m} more make {total}, no power of 2; use draw")
        return self.draw(2**m, out, dtype)

    def reset(self) -> SobolEngine:
        """Begin again with the first point; returns the engine."""
        self.num_generated = 0
        return self

    def fast_forward(self, n: int) -> SobolEngine:
        """Leave out n points; returns the engine."""
        self.num_generated += n
        return self

    def _scramble(self) -> None:
        generator = None if self.seed is None else Generator().manual_seed(self.seed)
        size, high = self.MAXBIT, 1 << np.arange(self.MAXBIT)[::-1]          # the highest bit first
        draw: Any = PUBLIC["randint"]
        self._shift = np.asarray(draw(0, 2, (self.dimension, size), generator=generator)) @ high[::-1]
        lower = np.tril(np.asarray(draw(0, 2, (self.dimension, size, size), generator=generator)))
        lower[:, range(size), range(size)] = 1
        bits = (self._directions[:, :, None] & high != 0).astype(np.int64)
        self._directions = (bits @ lower.swapaxes(1, 2) & 1) @ high

    def __repr__(self) -> str:
        scramble = ", scramble=True" if self.scramble else ""
        return f"SobolEngine(dimension={self.dimension}{scramble}{'' if self.seed is None else f', seed={self.seed}'})"
