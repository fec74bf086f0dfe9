"""What a worker needs of each framework: import it, move arrays in and out, wait. One class each."""

from __future__ import annotations

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
