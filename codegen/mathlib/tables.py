"""The numbers of the math library: constants per precision, polynomials, and the digits of 1/(2*pi).

`CONSTANTS[name]` is a pair (float text, double text), written `$NAME` in the C templates; `POLY[name]` is a pair of
coefficient tuples, lowest power first, written `$poly(name, x)`. The polynomials are Chebyshev fits to the function
named beside them, computed with 60 digits and rounded once; the fit's own error is below 0.1 ulp of the result.
"""

from __future__ import annotations

from fractions import Fraction

CONSTANTS: dict[str, tuple[str, str]] = {
    # the format
    "MANT": ("23", "52"),
    "BIAS": ("127", "1023"),
    "ABSMASK": ("0x7fffffff", "0x7fffffffffffffffL"),
    "MANTMASK": ("0x007fffff", "0x000fffffffffffffL"),
    "SIGNBIT": ("31", "63"),
    "SIGNSHIFT": ("30", "62"),                                  # from bit 1 to the sign
    "HALFMASK": ("0x7ffff000", "0x7fffffff00000000L"),          # upper half of the significand, sign cleared
    "SQRTHALF": ("0x3f3504f3", "0x3fe6a09e667f3bcdL"),          # bits of sqrt(0.5)
    "MAGIC": ("12582912.0f", "6755399441055744.0"),             # 1.5 * 2^MANT: adding it rounds to an integer
    "MIN": ("1.17549435e-38f", "2.2250738585072014e-308"),      # smallest normal
    "UP": ("33554432.0f", "18014398509481984.0"),               # 2^25, 2^54: lifts denormals
    "UPBITS": ("25", "54"),
    "INTEGRAL": ("8388608.0f", "4503599627370496.0"),           # from here on every number is an integer
    "HALFBELOW": ("0.49999997f", "0.49999999999999994"),        # the number below one half
    # exponentials
    "LOG2E": ("1.44269504f", "1.4426950408889634"),
    "LN2HI": ("6.9313812256e-01f", "6.93147180369123816490e-01"),   # fdlibm: n * LN2HI is exact
    "LN2LO": ("9.0580006145e-06f", "1.90821492927058770002e-10"),
    "LN2": ("0.693147181f", "0.6931471805599453"),
    "LN2TAIL": ("-1.9046542e-09f", "2.3190468138462996e-17"),
    "LN10": ("2.30258509f", "2.302585092994046"),
    "LN10TAIL": ("-3.1975436e-08f", "-2.1707562233822494e-16"),
    "EXPMAX": ("89.0f", "710.0"),                               # above: inf
    "EXPMIN": ("-104.5f", "-746.0"),                            # below: 0
    "LIFT": ("64", "128"),                                      # 2^(n + LIFT) is normal for all n from EXPMIN on
    "UNLIFT": ("5.4210108624275222e-20f", "2.9387358770557188e-39"),     # 2^-LIFT
    "EXP2MAX": ("129.0f", "1025.0"),
    "EXP2MIN": ("-151.0f", "-1076.0"),
    "EXP10MAX": ("38.7f", "308.5"),
    "EXP10MIN": ("-45.5f", "-324.5"),
    "SINHMAX": ("89.7f", "710.7"),                              # sinh is inf, and 2^(n-2) is not
    "EXPM1MIN": ("-25.0f", "-45.0"),                            # below: -1
    # logarithms (HI * a 12- or 21-bit number is exact)
    "IVLN2HI": ("1.4428710938f", "1.44269504072144627571e+00"),     # fdlibm
    "IVLN2LO": ("-1.7605285393e-04f", "1.67517131648865118353e-10"),
    "IVLN10HI": ("4.3432617188e-01f", "4.34294481878168880939e-01"),
    "IVLN10LO": ("-3.1689971365e-05f", "2.50829467116452752298e-11"),
    "LOG10_2HI": ("3.0102920532e-01f", "3.01029995663611771306e-01"),
    "LOG10_2LO": ("7.9034151668e-07f", "3.69423907715893078616e-13"),
    # angles
    "PI": ("3.14159274f", "3.141592653589793"),
    "PIO2": ("1.57079637f", "1.5707963267948966"),
    "PIO2LO": ("-4.37113883e-08f", "6.123233995736766e-17"),
    "RELLO": ("-2.7827534e-08f", "3.8981718325193755e-17"),     # PIO2LO / PIO2
    "PIO4": ("0.785398185f", "0.7853981633974483"),
    "TANPIO8": ("0.414213568f", "0.41421356237309503"),
    "TAN3PIO8": ("2.41421366f", "2.414213562373095"),
    "TINY": ("1.220703125e-4f", "7.450580596923828e-9"),        # below: odd functions are x to half an ulp
    "HUGE": ("1.0e10f", "1.0e18"),                              # above: 1 + x^2 == x^2 == (x - 1)^2 ...
    "BIG": ("1.0e30f", "1.0e300"),
    # error function
    "TWO_SQRTPIM1": ("0.128379167f", "0.12837916709551257"),    # 2 / sqrt(pi) - 1
    "ERFCMAX": ("10.5f", "28.0"),                               # above: 0
    # cube root: start values of fdlibm, bias/3 - 0.03306235651 in the exponent field
    "CBRT": ("709958130", "(715094163L << 32)"),
}

