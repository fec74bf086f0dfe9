"""torch.distributed.checkpoint.state_dict: states of models and optimizers by the models' names, without the prefixes of what wraps them.

Start at `get_model_state_dict` and `get_optimizer_state_dict`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tracegrad import distributed
from tracegrad.distributed.checkpoint import Shard
from tracegrad.distributed.fsdp import sharding_of
from tracegrad.errors import ArgumentError, UnsupportedError
from tracegrad.nn.module import Module
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor

_WRAPPERS = frozenset(("_orig_mod", "module"))          # what torch.compile and DistributedDataParallel call the module that they wrap


@dataclasses.dataclass
class StateDictOptions:
    """Which states are wanted.

    full_state_dict: whole tensors. cpu_offload: on the CPU; with full_state_dict only rank 0 gets them, others an empty dictionary.
    ignore_frozen_params: without parameters that do not require grad. strict: whether loading raises for names that do not match.
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"


def get_model_state_dict(model: Module, *, submodules: Any = None, options: StateDictOptions | None = None) -> dict[str, Any]:
    """The model's state by names without the prefixes of `torch.compile` and DistributedDataParallel.

    Raises UnsupportedError for submodules and options that are not here, and for whole tensors of a sharded model.

    >>> [*get_model_state_dict(torch.compile(torch.nn.Linear(2, 1)))]
    ['weight', 'bias']
    """
    options = _checked("get_model_state_dict", model, submodules, options)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad} if options.ignore_frozen_params else ()
    owners = dict(model.named_parameters(remove_duplicate=False))
    found = {_short(model, name): Shard(value) if name in owners and sharding_of(owners[name]) is not None else value
             for name, value in model.state_dict().items() if name not in frozen}
    return _where_wanted(found, options)  # type: ignore[no-any-return]


def get_optimizer_state_dict(model: Module, optimizers: Any, *, submodules: Any = None,
                             options: StateDictOptions | None = None) -> dict[str, Any]:
    """The optimizers' states and groups, with the model's names for their parameters.

    An optimizer that made no step yet makes one without gradients first, as torch's does. Raises ArgumentError for a parameter that the
    model does not have, UnsupportedError as `get_model_state_dict`.

    >>> net = torch.nn.Linear(2, 1)
    >>> sorted(get_optimizer_state_dict(net, torch.optim.Adam(net.parameters()))["state"])
    ['bias', 'weight']
    """
    options = _checked("get_optimizer_state_dict", model, submodules, options)
    names = {id(p): _short(model, name) for name, p in model.named_parameters()}
    found: dict[str, Any] = {"state": {}, "param_groups": []}
    for optimizer in _several(optimizers):
        _begin(optimizer)
        state = optimizer.state_dict()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not all(id(p) in names for p in parameters):
            raise ArgumentError("get_optimizer_state_dict: an optimizer has a parameter that the model does not have; give the model that "
                                "it was made of")
        by_number = {number: names[id(p)] for number, p in zip((n for g in state["param_groups"] for n in g["params"]), parameters,
                                                               strict=True)}
        found["state"].update({by_number[number]: own for number, own in state["state"].items()})
        found["param_groups"] += [{**group, "params": [by_number[n] for n in group["params"]]} for group in state["param_groups"]]
    return _where_wanted(found, options)  # type: ignore[no-any-return]


