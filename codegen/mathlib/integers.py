"""C templates for integers, and those helpers that every target needs. Rendered by `library`.

Division follows numpy: floor division and a remainder with the divisor's sign, 0 where the divisor is 0 (C would trap),
and the least number divided by -1 wraps.
"""

from __future__ import annotations

# for integer types
TEXTS: dict[str, str] = {
    # (without a sign where the least number may be negated: C knows that this does not happen, and that a magnitude is not negative)
    "tg_abs": "TG T tg_abs(T x) { return x < (T)(0) ? as_T((U)((U)(0) - as_U(x))) : x; }",
    "tg_min": "TG T tg_min(T x, T y) { return x < y ? x : y; }",
    "tg_max": "TG T tg_max(T x, T y) { return x > y ? x : y; }",
    "tg_sign": "TG T tg_sign(T x) { return x > (T)(0) ? (T)(1) : (x < (T)(0) ? (T)(-1) : (T)(0)); }",
    "tg_truncdiv": """
TG T tg_truncdiv(T a, T b) {
    T safe = ((b == (T)(0)) | $MINUS_ONE(b)) ? (T)(1) : b;
    return b == (T)(0) ? (T)(0) : ($MINUS_ONE(b) ? as_T((U)((U)(0) - as_U(a))) : (T)(a / safe));
}""",
    "tg_fmod": "TG T tg_fmod(T a, T b) { return b == (T)(0) ? (T)(0) : (T)(a - tg_truncdiv(a, b) * b); }",
    "tg_floordiv": """
TG T tg_floordiv(T a, T b) {
    T q = tg_truncdiv(a, b);
    T r = a - q * b;
    return ((b != (T)(0)) & (r != (T)(0)) & ((r < (T)(0)) != (b < (T)(0)))) ? (T)(q - (T)(1)) : q;
}""",
    "tg_remainder": "TG T tg_remainder(T a, T b) { return b == (T)(0) ? (T)(0) : (T)(a - tg_floordiv(a, b) * b); }",
    # by a divisor that is known to be positive: a shift instead of five comparisons
    "tg_floordiv_by": """
TG T tg_floordiv_by(T a, T b) {                 // b > 0
    T q = a / b;
    return q + ((a - q * b) >> (T)(8 * sizeof($SCALAR) - 1));
}""",
    "tg_remainder_by": """
TG T tg_remainder_by(T a, T b) {                // b > 0
    T r = a % b;
    return r + ((r >> (T)(8 * sizeof($SCALAR) - 1)) & b);
}""",
    "tg_gcd": """
TG T tg_gcd(T a, T b) {                         // Euclid's algorithm: at most 1.44 steps a bit; never negative (but for the least number)
    for (int step = 0; step < 12 * (int)sizeof($SCALAR); step++) {
        T rest = tg_fmod(a, b);
        a = b == (T)(0) ? a : b;
        b = b == (T)(0) ? b : rest;
    }
    return tg_abs(a);
}""",
    "tg_pow_int": """
TG T tg_pow_int(T base, T exponent) {           // wraps; a negative exponent gives numpy's limit: 1, +-1 or 0
    T result = (T)(1);
    T square = base;
    T left = exponent < (T)(0) ? (T)(0) : exponent;
    for (int bit = 0; bit < 8 * (int)sizeof($SCALAR); bit++) {
        result = (left & (T)(1)) != (T)(0) ? (T)(result * square) : result;
        square = (T)(square * square);
        left = (T)(left >> 1);
    }
    T unit = base == (T)(1) ? (T)(1) : $MINUS_ONE(base) ? ((exponent & (T)(1)) != (T)(0) ? base : (T)(1)) : (T)(0);
    return exponent < (T)(0) ? unit : result;
}""",
}

