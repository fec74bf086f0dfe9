"""Products of sparse tensors: rows are gathered, multiplied and added up, so that gradients are the dense functions'. Start at `matmul`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ShapeError, UnsupportedError
from tracegrad.support.layouts import layout
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.sparse.functions import add
from tracegrad.torch_api.sparse.tensor import (
    SPARSE_RULES,
    SparseTensor,
    coalesced,
    host_places,
    in_layout,
    like,
    on_device,
    rule,
    sparse,
    tg,
)


@rule("matmul", "mm", "mv", "spmm", "bmm", "dsmm", "__matmul__")
def matmul(input: Any, other: Any, reduce: str = "sum") -> Any:
    """Sparse (n, k) by dense (k, m) or (k), dense by sparse: dense. Sparse by sparse: sparse. Of three dimensions, matrix by matrix.

    reduce: how the products of a row are joined: "sum", "mean", "amax" or "amin", over those that are stored.
    """
    if not isinstance(other, SparseTensor) and not isinstance(input, SparseTensor):
        return tg.matmul(input, other)
    if not isinstance(input, SparseTensor):
        return matmul(SPARSE_RULES["t"](other), input.t()).t() if input.ndim == 2 else matmul(SPARSE_RULES["t"](other), input)
    shapes = tuple(input.shape), tuple(other.shape)
    if len(shapes[0]) == 3 and len(shapes[1]) == 3 and not isinstance(other, SparseTensor):
        return _batches(input, other)
    vector = not isinstance(other, SparseTensor) and other.ndim == 1
    if len(shapes[0]) != 2 or input.sparse_dim() != 2 or len(shapes[1]) not in (1, 2) or shapes[0][1] != shapes[1][0]:
        raise ShapeError(f"matmul: takes a sparse matrix (n, k) and a matrix (k, m) or a vector (k), got {shapes[0]} and {shapes[1]}")
    if isinstance(other, SparseTensor):
        return _of_sparse(input, other)
    rows, columns = input._places
    found = other.unsqueeze(-1) if vector else other
    terms = found.index_select(0, columns) * input._entries.unsqueeze(-1)
    total = _joined(terms, rows, input, reduce)
    return total.squeeze(-1) if vector else total


def _joined(terms: Tensor, rows: Tensor, x: SparseTensor, reduce: str) -> Tensor:
    """The terms (entries, m) of each row as one: (rows, m)."""
    empty = tg.zeros(x._sizes[0], terms.shape[1], dtype=terms.dtype, device=terms.device)
    if reduce == "sum":
        return empty.index_add(0, rows, terms)  # type: ignore[no-any-return]
    if reduce == "mean":
        return empty.index_add(0, rows, terms) / tg.bincount(rows, minlength=x._sizes[0]).clamp(min=1).unsqueeze(-1)  # type: ignore[no-any-return]
    reduce = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    if reduce not in ("amax", "amin"):
        raise UnsupportedError(f"spmm: reduce must be 'sum', 'mean', 'max' ('amax') or 'min' ('amin'), got {reduce!r}")
    return empty.scatter_reduce(0, rows.unsqueeze(-1).expand(terms.shape), terms, reduce, include_self=False)  # type: ignore[no-any-return]


def _batches(x: SparseTensor, y: Tensor) -> Tensor:
    """(b, n, k) by (b, k, m), as one product of matrices."""
    (b, n, k), (c, l, m) = x._sizes, y.shape
    if x.sparse_dim() != 3 or b != c or k != l:
        raise ShapeError(f"bmm: takes (b, n, k) and (b, k, m), got {tuple(x.shape)} and {tuple(y.shape)}")
    batch, row, column = x._places
    flat = sparse(tg.stack([batch * n + row, batch * k + column]), x._entries, (b * n, b * k))
    return matmul(flat, y.reshape(b * k, m)).reshape(b, n, m)  # type: ignore[no-any-return]


def _of_sparse(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """The sparse product of two: each entry of a meets those of b in the row of its column."""
    b = coalesced(in_layout(b, layout.sparse_coo))
    (rows, at), (starts, columns) = host_places(a), host_places(b)
    first = np.searchsorted(starts, at, "left")
    counts = np.searchsorted(starts, at, "right") - first
    mine = np.repeat(np.arange(len(at)), counts)
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    entries = a._entries[on_device(mine, a)] * b._entries[on_device(theirs, a)]
    kind = layout.sparse_csr if a._kind is layout.sparse_csc else a._kind                   # as torch has it
    made = sparse(on_device(np.stack([rows[mine], columns[theirs]]), a), entries, (a._sizes[0], b._sizes[1]), False, kind)
    return coalesced(made)


@rule("linear")
def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    found = matmul(input, SPARSE_RULES["t"](weight) if isinstance(weight, SparseTensor) else weight.t())
    return found if bias is None else found + bias


@rule("addmm", "sspaddmm")
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta input + alpha mat1 mat2."""
    product = matmul(mat1, mat2)
    if isinstance(product, SparseTensor) or isinstance(input, SparseTensor):
        return add(like(input, input._entries * beta) if isinstance(input, SparseTensor) else input * beta, product, alpha=alpha)
    return beta * input + alpha * product


def sampled_addmm(input: SparseTensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> SparseTensor:
    """beta input + alpha mat1 mat2, at the places of input only: mat1 (n, k), mat2 (k, m), input (n, m)."""
    shapes = tuple(mat1.shape), tuple(mat2.shape), tuple(input.shape)
    if mat1.ndim != 2 or mat2.ndim != 2 or shapes[0][1] != shapes[1][0] or shapes[2] != (shapes[0][0], shapes[1][1]):
        raise ShapeError(f"sampled_addmm: takes (n, m), (n, k) and (k, m), got {shapes[2]}, {shapes[0]} and {shapes[1]}")
    rows, columns = input._places
    products = (mat1.index_select(0, rows) * mat2.t().index_select(0, columns)).sum(1)
    return like(input, beta * input._entries + alpha * products)
