"""What holds while code runs, per thread: whether derivatives are recorded (`no_grad`, `enable_grad`), the trace being recorded, ..."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

from tracegrad.errors import ArgumentTypeError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Recorder(Protocol):
    """The trace being recorded, as the stages below `tracing` see it: a `tracing.recording.Recording`, which says what each part is."""

    name: str
    device: Any
    names: dict[int, str]
    nodes: dict[int, tuple[Any, Any]]
    leaves: list[tuple[Any, Any]]
    lasting: dict[int, Any]
    freed: set[Any]
    called: dict[Any, str]
    hooks: list[tuple[str, dict[int, Any], int]]
    draws: int
    iteration: Any

    def knows(self, tensor: Any) -> bool: ...
    def stands_alone(self, tensor: Any) -> bool: ...
    def node_of(self, tensor: Any) -> Any: ...
    def rebind(self, tensor: Any, node: Any) -> None: ...
    def grad_of(self, tensor: Any) -> Any: ...
    def set_grad(self, tensor: Any, grad: Any) -> None: ...
    def made(self, tensor: Any) -> bool: ...
    def renew(self, owner: dict[str, Any], name: str, tensor: Any) -> None: ...
    def adopt(self, tensor: Any) -> None: ...
    def known(self, tensor: Any) -> Any: ...
    def scalar(self, owner: Any, name: str) -> Any: ...
    def random(self, count: int) -> tuple[Any, Any]: ...


class _State(threading.local):
    """Per thread: whether derivatives are recorded, and the trace being recorded, if any.

    symbolic: tensors have no values, because a trace is recorded or one example of a vmap is computed. anew: calls make their nodes anew,
    because of that or since somebody watches what they make. plain: nothing around has a say in what an operation does, so what it did
    before may be recalled. usual: it is plain, and there are no scopes. They are worked out when a field of `GUARDS`, or `scopes`, is set.
    """

    grad: bool = True
    shown: bool = False  # inside enable_grad in a custom forward: tensors report requires_grad after all
    scopes: tuple[Any, ...]  # the vmaps and recorded bodies around: see tensors/scopes.py
    values_read: bool = False  # a custom forward read the value of a tensor that has a derivative
    holds: bool = False  # inside a loop: its work waits for the end of it, however much there is; see control_flow/loop_detection.py
    own: dict[Any, Any] | None = None  # see ir.own_nodes
    leaves: dict[Any, Any] | None = None  # see ir.own_leaves
    asking: Any = None  # what asks custom Functions for their gradients in this backward, see autograd/backward_cache.py
    # The guards:
    trace: Recorder | None
    examples: int  # inside vmap: tensors stand for one example and have no values
    hidden: bool  # inside a custom forward: what it makes reports no requires_grad
    pulling: bool  # inside a custom backward
    comparing: bool  # in a loop whose iterations will be compared: equal indices must be equal nodes, and none has values before the end
    autocast: Any  # what casts the operands of products to 16 bits, or None: see amp.py
    anomaly: Any  # what looks at the steps of a backward: see autograd/anomaly.py
    watch: tuple[Callable[[str, Any, Any], None], ...]  # what is told of each call of the user's: its name, the nodes given and made
    symbolic: bool
    anew: bool
    plain: bool
    usual: bool

    def __init__(self) -> None:
        vars(self).update(GUARDS, scopes=(), symbolic=False, anew=False, plain=True, usual=True)


class _Guard:
    """A field of the state that `symbolic`, `plain` and `usual` depend on. (It has no `__get__`: to read it costs what any other does.)"""

    def __init__(self, name: str) -> None:
        self.name = name

    def __set__(self, owner: _State, value: Any) -> None:
        fields = vars(owner)
        if fields[self.name] is value:
            return
        fields[self.name] = value
        fields["symbolic"] = owner.trace is not None or owner.examples > 0
        fields["anew"] = fields["symbolic"] or bool(fields["watch"])
        fields["plain"] = plain = GUARDS.items() <= fields.items()
        before, fields["usual"] = fields["usual"], plain and not fields["scopes"]
        if before != fields["usual"]:
            with _counting:
                unusual[0] += before - fields["usual"]


GUARDS: dict[str, Any] = {"trace": None, "examples": 0, "hidden": False, "pulling": False, "comparing": False, "anomaly": None,
                         "autocast": None, "watch": ()}
for _name in (*GUARDS, "scopes"):
    setattr(_State, _name, _Guard(_name))
# How many threads' states are not `usual`. Where none is, a hot path need not look at its own, which takes as long as twenty other fields.
# (A thread that ends in a guard is counted for ever: then the others look, as before.)
unusual = [0]
_counting = threading.RLock()
state = _State()
float32_matmul = ["highest"]               # what float32 products may be computed with, in all threads: see set_float32_matmul_precision
every_module: dict[str, dict[int, Any]] = {}               # the hooks of all modules, of all threads, by kind: see nn/hooks.py


class GradMode:
    """Context manager and decorator that switches the recording of derivatives."""

    def __init__(self, mode: bool) -> None:
        self._mode = mode
        self._previous: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._previous.append((state.grad, state.shown))
        state.grad = self._mode
        if state.hidden:
            state.shown |= self._mode

    def __exit__(self, *exc: object) -> None:
        state.grad, state.shown = self._previous.pop()

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._mode):
                return fn(*args, **kwargs)

        @functools.wraps(fn)
        def generator(*args: Any, **kwargs: Any) -> Any:  # the mode holds while it runs, not while it waits
            running = fn(*args, **kwargs)
            resume, given = running.send, None
            while True:
                with type(self)(self._mode):
                    try:
                        item = resume(given)
                    except StopIteration as end:
                        return end.value
                try:
                    resume, given = running.send, (yield item)
                except GeneratorExit:
                    with type(self)(self._mode):
                        running.close()
                    raise
                except BaseException as error:  # thrown in by whoever runs it
                    resume, given = running.throw, error

        return generator if inspect.isgeneratorfunction(fn) else wrapped


class _SetGradMode(GradMode):
    """A mode that holds from when it is made on; as a context manager, it ends with the block."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        super().__enter__()
        self._before = self._previous.pop()

    def __enter__(self) -> None:
        super().__enter__()
        self._previous[-1] = self._before

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        state.grad, state.shown = self._before
        return super().__call__(fn)


