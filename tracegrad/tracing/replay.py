"""A finished recording as a program: `Replay` runs it on the present values, writes back what it changed, and puts the result together.

Effects are outputs that a replay writes back, in place where nobody else holds the old value. A result with a history is the output of one
node of the outer graph, `TracedCall`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import optree

from tracegrad.autodiff import derivatives
from tracegrad.errors import TraceError
from tracegrad.execute.deferred import flush
from tracegrad.execute.partition import PartitionedProgram
from tracegrad.execute.program import Program
from tracegrad.execute.realize import realize
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Aval, Node, topological
from tracegrad.graph.primitive import REGISTRY, bind, data, saves
from tracegrad.ops.primitives.transfer import TRANSFER
from tracegrad.support import random_state
from tracegrad.support.modes import enable_grad, set_grad_enabled, state
from tracegrad.tensors.attributes import base_of
from tracegrad.tensors.bases.history import become_leaf
from tracegrad.tensors.ownership import own
from tracegrad.tensors.tensor import Tensor, holding
from tracegrad.tracing.assignments import Assignments
from tracegrad.tracing.content_guards import objects_among, other_object
from tracegrad.tracing.fast_replay import MOST, fast_replay
from tracegrad.tracing.guards import Change, GuardSet, Slot
from tracegrad.tracing.recording import Recording, at, reached
from tracegrad.tracing.result_recipe import ResultRecipe, view_of
from tracegrad.tracing.traced_call import TracedCall, residuals_of

_VARIABLE, _PLACEHOLDER = REGISTRY["variable"], REGISTRY["placeholder"]


writing = threading.RLock()


class Replay:
    """A finished recording, compiled. `run` replays it on the present values. reason: why it was made, for people."""

    reason = ""

    def __init__(self, recording: Recording, result: Any, guard_set: GuardSet, flat: Sequence[Any], returned: Sequence[str] = (),
                 assigned: Sequence[tuple[Slot, Any]] = (), varying: frozenset[int] = frozenset()) -> None:
        """flat: the argument leaves. returned: the names in the body's return statement, see `printing.returned_names`. assigned: the
        places outside (attributes, variables) that the body gave new tensors, and those: so does each replay. varying: see Program."""
        self.recording, self.guard_set = recording, guard_set
        self.assigned = Assignments(assigned, recording, guard_set)
        self.guarded = [
            (t, t._device, node.aval, node.needs_grad, node.fn is _VARIABLE, tuple(t._hooks or ()))
            for t, _ in {id(t): (t, n) for t, n in (*recording.captured.values(), *recording.leaves, *recording.view_leaves)}.values()
            for node in [t._node_outside()]
            if id(t) not in recording.adopted and id(t) not in recording.places
        ]
        self.shapes = guard_set.shapes(recording.captured.keys() | recording.adopted.keys() | recording.places.keys())
        self.aliases = reached(flat, guard_set)
        self.objects = objects_among(flat)
        recipe = ResultRecipe(recording, result, flat, guard_set, returned, self.assigned.values)
        self.recipe, self.treedef = recipe.entries, recipe.treedef
        results = [t._node() for t in recipe.tensors]
        for t, node in recording.nodes.values():
            _check_effect(recording, t, node)
        self.effects = [recording.place(t) for t, _ in recording.nodes.values()]
        changed = [(t, g) for t, g in recording.grads.values() if g is None or _changed(recording, t, g)]
        self.grad_effects = [
            (recording.place(t), None if g is None else (g._n.aval, recording.present.get(id(t)) is g)) for t, g in changed
        ]  # (whose, None or (aval, whether the gradient tensor that is there was changed in place))
        effect_nodes = [node for _, node in recording.nodes.values()]
        grad_nodes = [_node_in(recording, g) for _, g in changed if g is not None]
        from_outside = {node for _, node in (*recording.captured.values(), *recording.leaves, *recording.view_leaves)}
        # Results that the body made leaves: no variables of tensors from outside, which a pull may hand on as they are.
        self.made_leaves = [n for n in dict.fromkeys(results) if n.fn is _VARIABLE and n not in from_outside]
        self.histories = _histories(results, recording.freed).difference(self.made_leaves)
        differentiable = [n for n in results if self._recorded(n)]
        passed = topological(differentiable, lambda n: not n.needs_grad)
        variables = {n.operands[0] for n in passed if n.fn is _VARIABLE}
        self.passed = {i for i, n in enumerate(recording.inputs) if n in variables}          # inputs that a derivative comes to
        self.residuals = residuals_of(differentiable)
        self.saves = any(map(saves, passed))
        self.outputs = [*results, *effect_nodes, *grad_nodes, *self.residuals]
        self.count = (len(results), len(effect_nodes), len(grad_nodes))
        _no_strangers(recording, self.outputs)
        position = {id(n): i for i, n in enumerate(recording.inputs)}
        self.donors: dict[int, int] = {}
        self.changed = {position[id(n)] for t, _ in recording.nodes.values() if id(n := resolve(recording.captured[id(t)][1])) in position}
        self.changed |= {position[id(n.operands[0])] for t, n in recording.view_leaves if id(base_of(t)) in recording.nodes}
        for k, (t, node) in enumerate(recording.nodes.values()):
            start = resolve(recording.captured[id(t)][1])
            if resolve(node) is not start and id(start) in position:
                self.donors[len(results) + k] = position[id(start)]
        self.into = [self.donors.get(len(results) + k) for k in range(len(self.effects))]
        updated = [*((t, "_new") for t, _ in recording.nodes.values()), *((t, "_grad") for t, g in changed if g is not None)]
        names = recording.result_names(recipe.labels, results)
        self.program = _program(recording, self.outputs, [*zip(recipe.tensors, names, strict=True)], updated, self.donors, varying)
        self.result_nodes = results
        self.leaves = [(recording.place(t), node) for t, node in recording.leaves]
        self.written = {n: k for k, n in enumerate([*(n for _, n in self.leaves), *self.made_leaves])}
        # Of a function of its arguments and nothing else; if all are tensors: the short way through `run`.
        self.arguments = [] if self.effects or self.grad_effects or recording.draws else _arguments(recording, flat)
        self.pure = bool(self.arguments) and len(recording.inputs) == len(flat) and not any(node.aval.weak for node in recording.inputs)
        self.recorded = bool(differentiable)
        self.call: TracedCall | None = None                    # of all calls whose inputs keep their values
        fresh = self.recipe == [("value", k) for k in range(len(self.recipe))] and not assigned and not self.made_leaves
        # The two shapes of result that need no tree: one new tensor, or a tuple of them.
        self.plain = "tensor" if fresh and isinstance(result, Tensor) else "tuple" if fresh and recipe.is_tuple else ""
        # Nothing but the arguments and the Python values that are reached decides whether it fits: see `fast_replay`.
        self.short = bool(
            self.arguments and self.plain and not self.recorded and len(flat) + len(results) <= MOST
            and not (self.guarded or self.assigned or guard_set.tensors or recording.no_grads)
        )
        # What results are made with.
        self.holders = [(t._device, n.aval, {"aval": n.aval}) for t, n in zip(recipe.tensors, results, strict=True)]
        used = [*recording.sources, *recording.no_grads, *(place for place, _ in recording.shared_grads), *self.effects,
                *(place for place, _ in [*self.grad_effects, *self.leaves]),
                *(what if kind == "grad" else what[0] for kind, what in self.recipe if kind in ("grad", "outside"))]
        self.assigned.settle([what if kind == "grad" else (kind, what) for kind, what in used], flat, guard_set)
        recording.forget()

    def _recorded(self, node: Node) -> bool:
        """Whether a result has a history that the caller can go back through."""
        return node in self.histories

    def change(self, flat: Sequence[Any]) -> Change:
        """What was read from outside and is not as it was when this was recorded (see `guards.in_words`). flat: the argument leaves."""
        if self.assigned and (held := self.assigned.change(flat, self.guard_set)):
            return "{}", held
        if self.objects and (other := other_object(self.objects, flat)):
            return other
        for tensor, device, aval, needs_grad, leaf, hooks in self.guarded:
            node = tensor._n if tensor._base is None else tensor._node_outside()
            if node.aval is not aval or node.needs_grad is not needs_grad or (node.fn is _VARIABLE) is not leaf:
                states = (aval, needs_grad, leaf), (node.aval, node.needs_grad, node.fn is _VARIABLE)
                before, now = (f"{a}{'' if not g else ' requiring grad' if v else ' with a history'}" for a, g, v in states)
                return "a tensor was {}", f"{before} and is {now}"
            if tensor._device is not device:
                return "a tensor was {}", f"on {device.name} and is on {tensor._device.name}"
            if (tensor._hooks or hooks) and tuple(tensor._hooks or ()) != hooks:
                return "a tensor has other hooks now",
        for tensor, aval in self.shapes:
            if tensor._n.aval is not aval and tensor._n.aval != aval:
                return "a tensor was {}", f"{aval} and is {tensor._n.aval}"
        for place in self.recording.no_grads:
            if at(place, flat)._grad is not None:
                return "a tensor has a gradient now, and had none",
        gradients: set[int] = set()
        given: set[int] | None = None
        for kind, what in self.recording.sources:
            if kind == "grad":
                grad = at(what, flat)._grad
                if grad is None:
                    return "a tensor has no gradient now, and had one",
                if id(grad) in gradients or grad._base is not None:
                    return "a tensor's gradient shares memory now",
                gradients.add(id(grad))
                given = {id(base_of(x)) for x in flat if isinstance(x, Tensor)} if given is None else given
                if id(grad) in self.guard_set.tensors or id(grad) in given:
                    return "a tensor's gradient is reached otherwise, too, now",
        for place, shared in self.recording.shared_grads:
            if (grad := shared()) is None or at(place, flat)._grad is not grad:
                return "a tensor has another gradient now",
        if self.guard_set.tensors and reached(flat, self.guard_set) != self.aliases:
            return "other arguments share memory with what the function reaches",
        return self.guard_set.change()

    @cached_property
    def fast_replay(self) -> Callable[[Sequence[Any]], Any]:
        """What the look-up of a signature, `change` and `run` do, as one function (see `fast_replay.py`), if this is `short`."""
        return fast_replay(self.arguments, self.holders, self.plain, self.guard_set, self.program)

    @cached_property
    def on_values(self) -> bool:
        """Whether `run` gives new tensors of what one program makes of the values of the arguments, and depends on no other tensor."""
        return (self.pure and self.plain == "tuple" and type(self.program) is Program
                and not (self.recorded or self.guarded or self.assigned or self.guard_set.tensors or self.recording.no_grads))

    def _tensors(self, values: Sequence[Any]) -> Any:
        """A result that needs no tree, of these values."""
        made = [holding(device, aval, attrs, value) for value, (device, aval, attrs) in zip(values, self.holders, strict=True)]
        return made[0] if self.plain == "tensor" else tuple(made)

    def given(self, args: Sequence[Any]) -> tuple[list[Any], list[Tensor | None]]:
        """The values of the program's inputs in a call with argument leaves `args`, and the tensors that they are of."""
        owners: list[Tensor | None] = []
        values: list[Any] = []
        tensor: Any
        for kind, what in self.recording.sources:
            if kind == "tensor":
                owners.append(what)
                values.append(_value(what))
                continue
            if kind == "arg" or kind == "base":
                tensor = args[what] if kind == "arg" else base_of(args[what])
            elif kind == "grad":
                tensor = at(what, args)._grad
            elif kind.startswith("slot"):
                tensor = at((kind, what), args)
            else:
                tensor = float(getattr(*what)) if kind == "attribute" else random_state.seed() if kind == "seed" else random_state.offset()
            if isinstance(tensor, Tensor):
                owners.append(tensor)
                values.append(_value(tensor))
            else:
                owners.append(None)
                values.append(tensor)
        return values, owners

    def run(self, args: Sequence[Any]) -> Any:
        """Replay on argument leaves `args`: write back the effects and return the result."""
        if self.pure:
            given = [leaf._n.value if leaf._base is None else None for leaf in args]
            if None in given:
                given = [_value(leaf) for leaf in args]
            out = self.program(given)
            return self._result(out[: self.count[0]], out[self.count[0] :], args, given)
        if not (self.effects or self.grad_effects):
            return self._run(args)
        with writing:                       # what several threads add to one tensor is all added
            return self._run(args)

    def _run(self, args: Sequence[Any]) -> Any:
        recording = self.recording
        values, owners = self.given(args)
        tensor: Any
        before = values
        if self.program.written:
            if self.recorded:
                before = list(values)  # a later backward starts from the old values
                owners = [None] * len(values)
            own(values, self.program.written, owners)
        out = self.program(values)
        if recording.draws:
            random_state.advance(recording.draws)
        n_results, n_effects, n_grads = self.count
        for (kind, what), value, donor in zip(self.effects, out[n_results : n_results + n_effects], self.into, strict=True):
            tensor = what if kind == "tensor" else at((kind, what), args)
            in_place = donor is not None and owners[donor] is tensor and value is values[donor]
            if in_place:
                tensor._versions += 1
            else:
                _write(tensor, value)
        grads = iter(out[n_results + n_effects : n_results + n_effects + n_grads])
        for place, made in self.grad_effects:
            tensor = at(place, args)
            if made is None:
                tensor._grad = None
            elif made[1]:
                _write(tensor._grad, next(grads))
            else:
                tensor._grad = _leaf(next(grads), made[0], tensor._device)
        return self._result(out[:n_results], out[n_results + n_effects + n_grads :], args, before)

    def _result(self, values: list[Any], residuals: list[Any], args: Sequence[Any], inputs: list[Any]) -> Any:
        """The function's result, of this call's values."""
        if self.plain and not self.recorded:
            return self._tensors(values)
        leaves = {node: Tensor(derivatives.variable(data(node.aval, value)), device)
                  for node, value, (device, *_) in zip(self.result_nodes, values, self.holders, strict=True) if node in self.made_leaves}
        for leaf in leaves.values():
            become_leaf(leaf, leaf._n)
        with nullcontext() if state.grad else enable_grad():        # under no_grad: of what the body computed in enable_grad
            call = self._history(values, residuals, args, inputs, [leaves[n]._n for n in self.made_leaves]) if self.recorded else None
            made = [leaves[node] if node in leaves
                    else Tensor(bind(REGISTRY["output"], (call,), {"index": k, "aval": node.aval}), device)
                    if call is not None and self._recorded(node) else _leaf(value, node.aval, device)
                    for k, (node, value, (device, *_)) in enumerate(zip(self.result_nodes, values, self.holders, strict=True))]
        filled: list[Any] = []
        for kind, what in self.recipe:
            if kind == "static":
                filled.append(what)
            elif kind == "value":
                filled.append(made[what])
            elif kind == "grad":
                filled.append(at(what, args)._grad)
            else:
                source, levels = what
                filled.append(view_of(made[source] if kind == "view" else at(source, args), levels, made))
        own = len(filled) - len(self.assigned.values)
        self.assigned.put(iter(filled[own:]))
        return optree.tree_unflatten(self.treedef, filled[:own])

    def _history(self, values: list[Any], residuals: list[Any], args: Sequence[Any], inputs: list[Any], made: list[Node]) -> Node:
        """A node through which backward outside the trace reaches the inputs of this call, and the leaves that it made."""
        sources: list[Node] = []
        before: dict[Node, Any] = {}  # what was overwritten: the values that this call began with
        for i, ((kind, what), value, node) in enumerate(zip(self.recording.sources, inputs, self.recording.inputs, strict=True)):
            outside = i in self.passed and kind in ("arg", "base", "tensor", "slot", "slot base") and not node.aval.weak
            source = at((kind, what), args)._node() if outside else None
            if source is None or (i in self.changed and not source.needs_grad):
                source = data(node.aval, value)
            elif i in self.changed:
                before[node] = value
            sources.append(source)
        sources += [*(at(place, args)._node() for place, _ in self.leaves), *made]
        known = [data(n.aval, v) for n, v in zip(self.residuals, residuals, strict=True)]
        raw = [data(n.aval, v) for n, v in zip(self.result_nodes, values, strict=True)]
        if before:
            call = TracedCall(self, before)
        else:
            call = self.call = self.call or TracedCall(self, {})
        return bind(call, call.operands(raw, sources, known), {})


