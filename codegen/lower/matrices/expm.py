"""Exponentials of many small matrices, and their derivatives (see small_matrices.py). Start at `exponential`.

The steps are those of `matrix_exponential.py`: scaling and squaring of Taylor's polynomial of degree 16, in products alone. Each matrix
of a vector is halved as often as its norm asks for. A derivative is that of numbers A + x E, x x = 0: the same steps on twice as many
parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegrad.codegen.kernel.ir.expressions import Array
from tracegrad.ops.linalg.matrix_exponential import EXP_NORM, EXP_SERIES

if TYPE_CHECKING:
    from tracegrad.codegen.lower.matrices.small_matrices import Matrices

_NORMS = {4: (2.47, 2.1), 8: EXP_NORM}                       # by a number's bytes; float32 is exact from larger ones on
_HALVINGS = 1100                                             # more than any norm takes
_FACTORS = "pquv"

Terms = list[list[tuple[str, int, int]]]                     # of each part of a product: signs, and which parts of the factors


def exp(k: Matrices) -> None:
    exponential(k, len(k.node.operands), False)


def derivative(k: Matrices) -> None:
    exponential(k, len(k.node.operands) // 2, True)


def exponential(k: Matrices, parts: int, dual: bool) -> None:
    """parts: those of a number, of which dual ones have twice as many. The result is exp A, or what it has with e."""
    n, zero, half = k.n, k.number(0), k.number(0.5)
    terms = _terms(parts, dual)

    def arrays(base: str) -> list[Array]:
        return [k.array(f"{base}{part}", n * n) for part in range(len(terms))]

    a, turns = [k.load(part, f"a{part}") for part in range(len(terms))], k.array("turns", 1)
    k.lines(turns, [
        f"{k.type} norm = {zero}, rest = {zero};",                                  # rest: NaN where one of them is NaN or infinite
        f"for (int c = 0; c < {n}; c++) {{",
        f"  {k.type} size = {zero};",
        f"  for (int r = 0; r < {n}; r++)",
        f"    size += {' + '.join(k.call(f'fabs({x}[r * {n} + c])') for x in a[:parts])};",
        "  norm = size > norm ? size : norm;",
        "  rest += size - size;",
        "}",
        f"{turns}[0] = {zero};",
        *_each(n, a, "{0} += rest;"),
        f"for (int turn = 0; turn < {_HALVINGS}; turn++) {{",
        f"  const {k.mask} open = (norm > {k.number(_NORMS[k.dtype.itemsize][dual])}) & (rest == {zero});",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        f"  norm = open ? norm * {half} : norm;",
        f"  {turns}[0] = open ? {turns}[0] + {k.number(1)} : {turns}[0];",
        *(f"  {line}" for line in _each(n, a, f"{{0}} = open ? {{0}} * {half} : {{0}};")),
        "}",
    ], *a)
    b, c, d, x, y = map(arrays, "bcdxy")
    powers = [a, b, c, d]

    def polynomial(part: int, lowest: int) -> str:
        """Terms of the series from `lowest` on, of the element at r, c: the larger ones last, so that I is rounded once."""
        last = 4 if lowest == 12 else 3
        terms = [f"{k.number(EXP_SERIES[lowest + j])} * {powers[j - 1][part]}[r * {n} + c]" for j in range(last, 0, -1)]
        return " + ".join([*terms, *([f"(c == r ? {k.number(EXP_SERIES[lowest])} : {zero})"] if part == 0 else [])])

    for z, left, right in ((b, a, a), (c, b, a), (d, b, b)):
        k.lines(z[0], _product(k, z, left, right, terms), *z[1:], *left, *right)
    every = [array for power in powers for array in power]
    k.lines(x[0], [*_rows(n), *(f"    {z}[r * {n} + c] = {polynomial(part, 12)};" for part, z in enumerate(x)), "  }"], *x[1:], *every)
    for lowest in (8, 4, 0):
        more = [f"    {z}[r * {n} + c] = {z}[r * {n} + c] + {polynomial(part, lowest)};" for part, z in enumerate(y)]
        k.lines(y[0], [*_product(k, y, d, x, terms), *_rows(n), *more, "  }"], *y[1:], *x, *every)
        x, y = y, x
    k.lines(x[0], [
        f"for (int turn = 0; turn < {_HALVINGS}; turn++) {{",
        f"  const {k.mask} open = {turns}[0] > {zero};",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        f"  {turns}[0] -= {k.number(1)};",
        *(f"  {line}" for line in _product(k, y, x, x, terms)),
        *(f"  {line}" for z, square in zip(x, y, strict=True) for line in _each(n, [z], f"{{0}} = open ? {square}[e] : {{0}};")),
        "}",
    ], *x[1:], *y, turns)
    for index, array in enumerate(x[-parts:]):
        k.store(index, array)


def _terms(parts: int, dual: bool) -> Terms:
    """Which parts of the factors each part of a product is made of."""
    plain: Terms = [[("+", 0, 0)]] if parts == 1 else [[("+", 0, 0), ("-", 1, 1)], [("+", 0, 1), ("+", 1, 0)]]
    if not dual:
        return plain
    return plain + [[term for sign, i, j in part for term in ((sign, i, j + parts), (sign, i + parts, j))] for part in plain]


def _each(n: int, arrays: list[Array], line: str) -> list[str]:
    """The line for each element of arrays."""
    return [f"for (int e = 0; e < {n * n}; e++) {{", *(f"  {line.format(f'{x}[e]')}" for x in arrays), "}"]


def _rows(n: int) -> list[str]:
    """The head of a loop over rows and columns."""
    return [f"for (int r = 0; r < {n}; r++)", f"  for (int c = 0; c < {n}; c++) {{"]


def _product(k: Matrices, z: list[Array], x: list[Array], y: list[Array], terms: Terms) -> list[str]:
    """z becomes x y."""
    n = k.n
    return [
        f"for (int r = 0; r < {n}; r++) {{",
        f"  for (int c = 0; c < {n}; c++) {{",
        *(f"    {part}[r * {n} + c] = {k.number(0)};" for part in z),
        "  }",
        f"  for (int i = 0; i < {n}; i++) {{",
        *(f"    const {k.type} {name} = {part}[r * {n} + i];" for name, part in zip(_FACTORS, x, strict=False)),
        f"    for (int c = 0; c < {n}; c++) {{",
        *(f"      {part}[r * {n} + c] += {' '.join(f'{sign} {_FACTORS[i]} * {y[j]}[i * {n} + c]' for sign, i, j in sums)[2:]};"
          for part, sums in zip(z, terms, strict=True)),
        "    }",
        "  }",
        "}",
    ]
