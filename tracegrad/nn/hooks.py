"""Hooks of modules: how they are registered and called (`Hooked`), and how the gradients that pass a module are seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracegrad.custom.custom_function import Function
from tracegrad.errors import ArgumentError
from tracegrad.support.modes import every_module
from tracegrad.tensors.tensor import Tensor

_numbers = itertools.count()


class RemovableHandle:
    """What registering a hook returns: `remove()` takes the hook away; as a context manager, at the end of the block."""

    def __init__(self, hooks: dict[str, dict[int, Any]], kind: str) -> None:
        self._tg_hooks, self._kind, self.id = hooks, kind, next(_numbers)

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        of_kind = self._tg_hooks.get(self._kind, {})
        of_kind.pop(self.id, None)
        if not of_kind:
            self._tg_hooks.pop(self._kind, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class _Passing(Function):
    """The tensors as they are; backward hands their gradients, a tuple, to `seen` and passes on what that returns."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[tuple[Any, ...]], tuple[Any, ...]], *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.seen = seen
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.seen(grads))


def register(hooks: dict[str, dict[int, Any]], kind: str, what: Any, prepend: bool = False) -> RemovableHandle:
    """Note a hook in a table: a module's, or `every_module`, whose hooks are called before its own."""
    of_kind = hooks.setdefault(kind, {})
    handle = RemovableHandle(hooks, kind)
    before = dict(of_kind) if prepend else {}
    if prepend:
        of_kind.clear()
    of_kind[handle.id] = what
    of_kind.update(before)
    return handle


def as_registered(kind: str, module: Any, name: str, value: Any) -> Any:
    """What becomes a module's attribute in the place of `value`, as hooks of all modules have it. kind: "parameter", "buffer", "module"."""
    for hook in list(every_module.get(kind, {}).values()):
        given = hook(module, name, value)
        value = value if given is None else given
    return value


