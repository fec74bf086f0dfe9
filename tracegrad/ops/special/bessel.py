"""Bessel functions of real order 0 and 1 (J, Y, K) and Airy's Ai: Formulas, as those of `gamma.py`, and tg.special's names of them.

By Chebyshev series of what is smooth: near 0 the function without its logarithm or pole, as a series in x^2; far away the modulus of
its asymptotic form, in 1/x or 1/x^2 (M. Abramowitz, I. Stegun, "Handbook of mathematical functions", 1964, chapters 9 and 10). The
coefficients were computed with 40 digits. Near the zeros of J, Y and Ai the error is absolute.
"""

from __future__ import annotations

from math import log, pi
from math import sqrt as root

from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.formula import INF, NAN, Formula, chebyshev, next_to_zero
from tracegrad.ops.special.exports import operation

_K0_SMALL = (
    -0.2676636966169514, 0.3442898999246285, 0.0359799365153615, 0.001264615411446926, 2.286212103119452e-05, 2.5347910790261494e-07,
    1.904516377220209e-09, 1.0349695257633625e-11, 4.2598161427910826e-14, 1.3744654358807508e-16,
)
_K1_SMALL = (
    0.7626501136694739, -0.3531559607765449, -0.12261118082265715, -0.006975723859639864, -0.0001730288957513052,
    -2.4334061415659684e-06, -2.213387630734726e-08, -1.4114883926335278e-10, -6.666901694199329e-13, -2.427449850519366e-15,
    -7.023863479386288e-18,
)
_K0_LARGE = (
    1.2201515410329777, -0.0314481013119645, 0.0015698838857300533, -0.00012849549581627802, 1.39498137188765e-05,
    -1.8317555227191195e-06, 2.766813639445015e-07, -4.660489897687948e-08, 8.574034017414225e-09, -1.6975345093890614e-09,
    3.5773972814003283e-10, -7.957489244477396e-11, 1.8559491149549264e-11, -4.514597883374519e-12, 1.1403405882073441e-12,
    -2.9800969231481784e-13, 8.032890775068375e-14, -2.2275133267462965e-14, 6.340076476276646e-15, -1.848593377920907e-15,
    5.5120559994043335e-16, -1.6782311257549006e-16, 5.2103917776435543e-17, -1.6475805939842632e-17, 5.3004337711773354e-18,
)
_K1_LARGE = (
    1.3603130952422213, 0.10392373657681724, -0.002857816859622779, 0.00019521551847135162, -1.936197974166083e-05,
    2.406484947837217e-06, -3.5019606030878126e-07, 5.7410841254500495e-08, -1.0345762465678097e-08, 2.0150497551970347e-09,
    -4.1903547593419254e-10, 9.218315187605315e-11, -2.129967838427791e-11, 5.139639673482343e-12, -1.2891739609498229e-12,
    3.348419666052243e-13, -8.976705182010146e-14, 2.4771544242195988e-14, -7.0198370892147685e-15, 2.038703166239861e-15,
    -6.057047270643018e-16, 1.8380935752430455e-16, -5.689462849193648e-17, 1.7940510478863572e-17, -5.7567444820733025e-18,
)
_J0_SMALL = (
    0.15772797147489012, -0.008723442352852221, 0.2651786132033368, -0.37009499387264977, 0.15806710233209725, -0.034893769411408884,
    0.004819180069467605, -0.00046062616620627504, 3.246032882100508e-05, -1.7619469077621507e-06, 7.608163592418782e-08,
    -2.679253530557673e-09, 7.848696314479465e-11, -1.9438346867370164e-12, 4.125320595634374e-14, -7.588508125447546e-16,
    1.2218515873961411e-17,
)
_J1_SMALL = (
    0.08104484632565812, -0.1489751450676521, 0.1609992623572097, -0.08268049176681791, 0.022213639654966037, -0.003646940600769276,
    0.0004050337728354822, -3.255554866857259e-05, 1.9858774049915165e-06, -9.521984756750436e-08, 3.687133759097148e-09,
    -1.178026622695885e-10, 3.160154580348003e-12, -7.221755239651773e-14, 1.4232144003513942e-15, -2.4441972916190464e-17,
    3.6912682997929334e-19,
)
_Y0_SMALL = (
    -0.03314611320328494, -0.2744743055297453, 0.17903431407718265, 0.26156734625504663, -0.17730201278114358, 0.04719668959576339,
    -0.007287962479552079, 0.0007531135932577742, -5.632079141056987e-05, 3.206532537654801e-06, -1.44072332740187e-07,
    5.248794787330516e-09, -1.5837552541812015e-10, 4.02633081830612e-12, -8.747341203310769e-14, 1.6434898714919468e-15,
    -2.6977881152566837e-17,
)
_Y1_SMALL = (
    0.0025380132357417816, -0.01608717304766875, -0.09591204536083074, 0.08445197259652346, -0.028328123944594365, 0.005289897544167113,
    -0.0006414551451326356, 5.505982873338744e-05, -3.53808001868935e-06, 1.7707804556154404e-07, -7.11055004989928e-09,
    2.344337905911516e-10, -6.4651518414115946e-12, 1.51429151205002e-13, -3.0511859694473254e-15, 5.34668038572867e-17,
    -8.224911372021585e-19,
)
_P0 = (
    0.9994603493475187, -0.0005365220468132117, 3.0751847875194745e-06, -5.1705945376060975e-08, 1.6306464635151382e-09,
    -7.86409137723707e-11, 5.168262387349193e-12, -4.3045788699253914e-13, 4.3265957431549404e-14, -5.069034095935236e-15,
    6.748072215733873e-16, -1.0011513723467786e-16, 1.6305919233744186e-17, -2.880866169482871e-18,
)
_Q0 = (
    -0.12444683684269607, 0.0005470815954089319, -5.9315987288485175e-06, 1.4377965798375193e-07, -5.817532749493056e-09,
    3.376097523734991e-10, -2.565397936797308e-11, 2.404916100281365e-12, -2.6690625482579414e-13, 3.4041800321963686e-14,
    -4.87994410531204e-15, 7.729703176242605e-16, -1.3348852171502517e-16, 2.4865952389390515e-17, -4.952892629886516e-18,
    1.0473158973776097e-18,
)
_P1 = (
    1.0009030408600137, 0.0008989898330859408, -3.987284300488908e-06, 6.177633960644299e-08, -1.8718907491063067e-09,
    8.816898659582339e-11, -5.704863640395645e-12, 4.699195515230542e-13, -4.6842237839904895e-14, 5.452674896044717e-15,
    -7.221180842274018e-16, 1.0667689114335412e-16, -1.7312313216116335e-17, 3.0492991197665872e-18,
)
_Q1 = (
    0.3742222965562826, -0.0007702178839325664, 7.3108922063643636e-06, -1.676782510726674e-07, 6.583354662120443e-09,
    -3.749090950541556e-10, 2.8121750359748866e-11, -2.61145253946232e-12, 2.8774212663332235e-13, -3.649001916061838e-14,
    5.206626366226707e-15, -8.215318025458595e-16, 1.4141084390211833e-16, -2.626761589838529e-17, 5.2192649196714085e-18,
    -1.101261718787959e-18,
)
_AI_MIDDLE = (
    0.15168947628223672, -0.005228692408472365, -0.007183007563342123, -0.2750085825170078, 0.15267285652736612, 0.11299722901833571,
    -0.12930163519980795, 0.021717950423082666, 0.024911850702736413, -0.01433585742189573, 0.000696689451639598, 0.001974398933529019,
    -0.0007230393972252199, -1.6112414526177467e-05, 8.133273673249939e-05, -2.0775365813975462e-05, -1.6054762687164758e-06,
    2.0560158255601387e-06, -3.825520517284178e-07, -4.913870596184178e-08, 3.514168642051892e-08, -4.846385010860496e-09,
    -8.897812059422213e-10, 4.329786248648808e-10, -4.414745597439301e-11, -1.1096862995764342e-11, 4.024832028797832e-12,
    -2.9609936249846454e-13, -1.0257635127287476e-13, 2.920579876829024e-14, -1.4619955511486232e-15, -7.35505053091767e-16,
    1.6986548408182807e-16, -5.0563208224652944e-18, -4.2234448483626644e-18, 8.087008847190025e-19,
)
_AI_LARGE = (
    0.9844053049171552, -0.014792784850104199, 0.0007327177465426715, -6.12595423417825e-05, 6.83476697557269e-06,
    -9.237229735403982e-07, 1.436225340438052e-07, -2.489319422322096e-08, 4.709793440054328e-09, -9.583863708112733e-10,
    2.0745855483677591e-10, -4.737267332192277e-11, 1.1336099808224236e-11, -2.827706782319351e-12, 7.320712095125598e-13,
    -1.9599793911089723e-13, 5.4101162570683925e-14, -1.5356466802223836e-14, 4.472340393300025e-15, -1.3338094674756683e-15,
    4.066582046456231e-16, -1.265583225645289e-16, 4.015126334015871e-17, -1.2969972135960937e-17, 4.2613499074124e-18,
)
_AI_P = (
    0.9996723415461005, -0.0003255483561055322, 2.069745155969119e-06, -3.890961736474424e-08, 1.3645959446950337e-09,
    -7.265563438866682e-11, 5.234675629062907e-12, -4.749669415821452e-13, 5.172156139604189e-14, -6.533725295545284e-15,
    9.33927407277721e-16, -1.4823330512580455e-16, 2.5745988399644002e-17, -4.8369440585693956e-18,
)
_AI_Q = (
    0.06911528040160503, -0.0003251060364586695, 3.945977743866323e-06, -1.068929090514341e-07, 4.800334718951617e-09,
    -3.0691067169997637e-10, 2.5517594369013928e-11, -2.601606731752434e-12, 3.123666855119186e-13, -4.2903251712839485e-14,
    6.596710595977435e-15, -1.116833216041688e-15, 2.0551350158850327e-16, -4.0680056098438254e-17, 8.589182631392619e-18,
    -1.921018818902054e-18, 4.524779482719087e-19,
)

