"""@trace: record a Python function once per signature, then replay a compiled program. Start at `Traced.__call__`.

Recording runs the body on tracers. Tensors that the body reaches through closures, attributes or globals become inputs by
reference; Python floats among the arguments become run-time scalars; everything else is static. In-place changes of tensors from
outside, and gradients that backward() stored on them, are *effects*: outputs that a replay writes back, in place where nobody
else holds the old value. Until a replay succeeds nothing outside is touched.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from enum import Enum
from types import FunctionType
from typing import Any, TypeVar, overload

import numpy as np
import optree

from tracegrad import autodiff, random_state
from tracegrad.compile import Program, find_device, realize, resolve
from tracegrad.dtypes import float64, int64
from tracegrad.errors import ArgumentError, TraceError
from tracegrad.function import REGISTRY, CustomCall, bind, data, placeholder
from tracegrad.guards import Reach, is_foreign, tensor_names
from tracegrad.ir import Aval, Graph, Node, located, topological, user_location
from tracegrad.report import Kernels, explain, python_source
from tracegrad.tensor import Tensor, become_leaf, flush, from_array, set_grad_enabled, state

F = TypeVar("F", bound=Callable[..., Any])
_VARIABLE = REGISTRY["variable"]


class Recording:
    """One trace: what it read, what it computes, what it changes. Made while the body runs on tracers."""

    def __init__(self, name: str, device: Any, names: dict[int, str] | None = None) -> None:
        self.name, self.device = name, device
        self.names = names or {}  # what the user calls the tensors from outside, by id
        self.scalars: dict[tuple[int, str], Tensor] = {}  # attributes read as run-time scalars
        self.inputs: list[Node] = []  # placeholders, in call order
        self.sources: list[tuple[str, Any]] = []  # where a replay gets each input's value: a Place, or another kind (see Replay.run)
        self.places: dict[int, Place] = {}  # id of a tensor that came with the arguments -> where a replay finds it
        self.captured: dict[int, tuple[Tensor, Node]] = {}  # tensors from outside -> their node in here
        self.nodes: dict[int, tuple[Tensor, Node]] = {}  # tensors from outside that were changed -> new node
        self.grads: dict[int, tuple[Tensor, Tensor | None]] = {}  # tensors from outside -> their gradient in here
        self.present: dict[int, Tensor] = {}  # tensors from outside -> what stands for the gradient that they came with
        self.no_grads: list[Place] = []  # tensors whose grad was seen to be None
        self.leaves: list[tuple[Tensor, Node]] = []  # leaves from outside that were written, and the variables they became
        self.adopted: dict[int, Tensor] = {}  # constants made by the body
        self.versions: dict[int, tuple[Tensor, int]] = {}  # of changed tensors, before: a recording changes nothing yet
        self.freed: set[Node] = set()
        self.draws = 0  # random numbers drawn so far
        self._random: tuple[Node, Node] | None = None

    def _input(self, aval: Aval, label: str, source: tuple[str, Any]) -> Node:
        node = placeholder(aval, label)
        self.inputs.append(node)
        self.sources.append(source)
        return node

    def argument(self, index: int, leaf: Any, label: str) -> Any:
        """The tracer for argument leaf number `index`."""
        if isinstance(leaf, float):
            return Tensor(self._input(Aval((), float64, True), label, ("arg", index)), self.device, self)
        self.place_argument(leaf, ("arg", index), label)
        return leaf

    def place_argument(self, tensor: Tensor, place: Place, label: str) -> None:
        """A tensor that comes with the arguments: in a replay, the one at `place` plays its part."""
        self.places[id(tensor)] = place
        self._adopt_as(tensor, self._input(tensor._node_outside().aval, label, place))

    def place(self, tensor: Tensor) -> Place:
        """Where a replay finds the tensor that plays the part of this one from outside."""
        return self.places.get(id(tensor), ("tensor", tensor))

    def stands_alone(self, tensor: Tensor) -> bool:
        """Whether a view from outside has a node of its own: its base is not in this trace."""
        return id(tensor) in self.captured

    def _adopt_as(self, tensor: Tensor, node: Node) -> None:
        if tensor._node_outside().needs_grad:
            node = autodiff.variable(node)
            become_leaf(tensor, node)
        self.captured[id(tensor)] = (tensor, node)

    def node_of(self, tensor: Tensor) -> Node:
        """The node that stands for a tensor from outside."""
        if tensor._base is not None and id(tensor) not in self.captured:
            return tensor._replay(self.node_of(tensor._base))
        changed = self.nodes.get(id(tensor))
        if changed is not None:
            return changed[1]
        if id(tensor) not in self.captured:
            if tensor._trace is not None:
                raise TraceError(
                    f"{self.name}: uses a tensor that another @trace function ({tensor._trace.name}) leaked; return it from there"
                )
            if tensor._device is not self.device:
                raise TraceError(
                    f"{self.name} at {user_location()}: runs on {self.device}, but a tensor it uses is on {tensor._device}; move it first"
                )
            self._adopt_as(tensor, self._input(tensor._n.aval, self.names.get(id(tensor), ""), ("tensor", tensor)))
        return self.captured[id(tensor)][1]

    def rebind(self, tensor: Tensor, node: Node) -> None:
        """A tensor from outside was changed in place."""
        self.node_of(tensor)
        self.versions.setdefault(id(tensor), (tensor, tensor._versions))
        self.nodes[id(tensor)] = (tensor, node)
        if node.fn is _VARIABLE:
            self.leaves.append((tensor, node))

    def grad_of(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a tensor from outside, as the body sees it."""
        if id(tensor) not in self.grads:
            present = tensor._grad
            if present is None:
                self.no_grads.append(self.place(tensor))
                return None
            name = self.names.get(id(tensor))
            node = self._input(present._n.aval, f"{name}.grad" if name else "", ("grad", self.place(tensor)))
            self.present[id(tensor)] = Tensor(node, self.device, self)
            self.grads[id(tensor)] = (tensor, self.present[id(tensor)])
        return self.grads[id(tensor)][1]

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """A gradient was stored on a tensor from outside."""
        self.grads[id(tensor)] = (tensor, grad)

    def adopt(self, tensor: Tensor) -> None:
        """A constant that the body made from host data."""
        self.adopted[id(tensor)] = tensor

    def scalar(self, owner: Any, name: str) -> Tensor:
        """A Python float attribute (an optimiser's learning rate) as a run-time scalar."""
        key = (id(owner), name)
        if key not in self.scalars:
            self.scalars[key] = Tensor(self._input(Aval((), float64, True), name, ("attribute", (owner, name))), self.device, self)
        return self.scalars[key]

    def random(self, count: int) -> tuple[Node, Node]:
        """Seed and offset of the next `count` random numbers: fresh at every replay."""
        if self._random is None:
            self._random = (
                self._input(Aval((), int64, True), "seed", ("seed", None)),
                self._input(Aval((), int64, True), "offset", ("offset", None)),
            )
        seed, offset = self._random
        start = offset + self.draws if self.draws else offset
        self.draws += count
        return seed, start


