"""Functions that index: the primitives Take, ScatterAdd and ScatterSet, and what torch makes of them (gather, embedding, ...).

The primitives work on whole rows of the first dimension. Everything else brings its indices into that form by movement ops and index
arithmetic. Indices with known values (lists, NumPy arrays) are checked when the function is called. Those that only the device knows are
checked there (`index_checks.in_range`), and the error is raised when the result is read; the primitives clamp them, so that memory stays
safe. As in torch, negative ones count from the end in take and take_along_dim, and are errors in the other functions. `x[key]` is in
`subscripts.py`.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import broadcast_shapes, by_parts
from tracegrad.graph.operators import PUBLIC, Operators, functional, public
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast, const, iota, scalar
from tracegrad.ops.arguments import integer, known_values, on_nodes, one_dim
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.pointwise import detach, eq
from tracegrad.ops.arrays.shaping.reordering import movedim
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.scans import Largest, Smallest
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import no_grad

Array = Any      # a Node or a Tensor


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
    name, family, expensive, selects_elements, moves, pair = "take", "gather", True, True, True, by_parts
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
    name, selects_elements, moves = "scatter_set", True, True

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


def dimension_of(d: int, shape: tuple[int, ...]) -> str:
    return f"dimension {d} of shape {shape}"


# ------------------------------------------------------------------------------------------------------- torch's functions


def _linear(name: str, shape: tuple[int, ...], d: int, index: Node, what: str = "index", wrap: bool = False) -> Any:
    """For each element of index (which stands in place d of a multi-index), its place in a flattened tensor of `shape`."""
    if index.ndim != len(shape):
        raise ShapeError(f"{name}: index {index.shape} must have as many dimensions as the input {shape}; take_along_dim broadcasts")
    if any(i > n for k, (i, n) in enumerate(zip(index.shape, shape, strict=True)) if k != d):
        raise ShapeError(f"{name}: index {index.shape} is larger than the input {shape} beyond dimension {d}")
    out = in_range(index, shape[d], name, what, dimension_of(d, shape), wrap=wrap) * prod(shape[d + 1:])
    for k, n in enumerate(index.shape):
        if k != d and n > 1:
            out = out + iota(index.shape, k, out.dtype) * prod(shape[k + 1:])
    return out


def _flat(x: Node) -> Node:
    return mv.reshape(x, (prod(x.shape),))


@public("gather")
@on_nodes
def gather(input: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """out[i][j][k] = input[index[i][j][k]][j][k] (for dim 0): the shape of index. ArgumentError for sparse_grad: gradients are dense.

    input: any dtype; index: integers, else DTypeError.

    >>> tg.gather(tg.tensor([[1.0, 2.0], [3.0, 4.0]]), 1, tg.tensor([[1], [0]]))
    """
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
    """gather, with input and indices broadcast beyond dim; dim None: both are flattened. Negative indices count from the end.

    input: any dtype. Raises DTypeError unless indices are integers.

    >>> tg.take_along_dim(tg.tensor([3.0, 1.0]), tg.tensor([1, 0]), 0)
    """
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
    """The elements of the flattened input at index: the shape of index. Negative indices count from the end.

    input: any dtype. Raises DTypeError unless index holds integers, IndexOutOfRange for what is not there.

    >>> tg.take(tg.tensor([[3.0, 1.0], [2.0, 0.0]]), tg.tensor([0, 3]))
    """
    n = prod(input.shape)
    return take_rows(_flat(input), in_range(index, n, "take", "index", f"the {n} elements of shape {input.shape}", wrap=True))


@public("scatter_add")
@on_nodes
def scatter_add(input: Array, dim: int, index: Array, src: Array) -> Array:
    """input with src[i][j][k] added at [index[i][j][k]][j][k] (for dim 0). Sums in index order: deterministic.

    Any dtype, the same for src and input (DTypeError); index: integers.

    >>> tg.scatter_add(tg.zeros(3), 0, tg.tensor([1, 1]), tg.ones(2))
    """
    return _scatter("scatter_add", "scatter_add", input, dim, index, src)


@public("scatter")
@on_nodes
def scatter(input: Array, dim: int, index: Array, src: Array = None, *, value: Any = None, reduce: str | None = None) -> Array:
    """input with src[i][j][k] (or one value) put at [index[i][j][k]][j][k] (for dim 0); the last of several wins.

    reduce: "add" adds it, "multiply" multiplies by it.
    Any dtype, the same for src and input. Raises DTypeError unless index holds integers.

    >>> tg.scatter(tg.zeros(3), 0, tg.tensor([1]), tg.ones(1))
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
    """The slices of input along dim that index (1-d) names, in its order.

    Any dtype. Raises DTypeError unless index holds integers, IndexOutOfRange for other dims.

    >>> tg.index_select(tg.eye(3), 0, tg.tensor([2, 0]))
    """
    d, rows, moved = _rows("index_select", input, dim, index)
    y = _back(take_rows(moved, rows), d)
    return y if input.ndim or y.shape != (1,) else mv.reshape(y, ())


