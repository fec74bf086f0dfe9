"""torch.nn.parameter, beside `tracegrad.nn.parameter`."""

from __future__ import annotations

from typing import Any

from tracegrad.nn.parameter import Parameter, UninitializedParameter

_ParameterMeta = type(Parameter)


def is_lazy(param: Any) -> bool:
    """Whether it has no shape yet."""
    return isinstance(param, UninitializedParameter)
