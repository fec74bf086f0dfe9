"""From graphs to results: the only file that sees both the code generator and the runtime. Start at `Program` and `realize`.

A `Program` is a captured graph made executable on a device (or on the interpreter, the device named "numpy").
`realize` computes nodes whose work was deferred: with numpy or by a Program, as `eager` decides. Programs are looked up by structure,
so a loop that does the same work again compiles nothing.

Boundary nodes (variable, detach, the outputs of custom Functions) mean something to differentiation only: `resolve` sees
through them, and values live on the nodes behind them.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracegrad.autodiff.derivatives import substituted
from tracegrad.config import config
from tracegrad.errors import AutogradError, LinAlgError, TraceError, UnsupportedError
from tracegrad.execute import plan_cache, policy
from tracegrad.execute.matrix_trial import target_of
from tracegrad.execute.partition import Partition
from tracegrad.graph.cached_subgraphs import look
from tracegrad.graph.canonical import Canonical, canonical, fixed, is_number, resolve
from tracegrad.graph.families import Movement
from tracegrad.graph.ir import Folded, Graph, Node, forget_operands, topological
from tracegrad.graph.leaves import CustomCall
from tracegrad.graph.locations import Location, located
from tracegrad.graph.primitive import REGISTRY, bind, data, numpy_time, placeholder
from tracegrad.graph.printing import namer
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.runtime import buffer as buffers
from tracegrad.runtime import device as devices_
from tracegrad.runtime.faults import Record, Run, Suspicions, mark, verify
from tracegrad.runtime.launch import Executable
from tracegrad.runtime.programs.program import load_compiler
from tracegrad.support.cache import Cache
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import float32_matmul, state, without_collection
from tracegrad.support.plan import Line, Plan

_VARIABLE, _DETACH, _OUTPUT = REGISTRY["variable"], REGISTRY["detach"], REGISTRY["output"]
_PLACEHOLDER, _SLICE_AT, _TRANSFER = REGISTRY["placeholder"], REGISTRY["slice_at"], REGISTRY["transfer"]
LOOKS = 12   # so often somebody looks at values of one history until they are computed when they are called (see cached_subgraphs.look)
PLANS = 1024  # cached plans


# ---------------------------------------------------------------------------------------------------------------- devices


class HostValue:
    """A value on the interpreter device: a numpy array with a Buffer's interface."""

    __slots__ = ("array", "device", "may_change", "suspicions")
    borrowed = False  # nothing is ever written in place

    def __init__(self, device: HostDevice, array: np.ndarray[Any, Any], may_change: bool = False) -> None:
        self.device, self.array, self.may_change = device, array, may_change
        self.suspicions: Suspicions = ()

    def download(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        verify(self)
        return np.array(self.array, dtype=dtype).reshape(shape)

    def view(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        verify(self)
        return buffers.shown(self, np.asarray(self.array, dtype).reshape(shape))

    def copy(self) -> HostValue:
        out = HostValue(self.device, np.array(self.array))
        out.suspicions = self.suspicions
        return out


class HostDevice(devices_.Placed):
    """The interpreter: runs graphs with the ops' numpy rules. Slow; the oracle of the tests, and there without a driver."""

    name, kind, driver, platform, target = "numpy", "numpy", "interpreter", "numpy", None
    type = "cpu"                                        # torch's name of the kind
    in_host_memory, host_alignment, fp64 = True, 1, True

    def __init__(self) -> None:
        self.record = Record()

    def __repr__(self) -> str:
        return "<Device 'numpy' (interpreter)>"

    def __deepcopy__(self, memo: Any) -> HostDevice:
        """Itself: there is one."""
        return self

    def finish(self) -> None:
        """Nothing is ever pending."""


NUMPY = HostDevice()
Device = Any  # runtime.device.Device or HostDevice
aliases: dict[str, Device] = {}     # what a program calls a device otherwise: "cuda"


def find_device(spec: Any = "") -> Device:
    """The device that `spec` names: an index, "cpu", "gpu", part of a name, "numpy", or a Device. "" is the default."""
    if isinstance(spec, (HostDevice, devices_.Device)):
        return spec
    if aliases and isinstance(spec, str) and (name := spec.partition(":")[0]) in aliases:
        return aliases[name]
    if spec == "" or spec is None:
        if not devices_.chosen:
            devices_.chosen.append(find_device(config.device) if config.device else devices_.find(""))
        return devices_.chosen[0]
    return NUMPY if spec == "numpy" else devices_.find(spec)


def used_devices() -> list[Device]:
    """Those that something may have been computed on."""
    return [*devices_.found(), NUMPY]


def list_devices() -> list[Device]:
    """Every device present, the best first (without "numpy", which is always there)."""
    if devices_.devices() and not config.device:
        devices_.find().decide()                         # whoever asks sees, and may keep, what will be
    return list(devices_.devices())


def set_device(spec: Any) -> Device:
    """Make `spec` (as in `find_device`) the device of new tensors; "" or None: the one that is taken where none was set, again.

    Raises NoDriverError if there is none such.
    """
    before = devices_.chosen[:]
    if spec is None or (isinstance(spec, str) and not spec):
        devices_.chosen.clear()
    try:
        devices_.chosen[:] = [find_device(spec)]
    except BaseException:
        devices_.chosen[:] = before
        raise
    return devices_.chosen[0]


def upload(device: Device, array: np.ndarray[Any, Any], copy: bool | None = True, own: bool = False) -> Any:
    """A value on `device` with the contents of `array`. own: which nobody else has.

    copy: True for a copy; False to share the array's memory (ask `obstacle` first); None to share it where nothing shows but the
    time: if nobody is expected to write the array, and it is large enough to gain.
    """
    if copy is None:
        copy = array.nbytes <= buffers.SMALL_UPLOAD or not buffers.frozen(array) or bool(obstacle(device, array))
    if device is NUMPY:
        return HostValue(device, np.array(array) if copy else array, not (copy or buffers.frozen(array)))
    if copy and array.nbytes <= buffers.SMALL_UPLOAD and config.eager and device.in_host_memory:
        return buffers.hold(device, array if own else np.array(array, order="C"))
    return buffers.upload(device, array) if copy else buffers.wrap(device, array)


obstacle = buffers.obstacle


# --------------------------------------------------------------------------------------------------------------- programs


def free_saved(nodes: Iterable[Node]) -> None:
    """Cut nodes whose derivatives a backward has freed off from their operands, those that read others first.

    Results of a call that the backward did not come from may still be read: the call keeps the values for them. (All: that it came from one
    node of a result does not tell that there is no other one. A result that backward was given as a saved tensor is a node of its own.)
    """
    for node in nodes:
        if node.fn is _OUTPUT and node.operands:
            node.value = resolve(node).value
        elif isinstance(node.fn, CustomCall) and node.operands:
            results = node.operands[:len(node.fn.avals(*(o.aval for o in node.operands)))]
            node.value = [_valued(resolve(r)) for r in results]
        forget_operands(node)


def _valued(node: Node) -> Node:
    """A leaf with the node's value, if that is known."""
    return node if node.value is None else data(node.aval, node.value)


class Program:
    """A graph compiled for a device.

    inputs: its leaves, in call order; those with a weak aval are run-time scalars. donate: output index -> input index whose
    buffer the output may overwrite. results: what the user calls the outputs, "" where that is not known. `graph` is what was
    captured, `plan` what came of it (None on the interpreter). `compile` makes the plan: at once, unless `later`.
    """

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node], device: Device, donate: Mapping[int, int] | None = None,
                 results: Sequence[str] = (), later: bool = False) -> None:
        self.graph = Graph.capture(inputs, outputs)
        self.graph.output_names = list(results)
        if device is not NUMPY and device.undecided:
            device.stay()
        self.device = device
        self.weak = [n.aval.weak for n in inputs]
        self.plan: Plan | None = None
        self.executable: Executable | None = None
        if not later:
            self.compile(donate, results)

    @without_collection
    def compile(self, donate: Mapping[int, int] | None = None, results: Sequence[str] = ()) -> None:
        """Make the plan and what runs it."""
        device, graph = self.device, executable_graph(self.graph)
        if device is NUMPY:
            self._graph = graph
            found = [(n, check) for n in graph if n.fn.reports for check in n.fn.checks(n)]  # type: ignore[attr-defined]
            reporting, self.checks = [n for n, _ in found], tuple(check for _, check in found)
            self._reads, self._checked = graph.masks(graph.inputs), graph.masks(reporting)
        else:
            start = time.perf_counter()
            plan = self.plan = _plan(graph, device, donate or {}, results)
            self.executable = Executable(plan, device)
            self.checks = plan.checks
            if config.debug:
                _tell(plan, len(graph), device, time.perf_counter() - start)
        self.buffers_only = self.executable is not None and not any(self.weak)

    def prepared(self) -> Program:
        """The program itself, compiled: what a thread does.

        It enqueues nothing, not even a first run. PoCL's `basic` device runs what is ready in whichever thread comes by, and two threads
        with commands in one queue (an array that is let go of unmaps its buffer, at any moment) wait for each other for ever.
        """
        self.compile()
        return self

    def __call__(self, values: Sequence[Any], lines: Sequence[Line] | None = None) -> list[Any]:
        """Values of the outputs, from those of the inputs (Buffers, and Python numbers for the weak ones). Waits for nothing.

        lines: the user's lines of `checks`, where they are not those that the program was made for.
        """
        if self.buffers_only:
            return self.executable.run(values, (), lines)  # type: ignore[union-attr]
        if self.executable is None:
            return self._interpreted(values, lines)
        scalars = [v for v, weak in zip(values, self.weak, strict=True) if weak]
        return self.executable.run([v for v, weak in zip(values, self.weak, strict=True) if not weak], scalars, lines)

    def _interpreted(self, values: Sequence[Any], lines: Sequence[Line] | None) -> list[HostValue]:
        given = [HostValue(self.device, np.asarray(v)) if weak else v for v, weak in zip(values, self.weak, strict=True)]
        changing = [v.array for v in given if v.may_change]
        notes: list[int] = []
        arrays = [np.asarray(a) for a in interpret(self._graph, [v.array for v in given], notes)]
        results = [HostValue(self.device, a.copy() if any(np.may_share_memory(a, c) for c in changing) else a) for a in arrays]
        run = None
        if any(notes):
            run = Run(self.checks, lines or [check.line for check in self.checks], found=np.array(notes))
            self.device.record.hear(run)
        mark(results, given, self._reads, run, self._checked)
        return results


