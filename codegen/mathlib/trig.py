"""C templates: sine, cosine, tangent and their inverses. Rendered by `library`; conventions as in `explog`.

Arguments of any size are reduced exactly, by multiplying with the digits of 1/(2 pi) that matter (Payne and Hanek), with
no branch: a branch to a slow path would stop the vectoriser for every element. A float is multiplied by all 200 bits that
can matter, in double; a double gathers 212 bits from a table by its exponent.
"""

from __future__ import annotations

from tracegrad.codegen.mathlib.explog import Text
from tracegrad.codegen.mathlib.tables import turn_pieces_double, turn_pieces_float


def _float_turns() -> str:
    first, second, *others = (f"(D)({piece.hex()})" for piece in turn_pieces_float())
    lines = [f"    piece = w * {piece};\n    turns -= D.tg_rint(piece) - piece;" for piece in others[:-1]]
    return "\n".join([
        f"    D piece = w * {first};", "    D turns = piece - D.tg_rint(piece);",
        f"    piece = w * {second};", "    turns -= D.tg_rint(piece) - piece;",
        "    D quarters = turns * (D)(4.0) + (D)(6755399441055744.0) - (D)(6755399441055744.0);", "    turns -= quarters * (D)(0.25);",
        *lines, f"    turns += w * {others[-1]};",
    ])


_REDUCE_FLOAT = """
TG T tg_turn(T x, T *tail, I *quadrant) {       // x = result + quadrant * pi/2, |result| <= pi/4
    D w = $wide(x);
""" + _float_turns() + """
    D more = D.tg_rint(turns * (D)(4.0));
    turns -= more * (D)(0.25);
    M small = tg_fabs(x) < $PIO4;
    T k = $narrow(quarters + more) + $MAGIC;
    T r = $narrow(turns * (D)(0x1.921fb54442d18p+2));
    *quadrant = as_I(k);                         // 0 where small
    *tail = (T)(0.0);
    return small ? x : r;
}"""

_REDUCE_DOUBLE = """
TG T tg_add(T a, T b, T *lost) {                // Knuth's two-sum: a + b, its rounding error added to *lost
    T sum = a + b;
    T back = sum - a;
    *lost += (a - (sum - back)) + (b - back);
    return sum;
}
TG T tg_turn(T x, T *tail, I *quadrant) {       // x = result + tail + quadrant * pi/2, |result| <= pi/4
    I window = ((as_I(x) & $ABSMASK) >> 52) - 1023;
    window = window < 0 ? (I)(0) : (window > 1023 ? (I)(1023) : window);
    window = window >> 5;
    T w = window > 15 ? x * 0x1p-512 : x;
    window = window << 2;
    T digits = $table(tg_turn_table, window);
    T a = w * digits;
    T a1 = tg_fma(w, digits, -a);
    digits = $table(tg_turn_table, window + 1);
    T b = w * digits;
    T b1 = tg_fma(w, digits, -b);
    digits = $table(tg_turn_table, window + 2);
    T c = w * digits;
    T c1 = tg_fma(w, digits, -c) + w * $table(tg_turn_table, window + 3);
    a = a - tg_rint(a);
    T quarters = tg_rint(a * 4.0);
    a = a - quarters * 0.25;
    T lost = c1;
    T turns = tg_add(a, a1 - tg_rint(a1), &lost);
    turns = tg_add(turns, -(tg_rint(b) - b), &lost);
    T more = tg_rint(turns * 4.0);
    turns = turns - more * 0.25;
    turns = tg_add(turns, b1 - tg_rint(b1), &lost);
    turns = tg_add(turns, c, &lost);
    T last = tg_rint(turns * 4.0);
    turns = turns - last * 0.25;
    T sum = turns + lost;
    lost = (turns - sum) + lost;
    T r = sum * 0x1.921fb54442d18p+2;
    T r1 = tg_fma(sum, (T)(0x1.921fb54442d18p+2), -r) + (sum * 0x1.1a62633145c07p-52 + lost * 0x1.921fb54442d18p+2);
    M small = tg_fabs(x) < $PIO4;
    T k = quarters + more + last + $MAGIC;
    *quadrant = as_I(k);                         // 0 where small
    *tail = small ? (T)(0.0) : r1;
    return small ? x : r;
}"""

