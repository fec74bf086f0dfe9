"""Module: the base of layers and models. Attributes that are Parameters, Modules or registered buffers are found by name.

Start at `Module.__setattr__` (what an assignment does) and `Module._named` (how things are found); hooks stand in hooks.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from tracegrad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, type_name
from tracegrad.graph.operators import Named
from tracegrad.nn.hooks import Hooked, as_registered
from tracegrad.nn.module_paths import called_in_trace
from tracegrad.nn.parameter import Buffer, Parameter, clear_grads
from tracegrad.nn.torch_methods import TorchMethods, empty_tables
from tracegrad.support.dtypes import as_dtype, differentiable, dtype_kind
from tracegrad.support.modes import every_module, no_grad, state, unusual
from tracegrad.tensors.tensor import Tensor, from_array, names_dtype

M = TypeVar("M", bound="Module")


class LoadResult(NamedTuple):
    """What `load_state_dict(strict=False)` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        text = f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"      # torch's
        return text if any(self) else "<All keys matched successfully>"


class Module(Hooked, TorchMethods, Named):
    """A part of a model: subclass it, assign parameters and other modules in `__init__`, and write `forward`.

    A traced function that uses a module watches its attributes: `train()`, `eval()` or another layer record anew, a new value of a
    parameter does not. Each parameter has a shape and dtype of its own; `to`, `float()`, `half()` and the like change all of a float dtype.
    Raises AttributeError where `super().__init__()` was not called, NotImplementedError without a `forward`.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return self.linear(x).relu()
    """

    _trace_all_attributes = True
    # Names that torch's class does not have begin with _tg_, as programs give their own modules names like _hooks and _get.
    _tg_optional: ClassVar[Mapping[str, int]] = {}      # what state dicts may lack that are older than this version of the class
    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers_set: set[str]

    def __init__(self) -> None:
        vars(self).update(training=True, **empty_tables())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; called through `module(...)`."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if unusual[0] and state.trace is not None:
            return called_in_trace(self, args, kwargs)
        return self._tg_call_hooked(args, kwargs) if self._tg_hooks or every_module else self.forward(*args, **kwargs)

    _call_impl = _wrapped_call_impl = __call__              # torch's names of it

    # ------------------------------------------------------------------------------------------------------- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        if isinstance(value, (Parameter, Module, Buffer)) and "_parameters" not in own:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before assigning parameters or modules")
        if isinstance(value, Parameter):
            self._tg_forget(name, self._parameters)
            self.register_parameter(name, value)            # programs replace it, to make parameters without values
        elif isinstance(value, Module):
            self._tg_forget(name, self._modules)
            self._modules[name] = as_registered("module", self, name, value)
        elif isinstance(value, Buffer):
            self._tg_forget(name, self._buffers)
            self.register_buffer(name, value, value.persistent)
        elif name in own.get("_parameters", ()):
            if value is not None:
                raise ArgumentTypeError(f"{type(self).__name__}.{name}: expected a Parameter or None, got {type(value).__name__}")
            self._parameters[name] = None
        elif name in own.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                raise ArgumentTypeError(f"{type(self).__name__}.{name}: a buffer is a Tensor or None, got {type(value).__name__}; "
                                        "`del` it first to make it a plain attribute")
            self._buffers[name] = as_registered("buffer", self, name, value)
        elif name in own.get("_modules", ()):
            if value is not None:
                raise ArgumentTypeError(f"{type(self).__name__}.{name}: expected a Module or None, got {type(value).__name__}; `del` it "
                                        "first to make it a plain attribute")
            self._modules[name] = None
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        table = own.get("_parameters")
        if table and name in table:
            return table[name]
        table = own.get("_modules")
        if table and name in table:
            return table[name]
        table = own.get("_buffers")
        if table and name in table:
            return table[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        if not self._tg_forget(name):
            object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _tg_forget(self, name: str, but: Any = None) -> bool:
        """Remove `name` wherever it is kept, but for the table where it is about to be replaced (in its place); whether it was kept."""
        kept = [table for table in (self._parameters, self._buffers, self._modules, vars(self)) if name in table and table is not but]
        for table in kept:
            del table[name]
        return bool(kept)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Make `param` an attribute; None keeps its place."""
        self._tg_name_is_free("register_parameter", name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentError(f"register_parameter: {name!r} must be a Parameter or None, not {type(param).__name__}: "
                                "nn.Parameter(tensor) makes one")
        self._tg_forget(name, self._parameters)
        if param is not None:
            param._settle()
        self._parameters[name] = param if param is None else as_registered("parameter", self, name, param)

    def _tg_name_is_free(self, call: str, name: str, table: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"{call}: a name must be a text without a dot, got {type_name(name)}")
        if not name or "." in name:
            raise ArgumentError(f"{call}: a name must be a text without a dot, got {name!r}")
        if hasattr(self, name) and name not in vars(self)[table]:
            raise ArgumentError(f"{call}: {type(self).__name__} has an attribute {name!r} already")

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make `tensor` an attribute that moves and is saved with the module (unless not persistent) but is not trained."""
        self._tg_name_is_free("register_buffer", name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ArgumentError(f"register_buffer: {type(self).__name__}.{name} must be a Tensor or None, got {type(tensor).__name__}")
        self._tg_forget(name, self._buffers)
        self._buffers[name] = as_registered("buffer", self, name, tensor)
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make `module` an attribute under a computed name. Raises ArgumentError if it is no Module or the name is taken."""
        self._tg_name_is_free("add_module", name, "_modules")
        if module is not None and not isinstance(module, Module):
            raise ArgumentError(f"add_module: {type(self).__name__}.{name} must be a Module or None, got {type(module).__name__}")
        self._tg_forget(name, self._modules)
        self._modules[name] = as_registered("module", self, name, module)

    register_module = add_module

    # ---------------------------------------------------------------------------------------------------------- walking

    def named_modules(self, memo: set[Any] | None = None, prefix: str = "",
                      remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """This module and all below it with their dotted names, each once (or under each of its names)."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            for name, child in self._modules.items():
                if child is not None:
                    yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, with their names, each once."""
        seen: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The modules directly below."""
        return (child for _, child in self.named_children())

    def _named_members(self, get_members_fn: Callable[[Any], Iterable[tuple[str, Any]]], prefix: str = "", recurse: bool = True,
                       remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """What the function finds in this module and those below, with dotted names. (torch's own method, which programs call.)"""
        seen: set[int] = set()
        for path, module in self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]:
            for name, value in get_members_fn(module):
                if value is not None and not (remove_duplicate and id(value) in seen):
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their dotted names, each once (or under each of its names)."""
        return self._named_members(lambda module: module._parameters.items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their dotted names, each once (or under each of its names)."""
        return self._named_members(lambda module: module._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module with a dotted name ("" for this one). Raises AttributeError if there is none."""
        module: Module = self
        for part in target.split(".") if target else ():
            found = module._modules.get(part)
            if found is None:
                raise AttributeError(f"get_submodule: {type(self).__name__} has no module {target!r}: there is no {part!r} in "
                                     f"{type(module).__name__}, which has {', '.join(module._modules) or 'none'}")
            module = found
        return module

    def set_submodule(self, target: str, module: Module) -> None:
        """Put `module` in the place of the one with a dotted name."""
        parent, _, name = target.rpartition(".")
        owner = self.get_submodule(parent)
        if name not in owner._modules:
            raise AttributeError(f"set_submodule: {type(self).__name__} has no module {target!r}")
        owner.add_module(name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with a dotted name. Raises AttributeError if there is none."""
        return self._tg_get("get_parameter", "_parameters", target)  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with a dotted name. Raises AttributeError if there is none."""
        return self._tg_get("get_buffer", "_buffers", target)  # type: ignore[no-any-return]

    def _tg_get(self, call: str, table: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        found = vars(self.get_submodule(path))[table].get(name)
        if found is None:
            raise AttributeError(f"{call}: {type(self).__name__} has no {table.strip('_')[:-1]} {target!r}")
        return found

    def apply(self: M, fn: Callable[[Module], Any]) -> M:
        """Call `fn` with every module below and then with this one; returns self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ------------------------------------------------------------------------------------------------------------- modes

    def train(self: M, mode: bool = True) -> M:
        """Switch this module and all below to training (dropout drops, batch norm measures); returns self."""
        if not isinstance(mode, bool):
            raise ArgumentError(f"train: mode must be True or False, got {mode!r}")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Switch to evaluation; returns self."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Start or stop recording derivatives for all parameters; returns self."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zeros."""
        clear_grads(self.parameters(), set_to_none)

    def to(self: M, *args: Any, **kwargs: Any) -> M:
        """Move parameters and buffers to a device and/or a float dtype, in place; takes what Tensor.to takes; returns self.

        Only float tensors change dtype. The Parameter objects stay the same, so an optimizer made before keeps working.
        """
        return self._tg_moved(*args, **kwargs)

    def _tg_moved(self: M, *args: Any, **kwargs: Any) -> M:
        """What `to` does, for methods that do not call it: programs replace `to`, and call these."""
        if state.trace is not None:
            raise ArgumentError(f"to: a module cannot be moved inside @trace ({state.trace.name}); do it outside")
        for a in (*args, kwargs.get("dtype")):
            dtype = a.dtype if isinstance(a, Tensor) else as_dtype(a) if names_dtype(a) else None
            if dtype is not None and not differentiable(dtype):
                raise DTypeError(f"to: a module's parameters are floats or complex numbers and cannot be {dtype}; cast a tensor by itself")
        for module in self.modules():
            for table in (module._parameters, module._buffers):
                for tensor in table.values():
                    if tensor is not None:
                        _move(tensor, args, kwargs)
        return self

    def float(self: M) -> M:
        """All float parameters and buffers as float32; returns self."""
        return self._tg_moved("float32")

    def double(self: M) -> M:
        """All float parameters and buffers as float64; returns self."""
        return self._tg_moved("float64")

    def half(self: M) -> M:
        """All float parameters and buffers as float16; returns self."""
        return self._tg_moved("float16")

    def bfloat16(self: M) -> M:
        """All float parameters and buffers as bfloat16; returns self."""
        return self._tg_moved("bfloat16")

    def type(self: M, dst_type: Any) -> M:
        """All parameters and buffers as dst_type, those of integers, too; returns self."""
        return self._apply(lambda t: t.to(dtype=dst_type))

    # ----------------------------------------------------------------------------------------------- saving and loading

    def get_extra_state(self) -> Any:
        """What `state_dict` saves of the module beside its tensors, as _extra_state: define it together with set_extra_state."""
        raise NotImplementedError(f"get_extra_state: {type(self).__name__} does not define it")

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` gave; called by `load_state_dict`."""
        raise NotImplementedError(f"set_extra_state: {type(self).__name__} does not define it")

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """All parameters and persistent buffers by dotted name; they share their values with the module, as in torch.

        destination: a dict that they are put into, and that is returned. prefix: what names begin with. keep_vars: the parameters
        themselves, instead of detached tensors. (As torch's older programs do, these three can be given by position.) Modules that define
        `get_extra_state` have an entry for it. `_metadata` of the result: the version of each module's class, which loading it asks for.
        Of modules below, their own `state_dict` is called, with these three.
        """
        given: tuple[Any, ...] = (*args, *(destination, prefix, keep_vars)[len(args):])
        found, prefix, keep_vars = given
        if found is None:
            found = OrderedDict()
            vars(found)["_metadata"] = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(found, "_metadata"):
            found._metadata[prefix[:-1]] = metadata
        for hook in list(self._tg_hooks.get("state_pre", {}).values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(found, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in list(self._tg_hooks.get("state", {}).values()):
            hook(self, found, prefix, metadata)
        return found

    def _tg_own_state(self, start: str) -> Iterator[tuple[str, Any]]:
        """What is saved of this module alone, with the names that it is saved by."""
        for table in (self._parameters, self._buffers):
            for name, tensor in table.items():
                if tensor is not None and not (table is self._buffers and name in self._non_persistent_buffers_set):
                    yield start + name, tensor
        if type(self).get_extra_state is not Module.get_extra_state:
            yield f"{start}_extra_state", self.get_extra_state()

    def _tg_before_loading(self, given: Mapping[str, Any]) -> None:
        """Called with the values that are about to be loaded into this module, by its own names for them: lazy ones take their shapes."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> LoadResult:
        """Copy values (Tensors or numpy arrays) into the parameters and buffers of the same names.

        assign: put the given tensors in their places instead, with their dtypes and devices; an optimizer is to be made afterwards.
        What is one parameter under several names stays one (of several values the last one counts), with either.
        Raises ArgumentError if names are missing or unexpected and `strict`, ShapeError where shapes differ (before anything is copied).
        """
        if not isinstance(state_dict, Mapping):
            raise ArgumentTypeError(f"load_state_dict: state_dict must be a mapping of names to tensors, got {type(state_dict).__name__}")
        result = LoadResult([], [])
        values, errors = dict(state_dict), []                # type: ignore[var-annotated]
        metadata = getattr(state_dict, "_metadata", None) or {}                 # of what `state_dict` gave; none of a plain dict
        places = [(f"{path}." if path else "", module) for path, module in self.named_modules(remove_duplicate=False)]
        for start, module in places:
            hooks = list(module._tg_hooks.get("load_pre", {}).values())
            if hooks or type(module)._load_from_state_dict is not Module._load_from_state_dict:
                mine = {k: v for k, v in values.items() if k.startswith(start)}         # its own and its parts', as torch hands them
                local = {**metadata.get(start[:-1], {}), **({"assign_to_params_buffers": True} if assign else {})}
                for hook in hooks:
                    hook(module, mine, start, local, strict, *result, errors)
                module._load_from_state_dict(mine, start, local, strict, *result, errors)
                values = {**{k: v for k, v in values.items() if not k.startswith(start)},
                          **{k: v for k, v in mine.items() if k.startswith(start)}}
            module._tg_before_loading({k[len(start):]: v for k, v in values.items() if k.startswith(start) and "." not in k[len(start):]})
        own = {name: tensor for start, module in places for name, tensor in module._tg_own_state(start) if isinstance(tensor, Tensor)}
        extra = {f"{start}_extra_state": module for start, module in places if type(module).set_extra_state is not Module.set_extra_state}
        optional = {start + name for start, module in places for name, since in module._tg_optional.items()
                    if (metadata.get(start[:-1], {}).get("version") or 0) < since}
        result.missing_keys.extend(k for k in (*own, *extra) if k not in values and k not in optional)
        result.unexpected_keys.extend(k for k in values if k not in own and k not in extra)
        for _, module in reversed(places):
            for hook in list(module._tg_hooks.get("load", {}).values()):
                hook(module, result)
        if strict and (result.missing_keys or result.unexpected_keys):
            both = (("missing", result.missing_keys), ("unexpected", result.unexpected_keys))
            errors += [f"{what} {', '.join(keys)}" for what, keys in both if keys]
            errors.append("pass strict=False to load what fits")
        errors += [f"{k} must be a Tensor, got {type_name(values[k])}" for k in own if k in values and not hasattr(values[k], "shape")]
        wrong = [f"{k} has shape {tuple(values[k].shape)}, expected {t.shape}" for k, t in own.items()
                 if k in values and hasattr(values[k], "shape") and tuple(values[k].shape) != t.shape]
        if errors or wrong:
            raise (ArgumentError if errors else ShapeError)(f"load_state_dict: {type(self).__name__}: {'; '.join([*errors, *wrong])}")
        with no_grad():
            given: dict[int, Tensor] = {}                    # by what they replace, which may have several names
            for name, target in own.items():
                if name in values:
                    value = values[name]
                    source = value if isinstance(value, Tensor) else from_array(np.asarray(value), target.device)
                    if assign:
                        given[id(target)] = _in_place_of(target, source)
                    else:
                        target.copy_(source.detach().to(device=target.device))
            for module in self.modules() if assign else ():
                tables: tuple[dict[str, Any], ...] = module._parameters, module._buffers
                for table in tables:
                    table.update({name: given[id(t)] for name, t in table.items() if id(t) in given})
        for name, module in extra.items():
            if name in values:
                module.set_extra_state(values[name])
        return result

    # ---------------------------------------------------------------------------------------------------------- description

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """What the repr shows between the parentheses."""
        return ""

    def __repr__(self) -> str:
        lines = [line for line in self.extra_repr().split("\n") if line]
        children = [f"({name}): " + text.replace("\n", "\n  ") for name, text in self._tg_described()]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({''.join(lines)})"
        return "\n".join([f"{self._get_name()}(", *(f"  {line}" for line in [*lines, *children]), ")"])

    def _tg_described(self) -> Iterator[tuple[str, str]]:
        """The modules directly below, as text."""
        return ((name, repr(child)) for name, child in self._modules.items())


def _in_place_of(target: Tensor, source: Tensor) -> Tensor:
    """What stands where a parameter or buffer did, which it is like in whether it requires grad."""
    if not isinstance(target, Parameter):
        return source
    given = source if isinstance(source, Parameter) else Parameter(source.detach(), target.requires_grad)
    given.requires_grad_(target.requires_grad)
    return given


def _move(tensor: Tensor, args: Any, kwargs: Any) -> None:
    """Tensor.to, in place."""
    moved = tensor.detach().to(*args, **kwargs)
    if moved.dtype != tensor.dtype and not (dtype_kind(tensor.dtype) == dtype_kind(moved.dtype) and dtype_kind(tensor.dtype) in "fc"):
        moved = tensor.detach().to(device=moved.device)
    if moved.dtype == tensor.dtype and moved.device is tensor.device:
        return
    tensor._become(moved.detach())
