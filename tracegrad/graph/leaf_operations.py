"""Operations of every program: constants, inputs, data, index numbers, results of one call, outputs. Start at `Const`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import AutogradError
from tracegrad.graph.intervals import Interval
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import Primitive, Shape
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType


class Const(Primitive):
    """A scalar known at compile time: it stands as a literal in the kernel's text."""

    name, family, differentiable, number = "const", "leaf", False, True

    def aval(self, *, value: Any, bits: bytes, weak: bool) -> Aval:
        return Aval((), value.dtype, weak)

    def numpy(self, *, value: Any, bits: bytes, weak: bool) -> Any:
        return np.asarray(value)

    def interval(self, node: Node, *operands: Interval) -> Interval | None:
        value = node.attrs["value"]
        return (int(value), int(value)) if value.dtype.kind in "biu" else None


class Placeholder(Primitive):
    """An input of a captured program. `uid` makes each one unique."""

    name, family, differentiable, constant = "placeholder", "leaf", False, False
    structural = False                      # it stands for whatever it is given

    def aval(self, *, uid: int, aval: Aval, label: str) -> Aval:
        return aval

    def numpy(self, **attrs: Any) -> Any:
        raise NotImplementedError("a placeholder has no value of its own")


class Data(Primitive):
    """A leaf that holds a computed or uploaded value (`node.value`)."""

    name, family, differentiable, constant = "data", "leaf", False, False

    def aval(self, *, aval: Aval) -> Aval:
        return aval

    def numpy(self, **attrs: Any) -> Any:
        raise NotImplementedError("data is read from node.value")

    def interval(self, node: Node, *operands: Interval) -> Interval | None:
        return node.attrs.get("range")                      # known of what made it


class Iota(Primitive):
    """0, 1, 2, ... along `dim` of `shape`."""

    name, family, differentiable = "iota", "index", False

    def aval(self, *, shape: Shape, dim: int, dtype: DType) -> Aval:
        return Aval(shape, dtype)

    def numpy(self, *, shape: Shape, dim: int, dtype: DType) -> Any:
        return np.broadcast_to(np.arange(shape[dim], dtype=dtype).reshape([-1 if i == dim else 1 for i in range(len(shape))]), shape)

    def interval(self, node: Node, *operands: Interval) -> Interval | None:
        return 0, max(0, node.attrs["shape"][node.attrs["dim"]] - 1)

    cases = [((), dict(shape=(2, 3), dim=1, dtype=dtypes.int64)), ((), dict(shape=(4,), dim=0, dtype=dtypes.float32))]


class Bundle(Primitive):
    """Base of nodes with several results; an `Output` node picks one. The node itself has an empty aval.

    Give `avals(*operands, **attrs) -> tuple[Aval, ...]`. Its vjp gets a list of cotangents (None where nothing came).
    """

    family = "bundle"

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        raise NotImplementedError

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        return Aval((0,), dtypes.float32)