Place = tuple[str, Any]  # ("arg", number of an argument leaf), ("base", the same: the tensor it is a view of), ("tensor", a tensor)


def _at(place: Place, args: Sequence[Any]) -> Tensor:
    """The tensor at `place` in a call with argument leaves `args`."""
    kind, what = place
    found: Tensor = what if kind == "tensor" else args[what] if kind == "arg" else _base(args[what])
    return found


def _base(tensor: Tensor) -> Tensor:
    """The tensor that a view is a view of in the end; others themselves."""
    while tensor._base is not None:
        tensor = tensor._base
    return tensor


def _path(tensor: Tensor) -> tuple[Any, ...]:
    """How a view is reached from its base, to compare."""
    path: list[Any] = []
    while tensor._base is not None:
        path.append((tensor._detached, *((fn, *attrs.items()) for fn, attrs in tensor._chain)))
        tensor = tensor._base
    return tuple(path)


class Replay:
    """A finished recording, compiled. `run` replays it on the present values."""

    def __init__(self, recording: Recording, result: Any, reach: Reach, flat: Sequence[Any]) -> None:
        """flat: the argument leaves."""
        self.recording, self.reach = recording, reach
        self.guarded = [
            (t, t._node_outside().aval, t._node_outside().needs_grad, tuple(t._hooks or ()))
            for t, _ in recording.captured.values()
            if id(t) not in recording.adopted and id(t) not in recording.places
        ]
        self.aliases = _reached(flat, reach)
        recipe = _Recipe(recording, result, flat, reach)
        self.recipe, self.treedef = recipe.entries, recipe.treedef
        results = [t._n if t._base is None else t._replay(_node_in(recording, t._base)) for t in recipe.tensors]
        for t, node in recording.nodes.values():
            _check_effect(recording, t, node)
        self.effects = [recording.place(t) for t, _ in recording.nodes.values()]
        changed = [(t, g) for t, g in recording.grads.values() if g is None or _changed(recording, t, g)]
        self.grad_effects = [
            (recording.place(t), None if g is None else (g._n.aval, recording.present.get(id(t)) is g)) for t, g in changed
        ]  # (whose, None or (aval, whether the gradient tensor that is there was changed in place))
        effect_nodes = [node for _, node in recording.nodes.values()]
        grad_nodes = [_node_in(recording, g) for _, g in changed if g is not None]
        differentiable = [n for n in results if self._recorded(n)]
        self.residuals = _residuals(differentiable)
        self.outputs = [*results, *effect_nodes, *grad_nodes, *self.residuals]
        self.count = (len(results), len(effect_nodes), len(grad_nodes))
        position = {id(n): i for i, n in enumerate(recording.inputs)}
        self.donors: dict[int, int] = {}
        self.changed = {position[id(n)] for t, _ in recording.nodes.values() if id(n := resolve(recording.captured[id(t)][1])) in position}
        for k, (t, node) in enumerate(recording.nodes.values()):
            start = resolve(recording.captured[id(t)][1])
            if resolve(node) is not start and id(start) in position:
                self.donors[len(results) + k] = position[id(start)]
        self.program = Program(recording.inputs, self.outputs, recording.device, self.donors)
        names = [recording.names.get(id(t), "") for t, _ in recording.nodes.values()]
        grads = [recording.names.get(id(t), "") for t, g in changed if g is not None]
        self.program.graph.graph["output_names"] = [*[""] * len(results), *names, *(n and f"{n}.grad" for n in grads)]  # for source()
        self.result_nodes = results
        self.leaves = [(recording.place(t), node) for t, node in recording.leaves]
        # A function of its tensor arguments and nothing else, each used once and in order: the short way through `run`.
        self.pure = (
            not (self.effects or self.grad_effects or recording.draws)
            and all(kind == "arg" and not node.aval.weak for (kind, _), node in zip(recording.sources, recording.inputs, strict=True))
            and [what for _, what in recording.sources] == list(range(len(flat)))
        )
        self.recorded = bool(differentiable)
        fresh = self.recipe == [("value", k) for k in range(len(self.recipe))]
        # The two shapes of result that need no tree: one new tensor, or a tuple of them.
        self.plain = "tensor" if fresh and isinstance(result, Tensor) else "tuple" if fresh and recipe.is_tuple else ""
        # A recording holds no tensor of the call that it was made in (but for those reached by reference, which are guarded).
        recording.captured.clear()
        recording.nodes.clear()
        recording.grads.clear()
        recording.present.clear()
        recording.leaves.clear()

    def _recorded(self, node: Node) -> bool:
        """Whether a result has a history that the caller can go back through."""
        return node.needs_grad and node not in self.recording.freed

    def fits(self, flat: Sequence[Any]) -> bool:
        """Whether the world still looks as it did when this was recorded. flat: the argument leaves."""
        for tensor, aval, needs_grad, hooks in self.guarded:
            node = tensor._n if tensor._base is None else tensor._node_outside()
            if (
                node.aval is not aval
                or node.needs_grad is not needs_grad
                or ((tensor._hooks or hooks)
                and tuple(tensor._hooks or ()) != hooks)
            ):
                return False
        for place in self.recording.no_grads:
            if _at(place, flat)._grad is not None:
                return False
        for kind, what in self.recording.sources:
            if kind == "grad" and _at(what, flat)._grad is None:
                return False
        return (not self.reach.tensors or _reached(flat, self.reach) == self.aliases) and self.reach.holds()

    def change(self, flat: Sequence[Any]) -> str:
        """What no longer fits, in words."""
        for tensor, aval, needs_grad, _ in self.guarded:
            node = tensor._node_outside()
            if node.aval is not aval or node.needs_grad is not needs_grad:
                before, now = (f"{a}{' requiring grad' if g else ''}" for a, g in ((aval, needs_grad), (node.aval, node.needs_grad)))
                return f"a tensor was {before} and is {now}"
        if any(_at(place, flat)._grad is not None for place in self.recording.no_grads):
            return "a tensor has a gradient now, and had none"
        if _reached(flat, self.reach) != self.aliases:
            return "other arguments share memory with what the function reaches"
        return self.reach.change()

    def run(self, args: Sequence[Any]) -> Any:
        """Replay on argument leaves `args`: write back the effects and return the result."""
        if self.pure:
            given = [leaf._n.value if leaf._base is None else None for leaf in args]
            if None in given:
                given = [_value(leaf) for leaf in args]
            out = self.program(given)
            return self._result(out[: self.count[0]], out[self.count[0] :], args, given)
        recording = self.recording
        owners: list[Tensor | None] = []
        values: list[Any] = []
        tensor: Any
        for kind, what in recording.sources:
            if kind == "tensor":
                tensor = what
            elif kind == "arg" or kind == "base":
                tensor = args[what] if kind == "arg" else _base(args[what])
            elif kind == "grad":
                tensor = _at(what, args)._grad
            else:
                tensor = float(getattr(*what)) if kind == "attribute" else random_state.seed() if kind == "seed" else random_state.offset()
            if isinstance(tensor, Tensor):
                owners.append(tensor)
                values.append(_value(tensor))
            else:
                owners.append(None)
                values.append(tensor)
        before = values
        if self.donors:
            history = self.recorded and state.grad
            if history:
                before = list(values)  # a later backward starts from the old values
            for donor in self.donors.values():
                if history or _shared(owners[donor]):  # somebody else holds the old value: leave it to them
                    values[donor] = values[donor].copy()
        out = self.program(values)
        if recording.draws:
            random_state.advance(recording.draws)
        n_results, n_effects, n_grads = self.count
        for place, value in zip(self.effects, out[n_results : n_results + n_effects], strict=True):
            _write(_at(place, args), value)
        grads = iter(out[n_results + n_effects : n_results + n_effects + n_grads])
        for place, made in self.grad_effects:
            tensor = _at(place, args)
            if made is None:
                tensor._grad = None
            elif made[1]:
                _write(tensor._grad, next(grads))
            else:
                tensor._grad = _leaf(next(grads), made[0], recording.device)
        return self._result(out[:n_results], out[n_results + n_effects + n_grads :], args, before)

    def _result(self, values: list[Any], residuals: list[Any], args: Sequence[Any], inputs: list[Any]) -> Any:
        """The function's result, of this call's values."""
        device = self.recording.device
        history = self.recorded and state.grad
        if self.plain and not history:
            tensors = [_leaf(value, node.aval, device) for value, node in zip(values, self.result_nodes, strict=True)]
            return tensors[0] if self.plain == "tensor" else tuple(tensors)
        call = self._history(values, residuals, args, inputs) if history else None
        made = []
        for k, (node, value) in enumerate(zip(self.result_nodes, values, strict=True)):
            if call is not None and self._recorded(node):
                made.append(Tensor(bind(REGISTRY["output"], (call,), {"index": k, "aval": node.aval}), device))
            else:
                made.append(_leaf(value, node.aval, device))
        filled: list[Any] = []
        for kind, what in self.recipe:
            if kind == "static":
                filled.append(what)
            elif kind == "value":
                filled.append(made[what])
            elif kind == "grad":
                filled.append(_at(what, args)._grad)
            else:
                source, levels = what
                tensor = made[source] if kind == "view" else _at(source, args)
                for chain, detached in levels:
                    tensor = _as_view(tensor, chain, detached)
                filled.append(tensor)
        return optree.tree_unflatten(self.treedef, filled)

    def _history(self, values: list[Any], residuals: list[Any], args: Sequence[Any], inputs: list[Any]) -> Node:
        """A node through which backward outside the trace reaches the inputs of this call."""
        sources: list[Node] = []
        before: dict[Node, Any] = {}  # what was overwritten: the values that this call began with
        for i, ((kind, what), value, node) in enumerate(zip(self.recording.sources, inputs, self.recording.inputs, strict=True)):
            source = _at((kind, what), args)._node() if kind in ("arg", "base", "tensor") and not node.aval.weak else None
            if source is None or (i in self.changed and not source.needs_grad):
                source = data(node.aval, value)
            elif i in self.changed:
                before[node] = value
            sources.append(source)
        sources += [_at(place, args)._node() for place, _ in self.leaves]
        known = {n: data(n.aval, v) for n, v in zip(self.residuals, residuals, strict=True)}
        raw = [data(n.aval, v) for n, v in zip(self.result_nodes, values, strict=True)]
        call = TracedCall(self, known, before)
        return bind(call, (*raw, *sources), {})


