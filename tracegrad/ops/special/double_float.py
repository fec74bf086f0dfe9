"""lgamma and erfc of pairs of floats, where the device has no float64: elsewhere both are builtins. Formulas, as those of
`gamma.py` and `normal.py`."""

from __future__ import annotations

from math import log as ln
from math import pi
from typing import Any

from tracegrad.ops.primitives.formula import INF, NAN, chebyshev, of_pairs, polynomial
from tracegrad.ops.special.gamma import STIRLING
from tracegrad.ops.special.normal import Erfcx

_SERIES = (                                                                     # of lgamma(x) / ((x - 1) (x - 2)) in x - 1.5
    0.5233830675936226, -0.17797233729529863, 0.043707765509376, -0.012436054693716324, 0.0038166273622453444,
    -0.0012248310110168689, 0.0004046307309337695, -0.0001363999286478383, 4.6669854564403646e-05, -1.6152571568530024e-05,
    5.641861294289138e-06, -1.985468608994096e-06, 7.031292350156658e-07, -2.503431672683324e-07, 8.954655195462511e-08,
    -3.216038816813161e-08, 1.1591674196198932e-08, -4.191331343092517e-09, 1.5198287942838018e-09, -5.525248244354367e-10,
    2.0133461407895695e-10, -7.351973399346738e-11, 2.6898575436827364e-11, -9.85882886617758e-12, 3.619354400654772e-12,
    -1.3307382122555227e-12, 4.899613435234918e-13, -1.8063242404502505e-13, 6.667388160934133e-14, -2.4638096705345538e-14,
    9.114199669747885e-15, -3.3749037208856614e-15, 1.2508630658961872e-15, -4.640235454740319e-16,
)


@of_pairs("lgamma")
def _lgamma(m: Any, x: Any) -> Any:
    """A series that has its zeros up to 2.5, recurrence up to 4.5, Stirling's series beyond, reflection below 0.5."""
    reflected = x < 0.5
    y = m.where(reflected, 1.0 - x, x)
    near, far = y < 2.5, y > 4.5
    z = m.where(near, y, m.where(far, 3.5, y) - 2.0)
    middle = (z - 1.0) * (z - 2.0) * chebyshev(m, _SERIES, z - 1.5, True)

    def up(z, product):
        small = z < 8.0
        return m.where(small, z + 1.0, z), m.where(small, product * z, product)

    shifted, product = m.loop(4, (m.where(far, y, 8.0), 1.0), up)
    step = m.log(m.where(far, product, m.where(near, 1.0, (z + 1.0) * z)))
    inverse = 1.0 / shifted
    series = inverse * polynomial(STIRLING, inverse * inverse, m, 2) + 0.5 * ln(2.0 * pi)
    beyond = (shifted - 0.5) * m.log(shifted) - shifted + series - step
    beyond = m.where(y > 1e30, y * (m.log(shifted) - 1.0), beyond)
    value = m.where(far, beyond, middle + step)
    rest = x - m.rint(x)
    tiny = m.fabs(rest) < 2.0 ** -64                                # (pi times a denormal number has few digits)
    sine = m.log(m.fabs(m.where(tiny, rest, m.sin(rest * pi)))) + m.where(tiny, ln(pi), 0.0)
    value = m.where(reflected, m.where(rest == 0.0, INF, ln(pi) - sine - value), value)
    return m.where(m.fabs(x) == INF, INF, m.where(x == x, value, NAN))


@of_pairs("erfc")
def _erfc(m: Any, x: Any) -> Any:
    """By the scaled one."""
    size = m.fabs(x)
    value = Erfcx().decaying(m, size) * m.exp(-size * size)
    return m.where(x < 0.0, 2.0 - value, value)
