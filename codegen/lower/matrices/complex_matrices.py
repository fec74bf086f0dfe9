"""Many small complex matrices: real parts and imaginary parts in arrays of their own. Start at `eliminate`, then `TEXTS`.

The operands of a `graph.small_matrices.InParts` are the parts, and so are its results, a complex one's in turn. Steps, pivots and signs
are LAPACK's, as in small_matrices.py; the size of a number, by which the pivot is chosen, is |x| + |y| there, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracegrad.codegen.kernel.ir.expressions import Array
from tracegrad.codegen.lower.matrices import expm, jacobi

if TYPE_CHECKING:
    from tracegrad.codegen.lower.matrices.small_matrices import Matrices


def eliminate(k: Matrices, a: Array, b: Array, *others: tuple[Array, Array, int], orders: tuple[Array, ...] = (),
              pivots: Array | None = None, keep: bool = False, sign: bool = False) -> None:
    """LU with partial pivoting of a + ib (m x n): `small_matrices._eliminate`, whose arguments these are; others are parts, too."""
    m, n, type_, mask = k.m, k.n, k.type, k.mask
    exchanged = [(x, n, "0" if keep else "j") for x in (a, b)] + [(x, columns, "0") for *both, columns in others for x in both]
    swap = [line for x, columns, start in exchanged for line in (
        f"    for (int c = {start}; c < {columns}; c++) {{",
        f"      const {type_} x = {x}[j * {columns} + c], y = {x}[i * {columns} + c];",
        f"      {x}[j * {columns} + c] = here ? y : x;",
        f"      {x}[i * {columns} + c] = here ? x : y;",
        "    }")]
    k.lines(a, [
        f"for (int j = 0; j < {min(m, n)}; j++) {{",
        *k.pivot(lambda line: _size(k, a, b, line), orders, swap, pivots, sign),
        *([k.noting(f"(best > {k.number(0)}) == {k.whole('0')}")] if k.info else []),
        f"  const {mask} flat = best == {k.number(0)};",
        f"  const {type_} norm = flat ? {k.number(1)} : best;",                     # divided out first: squares of it may be too large
        f"  const {type_} u = flat ? norm : {a}[j * {n} + j] / norm, v = {b}[j * {n} + j] / norm;",
        f"  const {type_} square = u * u + v * v;",
        f"  for (int i = j + 1; i < {m}; i++) {{",
        f"    const {type_} x = {a}[i * {n} + j], y = {b}[i * {n} + j];",
        f"    const {type_} factor = (x * u + y * v) / square / norm, turn = (y * u - x * v) / square / norm;",
        *([f"    {a}[i * {n} + j] = factor;", f"    {b}[i * {n} + j] = turn;"] if keep else []),
        *(f"    {line}" for line in _less(k, a, b, n, "j + 1")),
        *(f"    {line}" for x, y, columns in others for line in _less(k, x, y, columns, "0")),
        "  }",
        "}",
    ], *(x for x, *_ in exchanged[1:]), *orders, *(x for x in (pivots, k.info) if x is not None))


def _less(k: Matrices, a: Array, b: Array, columns: int, first: str) -> list[str]:
    """Row i of a + ib less (factor + i turn) times row j, from column `first` on."""
    return [
        f"for (int c = {first}; c < {columns}; c++) {{",
        f"  const {k.type} p = {a}[j * {columns} + c], q = {b}[j * {columns} + c];",
        f"  {a}[i * {columns} + c] -= factor * p - turn * q;",
        f"  {b}[i * {columns} + c] -= factor * q + turn * p;",
        "}",
    ]


def _size(k: Matrices, a: Array, b: Array, line: str) -> str:
    at = f"[{line} * {k.n} + j]"
    return f"{k.call(f'fabs({a}{at})')} + {k.call(f'fabs({b}{at})')}"


def _substitute(k: Matrices, a: Array, b: Array, right: tuple[Array, Array, int], upper: bool = True, unit: bool = False) -> None:
    """right (n x columns) becomes X in A X = B, A the upper or lower triangle of a + ib."""
    n, type_, (x, y, columns) = k.n, k.type, right
    rows = "int i = 0; i < j; i++" if upper else f"int i = j + 1; i < {n}; i++"
    divided = [
        f"  const {type_} norm = {_size(k, a, b, 'j')}, u = {a}[j * {n} + j] / norm, v = {b}[j * {n} + j] / norm, square = u * u + v * v;",
        f"  for (int c = 0; c < {columns}; c++) {{",
        f"    const {type_} p = {x}[j * {columns} + c], q = {y}[j * {columns} + c];",
        f"    {x}[j * {columns} + c] = (p * u + q * v) / square / norm;",
        f"    {y}[j * {columns} + c] = (q * u - p * v) / square / norm;",
        "  }",
    ]
    k.lines(x, [
        f"for (int j = {n - 1 if upper else 0}; j {'>= 0; j--' if upper else f'< {n}; j++'}) {{",
        *([] if unit else divided),
        f"  for ({rows}) {{",
        f"    const {type_} factor = {a}[i * {n} + j], turn = {b}[i * {n} + j];",
        *(f"    {line}" for line in _less(k, x, y, columns, "0")),
        "  }",
        "}",
    ], y, a, b)


def _solved(k: Matrices, right: tuple[Array, Array, int]) -> None:
    a, b = k.load(0, "a"), k.load(1, "b")
    k.note()
    eliminate(k, a, b, right)
    k.report()
    _substitute(k, a, b, right)
    for index, part in enumerate(right[:2]):
        k.store(index, part)


def solve(k: Matrices) -> None:
    _solved(k, _right(k))


def inv(k: Matrices) -> None:
    _solved(k, (k.empty("x", k.n, k.n, 1), k.empty("y", k.n, k.n), k.n))


def _right(k: Matrices) -> tuple[Array, Array, int]:
    return k.load(2, "x"), k.load(3, "y"), k.shapes[2][1]


def triangle(k: Matrices) -> None:
    a, b, right = k.load(0, "a"), k.load(1, "b"), _right(k)
    if not k.attrs["unit"]:
        info = k.note()
        k.lines(info, [f"for (int j = 0; j < {k.n}; j++)", k.noting(f"{_size(k, a, b, 'j')} == {k.number(0)}")], a, b)
        k.report()
    _substitute(k, a, b, right, k.attrs["upper"], k.attrs["unit"])
    for index, part in enumerate(right[:2]):
        k.store(index, part)


def _pivots(k: Matrices) -> tuple[list[str], Array, Array]:
    """`logarithm`, that of the determinant's size, and its sign, `u` + i `v`; and U, whose diagonal that is of."""
    a, b = k.load(0, "a"), k.load(1, "b")
    k.writer.text([f"{k.type} sign = {k.number(1)};"], k.node)
    eliminate(k, a, b, sign=True)
    type_, zero, one, at = k.type, k.number(0), k.number(1), f"[j * {k.n} + j]"
    return [
        f"{type_} logarithm = {zero}, u = sign, v = {zero};",
        f"for (int j = 0; j < {k.n}; j++) {{",
        f"  const {type_} size = {_size(k, a, b, 'j')};",
        f"  const {k.mask} flat = size == {zero};",
        f"  const {type_} norm = flat ? {one} : size, p = {a}{at} / norm, q = {b}{at} / norm;",
        f"  const {type_} square = flat ? {one} : {k.call('sqrt(p * p + q * q)')};",
        f"  logarithm += {k.call('log(size * square)')};",
        f"  const {type_} x = (u * p - v * q) / square, y = (u * q + v * p) / square;",
        "  u = x;",
        "  v = y;",
        "}",
    ], a, b


