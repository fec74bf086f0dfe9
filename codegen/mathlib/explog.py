"""C templates: basic operations, exponentials, logarithms, powers, error function. Rendered by `library`.

A template is the text of one or more functions for the type T; I and U are the integer types of its width, M the type
of its comparisons, `as_T` and so on reinterpret bits. A pair is (float text, double text). Names that begin with
`tg_` and are called pull in their own template.
"""

from __future__ import annotations

Text = str | tuple[str, str]


def _hypot(large: str, small: str, down: str, up: str) -> str:
    """sqrt(x² + y²) within 1.2 ulp: what is too large or too small to be squared is scaled by a power of two, down or up."""
    return f"""
TG T tg_hypot(T x, T y) {{
    T a = tg_fabs(x);
    T b = tg_fabs(y);
    T most = a > b ? a : b;
    M large = most > 0x1p{large};
    M small = most < 0x1p-{small};
    T factor = large ? (T)(0x1p-{down}) : small ? (T)(0x1p{up}) : (T)(1.0);
    T back = large ? (T)(0x1p{down}) : small ? (T)(0x1p-{up}) : (T)(1.0);
    a *= factor;
    b *= factor;
    T r = tg_sqrt(a * a + b * b) * back;
    return ((a == (T)(INFINITY)) | (b == (T)(INFINITY))) ? (T)(INFINITY) : r;
}}"""


BASIC: dict[str, Text] = {
    # bits and roundings; the $each(f, x) forms apply a clang builtin lane by lane, which compiles to one instruction
    "tg_fabs": "TG T tg_fabs(T x) { return as_T(as_I(x) & $ABSMASK); }",
    "tg_copysign": "TG T tg_copysign(T x, T y) { return as_T((as_I(x) & $ABSMASK) | (as_I(y) & ~$ABSMASK)); }",
    "tg_sqrt": "TG T tg_sqrt(T x) { return $each(sqrt, x); }",
    "tg_rsqrt": "TG T tg_rsqrt(T x) { return (T)(1.0) / tg_sqrt(x); }",
    "tg_floor": "TG T tg_floor(T x) { return $each(floor, x); }",
    "tg_ceil": "TG T tg_ceil(T x) { return $each(ceil, x); }",
    "tg_trunc": "TG T tg_trunc(T x) { return $each(trunc, x); }",
    "tg_rint": "TG T tg_rint(T x) { return $each(rint, x); }",
    "tg_fma": "TG T tg_fma(T x, T y, T z) { return $each(fma, x, y, z); }",
    "tg_mad": "TG T tg_mad(T x, T y, T z) { return x * y + z; }",
    "tg_round": "TG T tg_round(T x) { return tg_trunc(x + tg_copysign((T)($HALFBELOW), x)); }",
    "tg_isnan": "TG M tg_isnan(T x) { return x != x; }",
    "tg_isinf": "TG M tg_isinf(T x) { return tg_fabs(x) == (T)(INFINITY); }",
    "tg_isfinite": "TG M tg_isfinite(T x) { return tg_fabs(x) < (T)(INFINITY); }",
    "tg_fmin": "TG T tg_fmin(T x, T y) { return ((y < x) | (x != x)) ? y : x; }",
    "tg_fmax": "TG T tg_fmax(T x, T y) { return ((y > x) | (x != x)) ? y : x; }",
    "tg_as_float": "TG T tg_as_float(I n) { return as_T(as_U((T)($MAGIC)) + as_U(n)) - $MAGIC; }   // |n| < 2^22",
    "tg_hypot": (_hypot("63", "60", "66", "90"), _hypot("500", "450", "600", "600")),
    "tg_scale": """
TG T tg_scale(T x, I n) {                       // x * 2^n in two exact steps, so that a denormal is rounded once
    I a = n >> 1;
    I b = n - a;
    return x * as_T((a + $BIAS) << $MANT) * as_T((b + $BIAS) << $MANT);
}""",
}

