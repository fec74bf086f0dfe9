"""What code around keeps tensors from being changed: examples of a vmap, bodies that are recorded. And `inference_mode`, which does not.

`modes.state.scopes` holds those that are around, the outermost first; a tensor knows in which it was made. What is written to a tensor in
place is shown to the scopes that it does not come from (`Tensor._guard`), so that what they cannot do is an error at the user's line, and
nothing has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tracegrad.errors import INTERNAL, ArgumentTypeError, TraceError
from tracegrad.graph.ir import Node, topological
from tracegrad.support.modes import GradMode, state

if TYPE_CHECKING:
    from tracegrad.tensors.bases.handle import Handle


class Scope:
    """Code whose tensors are its own."""

    randomness: str | None = None  # what random functions do in a vmap; None: nothing particular
    many = True  # what it runs once stands for many runs
    before: tuple[Any, ...]

    def refuse(self, tensor: Handle, node: Node | None, call: str) -> None:
        """Raise an error if `call` must not give a tensor from outside the value `node`."""

    def __enter__(self) -> None:
        self.before = state.scopes
        state.scopes = (*self.before, self)

    def __exit__(self, *exc: object) -> None:
        state.scopes = self.before


class Examples(Scope):
    """A vmap: `mapped` stand for one example. number: the node that is its number; size: how many there are."""

    def __init__(self, mapped: Collection[Node], randomness: str | None = None, number: Node | None = None, size: int = 0) -> None:
        self.mapped, self.randomness, self.number, self.size = mapped, randomness, number, size
        # By a tensor's id and the dimension that is mapped: its example, itself, and the order of its dimensions with the batch in front.
        self.known: dict[tuple[int, int], tuple[Any, Any, tuple[int, ...]]] = {}

    def refuse(self, tensor: Handle, node: Node | None, call: str) -> None:
        """Raise an error for a value that is each example's own."""
        if node is not None and any(n in self.mapped for n in topological([node])):
            raise TraceError(
                f"{call}: vmap: {_named(tensor)} is not mapped, there is one for all examples; it cannot be given a value in place that "
                "each example has its own of: return the value, or make the tensor an argument that is mapped (in_dims)"
            )


class Recorded(Scope):
    """A function that is recorded once, or twice, however often it will run. error: what to raise for an effect outside of it."""

    def __init__(self, call: str, error: type[BaseException] | None = None) -> None:
        self.call, self.error = call, error

    def refuse(self, tensor: Handle, node: Node | None, call: str) -> None:
        """Raise the error."""
        if self.error is not None:
            raise self.error
        raise TraceError(
            f"{call}: {self.call}: inside @trace or vmap a function must not change tensors from outside, or its arguments, in place "
            f"({_named(tensor)} was); return the new value and assign it afterwards"
        )


_INFERENCE = Scope()
_INFERENCE.many = False


class _InferenceMode(GradMode):
    """`no_grad` whose tensors know that they were made in it; of mode True `enable_grad`, which ends that."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._around: list[tuple[Any, ...]] = []

    def __enter__(self) -> None:
        super().__enter__()
        self._around.append(state.scopes)
        state.scopes = tuple(s for s in state.scopes if s is not _INFERENCE) + (() if self._mode else (_INFERENCE,))

    def __exit__(self, *exc: object) -> None:
        state.scopes = self._around.pop()
        super().__exit__(*exc)


def inference_mode(mode: bool | Callable[..., Any] = True) -> Any:
    """`no_grad` whose tensors say so: x.is_inference() (mode=False: `enable_grad`). They may be used as any others.

    Raises ArgumentTypeError unless mode is a bool, or the function to decorate.

    >>> with tg.inference_mode():
    ...     y = tg.ones(2) * 2
    """
    if not isinstance(mode, bool) and not callable(mode):
        raise ArgumentTypeError(f"inference_mode: mode must be True or False, got {mode!r}")
    return _InferenceMode(False)(mode) if callable(mode) else _InferenceMode(not mode)


def is_inference_mode_enabled() -> bool:
    """Whether this is inside `inference_mode`.

    >>> tg.is_inference_mode_enabled()
    False
    """
    return _INFERENCE in state.scopes


def is_inference(tensor: Handle) -> bool:
    """Whether the tensor, or that of which it is a view, was made in `inference_mode`.

    Any shape and dtype. Raises DTypeError for what is no tensor.

    >>> tg.is_inference(tg.ones(2))
    False
    """
    while tensor._base is not None:
        tensor = tensor._base
    return _INFERENCE in getattr(tensor, "_within", ())


def _named(tensor: Handle) -> str:
    """A tensor as the user calls it in the function that is running, if there is a name for it, with its dtype and shape."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INTERNAL):
        frame = frame.f_back
    seen = f"{tensor.dtype}{list(tensor.shape)}"
    for names in (frame.f_locals, frame.f_globals):
        for name, value in list(names.items()):
            if value is tensor:
                return f"`{name}` ({seen})"
    return f"a {seen} tensor"
