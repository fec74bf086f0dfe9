"""Tensors from nothing and from host data: tensor, zeros, arange, rand, ... Random ones draw from the stream of `random_state`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil, isfinite, log1p, nan, pi, prod
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.errors import (
    ArgumentError,
    ArgumentTypeError,
    DLPackError,
    DTypeError,
    OutOfMemoryError,
    ShapeError,
    TraceError,
    TracegradError,
    of_memory,
)
from tracegrad.execute.devices import find_device, obstacle
from tracegrad.execute.eager_executor import Remembered, arrays_of, nodes_of
from tracegrad.graph.cached_subgraphs import calls, learn
from tracegrad.graph.ir import Aval, Node, user_location
from tracegrad.graph.operators import PUBLIC, F, public
from tracegrad.graph.primitive import Shape, broadcast_shapes, cast, data, fails, iota, scalar
from tracegrad.ops.arguments import integer
from tracegrad.ops.arrays import random_bits
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.pointwise import where
from tracegrad.ops.primitives.movement import expand
from tracegrad.support import dtypes, random_state
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.layouts import accept
from tracegrad.support.modes import state
from tracegrad.tensors import methods
from tracegrad.tensors.dlpack import imported
from tracegrad.tensors.tensor import Tensor, from_array, from_own, new_tensor, older

_FIRST = methods                    # imported for what it makes of Tensor
_FLOATS, _INTEGERS, _LISTS = {float}, {int}, {list}
_RUN_TIME = Aval((), dtypes.float64, True)
_TORCHS = {"layout", "memory_format", "pin_memory", "generator"}


def _create(*names: str, draws: bool = False, again: bool = False) -> Callable[[F], F]:
    """Decorator: export the function, which also takes torch's layout, memory_format and pin_memory (support/layouts.py); draws: and
    generator.

    again: what it makes of numbers depends on nothing else, and is remembered if it is small (see execute/eager_executor.py).
    """

    def attach(make: F) -> F:
        known = Remembered()

        def made_by(args: Any, kwargs: Any) -> Any:
            try:
                return make(*args, **kwargs)
            except (OutOfMemoryError, MemoryError, ValueError) as error:
                refused = of_memory(make.__name__, error)
                if refused is None:
                    raise
                refused.on(find_device())
                raise refused from error.__cause__

        @functools.wraps(make)
        def entry(*args: Any, **kwargs: Any) -> Any:
            if not kwargs or _TORCHS.isdisjoint(kwargs):
                key = known.key(args, kwargs) if again else None
                if key is None:
                    return made_by(args, kwargs)
                device = find_device()
                node = known.node(key, device)
                if node is not None:
                    return Tensor(node, device)
                made = made_by(args, kwargs)
                if made._device is device:
                    known.learn(key, made._n)
                return made
            name = make.__name__
            accept(name, kwargs)
            if not draws:
                return made_by(args, kwargs)
            with random_state.using(name, kwargs.pop("generator", None)):
                return made_by(args, kwargs)

        return public(*(names or (make.__name__,)), method=False)(entry)  # type: ignore[return-value]

    return attach


def _shape(call: str, size: Sequence[Any]) -> Shape:
    """The shape given as f(2, 3) or f((2, 3))."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    out = []
    for n in size:
        number = isinstance(n, (int, np.integer)) and not isinstance(n, bool)
        if not number or n < 0:
            raise (ArgumentError if number else ArgumentTypeError)(f"{call}: sizes are non-negative ints, got {tuple(size)}")
        out.append(int(n))
    return tuple(out)


def _sized(make: Any) -> Any:
    """Decorator: what `make` takes as *size may also be given by name, as f(size=(2, 3))."""

    @functools.wraps(make)
    def entry(*args: Any, **kwargs: Any) -> Tensor:
        if "size" in kwargs:
            args = (*args, kwargs.pop("size"))
        return make(*args, **kwargs)  # type: ignore[no-any-return]

    return entry


