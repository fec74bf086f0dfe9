"""Parameter: a tensor that a Module trains; Buffer: one that it only saves; UninitializedParameter: one whose shape is not known yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tracegrad.errors import OutOfMemoryError, TraceError
from tracegrad.graph.ir import ADDRESSED
from tracegrad.graph.locations import user_location
from tracegrad.support.modes import state, unusual
from tracegrad.tensors.creation.filled import empty
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.tensors.tensor import Tensor, from_array


def _source(data: Any) -> Tensor:
    """What a parameter or buffer is made of. Arrays keep their dtype; lists and numbers get that of `tensor`."""
    return data if isinstance(data, Tensor) else from_array(data) if isinstance(data, np.ndarray) else tensor(data)


def _refuse_large(call: str, source: Tensor) -> None:
    """Raises OutOfMemoryError for what has to be stored and is larger than anything that the device stores."""
    nbytes, most = source.nbytes, getattr(source.device, "max_buffer", ADDRESSED)
    if nbytes > most:
        error = OutOfMemoryError(f"{source.shape} of {source.dtype} are {nbytes} bytes, and {source.device.name} takes at most "
                                 f"{most} in one tensor; use smaller sizes, or several tensors")
        error.called(call)
        error.on(source.device)
        raise error


class Parameter(Tensor):
    """A tensor that requires grad and registers itself with the Module it is assigned to.

    data: a Tensor, with which it shares memory (but what has a history: its present value is taken), or what `tensor` takes.
    It takes attributes of one's own (`p.no_decay = True`); a copy has none of them, what is pickled keeps them.
    Raises TraceError inside @trace: parameters are made once, outside.
    Any shape; dtype: float or complex, else (with requires_grad) DTypeError.

    >>> weight = nn.Parameter(tg.zeros(2, 3))
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        if state.trace is not None:
            raise TraceError(f"Parameter at {user_location()}: made inside @trace ({state.trace.name}), where it would be new at every "
                             "call; make modules and parameters outside")
        source = _source(data)
        _refuse_large("Parameter", source)
        super().__init__(source.detach()._node(), source.device)
        self._share(source)
        if requires_grad:
            self.requires_grad_()

    def __deepcopy__(self, memo: Any) -> Parameter:
        copied = Parameter(self.detach().clone(), self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """A tensor that registers itself as a buffer with the Module it is assigned to: what `register_buffer` makes of any other.

    data: as of Parameter. persistent: whether it is part of the module's state_dict.
    dtype: any. Raises DTypeError for what no tensor is made of.

    >>> module = nn.Linear(3, 2)
    >>> module.steps = nn.Buffer(tg.zeros(3))
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        source = _source(data)
        _refuse_large("Buffer", source)
        super().__init__(source.detach()._node(), source.device)
        self._share(source)
        self.persistent = persistent

    def __deepcopy__(self, memo: Any) -> Buffer:
        memo[id(self)] = copied = Buffer(self.detach().clone(), persistent=self.persistent)
        return copied

    def __reduce__(self) -> Any:
        return (_buffer, (self.detach().numpy(), self.persistent), *([vars(self)] if vars(self) else []))


def _buffer(array: np.ndarray[Any, Any], persistent: bool) -> Buffer:
    """A buffer that was pickled."""
    return Buffer(array, persistent=persistent)


class UninitializedParameter(Parameter):
    """A Parameter without a shape, as lazy layers have it before their first input: `materialize` gives it one.

    dtype: the default float one unless given. Raises DTypeError for one without gradients.

    >>> nn.LazyLinear(2).weight.materialize((2, 3))
    """

    __slots__ = ()

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(empty(0, dtype=dtype, device=device), requires_grad)

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become a Parameter of that shape, whose values are not set; the dtype and the device stay unless given."""
        needs_grad = self.requires_grad
        fresh = empty(tuple(shape), dtype=dtype or self.dtype, device=device or self.device)
        self._device = fresh.device
        self._set_node(fresh._node())
        self.__class__ = Parameter  # type: ignore[assignment]
        if needs_grad:
            self.requires_grad_()

    def __deepcopy__(self, memo: Any) -> UninitializedParameter:
        copied = UninitializedParameter(self.requires_grad, self.device, self.dtype)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:
        return "<UninitializedParameter>"


def clear_grads(params: Iterable[Tensor], set_to_none: bool) -> None:
    """Forget the gradients of these, or make them zeros."""
    plain = set_to_none and not unusual[0]
    for p in params:
        if plain:                   # no trace and no transform: as the property does then
            p._grad = None
        elif set_to_none:
            p.grad = None
        elif p.grad is not None:
            grad = p.grad.detach_() if p.grad.requires_grad else p.grad
            grad.zero_()
