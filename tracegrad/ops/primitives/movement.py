"""Movement primitives: reshape, permute, expand, slice, pad, concat, flip, roll. They never run: `locate` is index arithmetic."""

from __future__ import annotations

from math import prod
from operator import methodcaller
from typing import Any

import numpy as np

from tracegrad.errors import ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import Movement
from tracegrad.graph.primitive import REGISTRY, Shape, bind
from tracegrad.support.dtypes import dtype_kind


class Reshape(Movement):
    """The same elements, in row-major order, in another shape."""
    name = "reshape"
    cases = [(((2, 6),), dict(shape=(3, 4))), (((1, 3, 1),), dict(shape=(3,))), (((0, 3),), dict(shape=(3, 0)))]

    def aval(self, x: Aval, *, shape: Shape) -> Aval:
        if prod(shape) != x.size:
            raise ShapeError(f"reshape: {x.shape} has {x.size} elements, {shape} has {prod(shape)}")
        return Aval(shape, x.dtype, x.weak)

    def numpy(self, x, *, shape): return x.reshape(shape)
    def numpy_with(self, *, shape): return methodcaller("reshape", shape)
    def vjp(self, ct, y, x, *, shape): return (reshape(ct, x.shape),)

    def locate(self, index, x, *, shape):
        linear = 0
        for i, n in zip(index, shape, strict=True):
            linear = linear * n + i
        out = []
        for n in reversed(x.shape):
            out.append(linear % n)
            linear = linear // n
        return [(0, tuple(reversed(out)), [])]


class Permute(Movement):
    """Dimension i of the result is dimension dims[i] of x."""
    name = "permute"
    cases = [(((2, 3, 4),), dict(dims=(2, 0, 1))), (((2, 3),), dict(dims=(1, 0)))]

    def aval(self, x, *, dims): return Aval(tuple(x.shape[d] for d in dims), x.dtype)
    def numpy(self, x, *, dims): return x.transpose(dims)
    def numpy_with(self, *, dims): return methodcaller("transpose", dims)
    def vjp(self, ct, y, x, *, dims): return (permute(ct, inverse(dims)),)
    def locate(self, index, x, *, dims): return [(0, tuple(index[d] for d in inverse(dims)), [])]


class Expand(Movement):
    """Broadcast to `shape` by numpy's rule (sizes 1 and missing leading dimensions repeat)."""
    name = "expand"
    cases = [(((3, 1),), dict(shape=(2, 3, 4))), (((),), dict(shape=(3,))), (((1,),), dict(shape=(0,)))]

    def aval(self, x, *, shape):
        if len(shape) < len(x.shape) or any(a not in (1, b) for a, b in zip(reversed(x.shape), reversed(shape), strict=False)):
            raise ShapeError(f"expand: {x.shape} cannot be broadcast to {shape}; only dimensions of size 1 can grow")
        return Aval(shape, x.dtype)

    def numpy(self, x, *, shape): return np.broadcast_to(x, shape)

    def numpy_with(self, *, shape):
        known: dict[Any, tuple[int, ...]] = {}     # the strides of what contiguous arrays become, by shape and strides

        def rule(x):
            key = x.shape, x.strides
            strides = known.get(key)
            if strides is None:
                if not x.flags.c_contiguous:
                    return np.broadcast_to(x, shape)
                strides = (0,) * (len(shape) - x.ndim) + tuple([0 if n == 1 else s for n, s in zip(*key, strict=True)])
                known[key] = strides
            return np.ndarray(shape, x.dtype, x, 0, strides)       # broadcast_to takes 4 us for what this does in 0.6

        return rule

    def vjp(self, ct, y, x, *, shape): return (ct,)  # summed back by autodiff, like every broadcast

    def locate(self, index, x, *, shape):
        tail = index[len(shape) - len(x.shape):]
        return [(0, tuple(i if n != 1 else i * 0 for i, n in zip(tail, x.shape, strict=True)), [])]


SPARE = 4                   # a view in NumPy's memory keeps so many times its own bytes at most


def compact(view: Any) -> Any:
    """A NumPy view, or a copy of it, laid out likewise, where the view would keep much more memory than its own."""
    owner = view.base
    if owner is None or (type(owner) is np.ndarray and owner.base is None and owner.nbytes <= SPARE * view.nbytes):
        return view
    return np.array(view)


def sliced(view: Any) -> Any:
    """`compact`, where NumPy may round a product of the copy in another way: eager calls have copies (execute/eager_executor.py)."""
    return view if view.flags.forc else compact(view)


