"""What a workload gives, and what a worker does with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Arrays = dict[str, np.ndarray]
Iteration = Callable[[], tuple[Any, ...]]         # one iteration; returns the framework's own arrays, not waited for


class Workload:
    """One row of the table.

    `data` makes the inputs, `reference` computes in float64 what an iteration has to return after `checked`
    iterations. `tracegrad`, `torch`, ... take the inputs as arrays of that framework and return the iteration.
    A framework that a row leaves out is not run on it. Most rows are written once for several: see `derived.py`.
    """

    name: str
    title: str
    target: float | None = None                   # at most this multiple of the best peer's time
    checked: int = 1                              # the iteration whose results are compared with the reference
    tolerance: float = 1e-5                       # largest error allowed, relative to the largest value of each result
    burst: int = 1                                # iterations that are timed together
    wait: Literal["each", "burst", "never"] = "each"      # wait for each result, for a burst's last, or only record

    tracegrad: Callable[..., Iteration] | None = None
    torch: Callable[..., Iteration] | None = None
    torch_compile: Callable[..., Iteration] | None = None
    jax: Callable[..., Iteration] | None = None
    pytensor: Callable[..., Iteration] | None = None
    drjit: Callable[..., Iteration] | None = None
    tinygrad: Callable[..., Iteration] | None = None
    traced: Any = None                            # the function under @trace, once `tracegrad` made it: what it moves and computes is asked

    def data(self, rng: np.random.Generator) -> Arrays:
        raise NotImplementedError

    def reference(self, **inputs: np.ndarray) -> tuple[np.ndarray | float, ...]:
        raise NotImplementedError

    def view(self, results: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """What of the results is compared with the reference."""
        return results
