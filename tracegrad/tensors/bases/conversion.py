"""How the values of a tensor leave it: NumPy arrays, Python numbers and lists, DLPack, text. Start at `Conversion._value`.

`Conversion` is a base of Tensor: what it reads of the handle is Tensor's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import (
    ArgumentError,
    AutogradError,
    DeviceError,
    DLPackError,
    DTypeError,
    ShapeError,
    TraceError,
    TracegradError,
    user_line,
)
from tracegrad.execute.deferred import flush
from tracegrad.execute.realize import part, read
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Node
from tracegrad.graph.locations import user_location
from tracegrad.graph.primitive import REGISTRY
from tracegrad.support import dtypes
from tracegrad.support.html import escaped, preformatted
from tracegrad.support.modes import state
from tracegrad.tensors.bases.handle import Handle
from tracegrad.tensors.dlpack import exported

_DETACH = REGISTRY["detach"]
COPIED = 1 << 14        # bytes up to which a copy of a kernel's result takes less than to share its memory: 1.2 us and 3.6
PRINTING: dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "sci_mode": None}  # settings.py


# What to do in a trace, by what asks for values.
_CHOICE = "Use tg.where for a choice between values, pass what decides as a Python (static) argument"
_WAYS = {
    "bool()": "Use tg.where for a choice between values, tg.cond or tg.while_loop for one between computations, pass what decides as "
              "a Python (static) argument",
    **dict.fromkeys(("numpy()", "numpy.asarray()"), "Use tg's function in the place of NumPy's (tg.sin for numpy.sin)"),
    "float()": "Use tg's function in the place of math's (tg.sin for math.sin)",
    **dict.fromkeys(("int()", "index()"), "Pass what Python counts by as a Python (static) argument"),
    **dict.fromkeys(("item()", "tolist()"), "Compute with the tensor as it is"),
}


class Conversion(Handle):
    """The methods of a tensor that wait for its values."""

    __slots__ = ()

    def _value(self, call: str, shared: bool = False) -> np.ndarray[Any, Any]:
        """The values, waiting for them: a fresh array or (shared) a read-only view. Inside a trace there are none (TraceError), except of

        what the traced function computed of constants: Python numbers, arrays, `arange` and its kind.
        """
        if state.trace is not None:
            known = state.trace.known(self)
            if known is not None:
                return known if shared else known.copy()  # type: ignore[no-any-return]
            place = user_line() if state.pulling else user_location()         # the line in a Function's backward, not that of its call
            if _of_run_time_numbers(self._n):
                raise TraceError(
                    f"{call} at {place}: inside @trace ({state.trace.name}) Python cannot look at a float that was given to the "
                    "traced function, nor at what was computed of it: it is a run-time number, which may change without compiling anew. "
                    "Use tg.exp, tg.maximum, tg.where and so on in the place of math and if, compute what depends on it before the call, "
                    "or keep it in an attribute or variable that the function reads: then it is recorded anew for each value"
                )
            raise TraceError(
                f"{call} at {place}: inside @trace ({state.trace.name}) tensors have no values yet; Python cannot look at one. "
                f"{_WAYS.get(call, _CHOICE)}, return the tensor and look at it outside, or call host code through tg.host_call"
            )
        if not self._device.has_values:
            raise DeviceError(f"{call}: a tensor on 'meta' ({self.dtype}{list(self.shape)}) has no values; make it on another device, for "
                              "instance with model.to_empty(device=...)")
        node = self._node()
        state.values_read |= node.needs_grad or node.fn is _DETACH
        if resolve(node).value is None:
            values = None if shared else part(node)
            if values is not None:
                return values
            flush()
        return read(node, self._device, shared)

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """A numpy array with a copy of the values, to be kept and changed at will. Waits for them. `np.asarray(x)` makes no copy.

        Raises AutogradError if the tensor requires grad, unless force: detach() first.
        """
        array = self._held()
        if array is not None and not self._n.needs_grad:
            return np.array(array, order="C")
        if not force:
            self._forbid_grad("numpy", AutogradError)
        return self._value("numpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """What `np.asarray(x)` gives: a read-only array that is the values' own memory, on devices that compute in the host's (CPUs).

        It keeps the memory, and never changes: later in-place operations on the tensor go elsewhere. Waits for the values. copy=True,
        another dtype, and devices with memory of their own give a copy, which can be written. Raises ArgumentError (a ValueError) if
        copy=False asks for what needs one, AutogradError if the tensor requires grad.

        >>> np.asarray(tg.ones(3))
        """
        self._forbid_grad("numpy.asarray", AutogradError)
        other = dtype is not None and np.dtype(dtype) != self.dtype
        if copy is False and (other or not self._device.in_host_memory):
            why = f"it is {self.dtype}, not {np.dtype(dtype)}" if other else f"{self._device.name} has memory of its own"
            raise ArgumentError(f"numpy.asarray: copy=False, but the tensor cannot be shared: {why}; leave copy out to allow a copy")
        values = self._value("numpy.asarray()", shared=other or not copy)
        return values.astype(dtype) if other else values

    def _forbid_grad(self, call: str, error: type[TracegradError]) -> None:
        if self._has_history() and state.grad and state.trace is None:
            own = "" if call == "numpy" else "tg's functions (tg.sin for numpy.sin), or "
            raise error(f"{call}: the tensor requires grad, and what is done to the array would not be recorded; use {own}x.detach()")

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number. Waits for it."""
        array = self._held()
        if array is not None and array.size == 1:
            state.values_read |= self._n.needs_grad
            return array.item()
        if self.numel() != 1:
            raise ShapeError(f"item: the tensor has shape {self.shape}; only a tensor of one element is one number")
        return self._value("item()").item()

    def tolist(self) -> Any:
        """The values as nested Python lists."""
        return self._value("tolist()", shared=self._n.aval.nbytes > COPIED).tolist()

    def __bool__(self) -> bool:
        array = self._held()
        if array is not None and array.size == 1:
            state.values_read |= self._n.needs_grad
            return bool(array.item())
        if self.numel() != 1:
            raise ShapeError(f"bool: a tensor of shape {self.shape} is neither true nor false; use any() or all()")
        return bool(self._value("bool()").reshape(-1)[0])

    def __float__(self) -> float:
        return float(self._real_item("float"))

    def __int__(self) -> int:
        return int(self._real_item("int"))

    def __complex__(self) -> complex:
        return complex(self.item())

    def _real_item(self, call: str) -> Any:
        if self.numel() != 1:
            way = "; math's functions take one number, tg's take tensors" if call == "float" else ""
            raise ShapeError(f"{call}: the tensor has shape {self.shape}; only a tensor of one element is one number{way}")
        if state.trace is not None and self._held() is None:
            self._value(f"{call}()")                         # which tells what asked
        value = self.item()
        if isinstance(value, complex):
            if value.imag != 0:
                raise DTypeError(f"{call}: the complex number {value} has an imaginary part; use complex(x), x.real or x.abs()")
            value = value.real
        return value

    def __index__(self) -> int:
        if not dtypes.is_int(self.dtype):
            raise DTypeError(f"index: a tensor of {self.dtype} is not an index; only integer tensors of one element are")
        return int(self._real_item("index"))

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """A DLPack capsule of the values on the CPU, for `from_dlpack` of other libraries. Waits for the values.

        Like `np.asarray(x)` it shares memory that must not be written, and says so where the consumer takes a flag for that
        (max_version of 1.0 or later); else, and with copy=True, it is a copy. (PyTorch does not heed the flag: clone() there before
        writing.) Raises DLPackError (a BufferError) if copy=False asks for what needs a copy, for another device and
        for a tensor that requires grad.
        """
        self._forbid_grad("__dlpack__", DLPackError)
        here = self.__dlpack_device__()
        if stream is not None or dl_device not in (None, here):
            raise DLPackError(f"__dlpack__: exports to the CPU, {here}, without a stream; got {dl_device}, stream {stream}")
        flagged = max_version is not None and max_version[0] >= 1
        if copy is False and not (flagged and self._device.in_host_memory):
            why = f"{self._device.name} has memory of its own" if flagged else "the consumer knows no flag for read-only memory"
            raise DLPackError(f"__dlpack__: copy=False, but the tensor cannot be shared: {why}; leave copy out to allow a copy")
        values = self._value("__dlpack__()", shared=flagged and self._device.in_host_memory)
        return exported(values, max_version=max_version, copy=copy) if flagged else exported(values)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __repr__(self) -> str:
        if self._trace is not None or state.trace is not None:
            return f"Tensor({self._n.aval}, traced)"
        text = _text(self.detach()._value("repr", shared=True))
        extra = f", size={self.shape}" if self.numel() == 0 and self.ndim != 1 else ""
        plain = self.dtype in (dtypes.float32, dtypes.complex64) or (self.dtype in (dtypes.int64, dtypes.bool_) and self.numel() > 0)
        extra += "" if plain else f", dtype={self.dtype}"
        extra += f", device={getattr(self._device, 'kind', self._device)!r}"
        if self._has_history():
            extra += ", requires_grad=True" if self.is_leaf else f", grad_fn={self.grad_fn}"
        return f"Tensor({text}{extra})"

    def _repr_html_(self) -> str:
        """In a notebook: what it is, and its values as text."""
        what = [str(self.dtype), " x ".join(map(str, self.shape)) or "one number", f"on {getattr(self._device, 'name', self._device)}"]
        if self._has_history():
            what.append("requires_grad" if self.is_leaf else f"grad_fn={self.grad_fn}")
        return f"<div><p>{escaped(', '.join(what))}</p>{preformatted(repr(self))}</div>"

    def __format__(self, spec: str) -> str:
        if not self.ndim:
            return format(self.item(), spec)
        if spec:
            raise DTypeError(f"format: {spec!r} is for one number, the tensor has shape {self.shape}; use x.tolist(), or x.item()")
        return repr(self)


def _of_run_time_numbers(node: Node) -> bool:
    """Whether a node of a trace is computed of Python floats that were given to the traced function, and of nothing else but constants."""
    found, waiting, seen = False, [node], {node}
    while waiting:
        n = waiting.pop()
        if n.shape or (not n.operands and n.fn is not REGISTRY["const"] and not n.aval.weak):
            return False
        found |= not n.operands and n.aval.weak and n.fn is not REGISTRY["const"]
        waiting += [o for o in n.operands if o not in seen]
        seen.update(n.operands)
    return found


def _text(values: np.ndarray[Any, Any]) -> str:
    """The elements of a tensor as it prints them."""
    options = dict(PRINTING)
    powers, digits = options.pop("sci_mode"), options["precision"]
    formatter: Any = {"float_kind": lambda v: f"{v:.{digits}e}"} if powers else None
    values = values.astype(np.float32) if values.dtype == dtypes.bfloat16 else values
    return np.array2string(values, separator=", ", prefix="Tensor(", max_line_width=options.pop("linewidth"),
                           suppress_small=True if powers is False else None, formatter=formatter, **options)
