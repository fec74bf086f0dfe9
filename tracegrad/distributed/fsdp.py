"""Parameters, gradients and optimizer state that lie on the ranks by parts: torch's `fully_shard`. Start at `_Whole`.

A parameter becomes this rank's rows of it. A call of the module puts the whole tensors in the parameters' places: one all_gather, whose
derivative is a reduce_scatter. So backward gives each rank the gradient of its rows, and an optimizer knows nothing of the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from tracegrad.custom.custom_function import Function
from tracegrad.distributed.exchange import ReduceOp
from tracegrad.distributed.functional import Collective, checked
from tracegrad.distributed.world import ProcessGroup, member
from tracegrad.errors import ArgumentError, ArgumentTypeError
from tracegrad.ops.arrays.joining import cat, stack
from tracegrad.support.cache import listed, memoize
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor

__all__ = ["FSDPModule", "fully_shard"]


class Sharding(NamedTuple):
    """How a parameter lies on the ranks of a group: rank r has the rows bounds[r] to bounds[r + 1] of a tensor of this shape."""

    shape: tuple[int, ...]
    bounds: tuple[int, ...]
    group: ProcessGroup


_shardings: dict[int, Sharding] = listed("sharded parameters", {})             # by id, as long as the parameter lives


def sharding_of(parameter: Tensor) -> Sharding | None:
    """How the parameter lies on the ranks; None if it is whole on each."""
    return _shardings.get(id(parameter))


class _Whole(Function):
    """The whole tensors, of all ranks' rows. Their gradients' mean over the ranks goes back, to each rank the part of its rows."""

    @staticmethod
    def forward(shardings: Sequence[Sharding], *shards: Tensor) -> Any:
        group, counts = shardings[0].group, _counts(shardings)
        longest, own = max(map(sum, counts)), counts[shardings[0].group.rank()]
        flat = cat([*(s.reshape(-1) for s in shards), shards[0].new_zeros((longest - sum(own),))])
        rows = Collective.apply(flat, "gather", group)
        wholes, starts = [], [0] * group.size()
        for k, sharding in enumerate(shardings):
            wholes.append(cat([rows[r, starts[r]:starts[r] + n[k]] for r, n in enumerate(counts)]).reshape(sharding.shape))
            starts = [start + n[k] for start, n in zip(starts, counts, strict=True)]
        return tuple(wholes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shardings = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        shardings, found = ctx.shardings, []
        group, counts = shardings[0].group, _counts(shardings)
        longest, own = max(map(sum, counts)), counts[group.rank()]
        rows = []
        for r, n in enumerate(counts):
            parts = [g[s.bounds[r]:s.bounds[r + 1]].reshape(-1) for g, s in zip(grads, shardings, strict=True)]
            rows.append(cat([*parts, grads[0].new_zeros((longest - sum(n),))]))
        flat, start = Collective.apply(stack(rows), "scatter", group, ReduceOp.AVG), 0
        for n, sharding in zip(own, shardings, strict=True):
            found.append(flat[start:start + n].reshape(-1 if n else 0, *sharding.shape[1:]))
            start += n
        return (None, *found)


def _counts(shardings: Sequence[Sharding]) -> list[list[int]]:
    """By rank: how many elements it has of each parameter."""
    found: list[list[int]] = [[] for _ in range(shardings[0].group.size())]
    for s in shardings:
        row = 1
        for n in s.shape[1:]:
            row *= n
        for mine, (low, high) in zip(found, pairwise(s.bounds), strict=True):
            mine.append((high - low) * row)
    return found


class FSDPModule:
    """What `fully_shard` adds to a module's class: a call in which its parameters are whole."""

    _sharded_places: list[list[tuple[Any, str]]]            # of each parameter: the modules that have it, and its names there

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _unsharded(self._sharded_places):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def __deepcopy__(self, memo: Any) -> Any:
        raise ArgumentError(f"deepcopy: a {type(self).__name__} is a part of one model on all ranks; save it with "
                            "tg.distributed.checkpoint, and load that into another model")


