"""torch.optim.optimizer: what optimizers that programs bring ask for beside `Optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeAlias

from tracegrad.graph.operators import PUBLIC
from tracegrad.support.dtypes import get_default_dtype
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.dtypes import NAMES

__all__ = ["ParamsT", "StateDict", "required"]

ParamsT: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]             # for annotations
_params_t: TypeAlias = ParamsT                              # torch's older name of it
StateDict: TypeAlias = dict[str, Any]
_foreach_doc = _fused_doc = _capturable_doc = _differentiable_doc = _maximize_doc = _params_doc = ""        # parts of docstrings


class _Required:
    """The default of a hyperparameter that has to be given."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _RequiredParameter = _Required()
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]


def _use_grad_for_differentiable(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a `step`: without grad, unless the optimizer was asked to be differentiable."""
    @wraps(func)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.defaults.get("differentiable"):
            return func(self, *args, **kwargs)
        with no_grad():
            return func(self, *args, **kwargs)

    return step


def _get_value(x: Any) -> Any:
    """The number that a tensor holds; a number as it is."""
    return x.item() if isinstance(x, Tensor) else x


_to_scalar = _get_value


def _stack_if_compiling(x: Any) -> Any:
    """The number as it is."""
    return x


def _get_scalar_dtype(is_fused: bool | None = None) -> Any:
    """Of step counts."""
    return NAMES["float64" if get_default_dtype() == "float64" else "float32"]


def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
    """None: capturable means nothing here."""
    return []


def _disable_dynamo_if_unsupported(single_tensor_fn: Any = None) -> Callable[[Any], Any]:
    """A decorator that changes nothing."""
    return lambda func: func


def _default_to_fused_or_foreach(params: Sequence[Tensor], differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
    """Neither: one parameter after the other is what is fused here."""
    return False, False


def _view_as_real(params: list[Tensor], *state_and_grads: list[Tensor]) -> None:
    """In each list, real views of what is complex."""
    for k, p in enumerate(params):
        if p.is_complex():
            for tensors in (params, *state_and_grads):
                tensors[k] = PUBLIC["view_as_real"](tensors[k])
