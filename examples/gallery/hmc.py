"""Hamiltonian Monte Carlo and variational inference: samples of a banana.

HMC follows the gradient of the log density, in 500 chains at once. Variational inference fits a Gaussian to the same density, by the
gradient through random numbers. The exact moments are known: HMC finds them, and the Gaussian is too narrow, as it must be.

In its kernels: 100 samples are a loop in one kernel, with the leapfrog steps of all chains, the random numbers and the decision inside.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

CHAINS, LEAPS, STEP = 500, 15, 0.12


def log_density(x):
    """x[..., 0] ~ N(0, 1), x[..., 1] ~ N(x[..., 0]², 0.5²)"""
    a, b = x[..., 0], x[..., 1]
    return -0.5 * a**2 - 0.5 * ((b - a**2) / 0.5) ** 2


@tg.trace
def hmc(x, rounds):
    force = tg.grad(lambda x: log_density(x).sum())

    def sample(x, _):
        p = momentum = tg.randn_like(x)
        new = x
        for _ in range(LEAPS):
            p = p + 0.5 * STEP * force(new)
            new = new + STEP * p
            p = p + 0.5 * STEP * force(new)
        gain = log_density(new) - log_density(x) + 0.5 * (momentum**2 - p**2).sum(-1)
        accept = tg.log(tg.rand(CHAINS)) < gain
        x = tg.where(accept[:, None], new, x)
        return x, (x, accept.to(tg.float32).mean())

    return tg.scan(sample, x, rounds)[1]


@tg.trace
def evidence(mean, raw):
    """Minus the evidence lower bound of the Gaussian with that mean and factor, and its gradients."""
    def loss(mean, raw):
        factor = tg.tril(raw, -1) + tg.diag(tg.exp(raw.diagonal()))
        x = mean + tg.randn(256, 2) @ factor.T
        return -log_density(x).mean() - raw.diagonal().sum()

    return tg.value_and_grad(loss, argnums=(0, 1))(mean, raw)


def run():
    samples, accepted = hmc(tg.zeros(CHAINS, 2), tg.arange(100))
    x = samples[20:].reshape(-1, 2).numpy()
    mean, raw = tg.zeros(2), tg.zeros(2, 2)
    optimizer = tg.optim.Adam([mean, raw], lr=0.02)
    for _ in range(600):
        _, (mean.grad, raw.grad) = evidence(mean, raw)
        optimizer.step()
    factor = np.tril(raw.numpy(), -1) + np.diag(np.exp(np.diag(raw.numpy())))
    guess = mean.numpy() + np.random.default_rng(0).standard_normal((2000, 2)) @ factor.T
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharex=True, sharey=True)
    for axis, points, title in ((axes[0], x[::20], "HMC"), (axes[1], guess, "variational Gaussian")):
        axis.plot(*points.T, ".", ms=2)
        axis.set_title(title)
    return {"mean of b (1)": x[:, 1].mean(), "variance of b (2.25)": x[:, 1].var(), "accepted": accepted.mean().item(),
            "variance of a (1)": x[:, 0].var(), "variance of a, Gaussian": (factor @ factor.T)[0, 0]}, figure, hmc


if __name__ == "__main__":
    show.main(run)
