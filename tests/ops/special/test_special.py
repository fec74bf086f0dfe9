"""Special functions and the elementwise names beside them, against scipy and numpy; special values; how many ulps they are off."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import special

import tracegrad as tg
from tests.helpers.marks import DEVICES, one_of
from tests.helpers.names import Case, checks

inf, nan = np.inf, np.nan
RNG = np.random.default_rng(5)


def u(low: float, high: float, *shape: int) -> Any:
    return RNG.uniform(low, high, shape or (3, 13))


def i(low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
    return RNG.integers(low, high, shape or (3, 13)).astype(dtype)


POINTS = np.array([-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, inf, -inf, nan])
CASES = {
    "acosh": Case(lambda t, F, x: t.acosh(x), u(1.1, 9), expected=np.arccosh),
    "asinh": Case(lambda t, F, x: x.asinh(), u(-9, 9), expected=np.arcsinh),
    "atanh": Case(lambda t, F, x: t.atanh(x), u(-0.95, 0.95), expected=np.arctanh),
    "arc names": Case(
        lambda t, F, x: (t.arccosh(1 + x), t.arcsinh(x), t.arctanh(x)),
        u(0.1, 0.9),
        expected=lambda x: (np.arccosh(1 + x), np.arcsinh(x), np.arctanh(x)),
    ),
    "erfc": Case(lambda t, F, x: t.erfc(x), u(-3, 5), expected=special.erfc),
    "erfinv": Case(lambda t, F, x: t.erfinv(x), u(-0.97, 0.97), expected=special.erfinv),
    "erfinv at edges": Case(lambda t, F, x: t.erfinv(x), [-1.5, -1, -0.0, 1, 1.5, nan, inf], expected=special.erfinv, gradient=0),
    "lgamma": Case(lambda t, F, x: t.lgamma(x), u(0.2, 9), expected=special.gammaln),
    "lgamma below 0": Case(lambda t, F, x: t.lgamma(x), np.array([-0.3, -1.6, -2.3, -5.7]), expected=special.gammaln),
    "lgamma at edges": Case(
        lambda t, F, x: t.lgamma(x), POINTS, expected=lambda x: np.where(x == -inf, inf, special.gammaln(x)), gradient=0
    ),
    "digamma": Case(lambda t, F, x: t.digamma(x), u(0.2, 30), expected=special.digamma),
    "digamma below 0": Case(lambda t, F, x: t.special.psi(x), np.array([-0.3, -1.6, -2.3, -5.7]), expected=special.digamma),
    "digamma at edges": Case(
        lambda t, F, x: t.digamma(x),
        [-2.0, -0.0, 0.0, inf, -inf, nan],
        expected=lambda x: np.array([nan, inf, -inf, inf, nan, nan]),
        gradient=0,
    ),
    "polygamma": Case(
        lambda t, F, x: (t.polygamma(1, x), t.polygamma(2, x), t.special.polygamma(4, x)),
        u(0.3, 9),
        torch_tolerance=1e-8,
        expected=lambda x: tuple(special.polygamma(n, x) for n in (1, 2, 4)),
    ),
    "trigamma below 0": Case(
        lambda t, F, x: x.polygamma(1),
        np.array([-0.3, -1.6, -2.3, -5.7]),  # by reflection
        expected=lambda x: np.pi**2 / np.sin(np.pi * x) ** 2 - special.polygamma(1, 1 - x),
    ),
    "mvlgamma": Case(lambda t, F, x: t.mvlgamma(x, 3), u(1.2, 9), expected=np.vectorize(lambda v: special.multigammaln(v, 3))),
    "zeta": Case(lambda t, F, q: t.special.zeta(2.5, q), u(0.2, 9), expected=lambda q: special.zeta(2.5, q), torch_gradient=False),
    "zeta of tensors": Case(lambda t, F, x, q: t.special.zeta(x, q), u(1.2, 40), u(0.2, 30), expected=special.zeta, gradient=0),
    "zeta at edges": Case(
        lambda t, F, x, q: t.special.zeta(x, q),
        [1.0, 0.5, 2.0, 3.0, 2.0, 3.0, 2.5, nan],
        [2.0, 2.0, 0.0, -3.0, -2.5, -2.5, -2.5, 1.0],
        expected=special.zeta,
        gradient=0,
    ),
    "igamma": Case(
        lambda t, F, x: (t.igamma(2.5, x), t.special.gammaincc(2.5, x)),
        u(0.1, 9),
        torch=False,
        expected=lambda x: (special.gammainc(2.5, x), special.gammaincc(2.5, x)),
    ),
    "igamma: torch's derivative": Case(
        lambda t, F, x: (t.igamma(x.detach() * 0 + 2.5, x), t.igammac(x.detach() * 0 + 2.5, x)), u(0.1, 9), differences=False
    ),
    "igamma of tensors": Case(
        lambda t, F, a, x: (t.igamma(a, x), t.igammac(a, x)),
        u(0.05, 90, 257),
        u(0.05, 90, 257),
        gradient=0,
        torch_tolerance=1e-8,
        expected=lambda a, x: (special.gammainc(a, x), special.gammaincc(a, x)),
    ),
    "igamma, large": Case(
        lambda t, F, a, x: (t.igamma(a, x), t.igammac(a, x)),
        u(90, 5000, 257),
        u(90, 5000, 257),
        gradient=0,
        expected=lambda a, x: (special.gammainc(a, x), special.gammaincc(a, x)),
        tolerance=1e-11,
    ),
    "igamma, close to the middle": Case(
        lambda t, F, a, d: (t.igamma(a, a * d), t.igammac(a, a * d)),
        10 ** u(-2, 6, 257),
        u(0.9, 1.1, 257),
        gradient=0,
        singles=False,
        torch_tolerance=1e-8,
        expected=lambda a, d: (special.gammainc(a, a * d), special.gammaincc(a, a * d)),
        tolerance=1e-11,
    ),
    "igamma at edges": Case(
        lambda t, F, a, x: (t.igamma(a, x), t.igammac(a, x)),
        [0, 0, 1, -1, 1, 1, inf, inf, nan, 2.0],
        [0, 1, 0, 1, -1, inf, 1, inf, 1, nan],
        gradient=0,
        expected=lambda a, x: (np.array([nan, 1, 0, nan, nan, 1, 0, nan, nan, nan]), np.array([nan, 0, 1, nan, nan, 0, 1, nan, nan, nan])),
    ),
    "i0": Case(lambda t, F, x: (t.i0(x), t.special.i0e(x)), u(-12, 12), expected=lambda x: (special.i0(x), special.i0e(x)), gradient=0),
    "i1": Case(
        lambda t, F, x: (t.special.i1(x), t.special.i1e(x)), u(-12, 12), expected=lambda x: (special.i1(x), special.i1e(x)), gradient=0
    ),
    "i0 and i1": Case(lambda t, F, x: (t.i0(x), t.special.i0e(x), t.special.i1(x), t.special.i1e(x)), u(0.1, 4)),
    "i0 and i1 at edges": Case(
        lambda t, F, x: (t.i0(x), t.special.i0e(x), t.special.i1(x), t.special.i1e(x)),
        [0, -0.0, 700, -700, nan],
        gradient=0,
        expected=lambda x: (special.i0(x), special.i0e(x), special.i1(x), special.i1e(x)),
    ),
    "erfcx": Case(lambda t, F, x: t.special.erfcx(x), u(-3, 9), expected=special.erfcx, torch_gradient=False),
    "erfcx at edges": Case(
        lambda t, F, x: t.special.erfcx(x), [-40.0, -0.0, 1e5, 1e30, inf, -inf, nan], expected=special.erfcx, gradient=0
    ),
    "ndtr": Case(lambda t, F, x: t.special.ndtr(x), u(-5, 5), expected=special.ndtr),
    "ndtri": Case(lambda t, F, x: t.special.ndtri(x), u(0.03, 0.97), expected=special.ndtri),
    "ndtri at edges": Case(
        lambda t, F, x: t.special.ndtri(x), [-1, 0, 1e-300, 1, 2, nan], expected=special.ndtri, gradient=0, singles=False
    ),
    "log_ndtr": Case(lambda t, F, x: t.special.log_ndtr(x), u(-30, 5), expected=special.log_ndtr),
    "log_ndtr at edges": Case(
        lambda t, F, x: t.special.log_ndtr(x), [-inf, -1e10, -1.0, 40, inf, nan], expected=special.log_ndtr, gradient=0
    ),
    "xlogy": Case(lambda t, F, x, y: t.xlogy(x, y), u(-2, 2), u(0.1, 3), expected=special.xlogy),
    "xlogy with scalars": Case(
        lambda t, F, x: (t.xlogy(x, 2.0), t.xlogy(0.0, x), t.xlogy(3, x)),
        u(0.1, 3),
        expected=lambda x: (special.xlogy(x, 2.0), special.xlogy(0.0, x), special.xlogy(3, x)),
    ),
    "xlogy at edges": Case(
        lambda t, F, x, y: (t.xlogy(x, y), t.special.xlog1py(x, y)),
        np.repeat([0.0, 1.0, nan], 5),
        np.tile([0.0, -1.0, inf, nan, 1.0], 3),
        expected=lambda x, y: (special.xlogy(x, y), special.xlog1py(x, y)),
        torch_gradient=False,
        gradient=0,
    ),
    "xlog1py": Case(lambda t, F, x, y: t.special.xlog1py(x, y), u(-2, 2), u(-0.9, 3), expected=special.xlog1py),
    "entr": Case(lambda t, F, x: t.special.entr(x), u(0.1, 3), expected=special.entr),
    "entr at edges": Case(lambda t, F, x: t.special.entr(x), [-1, -0.0, 0, 1, inf, nan], expected=special.entr, gradient=0),
    "sinc": Case(
        lambda t, F, x: t.sinc(x), np.array([-3.3, -0.2, -0.01, 0.0, 0.1, 0.15, 0.4, 1.0, 7.7]), expected=np.sinc, torch_gradient=False
    ),
    "logit": Case(
        lambda t, F, x: (t.logit(x), t.logit(x, 0.2)), u(0.05, 0.95), expected=lambda x: (special.logit(x), special.logit(x.clip(0.2, 0.8)))
    ),
    "logit at edges": Case(lambda t, F, x: t.logit(x), [-1, 0, 1, 2, nan], expected=special.logit, gradient=0),
    "hypot": Case(lambda t, F, x, y: t.hypot(x, y), u(-2, 2), u(-2, 2), expected=np.hypot),
    "copysign": Case(
        lambda t, F, x, y: (t.copysign(x, y), t.copysign(x, -0.0)),
        u(-2, 2),
        u(-2, 2),
        expected=lambda x, y: (np.copysign(x, y), np.copysign(x, -0.0)),
    ),
    "nextafter": Case(lambda t, F, x, y: t.nextafter(x, y), POINTS, POINTS[::-1].copy(), expected=np.nextafter, gradient=0),
    "gcd and lcm": Case(
        lambda t, F, x, y: (t.gcd(x, y), t.lcm(x, y)), i(-90, 90), i(-90, 90), expected=lambda x, y: (np.gcd(x, y), np.lcm(x, y))
    ),
    "gcd of int32": Case(
        lambda t, F, x, y: (t.gcd(x, y), t.lcm(x, y)),
        i(-9, 9, dtype="int32"),
        i(-9, 9, dtype="int32"),
        expected=lambda x, y: (np.gcd(x, y), np.lcm(x, y)),
    ),
    "logaddexp": Case(
        lambda t, F, x, y: (t.logaddexp(x, y), t.logaddexp2(x, y)),
        u(-5, 5),
        u(-5, 5),
        expected=lambda x, y: (np.logaddexp(x, y), np.logaddexp2(x, y)),
    ),
    "logaddexp of equals": Case(lambda t, F, x, y: t.logaddexp(x, y), np.ones(3), np.ones(3), expected=np.logaddexp),
    "logaddexp at edges": Case(
        lambda t, F, x, y: t.logaddexp(x, y),
        np.repeat([inf, -inf, nan, 800.0], 4),
        np.tile([inf, -inf, nan, -800.0], 4),
        expected=np.logaddexp,
        gradient=0,
    ),
    "fmax and fmin": Case(
        lambda t, F, x, y: (t.fmax(x, y), t.fmin(x, y)), u(-2, 2), u(-2, 2), expected=lambda x, y: (np.fmax(x, y), np.fmin(x, y))
    ),
    "fmax at edges": Case(
        lambda t, F, x, y: (t.fmax(x, y), t.fmin(x, y)),
        np.repeat(POINTS, 10),
        np.tile(POINTS, 10),
        gradient=0,
        expected=lambda x, y: (np.fmax(x, y), np.fmin(x, y)),
    ),
    "heaviside": Case(
        lambda t, F, x, y: t.heaviside(x, y), [-1.0, 0.0, -0.0, 2.0], [3.0, 4.0, 5.0, 6.0], expected=np.heaviside, gradient=0
    ),
    "isclose": Case(
        lambda t, F, x, y: (t.isclose(x, y), t.isclose(x, y, rtol=0.5, equal_nan=True)),
        np.repeat(POINTS, 10),
        np.tile(POINTS * 1.0000001, 10),
        gradient=0,
        expected=lambda x, y: (np.isclose(x, y), np.isclose(x, y, rtol=0.5, equal_nan=True)),
    ),
    "isclose of integers": Case(
        lambda t, F, x, y: t.isclose(x, y, rtol=0.1), i(0, 30), i(0, 30), expected=lambda x, y: np.isclose(x, y, rtol=0.1)
    ),
    "allclose and equal": Case(
        lambda t, F, x: (t.allclose(x, x + 1e-9), t.allclose(x, x + 1.0), t.equal(x, x), t.equal(x, x + 1)),
        u(-1, 1),
        traced=False,
        gradient=0,
        expected=lambda x: (True, False, True, False),
    ),
    "isin": Case(
        lambda t, F, x, y: (t.isin(x, y), t.isin(x, y, invert=True), t.isin(x, 3)),
        i(0, 9),
        i(0, 9, 4),
        expected=lambda x, y: (np.isin(x, y), np.isin(x, y, invert=True), np.isin(x, 3)),
    ),
    "infinities": Case(
        lambda t, F, x: (t.isposinf(x), t.isneginf(x), t.isreal(x), t.signbit(x)),
        POINTS,
        gradient=0,
        expected=lambda x: (np.isposinf(x), np.isneginf(x), np.isreal(x), np.signbit(x)),
    ),
    "frexp": Case(
        lambda t, F, x: t.frexp(x),
        np.concatenate([u(-9, 9, 33), [0.0, -0.0, 0.5, 1.0, 2.0, 1e-300, 1e300]]),
        singles=False,
        gradient=0,
        expected=np.frexp,
    ),
    "frexp: mantissa": Case(lambda t, F, x: t.frexp(x)[0], u(1.1, 1.9)),
    "frexp of denormals": Case(
        lambda t, F, x: t.frexp(x), [5e-324, -3e-310, 2.2250738585072014e-308], singles=False, gradient=0, expected=np.frexp
    ),
    "ldexp": Case(lambda t, F, x, n: t.ldexp(x, n), u(-2, 2), i(-9, 9), expected=np.ldexp),
    "frac": Case(lambda t, F, x: t.frac(x), u(0.1, 0.9) + i(-3, 3), expected=lambda x: x - np.trunc(x)),
    "nan_to_num": Case(
        lambda t, F, x: (t.nan_to_num(x), t.nan_to_num(x, 1.0, 2.0, 3.0)),
        POINTS,
        gradient=0,
        expected=lambda x: (np.nan_to_num(x), np.nan_to_num(x, nan=1.0, posinf=2.0, neginf=3.0)),
    ),
    "nan_to_num: gradient": Case(lambda t, F, x: t.nan_to_num(x) * x, u(-2, 2)),
    "angle": Case(lambda t, F, x: t.angle(x), [-2.5, 0.0, 3.0, inf, -inf, nan], expected=np.angle, gradient=0),
    "degrees": Case(lambda t, F, x: (t.deg2rad(x), t.rad2deg(x)), u(-200, 200), expected=lambda x: (np.deg2rad(x), np.rad2deg(x))),
    "float_power": Case(
        lambda t, F, x: (t.float_power(x, 2), t.float_power(2, x)),
        i(0, 9, dtype="int32"),
        expected=lambda x: (np.float_power(x, 2), np.float_power(2, x)),
    ),
    "rsub, clamps": Case(
        lambda t, F, x, y: (t.rsub(x, y, alpha=2), t.clamp_min(x, 0.1), t.clamp_max(x, 0.1), t.positive(x)),
        u(-2, 2),
        u(-2, 2),
        expected=lambda x, y: (y - 2 * x, x.clip(0.1), x.clip(None, 0.1), x),
    ),
    "addcmul and addcdiv": Case(
        lambda t, F, x, y, z: (t.addcmul(x, y, z, value=0.5), t.addcdiv(x, y, z, value=2)),
        u(-2, 2),
        u(-2, 2),
        u(0.5, 2),
        expected=lambda x, y, z: (x + 0.5 * y * z, x + 2 * y / z),
    ),
    "sum_to_size": Case(lambda t, F, x: x.sum_to_size(1, 13), u(-2, 2), expected=lambda x: x.sum(0, keepdims=True)),
    "integers become floats": Case(
        lambda t, F, x: (t.lgamma(x), t.special.i0e(x), t.xlogy(x, x), t.copysign(x, -1), t.sinc(x)),
        i(1, 9),
        tolerance=2e-6,
        expected=lambda x: tuple(v.astype(np.float32) for v in (special.gammaln(x), special.i0e(x), special.xlogy(x, x), -x, np.sinc(x))),
    ),
}
for _kind, _theirs in {
    "chebyshev_polynomial_t": special.eval_chebyt,
    "chebyshev_polynomial_u": special.eval_chebyu,
    "shifted_chebyshev_polynomial_t": special.eval_sh_chebyt,
    "shifted_chebyshev_polynomial_u": special.eval_sh_chebyu,
    "hermite_polynomial_h": special.eval_hermite,
    "hermite_polynomial_he": special.eval_hermitenorm,
    "laguerre_polynomial_l": special.eval_laguerre,
    "legendre_polynomial_p": special.eval_legendre,
    "chebyshev_polynomial_v": None,
    "chebyshev_polynomial_w": None,
}.items():
    CASES[_kind] = Case(
        lambda t, F, x, kind=_kind: tuple(getattr(t.special, kind)(x, n) for n in (0, 1, 2, 7)),
        u(0.1, 0.9),
        torch_gradient=False,
        expected=None if _theirs is None else lambda x, theirs=_theirs: tuple(theirs(n, x) for n in (0, 1, 2, 7)),
    )

test_values, test_gradients, test_as_in_torch = checks(CASES)


ACCURATE = {  # (function, scipy's, operands, ulps of float64: there scipy is as far off as we are); of float32 it is 4 for all
    "lgamma": (tg.lgamma, special.gammaln, (u(4, 90, 257),), 8),
    "lgamma next to its zeros": (tg.lgamma, special.gammaln, (np.append(u(-2.46, -2.45, 128), -2.4570248),), None),
    "digamma": (tg.digamma, special.digamma, (u(3, 90, 257),), 8),
    "digamma next to its zeros": (tg.digamma, special.digamma, (u(1.4, 1.5, 129),), None),
    "trigamma": (lambda x: tg.polygamma(1, x), lambda x: special.polygamma(1, x), (u(0.1, 90, 257),), 12),
    "i0": (tg.i0, special.i0, (u(-80, 80, 257),), 16),
    "i0e": (tg.special.i0e, special.i0e, (u(-90, 90, 257),), 12),
    "i1": (tg.special.i1, special.i1, (u(-9, 9, 257),), 16),
    "i1e": (tg.special.i1e, special.i1e, (u(-9, 90, 257),), 12),
    "erfinv": (tg.erfinv, special.erfinv, (u(-1, 1, 257),), 8),
    "erfinv of small numbers": (tg.erfinv, special.erfinv, (10 ** u(-6, -1, 129),), 8),
    "ndtr": (tg.special.ndtr, special.ndtr, (u(-12, 5, 257),), None),
    "ndtri": (tg.special.ndtri, special.ndtri, (u(0, 1, 257),), 8),
    "log_ndtr": (tg.special.log_ndtr, special.log_ndtr, (u(-30, 5, 257),), None),
    "erfcx": (tg.special.erfcx, special.erfcx, (u(-3, 90, 257),), 8),
    "zeta": (tg.special.zeta, special.zeta, (u(1.1, 12, 257), 10 ** u(-1, 2, 257)), 16),
    "igamma": (tg.igamma, special.gammainc, (10 ** u(-1, 2, 257), 10 ** u(-1, 2, 257)), None),
    "igammac": (tg.igammac, special.gammaincc, (10 ** u(-1, 2, 257), 10 ** u(-1, 2, 257)), None),
    "sinc": (tg.sinc, np.sinc, (u(-9.4, 9.4, 257),), None),
    "logit": (tg.logit, lambda x: np.log1p((2 * x - 1) / (1 - x)), (u(0.3, 0.7, 257),), 4),
    "logaddexp": (tg.logaddexp, np.logaddexp, (u(-9, 9, 257), u(-9, 9, 257)), 4),
    "logaddexp2": (tg.logaddexp2, np.logaddexp2, (u(-9, 0, 257), u(-9, 0, 257)), None),
    "bessel_j0": (tg.special.bessel_j0, special.j0, (u(-30, 30, 257),), None),
    "bessel_y1": (tg.special.bessel_y1, special.y1, (u(0.1, 30, 257),), None),
    "spherical_bessel_j0": (tg.special.spherical_bessel_j0, lambda x: np.sin(x) / x, (u(-30, 30, 257),), 4),
    "modified_bessel_k0": (tg.special.modified_bessel_k0, special.k0, (u(0.1, 60, 257),), 16),
}


def _ulps(found: Any, exact: Any) -> Any:
    """How far `found` is from the float64 `exact`, in ulps of its own dtype; numbers below the normal ones are rounded as these are."""
    size = np.maximum(np.abs(exact), np.finfo(found.dtype).tiny)
    return np.abs(found.astype(np.float64) - exact) / np.spacing(size.astype(found.dtype)).astype(np.float64)


@one_of(8, ("name", "device"), product(ACCURATE, DEVICES), indirect=["device"])
def test_units_in_the_last_place(name: str, device: Any) -> None:
    ours, theirs, operands, double = ACCURATE[name]
    for dtype, limit in ((np.float32, 4), (np.float64, double)):
        xs = [x.astype(dtype) for x in operands]
        found = ours(*map(tg.tensor, xs)).numpy()
        assert found.dtype == dtype
        ulps = _ulps(found, theirs(*(x.astype(np.float64) for x in xs)))
        assert limit is None or ulps.max() <= limit, f"{dtype.__name__}: {ulps.max()} ulps at {[x[ulps.argmax()] for x in xs]}"


BY_DIGITS: dict[str, Any] = {  # (function, mpmath's, operands): every function of this file, and where rounding shows most
    "acosh": (tg.acosh, lambda m, x: m.acosh(x), (1 + 10 ** u(-4, 8, 65),)),
    "asinh": (tg.asinh, lambda m, x: m.asinh(x), (u(-1, 1, 65) * 10 ** u(-5, 9, 65),)),
    "atanh": (tg.atanh, lambda m, x: m.atanh(x), (u(-1, 1, 65),)),
    "erf": (tg.erf, lambda m, x: m.erf(x), (u(-4, 4, 65),)),
    "erfc": (tg.erfc, lambda m, x: m.erfc(x), (u(-4, 9, 65),)),
    "erfcx": (tg.special.erfcx, lambda m, x: m.erfc(x) * m.exp(x * x), (u(-8, 30, 65),)),
    "erfinv": (tg.erfinv, lambda m, x: m.erfinv(x), (u(-1, 1, 65),)),
    "ndtr": (tg.special.ndtr, lambda m, x: m.ncdf(x), (u(-12, 5, 65),)),
    "ndtri": (tg.special.ndtri, lambda m, p: m.sqrt(2) * m.erfinv(2 * p - 1), (10 ** u(-6, -0.01, 65),)),
    "log_ndtr": (tg.special.log_ndtr, lambda m, x: m.log(m.ncdf(x)), (u(-30, 5, 65),)),
    "lgamma": (tg.lgamma, lambda m, x: m.log(abs(m.gamma(x))), (u(-20, 30, 65),)),
    "digamma": (tg.digamma, lambda m, x: m.digamma(x), (u(-20, 30, 65),)),
    "trigamma": (lambda x: tg.polygamma(1, x), lambda m, x: m.polygamma(1, x), (u(-20, 30, 65),)),
    "polygamma": (lambda x: tg.polygamma(3, x), lambda m, x: m.polygamma(3, x), (u(0.1, 90, 65),)),
    "zeta": (tg.special.zeta, lambda m, x, q: m.zeta(x, q), (u(1.1, 12, 65), 10 ** u(-1, 2, 65))),
    "igamma": (tg.igamma, lambda m, a, x: m.gammainc(a, 0, x, regularized=True), (10 ** u(-1, 2, 65), 10 ** u(-1, 2, 65))),
    "igammac": (tg.igammac, lambda m, a, x: m.gammainc(a, x, regularized=True), (10 ** u(-1, 2, 65), 10 ** u(-1, 2, 65))),
    "i0": (tg.i0, lambda m, x: m.besseli(0, x), (u(-80, 80, 65),)),
    "i0e": (tg.special.i0e, lambda m, x: m.besseli(0, x) * m.exp(-abs(x)), (u(-20, 20, 65),)),
    "i1": (tg.special.i1, lambda m, x: m.besseli(1, x), (u(-80, 80, 65),)),
    "i1e": (tg.special.i1e, lambda m, x: m.besseli(1, x) * m.exp(-abs(x)), (u(-20, 20, 65),)),
    "sinc": (tg.sinc, lambda m, x: m.sinc(m.pi * x), (u(-9, 9, 65),)),
    "hypot": (tg.hypot, lambda m, x, y: m.hypot(x, y), (u(-3, 3, 65), u(-3, 3, 65))),
    "logit": (tg.logit, lambda m, p: m.log(p / (1 - p)), (u(0, 1, 65),)),
    "xlogy": (tg.xlogy, lambda m, x, y: x * m.log(y), (u(-3, 3, 65), 10 ** u(-2, 2, 65))),
    "xlog1py": (tg.special.xlog1py, lambda m, x, y: x * m.log1p(y), (u(-3, 3, 65), 10 ** u(-4, 2, 65))),
    "entr": (tg.special.entr, lambda m, x: -x * m.log(x), (10 ** u(-4, 2, 65),)),
    "logaddexp": (tg.logaddexp, lambda m, a, b: m.log(m.exp(a) + m.exp(b)), (u(-9, 9, 65), u(-9, 9, 65))),
    "logaddexp2": (tg.logaddexp2, lambda m, a, b: m.log(m.mpf(2) ** a + m.mpf(2) ** b, 2), (u(-9, 9, 65), u(-9, 9, 65))),
    "bessel_j0": (tg.special.bessel_j0, lambda m, x: m.besselj(0, x), (u(-30, 30, 65),)),
    "bessel_j1": (tg.special.bessel_j1, lambda m, x: m.besselj(1, x), (u(-30, 30, 65),)),
    "bessel_y0": (tg.special.bessel_y0, lambda m, x: m.bessely(0, x), (u(0.1, 30, 65),)),
    "bessel_y1": (tg.special.bessel_y1, lambda m, x: m.bessely(1, x), (u(0.1, 30, 65),)),
    "modified_bessel_k0": (tg.special.modified_bessel_k0, lambda m, x: m.besselk(0, x), (u(0.1, 60, 65),)),
    "modified_bessel_k1": (tg.special.modified_bessel_k1, lambda m, x: m.besselk(1, x), (u(0.1, 60, 65),)),
    "airy_ai": (tg.special.airy_ai, lambda m, x: m.airyai(x), (u(-20, 9, 65),)),
    "slope of airy_ai": (lambda x: tg.jvp(tg.special.airy_ai, (x,), (tg.ones_like(x),))[1],
                         lambda m, x: m.airyai(x, derivative=1), (u(-20, 9, 65),)),
}


@pytest.mark.slow
def test_float32_is_within_four_ulps_of_thirty_digits(device: Any) -> None:
    """All in one program: mpmath's value, rounded to float64, is as good as exact."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath, which has the digits, is not installed")
    operands = {name: [x.astype(np.float32) for x in xs] for name, (_, _, xs) in BY_DIGITS.items()}
    with mpmath.workdps(30):
        exact = {name: np.array([float(theirs(mpmath, *(mpmath.mpf(float(v)) for v in p))) for p in zip(*operands[name], strict=True)])
                 for name, (_, theirs, _) in BY_DIGITS.items()}
    given = {name: [tg.tensor(x) for x in xs] for name, xs in operands.items()}
    found = tg.trace(lambda given: {name: fn(*given[name]) for name, (fn, _, _) in BY_DIGITS.items()})(given)
    worst = {name: _ulps(found[name].numpy(), exact[name]).max() for name in BY_DIGITS}
    assert not {name: ulps for name, ulps in worst.items() if not ulps <= 4}


