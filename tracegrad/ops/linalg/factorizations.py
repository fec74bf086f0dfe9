"""What LAPACK computes: one class per factorisation, with symbolic derivatives. Start at `Lapack`; `systems.py` makes tg.linalg of them.

They run on the host, through numpy: untraced at once, in a trace as a step of the plan between launches. Operands are (*batch, rows,
columns), float32, float64, complex64 or complex128, with equal batch dimensions. Derivatives are graphs of products and of these
operations, so they have any order, run forward, are batched and traced. Formulas: M. Giles, "An extended collection of matrix derivative
results for forward and reverse mode algorithmic differentiation" (2008), unless a class says otherwise.

Of complex matrices: rules that say `holomorphic` are of transposes (autodiff conjugates around them), the others of adjoints, `h`.

A matrix that does not have what is asked for is a LinAlgError when a value made of it is looked at: it names the matrix of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial, prod
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import AutogradError, DTypeError, LinAlgError, ShapeError
from tracegrad.graph.ir import LINE, Aval, Node
from tracegrad.graph.primitive import REGISTRY, Shared, bind, cast, const, iota
from tracegrad.ops.arrays.complex_numbers import conj, imag, real
from tracegrad.ops.arrays.pointwise import abs_, eq, le
from tracegrad.ops.arrays.shaping import full_like_shape, tril, triu
from tracegrad.ops.primitives.contraction import matmul
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.movement import concat, narrow, reshape
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes
from tracegrad.support.plan import MatrixCheck

Array = Any


def spread(*shape: int) -> Any:
    """Numbers between -1 and 1 without a pattern: operands of the tests that go over the registry. (numpy.random is long in importing.)"""
    return np.sin(np.arange(1.0, prod(shape) + 1.0) ** 2).reshape(shape)


_SQUARE = spread(2, 3, 3) + 3 * np.eye(3)
_POSITIVE = _SQUARE @ _SQUARE.swapaxes(-1, -2)
_SYMMETRIC = _SQUARE + _SQUARE.swapaxes(-1, -2) + np.diag([0.0, 2.0, 5.0])
_TALL, _WIDE, _RIGHT = spread(2, 4, 3), spread(3, 5), spread(2, 3, 2)


FLOATS = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


class Lapack(Shared):
    """Base of these. Give `avals`, `results` (on arrays) and `vjp`; `index` tells which result a node is."""

    family, differentiable, batches = "host_call", True, True
    square: ClassVar[bool] = True           # whether the first operand must be square
    symmetric: ClassVar[bool] = False       # whether it is taken to be symmetric: so is the gradient, half of which goes to either side
    impossible: ClassVar[str] = ""          # what is said of a matrix that has no result (see plan.MatrixCheck)

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        first = operands[0]
        for x in operands:
            if x.dtype not in FLOATS:
                raise DTypeError(f"{self.name}: takes float32, float64 and complex tensors, got {x.dtype}; cast first, for example "
                                 "x.to(tg.float32)")
            if x.dtype != first.dtype:
                raise DTypeError(f"{self.name}: the tensors must have one dtype, got {first.dtype} and {x.dtype}; cast one of them")
            if len(x.shape) < 2 or x.shape[:-2] != first.shape[:-2]:
                raise ShapeError(f"{self.name}: takes matrices (*, m, n), got {' and '.join(str(o.shape) for o in operands)}")
        if self.square and first.shape[-1] != first.shape[-2]:
            raise ShapeError(f"{self.name}: takes square matrices (*, n, n), got {first.shape}")
        return super().aval(*operands, **attrs)

    def _call(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        named = {"unit": "unitriangular", "full": "full_matrices"}
        given = [f"{named.get(k, k)}={v}" for k, v in attrs.items() if k != "index"]
        return f"tg.linalg.{self.name}({', '.join([*operands, *given])})"

    python: Any = _call

    def work(self, y: Aval, *operands: Aval, **attrs: Any) -> float:
        m, n = operands[0].shape[-2:]
        return 1000 + sum(o.size for o in operands) * (1 + min(m, n))

    def result(self, operands: tuple[Node, ...], attrs: dict[str, Any], index: int, y: Node) -> Node:
        """Another result of the call that made `y`."""
        return y if index == attrs["index"] else bind(self, operands, {**attrs, "index": index})

    def each(self, what: str, fn: Callable[..., Any], *arrays: Any, pivot: Callable[[Any], int] | None = None) -> Any:
        """fn(*arrays), numpy's function over a batch; the LinAlgError tells which matrix is `what`, and its first bad `pivot`."""
        try:
            return fn(*arrays)
        except np.linalg.LinAlgError as error:
            for place in np.ndindex(arrays[0].shape[:-2]):
                try:
                    fn(*(a[place] for a in arrays))
                except np.linalg.LinAlgError:
                    raise self.error(what, arrays[0], place, pivot(arrays[0][place]) if pivot else 0) from None
            raise LinAlgError(f"{self.name}: {error}") from None

    def decomposed(self, fn: Callable[..., Any], a: Any) -> Any:
        """fn(a), an iteration of LAPACK's over a batch. With NaN or infinity some of them end with an error, and some with NaN."""
        endless = np.argwhere(~np.isfinite(np.tril(a) if fn is np.linalg.eigh else a).all((-2, -1)))       # eigh reads no more
        if len(endless):
            raise self.error(_ENDLESS, a, tuple(int(i) for i in endless[0]))
        return self.each(_SLOW, fn, a)

    def error(self, what: str, a: Any, place: tuple[int, ...], pivot: int = 0) -> LinAlgError:
        number = int(np.ravel_multi_index(place, a.shape[:-2])) if place else 0
        return LinAlgError(MatrixCheck(self.name, a.shape, what).message(number, pivot))


