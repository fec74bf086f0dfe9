"""What the benchmarks need of each framework: its `namespace`, an `environment` with caches, and for a worker a class that moves arrays."""

from __future__ import annotations

import compileall
import os
import shutil
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def namespace(name: str, threads: int = 0) -> Any:
    """What programs that are written once are given: T (the framework), F (its nn.functional), grad, value_and_grad, and trace.

    threads: torch's, unless 0. torch has no @trace: it is the identity. jax has T (its numpy), grad, value_and_grad, trace (its jit).
    """
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return SimpleNamespace(T=jax.numpy, grad=jax.grad, value_and_grad=jax.value_and_grad, trace=jax.jit)
    if name == "torch":
        import torch

        if threads:
            torch.set_num_threads(threads)

        def value_and_grad(fn: Any, argnums: Any = 0) -> Any:
            both = torch.func.grad_and_value(fn, argnums)
            return lambda *args: tuple(reversed(both(*args)))

        return SimpleNamespace(T=torch, F=torch.nn.functional, grad=torch.func.grad, value_and_grad=value_and_grad, trace=lambda fn: fn)
    import tracegrad

    return SimpleNamespace(T=tracegrad, F=tracegrad.nn.functional, grad=tracegrad.grad, value_and_grad=tracegrad.value_and_grad,
                           trace=tracegrad.trace)


def environment(caches: str | Path, **more: str) -> dict[str, str]:
    """For a process that finds this checkout, and keeps what tracegrad and its drivers cache on disk under `caches`."""
    as_installed()
    return {**os.environ, "XDG_CACHE_HOME": str(caches), "POCL_CACHE_DIR": f"{caches}/pocl", "PYTHONPATH": str(ROOT), **more}


@cache
def as_installed() -> None:
    """Compile the checkout's Python, as pip does with what it installs: the peers are installed, and it is 0.15 s of a first call."""
    for folder in ("tracegrad", "codegen", "runtime", "benchmarks"):
        compileall.compile_dir(str(ROOT / folder), quiet=2)


class Tracegrad:
    def __init__(self, threads: int) -> None:
        import tracegrad as tg

        self.tg = tg
        self.about = f"tracegrad on {tg.device()}"

    def put(self, array: np.ndarray) -> Any:
        return self.tg.from_numpy(array)

    def wait(self, values: tuple[Any, ...]) -> None:
        self.tg.synchronize()

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value.detach().numpy())


class Torch:
    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.about = f"torch {torch.__version__}, eager, {torch.get_num_threads()} threads"

    def put(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array.copy())

    def wait(self, values: tuple[Any, ...]) -> None:
        pass                            # eager on the CPU: the call has done the work

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value.detach().numpy())


class TorchCompile(Torch):
    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.about = f"torch {self.torch.__version__}, torch.compile"


class Jax:
    def __init__(self, threads: int) -> None:
        import jax

        self.jax = jax
        self.about = f"jax {jax.__version__}, jit"

    def put(self, array: np.ndarray) -> Any:
        if array.dtype == np.float64:
            self.jax.config.update("jax_enable_x64", True)
        return self.jax.block_until_ready(self.jax.numpy.asarray(array))

    def wait(self, values: tuple[Any, ...]) -> None:
        self.jax.block_until_ready(values)

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)


class PyTensor:
    def __init__(self, threads: int) -> None:
        import pytensor
        from pytensor.compile.mode import get_default_mode

        linker = type(get_default_mode().linker).__name__                # Numba's from version 3 on, C's before
        self.about = f"pytensor {pytensor.__version__}, {linker.removesuffix('Linker')}"

    def put(self, array: np.ndarray) -> Any:
        return array

    def wait(self, values: tuple[Any, ...]) -> None:
        pass

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)


class DrJit:
    """Arrays are flat; results are compared in the reference's shape."""

    def __init__(self, threads: int) -> None:
        import drjit as dr
        from drjit.llvm.ad import Float, Float64

        dr.set_thread_count(threads)
        self.dr, self.types = dr, {np.dtype(np.float32): Float, np.dtype(np.float64): Float64}
        self.about = f"drjit {dr.__version__}, LLVM"

    def put(self, array: np.ndarray) -> Any:
        return self.types[array.dtype](array.ravel())

    def wait(self, values: tuple[Any, ...]) -> None:
        self.dr.eval(*values)
        self.dr.sync_thread()

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)


class Tinygrad:
    """On its CPU backend, by clang or, where that is not installed, LLVM (DEV, its own setting, chooses another)."""

    def __init__(self, threads: int) -> None:
        os.environ.setdefault("DEV", "CPU" if shutil.which("clang") else "CPU:LLVM")
        import tinygrad

        self.tinygrad = tinygrad
        self.about = f"tinygrad {version('tinygrad')}, TinyJit, {os.environ['DEV']}"

    def put(self, array: np.ndarray) -> Any:
        return self.tinygrad.Tensor(array).realize()

    def wait(self, values: tuple[Any, ...]) -> None:
        device = self.tinygrad.Device
        device[device.DEFAULT].synchronize()

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value.numpy())


FRAMEWORKS: dict[str, Any] = {"tracegrad": Tracegrad, "torch": Torch, "torch_compile": TorchCompile, "jax": Jax, "pytensor": PyTensor,
                              "drjit": DrJit, "tinygrad": Tinygrad}
PACKAGES = {"torch_compile": "torch"}                      # what a framework is imported as, where that is not its name