@public("index_add")
@on_nodes
def index_add(input: Array, dim: int, index: Array, source: Array, *, alpha: float = 1) -> Array:
    """input with the slices of source (times alpha) added to the slices along dim that index (1-d) names.

    Any dtype. Raises DTypeError unless index holds integers, ShapeError where shapes do not fit.

    >>> tg.index_add(tg.zeros(3), 0, tg.tensor([1, 1]), tg.ones(2))
    """
    d, rows, moved = _rows("index_add", input, dim, index)
    src = _slices("index_add", source, input, d, rows)
    src = src if alpha == 1 else cast(src * alpha, input.dtype)
    return mv.reshape(_back(scatter_rows("scatter_add", moved, rows, src), d), input.shape)


@public("index_copy")
@on_nodes
def index_copy(input: Array, dim: int, index: Array, source: Array) -> Array:
    """input with the slices along dim that index (1-d) names replaced by those of source.

    Any dtype. Raises DTypeError unless index holds integers, ShapeError where shapes do not fit.

    >>> tg.index_copy(tg.zeros(3), 0, tg.tensor([1]), tg.ones(1))
    """
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
    rows = in_range(index if index.ndim else mv.reshape(index, (1,)), x.shape[d], name, "index", dimension_of(d, x.shape))
    return d, rows, movedim(x, d, 0)


def _back(y: Node, d: int) -> Any:
    return movedim(y, 0, d)


@public("masked_fill")
@on_nodes
def masked_fill(input: Array, mask: Array, value: Any) -> Array:
    """value (a scalar or 0-d tensor) where mask (bool, broadcast) holds, else input. Any dtype. Raises DTypeError unless mask is bool.

    >>> tg.masked_fill(tg.ones(2), tg.tensor([True, False]), 0.0)
    """
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
    """The elements where mask holds, as a vector. Its length depends on values: not inside @trace.

    Any dtype. Raises DTypeError unless mask is bool.

    >>> tg.masked_select(tg.tensor([1.0, 2.0]), tg.tensor([True, False]))
    """
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

    >>> nn.functional.embedding(tg.tensor([1, 0]), tg.eye(2))
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
    if not -n <= (padding_idx := integer("embedding", "padding_idx", padding_idx)) < n:
        raise IndexOutOfRange(f"embedding: padding_idx {padding_idx} is out of range for {n} rows")
    padding = mv.reshape(eq(rows, padding_idx % n), (*rows.shape, 1))
    return where(padding, detach(y), y)


@public("one_hot", functional=True, method=False)
def one_hot(input: Array, num_classes: int = -1) -> Array:
    """int64 (*, num_classes) with a 1 at each integer of input (*).

    num_classes: -1 for one more than the largest integer, which is looked at; inside @trace that is a TraceError. Raises ArgumentError if
    there is none to look at.

    >>> tg.one_hot(tg.tensor([0, 2]))
    """
    num_classes = integer("one_hot", "num_classes", num_classes)
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
