"""Eigenvalues and singular values as primitives, with symbolic derivatives. `_signs` gives vectors one sign, or phase, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import REGISTRY, bind, cast, const
from tracegrad.ops.arrays.complex_numbers import conj, real
from tracegrad.ops.arrays.pointwise import abs_, eq, le
from tracegrad.ops.linalg.inverses import SOLVE
from tracegrad.ops.linalg.lapack import (
    ENDLESS,
    SQUARE,
    SYMMETRIC,
    TALL,
    WIDE,
    Lapack,
    column,
    eye,
    h,
    hermitian_part,
    of_diagonal,
    off_diagonal,
    row,
    run,
    scalars,
)
from tracegrad.ops.primitives.contraction import matmul
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.movement import narrow
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes

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


class Eigh(Lapack):
    """Eigenvalues (ascending, real) and eigenvectors (columns) of symmetric or Hermitian (*, n, n), of which the lower triangle is read.

    The derivative of the vectors divides by differences of eigenvalues: NaN or infinite where two are equal, as in torch.
    """
    name, symmetric, impossible = "eigh", True, ENDLESS
    cases = [((SYMMETRIC,), dict(index=0)), ((SYMMETRIC,), dict(index=1)), ((SYMMETRIC[0],), dict(index=1))]

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
        return (hermitian_part(matmul(matmul(v, off_diagonal(matmul(h(v), ct), row(w) - column(w))), h(v))),)


class Eig(Lapack):
    """Eigenvalues and eigenvectors (columns, of length 1) of (*, n, n): complex numbers. The order is LAPACK's or, in kernels, nearly so.

    So a derivative, which may be computed another way than what it is the derivative of, does not rely on the order: that of the vectors
    takes the eigenvalues of those vectors, that of the eigenvalues looks for each one's place.

    Derivative: Giles, and C. Boeddeker et al., "On the computation of complex-valued gradients with application to statistically optimum
    beamforming" (2017), eq. 4.77, with the length of the vectors fixed.
    """
    name, impossible = "eig", "has no decomposition: {end}"
    cases = [((SQUARE + np.triu(SQUARE),), dict(index=0)), ((SQUARE[0] + np.triu(SQUARE[0]),), dict(index=0))]

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
            inner = off_diagonal(inner - matmul(h(v), v * row(along)), row(w) - column(w))
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


def _first_columns(u: Any, k: int, ct: Any) -> tuple[Any, Any]:
    """The first k columns U1 of a square orthonormal matrix [U1 U2], and the cotangent of these alone.

    U2 completes U1, so it turns with it: dU2 = -U1 dU1^H U2. What turns U2 in itself is nobody's, so a result that such a turn changes
    (U2^H ct is not Hermitian there) has no derivative: NaN.
    """
    dim, beyond = len(u.shape) - 1, u.shape[-1] - k
    first, rest = narrow(u, dim, 0, k), narrow(u, dim, k, beyond)
    of_rest = narrow(ct, dim, k, beyond)
    inner = matmul(h(rest), of_rest)
    largest = bind(REGISTRY["amax"], (abs_(of_rest),), {"dim": (dim - 1, dim)})
    off = bind(REGISTRY["amax"], (abs_(inner - h(inner)),), {"dim": (dim - 1, dim)})
    known = le(off, largest * float(np.sqrt(np.finfo(largest.dtype).eps)))
    wanted = narrow(ct, dim, 0, k) - matmul(rest, matmul(h(of_rest), first))
    return first, where(scalars(known), wanted, const(np.nan, wanted.dtype))


class SVD(Lapack):
    """U, S (descending) and V^H of (*, m, n): (*, m, k), (*, k), (*, k, n), k the smaller of m and n; `full`: square U and V.

    The derivative of the vectors divides by differences of squared singular values, and by singular values where m != n. Those that
    `full` adds have the derivative of the space that they span (`_first_columns`), or NaN. Complex vectors are known up to a factor
    exp(i phi), common to the columns of U and V: what turns both is shared out evenly.
    """
    name, square, impossible = "svd", False, ENDLESS
    cases = [((x,), dict(full=False, index=k)) for x in (TALL, WIDE) for k in range(3)] + [
        ((TALL,), dict(full=True, index=2)), ((WIDE,), dict(full=True, index=0))]

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
        (m, n), d = a.shape[-2:], len(a.shape)
        k = min(m, n)
        u, s, vh = (y if i == index else run(self, a, full=full, index=i) for i in range(3))
        if full and m > n:
            u, ct = _first_columns(u, k, ct) if index == 0 else (narrow(u, d - 1, 0, k), ct)
        elif full and m < n and index == 2:
            vh, ct = (h(x) for x in _first_columns(h(vh), k, h(ct)))
        elif full and m < n:
            vh = narrow(vh, d - 2, 0, k)
        if index == 1:
            return (matmul(u * row(ct), vh),)
        squares = s * s
        differences = row(squares) - column(squares)
        if index == 0:
            inner = matmul(h(u), ct)
            skew = inner - h(inner)
            g = off_diagonal(skew, differences) * row(s)
            g = matmul(u, g + of_diagonal(skew, 0.25 / s) if a.dtype.kind == "c" else g)
            if m > n:
                g = g + (ct - matmul(u, inner)) / row(s)
            return (matmul(g, vh),)
        inner = matmul(vh, h(ct))
        skew = inner - h(inner)
        g = off_diagonal(skew, differences) * column(s)
        g = matmul(g - of_diagonal(skew, 0.25 / s) if a.dtype.kind == "c" else g, vh)
        if m < n:
            g = g + (ct - matmul(h(inner), vh)) / column(s)
        return (matmul(u, g),)
EIGH, EIG, SVD_ = (REGISTRY[name] for name in ("eigh", "eig", "svd"))