_AIP_MIDDLE = (
    -0.06315261022202251, 0.010975768121874042, -0.12331739621063224, 0.019184919622836468, 0.34812588810423833, -0.3297816095825718,
    0.025276662337564874, 0.11353828253105538, -0.06159513935476579, -0.0003444635385967881, 0.012132127386412247, -0.004325546119394491,
    -0.00027838019577015844, 0.0006324383187213026, -0.00015868797357569724, -1.822357513869254e-05, 1.9386590544092414e-05,
    -3.5449349675704738e-06, -5.861346184917914e-07, 3.898861359218234e-07, -5.262866804893778e-08, -1.1733137455535698e-08,
    5.527952081388177e-09, -5.473165808334866e-10, -1.6262413112168498e-10, 5.8134243958189e-11, -4.097516896480096e-12,
    -1.6632604696645108e-12, 4.70873267781928e-13, -2.2038849298514583e-14, -1.3108540378310244e-14, 3.0239315783189547e-15,
    -7.959372354180097e-17, -8.218013060590118e-17, 1.5754040538973156e-17,
)
_AIP_LARGE = (
    1.0223917438953567, 0.021419543172417697, -0.0008929320864098833, 7.04386560665416e-05, -7.629019563020457e-06, 1.0124594126717678e-06,
    -1.5547836430438127e-07, 2.670534777173515e-08, -5.017799973983537e-09, 1.015476324864757e-09, -2.1883687800953883e-10,
    4.97854884096185e-11, -1.1876037266305446e-11, 2.9543896474165515e-12, -7.630714992633907e-13, 2.038758045182824e-13,
    -5.617262461082948e-14, 1.5918346754340464e-14, -4.629150125159948e-15, 1.3787341769318453e-15, -4.198446246812051e-16,
    1.3051699130322144e-16, -4.1364905599761646e-17, 1.3349430157944717e-17, -4.3821989068953736e-18, 1.461838123264722e-18,
)
_AIP_P = (
    1.0003878405275435, 0.0003855407600036015, -2.2569547701994824e-06, 4.13018222466532e-08, -1.42946827628554e-09, 7.551623154582091e-11,
    -5.412684015866087e-12, 4.893117688966832e-13, -5.313644450068392e-14, 6.697975952039033e-15, -9.557415795023906e-16,
    1.5147815527564406e-16, -2.627782827949282e-17, 4.931767229919422e-18, -9.919951452991944e-19,
)
_AIP_Q = (
    -0.09685373558055735, 0.00036413719505663344, -4.231539204935565e-06, 1.1255552405699963e-07, -5.0045376884264e-09,
    3.179700644428914e-10, -2.632362416231985e-11, 2.675352198626147e-12, -3.204480010858941e-13, 4.392920315480073e-14,
    -6.743950494446888e-15, 1.1402812450546277e-15, -2.0959757741233326e-16, 4.1449196379079236e-17, -8.744355071414311e-18,
    1.9543012716058454e-18,
)