EXPONENTIALS: dict[str, Text] = {
    # Cephes exp: n = rint(x / ln 2), r = x - n ln 2 in two parts, e^r by a polynomial
    "tg_exp_parts": """
TG T tg_exp_parts(T x, I *n) {                  // e^x = result * 2^n; |x| < 2^20
    T shifted = x * $LOG2E + $MAGIC;
    T k = shifted - $MAGIC;
    T r = (x - k * $LN2HI) - k * $LN2LO;
    *n = as_I(as_U(shifted) - as_U((T)($MAGIC)));
    return (r * r * $poly(exp, r) + r) + 1.0;
}""",
    "tg_exp_tail_parts": """
TG T tg_exp_tail_parts(T x, T tail, I *n) {     // e^(x + tail) likewise
    T shifted = x * $LOG2E + $MAGIC;
    T k = shifted - $MAGIC;
    T r = (x - k * $LN2HI) - k * $LN2LO + tail;
    *n = as_I(as_U(shifted) - as_U((T)($MAGIC)));
    return (r * r * $poly(exp, r) + r) + 1.0;
}""",
    # A product below the smallest normal number stalls many CPUs, also one that is 0. The factor of the least n is 0, so no 0 (of a mask,
    # or far from a Gaussian's middle) is such a product; what lies between, numbers that are denormal, still are.
    "tg_exp_scale": """
TG T tg_exp_scale(T p, I n, M low) {            // p * 2^n, rounded once; p in [0.7, 1.5]; low: n <= 0
    return p * as_T((n + (low ? (I)($BIAS + $LIFT) : (I)($BIAS - 1))) << $MANT) * (low ? (T)($UNLIFT) : (T)(2.0));
}""",
    "tg_exp": """
TG T tg_exp(T x) {
    x = x > $EXPMAX ? (T)($EXPMAX) : x;
    x = x < $EXPMIN ? (T)($EXPMIN) : x;
    I n;
    T p = tg_exp_parts(x, &n);
    return tg_exp_scale(p, n, x < 0.0);
}""",
    "tg_exp_nonpositive": """
TG T tg_exp_nonpositive(T x) {                  // e^x for x <= 0 (or NaN)
    x = x < $EXPMIN ? (T)($EXPMIN) : x;
    I n;
    T p = tg_exp_parts(x, &n);
    return p * as_T((n + ($BIAS + $LIFT)) << $MANT) * $UNLIFT;
}""",
    "tg_exp2": """
TG T tg_exp2(T x) {
    x = x > $EXP2MAX ? (T)($EXP2MAX) : x;
    x = x < $EXP2MIN ? (T)($EXP2MIN) : x;
    T shifted = x + $MAGIC;
    T r = (x - (shifted - $MAGIC)) * $LN2;
    T p = (r * r * $poly(exp, r) + r) + 1.0;
    return tg_exp_scale(p, as_I(as_U(shifted) - as_U((T)($MAGIC))), x < 0.0);
}""",
    "tg_exp10": """
TG T tg_exp10(T x) {
    x = x > $EXP10MAX ? (T)($EXP10MAX) : x;
    x = x < $EXP10MIN ? (T)($EXP10MIN) : x;
    T product = x * $LN10;
    T tail = tg_fma(x, (T)($LN10), -product) + x * $LN10TAIL;
    I n;
    T p = tg_exp_tail_parts(product, tail, &n);
    return tg_exp_scale(p, n, x < 0.0);
}""",
    # expm1 = 2^n (e^r - 1) + (2^n - 1), scaled so that it overflows only where sinh does
    "tg_expm1_reduced": """
TG T tg_expm1_reduced(T x, I *n) {              // e^r - 1, where x = n ln 2 + r; x not below EXPM1MIN
    T shifted = x * $LOG2E + $MAGIC;
    T k = shifted - $MAGIC;
    T high = x - k * $LN2HI;
    T low = k * $LN2LO;
    T r = high - low;
    low = (high - r) - low;
    *n = as_I(as_U(shifted) - as_U((T)($MAGIC)));
    return r + (r * r * $poly(exp, r) + low);
}""",
    "tg_expm1_parts": """
TG T tg_expm1_parts(T x, T *small, M *direct) { // (e^x - 1) / 2; *small = e^x - 1 where *direct
    x = x > $SINHMAX ? (T)($SINHMAX) : x;
    x = x < $EXPM1MIN ? (T)($EXPM1MIN) : x;
    I n;
    T p = tg_expm1_reduced(x, &n);
    T scale = as_T((n + ($BIAS - 2)) << $MANT);
    *small = x == 0.0 ? x : p;
    *direct = n == 0;
    T quarter = scale * p + (scale - 0.25);
    return quarter + quarter;
}""",
    "tg_expm1": """
TG T tg_expm1(T x) {
    T small;
    M direct;
    T half_result = tg_expm1_parts(x, &small, &direct);
    return direct ? small : half_result + half_result;
}""",
    "tg_sinh": """
TG T tg_sinh(T x) {
    T a = tg_fabs(x);
    T small;
    M direct;
    T h = tg_expm1_parts(a, &small, &direct);
    T y = h + (a > 20.0 ? (T)(0.5) : h / (h + h + 1.0));
    return tg_copysign(a < $TINY ? a : y, x);
}""",
    "tg_cosh": """
TG T tg_cosh(T x) {
    T a = tg_fabs(x);
    a = a > $EXPMAX + 1.0 ? (T)($EXPMAX + 1.0) : a;
    I n;
    T p = tg_exp_parts(a, &n);
    T e = tg_scale(p, n - 1);
    return e + (T)(0.25) / e;
}""",
    # expm1(-2 |x|) / (expm1(-2 |x|) + 2): what is never positive needs no scaling in two steps
    "tg_tanh": """
TG T tg_tanh(T x) {
    T a = tg_fabs(x) * -2.0;
    a = a < $EXPM1MIN ? (T)($EXPM1MIN) : a;
    I n;
    T p = tg_expm1_reduced(a, &n);
    T scale = as_T((n + $BIAS) << $MANT);
    T t = scale * p + (scale - 1.0);
    return tg_copysign(t / (t + 2.0), x);
}""",
}

