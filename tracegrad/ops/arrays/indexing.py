"""Indexing: the primitives Take, ScatterAdd and ScatterSet, what torch makes of them (gather, embedding, ...), `getitem` and `setitem`.

The three primitives work on whole rows of the first dimension; everything else brings its indices into that form by movement ops and
index arithmetic. Indices that are known now (lists, numpy arrays) are checked at once. Those that only the device knows are checked
there (`index_checks.in_range`), and whoever looks at the result gets the error; the three clamp them, so that memory stays safe.
As in torch, negative ones count from the end in x[key], take and take_along_dim, and are errors in the other functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as to_int
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError, TraceError
from tracegrad.graph.families import broadcast_shapes, by_parts, common_dtype
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operators import PUBLIC, Operators, functional, public
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast, const, iota, scalar
from tracegrad.ops.arguments import known_values, on_nodes, one_dim
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.pointwise import detach, eq
from tracegrad.ops.arrays.shaping import cat, full_like_shape, movedim
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.dynamic_slice import pad_at, parts, slice_at
from tracegrad.ops.primitives.elementwise import choose, where
from tracegrad.ops.primitives.scans import Largest, Smallest
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import no_grad, state

Array = Any      # a Node or a Tensor


# -------------------------------------------------------------------------------------------------------------- primitives


def _check_rows(name: str, x: Aval, index: Aval) -> None:
    if not x.shape or index.dtype.kind not in "iu":
        raise ShapeError(f"{name}: takes a tensor of at least one dimension and integer indices, got {x} and {index}")
    if x.shape[0] == 0 and index.size:
        raise IndexOutOfRange(f"{name}: {index.size} indices into an empty dimension of {x.shape}")


def _check_source(name: str, base: Aval, index: Aval, src: Aval) -> None:
    _check_rows(name, base, index)
    expected = Aval(index.shape + base.shape[1:], base.dtype)
    if (src.shape, src.dtype) != (expected.shape, expected.dtype):
        raise ShapeError(f"{name}: source {src} must be {expected} for base {base} and index {index}")


class Take(Primitive):
    """x (N, *rest) at index (*I, integers): (*I, *rest). Indices are clamped to [0, N)."""
    name, family, expensive, picks, moves, pair = "take", "gather", True, True, True, by_parts
    cases = [(((5,), np.array([4, 0, 0])), {}), (((3, 2), np.array([[2, 1], [1, 1]])), {}), (((3, 2), np.array(1)), {}),
             (((0, 2), np.zeros((0,), np.int64)), {})]

    def aval(self, x, index):
        _check_rows("take", x, index)
        return Aval(index.shape + x.shape[1:], x.dtype)

    def numpy(self, x, index):
        if len(x) and index.dtype.kind == "i":
            return x.take(index, 0, None, "clip")               # a third of the time, for few elements
        return x[np.clip(index, 0, max(0, len(x) - 1))]

    def vjp(self, ct, y, x, index): return scatter_rows("scatter_add", full_like_shape(x.shape, 0, ct.dtype), index, ct), None


class Scatter(Primitive):
    """Base of scatters; base (N, *rest), index (*I, integers clamped to [0, N)), src (*I, *rest). joins: what several bring to a row."""
    family, expensive, cost, pair = "scatter", True, 10.0, by_parts
    joins: ClassVar[bool] = False
    cases = [(((5,), np.array([4, 0, 0]), (3,)), {}), (((3, 2), np.array([[2, 1], [1, 1]]), (2, 2, 2)), {}),
             (((3, 2), np.array(1), (2,)), {}), (((3, 2), np.zeros((0,), np.int64), (0, 2)), {})]

    def aval(self, base, index, src):
        _check_source(self.name, base, index, src)
        return base

    def numpy(self, base, index, src):
        out = np.array(base, order="C")
        rows = np.minimum(np.maximum(index, 0), max(0, len(out) - 1))                       # a third of np.clip's time, for few elements
        self.put(out, rows.reshape(-1), src.reshape(index.size, *out.shape[1:]))
        return out

    def put(self, out, rows, values):
        """Bring `values` to the `rows` of the array `out`."""
        raise NotImplementedError


class ScatterAdd(Scatter):
    """base with src added to the rows that index names; in index order, so deterministic."""
    name, joins, in_steps = "scatter_add", True, True

    def numpy(self, base, index, src):
        if base.dtype != np.float16:
            return super().numpy(base, index, src)
        return super().numpy(base.astype(np.float32), index, src.astype(np.float32)).astype(np.float16)       # 3000 ones would be 2048

    def put(self, out, rows, values):
        width = prod(out.shape[1:])
        if width > 1 and values.size > 64:                  # of single elements it takes a quarter of the time; in the same order
            rows = ((rows.astype(np.intp, copy=False) * width)[:, None] + np.arange(width)).reshape(-1)
            np.add.at(out.reshape(-1), rows, values.reshape(-1))
        else:
            np.add.at(out, rows, values)

    def vjp(self, ct, y, base, index, src): return ct, None, take_rows(ct, index)


class ScatterSet(Scatter):
    """base with the rows that index names replaced by src; of equal indices the last wins."""
    name, picks, moves = "scatter_set", True, True

    def put(self, out, rows, values): out[rows] = values        # numpy assigns in order, too

    def vjp(self, ct, y, base, index, src):
        kept = scatter_rows("scatter_set", ct, index, full_like_shape(src.shape, 0, ct.dtype))
        # Which writes survived: write each write's number, and see who reads back its own.
        order = mv.reshape(iota((prod(index.shape),), 0, dtypes.int32), index.shape)
        winners = eq(take_rows(scatter_rows("scatter_set", full_like_shape(base.shape[:1], -1, dtypes.int32), index, order), index), order)
        winners = mv.reshape(winners, (*index.shape, *[1] * (base.ndim - 1)))
        return kept, None, where(winners, take_rows(ct, index), const(0, ct.dtype))


class ScatterMax(Largest, Scatter):
    """base with the rows that index names replaced by the largest of theirs and those of src; NaN if any is."""
    name, differentiable, joins = "scatter_max", False, True

    def put(self, out, rows, values): np.maximum.at(out, rows, values)


class ScatterMin(Smallest, Scatter):
    """base with the rows that index names replaced by the smallest of theirs and those of src; NaN if any is."""
    name, differentiable, joins = "scatter_min", False, True

    def put(self, out, rows, values): np.minimum.at(out, rows, values)


def take_rows(x: Node, index: Node) -> Node:
    """The rows of x that index names; indices are in range."""
    return bind(REGISTRY["take"], (x, index), {})


def scatter_rows(primitive: str, base: Node, index: Node, src: Node) -> Node:
    """scatter_add, scatter_set, scatter_max or scatter_min of whole rows; indices are in range."""
    return bind(REGISTRY[primitive], (base, index, src), {})


def _of(d: int, shape: tuple[int, ...]) -> str:
    return f"dimension {d} of shape {shape}"


# ------------------------------------------------------------------------------------------------------- torch's functions


def _linear(name: str, shape: tuple[int, ...], d: int, index: Node, what: str = "index", wrap: bool = False) -> Any:
    """For each element of index (which stands in place d of a multi-index), its place in a flattened tensor of `shape`."""
    if index.ndim != len(shape):
        raise ShapeError(f"{name}: index {index.shape} must have as many dimensions as the input {shape}; take_along_dim broadcasts")
    if any(i > n for k, (i, n) in enumerate(zip(index.shape, shape, strict=True)) if k != d):
        raise ShapeError(f"{name}: index {index.shape} is larger than the input {shape} beyond dimension {d}")
    out = in_range(index, shape[d], name, what, _of(d, shape), wrap=wrap) * prod(shape[d + 1:])
    for k, n in enumerate(index.shape):
        if k != d and n > 1:
            out = out + iota(index.shape, k, out.dtype) * prod(shape[k + 1:])
    return out


def _flat(x: Node) -> Node:
    return mv.reshape(x, (prod(x.shape),))


@public("gather")
@on_nodes
def gather(input: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """out[i][j][k] = input[index[i][j][k]][j][k] (for dim 0): the shape of index. ArgumentError for sparse_grad: gradients are dense."""
    if sparse_grad:
        raise ArgumentError("gather: sparse_grad=True is not supported: there are no sparse gradients; leave it out")
    return _gather("gather", input, dim, index)


def _gather(name: str, x: Node, dim: int, index: Node, what: str = "index", wrap: bool = False) -> Node:
    d = one_dim(name, dim, x.ndim)
    if not index.aval.size and index.ndim != x.ndim:            # nothing to take, whatever the rank
        return mv.reshape(mv.narrow(_flat(x), 0, 0, 0), index.shape)
    if x.ndim:
        return take_rows(_flat(x), _linear(name, x.shape, d, index, what, wrap=wrap))
    if index.ndim > 1:
        raise ShapeError(f"{name}: {what} {index.shape} must have at most one dimension, as the input has none")
    return take_rows(_flat(x), in_range(index, 1, name, what, "a 0-d tensor", wrap=wrap))


@public("take_along_dim", "take_along_axis")
@on_nodes
def take_along_dim(input: Array, indices: Array, dim: int | None = None) -> Array:
    """gather, with input and indices broadcast beyond dim; dim None: both are flattened. Negative indices count from the end."""
    if dim is None:
        return _gather("take_along_dim", _flat(input), 0, _flat(indices), "indices", wrap=True)
    d = one_dim("take_along_dim", dim, input.ndim)
    if indices.ndim != input.ndim:
        raise ShapeError(f"take_along_dim: indices {indices.shape} must have as many dimensions as the input {input.shape}")
    shape = broadcast_shapes("take_along_dim", [(*s[:d], 1, *s[d + 1:]) for s in (input.shape, indices.shape)])
    x = mv.expand(input, (*shape[:d], input.shape[d], *shape[d + 1:]))
    index = mv.expand(indices, (*shape[:d], indices.shape[d], *shape[d + 1:]))
    return _gather("take_along_dim", x, d, index, "indices", wrap=True)


@public("take")
@on_nodes
def take(input: Array, index: Array) -> Array:
    """The elements of the flattened input at index: the shape of index. Negative indices count from the end."""
    n = prod(input.shape)
    return take_rows(_flat(input), in_range(index, n, "take", "index", f"the {n} elements of shape {input.shape}", wrap=True))


@public("scatter_add")
@on_nodes
def scatter_add(input: Array, dim: int, index: Array, src: Array) -> Array:
    """input with src[i][j][k] added at [index[i][j][k]][j][k] (for dim 0). Sums in index order: deterministic."""
    return _scatter("scatter_add", "scatter_add", input, dim, index, src)


@public("scatter")
@on_nodes
def scatter(input: Array, dim: int, index: Array, src: Array = None, *, value: Any = None, reduce: str | None = None) -> Array:
    """input with src[i][j][k] (or one value) put at [index[i][j][k]][j][k] (for dim 0); the last of several wins.

    reduce: "add" adds it, "multiply" multiplies by it.
    """
    if reduce not in (None, "add", "multiply"):
        raise ArgumentError(f"scatter: reduce must be None, 'add' or 'multiply', got {reduce!r}")
    source = value if src is None else src
    if reduce == "multiply":
        one = cast(source, input.dtype) if isinstance(source, Node) else scalar("scatter", source, input.dtype)
        by = source if isinstance(source, Node) and source.ndim else mv.expand(one, index.shape)
        return PUBLIC["scatter_reduce"](input, dim, index, by, "prod")
    return _scatter("scatter", "scatter_set" if reduce is None else "scatter_add", input, dim, index, source)


def _scatter(name: str, primitive: str, x: Node, dim: int, index: Node, src: Any) -> Node:
    d = one_dim(name, dim, x.ndim)
    if isinstance(src, Node) and src.ndim:
        if src.ndim != index.ndim or any(i > s for i, s in zip(index.shape, src.shape, strict=True)):
            raise ShapeError(f"{name}: source {src.shape} must be at least as large as index {index.shape} in every dimension")
        _check_dtype(name, src, x)
        src = mv.slice_(src, (0,) * src.ndim, index.shape, (1,) * src.ndim)
    else:
        src = mv.expand(cast(src, x.dtype) if isinstance(src, Node) else scalar(name, src, x.dtype), index.shape)
    if not x.ndim:
        rows = in_range(mv.reshape(index, (1,)), 1, name, "index", "a 0-d tensor")
        return mv.reshape(scatter_rows(primitive, mv.reshape(x, (1,)), rows, mv.reshape(src, (1,))), ())
    lines = _linear(name, x.shape, d, index)
    return mv.reshape(scatter_rows(primitive, _flat(x), _flat(lines), _flat(src)), x.shape)


def _check_dtype(name: str, source: Any, x: Node) -> None:
    if not isinstance(source, Node) or source.dtype != x.dtype:
        got = source.dtype if isinstance(source, Node) else type(source).__name__
        raise DTypeError(f"{name}: source {got} and input {x.dtype} must have one dtype; cast one of them")


@public("index_select")
@on_nodes
def index_select(input: Array, dim: int, index: Array) -> Array:
    """The slices of input along dim that index (1-d) names, in its order."""
    d, rows, moved = _rows("index_select", input, dim, index)
    y = _back(take_rows(moved, rows), d)
    return y if input.ndim or y.shape != (1,) else mv.reshape(y, ())


@public("index_add")
@on_nodes
def index_add(input: Array, dim: int, index: Array, source: Array, *, alpha: float = 1) -> Array:
    """input with the slices of source (times alpha) added to the slices along dim that index (1-d) names."""
    d, rows, moved = _rows("index_add", input, dim, index)
    src = _slices("index_add", source, input, d, rows)
    src = src if alpha == 1 else cast(src * alpha, input.dtype)
    return mv.reshape(_back(scatter_rows("scatter_add", moved, rows, src), d), input.shape)


@public("index_copy")
@on_nodes
def index_copy(input: Array, dim: int, index: Array, source: Array) -> Array:
    """input with the slices along dim that index (1-d) names replaced by those of source."""
    d, rows, moved = _rows("index_copy", input, dim, index)
    return mv.reshape(_back(scatter_rows("scatter_set", moved, rows, _slices("index_copy", source, input, d, rows)), d), input.shape)


def _slices(name: str, source: Node, x: Node, d: int, rows: Node) -> Any:
    """The slices of source along d, in front: one for each of rows, and as x's else."""
    _check_dtype(name, source, x)
    expected = (*x.shape[:d], rows.shape[0], *x.shape[d + 1:]) if x.ndim else source.shape
    if source.shape != expected:
        raise ShapeError(f"{name}: source {source.shape} must be {expected} for {rows.shape[0]} indices along dimension {d} of {x.shape}")
    return movedim(source if source.ndim else mv.reshape(source, (1,)), d, 0)