POLY: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "exp": (                                                    # (e^r - 1 - r) / r^2, |r| < ln(2)/2
        (5.e-01, 1.6666575e-01, 4.1666552e-02, 8.363472e-03, 1.3926551e-03),
        (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333325848, 0.0013888888888883544, 0.00019841269875819578,
         2.4801587326261104e-05, 2.755725413931689e-06, 2.7557272742699346e-07, 2.5105739221586713e-08, 2.0915059884917686e-09)),
    "log": (                                                    # (log((1+s)/(1-s)) - 2s) / s^3 in s^2, s < 0.172
        (6.6666687e-01, 3.9988655e-01, 2.958568e-01),
        (0.666666666666667, 0.3999999999989607, 0.28571428627528794, 0.22222210881932927, 0.1818290749767122,
         0.1533111258796017, 0.1462395660821188)),
    "logrest": ((                                               # (log(1+f) - f + f^2/2) / f^3, sqrt(1/2) <= 1 + f <= sqrt(2)
        3.3333332e-01, -2.5000821e-01, 2.0001225e-01, -1.6623353e-01, 1.420179e-01, -1.3160253e-01, 1.2761377e-01, -7.6340594e-02), ()),
    "sin": (                                                    # (sin r - r) / r^3 in r^2, r < pi/4
        (-1.6666664e-01, 8.332746e-03, -1.9587387e-04),
        (-0.16666666666666666, 0.008333333333330925, -0.00019841269836722418, 2.755731608381636e-06, -2.5051127944014188e-08,
         1.5917848524808262e-10)),
    "cos": (                                                    # (cos r - 1 + r^2/2) / r^4 in r^2
        (4.1666664e-02, -1.38883e-03, 2.4547437e-05),
        (0.041666666666666664, -0.0013888888888887382, 2.480158729874307e-05, -2.7557317260008837e-07, 2.0876143827993133e-09,
         -1.1382456778061306e-11)),
    "asin": (                                                   # (asin x - x) / x^3 in x^2, x < 1/2
        (1.6666666e-01, 7.500094e-02, 4.4599403e-02, 3.1100662e-02, 1.7149238e-02, 3.3690847e-02),
        (0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247, 0.02237217294214989,
         0.017352392720869973, 0.013971212973552933, 0.011479177415184906, 0.01032281435018578, 0.005457506718640358,
         0.01740087944269402, -0.014851887071247204, 0.028757851367421566)),
    "atan": (                                                   # (atan x - x) / x^3 in x^2, x < tan(pi/8)
        (-3.333333e-01, 1.9999538e-01, -1.4263879e-01, 1.0742895e-01, -6.449158e-02),
        (-0.3333333333333333, 0.19999999999995466, -0.1428571428465508, 0.11111111014334958, -0.0909090454071021,
         0.07692182322230513, -0.06664499220441451, 0.05858042767486098, -0.050848946488512896, 0.03921563261717332,
         -0.019157273875052977)),
    "erf": (                                                    # (erf(x)/x - 2/sqrt(pi)) / x^2 in x^2, x < 1
        (-3.7612638e-01, 1.1283754e-01, -2.68617e-02, 5.204579e-03, -8.1619865e-04, 8.379755e-05),
        (-0.37612638903183754, 0.11283791670955111, -0.026866170645123838, 0.005223977625303518, -0.0008548327010033328,
         0.00012055332214716276, -1.4925622504489842e-05, 1.6461446656928561e-06, -1.6355118610877705e-07, 1.4692484859133263e-08,
         -1.1500357159785296e-09, 6.174097221305255e-11)),
    "erfcx": ((                                                 # e^(a^2) erfc(a) in a - 2, 1 <= a <= 4, weighted by what it does to erf
        0.255396135, -0.106799503, 0.0417712346, -0.0154921488, 0.0055719622, -0.00160292366, 0.000560749327, -0.00038888294), ()),
    "erfc": (                                                   # (1 + 2a) e^(a^2) erfc(a) in (a-4)/(a+4)
        (1.2329952e+00, -1.3962114e-01, 1.5379637e-02, 6.8098e-02, -1.0103775e-01, 9.3719535e-02, -6.63571e-02, 3.722641e-02,
         -1.601293e-02, 5.0492673e-03, -1.1386668e-03, -6.4377283e-04),
        (1.2329951186255526, -0.1396211168405629, 0.01537965210262074, 0.06809705425473732, -0.10103906603635213,
         0.09373283499679412, -0.06633036581152939, 0.03716751556249286, -0.016197734059115006, 0.005031969755895426,
         -0.00075777334141333, -0.00019925550755614952, 0.000150622243948303, -2.4403169244974074e-05, -1.1224789135154701e-05,
         5.7178872846321855e-06, 3.0135049944875397e-07, -8.351619688696847e-07, 6.270727157198311e-08, 1.1534943745754157e-07,
         -7.71541861441783e-09, -1.3670989863347383e-08, -1.8206098680308682e-09)),
    "powlog": ((), (                                            # ((log((1+s)/(1-s)) - 2s) / s^3 - 2/3) / s^2 in s^2
        0.4000000000000003, 0.28571428571335483, 0.2222222227246897, 0.18181808025080376, 0.1538559095957839, 0.13285421679017204,
        0.12920221324272918)),
    "logshort": ((), (0.6666666666739516, 0.39999998770080447, 0.2857176008578298, 0.22191049440932323, 0.19369462304677365)),
    "expshort": ((), (                                          # as log and exp, 2^-40: enough for a float result
        0.5000000013866818, 0.1666666668206858, 0.04166646093850131, 0.008333310482738776, 0.0013934090352815372,
        0.0001989147984135547)),
}


