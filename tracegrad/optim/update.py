"""A step of an optimizer, recorded once as a Program and run on present values from then on: `Update`.

Untraced, a step would make a dozen nodes a parameter at every iteration, always the same ones. So it is recorded as a trace would
record it, with the learning rate as a run-time scalar. A later step runs the same Program, if the same parameters have gradients, and
hyperparameters and state are what they were. Otherwise it is recorded anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.autodiff.substitution import HOOKS
from tracegrad.config import config
from tracegrad.execute.deferred import flush
from tracegrad.execute.realize import Work, lock
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import own_leaves
from tracegrad.graph.primitive import data, renewed
from tracegrad.support.cache import listed
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor
from tracegrad.tracing.recording import Recording

if TYPE_CHECKING:
    from tracegrad.optim.optimizer import Optimizer
    from tracegrad.optim.param_group import ParamGroup

_RUN_TIME = ("params", "_lr", "_momentum", "_beta1")
_updates: weakref.WeakKeyDictionary[Optimizer, dict[Any, Update]] = listed("steps of optimizers", weakref.WeakKeyDictionary())


class Update:
    """The update of `params`, a group's parameters on one device that have gradients, by optimizer._update.

    sources: where the inputs come from, (tensor, None), (parameter whose gradient it is, aval) or (object, name of its attribute).
    effects: the tensors that get new values. program: what makes them, with its numbers; constants: its inputs after those.
    """

    def __init__(self, optimizer: Optimizer, group: ParamGroup, params: list[Tensor]) -> None:
        self.group, self.params, self.options = group, params, _options(group)
        self.states = [(mine, tuple(mine.items())) for mine in (optimizer.state[p] for p in params)]
        device = params[0]._device
        recording = Recording("step", device)
        state.trace = recording
        try:
            with own_leaves():
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
        if self.usable:
            work = Work([resolve(node) for _, node in recording.nodes.values()], device, inputs=self.inputs)
            self.program, self.numbers = work.program, work.constants
            self.constants = [leaf.value for leaf in work.leaves[len(self.inputs):]]

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

    def run(self) -> bool:
        """Make the step; False, and nothing is done, where that cannot be done by a Program."""
        values = self.values() if self.usable else None
        if values is None:
            return False
        with lock:
            results = self.program.run([*values, *self.constants], self.numbers)
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


def _options(group: ParamGroup) -> dict[str, Any]:
    """The hyperparameters that a step depends on otherwise than by their value at run time."""
    return {name: id(value) if isinstance(value, Tensor) else value for name, value in vars(group).items()
            if name not in _RUN_TIME or isinstance(value, Tensor)}


def update(optimizer: Optimizer, group: ParamGroup, params: list[Tensor]) -> bool:
    """Update the parameters as `optimizer._update` would, by a Program, if that can be done. Under no_grad."""
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
    return found.run()


def _is_plain(p: Tensor) -> bool:
    grad = p._grad
    return p._base is None and p.dtype.kind != "c" and grad is not None and grad._base is None and not grad._n.needs_grad
