"""Log posterior of a Gaussian mixture with a Wishart prior, and its gradient."""

from math import lgamma, log, pi

import numpy as np

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def posterior(at, x, m, gamma):
    (n, d), k = x.shape, at["mu"].shape[0]
    rows, columns = np.tril_indices(d, -1)
    order = np.lexsort((rows, columns))                                    # column by column
    diagonal, sums = tg.exp(at["q"]), at["q"].sum(1)
    places = tg.tensor((rows * d + columns)[order].tolist())
    lower = tg.zeros(k, d * d, dtype=x.dtype).index_copy(1, places, at["l"]).reshape(k, d, d)
    away = x - at["mu"][:, None]                                           # (k, n, d)
    white = diagonal[:, None] * away + away @ lower.mT
    terms = (at["alpha"] + sums)[:, None] - 0.5 * (white**2).sum(2)        # (k, n)
    freedom = d + m + 1
    prior = (0.5 * gamma**2 * ((diagonal**2).sum() + (at["l"] ** 2).sum()) - m * sums.sum())
    constant = freedom * d * log(gamma / 2**0.5) - d * (d - 1) / 4 * log(pi) - sum(lgamma((freedom - j) / 2) for j in range(d))
    return -n * d / 2 * log(2 * pi) + tg.logsumexp(terms, 0).sum() - n * tg.logsumexp(at["alpha"], 0) - prior + k * constant


def prepare(given):
    shape = given["k"], given["d"] * (given["d"] - 1) // 2
    at = {name: array(given[name]) for name in ("alpha", "mu", "q", "l")}
    return at | {"l": at["l"].reshape(shape)}, array(given["x"]), given["m"], int(given["gamma"])


objective = timed(prepare)(tg.trace(posterior))
jacobian = timed(prepare)(tg.trace(tg.grad(posterior)))
