"""@trace: record a Python function once per signature, then replay a compiled program. Start at `Traced.__call__`.

Recording runs the body on tracers (`recording.py`). Tensors that the body reaches through closures, attributes or globals become inputs by
reference (`guards.py`); Python floats and complex numbers among the arguments become run-time scalars; everything else is static. A call
replays (`replay.py`) what was recorded for its signature if the world that the function reaches is still the same.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import optree

from tracegrad.config import config
from tracegrad.errors import ArgumentError, TraceError, check_function, check_place, printable
from tracegrad.execute.deferred import flush
from tracegrad.execute.devices import chosen_device, find_device
from tracegrad.graph.ir import own_leaves
from tracegrad.graph.operators import DECORATORS
from tracegrad.graph.primitive import REGISTRY
from tracegrad.graph.printing import aval_text, returned_names
from tracegrad.inspection.report import Kernels, explain, kernels
from tracegrad.support import dtypes
from tracegrad.support.modes import every_module, float32_matmul, state, unusual, without_collection
from tracegrad.tensors.attributes import base_of
from tracegrad.tensors.tensor import Tensor
from tracegrad.tracing.content_guards import difference, mode
from tracegrad.tracing.fast_replay import with_tensors
from tracegrad.tracing.guards import ORDERED, GuardSet, in_words
from tracegrad.tracing.reachable_names import tensor_names
from tracegrad.tracing.recording import Recording, path_of
from tracegrad.tracing.replay import Replay
from tracegrad.tracing.varying import Varying

if TYPE_CHECKING:
    from networkx import MultiDiGraph

    from tracegrad.inspection.comparison import Comparison
    from tracegrad.inspection.debugging import Debug
    from tracegrad.inspection.memory import Memory
    from tracegrad.inspection.profiling import Profile

_VARIABLE = REGISTRY["variable"]
KEPT = 32  # recordings of one signature: for so many states of the world that the function reaches; the oldest is dropped
SIGNATURES = 512  # of one function that recordings are kept for; the one that was recorded first is dropped
F = TypeVar("F", bound=Callable[..., Any])


class NoReplay(Exception):
    """The call runs the function as it is: an argument is on "meta", and there is nothing to compile for."""


class Traced:
    """A function under @trace. Call it; then look at `graph`, `kernels()`, `source()` and `explain()` of its latest call."""

    def __init__(self, fn: Callable[..., Any], dynamic: bool | None = False) -> None:
        functools.update_wrapper(self, check_function("trace", fn))
        self.__name__: str = printable(getattr(fn, "__name__", type(fn).__name__))
        self._fn = fn
        self._varying = Varying(dynamic)
        self._replays: dict[Any, list[Replay]] = {}
        self._latest: Replay | None = None
        self._short: tuple[Replay, bool, Any, str, Any] | None = None  # the latest one and its mode (see __call__), if it has a fast replay
        self._held: Sequence[Any] = ()  # with config.hold, the latest call's arguments
        self._signature: Any = None  # of the latest recording
        self._changing: set[Any] = set()  # signatures whose body changed what it reads when it was recorded
        self.compilations: list[str] = []  # why each recording happened; those that are alike share what was compiled

    def __repr__(self) -> str:
        return f"<traced {getattr(self._fn, '__qualname__', self._fn)}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        short = self._short
        if (short is not None and not kwargs and (not unusual[0] or state.plain) and config.recall and not every_module
                and short[1] is state.grad and short[2] is dtypes.default_float[0] and short[3] == float32_matmul[0]):
            result = short[0].fast_replay(args)
            if result is not None:
                return result
        if state.symbolic or state.anomaly is not None or state.watch:
            return self._fn(*args, **kwargs)  # inside another trace, or of one example in vmap: part of it; or values are read
        try:
            replay, flat = self._found(args, kwargs)
        except NoReplay:
            return self._fn(*args, **kwargs)  # of tensors on "meta" there are shapes to find only
        return replay.run(flat)

    def __deepcopy__(self, memo: Any) -> Traced:
        """A copy of what is traced, which records anew."""
        return type(self)(copy.deepcopy(self._fn, memo), self._varying.dynamic)

    def _found(self, args: Any, kwargs: Any) -> tuple[Replay, Sequence[Any]]:
        """The replay for a call, recorded if there is none, and the call's argument leaves."""
        flat: Any
        treedef: Any
        args = with_tensors(args)
        tree: Any = args, kwargs
        if kwargs or not _FLAT.issuperset(map(type, args)):
            flat, structure = optree.tree_flatten(tree, none_is_leaf=True, namespace=ORDERED)
            treedef = (structure, *structure.paths())  # the paths tell dicts of different order apart
            flat = with_tensors(flat)
        else:
            flat, treedef = args, len(args)  # nothing nested: no tree needed
        tensors = [x for x in flat if isinstance(x, Tensor)]
        present = mode()
        signature = (treedef, present, () if len(tensors) == 1 else _sharing(tensors), *map(_signature, flat))
        try:
            candidates = self._replays.setdefault(signature, [])
        except TypeError:
            kinds = [type(a).__name__ for a in flat if not isinstance(a, Hashable)]
            raise ArgumentError(f"{self.__name__}: an argument is neither a tensor nor hashable: {kinds}; pass tuples, lists and dicts of "
                                "tensors and numbers, or objects that hash by identity (@dataclass(eq=False))") from None
        change = ""
        for replay in candidates:
            if not replay.change(flat):
                break
        else:
            if any(not x._device.has_values for x in tensors):
                raise NoReplay
            labels = _labels(self._fn, args, kwargs)
            varying = self._varying.of(signature, flat, labels, self.__name__)
            reason = self._reason(signature, labels, flat, candidates) + (f" (any: {', '.join(varying)})" if varying else "")
            if len(self._replays) > SIGNATURES:
                del self._replays[next(iter(self._replays))]
            if varying:
                self._varying.learn(signature, varying.values())
            replay, change = self._record(args, kwargs, flat, frozenset([flat[i].shape[d] for i, d in varying.values()]))
            if not varying:
                self._varying.note(signature, replay, flat)
            if change and signature in self._changing:
                raise TraceError(
                    f"{self.__name__}: its body changes Python state that it reads ({change}), at every call, so no replay could do "
                    "the same; do that outside the traced function, pass the state as an argument, or keep it in a tensor written in place"
                )
            if change:
                self._changing.add(signature)
                reason += f" (not kept: the body changed what it reads: {change})"
            else:
                self._changing.discard(signature)
                candidates.append(replay)
                del candidates[:-KEPT]
            self.compilations.append(reason)
            replay.reason = reason
        usual = present[3:] == (None,) and not (signature[2] or config.hold)
        again = not change and replay.short and flat is args and usual and all(map(_simple, signature[3:]))
        self._latest, self._short, self._held = replay, (replay, *present) if again else None, flat if config.hold else ()
        return replay, flat

    @without_collection
    @own_leaves()
    def _record(self, args: Any, kwargs: Any, flat: Sequence[Any], varying: frozenset[int] = frozenset()) -> tuple[Replay, str]:
        """Run the body on tracers and compile what it did. Also what Python state the body changed, in words ("": it can be replayed)."""
        tensors = [x for x in flat if isinstance(x, Tensor)]
        device = tensors[0]._device if tensors else find_device()
        flush()
        labels = _labels(self._fn, args, kwargs)
        statics = [(labels[i] if i < len(labels) else "", x) for i, x in enumerate(flat) if not isinstance(x, (Tensor, *_NUMBERS))]
        names = tensor_names(self._fn, statics) | {id(x): label for x, label in zip(flat, labels, strict=False) if isinstance(x, Tensor)}
        recording = Recording(printable(getattr(self._fn, "__qualname__", repr(self._fn))), device, names)
        own = [vars(x) for x in tensors if type(x) is not Tensor and getattr(x, "__dict__", None)]         # a Parameter's attributes
        objects = [*(x for x in flat if not isinstance(x, (Tensor, *_NUMBERS))), *own]
        guard_set = GuardSet(self._fn, objects)
        recording.reached = guard_set.tensors
        modes, place = mode(), chosen_device()
        state.trace = recording
        try:
            tracers = self._tracers(recording, flat, labels, guard_set)
            nested = kwargs or not _FLAT.issuperset(map(type, args))
            tree: Any = args, kwargs
            treedef: Any = None
            if nested:
                treedef = optree.tree_structure(tree, none_is_leaf=True, namespace=ORDERED)
                new_args, new_kwargs = optree.tree_unflatten(treedef, tracers)
            else:
                new_args, new_kwargs = tuple(tracers), {}
            result = self._fn(*new_args, **new_kwargs)
            if nested:
                tree = new_args, new_kwargs
                after, structure = optree.tree_flatten(tree, none_is_leaf=True, namespace=ORDERED)
                if structure != treedef or any(a is not b for a, b in zip(after, tracers, strict=True)):
                    raise TraceError(
                        f"{recording.name}: changes a list or dict among its arguments, which a replay would not do; return the new values"
                    )
            if call := recording.hooks_left():
                raise TraceError(f"{recording.name}: {call} of a tensor from outside, which a replay would not do; call it outside the "
                                 "traced function, or remove() the hook in there")
            for renewed in recording.renewed:
                guard_set.renew(*renewed)
            self._check_reach(recording, guard_set)
            assigned = guard_set.assigned()
            change = in_words(guard_set.change() or guard_set.advanced())
            if assigned and not change:
                guard_set = GuardSet(self._fn, objects, [slot for slot, _ in assigned if slot.held_tensors])
            replay = Replay(recording, result, guard_set, flat, returned_names(self._fn), assigned, varying)
            change = change or replay.assigned.once or difference(modes, mode()) or (
                f"the default device is {chosen_device()} now" if place not in (None, chosen_device()) else "")
        finally:
            state.trace = None
            recording.hooks_left()
            guard_set.assigned()                         # what a body that failed had assigned is put back
            for tensor, before in recording.versions.values():
                tensor._versions = before
        return replay, change

    def _tracers(self, recording: Recording, flat: Sequence[Any], labels: list[str], guard_set: GuardSet) -> list[Any]:
        """What stands for each argument leaf. Views of a tensor that others or the function itself lead to go through that tensor."""
        bases = [id(base_of(x)) for x in flat if isinstance(x, Tensor)]
        tracers = []
        for i, x in enumerate(flat):
            label = labels[i] if i < len(labels) else ""
            if isinstance(x, Tensor):
                base = base_of(x)
                if id(base) not in recording.places and (base is x or bases.count(id(base)) > 1) and id(base) not in guard_set.tensors:
                    where = next((k for k, y in enumerate(flat) if y is base), None)
                    recording.place_argument(base, ("base", i) if where is None else ("arg", where), label)
                elif id(x) not in recording.places and id(base) not in recording.places and id(base) not in guard_set.tensors:
                    recording.place_argument(x, ("arg", i), label)
                if id(base) in recording.places:
                    recording.places.setdefault(id(x), ("arg", i))      # a view of what has its place: the body may return it
                tracers.append(x)
            else:
                tracers.append(recording.argument(i, x, label) if isinstance(x, _NUMBERS) else x)
        return tracers

    def _reason(self, signature: Any, labels: Sequence[str], flat: Sequence[Any], candidates: list[Replay]) -> str:
        """Why a call needs a recording of its own, for explain()."""
        previous, self._signature = self._signature, signature
        if candidates:
            return f"something that the function reaches changed: {in_words(candidates[-1].change(flat))}"
        if previous is None:
            return "first call"
        if previous[0] != signature[0] or len(previous) != len(signature):
            return "the arguments have another structure"
        if previous[1] != signature[1]:
            return difference(previous[1], signature[1])
        if previous[2] != signature[2]:
            return "other arguments share memory"
        names = [*labels, *(f"argument {i}" for i in range(len(labels), len(signature)))]
        pairs = enumerate(zip(previous[3:], signature[3:], strict=True))
        new = [f"{names[i]} was {_described(a, b)} and is {_described(b, a)}" for i, (a, b) in pairs if a != b]
        return "nothing was kept of the call before" if not new else "; ".join([*new[:3], *[f"and {len(new) - 3} more"][: len(new) > 3]])

    def _check_reach(self, recording: Recording, guard_set: GuardSet) -> None:
        known = guard_set.tensors.keys() | recording.places.keys() | recording.adopted.keys() | recording.lasting.keys()
        for key, (tensor, node) in recording.captured.items():
            if key not in known and (tensor._base is None or id(tensor._base) not in known):
                raise TraceError(
                    f"{recording.name} at {node.loc}: uses a {tensor.dtype}{list(tensor.shape)} tensor that it reached in a way tracegrad "
                    "cannot watch (not an argument, closure variable, global or attribute), so a replay might be stale: "
                    "pass it as an argument")

    # ------------------------------------------------------------------------------------------------- looking at it

    def _seen(self) -> Replay:
        if self._latest is None:
            raise ArgumentError(f"{self.__name__}: call it once first; what it does depends on the arguments")
        return self._latest

    @property
    def graph(self) -> MultiDiGraph:
        """The captured program of the latest call: a networkx.MultiDiGraph of Function nodes (see `ir.Graph.network`)."""
        from tracegrad.inspection.page.picture import Network  # noqa: PLC0415  (networkx is not loaded by programs that do not ask for it)

        return Network.of(self._seen().program.graph)

    @property
    def plan(self) -> Any:
        """The launch plan of the latest call (None on the numpy device, and of a call on several devices)."""
        return self._seen().program.plan

    def kernels(self) -> Kernels:
        """The OpenCL C of the latest call: a str, whose items are kernels, by number or by name."""
        return kernels(self._seen().program)

    def source(self) -> str:
        """The latest call's forward and derived backward as readable Python."""
        from tracegrad.inspection.python_source import python_source  # noqa: PLC0415  (few ask)

        return python_source(self._seen().program.graph, self.__name__)

    def explain(self) -> str:
        """What was fused, why each kernel ended, and why compilations happened."""
        return explain(self._seen().program, self.__name__, self.compilations)

    def profile(self, runs: int = 9) -> Profile:
        """Where the time of the latest call goes: a row for each kernel, with its time, the bytes that it moves, the arithmetic that it
        does, the share of what this device was measured to do at most, and its lines of Python. print() shows the table.

        The call is run again `runs` times, and once before, on a queue that records times; tensors that it updates in place keep
        their values, and host code in it is called again. Times are medians. The arguments of the latest call must still be there.
        Of several devices each row says which; transfers have rows, too: their bytes, and how much of their time kernels ran.
        Raises ArgumentError where they are not, where there was no call yet, and on the device "numpy".

        >>> f, x, y = tg.trace(lambda x, y: (x * y).sin()), tg.ones(3), tg.ones(3)
        >>> z = f(x, y)
        >>> print(f.profile())
        >>> slowest = max(f.profile(), key=lambda row: row.seconds)
        """
        from tracegrad.inspection.profiling import profile  # noqa: PLC0415

        return profile(self._seen().program, self.__name__, runs)

    def memory(self) -> Memory:
        """What the latest call's plan holds in memory, and when: for each step the intermediates that are alive, their bytes and lines.

        Of several devices each step tells of its own; `memory().devices` has the totals of each. (What the interpreter holds within a
        part is not known.) Raises ArgumentError where there was no call yet, and for a call on the device "numpy" alone.

        >>> f = tg.trace(lambda x: ((x @ x).sin() @ x).sum())
        >>> y = f(tg.ones(64, 64))
        >>> f.memory().peak.bytes
        """
        from tracegrad.inspection.memory import memory  # noqa: PLC0415

        return memory(self._seen().program, self.__name__)

    def compare(self, /, *args: Any, reference: Any = "float64", tolerance: float | None = None, **kwargs: Any) -> Comparison:
        """Find the first operation whose result leaves a reference, in a call with these arguments.

        reference: a dtype, in which NumPy computes the same operations (default: float64); or a device, or its name: the same graph
        there, as "numpy" for the interpreter. tolerance: how far a result may be off, of the largest number in it; default 1e-4 for
        float32, more for halves, 1e-10 for float64. Nothing outside changes: no tensor is written, no random number is used up.

        >>> f = tg.trace(lambda x: (1.0 + x) - 1.0)
        >>> print(f.compare(tg.tensor([1e-7, 2e-7])))
        """
        from tracegrad.inspection.comparison import compare  # noqa: PLC0415  (few ask)

        return compare(*self._given("compare", args, kwargs), reference, tolerance)

    def debugged(self, args: Any, kwargs: Any, find: Sequence[str]) -> Debug:
        """See `tg.debug`."""
        from tracegrad.inspection.debugging import debug  # noqa: PLC0415

        return debug(*self._given("debug", args, kwargs), find)

    def _given(self, what: str, args: Any, kwargs: Any) -> tuple[Any, str, list[Any]]:
        """The program of a call, what it is called, and the values of its inputs."""
        if state.symbolic:
            raise ArgumentError(f"{what}: {self.__name__} is called inside another trace or vmap, without values; call it outside")
        replay, flat = self._found(args, kwargs)
        return replay.program, self.__name__, replay.given(flat)[0]

    def page(self, path: str | os.PathLike[str], runs: int = 3, beside: Sequence[Traced] = ()) -> None:
        """Write one HTML file that shows the latest call, and earlier compilations beside it: the user's lines, the graph, the kernels, the
        launches, memory, why fusion stopped and why it was compiled again, all linked. It needs no network.

        runs: how often the call is run again for its times, as for `profile`; 0 for not at all. beside: other traced functions that were
        called, to compare with. Without times (the page says why) it also works on the device "numpy", and where the arguments are gone.
        Raises ArgumentError where there was no call yet, and for a path in a folder that does not exist.

        >>> f, x = tg.trace(lambda x: (x * x).sin()), tg.ones(3)
        >>> y = f(x)
        >>> f.page("page.html")
        """
        check_place("page", path)
        text = self._page(runs, beside)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _page(self, runs: int, beside: Sequence[Traced] = ()) -> str:
        from tracegrad.inspection.page.document import page  # noqa: PLC0415
        from tracegrad.inspection.page.model import model  # noqa: PLC0415

        if runs < 0:
            raise ArgumentError(f"page: runs must be 0 or more, got {runs}")
        latest = self._seen()
        found = [(self.__name__, latest)]
        found += [(other.__name__, other._seen()) for other in beside]
        earlier = [replay for replays in self._replays.values() for replay in replays if replay is not latest]
        found += [(self.__name__, replay) for replay in earlier[-_BESIDE:]]
        models = [model(replay.program, name, replay.reason, replay.guard_set.watched(), runs) for name, replay in found]
        return page(self.__name__, models, self.compilations)

    def _repr_html_(self) -> str | None:
        """The page, in a notebook; nothing before the first call. It runs nothing, so it has no times."""
        from tracegrad.inspection.page.document import framed  # noqa: PLC0415

        return None if self._latest is None else framed(self._page(0))

    def timeline(self, path: str | os.PathLike[str], runs: int = 3) -> None:
        """Write what runs when, in the latest call run again `runs` times, as Chrome's trace format (open it in Perfetto or chrome://tracing).

        An event for each launch and each host step: its start and length in microseconds, the kernel's name, and as arguments its lines
        of Python, what it computes, bytes and flops. Each of several devices is a process, with a track for what is sent to it: bytes, and
        for how long kernels ran beside that. Raises what `profile` raises.

        >>> f, x, y = tg.trace(lambda x, y: (x * y).sin()), tg.ones(3), tg.ones(3)
        >>> z = f(x, y)
        >>> f.timeline("trace.json")
        """
        from tracegrad.inspection.profiling import timeline  # noqa: PLC0415

        check_place("timeline", path)
        timeline(self._seen().program, self.__name__, path, runs)


