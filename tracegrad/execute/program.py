"""What is recorded, whatever recorded it: a `Program`. Start at `Program.run`.

A trace, a stretch of pending work, a backward, a step of an optimizer and the body of a loop are each a Program. They differ in how the
values of its inputs are found, and in what is done with its results. A Program runs through one of two backends: NumPy (the rules of its
operations, or Python generated from them) or kernels. A trace is compiled; of anything else policy.py decides.

Programs of untraced work are looked up by structure (graph/canonical.py) in one cache, `programs`. Work that differs in numbers only is one
Program, which gets them as operands. Kernels are built for the numbers that were never seen to change, so a Program may have several
`versions`: Programs without numbers.

A backward, `autograd.grad` and a step of an optimizer are recalled alike, by a `Recipe` in the cache `recipes`. Something walks over all
that they depend on: a history and the pending work (autograd/history_key.py), or parameters, gradients, state and options
(optim/update.py). The walk gives a key of structure only, and the nodes with values in the order in which they were met. A recipe holds
numbers of nodes, no node and no tensor, so it is everyone's whose key is the same: of a second model, or of a second optimizer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tracegrad.config import config
from tracegrad.errors import LinAlgError
from tracegrad.execute import policy
from tracegrad.execute.backend_interfaces import numpy_rules
from tracegrad.execute.compile import compiled, executable_graph, learned
from tracegrad.execute.devices import NUMPY, Device, HostValue
from tracegrad.graph.canonical import Key, Places, fixed, is_number
from tracegrad.graph.ir import ON_HOST, Aval, Graph, Node
from tracegrad.graph.locations import Location, located
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.ops.primitives.movement import compact
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.runtime.faults import Run, mark
from tracegrad.runtime.launch import Executable, Ready
from tracegrad.runtime.programs.background import Job, in_background
from tracegrad.support.blas import quiet
from tracegrad.support.cache import Cache
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import float32_matmul, without_collection
from tracegrad.support.plan import Check, Line, MatrixCheck, Plan

_PLACEHOLDER = REGISTRY["placeholder"]
_new = object.__new__
_HELD = {HostBuffer}
_counting = threading.Lock()                # guards `Program.left`
KNOWN = 200_000     # operations in all the Programs that are remembered (0.5 KB each)
VERSION = 200       # what a compiled version counts as
REMEMBERED = 1_000_000                      # parts of the keys of recipes (10 an operation)
OWN_SIZE_AFTER = 1000   # runs after which a program for sizes that vary has kernels for its own size; they are built after half as many


class _Reports(NamedTuple):
    """What a program may report, and masks for each result: the inputs that it reads, and the checks that it depends on."""

    checks: tuple[Check | MatrixCheck, ...]
    reads: list[int]
    checked: list[int]


class Program:
    """A graph on a device, and what runs it. What it computes never changes; what is known about running it grows.

    graph: what was captured. Its inputs are leaves, in call order; those with a weak aval are run-time scalars. donate: output index ->
    input index whose buffer the output may overwrite. results: what the user calls the outputs, "" where that is not known. executable:
    what runs its kernels, and `plan` what that is made from; None on the interpreter. `compile` makes them, now unless `later`. left: runs
    of kernels for sizes that vary, until those for this size are taken; 0 where there are none to be taken, or they were. written: inputs
    that a run may overwrite. twin: what `tg.debug` and `compare` run in its place, once they did.

    Of untraced work (`recorded`) there are also: key, in `programs`. numbers: the constants that a call may have others for. order, places,
    ends: the operations, their operands and the results by place, see `canonical`. usage: what policy.py decides by. routine: NumPy's.
    """

    key: Key
    usage: policy.Usage
    order: list[Node]
    places: Sequence[Places]
    ends: Sequence[int]
    numbers: list[Node]
    routine: Any = None
    left = 0
    written: Collection[int] = ()
    twin: Any = None

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node], device: Device, donate: Mapping[int, int] | None = None,
                 results: Sequence[str] = (), later: bool = False, varying: frozenset[int] = frozenset()) -> None:
        self._hold(Graph.capture(inputs, outputs), device)
        self.graph.output_names = list(results)
        if device is not NUMPY and device.undecided:
            device.stay()
        if not later:
            self.compile(donate, results, varying)

    def _hold(self, graph: Graph, device: Device) -> None:
        self.graph, self.device = graph, device
        self.avals = [n.aval for n in graph.inputs]
        self.weak = [aval.weak for aval in self.avals]
        self.scalars = [i for i, weak in enumerate(self.weak) if weak]
        self.shapes, self.dtypes = ([getattr(aval, what) for aval in self.avals if not aval.weak] for what in ("shape", "dtype"))
        self.executable: Executable | None = None
        self.buffers_only = False
        self.versions: dict[Any, Program | Job] = {}
        self.own_size: Job | Executable | None = None               # kernels for this size, instead of those for sizes that vary

    @classmethod
    def recorded(cls, key: Key, order: Sequence[Node], leaves: Sequence[Node], places: Sequence[Places], ends: Sequence[int],
                 device: Device) -> Program:
        """The Program of a structure of untraced work, which these nodes are an example of."""
        new = Node.__new__
        made: list[Any] = [None] * len(order)
        inputs = []
        for leaf in leaves:
            node = new(Node)
            node.fn, node.operands, node.attrs, node.aval, node.loc = _PLACEHOLDER, (), {"label": ""}, leaf.aval, leaf.loc
            node.needs_grad, node.constant, node.value = False, False, None
            inputs.append(node)
        made += reversed(inputs)
        for i, (like, at) in enumerate(zip(order, places, strict=True)):
            node = made[i] = new(Node)
            fn = node.fn = like.fn
            # What reports an error needs the line of each call: it says which operation it is, and the call where that stands now.
            node.attrs = like.attrs | {"position": i} if fn.reports else like.attrs
            node.loc = like.loc.having(like.loc.call, i, like.loc.derived) if fn.family in ON_HOST else like.loc
            node.operands, node.aval, node.value = tuple([made[p] for p in at]), like.aval, None
            node.needs_grad, node.constant = False, not at and fn.constant
        program = cls.__new__(cls)
        program._hold(Graph(inputs, [made[p] for p in ends], made[:len(order)]), device)
        program.key, program.order, program.places, program.ends = key, made[:len(order)], places, ends
        program.numbers = [n for n in program.order if is_number(n)]
        program.usage = policy.Usage(program.order, device)
        return program

    @property
    def size(self) -> int:
        """What it counts as in a cache."""
        return len(self.order) + VERSION * len(self.versions)

    @property
    def plan(self) -> Plan | None:
        return None if self.executable is None else self.executable.plan

    @property
    def parts(self) -> list[Program]:
        """The Programs of one device each that it consists of: itself."""
        return [self]

    def computing(self, outputs: Sequence[Node]) -> Program:
        """A Program that computes other nodes from the same inputs."""
        return Program(self.graph.inputs, outputs, self.device)

    @property
    def ready(self) -> bool:
        """Whether it was compiled."""
        return self.executable is not None or "_graph" in vars(self)

    @without_collection
    def compile(self, donate: Mapping[int, int] | None = None, results: Sequence[str] = (), varying: frozenset[int] = frozenset()) -> None:
        """Make what runs it. varying: sizes of inputs that will be others."""
        graph = executable_graph(self.graph)
        if self.device is NUMPY:
            self._graph = graph
        else:
            self.executable = compiled(graph, self.device, donate or {}, results, varying)
            self.buffers_only = not any(self.weak)
            self.donate, self.left = donate or {}, OWN_SIZE_AFTER if varying else 0
            self.written = self.donate.values()

    def generalize(self, donate: Mapping[int, int], varying: frozenset[int]) -> None:
        """Note which kernels it has, so that those of other sizes can be compared with them. varying: its sizes that are others there."""
        if self.executable is not None:
            learned(executable_graph(self.graph), self.device, donate, varying)

    def _count(self) -> None:
        """Note a run of kernels for sizes that vary. A size that keeps coming gets kernels of its own: by counts, not by time, and both
        compute the same bits."""
        with _counting:
            self.left = max(0, self.left - 1)
            if self.left == OWN_SIZE_AFTER // 2:
                self.own_size = in_background(self._for_this_size)
            elif self.left == 0 and isinstance(self.own_size, Job):
                found: Executable | None = self.own_size.result()   # None: it could not be built, and what is there goes on
                self.own_size, self.executable = found, found or self.executable

    @without_collection
    def _for_this_size(self) -> Executable:
        return compiled(executable_graph(self.graph), self.device, self.donate, self.graph.output_names)

    def prepared(self) -> Program:
        """The program itself, compiled: what a thread does.

        It enqueues nothing, not even a first run. PoCL's `basic` device runs what is ready in whichever thread comes by, and two threads
        with commands in one queue (an array that is let go of unmaps its buffer, at any moment) wait for each other for ever.
        """
        self.compile()
        return self

    # --------------------------------------------------------------------------------------------------------- by kernels

    def __call__(self, values: Sequence[Any], lines: Sequence[Line] | None = None, ready: Ready | None = None) -> list[Any]:
        """Values of the outputs of a compiled program, from those of the inputs (Buffers, and Python numbers for the weak ones).

        Waits for nothing. lines: the user's lines of `checks`, where they are not those that the program was made for. ready: see
        Executable.run.
        """
        if self.left:
            self._count()
        if self.buffers_only:
            return self.executable.run(values, (), lines, ready)  # type: ignore[union-attr]
        if self.executable is None:
            return self._interpreted(values, lines)
        scalars = [v for v, weak in zip(values, self.weak, strict=True) if weak]
        return self.executable.run([v for v, weak in zip(values, self.weak, strict=True) if not weak], scalars, lines, ready)

    @property
    def checks(self) -> Sequence[Check | MatrixCheck]:
        """What a compiled program checks."""
        return self._reports.checks if self.executable is None else self.executable.plan.checks

    @cached_property
    def _reports(self) -> _Reports:
        graph: Graph = vars(self).get("_graph", self.graph)
        found = [(n, check) for n in graph if n.fn.reports for check in n.fn.checks(n)]  # type: ignore[attr-defined]
        return _Reports(tuple([check for _, check in found]), graph.masks([n for n in graph.inputs if not n.aval.weak]),
                        graph.masks([n for n, _ in found]))

    def _mark(self, results: list[Any], values: Sequence[Any], notes: list[int], lines: Sequence[Line] | None) -> None:
        """Make results of NumPy's suspect for what was found (`notes`), and for what the values are suspected of."""
        checks, reads, checked = self._reports
        run = None
        if any(notes):
            run = Run(checks, lines or [check.line for check in checks], found=np.array(notes))
            self.device.record.hear(run)
        mark(results, [v for v, weak in zip(values, self.weak, strict=True) if not weak], reads, run, checked)

    def _interpreted(self, values: Sequence[Any], lines: Sequence[Line] | None) -> list[HostValue]:
        arrays = [np.asarray(v) if weak else v.array for v, weak in zip(values, self.weak, strict=True)]
        changing = [v.array for v, weak in zip(values, self.weak, strict=True) if not weak and v.may_change]
        notes: list[int] = []
        found = [np.asarray(a) for a in numpy_rules().interpret(self._graph, arrays, notes)]
        results = [HostValue(self.device, a.copy() if any(np.may_share_memory(a, c) for c in changing) else a) for a in found]
        self._mark(results, values, notes, lines)
        return results

    # ---------------------------------------------------------------------------------------------------- of untraced work

    def run(self, values: Sequence[Any], numbers: Sequence[Node] = (), line: Callable[[int], Location] | None = None,
            ready: Ready | None = None) -> list[Any]:
        """Values of the outputs, by NumPy or by kernels, as policy.py decides. Hold realize.lock.

        values: of the inputs. numbers: the nodes that stand for `self.numbers` this time. line(i): the user's line of operation i; without
        it, that of the work that was recorded. ready: is told of the outputs one by one, where kernels compute them.
        """
        usage, bits = self.usage, tuple([n.attrs["bits"] for n in numbers])
        usage.note(bits, numbers)
        try:
            if usage.uses > usage.tier_up:
                policy.count("compiled", usage.reason or "used often")
                version = self._version(bits, numbers)
                scalars = [n.attrs["value"].item() for i, n in enumerate(numbers) if i in usage.numbers.varying]
                return version([*values, *scalars], _lines(version.checks, line), ready)
            results = self._by_numpy(values, numbers, line)
        except LinAlgError as error:
            if error.position >= 0 and line is not None:
                line(error.position).tell(error)
            raise
        policy.count("interpreted")
        if usage.uses == usage.compile_at:
            self._keep(self._version_key(bits), in_background(self._specialized(numbers, later=True).prepared))
        return results

    def _by_numpy(self, values: Sequence[Any], numbers: Sequence[Node], line: Callable[[int], Location] | None) -> list[Any]:
        arrays, suspect = self._arrays(values)
        notes: list[int] = []
        joined: Collection[int] = ()
        with quiet():
            if self.usage.uses == 1 and not self.usage.loops:           # most are never seen again
                found = numpy_rules().interpret(self.graph, arrays, notes)
            else:
                routine, self.routine = self.routine or numpy_rules().prepared(self.order, self.places, self.ends), None
                found = routine(arrays, [n.attrs["value"] for n in numbers], notes)
                self.routine, joined = routine if config.recall else None, routine.joined
        device = self.device
        results = [host_part(device, array, True) if array.base is None or k in joined else _buffer(device, array, values, arrays)
                   for k, array in enumerate(found)]
        if suspect or any(notes):
            self._mark(results, values, notes, _lines(self._reports.checks, line))
        return results

    def _arrays(self, values: Sequence[Any]) -> tuple[list[Any], bool]:
        """The values of the inputs as arrays, and whether one of them is suspect."""
        held = list(values)
        for i in reversed(self.scalars):
            del held[i]
        by_numpy = {*map(type, held)} == _HELD              # all as a whole, in few steps
        found: list[Any] = [v.array for v in held] if by_numpy else []
        if not by_numpy or [a.shape for a in found if a is not None] != self.shapes or [a.dtype for a in found] != self.dtypes:
            found = [v.contents(*known) for v, known in zip(held, zip(self.shapes, self.dtypes, strict=True), strict=True)]
        for i in self.scalars:
            found.insert(i, np.asarray(values[i], self.avals[i].dtype))
        return found, [v.deferred_checks for v in held].count(()) < len(held)

    def _version_key(self, bits: tuple[bytes, ...]) -> Any:
        """What kernels are built for: the numbers that never changed, and which did."""
        varying = self.usage.numbers.varying
        return fixed(bits, varying), varying, float32_matmul[0]

    def _version(self, bits: tuple[bytes, ...], numbers: Sequence[Node]) -> Program:
        """The compiled Program for such numbers, which gets those that change after the values of the inputs."""
        key = self._version_key(bits)
        found = self.versions.get(key)
        if isinstance(found, Program):
            return found
        made: Program | None = None if found is None else found.result()
        policy.count("programs" if made is None else "background")
        made = made or self._specialized(numbers)
        self._keep(key, made)
        return made

    def _keep(self, key: Any, version: Program | Job) -> None:
        """Note a version. Those from before a number was seen to change are not asked for again."""
        self.versions = {k: v for k, v in self.versions.items() if k[1] == key[1]} | {key: version}
        programs[self.key] = self                                       # it counts more now

    def _specialized(self, numbers: Sequence[Node], later: bool = False) -> Program:
        """The Program for these numbers: those that change are inputs, the others stay constants."""
        varying = self.usage.numbers.varying
        scalars = {n: placeholder(_weak(n), "") for i, n in enumerate(self.numbers) if i in varying}
        own = {n: Node(n.fn, (), like.attrs, n.aval, False) for n, like in zip(self.numbers, numbers, strict=True)}

        def replace(node: Node, operands: tuple[Node, ...]) -> Node:
            with located(node.loc):
                if node in scalars:
                    return bind(REGISTRY["cast"], (scalars[node],), {"dtype": node.dtype, "weak": False})
                if node in own:
                    return own[node]
                return node if operands == node.operands else bind(node.fn, operands, node.attrs)

        graph = self.graph.rebuilt(replace) if self.numbers else self.graph
        return Program([*self.graph.inputs, *scalars.values()], graph.outputs, self.device, later=later)


