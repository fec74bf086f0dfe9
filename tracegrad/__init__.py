"""tracegrad: source-transforming autograd for any OpenCL device, in PyTorch's idiom.

Write array functions, decorate them with `@trace`, call them. `backward`, `grad`, `jvp` derive programs from programs; the
generated OpenCL C kernels can be read (`f.kernels()`). Start reading at `tracing/trace.py` and `graph/ir.py`; docs/design.md tells the
whole.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tracegrad.support.modes import uncollected

with uncollected(lasting=True):             # a hundred searches for cycles
    from tracegrad import amp, autograd, backends, cuda, errors, fft, linalg, random, signal, special, testing, utils
    from tracegrad.amp import GradScaler, autocast
    from tracegrad.autograd import backward, jacobians, transforms, vmap_transform
    from tracegrad.autograd.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
    from tracegrad.config import config
    from tracegrad.control_flow import functions
    from tracegrad.custom import host_call, opencl_function
    from tracegrad.custom.custom_function import Function, autograd_function
    from tracegrad.custom.user_call import Context
    from tracegrad.errors import *  # the exception tree; its __all__ is checked by a test
    from tracegrad.execute.backend_interfaces import CodeGenerator, NumpyBackend, code_generator, numpy_rules
    from tracegrad.execute.deferred import flush, synchronize
    from tracegrad.execute.devices import find_device as device
    from tracegrad.execute.devices import list_devices as devices
    from tracegrad.execute.devices import set_device
    from tracegrad.graph.ir import Size
    from tracegrad.graph.operators import PUBLIC
    from tracegrad.inspection import untraced_work
    from tracegrad.numpy_backend import interpreter
    from tracegrad.random import sampling
    from tracegrad.support import layouts
    from tracegrad.support.dtypes import (
        bfloat16,
        bool_,
        complex64,
        complex128,
        float16,
        float32,
        float64,
        get_default_dtype,
        int8,
        int16,
        int32,
        int64,
        set_default_dtype,
        uint8,
        uint16,
        uint32,
        uint64,
    )
    from tracegrad.support.layouts import (
        channels_last,
        channels_last_3d,
        contiguous_format,
        layout,
        memory_format,
        preserve_format,
        strided,
    )
    from tracegrad.support.modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
    from tracegrad.support.random_state import Generator, default_generator, get_rng_state, initial_seed, manual_seed, set_rng_state
    from tracegrad.support.random_state import reseed as seed
    from tracegrad.tensors import attributes, creation, inplace_views, methods, settings
    from tracegrad.tensors.scopes import inference_mode, is_inference_mode_enabled
    from tracegrad.tensors.settings import (
        are_deterministic_algorithms_enabled,
        get_default_device,
        get_float32_matmul_precision,
        get_num_threads,
        is_deterministic_algorithms_warn_only_enabled,
        set_default_device,
        set_float32_matmul_precision,
        set_num_threads,
        set_printoptions,
        typename,
        use_deterministic_algorithms,
    )
    from tracegrad.tensors.tensor import Tensor, is_tensor
    from tracegrad.tensors.type_info import can_cast, dtype, finfo, iinfo, promote_types, result_type
    from tracegrad.tracing.debugging import debug
    from tracegrad.tracing.trace import trace
    from tracegrad.tracing.varying import mark_dynamic


def _load_code_generator() -> CodeGenerator:
    from tracegrad.codegen import compiler  # noqa: PLC0415  (when a first program is compiled)

    return compiler


def _load_numpy_backend() -> NumpyBackend:
    return interpreter


code_generator.by(_load_code_generator)
numpy_rules.by(_load_numpy_backend)
attributes.array_namespace.by(lambda: import_module("tracegrad.array_api"))
autograd_backward = backward
inf, nan, pi, e = float("inf"), float("nan"), 3.141592653589793, 2.718281828459045
double, half, long = float64, float16, int64
cfloat, cdouble = complex64, complex128

newaxis = None

methods.install()
inplace_views.install()
methods.export_functions()
globals().update(PUBLIC)                # every operation that an op family exports, under its own name
_BUILTINS = {"bool": bool_, "float": float32, "int": int32}     # torch's names that `import *` must not put over Python's
globals().update(_BUILTINS, short=int16)


if TYPE_CHECKING:
    from tracegrad import array_api, distributed, distributions, func, jiterator, masked, nn, optim, parallel
    from tracegrad.inspection import profiling, python_source
    from tracegrad.nn.saving import load, save
# Imported when they are asked for: a seventh of the time that `import tracegrad` would take. No operation and no method is in them.
_LATER = dict.fromkeys(("array_api", "distributed", "distributions", "func", "jiterator", "masked", "nn", "optim", "parallel"), "")
_LATER |= {"load": "nn.saving", "save": "nn.saving"}
# What has another name than in torch, JAX or NumPy, and none that is near.
_ELSEWHERE = {"compile": "tg.trace(f)", "jit": "tg.trace(f)", "array": "tg.tensor", "profiler": "f.profile() of a traced function f"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        if name in _ELSEWHERE:
            raise AttributeError(f"tracegrad has no {name!r}; use {_ELSEWHERE[name]}", name=name)
        # (Python itself would look at 750 names.)
        near = [] if name.startswith("_") else import_module("difflib").get_close_matches(name, __dir__(), 1, 0.75)
        raise AttributeError(f"tracegrad has no {name!r}{f'; did you mean {near[0]!r}?' if near else ''}", name=name)
    module = _LATER[name]
    return getattr(import_module(f"tracegrad.{module}"), name) if module else import_module(f"tracegrad.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


_IMPORTED = {"Any", "CodeGenerator", "ModuleType", "NumpyBackend", "TYPE_CHECKING", "annotations", "code_generator", "import_module",
             "interpreter", "numpy_rules", "PUBLIC", "random",
             "uncollected", *_BUILTINS}
_STAGES = {"autodiff", "codegen", "control_flow", "custom", "execute", "graph", "inspection", "numpy_backend", "runtime", "support",
           "tensors", "tracing"}            # folders behind the public names
__all__ = sorted({name for name, value in globals().items() if not name.startswith("_") and name not in _STAGES
                  and not (isinstance(value, ModuleType) and value.__name__ != f"tracegrad.{name}")} - _IMPORTED | {*_LATER})
__version__ = "0.1.0"