def _plan(graph: Graph, device: Device, donate: Mapping[int, int], results: Sequence[str]) -> Plan:
    """The plan of an executable graph: from the disk, or made and kept there."""
    device.expect(*_rough(graph))
    target = target_of(device)
    key = plan_cache.key(graph, target, donate, results)
    plan = plan_cache.load(key)
    if plan is None:
        load_compiler(device, "" if key is None else key.name, len({(n.fn, n.aval.shape, n.dtype) for n in graph}))      # meanwhile
        # Not loaded before anything is compiled, nor is networkx: a third of what importing tracegrad takes.
        from tracegrad.codegen.passes import compile_graph  # noqa: PLC0415

        _check_dtypes(graph, device)
        plan = compile_graph(graph, target, donate=donate, name=namer(graph), results=results)
        plan_cache.counts["lowered"] += 1
        plan_cache.store(key, plan)
    return plan


def _rough(graph: Graph) -> tuple[float, int]:
    """About the work of a graph's kernels (see Launch.work) and how many they are, from what numpy would take.

    Of elementwise operations 2 for each of its nanoseconds (most of the time goes to arrays between them), of products 40.
    """
    work, count = 0.0, 0
    for node in graph:
        fn: Any = node.fn
        if fn.family == "loop":
            inner, kernels = _rough(fn.graph)
            work, count = work + fn.length * inner, count + fn.length * kernels
        elif node.operands:
            work, count = work + numpy_time(node) * (40 if fn.family in ("contraction", "conv") else 2), count + 1
    return work, count // 4


