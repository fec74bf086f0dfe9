"""Elements more than once: expand, broadcast_to, tile, repeat, repeat_interleave, meshgrid."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import PUBLIC, Operators, public
from tracegrad.ops.arguments import known_values, on_nodes, one_dim, sizes_of
from tracegrad.ops.arrays.shaping.reshaping import flatten
from tracegrad.ops.primitives import movement as mv

Array = Any      # a Node or a Tensor


@public("expand")
@on_nodes
def expand(input: Array, *size: Any) -> Array:
    """input broadcast to `size` (-1 keeps one). ShapeError unless only dimensions of size 1, or new leading ones, grow. Any dtype.

    >>> tg.tensor([[1], [2]]).expand(-1, 3)
    Tensor([[1, 1, 1],
            [2, 2, 2]], device='cpu')
    """
    return expanded("expand", input, sizes_of("expand", size))


def expanded(name: str, x: Node, sizes: tuple[int, ...]) -> Node:
    """x broadcast to `sizes`, for the function `name`."""
    lead = len(sizes) - x.ndim
    wanted = tuple(x.shape[d - lead] if n == -1 and d >= lead else n for d, n in enumerate(sizes))
    if lead < 0 or any(n < 0 for n in wanted) or any(a not in (1, b) for a, b in zip(x.shape, wanted[lead:], strict=True)):
        raise ShapeError(f"{name}: {x.shape} cannot be broadcast to {sizes}; only dimensions of size 1 and new leading ones can grow, "
                         "and -1 only keeps a size")
    return mv.expand(x, wanted)


@public("expand_as")
@on_nodes
def expand_as(input: Array, other: Array) -> Array:
    """input broadcast to the shape of other. Any dtype. Raises ShapeError if it does not fit.

    >>> tg.tensor([[1], [2]]).expand_as(tg.ones(2, 3))
    Tensor([[1, 1, 1],
            [2, 2, 2]], device='cpu')
    """
    return expanded("expand_as", input, other.shape)


@public("broadcast_to")
@on_nodes
def broadcast_to(input: Array, *size: Any) -> Array:
    """input broadcast to `size` (-1 keeps one). Any dtype. Raises ShapeError if it does not fit.

    >>> tg.broadcast_to(tg.tensor([1, 2]), (2, 2))
    Tensor([[1, 2],
            [1, 2]], device='cpu')
    """
    return expanded("broadcast_to", input, sizes_of("broadcast_to", size))


@public("broadcast_tensors", method=False)
@on_nodes
def broadcast_tensors(*tensors: Array) -> tuple[Array, ...]:
    """The tensors expanded to their common shape. Any dtypes, which stay. Raises ShapeError if there is none.

    >>> [x.shape for x in tg.broadcast_tensors(tg.ones(2, 1), tg.ones(3))]
    [(2, 3), (2, 3)]
    """
    shape = broadcast_shapes("broadcast_tensors", [x.shape for x in tensors])
    return tuple(mv.expand(x, shape) for x in tensors)


@public("tile")
@on_nodes
def tile(input: Array, *dims: Any) -> Array:
    """input laid side by side dims[i] times along dimension i, dims being filled up with ones in front.
    Any dtype. Raises DTypeError for what is no tensor.

    >>> tg.tile(tg.tensor([1, 2]), (2,))
    Tensor([1, 2, 1, 2], device='cpu')
    """
    reps = sizes_of("tile", dims)
    reps = (1,) * (input.ndim - len(reps)) + reps
    return repeat(input, *reps)


@public("repeat")
@on_nodes
def repeat(input: Array, *repeats: Any) -> Array:
    """input laid side by side repeats[i] times along dimension i (numpy's tile); more repeats than dimensions put new ones in front.
    Any dtype. Raises ArgumentError for fewer repeats than dimensions.

    >>> tg.tensor([1, 2]).repeat(2, 2)
    Tensor([[1, 2, 1, 2],
            [1, 2, 1, 2]], device='cpu')
    """
    reps = sizes_of("repeat", repeats)
    if any(r < 0 for r in reps):
        raise ArgumentError(f"repeat: repeats must not be negative, got {reps}")
    lead = len(reps) - input.ndim
    if lead < 0:
        raise ArgumentError(f"repeat: needs a number for each of the {input.ndim} dimensions of {input.shape}, got {reps}")
    shape = (1,) * lead + input.shape
    x = mv.reshape(input, tuple(s for n in shape for s in (1, n)))
    x = mv.expand(x, tuple(s for r, n in zip(reps, shape, strict=True) for s in (r, n)))
    return mv.reshape(x, tuple(r * n for r, n in zip(reps, shape, strict=True)))


@public("repeat_interleave")
def repeat_interleave(input: Array, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Array:
    """Each element repeated along dim (of the flattened tensor if dim is None).

    repeats: an integer, or how often for each element along dim, as integers in a list, an array, or a 1-d tensor, whose values are looked
    at: inside @trace that is a TraceError. Given alone, a tensor of counts: each place k repeated input[k] times. output_size: the size
    along dim, if it is known. Raises ShapeError if the counts are not as many as the elements, or do not add up to output_size.

    >>> tg.repeat_interleave(tg.tensor([10, 20, 30]), tg.tensor([2, 0, 1]))
    """
    if repeats is None:
        repeats, input = input, PUBLIC["arange"](len(input), device=input.device)
    if isinstance(repeats, Operators):
        repeats = known_values("repeat_interleave", "repeats", repeats, "give the counts as a list, which is static")
    x = flatten(input) if dim is None else input
    d = one_dim("repeat_interleave", dim or 0, x.ndim)
    n = x.shape[d] if x.ndim else 1
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts.size != 1 and counts.shape != (n,)):
        raise ShapeError(f"repeat_interleave: repeats must be an integer, or one for each of the {n} elements along dimension {d} of "
                         f"{x.shape}, got {counts.dtype}{list(counts.shape)}")
    counts = np.broadcast_to(counts, (n,))
    if n and counts.min() < 0:
        raise ArgumentError(f"repeat_interleave: repeats must be 0 or more, got {counts.min()}")
    if output_size is not None and output_size != counts.sum():
        raise ShapeError(f"repeat_interleave: output_size is {output_size}, but the repeats add up to {counts.sum()}")
    if n and (counts == counts[0]).all():
        return _each_repeated(x, d, int(counts[0]))
    return x[(slice(None),) * d + (np.repeat(np.arange(n), counts),)]


@on_nodes
def _each_repeated(input: Node, d: int, repeats: int) -> Any:
    """Each element `repeats` times along dimension d: no gather."""
    x = input if input.ndim else mv.reshape(input, (1,))
    shape = x.shape
    x = mv.expand(mv.reshape(x, (*shape[:d + 1], 1, *shape[d + 1:])), (*shape[:d + 1], repeats, *shape[d + 1:]))
    return mv.reshape(x, (*shape[:d], shape[d] * repeats, *shape[d + 1:]))


@public("meshgrid", method=False)
@on_nodes
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Array, ...]:
    """Coordinate grids of 1-d tensors; indexing "ij" (rows first) or "xy" (the first two dimensions exchanged).
    Any dtypes. Raises ArgumentError for another indexing.

    >>> rows, columns = tg.meshgrid(tg.arange(2), tg.arange(3))
    >>> rows
    Tensor([[0, 0, 0],
            [1, 1, 1]], device='cpu')
    """
    xs = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f"meshgrid: indexing must be 'ij' or 'xy', got {indexing!r}")
    if any(x.ndim > 1 for x in xs):
        raise ShapeError(f"meshgrid: takes 0-d or 1-d tensors, got shapes {', '.join(str(x.shape) for x in xs)}")
    sizes = tuple(x.shape[0] if x.ndim else 1 for x in xs)
    grids = [mv.expand(mv.reshape(x, tuple(n if i == j else 1 for j, n in enumerate(sizes))), sizes) for i, x in enumerate(xs)]
    if indexing == "xy" and len(xs) > 1:
        grids = [mv.permute(g, (1, 0, *range(2, len(xs)))) for g in grids]
    return tuple(grids)
