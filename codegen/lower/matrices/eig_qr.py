"""Eigenvalues and eigenvectors of many small general matrices, by QR steps (see small_matrices.py). Start at `eig`.

As LAPACK's geev: balanced (`_taken_out`, `_balanced`), brought to Hessenberg's form (`_hessenberg`), and to an upper triangle by QR steps
(`_steps`), of which a real matrix takes two at a time, so that it stays real and pairs are conjugates (J. Francis, "The QR
transformation", 1961; G. Golub, C. Van Loan, "Matrix computations", 7.5). Each matrix of a vector steps through a window of its own, from
`low` to `high`, and what is done to the others there is 1 times themselves. So what a matrix gives does not depend on its neighbours.

A number is a list of its parts, one or two: the imaginary part of x is called x_i. Reflections are 1 - tau v v^H with a real tau, v[0] = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tracegrad.codegen.kernel.ir.expressions import Array
from tracegrad.codegen.kernel.ir.vectors import LANES
from tracegrad.codegen.kernel.text.names import EIGENVALUES
from tracegrad.codegen.lower.matrices.jacobi import scaled, squares
from tracegrad.ops.linalg.eigen import NEARLY_LARGEST

if TYPE_CHECKING:
    from tracegrad.codegen.lower.matrices.small_matrices import Matrices

_STEPS = 30                         # at most, for each eigenvalue: 2 to 3 are usual
_EXCEPTIONAL = 10                   # so many without an eigenvalue, and another shift is taken
_BALANCING = 20                     # turns at most: 2 to 4 are usual
_LARGE = 1024.0                     # components of a vector are made smaller from there on
Number = list[str]


def eig(k: Matrices) -> None:
    """a becomes triangular, `vectors` what it is turned by, and then the eigenvectors (columns)."""
    n, wanted = k.n, any(r is not None for r in k.results[2:])
    k.writer.reserve(EIGENVALUES)
    a, info = [k.load(part, f"a{'_i' * part}") for part in range(len(k.node.operands))], k.note()
    scale = scaled(k, a, f"for (int r = 0; r < {n}; r++)", f"for (int c = 0; c < {n}; c++)", f"r * {n} + c")
    vectors = [k.empty(f"vectors{'_i' * part}", n, n, not part) for part in range(len(a))] if wanted else []
    if n > 1:
        window = _window(k)
        for rows in (True, False):
            _taken_out(k, a, vectors[:1], window, rows)                 # as yet they are real
        _balanced(k, a, vectors[:1], window)
        _hessenberg(k, a, vectors)
        _steps(k, a, vectors, window)
    k.info = info
    k.report()
    values, real = [k.array(name, n) for name in _named("values", 2)], len(a) == 1
    if real:
        if wanted:
            a, vectors = ([x, k.empty(f"{base}_i", n, n)] for x, base in ((a[0], "a"), (vectors[0], "vectors")))
        _pairs(k, a[0], a[1] if wanted else None, values, vectors)
    else:
        k.lines(values[0], [
            f"for (int j = 0; j < {n}; j++) {{",
            *_indented(_set(_number(values, "j"), _number(a, f"j * {n} + j"))),
            "}",
        ], values[1], *a)
    if wanted:
        _vectors(k, a, values, vectors, real)
    for part, value in enumerate(values):
        k.lines(value, [f"for (int j = 0; j < {n}; j++)", f"  {value}[j] *= {scale}[0];"], scale)
        k.store(part, value)
    for part, x in enumerate(vectors):
        k.store(2 + part, x)


# ------------------------------------------------------------------------------------------------------------------- text


def _number(arrays: list[Array], at: str) -> Number:
    return [f"{x}[{at}]" for x in arrays]


def _named(name: str, parts: int) -> Number:
    return [name, f"{name}_i"][:parts]


def _times(x: Number, y: Number, conjugate: bool = False) -> Number:
    """The product x y, or conj(x) y."""
    if len(x) == 1:
        return [f"{x[0]} * {y[0]}"]
    minus, plus = "+-" if conjugate else "-+"
    return [f"{x[0]} * {y[0]} {minus} {x[1]} * {y[1]}", f"{x[0]} * {y[1]} {plus} {x[1]} * {y[0]}"]


def _let(k: Matrices, name: str, value: Number, changes: bool = False) -> str:
    """A declaration of the parts."""
    return f"{'' if changes else 'const '}{k.type} {', '.join(f'{x} = {v}' for x, v in zip(_named(name, len(value)), value, strict=True))};"


def _set(x: Number, value: Number, operator: str = "=") -> list[str]:
    return [f"{part} {operator} {v};" for part, v in zip(x, value, strict=True)]


def _size(k: Matrices, x: Number) -> str:
    return " + ".join(k.call(f"fabs({part})") for part in x)


def _chosen(test: str, x: Number, y: Number) -> Number:
    return [f"{test} ? {a} : {b}" for a, b in zip(x, y, strict=True)]


def _indented(lines: list[str], levels: int = 1) -> list[str]:
    return ["  " * levels + line for line in lines]


def _reflected(k: Matrices, loop: str, arrays: list[Array], places: list[str], v: list[Number], right: bool) -> list[str]:
    """A loop over numbers at places that reflects them: H x, or, `right`, x H. v: H's vector from its second number on."""
    if not arrays:
        return []
    x, rest = [_number(arrays, place) for place in places], _named("rest", len(arrays))
    terms = [x[0], *(_times(f, y, not right) for f, y in zip(v, x[1:], strict=True))]
    return [
        f"{loop} {{",
        "  " + _let(k, "rest", [f"tau * ({' + '.join(of_part)})" for of_part in zip(*terms, strict=True)]),
        *_indented(_set(x[0], rest, "-=")),
        *(line for f, y in zip(v, x[1:], strict=True) for line in _indented(_set(y, _times(f, rest, right), "-="))),
        "}",
    ]


