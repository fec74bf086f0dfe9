"""A step of an optimizer, recorded once and made with present values from then on: `Update`.

Untraced, a step would make a dozen nodes a parameter at every turn of a loop, always the same ones. So it is recorded as a trace would
record it, with the learning rate as a run-time number, and done at once; a later step calls the same program, if the same parameters have
gradients, and hyperparameters and state are what they were. Otherwise it is recorded anew.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegrad.autodiff.derivatives import HOOKS
from tracegrad.config import config
from tracegrad.execute import policy
from tracegrad.execute.compile import Work, compute
from tracegrad.execute.deferred import flush
from tracegrad.graph.canonical import resolve
from tracegrad.graph.primitive import data, renewed
from tracegrad.numpy_backend.numpy_program import Routine
from tracegrad.runtime.buffer import hold
from tracegrad.support.cache import listed
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor, from_array
from tracegrad.tracing.recording import Recording

if TYPE_CHECKING:
    from tracegrad.optim.optimizer import Optimizer
    from tracegrad.optim.param_group import ParamGroup

_RUN_TIME = ("params", "_lr", "_momentum", "_beta1")
FLAT = 1 << 20          # bytes of parameters; beyond, an operation takes longer than a call, and an old value of one would keep too much
_updates: weakref.WeakKeyDictionary[Optimizer, dict[Any, Update]] = listed("steps of optimizers", weakref.WeakKeyDictionary())


class Update:
    """The update of `params`, a group's parameters on one device that have gradients, by optimizer._update.

    sources: where the inputs come from, (tensor, None), (parameter whose gradient it is, aval) or (object, name of its attribute).
    effects: the tensors that get new values.
    """

    def __init__(self, optimizer: Optimizer, group: ParamGroup, params: list[Tensor]) -> None:
        self.group, self.params, self.options = group, params, _options(group)
        self.states = [(mine, tuple(mine.items())) for mine in (optimizer.state[p] for p in params)]
        device = params[0]._device
        recording = Recording("step", device)
        state.trace = recording
        try:
            optimizer._update(group, params)
        finally:
            state.trace = None
        self.sources = recording.sources
        self.effects = [tensor for tensor, _ in recording.nodes.values()]
        own = all(g is recording.present.get(id(t)) for t, g in recording.grads.values())
        kinds = {kind for kind, _ in self.sources}
        plain = all(what._base is None for kind, what in self.sources if kind == "tensor")
        self.usable = bool(own and plain and kinds <= {"tensor", "grad", "attribute"} and self.effects)
        self.inputs = recording.inputs
        self.work = Work([resolve(node) for _, node in recording.nodes.values()], device, inputs=self.inputs) if self.usable else None
        self.flat: _Flat | None = None

    def fits(self, group: ParamGroup, params: Sequence[Tensor], states: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Whether a step of these parameters is this one."""
        if group is not self.group or len(params) != len(self.params) or _options(group) != self.options:
            return False
        for p, known, (mine, items) in zip(params, self.params, self.states, strict=True):
            if p is not known or states.get(p) is not mine or len(mine) != len(items):
                return False
            for name, value in items:
                if mine.get(name) is not value:
                    return False
        return True

    def values(self) -> list[Any] | None:
        """The present values of the inputs; None where a tensor is not as it was when the update was recorded."""
        found: list[Any] = []
        for (kind, what), node in zip(self.sources, self.inputs, strict=True):
            if kind == "attribute":
                found.append(float(getattr(*what)))
                continue
            tensor = what if kind == "tensor" else what[1]._grad
            if tensor._base is not None or (kind == "grad" and tensor._n.needs_grad) or tensor._n.aval is not node.aval:
                return None
            value = resolve(tensor._n).value
            if value is None:
                flush()
                value = resolve(tensor._n).value
                if value is None:
                    return None
            found.append(value)
        return found

    def run(self, optimizer: Optimizer) -> bool:
        """Make the step; False, and nothing is done, where that cannot be done at once."""
        values = self.values() if self.usable else None
        if values is None or self.work is None:
            return False
        results, seen = None, policy.known(self.work.key, self.work.order, self.work.device)
        if config.recall and seen.numpy_next:
            if self.flat is None:
                self.flat = _Flat(optimizer, self)
            results = self.flat(values) if self.flat.usable else None
        if results is not None:
            seen.note(self.work.values, self.work.constants)
            policy.count("interpreted")
        else:
            results = compute(self.work, self.inputs, values)
        for tensor, value in zip(self.effects, results, strict=True):
            node = tensor._n
            if node.needs_grad:
                tensor._n = renewed(node, value)
                if tensor._hooks is not None:
                    HOOKS[tensor._n] = tensor._hooks
            else:
                tensor._n = data(node.aval, value)
            tensor._versions += 1
        return True


