"""Calls under `no_grad` that come in the same order again: noted, and done together when somebody looks. Start at `follow`.

A model that is only asked makes the same calls at every turn, and to do each of them when it is called (execute/eager_executor.py,
cached_views.py) costs several times what numpy takes for few elements: a description of its arguments, a look-up, buffers, numpy's state.
But after the calls so far only a few can come next. So a thread has a `Tape` of the calls since somebody last looked. It leads from a
`Stage` to the next by what is called, with which of the values so far: no shape is looked at, and no operation done. When the value of a
node on the tape is asked for (`Node.__getattr__`), all that somebody still holds is computed by one Routine, which the last stage keeps.

A call gets a stage when its template is known and numpy would do it at once: nothing is noted that could fail, look behind its operands,
or be differentiated. Arrays that numpy holds are never written, so it is no matter when they are read. Of the bits nothing changes: the
same rules are applied to the same values. A tape ends with its `no_grad` block, after `LONG` calls, and where it would keep much memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.execute.eager_executor import Call, Prepared, held_part, prepare
from tracegrad.execute.policy import AT_ONCE
from tracegrad.graph.cached_subgraphs import ARRAY, FLOAT, INTEGER, KINDS, LIST, PLAIN, SLICE, describe
from tracegrad.graph.canonical import number_of, without_number
from tracegrad.graph.intervals import has_range, interval
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import NOWHERE, REGISTRY, a_number, data
from tracegrad.numpy_backend.numpy_program import Routine
from tracegrad.runtime.buffer import Held, hold
from tracegrad.support import dtypes
from tracegrad.support.blas import quietly
from tracegrad.support.cache import Cache
from tracegrad.support.modes import state
from tracegrad.tensors.cached_views import Laid, Views
from tracegrad.tensors.tensor import Tensor

LONG = 256              # calls that are put off at most
LARGE = 1 << 22         # bytes that the values they start from have at most
STAGES = 12_000         # that are known
STEPWISE = 2            # times that a way is gone call by call, before there is a Routine of it
ENDS = 8                # sets of values that somebody held at the end of one way, each with a Routine

_DATA, _VARIABLE = REGISTRY["data"], REGISTRY["variable"]
_new_node, _new_tensor, _ref = Node.__new__, Tensor.__new__, weakref.ref
_roots: dict[Any, Stage | None] = {}                # by device and default dtype: where tapes begin; None where nothing is put off


class _Result:
    """A tensor that a call gives: what its node knows, and for a view the steps from its base, and whether torch may have a copy there."""

    __slots__ = ("attrs", "aval", "laid", "reshaped", "steps")

    def __init__(self, aval: Aval, attrs: dict[str, Any], steps: Any = None, reshaped: bool = False) -> None:
        self.aval, self.attrs, self.steps, self.reshaped = aval, attrs, steps, reshaped
        self.laid = Laid()


class Stage:
    """A call, after those before it.

    key: what is called; `_stages` has the stages after one by their keys. likely: the one that was last. only: the result, of a call
    that gives one tensor, with the `number` of its place. first: the place of its first result. calls: what numpy does, and with what:
    k >= 0 is the result of an earlier one of them, ~k the k-th of `leaves`, which are places on the tape or arrays. ends: the calls that
    give the results. numbered: of a Python float that is what the tape starts from, too, its dtype; recent: the one that was last. checks:
    operations that may have an error to report, and where on the list of new values that is. form: None for one tensor, else the type
    of a sequence. run: does it for arrays.
    """

    __slots__ = ("before", "calls", "checks", "depth", "ends", "first", "form", "key", "last", "leaves", "likely", "made", "number",
                 "numbered", "only", "products", "recent", "results", "routines", "run", "uses")

    def __init__(self, before: Stage | None) -> None:
        self.before = before
        self.depth: int = 0 if before is None else before.depth + 1
        self.last = self.depth >= LONG
        self.likely: Stage | None = None
        self.key: Any = None
        self.only: _Result | None = None
        self.number: Any = None
        self.first = self.uses = 0
        self.calls: list[tuple[Call, tuple[int, ...]]] = []
        self.leaves: list[Any] = []
        self.ends: list[int] = []
        self.checks: list[tuple[int, Call]] = []
        self.results: list[_Result] = []
        self.form: Any = None
        self.run: Any = None
        self.products = False
        self.numbered: Any = None
        self.recent: float | None = None
        self.made: tuple[int, ...] | None = None        # the places of all results up to here, once somebody looked
        self.routines: dict[tuple[int, ...], Any] = {}

    def way(self) -> list[Stage]:
        """The stages up to this one."""
        found, stage = [], self
        while stage.before is not None:
            found.append(stage)
            stage = stage.before
        return found[::-1]

    def places(self) -> tuple[int, ...]:
        """Those of all results up to here."""
        if self.made is None:
            self.made = tuple([s.first + i for s in self.way() for i in range(len(s.results))])
        return self.made

    def values(self, wanted: tuple[int, ...], inputs: Sequence[Any]) -> Sequence[Any]:
        """The arrays at the places `wanted`. inputs: those that the tape starts from, in order."""
        known = self.routines.get(wanted)
        if known is None:
            self.uses += 1
            if self.uses <= STEPWISE:
                return quietly(self._stepwise, True, wanted, inputs)  # type: ignore[no-any-return]
            if len(self.routines) >= ENDS:
                self.routines.clear()
            known = self.routines[wanted] = self._together(wanted, len(inputs))
        routine, constants, order, products, through = known
        arrays = [*inputs, *constants]
        found = quietly(routine.written or routine, products, arrays, (), order, []) if order else []
        if through:
            rest = iter(found)
            found = [next(rest) if k is None else arrays[k] for k in through]
        return found

    def _stepwise(self, wanted: tuple[int, ...], inputs: Sequence[Any]) -> list[Any]:
        rest = iter(inputs)
        values: list[Any] = []
        for stage in self.way():
            while len(values) < stage.first:
                values.append(next(rest))
            values += stage.run([values[x] if type(x) is int else x for x in stage.leaves])
        return [values[p] for p in wanted]

    def _together(self, wanted: tuple[int, ...], count: int) -> Any:
        """A Routine of what is needed for the places `wanted`, the constants that it takes behind the inputs, its order, whether there are

        products, and where some places hold what it is given (a view of all of it, in no steps): the number of that, or None.
        """
        calls: list[tuple[Call, list[int]]] = []
        constants: list[Any] = []
        at: list[int] = []                              # for each place: a call, or ~k for an input
        inputs = 0
        for stage in self.way():
            while len(at) < stage.first:
                at.append(~inputs)
                inputs += 1
            leaves = []
            for x in stage.leaves:
                if type(x) is int:
                    leaves.append(at[x])
                else:
                    leaves.append(~(count + len(constants)))
                    constants.append(x)
            start = len(calls)
            calls += [(call, [leaves[~o] if o < 0 else start + o for o in operands]) for call, operands in stage.calls]
            at += [start + k if k >= 0 else leaves[~k] for k in stage.ends]
        needed = {at[p] for p in wanted}
        for k in range(len(calls) - 1, -1, -1):
            if k in needed:
                needed.update(calls[k][1])
        numbers = {k: i for i, k in enumerate(k for k in range(len(calls)) if k in needed)}
        order: list[Any] = [calls[k][0] for k in numbers]
        places = [tuple([o if o < 0 else numbers[o] for o in calls[k][1]]) for k in numbers]
        routine = Routine(order, places, [numbers[at[p]] for p in wanted if at[p] >= 0])
        routine.steps = [step._replace(reports=False) for step in routine.steps]             # they were looked at
        through = [~at[p] if at[p] < 0 else None for p in wanted] if any(at[p] < 0 for p in wanted) else None
        return routine, constants, order, any(s.products for s in self.way()), through


def _unlink(place: tuple[Stage, Any], stage: Any) -> None:
    """Nothing leads to a stage that is forgotten."""
    if place[0].likely is stage:
        place[0].likely = None


_stages = Cache("stages of calls under no_grad", STAGES, dropped=_unlink)       # by a stage and what is called then; False: not put off


class Tape:
    """The calls of a thread since somebody last looked.

    places: of the nodes on it, in order: those that it starts from, whose arrays are `inputs`, and results. stage: the last one. counted:
    how many calls were. left: once it has ended, places of results, and the nodes there, which are kept by whoever holds them.
    """

    __slots__ = ("closed", "counted", "device", "dtype", "inputs", "left", "lock", "nbytes", "places", "stage", "thread")

    def __init__(self) -> None:
        self.places: dict[Node, Number] = {}
        self.inputs: list[Any] = []
        self.left: list[tuple[int, weakref.ref[Node]]] = []
        self.stage: Stage | None = None
        self.device: Any = None
        self.dtype: Any = None
        self.nbytes, self.counted, self.closed = 0, 0, False
        self.lock, self.thread = threading.RLock(), get_ident()

    def compute(self) -> None:
        """Give values to the nodes on the tape that somebody holds, and end it. (Another thread may ask for one of them.)"""
        with self.lock:
            self.closed = True
            if state.tape is self:
                state.tape = None
            stage = self.stage
            if stage is None:
                return
            AT_ONCE[0] += stage.depth - self.counted
            _stages.hits += stage.depth - self.counted
            self.counted = stage.depth
            own = self.thread == get_ident()            # else its thread may be about to add a node, which can be asked for, too
            if self.places:
                nodes = list(self.places)
                self.left = [(p, _ref(nodes[p])) for p in stage.places()]
                if own:                                 # what nobody else holds is gone with this (and so is a cycle)
                    nodes.clear()
                    self.places.clear()
            held = [(p, node) for p, ref in self.left if (node := ref()) is not None and hasattr(node, "later")]
            if held:
                device = self.device
                arrays = stage.values(tuple([p for p, _ in held]), self.inputs.copy())
                for (_, node), array in zip(held, arrays, strict=True):
                    node.value = hold(device, array) if array.base is None else held_part(device, array)
                    del node.later
            if own:
                self.inputs, self.left = [], []


# ------------------------------------------------------------------------------------------------------------- what is called


def follow(function: Any, known: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a call gives, its operations put off; None where they are not. (A hot path: every call under no_grad.)

    function: tells it from others. known: its templates, or (of pure movement) its Views.
    """
    if not (state.plain and config.recall and config.eager):
        return None
    tape = state.tape
    if tape is None or tape.closed:
        tape = state.tape = Tape()
    places = tape.places
    fresh: list[Any] = []
    parts: list[Any] = [function]
    for a in args:
        cls = a.__class__
        if cls is int:
            parts.append(a)
        elif cls is Tensor or KINDS.get(cls) == ARRAY:
            if a._base is not None and not a._is_current():
                return None
            place = places.get(a._n)
            if place is not None:
                parts.append(place)
            elif not _enter(tape, a, parts, fresh):
                return None
        elif not _add(tape, a, cls, parts, fresh):
            return None
    if kwargs:
        for name, a in kwargs.items():
            parts.append(name)
            if not _add(tape, a, a.__class__, parts, fresh):
                return None
    if tape.closed:             # an argument's value was asked for, which is one of the tape's (a parameter was written): it is done
        return follow(function, known, args, kwargs)
    before = tape.stage
    if before is None:
        before = _begin(tape, fresh)
        if before is None:
            return None
    elif dtypes.get_default_dtype() is not tape.dtype:
        return None
    key = tuple(parts)
    stage = before.likely
    if stage is None or stage.key != key:
        stage = _stages[before, key]
        if stage is None and len(args) == 2 and not kwargs:
            stage = _whatever_number(before, key, args)
        if stage is None:
            stage = _learn(tape, before, key, known, args, kwargs, fresh)
        if not stage or tape.closed:
            return None
        before.likely = stage
    if stage.checks and any(any(call.fn.excess(fresh[k], call)) for k, call in stage.checks):
        return None                                     # done otherwise, it is reported
    if stage.numbered is not None:
        fresh.append(_new_node(Node))                   # for its place: nobody asks for its value
        fresh.append(np.asarray(number_of(args), stage.numbered))
    if fresh:
        _start(tape, fresh)
    only = stage.only
    if only is not None:
        node = _new_node(Node)
        node.fn, node.operands, node.attrs, node.aval, node.loc = _DATA, (), only.attrs, only.aval, NOWHERE
        node.needs_grad, node.constant, node.later = False, False, tape
        places[node] = stage.number
        made = _new_tensor(Tensor)
        made._n, made._device, made._trace, made._versions, made._moved = node, tape.device, None, 0, ()
        made._base = made._grad = made._hooks = made._source = None
        if state.scopes:
            made._within = state.scopes
        if only.steps is not None:
            base = args[0]
            made._steps, made._layout, made._detached = only.steps, len(base._moved), False
            made._base, made._source = base, (_ref(base._n), base._versions if base._base is None else base._source[1])    # it is current
            if only.reshaped and only.laid.moved(made, base):
                made._base = made._source = None
    else:
        made = _several(tape, stage, args)
    tape.stage = stage
    if stage.last or tape.nbytes > LARGE:
        tape.compute()
    return made