_FLAT = frozenset({Tensor, float, complex, int, bool, str, type(None)})
_NUMBERS = (float, complex)  # those that are run-time values
_BESIDE = 4  # earlier compilations on a page


_GRAD = {False: "", "leaf": " that requires grad", "history": " that has a history"}


def _described(entry: Any, other: Any) -> str:
    """One entry of a signature in words, with what may differ from the other."""
    if entry in _NUMBERS:
        return f"a {entry.__name__}"
    if len(entry) > 2:
        place = f" on {entry[2].name}" if other not in _NUMBERS and len(other) > 2 and other[2] is not entry[2] else ""
        return f"{aval_text(entry[0])}{_GRAD[entry[1]]}{' with hooks or attributes' if len(entry) > 3 else ''}{place}"
    return repr(entry[1])


def _signature(leaf: Any) -> Any:
    if type(leaf) is Tensor or isinstance(leaf, Tensor):
        node = leaf._n if leaf._base is None else leaf._node_outside()
        kind = node.needs_grad and ("leaf" if node.fn is _VARIABLE else "history")
        if leaf._hooks or (type(leaf) is not Tensor and getattr(leaf, "__dict__", None)):
            return (node.aval, kind, leaf._device, *(leaf._hooks or ()), *_attributes(leaf))
        return (node.aval, kind, leaf._device)
    return float if isinstance(leaf, float) else complex if isinstance(leaf, complex) else (type(leaf), leaf)


