"""From nodes to values: `realize` computes pending work, `read` what somebody asks for. Start at `realize`.

A piece of pending work is a `Work`: its nodes in order, its leaves, and the key of its structure. Work of one structure is one Program
(program.py), so a loop that does the same work again makes nothing new.

Boundary nodes (variable, detach, the outputs of custom Functions) mean something to differentiation only: `resolve` sees
through them, and values live on the nodes behind them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.errors import AutogradError, DeviceError, TraceError
from tracegrad.execute import policy
from tracegrad.execute.device_partition import Partition
from tracegrad.execute.devices import Device, depart
from tracegrad.execute.program import Program, programs
from tracegrad.graph.cached_calls import compute_when_called
from tracegrad.graph.canonical import Canonical, canonical, is_number, resolve
from tracegrad.graph.ir import LazyNode, Node, call_behind, forget_operands, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.operation_families import Movement
from tracegrad.graph.primitive import REGISTRY, bind, data, numpy_time, saves
from tracegrad.graph.substitution import substituted
from tracegrad.ops.primitives.dynamic_slice import SLICE_AT
from tracegrad.ops.primitives.transfer import TRANSFER
from tracegrad.runtime import buffer as buffers
from tracegrad.support.modes import state, unusual
from tracegrad.support.tuning import tuning

_VARIABLE, _DETACH, _OUTPUT = REGISTRY["variable"], REGISTRY["detach"], REGISTRY["output"]
_PLACEHOLDER = REGISTRY["placeholder"]
_DATA = REGISTRY["data"]
READS = 12   # reads of one history's values until these are computed when they are called: cached_calls.compute_when_called


def parted(order: Sequence[Node], calls: Collection[Node] = ()) -> tuple[list[Node], list[Node]]:
    """Of the nodes that a backward went through those that give up what they saved, and those that read such ones and stay: each ahead of

    what it reads. calls: results of known calls, of which a later backward does not ask the operands; they stay.
    """
    needed = [n for n in reversed(order) if n.needs_grad]
    # (A variable's value and a custom call's are those of operands.)
    return [n for n in needed if saves(n)], [
        n for n in needed if not (saves(n) or n.fn is _VARIABLE or isinstance(n.fn, CustomCall))
        and (n in calls or any(saves(o) for o in n.operands))]


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


def without_freed(staying: Iterable[weakref.ref[Node]]) -> None:
    """Have nodes that keep their operands, those that somebody still holds, go on without the freed ones. Stand-ins hold no values, but for
    what is the value of a node that only differentiation cares about."""
    stand_ins: dict[Node, Node] = {}

    def left(o: Node) -> Node:
        if type(o) is LazyNode or o.operands or not saves(o):
            return o
        if o not in stand_ins:
            stand_ins[o] = Node(o.fn, (), o.attrs, o.aval, True)
            stand_ins[o].loc = o.loc
        return stand_ins[o]

    for ref in staying:                 # those that read others first: what they let go of may be gone then
        if (node := ref()) is None:
            continue
        if (behind := call_behind(node)) is not None:
            call, given, _ = behind
            node.behind = call, [left(o) if i in call.kept else None for i, o in enumerate(given)], True
        elif (instead := tuple([left(o) for o in node.operands])) != node.operands:
            if node.fn.boundary and instead[0] is not node.operands[0]:         # what was copied into a tensor is its value
                instead[0].value = resolve(node).value
            forget_operands(node, instead)
        del node                        # the next one may be held by nothing else


def _valued(node: Node) -> Node:
    """A leaf with the node's value, if that is known."""
    return node if node.value is None else data(node.aval, node.value)


lock = threading.RLock()


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
    """`realize`, for nodes of several devices: one subgraph after the other, with transfers between them (stages.py)."""
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
    """Make a transfer whose operand has a value. Waits for that value, but where devices do."""
    found, target = resolve(node.operands[0]), node.attrs["target"]
    node.value = depart(found.value, target, found.shape, found.dtype).arrive()
    if not node.needs_grad:
        forget_operands(node)


def _realize(nodes: Sequence[Node], device: Device, keep: Callable[[Node], bool] | None, works: list[Any] | None) -> None:
    """`realize`, of what one device computes of what lies on it. Raises _Elsewhere, and does nothing, where a transfer is needed."""
    targets = [n for n in dict.fromkeys(map(resolve, nodes)) if n.value is None]
    if not targets:
        return
    if not device.has_values:
        raise DeviceError(f"a tensor on 'meta' ({targets[0].aval}) has no values to move; use model.to_empty(device=...), and load them")
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
        usage = work.program.usage
        if usage.uses % READS == 0 and usage.tier_up == policy.NEVER:
            compute_when_called(work.order, usage.uses)


