"""The contraction primitive, matmul; everything from `linear` to `einsum` is made of it (see `ops/linalg/products.py`).

What is added to a product of 16-bit floats is rounded with it: `unrounded`.
"""

from __future__ import annotations

import numpy as np

from tracegrad.errors import DTypeError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import bilinear, common_dtype
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast
from tracegrad.ops.primitives.movement import permute
from tracegrad.support.dtypes import DType, dtype_kind, float32, is_half


def swap_last(x: Node) -> Node:
    """x with its last two dimensions exchanged."""
    n = len(x.shape)
    return permute(x, (*range(n - 2), n - 1, n - 2))


class Matmul(Primitive):
    """(*B, M, K) times (*B, K, N) -> (*B, M, N): matrix products of equal batch dimensions.

    dtype: float32, for the sums of 16-bit floats as they are added up; else that of the operands.
    """
    name, family, expensive, operator = "matmul", "contraction", True, ("@", 7)
    holomorphic, pair = True, bilinear
    cases = [(((2, 3), (3, 4)), {}), (((2, 3, 4), (2, 4, 5)), {}), (((1, 7), (7, 1)), {}), (((2, 0), (0, 3)), {})]

    def aval(self, a: Aval, b: Aval, *, dtype: DType | None = None) -> Aval:
        if len(a.shape) < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"matmul: shapes {a.shape} and {b.shape} do not fit: "
                             "the last of the first must equal the last but one of the second")
        if a.dtype != b.dtype or dtype_kind(a.dtype) not in "iufc":
            raise DTypeError(f"matmul: takes two tensors of one number dtype, got {a.dtype} and {b.dtype}; cast one of them")
        return Aval((*a.shape[:-1], b.shape[-1]), dtype or a.dtype)

    def numpy(self, a, b, *, dtype=None):
        if a.dtype.char == "e":
            return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(dtype or a.dtype, copy=False)
        return np.dot(a, b) if a.ndim == 2 else np.matmul(a, b)               # the same, begun in three quarters of the time

    def numpy_function(self, operands, **attrs):
        return (np.ndarray.dot, ()) if len(operands[0].shape) == 2 else None

    def work(self, y, a, b, **attrs):            # BLAS: 0.02 ns a flop (0.5 for integers, which it does not take)
        return a.size + b.size + {"f": 0.02, "c": 0.08}.get(dtype_kind(y.dtype), 0.5) * 2 * y.size * a.shape[-1]

    def vjp(self, ct, y, a, b, **attrs):
        ct = rounded(ct, a.dtype)
        return matmul(ct, swap_last(b)) if a.needs_grad else None, matmul(swap_last(a), ct) if b.needs_grad else None


def matmul(a: Node, b: Node) -> Node:
    """The product of two nodes of equal batch dimensions."""
    return bind(REGISTRY["matmul"], (a, b), {})


def rounded(ct: Node, dtype: DType) -> Node:
    """A cotangent in the dtype of the operands: what it was cast from, where the bias of a layer was added to an unrounded product."""
    return ct.operands[0] if ct.fn is REGISTRY["cast"] and ct.operands[0].dtype == dtype else cast(ct, dtype)


def unrounded(y: Node) -> Node:
    """A product or convolution of 16-bit floats in float32, as it is before it is rounded (moved, perhaps); anything else cast."""
    if y.fn.family == "movement" and len(y.operands) == 1:
        return bind(y.fn, (unrounded(y.operands[0]),), y.attrs)
    return bind(y.fn, y.operands, {**y.attrs, "dtype": float32}) if y.fn.family in ("contraction", "conv") else cast(y, float32)


def plus(product: Node, other: Node) -> Node:
    """The sum of a product and another node; of 16-bit floats it is rounded once, at the end."""
    y, x = common_dtype([product, other])
    return cast(unrounded(product) + cast(x, float32), y.dtype) if is_half(y.dtype) else y + x