class _Recipe:
    """How to put the result of a call together. entries: one per leaf of the result, (kind, what):

    "static": a Python value. "value": number of a tensor that the program computes, of `tensors`. "outside": a tensor from outside or a view
    of it, (place, the views that lead to it). "view": a view of a computed tensor, (its number, the views). "grad": the gradient of the
    tensor at a place.
    """

    def __init__(self, recording: Recording, result: Any, flat: Sequence[Any], reach: Reach) -> None:
        leaves, self.treedef = optree.tree_flatten(result, none_is_leaf=True)
        self.is_tuple = type(result) is tuple and len(leaves) == len(result)
        self.tensors: list[Tensor] = []
        self.entries: list[tuple[str, Any]] = []
        grads = {id(g): t for t, g in recording.grads.values() if g is not None}
        bases = [_levels(recording, x)[0] for x in leaves if isinstance(x, Tensor)]
        for x in leaves:
            if not isinstance(x, Tensor):
                _check_static(recording, x, flat, reach)
                self.entries.append(("static", x))
                continue
            if x._trace is not None and x._trace is not recording:
                raise TraceError(f"{recording.name}: returns a tensor of another trace")
            base, levels = _levels(recording, x)
            if id(x) in grads:
                self.entries.append(("grad", recording.place(grads[id(x)])))
            elif base._trace is None and id(base) not in recording.adopted:
                self.entries.append(("outside", (recording.place(base), levels)))
            elif levels and sum(b is base for b in bases) > 1:
                self.entries.append(("view", (self._number(base), levels)))
            else:
                self.entries.append(("value", self._number(x)))

    def _number(self, tensor: Tensor) -> int:
        """The number of a computed tensor; the same for the same one."""
        for k, t in enumerate(self.tensors):
            if t is tensor:
                return k
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _levels(recording: Recording, tensor: Tensor) -> tuple[Tensor, list[tuple[Any, bool]]]:
    """The tensor that one made in the trace is a view of, and the views (chain, detached) that lead from there to it."""
    levels: list[tuple[Any, bool]] = []
    while tensor._trace is recording and tensor._base is not None:
        levels.insert(0, (tensor._chain, tensor._detached))
        tensor = tensor._base
    return tensor, levels


