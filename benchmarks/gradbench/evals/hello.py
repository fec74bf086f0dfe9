"""x² and its derivative. The input is a number, without how often to run."""

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def f(x):
    return x * x


def once(fn):
    traced = tg.trace(fn)
    return lambda x: timed(lambda _: (array(x),))(traced)({})


square = once(f)
double = once(tg.grad(f))
