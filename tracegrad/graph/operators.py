"""The arithmetic that Nodes and Tensors share: a mixin that the op families fill in as they are imported.

`@method` puts a function of arrays (of Nodes, in derivative rules; of Tensors, in user code) on the mixin, and `@public`
also exports it as `tracegrad.<name>`. So an op is written once and is a function, a method and an operator. What is exported writes
its result into out=..., if that is given, and names the call where an argument is of a type that the function is not made for (`entered`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from inspect import signature, unwrap
from os.path import dirname
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tracegrad.errors import (
    INTERNAL,
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    OutOfMemoryError,
    TracegradError,
    of_memory,
    type_name,
    warn,
)

F = TypeVar("F", bound=Callable[..., Any])

PUBLIC: dict[str, Any] = {}          # name -> function exported by tracegrad
FUNCTIONAL: dict[str, Any] = {}      # name -> function exported by tracegrad.nn.functional
SPECIAL: dict[str, Any] = {}         # name -> function exported by tracegrad.special
LINALG: dict[str, Any] = {}          # name -> function exported by tracegrad.linalg
FOURIER: dict[str, Any] = {}         # name -> function exported by tracegrad.fft
DECORATORS: dict[str, Any] = {}      # name -> what makes a function of a function: `trace`


class Operators:
    """Base of Node and Tensor: every function marked with @method is a method of both."""

    __slots__ = ()
    __array_priority__ = 1000        # numpy hands `array + tensor` to us

    if TYPE_CHECKING:
        shape: tuple[int, ...]
        dtype: Any

        def __getattr__(self, name: str) -> Any: ...
        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __floordiv__(self, other: Any) -> Any: ...
        def __mod__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __rpow__(self, other: Any) -> Any: ...
        def __matmul__(self, other: Any) -> Any: ...
        def __neg__(self) -> Any: ...
        def __abs__(self) -> Any: ...
        def __invert__(self) -> Any: ...
        def __and__(self, other: Any) -> Any: ...
        def __or__(self, other: Any) -> Any: ...
        def __xor__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...
        def __le__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __ge__(self, other: Any) -> Any: ...

    @property
    def ndim(self) -> int:
        return len(self.shape)


def is_function(name: str) -> bool:
    """Whether it is the name of a function of arrays. (What takes functions, as vmap does, is around an error, not a part of one.)"""
    if name in ("getitem", "setitem"):                      # x[...], of which functions are made
        return True
    fn = next((names[name] for names in (PUBLIC, FUNCTIONAL, SPECIAL, LINALG, FOURIER) if name in names), None)
    return fn is not None and not any(str(kind).startswith("Callable") for kind in getattr(fn, "__annotations__", {}).values())


def entered(fn: F, name: str = "") -> F:
    """`fn` as users call it: with out=, and with errors that begin with `name` (default: its own) where an argument is no tensor.

    What `on_nodes` made and primitives do the same by themselves: that is one call less.
    """
    if getattr(fn, "_entered", False):
        return fn
    name = name or fn.__name__.strip("_")
    switches = switches_of(fn)
    first = min((place for place, _ in switches.values()), default=0)

    @wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None) if kwargs else None
        if switches and (kwargs or len(args) > first):
            check_switches(name, switches, args, kwargs)
        try:
            result = fn(*args, **kwargs)
        except (TracegradError, MemoryError, *BARE) as error:
            if (of := of_memory(name, error)) is not None:
                raise of from error.__cause__
            if isinstance(error, TracegradError) and not _of_a_user(error):
                error.called_instead(name, is_function)
            if (better := misused(name, fn, args, kwargs, error)) is None:
                raise
            raise better from error
        return result if out is None else write(name, out, result)

    by_itself(entry)
    return entry  # type: ignore[return-value]


def switches_of(fn: Callable[..., Any]) -> dict[str, tuple[int, bool]]:
    """The parameters of `fn` that are annotated as bool: where they stand (far behind, if only names give them), whether None will do."""
    inside = unwrap(fn)
    code = getattr(inside, "__code__", None)
    kinds = {p: kind for p, kind in getattr(inside, "__annotations__", {}).items() if kind in ("bool", "bool | None") and p != "return"}
    if code is None or not kinds:
        return {}
    positional = code.co_varnames[:code.co_argcount]
    return {p: (positional.index(p) if p in positional else 1 << 30, kind != "bool") for p, kind in kinds.items()}


def check_switches(name: str, switches: dict[str, tuple[int, bool]], args: Any, kwargs: Any, words_only: bool = False) -> None:
    """Raise ArgumentTypeError where what is on or off is given as anything else: a word ("False") would be taken for on.

    words_only: let pass whatever is no word, as torch's layers do.
    """
    given = len(args)
    for parameter, (place, optional) in switches.items():
        if place < given:
            value = args[place]
        elif parameter in kwargs:
            value = kwargs[parameter]
        else:
            continue
        if value is not True and value is not False and not (optional and value is None) and (not words_only or isinstance(value, str)):
            check_switch(name, parameter, value)


def check_switch(name: str, parameter: str, value: Any) -> None:
    """Raise ArgumentTypeError unless `value` is True, False, NumPy's or a tensor's, 1 or 0."""
    if not isinstance(value, (bool, np.bool_, Operators)) and not (type(value) is int and value in (0, 1)):
        raise ArgumentTypeError(f"{name}: {parameter} must be True or False, got {shown(value)}")


def by_itself(fn: Callable[..., Any]) -> None:
    """Note that `fn` takes out= and names itself in errors."""
    fn._entered = True  # type: ignore[attr-defined]


def named(fn: F) -> F:
    """Decorator: errors that come up in `fn` by what it was given begin with its name, or with its object's class."""
    switches = switches_of(fn)

    @wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        if switches:
            init = fn.__name__ == "__init__"
            check_switches(type(args[0]).__name__ if init else fn.__name__, switches, args, kwargs, init)
        try:
            return fn(*args, **kwargs)
        except (OutOfMemoryError, *BARE) as error:
            init = fn.__name__ == "__init__"
            name = type(args[0]).__name__ if init else fn.__name__
            if isinstance(error, TracegradError):            # what a class is made of has told of itself, and not of the class
                if init:
                    error.called(name)
                raise
            if (better := misused(name, fn, args[init:], kwargs, error)) is None:
                raise
            raise better from error

    return entry  # type: ignore[return-value]


