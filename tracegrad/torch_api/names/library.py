"""torch.library: operations of users, as custom Functions. Start at `CustomOpDef`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tracegrad.custom.custom_function import Function
from tracegrad.torch_api.names import ops


class CustomOpDef:
    """An operation under a name like "library::op". A call runs the function, or, with `register_autograd`, a Function made of it."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self._name, self._fn = name, fn
        self._function: type[Function] | None = None
        self.__doc__, self.__name__ = fn.__doc__, name.partition("::")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs) if self._function is None else self._function.apply(*args, **kwargs)

    default = property(lambda self: self)               # torch.ops.library.op.default: there are no overloads

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., Any] | None = None) -> None:
        """The derivative: backward(ctx, *grads), and setup_context(ctx, inputs, output), which saves what it needs."""
        members = {"forward": staticmethod(self._fn), "backward": staticmethod(backward),
                   "setup_context": staticmethod(setup_context or (lambda ctx, inputs, output: None))}
        self._function = type(self.__name__, (Function,), members)

    def register_fake(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """fn, which is not needed: recording runs the function itself."""
        return fn

    register_kernel = register_vmap = lambda self, *_, **__: lambda fn: fn


def custom_op(name: str, fn: Callable[..., Any] | None = None, /, *, mutates_args: str | Iterable[str] = (), **_: Any) -> Any:
    """Make a function of tensors an operation that `torch.ops` has, too. Without fn: a decorator."""
    if fn is None:
        return lambda function: custom_op(name, function, mutates_args=mutates_args)
    op = CustomOpDef(name, fn)
    ops.register(name, op)
    return op


triton_op = custom_op


triton_op = custom_op


def wrap_triton(triton_kernel: Any) -> Any:
    """The kernel as it is: nothing looks into an operation."""
    return triton_kernel


def register_fake(op: Any, func: Any = None, /, **_: Any) -> Any:
    """func, which is not needed: recording runs the operation itself."""
    return func if func is not None else lambda function: function


impl_abstract = register_fake                           # torch's older name


def register_autograd(op: Any, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None, **_: Any) -> None:
    """The derivative of an operation, by its name or itself: see `CustomOpDef.register_autograd`."""
    (ops.find(op) if isinstance(op, str) else op).register_autograd(backward, setup_context=setup_context)


_ELSEWHERE = "cuda", "xpu", "mps", "hpu", "privateuse"          # dispatch keys of devices that are not here


class Library:
    """Operations that are registered with torch's dispatcher under a name: `define` one, and give its function with `impl`."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self.kind, self.key = ns, kind, dispatch_key

    def define(self, schema: str, *_: Any, **__: Any) -> str:
        """The operation's name, from a schema like "add_one(Tensor x) -> Tensor". It can be called once `impl` has given its function."""
        return schema.partition("(")[0].strip()

    def impl(self, op_name: Any, fn: Callable[..., Any], dispatch_key: str = "", **_: Any) -> None:
        """fn computes the operation. Those for dispatch keys without values ("Meta", "Autograd...", "Autocast...") are not needed, nor
        those for devices that are not here ("CUDA") where there is another."""
        key = dispatch_key or self.key
        if isinstance(op_name, str) and not key.startswith(("Meta", "Auto", "Functionalize")):
            _register(op_name if "::" in op_name else f"{self.ns}::{op_name}", fn, key)


def define(qualname: str, schema: str, *_: Any, **__: Any) -> None:
    """Nothing: `impl` tells the function."""


def impl(qualname: str, types: Any, func: Callable[..., Any] | None = None, *, lib: Any = None) -> Any:
    """func computes the operation "library::op". Without func: a decorator."""
    if func is None:
        return lambda function: impl(qualname, types, function)
    _register(qualname, func, types if isinstance(types, str) else "")
    return func


def _register(name: str, fn: Callable[..., Any], key: str) -> None:
    if not (key.lower().startswith(_ELSEWHERE) and ops.is_registered(name)):
        ops.register(name, CustomOpDef(name, fn))
