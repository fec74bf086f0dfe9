"""A saddle point by nested descent: the least of the greatest of x² + y² over the other point's."""

import tracegrad as tg
from benchmarks.gradbench.evals.solver import MODES, minimum
from benchmarks.gradbench.runs import array, timed


def variant(outer, inner):
    def both(start):
        def f(x, y):
            return (x * x).sum() - (y * y).sum()

        def greatest(x):
            return f(x, minimum(MODES[inner], lambda y: -f(x, y), start))

        x = minimum(MODES[outer], greatest, start)
        return tg.cat([x, minimum(MODES[outer], lambda y: -f(x, y), start)])

    return timed(lambda given: (array(given["start"]),))(tg.trace(both))


ff, fr, rf, rr = (variant(*modes) for modes in ("ff", "fr", "rf", "rr"))
