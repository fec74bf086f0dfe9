"""softmax and what is made of it: log_softmax, softmin, gumbel_softmax (tracegrad.nn.functional)."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, warn
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import PUBLIC, functional, public
from tracegrad.graph.primitive import cast, const, holds, iota
from tracegrad.ops.arguments import on_nodes, one_dim, rounded_once, some_dims
from tracegrad.ops.arrays.pointwise import eq
from tracegrad.ops.arrays.reductions import detached_max, is_empty, reduce
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.primitives.float_functions import exp, log
from tracegrad.ops.special.exports import export_special
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


@export_special()
@public("softmax", functional=True)
@on_nodes
@rounded_once
def softmax(input: Array, dim: int | None = None, dtype: Any = None) -> Array:
    """exp(x) / sum(exp(x)) along dim, without overflow; NaN for rows that hold inf or only -inf, as in torch.

    dim: None takes dim 1 (of one or three dimensions 0), as torch does, with a warning: give it.
    dtype: float, which the result has. Raises DTypeError for integers unless dtype is given, and for complex numbers.

    >>> tg.softmax(tg.tensor([1.0, 2.0]), dim=0)
    """
    x, dims = _softmax_operand("softmax", input, dim, dtype)
    if is_empty(x, dims):
        return x
    e = exp(x - detached_max(x, dims))
    return e / reduce("sum", e, dims, True)


@export_special()
@public("log_softmax", functional=True)
@on_nodes
@rounded_once
def log_softmax(input: Array, dim: int | None = None, dtype: Any = None) -> Array:
    """log(softmax(x)) along dim, without overflow or loss of small values. dim: as of `softmax`.
    dtype: float, which the result has. Raises DTypeError for integers unless dtype is given.

    >>> tg.log_softmax(tg.tensor([0.0, 0.0, 1000.0]), dim=0)
    Tensor([-1000., -1000.,     0.], device='cpu')
    """
    x, dims = _softmax_operand("log_softmax", input, dim, dtype)
    if is_empty(x, dims):
        return x
    shifted = x - detached_max(x, dims)
    return shifted - log(reduce("sum", exp(shifted), dims, True))


def _softmax_operand(name: str, x: Node, dim: int | None, dtype: Any) -> tuple[Node, tuple[int, ...]]:
    if dim is None:
        dim = 0 if x.ndim in (0, 1, 3) else 1
        warn(f"{name}: dim was left out and is taken to be {dim} for {x.ndim} dimensions; give it")
    if dtype is not None:
        x = cast(x, dtypes.as_dtype(dtype))
    refuse_complex(name, x)
    if dtype_kind(x.dtype) != "f":
        raise DTypeError(f"{name}: takes a float tensor, got {x.dtype}; use x.float() or dtype=tg.float32")
    return x, some_dims(name, one_dim(name, dim, x.ndim), x.ndim)


@functional
def softmin(input: Array, dim: int | None = None, dtype: Any = None) -> Array:
    """softmax(-x) along dim (None: as of `softmax`). Floats; integers (DTypeError) need a dtype.

    >>> nn.functional.softmin(tg.zeros(4), dim=0)
    Tensor([0.25, 0.25, 0.25, 0.25], device='cpu')
    """
    return softmax(-input, dim, dtype)


@functional
def gumbel_softmax(logits: Array, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Array:
    """A sample of the Gumbel-softmax distribution along dim (Jang et al. 2017); hard: one-hot, with the gradient of the soft sample.
    dtype: float, which the result has. Raises ArgumentError unless tau > 0.

    >>> nn.functional.gumbel_softmax(tg.zeros(3), hard=True).sum()
    Tensor(1., device='cpu')
    """
    if holds(tau <= 0):
        raise ArgumentError(f"gumbel_softmax: tau must be positive, got {tau}")
    noise = PUBLIC["empty_like"](logits).exponential_().log()
    soft = softmax((logits - noise) / tau, dim)
    return _hardened(soft, dim) - soft.detach() + soft if hard else soft


@on_nodes
def _hardened(soft: Any, dim: int) -> Any:
    d = one_dim("gumbel_softmax", dim, soft.ndim)
    best = soft.argmax(d, True) if soft.ndim else const(0, dtypes.int64)
    return cast(eq(iota(soft.shape, d), best), soft.dtype) if soft.ndim else full_like_shape((), 1, soft.dtype)
