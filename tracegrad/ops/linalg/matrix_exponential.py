"""The matrix exponential, and its derivative along a direction, as primitives."""

from __future__ import annotations

from math import factorial

import numpy as np

from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.linalg.lapack import SQUARE, SYMMETRIC, Lapack, run
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.movement import concat, narrow

EXP_NORM = 0.78, 0.656      # of A, up to which Taylor's polynomial is exp A but for float64's roundings; for the derivative
EXP_SERIES = [1 / factorial(i) for i in range(17)]


def _exp(a, e=None):
    """exp of (*, n, n), or its derivative along e: that of numbers A + x E, x x = 0, has x times it.

    Taylor's polynomial of degree 16 in six products (M. Paterson, L. Stockmeyer, "On the number of nonscalar multiplications necessary to
    evaluate polynomials", 1973), with scaling and squaring. The norms are those of A. Al-Mohy, N. Higham, "Computing the action of the
    matrix exponential" (2011) and "Computing the Frechet derivative of the matrix exponential" (2009). exp 0 is I to the bit: squared a
    thousand times, a rounding of it would be all that is left (of Pade's quotient, diag(-1e305, 0) gave 0 for exp 0).
    """
    dtype, dual = a.dtype, e is not None
    a = a.astype(np.result_type(a, np.float64))                                     # float32's roundings would be squared
    norm = np.abs(a).sum(-2).max(-1, initial=0)
    halvings = np.where(np.isfinite(norm), np.ceil(np.log2(np.maximum(norm, EXP_NORM[dual]) / EXP_NORM[dual])), np.nan)
    power = np.exp2(-halvings)[..., None, None]                                        # NaN for a matrix that has one, or infinity
    a = [x * power for x in ([a, e] if dual else [a])]

    def product(x, y):
        return [x[0] @ y[0], *([x[0] @ y[1] + x[1] @ y[0]] if dual else [])]

    b = product(a, a)
    powers = [a, b, product(b, a), product(b, b)]

    def polynomial(lowest, count=3):
        found = [sum(EXP_SERIES[lowest + i] * power[part] for i, power in enumerate(powers[:count], 1)) for part in range(len(a))]
        return [found[0] + EXP_SERIES[lowest] * np.eye(a[0].shape[-1]), *found[1:]]

    x = polynomial(12, 4)
    for lowest in (8, 4, 0):
        x = [y + z for y, z in zip(product(powers[3], x), polynomial(lowest), strict=True)]
    for squaring in range(int(np.nanmax(halvings, initial=0))):
        x = [np.where((squaring < halvings)[..., None, None], y, z) for y, z in zip(product(x, x), x, strict=True)]
    return x[-1].astype(dtype)


class MatrixExp(Lapack):
    """exp of (*, n, n)."""
    name, holomorphic = "matrix_exp", True
    cases = [((SQUARE,), dict(index=0)), ((SQUARE[1] * 0.1,), dict(index=0))]

    def avals(self, *operands, **attrs): return operands

    @np.errstate(all="ignore")
    def results(self, a): return [_exp(a)]

    def vjp(self, ct, y, a, index): return (run(FRECHET, t(a), ct),)


class FrechetExp(Lapack):
    """The derivative of exp at A (*, n, n) along E: the upper right corner of exp [[A, E], [0, A]] (R. Mathias, 1996).

    An operation of its own, linear in E, so that forward mode can transpose it; its own derivative at A is one of that larger matrix.
    """
    name, python, holomorphic = "frechet_exp", None, True
    cases = [((SQUARE, SYMMETRIC), dict(index=0)), ((SQUARE[1], SYMMETRIC[0]), dict(index=0))]

    def avals(self, *operands, **attrs): return operands[:1]

    @np.errstate(all="ignore")
    def results(self, a, e): return [_exp(a, e)]

    def vjp(self, ct, y, a, e, index):
        n, d = a.shape[-1], len(a.shape)
        zero = full_like_shape(a.shape, 0, a.dtype)

        def block(*parts: Node) -> Node:
            return concat([concat([*parts[:2]], d - 1), concat([*parts[2:]], d - 1)], d - 2)

        def part(x: Node, i: int) -> Node:
            return narrow(narrow(x, d - 2, i * n, n), d - 1, i * n, n)

        whole = run(self, t(block(a, e, zero, a)), block(zero, ct, zero, zero))
        return part(whole, 0) + part(whole, 1), run(self, t(a), ct)
MATRIX_EXP, FRECHET = (REGISTRY[name] for name in ("matrix_exp", "frechet_exp"))