def _whatever_number(before: Stage, key: tuple[Any, ...], args: Sequence[Any]) -> Any:
    """The stage after `before` of a call with a Python float, whatever that is; None if there is none, or where it comes again."""
    loose = without_number(key, args)
    stage = None if loose is None else _stages[before, loose]
    if not stage:
        return stage
    number = number_of(args)
    if number == stage.recent:
        return None
    stage.recent = number
    return stage


def _start(tape: Tape, fresh: list[Any]) -> None:
    """Put values that a tape starts from on it."""
    places, count = tape.places, len(tape.places)
    for k in range(0, len(fresh), 2):
        places[fresh[k]] = _numbered(count)
        count += 1
        tape.inputs.append(fresh[k + 1])
        tape.nbytes += fresh[k + 1].nbytes


def _several(tape: Tape, stage: Stage, args: Sequence[Any]) -> Any:
    """The results of a call that gives a sequence."""
    made = []
    for k, result in enumerate(stage.results, stage.first):
        node = data(result.aval, None, result.attrs)
        del node.value
        node.later = tape
        tape.places[node] = _numbered(k)
        tensor = Tensor(node, tape.device)
        if result.steps is not None:
            base = args[0]
            tensor._base, tensor._steps, tensor._layout, tensor._detached = base, result.steps, len(base._moved), False
            tensor._source = _ref(base._n), base._version
            if result.reshaped and result.laid.moved(tensor, base):
                tensor._base = tensor._source = None
        made.append(tensor)
    form = stage.form
    return form(*made) if hasattr(form, "_fields") else form(made)


