"""Looking for NaN in a backward: `detect_anomaly`, as in torch.autograd. The walk over a history shows `Check` each step's gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.errors import AutogradError
from tracegrad.execute.device_partition import device_of
from tracegrad.execute.devices import find_device
from tracegrad.graph.ir import Node, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor


class Check:
    """What a backward calls with each step of the history and the gradients that it gives its operands, None for those that need none.

    nan: whether it looks at them.
    """

    def __init__(self, nan: bool) -> None:
        self.nan = nan

    def __call__(self, node: Node, gradients: Sequence[Any]) -> None:
        """AutogradError if one of them holds NaN. Inside a trace or vmap there are no values to look at."""
        if not self.nan or state.trace is not None or state.examples:
            return
        for i, g in enumerate(gradients):
            if isinstance(g, Node) and dtype_kind(g.dtype) in "fc":
                starts = [n for n in topological([g], lambda n: n.value is not None) if n.value is not None or n.fn.name == "placeholder"]
                if any(n.value is None for n in starts):
                    continue
                bad = np.isnan(Tensor(g, device_of(g) or find_device()).detach().numpy())
                if bad.any():
                    what = "the gradient" if len(gradients) == 1 or isinstance(node.fn, CustomCall) else f"the gradient of operand {i}"
                    name = f"{node.loc.call} ({node.fn.name})" if node.loc.call not in ("", node.fn.name) else node.fn.name
                    raise AutogradError(f"backward: {what} of {name}, computed at {node.loc}, holds NaN ({int(bad.sum())} of {bad.size} "
                                        "elements)")


class set_detect_anomaly:
    """Look for NaN in every backward, from now on; as a context manager, inside only. Slow: for debugging.

    mode: whether to look. check_nan=False: as without. The AutogradError names the first step of a backward whose gradient holds NaN, and
    the line of the forward pass that it belongs to. Traced functions run as untraced ones meanwhile; gradients inside vmap are not
    looked at.

    >>> with tg.autograd.set_detect_anomaly(True):
    ...     x = tg.tensor([4.0], requires_grad=True)
    ...     x.sqrt().sum().backward()
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = state.anomaly
        state.anomaly = Check(check_nan) if mode else None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        state.anomaly = self._before


class detect_anomaly:
    """A context manager that looks for NaN in every backward inside; see `set_detect_anomaly`.

    >>> with tg.autograd.detect_anomaly():
    ...     x = tg.tensor([4.0], requires_grad=True)
    ...     x.sqrt().sum().backward()
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._modes: list[set_detect_anomaly] = []

    def __enter__(self) -> None:
        self._modes.append(set_detect_anomaly(True, self._check_nan))

    def __exit__(self, *exc: object) -> None:
        self._modes.pop().__exit__(*exc)


def is_anomaly_enabled() -> bool:
    """Whether `detect_anomaly` is on.

    >>> tg.is_anomaly_enabled()
    False
    """
    return state.anomaly is not None


def is_anomaly_check_nan_enabled() -> bool:
    """Whether `detect_anomaly` looks for NaN.

    >>> tg.is_anomaly_check_nan_enabled()
    True
    """
    return state.anomaly is None or state.anomaly.nan
