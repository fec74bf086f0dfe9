"""What a worker needs of each framework: import it, move arrays in and out, wait. One class each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


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

        self.about = f"pytensor {pytensor.__version__}, compiled as C"

    def put(self, array: np.ndarray) -> Any:
        return array

    def wait(self, values: tuple[Any, ...]) -> None:
        pass

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)


def pytensor_function(program: Callable[..., list[Any]], *arrays: np.ndarray) -> Callable[[], tuple[Any, ...]]:
    """program(pytensor.tensor, *symbols), a list of results, as an iteration on arrays."""
    import pytensor
    import pytensor.tensor as pt

    symbols = [pt.tensor(dtype=a.dtype, shape=a.shape) for a in arrays]
    f = pytensor.function(symbols, program(pt, *symbols))
    return lambda: tuple(f(*arrays))


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


FRAMEWORKS: dict[str, Any] = {"tracegrad": Tracegrad, "torch": Torch, "torch_compile": TorchCompile, "jax": Jax, "pytensor": PyTensor,
                              "drjit": DrJit}
PACKAGES = {"torch_compile": "torch"}                      # what a framework is imported as, where that is not its name
