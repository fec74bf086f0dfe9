"""How a special function is exported: under torch's names, and in `tg.special`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.graph.operators import SPECIAL, F, entered, public
from tracegrad.graph.primitive import REGISTRY, call
from tracegrad.ops.arguments import documented

Array = Any      # a Node or a Tensor


def operation(name: str, *aliases: str, special: tuple[str, ...] = (), method: bool = True) -> Any:
    """The primitive as a function: exported under `aliases` (from tg.special alone if there are none), and under `special` there."""
    op = REGISTRY[name]
    if op.nin == 1:  # type: ignore[attr-defined]
        def fn(input: Array) -> Array:
            return call(op, (input,), {})
    else:
        def fn(input: Array, other: Array) -> Array:  # type: ignore[misc]
            return call(op, (input, other), {})
    fn.__name__ = fn.__qualname__ = (aliases or special)[0]
    fn.__doc__ = documented(op, fn.__name__ if aliases else f"special.{fn.__name__}")
    if aliases:
        public(*aliases, method=method)(fn)
    SPECIAL.update(dict.fromkeys(special, entered(fn)))
    return fn


def export_special(*names: str) -> Callable[[F], F]:
    """Decorator: the function is exported from tg.special, under `names` (default: its own)."""
    def attach(fn: F) -> F:
        SPECIAL.update(dict.fromkeys(names or (fn.__name__,), entered(fn, names[0] if names else fn.__name__)))
        return fn
    return attach