def _check_static(recording: Recording, value: Any, flat: Sequence[Any], reach: Reach) -> None:
    """A result that is no tensor is handed out again at every replay, so it must be of a kind that nobody changes, or from outside."""
    changes = isinstance(value, (Iterator, Coroutine, set, bytearray, np.ndarray))
    own = not isinstance(value, (type, Enum, FunctionType)) and not is_foreign(type(value))
    if (changes or own) and value not in reach and not any(value is x for x in flat):
        raise TraceError(
            f"{recording.name}: returns a {type(value).__name__}, which a replay could only hand out as it was at the first call; "
            "return tensors, numbers, strings, and (nested) tuples, lists and dicts of them"
        )


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


class TracedCall(CustomCall):
    """A replayed trace as one node of the outer graph: its vjp instantiates the recorded graph on the call's values."""

    def __init__(self, replay: Replay, residuals: dict[Node, Node], before: dict[Node, Any]) -> None:
        """before: values of the inputs that have others by now."""
        self.replay, self.residuals, self.before = replay, residuals, before
        self.name = replay.recording.name  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(n.aval for n in self.replay.result_nodes)

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        results = self.replay.result_nodes
        sources = operands[len(results) :]
        new: dict[Node, Node] = dict(self.residuals)
        variables = []
        count = len(self.replay.recording.inputs)
        for node, source in zip(self.replay.recording.inputs, sources[:count], strict=True):
            # A node of its own per source: sources may depend on one another, and only the way through this call counts here.
            variables.append(Node(REGISTRY["copy"], (source,), {}, source.aval, True) if source.needs_grad else source)
            if node in self.before:
                variables[-1].value = self.before[node]
            new[node] = variables[-1]
        written = {node: k for k, (_, node) in enumerate(self.replay.leaves)}
        variables += sources[count:]
        wanted = [r for r, c in zip(results, ct, strict=True) if c is not None]
        for node in Graph.capture(self.replay.recording.inputs, wanted):
            if node in new and node not in self.residuals:
                continue
            with located(node.loc):
                if node in written:  # a leaf that the function wrote: this way out belongs to what it is now
                    made = variables[count + written[node]] = autodiff.variable(new[node.operands[0]])
                elif node.fn is _VARIABLE:
                    made = new[node.operands[0]]
                elif node.fn.name == "const" or not node.operands:
                    made = node
                else:
                    made = bind(node.fn, tuple(new[o] for o in node.operands), node.attrs)
            if node in self.residuals and made.value is None and resolve(made) is made:
                made.value = self.residuals[node].value
            if node in autodiff.HOOKS:
                made = made.twin()
                autodiff.HOOKS[made] = autodiff.HOOKS[node]
            new[node] = made
        pulled = autodiff.vjp([new[r] for r in wanted], variables, [c for c in ct if c is not None])
        return (*(None for _ in results), *pulled)