def _arguments(recording: Recording, flat: Sequence[Any]) -> list[tuple[type, Any]]:
    """The type of each argument, with a tensor's device and aval, or the value of what is static; empty where the program does not take

    each tensor and number of them, in order, and nothing else.
    """
    taken = [("arg", i) for i, x in enumerate(flat) if isinstance(x, (Tensor, float, complex))]
    if not taken or recording.sources != taken:
        return []
    known = {i: (recording.devices.get(node), node.aval) for (_, i), node in zip(taken, recording.inputs, strict=True)}
    return [(type(x), known.get(i, x)) for i, x in enumerate(flat)]


def _program(recording: Recording, outputs: Sequence[Node], results: Sequence[tuple[Tensor, str]], updated: Sequence[tuple[Tensor, str]],
             donors: dict[int, int], varying: frozenset[int]) -> Program:
    """What runs a recording: a Program, which has several if there are tensors on several devices.

    results, updated: the tensors that the first outputs are for, each with its name, or what is put behind the name that it has outside.
    """
    outside = [(t, name and name + end) for t, end in updated for name in [recording.names.get(id(t), "")]]
    names = [name for _, name in (*results, *outside)]
    on = [t._device for t, _ in (*results, *outside)]
    devices = {*recording.devices.values(), *on}
    if len(devices) < 2 and all(n.fn is not TRANSFER for n in topological(outputs)):
        return Program(recording.inputs, outputs, next(iter(devices), recording.device), donors, names, varying=varying)
    given = [*on, *[None] * (len(outputs) - len(on))]
    return PartitionedProgram(recording.inputs, outputs, recording.device, recording.devices, given, donors, names, varying)


