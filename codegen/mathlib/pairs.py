"""C templates: pairs of numbers, for twice the digits where the device has no float64. Rendered by `library`; start at `tg_pair_add`.

A pair (x, x_low) is the sum x + x_low of a number and what its rounding lost: |x_low| <= ulp(x) / 2. A function returns the number and
leaves the rest in *low. The error-free transformations are Knuth's (sum) and Dekker's (product): T. J. Dekker, "A floating-point
technique for extending the available precision", Numer. Math. 18, 1971. Sums and products are within 2^-46 or so, exponentials 2^-41.
`_Pairs` in ops/primitives/formula.py writes the calls. The texts are in OpenCL's names, which `mathlib.translate` spells for each target.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial

import numpy as np

from tracegrad.codegen.mathlib.tables import inverse_two_pi


def literals(x: float | Fraction) -> str:
    """x as the two arguments that make a pair."""
    high = np.float32(x)
    low = np.float32(x - Fraction(float(high)) if isinstance(x, Fraction) else x - float(high))
    return f"(T)({high!s}), (T)({low!s})"


def _horner(x: str, coefficients: list[Fraction], full: int) -> str:
    """Statements: (y, y_low) becomes coefficients[0] + coefficients[1] x + ..., of which from the `full`-th on in numbers, not pairs."""
    tail = f"(T)({np.float32(coefficients[-1])!s})"
    for c in reversed(coefficients[full:-1]):
        tail = f"({tail} * {x} + {np.float32(c)!s})"
    lines = [f"    T y_low, y = tg_pair_mul({x}, {x}_low, {tail}, &y_low);"]
    for k in reversed(range(full)):
        lines.append(f"    y = tg_pair_add(y, y_low, {literals(coefficients[k])}, &y_low);")
        if k:
            lines.append(f"    y = tg_pair_mul(y, y_low, {x}, {x}_low, &y_low);")
    return "\n".join(lines)


_LN2 = Fraction("0.693147180559945309417232121458176568")
_LN2_PARTS = ("0x1.62e4p-1", "0x1.7f7cp-20")
_LN2_REST = np.float32(_LN2 - sum(Fraction(float.fromhex(part)) for part in _LN2_PARTS))
_HALF_PI = Fraction("1.57079632679489661923132169163975144")

# 2/pi in words of 32 bits after one of zeros: what of it makes whole turns of a float can be left out, and 96 bits are enough
_DIGITS = inverse_two_pi(226)
_WORDS = [0, *(_DIGITS >> (32 * k) & 0xFFFFFFFF for k in reversed(range(7)))]
TABLES = {"tg_pair_digits": f"__constant uint tg_pair_digits[8] = {{{', '.join(f'0x{w:08x}u' for w in _WORDS)}}};   // of 2/pi"}

_SPLIT = """
    T a_high = as_T(as_I(a) & (I)(0xfffff000)), b_high = as_T(as_I(b) & (I)(0xfffff000));     // 12 bits: products are exact
    T a_rest = a - a_high, b_rest = b - b_high;
    *low = ((a_high * b_high - product) + a_high * b_rest + a_rest * b_high) + a_rest * b_rest;"""
_FMA = """
    *low = fma(a, b, -product);"""


def _product(lines: str) -> str:
    return f"""
TG T tg_two_product(T a, T b, T *low) {{         // a * b = result + *low, exactly
#pragma OPENCL FP_CONTRACT OFF
    T product = a * b;{lines}
    return product;
}}"""


def _of_pairs(operation: str, exact: str, *rests: str) -> str:
    """An operation of two pairs, of a pair and a number, and of two numbers. rests: what its exact `exact` lacks in the first two."""
    operands = ("T a, T a_low, T b, T b_low", "T a, T a_low, T b", "T a, T b")
    return "".join(f"""
TG T tg_pair_{operation}({given}, T *low) {{
    T rest;
    T {exact} = tg_two_{exact}(a, b, &rest);
    return tg_pair({exact}, rest{more}, low);
}}""" for given, more in zip(operands, (*rests, ""), strict=True))


def _step(name: str, exact: str, *rests: str) -> dict[str, str]:
    """What becomes of a pair by one more number, or one more pair: the pair's number, and its rest. (A kernel calls both, as it has no
    pointers.) rests: what the exact `exact` lacks in each.
    """
    found = {}
    for which, before, after in ((name, "return ", ""), (f"{name}_low", "", "    return rest;\n")):
        found[which] = "".join(f"""