class _Elsewhere(Exception):
    """The work is made of a transfer that has not taken place yet."""


def is_view(node: Node) -> bool:
    """Whether the node moves elements of its first operand, and has others only to say where they are."""
    if node.fn is SLICE_AT:
        return bool(node.operands)
    return (isinstance(node.fn, Movement) or node.fn.part) and len(node.operands) == 1


def without_history(node: Node, device: Device) -> Node:
    """`node`, a value on `device`, without its history, which is let go of once what it is computed from is known."""
    if not node.needs_grad:
        return node
    if unusual[0] and (state.symbolic or state.hidden or state.pulling):
        # Others need the history; but iterations, say, may be cut off from it.
        return bind(_DETACH, (node,), {})
    found, views = resolve(node), list[Node]()
    if found.fn is _DATA and found.value is not None:            # a leaf's
        return found
    while found.value is None and is_view(found):
        views.append(found)
        found = resolve(found.operands[0])
    if found.value is None:
        new = bind(_DETACH, (node,), {})
        _detached.append((weakref.ref(new), device))
        return new
    if views or type(found) is LazyNode or found.operands:
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
    return (type(node) is LazyNode or bool(node.operands)) and resolve(node).value is not None


def _work(targets: Sequence[Node], inputs: Sequence[Node]) -> Canonical:
    """The pending work that `targets` need.

    Raises _Elsewhere where a transfer is needed first, AutogradError and TraceError for what nothing can be computed from.
    """
    found = canonical(targets, inputs)
    for node in found.starts:
        if node.fn is TRANSFER and node.operands:
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
    values of leaves and constants. constants: see `canonical.is_number`.
    """

    __slots__ = ("constants", "device", "ends", "key", "leaves", "order", "places", "targets")

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

    @property
    def program(self) -> Program:
        """The Program of the structure; a new one if it was never seen (or long ago)."""
        found: Program | None = programs[self.key]
        if found is None:
            found = Program.recorded(self.key, self.order, self.leaves, self.places, self.ends, self.device)
            programs[self.key] = found
        return found


def _values(work: Work) -> list[Any]:
    """Buffers with the values of the targets."""
    program = work.program
    return program.run([n.value for n in work.leaves], work.constants, lambda i: work.order[i].loc)


PART = 1 << 16  # bytes: a view of at most so many is made eagerly of what numpy holds


def held_view(node: Node) -> np.ndarray[Any, Any] | None:
    """The elements of a small view of what NumPy holds (see runtime/buffer.py), a view of that array; None for anything else.

    There is nothing to compute for it, and no reason to compute all that is pending.
    """
    chain: list[Node] = []
    found = resolve(node)
    while found.value is None:
        if found.aval.nbytes > PART or not is_view(found):
            return None
        chain.append(found)
        found = resolve(found.operands[0])
    if buffers.held(found.value) is None or found.value.deferred_checks or found.aval.weak:
        return None
    array: np.ndarray[Any, Any] = found.value.contents(found.shape, found.dtype)
    for n in reversed(chain):
        array = n.fn.numpy(array, *[o.attrs["value"] for o in n.operands[1:]], **n.attrs)
    return array


def part(node: Node) -> np.ndarray[Any, Any] | None:
    """The same as a fresh array."""
    array = held_view(node)
    return None if array is None else np.array(array, node.dtype, order="C")


def computed_early(node: Node, device: Device) -> bool:
    """Whether NumPy has the value of a node: if need be it is computed now, if few operations make it of what NumPy holds, and take little.

    What is called for the first time is deferred, and so is what is made of that: a running mean would be so until somebody reads it.
    """
    if node.constant or state.asking is not None:                       # (others have it, too: it gets no value; a backward is being noted)
        return False
    seen, stack, limits = set[Node](), [node], tuning()
    while stack:
        n = resolve(stack.pop())
        if n in seen or type(n.value) is buffers.HostBuffer:
            continue
        if n.value is not None or n.needs_grad or len(seen) == limits.early_operations or not n.fn.registered or not (
                n.operands or n.constant or n.fn.name == "offset"):
            return False
        seen.add(n)
        stack += n.operands
    if sum(map(numpy_time, seen)) > limits.early_time:
        return False
    try:
        if seen:
            realize([node], device)
    except Exception:                                                   # it stays pending, and whoever reads it gets the error
        return False
    return True


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