def _number(call: str, value: Any, may_be_complex: bool = False) -> Any:
    """A Python number for one, or for a numpy scalar or a tensor of one element."""
    if isinstance(value, (Tensor, np.generic)):
        value = value.item()
    if not isinstance(value, (int, float, complex) if may_be_complex else (int, float)):
        raise ArgumentTypeError(f"{call}: expected a {'real ' if isinstance(value, complex) else ''}number, got {value!r}")
    return value


def _number_or_node(call: str, value: Any, dtype: Any) -> Any:
    """A Python number, or the node of a float that was given to a @trace function, which has no value yet, for a float dtype."""
    if state.trace is not None and isinstance(value, Tensor) and value._node().aval == _RUN_TIME and dtypes.is_float(_float(dtype)):
        return value._node()
    return _number(call, value, True)


def _float(dtype: Any) -> Any:
    return dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)


@_create()
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
    elif dtype is None and type(data) is list and (array := _of_numbers(data)) is not None:
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


@_create()
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


@_create()
def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """torch's name for `asarray(data, dtype=dtype, device=device)`, with its errors.

    >>> tg.as_tensor([1, 2, 3], dtype=tg.float32)
    """
    return _converted("as_tensor", data, dtype, device, None)


@_create()
def from_numpy(array: Any) -> Tensor:
    """A tensor with the values that a numpy array has now: later changes of the array do not show, and the array is never written.

    It is copied unless it is read-only, as in `asarray(array)`; `asarray(array, copy=False)` shares any array's memory.
    Raises DTypeError for anything else than a numpy array and for a dtype that is not supported.

    >>> tg.from_numpy(np.arange(3.0))
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"from_numpy: expected a numpy array, got {type(array).__name__}; use tg.asarray")
    return _entered("from_numpy", array, array, None, None, None)


@_create()
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


@_create()
def from_dlpack(x: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of an object on the CPU that supports DLPack, such as another library's array. copy: as in `asarray`.

    DLPack does not tell whether others may write the memory, so None (the default) copies.
    Raises DTypeError if x has no `__dlpack__` or a dtype that is not supported, DLPackError (a BufferError) if its exporter refuses
    (as it does where x requires grad), its memory is not the CPU's, or copy=False needs a copy.

    >>> tg.from_dlpack(np.arange(3.0), copy=False)
    """
    if isinstance(x, Tensor):
        x._forbid_grad("from_dlpack", DLPackError)
        return _converted("from_dlpack", x.detach(), None, device, copy, DLPackError)
    if not hasattr(x, "__dlpack__"):
        raise DTypeError(f"from_dlpack: expected an object with __dlpack__, got {type(x).__name__}; use tg.asarray")
    return _entered("from_dlpack", _imported("from_dlpack", x, copy, DLPackError), x, None, device, copy, DLPackError)


def _converted(
    call: str, obj: Any, dtype: Any, device: Any, copy: bool | None, error: type[TracegradError] = ArgumentError
) -> Tensor:
    """`asarray`, under the name of the function that was called."""
    if state.trace is not None and _holds_tensors(obj):
        obj = _stacked(obj)
    if not isinstance(obj, Tensor):
        return _entered(call, _array(call, obj, copy), obj, dtype, device, copy, error)
    out = (_of_its_dtype(obj) if dtype is None else obj).to(dtype=dtype, device=device)
    if copy is False and out is not obj:
        raise error(f"{call}: copy=False, but the tensor is {obj.dtype} on {obj.device}, not {out.dtype} on {out.device}; leave copy out")
    return out.clone() if copy and out is obj else out


def _of_numbers(data: list[Any]) -> np.ndarray[Any, Any] | None:
    """A list of Python's floats or of its integers, or of such lists of one length, as an array that nobody else has; None of others."""
    kinds = set(map(type, data))
    if kinds == _LISTS:
        if len(set(map(len, data))) != 1:
            return None
        kinds = set(map(type, chain.from_iterable(data)))
    if kinds == _FLOATS:
        return np.array(data).astype(dtypes.get_default_dtype())
    array = np.array(data) if kinds == _INTEGERS else None
    return array if array is not None and array.dtype == np.int64 else None             # others do not fit


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


