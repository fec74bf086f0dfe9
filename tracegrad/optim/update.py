"""A step of an optimizer, recorded once as a Program and recalled from then on: `update`.

Untraced, a step would make a dozen nodes a parameter at every iteration, always the same ones. So it is recorded as a trace would
record it, with the learning rate as a run-time scalar. A later step of the same structure (`Step`) runs the same Program on present values:
it does not matter whose parameters they are. See execute/program.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.config import config
from tracegrad.execute.deferred import flush
from tracegrad.execute.program import Recipe, recipes
from tracegrad.execute.realize import Work, lock
from tracegrad.graph.canonical import Key, resolve
from tracegrad.graph.ir import own_leaves
from tracegrad.graph.primitive import data, renewed
from tracegrad.graph.substitution import HOOKS
from tracegrad.support import dtypes
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor
from tracegrad.tracing.recording import Recording

if TYPE_CHECKING:
    from tracegrad.optim.optimizer import Optimizer
    from tracegrad.optim.param_group import ParamGroup

_RUN_TIME = {"_lr": 0, "_momentum": 1, "_beta1": 2}         # options that a Program reads anew, when they are numbers


class _Update(Recipe):
    """How to make a step of one structure. effects: the numbers of the tensors that get new values."""

    __slots__ = ("effects",)
    effects: list[int]


class Step:
    """What the update of `params` depends on: a group's parameters on one device that have gradients.

    tensors: options, and each parameter, its gradient and its state; their positions are their numbers. number: by identity, the last of
    these. key: what tells the structure; None where the step cannot be a Program. It tells which tensors are one, not which they are.
    """

    __slots__ = ("device", "group", "key", "nodes", "number", "tensors")

    def __init__(self, optimizer: Optimizer, group: ParamGroup, params: Sequence[Tensor]) -> None:
        self.group, self.device = group, params[0]._device
        self.tensors: list[Any] = []
        self.number: dict[int, int] = {}
        self.key = self._follow(optimizer, params)

    def _follow(self, optimizer: Optimizer, params: Sequence[Tensor]) -> Key | None:
        """The key. (A hot path: a loop over the parameters, and comprehensions over all tensors.)"""
        defaults, states, device, tensors = optimizer.defaults, optimizer.state, self.device, self.tensors
        parts: list[Any] = [type(optimizer), device, config.eager, dtypes.get_default_dtype()]
        for name, value in vars(self.group).items():
            if isinstance(value, Tensor):
                parts.append(name)
                tensors.append(value)
            elif name in _RUN_TIME:
                parts.append(name)
            elif name in defaults or name == "_beta2":
                parts += (name, tuple(value) if type(value) is list else value)
        for p in params:
            grad, mine = p._grad, states.get(p) or {}
            if grad is None or grad._n.needs_grad or p._n.aval.dtype.kind == "c":
                return None
            parts.append(tuple(mine))
            tensors += (p, grad, *mine.values())
        try:
            if [x for x in tensors if x._base is not None or x._device is not device]:
                return None
            self.nodes = [x._n for x in tensors]
            parts += [node.aval for node in self.nodes]
            own = list(map(id, tensors))
            number = self.number = dict(zip(own, range(len(own)), strict=True))
            parts += map(number.__getitem__, own)
            return Key(tuple(parts))
        except (AttributeError, TypeError):         # a state that is no tensor, an option that has no hash
            return None

    def _values(self) -> list[Any]:
        return [resolve(node).value if node.value is None else node.value for node in self.nodes]

    def record(self, optimizer: Optimizer, params: list[Tensor]) -> _Update | None:
        """The recipe of such a step; None where it is not a function of what was walked over."""
        recording = Recording("step", self.device)
        state.trace = recording
        try:
            with own_leaves():
                optimizer._update(self.group, params)
        finally:
            state.trace = None
        inputs: list[int] = []
        for kind, what in recording.sources:
            if kind == "attribute" and what[0] is self.group:
                inputs.append(len(self.tensors) + _RUN_TIME["_" + what[1]])
                continue
            tensor = what if kind == "tensor" else what[1]._grad if kind == "grad" else None
            if id(tensor) not in self.number:
                return None
            inputs.append(self.number[id(tensor)])
        changed = [(self.number.get(id(tensor)), node) for tensor, node in recording.nodes.values()]
        own = all(g is recording.present.get(id(t)) for t, g in recording.grads.values())
        if not own or not changed or any(at is None for at, _ in changed):
            return None
        work = Work([resolve(node) for _, node in changed], self.device, inputs=recording.inputs)
        recipe = _Update(work.program, inputs, work.constants, [leaf.value for leaf in work.leaves[len(inputs):]])
        recipe.effects = [at for at, _ in changed if at is not None]
        return recipe

    def run(self, recipe: _Update) -> bool:
        """Make the step; False, and nothing is done, where a value cannot be had."""
        if None in (values := self._values()):
            flush()
            values = self._values()
        options, tensors = vars(self.group), self.tensors
        values += [options.get(name) for name in _RUN_TIME]
        given = [values[i] for i in recipe.inputs]
        if None in given:
            return False
        for at, value in zip(recipe.effects, recipe.run(given), strict=True):
            tensor = tensors[at]
            node = tensor._n
            if node.needs_grad:
                tensor._n = renewed(node, value)
                if tensor._hooks is not None:
                    HOOKS[tensor._n] = tensor._hooks
            else:
                tensor._n = data(node.aval, value)
            tensor._versions += 1
        return True


def update(optimizer: Optimizer, group: ParamGroup, params: list[Tensor]) -> bool:
    """Update the parameters as `optimizer._update` would, by a Program, if that can be done. Under no_grad."""
    if not (state.plain and params) or not type(optimizer).__module__.startswith(__package__):
        return False
    with lock:
        step = Step(optimizer, group, params)
        recipe = recipes[step.key] if config.recall and step.key is not None else None
        if recipe is None:
            optimizer._tg_prepare(group, params)
            optimizer._before_update(group, params)
            step = Step(optimizer, group, params)
            if step.key is None:
                return False
            recipe = step.record(optimizer, params) or False
            if config.recall:
                recipes[step.key] = recipe
        else:
            recipes.hits += 1
            if len(params) < len(group["params"]):
                optimizer._before_update(group, params)         # what those that stay behind share is no part of the key
        return isinstance(recipe, _Update) and step.run(recipe)
