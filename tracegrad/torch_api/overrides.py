"""`__torch_function__`: subclasses of Tensor, other classes, and modes that decide what torch's functions do. Start at `overridable`.

A function that a program takes from torch's modules looks for such classes among its arguments' types. Methods of Tensor do once there
is a subclass, another class with `__torch_function__`, or a mode: before that they cost nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import Parameter as Parameter_
from inspect import signature
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from tracegrad.autograd import backward, grad, vmap_transform
from tracegrad.graph.operators import FOURIER, FUNCTIONAL, LINALG, PUBLIC, SPECIAL
from tracegrad.nn import functional, init
from tracegrad.nn.parameter import Buffer, Parameter, UninitializedParameter
from tracegrad.support.cache import memoize
from tracegrad.tensors.tensor import Tensor, older
from tracegrad.torch_api import dtypes
from tracegrad.torch_api.dispatch import dispatched, is_dispatching, make_wrapper_subclass

_OWN = Tensor, Parameter, Buffer, UninitializedParameter
# Types of arguments that override nothing and hold nothing that might.
_plain: set[type] = {*_OWN, int, float, bool, complex, str, bytes, type(None), slice, type(Ellipsis), type, np.ndarray, dtypes.dtype}
_HOLDERS = list, tuple


class _Thread(threading.local):
    def __init__(self) -> None:
        self.modes: list[Any] = []
        self.all_off = self.subclasses_off = 0


_thread = _Thread()
_entered: list[Any] = []                    # the modes of all threads: empty where no call need ask
_HOMES = {"torch": PUBLIC, "torch.linalg": LINALG, "torch.special": SPECIAL, "torch.fft": FOURIER, "torch.nn.init": vars(init)}
_wrappers: dict[Any, Any] = {}              # of functions: what programs get in their place


def _holds_plain(args: Iterable[Any]) -> bool:
    """Whether arguments, and the items of lists and tuples among them, are of types that override nothing."""
    for arg in args:
        cls = type(arg)
        if cls not in _plain and not (cls in _HOLDERS and _plain.issuperset(map(type, arg))):
            return False
    return True


def disabled(cls: type, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The `__torch_function__` of a class that overrides nothing."""
    return func(*args, **kwargs or {})


class Off:
    """A block in which no `__torch_function__` is called; with `modes` False those of modes still are."""

    def __init__(self, modes: bool = True) -> None:
        self._modes = modes

    def __enter__(self) -> None:
        _thread.subclasses_off += 1
        _thread.all_off += self._modes

    def __exit__(self, *_: Any) -> None:
        _thread.subclasses_off -= 1
        _thread.all_off -= self._modes


def enabled() -> bool:
    """Whether arguments' `__torch_function__` is called."""
    return not _thread.subclasses_off


def modes_entered() -> int:
    """How many modes this thread is in."""
    return len(_thread.modes)


def overrides(cls: type) -> bool:
    """Whether calls with arguments of this class go to its `__torch_function__`."""
    handler = getattr(cls, "__torch_function__", None)
    if cls not in _OWN and is_dispatching(cls):
        return True
    return handler is not None and cls not in _OWN and getattr(handler, "__func__", handler) is not disabled


def overriding(args: Iterable[Any]) -> list[Any]:
    """The arguments, one of each class, that override functions, in the order in which they are asked: subclasses before their bases."""
    found: list[Any] = []
    for arg in args:
        for item in arg if type(arg) in _HOLDERS else (arg,):
            cls = type(item)
            if cls in _plain or any(type(other) is cls for other in found):
                continue
            if overrides(cls):
                found.insert(next((i for i, other in enumerate(found) if issubclass(cls, type(other))), len(found)), item)
            elif cls not in _HOLDERS and cls is not dict:
                _plain.add(cls)
    return found


