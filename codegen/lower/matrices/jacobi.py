"""Eigenvalues and singular values of many small matrices, by Jacobi's rotations (see small_matrices.py). Start at `eigh`, then `svd`.

A rotation makes one pair of rows orthogonal (svd), or one element below the diagonal zero (eigh); sweeps go over all pairs until nothing
is left to do in any matrix of the vector. A matrix that is done is not turned any more: what it gives does not depend on its neighbours.
C. Jacobi (1846); M. Hestenes, "Inversion of matrices by biorthogonalization and related results" (1958); J. Demmel, K. Veselic,
"Jacobi's method is more accurate than QR" (1992). Of complex matrices, whose parts are arrays of their own, a rotation's sine is complex,
too, its phase that of the element that becomes zero (G. Forsythe, P. Henrici, "The cyclic Jacobi method", 1960): `turn` is its imaginary
part. So each list of arrays here has one, or two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracegrad.codegen.kernel.ir.expressions import Array
from tracegrad.ops.linalg.eigen import NOT_SMALL

if TYPE_CHECKING:
    from tracegrad.codegen.lower.matrices.small_matrices import Matrices

_SWEEPS = 30                        # at most: 4 to 8 are usual up to 16 x 16, for off the diagonal the size is squared in each of the last


def eigh(k: Matrices) -> None:
    """a becomes diagonal: turned rows and columns. The rows of `vectors` are the eigenvectors."""
    n, type_, mask, zero, one = k.n, k.type, k.mask, k.number(0), k.number(1)
    a, info, values = _loaded(k, "a"), k.note(), k.array("values", n)
    vectors = _unit(k, "vectors", n) if k.results[1] is not None else []
    least = (float(np.finfo(k.node.operands[0].dtype).eps) / 8) ** 2
    for b in a[1:]:                                                                 # of a Hermitian matrix the diagonal is real
        k.lines(b, [f"for (int r = 0; r < {n}; r++)", f"  {b}[r * {n} + r] = {zero};"])
    scale = scaled(k, a, f"for (int r = 0; r < {n}; r++)", "for (int c = 0; c <= r; c++)", f"r * {n} + c")
    xs, tangents, sines = (names[:len(a)] for names in (("x", "u"), ("tangent", "twist"), ("sine", "turn")))
    sum_ = squares(*xs, "y")
    lower = [*_turned(k, "for (int i = 0; i < p; i++)", a, f"p * {n} + i", f"q * {n} + i", conjugate=True),
             *_turned(k, "for (int i = p + 1; i < q; i++)", a, f"i * {n} + p", f"q * {n} + i", mirrored=True),
             *_turned(k, f"for (int i = q + 1; i < {n}; i++)", a, f"i * {n} + p", f"i * {n} + q")]
    k.lines(a[0], [
        f"for (int sweep = 0; sweep < {_SWEEPS}; sweep++) {{",
        f"  {type_} off = {zero}, norm = {zero};",
        f"  for (int r = 0; r < {n}; r++) {{",
        "    for (int c = 0; c < r; c++)",
        f"      off += {squares(*(f'{x}[r * {n} + c]' for x in a))};",
        f"    norm += {a[0]}[r * {n} + r] * {a[0]}[r * {n} + r];",
        "  }",
        f"  const {mask} open = off > {k.number(least)} * (norm + off);",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        f"  for (int p = 0; p < {n - 1}; p++)",
        f"    for (int q = p + 1; q < {n}; q++) {{",
        *(f"      const {type_} u = {b}[q * {n} + p];" for b in a[1:]),
        f"      const {type_} x = {a[0]}[q * {n} + p], y = ({a[0]}[q * {n} + q] - {a[0]}[p * {n} + p]) * {k.number(0.5)};",
        f"      const {type_} size = {k.call('fabs(y)')} + {k.call(f'sqrt({sum_})')};",
        f"      const {mask} here = open & (size > {zero});",
        *(f"      const {type_} {tangent} = here ? (y < {zero} ? -{x} : {x}) / (here ? size : {one}) : {zero};"
          for tangent, x in zip(tangents, xs, strict=True)),
        f"      const {type_} cosine = {one} / {k.call(f'sqrt({one} + {squares(*tangents)})')}, "
        + ", ".join(f"{sine} = {tangent} * cosine" for sine, tangent in zip(sines, tangents, strict=True)) + ";",
        *(f"      {a[0]}[{i} * {n} + {i}] {sign}= {' + '.join(f'{t} * {x}' for t, x in zip(tangents, xs, strict=True))};"
          for i, sign in ("p-", "q+")),
        *(f"      {part}[q * {n} + p] = open ? {zero} : {x};" for part, x in zip(a, xs, strict=True)),
        *(f"      {line}" for line in lower),
        *(f"      {line}" for line in _turned(k, f"for (int i = 0; i < {n}; i++)", vectors, f"p * {n} + i", f"q * {n} + i")),
        "    }",
        "}",
    ], *a[1:], *vectors)
    k.lines(values, [f"for (int j = 0; j < {n}; j++)", f"  {values}[j] = {a[0]}[j * {n} + j] * {scale}[0];"], a[0], scale)
    _sort(k, values, "<", *((v, n) for v in vectors))
    k.info = info
    k.report()
    k.store(0, values)
    if vectors:
        _signs(k, vectors, n, n)
        _stored(k, 1, vectors, (n, n))


def svd(k: Matrices) -> None:
    """One-sided: the shorter side's rows (of A, or of A^T) are turned until they are orthogonal. Then their lengths are the singular

    values, their directions are the vectors of the longer side, `rows`, and the turns are those of the other, `turns` (conjugated, so that
    all are stored as they are: where the turns are T, T A = S V^H gives U = T^H, and T A^T = S U^T gives V^H = conj(T)).
    """
    tall = k.m > k.n
    least, length = min(k.m, k.n), max(k.m, k.n)
    right_place = len(k.node.operands) + 1                                          # of the results, after U's parts and S
    left, right = k.results[0] is not None, k.results[right_place] is not None
    vectors = left or right
    count = length if k.attrs["full"] and vectors else least                        # of rows: those beyond are of the null space
    type_, mask, zero, one = k.type, k.mask, k.number(0), k.number(1)
    rows, info, values = _loaded(k, "rows", tall, count * length), k.note(), k.array("values", count)
    turns = _unit(k, "turns", least) if (vectors if tall else left) else []         # signs are those of the right vectors
    dtype = k.node.operands[0].dtype
    limits = np.finfo(k.dtype)
    # cosines below this are those of orthogonal rows; rows are as good as 0 whose squares are below that
    right_angle = float(np.finfo(dtype).eps) * (length ** 0.5 if dtype == k.dtype else 0.125)
    nothing = float(limits.tiny) / float(limits.eps) ** 3
    scale = scaled(k, rows, f"for (int r = 0; r < {least}; r++)", f"for (int c = 0; c < {length}; c++)", f"r * {length} + c")
    upper, lower = ([f"{x}[{line} * {length} + i]" for x in rows] for line in "pq")
    product = _product(upper, lower)
    if len(rows) == 1:
        sums, size_of, x, sines = f"x = {zero}", k.call("fabs(x)"), "x", "sine = tangent * cosine"
    else:
        sums, size_of, x = f"x = {zero}, u = {zero}", "norm", "norm"
        sines = ", ".join(f"{sine} = {part} / (here ? norm : {one}) * tangent * cosine" for sine, part in (("sine", "x"), ("turn", "u")))
    k.lines(rows[0], [
        f"for (int sweep = 0; sweep < {_SWEEPS}; sweep++) {{",
        f"  {mask} open = {k.whole('0')};",
        f"  for (int p = 0; p < {least - 1}; p++)",
        f"    for (int q = p + 1; q < {least}; q++) {{",
        f"      {type_} alpha = {zero}, beta = {zero}, {sums};",
        f"      for (int i = 0; i < {length}; i++) {{",
        f"        alpha += {squares(*upper)};",
        f"        beta += {squares(*lower)};",
        *(f"        {name} += {text};" for name, text in zip("xu", product, strict=False)),
        "      }",
        f"      const {type_} size = {k.call('sqrt(alpha)')} * {k.call('sqrt(beta)')};",
        *([f"      const {type_} norm = {k.call('hypot(x, u)')};"] if len(rows) > 1 else []),
        f"      const {mask} here = ({size_of} > {k.number(right_angle)} * size) & (alpha > {k.number(nothing)}) & "
        f"(beta > {k.number(nothing)});",
        f"      if ({k.any('here')}) {{",
        "        open |= here;",
        f"        const {type_} y = (beta - alpha) / (here ? {x} + {x} : {one});",
        f"        const {type_} whole = {one} / ({k.call('fabs(y)')} + {k.call(f'sqrt({one} + y * y)')});",
        f"        const {type_} tangent = here ? (y < {zero} ? -whole : whole) : {zero};",
        f"        const {type_} cosine = {one} / {k.call(f'sqrt({one} + tangent * tangent)')}, {sines};",
        *(f"        {line}" for line in _turned(k, f"for (int i = 0; i < {length}; i++)", rows, f"p * {length} + i", f"q * {length} + i")),
        *(f"        {line}" for line in _turned(
            k, f"for (int i = 0; i < {least}; i++)", turns, f"p * {least} + i", f"q * {least} + i", conjugate=True)),
        "      }",
        "    }",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        "}",
    ], *rows[1:], *turns)
    k.lines(values, [
        f"for (int j = 0; j < {least}; j++) {{",
        f"  {type_} norm = {zero};",
        f"  for (int i = 0; i < {length}; i++)",
        f"    norm += {squares(*(f'{x}[j * {length} + i]' for x in rows))};",
        f"  {values}[j] = {k.call('sqrt(norm)')};",
        "}",
        *([
            f"for (int j = {least}; j < {count}; j++) {{",
            f"  {values}[j] = {zero};",
            *(f"  {line}" for line in _loop(f"for (int i = 0; i < {length}; i++)", *(f"{x}[j * {length} + i] = {zero};" for x in rows))),
            "}",
        ] if count > least else []),
    ], *rows)
    _sort(k, values, ">", *((x, length) for x in rows), *((t, least) for t in turns))
    if vectors:
        _orthonormal(k, rows, values, count, length, nothing ** 0.5)
    k.lines(values, [f"for (int j = 0; j < {least}; j++)", f"  {values}[j] *= {scale}[0];"], scale)
    k.info = info
    k.report()
    k.store(right_place - 1, values)
    first, second = (rows, turns) if tall else (turns, rows)
    if second and vectors:
        _signs(k, second, least, least if tall else length, first, length if tall else least)
    if left:
        _stored(k, 0, first, (length, count) if tall else (least, least))
    if right:
        _stored(k, right_place, second)


# ------------------------------------------------------------------------------------------------------------------- parts


def _loaded(k: Matrices, base: str, transposed: bool = False, room: int = 0) -> list[Array]:
    """The matrices, or their real and imaginary parts."""
    return [k.load(part, name, transposed, room) for part, name in zip(range(len(k.node.operands)), (base, "imaginary"), strict=False)]


def _unit(k: Matrices, base: str, n: int) -> list[Array]:
    """Unit matrices."""
    return [k.empty(f"{prefix}{base}", n, n, diagonal) for prefix, diagonal in [("", 1), ("imaginary_", 0)][:len(k.node.operands)]]


def _stored(k: Matrices, index: int, arrays: list[Array], transposed: tuple[int, int] | None = None) -> None:
    for part, array in enumerate(arrays):
        k.store(index + part, array, transposed)


def _loop(head: str, *body: str) -> list[str]:
    return [head, *(f"  {line}" for line in body)] if len(body) == 1 else [f"{head} {{", *(f"  {line}" for line in body), "}"]


def squares(*numbers: str) -> str:
    return " + ".join(f"{x} * {x}" for x in numbers)


def _product(x: list[str], y: list[str]) -> list[str]:
    """The parts of x times the conjugate of y."""
    if len(x) == 1:
        return [f"{x[0]} * {y[0]}"]
    return [f"{x[0]} * {y[0]} + {x[1]} * {y[1]}", f"{x[1]} * {y[0]} - {x[0]} * {y[1]}"]


# ------------------------------------------------------------------------------------------------------------------- steps


def scaled(k: Matrices, arrays: list[Array], rows: str, columns: str, place: str) -> Array:
    """Divides the elements that the loops go over by a power of two, the size of the largest, so that no square is too large or too small.

    `info` becomes 1 where one of them is NaN or infinite. What is given back is the power.
    """
    scale, limits = k.array("scale", 1), np.finfo(k.dtype)
    least, most = k.number(float(limits.tiny)), k.number(2.0 ** (limits.maxexp - 2))
    assert k.info is not None
    k.lines(arrays[0], [
        f"{k.type} best = {k.number(0)};",
        *(line for a in arrays for line in (
            rows,
            f"  {columns} {{",
            f"    const {k.type} size = {k.call(f'fabs({a}[{place}])')};",
            f"    {k.info}[0] = size - size == {k.number(0)} ? {k.info}[0] : {k.whole('1')};",
            "    best = size > best ? size : best;",
            "  }")),
        f"best = {k.power('best')};",
        f"{scale}[0] = best < {least} ? {least} : best > {most} ? {most} : best;",
        *(line for a in arrays for line in (rows, f"  {columns}", f"    {a}[{place}] /= {scale}[0];")),
    ], *arrays[1:], k.info, scale)
    return scale


def _turned(k: Matrices, loop: str, arrays: list[Array], p: str, q: str, conjugate: bool = False, mirrored: bool = False) -> list[str]:
    """Loops over pairs of numbers, at places p and q, that are turned by an angle: c x - z y and conj(z) x + c y, z = sine + i turn.

    conjugate: z's conjugate in its place. mirrored: y's conjugate, before and after.
    """
    if not arrays:
        return []
    x, y = ([f"{a}[{place}]" for a in arrays] for place in (p, q))
    if len(arrays) == 1:
        body = [f"  const {k.type} e = {x[0]}, r = {y[0]};", f"  {x[0]} = cosine * e - sine * r;", f"  {y[0]} = sine * e + cosine * r;"]
    else:
        plus, minus = "-+" if conjugate else "+-"
        turned = f"sine * f {minus} turn * e + cosine * v"
        body = [
            f"  const {k.type} e = {x[0]}, f = {x[1]}, r = {y[0]}, v = {'-' * mirrored}{y[1]};",
            f"  {x[0]} = cosine * e - (sine * r {minus} turn * v);",
            f"  {x[1]} = cosine * f - (sine * v {plus} turn * r);",
            f"  {y[0]} = sine * e {plus} turn * f + cosine * r;",
            f"  {y[1]} = {f'-({turned})' if mirrored else turned};",
        ]
    return [f"{loop} {{", *body, "}"]


def _sort(k: Matrices, values: Array, before: str, *others: tuple[Array, int]) -> None:
    """Puts the numbers of the matrices in order, and with them rows (of so many numbers)."""
    swap = []
    count = min(k.m, k.n)
    for array, length in others:
        mine, other = (f"{array}[{line} * {length} + c]" for line in "ij")
        swap += [
            f"    for (int c = 0; c < {length}; c++) {{",
            f"      const {k.type} x = {mine}, y = {other};",
            f"      {mine} = here ? y : x;",
            f"      {other} = here ? x : y;",
            "    }",
        ]
    k.lines(values, [
        f"for (int i = 0; i < {count - 1}; i++)",
        f"  for (int j = i + 1; j < {count}; j++) {{",
        f"    const {k.type} alpha = {values}[i], beta = {values}[j];",
        f"    const {k.mask} here = beta {before} alpha;",
        f"    {values}[i] = here ? beta : alpha;",
        f"    {values}[j] = here ? alpha : beta;",
        *swap,
        "  }",
    ], *(array for array, _ in others))


def _signs(k: Matrices, rows: list[Array], count: int, length: int, others: list[Array] | None = None, size: int = 0) -> None:
    """Turns round those rows whose first number that is not small is negative, and with them the others' (of `size` numbers).

    Complex ones are turned until that number is positive, and the others the other way.
    """
    others = others or []
    zero, small = k.number(0), k.number(NOT_SMALL / length ** 0.5)
    if len(rows) == 1:
        found = [
            f"    const {k.type} x = {rows[0]}[j * {length} + c];",
            f"    sign = (sign == {zero}) & ({k.call('fabs(x)')} > {small}) ? x : sign;",
        ]
        turned = [line for array, n in [*((a, length) for a in rows), *((a, size) for a in others)] for line in (
            f"  for (int c = 0; c < {n}; c++)",
            f"    {array}[j * {n} + c] = sign < {zero} ? -{array}[j * {n} + c] : {array}[j * {n} + c];")]
    else:
        found = [
            f"    const {k.type} x = {rows[0]}[j * {length} + c], y = {rows[1]}[j * {length} + c], norm = {k.call('sqrt(x * x + y * y)')};",
            f"    const {k.mask} here = (sign == {zero}) & (turn == {zero}) & (norm > {small});",
            "    sign = here ? x / norm : sign;",
            "    turn = here ? y / norm : turn;",
        ]
        both = [(rows, length, "+", "-"), *([(others, size, "-", "+")] if others else [])]
        turned = [line for parts, n, plus, minus in both for line in (
            f"  for (int c = 0; c < {n}; c++) {{",
            f"    const {k.type} e = {parts[0]}[j * {n} + c], f = {parts[1]}[j * {n} + c];",
            f"    {parts[0]}[j * {n} + c] = e * sign {plus} f * turn;",
            f"    {parts[1]}[j * {n} + c] = f * sign {minus} e * turn;",
            "  }")]
    k.lines(rows[0], [
        f"for (int j = 0; j < {count}; j++) {{",
        f"  {k.type} {', '.join(f'{name} = {zero}' for name in ('sign', 'turn')[:len(rows)])};",
        f"  for (int c = 0; c < {length}; c++) {{",
        *found,
        "  }",
        *turned,
        "}",
    ], *rows[1:], *others)


def _orthonormal(k: Matrices, rows: list[Array], values: Array, count: int, length: int, small: float) -> None:
    """Gives rows the length 1: `values` are their lengths. One that has none becomes orthogonal to those before it: made of the unit

    vector that is farthest from them, twice, for once leaves what rounding leaves.
    """
    zero, one = k.number(0), k.number(1)
    row, other = ([f"{x}[{line} * {length} + i]" for x in rows] for line in "jr")
    names = ("x", "u")[:len(rows)]
    sums = [f"{name} += {text};" for name, text in zip(names, _product(row, other), strict=True)]
    along = [f"x * {other[0]}"] if len(rows) == 1 else [f"x * {other[0]} - u * {other[1]}", f"x * {other[1]} + u * {other[0]}"]
    k.lines(rows[0], [
        f"for (int j = 0; j < {count}; j++) {{",
        f"  const {k.mask} flat = {values}[j] <= {k.number(small)};",
        *(f"  {line}" for line in _loop(
            f"for (int i = 0; i < {length}; i++)", *(f"{x} = flat ? {zero} : {x} / (flat ? {one} : {values}[j]);" for x in row))),
        f"  if ({k.any('flat')}) {{",
        f"    {k.type} best = {zero};",
        f"    {k.mask} first = {k.whole('0')};",
        f"    for (int i = 0; i < {length}; i++) {{",
        f"      {k.type} x = {one};",
        "      for (int r = 0; r < j; r++)",
        f"        x -= {squares(*other)};",
        f"      first = x > best ? {k.whole('i')} : first;",
        "      best = x > best ? x : best;",
        "    }",
        f"    for (int i = 0; i < {length}; i++)",
        f"      {row[0]} = flat & (first == {k.whole('i')}) ? {one} : {row[0]};",
        "    for (int e = 0; e < 2; e++) {",
        "      for (int r = 0; r < j; r++) {",
        f"        {k.type} {', '.join(f'{name} = {zero}' for name in names)};",
        *(f"        {line}" for line in _loop(f"for (int i = 0; i < {length}; i++)", *sums)),
        *(f"        {name} = flat ? {name} : {zero};" for name in names),
        *(f"        {line}" for line in _loop(
            f"for (int i = 0; i < {length}; i++)", *(f"{x} -= {text};" for x, text in zip(row, along, strict=True)))),
        "      }",
        f"      {k.type} norm = {zero};",
        f"      for (int i = 0; i < {length}; i++)",
        f"        norm += {squares(*row)};",
        f"      norm = flat ? {k.call('sqrt(norm)')} : {one};",
        *(f"      {line}" for line in _loop(f"for (int i = 0; i < {length}; i++)", *(f"{x} /= norm;" for x in row))),
        "    }",
        "  }",
        "}",
    ], *rows[1:], values)
