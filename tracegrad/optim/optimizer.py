"""What all optimizers share: groups of parameters, state, saving. Start at `Optimizer.step`.

A step is made of in-place operations on tensors under no_grad. So in a traced step it fuses with the backward that gave the gradients.
Outside a trace it is recorded once and replayed by every later step (update.py). In a trace the learning rate is a run-time number, read
from its group at every replay: changing it compiles nothing. The other hyperparameters are static: changing one records the step again,
except a momentum that a scheduler moves (`ParamGroup.at_run_time`).
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from tracegrad.distributed.fsdp import sharding_of
from tracegrad.errors import ArgumentError, ArgumentTypeError, DTypeError, TraceError, type_name
from tracegrad.execute.realize import read
from tracegrad.graph.canonical import resolve
from tracegrad.graph.operators import PUBLIC, Named
from tracegrad.nn.hooks import RemovableHandle
from tracegrad.nn.parameter import UninitializedParameter, clear_grads
from tracegrad.nn.utils.clip_grad import by_device
from tracegrad.optim.param_group import ParamGroup, add_groups, by_its_name, restored
from tracegrad.optim.update import update
from tracegrad.support import dtypes
from tracegrad.support.modes import enable_grad, no_grad, state, unusual
from tracegrad.tensors.tensor import Tensor, from_array


def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """A `step` with the hooks of `register_step_pre_hook` and `register_step_post_hook` before and after it."""
    @functools.wraps(step)
    def around(*args: Any, **kwargs: Any) -> Any:
        self = args[0]
        for hook in list(self._tg_hooks.get("pre", {}).values()) if self._tg_hooks else ():
            given = hook(self, args, kwargs)
            if given is not None:
                if not isinstance(given, tuple) or len(given) != 2:
                    raise ArgumentError(f"{type(self).__name__}.step: a pre-hook must return None or (args, kwargs), got {given!r}")
                args, kwargs = given
        result = step(*args, **kwargs)
        for hook in list(self._tg_hooks.get("post", {}).values()) if self._tg_hooks else ():
            hook(self, args, kwargs)
        return result

    return around


class Optimizer(Named):
    """Base of optimizers. A subclass gives `_update(group, params)`, and `_new_state(group, p)` if it keeps tensors for a parameter.

    params: float or complex tensors that require grad, pairs of a name and such a tensor, or mappings with "params" and options of
    their own. Raises ArgumentError for anything else. `implementation`: what torch's optimizers take to choose between equal
    implementations (foreach, fused, capturable: groups have them, as torch's do, and they mean nothing here, where a traced step is
    fused anyway), and differentiable, which must be False.

    >>> class SignSGD(tg.optim.Optimizer):
    ...     def __init__(self, params, lr=0.1):
    ...         super().__init__(params, dict(lr=lr))
    ...     def _update(self, group, params):
    ...         for p in params:
    ...             p.sub_(group["lr"] * p.grad.sign())
    >>> p = nn.Parameter(tg.tensor([1.0, 2.0]))
    >>> (p * p).sum().backward()
    >>> SignSGD([p]).step()
    >>> p.detach()
    Tensor([0.9, 1.9], device='cpu')
    """

    _trace_all_attributes = True
    _trace_by_reference = ("_tg_made",)
    _tg_made: tuple[Tensor, ...] = ()                   # of the state: what `_tg_prepare` made; until a step writes to it, torch has none
    _begins_with_state: ClassVar[bool] = False           # whether torch has it from the beginning
    _complex: ClassVar[bool] = True                      # whether it takes complex parameters
    _by_elements: ClassVar[bool] = True                  # whether an element's step depends on its own gradients alone
    _implementation: ClassVar[Mapping[str, Any]] = MappingProxyType({"foreach": None, "capturable": False, "differentiable": False})
    _tg_hooks: Any = MappingProxyType({})               # of a subclass that does not call __init__ (optimizers around another one)

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any], implementation: Mapping[str, Any] | None = None) -> None:
        for name in implementation or ():
            if name not in ("foreach", "fused", "capturable", "differentiable"):
                raise ArgumentTypeError(f"{type(self).__name__}: got an unexpected argument {name!r}; it takes {', '.join(defaults)}")
        self._tg_hooks = {}
        self.defaults = dict(defaults) if implementation is None else {**defaults, **self._implementation, **implementation}
        self.param_groups: list[ParamGroup] = []
        self.state: dict[Any, dict[str, Any]] = defaultdict(dict)           # of parameters, and under other keys what programs keep
        if isinstance(params, Tensor):
            raise ArgumentTypeError("params: expected an iterable of tensors or of groups, got one Tensor; pass [tensor]")
        if not isinstance(params, Iterable):
            raise ArgumentTypeError(f"params: expected an iterable of tensors or of groups, got {type(params).__name__}; "
                                    "pass model.parameters()")
        given = list(params)
        if not given:
            raise ArgumentError("params: the optimizer got no parameters; was model.parameters() consumed before, or are the layers in a "
                                "list or dict? (nn.ModuleList and nn.ModuleDict register theirs)")
        add_groups(self, given if isinstance(given[0], Mapping) else [{"params": given}])

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in vars(cls):
            cls.step = hooked(cls.step)  # type: ignore[method-assign]

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(optimizer, args, kwargs) before each step; it may return other (args, kwargs). args: the optimizer, then step's own.

        >>> handle = tg.optim.SGD([nn.Parameter(tg.ones(2))], lr=0.1).register_step_pre_hook(lambda optimizer, args, kwargs: None)
        """
        return self._tg_hook("pre", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(optimizer, args, kwargs) after each step."""
        return self._tg_hook("post", hook)

    def register_state_dict_pre_hook(self, hook: Callable[[Any], None], prepend: bool = False) -> RemovableHandle:
        """Call hook(optimizer) before each `state_dict`. prepend: before the hooks that are there."""
        return self._tg_hook("before state_dict", hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[[Any, Any], Any], prepend: bool = False) -> RemovableHandle:
        """Call hook(optimizer, state_dict) on what `state_dict` returns; it may change it, or return another."""
        return self._tg_hook("after state_dict", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[[Any, Any], Any], prepend: bool = False) -> RemovableHandle:
        """Call hook(optimizer, state_dict) before `load_state_dict` takes it over; it may change this shallow copy, or return another."""
        return self._tg_hook("before load_state_dict", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[[Any], None], prepend: bool = False) -> RemovableHandle:
        """Call hook(optimizer) after each `load_state_dict`."""
        return self._tg_hook("after load_state_dict", hook, prepend)

    def _tg_hook(self, kind: str, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        hooks = vars(self).setdefault("_tg_hooks", {})
        handle = RemovableHandle(hooks, kind)
        present = hooks.get(kind, {})
        hooks[kind] = {handle.id: hook, **present} if prepend else {**present, handle.id: hook}
        return handle

    def _tg_changed(self, kind: str, state_dict: Any) -> Any:
        """What the hooks of a kind make of a state_dict."""
        for hook in list(self._tg_hooks.get(kind, {}).values()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    @by_its_name
    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Optimize more parameters: a mapping with "params" and any options that differ from the defaults."""
        if not isinstance(group, Mapping):
            raise ArgumentTypeError(f"params: a group must be a mapping with \"params\", got {type_name(group)}")
        if "params" not in group:
            raise ArgumentError(f"params: a group must be a mapping with \"params\", got one with {', '.join(group) or 'nothing'}")
        if not isinstance(group["params"], Iterable):
            raise ArgumentTypeError(f"params: expected a tensor or an iterable of tensors, got {type_name(group['params'])}")
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        named = [isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in params]
        if params and all(named):
            group = {**group, "param_names": [name for name, _ in params]}
            params = [p for _, p in params]
        if (any(named) and not all(named)) or any(("param_names" in group) is not ("param_names" in g) for g in self.param_groups[:1]):
            raise ArgumentError("params: some have names (are pairs of a name and a tensor), and others have none; name all of them, "
                                "in all groups, or none")
        group = {**self.defaults, **group, "params": params}
        if group.get("differentiable"):
            raise ArgumentError(f"{type(self).__name__}: differentiable=True is not supported, as a step is not recorded; write the "
                                "update with operations (w2 = w - lr * grad) to differentiate through it")
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                way = "; pass model.parameters()" if hasattr(p, "parameters") else ""
                raise ArgumentTypeError(f"params: expected Tensors, got {type(p).__name__}{way}")
            if p.dtype.kind == "c" and not self._complex:
                raise DTypeError(f"params: a tensor of shape {p.shape} is {p.dtype}, which this optimizer does not take; give it to "
                                 "another, or keep its parts as a float parameter (view_as_real)")
            if not p.is_leaf:
                raise ArgumentError(f"params: a tensor of shape {p.shape} is not a leaf; optimize the tensor that it was computed from")
            if id(p) in known:
                raise ArgumentError(f"params: a tensor of shape {p.shape} is given twice")
            sharding = sharding_of(p)
            if sharding is not None and sharding.group.size() > 1 and not self._by_elements:
                raise ArgumentError(f"params: a parameter of shape {sharding.shape} lies on the ranks by parts (fully_shard), and this "
                                    "optimizer needs all of it; use one that works element by element (SGD, Adam, ...), or "
                                    "DistributedDataParallel")
            known.add(id(p))
        added = ParamGroup(group)
        if "lr" in self.defaults and added.lr is None and type(self).__module__.startswith(Optimizer.__module__.partition(".")[0] + "."):
            raise ArgumentTypeError("lr: must be a number, or a tensor of one float, got None")     # (a user's optimizer may have a rule)
        self._check(added)
        self.param_groups.append(added)
        self._tg_prepare(added, [p for p in params if not isinstance(p, UninitializedParameter)])

    @property
    def lr(self) -> Any:
        """The learning rate of the first group; setting it sets that of all groups. Before there are groups: a subclass's own."""
        own = vars(self)
        return own["lr"] if "lr" in own else self.param_groups[0].lr if own.get("param_groups") else None

    @lr.setter
    def lr(self, value: float) -> None:
        own = vars(self)
        if "lr" in own or "param_groups" not in own:            # a subclass's own
            own["lr"] = value
        for group in own.get("param_groups", ()):
            group.lr = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zeros."""
        for group in self.param_groups:
            clear_grads(group["params"], set_to_none)

    @hooked
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. closure: computes the loss and its gradients anew; its result is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        traced = unusual[0]                         # then a tensor may have another
        with no_grad():
            for group in self.param_groups:
                for params in by_device([p for p in group["params"] if (p.grad if traced else p._grad) is not None]).values():
                    with group.lr_on(params[0].device):
                        if not update(self, group, params):
                            self._tg_prepare(group, params)
                            self._before_update(group, params)
                            self._update_reals(group, params)
        return loss

    def _update_reals(self, group: ParamGroup, params: list[Tensor]) -> None:
        """`_update`, to which complex parameters, their gradients and their state look like real ones with a last dimension of 2."""
        real = [in_reals(p) for p in params]
        for r, p in zip(real, params, strict=True):
            if r is not p:
                assert p.grad is not None
                r.grad = in_reals(p.grad)
                self.state[r] = {k: in_reals(v) if isinstance(v, Tensor) else v for k, v in self.state[p].items()}
        try:
            self._update(group, real)
        finally:
            for r, p in zip(real, params, strict=True):
                if r is not p:
                    del self.state[r]

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        raise NotImplementedError

    def _before_update(self, group: ParamGroup, params: list[Tensor]) -> None:
        """What has to be done before each update, and is no part of it."""

    def _check(self, group: ParamGroup) -> None:
        """Raise ArgumentError for hyperparameters that make no sense."""

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {}

    def _tg_prepare(self, group: ParamGroup, params: list[Tensor]) -> None:
        """Make what the state lacks. It is made before the first step, so that a traced step finds it and looks alike from then on;

        of the parameters of lazy layers, which have no shape before the model's first call, at the first step.
        """
        moved: dict[Any, Tensor] = {}
        made = list[Tensor]()
        for p in params:
            present, new = self.state.get(p), self._new_state(group, p)
            if present is None and new:
                if state.trace is not None:
                    raise TraceError(f"{type(self).__name__}: it keeps nothing of a parameter, since it was made before a lazy layer's "
                                     "first call or its state was cleared, and cannot begin inside @trace; make the optimizer anew "
                                     "(after the model's first call)")
                present = self.state[p] = {}
            elif present is None:
                continue
            for name, value in new.items():
                if name not in present:
                    present[name] = value() if callable(value) else value
                    made += [present[name]] if isinstance(present[name], Tensor) else []
            for name, value in present.items():
                if isinstance(value, Tensor) and value.device is not p.device and state.trace is None:          # the parameter was moved
                    key = id(value), id(p.device)                                   # (of several with one number, each to the same)
                    if key not in moved:
                        moved[key] = value.to(device=p.device)
                    present[name] = moved[key]
        self._tg_note_made(made)

    def _tg_note_made(self, made: list[Tensor]) -> None:
        """These are in the state, and hold nothing of any gradient."""
        if made:
            held = {id(value) for mine in self.state.values() for value in mine.values()}
            self._tg_made = (*(x for x in self._tg_made if id(x) in held), *made)

    def _tg_unused(self) -> set[int]:
        """The identities of those that no step wrote to."""
        return {id(x) for x in self._tg_made if x._version == 0}

    def __getstate__(self) -> dict[str, Any]:
        """What a copy and a pickle hold: their tensors begin as if nobody had written to them."""
        unused = self._tg_unused()
        return {**vars(self), "_tg_made": tuple(x for x in self._tg_made if id(x) in unused)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    # torch's, which packages call that wrap an optimizer: a step has its hooks when its class is made.
    profile_hook_step = staticmethod(hooked)

    def _patch_step_function(self) -> None:
        pass

    # ---------------------------------------------------------------------------------------------- saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later run needs to go on: {"state": {number: {...}}, "param_groups": [...]}; parameters are numbers in it."""
        for hook in list(self._tg_hooks.get("before state_dict", {}).values()):
            hook(self)
        return self._tg_changed("after state_dict", self._tg_saved())  # type: ignore[no-any-return]

    def _tg_saved(self) -> dict[str, Any]:
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": [numbers[id(p)] for p in group["params"]]})
        unused = set() if self._begins_with_state else self._tg_unused()
        begun = {p: s for p, s in self.state.items() if not isinstance(p, Tensor) or any(id(value) not in unused for value in s.values())}
        return {"state": {numbers[id(p)] if isinstance(p, Tensor) else p: dict(s) for p, s in begun.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; what it lacks begins anew. Raises ArgumentError where groups or shapes differ, and then
        nothing has been taken over.
        """
        if not isinstance(state_dict, Mapping):
            raise ArgumentTypeError(f"load_state_dict: takes what optimizer.state_dict() gave, a mapping, got {type_name(state_dict)}")
        self._tg_take_over(self._tg_changed("before load_state_dict", dict(state_dict)))
        if type(self).__setstate__ is not Optimizer.__setstate__:                   # in which programs add options that older files lack
            self.__setstate__({"state": self.state, "param_groups": self.param_groups})
        for hook in list(self._tg_hooks.get("after load_state_dict", {}).values()):
            hook(self)

    def _tg_take_over(self, state_dict: Mapping[str, Any]) -> None:
        missing = [name for name in ("param_groups", "state") if name not in state_dict]
        if missing:
            raise ArgumentError(f"load_state_dict: there is no {missing[0]!r} among {list(state_dict)}; pass optimizer.state_dict()")
        saved = state_dict["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ArgumentError(f"load_state_dict: groups of {[len(g['params']) for g in saved]} parameters do not fit "
                                f"{[len(g['params']) for g in self.param_groups]}")
        for group, other in zip(self.param_groups, saved, strict=True):
            self._tg_check_state(group, other, state_dict["state"])
        for group, other in zip(self.param_groups, saved, strict=True):
            for name, value in _options(other).items():
                group[name] = value
            for p, number in zip(group["params"], other["params"], strict=True):
                saved_state = state_dict["state"].get(number, {})
                for name in [name for name in self.state.get(p, {}) if name not in saved_state]:
                    del self.state[p][name]
                mine = self.state.setdefault(p, {}) if saved_state else {}
                for name, value in saved_state.items():
                    mine[name] = restored(p, value, mine.get(name), type(self).step is not Optimizer.step)
            self._tg_prepare(group, group["params"])
        self.state.update({key: dict(mine) for key, mine in state_dict["state"].items() if not isinstance(key, int)})

    def _tg_check_state(self, group: ParamGroup, saved: Mapping[str, Any], state: Mapping[Any, Any]) -> None:
        """Raise ArgumentError where a saved group or its parameters' state cannot be taken over."""
        self._check(ParamGroup({**group, **_options(saved)}))
        for p, number in zip(group["params"], saved["params"], strict=True):
            for name, value in state.get(number, {}).items():
                present = self.state.get(p, {}).get(name)
                shape = np.shape(value.detach() if isinstance(value, Tensor) else value) if isinstance(present, Tensor) else ()
                if isinstance(present, Tensor) and present.shape != shape:
                    raise ArgumentError(f"load_state_dict: {name} has shape {shape}, expected {present.shape}")

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


def in_reals(x: Tensor) -> Tensor:
    """A complex tensor as a view of its parts, (*, 2); any other as it is."""
    return PUBLIC["view_as_real"](x) if x.dtype.kind == "c" else x


def zeros_like(p: Tensor) -> Callable[[], Tensor]:
    # Uploaded rather than computed: the tensor is made here, also when the first step runs inside a trace.
    return lambda: from_array(np.zeros(p.shape, p.dtype), p.device)


def at_least(what: str, value: float, low: float = 0.0) -> None:
    if not value >= low:
        raise ArgumentError(f"{what}: must be at least {low}, got {value}")


def given(value: Any) -> bool:
    """Whether a hyperparameter is not 0; one that is known at run time only counts as given."""
    return isinstance(value, Tensor) or bool(value)


def one_minus_power(base: Any, count: Tensor) -> Any:
    """1 - base ** count, exact to the last digits also where base is near 1."""
    if not isinstance(base, Tensor):
        return 1.0 if base == 0 else -(count * math.log(base)).expm1()
    return -(count * base.log()).expm1()


class Counting(Optimizer):
    """Base of optimizers whose steps are numbered. `_shared` names the 0-d tensors of their state, `_start` what those start from.

    Parameters that begin together share these, so that a step counts once and not once per parameter.
    """

    _shared: ClassVar[tuple[str, ...]] = ("step",)
    _computes_with_step: ClassVar[bool] = True       # else it is kept since torch reads it in the state

    def _start(self, group: ParamGroup, name: str) -> float:
        """What a shared number is before the first step."""
        return 0.0

    def _tg_prepare(self, group: ParamGroup, params: list[Tensor]) -> None:
        super()._tg_prepare(group, params)
        fresh: dict[Any, dict[str, Tensor]] = {}
        for p in params:
            mine = self.state[p]
            if any(name not in mine for name in self._shared):
                dtype = np.dtype(np.float64 if dtypes.get_default_dtype() == np.float64 else np.float32)      # whatever p has, as in torch
                key = (_is_wide(p), id(p.device))
                if key not in fresh:
                    fresh[key] = {name: from_array(np.full((), self._start(group, name), dtype), p.device) for name in self._shared}
                mine.update({name: value for name, value in fresh[key].items() if name not in mine})
        self._tg_note_made([value for shared in fresh.values() for value in shared.values()])

    def _counted(self, group: ParamGroup, params: list[Tensor],
                 numbers: Callable[..., Any] | None = None) -> Iterator[tuple[Tensor, dict[str, Any], Any]]:
        """Each parameter, its state, and numbers(*shared) of the step (None), computed once for all that share them. The step is counted
        first. For parameters of 64 bits numbers has the step as float64; the others that it is given are as they are kept.
        """
        computed: dict[int, Any] = {}
        for p in params:
            mine = self.state[p]
            if id(mine["step"]) not in computed:
                mine["step"].add_(1.0)
                step, *rest = (mine[name] for name in self._shared)
                computed[id(mine["step"])] = None if numbers is None else numbers(step.double() if _is_wide(p) else step, *rest)
            yield p, mine, computed[id(mine["step"])]

    def _before_update(self, group: ParamGroup, params: list[Tensor]) -> None:
        """Give the parameters that stay behind in this step (they have no gradient) shared numbers of their own."""
        stepping = {id(x) for p in params for x in (p, p._base)}            # complex ones are views here: see `_update_reals`
        counts = {id(self.state[p]["step"]) for p in params}
        copies: dict[int, Tensor] = {}
        for p in group["params"]:
            if id(p) in stepping or id(self.state.get(p, {}).get("step")) not in counts:          # or a state that was cleared
                continue
            for name in self._shared:
                number: Tensor = self.state[p][name]
                if state.trace is not None and id(number) in state.trace.nodes:
                    if not self._computes_with_step:            # it counts along with the others
                        continue
                    raise TraceError(f"step: other parameters have gradients in this step than in an earlier one of the same trace "
                                     f"({state.trace.name}); give them param_groups of their own")
                if id(number) not in copies:
                    copies[id(number)] = from_array(read(resolve(number._node_outside()), number.device), number.device)
                if state.trace is None:
                    self.state[p][name] = copies[id(number)]
                else:
                    state.trace.renew(self.state[p], name, copies[id(number)])
        if copies:
            unused = self._tg_unused()
            self._tg_note_made([copy for number, copy in copies.items() if number in unused])

    def _tg_take_over(self, state_dict: Mapping[str, Any]) -> None:
        super()._tg_take_over(state_dict)
        for group in self.param_groups:             # equal numbers are one again
            shared: dict[Any, dict[str, Tensor]] = {}
            for p in group["params"]:
                mine = {name: self.state[p][name] for name in self._shared}
                key = (*(v.item() for v in mine.values()), mine["step"].dtype, _is_wide(p), id(mine["step"].device))
                self.state[p].update(shared.setdefault(key, mine))


def _is_wide(p: Tensor) -> bool:
    """Whether a parameter's numbers have 64 bits."""
    return p.dtype in (np.float64, np.complex128)


def _options(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a saved group: what it has beside its parameters."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()
            if name not in ("params", "param_names")}
