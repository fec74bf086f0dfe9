"""The spectrum of a Hessian: which directions of a network's loss are steep.

A small network has 336 weights, so its Hessian can be formed and its eigenvalues computed. Lanczos' method finds the outer ones from
60 products with vectors; a product costs about two gradients, and works for networks of any size.

In its kernels: a Hessian-vector product is `jvp` of `grad`: forward, tangents and both backward sweeps are fused.
"""

import matplotlib.pyplot as plt
import numpy as np
import show
from sklearn.datasets import make_moons

import tracegrad as tg

SHAPES = ((2, 16), (16,), (16, 16), (16,), (16, 1))
points, labels = make_moons(300, noise=0.15, random_state=0)
X, Y = tg.from_numpy(points), tg.from_numpy(labels.astype(np.float64))


def loss(w):
    """Of the network whose weights are all in one vector."""
    parts = tg.split(w, [int(np.prod(s)) for s in SHAPES])
    w1, b1, w2, b2, w3 = (p.reshape(s) for p, s in zip(parts, SHAPES, strict=True))
    out = tg.tanh(tg.tanh(X @ w1 + b1) @ w2 + b2) @ w3
    return tg.nn.functional.binary_cross_entropy_with_logits(out[:, 0], Y) + 1e-4 * (w**2).sum()


value_and_grad = tg.trace(tg.value_and_grad(loss))
product = tg.trace(lambda w, v: tg.jvp(tg.grad(loss), (w,), (v,))[1])


def lanczos(w, steps):
    """Eigenvalues of the Hessian restricted to the Krylov space of a random vector."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal(len(w))
    basis, alphas, betas = [q / np.linalg.norm(q)], [], []
    for _ in range(steps):
        v = product(w, tg.from_numpy(basis[-1])).numpy()
        alphas.append(v @ basis[-1])
        for _ in range(2):                                        # against all before, twice: rounding would bring them back
            v = v - np.array(basis).T @ (np.array(basis) @ v)
        betas.append(np.linalg.norm(v))
        basis.append(v / betas[-1])
    return np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas[:-1], 1) + np.diag(betas[:-1], -1))


def run():
    count = sum(int(np.prod(s)) for s in SHAPES)
    w = 0.5 * tg.randn(count, dtype=tg.float64)
    spectra = [np.linalg.eigvalsh(tg.hessian(loss)(w).numpy())]
    optimizer = tg.optim.Adam([w], lr=0.01)
    for _ in range(800):
        value, w.grad = value_and_grad(w)
        optimizer.step()
    w = w.detach()
    hessian = tg.hessian(loss)(w).numpy()
    spectra.append(np.linalg.eigvalsh(hessian))
    found = lanczos(w, 60)
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.5), sharey=True)
    for axis, spectrum, title in zip(axes, spectra, ("before training", "after training"), strict=True):
        axis.plot(spectrum[::-1], ".", label="all eigenvalues")
        axis.set_title(title)
        axis.set_yscale("symlog", linthresh=1e-3)
    axes[1].plot(range(10), found[::-1][:10], "x", label="Lanczos")
    axes[1].legend()
    return {"weights": count, "loss": value.item(), "largest eigenvalue": spectra[1][-1], "Lanczos' largest": found[-1],
            "error of Lanczos' first five": np.abs(found[-5:] - spectra[1][-5:]).max(),
            "asymmetry of the Hessian": np.abs(hessian - hessian.T).max()}, figure, product


if __name__ == "__main__":
    show.main(run)