def test_no_builtin_needs_the_drivers_header(kernels: None, capfd: Any) -> None:
    """What a program calls that PoCL's build without its header does not know is built twice, and clang says so on the way."""
    x = tg.tensor(np.linspace(1, 7, 129))
    tg.trace(lambda x: [tg.lgamma(x * float(x.shape[0] + 0.37)), tg.hypot(x, x + 1), tg.nextafter(x, x + 1), tg.ldexp(x, x)])(x)[0].tolist()
    assert "error" not in capfd.readouterr().err


def test_sinc_has_derivatives_at_zero(on_numpy: Any) -> None:
    x = tg.tensor(0.0, dtype=tg.float64)
    second = tg.grad(tg.grad(tg.sinc))(x)
    np.testing.assert_allclose(second.numpy(), -(np.pi**2) / 3, rtol=1e-12)


def test_gradients_at_the_ends_are_torchs(on_numpy: Any) -> None:
    points = [-1.0, 0.0, 0.25, 1.0, 2.0, inf, nan]
    for fn, expected in ((tg.logit, [nan, inf, 16 / 3, inf, nan, nan, nan]), (lambda x: tg.logit(x, 0.0), [0, inf, 16 / 3, inf, 0, 0, nan]),
                         (tg.special.entr, [nan, inf, np.log(4) - 1, -1, -np.log(2) - 1, -inf, nan])):
        x = tg.tensor(points, dtype=tg.float64, requires_grad=True)
        fn(x).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), expected)


