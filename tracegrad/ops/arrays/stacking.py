"""Joining, splitting and building tensors of others: hstack, tensor_split, block_diag, kron, ... composed of movements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations as chosen
from itertools import combinations_with_replacement, pairwise
from math import comb, prod
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import Aval, Node, Size
from tracegrad.graph.operation_families import broadcast_shapes as common_shape
from tracegrad.graph.operation_families import common_dtype
from tracegrad.graph.operators import Operators, public
from tracegrad.graph.primitive import cast, scalar
from tracegrad.ops.arguments import integer, known_values, on_nodes, one_dim, sizes_of
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.joining import cat, split, stack
from tracegrad.ops.arrays.shaping.diagonals import diag_embed
from tracegrad.ops.arrays.shaping.padding import pad
from tracegrad.ops.arrays.shaping.reordering import flip, transpose
from tracegrad.ops.arrays.shaping.repeating import meshgrid
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.arrays.subscripts import getitem
from tracegrad.ops.primitives import movement as mv
from tracegrad.support import dtypes

Array = Any      # a Node or a Tensor


# ----------------------------------------------------------------------------------------------------------- at least n dims


def _each(fn: Any, tensors: tuple[Any, ...]) -> Any:
    """fn of one tensor, or a tuple of fn of each."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return tuple(fn(x) for x in tensors[0])
    return fn(tensors[0]) if len(tensors) == 1 else tuple(fn(x) for x in tensors)


def _at_least_1d(x: Node) -> Node:
    return x if x.ndim else mv.reshape(x, (1,))


def _at_least_2d(x: Node) -> Node:
    return x if x.ndim > 1 else mv.reshape(x, (1, x.aval.size))


def _at_least_3d(x: Node) -> Node:
    return x if x.ndim > 2 else mv.reshape(x, (*x.shape, 1) if x.ndim == 2 else (1, x.aval.size, 1))


@public("atleast_1d", method=False)
@on_nodes
def atleast_1d(*tensors: Array) -> Any:
    """The tensor (or each of several), with a dimension if it has none. Any dtype. Raises DTypeError for what is no tensor.

    >>> tg.atleast_1d(tg.tensor(1.0))
    """
    return _each(_at_least_1d, tensors)


@public("atleast_2d", method=False)
@on_nodes
def atleast_2d(*tensors: Array) -> Any:
    """The tensor (or each of several), with dimensions of size 1 in front up to two. Any dtype. Raises DTypeError for what is no tensor.

    >>> tg.atleast_2d(tg.ones(3))
    """
    return _each(_at_least_2d, tensors)


@public("atleast_3d", method=False)
@on_nodes
def atleast_3d(*tensors: Array) -> Any:
    """The tensor (or each of several) as three dimensions: a number (1, 1, 1), a vector (1, n, 1), a matrix (n, m, 1).

    Any dtype. Raises DTypeError for what is no tensor.

    >>> tg.atleast_3d(tg.ones(3))
    """
    return _each(_at_least_3d, tensors)


# ------------------------------------------------------------------------------------------------------------------ joining


@public("hstack", method=False)
@on_nodes
def hstack(tensors: Sequence[Array]) -> Array:
    """The tensors one after the other along dim 1 (vectors: along dim 0).

    Any dtypes, which are promoted. Raises ShapeError where other sizes differ.

    >>> tg.hstack([tg.ones(2), tg.zeros(1)])
    """
    xs = [_at_least_1d(x) for x in tensors]
    return cat(xs, 0 if xs[0].ndim == 1 else 1)


@public("vstack", "row_stack", method=False)
@on_nodes
def vstack(tensors: Sequence[Array]) -> Array:
    """The tensors one after the other along dim 0; vectors are rows.

    Any dtypes, which are promoted. Raises ShapeError where other sizes differ.

    >>> tg.vstack([tg.ones(2), tg.zeros(2)])
    """
    return cat([_at_least_2d(x) for x in tensors], 0)


@public("dstack", method=False)
@on_nodes
def dstack(tensors: Sequence[Array]) -> Array:
    """The tensors one after the other along dim 2, each with at least three dimensions.

    Any dtypes, which are promoted. Raises ShapeError where other sizes differ.

    >>> tg.dstack([tg.ones(2), tg.zeros(2)])
    """
    return cat([_at_least_3d(x) for x in tensors], 2)


