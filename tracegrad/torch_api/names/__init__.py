"""torch's own names that tracegrad has no need of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import ml_dtypes

import tracegrad as tg
from tracegrad import amp as _amp  # (names/amp, once it is imported, is this module's `amp`)
from tracegrad.graph.operators import DECORATORS as _DECORATORS
from tracegrad.graph.operators import PUBLIC
from tracegrad.random.sampling import dirichlet_numbers, gamma_numbers
from tracegrad.support import dtypes, random_state
from tracegrad.support.layouts import contiguous_format, layout
from tracegrad.support.modes import state
from tracegrad.tensors import settings, type_info
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import dtypes as torchs
from tracegrad.torch_api.checkpoints import load as load
from tracegrad.torch_api.checkpoints import save as save
from tracegrad.torch_api.devices import device as device
from tracegrad.torch_api.dtypes import dtype as dtype
from tracegrad.torch_api.names._dynamo.compiled import Compiled as _Compiled
from tracegrad.torch_api.names._dynamo.eval_frame import OptimizedModule as _OptimizedModule
from tracegrad.torch_api.names._higher_order_ops.control import cond as cond
from tracegrad.torch_api.names._higher_order_ops.control import while_loop as while_loop
from tracegrad.torch_api.names._markers import AssertionFailed as _AssertionFailed
from tracegrad.torch_api.names.futures import Future as Future
from tracegrad.torch_api.names.torch_version import TorchVersion as _TorchVersion
from tracegrad.torch_api.overrides import overridden
from tracegrad.torch_api.printing import set_printoptions as set_printoptions
from tracegrad.torch_api.random_numbers import Generator as Generator
from tracegrad.torch_api.random_numbers import default_generator as default_generator
from tracegrad.torch_api.random_numbers import get_rng_state as get_rng_state
from tracegrad.torch_api.random_numbers import manual_seed as manual_seed
from tracegrad.torch_api.random_numbers import set_rng_state as set_rng_state
from tracegrad.torch_api.requirements import VERSION
from tracegrad.torch_api.storages import TypedStorage as TypedStorage
from tracegrad.torch_api.storages import UntypedStorage as UntypedStorage
from tracegrad.torch_api.storages import kinds as _kinds
from tracegrad.torch_api.storages import mapped as _mapped

__version__ = _TorchVersion(VERSION)
SymInt, SymFloat, SymBool = int, float, bool
DeviceObjType = device
sym_int, sym_float, sym_max, sym_min = int, float, max, min
legacy_contiguous_format = contiguous_format
sparse_coo, sparse_csr, sparse_csc = layout.sparse_coo, layout.sparse_csr, layout.sparse_csc
_SPARSE = {"spmm": "matmul", "dsmm": "matmul", **{name: name for name in (
    "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor")}}


class _TypedTensor(type):
    """The class of FloatTensor and its like: `isinstance` asks the dtype, a call is the function of that name."""

    dtype: Any

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype == cls.dtype

    def __call__(cls, *data: Any, device: Any = None) -> Any:
        return PUBLIC[cls.__name__](*data, device=device)


_TYPED = {f"{name}Tensor": _TypedTensor(f"{name}Tensor", (), {"dtype": dtype}) for name, dtype in dtypes.OLDER.items()}
globals().update(_TYPED)
globals().update(_kinds)


def compile(model: Any = None, **options: Any) -> Any:
    """torch.compile: of a function, a traced function (see `Compiled`); of a module, an `OptimizedModule` around it, with a traced forward.

    A class stays as it is, and its instances run untraced. options: torch's, none of which means anything here.
    """
    if model is None:
        return compile
    if isinstance(model, tg.nn.Module):
        return _OptimizedModule(model)
    return model if isinstance(model, type) else _Compiled(model)


_DECORATORS["trace"] = _Compiled            # so `Module.compile` does the same


def from_file(filename: Any, shared: bool | None = None, size: int = 0, *, dtype: Any = None, layout: Any = None, device: Any = None,
              pin_memory: bool = False, requires_grad: bool = False) -> Any:
    """A vector of the first `size` elements of a file, which are read when they are first needed. What is written to it reaches no file,

    so shared=True is an UnsupportedError. ArgumentError where the file has fewer elements.
    """
    array = _mapped(filename, dtypes.as_dtype(dtype or dtypes.get_default_dtype()), size, shared)
    return tg.asarray(array, device=device, requires_grad=requires_grad)


def is_storage(obj: Any) -> bool:
    return isinstance(obj, TypedStorage)


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    return _amp.is_autocast_enabled(device_type)


def is_autocast_cpu_enabled() -> bool:
    return _amp.is_autocast_enabled("cpu")


def get_autocast_dtype(device_type: str) -> Any:
    return torchs.users(_amp.get_autocast_dtype(device_type))


def get_autocast_gpu_dtype() -> Any:
    return get_autocast_dtype("cuda")


def get_autocast_cpu_dtype() -> Any:
    return get_autocast_dtype("cpu")


def is_autocast_cache_enabled() -> bool:
    return False


def clear_autocast_cache() -> None:
    """Nothing: a cast is a node, and is shared."""


def _assert(condition: Any, message: str) -> None:
    """An AssertionError with the message unless the condition holds; graphs of torch.fx record it."""
    if isinstance(condition, (bool, Tensor)):
        if not condition:
            raise _AssertionFailed(message)
    else:
        overridden(_assert, lambda condition, message: _assert(bool(condition), message), (condition, message), {})


def _assert_async(input: Any, assert_msg: str = "") -> None:
    """Raise RuntimeError where a tensor of one element is 0 or False, at once; in a trace, where there is no value, nothing."""
    if state.trace is None and not bool(input):
        raise RuntimeError(assert_msg or "Expected Tensor with single nonzero value, but got zero")


def get_device_module(_: Any = None) -> Any:
    return tg.cuda


def is_warn_always_enabled() -> bool:
    return False



class finfo(type_info.finfo):
    """torch.finfo, which knows dtypes that no tensor here has, too."""

    def __init__(self, type: Any = None) -> None:
        if not (isinstance(type, torchs.dtype) and str(type).startswith("torch.float8")):
            super().__init__(type)
            self.dtype: Any = str(self.dtype)
            return
        known: Any = ml_dtypes.finfo(type.dtype)  # type: ignore[no-untyped-call]
        self.dtype, self.bits, self.resolution = type.name, 8, 1.0
        self.eps, self.max, self.min, self.tiny = (float(v) for v in (known.eps, known.max, known.min, known.smallest_normal))
        self.smallest_normal = self.tiny


class iinfo(type_info.iinfo):
    """torch.iinfo. Its dtype is a name, as torch's is."""

    def __init__(self, type: Any) -> None:
        super().__init__(type)
        self.dtype: Any = str(self.dtype)