class Named:
    """Base of classes whose constructors are `named`, where they are tracegrad's own."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls) and cls.__module__.startswith("tracegrad."):
            cls.__init__ = named(cls.__init__)  # type: ignore[method-assign]


# Python's and NumPy's errors, which tell of what went wrong inside of us, and not what the user did.
BARE = (AttributeError, TypeError, ValueError, IndexError, ArithmeticError)
_SELF_EXPLAINING = r"unexpected keyword|missing .* argument|positional argument|multiple values for"
_OURS = (*INTERNAL, dirname(np.__file__), "<a routine of tracegrad>")
_PYTHONS = dirname(os.__file__)


def misused(name: str, fn: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> Exception | None:
    """What to raise of a call that ended in `error`, one of BARE: it names the call and the arguments.

    None where the error tells by itself: ours, Python's own, of arguments that the function does not have, and those of a user's function.
    """
    ours, of_type = isinstance(error, TracegradError), isinstance(error, (AttributeError, TypeError))
    if re.search(_SELF_EXPLAINING, str(error)) or (not of_type if ours else _of_a_user(error)):
        return None
    first = args[0] if args else None
    takes = next(iter(signature(fn).parameters.values()))
    is_array = takes.annotation in ("Array", "Tensor") and takes.kind is not takes.VAR_POSITIONAL
    if args and is_array and not isinstance(first, Operators):
        if ours and any(isinstance(a, Operators) for a in (*args, *kwargs.values())):
            return None
        kind = type_name(first)
        return DTypeError(f"{name}: {takes.name} must be a Tensor, got {kind}; use tg.tensor(...) for arrays, lists and numbers")
    if ours:
        return None
    given = ", ".join([shown(a) for a in args] + [f"{key}={shown(a)}" for key, a in kwargs.items()])
    if of_type and any(isinstance(a, Operators) and getattr(a, "_n", a).aval.weak for a in (*args, *kwargs.values())):
        return ArgumentTypeError(f"{name}: takes no run-time numbers here, as floats are that a traced function was given, of ({given}); "
                                 "keep the number in an attribute or variable that the function reads: it is recorded anew for each value")
    if of_type:
        return ArgumentTypeError(f"{name}: an argument has a type that it does not take, of ({given}): {error}")
    return ArgumentError(f"{name}: an argument has a value that it does not take, of ({given}): {error}")


def _of_a_user(error: Exception) -> bool:
    """Whether the error came up in code that is not ours: in a function that we were given."""
    frames = error.__traceback__
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if not file.startswith(_OURS) and ("-packages" in file or not file.startswith(_PYTHONS)):
            return True
        frames = frames.tb_next
    return False


def shown(argument: Any) -> str:
    """An argument in an error: a number or a word, an array's dtype and shape, or the type."""
    if argument is None or isinstance(argument, (bool, int, float, complex, str)):
        text = repr(argument)
        return text if len(text) <= 40 else f"{text[:40]}..."
    if isinstance(argument, (Operators, np.ndarray)):
        return f"{type(argument).__name__} {argument.dtype}{list(argument.shape)}"
    return type(argument).__name__


