"""Tensors of host data: tensor, asarray, from_numpy, frombuffer, from_dlpack. Start at `_entered`, which all of them end in."""

from __future__ import annotations

import functools
from itertools import chain
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DLPackError, DTypeError, TraceError, TracegradError
from tracegrad.execute.devices import find_device, obstacle
from tracegrad.graph.locations import user_location
from tracegrad.graph.operators import PUBLIC
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state
from tracegrad.tensors.creation.arguments import create
from tracegrad.tensors.dlpack import imported
from tracegrad.tensors.tensor import Tensor, from_array, from_own

_FLOATS, _INTEGERS, _LISTS = {float}, {int}, ({list}, {tuple})


@create()
def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of `data`: a number, nested lists, an array of numpy or another library, or a Tensor.

    Without dtype: Python floats give the default float dtype, ints int64; arrays and numpy's numbers keep theirs. `asarray`
    copies only if it must.
    Raises ArgumentError for ragged lists and DTypeError for a dtype that is not supported.

    >>> tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    """
    if isinstance(data, Tensor):
        out = _of_its_dtype(data.detach()).clone()
        out = out.to(device=device) if device is not None else out
        out = out.to(dtype=dtype) if dtype is not None else out
    elif (array := _of_numbers(data, dtype)) is not None:
        out = from_own(array, device)
    elif state.trace is not None and _holds_tensors(data):
        out = _stacked(data)
        out = out.to(device=device) if device is not None else out
        out = out.to(dtype=dtype) if dtype is not None else out
    else:
        out = _entered("tensor", _array("tensor", data), data, dtype, device, copy=True)
    return out.requires_grad_() if requires_grad else out


def _holds_tensors(data: Any) -> bool:
    """Whether data are nested lists with tensors in them."""
    return isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) or _holds_tensors(x) for x in data)


def _stacked(data: Any) -> Tensor:
    """What nested lists of numbers and of tensors of no dimensions hold, which have no values yet in a trace."""
    if isinstance(data, (list, tuple)):
        return PUBLIC["stack"]([_stacked(x) for x in data])  # type: ignore[no-any-return]
    if not isinstance(data, Tensor):
        return tensor(data)
    return _of_its_dtype(data.detach())


def _of_its_dtype(x: Tensor) -> Tensor:
    """x; a Python number that was given to a @trace function in the dtype that it has outside of one."""
    if state.trace is None or not x._node().aval.weak:
        return x
    default = dtypes.get_default_dtype()
    return x.to(dtype=dtypes.complex_of(default) if x.dtype.kind == "c" else default)


@create()
def asarray(obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False) -> Tensor:
    """`obj` as a tensor: itself if it is a Tensor of that dtype and device; else a number, nested lists, or an array of any library.

    copy: True for a copy. None (the default) for one that nothing tells from a copy: the memory of an array is shared only
    if it is read-only, as is all that it is a view of (a memory-mapped file, bytes, a JAX array), and large enough to gain. False to share
    it in any case; the tensor then holds `obj`, shows its changes, and is not to be written before what uses it is computed
    (`synchronize`). In-place operations on a tensor never write the memory that it shares: they give it memory of its own.

    Raises ArgumentError (a ValueError) if copy=False needs a copy: for lists, another dtype, a device with memory of its own, an array that
    is not contiguous or not aligned. Otherwise as `tensor`.

    >>> a = np.zeros(4, np.float32)
    >>> x = tg.asarray(a, copy=False)
    """
    out = _converted("asarray", obj, dtype, device, copy)
    return out.requires_grad_() if requires_grad else out


@create()
def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """torch's name for `asarray(data, dtype=dtype, device=device)`. Shapes, dtypes and what it raises: as there.

    >>> tg.as_tensor([1, 2, 3], dtype=tg.float32)
    """
    return _converted("as_tensor", data, dtype, device, None)


@create()
def from_numpy(array: Any) -> Tensor:
    """A tensor with the values that a numpy array has now: later changes of the array do not show, and the array is never written.

    It is copied unless it is read-only, as in `asarray(array)`; `asarray(array, copy=False)` shares any array's memory.
    Raises DTypeError for anything else than a numpy array and for a dtype that is not supported.

    >>> tg.from_numpy(np.arange(3.0))
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"from_numpy: expected a numpy array, got {type(array).__name__}; use tg.asarray")
    if state.trace is None and dtype_kind(array.dtype) in "biuf":
        return from_array(array, copy=None)                     # what `_entered` looks for is not in these
    return _entered("from_numpy", array, array, None, None, None)


