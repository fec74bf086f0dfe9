"""Parameter: a tensor that a Module counts among what is trained."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import TraceError
from tracegrad.ir import user_location
from tracegrad.modes import state
from tracegrad.tensor import Tensor, from_array


class Parameter(Tensor):
    """A tensor that requires grad and registers itself with the Module it is assigned to.

    data: a Tensor (its present value is taken; later in-place changes of it do not show here, unlike torch) or a numpy array.
    Raises TraceError inside @trace: parameters are made once, outside.
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        if state.trace is not None:
            raise TraceError(f"Parameter at {user_location()}: made inside @trace ({state.trace.name}), where it would be new at every "
                             "call; make modules and parameters outside")
        source = data if isinstance(data, Tensor) else from_array(np.asarray(data))
        super().__init__(source.detach()._node(), source.device)
        if requires_grad:
            self.requires_grad_()

    def __deepcopy__(self, memo: Any) -> Parameter:
        copied = Parameter(self.detach().clone(), self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