def slogdet(k: Matrices) -> None:
    lines, a, b = _pivots(k)
    k.writer.text(lines, k.node, (a, b))
    for index, name in enumerate(("u", "v", "logarithm")):
        k.store(index, k.scalar(f"{name}s", name))


def det(k: Matrices) -> None:
    """The product of the pivots; where one on the way is too large or too small, by logarithms."""
    lines, a, b = _pivots(k)
    low, high, type_, at = float(np.finfo(k.dtype).tiny) * 1e6, float(np.finfo(k.dtype).max) / 2, k.type, f"[j * {k.n} + j]"
    k.writer.text([
        f"{type_} alpha = sign, beta = {k.number(0)};",
        f"{k.mask} safe = {k.whole('1')} == {k.whole('1')};",
        f"for (int j = 0; j < {k.n}; j++) {{",
        f"  const {type_} p = {a}{at}, q = {b}{at};",
        f"  const {type_} x = alpha * p - beta * q, y = alpha * q + beta * p;",
        "  alpha = x;",
        "  beta = y;",
        f"  const {type_} size = {k.call('fabs(x)')} + {k.call('fabs(y)')};",
        f"  safe &= (size > {k.number(low)}) & (size < {k.number(high)});",
        "}",
        *lines,
        f"const {type_} norm = {k.call('exp(logarithm)')};",
    ], k.node, (a, b))
    k.store(0, k.scalar("determinants", "safe ? alpha : u * norm"))
    k.store(1, k.scalar("imaginary", "safe ? beta : v * norm"))