def get_default_dtype() -> Any:
    return torchs.users(dtypes.get_default_dtype())


def promote_types(type1: Any, type2: Any) -> Any:
    return torchs.users(type_info.promote_types(type1, type2))


def result_type(tensor1: Any, tensor2: Any) -> Any:
    return torchs.users(type_info.result_type(tensor1, tensor2))


def _check(condition: Any, message: Callable[[], str] | str | None = None) -> None:
    """RuntimeError with the message unless the condition holds."""
    if not condition:
        raise RuntimeError(message() if callable(message) else message or "Expected condition to be True")


def _check_with(error_type: type[Exception], condition: Any, message: Callable[[], str] | str | None = None) -> None:
    """The error of this type with the message unless the condition holds."""
    if not condition:
        raise error_type(message() if callable(message) else message or "Expected condition to be True")


def _check_tensor_all_with(error_type: type[Exception], condition: Any, message: Callable[[], str] | None = None) -> None:
    """The same of all elements of a bool tensor; in a trace, where there are no values, nothing."""
    _check_with(error_type, state.trace is not None or bool(condition.all()), message)


_check_index, _check_value = partial(_check_with, IndexError), partial(_check_with, ValueError)
_check_type, _check_not_implemented = partial(_check_with, TypeError), partial(_check_with, NotImplementedError)
_check_tensor_all = partial(_check_tensor_all_with, RuntimeError)


def _shape_as_tensor(self: Any) -> Any:
    """The sizes, as integers."""
    return tg.tensor(list(self.shape), dtype="int64")


def _weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    """v with the norms g over all dimensions but one."""
    return v * (g / norm_except_dim(v, 2, dim))


def _check_is_size(i: int, message: Any = None) -> None:
    _check(i >= 0, message or f"Expected a size, got {i}")


def _convert_indices_from_coo_to_csr(input: Any, size: int, *, out_int32: bool = False) -> Any:
    """Where each of `size` rows begins in the sorted indices (n), and where the last ends: size + 1 integers."""
    rows = tg.arange(size + 1, dtype=input.dtype, device=input.device)
    return tg.searchsorted(input, rows).to(dtype="int32" if out_int32 else "int64")


def _convert_indices_from_csr_to_coo(crow_indices: Any, col_indices: Any, *, out_int32: bool = False, transpose: bool = False) -> Any:
    """Row and column (2, n) of each of n elements whose rows begin at `crow_indices`; column and row if `transpose`."""
    rows = tg.repeat_interleave(tg.arange(len(crow_indices) - 1, device=crow_indices.device), crow_indices.diff())
    return tg.stack([col_indices, rows] if transpose else [rows, col_indices]).to(dtype="int32" if out_int32 else "int64")


def set_default_tensor_type(t: Any) -> None:
    """Make the dtype of one of torch's older types, torch.DoubleTensor or "torch.DoubleTensor", the default one."""
    name = getattr(t, "__name__", t).rpartition(".")[2].removesuffix("Tensor")
    if name not in dtypes.OLDER:
        raise TypeError(f"set_default_tensor_type: there is no type {t!r}; use torch.set_default_dtype")
    dtypes.set_default_dtype(dtypes.OLDER[name])