LOGARITHMS: dict[str, Text] = {
    # fdlibm e_log, e_log2, e_log10, s_log1p: x = 2^e m, f = m - 1, s = f / (2 + f), log(1 + f) = f - (f^2/2 - s (f^2/2 + R))
    "tg_log_parts": """
TG T tg_log_parts(T x, T *e) {                  // x = (1 + result) * 2^e, 1 + result in [sqrt(1/2), sqrt(2))
    M tiny = x < $MIN;
    U bits = as_U(tiny ? x * $UP : x) - as_U((I)($SQRTHALF));
    *e = tg_as_float(as_I(bits) >> $MANT) - (tiny ? (T)($UPBITS) : (T)(0.0));
    return as_T(as_U(as_I(bits) & $MANTMASK) + as_U((I)($SQRTHALF))) - 1.0;
}
TG T tg_log_ends(T x, T y) {                    // y, or the value of a logarithm where x is 0, negative, inf or NaN
    return x < (T)(INFINITY) ? (x > 0.0 ? y : (x == 0.0 ? (T)(-INFINITY) : (T)(NAN))) : x;
}""",
    # float: the rest as a polynomial in f: a division takes longer
    "tg_log": ("""
TG T tg_log(T x) {
    T e;
    T f = tg_log_parts(x, &e);
    T z = f * f;
    T first = f - z * 0.5;                      // f - (z / 2 - the rest) is within 0.9 ulp, not 1.3, and waits for the polynomial
    return tg_log_ends(x, e * $LN2HI + (first + (z * f * $poly(logrest, f) + e * $LN2LO)));
}""", """
TG T tg_log(T x) {
    T e;
    T f = tg_log_parts(x, &e);
    T s = f / (f + 2.0);
    T z = s * s;
    T half_square = f * f * 0.5;
    T r = z * $poly(log, z);
    return tg_log_ends(x, e * $LN2HI - ((half_square - (s * (half_square + r) + e * $LN2LO)) - f));
}"""),
    "tg_log1p": """
TG T tg_log1p(T x) {
    T u = x + 1.0;
    T e;
    T f = tg_log_parts(u, &e);
    T lost = (tg_fabs(x) < 1.0 ? x - (u - 1.0) : (T)(1.0) - (u - x)) / u;
    f = e == 0.0 ? x : f;
    lost = e == 0.0 ? (T)(0.0) : lost;
    T s = f / (f + 2.0);
    T z = s * s;
    T half_square = f * f * 0.5;
    T r = z * $poly(log, z);
    T y = e * $LN2HI - ((half_square - (s * (half_square + r) + (e * $LN2LO + lost))) - f);
    y = x > -1.0 ? y : (x == -1.0 ? (T)(-INFINITY) : (T)(NAN));
    return ((x < (T)(INFINITY)) & (x != 0.0)) ? y : x;
}""",
    "tg_log_split": """
TG T tg_log_split(T f, T *low) {                // log(1 + f) = result + low, the result of half precision
    T s = f / (f + 2.0);
    T z = s * s;
    T half_square = f * f * 0.5;
    T r = z * $poly(log, z);
    T high = f - half_square;
    high = as_T(as_I(high) & ($HALFMASK | ~$ABSMASK));
    *low = ((f - high) - half_square) + s * (half_square + r);
    return high;
}""",
    "tg_log2": """
TG T tg_log2(T x) {
    T e;
    T low;
    T high = tg_log_split(tg_log_parts(x, &e), &low);
    T main = high * $IVLN2HI;
    T sum = e + main;
    T rest = ((low + high) * $IVLN2LO + low * $IVLN2HI) + ((e - sum) + main);
    return tg_log_ends(x, sum + rest);
}""",
    "tg_log10": """
TG T tg_log10(T x) {
    T e;
    T low;
    T high = tg_log_split(tg_log_parts(x, &e), &low);
    T main = high * $IVLN10HI;
    T whole = e * $LOG10_2HI;
    T sum = whole + main;
    T rest = (e * $LOG10_2LO + (low + high) * $IVLN10LO + low * $IVLN10HI) + ((whole - sum) + main);
    return tg_log_ends(x, sum + rest);
}""",
    "tg_asinh": """
TG T tg_asinh(T x) {
    T a = tg_fabs(x);
    M huge = a > $HUGE;
    T b = huge ? (T)(1.0) : a;
    T square = b * b;
    T y = tg_log1p(huge ? a : b + square / (tg_sqrt(square + 1.0) + 1.0)) + (huge ? (T)($LN2) : (T)(0.0));
    return tg_copysign(a < $TINY ? a : y, x);
}""",
    "tg_acosh": """
TG T tg_acosh(T x) {
    M huge = x > $HUGE;
    T t = (huge ? (T)(2.0) : x) - 1.0;
    T y = tg_log1p(huge ? x : t + tg_sqrt(t * t + t * 2.0)) + (huge ? (T)($LN2) : (T)(0.0));
    return x < 1.0 ? (T)(NAN) : y;
}""",
    "tg_atanh": """
TG T tg_atanh(T x) {
    T a = tg_fabs(x);
    T y = tg_log1p((a + a) / ((T)(1.0) - a)) * 0.5;
    return tg_copysign(a < $TINY ? a : y, x);
}""",
}