def _factored(k: Matrices, a: Array, b: Array, nan: bool) -> None:
    """The lower triangle of a + ib becomes that of L. nan: a pivot that is NaN is noted, too."""
    n, type_ = k.n, k.type
    info = k.note()
    k.lines(a, [
        f"for (int j = 0; j < {n}; j++) {{",
        f"  const {type_} x = {a}[j * {n} + j];",
        k.noting(f"(x > {k.number(0)}) == {k.whole('0')}" if nan else f"x <= {k.number(0)}"),
        f"  const {type_} pivot = {k.call('sqrt(x)')};",
        f"  {a}[j * {n} + j] = pivot;",
        f"  {b}[j * {n} + j] = {k.number(0)};",
        f"  for (int i = j + 1; i < {n}; i++) {{",
        f"    {a}[i * {n} + j] /= pivot;",
        f"    {b}[i * {n} + j] /= pivot;",
        "  }",
        f"  for (int i = j + 1; i < {n}; i++) {{",
        f"    const {type_} p = {a}[i * {n} + j], q = {b}[i * {n} + j];",
        "    for (int c = j + 1; c <= i; c++) {",
        f"      const {type_} u = {a}[c * {n} + j], v = {b}[c * {n} + j];",
        f"      {a}[i * {n} + c] -= p * u + q * v;",
        f"      {b}[i * {n} + c] -= q * u - p * v;",
        "    }",
        "  }",
        "}",
    ], b, info)


def cholesky(k: Matrices) -> None:
    a, b = k.load(0, "a"), k.load(1, "b")
    _factored(k, a, b, False)
    k.report()
    for index, part in enumerate((a, b)):
        k.clear_upper(part)
        k.store(index, part)


def info(k: Matrices) -> None:
    a, b = k.load(0, "a"), k.load(1, "b")
    if k.attrs["cholesky"]:
        _factored(k, a, b, True)
    else:
        k.note()
        eliminate(k, a, b)
    assert k.info is not None
    k.store(0, k.info)


def lu(k: Matrices) -> None:
    a, b = k.load(0, "a"), k.load(1, "b")
    pivots = k.array("pivots", min(k.m, k.n), True) if k.results[2] is not None else None
    orders = (k.row_numbers(),) if k.results[3] is not None else ()
    eliminate(k, a, b, orders=orders, pivots=pivots, keep=True)
    for index, array in enumerate((a, b, pivots, *orders)):
        k.store(index, array)


def _reflected(k: Matrices, a: Array, b: Array, factors: Array, turns: Array, u: Array, v: Array, width: int, turn: str) -> list[str]:
    """Column c of u + iv becomes H of it, or H^H (turn: the sign of t's imaginary part)."""
    m, n, type_ = k.m, k.n, k.type
    return [
        f"    {type_} x = {u}[j * {width} + c], y = {v}[j * {width} + c];",
        f"    for (int i = j + 1; i < {m}; i++) {{",
        f"      x += {a}[i * {n} + j] * {u}[i * {width} + c] + {b}[i * {n} + j] * {v}[i * {width} + c];",
        f"      y += {a}[i * {n} + j] * {v}[i * {width} + c] - {b}[i * {n} + j] * {u}[i * {width} + c];",
        "    }",
        f"    const {type_} p = {factors}[j], q = {turn}{turns}[j], u = p * x - q * y, v = p * y + q * x;",
        f"    {u}[j * {width} + c] -= u;",
        f"    {v}[j * {width} + c] -= v;",
        f"    for (int i = j + 1; i < {m}; i++) {{",
        f"      {u}[i * {width} + c] -= u * {a}[i * {n} + j] - v * {b}[i * {n} + j];",
        f"      {v}[i * {width} + c] -= u * {b}[i * {n} + j] + v * {a}[i * {n} + j];",
        "    }",
    ]


