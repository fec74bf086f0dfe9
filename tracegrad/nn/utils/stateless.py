"""Modules called with other parameters than their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError
from tracegrad.nn.module import Module
from tracegrad.tensors.tensor import Tensor


def functional_call(module: Module, parameters_and_buffers: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]], args: Any = None,
                    kwargs: Mapping[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False) -> Any:
    """module(*args, **kwargs) with the tensors of `parameters_and_buffers` in the place of its own of those dotted names (torch.func's).

    Of several mappings (parameters and buffers, say), no name may be in two.
    args: a tuple, or the one argument. strict: every parameter and buffer has to be given. tie_weights: a tensor that the module
    has under several names is replaced under all of them. What the module assigns to a buffer that was given (`self.count =
    self.count + 1`) is in the mapping afterwards, where that is a single dict. Raises ArgumentError for names that the module does
    not have, and for a tied tensor that is given two values. For transforms of a model: the parameters become an argument.
    Tensors of any dtype.

    >>> model, x = nn.Linear(3, 2), tg.ones(5, 3)
    >>> params = dict(model.named_parameters())
    >>> tg.grad(lambda p: (nn.utils.functional_call(model, p, x) ** 2).sum())(params)
    """
    given: Any = [parameters_and_buffers] if isinstance(parameters_and_buffers, Mapping) else parameters_and_buffers
    if not hasattr(module, "named_modules") or not isinstance(given, (list, tuple)) or not all(isinstance(part, Mapping) for part in given):
        raise ArgumentTypeError("functional_call: takes a Module and a dict of tensors, or a list of such dicts, got "
                                f"{type(module).__name__} and {type(parameters_and_buffers).__name__}")
    twice = [name for name, n in Counter(name for part in given for name in part).items() if n > 1]
    if twice:
        raise ArgumentError(f"functional_call: {', '.join(twice)} given in several mappings; give each name once")
    tensors = parameters_and_buffers if isinstance(parameters_and_buffers, dict) else {n: v for part in given for n, v in part.items()}
    with replaced(module, tensors, tie_weights, strict):
        return module(*(() if args is None else args if isinstance(args, tuple) else (args,)), **(kwargs or {}))


@contextmanager
def replaced(module: Module, tensors: dict[str, Tensor], tied: bool, strict: bool) -> Iterator[None]:
    """Meanwhile `module` has these tensors in the place of its own; see `functional_call`."""
    places: dict[str, tuple[dict[str, Any], str]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for table in tables:
            for name, value in table.items():
                if value is not None:
                    places[f"{path}.{name}" if path else name] = (table, name)
    unknown, missing = [n for n in tensors if n not in places], [n for n in places if n not in tensors]
    wrong = [f"{what} {', '.join(names)}" for what, names in (("unexpected", unknown), ("missing", missing if strict else [])) if names]
    if wrong:
        raise ArgumentError(f"functional_call: {type(module).__name__}: {'; '.join(wrong)}")
    own = {name: table[key] for name, (table, key) in places.items()}
    given: dict[int, tuple[str, Tensor]] = {}  # of a tensor with several names, as long as one is given
    for name, value in tensors.items() if tied else ():
        first, other = given.setdefault(id(own[name]), (name, value))
        if other is not value:
            raise ArgumentError(f"functional_call: {first} and {name} are one tensor of {type(module).__name__} and are given two; give "
                                "one of them, or pass tie_weights=False")
    before = [(table, key, table[key]) for table, key in places.values()]
    put = {name: tensors[name] if name in tensors else given.get(id(own[name]), (name, own[name]))[1] for name in places}
    try:
        for name, (table, key) in places.items():
            table[key] = put[name]
        yield
    finally:
        for name, value in list(tensors.items()):
            table, key = places[name]
            now = table.get(key)
            if now is not None and now is not value:  # the module has assigned another one
                tensors[name] = now
        for table, key, value in before:
            table[key] = value