class Slice(Movement):
    """x[start:stop:step] in every dimension; steps are positive."""
    name = "slice"
    cases = [(((5, 6),), dict(start=(1, 0), stop=(4, 6), step=(1, 2))), (((4,),), dict(start=(2,), stop=(2,), step=(1,)))]

    def aval(self, x, *, start, stop, step):
        return Aval(tuple(max(0, -(-(b - a) // s)) for a, b, s in zip(start, stop, step, strict=True)), x.dtype)

    def numpy(self, x, *, start, stop, step):
        return sliced(x[tuple(slice(a, b, s) for a, b, s in zip(start, stop, step, strict=True))])

    def numpy_with(self, *, start, stop, step):
        place = tuple(map(slice, start, stop, step))
        return lambda x: sliced(x[place])

    def vjp(self, ct, y, x, *, start, stop, step):
        high = tuple(n - (a + (m - 1) * s + 1) if m else n - a
                     for n, m, a, s in zip(x.shape, y.shape, start, step, strict=True))
        return (pad(ct, start, high, tuple(s - 1 for s in step), 0),)

    def locate(self, index, x, *, start, stop, step):
        return [(0, tuple(i * s + a for i, a, s in zip(index, start, step, strict=True)), [])]


class Pad(Movement):
    """x with `low` and `high` fill values before and after, and `interior` of them between neighbours, per dimension."""
    name = "pad"
    cases = [(((2, 3),), dict(low=(1, 0), high=(0, 2), interior=(0, 0), value=0.0)),
             (((3, 2),), dict(low=(0, 1), high=(1, 0), interior=(2, 1), value=1.5)),
             (((0,),), dict(low=(1,), high=(2,), interior=(0,), value=0.0))]

    def aval(self, x, *, low, high, interior, value):
        return Aval(tuple(a + n + max(0, n - 1) * g + b for n, a, b, g in zip(x.shape, low, high, interior, strict=True)), x.dtype)

    def numpy(self, x, *, low, high, interior, value):
        return self.numpy_with(low=low, high=high, interior=interior, value=value)(x)

    def numpy_with(self, *, low, high, interior, value):
        known = {}                              # where an array goes, by shape

        def rule(x):
            if x.shape not in known:
                sizes = [n + max(0, n - 1) * g for n, g in zip(x.shape, interior, strict=True)]
                known[x.shape] = (tuple(a + n + b for n, a, b in zip(sizes, low, high, strict=True)),
                                  tuple(slice(a, a + n, g + 1) for n, a, g in zip(sizes, low, interior, strict=True)))
            shape, place = known[x.shape]
            out = np.full(shape, value, x.dtype)
            out[place] = x
            return out

        return rule

    def vjp(self, ct, y, x, *, low, high, interior, value):
        stop = tuple(a + n + max(0, n - 1) * g for n, a, g in zip(x.shape, low, interior, strict=True))
        return (slice_(ct, low, stop, tuple(g + 1 for g in interior)),)

    def locate(self, index, x, *, low, high, interior, value):
        out: list[Any] = []
        guards: list[tuple[Any, ...]] = []
        for i, n, a, b, g in zip(index, x.shape, low, high, interior, strict=True):
            j = i - a
            if a or b:
                guards.append(("range", j, 0, n + max(0, n - 1) * g))
            if g:
                guards.append(("multiple", j, g + 1))
                j = j // (g + 1)
            out.append(j)
        return [(0, tuple(out), guards)]


class Concat(Movement):
    """Operands one after the other along `dim`."""
    name = "concat"
    cases = [(((2, 3), (2, 1), (2, 2)), dict(dim=1)), (((1,), (0,), (3,)), dict(dim=0))]

    def aval(self, *xs: Aval, dim: int) -> Aval:
        first = xs[0]
        for x in xs:
            if x.dtype != first.dtype or x.shape[:dim] != first.shape[:dim] or x.shape[dim + 1:] != first.shape[dim + 1:]:
                raise ShapeError(f"cat: {' and '.join(map(str, xs))} differ beyond dimension {dim}")
        return Aval(tuple(sum(x.shape[dim] for x in xs) if i == dim else n for i, n in enumerate(first.shape)), first.dtype)

    def numpy(self, *xs, dim): return np.concatenate(xs, axis=dim)

    def vjp(self, ct, y, *xs, dim):
        out, at = [], 0
        for x in xs:
            n = x.shape[dim]
            out.append(narrow(ct, dim, at, n) if x.needs_grad else None)
            at += n
        return tuple(out)

    def locate(self, index, *xs, dim):
        out, at = [], 0
        for k, x in enumerate(xs):
            n = x.shape[dim]
            j = tuple(i - at if d == dim else i for d, i in enumerate(index))
            out.append((k, j, [("range", j[dim], 0, n)]))
            at += n
        return out


class Flip(Movement):
    """Reversed along `dims`."""
    name = "flip"
    cases = [(((2, 3),), dict(dims=(1,))), (((2, 3),), dict(dims=(0, 1)))]

    def aval(self, x, *, dims): return x
    def numpy(self, x, *, dims): return np.flip(x, dims)
    def vjp(self, ct, y, x, *, dims): return (flip(ct, dims),)
    def locate(self, index, x, *, dims): return [(0, tuple(x.shape[d] - 1 - i if d in dims else i for d, i in enumerate(index)), [])]


class Roll(Movement):
    """Moved by `shift` (more than 0, less than the size) along `dim`; what falls off comes back at the beginning.

    As two slices side by side a stencil's neighbour would be three nodes, and its derivative five.
    """
    name, read_places = "roll", 2
    cases = [(((2, 3),), dict(shift=1, dim=1)), (((5, 2),), dict(shift=3, dim=0))]

    def aval(self, x, *, shift, dim): return x

    def numpy(self, x, *, shift, dim):
        before, at = (slice(None),) * dim, x.shape[dim] - shift
        return np.concatenate((x[(*before, slice(at, None))], x[(*before, slice(at))]), axis=dim)

    def vjp(self, ct, y, x, *, shift, dim): return (roll(ct, x.shape[dim] - shift, dim),)

    def locate(self, index, x, *, shift, dim):
        n, i = x.shape[dim], index[dim]
        return [(0, (*index[:dim], i + (n - shift), *index[dim + 1:]), [("range", i, 0, shift)]),
                (0, (*index[:dim], i - shift, *index[dim + 1:]), [("range", i - shift, 0, n - shift)])]


# --------------------------------------------------------------------------------------- node constructors (exact, no broadcasting)


def inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `dims`."""
    out = [0] * len(dims)
    for i, d in enumerate(dims):
        out[d] = i
    return tuple(out)


def reshape(x: Node, shape: Shape) -> Node:
    """x in another shape (x itself if it has it)."""
    return x if x.shape == shape else bind(REGISTRY["reshape"], (x,), {"shape": tuple(shape)})


def permute(x: Node, dims: tuple[int, ...]) -> Node:
    """x with its dimensions in the order `dims`."""
    return x if dims == tuple(range(len(dims))) else bind(REGISTRY["permute"], (x,), {"dims": tuple(dims)})


def expand(x: Node, shape: Shape) -> Node:
    """x broadcast to `shape`."""
    return x if x.shape == shape else bind(REGISTRY["expand"], (x,), {"shape": tuple(shape)})


def slice_(x: Node, start: Shape, stop: Shape, step: Shape) -> Node:
    """x[start:stop:step] in every dimension."""
    whole = all(s == 1 for s in step) and all(a == 0 for a in start) and tuple(stop) == x.shape
    return x if whole else bind(REGISTRY["slice"], (x,), {"start": tuple(start), "stop": tuple(stop), "step": tuple(step)})


def narrow(x: Node, dim: int, start: int, length: int) -> Node:
    """`length` elements of x from `start` along `dim`."""
    return slice_(x, tuple(start if d == dim else 0 for d in range(len(x.shape))),
                  tuple(start + length if d == dim else n for d, n in enumerate(x.shape)), (1,) * len(x.shape))


def pad(x: Node, low: Shape, high: Shape, interior: Shape | None = None, value: Any = 0) -> Node:
    """x padded with `value`; a negative high cuts off."""
    interior = interior or (0,) * len(x.shape)
    if not any(low) and not any(high) and not any(interior):
        return x
    exact = x.dtype.type(value)
    for part, mirror in ((exact.real, "neg"), (exact.imag, "conj")):
        if dtype_kind(x.dtype) in "fc" and part == 0 and np.signbit(part):     # -0.0 equals 0.0: nodes that differ in it alone would be one
            fn = REGISTRY[mirror]
            return bind(fn, (pad(bind(fn, (x,), {}), low, high, interior, fn.numpy(exact)),), {})
    attrs = {"low": tuple(low), "high": tuple(high), "interior": tuple(interior), "value": exact.item()}
    return bind(REGISTRY["pad"], (x,), attrs)


def concat(xs: list[Node], dim: int) -> Node:
    """xs one after the other along `dim`."""
    return xs[0] if len(xs) == 1 else bind(REGISTRY["concat"], tuple(xs), {"dim": dim})


def flip(x: Node, dims: tuple[int, ...]) -> Node:
    """x reversed along `dims`."""
    return bind(REGISTRY["flip"], (x,), {"dims": tuple(dims)}) if dims else x


def roll(x: Node, shift: int, dim: int) -> Node:
    """x moved by `shift` along `dim`, around its end."""
    n = x.shape[dim]
    return bind(REGISTRY["roll"], (x,), {"shift": shift % n, "dim": dim}) if n and shift % n else x
