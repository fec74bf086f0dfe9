"""What a trace notes while the body runs on tracers: `Recording`; and where a replay finds the tensors again: `Source`.

Tensors that come with the arguments, and those that the body reaches otherwise, become inputs by reference. In-place changes of them, and
gradients that backward() stored on them, are kept here in an overlay: outside nothing changes before a replay succeeds.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any
from weakref import ref

import numpy as np

from tracegrad.autodiff import derivatives
from tracegrad.errors import TraceError
from tracegrad.execute.realize import read
from tracegrad.graph.ir import ON_HOST, Aval, Node, topological
from tracegrad.graph.leaf_operations import Bundle
from tracegrad.graph.primitive import REGISTRY, data, placeholder
from tracegrad.graph.printing import assigned_name, identifier
from tracegrad.numpy_backend.interpreter import evaluate
from tracegrad.support.dtypes import complex128, float64, int64
from tracegrad.tensors.attributes import base_of
from tracegrad.tensors.bases.history import become_leaf
from tracegrad.tensors.tensor import RunTimeNumber, Tensor

_VARIABLE = REGISTRY["variable"]
CONSTANT = 1 << 16           # bytes up to which a tensor of host data is a constant of the program
_CALLS = frozenset((*ON_HOST, "opencl_call", "loop", "small_matrices"))      # families of what may do anything, or much

# ("arg", number of an argument leaf), ("base", the same: the tensor it is a view of), ("tensor", a tensor), ("slot", an `assigned.Part`),
# ("slot base", the same: the tensor it is a view of)
Source = tuple[str, Any]


def at(place: Source, args: Sequence[Any]) -> Tensor:
    """The tensor at `place` in a call with argument leaves `args`."""
    kind, what = place
    found: Tensor = what if kind == "tensor" else what.get() if kind.startswith("slot") else args[what]
    return base_of(found) if kind in ("base", "slot base") else found


def path_of(tensor: Tensor) -> tuple[Any, ...]:
    """How a view is reached from its base, to compare."""
    path: list[Any] = []
    while tensor._base is not None:
        path.append((tensor._detached, *((fn, *attrs.items()) for fn, attrs in tensor._chain)))
        tensor = tensor._base
    return tuple(path)


def reached(flat: Sequence[Any], guard_set: Any) -> dict[int, Any]:
    """The argument leaves that the function reaches by another way, too: place -> which tensor, and how."""
    found: dict[int, Any] = {}
    for i, x in enumerate(flat):
        if isinstance(x, Tensor):
            base = x if x._base is None else base_of(x)
            if id(base) in guard_set.tensors:
                found[i] = (id(base), path_of(x))
    return found


def _is_pure(node: Node) -> bool:
    """Whether an operation's result depends on its operands and attributes alone, and numpy has it in one step."""
    return node.fn.constant and node.fn.family not in _CALLS and not isinstance(node.fn, Bundle) and node.fn.name != "output"