def _function(name: str, fn: Any) -> Any:
    if not callable(fn):
        raise ArgumentTypeError(f"{name}: takes nothing, or the function that it decorates, got {fn!r}")
    return fn


def no_grad(fn: Callable[..., Any] | None = None) -> Any:
    """Context manager (and decorator, with or without parentheses): operations inside are not recorded for backward.

    Raises ArgumentTypeError for what is no function.

    >>> with tg.no_grad():
    ...     y = tg.ones(2, requires_grad=True) * 2
    """
    return GradMode(False) if fn is None else GradMode(False)(_function("no_grad", fn))


def enable_grad(fn: Callable[..., Any] | None = None) -> Any:
    """Context manager (and decorator): operations inside are recorded, also within no_grad.

    Raises ArgumentTypeError for what is no function.

    >>> with tg.no_grad(), tg.enable_grad():
    ...     y = tg.ones(2, requires_grad=True) * 2
    """
    return GradMode(True) if fn is None else GradMode(True)(_function("enable_grad", fn))


def set_grad_enabled(mode: bool) -> GradMode:
    """Record operations or not, from now on; as a context manager or decorator, inside only.

    Raises ArgumentTypeError unless mode is a bool.

    >>> with tg.set_grad_enabled(False):
    ...     y = tg.ones(2, requires_grad=True) * 2
    """
    if not isinstance(mode, bool):
        raise ArgumentTypeError(f"set_grad_enabled: mode must be True or False, got {mode!r}")
    return _SetGradMode(mode)


def is_grad_enabled() -> bool:
    """Whether operations are being recorded. In a custom forward they are not, as its results' derivatives are backward's.

    >>> tg.is_grad_enabled()
    True
    """
    return state.grad and not unseen()


def unseen() -> bool:
    """Whether what is made reports no requires_grad: inside a custom forward, but for what enable_grad is for there."""
    return state.hidden and not state.shown


@contextmanager
def uncollected(lasting: bool = False) -> Iterator[None]:
    """Without the search for cycles among objects: recording and lowering make many; as good as all go when they are not referred to.

    lasting: what is made stays, so nobody looks through it at the end either, as if it had been looked through often.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if lasting and enabled and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()


def without_collection(fn: Callable[_P, _T]) -> Callable[_P, _T]:
    """A decorator: fn runs `uncollected`. (As contextlib's own decorator, but its frame is ours where errors look for the user's line.)"""
    @functools.wraps(fn)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with uncollected():
            return fn(*args, **kwargs)

    return run
