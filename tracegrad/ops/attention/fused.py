"""Attention as one operation, and its gradient as another: kernels compute both without an array of all scores. Start at `Attention`.

softmax(q kᵀ scale + masks) v. Second derivatives are written in products and elementwise operations, so that derivatives of any order
follow. The code generator decides (codegen/graph/attention.py) where the two become `composed` and `composed_gradient`, the same in
operations that there were before. Who keeps the result and the rows' sums for the gradient (torch's compiler) takes `AttentionSums` and
`GradientOfSums`, of attention without masks.

Attributes. scale: a number. causal: position i sees positions up to i. masks: for each mask, which are the operands behind the others,
(fill, inner): scores where a bool mask is False are the number `fill`; a mask of numbers is added, and its `fill` is None. A mask is
(A, L or 1, S or 1), and head h has its matrix h // inner % A. zeros: a row that sees nothing is 0, not NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.errors import DTypeError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.operation_families import common_dtype, refuse_complex
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, const, iota
from tracegrad.ops.arrays.pointwise import detach, eq, le
from tracegrad.ops.arrays.reductions import amax, logsumexp, sum_
from tracegrad.ops.neural.softmax import softmax
from tracegrad.ops.primitives.contraction import matmul, swap_last
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.float_functions import exp
from tracegrad.ops.primitives.movement import expand, reshape
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

NO_MASK: dict[str, Any] = {"masks": (), "zeros": False}
CASES = [
    (((2, 5, 3), (2, 5, 3), (2, 5, 4)), dict(scale=0.5, causal=True, **NO_MASK)),
    (((1, 3, 2), (1, 7, 2), (1, 7, 2)), dict(scale=1.5, causal=True, **NO_MASK)),
    (((2, 4, 3), (2, 3, 3), (2, 3, 2)), dict(scale=0.7, causal=False, **NO_MASK)),
]


def _floats(name: str, args: Any, count: int) -> tuple[Node, ...]:
    found = tuple(common_dtype(args[:count], name=name))
    if dtype_kind(found[0].dtype) != "f":
        raise DTypeError(f"{name}: takes floats, got {found[0].dtype}; cast first, for example x.float()")
    return (*found, *args[count:])


def _sizes(name: str, q: Aval, k: Aval, v: Aval) -> tuple[int, int, int, int, int]:
    """B, L, S, E, V."""
    refuse_complex(name, q, k, v)
    if not (len(q.shape) == len(k.shape) == len(v.shape) == 3 and q.shape[0] == k.shape[0] == v.shape[0] and q.shape[2] == k.shape[2]
            and k.shape[1] == v.shape[1]):
        raise ShapeError(f"{name}: takes (B, L, E), (B, S, E) and (B, S, V), got {q.shape}, {k.shape} and {v.shape}")
    return (*q.shape[:2], k.shape[1], q.shape[2], v.shape[2])


def _check_masks(name: str, q: Aval, k: Aval, given: Sequence[Aval], masks: Any) -> None:
    """Raises ShapeError or DTypeError where masks are not as the attribute says."""
    if len(given) != len(masks):
        raise ShapeError(f"{name}: {len(masks)} masks are described, {len(given)} given")
    for m, (fill, inner) in zip(given, masks, strict=True):
        if m.dtype != (q.dtype if fill is None else dtypes.bool_):
            raise DTypeError(f"{name}: masks are bools, or of the dtype {q.dtype} to be added, got {m.dtype}")
        sizes = ((1, q.shape[1]), (1, k.shape[1]))
        if len(m.shape) != 3 or q.shape[0] % max(1, m.shape[0] * inner) or m.shape[1] not in sizes[0] or m.shape[2] not in sizes[1]:
            raise ShapeError(f"{name}: a mask must be (A, {q.shape[1]} or 1, {k.shape[1]} or 1), A * {inner} a divisor of {q.shape[0]}, "
                             f"got {m.shape}")


def _check_cotangent(name: str, q: Aval, k: Aval, v: Aval, g: Aval) -> None:
    b, length, _, _, size = _sizes(name, q, k, v)
    if g.shape != (b, length, size):
        raise ShapeError(f"{name}: the cotangent must be {(b, length, size)}, got {g.shape}")


class Attention(Primitive):
    """(B, L, E), (B, S, E), (B, S, V) -> (B, L, V). causal: position i sees positions up to i."""

    name, family, kinds, expensive, cost, cases = "dot_product_attention", "attention", "f", True, 0.1, CASES

    def prepare(self, args): return _floats(self.name, args, 3)

    def aval(self, q, k, v, *given, scale, causal, masks, zeros):
        b, length, _, _, size = _sizes(self.name, q, k, v)
        _check_masks(self.name, q, k, given, masks)
        return Aval((b, length, size), q.dtype)

    def numpy(self, q, k, v, *given, **attrs):
        return np.matmul(_weights(q, k, given, **attrs), v).astype(q.dtype, copy=False)

    def work(self, y, q, k, v, *given, **attrs):
        return q.shape[0] * q.shape[1] * k.shape[1] * (q.shape[2] + v.shape[2] + 60)

    def vjp(self, ct, y, q, k, v, *given, **attrs):
        return (*(bind(GRADIENT, (q, k, v, ct, *given), attrs | {"index": i}) for i in range(3)), *[None for _ in given])


class AttentionGradient(Shared):
    """Of sum(attention(q, k, v) g) by q, k and v: results 0, 1 and 2."""

    name, family, kinds, differentiable, cost = "attention_gradient", "attention", "f", True, 0.1
    cases = [((*shapes, (*shapes[0][:2], shapes[2][2])), attrs | {"index": i}) for i, (shapes, attrs) in enumerate(CASES)]

    def prepare(self, args): return _floats(self.name, args, 4)

    def avals(self, q, k, v, g, *given, scale, causal, masks, zeros, index=0):
        _check_masks(self.name, q, k, given, masks)
        _check_cotangent(self.name, q, k, v, g)
        return q, k, v

    def results(self, q, k, v, g, *given, **attrs):
        p = _weights(q, k, given, **attrs)
        d = np.matmul(g.astype(p.dtype, copy=False), v.swapaxes(1, 2))
        s = attrs["scale"] * p * (d - (p * d).sum(-1, keepdims=True))
        for (fill, inner), m in zip(attrs["masks"], given, strict=True):
            if fill is not None:
                s = np.where(_of_heads(m, inner, len(q)), s, s.dtype.type(0))
        found = np.matmul(s, k), np.matmul(s.swapaxes(1, 2), q), np.matmul(p.swapaxes(1, 2), g)
        return tuple(a.astype(q.dtype, copy=False) for a in found)

    def work(self, y, q, k, v, g, *given, **attrs):
        return q.shape[0] * q.shape[1] * k.shape[1] * (q.shape[2] + v.shape[2])

    def vjp(self, ct, y, q, k, v, g, *given, index, **attrs):
        """Of F = sum(ct dx), x being q, k or v: the derivative of sum(out g) in the direction of ct, derived once more.

        With P the weights, D = g vᵀ, W = g ct_vᵀ and S' = scale (ct_q kᵀ + q ct_kᵀ), the scores' tangent, and m, r the row sums of P D and
        P S': F = sum(P (D (S' - r) + W)). Its derivatives by D, by S' and by the scores are written out below.
        """
        def kept(x):
            return _kept(x, given, attrs["masks"])

        scale, rest = attrs["scale"], [None for _ in given]
        p = weights(q, k, given, **attrs)
        d = matmul(g, swap_last(v))
        if index == 2:
            inner = matmul(g, swap_last(ct))
            k_ = kept(scale * (p * (inner - sum_(p * inner, -1, True))))
            return matmul(k_, k), matmul(swap_last(k_), q), None, matmul(p, ct), *rest
        tangent = kept(scale * (matmul(ct, swap_last(k)) if index == 0 else matmul(q, swap_last(ct))))
        m, r = sum_(p * d, -1, True), sum_(p * tangent, -1, True)
        by_d, by_tangent = p * (tangent - r), kept(scale * (p * (d - m)))
        inner = d * tangent - m * tangent - r * d
        k_ = kept(scale * (p * (inner - sum_(p * inner, -1, True))))
        dq, dk = matmul(k_, k), matmul(swap_last(k_), q)
        if index == 0:
            dk = dk + matmul(swap_last(by_tangent), ct)
        else:
            dq = dq + matmul(by_tangent, ct)
        return dq, dk, matmul(swap_last(by_d), g), matmul(by_d, v), *rest


GRADIENT = REGISTRY["attention_gradient"]


class AttentionSums(Primitive):
    """The logarithm of the sum of exponentials of each row's scores, without masks: (B, L). Kernels have it beside the result, of v."""

    name, family, kinds, differentiable, expensive, cost, cases = "attention_sums", "attention", "f", False, True, 0.1, CASES

    def prepare(self, args): return _floats(self.name, args, 3)

    def aval(self, q, k, v, **attrs):
        b, length, *_ = _sizes(self.name, q, k, v)
        return Aval((b, length), q.dtype)

    def numpy(self, q, k, v, *, scale, causal, **attrs):
        s = _scores(q, k, scale, causal)
        top = s.max(-1, keepdims=True)
        return (np.log(np.exp(s - top).sum(-1)) + top[..., 0]).astype(q.dtype, copy=False)

    def work(self, y, q, k, v, **attrs):
        return q.shape[0] * q.shape[1] * k.shape[1] * (q.shape[2] + 60)