def _simple(entry: Any) -> bool:
    """Whether an entry of a signature is one for `fast_replay`: a tensor without gradients and hooks, a float, or what is static."""
    return entry is float or (entry is not complex and (len(entry) == 2 or (len(entry) == 3 and entry[1] is False)))


def _attributes(leaf: Tensor) -> list[Any]:
    """What a Parameter's own attributes are: numbers and words by their values, all else by which objects they are."""
    own = getattr(leaf, "__dict__", {}).items()
    return [(name, type(value), value if isinstance(value, (str, *_NUMBERS, bool, int, type(None))) else id(value)) for name, value in own]


def _sharing(tensors: Sequence[Tensor]) -> Any:
    """Which arguments share memory, and how: the same tensor given twice, views of one base. The default device, if there are none."""
    if not tensors:
        return find_device()
    bases = [x if x._base is None else base_of(x) for x in tensors]
    if len({*map(id, bases)}) == len(bases):
        return ()
    first: dict[int, int] = {}
    groups = [first.setdefault(id(b), k) for k, b in enumerate(bases)]
    return tuple((g, path_of(x)) for g, x in zip(groups, tensors, strict=True) if groups.count(g) > 1 or g)


def _labels(fn: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """A name for each argument leaf, from the function's parameters."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return []
    parameters = code.co_varnames[: code.co_argcount]
    names: list[str] = []
    for i, a in enumerate(args):
        base = parameters[i] if i < len(parameters) else "arg"
        n = len(optree.tree_leaves(a, none_is_leaf=True, namespace=ORDERED))
        names += [base] if n == 1 else [f"{base}_{k}" for k in range(n)]
    for key, a in kwargs.items():
        names += [printable(key)] * len(optree.tree_leaves(a, none_is_leaf=True, namespace=ORDERED))
    return names


@overload
def trace(fn: F, *, dynamic: bool | None = False) -> F: ...
@overload
def trace(fn: None = None, *, dynamic: bool | None = False) -> Callable[[F], F]: ...
def trace(fn: Any = None, *, dynamic: bool | None = False) -> Any:
    """Compile a function of tensors: the first call with a new signature records and compiles it, later calls replay.

    (Of a Tensor, torch.trace: the sum of a matrix's diagonal, x.trace().)

    fn: takes and returns (nested containers of) Tensors; other arguments are static, except Python floats and complex numbers,
    which are run-time values. Raises TraceError where the body needs a value that is not known while recording.
    dynamic: whether sizes of the arguments vary, so that another size is recorded, but builds no kernel. True: all of them do. None: those
    that were seen to, from the second size on, and those that `mark_dynamic` says. False: none, kernels are made for the sizes at hand.

    >>> @tg.trace
    ... def f(x):
    ...     return (x * x).sum()
    >>> f(tg.ones(3))
    """
    if isinstance(fn, Tensor):
        return fn.trace()
    return Traced(fn, dynamic) if fn is not None else functools.partial(Traced, dynamic=dynamic)


DECORATORS["trace"] = trace             # for `Module.compile`, which needs nothing else of tracing