def _lines(checks: Sequence[Check | MatrixCheck], line: Callable[[int], Location] | None) -> list[Line] | None:
    """Where the checks stand now; None where there are none."""
    return [check.line if check.position < 0 or line is None else line(check.position) for check in checks] or None


def _weak(constant: Node) -> Any:
    widest = {"i": "int64", "u": "int64", "c": "complex128"}.get(dtype_kind(constant.dtype), "float64")
    return type(constant.aval)((), np.dtype(widest), True)


def _buffer(device: Any, array: np.ndarray[Any, Any], values: Sequence[Any], given: Sequence[np.ndarray[Any, Any]]) -> Any:
    """A Buffer for a result that is a view: the Buffer that it is the whole of, if that is in device memory, else its own (`host_part`)."""
    by_numpy = isinstance(array.base, np.ndarray) and array.base.base is None
    if not by_numpy and array.flags.c_contiguous and array.size:
        for value, whole in zip(values, given, strict=True):
            same = whole.nbytes == array.nbytes and whole.flags.c_contiguous
            if same and _address(whole) == _address(array) and not value.may_change:
                return value
    return host_part(device, array)


def host_part(device: Any, array: np.ndarray[Any, Any], whole: bool = False) -> HostBuffer:
    """A Buffer for a result, which may be a view: nobody writes what another Buffer holds. whole: a view of all that its base shows.

    A copy where the view would keep much more memory than its own. It lies in memory as it was computed, whether that was when it was
    called or later: so the bits of what follows are the same.
    """
    made = _new(HostBuffer)                             # without a call of __init__: every small result is made here
    made.device, made.array = device, array if whole or array.base is None else compact(array)
    made.deferred_checks, made.fits = (), None
    return made


