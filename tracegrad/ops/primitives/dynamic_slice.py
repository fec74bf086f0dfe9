"""Slices whose starts are operands: `slice_at` and `pad_at`, of which each is the other's derivative. Start at `slice_at`.

Untraced, `x[i]` of a loop in which i changes would be another structure at every iteration, looked up, derived and compiled anew. So
indices that a user's key gives are leaves of their own, `Offset`s: two pieces of work that differ in nothing else are one structure, and
numpy's rules take the starts of each use. A program has them as literals, in ordinary slices, until they are seen to change; then they are
run-time numbers (as constants, see execute/program.py). The code generator knows these operations in its first pass only: `in_slices`
writes them in others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.operation_families import by_parts
from tracegrad.graph.primitive import REGISTRY, Primitive, Shape, bind, const, iota
from tracegrad.graph.substitution import replaced
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import choose, where
from tracegrad.support import dtypes


class Offset(Primitive):
    """An index that a user gave as a Python number: a leaf of its own for each use, so that equal ones are not one by chance."""
    name, family, differentiable, constant, number = "offset", "leaf", False, False, True

    @property
    def recallable(self) -> bool:
        return True                                                 # a place for another one's value

    def aval(self, *, value, bits): return Aval((), value.dtype)
    def numpy(self, *, value, bits): return np.asarray(value)


class _Placed(Primitive):
    """Base of the two. Of the larger one's dimensions `dims` start where the operands behind the first say, the others at `start`."""
    family, saves, pair = "dynamic_slice", False, by_parts

    def place(self, starts: Sequence[Any], start: Shape, step: Shape, dims: tuple[int, ...], size: Shape) -> tuple[slice, ...]:
        """Where in the larger array the smaller one, of shape `size`, is."""
        at = list(start)
        for d, a in zip(dims, starts, strict=True):
            at[d] = int(a)
        return tuple([slice(a, a + (m - 1) * s + 1 if m else a, s) for a, m, s in zip(at, size, step, strict=True)])

    def placer(self, start: Shape, step: Shape, dims: tuple[int, ...], size: Shape) -> Any:
        """`place` for these, to be called many times: of the starts alone."""
        if len(dims) != 1:
            return lambda *starts: self.place(starts, start, step, dims, size)
        d, = dims
        whole = self.place((0,), start, step, dims, size)
        before, after, extent, by = whole[:d], whole[d + 1:], whole[d].stop, step[d]

        def placed(a: Any) -> tuple[slice, ...]:
            a = int(a)
            return *before, slice(a, a + extent if extent else a, by), *after

        return placed


class SliceAt(_Placed):
    """The part of x that has the shape `size`."""
    name, moves = "slice_at", True
    cases = [(((5, 6), np.array(2)), dict(start=(0, 1), size=(2, 3), step=(1, 2), dims=(0,))),
             (((4,), np.array(3)), dict(start=(0,), size=(1,), step=(1,), dims=(0,))),
             (((5, 3, 7), np.array(1), np.array(2)), dict(start=(0, 0, 0), size=(2, 3, 2), step=(2, 1, 3), dims=(0, 2)))]

    def aval(self, x, *starts, start, size, step, dims): return Aval(size, x.dtype)
    def numpy(self, x, *starts, start, size, step, dims): return mv.sliced(x[self.place(starts, start, step, dims, size)])

    def numpy_with(self, *, start, size, step, dims):
        placed = self.placer(start, step, dims, size)
        return lambda x, *starts: mv.sliced(x[placed(*starts)])

    def vjp(self, ct, y, x, *starts, start, size, step, dims):
        return (_bound("pad_at", ct, starts, dict(start=start, shape=x.shape, step=step, dims=dims)), *[None] * len(starts))

    def interval(self, node, *operands): return operands[0] if operands else None


SLICE_AT = REGISTRY["slice_at"]


class PadAt(_Placed):
    """Zeros of the shape `shape`, but x where `slice_at` would read it."""
    name, moves = "pad_at", True
    cases = [(((2, 3), np.array(2)), dict(start=(0, 1), shape=(5, 6), step=(1, 2), dims=(0,))),
             (((1,), np.array(3)), dict(start=(0,), shape=(4,), step=(1,), dims=(0,))),
             (((2, 3, 2), np.array(1), np.array(2)), dict(start=(0, 0, 0), shape=(5, 3, 7), step=(2, 1, 3), dims=(0, 2)))]

    def aval(self, x, *starts, start, shape, step, dims): return Aval(shape, x.dtype)

    def numpy(self, x, *starts, start, shape, step, dims):
        out = np.zeros(shape, x.dtype)
        out[self.place(starts, start, step, dims, x.shape)] = x
        return out

    def numpy_with(self, *, start, shape, step, dims):
        known: dict[Shape, Any] = {}

        def rule(x, *starts):
            placed = known.get(x.shape)
            if placed is None:
                placed = known[x.shape] = self.placer(start, step, dims, x.shape)
            out = np.zeros(shape, x.dtype)
            out[placed(*starts)] = x
            return out

        return rule

    def vjp(self, ct, y, x, *starts, start, shape, step, dims):
        return (_bound("slice_at", ct, starts, dict(start=start, size=x.shape, step=step, dims=dims)), *[None] * len(starts))

    def interval(self, node, *operands): return (min(0, operands[0][0]), max(0, operands[0][1])) if operands else None


def _bound(name: str, x: Node, starts: Sequence[Node], attrs: dict[str, Any]) -> Node:
    return bind(REGISTRY[name], (x, *starts), attrs)