# For |x| <= 8: pi/2 in parts of 21 bits (Cody and Waite), so that its first five multiples are exact. (No float but 0 is nearer to one than
# 1.2e-8, at 3 pi/2: what the parts leave out is 1e-20.)
_NARROW_FLOAT = """
TG T tg_turn_narrow(T x, T *tail, I *quadrant) {
    T shifted = x * 0x1.45f306p-1 + $MAGIC;
    T k = shifted - $MAGIC;
    T high = x - k * 0x1.921fbp+0;
    T r = high - k * 0x1.5110bp-22;
    *quadrant = as_I(shifted);
    *tail = ((high - r) - k * 0x1.5110bp-22) - k * 0x1.184698p-44;
    return r;
}"""
_NARROW_DOUBLE = """
TG T tg_turn_narrow(T x, T *tail, I *quadrant) { return tg_turn(x, tail, quadrant); }"""

_ROWS = ",\n    ".join(", ".join(piece.hex() for piece in row) for row in turn_pieces_double())
_COMMENT = "// 1/(2 pi), four doubles for every 32 binades"
TABLES = {"tg_turn_table": f"__constant double tg_turn_table[{4 * 32}] = {{   {_COMMENT}\n    {_ROWS}}};"}

_PARTS = """
    T tail;
    I n;
    T r = tg_turn(x, &tail, &n);
    T s = tg_sin_part(r, tail);
    T c = tg_cos_part(r, tail);
    I odd = -(n & 1);                           // all ones or none: a comparison here stops the vectoriser"""
_COS = f"""
TG T tg_cos(T x) {{{_PARTS}
    T y = as_T((as_I(s) & odd) | (as_I(c) & ~odd));
    return as_T(as_U(y) ^ (as_U((n + 1) & 2) << $SIGNSHIFT));
}}"""

