"""A Kalman smoother: where a particle was, from noisy positions, and how noisy they are.

The filter is a `scan`, and the likelihood of the measurements comes out of it. Its gradient finds the two noise levels, which are
usually guessed. The smoother then looks back.

In its kernels: the filter of 300 steps is a loop in one kernel, and its derivative in another.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

STEPS, DT = 300, 0.1
A = tg.tensor([[1.0, DT], [0.0, 1.0]], dtype=tg.float64)                    # position and velocity
Q = tg.tensor([[DT**3 / 3, DT**2 / 2], [DT**2 / 2, DT]], dtype=tg.float64)   # of random accelerations


def kalman_filter(logs, measured):
    """Means, covariances and predictions of all steps, and the log likelihood. logs: of the noise of the motion, of the measurements."""
    q, r = tg.exp(2 * logs)

    def step(state, z):
        mean, cov = state
        predicted, cov_predicted = A @ mean, A @ cov @ A.T + q * Q
        surprise, variance = z - predicted[0], cov_predicted[0, 0] + r
        gain = cov_predicted[:, 0] / variance
        mean, cov = predicted + gain * surprise, cov_predicted - gain[:, None] * cov_predicted[0]
        likelihood = -0.5 * (surprise**2 / variance + tg.log(2 * np.pi * variance))
        return (mean, cov), (mean, cov, predicted, cov_predicted, likelihood)

    start = tg.zeros(2, dtype=tg.float64), 10 * tg.eye(2, dtype=tg.float64)
    return tg.scan(step, start, measured)[1]


@tg.trace
def fit(logs, measured):
    return tg.value_and_grad(lambda logs: -kalman_filter(logs, measured)[-1].mean())(logs)


@tg.trace
def smooth(logs, measured):
    means, covs, predicted, covs_predicted, _ = kalman_filter(logs, measured)

    def back(state, at):
        later, cov_later = state
        mean, cov, guess, cov_guess = at
        gain = cov @ A.T @ tg.linalg.inv(cov_guess)
        mean = mean + gain @ (later - guess)
        cov = cov + gain @ (cov_later - cov_guess) @ gain.T
        return (mean, cov), (mean[0], cov[0, 0])

    xs = [a.flip(0) for a in (means[:-1], covs[:-1], predicted[1:], covs_predicted[1:])]
    mean, variance = tg.scan(back, (means[-1], covs[-1]), tuple(xs))[1]
    return mean.flip(0), variance.flip(0).sqrt()


def run():
    rng = np.random.default_rng(0)
    velocity = np.cumsum(rng.standard_normal(STEPS)) * DT**0.5
    position = np.cumsum(velocity) * DT
    measured = tg.from_numpy(position + 2.0 * rng.standard_normal(STEPS))
    logs = tg.zeros(2, dtype=tg.float64)
    optimizer = tg.optim.Adam([logs], lr=0.05)
    for _ in range(150):
        _, logs.grad = fit(logs, measured)
        optimizer.step()
    mean, sd = (t.numpy() for t in smooth(logs, measured))
    figure, axis = plt.subplots(figsize=(10, 3.5))
    axis.plot(measured.numpy(), "k.", ms=3, label="measured")
    axis.plot(position, "--", color="gray", label="true")
    axis.plot(mean, label="smoothed")
    axis.fill_between(range(STEPS - 1), mean - 2 * sd, mean + 2 * sd, alpha=0.3)
    axis.legend()
    q, r = np.exp(logs.numpy())
    wrong = np.sqrt(((mean - position[:-1]) ** 2).mean())
    before = np.sqrt(((measured.numpy() - position) ** 2).mean())
    return {"noise of the motion (1)": q, "noise of measurements (2)": r, "error measured": before, "error smoothed": wrong,
            "truth within 2 sd": (np.abs(mean - position[:-1]) < 2 * sd).mean()}, figure, fit


if __name__ == "__main__":
    show.main(run)