_SINGULAR = "is singular{pivot}: it has no inverse; tg.linalg.lstsq and pinv take it"
_ENDLESS, _SLOW = (f"has no decomposition: {end}" for end in MatrixCheck.ENDS)
_INDEFINITE = "is not positive definite{pivot}: it has no Cholesky factor"


def zero_pivot(a: Any) -> int:
    """Which pivot (from 1) of the elimination of the matrix `a` is 0; 0: none."""
    diagonal = _eliminated(a)[0].diagonal()
    zeros = np.flatnonzero(~(np.abs(diagonal) > 0))
    return int(zeros[0]) + 1 if len(zeros) else 0


def bad_minor(a: Any) -> int:
    """The order of the first leading minor of the matrix `a` that is not positive definite; 0: none."""
    for k in range(1, a.shape[-1] + 1):
        try:
            if np.isnan(np.linalg.cholesky(a[:k, :k])).any():
                return k
        except np.linalg.LinAlgError:
            return k
    return 0


NOT_SMALL = 0.37            # times the root mean square of a vector's components: one that is larger tells the vector's sign, or phase


def _signs(v: Any) -> Any:
    """1 or -1, or complex numbers of size 1, for each column of orthonormal ones, (*, 1, n): what makes the first component that is not

    small positive. A vector's sign, or phase, is nobody's, and LAPACK's depends on its steps; with this one kernels and LAPACK give the
    same vectors.
    """
    if not v.size:
        return np.ones((*v.shape[:-2], 1, v.shape[-1]), v.dtype)
    first = (np.abs(v) > NOT_SMALL / v.shape[-2] ** 0.5).argmax(-2)[..., None, :]
    found = np.take_along_axis(v, first, -2)
    return found.conj() / np.abs(found) if v.dtype.kind == "c" else np.copysign(np.ones((), v.dtype), found)


def run(op: Any, *operands: Node, index: int = 0, **attrs: Any) -> Node:
    """Result `index` of a factorisation. A line of the user's shares it with no other line while it may still be an error of that line."""
    node = bind(op, operands, {**attrs, "index": index})
    here = LINE.location
    if here is None or node.loc is here or here.derived or node.value is not None:
        return node
    return node.twin(here)


def eye(n: int) -> Node:
    """Where the diagonal of an n x n matrix is."""
    return eq(iota((n, n), 0, dtypes.int32), iota((n, n), 1, dtypes.int32))  # type: ignore[no-any-return]


def row(x: Node) -> Node:
    """(*, n) as factors of a matrix's columns."""
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def column(x: Node) -> Node:
    """(*, n) as factors of a matrix's rows."""
    return reshape(x, (*x.shape, 1))


def scalars(x: Node) -> Node:
    """(*) as factors of matrices."""
    return reshape(x, (*x.shape, 1, 1))


def h(x: Any) -> Any:
    """The adjoints of matrices."""
    return conj(t(x))


def _symmetric(x: Any) -> Any:
    return (x + h(x)) * 0.5


def _of_diagonal(x: Node, scale: Any) -> Any:
    """The diagonal of x, times numbers (*, n), as a diagonal matrix."""
    return where(eye(x.shape[-1]), x * row(scale), const(0, x.dtype))


def _off_diagonal(x: Node, differences: Any) -> Any:
    """x / differences, 0 on the diagonal."""
    diagonal = eye(x.shape[-1])
    return where(diagonal, const(0, x.dtype), x / where(diagonal, const(1, x.dtype), differences))


# ----------------------------------------------------------------------------------------------------- systems and inverses