def test_bessel_functions_have_derivatives_at_zero(on_numpy: Any) -> None:
    x = tg.tensor(0.0, dtype=tg.float64)
    for fn, first, second in ((tg.i0, 0.0, 0.5), (tg.special.i1, 0.5, 0.0), (tg.special.i1e, 0.5, None)):
        assert tg.grad(fn)(x).item() == first
        assert second is None or tg.grad(tg.grad(fn))(x).item() == second


def test_derivatives_of_bessel_functions_keep_their_digits_next_to_zero(on_numpy: Any) -> None:
    """To third order: J1(x) / x and I1(x) / x differentiated as quotients subtract what is nearly equal there."""
    points = np.array([-0.9, -1e-5, 1e-12, 1e-9, 1e-4, 0.03, 0.99, 1.01])
    x = tg.tensor(points)

    def third(fn: Any) -> Any:
        return tg.vmap(tg.grad(tg.grad(tg.grad(fn))))(x).numpy()

    i, j = ([fn(order, points) for order in range(5)] for fn in (special.iv, special.jv))
    for fn, exact in ((tg.special.i1, i[4] + 4 * i[2] + 3 * i[0]), (tg.special.bessel_j1, 4 * j[2] - 3 * j[0] - j[4]),
                      (tg.i0, 2 * i[3] + 6 * i[1]), (tg.special.bessel_j0, 6 * j[1] - 2 * j[3])):
        np.testing.assert_allclose(third(fn), exact / 8, 1e-12)


