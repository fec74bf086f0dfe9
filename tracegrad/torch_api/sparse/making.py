"""How sparse tensors are made: of indices and values, of compressed rows and columns, of diagonals, and of dense tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, IndexOutOfRange, ShapeError
from tracegrad.support.layouts import layout
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.sparse.tensor import SparseTensor, in_layout, numbers, sparse, tg


def sparse_coo_tensor(*args: Any, size: Any = None, dtype: Any = None, device: Any = None, pin_memory: bool = False,
                      requires_grad: bool = False, check_invariants: bool | None = None, is_coalesced: bool | None = None,
                      indices: Any = None, values: Any = None) -> SparseTensor:
    """A sparse tensor with values[k] (entries, *dense dimensions) at indices[:, k] (dimensions, entries); those of one place add up.

    size: its shape; by default the smallest that holds all. sparse_coo_tensor(size) alone has no entries. Indices are always checked.
    Raises ShapeError where the parts do not fit, IndexOutOfRange for an index beyond the size.
    """
    if len(args) == 1 and indices is None and values is None and size is None:
        size, args = args[0], ()
    given = (*args, *(a for a in (indices, values)[len(args):]))[:2] if len(args) < 2 else args[:2]
    size = args[2] if len(args) > 2 else size
    if not args and indices is None:
        places = tg.zeros(len(size), 0, dtype=tg.int64, device=device)
        return _finished(places, tg.zeros(0, dtype=dtype, device=device), size, True, requires_grad)
    entries = _entries(given[1], dtype, device)
    places = tg.as_tensor(given[0]).to(dtype=tg.int64, device=entries.device)
    if places.ndim != 2 or not entries.ndim or places.shape[1] != entries.shape[0]:
        raise ShapeError("sparse_coo_tensor: indices must be (dimensions, entries) and values (entries, ...), got "
                         f"{tuple(places.shape)} and {tuple(entries.shape)}")
    array = places.numpy()
    if size is None:
        size = (*(array.max(1, initial=-1) + 1).tolist(), *entries.shape[1:])
    shape = tuple(int(n) for n in size)
    if len(shape) != len(array) + entries.ndim - 1 or shape[len(array):] != tuple(entries.shape[1:]):
        raise ShapeError(f"sparse_coo_tensor: size {shape} does not fit indices of {len(array)} dimensions and values "
                         f"{tuple(entries.shape)}")
    _check("sparse_coo_tensor", array, shape)
    return _finished(places, entries, shape, bool(is_coalesced), requires_grad)


def sparse_compressed_tensor(compressed_indices: Any, plain_indices: Any, values: Any, size: Any = None, *, dtype: Any = None,
                             layout: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Any:
    """A matrix in CSR or CSC: rows (CSC: columns) of entries.

    Those of row i are the entries k from compressed_indices[i] to compressed_indices[i + 1], and plain_indices[k] is the column (row) of
    each. Raises ShapeError where the parts do not fit, ArgumentError where rows do not begin one after the other.
    """
    rows_first = layout is not _layouts.sparse_csc
    entries = _entries(values, dtype, device)
    begins, plain = (np.asarray(tg.as_tensor(x).detach().cpu().numpy(), np.int64) for x in (compressed_indices, plain_indices))
    if begins.ndim != 1 or plain.ndim != 1 or plain.shape[0] != entries.shape[0]:
        raise ShapeError("sparse_compressed_tensor: takes one matrix: compressed indices (rows + 1), plain indices (entries) and values "
                         f"(entries, ...), got {begins.shape}, {plain.shape} and {tuple(entries.shape)}")
    if not len(begins) or begins[0] or begins[-1] != len(plain) or (np.diff(begins) < 0).any():
        raise ArgumentError(f"sparse_compressed_tensor: compressed indices must rise from 0 to the {len(plain)} entries")
    both = np.stack([np.repeat(np.arange(len(begins) - 1), np.diff(begins)), plain])
    if size is None:
        sizes = (len(begins) - 1, int(plain.max(initial=-1)) + 1)
        size = (*(sizes if rows_first else sizes[::-1]), *entries.shape[1:])
    shape, array = tuple(size), both if rows_first else both[::-1]
    if shape[0 if rows_first else 1] != len(begins) - 1 or len(shape) != 1 + entries.ndim:
        raise ShapeError(f"sparse_compressed_tensor: size {shape} does not fit compressed indices of {len(begins)} numbers")
    _check("sparse_compressed_tensor", array, shape)
    order = numbers(both, [shape[0], shape[1]] if rows_first else [shape[1], shape[0]])
    kind = _layouts.sparse_csr if rows_first else _layouts.sparse_csc
    found = sparse(tg.tensor(np.ascontiguousarray(array), device=entries.device), entries, shape, bool((np.diff(order) > 0).all()), kind)
    return _leaf(found if found._once else found.coalesce(), requires_grad)


_layouts = layout


def sparse_csr_tensor(crow_indices: Any, col_indices: Any, values: Any, size: Any = None, **options: Any) -> Any:
    """A matrix of rows: see `sparse_compressed_tensor`."""
    return sparse_compressed_tensor(crow_indices, col_indices, values, size, **options | {"layout": layout.sparse_csr})


def sparse_csc_tensor(ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, **options: Any) -> Any:
    """A matrix of columns: see `sparse_compressed_tensor`."""
    return sparse_compressed_tensor(ccol_indices, row_indices, values, size, **options | {"layout": layout.sparse_csc})


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: Any = None) -> Any:
    """A matrix of diagonals (count, length): row k lies along the diagonal offsets[k] (an int above the main one), by columns."""
    rows, starts = diagonals.reshape(-1, diagonals.shape[-1]), offsets.reshape(-1).tolist()
    if len(starts) != rows.shape[0] or len(set(starts)) != len(starts) or len(shape) != 2:
        raise ShapeError(f"spdiags: takes a diagonal for each of different offsets, and two sizes, got {tuple(diagonals.shape)}, "
                         f"{starts} and {tuple(shape)}")
    which, column = np.nonzero(np.ones((len(starts), min(rows.shape[1], shape[1])), bool))
    row = column - np.asarray(starts, np.int64)[which]
    inside = (row >= 0) & (row < shape[0])
    places = np.stack([row, column])[:, inside]
    entries = rows[tg.tensor(which[inside], device=rows.device), tg.tensor(column[inside], device=rows.device)]
    found = sparse(tg.tensor(np.ascontiguousarray(places), device=rows.device), entries, shape).coalesce()
    return found if layout is None else in_layout(found, layout)


def to_sparse(x: Tensor, sparse_dim: Any = None, *, layout: Any = None, blocksize: Any = None, dense_dim: Any = None) -> Any:
    """The elements of a dense tensor that are not 0 (rows of the dimensions behind sparse_dim: not all 0), as a sparse tensor."""
    if isinstance(sparse_dim, _layouts):
        sparse_dim, layout = None, sparse_dim
    count = x.ndim - (dense_dim or 0) if sparse_dim is None else sparse_dim
    if not 0 <= count <= x.ndim or (x.ndim and not count):
        raise ArgumentError(f"to_sparse: sparse_dim must be from 1 to {x.ndim}, got {count}")
    array = x._value("to_sparse", shared=True)
    places = np.stack(np.nonzero(array.any(tuple(range(count, x.ndim))))) if x.ndim else np.zeros((0, int(array != 0)), np.int64)
    flat = x.reshape(-1, *x.shape[count:])
    found = sparse(tg.tensor(places.astype(np.int64), device=x.device), flat[tg.tensor(numbers(places, x.shape[:count]), device=x.device)],
                   x.shape, True)
    return found if layout is None else in_layout(found, layout)


def _entries(values: Any, dtype: Any, device: Any) -> Tensor:
    entries: Any = values if isinstance(values, Tensor) else tg.tensor(values, dtype=dtype, device=device)
    entries = entries if dtype is None else entries.to(dtype=dtype)
    entries = entries if device is None else entries.to(device=device)
    return entries.clone() if entries is values and entries.requires_grad else entries  # type: ignore[no-any-return]


def _check(call: str, places: Any, shape: Sequence[int]) -> None:
    for d, row in enumerate(places):
        wrong = row[(row < 0) | (row >= shape[d])]
        if wrong.size:
            raise IndexOutOfRange(f"{call}: dimension {d} has the size {shape[d]}, but an index {wrong[0]}")


def _finished(places: Tensor, entries: Tensor, shape: Any, once: bool, requires_grad: bool) -> SparseTensor:
    return _leaf(sparse(places, entries, tuple(shape), once), requires_grad)


def _leaf(x: SparseTensor, requires_grad: bool) -> SparseTensor:
    if not requires_grad or x.requires_grad:
        return x
    return sparse(x._places, x._entries.detach().clone().requires_grad_(), x._sizes, x._once, x._kind)


__all__ = ["sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor", "spdiags", "to_sparse"]