def write(name: str, out: Any, result: Any) -> Any:
    """Put the result of the function `name` into out, a tensor or several; returns it."""
    if isinstance(result, (tuple, list)):
        if not isinstance(out, (tuple, list)) or len(out) != len(result):
            raise ArgumentTypeError(f"{name}: out must be {len(result)} tensors, one for each result")
        parts = [write(name, o, r) for o, r in zip(out, result, strict=True)]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if not hasattr(out, "_receive"):
        raise ArgumentTypeError(f"{name}: out must be a Tensor, got {type(out).__name__}")
    return out._receive(name, result)


def method(*names: str) -> Callable[[F], F]:
    """Decorator: the function becomes a method of Node and Tensor under `names` (default: its own name)."""

    def attach(fn: F) -> F:
        for name in names or (fn.__name__.rstrip("_"),):
            setattr(Operators, name, fn)
        return fn

    return attach


def public(*names: str, method: bool = True, functional: bool = False) -> Callable[[F], F]:
    """Decorator: export the function as tracegrad.<name>; with `method`, also as a method of Node and Tensor.

    names: the names to export (default: the function's own). With `functional`, it goes to tracegrad.nn.functional too.
    """

    def attach(fn: F) -> F:
        shown = entered(fn, names[0] if names else fn.__name__)
        for name in names or (fn.__name__,):
            PUBLIC[name] = shown
            if functional:
                FUNCTIONAL[name] = shown
            if method:
                setattr(Operators, name, shown)
        return fn

    return attach


def linalg(*names: str, public: bool = False) -> Callable[[F], F]:
    """Decorator: export the function from tracegrad.linalg; with `public`, also as tracegrad.<name> and as a method."""

    def attach(fn: F) -> F:
        shown = entered(fn)
        for name in names or (fn.__name__.rstrip("_"),):
            LINALG[name] = shown
            if public:
                PUBLIC[name] = shown
                setattr(Operators, name, shown)
        return fn

    return attach


def fourier(*names: str) -> Callable[[F], F]:
    """Decorator: export the function from tracegrad.fft."""

    def attach(fn: F) -> F:
        for name in names or (fn.__name__.rstrip("_"),):
            FOURIER[name] = entered(fn)
        return fn

    return attach


def functional(fn: F) -> F:
    """Decorator: export the function from tracegrad.nn.functional only; one that takes a `reduction` by torch's older arguments, too."""
    FUNCTIONAL[fn.__name__] = entered(with_older_reduction(fn) if "reduction" in unwrap(fn).__code__.co_varnames else fn)
    return fn


def with_older_reduction(fn: F) -> F:
    """The function (of a loss), which takes size_average and reduce, torch's older arguments, for reduction=, with torch's warning.

    By position they stand in the middle of torch's arguments, and are missing here. So what is given by position is in torch's order where
    a flag or None stands in the place of size_average: here that place is a string's or a number's.
    """
    code = unwrap(fn).__code__
    own = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    names = own if "reduction" in own else (*own, "reduction")

    @wraps(fn)
    def taken(*args: Any, size_average: bool | None = None, reduce: bool | None = None, **kwargs: Any) -> Any:
        place = names.index("ignore_index" if "ignore_index" in names else "eps" if "log_input" in names else "reduction")
        if len(args) > place and (args[place] is None or isinstance(args[place], bool)):
            last = names.index("reduction")
            order = ("size_average", *names[place:last], "reduce", *names[last:])
            if len(args) - place > len(order):
                raise TypeError(f"takes {', '.join((*names[:place], *order))}, got {len(args)} arguments")
            older = dict(zip(order, args[place:], strict=False))
            named = {name for name, flag in (("size_average", size_average), ("reduce", reduce)) if flag is not None}
            if repeated := older.keys() & (kwargs.keys() | named):
                raise TypeError(f"got several values for {', '.join(sorted(repeated))}")
            size_average, reduce = older.pop("size_average"), older.pop("reduce", reduce)
            args, kwargs = args[:place], {**older, **kwargs}
        if size_average is not None or reduce is not None:
            reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
            warn(f"size_average and reduce are deprecated; use reduction={reduction!r} instead")
            kwargs["reduction"] = reduction
        return fn(*args, **kwargs)

    return taken  # type: ignore[return-value]
