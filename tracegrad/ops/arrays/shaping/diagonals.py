"""Triangles and diagonals: tril, triu, diagonal, diag_embed, diag."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import const, iota
from tracegrad.ops.arguments import integer, on_nodes, one_dim
from tracegrad.ops.arrays.pointwise import eq, ge, le
from tracegrad.ops.arrays.shaping.reordering import movedim
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import choose
from tracegrad.support import dtypes

Array = Any      # a Node or a Tensor


@public("tril")
@on_nodes
def tril(input: Array, diagonal: int = 0) -> Array:
    """The lower triangle of the last two dimensions (up to that diagonal), zero above. Any dtype. Raises ShapeError for fewer.

    >>> tg.tril(tg.tensor([[1, 2], [3, 4]]))
    Tensor([[1, 0],
            [3, 4]], device='cpu')
    """
    row, column = _row_column("tril", input, diagonal)
    return choose(le(column, row), input, const(0, input.dtype))


@public("triu")
@on_nodes
def triu(input: Array, diagonal: int = 0) -> Array:
    """The upper triangle of the last two dimensions (from that diagonal on), zero below. Any dtype. Raises ShapeError for fewer.

    >>> tg.triu(tg.tensor([[1, 2], [3, 4]]), diagonal=1)
    Tensor([[0, 2],
            [0, 0]], device='cpu')
    """
    row, column = _row_column("triu", input, diagonal)
    return choose(ge(column, row), input, const(0, input.dtype))


def _row_column(name: str, x: Node, diagonal: Any) -> tuple[Any, Node]:
    """For each element of a matrix the column where the diagonal meets its row, and its own column."""
    if x.ndim < 2:
        raise ShapeError(f"{name}: takes at least 2 dimensions, got {x.shape}")
    shape = x.shape[-2:]
    offset = max(-shape[0], min(integer(name, "diagonal", diagonal), shape[1]))         # beyond the matrix it need not fit int32
    return iota(shape, 0, dtypes.int32) + offset, iota(shape, 1, dtypes.int32)


@public("diagonal")
@on_nodes
def diagonal(input: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """The diagonal of dimensions dim1 and dim2, as a new last dimension; offset > 0 is above the main one.
    Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.diagonal(tg.tensor([[1, 2], [3, 4]]))
    Tensor([1, 4], device='cpu')
    """
    a, b = one_dim("diagonal", dim1, input.ndim), one_dim("diagonal", dim2, input.ndim)
    if a == b:
        raise ArgumentError(f"diagonal: dim1 and dim2 are both dimension {a}")
    rest = tuple(d for d in range(input.ndim) if d not in (a, b))
    x = mv.permute(input, (*rest, a, b))
    offset = integer("diagonal", "offset", offset)
    rows, columns = max(0, -offset), max(0, offset)
    *lead, height, width = x.shape
    n = max(0, min(height - rows, width - columns))
    start, ones = rows * width + columns if n else 0, (1,) * len(lead)
    flat = mv.reshape(x, (*lead, height * width))              # (tensors/attributes.py knows how this and the next step lie in memory)
    return mv.slice_(flat, (*[0] * len(lead), start), (*lead, start + max(0, (n - 1) * (width + 1) + 1)), (*ones, width + 1))


@public("diag_embed")
@on_nodes
def diag_embed(input: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Matrices (in dimensions dim1 and dim2 of the result) with the last dimension of input on a diagonal, zero elsewhere.
    Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.diag_embed(tg.tensor([1, 2]))
    Tensor([[1, 0],
            [0, 2]], device='cpu')
    """
    if not input.ndim:
        raise ShapeError("diag_embed: takes at least 1 dimension, got ()")
    a, b = (one_dim("diag_embed", d, input.ndim + 1) for d in (dim1, dim2))
    if a == b:
        raise ArgumentError(f"diag_embed: dim1 and dim2 are both dimension {a}")
    offset = integer("diag_embed", "offset", offset)
    n = input.shape[-1] + abs(offset)
    row, column = iota((n, n), 0, dtypes.int32), iota((n, n), 1, dtypes.int32)
    low = (*[0] * (input.ndim - 1), max(0, offset))
    high = (*[0] * (input.ndim - 1), max(0, -offset))
    along = mv.pad(input, low, high)                        # element j of it belongs to column j
    along = mv.reshape(along, (*input.shape[:-1], 1, n))
    out = choose(eq(column, row + offset), along, const(0, input.dtype))
    return movedim(out, (-2, -1), (a, b))


@public("diag")
@on_nodes
def diag(input: Array, diagonal: int = 0) -> Array:
    """The diagonal of a matrix; of a vector, the matrix that has it as its diagonal: (n, m) -> (k,), (n,) -> (n, n).
    Any dtype. Raises ShapeError for others.

    >>> tg.diag(tg.tensor([1, 2]))
    Tensor([[1, 0],
            [0, 2]], device='cpu')
    >>> tg.diag(tg.tensor([[1, 2], [3, 4]]))
    Tensor([1, 4], device='cpu')
    """
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise ShapeError(f"diag: takes 1 or 2 dimensions, got {input.shape}; use diagonal or diag_embed")
    return _diagonal(input, diagonal)


_diagonal = diagonal