def _rows(name: str, x: Node, dim: int, index: Any) -> tuple[int, Node, Node]:
    if not isinstance(index, Node) or index.ndim > 1:
        raise ShapeError(f"{name}: index must be a 1-d tensor, got {getattr(index, 'shape', type(index).__name__)}")
    d = one_dim(name, dim, x.ndim)
    x = x if x.ndim else mv.reshape(x, (1,))
    rows = in_range(index if index.ndim else mv.reshape(index, (1,)), x.shape[d], name, "index", _of(d, x.shape))
    return d, rows, movedim(x, d, 0)


def _back(y: Node, d: int) -> Any:
    return movedim(y, 0, d)


@public("masked_fill")
@on_nodes
def masked_fill(input: Array, mask: Array, value: Any) -> Array:
    """value (a scalar or 0-d tensor) where mask (bool, broadcast) holds, else input."""
    if mask.dtype != dtypes.bool_:
        raise DTypeError(f"masked_fill: the mask must be bool, got {mask.dtype}; use mask.bool()")
    if isinstance(value, Node) and value.ndim:
        raise ShapeError(f"masked_fill: value must be a number or a 0-d tensor, got shape {value.shape}; use tg.where(mask, value, input)")
    if isinstance(value, Node) and dtype_kind(value.dtype) == "c" != dtype_kind(input.dtype):
        raise DTypeError(f"masked_fill: a value of {value.dtype} does not fit {input.dtype}; cast the tensor first, as x.to(tg.complex64)")
    broadcast_shapes("masked_fill", [input.shape, mask.shape])
    return where(mask, cast(value, input.dtype) if isinstance(value, Node) else scalar("masked_fill", value, input.dtype), input)