def _reflections(k: Matrices) -> tuple[Array, Array, Array, Array]:
    """Householder's, as geqrf: 1 - t v v^H, whose t is complex, so that R's diagonal is real."""
    m, n, type_, mask, zero = k.m, k.n, k.type, k.mask, k.number(0)
    least = min(m, n)
    a, b, factors, turns = k.load(0, "a"), k.load(1, "b"), k.array("factors", least), k.array("turns", least)
    k.lines(a, [
        f"for (int j = 0; j < {least}; j++) {{",
        f"  const {type_} alpha = {a}[j * {n} + j], turn = {b}[j * {n} + j];",
        f"  {type_} best = {_size(k, a, b, 'j')};",
        f"  {mask} flat = turn == {zero};",
        f"  for (int i = j + 1; i < {m}; i++) {{",
        f"    const {type_} size = {_size(k, a, b, 'i')};",
        "    best = size > best ? size : best;",
        f"    flat &= size == {zero};",
        "  }",
        f"  const {type_} pivot = best > {zero} ? best : {k.number(1)};",
        f"  {type_} norm = (alpha / pivot) * (alpha / pivot) + (turn / pivot) * (turn / pivot);",
        f"  for (int i = j + 1; i < {m}; i++) {{",
        f"    const {type_} x = {a}[i * {n} + j] / pivot, y = {b}[i * {n} + j] / pivot;",
        "    norm += x * x + y * y;",
        "  }",
        f"  norm = pivot * {k.call('sqrt(norm)')};",
        f"  const {type_} beta = flat ? alpha : -{k.call('copysign(norm, alpha)')};",
        f"  {factors}[j] = flat ? {zero} : (beta - alpha) / beta;",
        f"  {turns}[j] = flat ? {zero} : -turn / beta;",
        f"  const {type_} p = (alpha - beta) / pivot, q = turn / pivot, square = p * p + q * q;",  # v = x / (alpha - beta)
        f"  for (int i = j + 1; i < {m}; i++) {{",
        f"    const {type_} x = {a}[i * {n} + j] / pivot, y = {b}[i * {n} + j] / pivot;",
        f"    {a}[i * {n} + j] = flat ? {zero} : (x * p + y * q) / square;",
        f"    {b}[i * {n} + j] = flat ? {zero} : (y * p - x * q) / square;",
        "  }",
        f"  {a}[j * {n} + j] = beta;",
        f"  {b}[j * {n} + j] = {zero};",
        f"  for (int c = j + 1; c < {n}; c++) {{",
        *_reflected(k, a, b, factors, turns, a, b, n, "-"),
        "  }",
        "}",
    ], b, factors, turns)
    return a, b, factors, turns


def geqrf(k: Matrices) -> None:
    for index, array in enumerate(_reflections(k)):
        k.store(index, array)


def qr(k: Matrices) -> None:
    """The reflections' product from the last one on, as ungqr."""
    m, n = k.m, k.n
    least = min(m, n)
    columns = m if k.attrs["complete"] else least
    a, b, factors, turns = _reflections(k)
    if k.results[0] is not None:
        q, r = k.empty("q", m, columns, 1), k.empty("r", m, columns)
        k.lines(q, [
            f"for (int j = {least - 1}; j >= 0; j--)",
            f"  for (int c = j; c < {columns}; c++) {{",
            *_reflected(k, a, b, factors, turns, q, r, columns, ""),
            "  }",
        ], r, a, b, factors, turns)
        k.store(0, q)
        k.store(1, r)
    if k.results[2] is not None:
        k.store(2, k.upper(a, columns))
        k.store(3, k.upper(b, columns))


TEXTS = {"complex_solve": solve, "complex_inv": inv, "complex_solve_triangular": triangle, "complex_det": det, "complex_slogdet": slogdet,
         "complex_cholesky": cholesky, "complex_factor_info": info, "complex_lu_factor": lu, "complex_qr": qr, "complex_geqrf": geqrf,
         "complex_eigh": jacobi.eigh, "complex_svd": jacobi.svd,
         "complex_matrix_exp": expm.exp, "complex_frechet_exp": expm.derivative}