@create()
def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A vector of the bytes of an object with the buffer protocol (bytes, mmap, array.array), taken as numbers of `dtype`.

    count: how many numbers (-1: all that there are), from byte `offset` on. Like `from_numpy`, it copies unless the buffer is read-only.
    Raises ArgumentError where count, offset and the buffer's size do not fit.

    >>> tg.frombuffer(b"abcd", dtype=tg.uint8)
    """
    try:
        array = np.frombuffer(buffer, dtypes.as_dtype(dtype), count, offset)
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"frombuffer: {error} (dtype {dtype}, count {count}, offset {offset})") from None
    out = _entered("frombuffer", array, array, None, None, None)
    return out.requires_grad_() if requires_grad else out


@create()
def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of an object on the CPU that supports DLPack, such as another library's array. copy: as in `asarray`.

    DLPack does not tell whether others may write the memory, so None (the default) copies.
    Raises DTypeError if ext_tensor has no `__dlpack__` or a dtype that is not supported, DLPackError (a BufferError) if its exporter
    refuses (as it does where x requires grad), its memory is not the CPU's, or copy=False needs a copy.

    >>> tg.from_dlpack(np.arange(3.0), copy=False)
    """
    if isinstance(ext_tensor, Tensor):
        ext_tensor._forbid_grad("from_dlpack", DLPackError)
        return _converted("from_dlpack", ext_tensor.detach(), None, device, copy, DLPackError)
    if not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError(f"from_dlpack: expected an object with __dlpack__, got {type(ext_tensor).__name__}; use tg.asarray")
    array = _imported("from_dlpack", ext_tensor, copy, DLPackError)
    return _entered("from_dlpack", array, ext_tensor, None, device, copy, DLPackError)


def _converted(
    call: str, obj: Any, dtype: Any, device: Any, copy: bool | None, error: type[TracegradError] = ArgumentError
) -> Tensor:
    """`asarray`, under the name of the function that was called."""
    if state.trace is not None and _holds_tensors(obj):
        obj = _stacked(obj)
    if not isinstance(obj, Tensor):
        if copy is not False and (array := _of_numbers(obj, dtype)) is not None:
            return from_own(array, device)
        return _entered(call, _array(call, obj, copy), obj, dtype, device, copy, error)
    out = (_of_its_dtype(obj) if dtype is None else obj).to(dtype=dtype, device=device)
    if copy is False and out is not obj:
        raise error(f"{call}: copy=False, but the tensor is {obj.dtype} on {obj.device}, not {out.dtype} on {out.device}; leave copy out")
    return out.clone() if copy and out is obj else out


def _of_numbers(data: Any, dtype: Any) -> np.ndarray[Any, Any] | None:
    """A Python float or integer, a list of floats or of integers, or of such lists of one length, as an array that nobody else has; None of

    others, and where the dtype is one that they may not fit.
    """
    kinds = {type(data)}
    if kinds in _LISTS:
        kinds = set(map(type, data))
        if kinds in _LISTS:
            if len(set(map(len, data))) != 1:
                return None
            kinds = set(map(type, chain.from_iterable(data)))
    if kinds != _FLOATS and kinds != _INTEGERS:
        return None
    wanted = (dtypes.get_default_dtype() if kinds == _FLOATS else dtypes.int64) if dtype is None else dtypes.as_dtype(dtype)
    exact = dtype_kind(wanted) == "f" and wanted != dtypes.bfloat16
    array = np.array(data) if exact or (kinds == _INTEGERS and wanted == dtypes.int64) else None
    if array is None or array.dtype != (dtypes.float64 if kinds == _FLOATS else dtypes.int64):      # integers beyond it, and among others
        return None
    return array if array.dtype == wanted else array.astype(wanted)


def _array(call: str, data: Any, copy: bool | None = True) -> np.ndarray[Any, Any]:
    """`data`, which is not a Tensor, as a numpy array. With copy=False, of the same memory."""
    if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        data = [x.detach().numpy() if isinstance(x, Tensor) else x for x in data]
    if hasattr(data, "__dlpack__") and not isinstance(data, np.ndarray) and (copy is False or not hasattr(data, "__array__")):
        return _imported(call, data, copy, ArgumentError)
    try:
        return np.asarray(data, copy=False) if copy is False else _exactly(data, np.asarray(data))
    except TypeError:                                       # torch gives numpy no bfloat16
        if not hasattr(data, "__dlpack__"):
            raise
        return _imported(call, data, copy, ArgumentError)
    except ValueError as error:
        if copy is False:
            raise ArgumentError(f"{call}: copy=False, but a {type(data).__name__} has no array's memory to share; leave copy out") from None
        raise ArgumentError(f"{call}: the nested lists are ragged ({error}); every row needs the same length") from None