_POW_ENDS = """
TG T tg_pow_ends(T x, T y, T size) {            // pow's sign and special cases, size = |x|^y
    T whole = tg_trunc(y);
    T half_y = y * 0.5;
    M odd = (whole == y) & (tg_trunc(half_y) != half_y);
    size = ((tg_fabs(x) == 1.0) & (y == y)) ? (T)(1.0) : size;
    T sign = odd ? (T)(-0.0) : (T)(0.0);        // no select of a copysign: LLVM 14 gets that wrong for AVX-512
    T r = as_T(as_I(size) | (as_I(sign) & as_I(x)));
    r = ((x < 0.0) & (x > (T)(-INFINITY)) & (whole != y)) ? (T)(NAN) : r;
    r = ((x != x) | (y != y)) ? x + y : r;
    return ((y == 0.0) | (x == 1.0)) ? (T)(1.0) : r;
}"""

POWERS: dict[str, Text] = {
    "tg_pow_ends": _POW_ENDS,
    # float: through double, log and exp to 2^-40. double: log as an unevaluated sum of two doubles (about 2^-66), as fdlibm e_pow
    "tg_pow": ("""
TG T tg_pow(T x, T y) {
    D a = $wide(tg_fabs(x));
    UD bits = as_UD(a) - as_UD((ID)(0x3fe6a09e667f3bcdL));
    D e = as_D(as_UD((D)(6755399441055744.0)) + as_UD(as_ID(bits) >> 52)) - (D)(6755399441055744.0);
    D f = as_D(as_UD(as_ID(bits) & 0x000fffffffffffffL) + as_UD((ID)(0x3fe6a09e667f3bcdL))) - (D)(1.0);
    D s = f / (f + (D)(2.0));
    D z = s * s;
    D log_a = e * (D)(0x1.62e42fefa39efp-1) + s * (z * $polyD(logshort, z) + (D)(2.0));
    log_a = a < (D)(INFINITY) ? (a > (D)(0.0) ? log_a : (D)(-INFINITY)) : a;
    D t = $wide(y) * log_a;
    t = t > (D)(200.0) ? (D)(200.0) : t;
    t = t < (D)(-200.0) ? (D)(-200.0) : t;
    D shifted = t * (D)(0x1.71547652b82fep+0) + (D)(6755399441055744.0);
    D r = t - (shifted - (D)(6755399441055744.0)) * (D)(0x1.62e42fefa39efp-1);
    D p = r * r * $polyD(expshort, r) + (r + (D)(1.0));
    D scale = as_D((as_UD(shifted) - as_UD((D)(6755399441055744.0)) + as_UD((ID)(1023))) << 52);
    return tg_pow_ends(x, y, $narrow(p * scale));
}""", """
TG T tg_pow(T x, T y) {
    T a = tg_fabs(x);
    T e;
    T f = tg_log_parts(a, &e);
    T d = f + 2.0;                              // s + s1 = f / (2 + f)
    T d1 = f - (d - 2.0);
    T inverse = (T)(1.0) / d;
    T s = f * inverse;
    T s1 = (tg_fma(-s, d, f) - s * d1) * inverse;
    T z = s * s;
    T z1 = tg_fma(s, s, -z) + (s + s) * s1;
    T q = z * $poly(powlog, z);                 // p + p1 = 2/3 + q
    T p = q + 0.6666666666666666;
    T p1 = ((T)(0.6666666666666666) - p) + q + 3.700743415417188e-17;
    T u = z * p;                                // u + u1 = (z + z1) (p + p1)
    T u1 = tg_fma(z, p, -u) + (z * p1 + z1 * p);
    T v = s * u;                                // v + v1 = (s + s1) (u + u1)
    T v1 = tg_fma(s, u, -v) + (s * u1 + s1 * u);
    T m = s + s + v;                            // m + m1 = log(1 + f)
    T m1 = ((s + s) - m) + v + (s1 + s1 + v1);
    T k = e * $LN2HI;                           // exact
    T h = k + m;                                // h + h1 = log a
    T back = h - k;
    T h1 = ((k - (h - back)) + (m - back)) + (m1 + e * $LN2LO);
    T log_a = a < (T)(INFINITY) ? (a > 0.0 ? h : (T)(-INFINITY)) : a;
    T t = y * log_a;
    T t1 = tg_fma(y, log_a, -t) + y * h1;
    t1 = tg_fabs(t) < 800.0 ? t1 : (T)(0.0);
    t = t > 800.0 ? (T)(800.0) : t;
    t = t < -800.0 ? (T)(-800.0) : t;
    I n;
    T result = tg_exp_tail_parts(t, t1, &n);
    return tg_pow_ends(x, y, tg_scale(result, n));
}"""),
    # fdlibm s_cbrt: exponent / 3 from the bits, then Halley's iteration
    "tg_cbrt": ("""
TG T tg_cbrt(T x) {
    T a = tg_fabs(x);
    M tiny = a < $MIN;
    M big = a > $BIG;
    T w = tiny ? a * 16777216.0 : (big ? a * 0x1p-24f : a);
    T t = as_T(as_U(w) / 3 + as_U((I)($CBRT)));
    t = t - t * ((t * t * t - w) / (t * t * t * 2.0 + w));
    t = t - t * ((t * t * t - w) / (t * t * t * 2.0 + w));
    T cube = t * t;
    cube = tg_fma(cube, t, -w) + tg_fma(t, t, -cube) * t;
    t = t - cube / (t * t * 3.0);
    t = tiny ? t * 0.00390625 : (big ? t * 256.0 : t);
    return ((a < (T)(INFINITY)) & (a > 0.0)) ? tg_copysign(t, x) : x;
}""", """
TG T tg_cbrt(T x) {
    T a = tg_fabs(x);
    M tiny = a < $MIN;
    M big = a > $BIG;
    T w = tiny ? a * 0x1p54 : (big ? a * 0x1p-54 : a);
    T t = as_T(((((as_U(w) >> 32) * 0x55555556) >> 32) << 32) + as_U((I)($CBRT)));
    t = t - t * ((t * t * t - w) / (t * t * t * 2.0 + w));
    t = t - t * ((t * t * t - w) / (t * t * t * 2.0 + w));
    t = t - t * ((t * t * t - w) / (t * t * t * 2.0 + w));
    T cube = t * t;
    cube = tg_fma(cube, t, -w) + tg_fma(t, t, -cube) * t;
    t = t - cube / (t * t * 3.0);
    t = tiny ? t * 0x1p-18 : (big ? t * 0x1p18 : t);
    return ((a < (T)(INFINITY)) & (a > 0.0)) ? tg_copysign(t, x) : x;
}"""),
}

