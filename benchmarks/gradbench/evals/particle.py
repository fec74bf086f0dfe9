"""Where to put a charge, so that a particle's path meets the origin: descent around a simulation that takes gradients itself."""

import tracegrad as tg
from benchmarks.gradbench.evals.solver import MODES, minimum
from benchmarks.gradbench.runs import array, timed

DT = 0.1


def variant(outer, inner):
    def missed(w):
        """Squared distance from the origin, where the path from (0, 8) crosses the axis."""
        charges = tg.stack([tg.stack([tg.full_like(w[0], 10.0), 10 - w[0]]), tg.stack([tg.full_like(w[0], 10.0), tg.zeros_like(w[0])])])

        def potential(x):
            return (1 / ((x - charges) ** 2).sum(1).sqrt()).sum()

        def step(state):
            x, v = state
            return x + DT * v, v - DT * MODES[inner](potential)(x)

        start = tg.tensor([0.0, 8.0], dtype=w.dtype), tg.tensor([0.75, 0.0], dtype=w.dtype)
        x, v = tg.while_loop(lambda state: state[0][1] + DT * state[1][1] > 0, step, start)
        return (x[0] - x[1] / v[1] * v[0]) ** 2

    found = tg.trace(lambda w: minimum(MODES[outer], missed, w)[0])
    return timed(lambda given: (array([given["w"]]),))(found)


ff, fr, rf, rr = (variant(*modes) for modes in ("ff", "fr", "rf", "rr"))
