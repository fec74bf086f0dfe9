"""Optimizers with torch's names and meanings: `SGD`, `Adam`, `AdamW`, and a few learning-rate schedulers. Start at `Optimizer.step`.

A step is made of in-place operations on tensors under no_grad. So in a traced step it fuses with the backward that gave the gradients,
and outside it is deferred work like any other. In a trace the learning rate is a run-time number, read from its group at every
replay: changing it compiles nothing. The other hyperparameters are static: changing one records the step again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracegrad.compile import read, resolve
from tracegrad.errors import ArgumentError, TraceError, TracegradError
from tracegrad.modes import enable_grad, no_grad, state
from tracegrad.tensor import Tensor, from_array


class ParamGroup(MutableMapping[str, Any]):
    """Parameters and their hyperparameters: `group["lr"]` and `group.lr` are the same. `group["params"]` is the list of tensors.

    Inside @trace, reading `lr` gives a 0-d tensor that stands for its value at each replay.
    """

    _trace_all_attributes = True                    # a traced step watches all of it ...
    _trace_by_reference = ("_lr",)                  # ... but reads this one anew at every replay

    def __init__(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            self[name] = value

    @property
    def lr(self) -> Any:
        """The learning rate: a float; inside @trace a 0-d tensor."""
        return self._lr if state.trace is None else state.trace.scalar(self, "lr")

    @lr.setter
    def lr(self, value: Any) -> None:
        if state.trace is not None:
            raise TraceError(f"lr: the learning rate was set inside @trace ({state.trace.name}), where only the first call would do it; "
                             "set it (or step the scheduler) outside, the traced step reads it at every call")
        if isinstance(value, (Tensor, bool)) or not isinstance(value, (int, float, np.number)):
            raise ArgumentError(f"lr: must be a Python number, got {type(value).__name__}; it is a run-time value in traced steps anyway")
        if not value >= 0:
            raise ArgumentError(f"lr: must not be negative, got {value}")
        self._lr = float(value)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__ or (name == "lr" and "_lr" in self.__dict__)

    def __iter__(self) -> Iterator[str]:
        return iter([name.removeprefix("_") for name in self.__dict__])

    def __len__(self) -> int:
        return len(self.__dict__)

    def __repr__(self) -> str:
        return f"ParamGroup({', '.join(f'{k}={v}' for k, v in self.items() if k != 'params')}, {len(self['params'])} params)"


class Optimizer:
    """Base of optimizers. A subclass gives `_update(group, params)`, and `_new_state(group, p)` if it keeps tensors for a parameter.

    params: tensors that require grad, or mappings with "params" and options of their own. Raises ArgumentError for anything else.
    """

    _trace_all_attributes = True

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.param_groups: list[ParamGroup] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        try:
            if isinstance(params, Tensor):
                raise ArgumentError("params: expected an iterable of tensors or of groups, got one Tensor; pass [tensor]")
            given = list(params)
            if not given:
                raise ArgumentError("params: the optimizer got no parameters; was model.parameters() consumed before?")
            for group in given if isinstance(given[0], Mapping) else [{"params": given}]:
                self.add_param_group(group)
        except TracegradError as error:
            error.called(type(self).__name__)
            raise

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Optimize more parameters: a mapping with "params" and any options that differ from the defaults."""
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise ArgumentError(f"params: expected Tensors, got {type(p).__name__}")
            if not p.is_leaf:
                raise ArgumentError(f"params: a tensor of shape {p.shape} is not a leaf; optimize the tensor that it was computed from")
            if id(p) in known:
                raise ArgumentError(f"params: a tensor of shape {p.shape} is given twice")
            known.add(id(p))
        self.param_groups.append(ParamGroup({**self.defaults, **group, "params": params}))
        self._check(self.param_groups[-1])
        self._prepare(self.param_groups[-1], params)

    @property
    def lr(self) -> Any:
        """The learning rate of the first group; setting it sets that of all groups."""
        return self.param_groups[0].lr

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group.lr = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                clear_grad(p, set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. closure: computes the loss and its gradients anew; its result is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                params = [p for p in group["params"] if p.grad is not None]
                self._prepare(group, params)
                self._update(group, params)
        return loss

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        raise NotImplementedError

    def _check(self, group: ParamGroup) -> None:
        """Raise ArgumentError for hyperparameters that make no sense."""

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {}

    def _prepare(self, group: ParamGroup, params: list[Tensor]) -> None:
        """Make what the state lacks. It is made before the first step, so that a traced step finds it and looks alike from then on."""
        for p in params:
            present = self.state.get(p)
            if present is None:
                present = self.state[p] = {}
            for name, value in self._new_state(group, p).items():
                if name not in present:
                    present[name] = value() if callable(value) else value

    # ---------------------------------------------------------------------------------------------- saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later run needs to go on: {"state": {number: {...}}, "param_groups": [...]}; parameters are numbers in it."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": [numbers[id(p)] for p in group["params"]]})
        return {"state": {numbers[id(p)]: dict(s) for p, s in self.state.items() if s}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, into the tensors that are there. Raises ArgumentError where groups or shapes differ."""
        saved = state_dict["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ArgumentError(f"load_state_dict: groups of {[len(g['params']) for g in saved]} parameters do not fit "
                                f"{[len(g['params']) for g in self.param_groups]}")
        for group, other in zip(self.param_groups, saved, strict=True):
            for name, value in other.items():
                if name != "params":
                    group[name] = value
            for p, number in zip(group["params"], other["params"], strict=True):
                for name, value in state_dict["state"].get(number, {}).items():
                    self._load(p, name, value)
            self._prepare(group, group["params"])

    def _load(self, p: Tensor, name: str, value: Any) -> None:
        array = np.asarray(value)
        present = self.state.setdefault(p, {}).get(name)
        if isinstance(present, Tensor) and present.shape != array.shape:
            raise ArgumentError(f"load_state_dict: {name} has shape {array.shape}, expected {present.shape}")
        # A tensor of its own in any case: what was shared (a step count) may differ from now on.
        dtype = present.dtype if isinstance(present, Tensor) else array.dtype
        self.state[p][name] = from_array(array.astype(dtype), p.device)

    def _trace_names(self, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
        """What to call the state tensors in generated code, given what the parameters are called."""
        for i, (p, mine) in enumerate(self.state.items()):
            for key, value in mine.items():
                if isinstance(value, Tensor):
                    yield (key if value.ndim == 0 else f"{names.get(id(p), f'p{i}')}.{key}"), value

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += [f"Parameter Group {i}", *(f"    {k}: {group[k]}" for k in sorted(group) if k != "params")]
        return "\n".join([*lines, ")"])


def clear_grad(p: Tensor, set_to_none: bool) -> None:
    """Forget a gradient, or make it zeros."""
    if set_to_none:
        p.grad = None
    elif p.grad is not None:
        grad = p.grad.detach_() if p.grad.requires_grad else p.grad
        grad.zero_()


def _zeros_like(p: Tensor) -> Callable[[], Tensor]:
    # Uploaded rather than computed: the tensor is made at once, also when the first step runs inside a trace.
    return lambda: from_array(np.zeros(p.shape, p.dtype), p.device)


def _at_least(what: str, value: float, low: float = 0.0) -> None:
    if not value >= low:
        raise ArgumentError(f"{what}: must be at least {low}, got {value}")


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Nesterov's if asked for), as torch.optim.SGD.

    >>> opt = tg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, *, maximize: bool = False) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
                                      maximize=maximize))

    def _check(self, group: ParamGroup) -> None:
        _at_least("momentum", group["momentum"])
        _at_least("weight_decay", group["weight_decay"])
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ArgumentError("nesterov: needs a momentum above 0 and no dampening")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        if not group["momentum"]:
            return {}
        # The first gradient is not dampened: only where there is dampening does it matter which step this is.
        first = {"started": lambda: from_array(np.zeros((), p.dtype), p.device)} if group["dampening"] else {}
        return {"momentum_buffer": _zeros_like(p), **first}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        momentum, dampening, weight_decay, lr = group["momentum"], group["dampening"], group["weight_decay"], group["lr"] if params else 0.0
        for p in params:
            d: Any = p.grad
            if group["maximize"]:
                d = -d
            if weight_decay:
                d = d + p * weight_decay
            if momentum:
                mine = self.state[p]
                buffer = mine["momentum_buffer"]
                share = d
                if dampening:
                    share = d * (1.0 - mine["started"] * dampening)
                    mine["started"].fill_(1.0)
                buffer.copy_(buffer * momentum + share)
                d = d + buffer * momentum if group["nesterov"] else buffer
            p.sub_(d * lr)


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), as torch.optim.Adam; weight decay is added to the gradient.

    >>> opt = tg.optim.Adam(model.parameters(), lr=1e-3)
    """

    _decoupled = False

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False) -> None:
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize))

    def _check(self, group: ParamGroup) -> None:
        _at_least("eps", group["eps"])
        _at_least("weight_decay", group["weight_decay"])
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise ArgumentError(f"betas: must be at least 0 and below 1, got {group['betas']}")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        new = {"exp_avg": _zeros_like(p), "exp_avg_sq": _zeros_like(p)}
        return {**new, "max_exp_avg_sq": _zeros_like(p)} if group["amsgrad"] else new

    def _prepare(self, group: ParamGroup, params: list[Tensor]) -> None:
        """Parameters that begin together share one step count, so that a step counts once and not once per parameter."""
        super()._prepare(group, params)
        counts: dict[Any, Tensor] = {}
        for p in params:
            if "step" not in self.state[p]:
                dtype = np.float64 if p.dtype == np.float64 else np.float32
                key = (dtype, id(p.device))
                if key not in counts:
                    counts[key] = from_array(np.zeros((), dtype), p.device)
                self.state[p]["step"] = counts[key]

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        self._split_counts(group, params)
        (beta1, beta2), eps, weight_decay, lr = group["betas"], group["eps"], group["weight_decay"], group["lr"]
        corrections: dict[int, tuple[Any, Any]] = {}
        for p in params:
            mine = self.state[p]
            count = mine["step"]
            if id(count) not in corrections:
                count.add_(1.0)
                corrections[id(count)] = (lr / _correction(count, beta1), _correction(count, beta2) ** 0.5)
            rate, root = corrections[id(count)]
            g: Any = p.grad
            if group["maximize"]:
                g = -g
            if weight_decay and self._decoupled:
                p.mul_(1.0 - lr * weight_decay)
            elif weight_decay:
                g = g + p * weight_decay
            mean, square = mine["exp_avg"], mine["exp_avg_sq"]
            mean.copy_(mean + (g - mean) * (1.0 - beta1))
            square.copy_(square * beta2 + g * g * (1.0 - beta2))
            if group["amsgrad"]:
                mine["max_exp_avg_sq"].copy_(mine["max_exp_avg_sq"].maximum(square))
                square = mine["max_exp_avg_sq"]
            p.sub_(mean / (square.sqrt() / root + eps) * rate)

    def _split_counts(self, group: ParamGroup, params: list[Tensor]) -> None:
        """Give the parameters that stay behind in this step (they have no gradient) a count of their own."""
        stepping = {id(p) for p in params}
        counts = {id(self.state[p]["step"]) for p in params}
        copies: dict[int, Tensor] = {}
        for p in group["params"]:
            count: Tensor = self.state[p]["step"]
            if id(p) in stepping or id(count) not in counts:
                continue
            if state.trace is not None and id(count) in state.trace.nodes:
                raise TraceError(f"step: other parameters have gradients in this step than in an earlier one of the same trace "
                                 f"({state.trace.name}); give them param_groups of their own")
            if id(count) not in copies:
                copies[id(count)] = from_array(read(resolve(count._node_outside()), count.device), count.device)
            self.state[p]["step"] = copies[id(count)]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for group in self.param_groups:             # equal counts are one count again
            shared: dict[Any, Tensor] = {}
            for p in group["params"]:
                count = self.state[p]["step"]
                key = (count.item(), count.dtype, id(count.device))
                self.state[p]["step"] = shared.setdefault(key, count)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW: parameters shrink by lr * weight_decay.

    >>> opt = tg.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    """

    _decoupled = True

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


def _correction(count: Tensor, beta: float) -> Any:
    """1 - beta ** count, exact to the last digits also where beta is near 1."""
    return 1.0 if beta == 0 else -(count * math.log(beta)).expm1()


# ------------------------------------------------------------------------------------------------- learning-rate schedulers


class LRScheduler:
    """Base of schedulers: `step()` once per epoch sets the learning rate of every group. A subclass gives `rate(base, epoch, group)`."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = optimizer, last_epoch
        for group in optimizer.param_groups:
            if "initial_lr" not in group:
                group["initial_lr"] = group["lr"]
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    def rate(self, base: float, epoch: int, group: int) -> float:
        """The learning rate of a group in an epoch, from the one it began with."""
        raise NotImplementedError

    def step(self) -> None:
        """Go on to the next epoch."""
        self.last_epoch += 1
        for i, (group, base) in enumerate(zip(self.optimizer.param_groups, self.base_lrs, strict=True)):
            group["lr"] = self.rate(base, self.last_epoch, i)

    def get_last_lr(self) -> list[float]:
        """The present learning rates, one per group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs (functions are left out)."""
        return {k: v for k, v in vars(self).items() if k != "optimizer" and not callable(v) and k != "lr_lambdas"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        vars(self).update(state_dict)


class StepLR(LRScheduler):
    """The learning rate times `gamma` every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int, group: int) -> float:
        return float(base * self.gamma ** (epoch // self.step_size))


class CosineAnnealingLR(LRScheduler):
    """From the initial learning rate to `eta_min` over `T_max` epochs, along half a cosine (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int, group: int) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2


class LambdaLR(LRScheduler):
    """The initial learning rate times `lr_lambda(epoch)` (one function, or one per group)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        self.lr_lambdas = lr_lambda if isinstance(lr_lambda, list) else [lr_lambda] * len(optimizer.param_groups)
        if len(self.lr_lambdas) != len(optimizer.param_groups):
            raise ArgumentError(f"LambdaLR: {len(self.lr_lambdas)} functions for {len(optimizer.param_groups)} groups")
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int, group: int) -> float:
        return base * self.lr_lambdas[group](epoch)


lr_scheduler = SimpleNamespace(LRScheduler=LRScheduler, StepLR=StepLR, CosineAnnealingLR=CosineAnnealingLR, LambdaLR=LambdaLR)

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "ParamGroup", "lr_scheduler"]
