"""Topology optimization: the stiffest bracket that half of the material can make.

A beam is held at its left end and pulled down at its right. Every square has a density; the stiffness of the whole is a linear
system, solved in float64. Its derivative is `linalg.solve`'s. The densities move along the gradient at a constant mass.

In its kernels: the matrix is put together by an `index_add` of all squares' 8 x 8 matrices; the system is solved by LAPACK between
kernels.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

WIDE, HIGH, MASS = 36, 14, 0.5


def square():
    """The stiffness of one square, in plane stress (Sigmund 2001)."""
    nu = 0.3
    k = np.array([1 / 2 - nu / 6, 1 / 8 + nu / 8, -1 / 4 - nu / 12, -1 / 8 + 3 * nu / 8, -1 / 4 + nu / 12, -1 / 8 - nu / 8, nu / 6,
                  1 / 8 - 3 * nu / 8]) / (1 - nu**2)
    order = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 7, 6, 5, 4, 3, 2], [2, 7, 0, 5, 6, 3, 4, 1], [3, 6, 5, 0, 7, 2, 1, 4],
             [4, 5, 6, 7, 0, 1, 2, 3], [5, 4, 3, 2, 1, 0, 7, 6], [6, 3, 4, 1, 2, 7, 0, 5], [7, 2, 1, 4, 3, 6, 5, 0]]
    return k[np.array(order)]


def problem():
    """Where the 8 x 8 numbers of each square go in the matrix of the free unknowns, and the forces."""
    x, y = np.meshgrid(np.arange(WIDE), np.arange(HIGH), indexing="ij")
    corner = (x * (HIGH + 1) + y).ravel()
    nodes = np.stack([corner + 1, corner + HIGH + 2, corner + HIGH + 1, corner], 1)
    unknowns = (2 * nodes[:, :, None] + np.arange(2)).reshape(-1, 8)
    count, held = 2 * (WIDE + 1) * (HIGH + 1), 2 * (HIGH + 1)
    places = unknowns[:, :, None] * count + unknowns[:, None]
    forces = np.zeros(count)
    forces[-(HIGH + 1)] = -1.0                                         # in the middle of the right end
    return tg.from_numpy(places.reshape(-1)), tg.from_numpy(forces[held:]), count, held


places, forces, count, held = problem()
SQUARE = tg.from_numpy(square())


def blurred(density):
    """Neighbours' weighted mean, so that no pattern is finer than the grid."""
    kernel = tg.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], dtype=tg.float64)[None, None]
    one = tg.nn.functional.conv2d(tg.ones_like(density)[None, None], kernel, padding=1)
    return (tg.nn.functional.conv2d(density[None, None], kernel, padding=1) / one)[0, 0]


@tg.trace
def compliance(density):
    def work(density):
        young = 1e-3 + blurred(density).reshape(-1) ** 3
        matrix = tg.zeros(count * count, dtype=tg.float64).index_add(0, places, (young[:, None, None] * SQUARE).reshape(-1))
        return forces @ tg.linalg.solve(matrix.reshape(count, count)[held:, held:], forces)

    return tg.value_and_grad(work)(density)


def run():
    density = np.full((WIDE, HIGH), MASS)
    works = []
    for _ in range(40):
        work, gradient = compliance(tg.from_numpy(density))
        works.append(work.item())
        slope = np.sqrt(np.maximum(-gradient.numpy(), 1e-12))
        low, high = 0.0, 1e6                                              # the multiplier that keeps the mass: bisection
        while high - low > 1e-9 * (high + low):
            middle = (low + high) / 2
            new = np.clip(density * slope / np.sqrt(middle), np.maximum(density - 0.2, 0.001), np.minimum(density + 0.2, 1))
            low, high = (middle, high) if new.mean() > MASS else (low, middle)
        density = new
    figure, axes = plt.subplots(1, 2, figsize=(11, 3), width_ratios=[2, 1])
    axes[0].imshow(density.T, cmap="gray_r", vmin=0, vmax=1)
    axes[0].axis("off")
    axes[1].plot(works)
    axes[1].set_title("how far the load gives way")
    return {"even plate": works[0], "optimized": works[-1], "mass": density.mean(),
            "squares that are full or empty": ((density < 0.1) | (density > 0.9)).mean()}, figure, compliance


if __name__ == "__main__":
    show.main(run)
