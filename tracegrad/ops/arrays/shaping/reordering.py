"""Elements in another order: permute, transpose, movedim, flip, roll, ..."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, IndexOutOfRange, ShapeError
from tracegrad.graph.operators import Operators, public
from tracegrad.ops.arguments import integer, on_nodes, one_dim, sizes_of, some_dims
from tracegrad.ops.primitives import movement as mv

Array = Any      # a Node or a Tensor


@public("permute")
@on_nodes
def permute(input: Array, *dims: Any) -> Array:
    """Dimension i of the result is dimension dims[i] of input. Any dtype. Raises ArgumentError unless dims names each dimension once.

    >>> tg.permute(tg.ones(2, 3, 4), 2, 0, 1).shape
    (4, 2, 3)
    """
    order = tuple(one_dim("permute", d, input.ndim) for d in sizes_of("permute", dims))
    if sorted(order) != list(range(input.ndim)):
        raise ArgumentError(f"permute: dims {order} must name each of the {input.ndim} dimensions of {input.shape} once")
    return mv.permute(input, order)


@public("transpose", "swapaxes", "swapdims")
@on_nodes
def transpose(input: Array, dim0: int, dim1: int) -> Array:
    """Dimensions dim0 and dim1 exchanged. Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.transpose(tg.tensor([[1, 2], [3, 4]]), 0, 1)
    Tensor([[1, 3],
            [2, 4]], device='cpu')
    """
    order = list(range(input.ndim))
    a, b = one_dim("transpose", dim0, input.ndim), one_dim("transpose", dim1, input.ndim)
    if order:
        order[a], order[b] = order[b], order[a]
    return mv.permute(input, tuple(order))


@public("movedim", "moveaxis")
@on_nodes
def movedim(input: Array, source: Any, destination: Any) -> Array:
    """Dimension(s) `source` moved to place(s) `destination`; the others keep their order. Any dtype. Raises IndexOutOfRange.

    >>> tg.movedim(tg.ones(2, 3, 4), 0, -1).shape
    (3, 4, 2)
    """
    def listed(dim: Any) -> list[int]:
        return [one_dim("movedim", d, input.ndim) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]

    src, dst = listed(source), listed(destination)
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise ArgumentError(f"movedim: source {source} and destination {destination} must be equally many different dimensions")
    places = dict(zip(dst, src, strict=True))
    rest = iter(d for d in range(input.ndim) if d not in src)
    return mv.permute(input, tuple(places[d] if d in places else next(rest) for d in range(input.ndim)))


@public("t")
@on_nodes
def t(input: Array) -> Array:
    """The transpose of a matrix (vectors and scalars stay as they are). Any dtype. Raises ShapeError for more dimensions.

    >>> tg.t(tg.tensor([[1, 2], [3, 4]]))
    Tensor([[1, 3],
            [2, 4]], device='cpu')
    """
    if input.ndim > 2:
        raise ShapeError(f"t: takes at most 2 dimensions, got {input.shape}; use x.mT or x.transpose(dim0, dim1)")
    return mv.permute(input, tuple(reversed(range(input.ndim))))


@on_nodes
def T(input: Array) -> Array:
    """input with its dimensions reversed."""
    return mv.permute(input, tuple(reversed(range(input.ndim))))


@on_nodes
def mT(input: Array) -> Array:
    """input with its last two dimensions exchanged."""
    n = input.ndim
    if n < 2:
        raise ShapeError(f"mT: takes at least 2 dimensions, got {input.shape}")
    return mv.permute(input, (*range(n - 2), n - 1, n - 2))


Operators.T = property(T)  # type: ignore[attr-defined]
Operators.mT = property(mT)  # type: ignore[attr-defined]


@public("flip")
@on_nodes
def flip(input: Array, *dims: Any) -> Array:
    """Reversed along `dims` (integers, or one sequence of them). Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.flip(tg.tensor([[1, 2], [3, 4]]), 0, 1)
    Tensor([[4, 3],
            [2, 1]], device='cpu')
    """
    wanted = sizes_of("flip", dims)
    return mv.flip(input, some_dims("flip", wanted, input.ndim) if wanted else ())


@public("fliplr")
def fliplr(input: Array) -> Array:
    """Reversed along dimension 1. Any dtype. Raises IndexOutOfRange if there is none.

    >>> tg.fliplr(tg.tensor([[1, 2], [3, 4]]))
    Tensor([[2, 1],
            [4, 3]], device='cpu')
    """
    return flip(input, one_dim("fliplr", 1, input.ndim))


@public("flipud")
def flipud(input: Array) -> Array:
    """Reversed along dimension 0. Any dtype. Raises ShapeError if there is none.

    >>> tg.flipud(tg.tensor([[1, 2], [3, 4]]))
    Tensor([[3, 4],
            [1, 2]], device='cpu')
    """
    if not input.ndim:
        raise ShapeError("flipud: takes at least 1 dimension, got ()")
    return flip(input, one_dim("flipud", 0, input.ndim))


@public("roll")
@on_nodes
def roll(input: Array, shifts: Any, dims: Any = None) -> Array:
    """Elements moved by `shifts` along `dims`, those that fall off coming back at the other end (dims None: of the flattened tensor).
    Any dtype. Raises IndexOutOfRange for other dims.

    >>> tg.roll(tg.tensor([1, 2, 3, 4]), 1)
    Tensor([4, 1, 2, 3], device='cpu')
    """
    if dims is None:
        if isinstance(shifts, (list, tuple)) and len(shifts) != 1:
            raise ArgumentError(f"roll: needs a shift for each dimension, got shifts {shifts} and no dims")
        return mv.reshape(roll(mv.reshape(input, (input.aval.size,)), shifts, 0), input.shape)
    if not input.ndim:
        raise IndexOutOfRange(f"roll: a 0-d tensor has no dimension {dims}; leave dims out")
    counts, places = (tuple(v) if isinstance(v, (list, tuple)) else (v,) for v in (shifts, dims))
    if len(counts) != len(places):
        raise ArgumentError(f"roll: needs a shift for each dimension, got shifts {shifts} and dims {dims}")
    x = input
    for shift, dim in zip(counts, places, strict=True):
        x = mv.roll(x, integer("roll", "a shift", shift), one_dim("roll", dim, x.ndim))
    return x