@_create(again=True)
def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (a sequence of ints, or one) filled with a number, whose kind gives the dtype unless dtype does.

    fill_value may be a tensor of no dimensions: a Python float given to a @trace function is one.
    Raises DTypeError if fill_value is no number, or does not fit dtype.
    """
    if not isinstance(fill_value, Tensor):
        return _filled("full", (size,), fill_value, dtype, device, requires_grad)
    if fill_value.shape:
        raise ShapeError(f"full: fill_value has shape {fill_value.shape}; give a number or a tensor of no dimensions")
    node = fill_value._node()
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.get_default_dtype() if node.aval.weak else node.dtype
    out = fill_value.detach().to(dtype=found, device=device)
    return new_tensor(expand(out._node(), _shape("full", (size,))), out.device, requires_grad)


def _filled(call: str, size: Sequence[Any], value: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    if isinstance(value, np.generic):
        value = value.item()
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.promote_scalar(dtypes.bool_, value)
    return new_tensor(expand(scalar(call, value, found), _shape(call, size)), device, requires_grad)


@_create(again=True)
@_sized
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return _filled("zeros", size, 0, _float(dtype), device, requires_grad)


@_create(again=True)
@_sized
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _filled("ones", size, 1, _float(dtype), device, requires_grad)


@_create(again=True)
@_sized
def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor to be overwritten; filled with zeros, so that nothing depends on what memory held."""
    return _filled("empty", size, 0, _float(dtype), device, requires_grad)


def _typed(name: str, dtype: dtypes.DType) -> None:
    def fn(*data: Any, device: Any = None) -> Tensor:
        return older(data, dtype, device=device)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""torch's older constructor of tensors of {dtype}: of sizes (zeros), or of what `tensor` takes.

    >>> tg.{name}(2, 3)
    """
    public(name, method=False)(fn)


for _name, _dtype in dtypes.OLDER.items():
    _typed(f"{_name}Tensor", _dtype)


@_create()
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`empty(size)`. stride: accepted, but for its length: memory has no layout here, so nobody can tell."""
    shape, steps = _shape("empty_strided", (size,)), _shape("empty_strided", (stride,))
    if len(shape) != len(steps):
        raise ArgumentError(f"empty_strided: size {shape} and stride {steps} must be equally many numbers")
    return _filled("empty_strided", shape, 0, _float(dtype), device, requires_grad)


