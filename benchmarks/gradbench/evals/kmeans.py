"""Cost of k-means clustering, and Newton's direction: the Hessian is diagonal, so its product with ones is its diagonal."""

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def objective(centroids, points):
    distances = (points**2).sum(1)[:, None] + (centroids**2).sum(1) - 2 * points @ centroids.T
    return distances.amin(1).sum()


def newton(centroids, points):
    gradient, diagonal = tg.jvp(lambda c: tg.grad(objective)(c, points), (centroids,), (tg.ones_like(centroids),))
    return gradient / diagonal


def prepare(given):
    return array(given["centroids"]), array(given["points"])


cost = timed(prepare)(tg.trace(objective))
dir = timed(prepare)(tg.trace(newton))