def _check_dtypes(graph: Graph, device: Device) -> None:
    """UnsupportedError if the device lacks a dtype that the program computes in; it names the line that asked for it."""
    if not device.target.fp64:
        wide = [node for node in graph if node.dtype in (np.float64, np.complex128) and not node.aval.weak]
        for node in [*(n for n in wide if n.operands), *wide][:1]:               # an input, if need be
            raise UnsupportedError(
                f"{node.fn.name} at {node.loc}: {device.name} has no float64; use float32 (x.float(), dtype=tg.float32; x.cfloat()), "
                "or another device (tg.set_device; `python -m tracegrad devices` lists them)"
            )


def _tell(plan: Plan, nodes: int, device: Device, seconds: float) -> None:
    """TRACEGRAD_DEBUG: a line per compiled program; from 2 on, its kernels."""
    sys.stderr.write(f"tracegrad: {nodes} nodes -> {len(plan.launches)} kernels for {device.name} in {1e3 * seconds:.0f} ms\n")
    if config.debug >= 2:
        sys.stderr.write(plan.source + "\n")


def executable_graph(graph: Graph) -> Graph:
    """The graph without boundary nodes."""
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    with located(None) as line:
        for node in graph:
            if node in new:
                continue
            line.location = node.loc
            fn = node.fn
            if fn is _VARIABLE or fn is _DETACH:
                new[node] = new[node.operands[0]]
            elif isinstance(fn, CustomCall):
                new[node] = node
            elif fn is _OUTPUT and isinstance(node.operands[0].fn, CustomCall):
                new[node] = new[node.operands[0].operands[node.attrs["index"]]]
            elif not node.operands:
                new[node] = _own_leaf(node)
            else:  # also merges equal nodes, which users' tensors have each their own of
                new[node] = bind(fn.executed or fn, tuple([new[o] for o in node.operands]), node.attrs)
    return _trimmed(Graph.capture(graph.inputs, [new[o] for o in graph.outputs]))