def test_airy_has_derivatives(on_numpy: Any) -> None:
    """Its gradient was zeros, without a word."""
    points = np.linspace(-30.0, 30.0, 241)
    ai, slope, *_ = special.airy(points)
    x = tg.tensor(points)
    values = [tg.vmap(tg.grad(tg.special.airy_ai))(x), tg.vmap(tg.grad(tg.grad(tg.special.airy_ai)))(x)]
    for found, exact in zip(values, (slope, points * ai), strict=True):
        np.testing.assert_allclose(found.numpy(), exact, rtol=1e-12, atol=1e-12)


def test_xlogy_at_zero_passes_the_gradient(on_numpy: Any) -> None:
    x, y = (tg.tensor([0.0, 0.0, 0.0, 2.0], dtype=tg.float64, requires_grad=True), tg.tensor([2.0, 0.0, -1.0, 3.0], dtype=tg.float64))
    tg.xlogy(x, y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [np.log(2.0), 0.0, 0.0, np.log(3.0)])


def test_xlogy_takes_the_logarithm_in_the_dtype_of_the_product(on_numpy: Any) -> None:
    wide, half = tg.rand(33, dtype=tg.float64), (tg.rand(33) + 1.5).half()
    np.testing.assert_allclose(tg.xlogy(wide, half).numpy(), wide.numpy() * np.log(half.numpy().astype(np.float64)), rtol=1e-14)
    np.testing.assert_allclose(tg.special.xlog1py(wide, half).numpy(), wide.numpy() * np.log1p(half.numpy().astype(np.float64)), rtol=1e-14)
    assert [tg.xlogy(x, tg.arange(33)).dtype for x in (half, tg.arange(33))] == [tg.float16, tg.float32]


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: tg.polygamma(-1, x), tg.ArgumentError, "polygamma: n must be an integer"),
        (lambda x: tg.mvlgamma(x, 0), tg.ArgumentError, "mvlgamma: p must be"),
        (lambda x: tg.grad(lambda a: tg.igamma(a, x).sum())(x), tg.MissingRuleError, "igamma: has no derivative in input"),
        (lambda x: tg.grad(lambda a: tg.special.zeta(a, x).sum())(x), tg.MissingRuleError, "zeta: has no derivative in input"),
        (lambda x: tg.gcd(x, x), tg.DTypeError, "gcd: does not take float32"),
        (lambda x: tg.heaviside(x, x.double()), tg.DTypeError, "heaviside: input float32 and values float64"),
        (lambda x: tg.isclose(x, x.double()), tg.DTypeError, "isclose: input float32 and other float64"),
        (lambda x: tg.isclose(x, x, rtol=-1.0), tg.ArgumentError, "isclose: rtol and atol"),
        (lambda x: tg.frexp(x.long()), tg.DTypeError, "frexp: takes a float tensor, got int64"),
        (lambda x: tg.frac(x.long()), tg.DTypeError, "frac: takes a float tensor, got int64"),
        (lambda x: tg.addcdiv(x, x.long(), x.long()), tg.DTypeError, "addcdiv: a quotient of int64 and int64"),
        (lambda x: tg.nextafter(x.half(), x.half()), tg.DTypeError, "nextafter: takes float32 and float64"),
        (lambda x: tg.special.legendre_polynomial_p(x, 1.5), tg.ArgumentError, "legendre_polynomial_p: n must be an integer"),
        (lambda x: tg.trace(tg.allclose)(x, x), tg.TraceError, "allclose"),
        (lambda x: x.sum_to_size(4), tg.ArgumentError, "sum_to_size"),
    ],
)
def test_errors(fn: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(")):
        fn(tg.ones(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ldexp_by_integers_is_exact(dtype):
    """Also where 2**n alone is infinite or 0, and of the dtype of the floats."""
    rng = np.random.default_rng(0)
    x, n = (rng.standard_normal(500) * 10.0 ** rng.integers(-30, 30, 500)).astype(dtype), rng.integers(-300, 300, 500)
    x[:4], n[:4] = [0, np.inf, np.finfo(dtype).smallest_subnormal, 3], [2000, -2000, 270, -2000]
    with np.errstate(all="ignore"):
        wanted = np.ldexp(x, n)
    for fn in (tg.ldexp, tg.trace(tg.ldexp)):
        got = fn(tg.tensor(x), tg.tensor(n)).numpy()
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, wanted)
    assert tg.ldexp(tg.ones(2, dtype=tg.float16), tg.tensor([1, 2])).dtype == tg.float16


def test_log_ndtr_of_large_numbers_has_a_second_derivative():
    """It was inf / inf, where the first is 0 in floats: a Hessian of a probit's likelihood was NaN."""
    x = tg.tensor([-40.0, -1.0, 0.0, 1.0, 12.0, 38.0, 40.0, 1e3], dtype=tg.float64)
    ratio = np.exp(-0.5 * x.numpy() ** 2 - special.log_ndtr(x.numpy())) / np.sqrt(2 * np.pi)
    first = tg.grad(lambda x: tg.special.log_ndtr(x).sum())
    second = tg.grad(lambda x: first(x).sum())(x)
    np.testing.assert_allclose(first(x).numpy(), ratio, rtol=1e-10)
    np.testing.assert_allclose(second.numpy(), -ratio * (x.numpy() + ratio), rtol=1e-9)
    assert np.isfinite(tg.grad(lambda x: tg.grad(lambda x: first(x).sum())(x).sum())(x).numpy()).all()
