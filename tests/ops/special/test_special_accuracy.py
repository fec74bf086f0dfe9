"""How many ulps special functions of float32 are off: next to zeros, in tails, where formulas meet, of tiny and huge numbers.

On the device as it is, and as if it had no float64, where kernels compute in pairs of floats. SciPy's float64 is the reference; that of
polynomials are exact fractions.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import perm
from typing import Any

import numpy as np
import pytest
from scipy import special

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.ops.special.test_special import _ulps
from tracegrad.codegen.compiler import compile_graph
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import placeholder
from tracegrad.runtime.device import Device
from tracegrad.support.plan import Target

RNG = np.random.default_rng(11)


def u(low: float, high: float, n: int = 100) -> Any:
    return RNG.uniform(low, high, n)


def powers(low: float, high: float, n: int = 60, signs: bool = False) -> Any:
    """10 to uniform powers: numbers of all sizes."""
    return 10 ** u(low, high, n) * (RNG.choice([-1.0, 1.0], n) if signs else 1.0)


def about(*points: float) -> Any:
    """Each point, the floats next to it, and some that are a little further away."""
    at = np.array(points, np.float32)
    beside = [np.nextafter(at, np.float32(end)) for end in (-99, 99)]
    return np.concatenate([at, *beside, *(at * (1 + powers(-6, -2, len(at), True)) for _ in range(6))])


def joined(*parts: Any) -> Any:
    return np.concatenate(parts).astype(np.float32)


_Q = powers(-3, 4, 200)
_A = joined(powers(-1, 2, 100), powers(-3, 3, 100), _Q)
_B = joined(powers(-1, 2, 100), powers(-3, 3, 100), _Q * (1 + powers(-4, -0.3, 200, True)))
_NORMAL = joined(u(-12.5, 6), powers(-10, 0, signs=True), about(-1, 0.7, -0.7))
_BESSEL = joined(u(-88, 88), u(-9, 9), powers(-15, 1, signs=True), about(8, -8))
_GAMMA = joined(u(-20, 30), powers(-30, 30), u(0.1, 4))
_K = joined(u(0.01, 80), u(0.01, 4), powers(-30, 1), powers(-44.8, -36, 20), about(2))
_SUM = joined(u(-9, 9), u(-80, 80), np.full(40, -np.log(2))), joined(u(-9, 9), u(-80, 80), -np.log(2) + powers(-5, -1, 40, True))
PSI = [1.4616321449683623, -0.5040830082644554, -1.5734984731623904, -2.6107208684441447, -3.635293366436901]
LGAMMA = [1, 2, -2.4570247382208006, -2.7476826467274127, -3.1435808883499798, -3.955294284858598, -4.039361839740536]
POINTS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "erf": (tg.erf, special.erf, (joined(u(-4, 4), powers(-10, 0, signs=True)),)),
    "erfc": (tg.erfc, special.erfc, (joined(u(-4, 10.2, 300), powers(-10, 0, signs=True)),)),
    "erfcx": (tg.special.erfcx, special.erfcx, (joined(u(-9, 30), powers(-10, 10), powers(-10, 0, signs=True), about(-0.5, 3.75)),)),
    "erfinv": (tg.erfinv, special.erfinv, (joined(u(-1, 1), powers(-30, -1, signs=True), 1 - powers(-7, -1), about(0.85, -0.85)),)),
    "ndtr": (tg.special.ndtr, special.ndtr, (_NORMAL,)),
    "ndtri": (tg.special.ndtri, special.ndtri, (joined(u(0, 1), powers(-37, -1), 0.5 + powers(-7, -1, signs=True), about(0.075, 0.925)),)),
    "log_ndtr": (tg.special.log_ndtr, special.log_ndtr, (joined(_NORMAL, u(-30, 6), -powers(0, 10), u(5, 12.5)),)),
    "lgamma": (tg.lgamma, special.gammaln, (joined(_GAMMA, about(*LGAMMA, 0.5, 1.5, 2.5, 4.5, 8), powers(-44, -30)),)),
    "digamma": (tg.digamma, special.digamma, (joined(_GAMMA, about(*PSI, 0.5, 10)),)),
    "trigamma": (lambda x: tg.polygamma(1, x), lambda x: special.zeta(2, x), (joined(powers(-15, 15), u(0.1, 30)),)),
    "polygamma 4": (lambda x: tg.polygamma(4, x), lambda x: special.zeta(5, x) * -24, (joined(powers(-5, 5), u(0.1, 30)),)),
    "zeta": (tg.special.zeta, special.zeta, (joined(u(1.001, 12), 1 + powers(-6, 1, 100), u(1.1, 60, 200)),
                                             joined(powers(-1, 2, 100), u(0.1, 9), powers(0, 38, 100), powers(0.3, 3, 100)))),
    "igamma": (tg.igamma, special.gammainc, (_A, _B)),
    "igammac": (tg.igammac, special.gammaincc, (_A, _B)),
    "i0": (tg.i0, special.i0, (_BESSEL,)),
    "i0e": (tg.special.i0e, special.i0e, (_BESSEL,)),
    "i1": (tg.special.i1, special.i1, (_BESSEL,)),
    "i1e": (tg.special.i1e, special.i1e, (_BESSEL,)),
    "logit": (tg.logit, lambda x: np.where(np.abs(x - 0.5) < 0.25, np.log1p((2 * x - 1) / (1 - x)), special.logit(x)),
              (joined(u(0, 1), powers(-37, 0), 1 - powers(-7, -1), 0.5 + powers(-7, -1, signs=True), about(0.25, 0.75)),)),
    "xlogy": (tg.xlogy, special.xlogy, (joined(u(-3, 3)), joined(powers(-30, 30, 50), 1 + powers(-7, -1, 50, True)))),
    "xlog1py": (tg.special.xlog1py, special.xlog1py, (joined(u(-3, 3)), joined(powers(-10, 30, 50), u(-0.99, 1, 50)))),
    "entr": (tg.special.entr, special.entr, (joined(powers(-30, 30), u(0, 2), 1 + powers(-7, -1, signs=True)),)),
    "sinc": (tg.sinc, np.sinc, (joined(u(-9.4, 9.4), powers(-15, 2, signs=True), about(0.15)),)),
    "logaddexp": (tg.logaddexp, np.logaddexp, _SUM),
    "logaddexp2": (tg.logaddexp2, np.logaddexp2, _SUM),
    "bessel_j0": (tg.special.bessel_j0, special.j0, (joined(u(-30, 30), powers(-15, 4), about(*special.jn_zeros(0, 8), 8)),)),
    "bessel_j1": (tg.special.bessel_j1, special.j1, (joined(u(-30, 30), powers(-15, 4), about(*special.jn_zeros(1, 8), 8)),)),
    "bessel_y0": (tg.special.bessel_y0, special.y0, (joined(u(0, 30), powers(-30, 4), about(*special.yn_zeros(0, 8), 8)),)),
    "bessel_y1": (tg.special.bessel_y1, special.y1, (joined(u(0, 30), powers(-30, 4), about(*special.yn_zeros(1, 8), 8)),)),
    "modified_bessel_k0": (tg.special.modified_bessel_k0, special.k0, (_K,)),
    "modified_bessel_k1": (tg.special.modified_bessel_k1, special.k1, (_K,)),
    "scaled_modified_bessel_k0": (tg.special.scaled_modified_bessel_k0, special.k0e, (_K,)),
    "scaled_modified_bessel_k1": (tg.special.scaled_modified_bessel_k1, special.k1e, (_K,)),
    "airy_ai": (tg.special.airy_ai, lambda x: special.airy(x)[0], (joined(u(-20, 9), u(-60, -20), about(*special.ai_zeros(8)[0], -5, 2)),)),
}


def _device(**target: Any) -> Any:
    """The default device, planned for as if it were another."""
    found = tg.device()
    if found.kind == "numpy":
        pytest.skip("needs an OpenCL device")
    other = Device(found.cl_device, found.cl_basic)
    other.target = replace(found.target, **target)
    return other


SPECIAL = np.array([-np.inf, -3e38, -2.5, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 1e-38, 3e38, np.inf, np.nan], np.float32)


def _check(name: str, target: dict[str, Any]) -> None:
    """Within 4 ulps of SciPy's; of infinities, NaN and zeros what the interpreter says, with the sign of a zero. In one program."""
    ours, theirs, operands = POINTS[name]
    ends = [SPECIAL] if len(operands) == 1 else [x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL)]
    given = [np.concatenate([x, end]) for x, end in zip(operands, ends, strict=True)]
    device = _device(**target)
    found = tg.trace(ours)(*(tg.tensor(x, device=device) for x in given)).numpy()
    count = len(operands[0])
    with np.errstate(all="ignore"):
        exact = np.asarray(theirs(*(x.astype(np.float64) for x in operands)))
    within = np.abs(exact) <= np.finfo(np.float32).max
    assert within.mean() > 0.6
    ulps = _ulps(found[:count][within], exact[within])
    worst = int(ulps.argmax())
    assert ulps[worst] <= 4, f"{ulps[worst]} ulps at {[x[within][worst] for x in operands]}"
    wanted, found = ours(*(tg.tensor(x, device="numpy") for x in ends)).numpy(), found[count:]
    np.testing.assert_allclose(found, wanted, rtol=5e-7, atol=1e-37)
    zero = wanted == 0
    assert (np.signbit(found) == np.signbit(wanted))[zero].all(), [end[zero] for end in ends]


