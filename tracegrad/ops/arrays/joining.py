"""Tensors joined and taken apart: cat, stack, split, chunk, unbind, narrow, select. They are composed of the movement primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError, IndexOutOfRange, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import common_dtype
from tracegrad.graph.operators import Operators, public
from tracegrad.ops.arguments import integer, known_values, on_nodes, one_dim
from tracegrad.ops.arrays.shaping.reshaping import unsqueeze
from tracegrad.ops.primitives import movement as mv

Array = Any      # a Node or a Tensor


def _check_list(call: str, tensors: Any, dim: Any) -> None:
    if isinstance(tensors, Node) and isinstance(dim, Node):
        raise ArgumentTypeError(f"{call}: dim must be an integer, got a tensor of {dim.dtype}{list(dim.shape)}; give the tensors as one "
                                f"list: {call}([a, b])")


@public("cat", "concat", "concatenate", method=False)
@on_nodes
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """The tensors one after the other along dim; dtypes are promoted, the other sizes must agree (ShapeError).

    DTypeError for what holds no tensors.

    >>> tg.cat([tg.ones(2), tg.zeros(1)])
    """
    _check_list("cat", tensors, dim)
    xs = common_dtype(list(tensors), name="cat")
    if any(x.ndim == 0 for x in xs):
        raise ShapeError("cat: 0-d tensors cannot be concatenated; use stack")
    xs = [x for x in xs if x.shape != (0,)] or xs[:1]       # torch skips empty 1-d tensors whatever the others' rank
    d = one_dim("cat", dim, xs[0].ndim)
    for x in xs:
        if x.ndim != xs[0].ndim or any(i != d and a != b for i, (a, b) in enumerate(zip(x.shape, xs[0].shape, strict=True))):
            raise ShapeError(f"cat: shapes {', '.join(str(x.shape) for x in xs)} must agree in all dimensions but dim {d}")
    return mv.concat(xs, d)


@public("stack", method=False)
@on_nodes
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    """The tensors, all of one shape, along a new dimension `dim`. Any dtypes, which are promoted. Raises ShapeError for other shapes.

    >>> tg.stack([tg.ones(2), tg.zeros(2)])
    """
    _check_list("stack", tensors, dim)
    xs = common_dtype(list(tensors), name="stack")
    if any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(f"stack: shapes {', '.join(str(x.shape) for x in xs)} must be equal")
    d = one_dim("stack", dim, xs[0].ndim + 1)
    return cat([unsqueeze(x, d) for x in xs], d)


@public("split")
@on_nodes
def split(input: Array, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """Pieces of that size (the last may be smaller), or of those sizes, along dim.

    Any dtype. Raises ShapeError for sizes that do not add up, IndexOutOfRange for other dims.

    >>> tg.split(tg.arange(5), 2)
    """
    d = one_dim("split", dim, input.ndim)
    if not input.ndim:
        raise ShapeError("split: takes at least 1 dimension, got ()")
    n = input.shape[d]
    if not isinstance(split_size_or_sections, (list, tuple)):
        size = integer("split", "the size of a piece", split_size_or_sections)
        if size < 0 or (n and not size):
            raise ArgumentError(f"split: the size of a piece must be positive, got {size}")
        sizes = [min(size, n - at) for at in range(0, n, size or 1)] or [0]
    else:
        sizes = [integer("split", "a size", s) for s in split_size_or_sections]
        if sum(sizes) != n or any(s < 0 for s in sizes):
            raise ShapeError(f"split: sizes {sizes} must add up to {n}, the size of dimension {d} of {input.shape}")
    out, at = [], 0
    for s in sizes:
        out.append(mv.narrow(input, d, at, s))
        at += s
    return tuple(out)


@public("chunk")
@on_nodes
def chunk(input: Array, chunks: int, dim: int = 0) -> tuple[Array, ...]:
    """At most `chunks` pieces of equal size (the last may be smaller) along dim. Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.chunk(tg.arange(5), 2)
    """
    d = one_dim("chunk", dim, input.ndim)
    if integer("chunk", "chunks", chunks) <= 0:
        raise ArgumentError(f"chunk: the number of chunks must be positive, got {chunks}")
    if not input.ndim:
        raise ShapeError("chunk: takes at least 1 dimension, got ()")
    n = input.shape[d]
    return tuple(split(input, -(-n // chunks) if n else [0] * chunks, d))


@public("unbind")
@on_nodes
def unbind(input: Array, dim: int = 0) -> tuple[Array, ...]:
    """The slices of input along dim, without that dimension. Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.unbind(tg.ones(2, 3))
    """
    if not input.ndim:
        raise IndexOutOfRange("unbind: takes at least 1 dimension, got ()")
    return tuple(select(input, dim, i) for i in range(input.shape[one_dim("unbind", dim, input.ndim)]))


@public("narrow")
def narrow(input: Array, dim: int, start: Any, length: int) -> Array:
    """`length` elements from `start` along dim.

    start: an integer, or a 0-d integer tensor, which is looked at (the result is a view): inside @trace that is a TraceError.
    Raises IndexOutOfRange for what is not there.

    >>> tg.narrow(tg.arange(5), 0, 1, 3)
    """
    if isinstance(start, Operators):
        if start.shape:
            raise ShapeError(f"narrow: a start that is a tensor must be 0-d, got shape {start.shape}")
        way_out = f"use x.index_select({dim}, start + tg.arange({length}))"
        start = int(known_values("narrow", "start", start, way_out))
    return _narrow(input, dim, start, length)


@on_nodes
def _narrow(input: Node, dim: int, start: int, length: int) -> Any:
    d = one_dim("narrow", dim, input.ndim)
    if not input.ndim:
        raise ShapeError("narrow: takes at least 1 dimension, got ()")
    n = input.shape[d]
    start, length = integer("narrow", "start", start), integer("narrow", "length", length)
    first = start + n if start < 0 else start
    if not 0 <= first <= first + length <= n:
        raise IndexOutOfRange(f"narrow: start {start} and length {length} exceed dimension {d} of {input.shape}")
    return mv.narrow(input, d, first, length)


@public("select")
@on_nodes
def select(input: Array, dim: int, index: int) -> Array:
    """Element `index` along dim, without that dimension. Any dtype. Raises IndexOutOfRange for what is not there.

    >>> tg.select(tg.eye(3), 0, 1)
    """
    d = one_dim("select", dim, input.ndim)
    if not input.ndim:
        raise IndexOutOfRange("select: takes at least 1 dimension, got ()")
    n = input.shape[d]
    index = integer("select", "index", index)
    if not -n <= index < n:
        raise IndexOutOfRange(f"select: index {index} is out of range for dimension {d} of {input.shape}")
    return mv.reshape(mv.narrow(input, d, index % n, 1), input.shape[:d] + input.shape[d + 1:])