class Number:
    """A place on a tape, as it stands in keys: no integer, for these stand there, too."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


NUMBERS: list[Number] = []
_LEAF, _INTEGERS = object(), object()       # in a key: what stands before it requires grad, or lies in the range that follows


def _numbered(index: int) -> Number:
    while len(NUMBERS) <= index:
        NUMBERS.append(Number(len(NUMBERS)))
    return NUMBERS[index]


def _add(tape: Tape, a: Any, cls: type, parts: list[Any], fresh: list[Any]) -> bool:
    """Append what tells the argument `a` from others after the same calls to `parts`; whether there is such a thing.

    fresh: gets node and array of values that are not on the tape yet.
    """
    kind = KINDS.get(cls)
    if kind == FLOAT:
        parts.append(cls)
        parts.append(a if a and a == a else repr(a))                # NaN is not itself, and 0.0 equals -0.0
    elif kind == LIST:
        parts.append(cls)
        parts.append(len(a))
        for b in a:
            if b.__class__ is int:
                parts.append(b)
            elif not _add(tape, b, b.__class__, parts, fresh):
                return False
    elif kind == PLAIN:
        parts.append(cls)
        parts.append(a)
    elif kind == ARRAY:
        if a._base is not None and not a._is_current():
            return False
        place = tape.places.get(a._n)
        if place is None:
            return _enter(tape, a, parts, fresh)
        parts.append(place)
    elif kind == INTEGER:
        if cls is not int:                                          # True is not 1
            parts.append(cls)
        parts.append(a)
    elif kind == SLICE:
        parts.append(cls)
        for b in (a.start, a.stop, a.step):
            if not _add(tape, b, b.__class__, parts, fresh):
                return False
    else:
        return False
    return True


def _enter(tape: Tape, tensor: Tensor, parts: list[Any], fresh: list[Any]) -> bool:
    """The same of a value that a tape is to start from."""
    node = tensor._n
    for k in range(0, len(fresh), 2):
        if fresh[k] is node:
            parts.append(_numbered(len(tape.places) + k // 2))
            return True
    if tensor._device is not tape.device:
        if tape.stage is not None or fresh:
            return False
        tape.device = tensor._device
    if node.constant or tensor._trace is not None:
        return False
    parts.append(node.aval)
    source = node
    if node.needs_grad:
        parts.append(_LEAF)
        source = node.operands[0] if node.fn is _VARIABLE else node
        if source.needs_grad:
            return False
    value, aval = source.value, source.aval
    if type(value) is not Held or value.suspicions:
        return False
    array = value.array
    if array is None:
        return False
    if aval.bounded and has_range(source.fn):
        parts.append(_INTEGERS)
        parts.append(interval(source))
    fresh.append(node)
    fresh.append(array if array.shape == aval.shape and array.dtype is aval.dtype else value.contents(aval.shape, aval.dtype))
    return True


# ------------------------------------------------------------------------------------------------------------- what comes next


def _begin(tape: Tape, fresh: list[Any]) -> Stage | None:
    """The stage that a tape starts with; None where nothing is put off."""
    device, dtype = tape.device, dtypes.get_default_dtype()
    if not fresh:
        return None
    tape.dtype = dtype
    if (device, dtype) not in _roots:
        fit = device.in_host_memory and device.kind != "numpy"
        _roots[device, dtype] = Stage(None) if fit else None
    return _roots[device, dtype]


def _learn(tape: Tape, before: Stage, key: Any, known: Any, args: Sequence[Any], kwargs: dict[str, Any], fresh: list[Any]) -> Stage | None:
    """The stage of a call that did not come after `before` yet; None where it is not put off, or not yet."""
    stage = Stage(before)
    if isinstance(known, Views):
        made = _of_views(stage, tape, known, args, kwargs, fresh)
    else:
        made = _of_template(stage, key, tape, known, args, kwargs, fresh)
    if made is None:
        return None
    if stage.numbered is not None:
        key = without_number(key, args)
    stage.first = len(tape.places) + len(fresh) // 2 + (stage.numbered is not None)
    stage.key, stage.number = key, _numbered(stage.first)
    stage.only = stage.results[0] if stage.form is None and made else None
    _stages[before, key] = stage if made else False
    return stage if made else None


def _of_template(stage: Stage, key: Any, tape: Tape, known: Any, args: Sequence[Any], kwargs: dict[str, Any],
                 fresh: list[Any]) -> bool | None:
    """Make `stage`, with that key, one of a template; False where it is done otherwise, None where there is none yet."""
    before = stage.before
    described = describe(args, kwargs)
    if described is None:
        return None
    template, numbers = known.get(described[0]), list[Node]()
    if template is None and not kwargs:
        template = known.get(without_number(described[0], args))
        if template is not None:
            numbers = [a_number(number_of(args), described[1][0].aval.dtype)]
            if before is not None and _stages[before, without_number(key, args)] is None:         # else it is the same as the last one
                stage.numbered = numbers[0].dtype
    if template is None:
        return None
    if template.prepared is None:
        template.prepared = prepare(template, [*described[1], *numbers])
    prepared = template.prepared
    if not isinstance(prepared, Prepared) or prepared.history or prepared.views or (prepared.wide and not tape.device.fp64):
        return False
    leaves = _places(tape, args, kwargs, fresh)
    for c in numbers:
        leaves.append(np.asarray(c.attrs["value"]) if stage.numbered is None else len(tape.places) + len(fresh) // 2)
    for call, operands in zip(prepared.order, prepared.operands, strict=True):
        if call.fn.reports:                             # indices that come from outside are looked at when they are used
            place = leaves[~operands[0]] if 0 <= ~operands[0] < len(leaves) else -1
            if place < len(tape.places):
                return False
            stage.checks.append((2 * (place - len(tape.places)) + 1, call))
    result = template.result
    stage.form, ends = (None, [result]) if type(result) is int else result
    if len(leaves) != len(described[1]) + len(numbers) or any(type(k) is not int or k < template.made for k in ends):
        return False
    number = {k: i for i, (k, _, _) in enumerate(prepared.results)}
    stage.leaves = [*leaves, *prepared.constants]
    stage.calls = list(zip(prepared.order, prepared.operands, strict=True))
    stage.ends = [prepared.routine.ends[number[k]] for k in ends]
    stage.results = [_Result(*prepared.results[number[k]][1:]) for k in ends]
    stage.products = prepared.products
    routine, order, several = prepared.routine, prepared.order, [number[k] for k in ends]

    def run(arrays: Sequence[Any]) -> list[Any]:
        found = (routine.written or routine)(arrays, (), order, [])
        return [found[k] for k in several]

    stage.run = run
    return True


def _of_views(stage: Stage, tape: Tape, known: Any, args: Sequence[Any], kwargs: dict[str, Any], fresh: list[Any]) -> bool | None:
    """The same of Views."""
    base = args[0]
    if not isinstance(base, Tensor) or base._n.needs_grad:
        return False
    views = known.of_call(base, args, kwargs)
    if views is None:
        return None
    stage.form, views = views
    stage.leaves = _places(tape, (base,), {}, fresh)
    for view in views:
        at, aval = ~0, base._n.aval
        for fn, attrs in view.steps:
            aval = fn.aval(aval, **attrs)
            stage.calls.append((Call(fn, attrs, aval, (aval.dtype,)), (at,)))
            at = len(stage.calls) - 1
        stage.ends.append(at)
        stage.results.append(_Result(view.aval, view.attrs, view.steps, view.reshaped))
    rules = [view.rules for view in views]

    def run(arrays: Sequence[Any]) -> list[Any]:
        found = []
        for steps in rules:
            array, = arrays
            for rule in steps:
                array = rule(array)
            found.append(array)
        return found

    stage.run = run
    return True


def _places(tape: Tape, args: Sequence[Any], kwargs: dict[str, Any], fresh: list[Any]) -> list[Any]:
    """The places of the tensors of a call, each once, in order."""
    found: list[Any] = []
    rest = [*reversed((*args, *kwargs.values()))]
    while rest:
        a = rest.pop()
        if isinstance(a, (list, tuple)):
            rest += reversed(a)
        elif isinstance(a, Tensor):
            number = tape.places.get(a._n)
            place = len(tape.places) + next(k for k, node in enumerate(fresh[::2]) if node is a._n) if number is None else number.index
            if place not in found:
                found.append(place)
    return found