def _trimmed(graph: Graph) -> Graph:
    """The graph with loops that compute what it uses of them, and nothing else. (In rounds: a loop decides what of others is used.)"""
    while True:
        used: dict[Any, set[int]] = {}
        for node in graph:
            if node.fn.family == "loop":
                used.setdefault((node.fn, node.operands), set()).add(node.attrs["index"])
        changed = False
        new: dict[Node, Node] = {n: n for n in graph.inputs}
        for node in graph if used else ():
            if node in new:
                continue
            operands, attrs, fn = tuple(new[o] for o in node.operands), node.attrs, node.fn
            if fn.family == "loop":
                fn, operands, place = fn.trimmed(sorted(used[fn, node.operands]), operands)  # type: ignore[attr-defined]
                changed |= fn is not node.fn
                attrs = {"index": place[attrs["index"]]}
            with located(node.loc):
                new[node] = node if fn is node.fn and operands == node.operands else bind(fn, operands, attrs)
        if not changed:
            return graph
        graph = Graph.capture(graph.inputs, [new[o] for o in graph.outputs])


def _own_leaf(node: Node) -> Node:
    """A constant (or iota) that only this program uses: nodes made on it are then no user's, whose values and operands come and go."""
    return node if node.value is not None else Node(node.fn, (), node.attrs, node.aval, False)


# --------------------------------------------------------------------------------------------------------------- deferral

lock = threading.RLock()
_programs = Cache("programs", PLANS)
_jobs = Cache("programs made by a thread", PLANS)        # that it compiles, or has compiled, and that were not needed yet: eager.Jobs
compiled = [0]  # how many programs `realize` compiled, for tests and explain()


def realize(nodes: Sequence[Node], device: Device, keep: Callable[[Node], bool] | None = None, works: list[Any] | None = None) -> None:
    """Compute `nodes` and leave their values on them (on the nodes that `resolve` finds), in one launch plan; where they are made of what
    another device computes, in several.

    keep(node): nodes on the way whose values to keep too (what a later backward would otherwise compute again). works: gets the Work
    that was done.
    A node that needs no derivative forgets its operands. Constants that change from one call to the next (a learning rate)
    become run-time scalars the second time they are seen to differ.
    """
    with lock:
        try:
            _realize(nodes, device, keep, works)
        except _Elsewhere:
            realize_all({device: nodes}, keep, works)


def realize_all(pending: Mapping[Device, Sequence[Node]], keep: Callable[[Node], bool] | None = None,
                works: list[Any] | None = None) -> None:
    """`realize`, for nodes of several devices: one subgraph after the other, with the transfers between them (see partition.py)."""
    with lock:
        wanted = {device: [n for n in dict.fromkeys(map(resolve, nodes)) if n.value is None] for device, nodes in pending.items()}
        partition = Partition(wanted, resolve)

        def kept(node: Node) -> bool:
            return node in partition.kept or (keep is not None and keep(node))

        for received, computed in zip(partition.transfers, partition.computed, strict=True):
            for node in received:
                _receive(node)
            for device, targets in computed.items():
                _realize(targets, device, kept, works)
        for nodes in pending.values():
            cut(nodes)


