"""Eigenvalues and singular values of many small matrices, by Jacobi's rotations (see small_matrices.py). Start at `eigh`, then `svd`.

A rotation makes one pair of rows orthogonal (svd), or one element below the diagonal zero (eigh); sweeps go over all pairs until nothing
is left to do in any matrix of the vector. A matrix that is done is not turned any more: what it gives does not depend on its neighbours.
C. Jacobi (1846); M. Hestenes, "Inversion of matrices by biorthogonalization and related results" (1958); J. Demmel, K. Veselic,
"Jacobi's method is more accurate than QR" (1992).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracegrad.codegen.kernel.expressions import Array
from tracegrad.ops.factorizations import NOT_SMALL

if TYPE_CHECKING:
    from tracegrad.codegen.lower.small_matrices import Matrices

_SWEEPS = 30                        # at most: 4 to 8 are usual up to 16 x 16, for off the diagonal the size is squared in each of the last


def eigh(k: Matrices) -> None:
    """a becomes diagonal: turned rows and columns. The rows of `vectors` are the eigenvectors."""
    n, type_, mask, zero, one = k.n, k.type, k.mask, k.number(0), k.number(1)
    a, info, values = k.load(0, "a"), k.note(), k.array("values", n)
    vectors = k.empty("vectors", n, n, 1) if k.results[1] is not None else None
    least = (float(np.finfo(k.node.operands[0].dtype).eps) / 8) ** 2
    scale = _scaled(k, a, f"for (int r = 0; r < {n}; r++)", "for (int c = 0; c <= r; c++)", f"{a}[r * {n} + c]")
    lower = [("for (int i = 0; i < p; i++)", f"{a}[p * {n} + i]", f"{a}[q * {n} + i]"),
             ("for (int i = p + 1; i < q; i++)", f"{a}[i * {n} + p]", f"{a}[q * {n} + i]"),
             (f"for (int i = q + 1; i < {n}; i++)", f"{a}[i * {n} + p]", f"{a}[i * {n} + q]")]
    k.lines(a, [
        f"for (int sweep = 0; sweep < {_SWEEPS}; sweep++) {{",
        f"  {type_} off = {zero}, norm = {zero};",
        f"  for (int r = 0; r < {n}; r++) {{",
        "    for (int c = 0; c < r; c++)",
        f"      off += {a}[r * {n} + c] * {a}[r * {n} + c];",
        f"    norm += {a}[r * {n} + r] * {a}[r * {n} + r];",
        "  }",
        f"  const {mask} open = off > {k.number(least)} * (norm + off);",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        f"  for (int p = 0; p < {n - 1}; p++)",
        f"    for (int q = p + 1; q < {n}; q++) {{",
        f"      const {type_} x = {a}[q * {n} + p], y = ({a}[q * {n} + q] - {a}[p * {n} + p]) * {k.number(0.5)};",
        f"      const {type_} size = {k.call('fabs(y)')} + {k.call('sqrt(x * x + y * y)')};",
        f"      const {mask} here = open & (size > {zero});",
        f"      const {type_} tangent = here ? (y < {zero} ? -x : x) / (here ? size : {one}) : {zero};",
        f"      const {type_} cosine = {one} / {k.call(f'sqrt({one} + tangent * tangent)')}, sine = tangent * cosine;",
        f"      {a}[p * {n} + p] -= tangent * x;",
        f"      {a}[q * {n} + q] += tangent * x;",
        f"      {a}[q * {n} + p] = open ? {zero} : x;",
        *(f"      {line}" for loop, x, y in lower for line in _turned(k, loop, x, y)),
        *(f"      {line}" for v in [vectors] if v for line in _turned(
            k, f"for (int i = 0; i < {n}; i++)", f"{v}[p * {n} + i]", f"{v}[q * {n} + i]")),
        "    }",
        "}",
    ], *(v for v in [vectors] if v))
    k.lines(values, [f"for (int j = 0; j < {n}; j++)", f"  {values}[j] = {a}[j * {n} + j] * {scale}[0];"], a, scale)
    _sort(k, values, "<", (vectors, n))
    k.info = info
    k.report()
    k.store(0, values)
    if vectors:
        _signs(k, vectors, n, n)
        k.store(1, vectors, (n, n))


def svd(k: Matrices) -> None:
    """One-sided: the shorter side's rows (of A, or of A^T) are turned until they are orthogonal. Then their lengths are the singular

    values, their directions are the vectors of the longer side, `rows`, and the turns are those of the other, `turns`.
    """
    tall = k.m > k.n
    least, length = min(k.m, k.n), max(k.m, k.n)
    left, right = k.results[0] is not None, k.results[2] is not None
    vectors = left or right
    count = length if k.attrs["full"] and vectors else least                        # of rows: those beyond are of the null space
    type_, mask, zero, one = k.type, k.mask, k.number(0), k.number(1)
    rows, info, values = k.load(0, "rows", tall, count * length), k.note(), k.array("values", count)
    turns = k.empty("turns", least, least, 1) if (vectors if tall else left) else None       # signs are those of the right vectors
    dtype = k.node.operands[0].dtype
    limits = np.finfo(k.dtype)
    # cosines below this are those of orthogonal rows; rows are as good as 0 whose squares are below that
    right_angle = float(np.finfo(dtype).eps) * (length ** 0.5 if dtype == k.dtype else 0.125)
    nothing = float(limits.tiny) / float(limits.eps) ** 3
    scale = _scaled(k, rows, f"for (int r = 0; r < {least}; r++)", f"for (int c = 0; c < {length}; c++)", f"{rows}[r * {length} + c]")
    pair = f"{rows}[p * {length} + i]", f"{rows}[q * {length} + i]"
    k.lines(rows, [
        f"for (int sweep = 0; sweep < {_SWEEPS}; sweep++) {{",
        f"  {mask} open = {k.whole('0')};",
        f"  for (int p = 0; p < {least - 1}; p++)",
        f"    for (int q = p + 1; q < {least}; q++) {{",
        f"      {type_} alpha = {zero}, beta = {zero}, x = {zero};",
        f"      for (int i = 0; i < {length}; i++) {{",
        f"        alpha += {pair[0]} * {pair[0]};",
        f"        beta += {pair[1]} * {pair[1]};",
        f"        x += {pair[0]} * {pair[1]};",
        "      }",
        f"      const {type_} size = {k.call('sqrt(alpha)')} * {k.call('sqrt(beta)')};",
        f"      const {mask} here = ({k.call('fabs(x)')} > {k.number(right_angle)} * size) & (alpha > {k.number(nothing)}) & "
        f"(beta > {k.number(nothing)});",
        f"      if ({k.any('here')}) {{",
        "        open |= here;",
        f"        const {type_} y = (beta - alpha) / (here ? x + x : {one});",
        f"        const {type_} whole = {one} / ({k.call('fabs(y)')} + {k.call(f'sqrt({one} + y * y)')});",
        f"        const {type_} tangent = here ? (y < {zero} ? -whole : whole) : {zero};",
        f"        const {type_} cosine = {one} / {k.call(f'sqrt({one} + tangent * tangent)')}, sine = tangent * cosine;",
        *(f"        {line}" for line in _turned(k, f"for (int i = 0; i < {length}; i++)", *pair)),
        *(f"        {line}" for t in [turns] if t for line in _turned(
            k, f"for (int i = 0; i < {least}; i++)", f"{t}[p * {least} + i]", f"{t}[q * {least} + i]")),
        "      }",
        "    }",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        "}",
    ], *(t for t in [turns] if t))
    k.lines(values, [
        f"for (int j = 0; j < {least}; j++) {{",
        f"  {type_} norm = {zero};",
        f"  for (int i = 0; i < {length}; i++)",
        f"    norm += {rows}[j * {length} + i] * {rows}[j * {length} + i];",
        f"  {values}[j] = {k.call('sqrt(norm)')};",
        "}",
        *([
            f"for (int j = {least}; j < {count}; j++) {{",
            f"  {values}[j] = {zero};",
            f"  for (int i = 0; i < {length}; i++)",
            f"    {rows}[j * {length} + i] = {zero};",
            "}",
        ] if count > least else []),
    ], rows)
    _sort(k, values, ">", (rows, length), (turns, least))
    if vectors:
        _orthonormal(k, rows, values, count, length, nothing ** 0.5)
    k.lines(values, [f"for (int j = 0; j < {least}; j++)", f"  {values}[j] *= {scale}[0];"], scale)
    k.info = info
    k.report()
    k.store(1, values)
    first, second = (rows, turns) if tall else (turns, rows)
    if second and vectors:
        _signs(k, second, least, least if tall else length, first, length if tall else least)
    if left:
        k.store(0, first, (length, count) if tall else (least, least))
    if right:
        k.store(2, second)


def _scaled(k: Matrices, a: Array, rows: str, columns: str, element: str) -> Array:
    """Divides the elements that the loops go over by a power of two, the size of the largest, so that no square is too large or too small.

    `info` becomes 1 where one of them is NaN or infinite. What is given back is the power.
    """
    scale, bits = k.array("scale", 1), k.dtype.itemsize * 8
    limits = np.finfo(k.dtype)
    integer = {32: "int", 64: "long"}[bits] + (str(k.lanes) if k.lanes > 1 else "")
    exponents = ((1 << limits.nexp) - 1) << limits.nmant
    exponent = f"{exponents}{'L' * (bits == 64)}"
    least, most = k.number(float(limits.tiny)), k.number(2.0 ** (limits.maxexp - 2))
    power = f"as_{k.type}(as_{integer}(best) & {f'({integer})({exponent})' if k.lanes > 1 else exponent})"
    assert k.info is not None
    k.lines(a, [
        f"{k.type} best = {k.number(0)};",
        rows,
        f"  {columns} {{",
        f"    const {k.type} size = {k.call(f'fabs({element})')};",
        f"    {k.info}[0] = size - size == {k.number(0)} ? {k.info}[0] : {k.whole('1')};",
        "    best = size > best ? size : best;",
        "  }",
        f"best = {power};",
        f"{scale}[0] = best < {least} ? {least} : best > {most} ? {most} : best;",
        rows,
        f"  {columns}",
        f"    {element} /= {scale}[0];",
    ], k.info, scale)
    return scale


def _turned(k: Matrices, loop: str, x: str, y: str) -> list[str]:
    """Loops over pairs of numbers that are turned by an angle."""
    return [f"{loop} {{", f"  const {k.type} e = {x}, r = {y};", f"  {x} = cosine * e - sine * r;", f"  {y} = sine * e + cosine * r;", "}"]


def _sort(k: Matrices, values: Array, before: str, *others: tuple[Array | None, int]) -> None:
    """Puts the numbers of the matrices in order, and with them rows (of so many numbers)."""
    swap = []
    count = min(k.m, k.n)
    for array, length in others:
        if array:
            mine, other = (f"{array}[{line} * {length} + c]" for line in "ij")
            swap += [
                f"    for (int c = 0; c < {length}; c++) {{",
                f"      const {k.type} x = {mine}, y = {other};",
                f"      {mine} = here ? y : x;",
                f"      {other} = here ? x : y;",
                "    }",
            ]
    arrays = [array for array, _ in others if array]
    k.lines(values, [
        f"for (int i = 0; i < {count - 1}; i++)",
        f"  for (int j = i + 1; j < {count}; j++) {{",
        f"    const {k.type} alpha = {values}[i], beta = {values}[j];",
        f"    const {k.mask} here = beta {before} alpha;",
        f"    {values}[i] = here ? beta : alpha;",
        f"    {values}[j] = here ? alpha : beta;",
        *swap,
        "  }",
    ], *arrays)


def _signs(k: Matrices, rows: Array, count: int, length: int, others: Array | None = None, size: int = 0) -> None:
    """Turns round those rows whose first number that is not small is negative, and with them the others' (of `size` numbers)."""
    zero, arrays = k.number(0), [(rows, length), *([(others, size)] if others else [])]
    k.lines(rows, [
        f"for (int j = 0; j < {count}; j++) {{",
        f"  {k.type} sign = {zero};",
        f"  for (int c = 0; c < {length}; c++) {{",
        f"    const {k.type} x = {rows}[j * {length} + c];",
        f"    sign = (sign == {zero}) & ({k.call('fabs(x)')} > {k.number(NOT_SMALL / length ** 0.5)}) ? x : sign;",
        "  }",
        *(line for array, n in arrays for line in (
            f"  for (int c = 0; c < {n}; c++)",
            f"    {array}[j * {n} + c] = sign < {zero} ? -{array}[j * {n} + c] : {array}[j * {n} + c];")),
        "}",
    ], *(array for array, _ in arrays[1:]))