def order_one_over(x, y, sign, factor=1.0):
    """y / x, where y is factor J1(x) (sign -1) or factor I1(x) (sign 1): near 0 by the series, whose derivatives cancel nothing there."""
    small = (x < 1.0) & (x > -1.0)
    square, term, total = where(small, x * x, 0.0), 0.5, 0.5
    for k in range(1, 9):
        term = term * square * (0.25 * sign / (k * (k + 1)))
        total = total + term
    return where(small, total * factor, y / where(small, 1.0, x))


def _log(m, x):
    """log(x) of positive x, 0 elsewhere."""
    return m.log(m.where(x > 0.0, x, 1.0))


# ------------------------------------------------------------------------------------------------- first and second kind


def _wave(m, order, x, second):
    """J (or, if `second`, Y) of that order at x > 8: sqrt(2 / (pi x)) (P cos(phase) - Q sin(phase)), phase = x - pi/4 - order pi/2."""
    p, q = ((_P0, _Q0), (_P1, _Q1))[order]
    t = 128.0 / (x * x) - 1.0
    even, odd = chebyshev(m, p, t, True), chebyshev(m, q, t, True) / x
    s, c = m.sin(x), m.cos(x)
    cosine, sine = (c + s, s - c) if order == 0 else (s - c, -(c + s))          # of the phase, times sqrt(2)
    wave = even * sine + odd * cosine if second else even * cosine - odd * sine
    size = m.sqrt(x * pi) if m.double else m.sqrt(x) * root(pi)           # (x * pi may be infinite in floats)
    return m.where(x == INF, 0.0, wave / size)