@_create()
def empty_permuted(size: Any, physical_layout: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`empty(size)`. physical_layout: an order of the dimensions, accepted: memory has no layout here, so nobody can tell."""
    shape = _shape("empty_permuted", (size,))
    if sorted(physical_layout) != list(range(len(shape))):
        raise ArgumentError(f"empty_permuted: physical_layout {tuple(physical_layout)} must name each of the {len(shape)} dimensions once")
    return _filled("empty_permuted", shape, 0, _float(dtype), device, requires_grad)


def _like(name: str, make: Any, value: str = "") -> Any:
    """The function `name`_like. value: the name of its second argument, if it takes one."""
    def fn(input: Tensor, *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **named: Any) -> Tensor:
        if named:
            if args or {*named} != {value}:
                raise TypeError(f"{name}_like() got an unexpected keyword argument {next(k for k in named if args or k != value)!r}")
            args = (named[value],)
        if not isinstance(input, Tensor):
            raise DTypeError(f"{name}_like: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays and lists")
        found = input.dtype if dtype is None else dtypes.as_dtype(dtype)
        return make(input.shape, *args, found, input.device if device is None else device, requires_grad)  # type: ignore[no-any-return]

    fn.__name__ = fn.__qualname__ = f"{name}_like"
    fn.__doc__ = f"Like `{name}`, with the shape, dtype and device of `input` unless given."
    return _create(f"{name}_like", draws=name.startswith("rand"))(fn)


zeros_like = _like("zeros", lambda s, d, v, g: _filled("zeros_like", s, 0, d, v, g))
ones_like = _like("ones", lambda s, d, v, g: _filled("ones_like", s, 1, d, v, g))
empty_like = _like("empty", lambda s, d, v, g: _filled("empty_like", s, 0, d, v, g))
full_like = _like("full", lambda s, fill_value, d, v, g: full(s, fill_value, dtype=d, device=v, requires_grad=g), "fill_value")


@_create(again=True)
def arange(
    start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, ... below end (or 0, 1, ... below start): nothing if end comes first. int64 if all are ints, else the

    default float. Floats with dtype int64 are rounded towards 0 first; of narrower integers the values are, as in torch.
    Raises ArgumentError for a step of 0 and for numbers that are not finite.
    """
    if end is None:
        start, end = 0, start
    start, end, step = (_number("arange", v) for v in (start, end, step))
    if dtype is not None and dtypes.as_dtype(dtype) == dtypes.int64 and all(map(isfinite, (start, end, step))):
        start, end, step = int(start), int(end), int(step)
    if step == 0 or not all(map(isfinite, (start, end, step))):
        raise ArgumentError(f"arange: start and end must be finite, and step not 0, got {start}, {end} and {step}")
    exact = all(isinstance(v, int) for v in (start, end, step))
    found = dtypes.as_dtype(dtype) if dtype is not None else dtypes.int64 if exact else dtypes.get_default_dtype()
    if found.kind == "c":
        raise DTypeError(f"arange: does not make {found}; use arange(...).to(dtype)")
    n = max(0, ceil((end - start) / step))
    inner = dtypes.float64 if found == dtypes.float64 else dtypes.float32
    node: Node = iota((n,), 0, dtypes.int64)
    if dtypes.is_int(found):                                    # floats are rounded towards 0 first, as in torch
        node = node * int(step) + int(start)
    elif exact:
        node = cast(node * int(step) + int(start), found)
    else:
        node = cast(node, inner) * step + start
    return new_tensor(cast(node, found), device, requires_grad)


@_create(again=True)
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` values from start to end, both included, evenly spaced; complex if one of them is. Of an integer dtype: from int(start)

    to int(end), rounded towards 0, as in torch. Raises DTypeError for bool, and for ends that the dtype does not hold.
    """
    start, end = (_number_or_node("linspace", v, dtype) for v in (start, end))
    found = _of_ends("linspace", start, end, dtype)
    (steps,) = _shape("linspace", (steps,))
    if found.kind == "b":
        raise DTypeError("linspace: does not make bools; compare a linspace with a number")
    if found.kind == "c":
        a, b, real = complex(start), complex(end), dtypes.real_of(found)
        parts = (linspace(x, y, steps, dtype=real, device=device) for x, y in ((a.real, b.real), (a.imag, b.imag)))
        z = PUBLIC["complex"](*parts)
        return new_tensor(z._node(), z.device, requires_grad)
    if dtype_kind(found) != "f":
        low, high = (int(scalar("linspace", int(v), found).attrs["value"]) for v in (start, end))
        return from_array(np.trunc(np.linspace(low, high, steps)).astype(found), device)
    i = cast(iota((steps,), 0, dtypes.int64), found)
    step = (end - start) / max(1, steps - 1)
    node = (i * step + start).where(i < steps // 2, end - (steps - 1 - i) * step) if steps > 1 else i + start
    return new_tensor(cast(node, found), device, requires_grad)


def _of_ends(call: str, start: Any, end: Any, dtype: Any) -> Any:
    """The dtype of what goes from start to end."""
    is_complex = isinstance(start, complex) or isinstance(end, complex)
    if dtype is None:
        return dtypes.complex_of(_float(None)) if is_complex else _float(None)
    found = dtypes.as_dtype(dtype)
    if is_complex and found.kind != "c":
        raise DTypeError(f"{call}: from {start} to {end} there are complex numbers, which {found} does not hold; take a complex dtype")
    return found


@_create(again=True)
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal of an n x m (default n x n) matrix of zeros."""
    shape = _shape("eye", (n, n if m is None else m))
    return new_tensor(cast(iota(shape, 0).eq(iota(shape, 1)), _float(dtype)), device, requires_grad)


def _triangle(call: str, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    shape = _shape(call, (row, col))
    found = np.dtype(np.int64) if dtype is None else dtypes.as_dtype(dtype)
    Aval(shape, dtypes.bool_)                                # which refuses what no index reaches
    inside = np.tril if call == "tril_indices" else np.triu
    places = np.nonzero(inside(np.ones(shape, np.bool_), integer(call, "offset", offset)))
    return tensor(np.stack(places).tolist(), dtype=found, device=device)


@_create()
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The places (2, n), rows and columns, of the elements on and below a diagonal of a row x col matrix, row by row."""
    return _triangle("tril_indices", row, col, offset, dtype, device)


@_create()
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The places (2, n), rows and columns, of the elements on and above a diagonal of a row x col matrix, row by row."""
    return _triangle("triu_indices", row, col, offset, dtype, device)


@_create()
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` powers of base, whose exponents go from start to end (complex, too) evenly, both included. Of an integer dtype: start and

    end, and then the powers, are rounded towards 0, as in torch.
    """
    start, end, base = _number("logspace", start, True), _number("logspace", end, True), _number("logspace", base)
    found = _of_ends("logspace", start, end, dtype)
    if dtype_kind(found) in "fc":
        exponents = linspace(start, end, steps, dtype=found, device=device)
        return new_tensor((float(base) ** exponents)._node(), exponents.device, requires_grad)
    if found.kind == "b":
        raise DTypeError("logspace: does not make bools; compare a logspace with a number")
    (steps,) = _shape("logspace", (steps,))
    values = np.logspace(int(start), int(end), steps, base=base)
    limits = np.iinfo(found)
    if steps and not (limits.min <= values.min() and values.max() <= limits.max):
        raise DTypeError(f"logspace: values up to {values.max()} do not fit {found}; use a wider dtype")
    return from_array(values.astype(found), device)


@_create()
def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A 0-d tensor of the number s, of the default float dtype unless dtype is given."""
    return full((), s, dtype=_float(dtype), device=device, requires_grad=requires_grad)


# ---------------------------------------------------------------------------------------------------------------- random


def _draw(shape: Shape, numbers: int) -> tuple[Node, Node]:
    """Seed and offset for `numbers` draws per element of `shape`; of every example of a vmap whose randomness is "different"."""
    own = [(scope.number, scope.size) for scope in state.scopes if scope.randomness == "different"]
    if any(scope.randomness == "error" for scope in state.scopes):
        raise ArgumentError("vmap: a random function was called inside; pass randomness='different' for numbers of each example's own or "
                            "'same' for equal ones, or draw outside and map over what is drawn")
    step = Aval((*shape, numbers), dtypes.int64).size        # (it refuses what no index reaches, before anything is drawn)
    count = step * prod(size for _, size in own)
    if state.trace is not None:
        seed, offset = state.trace.random(count)
    else:
        seed = data(Aval((), dtypes.int64, True), random_state.seed())
        offset = data(Aval((), dtypes.int64, True), random_state.offset())
        random_state.advance(count)
    for index, size in reversed(own):           # the numbers of an inner vmap's examples stand side by side
        offset = cast(offset, dtypes.int64) + index * step
        step *= size
    return seed, offset


_draws = calls()                    # by what draws how many numbers, and of which dtype


def _drawn(draw: Any, shape: Shape, dtype: Any, device: Any, requires_grad: bool, *more: Any) -> Tensor:
    """A tensor of numbers that `draw`, one of random_bits', makes."""
    numbers, how = _draw(shape, 1), (draw, *more, shape, dtype)
    if state.trace is not None:
        return new_tensor(draw(*numbers, *how[1:]), device, requires_grad)
    where = find_device(device)
    recalled = config.recall and all(type(n.value) is int for n in numbers)
    call = _draws[how] if recalled else None
    if call is not None:
        return new_tensor(nodes_of(call, numbers, where, arrays_of(call, numbers, where))[call.result], where, requires_grad)
    made = draw(*numbers, *how[1:])
    if recalled:
        learn(_draws, how, numbers, made)
    return new_tensor(made, where, requires_grad)


@_create(draws=True)
@_sized
def rand(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform in [0, 1); of a complex dtype, both parts."""
    shape = _shape("rand", size)
    if _float(dtype).kind == "c":
        z = PUBLIC["view_as_complex"](rand(*shape, 2, dtype=dtypes.real_of(_float(dtype)), device=device))
        return new_tensor(z._node(), z.device, requires_grad)
    return _drawn(random_bits.uniform, shape, _float(dtype), device, requires_grad)


@_create(draws=True)
@_sized
def randn(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal; of a complex dtype circular, of variance 1: both parts have variance 1/2."""
    shape = _shape("randn", size)
    if _float(dtype).kind == "c":
        z = PUBLIC["view_as_complex"](randn(*shape, 2, dtype=dtypes.real_of(_float(dtype)), device=device) * 0.5**0.5)
        return new_tensor(z._node(), z.device, requires_grad)
    return _drawn(random_bits.normal, shape, _float(dtype), device, requires_grad)


rand_like = _like("rand", lambda s, d, v, g: rand(s, dtype=d, device=v, requires_grad=g))
randn_like = _like("randn", lambda s, d, v, g: randn(s, dtype=d, device=v, requires_grad=g))


@_create(draws=True)
def randint(low: Any = 0, high: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None,
            requires_grad: bool = False) -> Tensor:
    """Integers from low (inclusive) to high (exclusive): randint(low, high, size), or randint(high, size) from 0 on.

    Raises ArgumentError if there is no integer between them, DTypeError if one does not fit dtype.
    """
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    out = _integers("randint", low, high, (size,), dtypes.int64 if dtype is None else dtype, device)
    return out.requires_grad_() if requires_grad else out


def _integers(call: str, low: Any, high: Any, size: Sequence[Any], dtype: Any, device: Any) -> Tensor:
    low, high = integer(call, "low", low), integer(call, "high", high)
    if not low < high:
        raise ArgumentError(f"{call}: low must be below high, got {low} and {high}")
    found, shape = dtypes.as_dtype(dtype), _shape(call, size)
    for bound in (low, high - 1):
        scalar(call, bound, found)
    return _drawn(random_bits.randint, shape, found, device, False, low, high)


@_create(draws=True)
def randint_like(input: Tensor, low: Any = 0, high: Any = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Like `randint`, with the shape, dtype and device of `input` unless given: randint_like(x, high) or randint_like(x, low, high)."""
    if not isinstance(input, Tensor):
        raise DTypeError(f"randint_like: expected a Tensor, got {type(input).__name__}; use tg.tensor(...) for arrays, lists and numbers")
    low, high = (0, low) if high is None else (low, high)
    return _integers("randint_like", low, high, input.shape, dtype or input.dtype, device or input.device)


@_create(draws=True)
def randperm(n: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A random order of 0 ... n - 1 (int64)."""
    found = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    scalar("randperm", max(0, *_shape("randperm", (n,))), found)                 # whether the dtype holds them
    out = rand((n,), device=device).argsort().to(dtype=found)
    return out.requires_grad_() if requires_grad else out  # type: ignore[no-any-return]


@_create(draws=True)
def bernoulli(input: Tensor, p: Any = None) -> Tensor:
    """1 with probability `input` (or with probability p, if given), else 0; its shape and dtype.

    A tensor's elements that are no probabilities give NaN (torch: an error); a number outside [0, 1] is an ArgumentError.
    """
    if p is None and not dtypes.is_float(input.dtype):
        raise DTypeError(f"bernoulli: takes probabilities in a float tensor, got {input.dtype}; use x.float(), or give p")
    return _bernoulli("bernoulli", input, input if p is None else p)


def _bernoulli(call: str, x: Tensor, p: Any) -> Tensor:
    if not isinstance(p, Tensor) and not 0.0 <= p <= 1.0:
        raise ArgumentError(f"{call}: p must be from 0 to 1, got {p}")
    wide = p.dtype if isinstance(p, Tensor) and p.dtype == dtypes.float64 else dtypes.float32
    drawn: Tensor = (rand(x.shape, dtype=wide, device=x.device) < p).to(dtype=x.dtype)
    if not isinstance(p, Tensor) or not dtypes.is_float(x.dtype):
        return drawn
    return where((p >= 0.0) & (p <= 1.0), drawn, nan)  # type: ignore[no-any-return]


@_create(draws=True)
def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normal, with the given means and standard deviations: tensors that broadcast, or numbers; two numbers need a size.

    Raises ArgumentError for a negative std and for numbers without a size.
    """
    if not isinstance(std, Tensor) and not std >= 0:
        raise ArgumentError(f"normal: std must not be negative, got {std}")
    given = [v for v in (mean, std) if isinstance(v, Tensor)]
    if not given:
        if size is None:
            raise ArgumentError("normal: two numbers need a size; or give mean or std as a tensor")
        drawn = randn(size, dtype=dtype, device=device) * std + mean
        return drawn.requires_grad_() if requires_grad else drawn  # type: ignore[no-any-return]
    if size is not None:
        raise ArgumentError("normal: a size is for two numbers; tensors have their own")
    for v in given:
        if not dtypes.is_float(v.dtype):
            raise DTypeError(f"normal: mean and std must be float tensors, got {v.dtype}; use x.float()")
    shape = broadcast_shapes("normal", [v.shape for v in given])
    found = given[0].dtype if len(given) == 1 else dtypes.promote(given[0].dtype, given[1].dtype)
    return (randn(shape, dtype=found, device=given[0].device) * std + mean).detach()  # type: ignore[no-any-return]


@_create(draws=True)
def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """num_samples indices (int64) drawn with probabilities proportional to a vector, or to each row of a matrix.

    Without replacement, an index is drawn once at most: by the order of p / e, with e exponential (Efraimidis & Spirakis 2006). Negative
    probabilities, or too few positive ones, are an IndexOutOfRange when the result is looked at.
    """
    if input.ndim not in (1, 2) or not dtypes.is_float(input.dtype) or not input.shape[-1]:
        raise DTypeError(f"multinomial: takes a vector or matrix of float probabilities, got {input.dtype} {input.shape}")
    n, k = input.shape[-1], integer("multinomial", "num_samples", num_samples)
    if k < 1 or (k > n and not replacement):
        raise ArgumentError(f"multinomial: num_samples must be from 1 to {n} (any number with replacement), got {k}")
    p = input.detach().to(dtype=dtypes.float32) if dtypes.is_half(input.dtype) else input.detach()
    valid = ((p >= 0) & (p < float("inf"))).all(-1, True) & ((p > 0).sum(-1, True) >= (1 if replacement else k))
    if replacement:
        total = p.cumsum(-1)
        most = total.narrow(-1, n - 1, 1)
        drawn = (rand((*p.shape[:-1], k), dtype=p.dtype, device=p.device) * most).minimum(most.nextafter(most * 0.0))
        found = PUBLIC["searchsorted"](total, drawn, right=True)
    else:
        found = (p / _exponential(p)).topk(k, -1)[1]
    node = where(valid, found, -1)._node()
    checked = in_range(node, n, "multinomial", "a drawn index (-1: of bad probabilities)", f"{n} probabilities")
    return new_tensor(checked, input.device)


def fill_randomly(name: str, draw: Any) -> Any:
    """An in-place method that overwrites a tensor with random numbers."""

    def method(self: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        with random_state.using(name, generator):
            return self.copy_(draw(self, *args, **kwargs))

    method.__name__, method.__doc__ = name, f"Overwrite with random numbers ({name[:-1]})."
    return method


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    if fails(low <= high):
        raise ArgumentError(f"uniform_: the range must go up, got {low} to {high}")
    return rand(x.shape, dtype=x.dtype, device=x.device) * (high - low) + low  # type: ignore[no-any-return]


def _normal(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    if fails(std >= 0):
        raise ArgumentError(f"normal_: std must not be negative, got {std}")
    return randn(x.shape, dtype=x.dtype, device=x.device) * std + mean  # type: ignore[no-any-return]


Tensor.uniform_ = fill_randomly("uniform_", _uniform)  # type: ignore[attr-defined]
Tensor.normal_ = fill_randomly("normal_", _normal)  # type: ignore[attr-defined]
def _exponential(x: Tensor, lambd: float = 1.0) -> Tensor:
    _positive("exponential_", "lambd", lambd)
    u = rand(x.shape, dtype=_inner("exponential_", x), device=x.device)
    least = float(dtypes.finfo(u.dtype).eps) / 2                    # never 0, as in torch: logarithms are taken of these
    return where(u == 0.0, least, -(-u).log1p()) * (1.0 / lambd)  # type: ignore[no-any-return]


def _cauchy(x: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    _positive("cauchy_", "sigma", sigma)
    u = rand(x.shape, dtype=_inner("cauchy_", x), device=x.device)
    return ((u - 0.5) * pi).tan() * sigma + median  # type: ignore[no-any-return]


def _geometric(x: Tensor, p: float) -> Tensor:
    if not 0.0 < p <= 1.0:
        raise ArgumentError(f"geometric_: p must be above 0 and at most 1, got {p}")
    u = rand(x.shape, dtype=dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32, device=x.device)
    return ((-u).log1p() * (1.0 / log1p(-p) if p < 1.0 else 0.0)).ceil().clamp(min=1.0)  # type: ignore[no-any-return]


def _log_normal(x: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    _positive("log_normal_", "std", std)
    return (randn(x.shape, dtype=_inner("log_normal_", x), device=x.device) * std + mean).exp()  # type: ignore[no-any-return]


def _random(x: Tensor, low: int | None = None, high: int | None = None) -> Tensor:
    if high is None:                                            # random_(to), or up to what the dtype holds exactly
        digits = dtypes.finfo(x.dtype).nmant + 1 if dtypes.is_float(x.dtype) else 1
        most = min(np.iinfo(x.dtype).max, 2**63 - 2) + 1 if dtypes.is_int(x.dtype) else 2**digits
        high = most if low is None else low
        low = 0
    return _integers("random_", low, high, (x.shape,), dtypes.int64, x.device).to(dtype=x.dtype)


def _positive(call: str, what: str, value: float) -> None:
    if not value > 0:
        raise ArgumentError(f"{call}: {what} must be positive, got {value}")


def _inner(call: str, x: Tensor) -> Any:
    """The dtype that a distribution is computed in: float32 for those of 16 bits."""
    if not dtypes.is_float(x.dtype):
        raise DTypeError(f"{call}: makes floats, not {x.dtype}")
    return dtypes.float32 if dtypes.is_half(x.dtype) else x.dtype


Tensor.bernoulli_ = fill_randomly("bernoulli_", lambda x, p=0.5: _bernoulli("bernoulli_", x, p))  # type: ignore[attr-defined]


def _fill_as(name: str, draw: Any) -> None:
    setattr(Tensor, name, fill_randomly(name, lambda x, *args, **named: draw(x, *args, **named).to(dtype=x.dtype)))


for _name, _distribution in dict(
    exponential_=_exponential, cauchy_=_cauchy, geometric_=_geometric, log_normal_=_log_normal, random_=_random
).items():
    _fill_as(_name, _distribution)


def _new(make: Any) -> Any:
    """A creation function as a method: with the tensor's dtype and device unless given."""

    def method(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **size: Any) -> Tensor:
        given = dict(dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)
        return make(*args, **given, **size)  # type: ignore[no-any-return]

    method.__name__ = f"new_{make.__name__}"
    method.__doc__ = f"Like `tg.{make.__name__}`, with this tensor's dtype and device unless given."
    return method


for _make in (tensor, zeros, ones, empty, full, empty_strided):
    setattr(Tensor, f"new_{_make.__name__}", _new(_make))
for _name in ("bernoulli", "multinomial"):
    setattr(Tensor, _name, PUBLIC[_name])