TG T {which}(T a, T a_low, T b{more}) {{
    T rest;
    T {exact} = tg_two_{exact}(a, b, &rest);
    {before}tg_pair({exact}, rest + {lacks}, &rest);
{after}}}""" for more, lacks in zip(("", ", T b_low"), rests, strict=False))
    return found


_PARTS = """
    T r_low;
    I n;
    T r = tg_pair_turn(x, x_low, &r_low, &n);
    T s_low, s = tg_pair_sine(r, r_low, &s_low);
    T c_low, c = tg_pair_cosine(r, r_low, &c_low);
    M odd = (n & 1) != 0;"""

TEXTS: dict[str, str] = {
    "tg_pair": """
TG T tg_pair(T x, T rest, T *low) {             // x + rest, |rest| <= |x|. Infinities have no rest, and zeros keep their sign
    M some = (fabs(rest) < (T)(INFINITY)) & (rest != 0.0);
    T sum = some ? x + rest : x;
    *low = some ? rest - (sum - x) : (T)(0.0);
    return sum;
}""",
    "tg_two_sum": """
TG T tg_two_sum(T a, T b, T *low) {             // a + b = result + *low, exactly
    T sum = a + b;
    T back = sum - a;
    *low = (a - (sum - back)) + (b - back);
    return sum;
}""",
    "tg_sum_lost": """
TG T tg_sum_lost(T a, T b) {                    // what a + b lacks
    T rest;
    tg_two_sum(a, b, &rest);
    return rest;
}""",
    "tg_sum_whole": """
TG T tg_sum_whole(T sum, T lost) {              // sum + lost, unless the sum is infinite: then what it lost is no number
    return fabs(lost) < (T)(INFINITY) ? sum + lost : sum;
}""",
    "tg_two_product": _product("\n#ifdef FP_FAST_FMAF" + _FMA + "\n#else" + _SPLIT + "\n#endif"),
    "tg_pair_add": _of_pairs("add", "sum", " + (a_low + b_low)", " + a_low"),
    "tg_pair_mul": _of_pairs("mul", "product", " + (a * b_low + a_low * b)", " + a_low * b"),
    **_step("tg_pair_plus", "sum", "a_low", "(a_low + b_low)"),
    **_step("tg_pair_times", "product", "a_low * b", "(a * b_low + a_low * b)"),
    "tg_pair_div": """
TG T tg_pair_div(T a, T a_low, T b, T b_low, T *low) {
    T quotient = a / b;
    T rest;
    T product = tg_two_product(quotient, b, &rest);
    T left = ((a - product) - rest) + (a_low - quotient * b_low);
    return tg_pair(quotient, left / b, low);
}""",
    "tg_triple": """
TG T tg_triple(T x, T rest, T more, T *low, T *lowest) {     // x + rest + more, each smaller by far. Infinities have no rest
    T s_low, s = tg_two_sum(rest, more, &s_low);
    T r_low, r = tg_two_sum(x, s, &r_low);
    M some = fabs(r) < (T)(INFINITY);
    T t_low, t = tg_two_sum(r_low, s_low, &t_low);
    *low = some ? t : (T)(0.0);
    *lowest = some ? t_low : (T)(0.0);
    return fabs(x) < (T)(INFINITY) ? r : x;
}""",
    "tg_triple_add": """
TG T tg_triple_add(T a, T a_low, T a_lowest, T b, T b_low, T b_lowest, T *low, T *lowest) {
    T r, s = tg_two_sum(a, b, &r);
    T r1, s1 = tg_two_sum(a_low, b_low, &r1);
    T r2, s2 = tg_two_sum(s1, r, &r2);
    return tg_triple(s, s2, (a_lowest + b_lowest) + (r1 + r2), low, lowest);
}""",
    "tg_triple_mul": """
TG T tg_triple_mul(T a, T a_low, T a_lowest, T b, T *low, T *lowest) {
    T r, s = tg_two_product(a, b, &r);
    T r1, s1 = tg_two_product(a_low, b, &r1);
    T r2, s2 = tg_two_sum(s1, r, &r2);
    return tg_triple(s, s2, a_lowest * b + (r1 + r2), low, lowest);
}""",
    "tg_triple_div": """
TG T tg_triple_div(T a, T a_low, T a_lowest, T b, T *low, T *lowest) {
    T quotient = a / b;
    T rest, product = tg_two_product(quotient, b, &rest);
    T r, left = tg_two_sum((a - product) - rest, a_low, &r);
    T second = left / b;
    product = tg_two_product(second, b, &rest);
    return tg_triple(quotient, second, (((left - product) - rest) + (r + a_lowest)) / b, low, lowest);
}""",
    "tg_pair_sqrt": """
