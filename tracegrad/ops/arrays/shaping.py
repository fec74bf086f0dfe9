"""Shaping functions: reshape, permute, expand, flip, pad, diagonals, ... composed of the movement primitives; none computes anything.

Names, arguments and meanings are torch's. All are pure here: the Tensor's methods say which results alias their base. `joining.py` has
`cat`, `split` and their kin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, IndexOutOfRange, ShapeError
from tracegrad.graph.families import broadcast_shapes
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import PUBLIC, Operators, functional, public
from tracegrad.graph.primitive import cast, const, iota, scalar
from tracegrad.ops.arguments import inferred, integer, known_values, on_nodes, one_dim, sizes_of, some_dims
from tracegrad.ops.arrays.pointwise import eq, ge, le
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.bits import view_dtype
from tracegrad.ops.primitives.elementwise import choose, where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


@public("reshape")
@on_nodes
def reshape(input: Array, *shape: Any) -> Array:
    """The same elements in another shape (sizes, or one sequence of them; one size may be -1). ShapeError if they do not fit. Any dtype."""
    return mv.reshape(input, inferred("reshape", input.shape, sizes_of("reshape", shape)))


@public("view")
@on_nodes
def view(input: Array, *shape: Any, dtype: Any = None) -> Array:
    """The same elements in another shape, as `reshape`; every tensor can be viewed (there is no "not contiguous" here).

    x.view(dtype): the same bytes as elements of another dtype, as a copy; see `ops.bits.view_dtype`. Raises ShapeError if they do not fit.
    """
    if dtype is not None and not shape:
        shape = (dtype,)
    elif dtype is not None:
        raise ArgumentError(f"view: takes a shape or a dtype, got {shape} and dtype={dtype}")
    if len(shape) == 1 and (dtypes.is_dtype(shape[0]) or isinstance(shape[0], str)):
        return view_dtype(input, shape[0])
    return mv.reshape(input, inferred("view", input.shape, sizes_of("view", shape)))


@public("view_as", "reshape_as")
@on_nodes
def view_as(input: Array, other: Array) -> Array:
    """input in the shape of other. Any dtype. ShapeError if they do not fit."""
    return mv.reshape(input, inferred("view_as", input.shape, other.shape))


@public("flatten")
@on_nodes
def flatten(input: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    """Dimensions start_dim to end_dim (included) as one; a 0-d tensor becomes 1-d. Any dtype. Raises IndexOutOfRange for other dims."""
    first, last = one_dim("flatten", start_dim, input.ndim), one_dim("flatten", end_dim, input.ndim)
    if first > last:
        raise ArgumentError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    size = 1
    for n in input.shape[first:last + 1]:
        size *= n
    return mv.reshape(input, (*input.shape[:first], size, *input.shape[last + 1:]))


@public("ravel")
def ravel(input: Array) -> Array:
    """All elements in one dimension. Any dtype. Raises DTypeError for what is no tensor."""
    return flatten(input)


@public("unflatten")
@on_nodes
def unflatten(input: Array, dim: int, sizes: Sequence[int]) -> Array:
    """Dimension dim split into `sizes` (one may be -1). Any dtype. ShapeError if they do not fit."""
    d = one_dim("unflatten", dim, input.ndim)
    parts = inferred("unflatten", (input.shape[d],), sizes_of("unflatten", (sizes,)))
    return mv.reshape(input, (*input.shape[:d], *parts, *input.shape[d + 1:]))


@public("squeeze")
@on_nodes
def squeeze(input: Array, dim: Any = None) -> Array:
    """Without the dimensions of size 1 (all of them, or those of `dim` that have size 1). Any dtype. Raises IndexOutOfRange."""
    dims = some_dims("squeeze", dim, input.ndim) if dim is None or dim not in ((), []) else ()
    return mv.reshape(input, tuple(n for d, n in enumerate(input.shape) if n != 1 or d not in dims))


@public("unsqueeze", "expand_dims")
@on_nodes
def unsqueeze(input: Array, dim: int) -> Array:
    """With a dimension of size 1 put in at `dim`. Any dtype. Raises IndexOutOfRange for other dims."""
    d = one_dim("unsqueeze", dim, input.ndim + 1)
    return mv.reshape(input, (*input.shape[:d], 1, *input.shape[d:]))


# -------------------------------------------------------------------------------------------------------- order of dimensions


@public("permute")
@on_nodes
def permute(input: Array, *dims: Any) -> Array:
    """Dimension i of the result is dimension dims[i] of input. Any dtype. Raises ArgumentError unless dims names each dimension once."""
    order = tuple(one_dim("permute", d, input.ndim) for d in sizes_of("permute", dims))
    if sorted(order) != list(range(input.ndim)):
        raise ArgumentError(f"permute: dims {order} must name each of the {input.ndim} dimensions of {input.shape} once")
    return mv.permute(input, order)


@public("transpose", "swapaxes", "swapdims")
@on_nodes
def transpose(input: Array, dim0: int, dim1: int) -> Array:
    """Dimensions dim0 and dim1 exchanged. Any dtype. Raises IndexOutOfRange for other dims."""
    order = list(range(input.ndim))
    a, b = one_dim("transpose", dim0, input.ndim), one_dim("transpose", dim1, input.ndim)
    if order:
        order[a], order[b] = order[b], order[a]
    return mv.permute(input, tuple(order))


@public("movedim", "moveaxis")
@on_nodes
def movedim(input: Array, source: Any, destination: Any) -> Array:
    """Dimension(s) `source` moved to place(s) `destination`; the others keep their order. Any dtype. Raises IndexOutOfRange."""
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
    """The transpose of a matrix (vectors and scalars stay as they are). Any dtype. Raises ShapeError for more dimensions."""
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


# ---------------------------------------------------------------------------------------------------------------- repetition


@public("expand")
@on_nodes
def expand(input: Array, *size: Any) -> Array:
    """input broadcast to `size` (-1 keeps one). ShapeError unless only dimensions of size 1, or new leading ones, grow. Any dtype."""
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
    """input broadcast to the shape of other. Any dtype. Raises ShapeError if it does not fit."""
    return expanded("expand_as", input, other.shape)


@public("broadcast_to")
@on_nodes
def broadcast_to(input: Array, *size: Any) -> Array:
    """input broadcast to `size` (-1 keeps one). Any dtype. Raises ShapeError if it does not fit."""
    return expanded("broadcast_to", input, sizes_of("broadcast_to", size))


@public("broadcast_tensors", method=False)
@on_nodes
def broadcast_tensors(*tensors: Array) -> tuple[Array, ...]:
    """The tensors expanded to their common shape. Any dtypes, which stay. Raises ShapeError if there is none."""
    shape = broadcast_shapes("broadcast_tensors", [x.shape for x in tensors])
    return tuple(mv.expand(x, shape) for x in tensors)


@public("tile")
@on_nodes
def tile(input: Array, *dims: Any) -> Array:
    """input laid side by side dims[i] times along dimension i, dims being filled up with ones in front.
    Any dtype. Raises DTypeError for what is no tensor."""
    reps = sizes_of("tile", dims)
    reps = (1,) * (input.ndim - len(reps)) + reps
    return repeat(input, *reps)


@public("repeat")
@on_nodes
def repeat(input: Array, *repeats: Any) -> Array:
    """input laid side by side repeats[i] times along dimension i (numpy's tile); more repeats than dimensions put new ones in front.
    Any dtype. Raises ArgumentError for fewer repeats than dimensions."""
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


# ------------------------------------------------------------------------------------------------------------ reorder and fill


@public("flip")
@on_nodes
def flip(input: Array, *dims: Any) -> Array:
    """Reversed along `dims` (integers, or one sequence of them). Any dtype. Raises IndexOutOfRange for other dims."""
    wanted = sizes_of("flip", dims)
    return mv.flip(input, some_dims("flip", wanted, input.ndim) if wanted else ())


@public("fliplr")
def fliplr(input: Array) -> Array:
    """Reversed along dimension 1. Any dtype. Raises IndexOutOfRange if there is none."""
    return flip(input, one_dim("fliplr", 1, input.ndim))


@public("flipud")
def flipud(input: Array) -> Array:
    """Reversed along dimension 0. Any dtype. Raises ShapeError if there is none."""
    if not input.ndim:
        raise ShapeError("flipud: takes at least 1 dimension, got ()")
    return flip(input, one_dim("flipud", 0, input.ndim))


@public("roll")
@on_nodes
def roll(input: Array, shifts: Any, dims: Any = None) -> Array:
    """Elements moved by `shifts` along `dims`, those that fall off coming back at the other end (dims None: of the flattened tensor).
    Any dtype. Raises IndexOutOfRange for other dims."""
    if dims is None:
        if isinstance(shifts, (list, tuple)) and len(shifts) != 1:
            raise ArgumentError(f"roll: needs a shift for each dimension, got shifts {shifts} and no dims")
        flat = flatten(input)
        return mv.reshape(roll(flat, shifts, 0), input.shape)
    if not input.ndim:
        raise IndexOutOfRange(f"roll: a 0-d tensor has no dimension {dims}; leave dims out")
    counts, places = (tuple(v) if isinstance(v, (list, tuple)) else (v,) for v in (shifts, dims))
    if len(counts) != len(places):
        raise ArgumentError(f"roll: needs a shift for each dimension, got shifts {shifts} and dims {dims}")
    x = input
    for shift, dim in zip(counts, places, strict=True):
        x = mv.roll(x, integer("roll", "a shift", shift), one_dim("roll", dim, x.ndim))
    return x


@functional
@on_nodes
def pad(input: Array, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Array:
    """input padded by pad = (low, high of the last dimension, low, high of the last but one, ...); negative numbers cut off.

    mode: "constant" (filled with `value`, 0), "reflect" (mirrored without the edge), "replicate" (the edge repeated), "circular".
    Any dtype. Raises ArgumentError for other modes."""
    widths = sizes_of("pad", (pad,))
    if len(widths) % 2 or len(widths) > 2 * input.ndim:
        raise ArgumentError(f"pad: pad must hold a pair for each of the last dimensions, at most {2 * input.ndim} numbers for "
                            f"{input.shape}, got {widths}")
    n = input.ndim
    low, high = [0] * n, [0] * n
    for i in range(len(widths) // 2):
        low[n - 1 - i], high[n - 1 - i] = widths[2 * i], widths[2 * i + 1]
    if mode == "constant":
        x = input
        if any(a < 0 for a in low) or any(b < 0 for b in high):
            start = tuple(max(0, -a) for a in low)
            stop = tuple(s - max(0, -b) for s, b in zip(x.shape, high, strict=True))
            if any(a > b for a, b in zip(start, stop, strict=True)):
                raise ShapeError(f"pad: {widths} cuts off more than {input.shape} has")
            x = mv.slice_(x, start, stop, (1,) * n)
        before, after = tuple(max(0, a) for a in low), tuple(max(0, b) for b in high)
        if isinstance(value, Node):                 # a run-time number: padded with zeros, which it then takes the place of
            inside = mv.pad(full_like_shape(x.shape, True, dtypes.bool_), before, after, None, False)
            return where(inside, mv.pad(x, before, after), cast(value, x.dtype))
        return mv.pad(x, before, after, None, scalar("pad", 0 if value is None else value, x.dtype).attrs["value"])
    if value:
        raise ArgumentError(f"pad: value is for mode 'constant', got {value} with mode {mode!r}")
    if mode not in ("reflect", "replicate", "circular"):
        raise ArgumentError(f"pad: mode must be 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    x = input
    for d in range(n):
        if low[d] or high[d]:
            x = _pad_from_itself(x, d, low[d], high[d], mode)
    return x


def _pad_from_itself(x: Node, d: int, low: int, high: int, mode: str) -> Node:
    """x padded along d with its own elements. Negative widths cut off: before "circular" goes round, after the other modes have padded."""
    n = x.shape[d]
    left, right = max(low, 0), max(high, 0)
    limit = {"reflect": n - 1, "replicate": max(left, right) if n else 0, "circular": n}[mode]
    if max(left, right) > limit:
        raise ShapeError(f"pad: mode {mode!r} takes at most {limit} in dimension {d} of {x.shape}, got {low} and {high}")
    if n + low + high < (mode != "circular") or n + min(low, 0) + min(high, 0) < 0:
        raise ShapeError(f"pad: {low} and {high} cut off all of dimension {d} of {x.shape}")
    if mode == "replicate":
        def edge(at: int, count: int) -> Node:
            return mv.expand(mv.narrow(x, d, at, 1), (*x.shape[:d], count, *x.shape[d + 1:]))

        parts = [edge(0, left), x, edge(n - 1, right)]
    elif mode == "reflect":
        parts = [mv.flip(mv.narrow(x, d, 1, left), (d,)), x, mv.flip(mv.narrow(x, d, n - 1 - right, right), (d,))]
    else:
        x = mv.narrow(x, d, max(0, -low), n + min(low, 0) + min(high, 0))
        m = x.shape[d]
        if m == 0 and (left or right):
            raise ShapeError(f"pad: {low} and {high} cut off all that mode 'circular' could repeat in dimension {d}, which had {n}")
        before, after = divmod(left, m or 1), divmod(right, m or 1)
        parts = [mv.narrow(x, d, m - before[1], before[1]), *[x] * (before[0] + 1 + after[0]), mv.narrow(x, d, 0, after[1])]
        low, high = left, right
        n = m
    padded = mv.concat([p for p in parts if p.shape[d]] or [x], d)
    return mv.narrow(padded, d, max(0, -low), n + low + high)


@public("tril")
@on_nodes
def tril(input: Array, diagonal: int = 0) -> Array:
    """The lower triangle of the last two dimensions (up to that diagonal), zero above. Any dtype. Raises ShapeError for fewer."""
    row, column = _row_column("tril", input, diagonal)
    return choose(le(column, row), input, const(0, input.dtype))


@public("triu")
@on_nodes
def triu(input: Array, diagonal: int = 0) -> Array:
    """The upper triangle of the last two dimensions (from that diagonal on), zero below. Any dtype. Raises ShapeError for fewer."""
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
    Any dtype. Raises IndexOutOfRange for other dims."""
    a, b = one_dim("diagonal", dim1, input.ndim), one_dim("diagonal", dim2, input.ndim)
    if a == b:
        raise ArgumentError(f"diagonal: dim1 and dim2 are both dimension {a}")
    rest = tuple(d for d in range(input.ndim) if d not in (a, b))
    x = mv.permute(input, (*rest, a, b))
    rows, columns = max(0, -offset), max(0, offset)
    n = max(0, min(x.shape[-2] - rows, x.shape[-1] - columns))
    lead = x.shape[:-2]
    x = mv.slice_(x, (*[0] * len(lead), min(rows, x.shape[-2]), min(columns, x.shape[-1])),
                  (*lead, min(rows, x.shape[-2]) + n, min(columns, x.shape[-1]) + n), (1,) * x.ndim)
    # Rows of n + 1: what was at (i, i) is now at (i, 0).
    flat = mv.pad(mv.reshape(x, (*lead, n * n)), (0,) * (len(lead) + 1), (*[0] * len(lead), n), None, 0)
    return mv.reshape(mv.narrow(mv.reshape(flat, (*lead, n, n + 1)), len(lead) + 1, 0, 1), (*lead, n))


@public("diag_embed")
@on_nodes
def diag_embed(input: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Matrices (in dimensions dim1 and dim2 of the result) with the last dimension of input on a diagonal, zero elsewhere.
    Any dtype. Raises IndexOutOfRange for other dims."""
    if not input.ndim:
        raise ShapeError("diag_embed: takes at least 1 dimension, got ()")
    a, b = (one_dim("diag_embed", d, input.ndim + 1) for d in (dim1, dim2))
    if a == b:
        raise ArgumentError(f"diag_embed: dim1 and dim2 are both dimension {a}")
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
    """The diagonal of a matrix; of a vector, the matrix that has it as its diagonal. Any dtype. Raises ShapeError for others."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise ShapeError(f"diag: takes 1 or 2 dimensions, got {input.shape}; use diagonal or diag_embed")
    return _diagonal(input, diagonal)


_diagonal = diagonal


@public("meshgrid", method=False)
@on_nodes
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Array, ...]:
    """Coordinate grids of 1-d tensors; indexing "ij" (rows first) or "xy" (the first two dimensions exchanged).
    Any dtypes. Raises ArgumentError for another indexing."""
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


def full_like_shape(shape: tuple[int, ...], value: Any, dtype: Any) -> Node:
    """A node of `shape` filled with a constant."""
    return mv.expand(const(value, dtype), shape)


def as_float(x: Node) -> Node:
    """x, cast to the default float dtype if it is neither a float nor complex."""
    return x if dtype_kind(x.dtype) in "fc" else cast(x, dtypes.get_default_dtype())
