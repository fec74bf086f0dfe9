"""What the benchmarks need of each framework: its `namespace`, an `environment` with caches, and for a worker a class that moves arrays."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def namespace(name: str, threads: int = 0) -> Any:
    """What programs that are written once are given: T (the framework), F (its nn.functional), grad, value_and_grad, and trace.

    threads: torch's, unless 0. torch has no @trace: it is the identity.
    """
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
    return {**os.environ, "XDG_CACHE_HOME": str(caches), "POCL_CACHE_DIR": f"{caches}/pocl", "PYTHONPATH": str(ROOT), **more}


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


class Jax:
    def __init__(self, threads: int) -> None:
        import jax

        self.jax = jax
        self.about = f"jax {jax.__version__}, jit"

    def put(self, array: np.ndarray) -> Any:
        return self.jax.block_until_ready(self.jax.numpy.asarray(array))

    def wait(self, values: tuple[Any, ...]) -> None:
        self.jax.block_until_ready(values)

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)


FRAMEWORKS = {"tracegrad": Tracegrad, "torch": Torch, "jax": Jax}
