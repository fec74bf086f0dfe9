"""Modules called with other parameters than their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.nn.module import Module
from tracegrad.tensor import Tensor


def functional_call(module: Module, parameters_and_buffers: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]], args: Any = (),
                    kwargs: Mapping[str, Any] | None = None, *, strict: bool = False) -> Any:
    """module(*args, **kwargs) with the tensors of `parameters_and_buffers` in the place of its own of those dotted names (torch.func's).

    Of several mappings (parameters and buffers, say), no name may be in two.
    args: a tuple, or the one argument. strict: every parameter and buffer has to be given. Raises ArgumentError for names that the module
    does not have. For transforms of a model: the parameters become an argument.

    >>> params = dict(model.named_parameters())
    >>> tg.grad(lambda p: (nn.utils.functional_call(model, p, x) ** 2).sum())(params)
    """
    given = [parameters_and_buffers] if isinstance(parameters_and_buffers, Mapping) else list(parameters_and_buffers)
    twice = [name for name, n in Counter(name for part in given for name in part).items() if n > 1]
    if twice:
        raise ArgumentError(f"functional_call: {', '.join(twice)} given in several mappings; give each name once")
    with _replaced(module, {name: value for part in given for name, value in part.items()}, strict):
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))


@contextmanager
def _replaced(module: Module, tensors: Mapping[str, Tensor], strict: bool) -> Iterator[None]:
    places: dict[str, tuple[dict[str, Any], str]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers):
            for name, value in table.items():
                if value is not None:
                    places[f"{path}.{name}" if path else name] = (table, name)
    unknown, missing = [n for n in tensors if n not in places], [n for n in places if n not in tensors]
    if unknown or (strict and missing):
        raise ArgumentError(f"functional_call: {type(module).__name__}: unexpected {', '.join(unknown) or 'nothing'}; "
                            f"missing {', '.join(missing) if strict else 'nothing'}")
    # A tensor with several names is replaced under all of them, as long as one is given.
    own = {name: table[key] for name, (table, key) in places.items()}
    given = {id(own[name]): value for name, value in tensors.items()}
    before = [(table, key, table[key]) for table, key in places.values()]
    try:
        for name, (table, key) in places.items():
            table[key] = tensors.get(name, given.get(id(own[name]), own[name]))
        yield
    finally:
        for table, key, value in before:
            table[key] = value
