"""`x[key]` and `x[key] = value`: integers, slices, masks and index arrays, together. Start at `Key`, which reads a key."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as to_int
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange, IndexTypeError, ShapeError, TraceError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import broadcast_shapes, common_dtype
from tracegrad.graph.operators import PUBLIC, Operators
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, scalar
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.arrays.index_checks import in_domain, in_range
from tracegrad.ops.arrays.indexing import dimension_of, scatter_rows, take_rows
from tracegrad.ops.arrays.joining import cat
from tracegrad.ops.arrays.shaping.reordering import movedim
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.dynamic_slice import parts, put_slice, slice_at
from tracegrad.ops.primitives.elementwise import ne, where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state

Array = Any      # a Node or a Tensor


_SLICE, _RESHAPE = REGISTRY["slice"], REGISTRY["reshape"]
_BASIC = frozenset({int, slice, type(None), type(Ellipsis)})


# Of items of a list as an index: which make it a tuple, as in torch. Programs written for torch have lists of lists among them.
parts_of_tuples: list[type] = [Operators, slice, type(None), type(Ellipsis)]


def sequence(key: list[Any]) -> Any:
    """What a list stands for as an index: a tuple, or an array of integers or bools."""
    return tuple(key) if len(key) < 32 and any(isinstance(k, tuple(parts_of_tuples)) for k in key) else key


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


class Key:
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
        bools = sum(isinstance(k, (bool, np.bool_)) for k in items)
        arrays = bools > 1 or (bools and any(
            isinstance(k, _Mask) or (isinstance(k, (list, np.ndarray, Node)) and np.shape(k)) for k in items))
        for k in items:
            if k is None or isinstance(k, (bool, np.bool_)):
                if k is not None and arrays:        # a bool is a mask of no dimensions: it broadcasts with the arrays and other bools
                    self.arrays.append((len(self.shape), np.zeros(int(k), np.int64)))
                elif k is not None and not k:
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
                raise IndexTypeError(f"{name}: bad slice {k}: {error}") from None
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
                raise IndexTypeError(f"{name}: an index must be integers, slices, None, '...', or tensors or lists of integers or bools, "
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
            k = in_range(k, n, name, "index", dimension_of(d, shape), wrap=True)
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


class Subscript:
    """In the place of the movements of x[key], for which few ask. shape: x's. key: integers, slices that go forward, None and '...'."""

    __slots__ = ("key", "shape")

    def __init__(self, shape: tuple[int, ...], key: tuple[Any, ...]) -> None:
        self.shape, self.key = shape, key

    def steps(self) -> tuple[tuple[Any, dict[str, Any]], ...]:
        """Those that `getitem` makes, each with its attributes."""
        found = Key("getitem", self.shape, self.key)
        start, stop, step, shape = tuple(found.start), tuple(found.stop), tuple(found.step), tuple(found.shape)
        size, steps = found.size, list[tuple[Any, dict[str, Any]]]()
        if size != self.shape or any(s != 1 for s in step):
            steps.append((_SLICE, {"start": start, "stop": stop, "step": step}))
        if shape != size:
            steps.append((_RESHAPE, {"shape": shape}))
        return tuple(steps)


class Placed:
    """The step to `x[key]` where the key holds nodes of no dimensions, whose values nobody knows in a trace: `PLACED` is the only one.

    Its attributes: key; given, what the user's key held, with the versions of its tensors; like, the steps if the nodes were 0.
    """

    name = "placed"

    def read(self, source: Node, key: Any) -> Node:
        """The view's node."""
        found: Node = getitem(source, key)
        return found

    def write(self, source: Node, key: Any, value: Node) -> Node:
        """What the source becomes when the view gets a value."""
        found: Node = setitem(source, key, value)
        return found


PLACED = Placed()


def _checked(name: str, values: Any, n: int, d: int, shape: tuple[int, ...]) -> Any:
    """Indices that are known now, as a numpy array of int64 in [0, n)."""
    if isinstance(values, list) and any(isinstance(v, Operators) for v in values):
        raise DTypeError(f"{name}: a list that holds tensors is no index for one dimension; make one tensor of it with tg.stack")
    array = np.asarray(values)
    if array.size == 0 and dtype_kind(array.dtype) == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name}: an index must hold integers or bools, got {array.dtype}")
    if array.size and not (-n <= array.min() and array.max() < n):
        bad = array.min() if array.min() < -n else array.max()
        raise IndexOutOfRange(f"{name}: index {bad} is out of range for dimension {d} of shape {shape}")
    return np.where(array < 0, array + n, array).astype(np.int64)


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
    plain = slice, int, np.integer, Operators
    return all(k is None or k is Ellipsis or (isinstance(k, plain) and not isinstance(k, bool)) for k in items)


@on_nodes
def _getitem(x: Node, key: Any, constant: Any, apart: bool) -> Any:
    known = Key("getitem", x.shape, key)
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

    A boolean mask needs no values where `selects` says so: it is a select. Where the value holds one element per hit and the number of
    hits is not known here, another number of them is reported when what was written is read. Of equal indices the last wins.
    """
    return _setitem(x, key, value, None if _holds_no_arrays(key) else _constants(x), apart)


@on_nodes
def _setitem(x: Node, key: Any, value: Any, constant: Any, apart: bool) -> Any:
    value = cast(value, x.dtype) if isinstance(value, Node) else scalar("setitem", value, x.dtype)
    items = key if isinstance(key, tuple) else (key,)
    masks = [i for i, k in enumerate(items) if isinstance(k, Node) and k.dtype == dtypes.bool_]
    if masks:
        return _put_where(x, items, masks, value)
    known = Key("setitem", x.shape, key)
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
        count, hits = value.shape[0], bind(REGISTRY["cumsum"], (cast(hit, dtypes.int64),), {"dim": 0})
        wrong = ne(mv.narrow(hits, 0, hits.aval.size - 1, 1), count)
        place = where(wrong, const(-1, dtypes.int64), where(hit, hits - 1, const(0, dtypes.int64)))
        place = in_domain(place, count, "setitem", f"the value holds {count} elements for a mask of shape {mask.shape}, which holds at "
                          "another number of places; give one element per place, or a scalar")
        value = mv.reshape(take_rows(_broadcast(value, (value.shape[0], *rest)), place), x.shape)
    else:
        if any(n != 1 for n in value.shape[:max(0, value.ndim - len(rest))]):
            raise ShapeError(f"setitem: a value of shape {value.shape} for a mask of shape {mask.shape}: give a scalar, something that "
                             f"broadcasts to {rest}, one element per hit, or use tg.where(mask, value, x) for a value of x's shape")
        value = _broadcast(value, rest)
    return where(condition, value, x)


setattr(Operators, "__getitem__", getitem)  # noqa: B010 - mypy takes `Operators.__getitem__ = ...` for a subscript of the class
