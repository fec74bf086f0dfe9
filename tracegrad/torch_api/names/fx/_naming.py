"""What functions and types are called in graphs and in generated code: by torch's names, so that the code reads as torch's. Start at

`qualified_name`; `Namespace` gives each node a name of its own.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import math
import re
import types
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from tracegrad.tensors.tensor import Tensor

# Where torch defines what it shows in torch.nn.functional and torch. linalg, fft and special: see `_torch_name`.
_HOMES = {
    "torch.nn.functional": {"torch._C._nn": "avg_pool2d avg_pool3d elu_ gelu hardtanh_ leaky_relu_ linear one_hot "
                                            "scaled_dot_product_attention softplus softshrink"},
    "torch": {"torch.functional": "atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors cartesian_prod cdist chain_matmul einsum "
                                  "lu meshgrid norm split stft tensordot unique unique_consecutive unravel_index"},
}
_HOME = {f"{shown}.{name}": f"{home}.{name}" for shown, homes in _HOMES.items() for home, names in homes.items() for name in names.split()}
_SHOWN_BY = "torch", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special", "torch.nn.init"


def _torch_name(fn: Any) -> str | None:
    """Under which name a program finds a function or class of tracegrad's; None where it does not."""
    name = getattr(fn, "__name__", "")
    if fn is Tensor:
        return "torch.Tensor"
    for shown in _SHOWN_BY:
        if vars(module := import_module(shown)).get(name) is fn or getattr(module, name, None) is fn:
            part = shown.rpartition(".")[2]
            if part in ("linalg", "fft", "special"):
                return f"torch._C._{part}.{part}_{name}"
            return _HOME.get(f"{shown}.{name}", f"{shown}.{name}")
    for ours, torchs in (("tracegrad.torch_api.names", "torch"), ("tracegrad.nn.", "torch.nn.")):
        if (getattr(fn, "__module__", None) or "").startswith(ours):
            return f"{torchs}{fn.__module__.removeprefix(ours)}.{fn.__qualname__}"
    return None


def is_from_torch(obj: Any) -> bool:
    """Whether generated code finds an object under `torch`."""
    return (getattr(obj, "__module__", None) or "").partition(".")[0] in ("tracegrad", "torch") and bool(_torch_name(obj))


def is_method(fn: Any) -> bool:
    """Whether it is a method of Tensor's, or the `__get__` of a property's."""
    return isinstance(getattr(fn, "__self__", None), property) or (
        isinstance(fn, types.FunctionType) and getattr(Tensor, fn.__name__, None) is fn)


def qualified_name(fn: Any) -> str:
    """The name of a function with its module: "torch.nn.functional.relu", "_operator.add", "getattr", "__main__.f"."""
    name: str = fn.__name__
    if getattr(builtins, name, None) is fn:
        return name
    if is_method(fn):
        return f"torch.Tensor.{name}"
    if is_from_torch(fn) and (found := _torch_name(fn)):
        return found
    if name == "<lambda>":
        try:
            name = inspect.getsource(fn).split("=")[0].strip()
        except OSError as error:
            raise RuntimeError("Unable to represent lambda") from error
    return f"{fn.__module__}.{name}"


def node_name(target: str | Callable[..., Any]) -> str:
    """What the node of a target is called, but for the number that makes it the only one."""
    if not isinstance(target, str):
        target = qualified_name(target).rpartition(".")[2] if is_from_torch(target) else target.__name__
    elif target.startswith("__") and target.endswith("__"):
        target = target[2:-2]
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", target).lower()


def target_text(target: Any) -> str:
    """A target as listings show it."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__name__", None)
    module = {"builtins": "builtins", "_operator": "operator"}.get(getattr(target, "__module__", None) or "")
    return f"{module}.{name}" if name and module else qualified_name(target)


def type_text(kind: Any) -> str:
    """A type as annotations show it."""
    if isinstance(kind, type) and not typing.get_args(kind):
        if kind.__module__ == "builtins":
            return kind.__qualname__
        return (is_from_torch(kind) and _torch_name(kind)) or f"{kind.__module__}.{kind.__qualname__}"
    return "..." if kind is ... else kind.__name__ if isinstance(kind, types.FunctionType) else repr(kind).replace(
        "tracegrad.tensors.tensor.", "torch.")


def module_globals() -> Iterator[tuple[str, str, Any]]:
    """What generated code can name without an import: the name, the statement that imports it, the object."""
    yield "inf", "from math import inf", math.inf
    yield "nan", "from math import nan", math.nan
    yield "NoneType", "NoneType = type(None)", type(None)
    yield "torch", "import torch", import_module("torch")
    yield "device", "from torch import device", import_module("torch").device
    yield "fx_pytree", "import torch.fx._pytree as fx_pytree", import_module("torch.fx._pytree")
    yield "pytree", "import torch.utils._pytree as pytree", import_module("torch.utils._pytree")


_RESERVED = {*keyword.kwlist, *vars(builtins), "inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree"}
_NAME = re.compile(r"([a-zA-Z_][0-9a-zA-Z_]*?)(?:_(\d+))?$")


class Namespace:
    """Names, each of one object."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, Any]] = {}        # the name of an object, by its id; the object is kept alive
        self._used: set[str] = set()
        self._last: dict[str, int] = {}

    def create_name(self, candidate: str, obj: Any) -> str:
        """A name like `candidate` that is not used, which becomes that of `obj` unless it is None."""
        if obj is not None and id(obj) in self._names:
            return self._names[id(obj)][0]
        if not _NAME.match(candidate):
            candidate = re.sub("[^0-9a-zA-Z_]+", "_", candidate) or "_unnamed"
            candidate = f"_{candidate}" if candidate[0].isdigit() else candidate
        base, number = _NAME.match(candidate).groups()      # type: ignore[union-attr]
        if number is None or candidate in self._used:
            last = self._last.get(base, 0)
            if candidate in _RESERVED and not self._is_reserved(candidate, obj):
                last += 1
                candidate = f"{base}_{last}"
        else:
            last = int(number)
        while candidate in self._used:
            last += 1
            candidate = f"{base}_{last}"
        self._used.add(candidate)
        self._last[base] = last
        if obj is not None:
            self._names[id(obj)] = candidate, obj
        return candidate

    @staticmethod
    def _is_reserved(name: str, obj: Any) -> bool:
        """Whether a reserved name is the object's own."""
        return obj is not None and (getattr(builtins, name, None) is obj or any(name == n and obj is o for n, _, o in module_globals()))

    def rename(self, obj: Any, name: str) -> None:
        """Give an object that has a name another."""
        self._names[id(obj)] = name, obj
        self._used.add(name)
