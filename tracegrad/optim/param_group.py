"""The parameters that one set of hyperparameters is for, as optimizers have them in `param_groups`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import wraps
from types import MappingProxyType
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, TraceError, TracegradError
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor, from_array


class ParamGroup(MutableMapping[str, Any], dict[str, Any]):  # type: ignore[metaclass, misc]
    """Parameters and their hyperparameters: `group["lr"]` and `group.lr` are the same. `group["params"]` is the list of tensors.

    It is a dict, as torch's groups are, whose items are its attributes. Raises AttributeError, and KeyError, for others.

    Inside @trace, `lr`, a float, is a 0-d tensor that stands for its value at each replay. A learning rate that is a tensor of one
    element stays that tensor, as in torch: what is written into it is the rate from then on, and schedulers write into it.

    >>> group = tg.optim.SGD([nn.Parameter(tg.ones(2))], lr=0.1).param_groups[0]
    >>> group["lr"], group.lr
    (0.1, 0.1)
    """

    _trace_all_attributes = True                                # a traced step watches all of it ...
    _trace_by_reference = ("_lr", "_momentum", "_beta1")        # ... but reads these anew at every replay
    _lr: float | Tensor

    def __init__(self, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__()
        for name, value in options.items():
            self[name] = value

    @property
    def lr(self) -> Any:
        """The learning rate: a float; inside @trace a 0-d tensor."""
        return self._number("lr")

    @lr.setter
    def lr(self, value: Any) -> None:
        self._set_number("lr", value)
        if value is not None and not value >= 0:
            raise ArgumentError(f"lr: must not be negative, got {value}")

    def at_run_time(self, name: str) -> None:
        """Make "momentum", or the first of "betas", a number that traced steps read at every replay, as they do the learning rate."""
        if name == "betas" and "_beta1" not in self.__dict__:
            self.__dict__["_beta1"], self.__dict__["_beta2"] = map(float, self.__dict__.pop("betas"))
        elif name == "momentum" and "_momentum" not in self.__dict__:
            self.__dict__["_momentum"] = float(self.__dict__.pop("momentum"))

    def _number(self, name: str) -> Any:
        value = self.__dict__["_" + name]
        if isinstance(value, Tensor):
            return value if value.ndim == 0 or state.trace is None else value.reshape(())
        return value if state.trace is None else state.trace.scalar(self, name)

    def _set_number(self, name: str, value: Any) -> None:
        if state.trace is not None:
            raise TraceError(f"{name}: it was set inside @trace ({state.trace.name}), where only the first call would do it; "
                             "set it (or step the scheduler) outside, the traced step reads it at every call")
        if name == "lr" and value is None:                  # a subclass of the user's has a rule of its own
            self.__dict__["_lr"] = None
            return
        if name == "lr" and isinstance(value, Tensor):
            if value.numel() != 1 or dtype_kind(value.dtype) != "f":
                raise ArgumentError(f"{name}: must be a number, or a tensor of one float, got {value.dtype}{list(value.shape)}")
            if value >= 0:
                self.__dict__["_lr"] = value
            return
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ArgumentError(f"{name}: must be a Python number, got {value!r} ({type(value).__name__})")
        if name != "lr" or value >= 0:
            self.__dict__["_" + name] = float(value)

    @contextmanager
    def lr_on(self, device: Any) -> Iterator[None]:
        """A learning rate that is a tensor lies on that device meanwhile."""
        own = self._lr
        if not isinstance(own, Tensor) or own.device is device:
            yield
            return
        self.__dict__["_lr"] = own.to(device=device)
        try:
            yield
        finally:
            self.__dict__["_lr"] = own

    def schedule(self, lr: Any) -> None:
        """Make `lr` the learning rate, in the tensor that it is kept in if it is."""
        if isinstance(self._lr, Tensor) and self._lr is not lr:
            with no_grad():
                self._lr.copy_(lr) if isinstance(lr, Tensor) else self._lr.fill_(lr)
        else:
            self.lr = lr

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if name == "betas" and "_beta1" in own:
            return self._number("beta1"), own["_beta2"]
        if name in ("momentum", "beta1") and "_" + name in own:
            return self._number(name)
        raise AttributeError(f"ParamGroup has no {name!r}; it has {', '.join(self._names())}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "betas" and "_beta1" in self.__dict__:
            self._set_number("beta1", value[0])
            self.__dict__["_beta2"] = float(value[1])
        elif name == "momentum" and "_momentum" in self.__dict__:
            self._set_number("momentum", value)
        else:
            object.__setattr__(self, name, value)

    def __getitem__(self, name: str) -> Any:
        own = self.__dict__
        if name in own and not name.startswith("_"):            # in few steps
            return own[name]
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def _names(self) -> list[str]:
        return ["betas" if name == "_beta1" else name.removeprefix("_") for name in self.__dict__ if name != "_beta2"]

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def copy(self) -> dict[str, Any]:
        """The items as a plain dict."""
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return {**self, **other}

    def __repr__(self) -> str:
        return f"ParamGroup({', '.join(f'{k}={v}' for k, v in self.items() if k != 'params')}, {len(self['params'])} params)"


def restored(p: Tensor, value: Any, present: Any, own_step: bool) -> Any:
    """A saved value as state of p, where `present` is now. own_step: what a `step` of a program's own keeps beside tensors stays what it

    is. Containers stay containers.
    """
    if isinstance(value, Mapping):
        return {key: restored(p, item, None, own_step) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([restored(p, item, None, own_step) for item in value])
    if own_step and not isinstance(value, (Tensor, np.ndarray)) and not isinstance(present, Tensor):
        return value
    array = np.asarray(value.detach() if isinstance(value, Tensor) else value)
    # A tensor of its own in any case: what was shared (a step count) may differ from now on.
    return from_array(array.astype(present.dtype if isinstance(present, Tensor) else array.dtype), p.device)


def by_its_name(add: Any) -> Any:
    """Decorator of `add_param_group`: what it refuses begins with its name."""
    @wraps(add)
    def entry(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            add(self, *args, **kwargs)
        except TracegradError as error:
            error.called("add_param_group")
            raise

    return entry


def add_groups(optimizer: Any, groups: Iterable[Any]) -> None:
    """Add them all, in the constructor: what is refused begins with the name of the class, which the user called."""
    try:
        for group in groups:
            optimizer.add_param_group(group)
    except TracegradError as error:
        error.args = (str(error).removeprefix("add_param_group: "), *error.args[1:])
        raise