def set_flush_denormal(mode: bool) -> bool:
    """False: what tiny numbers are is the device's matter."""
    return False


def get_num_interop_threads() -> int:
    """One: operations run one after the other."""
    return 1


def set_num_interop_threads(_: int) -> None:
    """Nothing: operations run one after the other."""


def set_warn_always(_: bool) -> None:
    """Nothing: warnings come as Python's `warnings` have it."""


def sym_not(a: Any) -> bool:
    return not a


def sym_ite(b: Any, t: Any, f: Any) -> Any:
    return t if b else f


def sym_sqrt(a: Any) -> float:
    return math.sqrt(a)


def sym_sum(args: Any) -> Any:
    return sum(args)


def range(start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    """torch's older `arange`, whose end is included: floats unless dtype says another."""
    count = int((end - start) / step) + 1
    return PUBLIC["arange"](count, dtype=options.pop("dtype", None) or dtypes.get_default_dtype(), **options) * step + start


def norm_except_dim(v: Any, pow: int = 2, dim: int = 0) -> Any:
    """The norm over all dimensions but one, which stays with the others as ones; of all of them where dim is -1."""
    return tg.linalg.vector_norm(v, pow) if dim == -1 else tg.linalg.vector_norm(
        v, pow, [d for d, _ in enumerate(v.shape) if d != dim % v.ndim], keepdim=True)


def embedding(weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    """`nn.functional.embedding` with the table first; -1: no padding."""
    return tg.nn.functional.embedding(indices, weight, None if padding_idx == -1 else padding_idx, scale_grad_by_freq=scale_grad_by_freq,
                                      sparse=sparse)


def batch_norm(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float,
               cudnn_enabled: bool) -> Any:
    """`nn.functional.batch_norm` with torch's older arguments."""
    return tg.nn.functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    tg.autograd.set_detect_anomaly(mode, check_nan)


def set_deterministic_debug_mode(debug_mode: Any) -> None:
    """0 or "default", 1 or "warn", 2 or "error", as `use_deterministic_algorithms`: every operation here is."""
    level = {"default": 0, "warn": 1, "error": 2}.get(debug_mode, debug_mode)
    if level not in (0, 1, 2):
        raise RuntimeError(f"set_deterministic_debug_mode: takes 0, 1, 2, \"default\", \"warn\" or \"error\", got {debug_mode!r}")
    settings.use_deterministic_algorithms(level > 0, warn_only=level == 1)


def get_deterministic_debug_mode() -> int:
    warns = settings.is_deterministic_algorithms_warn_only_enabled()
    return 0 if not settings.are_deterministic_algorithms_enabled() else 1 if warns else 2


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Nothing: a cast is a node, and is shared."""


def _each(op: str) -> Callable[..., Any]:
    """torch's `_foreach_<op>`: an operation on each tensor of a list. Other lists go along, other arguments are the same for all."""
    def one(first: Any, *rest: Any, **options: Any) -> Any:
        if len(rest) == 3 and op.rstrip("_") in ("addcmul", "addcdiv"):
            *rest, options["value"] = rest                      # type: ignore[assignment]  # for one tensor it has to be named
        return (getattr(first, op) if isinstance(first, Tensor) else partial(PUBLIC[op], first))(*rest, **options)

    def foreach(*args: Any, **kwargs: Any) -> list[Any] | None:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))
        rows = zip(*(a if isinstance(a, (list, tuple)) else [a] * count for a in args), strict=True)
        found = [one(*row, **kwargs) for row in rows]
        return None if op.endswith("_") else found

    return foreach


def _foreach_norm(self: Sequence[Any], ord: Any = 2, dtype: Any = None) -> list[Any]:
    """The vector norm of each tensor of a list."""
    return [tg.linalg.vector_norm(t, ord, dtype=dtype) for t in self]


_segment_reduce = PUBLIC["segment_reduce"]


def _standard_gamma(self: Tensor, generator: Any = None) -> Any:
    """Gamma numbers of these shapes and of rate 1."""
    with random_state.using("_standard_gamma", generator):
        return gamma_numbers(self)


def _sample_dirichlet(self: Tensor, generator: Any = None) -> Any:
    """Vectors along the last dimension of the Dirichlet distributions of these shapes."""
    with random_state.using("_sample_dirichlet", generator):
        return dirichlet_numbers(self)


def __getattr__(name: str) -> Any:
    if name in torchs.NAMES:                            # float and int are Python's in this file
        return torchs.NAMES[name]
    if name in _SPARSE:
        return getattr(import_module("tracegrad.torch_api.sparse"), _SPARSE[name])
    if name.startswith("fake_quantize_"):
        return getattr(import_module("tracegrad.torch_api.quantized"), name.removeprefix("fake_quantize"))
    op = name.removeprefix("_foreach_")
    if op == name or not hasattr(Tensor, op):
        raise AttributeError(name)
    return _each(op)