def _check_effect(recording: Recording, tensor: Tensor, node: Node) -> None:
    """A tensor from outside gets its new value at a replay, but no history: one that it would have had elsewhere is an error."""
    if node.needs_grad and node.fn is not _VARIABLE:
        history = topological([node], lambda n: not n.needs_grad)
        if not any(n in recording.freed for n in history):
            raise TraceError(
                f"{recording.name} at {node.loc}: a {tensor.dtype}{list(tensor.shape)} tensor from outside was modified in place by a "
                "value that requires grad, and its derivative would be lost at the end of the call; return the new value, detach() it, or "
                "do it inside `with tg.no_grad():`"
            )


def _no_strangers(recording: Recording, outputs: Sequence[Node]) -> None:
    """Refuse outputs that are made of what stood for a value in a vmap, a branch or a loop: there is no such value outside."""
    known = set(recording.inputs)
    for node in topological(outputs):
        if node.fn is _PLACEHOLDER and node not in known:
            raise TraceError(f"{recording.name}: a tensor from inside a vmap, cond, while_loop or scan ({node.loc}) was used after that "
                             "had ended, where it has no value; return it from there")


def _histories(results: list[Node], freed: set[Node]) -> set[Node]:
    """The results with a history of which no backward has freed a part."""
    cut: set[Node] = set()
    for node in topological(results, lambda n: not n.needs_grad):
        if node in freed or any(o in cut for o in node.operands if o.needs_grad):
            cut.add(node)
    return {n for n in results if n.needs_grad and n not in cut}


