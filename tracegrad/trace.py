"""@trace: record a Python function once per signature, then replay a compiled program. Start at `Traced.__call__`.

Recording runs the body on tracers. Tensors that the body reaches through closures, attributes or globals become inputs by
reference; Python floats among the arguments become run-time scalars; everything else is static. In-place changes of tensors from
outside, and gradients that backward() stored on them, are *effects*: outputs that a replay writes back, in place where nobody
else holds the old value. Until a replay succeeds nothing outside is touched.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import optree

from tracegrad import autodiff, random_state
from tracegrad.compile import Program, find_device, realize, resolve
from tracegrad.dtypes import float64, int64
from tracegrad.errors import ArgumentError, TraceError
from tracegrad.function import REGISTRY, CustomCall, bind, data, placeholder
from tracegrad.guards import Reach, tensor_names
from tracegrad.ir import Aval, Graph, Node, located, topological, user_location
from tracegrad.report import Kernels, explain, python_source
from tracegrad.tensor import Tensor, become_leaf, flush, from_array, state

F = TypeVar("F", bound=Callable[..., Any])
_VARIABLE = REGISTRY["variable"]


class Recording:
    """One trace: what it read, what it computes, what it changes. Made while the body runs on tracers."""

    def __init__(self, name: str, device: Any, names: dict[int, str] | None = None) -> None:
        self.name, self.device = name, device
        self.names = names or {}  # what the user calls the tensors from outside, by id
        self.scalars: dict[tuple[int, str], Tensor] = {}  # attributes read as run-time scalars
        self.inputs: list[Node] = []  # placeholders, in call order
        self.sources: list[tuple[str, Any]] = []  # where a replay gets each input's value
        self.captured: dict[int, tuple[Tensor, Node]] = {}  # tensors from outside -> their node in here
        self.nodes: dict[int, tuple[Tensor, Node]] = {}  # tensors from outside that were changed -> new node
        self.grads: dict[int, tuple[Tensor, Tensor | None]] = {}  # tensors from outside -> their gradient in here
        self.no_grads: list[Tensor] = []  # tensors whose grad was seen to be None
        self.adopted: dict[int, Tensor] = {}  # constants made by the body
        self.versions: dict[int, int] = {}  # of changed tensors, before: a recording changes nothing yet
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
        known = self.captured.get(id(leaf))
        if known is not None:
            return leaf  # the same tensor passed twice
        node = self._input(leaf._node_outside().aval, label, ("arg", index))
        self._adopt_as(leaf, node)
        return leaf

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
        self.versions.setdefault(id(tensor), tensor._versions)
        self.nodes[id(tensor)] = (tensor, node)

    def grad_of(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a tensor from outside, as the body sees it."""
        if id(tensor) not in self.grads:
            present = tensor._grad
            if present is None:
                self.no_grads.append(tensor)
                return None
            name = self.names.get(id(tensor))
            node = self._input(present._n.aval, f"{name}.grad" if name else "", ("grad", tensor))
            self.grads[id(tensor)] = (tensor, Tensor(node, self.device, self))
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


