"""The standard's functions that move elements or find them: shapes, indexing, searching, sorting, sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tracegrad.array_api._common import Array, Axis, promoted, reduced, tg
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.ops.arguments import one_dim, some_dims

# ------------------------------------------------------------------------------------------------------------------ shapes


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """The arrays, each expanded to their common shape."""
    return list(tg.broadcast_tensors(*arrays)) if arrays else []


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """x expanded to `shape`."""
    return tg.broadcast_to(x, tuple(shape))


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """The arrays one after the other along axis; flattened if axis is None."""
    xs = promoted("concat", *arrays)
    return tg.cat([tg.flatten(x) for x in xs]) if axis is None else tg.cat(xs, axis)


def expand_dims(x: Array, /, axis: int) -> Array:
    """x with a dimension of size 1 at `axis`. Raises IndexOutOfRange."""
    return tg.unsqueeze(x, axis)


def flip(x: Array, /, *, axis: Axis = None) -> Array:
    """x reversed along axis (None: all)."""
    return tg.flip(x, range(x.ndim) if axis is None else axis)


def moveaxis(x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Array:
    """Dimension(s) `source` moved to place(s) `destination`; the others keep their order."""
    return tg.movedim(x, source, destination)


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """Dimension i of the result is dimension axes[i] of x."""
    return tg.permute(x, tuple(axes))


def repeat(x: Array, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Each element (along axis, or of the flattened array) as often as repeats says, an integer or one for each."""
    return tg.repeat_interleave(x, repeats, axis)


def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """The same elements in another shape, one size of which may be -1. copy=True: a copy; else a view."""
    y = tg.reshape(x, tuple(shape))
    return tg.clone(y) if copy else y


def roll(x: Array, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Array:
    """Elements moved by shift along axis (None: of the flattened array); those that leave come back at the other end."""
    return tg.roll(x, shift, axis)


def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """x without the dimensions `axis`, whose sizes must be 1 (ShapeError else; torch leaves them)."""
    axes = some_dims("squeeze", axis, x.ndim) if axis != () else ()
    if any(x.shape[d] != 1 for d in axes):
        raise ShapeError(f"squeeze: dimensions {axes} of {x.shape} must have size 1")
    return tg.squeeze(x, axes)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """The arrays, all of one shape, along a new dimension."""
    return tg.stack(promoted("stack", *arrays), axis)


def tile(x: Array, repetitions: tuple[int, ...], /) -> Array:
    """x laid side by side repetitions[i] times along dimension i."""
    return tg.tile(x, tuple(repetitions))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices of x along axis, without that dimension."""
    return tg.unbind(x, axis)  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------ indexing and searching


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """The elements at `indices` (1-d; negative ones count from the end) along axis, which may be left out for a vector."""
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"take: axis must be given for an array of {x.ndim} dimensions")
    return x[(slice(None),) * one_dim("take", axis or 0, x.ndim) + (indices,)]


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """The elements at `indices` along axis, which broadcast with x along the other dimensions."""
    return tg.take_along_dim(x, indices, axis)


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index (int64) of the largest along axis, or in the flattened array; the first of equals."""
    return tg.argmax(x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index (int64) of the smallest along axis, or in the flattened array; the first of equals."""
    return tg.argmin(x, axis, keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements are not 0, as int64."""
    return reduced(tg.sum, x != 0, axis, keepdims)


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The indices (int64) of the elements that are not 0, a vector for each dimension. Raises ShapeError without dimensions."""
    if not x.ndim:
        raise ShapeError("nonzero: takes at least 1 dimension, got (); use reshape")
    return tg.nonzero(x, as_tuple=True)  # type: ignore[no-any-return]


def searchsorted(x1: Array, x2: Array, /, *, side: str = "left", sorter: Array = None) -> Array:
    """Where each element of x2 would be put into the sorted vector x1: before equal elements, or (side="right") behind them."""
    x1, x2 = promoted("searchsorted", x1, x2)
    return tg.searchsorted(x1, x2, side=side, sorter=sorter)


def where(condition: Array, x1: Array, x2: Array, /) -> Array:
    """x1 where condition (bool) holds, else x2; all broadcast together."""
    if not any(hasattr(x, "dtype") for x in (x1, x2)):
        return tg.where(condition, x1, x2)
    return tg.where(condition, *promoted("where", x1, x2))


# ------------------------------------------------------------------------------------------------------------ order and sets


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The indices (int64) that sort x along axis; always stable."""
    return tg.argsort(x, axis, descending, stable)


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """x sorted along axis; always stable, NaN the largest."""
    return tg.sort(x, axis, descending, stable).values


class UniqueAll(NamedTuple):
    """What unique_all returns."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What unique_counts returns."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What unique_inverse returns."""

    values: Array
    inverse_indices: Array


def unique_all(x: Array, /) -> UniqueAll:
    """(values, indices, inverse_indices, counts): the different elements of x, sorted, where each is first, where each element of x

    is among them, and how often they are in x. NaNs differ from each other. The other unique_* give parts of it.
    """
    values, inverse, counts = tg.unique(x, return_inverse=True, return_counts=True)
    first = tg.cumsum(counts, 0) - counts                       # in the order that brings equal elements together
    return UniqueAll(values, tg.argsort(tg.flatten(inverse))[first], inverse, counts)


def unique_counts(x: Array, /) -> UniqueCounts:
    """(values, counts) of `unique_all`."""
    return UniqueCounts(*tg.unique(x, return_counts=True))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """(values, inverse_indices) of `unique_all`."""
    return UniqueInverse(*tg.unique(x, return_inverse=True))


def unique_values(x: Array, /) -> Array:
    """The different elements of x, sorted."""
    return tg.unique(x)


__all__ = [
    "argmax", "argmin", "argsort", "broadcast_arrays", "broadcast_to", "concat", "count_nonzero", "expand_dims", "flip", "moveaxis",
    "nonzero", "permute_dims", "repeat", "reshape", "roll", "searchsorted", "sort", "squeeze", "stack", "take", "take_along_axis",
    "tile", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack", "where",
]  # fmt: skip