class BesselJ0(Formula):
    """The Bessel function of the first kind, of order 0."""
    name = "bessel_j0"

    def formula(self, m, x):
        size = m.fabs(x)
        near = chebyshev(m, _J0_SMALL, m.where(size <= 8.0, size * size / 32.0 - 1.0, 0.0), True)
        return m.where(x == x, m.where(size <= 8.0, near, _wave(m, 0, m.where(size > 8.0, size, 9.0), False)), NAN)

    def vjp(self, ct, y, x): return (-ct * bessel_j1(x),)


class BesselJ1(Formula):
    """The Bessel function of the first kind, of order 1."""
    name = "bessel_j1"

    def formula(self, m, x):
        size = m.fabs(x)
        near = chebyshev(m, _J1_SMALL, m.where(size <= 8.0, size * size / 32.0 - 1.0, 0.0), True) * x
        far = _wave(m, 1, m.where(size > 8.0, size, 9.0), False)
        return m.where(x == x, m.where(size <= 8.0, near, m.where(x < 0.0, -far, far)), NAN)

    def vjp(self, ct, y, x): return (ct * (bessel_j0(x) - order_one_over(x, y, -1.0)),)


def _second(m, order, x, near):
    """Y of that order: NaN for negative x, -inf at 0."""
    far = _wave(m, order, m.where(x > 8.0, x, 9.0), True)
    return m.where(x > 0.0, m.where(x <= 8.0, near, far), m.where(x == 0.0, -INF, NAN))


