"""Sparse Jacobians: a nonlinear heat equation in 2-d, by Newton's method.

Every equation knows five of the 1,600 unknowns. `func.sparse_jacobian` finds that pattern, gives columns that share no equation one
color, and needs a product per color: about eight in place of 1,600. SciPy solves the sparse system.

In its kernels: products for all colors are one kernel, by vmap.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse.linalg
import show

import tracegrad as tg

SIZE = 40


def residual(u):
    """Of -div((1 + u²) grad u) = 10 on the unit square, u = 0 at its edge. u: (SIZE * SIZE,)."""
    h = 1 / (SIZE + 1)
    padded = tg.nn.functional.pad(u.reshape(SIZE, SIZE), (1, 1, 1, 1))
    potential = padded + padded**3 / 3                                    # its gradient is (1 + u²) grad u
    around = potential[2:, 1:-1] + potential[:-2, 1:-1] + potential[1:-1, 2:] + potential[1:-1, :-2]
    return ((4 * potential[1:-1, 1:-1] - around) / h**2 - 10.0).reshape(-1)


@tg.trace
def both(u):
    return residual(u), tg.func.sparse_jacobian(residual)(u).values


def run():
    u = tg.zeros(SIZE * SIZE, dtype=tg.float64)
    jacobian = tg.func.sparse_jacobian(residual)(u)
    norms = []
    for _ in range(8):
        value, entries = both(u)
        norms.append(np.abs(value.numpy()).max())
        matrix = scipy.sparse.coo_matrix((entries.numpy(), jacobian.indices.numpy()), shape=jacobian.shape).tocsc()
        u = u - tg.from_numpy(scipy.sparse.linalg.spsolve(matrix, value.numpy()))
    dense = tg.jacobian(residual)(u)
    error = np.abs(tg.func.sparse_jacobian(residual)(u).to_dense().numpy() - dense.numpy()).max() / dense.abs().max().item()
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5))
    axes[0].imshow(u.numpy().reshape(SIZE, SIZE), cmap="inferno")
    axes[0].set_title("temperature")
    axes[1].spy(matrix[:200, :200], markersize=1)
    axes[1].set_title("a corner of the Jacobian")
    axes[2].semilogy(norms, "o-")
    axes[2].set_title("residual of each Newton step")
    return {"entries that are not 0": jacobian.values.shape[0], "of": SIZE**4, "residual at first": norms[0], "residual at last": norms[-1],
            "error of the Jacobian": error}, figure, both


if __name__ == "__main__":
    show.main(run)
