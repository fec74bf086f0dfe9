"""Parameters computed from others, torch.nn.utils.parametrize's names: `register_parametrization(module, "weight", how)`.

The module's class becomes a subclass of its own with a property of the parameter's name, which computes it whenever it is read; what it
is computed from are parameters of module.parametrizations.<name>. So a traced function records the computation, and training moves the
originals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn.containers import ModuleDict, ModuleList
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter, UninitializedParameter
from tracegrad.support.modes import no_grad, state

M = TypeVar("M", bound=Module)
_within: list[None] = []            # the blocks of `cached` that are open
_values: dict[Any, Any] = {}        # what was computed in them: of a trace (or None) and a ParametrizationList


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, applied one after the other, and what they start from: original, or original0, original1, ..."""

    def __init__(self, modules: Iterable[Module], originals: list[Parameter], several: bool) -> None:
        super().__init__(modules)
        self.count = len(originals) if several else 0
        for k, original in enumerate(originals):
            self.register_parameter(f"original{k}" if several else "original", original)

    def forward(self) -> Any:
        first, *rest = list(self)
        value = first(*(getattr(self, f"original{k}") for k in range(self.count))) if self.count else first(self.original)
        for parametrization in rest:
            value = parametrization(value)
        return value


def _property(name: str) -> property:
    def read(self: Any) -> Any:
        parametrizations = self.parametrizations[name]
        if not _within:
            return parametrizations()
        place = state.trace, parametrizations                   # (what a trace computes is nobody else's)
        if place not in _values:
            _values[place] = parametrizations()
        return _values[place]

    def write(self: Any, value: Any) -> None:
        _assign(self.parametrizations[name], name, value)
    return property(read, write)


def _assign(parametrizations: ParametrizationList, name: str, value: Any) -> None:
    with no_grad():
        for parametrization in reversed(list(parametrizations)):
            if not hasattr(parametrization, "right_inverse"):
                raise ArgumentError(f"{name}: {type(parametrization).__name__}, which computes it, has no right_inverse to assign through")
            value = parametrization.right_inverse(value)
        values = value if parametrizations.count else (value,)
        targets = [f"original{k}" for k in range(parametrizations.count)] or ["original"]
        for target, part in zip(targets, values, strict=True):
            getattr(parametrizations, target).data = part