def _node_in(recording: Recording, tensor: Tensor) -> Node:
    return tensor._node() if tensor._trace is recording else recording.node_of(tensor)


def _changed(recording: Recording, tensor: Tensor, grad: Tensor) -> bool:
    """Whether the gradient in the trace is another value than the one the tensor came with, which is not written as what it is."""
    if grad is tensor._grad:
        return False
    return not any(
        kind == "grad" and what is tensor and node is grad._n
        for node, (kind, what) in zip(recording.inputs, recording.sources, strict=True)
    )


def _value(tensor: Tensor) -> Any:
    if tensor._base is not None:
        _value(base_of(tensor))  # or what was written through views would gather
        found = resolve(tensor._node_outside())
        return found.value if found.value is not None else _realized(found, tensor)
    node = tensor._n
    value = node.operands[0].value if node.fn is _VARIABLE else node.value  # in few steps
    if value is None:
        value = resolve(node).value
    if value is None:
        flush()
        found = resolve(tensor._n)
        value = found.value if found.value is not None else _realized(found, tensor)
    return value


def _realized(node: Node, tensor: Tensor) -> Any:
    realize([node], tensor._device)
    return node.value


def _leaf(value: Any, aval: Aval, device: Any) -> Tensor:
    return Tensor(data(aval, value), device)


def _write(tensor: Tensor, value: Any) -> None:
    """Give a tensor from outside the value that a replay computed for it."""
    if tensor._base is not None:
        with set_grad_enabled(False):
            tensor._rebind(data(tensor._n.aval, value), "trace")
        return
    tensor._versions += 1
    if resolve(tensor._n).value is value:
        return
    node = data(tensor._n.aval, value)
    if tensor._n.needs_grad:
        node = derivatives.variable(node)
        become_leaf(tensor, node)
    tensor._n = node