def around_backward(module: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                    before: list[Any], after: list[Any]) -> Any:
    """forward(*args, **kwargs) between two operations whose derivatives call the module's backward hooks, if it has any."""
    if not before and not after:
        return forward(*args, **kwargs)
    inputs = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a._has_history()]
    taken, given_back = len(args), 0                        # the operations know these numbers and no tensors: those know the operations
    latest: tuple[Any, ...] = ()                            # the gradients of the outputs

    def at_inputs(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        full: Any = tuple(grads[inputs.index(k)] if k in inputs else None for k in range(taken))
        for hook in after:
            given = hook(module, full, latest)
            if given is not None:
                full = given if isinstance(given, tuple) else (given,)
        return tuple(full[k] for k in inputs)

    def at_outputs(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal latest
        full: Any = tuple(grads[outputs.index(k)] if k in outputs else None for k in range(given_back))
        for hook in before:
            given = hook(module, full)
            if given is not None:
                full = given if isinstance(given, tuple) else (given,)
        latest = full
        if not inputs:                                      # nothing below needs a gradient: this is as far as it comes
            for hook in after:
                hook(module, (None,) * taken, full)
        return tuple(full[k] for k in outputs)

    if inputs:
        passed = dict(zip(inputs, _Passing.apply(at_inputs, *(args[k] for k in inputs)), strict=True))
        args = tuple(passed.get(k, a) for k, a in enumerate(args))
    result = forward(*args, **kwargs)
    several = isinstance(result, (tuple, list))
    results = list(result) if several else [result]
    given_back = len(results)
    outputs = [k for k, r in enumerate(results) if isinstance(r, Tensor) and r._has_history()]
    if outputs:
        for k, passing in zip(outputs, _Passing.apply(at_outputs, *(results[k] for k in outputs)), strict=True):
            results[k] = passing
    if not several:
        return results[0]
    return type(result)(*results) if hasattr(result, "_fields") else type(result)(results)


class Hooked:
    """The base of `Module` that has its hooks. A handle's remove() takes a hook away."""

    _tg_hooks: dict[str, dict[int, Any]]          # kind of hook -> what was registered, by the number of its handle
    if TYPE_CHECKING:
        forward: Callable[..., Any]

    # Torch's names of them, by which programs ask whether there are some, and take all away.
    _forward_pre_hooks = property(lambda self: self._tg_hooks.get("forward_pre", {}))
    _forward_hooks = property(lambda self: self._tg_hooks.get("forward", {}))
    _backward_pre_hooks = property(lambda self: self._tg_hooks.get("backward_pre", {}))
    _backward_hooks = property(lambda self: self._tg_hooks.get("backward", {}))

    def _tg_all_hooks(self, kind: str) -> list[tuple[int, Any]]:
        """Those of all modules and this one's own, by number."""
        return [*every_module.get(kind, {}).items(), *self._tg_hooks.get(kind, {}).items()]

    def _tg_call_hooked(self, args: Any, kwargs: dict[str, Any]) -> Any:
        called: set[int] = set()
        result: Any = None

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal result
            result = self.forward(*args, **kwargs)
            for key, (hook, with_kwargs, _) in self._tg_all_hooks("forward"):
                called.add(key)
                given = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                result = result if given is None else given
            return result

        try:
            before, after = ([hook for _, hook in self._tg_all_hooks(kind)] for kind in ("backward_pre", "backward"))
            for _, (hook, with_kwargs) in self._tg_all_hooks("forward_pre"):
                given = hook(self, args, kwargs) if with_kwargs else hook(self, args)
                if given is not None and with_kwargs:
                    if not isinstance(given, tuple) or len(given) != 2:
                        raise ArgumentError(f"{type(self).__name__}: a forward pre-hook with_kwargs must return None or (args, kwargs), "
                                            f"got {type(given).__name__}")
                    args, kwargs = given
                elif given is not None:
                    args = given if isinstance(given, tuple) else (given,)
            return around_backward(self, forward, args, kwargs, before, after)
        except Exception:
            for key, (hook, with_kwargs, always) in self._tg_all_hooks("forward"):
                if always and key not in called:
                    hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            raise

    def _tg_hook(self, kind: str, what: Any, prepend: bool) -> RemovableHandle:
        return register(self._tg_hooks, kind, what, prepend)

    def register_forward_pre_hook(self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Call hook(module, args) before each forward; what it returns, unless None, replaces the arguments.

        with_kwargs: hook(module, args, kwargs), which may return (args, kwargs). prepend: before the hooks that are there.
        Returns a handle whose remove() takes the hook away. The same holds for the other kinds of hooks.

        >>> handle = nn.Linear(2, 2).register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        """
        return self._tg_hook("forward_pre", (hook, with_kwargs), prepend)

    def register_forward_hook(self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False,
                              always_call: bool = False) -> RemovableHandle:
        """Call hook(module, args, output) after each forward; what it returns, unless None, replaces the output.

        with_kwargs: hook(module, args, kwargs, output). always_call: also when forward fails (with output None).

        >>> handle = nn.Linear(2, 2).register_forward_hook(lambda module, args, output: output.relu())
        """
        return self._tg_hook("forward", (hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call hook(module, grad_output) when the gradients of the outputs, a tuple, are known; what it returns replaces them."""
        return self._tg_hook("backward_pre", hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call hook(module, grad_input, grad_output) when the gradients of the inputs are known; what it returns replaces grad_input.

        Both are tuples, one for each positional argument and each output; None stands for what has no gradient. Tensors that arguments and
        outputs hold in dictionaries or as keywords are not looked at.
        """
        return self._tg_hook("backward", hook, prepend)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(module, prefix, keep_vars) before `state_dict` collects what there is."""
        return self._tg_hook("state_pre", hook, False)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(module, state_dict, prefix, local_metadata), which may change the dictionary, at the end of `state_dict`."""
        return self._tg_hook("state", hook, False)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs) before `load_state_dict`

        looks at what it was given: a copy of the dictionary, in which the hook may rename, add and remove entries.
        """
        return self._tg_hook("load_pre", hook, False)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(module, incompatible_keys) when `load_state_dict` has compared names; keys that it takes out of the lists count not."""
        return self._tg_hook("load", hook, False)