def _receive(node: Node) -> None:
    """Make a transfer whose operand has a value. Waits for that value."""
    found = resolve(node.operands[0])
    node.value = upload(node.attrs["target"], found.value.view(found.shape, found.dtype))
    if not node.needs_grad:
        forget_operands(node)


def _realize(nodes: Sequence[Node], device: Device, keep: Callable[[Node], bool] | None, works: list[Any] | None) -> None:
    """`realize`, of what one device computes of what lies on it. Raises _Elsewhere, and does nothing, where a transfer is needed."""
    targets = [n for n in dict.fromkeys(map(resolve, nodes)) if n.value is None]
    if not targets:
        return
    work = Work(targets, device, keep)
    results = _values(work)
    if works is not None:
        works.append(work)
    for node, value in zip(work.targets, results, strict=True):
        node.value = value
    for node in work.targets:
        if not node.needs_grad:
            forget_operands(node)
    cut(nodes)
    if keep is not None:
        seen = work.seen
        if seen is not None and seen.uses % LOOKS == 0 and seen.patience == policy.NEVER:
            look(work.order, seen.uses)


class _Elsewhere(Exception):
    """The work is made of a transfer that has not taken place yet."""


def compute(work: Work, inputs: Sequence[Node], values: Sequence[Any]) -> list[Any]:
    """The values of the targets of `work`, a recording whose placeholders `inputs` have these values now."""
    with lock:
        try:
            for node, value in zip(inputs, values, strict=True):
                node.value = value
            return _values(work)
        finally:
            for node in inputs:
                node.value = None


def recalled(seen: policy.Structure, leaves: Sequence[Node], constants: Sequence[Node], bits: tuple[bytes, ...],
             reporting: dict[int, Node], line: Callable[[int], Location], device: Device) -> list[Any] | None:
    """What work of a structure that came before gives, without its nodes; None where that has to be done at length.

    reporting: the operations that may report, by position. line(position): the user's line that the operation there stands for.
    """
    if seen.uses < seen.patience:
        if not seen.numpy_next or seen.routine is None or any(not n.aval.weak and n.value.suspicions for n in leaves):
            return None
        results = policy.again(seen, leaves, constants, reporting, device)
        if results is not None:
            seen.note(bits, constants)
            policy.count("interpreted")
        return results
    program: Program | None = _programs[_program_key(seen, bits, seen.numbers.seen(bits, constants))]
    if program is None:
        return None
    _programs.hits += 1
    seen.note(bits, constants)
    return _run(program, seen, leaves, constants, line)


def is_view(node: Node) -> bool:
    """Whether the node moves elements of its first operand, and has others only to say where they are."""
    if node.fn is _SLICE_AT:
        return bool(node.operands)
    return (isinstance(node.fn, Movement) or node.fn.part) and len(node.operands) == 1


def without_history(node: Node, device: Device) -> Node:
    """`node`, a value on `device`, without its history, which is let go of once what it is computed from is known."""
    if not node.needs_grad:
        return node
    if state.symbolic or state.hidden or state.pulling:         # others need the history; but a loop's turns, say, may be cut off from it
        return bind(_DETACH, (node,), {})
    found, views = resolve(node), list[Node]()
    while found.value is None and is_view(found):
        views.append(found)
        found = resolve(found.operands[0])
    if found.value is None:
        new = bind(_DETACH, (node,), {})
        _detached.append((weakref.ref(new), device))
        return new
    if views or type(found) is Folded or found.operands:
        node = data(found.aval, found.value)
        for view in reversed(views):
            node = bind(view.fn, (node, *view.operands[1:]), view.attrs)
    return bind(_DETACH, (node,), {})


_detached: list[tuple[weakref.ref[Node], Device]] = []      # what was detached from a history that has to be computed first


def small_detached(device: Device) -> list[Node]:
    """Small values that were detached, which something alive is made of: computed with what is pending, since to make them anew of the
    values that are left (`cut`) takes longer. (What actions were chosen by: a fifth of the time of a step of actor-critic.)
    """
    with _cutting:
        nodes = [node for ref, on in _detached if on is device and (node := ref()) is not None]
    return [n for n in nodes if n.aval.nbytes <= PART and n.operands and n.operands[0].needs_grad and resolve(n).value is None]


