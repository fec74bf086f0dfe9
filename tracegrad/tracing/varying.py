"""Which sizes of the arguments of a traced function vary: by marks, and by what was seen. Start at `Varying.of`, `mark_dynamic`.

A dimension that varies is (argument leaf, dimension). What is recorded for it is compiled such that another size builds nothing, see
`codegen/planning/arguments/generic.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence
from operator import index
from typing import Any, NamedTuple, SupportsIndex

from tracegrad.errors import ArgumentError
from tracegrad.graph.ir import Aval
from tracegrad.graph.locations import user_location
from tracegrad.graph.operators import named
from tracegrad.support.cache import listed
from tracegrad.tensors.tensor import Tensor


class Mark(NamedTuple):
    """What a user said of a dimension: its size varies between these (None: nothing is said), and on which line he did."""

    min: int | None
    max: int | None
    line: str


_marks: dict[int, tuple[weakref.ref[Tensor], dict[int, Mark]]] = {}        # by id, since tensors compare their elements
listed("tensors with marked dimensions", _marks)


def _marks_of(x: Tensor) -> dict[int, Mark]:
    found = _marks.get(id(x))
    return found[1] if found is not None and found[0]() is x else {}


@named
def mark_dynamic(x: Tensor, dim: SupportsIndex | Sequence[SupportsIndex], *, min: SupportsIndex | None = None,
                 max: SupportsIndex | None = None) -> None:
    """Say that dimensions of a tensor have another size in other calls of traced functions: other sizes then build no kernels.

    As torch._dynamo.mark_dynamic. x: an argument of a `@tg.trace` function, of any shape and dtype. dim: a dimension, or several. min, max:
    between which its sizes are; None: any. The mark is the tensor's, not its value's: mark each batch, or use `tg.trace(dynamic=True)`.
    Raises ArgumentError where x is no tensor or has no such dimension, where its size is not in the range, or another mark says another
    range.

    >>> f, x = tg.trace(lambda x: x.relu()), tg.ones(32, 8)
    >>> tg.mark_dynamic(x, 0, min=1, max=512)
    >>> y = f(x)
    """
    if not isinstance(x, Tensor):
        raise ArgumentError(f"mark_dynamic: takes a tensor, not {type(x).__name__}; pass an argument of a traced function")
    mark = Mark(None if min is None else index(min), None if max is None else index(max), str(user_location()))
    for d in map(index, dim if isinstance(dim, (tuple, list)) else (dim,)):
        if not -x.ndim <= d < x.ndim:
            raise ArgumentError(f"mark_dynamic: a tensor of shape {list(x.shape)} has no dimension {d}; dim is {-x.ndim} to {x.ndim - 1}")
        d %= x.ndim
        before = _marks_of(x).get(d)
        if before is not None and before[:2] != mark[:2]:
            raise ArgumentError(f"mark_dynamic: dimension {d} has the range {_range(before)} since {before.line}, and is given "
                                f"{_range(mark)}; mark it once")
        _check(mark, "mark_dynamic: the tensor", d, x.shape)
        if not _marks_of(x):
            weakref.finalize(x, _marks.pop, id(x), None).atexit = False
            _marks[id(x)] = weakref.ref(x), {}
        _marks[id(x)][1][d] = mark


def _range(mark: Mark) -> str:
    return f"{'any' if mark.min is None else mark.min} to {'any' if mark.max is None else mark.max}"


def _check(mark: Mark, who: str, dim: int, shape: Sequence[int]) -> None:
    low, high = mark.min, mark.max
    if (low is not None and shape[dim] < low) or (high is not None and shape[dim] > high):
        raise ArgumentError(f"{who} of shape {list(shape)} has the size {shape[dim]} in dimension {dim}, which was marked as "
                            f"{_range(mark)} at {mark.line}; give it a size in that range, or mark it with another")


class Varying:
    """What a traced function knows of its arguments' sizes.

    dynamic: as `tg.trace` has it. For signatures without sizes: shapes, those that were recorded last, a tuple for each leaf; fixed, what
    was recorded before it was known that a size varies. ranges: the dimensions that vary, with what a mark says of them.
    """

    def __init__(self, dynamic: bool | None) -> None:
        self.dynamic = dynamic
        self.shapes: dict[Hashable, list[tuple[Any, ...]]] = {}
        self.fixed: dict[Hashable, tuple[weakref.ref[Any], tuple[Any, ...]]] = {}
        self.ranges: dict[tuple[Hashable, int, int], Mark] = {}

    def of(self, signature: Any, flat: Sequence[Any], labels: Sequence[str], name: str) -> dict[str, tuple[int, int]]:
        """The dimensions that vary in what is about to be recorded: (leaf, dimension) by what they are called, as `x.shape[0]`.

        Raises ArgumentError where a size is not in the range that a mark gave.
        """
        if self.dynamic is False:
            return {}
        family, found = family_of(signature), {}
        shapes = tuple([x.shape if isinstance(x, Tensor) else () for x in flat])
        seen = self.shapes.setdefault(family, [])
        for i, x in enumerate(flat):
            marks = _marks_of(x) if isinstance(x, Tensor) else {}
            label = labels[i] if i < len(labels) else f"argument {i}"
            for d, n in enumerate(shapes[i]):
                mark = marks.get(d) or self.ranges.get((family, i, d))
                if mark is not None:
                    _check(mark, f"{name}: {label}", d, shapes[i])
                elif self.dynamic or any(s[i][d] != n for s in seen):
                    mark = Mark(None, None, "")
                if mark is not None:
                    self.ranges[family, i, d] = mark
                    found[f"{label}.shape[{d}]"] = i, d
        if shapes not in seen:
            seen.append(shapes)
            del seen[:-2]
        return found

    def note(self, signature: Any, replay: Any, flat: Sequence[Any]) -> None:
        """Remember what was recorded while no size was known to vary."""
        self.fixed[family_of(signature)] = weakref.ref(replay), tuple([x.shape if isinstance(x, Tensor) else () for x in flat])

    def learn(self, signature: Any, dims: Iterable[tuple[int, int]]) -> None:
        """Have the kernels of what was recorded then tell those of what comes now which numbers differ. (Once; they are not built.)"""
        found = self.fixed.pop(family_of(signature), None)
        replay = None if found is None else found[0]()
        if found is not None and replay is not None:
            replay.program.generalize(replay.donors, frozenset([found[1][i][d] for i, d in dims]))


def family_of(signature: Any) -> Hashable:
    """A signature without sizes."""
    return signature[:3], tuple([_sizeless(entry) for entry in signature[3:]])


def _sizeless(entry: Any) -> Any:
    """A leaf's entry of a signature, without sizes."""
    if isinstance(entry, tuple) and entry and isinstance(entry[0], Aval):
        return (len(entry[0].shape), entry[0].dtype, entry[0].weak, *entry[1:])
    return entry