TG T tg_pair_sqrt(T x, T x_low, T *low) {
    T root = sqrt(x);
    T rest;
    T square = tg_two_product(root, root, &rest);
    return tg_pair(root, (((x - square) - rest) + x_low) / (root + root), low);
}""",
    "tg_pair_exp_parts": f"""
TG T tg_pair_exp_parts(T x, T x_low, T *low, I *n) {{     // e^x = 2^n (1 + result): ln 2 in parts of which n times is exact, a series
    x_low = (x > 89.0) | (x < -104.5) ? (T)(0.0) : x_low;
    x = x > 89.0 ? (T)(89.0) : x;
    x = x < -104.5 ? (T)(-104.5) : x;
    T shifted = x * $LOG2E + $MAGIC;
    T k = shifted - $MAGIC;
    *n = as_I(as_U(shifted) - as_U((T)($MAGIC)));
    T r_low, r = tg_two_sum(x - k * {_LN2_PARTS[0]}, -k * {_LN2_PARTS[1]}, &r_low);
    r = tg_pair(r, r_low + (x_low - k * {_LN2_REST!s}), &r_low);
{_horner("r", [Fraction(1, factorial(k)) for k in range(1, 13)], 5)}
    return tg_pair_mul(y, y_low, r, r_low, low);
}}""",
    "tg_pair_exp": """
TG T tg_pair_exp(T x, T x_low, T *low) {
    I n;
    T y_low, y = tg_pair_exp_parts(x, x_low, &y_low, &n);
    y = tg_pair_add(y, y_low, (T)(1.0), &y_low);
    y = tg_scale(y, n);
    y_low = tg_scale(y_low, n);
    *low = fabs(y) < (T)(INFINITY) ? y_low : (T)(0.0);
    return y;
}""",
    "tg_pair_expm1": """
TG T tg_pair_expm1(T x, T x_low, T *low) {
    I n;
    T near_low, near = tg_pair_exp_parts(x, x_low, &near_low, &n);
    T y_low, y = tg_pair_exp(x, x_low, &y_low);
    y = tg_pair_add(y, y_low, (T)(-1.0), &y_low);
    *low = n == 0 ? near_low : y_low;
    return n == 0 ? near : y;
}""",
    "tg_pair_log_sum": f"""
TG T tg_pair_log_sum(T f, T f_low, T e, T *low) {{        // log(2^e (1 + f)), sqrt(1/2) <= 1 + f < sqrt(2): a series in f / (2 + f)
    T d_low, d = tg_pair_add(f, f_low, (T)(2.0), &d_low);
    T s_low, s = tg_pair_div(f, f_low, d, d_low, &s_low);
    T z_low, z = tg_pair_mul(s, s_low, s, s_low, &z_low);
{_horner("z", [Fraction(2, 2 * k + 1) for k in range(1, 9)], 3)}
    y = tg_pair_mul(y, y_low, z, z_low, &y_low);
    y = tg_pair_mul(y, y_low, s, s_low, &y_low);
    y = tg_pair_add(s + s, s_low + s_low, y, y_low, &y_low);
    T k_low, k = tg_pair_mul({literals(_LN2)}, e, &k_low);
    return tg_pair_add(k, k_low, y, y_low, low);
}}""",
    "tg_pair_log_parts": """
TG T tg_pair_log_parts(T x, T x_low, T *low, T *e) {    // x = 2^e (1 + result)
    T f = tg_log_parts(x, e);
    I n = as_I(as_U(*e + $MAGIC) - as_U((T)($MAGIC)));
    return tg_pair_add(f, tg_scale(x_low, -n), low);
}""",
    "tg_pair_log": """
TG T tg_pair_log(T x, T x_low, T *low) {
    T e, f_low;
    T f = tg_pair_log_parts(x, x_low, &f_low, &e);
    T y_low, y = tg_pair_log_sum(f, f_low, e, &y_low);
    y = tg_log_ends(x, y);
    *low = fabs(y) < (T)(INFINITY) ? y_low : (T)(0.0);
    return y;
}""",
    "tg_pair_log1p": """