class _Flat:
    """The same update by numpy, of all parameters end to end: where an optimizer's operations are elementwise, as a call of numpy takes
    longer than a small parameter does.

    It is recorded of one parameter, gradient and state that stand for all. What it gives are parts of one array, and where these
    are what comes in next time, nothing has to be put together. inputs: for each input of this recording the numbers of those of the update
    that are its parts, or of the one that is the same for all; effects: the same of what is changed.
    """

    def __init__(self, optimizer: Optimizer, update: Update) -> None:
        params, device, self.usable = update.params, update.params[0]._device, False
        first, names = params[0], [name for name, _ in update.states[0][1]]
        size = sum(p.numel() for p in params)
        if not optimizer._elementwise or not 1 < len(params) or size * first.element_size() > FLAT:
            return
        if any(p.dtype != first.dtype for p in params):
            return
        if any([name for name, _ in items] != names for _, items in update.states):
            return
        whole, gradient, *others = [from_array(np.zeros(size, first.dtype), device) for _ in range(2 + len(names))]
        place: dict[int, tuple[Any, int]] = {id(whole): ("", 0), **{id(p): ("", i) for i, p in enumerate(params)}}
        mine: dict[str, Tensor] = {}
        for k, (name, other) in enumerate(zip(names, others, strict=True)):
            tensors = [items[k][1] for _, items in update.states]
            if all(t is tensors[0] for t in tensors):
                mine[name] = tensors[0]
            elif all(t.shape == p.shape and t.dtype == p.dtype for t, p in zip(tensors, params, strict=True)):
                mine[name] = other
                place.update({id(other): (name, 0), **{id(t): (name, i) for i, t in enumerate(tensors)}})
            else:
                return
        whole.requires_grad_(first.requires_grad)
        whole._grad = gradient
        real, optimizer.state = optimizer.state, {whole: mine}
        recording = Recording("step", device)
        state.trace = recording
        try:
            optimizer._update(update.group, [whole])
        finally:
            state.trace, optimizer.state = None, real

        def numbered(kind: str, what: Any) -> tuple[Any, int]:
            if kind == "attribute":
                return (kind, what[1]), 0
            tensor = what[1] if kind == "grad" else what
            name, i = place.get(id(tensor), (id(tensor), 0))
            return (kind, name), i

        def parts(whole: Sequence[tuple[str, Any]], of: Sequence[tuple[str, Any]]) -> list[list[int]]:
            """For each of `whole` the numbers of its parts in `of`."""
            found: dict[Any, list[int]] = {}
            for _, number, name in sorted([(numbered(*o)[1], number, numbered(*o)[0]) for number, o in enumerate(of)], key=lambda o: o[:2]):
                found.setdefault(name, []).append(number)
            return [found.get(numbered(*w)[0], []) for w in whole]

        self.inputs = parts(recording.sources, update.sources)
        changed = [("tensor", t) for t, _ in recording.nodes.values()]
        self.effects = parts(changed, [("tensor", t) for t in update.effects])
        work = Work([resolve(node) for _, node in recording.nodes.values()], device, inputs=recording.inputs)
        self.constants = [n.attrs["value"] for n in work.constants]
        self.device, self.count = device, len(update.effects)
        self.avals, self.shapes = [node.aval for node in update.inputs], [p.shape for p in params]
        self.cuts = np.cumsum([0, *(p.numel() for p in params)]).tolist()
        self.routine = Routine(work.order, work.places, work.ends)
        self.last: list[tuple[list[Any], Any]] = []                    # what was made: parts, and the whole
        self.usable = (all(n.aval.shape in ((), whole.shape) for n in work.order)
                       and all(len(numbers) in (1, len(params)) for numbers in (*self.inputs, *self.effects))
                       and sum(map(len, self.effects)) == self.count)

    def __call__(self, values: list[Any]) -> list[Any] | None:
        """The update's results, from the values of its inputs; None where that has to be done at length."""
        arrays = []
        for places in self.inputs:
            parts = [values[i] for i in places]
            if len(parts) == 1:
                aval, value = self.avals[places[0]], parts[0]
                if not aval.weak and value.suspicions:
                    return None
                arrays.append(np.asarray(value, aval.dtype) if aval.weak else value.contents(aval.shape, aval.dtype))
                continue
            for known, whole in self.last:
                if all(map(operator.is_, known, parts)):
                    arrays.append(whole)
                    break
            else:
                if any(value.suspicions for value in parts):
                    return None
                arrays.append(np.concatenate([value.contents(a.shape, a.dtype).reshape(-1)
                                              for value, a in zip(parts, [self.avals[i] for i in places], strict=True)]))
        found = self.routine.flat(arrays, self.constants)
        if found is None:
            return None
        results: list[Any] = [None] * self.count
        self.last = []
        for places, array in zip(self.effects, found, strict=True):
            if len(places) == 1:
                results[places[0]] = hold(self.device, np.array(array))
                continue
            parts = [hold(self.device, array[a:b].reshape(shape))
                     for a, b, shape in zip(self.cuts, self.cuts[1:], self.shapes, strict=False)]
            self.last.append((parts, array))
            for i, value in zip(places, parts, strict=True):
                results[i] = value
        return results


def _options(group: ParamGroup) -> dict[str, Any]:
    """The hyperparameters that a step depends on otherwise than by their value at run time."""
    return {name: id(value) if isinstance(value, Tensor) else value for name, value in vars(group).items()
            if name not in _RUN_TIME or isinstance(value, Tensor)}


def update(optimizer: Optimizer, group: ParamGroup, params: list[Tensor]) -> bool:
    """Update the parameters as `optimizer._update` would, at once, if it can be done so. Under no_grad."""
    if not (state.plain and params):
        return False
    known = _updates.setdefault(optimizer, {}) if config.recall else {}
    key = id(group), params[0]._device
    found = known.get(key)
    if found is None or not found.fits(group, params, optimizer.state):
        optimizer._prepare(group, params)
        if not type(optimizer).__module__.startswith(__package__) or not all(map(_is_plain, params)):
            return False
        optimizer._before_update(group, params)
        found = known[key] = Update(optimizer, group, params)
    return found.run(optimizer)


def _is_plain(p: Tensor) -> bool:
    grad = p._grad
    return p._base is None and p.dtype.kind != "c" and grad is not None and grad._base is None and not grad._n.needs_grad