@public("column_stack", method=False)
@on_nodes
def column_stack(tensors: Sequence[Array]) -> Array:
    """The tensors one after the other along dim 1; vectors and numbers are columns.

    Any dtypes, which are promoted. Raises ShapeError where other sizes differ.

    >>> tg.column_stack([tg.ones(2), tg.zeros(2)])
    """
    return cat([x if x.ndim > 1 else mv.reshape(x, (x.aval.size, 1)) for x in tensors], 1)


@public("block_diag", method=False)
@on_nodes
def block_diag(*tensors: Array) -> Array:
    """The matrix with the given ones (vectors are rows) along its diagonal, zero elsewhere.

    (r1, c1), (r2, c2), ... -> (r1 + r2 ..., c1 + c2 ...). Any dtypes, promoted. Raises ShapeError for more than two dimensions.

    >>> tg.block_diag(tg.ones(1, 2), tg.ones(2, 1))
    """
    for x in tensors:
        if x.ndim > 2:
            raise ShapeError(f"block_diag: takes tensors of at most 2 dimensions, got {x.shape}")
    xs = common_dtype([_at_least_2d(x) for x in tensors], name="block_diag")
    width, at, rows = sum(x.shape[1] for x in xs), 0, []
    for x in xs:
        rows.append(mv.pad(x, (0, at), (0, width - at - x.shape[1])))
        at += x.shape[1]
    return mv.concat(rows, 0)


# ---------------------------------------------------------------------------------------------------------------- splitting


@public("tensor_split")
def tensor_split(input: Array, indices_or_sections: Any = None, dim: int = 0, *, sections: Any = None, indices: Any = None,
                 tensor_indices_or_sections: Any = None) -> tuple[Array, ...]:
    """That many parts along dim, the first ones larger by one if need be; or cut before each of the indices.

    indices_or_sections: an integer or integers; a 0-d or 1-d integer tensor is looked at, which inside @trace is a TraceError.

    >>> tg.tensor_split(tg.arange(5), 2)
    """
    given = [v for v in (indices_or_sections, sections, indices, tensor_indices_or_sections) if v is not None]
    if len(given) != 1:
        raise TypeError(f"tensor_split: takes indices or a number of sections, got {len(given)} of them")
    indices_or_sections = given[0]
    if isinstance(indices_or_sections, Operators):
        if len(indices_or_sections.shape) > 1:
            raise ShapeError(f"tensor_split: the tensor of indices must be 0-d or 1-d, got shape {indices_or_sections.shape}")
        way_out = "give integers, which are static"
        indices_or_sections = known_values("tensor_split", "indices_or_sections", indices_or_sections, way_out).tolist()
    return _tensor_split(input, indices_or_sections, dim)


@on_nodes
def _tensor_split(input: Array, indices_or_sections: Any, dim: int) -> tuple[Array, ...]:
    if not input.ndim:
        raise ShapeError("tensor_split: takes at least 1 dimension, got ()")
    return _cut("tensor_split", input, indices_or_sections, one_dim("tensor_split", dim, input.ndim))