def _orthonormal(k: Matrices, rows: Array, values: Array, count: int, length: int, small: float) -> None:
    """Gives rows the length 1: `values` are their lengths. One that has none becomes orthogonal to those before it: made of the unit

    vector that is farthest from them, twice, for once leaves what rounding leaves.
    """
    zero, one, row, other = k.number(0), k.number(1), f"{rows}[j * {length} + i]", f"{rows}[r * {length} + i]"
    k.lines(rows, [
        f"for (int j = 0; j < {count}; j++) {{",
        f"  const {k.mask} flat = {values}[j] <= {k.number(small)};",
        f"  for (int i = 0; i < {length}; i++)",
        f"    {row} = flat ? {zero} : {row} / (flat ? {one} : {values}[j]);",
        f"  if ({k.any('flat')}) {{",
        f"    {k.type} best = {zero};",
        f"    {k.mask} first = {k.whole('0')};",
        f"    for (int i = 0; i < {length}; i++) {{",
        f"      {k.type} x = {one};",
        "      for (int r = 0; r < j; r++)",
        f"        x -= {other} * {other};",
        f"      first = x > best ? {k.whole('i')} : first;",
        "      best = x > best ? x : best;",
        "    }",
        f"    for (int i = 0; i < {length}; i++)",
        f"      {row} = flat & (first == {k.whole('i')}) ? {one} : {row};",
        "    for (int e = 0; e < 2; e++) {",
        "      for (int r = 0; r < j; r++) {",
        f"        {k.type} x = {zero};",
        f"        for (int i = 0; i < {length}; i++)",
        f"          x += {row} * {other};",
        f"        x = flat ? x : {zero};",
        f"        for (int i = 0; i < {length}; i++)",
        f"          {row} -= x * {other};",
        "      }",
        f"      {k.type} norm = {zero};",
        f"      for (int i = 0; i < {length}; i++)",
        f"        norm += {row} * {row};",
        f"      norm = flat ? {k.call('sqrt(norm)')} : {one};",
        f"      for (int i = 0; i < {length}; i++)",
        f"        {row} /= norm;",
        "    }",
        "  }",
        "}",
    ], values)
