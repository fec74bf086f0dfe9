"""`__torch_dispatch__`: tensors that wrap others, and the operators of aten's that their class is asked about. Start at `dispatched`.

A call with such a tensor goes to its class as (operator, types, args, kwargs). What torch takes apart before (indices, `to`, `narrow`)
comes as torch's operators, with their arguments. All other functions come as "aten.<name>.default" with the arguments of the call, which
are not those of torch's schema. Beneath such a class there is no derivative of its own: what the class computes has its history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad.errors import ArgumentTypeError, UnsupportedError, type_name
from tracegrad.graph.ir import Aval
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC
from tracegrad.graph.primitive import placeholder
from tracegrad.ops import aten
from tracegrad.tensors.tensor import Tensor

END = 2**63 - 1                     # the end of a slice that has none


@dataclass(frozen=True)
class Operator:
    """An operator of aten's, or an overload ("add.Tensor"): equal by name.

    Called, it is what `__torch_dispatch__` of an argument makes of it, else `real`, or tracegrad's function of that name.
    """

    name: str
    real: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"aten.{self.name}"

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='aten.{self.name}')>"

    def __getattr__(self, overload: str) -> Operator:
        if overload.startswith("__"):
            raise AttributeError(overload)
        return Operator(f"{self.name}.{overload}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        asked = dispatching((*args, *kwargs.values()))
        if asked:
            handler: Any = asked[0]
            return handler.__torch_dispatch__(self, tuple(asked), args, kwargs)
        name = self.name.partition(".")[0]
        function = self.real or _OF_ATEN.get(name) or PUBLIC.get(name) or FUNCTIONAL.get(name) or getattr(Tensor, name, None)
        if function is None:
            raise UnsupportedError(f"torch.ops.aten.{self.name}: there is no torch.{name} (docs/torch.md)")
        return function(*args, **kwargs)


def _index(input: Tensor, indices: Sequence[Any]) -> Any:
    return input[tuple(slice(None) if k is None else k for k in indices)]


def _to_copy(input: Tensor, **how: Any) -> Any:
    given = {name: value for name, value in how.items() if name in ("dtype", "device", "non_blocking") and value is not None}
    return input.to(**given, copy=True)


# Operators that no public function has the name or the arguments of.
_OF_ATEN: dict[str, Callable[..., Any]] = {
    "alias": lambda input: input.view(input.shape),
    "detach": lambda input: input.detach(),
    "index": _index,
    "slice": aten.slice,
    "_local_scalar_dense": lambda input: input.item(),
    "_pin_memory": lambda input: input,
    "_to_copy": _to_copy,
}


def is_dispatching(cls: type) -> bool:
    """Whether operators with tensors of this class go to its `__torch_dispatch__`."""
    return issubclass(cls, Tensor) and getattr(cls, "__torch_dispatch__", None) is not None


def dispatching(args: Iterable[Any]) -> list[type]:
    """The classes that are asked about operators with these arguments, subclasses before their bases."""
    found: list[type] = []
    for arg in args:
        for item in arg if isinstance(arg, (list, tuple)) else (arg,):
            cls = type(item)
            if cls not in found and is_dispatching(cls):
                found.insert(next((i for i, other in enumerate(found) if issubclass(cls, other)), len(found)), cls)
    return found


def make_wrapper_subclass(cls: type[Tensor], size: Any, strides: Any = None, storage_offset: Any = None, memory_format: Any = None,
                          dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
                          **_: Any) -> Any:
    """A tensor of class `cls` with this shape, dtype and device, and no values: those are its class's affair. Reading them is an error.

    Strides are those of a contiguous tensor, whatever is given.
    Raises ArgumentTypeError unless `cls` has `__torch_dispatch__`.
    """
    if not is_dispatching(cls):
        raise ArgumentTypeError(f"_make_wrapper_subclass: {type_name(cls)} {cls.__name__} has no __torch_dispatch__, so nobody would "
                                "compute with its tensors")
    empty = PUBLIC["empty"]((0,), dtype=dtype, device=device)
    made: Any = Tensor(placeholder(Aval(tuple(size), empty._n.aval.dtype), cls.__name__), empty._device)
    made.__class__ = cls
    return made.requires_grad_() if requires_grad else made


# ----------------------------------------------------------------------------------------------- what torch takes apart


def _sliced(x: Any, dim: int, start: int, end: int, step: int = 1) -> Any:
    return Operator("slice.Tensor")(x, dim, start, end, *([step] if step != 1 else []))


def _getitem(x: Any, key: Any) -> Any:
    """Indices one by one, as torch's operators: whole numbers, slices and None first, then tensors together."""
    items = list(key) if isinstance(key, tuple) else [key]
    items = [PUBLIC["tensor"](k) if isinstance(k, list) and k else k for k in items]
    takes = [k.ndim if isinstance(k, Tensor) and k._n.aval.dtype.kind == "b" else 0 if k is None or k is Ellipsis else 1 for k in items]
    dim, indices = 0, {}
    for item, count in zip(items, takes, strict=True):
        if item is Ellipsis:
            dim += x.ndim - sum(takes) + sum(1 for k in items[:items.index(item)] if k is None)
        elif item is None:
            x = Operator("unsqueeze.default")(x, dim)
            dim += 1
        elif isinstance(item, slice):
            start, end, step = item.start or 0, END if item.stop is None else item.stop, item.step or 1
            if len(items) == 1 or (start, end, step) != (0, END, 1):
                x = _sliced(x, dim, start, end, step)
            dim += 1
        elif isinstance(item, int):
            x = Operator("select.int")(x, dim, item)
        else:
            indices[dim] = item
            dim += count
    return Operator("index.Tensor")(x, [indices.get(d) for d in range(max(indices) + 1)]) if indices else x