def _cut(name: str, x: Node, at: Any, d: int) -> tuple[Any, ...]:
    n = x.shape[d]
    if isinstance(at, (tuple, list)):
        cuts = [slice(integer(name, "an index", i)).indices(n)[1] for i in at]
        ends = [0, *cuts, n]
        return tuple(mv.narrow(x, d, a, max(0, b - a)) for a, b in pairwise(ends))
    sections = integer(name, "the number of sections", at)
    if sections < 1:
        raise ArgumentError(f"{name}: the number of sections must be positive, got {sections}")
    sizes = [n // sections + (i < n % sections) for i in range(sections)]
    return split(x, sizes, d)


def _split_along(name: str, x: Node, at: Any, d: int, least: int) -> tuple[Any, ...]:
    if x.ndim < least:
        raise ShapeError(f"{name}: takes at least {least} dimensions, got {x.shape}")
    if not isinstance(at, (tuple, list)) and x.shape[d] % max(1, integer(name, "the number of sections", at)):
        raise ShapeError(f"{name}: dimension {d} of {x.shape} must be a multiple of {at}; tensor_split takes any size")
    return _cut(name, x, at, d)


@public("hsplit")
@on_nodes
def hsplit(input: Array, indices_or_sections: Any) -> tuple[Array, ...]:
    """Equally many columns each (or cut before each of the indices): dim 1, of vectors dim 0.

    Any dtype. Raises ShapeError for too few dimensions.

    >>> tg.hsplit(tg.arange(4), 2)
    """
    return _split_along("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


@public("vsplit")
@on_nodes
def vsplit(input: Array, indices_or_sections: Any) -> tuple[Array, ...]:
    """Equally many rows each (or cut before each of the indices): dim 0. Any dtype. Raises ShapeError for too few dimensions.

    >>> tg.vsplit(tg.eye(4), 2)
    """
    return _split_along("vsplit", input, indices_or_sections, 0, 2)


@public("dsplit")
@on_nodes
def dsplit(input: Array, indices_or_sections: Any) -> tuple[Array, ...]:
    """Parts along dim 2 of equal size (or cut before each of the indices). Any dtype. Raises ShapeError for too few dimensions.

    >>> tg.dsplit(tg.ones(1, 1, 4), 2)
    """
    return _split_along("dsplit", input, indices_or_sections, 2, 3)


@public("split_with_sizes")
@on_nodes
def split_with_sizes(input: Array, split_sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """Pieces of those sizes along dim. Any dtype. Raises ShapeError for sizes that do not add up.

    >>> tg.split_with_sizes(tg.arange(3), [1, 2])
    """
    return split(input, list(split_sizes), dim)


# ------------------------------------------------------------------------------------------------------- products of tensors


@public("cartesian_prod", method=False)
@on_nodes
def cartesian_prod(*tensors: Array) -> Array:
    """All combinations of one element of each vector, a row for each (one vector alone: itself).

    Any dtype. Raises ShapeError for other shapes.

    >>> tg.cartesian_prod(tg.tensor([1, 2]), tg.tensor([3, 4]))
    """
    if any(x.ndim != 1 for x in tensors):
        raise ShapeError(f"cartesian_prod: takes vectors, got shapes {', '.join(str(x.shape) for x in tensors)}")
    if len(tensors) == 1:
        return tensors[0]
    grids = meshgrid(*tensors)
    return stack([mv.reshape(g, (g.aval.size,)) for g in grids], 1)


@public("combinations", method=False)
def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Array:
    """All choices of r elements of a vector, in their order, a row for each. Any dtype. Raises ShapeError for other shapes.

    >>> tg.combinations(tg.tensor([1, 2, 3]))
    """
    if not isinstance(input, Operators) or input.ndim != 1:
        raise ShapeError(f"combinations: takes a vector, got {getattr(input, 'shape', type(input).__name__)}")
    if integer("combinations", "r", r) < 0:
        raise ArgumentError(f"combinations: r must not be negative, got {r}")
    if r == 0:
        return getitem(input, slice(0))
    count = comb(input.shape[0] + r - 1 if with_replacement else input.shape[0], r)
    Aval((count, r), dtypes.int64)                           # which refuses what no index reaches
    rows = list((combinations_with_replacement if with_replacement else chosen)(range(input.shape[0]), r))
    return getitem(input, np.array(rows, np.int64).reshape(len(rows), r))


@public("kron")
@on_nodes
def kron(input: Array, other: Array) -> Array:
    """Kronecker's product: each element of input times the whole of other; missing dimensions have size 1.

    Any dtypes, which are promoted. Raises DTypeError for what is no tensor.

    >>> tg.kron(tg.eye(2), tg.ones(1, 2))
    """
    n = max(input.ndim, other.ndim)
    a, b = ((1,) * (n - x.ndim) + x.shape for x in (input, other))
    left = mv.reshape(input, tuple(s for k in a for s in (k, 1)))
    right = mv.reshape(other, tuple(s for k in b for s in (1, k)))
    return mv.reshape(left * right, tuple(i * j for i, j in zip(a, b, strict=True)))


@public("vander", method=False)
@on_nodes
def vander(x: Array, N: int | None = None, increasing: bool = False) -> Array:
    """The powers of a vector's (..., n) elements, N (n) of them, in a new last dimension: x^(N-1), ..., x, 1, or increasing.

    Integers and bools give int64, other dtypes stay. Raises DTypeError for what is no tensor.

    >>> tg.vander(tg.tensor([1, 2, 3]))
    """
    if not x.ndim:
        raise ShapeError("vander: takes a vector, got ()")
    count = x.shape[-1] if N is None else integer("vander", "N", N)
    if count < 0:
        raise ArgumentError(f"vander: N must not be negative, got {N}")
    x = cast(x, dtypes.int64) if x.dtype.kind in "iub" else x
    Aval((*x.shape, count), x.dtype)                         # which refuses what no index reaches
    powers: list[Any] = [full_like_shape(x.shape, 1, x.dtype)]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    columns = powers[:count] if increasing else powers[:count][::-1]
    return stack(columns, -1) if count else full_like_shape((*x.shape, 0), 0, x.dtype)


# ---------------------------------------------------------------------------------------------------------------- the rest


@public("rot90")
@on_nodes
def rot90(input: Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> Array:
    """Turned by k quarters in the plane of dims, from the first towards the second.

    Any dtype. Raises ArgumentError for dims that are not there.

    >>> tg.rot90(tg.tensor([[1, 2], [3, 4]]))
    """
    if len(dims) != 2 or input.ndim < 2:
        raise ArgumentError(f"rot90: dims must be two of the dimensions of input {input.shape}, got {tuple(dims)}")
    a, b = (one_dim("rot90", d, input.ndim) for d in dims)
    if a == b:
        raise ArgumentError(f"rot90: dims must be two different dimensions, got {tuple(dims)}")
    k = integer("rot90", "k", k) % 4
    if k == 2:
        return flip(input, a, b)
    if k == 1:
        return transpose(flip(input, b), a, b)
    return flip(transpose(input, a, b), b) if k else input


@public("diagflat")
@on_nodes
def diagflat(input: Array, offset: int = 0) -> Array:
    """The matrix with all elements of input on a diagonal. Any dtype. Raises DTypeError for what is no tensor.

    >>> tg.diagflat(tg.ones(2))
    """
    return diag_embed(mv.reshape(input, (input.aval.size,)), offset)


@public("fill")
@on_nodes
def fill(input: Array, value: Any) -> Array:
    """A tensor like input, filled with value (a number or a 0-d tensor).

    Any dtype, which the result has (to which value is cast). Raises DTypeError for what is no tensor.

    >>> tg.fill(tg.ones(2), 0.5)
    """
    if isinstance(value, Node) and value.ndim:
        raise ShapeError(f"fill: value must be a number or a 0-d tensor, got shape {value.shape}")
    return mv.expand(cast(value, input.dtype) if isinstance(value, Node) else scalar("fill", value, input.dtype), input.shape)


@public("constant_pad_nd", method=False)
def constant_pad_nd(input: Array, pad: Sequence[int], value: float = 0) -> Array:
    """nn.functional.pad with a constant. Shapes, dtypes and errors (it raises the same) are those of that function.

    >>> tg.constant_pad_nd(tg.ones(2), (1, 0))
    """
    return _pad(input, pad, "constant", value)


_pad = pad


@public("unravel_index", method=False)
@on_nodes
def unravel_index(indices: Array, shape: Sequence[int]) -> tuple[Array, ...]:
    """The indices (int64) along each dimension of `shape` of elements that are numbered in row-major order.

    Raises DTypeError unless they are integers, IndexOutOfRange for what the shape does not have, ArgumentError for negative sizes.

    >>> tg.unravel_index(tg.tensor([3]), (2, 2))
    """
    sizes = sizes_of("unravel_index", (shape,))
    if any(n < 0 for n in sizes):
        raise ArgumentError(f"unravel_index: shape must hold sizes of 0 or more, got {sizes}")
    n = prod(sizes)
    rest = cast(in_range(indices, n, "unravel_index", "indices", f"the {n} elements of shape {sizes}", wrap=True), dtypes.int64)
    out = []
    for s in reversed(sizes):
        out.append(rest % s)
        rest = rest // s
    return tuple(reversed(out))


@public("broadcast_shapes", method=False)
def broadcast_shapes(*shapes: Any) -> Size:
    """The shape that tensors of these shapes have in common: tuples, or sizes of one dimension, integers. ShapeError if there is none.

    >>> tg.broadcast_shapes((2, 1), (3,))
    """
    given = [sizes_of("broadcast_shapes", (s,) if isinstance(s, (tuple, list)) else ((s,),)) for s in shapes]
    if any(n < 0 for s in given for n in s):
        raise ShapeError(f"broadcast_shapes: sizes must not be negative, got {given}")
    return Size(common_shape("broadcast_shapes", given) if given else ())