# for float types, written in OpenCL's names: every target needs them, and `mathlib.translate` spells them for each
FLOAT_TEXTS: dict[str, str] = {
    "tg_min": "TG T tg_min(T x, T y) { T m = x < y ? x : y; return x != x ? (T)(NAN) : m; }         // a NaN wins",
    "tg_max": "TG T tg_max(T x, T y) { T m = x > y ? x : y; return x != x ? (T)(NAN) : m; }",
    "tg_sign": "TG T tg_sign(T x) { return x > 0.0 ? (T)(1.0) : (x < 0.0 ? (T)(-1.0) : (T)(0.0)); }",
    "tg_sigmoid": """
TG T tg_sigmoid(T x) {                          // 1 / (1 + e^-x), accurate to the last denormal
    T e = exp_nonpositive(-fabs(x));
    return (x < 0.0 ? e : (T)(1.0)) / (e + 1.0);
}""",
    "tg_softplus": "TG T tg_softplus(T x) { return (x < 0.0 ? (T)(0.0) : x) + log1p(exp_nonpositive(-fabs(x))); }",
    "tg_to_half": """
TG T tg_to_half(T x) {                          // the float16 next to x: as storing and loading it gives, in a register
    $HALVES bits;
    vstore$MOVE_HALVES(x, 0, (__private half *)&bits);
    return vload$MOVE_HALVES(0, (__private half *)&bits);
}""",
    "tg_to_bfloat": """
TG T tg_to_bfloat(T x) {                        // the bfloat16 next to x, ties to even: the upper half of its bits
    U bits = as_U(x);
    U near = bits + ((U)(0x7fff) + ((bits >> 16) & (U)(1)));
    near = (bits & (U)(0x7fffffff)) > (U)(0x7f800000) ? (bits & (U)(0x80000000)) | (U)(0x7fc00000) : near;
    return as_T(near & (U)(0xffff0000));
}""",
    # fmod stays a builtin everywhere: it is exact only as a loop over the exponents' difference. Vectors of more than four doubles are
    # cut up: with eight, PoCL 3.0's for AVX-512 gives wrong lanes, with sixteen it does not come back.
    "tg_fmod": "TG T tg_fmod(T x, T y) { return $quads(fmod, x, y); }",
    "tg_remainder": """
TG T tg_remainder(T x, T y) {                   // with the sign of y, as Python, numpy and torch
    T r = fmod(x, y);
    T moved = ((r != 0.0) & ((r < 0.0) != (y < 0.0))) ? r + y : r;
    return r == 0.0 ? copysign((T)(0.0), y) : moved;
}""",
    "tg_floordiv": """
TG T tg_floordiv(T x, T y) {                    // numpy's: exact where the quotient is
    T r = fmod(x, y);
    T q = (x - r) / y;
    q = ((r != 0.0) & ((r < 0.0) != (y < 0.0))) ? q - 1.0 : q;
    T whole = floor(q);
    whole = q - whole > 0.5 ? whole + 1.0 : whole;
    return y == 0.0 ? x / y : (q != 0.0 ? whole : copysign((T)(0.0), x / y));
}""",
}

# Philox-4x32-10 (Salmon et al., SC 2011), key (k0, k1), counter (c0, c1, c2, c3); for uint, uint4, uint8. A 64-bit product instead
# of mul_hi, and results through pointers instead of a uint4, keep the kernel vectorisable.
PHILOX = """
TG void tg_philox(U k0, U k1, U c0, U c1, U c2, U c3, U *r0, U *r1, U *r2, U *r3) {
    L a = $long(c0), b = $long(c1), c = $long(c2), d = $long(c3);       // their lower halves count
    L i = $long(k0), j = $long(k1);
    #pragma unroll
    for (int round = 0; round < 10; round++) {
        L p = (a & (L)(0xFFFFFFFFUL)) * (L)(0xD2511F53UL);
        L q = (c & (L)(0xFFFFFFFFUL)) * (L)(0xCD9E8D57UL);
        a = (q >> 32) ^ b ^ i;
        c = (p >> 32) ^ d ^ j;
        b = q;
        d = p;
        i += 0x9E3779B9UL;
        j += 0xBB67AE85UL;
    }
    *r0 = $low(a);
    *r1 = $low(b);
    *r2 = $low(c);
    *r3 = $low(d);
}"""