@one_of(6, "name", POINTS)
def test_float32_without_float64(name: str, kernels: None) -> None:
    """In pairs of floats, in vectors of four."""
    _check(name, dict(fp64=False, simd_bytes=16))


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize(
    "target", [{}, dict(fp64=False), dict(fp64=False, clang_builtins=False, plain_math=False)], ids=["own", "wide", "builtins"]
)
def test_float32_on_other_targets(name: str, target: dict[str, Any], kernels: None) -> None:
    """With float64; in the device's widest vectors; with products of pairs by splitting, and the driver's functions."""
    _check(name, target)


# ------------------------------------------------------------------------------------------------ orthogonal polynomials

CHEBYSHEV = (lambda k: (2, 0, 1, 1))
POLYNOMIALS: dict[str, tuple[Any, list[int], Any]] = {  # zeros, p_1, and (a, b, c, d) of d p_(k + 1) = (a x + b) p_k - c p_(k - 1)
    "chebyshev_polynomial_t": (lambda n: special.roots_chebyt(n)[0], [0, 1], CHEBYSHEV),
    "chebyshev_polynomial_u": (lambda n: special.roots_chebyu(n)[0], [0, 2], CHEBYSHEV),
    "chebyshev_polynomial_v": (lambda n: np.cos((2 * np.arange(n) + 1) * np.pi / (2 * n + 1)), [-1, 2], CHEBYSHEV),
    "chebyshev_polynomial_w": (lambda n: np.cos((2 * np.arange(n) + 2) * np.pi / (2 * n + 1)), [1, 2], CHEBYSHEV),
    "hermite_polynomial_h": (lambda n: special.roots_hermite(n)[0], [0, 2], lambda k: (2, 0, 2 * k, 1)),
    "hermite_polynomial_he": (lambda n: special.roots_hermitenorm(n)[0], [0, 1], lambda k: (1, 0, k, 1)),
    "laguerre_polynomial_l": (lambda n: special.roots_laguerre(n)[0], [1, -1], lambda k: (-1, 2 * k + 1, k, k + 1)),
    "legendre_polynomial_p": (lambda n: special.roots_legendre(n)[0], [0, 1], lambda k: (2 * k + 1, 0, k, k + 1)),
}
KINDS = [shift + kind for kind in POLYNOMIALS for shift in ("", "shifted_")[:1 + kind.startswith("cheb")]]
DEGREES = (1, 2, 3, 8, 21)