class Solve(Lapack):
    """X in A X = B, for (*, n, n) and (*, n, k): LU with partial pivoting (gesv)."""
    name, holomorphic, impossible = "solve", True, _SINGULAR
    cases = [((_SQUARE, _RIGHT), dict(index=0)), ((_SQUARE[0], _RIGHT[0]), dict(index=0))]

    def avals(self, *operands, **attrs):
        a, b = operands
        if a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"solve: A {a.shape} and B {b.shape} do not fit: B must have {a.shape[-1]} rows")
        return (b,)

    def results(self, a, b): return [self.each(_SINGULAR, np.linalg.solve, a, b, pivot=zero_pivot)]

    def vjp(self, ct, y, a, b, index):
        g = run(self, t(a), ct)
        return -matmul(g, t(y)), g


class Inv(Lapack):
    """The inverses of (*, n, n)."""
    name, holomorphic, impossible = "inv", True, _SINGULAR
    cases = [((_SQUARE,), dict(index=0)), ((_SQUARE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return operands
    def results(self, a): return [self.each(_SINGULAR, np.linalg.inv, a, pivot=zero_pivot)]
    def vjp(self, ct, y, a, index): return (-matmul(matmul(t(y), ct), t(y)),)


class SolveTriangular(Lapack):
    """X in A X = B, A a triangle of (*, n, n), B (*, n, k): substitution by blocks. unit: the diagonal counts as ones."""
    name, holomorphic, impossible = "solve_triangular", True, "is singular: element {element} is 0"
    cases = [((_SQUARE, _RIGHT), dict(upper=False, unit=False, index=0)), ((_SQUARE, _RIGHT), dict(upper=True, unit=True, index=0))]

    def avals(self, *operands, **attrs):
        a, b = operands
        if a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"solve_triangular: A {a.shape} and B {b.shape} do not fit: B must have {a.shape[-1]} rows")
        return (b,)

    def results(self, a, b, upper, unit):
        n = a.shape[-1]
        a = np.triu(a) if upper else np.tril(a)
        diagonal = np.arange(n)
        if unit:
            a[..., diagonal, diagonal] = 1
        zero = np.argwhere(a[..., diagonal, diagonal] == 0)
        if len(zero):
            raise self.error(self.impossible, a, tuple(int(i) for i in zero[0][:-1]), int(zero[0][-1]) + 1)
        return [self._solved(a, b, upper)]

    def _solved(self, a, b, upper):
        n = a.shape[-1]
        if n <= 32:
            return self.each(_SINGULAR, np.linalg.solve, a, b)
        h = n // 2
        if upper:
            below = self._solved(a[..., h:, h:], b[..., h:, :], upper)
            above = self._solved(a[..., :h, :h], b[..., :h, :] - a[..., :h, h:] @ below, upper)
        else:
            above = self._solved(a[..., :h, :h], b[..., :h, :], upper)
            below = self._solved(a[..., h:, h:], b[..., h:, :] - a[..., h:, :h] @ above, upper)
        return np.concatenate([above, below], -2)

    def vjp(self, ct, y, a, b, upper, unit, index):
        g = run(self, t(a), ct, upper=not upper, unit=unit)
        full = -matmul(g, t(y))
        return triu(full, int(unit)) if upper else tril(full, -int(unit)), g


class Pinv(Lapack):
    """The pseudo-inverses (*, n, m) of (*, m, n), by singular values; those not above max(atol, rtol * the largest) count as 0.

    atol and rtol are attributes, or operands (*, 1, 1). Derivative at constant rank: G. Golub, V. Pereyra, "The differentiation of
    pseudo-inverses and nonlinear least squares problems whose variables separate" (1973), eq. 4.12.
    """
    name, square = "pinv", False
    cases = [((_TALL,), dict(atol=0.0, rtol=1e-15, index=0)), ((_WIDE,), dict(atol=0.0, rtol=1e-15, index=0))]

    def avals(self, *operands, **attrs): return (Aval((*operands[0].shape[:-2], *operands[0].shape[:-3:-1]), operands[0].dtype),)

    def results(self, a, *limits, atol, rtol):
        if not a.size:
            return [np.zeros((*a.shape[:-2], *a.shape[:-3:-1]), a.dtype)]
        u, s, vh = self.decomposed(lambda x: np.linalg.svd(x, full_matrices=False), a)
        low, relative = (v[..., 0].real for v in limits) if limits else (atol, rtol)
        keep = s > np.maximum(low, relative * s[..., :1])
        inverted = np.where(keep, 1 / np.where(keep, s, 1), 0).astype(s.dtype)
        return [(vh.conj().swapaxes(-1, -2) * inverted[..., None, :]) @ u.conj().swapaxes(-1, -2)]

    def vjp(self, ct, y, a, *limits, atol, rtol, index):
        p, pt, gt = y, h(y), h(ct)
        left, right = matmul(gt, matmul(p, pt)), matmul(matmul(pt, p), gt)
        g = -matmul(matmul(pt, ct), pt) + (left - matmul(matmul(a, p), left)) + (right - matmul(right, matmul(p, a)))
        return g, *[None] * len(limits)


class Info(Lapack):
    """Which pivot (int32, from 1; 0: none) ends a factorisation of (*, n, n): of its LU the first that is 0, of its Cholesky factor the

    order of the first minor that is not positive definite. What `inv_ex` and `cholesky_ex` call info.
    """
    name, differentiable, python = "factor_info", False, None
    cases = [((_SQUARE,), dict(cholesky=False, index=0)), ((_SQUARE[0] - 3 * np.eye(3),), dict(cholesky=True, index=0))]

    def avals(self, *operands, **attrs): return (Aval(operands[0].shape[:-2], dtypes.int32),)

    def results(self, a, cholesky):
        found = np.zeros(a.shape[:-2], np.int32)
        try:
            unknown = bool(np.isnan((np.linalg.cholesky if cholesky else np.linalg.inv)(a)).any())     # LAPACK takes NaN for any pivot
        except np.linalg.LinAlgError:
            unknown = True
        if unknown:
            for place in np.ndindex(found.shape):
                found[place] = (bad_minor if cholesky else zero_pivot)(a[place])
        return [found]


# ------------------------------------------------------------------------------------------------------------ determinants


def _unknown(a: Any, y: Any) -> Any:
    """y, but NaN for matrices that hold one (LAPACK takes such a pivot to be 0)."""
    return np.where(np.isnan(a).any((-2, -1)), np.nan, y).astype(y.dtype)


class Det(Lapack):
    """The determinants of (*, n, n)."""
    name, holomorphic = "det", True
    cases = [((_SQUARE,), dict(index=0)), ((_SQUARE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return (Aval(operands[0].shape[:-2], operands[0].dtype),)
    @np.errstate(all="ignore")
    def results(self, a): return [_unknown(a, np.linalg.det(a))]
    def vjp(self, ct, y, a, index): return (scalars(ct) * run(COFACTORS, a),)


class Cofactors(Lapack):
    """The derivative of det: det(A) times the inverse transposed, and right where A is singular, for it is made of singular values

    (G. W. Stewart, "On the adjugate matrix", 1998). Its own derivative takes the inverse.
    """
    name, python, holomorphic = "cofactors", None, True
    cases = [((_SQUARE,), dict(index=0)), ((_SQUARE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return operands

    def results(self, a):
        known = np.isfinite(a).all((-2, -1), keepdims=True)
        u, s, vh = np.linalg.svd(np.where(known, a, 1))
        ones = np.ones((*s.shape[:-1], 1), s.dtype)
        before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)[..., :s.shape[-1]]
        after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., :s.shape[-1]][..., ::-1]
        sign = np.linalg.slogdet(u)[0] * np.linalg.slogdet(vh)[0]
        return [np.where(known, (u.conj() * (before * after)[..., None, :]) @ vh.conj() * sign[..., None, None], np.nan).astype(a.dtype)]

    def vjp(self, ct, y, a, index):
        inverse = t(run(INV, a))
        share = total(ct * y, (len(a.shape) - 2, len(a.shape) - 1))
        return (scalars(share) * inverse - matmul(matmul(y, t(ct)), inverse),)


class Slogdet(Lapack):
    """The sign, and the logarithm of the size, of the determinants of (*, n, n); (0, -inf) of a singular matrix."""
    name = "slogdet"
    cases = [((_SQUARE,), dict(index=1)), ((_SQUARE[1],), dict(index=1))]

    def avals(self, *operands, **attrs):
        shape, dtype = operands[0].shape[:-2], operands[0].dtype
        return Aval(shape, dtype), Aval(shape, dtypes.real_of(dtype))

    @np.errstate(all="ignore")
    def results(self, a): return [_unknown(a, r) for r in np.linalg.slogdet(a)]

    def vjp(self, ct, y, a, index):
        if index:
            return (scalars(ct) * h(run(INV, a)),)
        if a.dtype.kind != "c":
            return (None,)
        turn = imag(ct * conj(y))                                                  # the sign turns by the imaginary part of tr A^-1 dA
        return (scalars(turn) * const(1j, a.dtype) * h(run(INV, a)),)


# ----------------------------------------------------------------------------------------------------------- factorisations


class Cholesky(Lapack):
    """L (lower) in A = L L^H, of the lower triangle of (*, n, n). Derivative: I. Murray, "Differentiation of the Cholesky decomposition"

    (2016), eq. 10; symmetric.
    """
    name, symmetric, impossible = "cholesky", True, _INDEFINITE
    cases = [((_POSITIVE,), dict(index=0)), ((_POSITIVE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return operands
    def results(self, a): return [self.each(_INDEFINITE, np.linalg.cholesky, a, pivot=bad_minor)]

    def vjp(self, ct, y, a, index):
        low = tril(matmul(h(y), tril(ct)))
        phi = where(eye(a.shape[-1]), low * 0.5, low)
        half = run(TRIANGLE, h(y), phi, upper=True, unit=False)                    # L^-H phi
        return (_symmetric(h(run(TRIANGLE, h(y), h(half), upper=True, unit=False))),)


class Eigh(Lapack):
    """Eigenvalues (ascending, real) and eigenvectors (columns) of symmetric or Hermitian (*, n, n), of which the lower triangle is read.

    The derivative of the vectors divides by differences of eigenvalues: NaN or infinite where two are equal, as in torch.
    """
    name, symmetric, impossible = "eigh", True, _ENDLESS
    cases = [((_SYMMETRIC,), dict(index=0)), ((_SYMMETRIC,), dict(index=1)), ((_SYMMETRIC[0],), dict(index=1))]

    def avals(self, *operands, **attrs): return Aval(operands[0].shape[:-1], dtypes.real_of(operands[0].dtype)), operands[0]

    def results(self, a):
        if a.dtype.kind == "c":                                                    # of which the diagonal is taken to be real
            a = np.where(np.eye(a.shape[-1], dtype=bool), a.real, a)
        w, v = self.decomposed(np.linalg.eigh, a)
        return [w, v * _signs(v)]

    def vjp(self, ct, y, a, index):
        attrs = {"index": index}
        v = self.result((a,), attrs, 1, y)
        if not index:
            return (matmul(v * row(ct), h(v)),)
        w = self.result((a,), attrs, 0, y)
        return (_symmetric(matmul(matmul(v, _off_diagonal(matmul(h(v), ct), row(w) - column(w))), h(v))),)


class Eig(Lapack):
    """Eigenvalues and eigenvectors (columns, of length 1) of (*, n, n): complex numbers. The order is LAPACK's or, in kernels, nearly so.

    So a derivative, which may be computed another way than what it is the derivative of, does not rely on the order: that of the vectors
    takes the eigenvalues of those vectors, that of the eigenvalues looks for each one's place.

    Derivative: Giles, and C. Boeddeker et al., "On the computation of complex-valued gradients with application to statistically optimum
    beamforming" (2017), eq. 4.77, with the length of the vectors fixed.
    """
    name, impossible = "eig", "has no decomposition: {end}"
    cases = [((_SQUARE + np.triu(_SQUARE),), dict(index=0)), ((_SQUARE[0] + np.triu(_SQUARE[0]),), dict(index=0))]

    def avals(self, *operands, **attrs):
        (a,) = operands
        dtype = dtypes.complex_of(a.dtype)
        return Aval(a.shape[:-1], dtype), Aval(a.shape, dtype)

    def results(self, a):
        dtype = dtypes.complex_of(a.dtype)
        w, v = self.decomposed(np.linalg.eig, a)
        return [w.astype(dtype), _phases(v).astype(dtype)]

    def vjp(self, ct, y, a, index):
        if index:
            v = y
            w = conj(total(conj(v) * matmul(cast(a, v.dtype), v), (len(a.shape) - 2,)))
            inner = matmul(h(v), ct)
            along = real(total(where(eye(a.shape[-1]), inner, const(0, v.dtype)), (len(a.shape) - 2,)))   # would make vectors longer
            inner = _off_diagonal(inner - matmul(h(v), v * row(along)), row(w) - column(w))
            return (run(SOLVE, h(v), matmul(inner, h(v))),)
        w, v = (bind(self, (a,), {"index": k}) for k in range(2))
        return (run(SOLVE, h(v), column(_matched(ct, y, w)) * h(v)),)


NEARLY_LARGEST = 0.999      # times the largest component's size: the first one that is as large is the one that is positive


def _phases(v: Any) -> Any:
    """Columns whose largest component is positive, as those of zgeev are: kernels and LAPACK give the same vectors."""
    if not v.size:
        return v
    size = np.abs(v)
    first = (size >= NEARLY_LARGEST * size.max(-2, keepdims=True)).argmax(-2)[..., None, :]
    found, size = np.take_along_axis(v, first, -2), np.take_along_axis(size, first, -2)
    v = v * (found.conj() / size)
    np.put_along_axis(v, first, size, -2)
    return v


def _matched(ct: Node, y: Node, w: Node) -> Any:
    """The cotangents of eigenvalues y, for those that w has at each place.

    Numbers that are no farther from each other than rounding errors stay where they are.
    """
    n, last = y.shape[-1], len(y.shape) - 1
    if n < 2:
        return ct
    apart = abs_(column(y) - row(w))
    least = bind(REGISTRY["amin"], (apart,), {"dim": (last,)})
    stays = le(abs_(y - w), least + abs_(w) * (64 * float(np.finfo(w.dtype).eps)))
    chosen = cast(where(row(stays), eye(n), eq(apart, row(least))), ct.dtype)
    return total(chosen * column(ct), (last,)) / total(chosen, (last,))


class QR(Lapack):
    """Q (orthonormal columns) and R (upper triangle) of (*, m, n): Q (*, m, k), R (*, k, n), k the smaller of m and n, or m if `complete`.

    Differentiable for m >= n, without `complete` unless m = n: S. Walter, L. Lehmann, "Algorithmic differentiation of linear algebra
    functions with application in optimum experimental design" (2010). systems.py composes the rest.
    """
    name, square = "qr", False
    cases = [((_TALL,), dict(complete=False, index=0)), ((_TALL,), dict(complete=False, index=1)),
             ((_SQUARE,), dict(complete=True, index=0))]

    def avals(self, *operands, **attrs):
        (a,) = operands
        *lead, m, n = a.shape
        k = m if attrs["complete"] else min(m, n)
        return Aval((*lead, m, k), a.dtype), Aval((*lead, k, n), a.dtype)

    def python(self, define, operands, complete, index):
        return f"tg.linalg.qr({operands[0]}, mode='{'complete' if complete else 'reduced'}')"

    def results(self, a, complete): return list(np.linalg.qr(a, "complete" if complete else "reduced"))

    def vjp(self, ct, y, a, complete, index):
        m, n = a.shape[-2:]
        if m < n or (complete and m > n):
            raise AutogradError(f"qr: mode 'complete' has no derivative for {a.shape}: its last columns are arbitrary; use mode='reduced'")
        attrs = {"complete": complete, "index": index}
        q, r = self.result((a,), attrs, 0, y), self.result((a,), attrs, 1, y)
        inner = tril(matmul(r, h(ct)) if index else -matmul(h(ct), q))
        both = inner + h(inner)
        mirrored = matmul(q, where(eye(n), both * 0.5, both))
        full = mirrored if index else ct + mirrored
        return (h(run(TRIANGLE, r, h(full), upper=True, unit=False)),)             # full R^-H


class SVD(Lapack):
    """U, S (descending) and V^H of (*, m, n): (*, m, k), (*, k), (*, k, n), k the smaller of m and n; `full`: square U and V.

    The derivative of the vectors divides by differences of squared singular values, and by singular values where m != n. Complex
    vectors are known up to a factor exp(i phi), common to the columns of U and V: what turns both is shared out evenly.
    """
    name, square, impossible = "svd", False, _ENDLESS
    cases = [((x,), dict(full=False, index=k)) for x in (_TALL, _WIDE) for k in range(3)]

    def avals(self, *operands, **attrs):
        (a,) = operands
        *lead, m, n = a.shape
        k = min(m, n)
        return (Aval((*lead, m, m if attrs["full"] else k), a.dtype), Aval((*lead, k), dtypes.real_of(a.dtype)),
                Aval((*lead, n if attrs["full"] else k, n), a.dtype))

    def results(self, a, full):
        u, s, vh = self.decomposed(lambda x: np.linalg.svd(x, full_matrices=full), a)
        k = s.shape[-1]
        signs = _signs(vh[..., :k, :].swapaxes(-1, -2))
        u[..., :k] *= signs.conj()
        vh[..., :k, :] *= signs.swapaxes(-1, -2)
        return [u, s, vh]

    def vjp(self, ct, y, a, full, index):
        m, n = a.shape[-2:]
        if full and m != n:
            if index != 1:
                raise AutogradError(f"svd: full_matrices=True has no derivative of U and Vh for {a.shape}: they are not unique; use "
                                    "full_matrices=False")
            full = False
        u, s, vh = (y if k == index else run(self, a, full=full, index=k) for k in range(3))
        if index == 1:
            return (matmul(u * row(ct), vh),)
        squares = s * s
        differences = row(squares) - column(squares)
        if index == 0:
            inner = matmul(h(u), ct)
            skew = inner - h(inner)
            g = _off_diagonal(skew, differences) * row(s)
            g = matmul(u, g + _of_diagonal(skew, 0.25 / s) if a.dtype.kind == "c" else g)
            if m > n:
                g = g + (ct - matmul(u, inner)) / row(s)
            return (matmul(g, vh),)
        inner = matmul(vh, h(ct))
        skew = inner - h(inner)
        g = _off_diagonal(skew, differences) * column(s)
        g = matmul(g - _of_diagonal(skew, 0.25 / s) if a.dtype.kind == "c" else g, vh)
        if m < n:
            g = g + (ct - matmul(h(inner), vh)) / column(s)
        return (matmul(u, g),)


@np.errstate(all="ignore")
def _eliminated(a: Any) -> tuple[Any, Any, Any]:
    """LU, LAPACK's pivots and the row numbers of (*, m, n): column by column, for NumPy has no LU."""
    shape, (m, n) = a.shape, a.shape[-2:]
    a = a.reshape(prod(shape[:-2]), m, n).copy()
    every, k = np.arange(len(a)), min(m, n)
    pivots, order = np.empty((len(a), k), np.int32), np.tile(np.arange(m, dtype=np.int32), (len(a), 1))
    for j in range(k):
        p = j + np.argmax(np.abs(a[:, j:, j].real) + np.abs(a[:, j:, j].imag), 1)                   # LAPACK's size of a number
        pivots[:, j] = p + 1                                                        # LAPACK counts from 1
        a[every, p], a[:, j] = a[:, j].copy(), a[every, p]
        order[every, p], order[:, j] = order[:, j].copy(), order[every, p]
        pivot = a[:, j, j]
        a[:, j + 1:, j] /= np.where(pivot == 0, 1, pivot)[:, None]
        a[:, j + 1:, j + 1:] -= a[:, j + 1:, j, None] * a[:, j, None, j + 1:]
    return a.reshape(shape), pivots.reshape((*shape[:-2], k)), order.reshape(shape[:-1])


class LU(Lapack):
    """The factors of P^T A = L U, of (*, m, n) by partial pivoting, in one matrix (without L's diagonal, which is ones); LAPACK's pivots

    (*, k), k the smaller of m and n; and row numbers (*, m): row i of L U is row P[i] of A. A zero pivot is no error here.

    Derivative of the first k rows and columns: the triangles of L^-T (L^T dL below the diagonal + dU U^T above) U^-T, rows put back; the
    rows below are L = A U^-1 and the columns beyond are U = L^-1 A.
    """
    name, python, square, holomorphic = "lu_factor", None, False, True        # tg.linalg.lu_factor leaves the row numbers out
    cases = [((x,), dict(index=0)) for x in (_SQUARE, _SQUARE[1], _TALL, _WIDE)]

    def avals(self, *operands, **attrs):
        *lead, m, n = operands[0].shape
        return operands[0], Aval((*lead, min(m, n)), dtypes.int32), Aval((*lead, m), dtypes.int32)

    def results(self, a): return list(_eliminated(a))

    def vjp(self, ct, y, a, index):
        if index:
            return (None,)
        (m, n), d = a.shape[-2:], len(a.shape)
        k = min(m, n)

        def parts(x):                                                               # its first k rows and columns, and the others
            if m == n:
                return x, None
            dim = d - 2 if m > n else d - 1
            return narrow(x, dim, 0, k), narrow(x, dim, k, max(m, n) - k)

        (core, rest), (head, tail) = parts(y), parts(ct)
        low, high, more = tril(head, -1), triu(head), None
        if m > n:
            more = _right(tail, core)                                              # of the rows below: dL U^-T
            high = high - triu(matmul(t(rest), more))
        elif m < n:
            more = run(TRIANGLE, t(core), tail, upper=True, unit=True)             # of the columns beyond: L^-T dU
            low = low - tril(matmul(more, t(rest)), -1)
        inner = tril(matmul(t(tril(core, -1)), low) + low, -1) + triu(matmul(high, t(triu(core))))
        whole = _right(run(TRIANGLE, t(core), inner, upper=True, unit=True), core)
        if more is not None:
            whole = concat([whole, more], d - 2 if m > n else d - 1)
        order = self.result((a,), {"index": 0}, 2, y)
        return (matmul(permutation(order, a.dtype), whole),)


def _right(x: Node, u: Node) -> Any:
    """x U^-T, U the upper triangle of u."""
    return t(run(TRIANGLE, u, t(x), upper=True, unit=False))


class PivotOrder(Shared):
    """The numbers (int32) of `rows` rows that LAPACK's pivots (*, k) lead to: row i is exchanged with row pivots[i] - 1, in turn."""
    name, family, differentiable, batches = "pivot_order", "host_call", False, True
    impossible = "holds pivots that are not from 1 to the number of rows"
    cases = [((np.array([[2, 3, 3], [1, 2, 3]], np.int32),), dict(rows=3, index=0)), ((np.array([4, 3], np.int32),), dict(rows=5, index=0))]

    def avals(self, *operands, **attrs): return (Aval((*operands[0].shape[:-1], attrs["rows"]), dtypes.int32),)

    def results(self, pivots, rows):
        *batch, k = pivots.shape
        lists = pivots.reshape(prod(batch), k)
        bad = np.flatnonzero(((lists < 1) | (lists > rows)).any(1))
        if len(bad):
            raise LinAlgError(MatrixCheck(self.name, (*batch, 1, k), self.impossible).message(int(bad[0]), 0))
        order, every = np.tile(np.arange(rows, dtype=np.int32), (len(lists), 1)), np.arange(len(lists))
        for j in range(pivots.shape[-1]):
            p = lists[:, j] - 1
            order[every, p], order[:, j] = order[:, j].copy(), order[every, p]
        return [order.reshape((*pivots.shape[:-1], rows))]


def permutation(order: Node, dtype: Any) -> Node:
    """The matrices P (*, n, n) whose column i has its one in row order[i]."""
    n = order.shape[-1]
    return cast(eq(row(order), iota((n, n), 0, dtypes.int32)), dtype)


# ---------------------------------------------------------------------------------------------------------- the exponential

EXP_NORM = 0.78, 0.656      # of A, up to which Taylor's polynomial is exp A but for float64's roundings; for the derivative
EXP_SERIES = [1 / factorial(i) for i in range(17)]


def _exp(a, e=None):
    """exp of (*, n, n), or its derivative along e: that of numbers A + x E, x x = 0, has x times it.

    Taylor's polynomial of degree 16 in six products (M. Paterson, L. Stockmeyer, "On the number of nonscalar multiplications necessary to
    evaluate polynomials", 1973), with scaling and squaring. The norms are those of A. Al-Mohy, N. Higham, "Computing the action of the
    matrix exponential" (2011) and "Computing the Frechet derivative of the matrix exponential" (2009). exp 0 is I to the bit: squared a
    thousand times, a rounding of it would be all that is left (of Pade's quotient, diag(-1e305, 0) gave 0 for exp 0).
    """
    dtype, dual = a.dtype, e is not None
    a = a.astype(np.result_type(a, np.float64))                                     # float32's roundings would be squared
    norm = np.abs(a).sum(-2).max(-1, initial=0)
    turns = np.where(np.isfinite(norm), np.ceil(np.log2(np.maximum(norm, EXP_NORM[dual]) / EXP_NORM[dual])), np.nan)
    power = np.exp2(-turns)[..., None, None]                                        # NaN for a matrix that has one, or infinity
    a = [x * power for x in ([a, e] if dual else [a])]

    def product(x, y):
        return [x[0] @ y[0], *([x[0] @ y[1] + x[1] @ y[0]] if dual else [])]

    b = product(a, a)
    powers = [a, b, product(b, a), product(b, b)]

    def polynomial(lowest, count=3):
        found = [sum(EXP_SERIES[lowest + i] * power[part] for i, power in enumerate(powers[:count], 1)) for part in range(len(a))]
        return [found[0] + EXP_SERIES[lowest] * np.eye(a[0].shape[-1]), *found[1:]]

    x = polynomial(12, 4)
    for lowest in (8, 4, 0):
        x = [y + z for y, z in zip(product(powers[3], x), polynomial(lowest), strict=True)]
    for turn in range(int(np.nanmax(turns, initial=0))):
        x = [np.where((turn < turns)[..., None, None], y, z) for y, z in zip(product(x, x), x, strict=True)]
    return x[-1].astype(dtype)


class MatrixExp(Lapack):
    """exp of (*, n, n)."""
    name, holomorphic = "matrix_exp", True
    cases = [((_SQUARE,), dict(index=0)), ((_SQUARE[1] * 0.1,), dict(index=0))]

    def avals(self, *operands, **attrs): return operands

    @np.errstate(all="ignore")
    def results(self, a): return [_exp(a)]

    def vjp(self, ct, y, a, index): return (run(FRECHET, t(a), ct),)


class FrechetExp(Lapack):
    """The derivative of exp at A (*, n, n) along E: the upper right corner of exp [[A, E], [0, A]] (R. Mathias, 1996).

    An operation of its own, linear in E, so that forward mode can transpose it; its own derivative at A is one of that larger matrix.
    """
    name, python, holomorphic = "frechet_exp", None, True
    cases = [((_SQUARE, _SYMMETRIC), dict(index=0)), ((_SQUARE[1], _SYMMETRIC[0]), dict(index=0))]

    def avals(self, *operands, **attrs): return operands[:1]

    @np.errstate(all="ignore")
    def results(self, a, e): return [_exp(a, e)]

    def vjp(self, ct, y, a, e, index):
        n, d = a.shape[-1], len(a.shape)
        zero = full_like_shape(a.shape, 0, a.dtype)

        def block(*parts: Node) -> Node:
            return concat([concat([*parts[:2]], d - 1), concat([*parts[2:]], d - 1)], d - 2)

        def part(x: Node, i: int) -> Node:
            return narrow(narrow(x, d - 2, i * n, n), d - 1, i * n, n)

        whole = run(self, t(block(a, e, zero, a)), block(zero, ct, zero, zero))
        return part(whole, 0) + part(whole, 1), run(self, t(a), ct)


SOLVE, INV, PINV, DET, SLOGDET = (REGISTRY[name] for name in ("solve", "inv", "pinv", "det", "slogdet"))
CHOLESKY, EIGH, EIG, QR_, SVD_, LU_ = (REGISTRY[name] for name in ("cholesky", "eigh", "eig", "qr", "svd", "lu_factor"))
MATRIX_EXP, INFO, TRIANGLE, ORDER, COFACTORS, FRECHET = (
    REGISTRY[name] for name in ("matrix_exp", "factor_info", "solve_triangular", "pivot_order", "cofactors", "frechet_exp"))
