"""torch's control flow: tracegrad's, with torch's arguments and results. `scan` is where to start reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree

from tracegrad.control_flow import functions
from tracegrad.errors import ArgumentTypeError
from tracegrad.tensors.tensor import Tensor


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """true_fn(*operands) if pred else false_fn(*operands).

    Raises ArgumentTypeError if operands is neither a tuple nor a list, and what `tg.cond` raises.

    >>> cond(torch.tensor(True), lambda x: x.sin(), lambda x: x * 0, (torch.ones(2),))
    """
    return functions.cond(pred, true_fn, false_fn, operands=_tuple("cond: operands", operands))


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]) -> Any:
    """What body_fn(*values), a tuple, gives from carried_inputs on, while cond_fn(*values) holds. Numbers among them become tensors.

    Raises ArgumentTypeError if carried_inputs is neither a tuple nor a list, and what `tg.while_loop` raises.

    >>> while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), torch.ones(3)))
    """
    return functions.while_loop(cond_fn, body_fn, carried_inputs=_tuple("while_loop: carried_inputs", carried_inputs))


def scan(combine_fn: Callable[[Any, Any], Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False,
         length: int | None = None) -> tuple[Any, Any]:
    """carry, y = combine_fn(carry, x) along dimension dim of xs; (the last carry, the ys stacked along their first dimension).

    init, xs: (nested containers of) tensors. reverse: from the last x to the first. length: the number of iterations if xs has no tensor.
    Raises what `tg.scan` raises.

    >>> scan(lambda c, x: (c + x, c * x), torch.tensor(0.0), torch.arange(4.0))
    """
    leaves, tree = optree.tree_flatten(xs)
    if leaves:
        xs = optree.tree_unflatten(tree, [x.movedim(dim, 0) if isinstance(x, Tensor) and x.ndim else x for x in leaves])
    return functions.scan(combine_fn, init, xs if leaves else None, length, reverse)


def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:  # (torch's name, which stands for Python's in no line of this module)
    """f(x, *args) of each x along the first dimension of xs, (a nested container of) tensors; the results are stacked.

    Raises what `tg.scan` raises.

    >>> map(lambda x, a: x.sin() * a, torch.ones(3, 2), torch.tensor(2.0))
    """
    return functions.scan(lambda carry, x: (carry, f(x, *args)), (), xs)[1]


def _tuple(what: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, (tuple, list)):
        raise ArgumentTypeError(f"{what} must be a tuple, got {type(value).__name__}")
    return value
