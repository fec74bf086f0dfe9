"""Eigenvalues and eigenvectors of many small general matrices, by QR steps (see small_matrices.py). Start at `eig`.

As LAPACK's geev: balanced (`_taken_out`, `_balanced`), brought to Hessenberg's form (`_hessenberg`), and to an upper triangle by QR steps
(`_steps`), of which a real matrix takes two at a time, so that it stays real and pairs are conjugates (J. Francis, "The QR
transformation", 1961; G. Golub, C. Van Loan, "Matrix computations", 7.5). Each matrix of a vector steps through a window of its own, from
`low` to `high`, and what is done to the others there is 1 times themselves. So what a matrix gives does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.lower.matrices.jacobi import scaled, turned
from tracegrad.codegen.lower.matrices.kernel import Matrices
from tracegrad.codegen.lower.matrices.reflections import reflected, reflection
from tracegrad.codegen.lower.matrices.values import Numbers, Value, Variable, pair, squares
from tracegrad.ops.linalg.eigen import NEARLY_LARGEST

_STEPS = 30                         # at most, for each eigenvalue: 2 to 3 are usual
_EXCEPTIONAL = 10                   # so many without an eigenvalue, and another shift is taken
_BALANCING = 20                     # iterations at most: 2 to 4 are usual
_LARGE = 1024.0                     # components of a vector are made smaller from there on


def eig(k: Matrices) -> None:
    """a becomes triangular, `vectors` what it is turned by, and then the eigenvectors (columns)."""
    n, wanted, real = k.n, k.wanted(1), k.parts == 1
    a = k.load(0, "a")
    k.note()
    scale = scaled(k, a, lambda: k.pairs(n, n))
    vectors = k.unit("vectors", n, n) if wanted else None
    if n > 1:
        window = _Window(k)
        for rows in (True, False):
            _taken_out(k, a, vectors, window, rows)
        _balanced(k, a, vectors, window)
        _hessenberg(k, a, vectors)
        _steps(k, a, vectors, window)
    k.report()
    values = k.array("values", n, parts=2)
    if real:
        if vectors:
            a, vectors = (Numbers(k, [*x.arrays, *k.zeros(f"{base}_i", n, n).arrays], k.dtype, n)
                          for x, base in ((a, "a"), (vectors, "vectors")))
        _pairs(k, a, values, vectors)
    else:
        for j in k.range("j", n):
            values[j] = a[j, j]
    if vectors:
        _vectors(k, a, values, vectors, real)
    for j in k.range("j", n):
        values[j] *= scale
    k.store(0, values)
    k.store(1, vectors)


# ------------------------------------------------------------------------------------------------------------------- steps


class _Window:
    """The first and the last of the rows and columns that `_taken_out` leaves."""

    def __init__(self, k: Matrices) -> None:
        self.first, self.last = k.variable("window_first", k.whole(0)), k.variable("window_last", k.whole(k.n - 1))

    def has(self, index: Index) -> Value:
        return (self.first <= index) & (self.last >= index)


def _taken_out(k: Matrices, a: Numbers, vectors: Numbers | None, window: _Window, rows: bool) -> None:
    """Rows that have nothing but their diagonal go last, or such columns first, one after the other: their eigenvalues are known.

    `vectors`, which as yet are real, take the same steps.
    """
    n, end = k.n, window.last if rows else window.first
    for _ in k.times("iteration", n - 1):
        found = k.variable("found", k.whole(-1))
        for r in k.range("r", n, down=not rows):
            size = k.variable("size", k.number(0))
            for c in k.range("c", n):
                with k.when(k.at(c) != r):
                    size += k.where(window.has(c), k.size(a[r, c] if rows else a[c, r]), 0)
            found.assign(k.where(window.has(r) & (size == 0), k.whole(r), found))
        open_ = k.let("open", (found >= 0) & (window.first < window.last))
        k.leave(open_)
        for r in k.range("r", n - 1, down=not rows):
            here = k.let("here", open_ & ((found <= r) & (end > r) if rows else (found > r) & (end <= r)))
            k.swap(here, a, r, r + 1, n)
            for x in (a, vectors.real) if vectors else (a,):
                for c in k.range("c", n):
                    k.exchange(here, x[c, r], x[c, r + 1])
        end.assign(k.where(open_, end - 1 if rows else end + 1, end))


def _balanced(k: Matrices, a: Numbers, vectors: Numbers | None, window: _Window) -> None:
    """Rows and columns inside of the window are scaled by powers of two until they are about as large, as gebal does.

    Sums have the diagonal in them: without it scales go too far (R. James et al., "On matrix balancing and eigenvector computation", 2014).
    """
    n = k.n
    weights = k.array("weights", n)
    near, far = (2.0 ** (sign * k.limits.maxexp // 4) for sign in (-1, 1))
    for j in k.range("j", n):
        weights[j] = k.number(1)
    for _ in k.times("iteration", _BALANCING):
        open_ = k.variable("open", k.truth(False))
        for j in k.range("j", n):
            alpha, beta = k.variable("alpha", k.number(0)), k.variable("beta", k.number(0))
            for i in k.range("i", n):
                here = k.let("here", window.has(i))
                alpha += k.where(here, k.size(a[i, j]), 0)
                beta += k.where(here, k.size(a[j, i]), 0)
            flat = k.let("flat", (alpha == 0) | (beta == 0))
            x, y = k.let("x", k.where(flat, 1, alpha)), k.let("y", k.where(flat, 1, beta))
            factor = k.let("factor", k.power(k.let("best", 2 ** 0.5 * k.sqrt(y) / k.sqrt(x))))
            here = k.let("here", window.has(j) & ~flat & (alpha * factor + beta / factor < 0.95 * (alpha + beta))
                         & (weights[j] * factor < far) & (weights[j] * factor > near))
            size = k.let("size", k.where(here, factor, 1))
            open_ |= here
            weights[j] *= size
            for i in k.range("i", n):
                a[i, j] *= size
                a[j, i] /= size
        k.leave(open_)
    for r, c in k.pairs(n, n) if vectors else ():
        vectors.real[r, c] *= weights[c]  # type: ignore[union-attr]


def _hessenberg(k: Matrices, a: Numbers, vectors: Numbers | None) -> None:
    """Nothing is left below the elements below the diagonal: reflections, as gehrd."""
    for j in k.range("j", k.n - 2):
        factor, others = reflection(k, a, j + 1, j, k.n), partial(k.range, "i", j + 2, k.n)
        for c in k.range("c", j + 1, k.n):
            reflected(k, factor.conj, a.column(j), a.column(c), j + 1, others)
        for array in (a, vectors) if vectors else (a,):
            for r in k.range("r", k.n):
                reflected(k, factor, a.column(j), array.row(r), j + 1, others, right=True)
        for i in others():
            a[i, j] = k.zero(k.parts)


def _steps(k: Matrices, a: Numbers, vectors: Numbers | None, window: _Window) -> None:
    """Nothing is left below the diagonal, but single elements of a real matrix: those of its 2 x 2 blocks."""
    n, alone = k.n, 2 - k.parts
    if n <= 3 - k.parts:
        return
    most = k.variable("most", k.number(0))
    for r, c in k.pairs(n, n):
        size = k.let("size", k.size(a[r, c]))
        most.assign(k.where((size > most) & window.has(r) & window.has(c), size, most))
    high = k.variable("high", k.where(k.info[0] == 0, k.whole(n - 1), k.whole(-1)))
    count = k.variable("count", k.whole(0))
    for _ in k.times("iteration", _STEPS * max(10, n) + 1):
        low, other = k.variable("low", k.whole(-1)), k.let("other", high)
        _split(k, a, low, high, (count == _EXCEPTIONAL, most))
        high.assign(k.where((low < 0) & (high <= alone), k.whole(-1), high))
        open_ = k.let("open", high >= 0)
        k.leave(open_)
        low.assign(k.where(open_, k.where(low < 0, k.whole(0), low), k.whole(n)))
        count.assign(k.where((high == other) & (count < _EXCEPTIONAL), count + 1, k.whole(0)))
        odd = k.let("odd", count == _EXCEPTIONAL)
        size = k.variable("size", k.number(0))
        p, q, s = (k.variable(name, k.zero(k.parts)) for name in "pqs")
        for r in k.range("r", 1, n):
            here = k.let("here", high == r)
            size.assign(k.where(here, k.size(a[r, r - 1]), size))
            for x, value in ((p, a[r, r]), (q, a[r - 1, r - 1]), (s, a[r, r - 1] * a[r - 1, r])):
                x.assign(k.where(here, value, x))
        (_shift if k.parts == 1 else _complex_shift)(k, p, q, s, size, odd)
        first, stop = (k.known(name, n, k.across(function, x)) for name, function, x in (("first", "min", low), ("stop", "max", high)))
        for step in k.range("step", first, stop):
            _chased(k, a, vectors, (low, high), (p, q, s), (step, first, stop))
    k.info[0] = k.where(high < 0, k.info[0], k.whole(2))


def _split(k: Matrices, a: Numbers, low: Variable, high: Variable, exceptional: tuple[Value, Value]) -> None:
    """What is small below the diagonal becomes 0: `low` is where the window ends then, `high` where it begins, without single rows.

    exceptional: after many steps the rounding errors of others count, too: when, and how large they are.
    """
    eps, tiny = float(k.limits.eps), float(k.limits.tiny) / float(k.limits.eps)
    (many, most), alone = exceptional, 2 - k.parts
    for r in k.range("r", 1, k.n, down=True):
        below = a[r, r - 1]
        size, beside = k.let("size", k.size(below)), k.let("beside", k.size(a[r, r], a[r - 1, r - 1]))
        small = k.let("small", (size <= eps * k.where(many & (beside < most), most, beside)) | (size <= tiny))
        here, far = k.let("here", small & (low < 0) & (high >= r)), k.let("far", high - r > alone)
        low.assign(k.where(here & far, k.whole(r), low))
        high.assign(k.where(here & ~far, k.whole(r - 1), high))
        below.assign(k.where(here, 0, below))


def _chased(k: Matrices, a: Numbers, vectors: Numbers | None, window: tuple[Value, Value], shift: tuple[Value, Value, Value],
            steps: tuple[Index, Index, Index]) -> None:
    """Step k of the window: rows and columns k, k + 1 and, of real matrices, k + 2 are reflected. It begins with the vector of `_begun`;

    after that nothing may be left in the column before of what the step before has put there.
    """
    n, (low, high), (step, first, stop), width = k.n, window, steps, 4 - k.parts
    here = k.let("here", (low <= step) & (high > step))
    start, edge = k.let("start", low == step), k.let("edge", high == step + 1)
    back = k.chosen("back", n, k.at(step) > first, step - 1, 0)
    places = [step, step + 1] if width == 2 else [step, step + 1, k.chosen("last", n, k.at(step) < n - 2, step + 2, n - 1)]
    before = [a[place, back] for place in places]
    begun = [k.where(start, y, x) for y, x in zip(_begun(k, a, shift, start, places), before, strict=True)]
    if width == 3:                                           # the last step has two rows
        begun[2] = k.where(edge, 0, begun[2])
    line = k.array("line", width, parts=k.parts)
    for i, number in enumerate(begun):
        line[i] = k.where(here, number, 0)
    factor = reflection(k, line, 0, 0, width)
    v = [k.let(f"v{i}", line[i]) for i in range(width)]
    with k.when(k.at(step) > first):
        inside = k.let("inside", here & (low < step))
        for i, number in enumerate(before):
            number.assign(k.where(inside & ~edge if i == 2 else inside, 0 if i else v[0], number))

    def turn(x: list[Variable], right: bool) -> None:
        reflected(k, factor if right else factor.conj, v.__getitem__, x.__getitem__, 0, partial(range, 1, width), right)

    for c in k.range("c", step, n if vectors else stop + 1):
        turn([a[place, c] for place in places], False)
    end = k.chosen("end", n + 1, k.at(step + width) < n, step + width + 1, n)
    for r in k.range("r", 0 if vectors else first, end):
        turn([a[r, place] for place in places], True)
    for r in k.range("r", n) if vectors else ():
        turn([vectors[r, place] for place in places], True)  # type: ignore[index]


def _shift(k: Matrices, p: Variable, q: Variable, s: Variable, size: Value, odd: Value) -> None:
    """p, q and s are the last two elements of the diagonal and the product of those beside them. They become the two eigenvalues of the

    last 2 x 2 elements, a pair of them or the nearer one to the last twice, and so that (p - x) (q - x) - s is what a step begins with.
    size: that of the last element below the diagonal, of which a shift is made where others led nowhere (`odd`).
    """
    p.assign(k.where(odd, p + 0.75 * size, p))
    far = k.let("far", (q - p) * 0.5)
    square = k.let("square", far * far + s)
    best = k.let("best", k.sqrt(k.fabs(square)))
    flat = k.let("flat", square <= 0)                        # a pair, or the nearer one twice
    root = k.let("root", k.where(far < 0, p + (far + best), p + (far - best)))
    q.assign(k.where(odd, p, k.where(flat, q, root)))
    s.assign(k.where(odd, -0.4375 * size * size, k.where(flat, s, 0)))
    p.assign(k.where(odd | flat, p, root))


def _complex_shift(k: Matrices, p: Variable, q: Variable, s: Variable, size: Value, odd: Value) -> None:
    """p becomes the eigenvalue of the last 2 x 2 elements that is nearer to the last one."""
    q.assign((q - p) * 0.5)
    e = k.let("e", q * q + s)                                # its square root is f
    best = k.let("best", k.sqrt(0.5 * (k.sqrt(e.squared) + k.fabs(e.real))))
    twist = k.let("twist", e.imag / k.where(best > 0, best + best, 1))
    less = k.let("less", e.real < 0)
    f = k.let("f", pair(k.where(less, k.fabs(twist), best), k.where(less, k.where(e.imag < 0, -best, best), twist)))
    q.assign(k.where(k.let("here", (q.conj * f).real < 0), q - f, q + f))
    norm = k.let("norm", k.size(q))
    divided = k.division(q, norm, k.let("flat", norm == 0))
    p.assign(k.where(odd, p + 0.75 * size, p - divided(s)))


def _begun(k: Matrices, a: Numbers, shift: tuple[Value, Value, Value], start: Value, places: list[Index]) -> Iterable[Value]:
    """The first column of A - p; of a real matrix that of (A - p) (A - q) - s, divided by an element below the diagonal."""
    (p, q, s), (i, j) = shift, places[:2]
    here, below = a[i, i], a[j, i]
    if k.parts > 1:
        return k.let("y0", here - p), k.let("y1", below)
    e, f = k.let("e", p - here), k.let("f", q - here)
    return (k.let("y0", (e * f - s) / k.where(start, below, 1) + a[i, j]), k.let("y1", a[j, j] - here - e - f),
            k.let("y2", a[places[2], j]))


def _pairs(k: Matrices, a: Numbers, values: Numbers, vectors: Numbers | None) -> None:
    """The eigenvalues of real matrices that `_steps` has gone over: of single elements and of 2 x 2. With `vectors`, rotations (of which

    those of complex pairs are complex) make nothing of the elements below the diagonal.
    """
    n = k.n
    for j in k.range("j", n):
        values[j] = pair(a[j, j].real, k.number(0))
    for r in k.range("r", 1, n):
        x, alpha = k.let("x", a[r, r - 1].real), k.let("alpha", a[r, r].real)
        p, here = k.let("p", (a[r - 1, r - 1].real - alpha) * 0.5), k.let("here", x != 0)
        with k.where_any(here):
            y = k.let("y", x * a[r - 1, r].real)
            s = k.let("s", p * p + y)
            best, open_ = k.let("best", k.sqrt(k.fabs(s))), k.let("open", s >= 0)
            q = k.let("q", k.where(open_, k.where(p < 0, p - best, p + best), p))
            root = k.let("root", k.where(open_, 0, best))
            other = k.where(open_, alpha - y / k.where(q == 0, 1, q), alpha + q)
            for at, real, imag in ((r - 1, alpha + q, root), (r, other, -root)):
                values[at] = k.where(here, pair(real, imag), values[at])
            if vectors is None:
                continue
            size = k.let("size", k.where(here, k.fabs(x) + k.fabs(q) + root, 1))
            norm = k.let("norm", size * k.sqrt(squares(x / size, q / size, root / size)))
            turn = k.let("cosine", k.where(here, pair(q / norm, root / norm), pair(k.number(1), k.number(0))))
            sine = k.let("sine", k.where(here, -x / norm, 0))
            for i in k.range("i", 0, r + 1):
                turned(k, a[i, r - 1], a[i, r], turn, sine)
            for c in k.range("c", r - 1, n):
                turned(k, a[r - 1, c], a[r, c], turn.conj, sine)
            for i in k.range("i", n):
                turned(k, vectors[i, r - 1], vectors[i, r], turn, sine)


def _vectors(k: Matrices, a: Numbers, values: Numbers, vectors: Numbers, real: bool) -> None:
    """`vectors` (columns), which made the triangle a, become the eigenvectors: of length 1, with a largest component that is positive.

    real: whether the matrices were, so that vectors of real eigenvalues are real and those of pairs are conjugates.
    """
    n, line = k.n, k.array("line", k.n, parts=2)
    large = k.variable("large", k.number(1))
    for e in k.range("e", n * n):
        k.most(large, k.let("size", k.size(a[e])))
    for j in k.range("j", n, down=True):
        _solved(k, a, values, line, j, large)
        best = k.variable("best", k.number(0))
        for r in k.range("r", n):
            rest = k.total("rest", (vectors[r, c] * line[c] for c in k.range("c", 0, j + 1)), k.zero(2))
            if real:
                Variable(k, rest.of[1:], rest.parts[1:]).assign(k.where(values[j].imag == 0, 0, rest.imag))
            vectors[r, j] = rest
            k.most(best, k.let("size", k.size(rest)))
        norm, most = k.variable("norm", k.number(0)), k.variable("most", k.number(0))
        for r in k.range("r", n):
            vectors[r, j] /= best
            size = k.let("size", vectors[r, j].squared)
            norm += size
            k.most(most, size)
        norm.assign(k.sqrt(norm))
        most *= NEARLY_LARGEST ** 2
        pivot, found = k.variable("pivot", k.zero(2)), k.variable("found", k.whole(n))
        for r in k.range("r", n):
            here = k.let("here", (found == n) & (vectors[r, j].squared >= most))
            pivot.assign(k.where(here, vectors[r, j], pivot))
            found.assign(k.where(here, k.whole(r), found))
        phase = k.let("phase", pivot / k.sqrt(pivot.squared))
        for r in k.range("r", n):
            vectors[r, j] = phase.conj * k.let("x", vectors[r, j] / norm)
            vectors.imag[r, j] = k.where(found == r, 0, vectors[r, j].imag)
    for j in k.range("j", 1, n) if real else ():
        for r in k.range("r", n):
            here = k.let("here", values[j].imag < 0)
            vectors[r, j] = k.where(here, vectors[r, j - 1].conj, vectors[r, j])


def _solved(k: Matrices, a: Numbers, values: Numbers, line: Numbers, j: Index, large: Value) -> None:
    """`line` becomes the eigenvector of the triangle for its eigenvalue j."""
    line[j] = pair(k.number(1), k.number(0))
    low = k.let("low", float(k.limits.eps) * k.size(values[j]))
    tiny = k.let("tiny", float(k.limits.tiny) / float(k.limits.eps) * k.n * large)
    least = k.let("least", k.where(low > tiny, low, tiny))
    for i in k.range("i", j, down=True):
        rest = k.total("rest", (a[i, c] * line[c] for c in k.range("c", i + 1, j + 1)), k.zero(2))
        s = k.let("s", values[j] - values[i])
        flat = k.let("flat", k.size(s) < least)
        divided = k.division(k.let("p", k.where(flat, pair(least, k.number(0)), s)))
        q = k.let("q", divided(rest))
        line[i] = q
        size = k.let("size", k.size(q))
        here = k.let("here", size > _LARGE)
        with k.where_any(here):
            far = k.let("far", k.where(here, size, 1))
            for c in k.range("c", i, j + 1):
                line[c] /= far