@cache
def _coefficients(kind: str, n: int) -> Any:
    """Of 1, x, x^2, ..., as fractions."""
    _, first, terms = POLYNOMIALS[kind]
    found = [np.array([Fraction(1)]), np.array(first) * Fraction(1)]
    for k in range(1, n):
        a, b, c, d = terms(k)
        one, two = found[-1], np.concatenate([found[-2], [Fraction(0)] * 2])
        found.append((np.append(one * b, 0) + np.append(0, one * a) - two * c) / Fraction(d))
    return found[n]


def _exact(kind: str, n: int, x: Any, order: int) -> float:
    shifted = kind.startswith("shifted_")
    z = Fraction(float(x)) * 2 - 1 if shifted else Fraction(float(x))
    value = Fraction(0)
    for k in reversed(range(order, n + 1)):
        value = value * z + _coefficients(kind.removeprefix("shifted_"), n)[k] * perm(k, order)
    return float(value * 2 ** (order * shifted))


def _points(kind: str) -> tuple[Any, Any]:
    """Zeros, the floats beside them, others; and degrees."""
    found = []
    for n in DEGREES:
        z = POLYNOMIALS[kind.removeprefix("shifted_")][0](n)
        z = (z + 1) / 2 if kind.startswith("shifted_") else z
        beside = [np.nextafter(np.float32(z), np.float32(end)) for end in (-99, 99)]
        x = joined(z, *beside, u(min(z.min(), -0.1 * kind.startswith(("c", "h"))), z.max() + 0.1, 9), powers(-30, -1, 5), [0])
        found.append((x, np.full(len(x), n)))
    x, n = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return x, n


