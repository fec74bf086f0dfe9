"""The determinant by expansion by minors, and its gradient. Minors of the same columns are computed once: 2^n of them, not n!."""

from itertools import combinations

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def determinant(a):
    minors = a[0]                                          # of the first row, by column
    for rows in range(2, a.shape[0] + 1):
        before = {columns: k for k, columns in enumerate(combinations(range(a.shape[0]), rows - 1))}
        now = [*combinations(range(a.shape[0]), rows)]
        column = tg.tensor(now)
        without = tg.tensor([[before[c[:k] + c[k + 1:]] for k in range(rows)] for c in now])
        signs = tg.tensor([(-1.0) ** (rows - 1 + k) for k in range(rows)], dtype=a.dtype)
        minors = (signs * a[rows - 1][column] * minors[without]).sum(1)
    return minors[0]


def prepare(given):
    return (array(given["A"]).reshape(given["ell"], given["ell"]),)


primal = timed(prepare)(tg.trace(determinant))
gradient = timed(prepare, lambda g: g.flatten().tolist())(tg.trace(tg.grad(determinant)))
