"""What code around keeps tensors from being changed: examples of a vmap, bodies that are recorded.

`modes.state.scopes` holds those that are around, the outermost first; a tensor knows in which it was made. What is written to a tensor in
place is shown to the scopes that it does not come from (`Tensor._guard`), so that what they cannot do is an error at the user's line, and
nothing has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tracegrad.errors import INTERNAL, TraceError
from tracegrad.ir import Node, topological
from tracegrad.modes import state

if TYPE_CHECKING:
    from tracegrad.tensor import Tensor


class Scope:
    """Code whose tensors are its own."""

    randomness: str | None = None  # what random functions do in a vmap; None: nothing particular
    before: tuple[Any, ...]

    def refuse(self, tensor: Tensor, node: Node | None, call: str) -> None:
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

    def refuse(self, tensor: Tensor, node: Node | None, call: str) -> None:
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

    def refuse(self, tensor: Tensor, node: Node | None, call: str) -> None:
        """Raise the error."""
        if self.error is not None:
            raise self.error
        raise TraceError(
            f"{call}: {self.call}: inside @trace or vmap a function must not change tensors from outside, or its arguments, in place "
            f"({_named(tensor)} was); return the new value and assign it afterwards"
        )


def _named(tensor: Tensor) -> str:
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
