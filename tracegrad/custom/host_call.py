"""Opaque Python on values, also inside @trace: `host_call`. A traced call becomes a step of the plan between launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.custom.user_call import opaque_value
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, ShapeError, printable
from tracegrad.graph.ir import Aval
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import bind, own_name
from tracegrad.support import dtypes
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor, from_array


class HostCall(Shared):
    """One traced call of a Python function on numpy arrays. Not in REGISTRY: an instance per call, so that two are never merged."""

    family, described = "host_call", ()

    def __init__(self, fn: Callable[..., Any], avals: tuple[Aval, ...]) -> None:
        super().__init__()
        self.fn, self.output_avals = fn, avals
        self.called = printable(getattr(fn, "__name__", type(fn).__name__))
        self.name = own_name(self.called)  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return self.output_avals

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        like = [f"({a.shape}, {str(a.dtype)!r})" for a in self.output_avals]
        shown = like[0] if len(like) == 1 else f"[{', '.join(like)}]"
        name = define(self.called, "...      # a Python function on numpy arrays, which the program calls; put it here")
        return f"tg.host_call({', '.join([name, *operands])}, like={shown})"

    def results(self, *arrays: Any, **attrs: Any) -> list[np.ndarray[Any, Any]]:
        """Call the function, and check what it returned."""
        raw = self.fn(*arrays)
        given = list(raw) if isinstance(raw, (tuple, list)) else [raw]
        if len(given) != len(self.output_avals):
            raise ShapeError(f"host_call({self.called}): returned {len(given)} results, `like` describes {len(self.output_avals)}")
        return [self._checked(i, value, aval) for i, (value, aval) in enumerate(zip(given, self.output_avals, strict=True))]

    def _checked(self, i: int, value: Any, aval: Aval) -> np.ndarray[Any, Any]:
        array = np.asarray(value)
        if array.shape != aval.shape:
            raise ShapeError(f"host_call({self.called}): result {i} has shape {array.shape}, `like` says {aval.shape}")
        if not np.can_cast(array.dtype, aval.dtype, "same_kind"):
            raise DTypeError(f"host_call({self.called}): result {i} is {array.dtype}, which does not become `like`'s {aval.dtype}; "
                             "convert it in the function")
        return np.array(array, aval.dtype)


def _described(like: Any) -> Aval:
    if isinstance(like, Tensor):
        return Aval(like.shape, like.dtype)
    if isinstance(like, np.ndarray):
        return Aval(like.shape, dtypes.as_dtype(like.dtype))
    if isinstance(like, tuple) and len(like) == 2 and isinstance(like[0], (tuple, list)):
        return Aval(tuple(int(n) for n in like[0]), dtypes.as_dtype(like[1]))
    raise ArgumentError(f"host_call: `like` is a tensor, a pair (shape, dtype), or a list of those, one per result; got {like!r}")


@public(method=False)
def host_call(fn: Callable[..., Any], *tensors: Tensor, like: Any = None) -> Any:
    """fn(*arrays) on the tensors' values, as numpy arrays: any Python, NumPy, SciPy. Untraced and inside @trace.

    like: what fn returns: a tensor of that shape and dtype, or (shape, dtype); a list of them where fn returns a tuple (then host_call
    does, too). Default: the first tensor. In a trace the call is made at every replay, unless nothing uses its results.
    It has no derivative: a tensor that requires grad is an AutogradError, unless inside a tg.Function (whose backward may host_call
    too; then the second derivative is the error, unless that call is in a Function of its own).
    Raises ShapeError or DTypeError when fn's result is not what `like` says.

    >>> tg.host_call(np.sort, tg.tensor([3.0, 1.0, 2.0]))
    """
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            raise DTypeError(f"host_call: argument {i} is a {type(t).__name__}, expected a Tensor; bind other values with a lambda")
    if like is None and not tensors:
        raise ArgumentError("host_call: without tensors, say what fn returns with like=(shape, dtype)")
    several = isinstance(like, list)
    results = called(HostCall(fn, tuple(_described(x) for x in (like if several else [tensors[0] if like is None else like]))), tensors)
    return results if several else results[0]


def called(call: HostCall, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of a call on tensors: untraced now, in a trace at every replay."""
    tracked = []
    for i, t in enumerate(tensors):
        if t._has_history() and state.grad:
            if not state.pulling:
                raise AutogradError(f"host_call: tensor {i} requires grad and Python has no derivative; detach() it, or wrap the call in a "
                                    "tg.Function")
            tracked.append(t._node())
    trace = state.trace
    if trace is None:
        results = [from_array(a, tensors[0].device if tensors else None) for a in call.results(*[_values(t) for t in tensors])]
    else:
        on = tensors[0].device if tensors else trace.device
        nodes = [t._node() if t._n.aval.weak else t.to(on)._node() for t in tensors]
        state.values_read |= any(n.needs_grad for n in nodes)
        results = [Tensor(bind(call, tuple(nodes), {"index": k}), on, trace) for k in range(len(call.output_avals))]
    if tracked:
        message = (f"host_call({call.called}) inside a backward has no derivative; wrap it in a tg.Function of its own to differentiate "
                   "further")
        results = [Tensor(opaque_value(r._node(), tracked, message), r.device, trace) for r in results]
    return tuple(results)


def _values(tensor: Tensor) -> np.ndarray[Any, Any]:
    state.values_read |= tensor._node().needs_grad
    return tensor.detach()._value("host_call")