class BesselY0(Formula):
    """The Bessel function of the second kind, of order 0; NaN for negative x."""
    name, domain = "bessel_y0", (0.3, 20.0)

    def formula(self, m, x):
        small = m.where((x > 0.0) & (x <= 8.0), x, 1.0)
        t = small * small / 32.0 - 1.0
        near = chebyshev(m, _Y0_SMALL, t, True) + (2.0 / pi) * _log(m, small) * chebyshev(m, _J0_SMALL, t, True)
        near = next_to_zero(m, x, near, (0.893576979637146, -1.3357978474508862e-08), (0.8794208024971948, -0.49207893426297755, 0.2205528))
        return _second(m, 0, x, near)

    def vjp(self, ct, y, x): return (-ct * bessel_y1(x),)


class BesselY1(Formula):
    """The Bessel function of the second kind, of order 1; NaN for negative x."""
    name, domain = "bessel_y1", (0.3, 20.0)

    def formula(self, m, x):
        small = m.where((x > 0.0) & (x <= 8.0), x, 1.0)
        t = small * small / 32.0 - 1.0
        j1 = chebyshev(m, _J1_SMALL, t, True) * small
        near = chebyshev(m, _Y1_SMALL, t, True) * small + (2.0 / pi) * (_log(m, small) * j1 - 1.0 / small)
        return _second(m, 1, x, near)

    def vjp(self, ct, y, x): return (ct * (bessel_y0(x) - y / x),)


# ------------------------------------------------------------------------------------------------ modified, second kind


def _decaying(m, order, x, scaled):
    """K of that order, times exp(x) if `scaled`: inf at 0, NaN below."""
    small = m.where((x > 0.0) & (x <= 2.0), x, 1.0)
    square = small * small
    term, i0, i1 = 1.0, 1.0, 0.5
    for k in range(1, 14 if m.double else 9):                   # the series of I0 and of I1 / x, in (x / 2)^2
        term = term * square * (0.25 / (k * k))
        i0, i1 = i0 + term, i1 + term * (0.5 / (k + 1))
    t, logarithm = square * 0.5 - 1.0, m.log(small * 0.5) if m.double else m.log(small) - log(2.0)     # (half of the least float is 0)
    if order == 0:
        near = chebyshev(m, _K0_SMALL, t) - logarithm * i0
    else:
        near = chebyshev(m, _K1_SMALL, t) / small + logarithm * i1 * small
    large = m.where(x > 2.0, x, 4.0)
    far = chebyshev(m, (_K0_LARGE, _K1_LARGE)[order], 4.0 / large - 1.0) / m.sqrt(large)
    if scaled:
        near = near * m.exp(small)
    else:
        far = far * m.exp(-large)
    value = m.where(x <= 2.0, near, m.where(x == INF, 0.0, far))
    return m.where(x > 0.0, value, m.where(x == 0.0, INF, NAN))


class ModifiedBesselK0(Formula):
    """The modified Bessel function of the second kind, of order 0; inf at 0, NaN for negative x."""
    name, domain = "modified_bessel_k0", (0.2, 6.0)
    def formula(self, m, x): return _decaying(m, 0, x, False)
    def vjp(self, ct, y, x): return (-ct * modified_bessel_k1(x),)