def cut_histories() -> None:
    """What was detached lets go of the history behind it: it is a value, or (fused with what uses it) made of such, from now on."""
    with _cutting:
        nodes = [node for ref, _ in _detached if (node := ref()) is not None]
        _detached.clear()
    cut(nodes)


_cutting = threading.Lock()


def cut(nodes: Iterable[Node]) -> None:
    """The same, of those of `nodes` that are detached, or a new leaf made of what is."""
    detached: list[Node] = []
    for node in nodes:
        while node.fn is _VARIABLE:
            node = node.operands[0]
        if node.fn is _DETACH and node.operands[0].needs_grad:
            detached.append(node)
    sources = [node.operands[0] for node in detached]
    known = {n: data(n.aval, resolve(n).value) for n in topological(sources, _computed) if n.needs_grad and _computed(n)}
    for node, source in zip(detached, substituted(sources, known), strict=True):
        if not source.needs_grad:
            forget_operands(node)
            node.operands = (source,)


def _computed(node: Node) -> bool:
    return (type(node) is Folded or bool(node.operands)) and resolve(node).value is not None


def _work(targets: Sequence[Node], inputs: Sequence[Node]) -> Canonical:
    """The pending work that `targets` need.

    Raises _Elsewhere where a transfer is needed first, AutogradError and TraceError for what nothing can be computed from.
    """
    found = canonical(targets, inputs)
    for node in found.starts:
        if node.fn is _TRANSFER and node.operands:
            raise _Elsewhere
        if not node.operands:
            _check_start(node)
    return found


def _check_start(node: Node) -> None:
    """Raise AutogradError or TraceError for a node without operands that nothing can be computed from."""
    if node.fn.family not in ("leaf", "index") and not (node.fn.family == "loop" and not node.fn.body.inputs):  # type: ignore[attr-defined]
        raise AutogradError(f"{node.fn.name} at {node.loc}: its history was freed by backward(); pass retain_graph=True to keep it")
    if node.fn is _PLACEHOLDER:
        raise TraceError(
            f"a tensor that stands for an input of @trace or vmap ({node.loc}) has no value: Python cannot look at it; "
            "use tg.where for a choice between values, or look at the result outside"
        )


class Work:
    """Pending nodes by structure. Values have places: see `canonical`.

    places: those of each node's operands. ends: of the targets. key: what two pieces of work share that differ in nothing but the
    values of leaves and constants. constants: the nodes, values: what they are. seen: what is known of the structure, once it was computed.
    """

    __slots__ = ("constants", "device", "ends", "key", "leaves", "order", "places", "seen", "targets", "values")

    def __init__(self, targets: list[Node], device: Device, keep: Callable[[Node], bool] | None = None,
                 inputs: Sequence[Node] = ()) -> None:
        found = _work(targets, inputs)
        order, self.leaves, self.places = found.order, found.leaves, found.places
        if keep is not None:
            wanted = set(targets)
            targets = targets + [n for n in order if n not in wanted and keep(n)]
        self.order, self.targets, self.device = order, targets, device
        self.constants = [n for n in order if is_number(n)]
        self.ends = tuple([found.number[t] for t in targets])
        self.key = found.key(targets, device, config.eager)
        self.values = tuple([n.attrs["bits"] for n in self.constants])
        self.seen: policy.Structure | None = None

    def program(self, seen: policy.Structure, later: bool = False) -> Program:
        """The nodes as a program of placeholders, so that it holds neither values nor the user's nodes."""
        hoisted = [n for i, n in enumerate(self.constants) if i in seen.numbers.varying]           # the constants that are run-time scalars
        from_scalar = {n: placeholder(_weak(n), "") for n in hoisted}
        new: dict[Node, Node] = {}
        inputs = []
        for n in self.leaves:
            with located(n.loc):
                new[n] = placeholder(n.aval, "")
            inputs.append(new[n])
        for position, node in enumerate(self.order):
            on_host = node.fn.family == "host_call"
            with located(node.loc.having(node.loc.call, position, node.loc.derived) if on_host else node.loc):
                if node in from_scalar:
                    new[node] = bind(REGISTRY["cast"], (from_scalar[node],), {"dtype": node.dtype, "weak": False})
                elif not node.operands:
                    new[node] = _own_leaf(node)
                else:       # what reports an error needs the line of each call, and this program will be used for other lines, too
                    attrs = node.attrs | {"position": position} if node.fn.reports else node.attrs
                    new[node] = bind(node.fn, tuple(new[resolve(o)] for o in node.operands), attrs)
        return Program([*inputs, *from_scalar.values()], [new[t] for t in self.targets], self.device, later=later)