@public("masked_select")
def masked_select(input: Array, mask: Array) -> Array:
    """The elements where mask holds, as a vector. Its length depends on values: not inside @trace."""
    if not isinstance(mask, Operators) or mask.dtype != dtypes.bool_:
        got = getattr(mask, "dtype", type(mask).__name__)
        raise DTypeError(f"masked_select: the mask must be a bool Tensor, got {got}; use mask.bool()")
    shape = broadcast_shapes("masked_select", [input.shape, mask.shape])
    return input.expand(shape)[mask.expand(shape)]


@functional
def embedding(input: Array, weight: Array, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> Array:
    """Rows of weight (V, D) for integers input (*) from 0 to V - 1: (*, D). padding_idx: that row gets no gradient.

    max_norm: rows that are looked up and longer (in the norm of order norm_type) are scaled to that length first, in place.
    scale_grad_by_freq: a row's gradient is divided by how often it was looked up. ArgumentError for sparse=True: gradients are dense.
    """
    if sparse:
        raise ArgumentError("embedding: sparse=True is not supported: there are no sparse gradients; leave it out")
    if max_norm is not None:
        shorten_rows(weight, input, max_norm, norm_type)
    return _embedding(input, weight, padding_idx, scale_grad_by_freq)


def shorten_rows(weight: Array, index: Array, max_norm: float, norm_type: float) -> None:
    """Scale the rows of `weight` that index names and that are longer than max_norm to that length, in place and without a derivative."""
    with no_grad():
        rows = weight.detach()
        places = index.reshape(-1)
        named = rows.new_zeros(rows.shape[0], dtype=dtypes.bool_).scatter(0, places, True)
        norms = rows.norm(norm_type, 1)
        factor = where(named & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
        weight.copy_(rows * factor.unsqueeze(1))


@on_nodes
def _embedding(input: Array, weight: Array, padding_idx: int | None, scale_grad_by_freq: bool) -> Array:
    if weight.ndim != 2:
        raise ShapeError(f"embedding: weight must be (number of rows, size), got {weight.shape}")
    n = weight.shape[0]
    rows = in_range(input, n, "embedding", "input", f"a weight of {n} rows")
    y = take_rows(weight, rows)
    if scale_grad_by_freq:
        flat = mv.reshape(rows, (rows.aval.size,))
        one = full_like_shape(flat.shape, 1, y.dtype)
        often = take_rows(scatter_rows("scatter_add", full_like_shape((n,), 0, y.dtype), flat, one), flat)
        scaled = y / mv.reshape(often, (*rows.shape, 1))
        y = detach(y) + (scaled - detach(scaled))               # y, with the derivative of what is scaled
    if padding_idx is None:
        return y
    if not -n <= padding_idx < n:
        raise IndexOutOfRange(f"embedding: padding_idx {padding_idx} is out of range for {n} rows")
    padding = mv.reshape(eq(rows, padding_idx % n), (*rows.shape, 1))
    return where(padding, detach(y), y)


@public("one_hot", functional=True, method=False)
def one_hot(input: Array, num_classes: int = -1) -> Array:
    """int64 (*, num_classes) with a 1 at each integer of input (*).

    num_classes: -1 for one more than the largest integer, which is looked at; inside @trace that is a TraceError. Raises ArgumentError if
    there is none to look at.
    """
    if isinstance(input, Operators) and num_classes == -1:
        values = known_values("one_hot", "input", input, "give num_classes")
        if not values.size:
            raise ArgumentError(f"one_hot: an input of shape {input.shape} has no largest class; give num_classes")
        num_classes = max(1, int(values.max()) + 1)
    return _one_hot(input, num_classes)


@on_nodes
def _one_hot(input: Node, num_classes: int) -> Any:
    if input.dtype.kind not in "iu":
        raise DTypeError(f"one_hot: input must hold integers, got {input.dtype}; use x.long()")
    if num_classes <= 0:
        raise ArgumentError(f"one_hot: num_classes must be positive, or -1 to find it in the values, got {num_classes}")
    classes = in_range(input, num_classes, "one_hot", "input", f"{num_classes} classes")
    hit = eq(iota((*input.shape, num_classes), input.ndim, classes.dtype), mv.reshape(classes, (*input.shape, 1)))
    return cast(hit, dtypes.int64)


# ------------------------------------------------------------------------------------------------------------ x[key]


_BASIC = frozenset({int, slice, type(None), type(Ellipsis)})


def is_basic(key: Any) -> bool:
    """Whether a key holds only ints, slices, None and Ellipsis: the result is then a view."""
    for k in key if isinstance(key, tuple) else (key,):
        if type(k) not in _BASIC and (isinstance(k, bool) or not isinstance(k, (slice, int, np.integer))):
            return False
    return True


def expand_mask(key: Any, masks: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The key with each boolean mask replaced by its nonzero index arrays. masks: the values of the masks that are tensors, in order."""
    out: list[Any] = []
    known = iter(masks)
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, Operators) and k.dtype == dtypes.bool_:
            k = next(known, k)
        if isinstance(k, (range, tuple)):
            k = list(k)
        if isinstance(k, np.ndarray) and k.dtype == np.bool_ and not k.ndim:
            out.append(bool(k))
        elif isinstance(k, (list, np.ndarray)) and np.asarray(k).dtype == np.bool_:
            out.extend(_Mask(indices, np.shape(k), axis) for axis, indices in enumerate(np.nonzero(np.asarray(k))))
        else:
            out.append(k)
    return tuple(out)


class _Mask:
    """One of the index arrays that a boolean mask became; remembers the mask's shape to check it."""

    def __init__(self, indices: Any, shape: tuple[int, ...], axis: int) -> None:
        self.indices, self.shape, self.axis = indices, shape, axis


class _Key:
    """A key, taken apart for a tensor of `shape`: per dimension a slice, then reversals, dropped and new dimensions, then index arrays.

    As in torch, integers are taken first and do not count as index arrays: x[0, :, rows] is x[0][:, rows] (numpy differs). Tensors of no
    dimensions are integers.
    """

    def __init__(self, name: str, shape: tuple[int, ...], key: Any) -> None:
        items = list(expand_mask(key))
        used = sum(1 for k in items if k is not None and k is not Ellipsis and not isinstance(k, (bool, np.bool_)))
        if used > len(shape):
            raise IndexOutOfRange(f"{name}: {used} indices for a tensor of {len(shape)} dimensions, shape {shape}")
        dots = [i for i, k in enumerate(items) if k is Ellipsis]
        if len(dots) > 1:
            raise ArgumentError(f"{name}: at most one '...' in an index")
        at = dots[0] if dots else len(items)
        items[at:at + 1] = [slice(None)] * (len(shape) - used)
        self.start: list[int] = []
        self.stop: list[int] = []
        self.step: list[int] = []
        self.flips: list[int] = []
        self.chosen: list[int] = []              # the dimensions whose start the key gives
        self.shape: list[int] = []               # after the basic part
        self.nothing: list[int] = []             # dimensions of it that the index False made: they have no elements
        self.arrays: list[tuple[int, Any]] = []  # (dimension after the basic part, index array or node)
        for k in items:
            if k is None or isinstance(k, (bool, np.bool_)):
                if k is not None and not k:
                    self.nothing.append(len(self.shape))
                self.shape.append(1)
            else:
                self._dimension(name, shape, k)
        self.basic = all(s == 1 and a == 0 and b == n for a, b, s, n in zip(self.start, self.stop, self.step, shape, strict=True)) \
            and not self.flips and tuple(self.shape) == shape

    def _dimension(self, name: str, shape: tuple[int, ...], k: Any) -> None:
        d = len(self.start)
        n = shape[d]
        if isinstance(k, slice):
            try:
                a, b, s = k.indices(n)
            except (TypeError, ValueError) as error:
                raise ArgumentError(f"{name}: bad slice {k}: {error}") from None
            count = len(range(a, b, s))
            if k.start is not None:
                self.chosen.append(d)
            if s < 0:
                self.flips.append(d)
                a, s = a + (count - 1) * s, -s
            self._slice(a if count else 0, (a + (count - 1) * s + 1) if count else 0, s)
            self.shape.append(count)
            return
        if not isinstance(k, (list, np.ndarray, Node, _Mask)):
            try:
                i = to_int(k)
            except TypeError:
                raise ArgumentError(f"{name}: an index must be integers, slices, None, '...', or tensors or lists of integers or bools, "
                                    f"got {type(k).__name__}") from None
            if not -n <= i < n:
                raise IndexOutOfRange(f"{name}: index {i} is out of range for dimension {d} of shape {shape}")
            self.chosen.append(d)
            self._slice(i % n, i % n + 1, 1)
            return
        if isinstance(k, _Mask):
            if k.shape[k.axis] not in (n, 0):                    # 0 selects nothing, as in numpy
                raise IndexOutOfRange(f"{name}: a boolean mask of shape {k.shape} does not fit dimension {d} of shape {shape}")
            k = k.indices
        elif isinstance(k, Node):
            if k.dtype == dtypes.bool_:
                raise TraceError(f"{name}: the shape of a tensor indexed by a boolean mask depends on values, which are not known here; "
                                 "use tg.where(mask, x, 0), or masked_fill")
            k = in_range(k, n, name, "index", _of(d, shape), wrap=True)
        else:
            k = _checked(name, k, n, d, shape)
        self.arrays.append((len(self.shape), k))
        self._slice(0, n, 1)
        self.shape.append(n)

    def _slice(self, start: int, stop: int, step: int) -> None:
        self.start.append(start)
        self.stop.append(stop)
        self.step.append(step)

    @property
    def size(self) -> tuple[int, ...]:
        """The sizes that the slices leave."""
        return tuple([len(range(a, b, s)) for a, b, s in zip(self.start, self.stop, self.step, strict=True)])

    def sliced(self, x: Node, apart: bool = False) -> Node:
        """x after the basic part. apart: its starts are no part of the structure (see ops/primitives/dynamic_slice.py)."""
        dims = [d for d in parts(self.size, x.shape) if d in self.chosen] if apart else ()
        if dims:
            x = slice_at(x, self.start, self.size, self.step, dims)
        else:
            x = mv.slice_(x, tuple(self.start), tuple(self.stop), tuple(self.step))
        x = mv.reshape(mv.flip(x, tuple(self.flips)), tuple(self.shape))
        for d in self.nothing:
            x = mv.narrow(x, d, 0, 0)
        return x

    def put(self, x: Node, value: Node, apart: bool = False) -> Any:
        """x with its basic part replaced by value. apart: as in `sliced`."""
        if self.nothing:
            return x
        dims = [d for d in parts(self.size, x.shape) if d in self.chosen] if apart else ()
        return put_slice(x, mv.flip(mv.reshape(value, self.size), tuple(self.flips)), tuple(self.start), tuple(self.step), dims)

    def lines(self, constant: Any) -> tuple[Node, list[int], int]:
        """(rows of the tensor with the indexed dimensions in front and flattened, those dimensions, where the result puts the index's)."""
        dims = [d for d, _ in self.arrays]
        nodes = [constant(k) if isinstance(k, np.ndarray) else k for _, k in self.arrays]
        nodes = common_dtype(nodes)
        shape = broadcast_shapes("index", [k.shape for k in nodes])
        sizes = [self.shape[d] for d in dims]
        rows = None
        for i, k in enumerate(nodes):
            scale = prod(sizes[i + 1:])
            part = k if scale == 1 else k * scale
            rows = part if rows is None else rows + part
        rest = [d for d in range(len(self.shape)) if d not in dims or nodes[dims.index(d)].shape]
        at = [i for i, d in enumerate(rest) if d in dims]                   # of the arrays that are no integers
        place = at[0] if at and at == list(range(at[0], at[0] + len(at))) else 0
        return mv.expand(rows, shape), dims, place                          # type: ignore[arg-type]


def _checked(name: str, values: Any, n: int, d: int, shape: tuple[int, ...]) -> Any:
    """Indices that are known now, as a numpy array of int64 in [0, n)."""
    if isinstance(values, list) and any(isinstance(v, Operators) for v in values):
        raise DTypeError(f"{name}: a list that holds tensors is no index; make one tensor of it with tg.stack")
    array = np.asarray(values)
    if array.size == 0 and dtype_kind(array.dtype) == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name}: an index must hold integers or bools, got {array.dtype}")
    if array.size and not (-n <= array.min() and array.max() < n):
        bad = array.min() if array.min() < -n else array.max()
        raise IndexOutOfRange(f"{name}: index {bad} is out of range for dimension {d} of shape {shape}")
    return np.where(array < 0, array + n, array).astype(np.int64)


def put_slice(x: Node, value: Node, start: Sequence[int], step: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """x with x[start::step] (as many elements as value has) replaced by value: padding and a select, which fuse.

    dims: those whose start is no part of the structure (see ops/primitives/dynamic_slice.py).
    """
    if value.shape == x.shape or not value.aval.size:
        return value if value.shape == x.shape else x
    high = tuple(n - (a + (m - 1) * s + 1) for n, m, a, s in zip(x.shape, value.shape, start, step, strict=True))
    whole = [m == n for m, n in zip(value.shape, x.shape, strict=True)]
    inside = full_like_shape(tuple(1 if w else m for w, m in zip(whole, value.shape, strict=True)), True, dtypes.bool_)
    if dims:
        inside = pad_at(inside, start, tuple(1 if w else n for w, n in zip(whole, x.shape, strict=True)), step, dims)
        return choose(inside, pad_at(value, start, x.shape, step, dims), x)
    gaps = tuple(s - 1 if m > 1 else 0 for s, m in zip(step, value.shape, strict=True))
    inside = mv.pad(inside, tuple(start), high, gaps, False)
    return choose(inside, mv.pad(value, tuple(start), high, gaps, 0), x)


def _constants(x: Any) -> Any:
    """How to make an operand of an index array that is known now: a tensor on x's device, or for nodes a concatenation of literals."""
    def literal(k: Any) -> Node:
        if k.size == 0:
            return full_like_shape(k.shape, 0, dtypes.int64)
        return mv.reshape(cat([mv.reshape(const(int(v), dtypes.int64), (1,)) for v in k.reshape(-1)]), k.shape)

    def entered(k: Any) -> Any:
        if k.size <= 4:
            return literal(k)
        given = k if state.trace is None else k.tolist()         # a trace takes no arrays of the user's; this is none
        return PUBLIC["tensor"](given, dtype=dtypes.int64, device=x.device)._node()

    return literal if isinstance(x, Node) else entered


def getitem(x: Array, key: Any, basic: bool = False, apart: bool = False) -> Array:
    """x[key]: ints, slices (any step), None, Ellipsis; integer lists, arrays and tensors, which broadcast together; masks whose values are

    known (lists, numpy arrays). basic: that `is_basic` says so. apart: where slices start is no part of the structure
    (ops/primitives/dynamic_slice.py). Raises IndexOutOfRange, and TraceError for a mask that only the device knows.
    """
    return _getitem(x, key, None if basic or _holds_no_arrays(key) else _constants(x), apart)


def _holds_no_arrays(key: Any) -> bool:
    """Whether all index arrays of a key are tensors already."""
    items = key if isinstance(key, tuple) else (key,)
    return all(k is None or k is Ellipsis or isinstance(k, (slice, int, np.integer, Operators)) for k in items)


@on_nodes
def _getitem(x: Node, key: Any, constant: Any, apart: bool) -> Any:
    known = _Key("getitem", x.shape, key)
    view = known.sliced(x, apart)
    if not known.arrays:
        return view
    rows, dims, place = known.lines(constant)
    y = take_rows(_in_front(view, dims), rows)
    return movedim(y, tuple(range(rows.ndim)), tuple(range(place, place + rows.ndim)))


def _in_front(x: Node, dims: list[int]) -> Node:
    """x with `dims` moved to the front and made one."""
    rest = [d for d in range(x.ndim) if d not in dims]
    moved = mv.permute(x, (*dims, *rest))
    return mv.reshape(moved, (prod(x.shape[d] for d in dims), *(x.shape[d] for d in rest)))


def setitem(x: Array, key: Any, value: Any, apart: bool = False) -> Array:
    """What x becomes by x[key] = value, as a new array; value is broadcast and cast to x's dtype. apart: as in `getitem`.

    A boolean mask needs no values where `selects` says so: it is a select. (Where the value holds one element per hit, their number
    cannot be checked.) Of equal indices the last wins.
    """
    return _setitem(x, key, value, _constants(x), apart)


@on_nodes
def _setitem(x: Node, key: Any, value: Any, constant: Any, apart: bool) -> Any:
    value = cast(value, x.dtype) if isinstance(value, Node) else scalar("setitem", value, x.dtype)
    items = key if isinstance(key, tuple) else (key,)
    masks = [i for i, k in enumerate(items) if isinstance(k, Node) and k.dtype == dtypes.bool_]
    if masks:
        return _put_where(x, items, masks, value)
    known = _Key("setitem", x.shape, key)
    view = known.sliced(x, apart and bool(known.arrays))
    if not known.arrays:
        return known.put(x, _broadcast(value, view.shape), apart)
    rows, dims, place = known.lines(constant)
    front = _in_front(view, dims)
    shape = list(front.shape[1:])
    shape[place:place] = rows.shape
    value = movedim(_broadcast(value, tuple(shape)), tuple(range(place, place + rows.ndim)), tuple(range(rows.ndim)))
    front = scatter_rows("scatter_set", front, rows, value)
    order = (*dims, *(d for d in range(view.ndim) if d not in dims))
    return known.put(x, mv.permute(mv.reshape(front, tuple(view.shape[d] for d in order)), mv.inverse(order)), apart)


def selects(x: Array, key: Any, value: Any) -> bool:
    """Whether x[key] = value is a select, for a key with boolean masks: nothing depends on the number of hits."""
    items = key if isinstance(key, tuple) else (key,)
    masks = [i for i, k in enumerate(items) if isinstance(k, Operators) and k.dtype == dtypes.bool_]
    if not _alone(items, masks):
        return False
    rest = x.ndim - masks[0] - items[masks[0]].ndim
    shape = value.shape if isinstance(value, Operators) else ()
    return all(n == 1 for n in shape[:max(0, len(shape) - rest)])


def _alone(items: Sequence[Any], masks: list[int]) -> bool:
    """Whether there is one mask, and beside it whole slices in front and '...' or whole slices behind."""
    i = masks[0]
    return len(masks) == 1 and all(k == slice(None) for k in items[:i]) and all(k is Ellipsis or k == slice(None) for k in items[i + 1:])


def _broadcast(value: Node, shape: tuple[int, ...]) -> Node:
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = mv.reshape(value, value.shape[1:])
    if value.ndim > len(shape) or any(a not in (1, b) for a, b in zip(reversed(value.shape), reversed(shape), strict=False)):
        raise ShapeError(f"setitem: a value of shape {value.shape} cannot be broadcast to the indexed part, {shape}")
    return mv.expand(value, shape)


def _put_where(x: Node, items: Sequence[Any], masks: list[int], value: Node) -> Any:
    """x[mask] = value without looking at the mask: the mask may stand behind whole slices, and before them or '...'."""
    i = masks[0]
    if not _alone(items, masks):
        raise TraceError("setitem: a boolean mask together with other indices needs its values; use tg.where, or index in two steps")
    mask = items[i]
    if not mask.aval.size and all(m in (n, 0) for m, n in zip(mask.shape, x.shape[i:], strict=False)) and mask.ndim <= x.ndim - i:
        return x                                                                         # it selects nothing, as in numpy
    if x.shape[i:i + mask.ndim] != mask.shape:
        raise IndexOutOfRange(f"setitem: a mask of shape {mask.shape} does not fit dimensions {i} to {i + mask.ndim - 1} of {x.shape}")
    rest = x.shape[i + mask.ndim:]
    condition = mv.reshape(mask, (*mask.shape, *[1] * len(rest)))
    if i == 0 and value.ndim == 1 + len(rest) and value.shape[0] != 1:
        if value.shape[0] == 0:
            return x
        hit = mv.reshape(mask, (prod(mask.shape),))
        place = bind(REGISTRY["cumsum"], (cast(hit, dtypes.int64),), {"dim": 0}) - 1
        value = mv.reshape(take_rows(_broadcast(value, (value.shape[0], *rest)), place), x.shape)
    else:
        if any(n != 1 for n in value.shape[:max(0, value.ndim - len(rest))]):
            raise ShapeError(f"setitem: a value of shape {value.shape} for a mask of shape {mask.shape}: give a scalar, something that "
                             f"broadcasts to {rest}, one element per hit, or use tg.where(mask, value, x) for a value of x's shape")
        value = _broadcast(value, rest)
    return where(condition, value, x)


setattr(Operators, "__getitem__", getitem)  # noqa: B010 - mypy takes `Operators.__getitem__ = ...` for a subscript of the class
