"""The normal distribution's functions and their inverses: erfc, erfcx, erfinv, ndtr, ndtri, log_ndtr.

They are Formulas (`ops/primitives/formula.py`: written once for NumPy and for C).
[W] Wichura, Algorithm AS 241, Applied Statistics 37, 1988; [SL] Shepherd & Laframboise, Math. Comp. 36, 1981.
"""

from __future__ import annotations

from math import pi
from math import sqrt as root
from typing import Any

from tracegrad.graph.operation_families import Float
from tracegrad.ops.arrays.pointwise import exp, lt, where
from tracegrad.ops.primitives.formula import INF, Formula, chebyshev, erfc_of, polynomial
from tracegrad.ops.special.exports import operation

_ERFCX = (
    1.1775789345674017, -0.004590054580646478, -0.08424913336651792, 0.05920993999819189, -0.026658668435305753, 0.009074997670705265,
    -0.002413163540417608, 0.0004907758365258086, -6.916973302501207e-05, 4.13902798607301e-06, 7.74038306619849e-07,
    -2.1886401049234397e-07, 1.076499946567091e-08, 4.521959811218287e-09, -7.754400208831351e-10, -6.318088340886684e-11,
    2.86879501093067e-11, 1.9455868545777347e-13, -9.65469674843344e-13, 3.25254814814874e-14, 3.3478119482868056e-14,
    -1.864562880419313e-15, -1.2507950530688648e-15, 7.418235256624044e-17, 5.0681489047961116e-17,
)


class Erfc(Float):
    """1 - erf(x), accurate where that is small."""
    name, cost = "erfc", 150.0
    flops = 40
    def numpy(self, x): return erfc_of(x).astype(x.dtype)
    def vjp(self, ct, y, x): return (ct * exp(-(x * x)) * -1.1283791670955126,)
    def opencl(self, x): return f"erfc({x})"


# ------------------------------------------------------------------------------------------ the normal distribution and erf

_CENTRAL = ((3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
             4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
            (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
             2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3))
_MIDDLE = ((1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
            1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
           (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
            1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9))
_TAIL = ((6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
          2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
         (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
          7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15))


def _quantile(m: Any, central: Any, below: Any) -> Any:
    """The normal quantile of 0.5 + central; below: the smaller of the two probabilities ([W])."""
    z = 0.180625 - central * central
    middle = central * (polynomial(_CENTRAL[0], z, m, 4) / polynomial(_CENTRAL[1], z, m, 4))
    r = m.sqrt(-m.log(below))
    near, far = r - 1.6, r - 5.0
    outer = polynomial(_TAIL[0], far, m, 3) / polynomial(_TAIL[1], far, m, 3)
    size = m.where(r <= 5.0, polynomial(_MIDDLE[0], near, m, 5) / polynomial(_MIDDLE[1], near, m, 5), outer)
    size = m.where(below == 0.0, INF, size)
    return m.where(m.fabs(central) <= 0.425, middle, m.where(central < 0.0, -size, size))


class Ndtri(Formula):
    """The quantile function of the standard normal distribution; infinite at 0 and 1, NaN beyond ([W])."""
    name, domain = "ndtri", (0.02, 0.98)
    def formula(self, m, x): return _quantile(m, x - 0.5, m.where(x < 0.5, x, 1.0 - x))
    def vjp(self, ct, y, x): return (ct * exp(y * y * 0.5) * root(2.0 * pi),)


class Erfinv(Formula):
    """The inverse of erf; infinite at -1 and 1, NaN beyond ([W])."""
    name, domain = "erfinv", (-0.95, 0.95)
    def formula(self, m, x): return _quantile(m, 0.5 * x, 0.5 * (1.0 - m.fabs(x))) * root(0.5)
    def vjp(self, ct, y, x): return (ct * exp(y * y) * (root(pi) / 2.0),)


class Erfcx(Formula):
    """exp(x²) erfc(x), without overflow or underflow for positive x: Chebyshev's series in (x - 3.75) / (x + 3.75) ([SL])."""
    name = "erfcx"

    def decaying(self, m, x):
        """The function for x >= 0."""
        far = x > 1e6
        a = m.where(far, 1.0, x)
        value = chebyshev(m, _ERFCX, (a - 3.75) / (a + 3.75)) / (1.0 + 2.0 * a)
        return m.where(far, 1.0 / (x * root(pi)), value)

    def formula(self, m, x):
        value = self.decaying(m, m.fabs(x))
        high = m.where(m.fabs(x) < 1e4, m.rint(x * 128.0) / 128.0, 1e4)      # x² in two parts, so that no digit of it is lost
        square = m.exp(high * high) * m.exp((x - high) * (x + high))
        reflected = m.where(x < -30.0, INF, 2.0 * square - value)
        return m.where(x < 0.0, reflected, value)

    def vjp(self, ct, y, x): return (ct * (x * y * 2.0 - 2.0 / root(pi)),)


class Ndtr(Formula):
    """The distribution function of the standard normal distribution."""
    name = "ndtr"
    def formula(self, m, x): return m.erfc(x * -root(0.5)) * 0.5
    def vjp(self, ct, y, x): return (ct * exp(x * x * -0.5) * (1.0 / root(2.0 * pi)),)


class LogNdtr(Erfcx):
    """log(ndtr(x)), accurate in both tails."""
    name = "log_ndtr"

    def formula(self, m, x):
        low = x < -1.0
        t = m.where(low, x * -root(0.5), 1.0)
        near = m.log1p(m.erfc(m.where(low, 0.0, x * root(0.5))) * -0.5)
        return m.where(low, m.log(self.decaying(m, t) * 0.5) - t * t, near)

    def vjp(self, ct, y, x):
        # On either side what does not overflow there: where erfcx does, the second derivative was inf / inf.
        below = lt(x, 0.0)
        low, high = where(below, x, 0.0), where(below, 0.0, x)
        right = exp(high * high * -0.5) * root(0.5 / pi) / ndtr(high)
        return (ct * where(below, root(2.0 / pi) / erfcx(low * -root(0.5)), right),)
erfc = operation("erfc", "erfc", special=("erfc",))
erfinv = operation("erfinv", "erfinv", special=("erfinv",))
erfcx, ndtri, ndtr, log_ndtr = (operation(name, special=(name,)) for name in ("erfcx", "ndtri", "ndtr", "log_ndtr"))
