"""Tracing and differentiating long programs: the time has to grow about linearly with the number of nodes.

What is timed is recording the program and deriving its gradient, not compiling or running it (the table's first-call
columns include those). There is no peer: eager torch and jax.jit have no such phase to compare.
"""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.base import Workload

STEP = 1e-3


class GraphSize(Workload):
    tolerance = 1e-3                    # a float32 recurrence thousands of steps long
    wait = "never"

    def __init__(self, nodes: int) -> None:
        self.repeats = nodes // 3       # a multiplication, a sine and an addition each
        self.name = f"graph-{nodes}"
        self.title = f"graph of {nodes:,} nodes: trace and differentiate"

    def data(self, rng):
        return {"x": rng.uniform(0.5, 2.5, 16).astype(np.float32)}

    def reference(self, x):
        x = x.astype(np.float64)
        slope = np.ones_like(x)
        for _ in range(self.repeats):
            x, slope = x + STEP * np.sin(x), slope * (1 + STEP * np.cos(x))
        return (slope,)

    def tracegrad(self, x):
        import tracegrad as tg
        from tracegrad.config import config

        config.pending = 1 << 30        # record all of it before anything runs

        def f(x):
            for _ in range(self.repeats):
                x = x + STEP * tg.sin(x)
            return x.sum()

        gradient, values = tg.grad(f), x.numpy()
        return lambda: (gradient(tg.from_numpy(values.copy())),)      # a fresh leaf: nothing is shared with the call before