class CustomCall(Bundle):
    """One call of a user's Function: operands are its raw outputs (graph values), then its tracked inputs.

    Not in REGISTRY: there is one instance per call, made by `custom/custom_function.py`, which gives it `vjp` from the user's backward.
    (One whose derivative depends on nothing but its operands' shapes is `structural`, and there is one instance of it.)
    To execution it is nothing (output i *is* operand i); to differentiation it is the only way from the outputs to the inputs.
    """

    family, differentiable = "custom", True
    structural = False
    batched: Any = None      # batched(operands, size): the results for operands with a batch in front; without it, calls are unrolled
    kept_results: Any = None     # kept_results(call): what of its operands its derivative reads, and takes long to compute again
    selects: ClassVar[bool] = False                  # vjp(..., wanted=): only the cotangents of operands with a flag are asked for
    partial: ClassVar[bool] = False                  # batched(operands, flags, size): only operands with a flag have one
    pushes: Any = False                              # whether forward mode calls `push`, or is derived from vjp

    def push(self, y: Node, operands: tuple[Node, ...], tangents: Sequence[Node | None]) -> dict[int, Node] | None:
        """The results' tangents from those of the operands, by number."""
        raise NotImplementedError

    def tracked(self, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """The operands that results depend on, as far as differentiation is concerned."""
        return operands


class Output(Primitive):
    """Result number `index` of a Bundle node."""

    name, family, boundary, moves = "output", "output", True, True

    def aval(self, bundle: Aval, *, index: int, aval: Aval) -> Aval:
        return aval

    def numpy(self, bundle: Any, *, index: int, aval: Aval) -> Any:
        return bundle[index]

    def vjp(self, ct: Node, y: Node, bundle: Node, *, index: int, aval: Aval) -> tuple[Any, ...]:
        raise AutogradError("the cotangent of an output belongs to its bundle: autodiff collects it")


class Shared(Primitive):
    """Base of operations with several results that are computed together: one node a result, which differ in `index` only.

    Give `results(*arrays, **attrs)`: all results, as numpy arrays, and `avals`: their shapes and dtypes.
    """

    differentiable, expensive = False, True
    batches: ClassVar[bool] = False                  # leading dimensions of the operands are a batch, the same for all
    programs: Sequence[tuple[str, Any]] = ()         # the Programs that it runs itself, and what they are
    # into(outs, *arrays, **attrs): `results`, written into arrays of their shapes; it only reads `arrays`. With it nothing is copied on
    # devices that compute in the host's memory.
    into: Any = None
    # begin(*arrivals): starts the call, whose operands' values the arrivals, functions, wait for. finish(what it returned) waits for the
    # results. The last operand and result, which neither is given, are a number that keeps such calls in order. Kernels run meanwhile.
    # What begin returns tells a profiler when the call `began` and `ended` (nanoseconds of time.perf_counter_ns).
    begin: Any = None

    def __init__(self) -> None:
        self._memo: tuple[Sequence[Any], dict[str, Any], Sequence[Any], set[int]] | None = None

    def once(self, operands: tuple[Node, ...]) -> tuple[Shared, tuple[Node, ...]]:
        """The same operation given each of its operands once, where it is one that several may stand for; and those operands."""
        return self, operands

    def written_out(self, operands: tuple[Node, ...]) -> list[Node] | None:
        """The results as nodes of other operations, where that is what runs in its place."""
        return None

    def with_operands(self, operands: Sequence[Aval]) -> tuple[Shared, Sequence[Aval]]:
        """The operation that `into` is of, and its operands, in complex numbers if it has such."""
        return self, operands

    def results(self, *arrays: Any, **attrs: Any) -> Sequence[Any]:
        raise NotImplementedError

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        """The shape and dtype of every result."""
        raise NotImplementedError

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        return self.avals(*operands, **attrs)[int(attrs["index"])]

    def numpy(self, *arrays: Any, **attrs: Any) -> Any:
        index = attrs.pop("index")
        memo = self._memo
        if memo is None or index in memo[3] or attrs != memo[1] or not _same(arrays, memo[0]):
            copies = [np.array(a) for a in arrays]   # the function may write into its arguments, as it may elsewhere
            memo = self._memo = ([np.array(a) for a in arrays], attrs, self.results(*copies, **attrs), set())
        memo[3].add(index)
        if len(memo[3]) == len(memo[2]):
            self._memo = None
        return memo[2][index]


def _same(arrays: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether these are the same numbers, bit for bit. (The same array may hold others by now.)"""
    pairs = zip(map(np.asarray, arrays), others, strict=True)
    return len(arrays) == len(others) and all(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def laid_out(aval: Aval) -> Aval:
    """A complex array as it lies in memory; any other as it is."""
    return Aval((*aval.shape, 2), dtypes.real_of(aval.dtype)) if aval.dtype.kind == "c" else aval


class OnHost(Shared):
    """A host step whose operands or results are complex, on arrays as they lie in memory. Made by `host_step`."""

    def __init__(self, fn: Any, operands: Sequence[Aval]) -> None:
        super().__init__()
        self.fn, self.operands = fn, operands
        self.name, self.family, self.programs = fn.name, fn.family, fn.programs  # type: ignore[misc]

    @property
    def kernel(self) -> Any:
        """What a loop's kernel is written from; its graphs are the complex ones."""
        return self.fn.kernel

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(map(laid_out, self.fn.avals(*self.operands, **attrs)))

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        given = [np.ascontiguousarray(a).view(o.dtype).reshape(o.shape) for a, o in zip(arrays, self.operands, strict=True)]
        made = self.fn.results(*given, **attrs)
        avals = self.fn.avals(*self.operands, **attrs)
        return [_as_reals(np.asarray(r, a.dtype)) for r, a in zip(made, avals, strict=True)]

    @property
    def into(self) -> Any:
        return self.fn.into

    def with_operands(self, operands: Sequence[Aval]) -> tuple[Shared, Sequence[Aval]]:
        return self.fn, self.operands


def _as_reals(array: Any) -> Any:
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).view(dtypes.real_of(array.dtype)).reshape(*array.shape, 2)


@memoize(256)
def host_step(fn: Primitive, operands: tuple[Aval, ...]) -> Primitive:
    """The one `OnHost` of a host step: results of one call must have one operation."""
    return OnHost(fn, operands)