def _values(work: Work) -> list[Any]:
    """Buffers with the values of the targets: with numpy or by kernels, as the structure and the number of its uses say (see policy.py)."""
    device = work.device
    seen = work.seen = policy.known(work.key, work.order, device)
    seen.note(work.values, work.constants)
    if seen.uses <= seen.patience:
        results = policy.run(work, seen)
        policy.count("interpreted")
        if seen.uses == seen.compile_at:
            _jobs[_program_key(seen, work.values, seen.numbers.varying)] = policy.in_background(work.program(seen, later=True).prepared)
        return results
    return _run(_program(work, seen), seen, work.leaves, work.constants, lambda position: work.order[position].loc)


def _run(program: Program, seen: policy.Structure, leaves: Sequence[Node], constants: Sequence[Node],
         line: Callable[[int], Location]) -> list[Any]:
    """What a program of a structure gives for these. line(position): the user's line that the operation there stands for now."""
    policy.count("compiled", seen.reason or "used often")
    lines = [check.line if check.position < 0 else line(check.position) for check in program.checks] or None
    numbers = [n.attrs["value"].item() for i, n in enumerate(constants) if i in seen.numbers.varying]
    try:
        return program([n.value for n in leaves] + numbers, lines)
    except LinAlgError as error:
        if error.position >= 0:
            line(error.position).tell(error)
        raise


def _program_key(seen: policy.Structure, values: tuple[Any, ...], varying: frozenset[int]) -> Any:
    """What a program is made for: the structure and the constants that never varied."""
    return seen, fixed(values, varying), varying, float32_matmul[0]


def _program(work: Work, seen: policy.Structure) -> Program:
    """The cached or newly compiled Program."""
    key = _program_key(seen, work.values, seen.numbers.varying)
    program: Program | None = _programs[key]
    if program is None:
        job = _jobs.take(key)
        program = None if job is None else job.result()
        policy.count("programs" if program is None else "background")
        compiled[0] += 1
        if program is None:
            program = work.program(seen)
        _programs[key] = program
    else:
        _programs.hits += 1
    return program


def _weak(constant: Node) -> Any:
    widest = {"i": "int64", "u": "int64", "c": "complex128"}.get(dtype_kind(constant.dtype), "float64")
    return type(constant.aval)((), np.dtype(widest), True)


PART = 1 << 16  # bytes: a view of at most so many is taken at once from what numpy holds


def part(node: Node) -> np.ndarray[Any, Any] | None:
    """The values of a small view of what numpy holds (see runtime/buffer.py), a fresh array; None for anything else.

    There is nothing to compute for it, and no reason to compute all that is pending.
    """
    chain: list[Node] = []
    found = resolve(node)
    while found.value is None:
        if found.aval.nbytes > PART or not is_view(found):
            return None
        chain.append(found)
        found = resolve(found.operands[0])
    array = buffers.held(found.value)
    if array is None or found.value.suspicions or found.aval.weak:
        return None
    array = found.value.contents(found.shape, found.dtype)
    for n in reversed(chain):
        array = n.fn.numpy(array, *[o.attrs["value"] for o in n.operands[1:]], **n.attrs)
    return np.array(array, node.dtype, order="C")


def read(node: Node, device: Device, shared: bool = False) -> np.ndarray[Any, Any]:
    """The node's value (computing it if need be) as a fresh numpy array; shared: as a read-only one, the value's own memory if possible.

    Waits.
    """
    found = resolve(node)
    if found.value is None:
        values = None if shared else part(found)             # what is shared is the value's memory, whoever asks for it
        if values is not None:
            return values
        realize([found], device)
    return np.asarray((found.value.view if shared else found.value.download)(found.shape, found.dtype))