def contents(value: HostBuffer, aval: Aval) -> np.ndarray[Any, Any]:
    """The array of a Buffer, as `aval` says. If it is that already, `fits` says so: to compare takes as long as to make a Buffer."""
    array = value.array
    if array is not None and array.shape == aval.shape and array.dtype is aval.dtype:
        value.fits = aval
        return array
    return value.contents(aval.shape, aval.dtype)


def _address(array: np.ndarray[Any, Any]) -> Any:
    return array.__array_interface__["data"][0]


# ------------------------------------------------------------------------------------------------------------ what is kept of them


class Recipe:
    """How to do again what was done before: a Program, and where the values of its inputs are found.

    inputs: the numbers of the nodes whose values are the program's first inputs. kept: the values of its other inputs, the same each time.
    constants: the nodes that are the program's numbers, the same each time but for `varying`: (position among them, the number of the node
    that is it this time).
    """

    __slots__ = ("constants", "inputs", "kept", "program", "varying")

    def __init__(self, program: Program, inputs: Sequence[int], constants: Sequence[Node], kept: Sequence[Any] = ()) -> None:
        self.program, self.inputs, self.constants, self.kept = program, inputs, constants, kept
        self.varying: list[tuple[int, int]] = []

    def run(self, values: Sequence[Any], nodes: Sequence[Node] = (), line: Callable[[int], Location] | None = None,
            ready: Ready | None = None) -> list[Any]:
        """The program's results, for the values of `inputs`, and this time's nodes. ready: see Program.run. Hold realize.lock."""
        constants = self.constants
        if self.varying:
            constants = list(constants)
            for k, i in self.varying:
                constants[k] = nodes[i]
        return self.program.run([*values, *self.kept], constants, line, ready)


programs = Cache("programs", KNOWN, lambda key, program: program.size, lambda program: max(0, program.usage.uses - 1))
# By Key: a Recipe; None or False of what was seen and has none. (A key may name calls of many operations each, which the program tells.)
recipes = Cache("recipes", REMEMBERED, lambda key, recipe: len(key.parts) + (10 * len(recipe.program.order) if recipe else 0))
