"""The arithmetic that Nodes and Tensors share: a mixin that the op families fill in as they are imported.

`@method` puts a function of arrays (of Nodes, in derivative rules; of Tensors, in user code) on the mixin, and `@public`
also exports it as `tracegrad.<name>`. So an op is written once and is a function, a method and an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from tracegrad.errors import DTypeError

F = TypeVar("F", bound=Callable[..., Any])

PUBLIC: dict[str, Any] = {}          # name -> function exported by tracegrad
FUNCTIONAL: dict[str, Any] = {}      # name -> function exported by tracegrad.nn.functional
SPECIAL: dict[str, Any] = {}         # name -> function exported by tracegrad.special
LINALG: dict[str, Any] = {}          # name -> function exported by tracegrad.linalg
FOURIER: dict[str, Any] = {}         # name -> function exported by tracegrad.fft


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
        fn = of_arrays(fn, names[0] if names else fn.__name__)
        for name in names or (fn.__name__,):
            PUBLIC[name] = fn
            if functional:
                FUNCTIONAL[name] = fn
            if method:
                setattr(Operators, name, fn)
        return fn

    return attach


def linalg(*names: str, public: bool = False) -> Callable[[F], F]:
    """Decorator: export the function from tracegrad.linalg; with `public`, also as tracegrad.<name> and as a method."""

    def attach(fn: F) -> F:
        for name in names or (fn.__name__.rstrip("_"),):
            LINALG[name] = fn
            if public:
                PUBLIC[name] = fn
                setattr(Operators, name, fn)
        return fn

    return attach


def fourier(*names: str) -> Callable[[F], F]:
    """Decorator: export the function from tracegrad.fft."""

    def attach(fn: F) -> F:
        for name in names or (fn.__name__.rstrip("_"),):
            FOURIER[name] = fn
        return fn

    return attach


def functional(fn: F) -> F:
    """Decorator: export the function from tracegrad.nn.functional only."""
    fn = of_arrays(fn, fn.__name__)
    FUNCTIONAL[fn.__name__] = fn
    return fn


def of_arrays(fn: F, name: str) -> F:
    """fn, which says so where its first argument should be an array and is none.

    Functions that are composed of others on Tensors look at its attributes first. What is right costs a call;
    `on_nodes`, and primitives (closures over their op), ask by themselves.
    """
    first = next(iter(signature(fn).parameters.values()), None)
    asks = hasattr(fn, "__wrapped__") or "op" in fn.__code__.co_freevars
    if asks or first is None or first.annotation not in ("Array", "Tensor") or first.default is not first.empty:
        return fn

    @wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except (AttributeError, DTypeError) as e:
            given = args[0] if args else kwargs.get(first.name)
            some = any(isinstance(a, Operators) for a in (*args, *kwargs.values()))
            if isinstance(given, Operators) or (some and isinstance(e, DTypeError)):
                raise
            kind = type(given).__name__
        raise DTypeError(f"{name}: {first.name} must be a Tensor, got {kind}; use tg.tensor(...) for arrays, lists and numbers")

    return entry  # type: ignore[return-value]  # the same signature