def _offset(value: int) -> Node:
    exact = np.int64(value)
    return Node(REGISTRY["offset"], (), {"value": exact, "bits": exact.tobytes()}, Aval((), dtypes.int64), False)


def slice_at(x: Node, start: Sequence[int], size: Sequence[int], step: Sequence[int], dims: Sequence[int]) -> Node:
    """x[start::step], `size` elements of it, with the starts of `dims` as operands."""
    still = tuple(0 if d in dims else a for d, a in enumerate(start))
    return _bound("slice_at", x, [_offset(start[d]) for d in dims], dict(start=still, size=tuple(size), step=tuple(step), dims=tuple(dims)))


def pad_at(x: Node, start: Sequence[int], shape: Sequence[int], step: Sequence[int], dims: Sequence[int]) -> Node:
    """Zeros of `shape`, but x from `start` on, with the starts of `dims` as operands."""
    still = tuple(0 if d in dims else a for d, a in enumerate(start))
    return _bound("pad_at", x, [_offset(start[d]) for d in dims], dict(start=still, shape=tuple(shape), step=tuple(step), dims=tuple(dims)))


def put_slice(x: Node, value: Node, start: Sequence[int], step: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """x with x[start::step] (as many elements as value has) replaced by value: padding and a select, which fuse.

    dims: those whose start is no part of the structure.
    """
    if value.shape == x.shape or not value.aval.size:
        return value if value.shape == x.shape else x
    high = tuple(n - (a + (m - 1) * s + 1) for n, m, a, s in zip(x.shape, value.shape, start, step, strict=True))
    whole = [m == n for m, n in zip(value.shape, x.shape, strict=True)]
    inside = mv.expand(const(True, dtypes.bool_), tuple(1 if w else m for w, m in zip(whole, value.shape, strict=True)))
    if dims:
        inside = pad_at(inside, start, tuple(1 if w else n for w, n in zip(whole, x.shape, strict=True)), step, dims)
        return choose(inside, pad_at(value, start, x.shape, step, dims), x)
    gaps = tuple(s - 1 if m > 1 else 0 for s, m in zip(step, value.shape, strict=True))
    inside = mv.pad(inside, tuple(start), high, gaps, False)
    return choose(inside, mv.pad(value, tuple(start), high, gaps, 0), x)


def as_slice(node: Node) -> dict[str, Any]:
    """The attributes of the ordinary slice that a `slice_at` of known starts is."""
    attrs, start = node.attrs, list(node.attrs["start"])
    for d, s in zip(attrs["dims"], node.operands[1:], strict=True):
        start[d] = int(s.attrs["value"])
    stop = tuple(a + (m - 1) * s + 1 if m else a for a, m, s in zip(start, attrs["size"], attrs["step"], strict=True))
    return {"start": tuple(start), "stop": stop, "step": attrs["step"]}


def parts(size: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of which a part is something, but not the whole."""
    return tuple(d for d, (m, n) in enumerate(zip(size, shape, strict=True)) if 0 < m < n)


# ------------------------------------------------------------------------------------------------------------ as other operations


def in_slices(graph: Graph) -> Graph:
    """The graph without these operations: the code generator's first pass."""
    return replaced(graph, lambda node: node.fn.family == "dynamic_slice", lowered)


def lowered(node: Node, x: Node, *starts: Node) -> Node:
    """What `node` is, of other operands: an ordinary slice or padding where the starts are known, else rows taken by number."""
    attrs = node.attrs
    known: dict[int, int] = {}
    moving: dict[int, Node] = {}
    for d, s in zip(attrs["dims"], starts, strict=True):
        if s.fn is REGISTRY["offset"]:
            known[d] = int(s.attrs["value"])
        else:
            moving[d] = s
    start = [known.get(d, a) for d, a in enumerate(attrs["start"])]
    step = attrs["step"]
    if node.fn is SLICE_AT:
        size = [n if d in moving else m for d, (m, n) in enumerate(zip(node.shape, x.shape, strict=True))]
        steps = [1 if d in moving else s for d, s in enumerate(step)]
        stop = tuple(a + (m - 1) * s + 1 if m else a for a, m, s in zip(start, size, steps, strict=True))
        x = mv.slice_(x, tuple(start), stop, tuple(steps))
        for d, s in moving.items():
            x = _rows(x, d, s + iota((node.shape[d],), 0) * step[d])
        return x
    for d, s in moving.items():
        n, m = node.shape[d], x.shape[d]
        row = iota((n,), 0) - s
        inside = row.ge(0) & row.le((m - 1) * step[d])
        if step[d] > 1:
            inside = inside & (row % step[d]).eq(0)
            row = row // step[d]
        inside = mv.reshape(inside, tuple(n if k == d else 1 for k in range(len(x.shape))))
        x = where(inside, _rows(x, d, row), const(0, x.dtype))
    spread = [(1, 0) if d in moving else (s, a) for d, (s, a) in enumerate(zip(step, start, strict=True))]
    high = tuple(n - (a + (m - 1) * s + 1) if m else n - a for n, m, (s, a) in zip(node.shape, x.shape, spread, strict=True))
    return mv.pad(x, tuple(a for _, a in spread), high, tuple(s - 1 if m > 1 else 0 for m, (s, _) in zip(x.shape, spread, strict=True)), 0)


def _rows(x: Node, d: int, index: Node) -> Node:
    """The slices of x along d with these numbers (those out of range: the first or the last)."""
    order = (d, *(k for k in range(len(x.shape)) if k != d))
    return mv.permute(bind(REGISTRY["take"], (mv.permute(x, order), index), {}), mv.inverse(order))