@pytest.mark.parametrize("kind", KINDS)
def test_polynomials(kind: str, kernels: None) -> None:
    """Values and first derivatives, as programs with and without float64, and on numpy."""
    def both(x: Any, n: Any) -> Any:
        return getattr(tg.special, kind)(x, n), tg.grad(lambda x: getattr(tg.special, kind)(x, n).sum())(x)

    x, n = _points(kind)
    exact = [np.array([_exact(kind, int(k), v, order) for v, k in zip(x, n, strict=True)]) for order in (0, 1)]
    for device in (tg.device(), _device(fp64=False, simd_bytes=16), "numpy"):
        for order, found in enumerate(tg.trace(both)(tg.tensor(x, device=device), tg.tensor(n, device=device))):
            ulps = _ulps(found.numpy(), exact[order])
            worst = int(ulps.argmax())
            assert ulps[worst] <= 4, (device, order, x[worst], n[worst], ulps[worst])


def test_degrees_of_polynomials(run: Any, on_numpy: Any) -> None:
    """Negative, none, halves, out of range, one of many; the third derivative; float16 and complex numbers."""
    x = tg.tensor([0.25, np.nan, -2.0])
    n = tg.tensor([[-3.0], [-0.5], [0.9], [2.7], [np.nan], [2.0**24]])
    found = run(tg.special.legendre_polynomial_p)(x, n).numpy()
    row = [-0.40625, np.nan, 5.5]
    np.testing.assert_array_equal(found, [[0] * 3, [1] * 3, [1] * 3, row, [0] * 3, [np.nan] * 3])
    assert run(lambda x: tg.special.chebyshev_polynomial_t(x, -1))(x).tolist() == [0.0] * 3

    x = tg.tensor([0.3, -1.7])
    third = tg.grad(lambda x: tg.grad(lambda x: tg.grad(lambda x: tg.special.hermite_polynomial_h(x, 7).sum())(x).sum())(x).sum())
    np.testing.assert_allclose(run(third)(x).numpy(), 8 * 7 * 6 * 5 * special.eval_hermite(4, x.numpy()), rtol=2e-6)
    half = run(lambda x: tg.special.laguerre_polynomial_l(x, 2049))(tg.tensor([0.5], dtype=tg.float16))
    np.testing.assert_allclose(half.numpy(), np.float16(special.eval_laguerre(2049, 0.5)))
    z = tg.tensor([0.5 + 0.25j, -1j])
    for kind, degree in (("shifted_chebyshev_polynomial_t", 3), ("legendre_polynomial_p", 4)):
        scipys = special.eval_sh_chebyt if degree == 3 else special.eval_legendre
        np.testing.assert_allclose(run(lambda z: getattr(tg.special, kind)(z, degree))(z).numpy(), scipys(degree, z.numpy()), rtol=1e-5)  # noqa: B023
    with pytest.raises(tg.ArgumentError, match="n must be an integer where"):
        tg.special.legendre_polynomial_p(z, tg.tensor([1, 2]))


def test_kernels_call_no_lgamma_lane_by_lane() -> None:
    """The driver's is one of single numbers: in vectors it was called for each lane."""
    x = placeholder(Aval((4096,), np.dtype("float32")), "x")
    for fn in (tg.lgamma, lambda x: tg.igamma(x, x)):
        text = compile_graph(Graph.capture([x], [fn(x)]), Target(simd_bytes=64)).source
        assert not re.search(r"(?<!_)lgamma\(", text)