TG T tg_pair_log1p(T x, T x_low, T *low) {
    T u_low, u = tg_pair_add(x, x_low, (T)(1.0), &u_low);
    T e, f_low;
    T f = tg_pair_log_parts(u, u_low, &f_low, &e);
    f = e == 0.0 ? x : f;
    f_low = e == 0.0 ? x_low : f_low;
    T y_low, y = tg_pair_log_sum(f, f_low, e, &y_low);
    y = x == 0.0 ? x : tg_log_ends(u, y);
    *low = fabs(y) < (T)(INFINITY) ? y_low : (T)(0.0);
    return y;
}""",
    "tg_pair_turn": f"""
TG T tg_pair_turn(T x, T x_low, T *low, I *quadrant) {{   // x = result + quadrant * pi/2, |result| <= pi/4 (Payne and Hanek)
    U bits = as_U(x) & (U)($ABSMASK);
    I at = as_I(bits >> $MANT) - (I)(127 - 7);           // the first of 96 bits of 2/pi that matter, after a word of zeros
    at = at < (I)(0) ? (I)(0) : at > (I)(134) ? (I)(134) : at;
    I word = at >> 5;
    U shift = as_U(at & (I)(31)), back = (U)(31) - shift;
    U w0 = $words(tg_pair_digits, word), w1 = $words(tg_pair_digits, word + 1);
    U w2 = $words(tg_pair_digits, word + 2), w3 = $words(tg_pair_digits, word + 3);
    UD first = $ulong((w0 << shift) | ((w1 >> 1) >> back));
    UD second = $ulong((w1 << shift) | ((w2 >> 1) >> back));
    UD third = $ulong((w2 << shift) | ((w3 >> 1) >> back));
    UD m = $ulong((bits & (U)($MANTMASK)) | (U)(0x800000));
    UD turns = ((m * first) << 32) + m * second + ((m * third) >> 32);      // in units of 2^-62 quarters, modulo four quarters
    UD quarters = (turns + ((UD)(1) << 61)) >> 62;
    turns = turns - (quarters << 62);                   // a signed number below 2^61, which three floats hold
    M negative = as_I(x) < (I)(0);
    T sign = negative ? (T)(-1.0) : (T)(1.0);
    T a = $float(as_ID(turns) >> 38) * 0x1p-24;
    T b = $float(as_ID((turns >> 14) & (UD)(0xffffff))) * 0x1p-48;
    T c = $float(as_ID(turns & (UD)(0x3fff))) * 0x1p-62;
    T r_low, r = tg_two_sum(a, b, &r_low);
    r = tg_pair(r, r_low + c, &r_low);
    r = tg_pair_mul(r, r_low, {literals(_HALF_PI)}, &r_low);
    M small = fabs(x) < 0.78;
    r = small ? x : r * sign;
    r_low = small ? (T)(0.0) : r_low * sign;
    I n = as_I($uint(quarters)) & (I)(3);
    n = negative ? -n : n;
    *quadrant = small ? (I)(0) : n;
    return tg_pair_add(r, r_low, x_low + (x - x), low);           // (of what is infinite: NaN)
}}""",
    "tg_pair_sine": f"""
TG T tg_pair_sine(T x, T x_low, T *low) {{                // |x| <= pi/4
    T z_low, z = tg_pair_mul(x, x_low, x, x_low, &z_low);
{_horner("z", [Fraction((-1) ** k, factorial(2 * k + 1)) for k in range(9)], 4)}
    return tg_pair_mul(y, y_low, x, x_low, low);
}}""",
    "tg_pair_cosine": f"""
TG T tg_pair_cosine(T x, T x_low, T *low) {{              // |x| <= pi/4
    T z_low, z = tg_pair_mul(x, x_low, x, x_low, &z_low);
{_horner("z", [Fraction((-1) ** k, factorial(2 * k)) for k in range(9)], 5)}
    *low = y_low;
    return y;
}}""",
    "tg_pair_sin": f"""
TG T tg_pair_sin(T x, T x_low, T *low) {{{_PARTS}
    T sign = (n & 2) != 0 ? (T)(-1.0) : (T)(1.0);
    *low = (odd ? c_low : s_low) * sign;
    return (odd ? c : s) * sign;
}}""",
    "tg_pair_cos": f"""
TG T tg_pair_cos(T x, T x_low, T *low) {{{_PARTS}
    T sign = ((n + 1) & 2) != 0 ? (T)(-1.0) : (T)(1.0);
    *low = (odd ? s_low : c_low) * sign;
    return (odd ? s : c) * sign;
}}""",
}


def text(name: str, fma: bool) -> str:
    """The template `name`; fma: whether the target is known to have a fused multiply-add that is one instruction."""
    return _product(_FMA) if fma and name == "tg_two_product" else TEXTS[name]
