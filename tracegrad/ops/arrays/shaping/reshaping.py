"""The same elements in another shape: reshape, view, flatten, squeeze, unsqueeze, ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import cast, const
from tracegrad.ops.arguments import inferred, on_nodes, one_dim, sizes_of, some_dims
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.bits import view_dtype
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


@public("reshape")
@on_nodes
def reshape(input: Array, *shape: Any) -> Array:
    """The same elements in another shape (sizes, or one sequence of them; one size may be -1). ShapeError if they do not fit. Any dtype.

    >>> tg.reshape(tg.arange(6), 2, -1)
    Tensor([[0, 1, 2],
            [3, 4, 5]], device='cpu')
    """
    return mv.reshape(input, inferred("reshape", input.shape, sizes_of("reshape", shape)))


@public("view")
@on_nodes
def view(input: Array, *shape: Any, dtype: Any = None) -> Array:
    """The same elements in another shape, as `reshape`; every tensor can be viewed (there is no "not contiguous" here).

    x.view(dtype): the same bytes as elements of another dtype, a view; see `ops.bits.view_dtype`. Raises ShapeError if they do not fit.

    >>> tg.arange(6).view(2, 3)
    Tensor([[0, 1, 2],
            [3, 4, 5]], device='cpu')
    """
    if dtype is not None and not shape:
        shape = (dtype,)
    elif dtype is not None:
        raise ArgumentError(f"view: takes a shape or a dtype, got {shape} and dtype={dtype}")
    if len(shape) == 1 and (dtypes.is_dtype(shape[0]) or isinstance(shape[0], str)):
        return view_dtype(input, shape[0])
    return mv.reshape(input, inferred("view", input.shape, sizes_of("view", shape)))


@public("view_as")
@on_nodes
def view_as(input: Array, other: Array) -> Array:
    """input in the shape of other. Any dtype. ShapeError if they do not fit.

    >>> tg.arange(4).view_as(tg.ones(2, 2))
    Tensor([[0, 1],
            [2, 3]], device='cpu')
    """
    return mv.reshape(input, inferred("view_as", input.shape, other.shape))


@public("reshape_as")
@on_nodes
def reshape_as(input: Array, other: Array) -> Array:
    """input in the shape of other. Any dtype. ShapeError if they do not fit.

    >>> tg.arange(4).reshape_as(tg.ones(2, 2))
    Tensor([[0, 1],
            [2, 3]], device='cpu')
    """
    return mv.reshape(input, inferred("reshape_as", input.shape, other.shape))


@public("flatten")
@on_nodes
def flatten(input: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    """Dimensions start_dim to end_dim (included) as one; a 0-d tensor becomes 1-d. Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.flatten(tg.ones(2, 3, 4), 1).shape
    (2, 12)
    """
    first, last = one_dim("flatten", start_dim, input.ndim), one_dim("flatten", end_dim, input.ndim)
    if first > last:
        raise ArgumentError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    size = 1
    for n in input.shape[first:last + 1]:
        size *= n
    return mv.reshape(input, (*input.shape[:first], size, *input.shape[last + 1:]))


@public("ravel")
def ravel(input: Array) -> Array:
    """All elements in one dimension; as in torch a copy where they do not lie row by row. Any dtype. DTypeError for what is no tensor.

    >>> tg.ravel(tg.tensor([[1, 2], [3, 4]]))
    Tensor([1, 2, 3, 4], device='cpu')
    """
    return flatten(input) if isinstance(input, Node) or not hasattr(input, "contiguous") else input.contiguous().flatten()


@public("unflatten")
@on_nodes
def unflatten(input: Array, dim: int, sizes: Sequence[int]) -> Array:
    """Dimension dim split into `sizes` (one may be -1). Any dtype. ShapeError if they do not fit.

    >>> tg.unflatten(tg.ones(2, 12), 1, (3, -1)).shape
    (2, 3, 4)
    """
    d = one_dim("unflatten", dim, input.ndim)
    parts = inferred("unflatten", (input.shape[d],), sizes_of("unflatten", (sizes,)))
    return mv.reshape(input, (*input.shape[:d], *parts, *input.shape[d + 1:]))


@public("squeeze")
@on_nodes
def squeeze(input: Array, dim: Any = None) -> Array:
    """Without the dimensions of size 1 (all of them, or those of `dim` that have size 1). Any dtype. Raises IndexOutOfRange.

    >>> tg.squeeze(tg.ones(1, 3, 1)).shape
    (3,)
    """
    dims = some_dims("squeeze", dim, input.ndim) if dim is None or dim not in ((), []) else ()
    return mv.reshape(input, tuple(n for d, n in enumerate(input.shape) if n != 1 or d not in dims))


@public("unsqueeze", "expand_dims")
@on_nodes
def unsqueeze(input: Array, dim: int) -> Array:
    """With a dimension of size 1 put in at `dim`. Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.unsqueeze(tg.ones(2, 3), -1).shape
    (2, 3, 1)
    """
    d = one_dim("unsqueeze", dim, input.ndim + 1)
    return mv.reshape(input, (*input.shape[:d], 1, *input.shape[d:]))


def full_like_shape(shape: tuple[int, ...], value: Any, dtype: Any) -> Node:
    """A node of `shape` filled with a constant."""
    return mv.expand(const(value, dtype), shape)


def as_float(x: Node) -> Node:
    """x, cast to the default float dtype if it is neither a float nor complex."""
    return x if dtype_kind(x.dtype) in "fc" else cast(x, dtypes.get_default_dtype())