ERROR_FUNCTION: dict[str, Text] = {
    # erfc(a) = e^(-a^2) g(a) / (1 + 2a), g by one polynomial in (a - 4)/(a + 4) (Shepherd and Laframboise)
    "tg_erfc_parts": """
TG T tg_erfc_parts(T a) {                       // a >= 0
    a = a > $ERFCMAX ? (T)($ERFCMAX) : a;
    T square = a * a;
    T lost = tg_fma(a, a, -square);
    I n;
    T p = tg_exp_tail_parts(-square, -lost, &n);
    T q = (a - 4.0) / (a + 4.0);
    return tg_scale(p * $poly(erfc, q) / (a + a + 1.0), n);
}""",
    "tg_erf_small": """
TG T tg_erf_small(T x) {                        // |x| < 1
    T z = x * x;
    return x + x * (z * $poly(erf, z) + $TWO_SQRTPIM1);
}""",
    "tg_erfc": """
TG T tg_erfc(T x) {
    T a = tg_fabs(x);
    T y = tg_erfc_parts(a);
    T inner = (T)(1.0) - tg_erf_small(a < 0.5 ? x : (T)(0.0));
    return a < 0.5 ? inner : (x < 0.0 ? (T)(2.0) - y : y);
}""",
    # float: one polynomial where erf is below 1, centred where that end is as accurate as the other
    "tg_erf": ("""
TG T tg_erf(T x) {
    T a = tg_fabs(x);
    T t = (a > $ERFMAX ? (T)($ERFMAX) : a) - $ERFMID;
    T y = a * $poly(erfwhole, t);               // from ERFMAX on above 1
    return tg_copysign(y > 1.0 ? (T)(1.0) : y, x);
}""", """
TG T tg_erf(T x) {
    T a = tg_fabs(x);
    T inner = tg_erf_small(a < 1.0 ? a : (T)(0.0));
    return tg_copysign(a < 1.0 ? inner : (T)(1.0) - tg_erfc_parts(a), x);
}"""),
}

TEXTS: dict[str, Text] = {**BASIC, **EXPONENTIALS, **LOGARITHMS, **POWERS, **ERROR_FUNCTION}