def overridden(func: Callable[..., Any], real: Callable[..., Any], args: Any, kwargs: Any, among: Iterable[Any] | None = None) -> Any:
    """What the call func(*args, **kwargs) gives, asking modes and arguments first. real: what computes it where nobody overrides it."""
    if _thread.all_off:
        return real(*args, **kwargs)
    asked = [] if _thread.subclasses_off else overriding((*args, *kwargs.values()) if among is None else among)
    types = tuple(type(a) for a in asked)
    if _thread.modes:
        mode = _thread.modes.pop()
        try:
            result = mode.__torch_function__(func, types, args, kwargs)
        finally:
            _thread.modes.append(mode)
        if result is not NotImplemented:
            return result
    if not asked:
        return real(*args, **kwargs)
    see_methods()
    for arg in asked:
        cls = type(arg)
        handler = getattr(cls.__torch_function__, "__func__", cls.__torch_function__)
        if handler is disabled or (handler is torch_function and is_dispatching(cls)):
            return dispatched(func, real, args, kwargs)
        result = cls.__torch_function__(func, types, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for '{getattr(func, '__name__', func)}' on types that implement __torch_function__: "
                    f"{[t.__name__ for t in types]}")


def overridable(fn: Any, name: str = "") -> Any:
    """The function that programs get in the place of `fn`; anything that takes no tensors, itself.

    name: under which it is asked for. One of torch's older or newer names (`arctan`) is a function of its own, which has that name.
    """
    if type(fn) is not FunctionType:
        return fn
    own = fn.__name__
    key = (fn, name) if name != own and fn is PUBLIC.get(name) and fn is PUBLIC.get(own) else fn
    if (known := _wrappers.get(key)) is not None:
        return known
    if fn not in _functions():
        return fn
    home = next((module for module, table in _HOMES.items() if table.get(fn.__name__) is fn), fn.__module__)
    arranged = _flat if fn is PUBLIC["einsum"] else _arranged(fn) if fn.__name__ in _ARRANGED else None
    _wrappers[key] = made = _entry(fn, arranged, home)
    if key is not fn:
        made.__name__ = made.__qualname__ = name
    return made


def _entry(fn: Any, arranged: Callable[..., tuple[Any, Any]] | None, home: str) -> Any:
    """What programs get in the place of `fn`. arranged: how a `__torch_function__` is given the arguments; None: as they are.

    home: the module of torch's that has it, under which it is pickled.
    """
    shown_to_modes_only = fn.__name__ in _SEEN_BY_MODES_ONLY
    shown: Any = fn
    fn = _of_numbers(fn) if shown.__name__ in _OF_NUMBERS and PUBLIC.get(shown.__name__) is shown else fn

    @wraps(shown)
    def entry(*args: Any, **kwargs: Any) -> Any:
        if _entered or not (_plain.issuperset(map(type, args)) or _holds_plain(args)) or (
                kwargs and not _plain.issuperset(map(type, kwargs.values()))):
            if shown_to_modes_only:
                with Off(modes=False):
                    return overridden(entry, fn, args, kwargs)
            if arranged is not None:
                args, kwargs = arranged(args, kwargs)
            return overridden(entry, fn, args, kwargs)
        return fn(*args, **kwargs)

    entry.__name__ = entry.__qualname__ = shown.__name__.strip("_") + "_" * _in_place(shown)
    entry.__module__ = home
    _wrappers[entry] = entry
    return entry


