"""What all evals share: arrays of float64, and `timed`, which runs a function as often as the suite asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tracegrad as tg


def array(numbers: Any) -> tg.Tensor:
    """The numbers of an input as float64."""
    return tg.from_numpy(np.array(numbers, np.float64))


def listed(result: Any) -> Any:
    """Tensors as numbers and lists, in dicts, too."""
    return {key: listed(value) for key, value in result.items()} if isinstance(result, dict) else result.tolist()


def timed(prepare: Callable[[dict[str, Any]], tuple[Any, ...]], finish: Callable[..., Any] = listed) -> Callable[[Any], Any]:
    """Decorator. prepare: arguments from the suite's input; finish: the suite's output from the result. Neither is timed.

    A run ends when its values are there.
    """
    def decorator(fn: Callable[..., Any]) -> Callable[[Any], Any]:
        def run(given: dict[str, Any]) -> tuple[Any, list[int]]:
            args, times = prepare(given), list[int]()
            while len(times) < given.get("min_runs", 1) or sum(times) < 1e9 * given.get("min_seconds", 0):
                start = time.perf_counter_ns()
                result = fn(*args)
                tg.synchronize()
                times.append(time.perf_counter_ns() - start)
            return finish(result), times

        return run

    return decorator