def get_state_dict(model: Module, optimizers: Any, *, submodules: Any = None,
                   options: StateDictOptions | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of a model and of its optimizers: `get_model_state_dict` and `get_optimizer_state_dict`."""
    return (get_model_state_dict(model, submodules=submodules, options=options),
            get_optimizer_state_dict(model, optimizers, submodules=submodules, options=options))


def set_model_state_dict(model: Module, model_state_dict: dict[str, Any], *, options: StateDictOptions | None = None) -> Any:
    """Take over what `get_model_state_dict` returned; returns what `load_state_dict` does, the keys that did not match."""
    options = _checked("set_model_state_dict", model, None, options)
    names = {_short(model, name): name for name in model.state_dict()}
    return model.load_state_dict({names.get(name, name): value.tensor if isinstance(value, Shard) else value
                                  for name, value in model_state_dict.items()}, strict=options.strict)


def set_optimizer_state_dict(model: Module, optimizers: Any, optim_state_dict: dict[str, Any], *,
                             options: StateDictOptions | None = None) -> None:
    """Take over what `get_optimizer_state_dict` returned.

    Raises RuntimeError for a parameter that has a state here and none there, unless options.strict is False.
    """
    options = _checked("set_optimizer_state_dict", model, None, options)
    names = {id(p): _short(model, name) for name, p in model.named_parameters()}
    for optimizer in _several(optimizers):
        _begin(optimizer)
        state: dict[str, Any] = {"state": {}, "param_groups": []}
        number = 0
        for group in optimizer.param_groups:
            own = [names[id(p)] for p in group["params"]]
            alike = [g for g in optim_state_dict["param_groups"] if {*g["params"]} & {*own} or (not own and not g["params"])]
            given: dict[str, Any] = alike[0] if alike else {}
            rest = {k: v for k, v in group.items() if k != "params"}
            state["param_groups"].append({**rest, **given, "params": [*range(number, number + len(own))]})
            for name, p in zip(own, group["params"], strict=True):
                if name in optim_state_dict["state"]:
                    state["state"][number] = optim_state_dict["state"][name]
                elif options.strict and p.requires_grad and optimizer.state.get(p):
                    raise RuntimeError(f"Missing optimizer state for parameter '{name}' in checkpoint. The parameter requires gradients "
                                       "but has no saved optimizer state. To load anyway, use StateDictOptions(strict=False).")
                number += 1
        optimizer.load_state_dict(state)


def set_state_dict(model: Module, optimizers: Any, *, model_state_dict: dict[str, Any], optim_state_dict: dict[str, Any],
                   options: StateDictOptions | None = None) -> Any:
    """Take over what `get_state_dict` returned: `set_model_state_dict` and `set_optimizer_state_dict`; returns keys that did not match."""
    keys = set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return keys


def _checked(who: str, model: Module, submodules: Any, options: StateDictOptions | None) -> StateDictOptions:
    options = options or StateDictOptions()
    ranks = distributed.get_world_size() if distributed.is_initialized() else 1
    for wrong, what in ((submodules is not None, "submodules"), (options.flatten_optimizer_state_dict, "flatten_optimizer_state_dict"),
                        (options.broadcast_from_rank0 and ranks > 1, "broadcast_from_rank0 with several ranks")):
        if wrong:
            raise UnsupportedError(f"{who}: {what} is not there; take the whole state, and what is wanted of it by its names")
    if options.full_state_dict and any(sharding_of(p) is not None for p in model.parameters()):
        raise UnsupportedError(f"{who}: full_state_dict of a model that fully_shard has put on {ranks} ranks is not there; use "
                               "torch.distributed.checkpoint.save, and read it with one rank")
    return options


def _short(model: Module, name: str) -> str:
    """A name without the wrappers on its way. (A module of a program's own may have a child called `module`: that stays.)"""
    kept: list[str] = []
    owner: Any = model
    for part in name.split("."):
        wraps = part in _WRAPPERS and type(owner).__name__ in ("OptimizedModule", "DistributedDataParallel")
        owner = getattr(owner, part, None)
        kept += [] if wraps else [part]
    return ".".join(kept)


def _several(optimizers: Any) -> Iterator[Any]:
    yield from optimizers if isinstance(optimizers, Sequence) or hasattr(optimizers, "__iter__") else [optimizers]


def _begin(optimizer: Any) -> None:
    """Make the state of an optimizer without one by a step with gradients of zero and a learning rate of zero, as torch does."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if optimizer.state_dict()["state"] or any(p.grad is not None for p in parameters):
        return
    with no_grad():
        for p in parameters:
            if p.requires_grad:
                p.grad = p.new_zeros(p.shape)
    rates = [group.get("lr") for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = group["lr"] * 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if "lr" in group:
            group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)


def _where_wanted(value: Any, options: StateDictOptions) -> Any:
    """The state on the CPU, where options want that; empty on the ranks that get none."""
    if not options.cpu_offload:
        return value
    if options.full_state_dict and distributed.is_initialized() and distributed.get_rank() > 0:
        return {}
    return _on_cpu(value)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _on_cpu(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_cpu, value))
    return value.cpu() if isinstance(value, Tensor) else Shard(value.tensor.cpu(), value.dim) if isinstance(value, Shard) else value
