"""Attention as one operation, and its gradient as another: kernels compute both without an array of all scores. Start at `Attention`.

softmax(q kᵀ scale + mask) v, with or without the causal mask. Second derivatives are written in products and elementwise operations, so
that derivatives of any order follow. The code generator decides (codegen/graph/attention.py) where the two become `composed` and
`composed_gradient`, the same in operations that there were before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad import dtypes
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.function import REGISTRY, Primitive, Shared, bind, common_dtype, const, iota, refuse_complex
from tracegrad.ir import Aval, Node
from tracegrad.ops.contraction import matmul, swap_last
from tracegrad.ops.elementwise import where
from tracegrad.ops.pointwise import le
from tracegrad.ops.statistics import softmax, sum_

CASES = [
    (((2, 5, 3), (2, 5, 3), (2, 5, 4)), dict(scale=0.5, causal=True)),
    (((1, 3, 2), (1, 7, 2), (1, 7, 2)), dict(scale=1.5, causal=True)),
    (((2, 4, 3), (2, 3, 3), (2, 3, 2)), dict(scale=0.7, causal=False)),
]


def _floats(name: str, args: Any) -> tuple[Node, ...]:
    found = tuple(common_dtype(args, name=name))
    if found[0].dtype.kind != "f":
        raise DTypeError(f"{name}: takes floats, got {found[0].dtype}; cast first, for example x.float()")
    return found


def _sizes(name: str, q: Aval, k: Aval, v: Aval) -> tuple[int, int, int, int, int]:
    """B, L, S, E, V."""
    refuse_complex(name, q, k, v)
    if not (len(q.shape) == len(k.shape) == len(v.shape) == 3 and q.shape[0] == k.shape[0] == v.shape[0] and q.shape[2] == k.shape[2]
            and k.shape[1] == v.shape[1]):
        raise ShapeError(f"{name}: takes (B, L, E), (B, S, E) and (B, S, V), got {q.shape}, {k.shape} and {v.shape}")
    return (*q.shape[:2], k.shape[1], q.shape[2], v.shape[2])


class Attention(Primitive):
    """(B, L, E), (B, S, E), (B, S, V) -> (B, L, V). causal: position i sees positions up to i."""

    name, family, kinds, expensive, cost, cases = "dot_product_attention", "attention", "f", True, 0.1, CASES

    def prepare(self, args): return _floats(self.name, args)

    def aval(self, q, k, v, *, scale, causal):
        b, length, _, _, size = _sizes(self.name, q, k, v)
        return Aval((b, length, size), q.dtype)

    def numpy(self, q, k, v, *, scale, causal):
        return np.matmul(_weights(q, k, scale, causal), v).astype(q.dtype, copy=False)

    def work(self, y, q, k, v, **attrs):
        return q.shape[0] * q.shape[1] * k.shape[1] * (q.shape[2] + v.shape[2] + 60)

    def vjp(self, ct, y, q, k, v, *, scale, causal):
        return tuple(bind(GRADIENT, (q, k, v, ct), {"scale": scale, "causal": causal, "index": i}) for i in range(3))


class AttentionGradient(Shared):
    """Of sum(attention(q, k, v) g) by q, k and v: results 0, 1 and 2."""

    name, family, kinds, differentiable, cost = "attention_gradient", "attention", "f", True, 0.1
    cases = [((*shapes, (*shapes[0][:2], shapes[2][2])), attrs | {"index": i}) for i, (shapes, attrs) in enumerate(CASES)]

    def prepare(self, args): return _floats(self.name, args)

    def avals(self, q, k, v, g, *, scale, causal, index=0):
        b, length, _, _, size = _sizes(self.name, q, k, v)
        if g.shape != (b, length, size):
            raise ShapeError(f"{self.name}: the cotangent must be {(b, length, size)}, got {g.shape}")
        return q, k, v

    def results(self, q, k, v, g, *, scale, causal):
        p = _weights(q, k, scale, causal)
        d = np.matmul(g, v.swapaxes(1, 2))
        s = scale * p * (d - (p * d).sum(-1, keepdims=True))
        found = np.matmul(s, k), np.matmul(s.swapaxes(1, 2), q), np.matmul(p.swapaxes(1, 2), g)
        return tuple(a.astype(q.dtype, copy=False) for a in found)

    def work(self, y, q, k, v, g, **attrs):
        return q.shape[0] * q.shape[1] * k.shape[1] * (q.shape[2] + v.shape[2])

    def vjp(self, ct, y, q, k, v, g, *, scale, causal, index):
        """Of F = sum(ct dx), x being q, k or v: the derivative of sum(out g) in the direction of ct, derived once more.

        With P the weights, D = g vᵀ, W = g ct_vᵀ and S' = scale (ct_q kᵀ + q ct_kᵀ), the scores' tangent, and m, r the row sums of P D and
        P S': F = sum(P (D (S' - r) + W)). Its derivatives by D, by S' and by the scores are written out below.
        """
        p = weights(q, k, scale, causal)
        d = matmul(g, swap_last(v))
        if index == 2:
            inner = matmul(g, swap_last(ct))
            k_ = scale * (p * (inner - sum_(p * inner, -1, True)))
            return matmul(k_, k), matmul(swap_last(k_), q), None, matmul(p, ct)
        tangent = scale * (matmul(ct, swap_last(k)) if index == 0 else matmul(q, swap_last(ct)))
        m, r = sum_(p * d, -1, True), sum_(p * tangent, -1, True)
        by_d, by_tangent = p * (tangent - r), scale * (p * (d - m))
        inner = d * tangent - m * tangent - r * d
        k_ = scale * (p * (inner - sum_(p * inner, -1, True)))
        dq, dk = matmul(k_, k), matmul(swap_last(k_), q)
        if index == 0:
            dk = dk + matmul(swap_last(by_tangent), ct)
        else:
            dq = dq + matmul(by_tangent, ct)
        return dq, dk, matmul(swap_last(by_d), g), matmul(by_d, v)


GRADIENT = REGISTRY["attention_gradient"]


def _weights(q: Any, k: Any, scale: float, causal: bool) -> Any:
    """The weights as an array."""
    wide = np.promote_types(q.dtype, np.float32)
    s = np.matmul(q, k.swapaxes(1, 2)).astype(wide, copy=False) * wide.type(scale)
    if causal:
        s = np.where(np.tri(*s.shape[1:]) > 0, s, -np.inf)
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    return s


def weights(q: Node, k: Node, scale: float, causal: bool) -> Node:
    """softmax(q kᵀ scale + mask)."""
    scores = matmul(q, swap_last(k)) * scale
    if causal:
        shape = scores.shape[-2:]
        sees = le(iota(shape, 1, dtypes.int32), iota(shape, 0, dtypes.int32))
        scores = where(sees, scores, const(float("-inf"), scores.dtype))
    found: Node = softmax(scores, -1)
    return found


def composed(q: Node, k: Node, v: Node, scale: float, causal: bool) -> Node:
    """What `Attention` is."""
    return matmul(weights(q, k, scale, causal), v)


def composed_gradient(q: Node, k: Node, v: Node, g: Node, scale: float, causal: bool, index: int) -> Node:
    """What `AttentionGradient` is."""
    p = weights(q, k, scale, causal)
    if index == 2:
        return matmul(swap_last(p), g)
    d = matmul(g, swap_last(v))
    s = (p * (d - sum_(p * d, -1, True))) * scale
    return matmul(s, k) if index == 0 else matmul(swap_last(s), q)
