"""torch.optim's steps as functions of lists (`adam`, `sgd`, ...), which torch has beside each class: start at `_step`.

Each makes the step of the class with the state that it is given, whose tensors it writes. Where torch.optim.Adam and the others step is
tracegrad.optim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

from tracegrad.errors import ArgumentTypeError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from tracegrad.optim.adaptive import Adadelta, Adagrad, RMSprop
from tracegrad.optim.sgd import ASGD, SGD, Rprop

# How a step is done in torch, which changes nothing here.
_IMPLEMENTATION = ("foreach", "capturable", "differentiable", "fused", "grad_scale", "found_inf", "has_complex", "has_sparse_grad")


def _step(name: str, kind: Any, params: Sequence[Any], grads: Sequence[Any], state: dict[str, Any], options: dict[str, Any]) -> None:
    """Make the step of `kind` for params, whose gradients are grads. state: lists of tensors, by the names that the class has for them.

    Raises ShapeError where the lists' lengths differ, ArgumentTypeError for options that the class does not have.
    """
    for what, values in {"grads": grads, **state}.items():
        if len(values) != len(params):
            raise ShapeError(f"{name}: {what} has {len(values)} tensors for {len(params)} params; give one for each")
    options = {key: value for key, value in options.items() if key not in _IMPLEMENTATION}
    if not params:
        return
    leaves = [p if p.is_leaf else p.detach() for p in params]
    optimizer = kind(leaves, **options)
    if unknown := [key for key in options if key not in optimizer.defaults]:
        raise ArgumentTypeError(f"{name}: got an unexpected argument {unknown[0]!r}; it takes {', '.join(optimizer.defaults)}")
    before = [p.grad for p in leaves]
    try:
        for number, (p, grad) in enumerate(zip(leaves, grads, strict=True)):
            p.grad = grad.detach()
            optimizer.state[p].update({key: values[number] for key, values in state.items()})
        unwrap(kind.step)(optimizer)                        # without the hooks of optimizers
    finally:
        for p, grad in zip(leaves, before, strict=True):
            p.grad = grad


def _moments(name: str, kind: Any, *lists: str) -> Callable[..., None]:
    """A step whose lists have these names in the state, and whose betas are two numbers."""
    def function(params: Any, grads: Any, *state: Any, beta1: float, beta2: float, **options: Any) -> None:
        _lists(name, lists, state)
        kept = dict(zip(lists, state, strict=True))
        if not options.get("amsgrad"):
            kept.pop("max_exp_avg_sq", None)
        _step(name, kind, params, grads, kept, {**options, "betas": (beta1, beta2)})

    return _named(function, name, kind)


def _plain(name: str, kind: Any, *lists: str) -> Callable[..., None]:
    """A step whose lists have these names in the state, and whose options are the class's."""
    def function(params: Any, grads: Any, *state: Any, **options: Any) -> None:
        _lists(name, lists, state)
        _step(name, kind, params, grads, dict(zip(lists, state, strict=True)), options)

    return _named(function, name, kind)


def _lists(name: str, wanted: Sequence[str], state: Sequence[Any]) -> None:
    if len(wanted) != len(state):
        raise ArgumentTypeError(f"{name}: takes params, grads and lists of {', '.join(wanted)} by place and the rest by name, "
                                f"got {len(state)} lists")


def _named(function: Callable[..., None], name: str, kind: type) -> Callable[..., None]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The step of torch.optim.{kind.__name__} as a function: params and the lists of its state are written in place."
    return function


adam = _moments("adam", Adam, "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
adamw = _moments("adamw", AdamW, "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
adamax = _moments("adamax", Adamax, "exp_avg", "exp_inf", "step")
nadam = _moments("nadam", NAdam, "exp_avg", "exp_avg_sq", "mu_product", "step")
radam = _moments("radam", RAdam, "exp_avg", "exp_avg_sq", "step")
adagrad = _plain("adagrad", Adagrad, "sum", "step")
adadelta = _plain("adadelta", Adadelta, "square_avg", "acc_delta", "step")
asgd = _plain("asgd", ASGD, "ax", "mu", "eta", "step")


def rprop(params: Any, grads: Any, prevs: Any, step_sizes: Any, state_steps: Any, *, etaminus: float, etaplus: float,
          step_size_min: float, step_size_max: float, **options: Any) -> None:
    """The step of torch.optim.Rprop as a function: params and the lists of its state are written in place."""
    _step("rprop", Rprop, params, grads, {"prev": prevs, "step_size": step_sizes, "step": state_steps},
          {**options, "etas": (etaminus, etaplus), "step_sizes": (step_size_min, step_size_max)})


def rmsprop(params: Any, grads: Any, square_avgs: Any, grad_avgs: Any, momentum_buffer_list: Any, state_steps: Any, *, momentum: float,
            centered: bool, **options: Any) -> None:
    """The step of torch.optim.RMSprop as a function: params and the lists of its state are written in place."""
    state = {"square_avg": square_avgs, "step": state_steps}
    if centered:
        state["grad_avg"] = grad_avgs
    if momentum:
        state["momentum_buffer"] = momentum_buffer_list
    _step("rmsprop", RMSprop, params, grads, state, {**options, "momentum": momentum, "centered": centered})


def sgd(params: Any, d_p_list: Any, momentum_buffer_list: Any, *, momentum: float, dampening: float, **options: Any) -> None:
    """The step of torch.optim.SGD as a function: params and buffers are written in place; a buffer that is None is put into its list."""
    state: dict[str, list[Any]] = {}
    if momentum:
        state["momentum_buffer"] = [PUBLIC["zeros_like"](p) if b is None else b for p, b in zip(params, momentum_buffer_list, strict=True)]
        if dampening:                                       # but of the first gradient
            like = [PUBLIC["zeros_like"](p.detach().reshape(-1).sum()) for p in params]
            state["started"] = [z if b is None else z + 1 for z, b in zip(like, momentum_buffer_list, strict=True)]
    _step("sgd", SGD, params, d_p_list, state, {**options, "momentum": momentum, "dampening": dampening})
    if momentum:
        momentum_buffer_list[:] = state["momentum_buffer"]