def _residuals(outputs: list[Node]) -> list[Node]:
    """What a later backward through `outputs` should not compute again."""
    if not outputs:
        return []
    return [n for n in Graph.capture([], outputs) if n.needs_grad and n.fn.expensive and n not in set(outputs)]


def _node_in(recording: Recording, tensor: Tensor) -> Node:
    return tensor._node() if tensor._trace is recording else recording.node_of(tensor)


def _changed(recording: Recording, tensor: Tensor, grad: Tensor) -> bool:
    """Whether the gradient in the trace is another value than the one the tensor came with."""
    return not any(
        kind == "grad" and what is tensor and node is grad._n
        for node, (kind, what) in zip(recording.inputs, recording.sources, strict=True)
    )


def _value(tensor: Tensor) -> Any:
    found = resolve(tensor._n if tensor._base is None else tensor._node_outside())
    if found.value is None:
        if tensor._base is not None:
            return _realized(found, tensor)
        flush()
        if found.value is None:
            return _realized(found, tensor)
    return found.value


def _realized(node: Node, tensor: Tensor) -> Any:
    realize([node], tensor._device)
    return node.value


def _shared(tensor: Tensor | None) -> bool:
    """Whether anything but the tensor itself holds its value or the node of it: another tensor, an exported array, whose memory it is."""
    if tensor is None or tensor._base is not None:
        return True
    node = tensor._n
    found = resolve(node)
    value = found.value
    if value.borrowed or sys.getrefcount(value) > 3 + 1:  # the node, `values` of the replay, `value`, the argument here
        return True
    if node is found:
        return sys.getrefcount(node) > 4  # tensor, `node`, `found`, the argument
    between = node.operands[0]
    if between is not found and (between.operands[0] is not found or sys.getrefcount(between) > 3):
        return True  # variable -> detach -> value is the longest chain of one owner
    return sys.getrefcount(node) > 3 or sys.getrefcount(found) > (4 if between is found else 3)