def _exactly(data: Any, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`found`, or if numpy made floats of integers beyond int64, since there are others among them, the integers as objects.

    And numbers where it found no dtype for them, since there are bfloat16s among them.
    """
    if found.dtype == object and isinstance(data, (list, tuple)) and dtypes.bfloat16 in _own_dtypes(data):
        return found.astype(np.float64)
    if isinstance(data, (list, tuple)) and dtype_kind(found.dtype) == "f" and found.size and float(np.abs(found).max()) >= 2**63:
        exact = np.array(data, object)
        return exact if all(isinstance(v, int) for v in exact.flat) else found
    return found


def _own_dtypes(data: Any) -> list[dtypes.DType]:
    """The dtypes that the numbers of nested lists have of themselves; Python's have the default ones."""
    found: dict[Any, None] = {}
    rows = [data]
    for row in rows:
        if not isinstance(row, (list, tuple)):
            found[row.dtype] = None
            continue
        kinds = set(map(type, row))
        if any(issubclass(kind, (list, tuple, np.ndarray, Tensor)) for kind in kinds):
            rows += [x for x in row if isinstance(x, (list, tuple, np.ndarray, Tensor))]
        for kind in kinds:
            if issubclass(kind, np.generic):
                found[np.dtype(kind)] = None
            elif issubclass(kind, (float, complex)):
                found[dtypes.default_of(np.dtype(kind))] = None
    return [d for d in found if d in dtypes.SUPPORTED]


def _imported(call: str, x: Any, copy: bool | None, refusal: type[TracegradError]) -> np.ndarray[Any, Any]:
    """What x exports through DLPack, as a numpy array."""
    try:
        return imported(x, copy=False if copy is False else None)
    except (BufferError, RuntimeError) as error:
        raise refusal(f"{call}: no array could be had of the {type(x).__name__}: {error}; bring it to the CPU, or copy it") from error


def _entered(
    call: str,
    array: np.ndarray[Any, Any],
    given: Any,
    dtype: Any,
    device: Any,
    copy: bool | None,
    error: type[TracegradError] = ArgumentError,
) -> Tensor:
    """A tensor of `array`, which was made of what the user gave. copy: as in `asarray`; `error` if it cannot be had."""
    if state.trace is not None and not isinstance(given, (bool, int, float, complex, np.generic, list, tuple)):
        raise TraceError(
            f"{call} at {user_location()}: inside @trace ({state.trace.name}) an array would be frozen into the program; "
            "make the tensor outside, or pass the array as an argument"
        )
    if array.dtype.kind == "O" and array.size and all(isinstance(v, int) for v in array.flat):
        dtype = dtypes.int64 if dtype is None else dtype                            # integers that are too large for some dtype
    elif dtype_kind(array.dtype) not in "biufc":
        raise DTypeError(f"{call}: cannot make a tensor of {type(given).__name__} ({array.dtype}); give numbers, bools, or arrays of them")
    numbers = isinstance(given, (list, tuple)) and not any(isinstance(x, np.ndarray) for x in given)
    numbers = numbers or (isinstance(given, (bool, int, float, complex)) and not isinstance(given, np.generic))
    if dtype is None and dtype_kind(array.dtype) in "fc" and (numbers or isinstance(given, (list, tuple))):
        dtype = dtypes.default_of(array.dtype)
        own = [d for d in _own_dtypes(given) if dtype_kind(d) in "fc"] if isinstance(given, (list, tuple)) else []
        if own:
            dtype = functools.reduce(dtypes.promote, own)
    wanted = array.dtype if dtype is None else dtypes.as_dtype(dtype)
    if array.dtype.kind == "c" and wanted.kind not in "cb":
        raise DTypeError(f"{call}: complex numbers do not fit {wanted}; give their real parts, or a complex dtype")
    if numbers and dtypes.is_int(wanted) and array.size:
        limits = np.iinfo(wanted)
        if not (limits.min <= array.min() and array.max() <= limits.max):
            raise DTypeError(f"{call}: values from {array.min()} to {array.max()} do not fit {wanted}; use a wider dtype")
    if copy is False:
        why = obstacle(find_device(device), array) if wanted == array.dtype else f"it is {array.dtype}, not {wanted}"
        if why:
            raise error(f"{call}: copy=False, but the array cannot be shared: {why}; leave copy out to allow a copy")
    return from_array(array if wanted == array.dtype else array.astype(wanted), device, copy=copy)
