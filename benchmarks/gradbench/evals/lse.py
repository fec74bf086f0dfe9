"""log of the sum of exponentials, and its gradient."""

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def log_sum_exp(x):
    largest = x.max()
    return largest + tg.log(tg.exp(x - largest).sum())


def prepare(given):
    return (array(given["x"]),)


primal = timed(prepare)(tg.trace(log_sum_exp))
gradient = timed(prepare)(tg.trace(tg.grad(log_sum_exp)))