@contextmanager
def _unsharded(places: Sequence[Sequence[tuple[Any, str]]]) -> Iterator[None]:
    """Whole tensors in the parameters' places, gathered together as far as their dtypes and devices agree."""
    before, together = [], {}                # type: ignore[var-annotated]
    for where in places:
        parameter = where[0][0]._parameters[where[0][1]]
        sharding = sharding_of(parameter)
        if sharding is not None and sharding.group.size() > 1:          # (it is whole in a call inside a call)
            key = parameter.dtype, parameter.device, parameter.requires_grad
            together.setdefault(key, []).append((parameter, sharding, where))
    try:
        for same in together.values():
            parameters, shardings, wheres = zip(*same, strict=True)
            for p, whole, where in zip(parameters, _Whole.apply(list(shardings), *parameters), wheres, strict=True):
                for module, name in where:
                    before.append((module, name, p))
                    module._parameters[name] = whole
        yield
    finally:
        for module, name, parameter in before:
            module._parameters[name] = parameter


def fully_shard(module: Any, *, mesh: ProcessGroup | None = None, reshard_after_forward: bool | None = None,
                ignored_params: Collection[Tensor] = ()) -> Any:
    """Keep a module's parameters, their gradients and their optimizer's state by parts on the ranks, and return the module.

    Each parameter of shape (n, ...) becomes this rank's rows of it, about n / ranks. In a call of the module they are whole: one all_gather
    before its forward, one reduce_scatter in backward, which gives `grad` the mean over the ranks. Call it for blocks first, then for
    the model, which takes the parameters that are left; make the optimizer afterwards. Traced or not.

    mesh: the group of the ranks (default: all). ignored_params: parameters that stay as they are. reshard_after_forward is torch's, and
    changes nothing: the whole tensors live as long as the history of what was computed with them, until backward. The ranks begin with
    what each has of its rows, so seed all alike. Optimizers that work element by element (SGD, Adam, ...) update as on one rank;
    those that need whole matrices or all gradients (Muon, Adafactor, LBFGS) raise ArgumentError.

    Raises ArgumentTypeError unless it is a Module, ArgumentError for a module that is not called (a ModuleList), a parameter
    without dimensions or of a lazy layer and a second call for one module, and DistributedError before init_process_group.

        for layer in model.layers:
            tg.distributed.fully_shard(layer)
        tg.distributed.fully_shard(model)
        optimizer = tg.optim.Adam(model.parameters())
    """
    del reshard_after_forward
    group = member("fully_shard", mesh)
    cls: Any = type(module)
    if not isinstance(getattr(module, "_parameters", None), dict):
        raise ArgumentTypeError(f"fully_shard: expected a Module, got {cls.__name__}")
    if cls.forward.__qualname__ == "Module.forward":
        raise ArgumentError(f"fully_shard: {cls.__name__} has no forward, so there is no call in which its parameters are whole; call "
                            "fully_shard for the modules in it")
    if isinstance(module, FSDPModule):
        raise ArgumentError(f"fully_shard: this {cls.__name__} is sharded; call it once for each module, blocks before the model")
    ignored = {id(p) for p in ignored_params}
    places: dict[int, list[tuple[Any, str]]] = {}
    for path, part in module.named_modules():
        for name, p in part._parameters.items():
            if p is None or id(p) in ignored or sharding_of(p):
                continue
            shown = f"{path}.{name}" if path else name
            if hasattr(p, "materialize"):
                raise ArgumentError(f"fully_shard: {shown} is a lazy layer's and has no shape yet; call it after the model's first call")
            if not p.ndim:
                raise ArgumentError(f"fully_shard: {shown} has no dimensions, so no rows; give it the shape (1,), or name it in "
                                    "ignored_params")
            places.setdefault(id(p), []).append((part, name))
    for (part, name), *_ in places.values():
        _shard(part._parameters[name], group)
    module._sharded_places = list(places.values())
    module.__class__ = _class_of(cls)
    return module


@memoize(1024)
def _class_of(cls: Any) -> Any:
    """A module's class with the call of FSDPModule, one for all modules of the class."""
    return type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__module__": cls.__module__})


def _shard(parameter: Tensor, group: ProcessGroup) -> None:
    """Keep this rank's rows."""
    n, size, rank = parameter.shape[0], group.size(), group.rank()
    checked("fully_shard", parameter)
    sharding = Sharding(tuple(parameter.shape), tuple(n * r // size for r in range(size + 1)), group)
    if size > 1:
        with no_grad():
            parameter.data = parameter.detach()[sharding.bounds[rank]:sharding.bounds[rank + 1]].clone()
        parameter.grad = None
    _shardings[id(parameter)] = sharding
    weakref.finalize(parameter, _shardings.pop, id(parameter), None)