class Replay:
    """A finished recording, compiled. `run` replays it on the present values."""

    def __init__(self, recording: Recording, result: Any, reach: Reach, arguments: int) -> None:
        """arguments: the number of argument leaves."""
        self.recording, self.reach = recording, reach
        self.guarded = [
            (t, t._node_outside().aval, t._node_outside().needs_grad, t._grad is None, tuple(t._hooks or ()))
            for t, _ in recording.captured.values()
            if id(t) not in recording.adopted
        ]
        leaves_out, self.treedef = optree.tree_flatten(result, none_is_leaf=True)
        self.static_out = [None if isinstance(x, Tensor) else (x,) for x in leaves_out]
        for x in leaves_out:
            if isinstance(x, Tensor) and x._trace is not None and x._trace is not recording:
                raise TraceError(f"{recording.name}: returns a tensor of another trace")
        self.returned = [self._outside(x) if isinstance(x, Tensor) else None for x in leaves_out]
        results = [_node_in(recording, x) for x in leaves_out if isinstance(x, Tensor)]
        for t, node in recording.nodes.values():
            _check_effect(recording, t, node)
        self.effects = [t for t, node in recording.nodes.values()]
        self.grad_effects = [(t, g) for t, g in recording.grads.values() if g is None or _changed(recording, t, g)]
        effect_nodes = [node for _, node in recording.nodes.values()]
        grad_nodes = [_node_in(recording, g) for _, g in self.grad_effects if g is not None]
        kept = [r for x, r in zip(leaves_out, self.returned, strict=True) if isinstance(x, Tensor)]
        differentiable = [n for r, n in zip(kept, results, strict=True) if r is None and self._recorded(n)]
        self.residuals = _residuals(differentiable)
        self.outputs = [*results, *effect_nodes, *grad_nodes, *self.residuals]
        self.count = (len(results), len(effect_nodes), len(grad_nodes))
        position = {id(n): i for i, n in enumerate(recording.inputs)}
        self.donors: dict[int, int] = {}
        for k, (t, node) in enumerate(recording.nodes.values()):
            start = resolve(recording.captured[id(t)][1])
            if resolve(node) is not start and id(start) in position:
                self.donors[len(results) + k] = position[id(start)]
        self.program = Program(recording.inputs, self.outputs, recording.device, self.donors)
        changed = [recording.names.get(id(t), "") for t in self.effects]
        grads = [recording.names.get(id(t), "") for t, g in self.grad_effects if g is not None]
        self.program.graph.graph["output_names"] = [*[""] * len(results), *changed, *(n and f"{n}.grad" for n in grads)]  # for source()
        self.result_nodes = results
        # A function of its tensor arguments and nothing else, each used once and in order: the short way through `run`.
        self.pure = (
            not (self.effects or self.grad_effects or recording.draws)
            and all(kind == "arg" and not node.aval.weak for (kind, _), node in zip(recording.sources, recording.inputs, strict=True))
            and [what for _, what in recording.sources] == list(range(arguments))
        )
        self.recorded = bool(differentiable)
        fresh = all(isinstance(x, Tensor) for x in leaves_out) and all(r is None for r in self.returned)
        # The two shapes of result that need no tree: one new tensor, or a tuple of them.
        self.plain = (
            "tensor"
            if fresh and isinstance(result, Tensor)
            else "tuple"
            if fresh and type(result) is tuple and all(isinstance(x, Tensor) for x in result)
            else ""
        )

    def _recorded(self, node: Node) -> bool:
        """Whether a result has a history that the caller can go back through."""
        return node.needs_grad and node not in self.recording.freed

    def _outside(self, tensor: Tensor) -> Tensor | None:
        """A tensor from outside that is returned as it is."""
        return tensor if tensor._trace is None else None

    def fits(self, grad_free: Sequence[Tensor] = ()) -> bool:
        """Whether the world still looks as it did when this was recorded."""
        for tensor, aval, needs_grad, _, hooks in self.guarded:
            node = tensor._n if tensor._base is None else tensor._node_outside()
            if (
                node.aval is not aval
                or node.needs_grad is not needs_grad
                or ((tensor._hooks or hooks)
                and tuple(tensor._hooks or ()) != hooks)
            ):
                return False
        for tensor in self.recording.no_grads:
            if tensor._grad is not None:
                return False
        for kind, what in self.recording.sources:
            if kind == "grad" and what._grad is None:
                return False
        return self.reach.holds()

    def change(self) -> str:
        """What no longer fits, in words."""
        for tensor, aval, needs_grad, *_ in self.guarded:
            node = tensor._node_outside()
            if node.aval is not aval or node.needs_grad is not needs_grad:
                before, now = (f"{a}{' requiring grad' if g else ''}" for a, g in ((aval, needs_grad), (node.aval, node.needs_grad)))
                return f"a tensor was {before} and is {now}"
        if any(t._grad is not None for t in self.recording.no_grads):
            return "a tensor has a gradient now, and had none"
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
            if kind == "arg":
                leaf = args[what]
                if isinstance(leaf, float):
                    owners.append(None)
                    values.append(leaf)
                    continue
                tensor = leaf
            elif kind == "tensor":
                tensor = what
            elif kind == "grad":
                tensor = what._grad
            else:
                owners.append(None)
                values.append(
                    float(getattr(*what)) if kind == "attribute" else random_state.seed() if kind == "seed" else random_state.offset()
                )
                continue
            owners.append(tensor)
            values.append(_value(tensor))
        for donor in self.donors.values():
            if _shared(owners[donor]):  # somebody else holds the old value: leave it to them
                values[donor] = values[donor].copy()
        out = self.program(values)
        if recording.draws:
            random_state.advance(recording.draws)
        n_results, n_effects, n_grads = self.count
        for tensor, value in zip(self.effects, out[n_results : n_results + n_effects], strict=True):
            tensor = self._present(tensor, args)
            tensor._versions += 1
            node = tensor._n
            found = resolve(node)
            if found.value is not value:
                _install(tensor, value, node.needs_grad)
        grads = iter(out[n_results + n_effects : n_results + n_effects + n_grads])
        for tensor, g in self.grad_effects:
            tensor = self._present(tensor, args)
            tensor._grad = None if g is None else _leaf(next(grads), g._n.aval, recording.device)
        return self._result(out[:n_results], out[n_results + n_effects + n_grads :], args, values)

    def _present(self, tensor: Tensor, args: Sequence[Any]) -> Tensor:
        """The tensor that plays the part of `tensor` in this call."""
        index = self.arguments.get(id(tensor))
        return tensor if index is None else args[index]

    @functools.cached_property
    def arguments(self) -> dict[int, int]:
        """id of a tensor that was an argument at recording -> its place among the argument leaves."""
        places = {node: what for node, (kind, what) in zip(self.recording.inputs, self.recording.sources, strict=True) if kind == "arg"}
        return {key: places[resolve(node)] for key, (_, node) in self.recording.captured.items() if resolve(node) in places}

    def _result(self, values: list[Any], residuals: list[Any], args: Sequence[Any], inputs: list[Any]) -> Any:
        """The function's result, of this call's values."""
        device = self.recording.device
        if self.plain and not (self.recorded and state.grad):
            tensors = [_leaf(value, node.aval, device) for value, node in zip(values, self.result_nodes, strict=True)]
            return tensors[0] if self.plain == "tensor" else tuple(tensors)
        call = None
        filled: list[Any] = []
        k = 0
        for static, same in zip(self.static_out, self.returned, strict=True):
            if static is not None:
                filled.append(static[0])
                continue
            node = self.result_nodes[k]
            if same is not None:
                filled.append(self._present(same, args))
            elif self._recorded(node) and state.grad:
                call = call or self._history(values, residuals, args, inputs)
                filled.append(Tensor(bind(REGISTRY["output"], (call,), {"index": k, "aval": node.aval}), device))
            else:
                filled.append(_leaf(values[k], node.aval, device))
            k += 1
        return optree.tree_unflatten(self.treedef, filled)

    def _history(self, values: list[Any], residuals: list[Any], args: Sequence[Any], inputs: list[Any]) -> Node:
        """A node through which backward outside the trace reaches the inputs of this call."""
        sources: list[Node] = []
        for (kind, what), value, node in zip(self.recording.sources, inputs, self.recording.inputs, strict=True):
            if kind in ("arg", "tensor") and not node.aval.weak:
                sources.append((args[what] if kind == "arg" else what)._node())
            else:
                sources.append(data(node.aval, value))
        known = {n: data(n.aval, v) for n, v in zip(self.residuals, residuals, strict=True)}
        raw = [data(n.aval, v) for n, v in zip(self.result_nodes, values, strict=True)]
        call = TracedCall(self, known)
        return bind(call, (*raw, *sources), {})


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

    def __init__(self, replay: Replay, residuals: dict[Node, Node]) -> None:
        self.replay, self.residuals = replay, residuals
        self.name = replay.recording.name  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(n.aval for n in self.replay.result_nodes)

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        results = self.replay.result_nodes
        sources = operands[len(results) :]
        new: dict[Node, Node] = dict(self.residuals)
        variables = []
        for node, source in zip(self.replay.recording.inputs, sources, strict=True):
            # A node of its own per source: sources may depend on one another, and only the way through this call counts here.
            variables.append(Node(REGISTRY["copy"], (source,), {}, source.aval, True) if source.needs_grad else source)
            new[node] = variables[-1]
        wanted = [r for r, c in zip(results, ct, strict=True) if c is not None]
        for node in Graph.capture(self.replay.recording.inputs, wanted):
            if node in new and node not in self.residuals:
                continue
            with located(node.loc):
                if node.fn is _VARIABLE:
                    made = new[node.operands[0]]
                elif node.fn.name == "const" or not node.operands:
                    made = node
                else:
                    made = bind(node.fn, tuple(new[o] for o in node.operands), node.attrs)
            if node in self.residuals and made.value is None and resolve(made) is made:
                made.value = self.residuals[node].value
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