TEXTS: dict[str, Text] = {
    "tg_turn": (_REDUCE_FLOAT, _REDUCE_DOUBLE),
    "tg_turn_narrow": (_NARROW_FLOAT, _NARROW_DOUBLE),
    "tg_sin_parts": """
TG T tg_sin_part(T r, T tail) {                 // sin(r + tail), |r| <= pi/4
    T z = r * r;
    return r + (r * z * $poly(sin, z) + tail);
}
TG T tg_cos_part(T r, T tail) {
    T z = r * r;
    T half_z = z * 0.5;
    T w = (T)(1.0) - half_z;
    return w + ((((T)(1.0) - w) - half_z) + (z * z * $poly(cos, z) - r * tail));
}""",
    "tg_sin": f"""
TG T tg_sin(T x) {{{_PARTS}
    T y = as_T((as_I(c) & odd) | (as_I(s) & ~odd));
    y = as_T(as_U(y) ^ (as_U(n & 2) << $SIGNSHIFT));
    return x == 0.0 ? x : y;
}}""",
    "tg_cos": _COS,
    "tg_cos_narrow": _COS.replace("tg_cos(", "tg_cos_narrow(").replace("tg_turn(", "tg_turn_narrow("),      # |x| <= 8
    "tg_tan": f"""
TG T tg_tan(T x) {{{_PARTS}
    T minus = -c;
    T up = as_T((as_I(minus) & odd) | (as_I(s) & ~odd));
    T down = as_T((as_I(s) & odd) | (as_I(c) & ~odd));
    T y = up / down;
    return tg_fabs(x) < $TINY ? x : y;
}}""",
    # fdlibm e_asin, e_acos: beyond 1/2 through asin(x) = pi/2 - 2 asin(sqrt((1 - x)/2)), the root as a sum of two numbers
    "tg_asin": """
TG T tg_asin(T x) {
    T a = tg_fabs(x);
    M outer = a > 0.5;
    T z = outer ? ((T)(1.0) - a) * 0.5 : a * a;
    T s = outer ? tg_sqrt(z) : a;
    T r = z * $poly(asin, z);
    T f = as_T(as_I(s) & $HALFMASK);
    T c = (z - f * f) / (s + f);
    T y = $PIO4 - ((s * r * 2.0 - ((T)($PIO2LO) - c * 2.0)) - ((T)($PIO4) - f * 2.0));
    y = outer ? (a == 1.0 ? (T)($PIO2) : y) : s * r + s;
    return tg_copysign(y, x);
}""",
    "tg_acos": """
TG T tg_acos(T x) {
    T a = tg_fabs(x);
    M outer = a > 0.5;
    T z = outer ? ((T)(1.0) - a) * 0.5 : a * a;
    T s = outer ? tg_sqrt(z) : x;
    T r = z * $poly(asin, z);
    T f = as_T(as_I(s) & $HALFMASK);
    T c = (z - f * f) / (s + f);
    T inner = $PIO2 - (x - ((T)($PIO2LO) - x * r));
    T right = (f + (r * s + c)) * 2.0;
    T left = $PI - (s + (r * s - $PIO2LO)) * 2.0;
    T y = outer ? (x > 0.0 ? right : left) : inner;
    return a == 1.0 ? (x > 0.0 ? (T)(0.0) : (T)($PI)) : y;
}""",
    # Cephes atan: reduced to |t| <= tan(pi/8) about 0, pi/4 and pi/2
    "tg_atan": """
TG T tg_atan(T x) {
    T a = tg_fabs(x);
    M far = a > $TAN3PIO8;
    M middle = a > $TANPIO8;
    T t = (far ? (T)(-1.0) : (middle ? a - 1.0 : a)) / (far ? a : (middle ? a + 1.0 : (T)(1.0)));
    T base = far ? (T)($PIO2) : (middle ? (T)($PIO4) : (T)(0.0));
    T base_low = far ? (T)($PIO2LO) : (middle ? (T)($PIO2LO) * 0.5 : (T)(0.0));
    T z = t * t;
    T y = base + (t + (t * z * $poly(atan, z) + base_low));
    return tg_copysign(y, x);
}""",
    "tg_atan2": """
TG T tg_atan2(T y, T x) {
    T one = (T)(1.0);
    T ax = tg_fabs(x);
    T ay = tg_fabs(y);
    M steep = ay > ax;
    T large = steep ? ay : ax;
    T small = steep ? ax : ay;
    T ratio = small / large;
    ratio = large == 0.0 ? small : ratio;               // 0, or a NaN
    ratio = ((small == (T)(INFINITY)) & (large == small)) ? one : ratio;
    M middle = ratio > $TANPIO8;
    T moved = (ratio - one) / (ratio + one);
    T t = middle ? moved : ratio;
    T z = t * t;
    T r = t * z * $poly(atan, z);
    I back = as_I(x) & ~$ABSMASK;                       // the sign bit where the angle is beyond pi/2
    T flat = as_T(as_I((T)($PI)) & (back >> $SIGNBIT));
    T base = steep ? (T)($PIO2) : flat;
    I turned = back ^ ~$ABSMASK;
    I sign = steep ? turned : back;                     // angle = base + sign (pi/4 or 0 + t + r)
    T corner = middle ? (T)($PIO4) : (T)(0.0);
    base += as_T(as_I(corner) ^ sign);
    T angle = base + (as_T(as_I(t) ^ sign) + (as_T(as_I(r) ^ sign) + base * $RELLO));
    return tg_copysign(angle, y);
}""",
}