class ModifiedBesselK1(Formula):
    """The modified Bessel function of the second kind, of order 1; inf at 0, NaN for negative x."""
    name, domain = "modified_bessel_k1", (0.2, 6.0)
    def formula(self, m, x): return _decaying(m, 1, x, False)
    def vjp(self, ct, y, x): return (-ct * (modified_bessel_k0(x) + y / x),)


class ScaledModifiedBesselK0(Formula):
    """exp(x) times the modified Bessel function of the second kind, of order 0."""
    name, domain = "scaled_modified_bessel_k0", (0.2, 6.0)
    def formula(self, m, x): return _decaying(m, 0, x, True)
    def vjp(self, ct, y, x): return (ct * (y - scaled_modified_bessel_k1(x)),)


class ScaledModifiedBesselK1(Formula):
    """exp(x) times the modified Bessel function of the second kind, of order 1."""
    name, domain = "scaled_modified_bessel_k1", (0.2, 6.0)
    def formula(self, m, x): return _decaying(m, 1, x, True)
    def vjp(self, ct, y, x): return (ct * (y - scaled_modified_bessel_k0(x) - y / x),)


# --------------------------------------------------------------------------------------------------------------- Airy


def _zeta(x):
    return 2.0 / 3.0 * x ** 1.5


def _airy(m, x, middle, large, even, odd, derivative):
    """Ai or its derivative, by series on [-5, 2], of what decays beyond 2, and of the two parts of the wave below -5."""
    middle = chebyshev(m, middle, m.where((x >= -5.0) & (x <= 2.0), (x * 2.0 + 3.0) / 7.0, 0.0), True)
    right = m.where(x > 2.0, x, 3.0)
    z, size = right * m.sqrt(right) * (2.0 / 3.0), m.sqrt(m.sqrt(right))
    above = chebyshev(m, large, 2.0 * _zeta(2.0) / z - 1.0) * m.exp(-z)
    above = above * size * (-0.5 / root(pi)) if derivative else above / (size * (2.0 * root(pi)))
    above = m.where(x > 200.0, 0.0, above)
    left = m.where((x < -5.0) & (x >= -1e6), -x, 6.0)
    z = left * m.sqrt(left) * (2.0 / 3.0) if m.double else m.sqrt(left * left * left * (4.0 / 9.0))      # which rounds less
    t, size = 2.0 * _zeta(5.0) ** 2 / (z * z) - 1.0, m.sqrt(m.sqrt(left))
    s, c = m.sin(z), m.cos(z)
    even, odd = chebyshev(m, even, t, True), chebyshev(m, odd, t, True) / z
    if derivative:
        below = (even * (s - c) - odd * (s + c)) * size * (1.0 / root(2.0 * pi))
    else:
        below = (even * (s + c) - odd * (c - s)) / (size * root(2.0 * pi))
    return m.where(x >= -1e6, m.where(x > 2.0, above, m.where(x < -5.0, below, middle)), NAN)


class AiryAi(Formula):
    """Airy's function Ai. NaN below -1e6, where the phase of its wave is lost (in float32 its digits go one by one before)."""
    name = "airy_ai"
    def formula(self, m, x): return _airy(m, x, _AI_MIDDLE, _AI_LARGE, _AI_P, _AI_Q, False)
    def vjp(self, ct, y, x): return (ct * REGISTRY["airy_ai_slope"](x),)


class AiryAiSlope(Formula):
    """The derivative of Airy's function Ai, whose own is x Ai(x)."""
    name = "airy_ai_slope"
    def formula(self, m, x): return _airy(m, x, _AIP_MIDDLE, _AIP_LARGE, _AIP_P, _AIP_Q, True)
    def vjp(self, ct, y, x): return (ct * (airy_ai(x) * x),)


bessel_j0, bessel_j1, bessel_y0, bessel_y1, airy_ai = (
    operation(name, special=(name,)) for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"))
modified_bessel_k0, modified_bessel_k1, scaled_modified_bessel_k0, scaled_modified_bessel_k1 = (
    operation(name, special=(name,))
    for name in ("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"))
