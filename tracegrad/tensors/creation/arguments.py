"""What creation functions share: the decorator that exports them, sizes, numbers and dtypes as users give them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Literal, overload

import numpy as np

from tracegrad.config import config
from tracegrad.errors import ArgumentError, ArgumentTypeError, DTypeError, OutOfMemoryError, ShapeError, of_memory
from tracegrad.execute.devices import find_device
from tracegrad.execute.eager_executor import arrays_of
from tracegrad.graph.cached_calls import calls, describe, learn
from tracegrad.graph.ir import Aval
from tracegrad.graph.operators import F, public
from tracegrad.graph.primitive import Shape
from tracegrad.support import dtypes, random_state
from tracegrad.support.layouts import accept
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor, holding

_RUN_TIME = Aval((), dtypes.float64, True)
_TORCHS = {"layout", "memory_format", "pin_memory", "generator"}


@overload
def create(*names: str, draws: bool = False, again: bool = False) -> Callable[[F], F]: ...


@overload
def create(*names: str, draws: bool = False, again: bool = False, sized: Literal[True]) -> Callable[[Any], Any]: ...


def create(*names: str, draws: bool = False, again: bool = False, sized: bool = False) -> Callable[[Any], Any]:
    """Decorator: export the function, which also takes torch's layout, memory_format and pin_memory (support/layouts.py); draws: and
    generator.

    sized: what it takes as *size may also be given by name, as f(size=(2, 3)).
    again: what it makes of numbers depends on nothing else, and is remembered if it is small (see execute/eager_executor.py).
    """

    def attach(make: Any) -> Any:
        memo = calls()

        def made_again(args: Any, kwargs: Any) -> Any:
            known = describe(args, kwargs, tensors=False) if state.plain and config.eager else None
            if known is None:
                return make(*args, **kwargs)
            device, call = find_device(), memo[known[0]]
            found = None if call is None else arrays_of(call, (), device)
            if found is not None:
                _, aval, attrs = call.prepared.leaf
                return holding(device, aval, attrs, None, found[0])
            made = make(*args, **kwargs)
            if call is None and made._device is device and not made._n.needs_grad:
                learn(memo, known[0], (), made._n)
            return made

        @functools.wraps(make)
        def entry(*args: Any, **kwargs: Any) -> Any:
            if kwargs and sized and "size" in kwargs:
                args = (*args, kwargs.pop("size"))
            try:
                if not kwargs or _TORCHS.isdisjoint(kwargs):
                    return made_again(args, kwargs) if again else make(*args, **kwargs)
                accept(make.__name__, kwargs)
                if not draws:
                    return make(*args, **kwargs)
                with random_state.using(make.__name__, kwargs.pop("generator", None)):
                    return make(*args, **kwargs)
            except (OutOfMemoryError, MemoryError, ValueError) as error:
                refused = of_memory(make.__name__, error)
                if refused is None:
                    raise
                refused.on(find_device())
                raise refused from error.__cause__

        return public(*(names or (make.__name__,)), method=False)(entry)

    return attach


def shape_of(call: str, size: Sequence[Any]) -> Shape:
    """The shape given as f(2, 3) or f((2, 3))."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    out = []
    for n in size:
        if n.__class__ is int and n >= 0:
            out.append(n)
            continue
        n = index(n) if isinstance(n, Tensor) else n                        # an integer of one element, as in torch
        number = isinstance(n, (int, np.integer)) and not isinstance(n, bool)
        if not number or n < 0:
            raise (ArgumentError if number else ArgumentTypeError)(f"{call}: sizes are non-negative ints, got {tuple(size)}")
        out.append(int(n))
    return tuple(out)


def python_number(call: str, value: Any, may_be_complex: bool = False) -> Any:
    """A Python number for one, or for a numpy scalar or a tensor of one element."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ShapeError(f"{call}: expected a number, or a tensor of one element, got shape {value.shape}; take an element of it")
    if isinstance(value, (Tensor, np.generic)):
        value = value.item()
    if not isinstance(value, (int, float, complex) if may_be_complex else (int, float)):
        raise ArgumentTypeError(f"{call}: expected a {'real ' if isinstance(value, complex) else ''}number, got {value!r}")
    return value


def number_or_node(call: str, value: Any, dtype: Any) -> Any:
    """A Python number, or the node of a float that was given to a @trace function, which has no value yet, for a float dtype."""
    if state.trace is not None and isinstance(value, Tensor) and value._node().aval == _RUN_TIME and dtypes.is_float(float_dtype(dtype)):
        return value._node()
    return python_number(call, value, True)


def float_dtype(dtype: Any) -> Any:
    return dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)


def like_function(name: str, make: Any, laid: Any = None) -> Any:
    """The function `name`_like, which takes a tensor; `make` takes a shape, a dtype, a device and whether a gradient is wanted.
    laid: asked first; it takes the tensor, a dtype and a device, and makes None of most."""
    def fn(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        found = like(f"{name}_like", input, dtype, device)
        made = None if laid is None else laid(input, *found)
        if made is not None:
            return made.requires_grad_() if requires_grad else made  # type: ignore[no-any-return]
        return make(input.shape, *found, requires_grad)  # type: ignore[no-any-return]

    fn.__name__ = fn.__qualname__ = f"{name}_like"
    fn.__doc__ = f"""Like `{name}`, with the shape, dtype and device of `input` unless given. Raises DTypeError unless input is a tensor.

    >>> tg.{name}_like(tg.ones(2, 3))
    """
    return create(f"{name}_like", draws=name.startswith("rand"))(fn)


def like(call: str, input: Any, dtype: Any, device: Any) -> tuple[Any, Any]:
    """The dtype and the device of what is made like `input`."""
    if not isinstance(input, Tensor):
        raise DTypeError(f"{call}: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays and lists")
    return input._n.aval.dtype if dtype is None else dtypes.as_dtype(dtype), input.device if device is None else device
