"""x² and its derivative."""

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def f(x):
    return x * x


def square(x):
    return timed(lambda _: (array(x),))(tg.trace(f))({})


def double(x):
    return timed(lambda _: (array(x),))(tg.trace(tg.grad(f)))({})