class GradientOfSums(Shared):
    """AttentionGradient with the result y and the rows' sums r as operands, without masks: the weights are exp(scores - r)."""

    name, family, kinds, cost = "attention_gradient_of_sums", "attention", "f", 0.1
    cases = [((*shapes, shapes[3], shapes[0][:2]), attrs) for shapes, attrs in AttentionGradient.cases]

    def prepare(self, args): return _floats(self.name, args, 6)

    def avals(self, q, k, v, g, y, r, **attrs):
        _check_cotangent(self.name, q, k, v, g)
        if y.shape != g.shape or r.shape != g.shape[:2]:
            raise ShapeError(f"{self.name}: the result must be {g.shape} and the sums {g.shape[:2]}, got {y.shape} and {r.shape}")
        return q, k, v

    def results(self, q, k, v, g, y, r, *, scale, causal, **attrs):
        p = np.exp(_scores(q, k, scale, causal) - r[..., None])
        s = scale * p * (np.matmul(g, v.swapaxes(1, 2)) - (g * y).sum(-1, keepdims=True))
        found = np.matmul(s, k), np.matmul(s.swapaxes(1, 2), q), np.matmul(p.swapaxes(1, 2), g)
        return tuple(a.astype(q.dtype, copy=False) for a in found)

    def work(self, y, q, k, v, g, *kept, **attrs):
        return GRADIENT.work(y, q, k, v, g, **attrs)