def _leaf(value: Any, aval: Aval, device: Any) -> Tensor:
    return Tensor(data(aval, value), device)


def _as_view(base: Tensor, chain: Any, detached: bool) -> Tensor:
    """A view of `base`."""
    view = Tensor(base._node(), base._device)
    view._base, view._chain, view._detached = base, chain, detached
    view._n = view._replay(base._node())
    return view


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
        node = autodiff.variable(node)
        become_leaf(tensor, node)
    tensor._n = node


class Traced:
    """A function under @trace. Call it; then look at `graph`, `kernels()`, `source()` and `explain()` of its latest call."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.__name__: str = getattr(fn, "__name__", type(fn).__name__)
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._replays: dict[Any, list[Replay]] = {}
        self._latest: Replay | None = None
        self._signature: Any = None  # of the latest recording
        self._changing: set[Any] = set()  # signatures whose body changed what it reads when it was recorded
        self.compilations: list[str] = []  # why each compilation happened

    def __repr__(self) -> str:
        return f"<traced {getattr(self._fn, '__qualname__', self._fn)}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.trace is not None:
            return self._fn(*args, **kwargs)  # inside another trace: part of it
        flat: Any
        treedef: Any
        if kwargs or not _FLAT.issuperset(map(type, args)):
            flat, structure = optree.tree_flatten(_tree(args, kwargs), none_is_leaf=True, namespace=_ORDERED)
            treedef = (structure, *structure.paths())  # the paths tell dicts of different order apart
            for i, leaf in enumerate(flat):
                if isinstance(leaf, np.ndarray):
                    flat[i] = from_array(leaf, copy=None)
        else:
            flat, treedef = args, len(args)  # nothing nested: no tree needed
        tensors = [x for x in flat if isinstance(x, Tensor)]
        signature = (treedef, state.grad, () if len(tensors) == 1 else _sharing(tensors), *map(_signature, flat))
        try:
            candidates = self._replays.setdefault(signature, [])
        except TypeError:
            raise ArgumentError(
                f"{self.__name__}: an argument is neither a tensor nor hashable: {[type(a).__name__ for a in flat if not _hashable(a)]}; pass "
                "tuples, lists and dicts of tensors and numbers, or objects that hash by identity (@dataclass(eq=False))"
            ) from None
        for replay in candidates:
            if replay.fits(flat):
                break
        else:
            reason = self._reason(signature, flat, candidates)
            replay, change = self._record(args, kwargs, flat)
            if change and signature in self._changing:
                raise TraceError(
                    f"{self.__name__}: its body changes Python state that it reads ({change}), at every call, so no replay could do the same; "
                    "do that outside the traced function, pass the state as an argument, or keep it in a tensor that is written in place"
                )
            if change:
                self._changing.add(signature)
                reason += f" (not kept: the body changed what it reads: {change})"
            else:
                self._changing.discard(signature)
                candidates.append(replay)
            self.compilations.append(reason)
        self._latest = replay
        return replay.run(flat)

    def _record(self, args: Any, kwargs: Any, flat: Sequence[Any]) -> tuple[Replay, str]:
        """Run the body on tracers and compile what it did. Also what Python state the body changed, in words ("": it can be replayed)."""
        tensors = [x for x in flat if isinstance(x, Tensor)]
        device = tensors[0]._device if tensors else find_device()
        flush()
        labels = _labels(self._fn, args, kwargs)
        statics = [(labels[i] if i < len(labels) else "", x) for i, x in enumerate(flat) if not isinstance(x, (Tensor, float))]
        names = tensor_names(self._fn, statics) | {id(x): label for x, label in zip(flat, labels, strict=False) if isinstance(x, Tensor)}
        recording = Recording(getattr(self._fn, "__qualname__", repr(self._fn)), device, names)
        reach = Reach(self._fn, [x for x in flat if not isinstance(x, (Tensor, float))])
        drawn = random_state.get_rng_state()
        state.trace = recording
        try:
            tracers = self._tracers(recording, flat, labels, reach)
            nested = kwargs or not _FLAT.issuperset(map(type, args))
            treedef: Any = None
            if nested:
                treedef = optree.tree_structure(_tree(args, kwargs), none_is_leaf=True, namespace=_ORDERED)
                new_args, new_kwargs = optree.tree_unflatten(treedef, tracers)
            else:
                new_args, new_kwargs = tuple(tracers), {}
            result = self._fn(*new_args, **new_kwargs)
            if nested:
                after, structure = optree.tree_flatten(_tree(new_args, new_kwargs), none_is_leaf=True, namespace=_ORDERED)
                if structure != treedef or any(a is not b for a, b in zip(after, tracers, strict=True)):
                    raise TraceError(
                        f"{recording.name}: changes a list or dict among its arguments, which a replay would not do; return the new values"
                    )
            if random_state.get_rng_state() != drawn:
                random_state.set_rng_state(drawn)
                raise TraceError(
                    f"{recording.name}: seeds the random numbers, which a replay would not do; call manual_seed outside the traced function"
                )
            self._check_reach(recording, reach)
            change = "" if reach.holds() else reach.change()
            replay = Replay(recording, result, reach, flat)
        finally:
            state.trace = None
            for tensor, before in recording.versions.values():
                tensor._versions = before
        return replay, change

    def _tracers(self, recording: Recording, flat: Sequence[Any], labels: list[str], reach: Reach) -> list[Any]:
        """What stands for each argument leaf. Views of a tensor that several arguments or the function itself lead to go through that tensor."""
        bases = [id(_base(x)) for x in flat if isinstance(x, Tensor)]
        tracers = []
        for i, x in enumerate(flat):
            label = labels[i] if i < len(labels) else ""
            if isinstance(x, Tensor):
                base = _base(x)
                if id(base) not in recording.places and (base is x or bases.count(id(base)) > 1) and id(base) not in reach.tensors:
                    where = next((k for k, y in enumerate(flat) if y is base), None)
                    recording.place_argument(base, ("base", i) if where is None else ("arg", where), label)
                elif id(x) not in recording.places and id(base) not in recording.places and id(base) not in reach.tensors:
                    recording.place_argument(x, ("arg", i), label)
                tracers.append(x)
            else:
                tracers.append(recording.argument(i, x, label) if isinstance(x, float) else x)
        return tracers

    def _reason(self, signature: Any, flat: Sequence[Any], candidates: list[Replay]) -> str:
        """Why a call needs a recording of its own, for explain()."""
        previous, self._signature = self._signature, signature
        if candidates:
            return f"something that the function reaches changed: {candidates[-1].change(flat) or 'a tensor or its gradient'}"
        if previous is None:
            return "first call"
        if previous[0] != signature[0] or len(previous) != len(signature):
            return "the arguments have another structure"
        if previous[1] != signature[1]:
            return f"grad mode is {'on' if signature[1] else 'off'} now"
        if previous[2] != signature[2]:
            return "other arguments share memory"
        new = [
            f"argument {i} was {_described(a)} and is {_described(b)}"
            for i, (a, b) in enumerate(zip(previous[3:], signature[3:], strict=True))
            if a != b
        ]
        return "; ".join(new[:3])

    def _check_reach(self, recording: Recording, reach: Reach) -> None:
        known = reach.tensors | recording.places.keys() | recording.adopted.keys()
        for key, (tensor, node) in recording.captured.items():
            if key not in known and (tensor._base is None or id(tensor._base) not in known):
                raise TraceError(
                    f"{recording.name} at {node.loc}: uses a {tensor.dtype}{list(tensor.shape)} tensor that it reached in a way tracegrad "
                    "cannot watch (not an argument, closure variable, global or attribute), so a replay might be stale: "
                    "pass it as an argument"
                )

    # ------------------------------------------------------------------------------------------------- looking at it

    def _seen(self) -> Replay:
        if self._latest is None:
            raise ArgumentError(f"{self.__name__}: call it once first; what it does depends on the arguments")
        return self._latest

    @property
    def graph(self) -> Graph:
        """The captured program of the latest call: a networkx.MultiDiGraph of Function nodes."""
        return self._seen().program.graph

    @property
    def plan(self) -> Any:
        """The launch plan of the latest call (None on the numpy device)."""
        return self._seen().program.plan

    def kernels(self) -> Kernels:
        """The OpenCL C of the latest call; str() is the whole text, and it can be indexed by kernel."""
        return Kernels(self._seen().program.plan)

    def source(self) -> str:
        """The latest call's forward and derived backward as readable Python."""
        return python_source(self._seen().program.graph, self.__name__)

    def explain(self) -> str:
        """What was fused, why each kernel ended, and why compilations happened."""
        return explain(self._seen().program, self.__name__, self.compilations)