def register_parametrization(module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> Module:
    """From now on module.<tensor_name> is parametrization(original); returns the module. Of several, each takes the result of the last.

    parametrization: a Module; its right_inverse(value), if it has one, gives the original (or a tuple of several, which forward takes)
    for a value, at first the present one. What is registered on top of others leaves the originals as they are, as in torch: the value
    changes. unsafe: the result may differ in shape or dtype. Raises ArgumentError if there is no such parameter.

    >>> class Symmetric(nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).mT
    >>> layer = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    """
    if is_parametrized(module, tensor_name):
        with no_grad():
            found = getattr(module, tensor_name)
            now = parametrization(found)
        _fits(tensor_name, found, now, unsafe)
        module.parametrizations[tensor_name].append(parametrization)
        return module
    original = module._parameters.get(tensor_name)
    if original is None:
        raise ArgumentError(f"register_parametrization: {type(module).__name__} has no parameter {tensor_name!r}")
    with no_grad():
        start = parametrization.right_inverse(original.detach()) if hasattr(parametrization, "right_inverse") else original.detach()
        several = isinstance(start, (tuple, list))
        now = parametrization(*start) if several else parametrization(start)
    _fits(tensor_name, original, now, unsafe)
    if several:
        originals = [Parameter(t.clone(), original.requires_grad) for t in start]
    else:                                   # the parameter itself: an optimizer that has it goes on training it
        original.data = start
        originals = [original]
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    del module._parameters[tensor_name]
    module.parametrizations[tensor_name] = ParametrizationList([parametrization], originals, several)
    _give_class(module)
    return module


def _give_class(module: Module) -> None:
    """Give the module the class that its parametrizations need: a new one, as copies of the module may have the present one."""
    own = getattr(module, "_unparametrized", type(module))
    found = {name: _property(name) for name in module.parametrizations} if is_parametrized(module) else {}
    found |= {name: _computed(name) for name in vars(module).get("_computed", ())}
    members = {"__module__": own.__module__, "_unparametrized": own, "__reduce__": _reduced, **found}
    name = f"Parametrized{own.__name__}" if is_parametrized(module) else own.__name__
    module.__class__ = type(name, (own,), members) if found else own


def _computed(name: str) -> property:
    return property(lambda self: vars(self)["_computed"][name](self))


def compute_attribute(module: M, name: str, how: Callable[[Any], Any]) -> M:
    """From now on, module.<name> is how(module), whenever it is read; returns the module. (What the older weight_norm is made of.)"""
    vars(module).setdefault("_computed", {})[name] = how
    _give_class(module)
    return module


def computed_attribute(module: Module, name: str) -> Any:
    """What computes module.<name>, or None."""
    return vars(module).get("_computed", {}).get(name)


def plain_attribute(module: Module, name: str) -> None:
    """End what `compute_attribute` began."""
    del vars(module)["_computed"][name]
    _give_class(module)


@contextmanager
def cached() -> Iterator[None]:
    """Within it (the outermost, of several), each parametrized tensor is computed when it is read first, and is the same from then on."""
    _within.append(None)
    try:
        yield
    finally:
        _within.pop()
        if not _within:
            _values.clear()


def type_before_parametrizations(module: Module) -> type:
    """The module's class, without what its parametrizations made of it."""
    return getattr(module, "_unparametrized", type(module))


def _reduced(module: Any) -> Any:
    """For pickle and copy: the class is made anew."""
    return _made, (module._unparametrized,), vars(module)


def _made(own: Any) -> Any:
    return object.__new__(type(own.__name__, (own,), {"_unparametrized": own, "__setstate__": _restore}))


def _restore(module: Any, attributes: dict[str, Any]) -> None:
    vars(module).update(attributes)
    _give_class(module)


def _fits(name: str, before: Any, now: Any, unsafe: bool) -> None:
    if not unsafe and (now.shape != before.shape or now.dtype != before.dtype):
        raise ShapeError(f"register_parametrization: {name} is {before.dtype}{list(before.shape)}, the parametrization makes "
                         f"{now.dtype}{list(now.shape)} of it; pass unsafe=True if that is meant")


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether the module has a parametrization, or one of that name."""
    found = module._modules.get("parametrizations")
    return isinstance(found, ModuleDict) and (len(found) > 0 if tensor_name is None else tensor_name in found)


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make module.<tensor_name> a plain parameter again, of its present value, or of its original with leave_parametrized=False.

    It is the parameter that it was before the parametrizations, unless they have several originals.
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"remove_parametrizations: {type(module).__name__} has no parametrization of {tensor_name!r}")
    parametrizations = module.parametrizations[tensor_name]
    if not leave_parametrized and parametrizations.count:
        raise ArgumentError(f"remove_parametrizations: {tensor_name} has {parametrizations.count} originals; none of them is its value")
    with no_grad():
        value = getattr(module, tensor_name) if leave_parametrized else parametrizations.original
    if parametrizations.count:
        parameter = Parameter(value.clone(), any(p.requires_grad for p in parametrizations.parameters(recurse=False)))
    else:
        parameter = parametrizations.original
        parameter.data = value.detach()
    del module.parametrizations[tensor_name]
    _give_class(module)
    if not is_parametrized(module):
        del module.parametrizations
    module.register_parameter(tensor_name, parameter)
    return module


__all__ = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
           "type_before_parametrizations"]


def taken_parameter(call: str, module: Module, name: str) -> Any:
    """Take a parameter from its module, whose attribute of that name will be computed."""
    if computed_attribute(module, name) is not None:
        raise ArgumentError(f"{call}: {type(module).__name__}.{name} is computed already; two of them on one parameter have no meaning")
    weight = module._parameters.get(name)
    if weight is None or isinstance(weight, UninitializedParameter):
        why = f"has no parameter {name!r}" if weight is None else f"is lazy, and {name!r} has no shape yet; call it once before"
        raise ArgumentError(f"{call}: {type(module).__name__} {why}")
    del module._parameters[name]
    return weight


def removed_parts(call: str, kind: type, module: M, name: str, *parts: str) -> M:
    """A computed attribute becomes a parameter of its present value, and what it is computed of goes."""
    how = computed_attribute(module, name)
    if not isinstance(how, kind):
        raise ArgumentError(f"{call}: {type(module).__name__}.{name} is not what this removes")
    with no_grad():
        weight = getattr(module, name).detach().clone()
    trained = any(p.requires_grad for part in parts if (p := module._parameters.get(part)) is not None)
    plain_attribute(module, name)
    for part in parts:
        delattr(module, part)
    module.register_parameter(name, Parameter(weight, trained))
    return module