def _to(x: Any, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
    """`_to_copy` where something is different, else x."""
    if args and isinstance(args[0], Tensor):
        kwargs, args = {"dtype": args[0].dtype, "device": args[0].device}, ()
    names = [name for name, value in kwargs.items() if value is not None]
    plain = PUBLIC["empty"]((0,), dtype=x.dtype, device=x.device)
    made = plain.to(*args, **kwargs)
    changed: dict[str, Any] = {"dtype": made.dtype} if made.dtype != x.dtype else {}
    if made._device is not plain._device:
        changed["device"] = made.device
    if not changed and not copy:
        return x
    return Operator("_to_copy.default")(x, **changed, **{n: kwargs[n] for n in names if n == "non_blocking"})


def _turned_to(name: str) -> Callable[..., Any]:
    """`long`, `cpu` and their like."""
    def turned(x: Any, *args: Any, **kwargs: Any) -> Any:
        made = getattr(PUBLIC["empty"]((0,), dtype=x.dtype, device=x.device), name)()
        return _to(x, dtype=made.dtype, device=made.device)

    return turned


def _flip(x: Any, *dims: Any) -> Any:
    return Operator("flip.default")(x, list(dims[0]) if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else list(dims))


def _cat(tensors: Any, dim: int = 0) -> Any:
    return Operator("cat.default")(list(tensors), *([dim] if dim else []))


def _sort(x: Any, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    if stable is None:
        return Operator("sort.default")(x, *([dim, descending] if descending else [dim] if dim != -1 else []))
    return Operator("sort.stable")(x, stable=stable, **({"dim": dim} if dim != -1 else {}), **({"descending": True} if descending else {}))


def _unbind(x: Any, dim: int = 0) -> Any:
    return Operator("unbind.int")(x, *([dim] if dim else []))


def _narrow(x: Any, dim: int, start: int, length: int) -> Any:
    return _sliced(x, dim, start, start + length)


_APART: dict[str, Callable[..., Any]] = {
    "__getitem__": _getitem, "to": _to, "flip": _flip, "sort": _sort, "unbind": _unbind, "narrow": _narrow,
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **{name: _turned_to(name) for name in ("long", "int", "short", "half", "float", "double", "bool", "bfloat16", "cpu")},
    "select": Operator("select.int"),
    "__iter__": lambda x: iter(_unbind(x)),
    "contiguous": lambda x, **_: x,
    **dict.fromkeys(("item", "__index__"), Operator("_local_scalar_dense.default")),
    "__bool__": lambda x: bool(Operator("_local_scalar_dense.default")(x)),
    "__int__": lambda x: int(Operator("_local_scalar_dense.default")(x)),
    "__float__": lambda x: float(Operator("_local_scalar_dense.default")(x)),
    "pin_memory": lambda x, *_: Operator("_pin_memory.default")(x),
}
# What is known of a tensor without its values.
_KNOWN = {"size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous", "is_floating_point", "is_complex",
          "is_signed", "element_size", "get_device", "requires_grad_", "__len__", "is_pinned", "is_shared", "as_subclass", "is_tensor",
          "is_same_size"}
_TENSORS = {"add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_"}                             # of numbers, too
_SIZED = {"view", "reshape", "expand", "repeat", "permute", "tile", "new_zeros", "new_ones", "new_empty"}   # of sizes, also one by one
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
_PROPERTIES = {"T": "permute", "mT": "transpose", "H": "adjoint", "data": "detach", "real": "real", "imag": "imag"}


def dispatched(func: Any, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a call gives that has tensors of a dispatching class among its arguments."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        own = next((n for n in _PROPERTIES if getattr(Tensor, n, None) is real.__self__), None)     # type: ignore[attr-defined]
        return real(*args, **kwargs) if own is None else Operator(f"{_PROPERTIES[own]}.default", lambda x: getattr(x, own))(*args)
    if name in _KNOWN:
        return real(*args, **kwargs)
    if "out" in kwargs and kwargs["out"] is None:
        kwargs = {key: value for key, value in kwargs.items() if key != "out"}
    if "out" in kwargs:
        return Operator(f"{name}.out", real)(*args, **kwargs)
    if name in _APART:
        return _APART[name](*args, **kwargs)
    if name in _TENSORS:
        result = Operator(f"{name}.Tensor")(*args, **kwargs)
        return args[0] if name.endswith("_") else result
    if name in _SIZED and len(args) > 1 and all(isinstance(n, int) for n in args[1:]):
        args = args[0], list(args[1:])
    if name in _COMPARISONS and len(args) > 1:
        return Operator(f"{name}.{'Tensor' if isinstance(args[1], Tensor) else 'Scalar'}")(*args, **kwargs)
    if name == "matmul" and len(args) == 2 and args[0].ndim == args[1].ndim == 2:
        return Operator("mm.default")(*args)
    return Operator(f"{name.strip('_') if name.startswith('__') else name}.default", real)(*args, **kwargs)