_ORDERED = "tracegrad"  # where optree goes through dicts in their own order
_ordering = optree.dict_insertion_ordered(True, namespace=_ORDERED)
_ordering.__enter__()
_FLAT = frozenset({Tensor, float, int, bool, str, type(None)})


def _described(entry: Any) -> str:
    """One entry of a signature in words."""
    if entry is float:
        return "a float"
    if len(entry) > 2:
        return f"{entry[0]}{' that requires grad' if entry[1] else ''} on {entry[2].name}"
    return repr(entry[1])


def _tree(args: Any, kwargs: Any) -> Any:
    return args, kwargs


def _signature(leaf: Any) -> Any:
    if type(leaf) is Tensor or isinstance(leaf, Tensor):
        node = leaf._n if leaf._base is None else leaf._node_outside()
        if leaf._hooks:
            return (node.aval, node.needs_grad, leaf._device, *leaf._hooks)
        return (node.aval, node.needs_grad, leaf._device)
    return float if type(leaf) is float else (type(leaf), leaf)


def _sharing(tensors: Sequence[Tensor]) -> Any:
    """Which arguments share memory, and how: the same tensor given twice, views of one base. The default device, if there are none."""
    if not tensors:
        return find_device()
    bases = [x if x._base is None else _base(x) for x in tensors]
    if len({*map(id, bases)}) == len(bases):
        return ()
    first: dict[int, int] = {}
    groups = [first.setdefault(id(b), k) for k, b in enumerate(bases)]
    return tuple((g, _path(x)) for g, x in zip(groups, tensors, strict=True) if groups.count(g) > 1 or g)