class Recording:
    """One trace: what it read, what it computes, what it changes. Made while the body runs on tracers."""

    def __init__(self, name: str, device: Any, names: dict[int, str] | None = None) -> None:
        self.name, self.device = name, device
        self.names = names or {}  # what the user calls the tensors from outside, by id
        self.scalars: dict[tuple[int, str], Tensor] = {}  # attributes read as run-time scalars
        self.inputs: list[Node] = []  # placeholders, in call order
        self.sources: list[tuple[str, Any]] = []  # where a replay gets each input's value: a Place, or another kind (see Replay.run)
        self.places: dict[int, Source] = {}  # id of a tensor that came with the arguments -> where a replay finds it
        self.captured: dict[int, tuple[Tensor, Node]] = {}  # tensors from outside -> their node in here
        self.nodes: dict[int, tuple[Tensor, Node]] = {}  # tensors from outside that were changed -> new node
        self.views: dict[int, tuple[Node, Node]] = {}  # of views from outside: their base's node, and theirs
        self.grads: dict[int, tuple[Tensor, Tensor | None]] = {}  # tensors from outside -> their gradient in here
        self.present: dict[int, Tensor] = {}  # tensors from outside -> what stands for the gradient that they came with
        self.owners: dict[int, Tensor] = {}  # id of such a gradient -> the first tensor that has it
        self.no_grads: list[Source] = []  # tensors whose grad was seen to be None
        self.reached: Container[int] = ()  # ids of the tensors that the function reaches
        self.shared_grads: list[tuple[Source, ref[Tensor]]] = []  # tensors whose gradient it reaches otherwise, too, and that gradient
        self.leaves: list[tuple[Tensor, Node]] = []  # leaves from outside that were written, and the variables they became
        self.view_leaves: list[tuple[Tensor, Node]] = []  # leaves that are views of tensors from outside, and their variables
        self.adopted: dict[int, Tensor] = {}  # constants made by the body
        self.constants: dict[tuple[Aval, bytes, Any], Node] = {}  # those that the program holds, by what they are and where
        self.devices: dict[Node, Any] = {}  # of inputs (but run-time scalars, which are on any) and constants
        self.lasting: dict[int, Tensor] = {}  # tensors of tracegrad's own, which no replay finds replaced: they need no guard
        self.values: dict[Node, np.ndarray[Any, Any]] = {}  # of what is known while recording, as somebody asked: see `known`
        self.renewed: list[tuple[dict[str, Any], str, Tensor]] = []  # see `renew`
        self.versions: dict[int, tuple[Tensor, int]] = {}  # of changed tensors, before: a recording changes nothing yet
        self.freed: set[Node] = set()
        self.called: dict[Node, str] = {}  # what transforms call the values that they return
        self.hooks: list[tuple[str, dict[int, Any], int]] = []  # what registered one on a tensor from outside, the table, and the key there
        self.draws = 0  # random numbers drawn so far
        self.iteration: Node | None = None  # in the body of a loop: where its iteration's random numbers begin in the stream
        self._random: tuple[Node, Node] | None = None

    def _input(self, aval: Aval, label: str, source: tuple[str, Any]) -> Node:
        node = placeholder(aval, label)
        self.inputs.append(node)
        self.sources.append(source)
        return node

    def argument(self, index: int, leaf: Any, label: str) -> Any:
        """The tracer for argument leaf number `index`."""
        if isinstance(leaf, (float, complex)):
            dtype = float64 if isinstance(leaf, float) else complex128
            return RunTimeNumber(self._input(Aval((), dtype, True), label, ("arg", index)), self.device, self)
        self.place_argument(leaf, ("arg", index), label)
        return leaf

    def place_argument(self, tensor: Tensor, place: Source, label: str) -> None:
        """A tensor that comes with the arguments: in a replay, the one at `place` plays its part."""
        self.places[id(tensor)] = place
        self._adopt_as(tensor, self._input(tensor._node_outside().aval, label, place))

    def place(self, tensor: Tensor) -> Source:
        """Where a replay finds the tensor that plays the part of this one from outside."""
        return self.places.get(id(tensor), ("tensor", tensor))

    def knows(self, tensor: Tensor) -> bool:
        """Whether the body has used a tensor from outside."""
        return id(tensor) in self.captured or id(tensor) in self.views

    def stands_alone(self, tensor: Tensor) -> bool:
        """Whether a view from outside has a node of its own: its base is not in this trace."""
        return id(tensor) in self.captured

    def _adopt_as(self, tensor: Tensor, node: Node) -> None:
        self.devices[node] = tensor._device
        if tensor._node_outside().needs_grad:
            node = derivatives.variable(node)
            become_leaf(tensor, node)
        self.captured[id(tensor)] = (tensor, node)

    def node_of(self, tensor: Tensor) -> Node:
        """The node that stands for a tensor from outside."""
        if tensor._base is not None and id(tensor) not in self.captured:
            views = [tensor]
            base: Any = tensor._base
            while base._base is not None and base._trace is None and id(base) not in self.captured:
                views.append(base)
                base = base._base
            node = self.node_of(base) if base._trace is not self else base._node()
            for view in reversed(views):
                known = self.views.get(id(view))
                if known is None or known[0] is not node:
                    known = self.views[id(view)] = (node, self._view_leaf(view) or view._replay(node))
                node = known[1]
            return node
        changed = self.nodes.get(id(tensor))
        if changed is not None:
            return changed[1]
        if id(tensor) not in self.captured:
            if tensor._trace is not None:
                raise TraceError(
                    f"{self.name}: uses a tensor that another @trace function ({tensor._trace.name}) leaked; return it from there, "
                    "or write it to a tensor that is there with copy_()"
                )
            node = self._constant(tensor)
            if node is None:
                node = self._input(tensor._n.aval, self.names.get(id(tensor), ""), ("tensor", tensor))
            self._adopt_as(tensor, node)
        return self.captured[id(tensor)][1]

    def _view_leaf(self, view: Tensor) -> Node | None:
        """The node of a leaf that is a view, of what was not written in here yet: an input, through which derivatives go outside."""
        if view._trace is not None or view._n.fn is not _VARIABLE or id(base_of(view)) in self.nodes:
            return None
        node = self._input(view._node_outside().aval, self.names.get(id(view), ""), self.place(view))
        self.devices[node] = view._device
        leaf: Node = derivatives.variable(node)
        become_leaf(view, leaf)
        self.view_leaves.append((view, leaf))
        return leaf

    def _constant(self, tensor: Tensor) -> Node | None:
        """A small tensor that the body made of host data, as a constant of the program: a replay has nothing to hand over or to check."""
        if id(tensor) not in self.adopted or tensor._n.needs_grad or tensor._n.aval.nbytes > CONSTANT:
            return None
        found = read(tensor._n, tensor._device, True)
        key = tensor._n.aval, found.tobytes(), tensor._device
        if (known := self.constants.get(key)) is not None:
            return known                    # what a function that is called twice makes of the same numbers is the same
        attrs: dict[str, Any] = {"aval": tensor._n.aval}
        if found.size and found.dtype.kind in "iu":
            attrs["range"] = int(found.min()), int(found.max())
        self.constants[key] = node = data(tensor._n.aval, found, attrs)
        return node

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
            present: Tensor | None = tensor._grad
            if present is None:
                self.no_grads.append(self.place(tensor))
                return None
            base = base_of(present)
            if base is not present or id(present) in self.reached or id(present) in self.places:
                self.shared_grads.append((self.place(tensor), ref(present)))         # what is written to one has to be seen in the other
                self.lasting |= {id(base): base, id(present): present}
                self.grads[id(tensor)] = (tensor, present)
                return present
            if (other := self.owners.setdefault(id(present), tensor)) is not tensor:
                self.shared_grads += [(self.place(t), ref(present)) for t in (other, tensor)]
                self.present[id(tensor)] = self.present[id(other)]
                self.grads[id(tensor)] = (tensor, self.present[id(other)])
                return self.present[id(other)]
            name = self.names.get(id(tensor))
            node = self._input(present._n.aval, f"{name}.grad" if name else "", ("grad", self.place(tensor)))
            self.devices[node] = tensor._device
            self.present[id(tensor)] = Tensor(node, tensor._device, self)
            self.grads[id(tensor)] = (tensor, self.present[id(tensor)])
        return self.grads[id(tensor)][1]

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """A gradient was stored on a tensor from outside."""
        self.grads[id(tensor)] = (tensor, grad)

    def result_names(self, labels: Sequence[str], results: Sequence[Node]) -> list[str]:
        """What to call each result: as the return statement does (`labels`), else the line that made it, else the transform that did,
        else after the function."""
        own = identifier(self.name.rpartition(".")[2])
        own = "result" if own == "lambda_" else own
        names = []
        for i, (label, node) in enumerate(zip(labels, results, strict=True)):
            assigned = not node.loc.derived and assigned_name(node.loc.filename, node.loc.line) != ""
            names.append(label or self.called.get(node) or ("" if assigned else own if len(results) == 1 else f"{own}_{i}"))
        return names

    def made(self, tensor: Tensor) -> bool:
        """Whether the body made a tensor."""
        return tensor._trace is self or id(tensor) in self.adopted

    def forget(self) -> None:
        """Hold no tensor of the call that this was made in any more (but for those reached by reference, which are guarded)."""
        for table in (self.captured, self.called, self.nodes, self.views, self.grads, self.present, self.owners, self.lasting, self.leaves,
                      self.view_leaves):
            table.clear()

    def hooks_left(self) -> str:
        """Take away the hooks that the body left on tensors from outside; what registered the first of them ("": none is left)."""
        left = [call for call, hooks, key in self.hooks if hooks.pop(key, None) is not None]
        return left[0] if left else ""

    def renew(self, owner: dict[str, Any], name: str, tensor: Tensor) -> None:
        """Put a constant where another tensor was, for good and not as something that the body does."""
        owner[name] = tensor
        self.adopted.pop(id(tensor), None)
        self.renewed.append((owner, name, tensor))

    def adopt(self, tensor: Tensor) -> None:
        """A constant that the body made from host data."""
        self.adopted[id(tensor)] = tensor

    def known(self, tensor: Tensor) -> np.ndarray[Any, Any] | None:
        """The values (a read-only array) of what the body computed of its own constants: they are those of every replay. None of anything

        else: of what depends on arguments, tensors from outside, random draws, loops or calls of a user's.
        """
        if not self.made(tensor):
            return None
        if id(tensor) in self.adopted and id(tensor) not in self.nodes and tensor._base is None:
            return read(tensor._n, tensor._device, True)
        node = tensor._node()
        if node in self.values:
            return self.values[node]
        constants = {self.captured[i][1]: t for i, t in self.adopted.items() if i in self.captured}
        order = topological((node,), self.values.__contains__)
        if not all(n in self.values or n in constants or _is_pure(n) for n in order):
            return None
        found = dict(self.values)
        with np.errstate(all="ignore"):
            for n in order:
                if n in constants:
                    found[n] = read(constants[n]._n, constants[n]._device, True)
                elif n not in found:
                    found[n] = evaluate(n, [found[o] for o in n.operands])
                    if n.fn.reports and any(n.fn.excess(found[n.operands[0]], n)):  # type: ignore[attr-defined]
                        return None                        # an index out of range, say: the kernels tell
        value: np.ndarray[Any, Any] = found[node].view()
        value.flags.writeable = False
        self.values[node] = value
        return value

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
        if self.iteration is not None:
            offset = self.iteration
        start = offset + self.draws if self.draws else offset
        self.draws += count
        return seed, start