# ------------------------------------------------------------------------------------------------------------------- steps


def _window(k: Matrices) -> Array:
    """The first and the last of the rows and columns that `_taken_out` leaves."""
    window = k.array("window", 2, True)
    k.lines(window, [f"{window}[0] = {k.whole('0')};", f"{window}[1] = {k.whole(str(k.n - 1))};"])
    return window


def _inside(k: Matrices, window: Array, index: str) -> str:
    return f"({window}[0] <= {k.whole(index)}) & ({window}[1] >= {k.whole(index)})"


def _taken_out(k: Matrices, a: list[Array], vectors: list[Array], window: Array, rows: bool) -> None:
    """Rows that have nothing but their diagonal go last, or such columns first, one after the other: their eigenvalues are known.

    `vectors` takes the same steps.
    """
    n, type_, mask = k.n, k.type, k.mask
    if rows:
        line, search, move, end = f"r * {n} + c", f"int r = 0; r < {n}; r++", f"int r = 0; r < {n - 1}; r++", f"{window}[1]"
        between, step = f"(found <= {k.whole('r')}) & ({end} > {k.whole('r')})", "-"
    else:
        line, search, move, end = f"c * {n} + r", f"int r = {n - 1}; r >= 0; r--", f"int r = {n - 2}; r >= 0; r--", f"{window}[0]"
        between, step = f"(found > {k.whole('r')}) & ({end} <= {k.whole('r')})", "+"
    pairs = [*((x, f"r * {n} + c", f"(r + 1) * {n} + c") for x in a), *((x, f"c * {n} + r", f"c * {n} + r + 1") for x in (*a, *vectors))]
    k.lines(a[0], [
        f"for (int turn = 0; turn < {n - 1}; turn++) {{",
        f"  {mask} found = {k.whole('-1')};",
        f"  for ({search}) {{",
        f"    {type_} size = {k.number(0)};",
        f"    for (int c = 0; c < {n}; c++)",
        "      if (c != r)",
        f"        size += {_inside(k, window, 'c')} ? {_size(k, _number(a, line))} : {k.number(0)};",
        f"    found = {_inside(k, window, 'r')} & (size == {k.number(0)}) ? {k.whole('r')} : found;",
        "  }",
        f"  const {mask} open = (found >= {k.whole('0')}) & ({window}[0] < {window}[1]);",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        f"  for ({move}) {{",
        f"    const {mask} here = open & {between};",
        *(line for x, mine, other in pairs for line in (
            f"    for (int c = 0; c < {n}; c++) {{",
            f"      const {type_} x = {x}[{mine}], y = {x}[{other}];",
            f"      {x}[{mine}] = here ? y : x;",
            f"      {x}[{other}] = here ? x : y;",
            "    }")),
        "  }",
        f"  {end} = open ? {end} {step} {k.whole('1')} : {end};",
        "}",
    ], *a[1:], *vectors, window)