def _reached(flat: Sequence[Any], reach: Reach) -> dict[int, Any]:
    """The argument leaves that the function reaches by another way, too: place -> which tensor, and how."""
    found: dict[int, Any] = {}
    for i, x in enumerate(flat):
        if isinstance(x, Tensor):
            base = x if x._base is None else _base(x)
            if id(base) in reach.tensors:
                found[i] = (id(base), _path(x))
    return found


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _labels(fn: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """A name for each argument leaf, from the function's parameters."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return []
    parameters = code.co_varnames[: code.co_argcount]
    names: list[str] = []
    for i, a in enumerate(args):
        base = parameters[i] if i < len(parameters) else "arg"
        n = len(optree.tree_leaves(a, none_is_leaf=True, namespace=_ORDERED))
        names += [base] if n == 1 else [f"{base}_{k}" for k in range(n)]
    for key, a in kwargs.items():
        names += [key] * len(optree.tree_leaves(a, none_is_leaf=True, namespace=_ORDERED))
    return names


@overload
def trace(fn: F) -> F: ...
@overload
def trace(fn: None = None) -> Callable[[F], F]: ...
def trace(fn: Any = None) -> Any:
    """Compile a function of tensors: the first call with a new signature records and compiles it, later calls replay.

    fn: takes and returns (nested containers of) Tensors; other arguments are static, except Python floats, which are run-time
    values. Raises TraceError where the body needs a value that is not known while recording.

    >>> @tg.trace
    ... def f(x):
    ...     return (x * x).sum()
    >>> f(tg.ones(3))
    """
    return Traced(fn) if fn is not None else Traced