def inverse_two_pi(bits: int) -> int:
    """floor(2^bits / (2 pi)), exactly: pi by Machin's formula in integers."""
    one = 1 << (bits + 64)

    def arctan_inverse(n: int) -> int:
        term = one // n
        total, k, square = term, 1, n * n
        while term:
            term //= square
            k += 2
            total += -(term // k) if k & 2 else term // k
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    return (one << bits) // (2 * pi)


def turn_pieces_float(width: int = 25, count: int = 8) -> list[float]:
    """1/(2 pi) cut into `count` numbers of `width` bits: a float times any of them is exact in double."""
    digits = inverse_two_pi(width * count)
    return [float(Fraction((digits >> width * (count - 1 - i)) & ((1 << width) - 1), 1 << width * (i + 1))) for i in range(count)]


def turn_pieces_double() -> list[list[float]]:
    """Row k: four doubles whose sum is 1/(2 pi) to 212 bits, less the bits that give whole turns for 2^32k <= |x|.

    Rows from 16 on are scaled by 2^512 to stay clear of denormals (the caller scales x by 2^-512).
    """
    bits = 1400
    value = Fraction(inverse_two_pi(bits), 1 << bits)
    rows = []
    for k in range(32):
        whole = Fraction(2) ** (52 - 32 * k)                    # x is a multiple of 1/whole
        rest = value - (value // whole) * whole
        rest *= 1 << 512 if k >= 16 else 1
        row = []
        for _ in range(4):
            piece = float(rest)
            row.append(piece)
            rest -= Fraction(piece)
        rows.append(row)
    return rows
