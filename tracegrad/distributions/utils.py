"""torch.distributions.utils' names, for distributions of one's own."""

from __future__ import annotations

from functools import cached_property as lazy_property
from typing import Any

from tracegrad.distributions.distribution import parameters
from tracegrad.graph.operators import PUBLIC
from tracegrad.support import dtypes
from tracegrad.tensors.tensor import Tensor

__all__ = ["broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits", "tril_matrix_to_vec",
           "vec_to_tril_matrix"]


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors of one shape: numbers take the dtype of the first tensor, else the default one.

    >>> tg.distributions.utils.broadcast_all(0.0, tg.ones(3))
    """
    return tuple(parameters("broadcast_all", *values))


def clamp_probs(probs: Tensor) -> Any:
    """Probabilities that are neither 0 nor 1: those are the next number."""
    eps = float(dtypes.finfo(dtypes.as_dtype(probs.dtype)).eps)
    return probs.clamp(min=eps, max=1 - eps)


def of_base(name: str) -> property:
    """A parameter of a transformed distribution that is its base's."""
    return property(lambda self: getattr(self.base_dist, name))


def clamp_open(y: Tensor) -> Any:
    """y from the least normal number to 1 - eps: what sigmoids of finite numbers are."""
    info = dtypes.finfo(y.dtype)
    return y.clamp(min=float(info.tiny), max=1 - float(info.eps))


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Any:
    """Probabilities of logits, along the last dimension; is_binary: of each element."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Any:
    """Logits of probabilities: see `logits_to_probs`."""
    kept = clamp_probs(probs)
    return kept.log() - (-kept).log1p() if is_binary else kept.log()


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Any:
    """The lower triangle of matrices (..., n, n), up to the diagonal `diag`, row by row: (..., k)."""
    rows, columns = PUBLIC["tril_indices"](mat.shape[-1], mat.shape[-1], diag)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Any:
    """Matrices (..., n, n) whose lower triangle, up to the diagonal `diag`, is vec (..., k), row by row. The rest is 0.

    k = (n + diag)(n + diag + 1) / 2.
    """
    n = round((-(1 + 2 * diag) + ((1 + 2 * diag)**2 + 8 * vec.shape[-1] + 4 * abs(diag) * (diag + 1))**0.5) / 2)
    rows, columns = PUBLIC["tril_indices"](n, n, diag)
    return PUBLIC["zeros"]((*vec.shape[:-1], n * n), dtype=vec.dtype, device=vec.device).index_copy(
        -1, rows * n + columns, vec).reshape((*vec.shape[:-1], n, n))