def _install(tensor: Tensor, value: Any, needs_grad: bool) -> None:
    """Give a tensor a computed value."""
    node = data(tensor._n.aval, value)
    if tensor._base is not None:
        raise TraceError("a view cannot take a value of its own")
    tensor._n = autodiff.variable(node) if needs_grad else node
    if needs_grad:
        become_leaf(tensor, tensor._n)


class Traced:
    """A function under @trace. Call it; then look at `graph`, `kernels()`, `source()` and `explain()` of its latest call."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.__name__: str = getattr(fn, "__name__", type(fn).__name__)
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._replays: dict[Any, list[Replay]] = {}
        self._latest: Replay | None = None
        self._signature: Any = None  # of the latest recording
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
            flat, treedef = optree.tree_flatten(_tree(args, kwargs), none_is_leaf=True)
            for i, leaf in enumerate(flat):
                if isinstance(leaf, np.ndarray):
                    flat[i] = from_array(leaf, copy=None)
        else:
            flat, treedef = args, len(args)  # nothing nested: no tree needed
        signature = (treedef, state.grad, *map(_signature, flat))
        try:
            candidates = self._replays.setdefault(signature, [])
        except TypeError:
            raise ArgumentError(
                f"{self.__name__}: an argument is neither a tensor nor hashable: "
                f"{[type(a).__name__ for a in flat if not isinstance(a, Tensor)]}"
            ) from None
        for replay in candidates:
            if replay.fits():
                break
        else:
            reason = self._reason(signature, flat, candidates)
            replay = self._record(args, kwargs, flat)
            candidates.append(replay)
            self.compilations.append(reason)
        self._latest = replay
        return replay.run(flat)

    def _record(self, args: Any, kwargs: Any, flat: Sequence[Any]) -> Replay:
        """Run the body on tracers and compile what it did."""
        tensors = [x for x in flat if isinstance(x, Tensor)]
        device = tensors[0]._device if tensors else find_device()
        flush()
        labels = _labels(self._fn, args, kwargs)
        statics = [(labels[i] if i < len(labels) else "", x) for i, x in enumerate(flat) if not isinstance(x, (Tensor, float))]
        names = tensor_names(self._fn, statics) | {id(x): label for x, label in zip(flat, labels, strict=False) if isinstance(x, Tensor)}
        recording = Recording(getattr(self._fn, "__qualname__", repr(self._fn)), device, names)
        state.trace = recording
        try:
            tracers = [
                recording.argument(i, x, labels[i] if i < len(labels) else "") if isinstance(x, (Tensor, float)) else x
                for i, x in enumerate(flat)
            ]
            if kwargs or not _FLAT.issuperset(map(type, args)):
                new_args, new_kwargs = optree.tree_unflatten(optree.tree_structure(_tree(args, kwargs), none_is_leaf=True), tracers)
            else:
                new_args, new_kwargs = tuple(tracers), {}
            result = self._fn(*new_args, **new_kwargs)
            reach = Reach(self._fn, [x for x in flat if not isinstance(x, (Tensor, float))])
            self._check_reach(recording, reach, tensors)
            replay = Replay(recording, result, reach, len(flat))
        finally:
            state.trace = None
            for tensor, _ in recording.nodes.values():
                tensor._versions = recording.versions[id(tensor)]
        return replay

    def _reason(self, signature: Any, flat: Sequence[Any], candidates: list[Replay]) -> str:
        """Why a call needs a recording of its own, for explain()."""
        previous, self._signature = self._signature, signature
        if candidates:
            return f"something that the function reaches changed: {candidates[-1].change() or 'a tensor or its gradient'}"
        if previous is None:
            return "first call"
        if previous[0] != signature[0] or len(previous) != len(signature):
            return "the arguments have another structure"
        if previous[1] != signature[1]:
            return f"grad mode is {'on' if signature[1] else 'off'} now"
        new = [
            f"argument {i} was {_described(a)} and is {_described(b)}"
            for i, (a, b) in enumerate(zip(previous[2:], signature[2:], strict=True))
            if a != b
        ]
        return "; ".join(new[:3])

    def _check_reach(self, recording: Recording, reach: Reach, arguments: list[Tensor]) -> None:
        known = {id(t) for t in arguments} | reach.tensors | recording.adopted.keys()
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


_FLAT = frozenset({Tensor, float, int, bool, str, type(None)})


def _described(entry: Any) -> str:
    """One entry of a signature in words."""
    if entry is float:
        return "a float"
    if len(entry) == 3:
        return f"{entry[0]}{' that requires grad' if entry[1] else ''} on {entry[2].name}"
    return repr(entry[1])


def _tree(args: Any, kwargs: Any) -> Any:
    return args, kwargs


def _signature(leaf: Any) -> Any:
    if type(leaf) is Tensor or isinstance(leaf, Tensor):
        node = leaf._n if leaf._base is None else leaf._node_outside()
        return (node.aval, node.needs_grad, leaf._device)
    return float if type(leaf) is float else (type(leaf), leaf)


def _labels(fn: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """A name for each argument leaf, from the function's parameters."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return []
    parameters = code.co_varnames[: code.co_argcount]
    names: list[str] = []
    for i, a in enumerate(args):
        base = parameters[i] if i < len(parameters) else "arg"
        n = len(optree.tree_leaves(a, none_is_leaf=True))
        names += [base] if n == 1 else [f"{base}_{k}" for k in range(n)]
    for key, a in sorted(kwargs.items()):
        names += [key] * len(optree.tree_leaves(a, none_is_leaf=True))
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
