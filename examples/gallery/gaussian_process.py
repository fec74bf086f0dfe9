"""A Gaussian process: fits noisy points, and says how sure it is.

The likelihood needs log det K and K⁻¹y, both from one Cholesky factorization, which is differentiated like everything else. Adam fits
length scale, amplitude and noise.

In its kernels: the matrix of covariances is computed in one kernel; factorization and solves stand between kernels.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg


def covariance(a, b, logs):
    length, amplitude, _ = tg.exp(logs)
    return amplitude**2 * tg.exp(-0.5 * ((a[:, None] - b[None]) / length) ** 2)


def factor(x, logs):
    return tg.linalg.cholesky(covariance(x, x, logs) + (tg.exp(2 * logs[2]) + 1e-8) * tg.eye(x.shape[0], dtype=x.dtype))


def minus_log_likelihood(logs, x, y):
    L = factor(x, logs)
    white = tg.linalg.solve_triangular(L, y[:, None], upper=False)
    return 0.5 * (white**2).sum() + L.diagonal().log().sum() + 0.5 * x.shape[0] * np.log(2 * np.pi)


fit = tg.trace(tg.value_and_grad(minus_log_likelihood))


@tg.trace
def predict(points, x, y, logs):
    """Mean and standard deviation of the function at the points."""
    L = factor(x, logs)
    between = tg.linalg.solve_triangular(L, covariance(x, points, logs), upper=False)
    mean = between.T @ tg.linalg.solve_triangular(L, y[:, None], upper=False)
    return mean[:, 0], (tg.exp(2 * logs[1]) - (between**2).sum(0)).clamp(min=0).sqrt()


def run():
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-4, 4, 60))
    x = x[np.abs(x - 1.2) > 0.8]                                   # a gap, where it has to say that it does not know
    y = np.sin(2 * x) + 0.3 * x + 0.1 * rng.standard_normal(len(x))
    x, y = tg.from_numpy(x), tg.from_numpy(y)
    logs = tg.zeros(3, dtype=tg.float64)
    optimizer = tg.optim.Adam([logs], lr=0.05)
    losses = []
    for _ in range(200):
        loss, logs.grad = fit(logs, x, y)
        optimizer.step()
        losses.append(loss.item())
    points = tg.linspace(-5, 5, 400, dtype=tg.float64)
    mean, sd = (t.numpy() for t in predict(points, x, y, logs))
    p = points.numpy()
    inside = np.abs(p) < 4
    truth = np.sin(2 * p) + 0.3 * p
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.5), width_ratios=[3, 1])
    axes[0].fill_between(p, mean - 2 * sd, mean + 2 * sd, alpha=0.3)
    axes[0].plot(p, mean)
    axes[0].plot(p, truth, "--", color="gray")
    axes[0].plot(x.numpy(), y.numpy(), "k.")
    axes[1].plot(losses)
    axes[1].set_title("- log likelihood")
    within = (np.abs(mean - truth) < 2 * sd + 0.02)[inside].mean()
    gap = sd[np.abs(p - 1.2) < 0.1].mean() / np.median(sd[inside])
    return {"noise (0.1)": float(np.exp(logs[2].item())), "- log likelihood": losses[-1], "truth within 2 sd": within,
            "sd in the gap over elsewhere": gap}, figure, fit


if __name__ == "__main__":
    show.main(run)
