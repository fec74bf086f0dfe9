"""What the functions of the namespace share: tracegrad's functions by name (`tg`), the standard's promotion, its reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any

from tracegrad.errors import DTypeError
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.creation import PUBLIC
from tracegrad.tensors.tensor import Tensor

tg: Any = SimpleNamespace(**PUBLIC)         # tracegrad's own functions, as tg.sum(...)

Array = Any                                 # a Tensor (or, where one of several operands is one, a Python number)
Axis = int | tuple[int, ...] | None
SCALARS: Any = (bool, int, float, complex)


def promoted(call: str, *xs: Array) -> list[Array]:
    """Tensors cast to the dtype that they promote to. Unlike in torch (and in operators), one of no dimensions counts like any other.

    Python numbers stay as they are: what takes them gives them the tensors' dtype. Raises DTypeError if there is no tensor.
    """
    found = {x.dtype for x in xs if isinstance(x, Tensor)}
    if len(found) == 1:
        return list(xs)
    if not found:
        raise DTypeError(f"{call}: expected at least one array, got {', '.join(type(x).__name__ for x in xs)}; use asarray")
    strong = [x.dtype for x in xs if _counts(x)]
    dtype = reduce(dtypes.promote, strong or found)
    return [x.to(dtype=dtype) if _counts(x) else x for x in xs]


def _counts(x: Array) -> bool:
    """Whether x has a say in promotion: an array, and not a number that a traced function was given."""
    return isinstance(x, Tensor) and not x._node().aval.weak


def arrays(call: str, *xs: Array) -> list[Array]:
    """`promoted`, with Python numbers as arrays of that dtype, for functions of tracegrad that take none."""
    xs = tuple(promoted(call, *xs))
    like = next(x for x in xs if isinstance(x, Tensor))
    return [x if isinstance(x, Tensor) else tg.full((), x, dtype=dtypes.promote_scalar(like.dtype, x), device=like.device) for x in xs]


def reduced(fn: Callable[..., Array], x: Array, axis: Axis, *args: Any, **named: Any) -> Array:
    """fn(x, axis, ...), where axis=() is no axis (and not all, as in torch): a new one of size 1 is reduced, each element by itself."""
    if axis == ():
        return fn(tg.unsqueeze(x, 0), 0, **named)
    return fn(x, axis, *args, **named)


def accumulated(x: Array, dtype: Any) -> Any:
    """The dtype of sums and products: as asked, else that of x, but int64 and uint64 for integers."""
    if dtype is not None:
        return dtypes.as_dtype(dtype)
    return {"b": dtypes.int64, "i": dtypes.int64, "u": dtypes.uint64}.get(dtype_kind(x.dtype), x.dtype)