def _of_numbers(fn: Any) -> Any:
    """The function, which of two numbers gives the tensor that it gives of the first one's."""
    def of_numbers(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and isinstance(args[0], (int, float, complex)) and isinstance(args[1], (int, float, complex)):
            args = PUBLIC["tensor"](args[0]), *args[1:]
        return fn(*args, **kwargs)

    of_numbers.__name__ = fn.__name__
    return of_numbers


def _arranged(fn: Any) -> Callable[..., tuple[Any, Any]] | None:
    """How torch's functions that are written in Python hand on their arguments: those with a default value by name, all of them."""
    parameters = signature(fn).parameters.values()
    if any(p.kind in (Parameter_.VAR_POSITIONAL, Parameter_.VAR_KEYWORD) for p in parameters):
        return None
    positional = [p.name for p in parameters if p.default is Parameter_.empty or (fn.__name__, p.name) in _POSITIONAL]

    def arranged(args: Any, kwargs: Any) -> tuple[Any, Any]:
        try:
            bound = signature(fn).bind(*args, **kwargs)
        except TypeError:
            return args, kwargs                             # the function itself says what is wrong
        bound.apply_defaults()
        return tuple(bound.arguments.pop(name) for name in positional), dict(bound.arguments)

    return arranged


def _flat(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """einsum's operands one by one, also where they were given as a list."""
    return ((args[0], *args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else args), kwargs


def _with_stacklevel(fn: Any) -> Any:
    """softmax and its like with the parameter that torch's have for their warnings."""
    def shown(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        return fn(input, dim, dtype)

    shown.__name__ = shown.__qualname__ = fn.__name__
    shown.__module__, shown.__doc__ = fn.__module__, fn.__doc__
    return shown


def _own_functional(name: str, fn: Any) -> Any:
    """torch.nn.functional's function of a name: another one than torch's of that name, unless torch has one for both."""
    if fn not in _functions() or name in _SHARED:
        return overridable(fn)
    fn = _with_stacklevel(fn) if name in ("softmax", "softmin", "log_softmax") else fn
    return _entry(fn, None if name in _COMPILED else _arranged(fn), "torch.nn.functional")


# Functions of torch.nn.functional that are torch's, too; those that are not written in Python; those of torch that are.
_SHARED = {
    "adaptive_avg_pool1d", "avg_pool1d", "bilinear", "celu_", "channel_shuffle", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_similarity", "hardshrink", "native_channel_shuffle",
    "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle", "prelu", "relu_", "rrelu_", "selu_", "threshold_"}
_COMPILED = {"avg_pool2d", "avg_pool3d", "elu_", "gelu", "hardtanh_", "leaky_relu_", "linear", "logsigmoid", "one_hot",
             "scaled_dot_product_attention", "softplus", "softshrink"}
_ARRANGED = {"cdist", "split", "stft"}
_OF_NUMBERS = {"add", "sub", "mul", "div", "floor_divide"}                   # torch takes two numbers here, and nowhere else
_POSITIONAL = {("batch_norm", "running_mean"), ("batch_norm", "running_var")}
# What makes plain tensors of anything, and tells of them.
_SEEN_BY_MODES_ONLY = {"tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor"}


@memoize(1)
def _functions() -> set[Any]:
    """What computes with tensors."""
    tables = PUBLIC, FUNCTIONAL, LINALG, SPECIAL, FOURIER, vars(functional), {n: f for n, f in vars(init).items() if n.endswith("_")}
    found: set[Any] = {fn for table in tables for name, fn in table.items() if type(fn) is FunctionType and name != "is_tensor"}
    return found | {backward, grad}


def _in_place(fn: Callable[..., Any]) -> bool:
    """Whether a function writes into its argument, so that its name ends in "_"."""
    return any(table.get(fn.__name__) is fn for table in (PUBLIC, FUNCTIONAL, vars(init))) and fn.__name__.endswith("_")


def is_overridable(fn: Any) -> bool:
    """Whether it is a function as `overridable` gives them."""
    return type(fn) is FunctionType and _wrappers.get(fn) is fn


# ---------------------------------------------------------------------------------------------------------------- methods


class _Method:
    """A method of Tensor that asks. Tensor.add itself is the plain function: that is what a `__torch_function__` is given."""

    def __init__(self, real: Callable[..., Any], shown: Callable[..., Any]) -> None:
        self._real = real

        def entry(*args: Any, **kwargs: Any) -> Any:
            if _entered or not _plain.issuperset(map(type, args)) or (kwargs and not _plain.issuperset(map(type, kwargs.values()))):
                return overridden(shown, real, args, kwargs)
            return real(*args, **kwargs)

        self._entry = entry

    def __get__(self, tensor: Any, cls: Any = None) -> Any:
        return self._real if tensor is None else MethodType(self._entry, tensor)


class _Property(property):
    """A property of Tensor that asks: a `__torch_function__` is given Tensor.shape.__get__."""

    def __init__(self, real: property) -> None:
        super().__init__(lambda x: overridden(real.__get__, real.__get__, (x,), {}),
                         real.fset and (lambda x, value: overridden(real.__set__, real.__set__, (x, value), {})))


# What torch calls an operator's function; others have its own name.
_OPERATORS = {f"__{n}__": n for n in ("add", "sub", "mul", "matmul", "pow", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne")} | {
    f"__i{n}__": f"{n}_" for n in ("add", "sub", "mul", "pow")} | {
    "__radd__": "add", "__rmul__": "mul", "__truediv__": "div", "__itruediv__": "div_"} | {
    f"__{kind}{n}__": f"__{kind}{n}__"
    for n in ("floordiv", "mod", "and", "or", "xor", "lshift", "rshift") for kind in ("", "r", "i")} | {
    n: n for n in ("__rsub__", "__rtruediv__", "__rpow__", "__rmatmul__")}
_DUNDERS = ("getitem", "setitem", "iter", "len", "bool", "float", "int", "complex", "index", "contains", "repr", "format", "deepcopy",
            "invert")
_NOT_ASKED = {"as_subclass", "untyped_storage", "storage", "data_ptr"}
_sees: list[bool] = []


def see_methods() -> None:
    """From now on methods of Tensor ask, too."""
    if _sees:
        return
    _sees.append(True)
    named = [n for n in dir(Tensor) if not n.startswith("_") and n not in _NOT_ASKED]
    for name in (*named, *(f"__{n}__" for n in _DUNDERS)):
        real = getattr(Tensor, name)
        if isinstance(real, FunctionType):
            if real.__name__ in ("<lambda>", "method", "text") or real.__name__.strip("_") == name:
                real.__name__ = name                            # by which programs know it
            setattr(Tensor, name, _Method(real, real))
    plain: list[tuple[Any, Any]] = [(getattr(Tensor, name, None), getattr(Tensor, called, None)) for name, called in _OPERATORS.items()]
    for (name, called), (real, shown) in zip(_OPERATORS.items(), plain, strict=True):
        if isinstance(real, FunctionType):
            if name == called:
                real.__name__ = name
            setattr(Tensor, name, _Method(real, shown))


# ------------------------------------------------------------------------------------------------------------- subclasses


def as_subclass(self: Tensor, cls: type[Tensor]) -> Any:
    """The tensor as one of class `cls`: the same memory and history."""
    found: Any = self._view(self)
    found.__class__ = cls
    return found


def _converted(result: Any, cls: type[Tensor], given: Sequence[Any]) -> Any:
    """A result of a function as torch gives it for arguments of `cls`: its tensors are of that class, too."""
    if isinstance(result, Tensor):
        if isinstance(result, cls):
            return result
        if type(result) is Tensor and all(result is not x for x in given):
            result.__class__ = cls                          # nobody else has seen it
            return result
        return as_subclass(result, cls)
    if isinstance(result, (tuple, list)):
        parts = [_converted(r, cls, given) for r in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


NOT_CONVERTED = {Tensor.grad.__get__}


def torch_function(cls: Any, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Tensor.__torch_function__: what `func` gives, of class `cls`."""
    if not all(issubclass(cls, t) for t in types):
        return NotImplemented
    kwargs = kwargs or {}
    if is_dispatching(cls):
        return dispatched(func, func, args, kwargs)
    with Off(modes=False):
        result = func(*args, **kwargs)
    return result if func in NOT_CONVERTED else _converted(result, cls, (*args, *kwargs.values()))


def _make_subclass(cls: type[Tensor], data: Tensor, require_grad: bool = False, **_: Any) -> Any:
    """A tensor of class `cls` with the memory of `data`, without its history."""
    with Off():
        return as_subclass(data.detach(), cls).requires_grad_(require_grad)


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Tensor.__new__: of a program's class with the values that it is given; of this library's own, empty."""
    if cls in _OWN or not issubclass(cls, Tensor):
        return object.__new__(cls)
    with Off():
        if issubclass(cls, Parameter):
            made = object.__new__(cls)
            Parameter.__init__(made, *args, **kwargs)
            return made
        source = args[0] if args and isinstance(args[0], Tensor) else older(args, dtypes.NAMES["float32"].dtype, **kwargs)
        return as_subclass(source.detach() if source.requires_grad else source, cls)


def _once(real: Callable[..., None]) -> Callable[..., None]:
    """`__init__` of Tensor and Parameter, which does nothing where `_new` made the tensor."""

    @wraps(real)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) in _OWN or not hasattr(self, "_n"):
            real(self, *args, **kwargs)

    return __init__


def _subclassed(cls: type[Tensor]) -> None:
    """A program has derived a class from Tensor."""
    owner: Any = Tensor
    if Tensor.__new__ is object.__new__:
        owner.__new__ = _new
        owner.__init__, Parameter.__init__ = _once(Tensor.__init__), _once(Parameter.__init__)  # type: ignore[method-assign]
    see_methods()
    if "__repr__" in vars(cls) and "__str__" not in vars(cls):
        cls.__str__ = object.__str__                            # type: ignore[method-assign]  # the text of __repr__, as of torch's Tensor
    if is_dispatching(cls) and "data_ptr" not in vars(cls):
        cls.data_ptr = lambda self: 0                           # type: ignore[attr-defined]  # it has no memory
    if overrides(cls):
        for name in (n for n in dir(Tensor) if not n.startswith("_")):
            real = getattr(Tensor, name)
            if isinstance(real, property) and getattr(cls, name) is real:
                setattr(cls, name, _Property(real))


def _rebuilt(cls: type[Tensor], restore: Callable[..., Tensor], args: Any) -> Tensor:
    """A tensor of a program's class that was pickled."""
    with Off():
        return as_subclass(restore(*args), cls)  # type: ignore[no-any-return]


def install() -> None:
    """Let functions of nn.functional ask, which modules call; let classes be derived from Tensor."""
    owner: Any = Tensor
    owner.__torch_function__ = classmethod(torch_function)
    parameter: Any = Parameter
    parameter.__torch_function__ = classmethod(disabled)
    owner.__init_subclass__ = classmethod(lambda cls, **_: _subclassed(cls))
    owner.as_subclass, owner._make_subclass = as_subclass, staticmethod(_make_subclass)
    owner._make_wrapper_subclass = staticmethod(make_wrapper_subclass)
    vmap_transform.joins.append(overridable(PUBLIC["cat"]))
    reduce = Tensor.__reduce__

    def reduced(self: Tensor) -> Any:
        cls = type(self)
        if cls in _OWN or issubclass(cls, Parameter):
            return reduce(self)
        with Off():
            restore, (_, *args), *_ = reduce(self)
        return _rebuilt, (cls, restore, (Tensor, *args)), *([vars(self)] if vars(self) else [])

    owner.__reduce__ = reduced
    for name in functional.__all__:
        setattr(functional, name, _own_functional(name, getattr(functional, name)))


class Mode:
    """torch.overrides.TorchFunctionMode: a block in which every function and method goes to `__torch_function__` first, which a class

    derived from this one has. Inside it the mode itself is off.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError

    def __enter__(self) -> Any:
        see_methods()
        _thread.modes.append(self)
        _entered.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _thread.modes.pop()
        _entered.remove(self)

    @classmethod
    def push(cls, *args: Any, **kwargs: Any) -> Any:
        """The mode, by torch's older name."""
        return cls(*args, **kwargs)