def _of_heads(m: Any, inner: int, heads: int) -> Any:
    """A mask as an array of a matrix for each head, or of one for all."""
    return m if len(m) == 1 else m[np.arange(heads) // inner % len(m)]


def _scores(q: Any, k: Any, scale: float, causal: bool, given: Sequence[Any] = (), masks: Any = ()) -> Any:
    """The scores as an array, -inf where they are not seen."""
    wide = np.promote_types(q.dtype, np.float32)
    s = np.matmul(q.astype(wide, copy=False), k.swapaxes(1, 2).astype(wide, copy=False)) * wide.type(scale)
    for (fill, inner), mask in zip(masks, given, strict=True):
        m = _of_heads(mask, inner, len(q))
        s = s + m if fill is None else np.where(m, s, wide.type(fill))
    return np.where(np.tri(*s.shape[1:]) > 0, s, -np.inf) if causal else s


def _weights(q: Any, k: Any, given: Sequence[Any], *, scale: float, causal: bool, masks: Any, zeros: bool) -> Any:
    """The weights as an array."""
    s = _scores(q, k, scale, causal, given, masks)
    wide = s.dtype
    top = s.max(-1, keepdims=True)
    s -= np.where(top == -np.inf, wide.type(0), top) if zeros else top
    np.exp(s, out=s)
    total = s.sum(-1, keepdims=True)
    s /= np.where(total == 0, wide.type(1), total) if zeros else total
    return s


def _spread(m: Node, inner: int, scores: Node) -> Node:
    """A mask as a matrix for each head, or one that broadcasts."""
    if m.shape[0] == 1:
        return m
    count, *size = m.shape
    shape = scores.shape[0] // (count * inner), count, inner, *size
    return reshape(expand(reshape(m, (1, count, 1, *size)), shape), (scores.shape[0], *size))


def _kept(x: Node, given: Sequence[Node], masks: Any) -> Node:
    """x, and 0 where scores are filled in."""
    for (fill, inner), m in zip(masks, given, strict=True):
        if fill is not None:
            x = where(_spread(m, inner, x), x, const(0, x.dtype))
    return x


def scores_of(q: Node, k: Node, given: Sequence[Node], scale: float, causal: bool, masks: Any) -> Node:
    """q kᵀ scale + masks."""
    scores: Node = matmul(q, swap_last(k)) * scale
    for (fill, inner), mask in zip(masks, given, strict=True):
        m = _spread(mask, inner, scores)
        scores = scores + m if fill is None else where(m, scores, const(fill, scores.dtype))
    if causal:
        shape = scores.shape[-2:]
        sees = le(iota(shape, 1, dtypes.int32), iota(shape, 0, dtypes.int32))
        scores = where(sees, scores, const(float("-inf"), scores.dtype))
    return scores


def weights(q: Node, k: Node, given: Sequence[Node], *, scale: float, causal: bool, masks: Any, zeros: bool) -> Node:
    """softmax(q kᵀ scale + masks)."""
    scores = scores_of(q, k, given, scale, causal, masks)
    found: Node = softmax_or_zeros(scores) if zeros else softmax(scores, -1)
    return found


def softmax_or_zeros(scores: Any) -> Any:
    """The softmax of each row; zeros where all of it is -inf, which means that it may attend to nothing."""
    top = detach(amax(scores, -1, True))
    e = exp(scores - where(eq(top, float("-inf")), 0.0, top))
    parts = sum_(e, -1, True)
    return e / where(eq(parts, 0.0), 1.0, parts)


def composed(q: Node, k: Node, v: Node, given: Sequence[Node], **attrs: Any) -> Node:
    """What `Attention` is."""
    return matmul(weights(q, k, given, **attrs), v)


def composed_gradient(q: Node, k: Node, v: Node, g: Node, given: Sequence[Node], index: int, **attrs: Any) -> Node:
    """What `AttentionGradient` is."""
    p = weights(q, k, given, **attrs)
    return _from_weights(p, q, k, v, g, given, index, None, attrs)


def composed_sums(q: Node, k: Node, *, scale: float, causal: bool, **attrs: Any) -> Node:
    """What `AttentionSums` is."""
    found: Node = logsumexp(scores_of(q, k, (), scale, causal, ()), -1)
    return found


def composed_gradient_of_sums(q: Node, k: Node, v: Node, g: Node, y: Node, r: Node, index: int, **attrs: Any) -> Node:
    """What `GradientOfSums` is."""
    scores = scores_of(q, k, (), attrs["scale"], attrs["causal"], ())
    p = exp(scores - reshape(r, (*r.shape, 1)))
    return _from_weights(p, q, k, v, g, (), index, sum_(g * y, -1, True), attrs)


def _from_weights(p: Node, q: Node, k: Node, v: Node, g: Node, given: Sequence[Node], index: int, delta: Node | None, attrs: Any) -> Node:
    """A gradient, of the weights. delta: what the weights times their gradients add up to, in each row, if that is known."""
    if index == 2:
        return matmul(swap_last(p), g)
    d = matmul(g, swap_last(v))
    s = _kept((p * (d - (sum_(p * d, -1, True) if delta is None else delta))) * attrs["scale"], given, attrs["masks"])
    return matmul(s, k) if index == 0 else matmul(swap_last(s), q)