def _balanced(k: Matrices, a: list[Array], vectors: list[Array], window: Array) -> None:
    """Rows and columns inside of the window are scaled by powers of two until they are about as large, as gebal does.

    Sums have the diagonal in them: without it scales go too far (R. James et al., "On matrix balancing and eigenvector computation", 2014).
    """
    n, type_, mask, zero, one = k.n, k.type, k.mask, k.number(0), k.number(1)
    weights = k.array("weights", n)
    limits = np.finfo(k.dtype)
    near, far = (k.number(2.0 ** (sign * limits.maxexp // 4)) for sign in (-1, 1))
    k.lines(weights, [
        f"for (int j = 0; j < {n}; j++)",
        f"  {weights}[j] = {one};",
        f"for (int turn = 0; turn < {_BALANCING}; turn++) {{",
        f"  {mask} open = {k.whole('0')};",
        f"  for (int j = 0; j < {n}; j++) {{",
        f"    {type_} alpha = {zero}, beta = {zero};",
        f"    for (int i = 0; i < {n}; i++) {{",
        f"      const {mask} here = {_inside(k, window, 'i')};",
        f"      alpha += here ? {_size(k, _number(a, f'i * {n} + j'))} : {zero};",
        f"      beta += here ? {_size(k, _number(a, f'j * {n} + i'))} : {zero};",
        "    }",
        f"    const {mask} flat = (alpha == {zero}) | (beta == {zero});",
        f"    const {type_} x = flat ? {one} : alpha, y = flat ? {one} : beta;",
        f"    const {type_} best = {k.number(2 ** 0.5)} * {k.call('sqrt(y)')} / {k.call('sqrt(x)')};",
        f"    const {type_} factor = {k.power('best')};",
        f"    const {mask} here = {_inside(k, window, 'j')} & (flat == {k.whole('0')}) & "
        f"(alpha * factor + beta / factor < {k.number(0.95)} * (alpha + beta)) & "
        f"({weights}[j] * factor < {far}) & ({weights}[j] * factor > {near});",
        f"    const {type_} size = here ? factor : {one};",
        "    open |= here;",
        f"    {weights}[j] *= size;",
        f"    for (int i = 0; i < {n}; i++) {{",
        *(f"      {b}[i * {n} + j] *= size;" for b in a),
        *(f"      {b}[j * {n} + i] /= size;" for b in a),
        "    }",
        "  }",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        "}",
    ], *a, window)
    for x in vectors:
        k.lines(x, [
            f"for (int r = 0; r < {n}; r++)",
            f"  for (int c = 0; c < {n}; c++)",
            f"    {x}[r * {n} + c] *= {weights}[c];",
        ], weights)


def _hessenberg(k: Matrices, a: list[Array], vectors: list[Array]) -> None:
    """Nothing is left below the elements below the diagonal: reflections, as gehrd."""
    n, parts, type_, zero, one = k.n, len(a), k.type, k.number(0), k.number(1)
    if n < 3:
        return
    line = [k.array(f"line{'_i' * part}", n) for part in range(parts)]
    x, phase, rest = (_named(name, parts) for name in ("x", "phase", "rest"))
    v, top = _number(line, "i"), _number(a, f"(j + 1) * {n} + j")

    def across(arrays: list[Array], loop: str, place: str, right: bool) -> list[str]:
        if not arrays:
            return []
        at = _number(arrays, place)
        return [
            f"{loop} {{",
            "  " + _let(k, "rest", [zero] * parts, True),
            f"  for (int i = j + 1; i < {n}; i++) {{",
            *_indented(_set(rest, _times(at, v) if right else _times(v, at, True), "+="), 2),
            "  }",
            *_indented(_set(rest, ["tau"] * parts, "*=")),
            f"  for (int i = j + 1; i < {n}; i++) {{",
            *_indented(_set(at, _times(v, rest, right), "-="), 2),
            "  }",
            "}",
        ]

    k.lines(a[0], [
        f"for (int j = 0; j < {n - 2}; j++) {{",
        f"  {type_} size = {zero};",
        f"  for (int i = j + 2; i < {n}; i++)",
        f"    size += {_size(k, _number(a, f'i * {n} + j'))};",
        f"  const {k.mask} flat = size == {zero};",
        f"  size = flat ? {one} : size + {_size(k, top)};",
        f"  {type_} norm = {zero};",
        f"  for (int i = j + 1; i < {n}; i++) {{",
        "    " + _let(k, "x", [f"{b}[i * {n} + j] / size" for b in a]),
        f"    norm += {squares(*x)};",
        *_indented(_set(v, x), 2),
        "  }",
        f"  norm = flat ? {one} : {k.call('sqrt(norm)')};",
        *_indented(_start(k, _number(line, "j + 1"))),
        f"  for (int i = j + 2; i < {n}; i++) {{",
        "    " + _let(k, "x", _number(line, "i")),
        *_indented(_set(v, [f"flat ? {zero} : ({part}) / far" for part in _times(phase, x, True)]), 2),
        *_indented(_set(_number(a, f"i * {n} + j"), [zero] * parts), 2),
        "  }",
        *_indented(_set(_number(line, "j + 1"), [one, zero][:parts])),
        *_indented(_set(top, _chosen("flat", top, [f"-{part} * norm * size" for part in phase]))),
        *_indented(across(a, f"for (int c = j + 1; c < {n}; c++)", f"i * {n} + c", False)),
        *_indented(across(a, f"for (int r = 0; r < {n}; r++)", f"r * {n} + i", True)),
        *_indented(across(vectors, f"for (int r = 0; r < {n}; r++)", f"r * {n} + i", True)),
        "}",
    ], *a[1:], *vectors, *line)


def _start(k: Matrices, first: Number) -> list[str]:
    """`phase`, `far` and `tau` of the reflection that makes minus phase times its `norm` of a vector, of which `first` is the first number.

    None where `flat`.
    """
    zero, one = k.number(0), k.number(1)
    if len(first) == 1:
        best, phase = k.call(f"fabs({first[0]})"), [f"{first[0]} < {zero} ? -{one} : {one}"]
    else:
        best = k.call(f"sqrt({squares(*first)})")
        phase = [f"best > {zero} ? {part} / (best > {zero} ? best : {one}) : {unit}" for part, unit in zip(first, (one, zero), strict=True)]
    return [
        f"const {k.type} best = {best}, far = norm + best, tau = flat ? {zero} : far / norm;",
        _let(k, "phase", phase),
    ]


def _steps(k: Matrices, a: list[Array], vectors: list[Array], window: Array) -> None:
    """Nothing is left below the diagonal, but single elements of a real matrix: those of its 2 x 2 blocks."""
    n, parts, type_, mask, zero = k.n, len(a), k.type, k.mask, k.number(0)
    if n <= 3 - parts:
        return
    limits = np.finfo(k.dtype)
    eps, tiny = k.number(float(limits.eps)), k.number(float(limits.tiny) / float(limits.eps))
    none, whole, alone, many = k.whole("0"), k.whole("r"), k.whole(str(2 - parts)), k.whole(str(_EXCEPTIONAL))

    def at(row: str, column: str) -> Number:
        return _number(a, f"{row} * {n} + {column}")

    diagonal, before, below, above = at("r", "r"), at("(r - 1)", "r - 1"), at("r", "r - 1"), at("(r - 1)", "r")
    beside = [f"({part})" for part in _times(below, above)]
    shift, begin = _shift(k, at)
    info = k.info
    assert info is not None
    k.lines(a[0], [
        f"{type_} most = {zero};",
        f"for (int r = 0; r < {n}; r++)",
        f"  for (int c = 0; c < {n}; c++) {{",
        f"    const {type_} size = {_size(k, _number(a, f'r * {n} + c'))};",
        f"    most = (size > most) & {_inside(k, window, 'r')} & {_inside(k, window, 'c')} ? size : most;",
        "  }",
        f"{mask} high = {info}[0] == {none} ? {k.whole(str(n - 1))} : {k.whole('-1')}, count = {none};",
        f"for (int turn = 0; turn < {_STEPS * max(10, n) + 1}; turn++) {{",
        f"  {mask} low = {k.whole('-1')};",
        f"  const {mask} other = high;",
        f"  for (int r = {n - 1}; r > 0; r--) {{",
        f"    const {type_} size = {_size(k, below)};",
        f"    const {type_} beside = {_size(k, [*diagonal, *before])};",                # after many steps the others' rounding errors count
        f"    const {mask} small = (size <= {eps} * ((count == {many}) & (beside < most) ? most : beside)) | (size <= {tiny});",
        f"    const {mask} here = small & (low < {none}) & (high >= {whole}), far = high - {whole} > {alone};",
        f"    low = here & far ? {whole} : low;",
        f"    high = here & (far == {none}) ? {k.whole('r - 1')} : high;",
        *_indented(_set(below, _chosen("here", [zero] * parts, below)), 2),
        "  }",
        f"  high = (low < {none}) & (high <= {alone}) ? {k.whole('-1')} : high;",
        f"  const {mask} open = high >= {none};",
        f"  if (({k.any('open')}) == 0)",
        "    break;",
        f"  low = open ? (low < {none} ? {none} : low) : {k.whole(str(n))};",
        f"  count = (high == other) & (count < {many}) ? count + {k.whole('1')} : {none};",
        f"  const {mask} odd = count == {many};",
        f"  {type_} size = {zero};",
        *(f"  {_let(k, name, [zero] * parts, True)}" for name in "pqs"),
        f"  for (int r = 1; r < {n}; r++) {{",
        f"    const {mask} here = high == {whole};",
        f"    size = here ? {_size(k, below)} : size;",
        *(line for name, value in zip("pqs", (diagonal, before, beside), strict=True)
          for line in _indented(_set(_named(name, parts), _chosen("here", value, _named(name, parts))), 2)),
        "  }",
        *_indented(shift),
        f"  const int first = {_across(k, 'min', 'low')}, stop = {_across(k, 'max', 'high')};",
        "  for (int k = first; k < stop; k++) {",
        *_indented(_chased(k, a, vectors, begin), 2),
        "  }",
        "}",
        f"{info}[0] = high < {none} ? {info}[0] : {k.whole('2')};",
    ], *a[1:], *vectors, info, window)


def _chased(k: Matrices, a: list[Array], vectors: list[Array], begin: list[str]) -> list[str]:
    """Step k of the window: rows and columns k, k + 1 and, of real matrices, k + 2 are reflected. It begins with the vector y0, y1, y2;

    after that nothing may be left in the column before of what the step before has put there.
    """
    n, parts, zero, one, at_k, next_ = k.n, len(a), k.number(0), k.number(1), k.whole("k"), k.whole("k + 1")
    width = 4 - parts
    places = ["k", "(k + 1)", "last"][:width]
    x, u = ([_named(f"{name}{i}", parts) for i in range(width)] for name in "xu")
    v = [_named(f"v{i}", parts) for i in range(1, width)]
    phase, before = _named("phase", parts), [_number(a, f"{place} * {n} + back") for place in places]
    begun = [_chosen("start", _named(f"y{i}", parts), number) for i, number in enumerate(before)]
    if width == 3:                                                                  # the last step has two rows
        begun[2] = [f"edge ? {zero} : {part}" for part in begun[2]]
    left = [[f"-{part} * norm * size" for part in phase], *([zero] * parts for _ in v)]
    rows, columns = [f"{place} * {n} + c" for place in places], [f"r * {n} + {place}" for place in places]
    norm = squares(*(part for number in u for part in number))
    return [
        f"const {k.mask} here = (low <= {at_k}) & (high > {at_k}), start = low == {at_k}, edge = high == {next_};",
        "const int back = k > first ? k - 1 : 0;",
        *([f"const int last = k < {n - 2} ? k + 2 : {n - 1};"] if width == 3 else []),
        *begin,
        *(_let(k, f"x{i}", number) for i, number in enumerate(begun)),
        f"const {k.mask} flat = (here == {k.whole('0')}) | ({_size(k, [part for number in x[1:] for part in number])} == {zero});",
        f"const {k.type} size = flat ? {one} : {_size(k, [part for number in x for part in number])};",
        *(_let(k, f"u{i}", [f"{part} / size" for part in number]) for i, number in enumerate(x)),
        f"const {k.type} norm = flat ? {one} : {k.call(f'sqrt({norm})')};",
        *_start(k, u[0]),
        *(_let(k, f"v{i}", [f"flat ? {zero} : ({part}) / far" for part in _times(phase, u[i], True)]) for i in range(1, width)),
        "if (k > first) {",
        f"  const {k.mask} inside = here & (low < {at_k}) & (flat == {k.whole('0')});",
        *(line for i, number in enumerate(before) for line in _indented(_set(number, _chosen(
            f"inside & (edge == {k.whole('0')})" if i == 2 else "inside", left[i], number)))),
        "}",
        *_reflected(k, f"for (int c = k; c {f'< {n}' if vectors else '<= stop'}; c++)", a, rows, v, False),
        f"const int end = k + {width} < {n} ? k + {width + 1} : {n};",
        *_reflected(k, f"for (int r = {'0' if vectors else 'first'}; r < end; r++)", a, columns, v, True),
        *_reflected(k, f"for (int r = 0; r < {n}; r++)", vectors, columns, v, True),
    ]


def _shift(k: Matrices, at: Callable[[str, str], Number]) -> tuple[list[str], list[str]]:
    """What p, q and s become, the last two elements of the diagonal and the product of those beside them; and the vector y0, y1, y2 that a

    step begins with: the first column of A - p, p the eigenvalue of the last 2 x 2 elements that is nearer to the last one; of a real
    matrix that of the product of two such, of a pair of them or of the nearer one twice. `size` is that of the last element below the
    diagonal, of which a shift is made where others led nowhere (`odd`).
    """
    type_, zero, one, part = k.type, k.number(0), k.number(1), k.number(0.75)
    here, right, below, next_ = at("k", "k"), at("k", "k + 1"), at("(k + 1)", "k"), at("(k + 1)", "k + 1")
    if len(here) == 1:
        return [
            f"p = odd ? p + {part} * size : p;",
            f"const {type_} far = (q - p) * {k.number(0.5)}, square = far * far + s, best = {k.call('sqrt(fabs(square))')};",
            f"const {k.mask} flat = square <= {zero};",                              # a pair, or the nearer one twice
            f"const {type_} root = far < {zero} ? p + (far + best) : p + (far - best);",
            "q = odd ? p : flat ? q : root;",
            f"s = odd ? {k.number(-0.4375)} * size * size : flat ? s : {zero};",
            "p = odd | flat ? p : root;",
        ], [
            f"const {type_} e = p - {here[0]}, f = q - {here[0]};",
            f"const {type_} y0 = (e * f - s) / (start ? {below[0]} : {one}) + {right[0]}, y1 = {next_[0]} - {here[0]} - e - f;",
            f"const {type_} y2 = {at('last', 'k + 1')[0]};",
        ]
    return [
        *(f"q{i} = (q{i} - p{i}) * {k.number(0.5)};" for i in ("", "_i")),
        f"const {type_} e = q * q - q_i * q_i + s, e_i = {k.number(2)} * q * q_i + s_i;",              # its square root is f
        f"const {type_} best = {k.call('sqrt(' + k.number(0.5) + ' * (sqrt(' + squares('e', 'e_i') + ') + fabs(e)))')};",
        f"const {type_} twist = e_i / (best > {zero} ? best + best : {one});",
        f"const {type_} f = e < {zero} ? {k.call('fabs(twist)')} : best, f_i = e < {zero} ? (e_i < {zero} ? -best : best) : twist;",
        f"const {k.mask} here = q * f + q_i * f_i < {zero};",
        *(f"q{i} = here ? q{i} - f{i} : q{i} + f{i};" for i in ("", "_i")),
        f"const {type_} norm = {k.call('fabs(q)')} + {k.call('fabs(q_i)')}, far = norm > {zero} ? norm : {one};",
        "q /= far;",
        "q_i /= far;",
        f"const {type_} square = norm > {zero} ? {squares('q', 'q_i')} : {one};",
        f"p = odd ? p + {part} * size : p - (s * q + s_i * q_i) / square / far;",
        "p_i = odd ? p_i : p_i - (s_i * q - s * q_i) / square / far;",
    ], [
        _let(k, "y0", [f"{x} - {y}" for x, y in zip(here, _named("p", 2), strict=True)]),
        _let(k, "y1", below),
    ]


def _across(k: Matrices, least: str, name: str) -> str:
    """The least, or the largest, of the lanes' integers."""
    if k.lanes == 1:
        return name
    found = [f"{name}.s{LANES[lane]}" for lane in range(k.lanes)]
    while len(found) > 1:
        found = [f"{least}({x}, {y})" for x, y in zip(found[::2], found[1::2], strict=True)]
    return f"(int){found[0]}"


def _pairs(k: Matrices, a: Array, a_i: Array | None, values: list[Array], vectors: list[Array]) -> None:
    """The eigenvalues of real matrices that `_steps` has gone over: of single elements and of 2 x 2. With `vectors`, rotations (of which

    those of complex pairs are complex) make nothing of the elements below the diagonal.
    """
    n, type_, zero, one = k.n, k.type, k.number(0), k.number(1)

    def at(row: str, column: str, array: Array = a) -> str:
        return f"{array}[{row} * {n} + {column}]"

    def turned(arrays: list[Array], loop: str, p: str, q: str, right: bool) -> list[str]:
        """(x, y) becomes (x, y) G, or G^H (x, y); G is of the columns (c, sine) and (-sine, conj(c)), c = cosine + i twist."""
        (x, x_i), (y, y_i) = (_number(arrays, place) for place in (p, q))
        c, e, f = (["cosine", "twist"], ["e", "e_i"], ["f", "f_i"])
        first, second = _times(c, e, not right), _times(c, f, right)
        return [
            f"{loop} {{",
            "  " + _let(k, "e", [x, x_i]),
            "  " + _let(k, "f", [y, y_i]),
            *_indented([f"{to} = {product} + sine * {other};" for to, product, other in zip((x, x_i), first, f, strict=True)]),
            *_indented([f"{to} = {product} - sine * {other};" for to, product, other in zip((y, y_i), second, e, strict=True)]),
            "}",
        ]

    rotated: list[str] = []
    if a_i is not None:
        rotated = [
            f"  const {type_} size = here ? {k.call('fabs(x)')} + {k.call('fabs(q)')} + root : {one};",
            f"  const {type_} norm = size * {k.call('sqrt(' + squares('(x / size)', '(q / size)', '(root / size)') + ')')};",
            f"  const {type_} cosine = here ? q / norm : {one}, twist = here ? root / norm : {zero}, sine = here ? x / norm : {zero};",
            *_indented(turned([a, a_i], "for (int i = 0; i <= r; i++)", f"i * {n} + r - 1", f"i * {n} + r", True)),
            *_indented(turned([a, a_i], f"for (int c = r - 1; c < {n}; c++)", f"(r - 1) * {n} + c", f"r * {n} + c", False)),
            *_indented(turned(vectors, f"for (int i = 0; i < {n}; i++)", f"i * {n} + r - 1", f"i * {n} + r", True)),
        ]
    k.lines(values[0], [
        f"for (int j = 0; j < {n}; j++) {{",
        f"  {values[0]}[j] = {at('j', 'j')};",
        f"  {values[1]}[j] = {zero};",
        "}",
        f"for (int r = 1; r < {n}; r++) {{",
        f"  const {type_} x = {at('r', 'r - 1')}, alpha = {at('r', 'r')}, p = ({at('(r - 1)', 'r - 1')} - alpha) * {k.number(0.5)};",
        f"  const {k.mask} here = x != {zero};",
        f"  if ({k.any('here')}) {{",
        f"    const {type_} y = x * {at('(r - 1)', 'r')}, s = p * p + y, best = {k.call('sqrt(fabs(s))')};",
        f"    const {k.mask} open = s >= {zero};",
        f"    const {type_} q = open ? (p < {zero} ? p - best : p + best) : p, root = open ? {zero} : best;",
        f"    {values[0]}[r - 1] = here ? alpha + q : {values[0]}[r - 1];",
        f"    {values[0]}[r] = here ? (open ? alpha - y / (q == {zero} ? {one} : q) : alpha + q) : {values[0]}[r];",
        f"    {values[1]}[r - 1] = here ? root : {values[1]}[r - 1];",
        f"    {values[1]}[r] = here ? -root : {values[1]}[r];",
        *_indented(rotated),
        "  }",
        "}",
    ], values[1], a, *([a_i] if a_i is not None else []), *vectors)


def _vectors(k: Matrices, a: list[Array], values: list[Array], vectors: list[Array], real: bool) -> None:
    """`vectors` (columns), which made the triangle a, become the eigenvectors: of length 1, with a largest component that is positive.

    real: whether the matrices were, so that vectors of real eigenvalues are real and those of pairs are conjugates.
    """
    n, type_, zero, one = k.n, k.type, k.number(0), k.number(1)
    limits = np.finfo(k.dtype)
    eps, tiny = k.number(float(limits.eps)), k.number(float(limits.tiny) / float(limits.eps) * n)
    line = [k.array(name, n) for name in _named("line", 2)]
    x, at, rest, phase = _number(line, "c"), _number(vectors, f"r * {n} + j"), _named("rest", 2), _named("phase", 2)
    value = _number(values, "j")
    k.lines(vectors[0], [
        f"{type_} large = {one};",
        f"for (int e = 0; e < {n * n}; e++) {{",
        f"  const {type_} size = {_size(k, _number(a, 'e'))};",
        "  large = size > large ? size : large;",
        "}",
        f"for (int j = {n - 1}; j >= 0; j--) {{",
        *_indented(_set(_number(line, "j"), [one, zero])),
        f"  const {type_} low = {eps} * ({_size(k, value)}), tiny = {tiny} * large, least = low > tiny ? low : tiny;",
        "  for (int i = j - 1; i >= 0; i--) {",
        "    " + _let(k, "rest", [zero, zero], True),
        "    for (int c = i + 1; c <= j; c++) {",
        *_indented(_set(rest, _times(_number(a, f"i * {n} + c"), x), "+="), 3),
        "    }",
        "    " + _let(k, "s", [f"{v}[j] - {v}[i]" for v in values]),
        f"    const {k.mask} flat = {_size(k, _named('s', 2))} < least;",
        "    " + _let(k, "p", _chosen("flat", ["least", zero], ["s", "s_i"])),
        f"    const {type_} norm = {_size(k, ['p', 'p_i'])}, u = p / norm, u_i = p_i / norm, square = {squares('u', 'u_i')};",
        "    " + _let(k, "q", [f"({part}) / square / norm" for part in _times(["u", "u_i"], rest, True)]),
        *_indented(_set(_number(line, "i"), ["q", "q_i"]), 2),
        f"    const {type_} size = {_size(k, ['q', 'q_i'])};",
        f"    const {k.mask} here = size > {k.number(_LARGE)};",
        f"    if ({k.any('here')}) {{",
        f"      const {type_} far = here ? size : {one};",
        "      for (int c = i; c <= j; c++) {",
        *_indented(_set(x, ["far", "far"], "/="), 4),
        "      }",
        "    }",
        "  }",
        f"  {type_} best = {zero};",
        f"  for (int r = 0; r < {n}; r++) {{",
        "    " + _let(k, "rest", [zero, zero], True),
        "    for (int c = 0; c <= j; c++) {",
        *_indented(_set(rest, _times(_number(vectors, f"r * {n} + c"), x), "+="), 3),
        "    }",
        *([f"    rest_i = {value[1]} == {zero} ? {zero} : rest_i;"] if real else []),
        *_indented(_set(at, rest), 2),
        f"    const {type_} size = {_size(k, rest)};",
        "    best = size > best ? size : best;",
        "  }",
        f"  {type_} norm = {zero}, most = {zero};",
        f"  for (int r = 0; r < {n}; r++) {{",
        *_indented(_set(at, ["best", "best"], "/="), 2),
        f"    const {type_} size = {squares(*at)};",
        "    norm += size;",
        "    most = size > most ? size : most;",
        "  }",
        f"  norm = {k.call('sqrt(norm)')};",
        f"  most *= {k.number(NEARLY_LARGEST ** 2)};",
        "  " + _let(k, "phase", [zero, zero], True),
        f"  {k.mask} found = {k.whole(str(n))};",
        f"  for (int r = 0; r < {n}; r++) {{",
        f"    const {type_} size = {squares(*at)};",
        f"    const {k.mask} here = (found == {k.whole(str(n))}) & (size >= most);",
        f"    const {type_} far = here ? {k.call('sqrt(size)')} : {one};",
        *_indented(_set(phase, _chosen("here", [f"{part} / far" for part in at], phase)), 2),
        f"    found = here ? {k.whole('r')} : found;",
        "  }",
        f"  for (int r = 0; r < {n}; r++) {{",
        "    " + _let(k, "x", [f"{part} / norm" for part in at]),
        *_indented(_set(at, _times(phase, ["x", "x_i"], True)), 2),
        f"    {at[1]} = found == {k.whole('r')} ? {zero} : {at[1]};",
        "  }",
        "}",
        *([
            f"for (int j = 1; j < {n}; j++)",
            f"  for (int r = 0; r < {n}; r++) {{",
            f"    const {k.mask} here = {value[1]} < {zero};",
            *_indented([f"{part} = here ? {sign}{other} : {part};" for part, other, sign in zip(
                at, _number(vectors, f"r * {n} + j - 1"), ("", "-"), strict=True)], 2),
            "  }",
        ] if real else []),
    ], vectors[1], *a, *values, *line)
