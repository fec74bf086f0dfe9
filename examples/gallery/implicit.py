"""Implicit differentiation: the best penalty of a ridge regression, and the gradient of a fixed point.

What a solver finds is a function of its inputs, though its iterations say little about the derivative. At the solution w of g(w, t) =
0 the derivative is -(dg/dw)⁻¹ dg/dt, whatever the solver did. Here it is a Function whose backward solves one linear system.

In its kernels: Newton's twelve steps are a `scan`, and the backward knows nothing of them: it solves once.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

FEATURES, COUNT = 30, 120
rng = np.random.default_rng(0)
truth = np.zeros(FEATURES)
truth[:6] = 2 * rng.standard_normal(6)
x = rng.standard_normal((2 * COUNT, FEATURES))
y = 1.0 * (rng.random(2 * COUNT) < 1 / (1 + np.exp(-x @ truth)))
TRAIN_X, TRAIN_Y, TEST_X, TEST_Y = (tg.from_numpy(a) for a in (x[:COUNT], y[:COUNT], x[COUNT:], y[COUNT:]))


def loss(w, x, y):
    return tg.nn.functional.binary_cross_entropy_with_logits(x @ w, y)


def optimality(w, log_penalty):
    """0 at the weights that fit best under the penalty."""
    return tg.grad(lambda w: loss(w, TRAIN_X, TRAIN_Y) + 0.5 * tg.exp(log_penalty) * (w**2).sum())(w)


class Fit(tg.autograd.Function):
    """The weights for a penalty. Newton's method finds them; its steps are not differentiated."""

    @staticmethod
    def forward(ctx, log_penalty):
        def newton(w, _):
            return w - tg.linalg.solve(tg.jacobian(lambda w: optimality(w, log_penalty))(w), optimality(w, log_penalty)), None

        w, _ = tg.scan(newton, tg.zeros(FEATURES, dtype=tg.float64), tg.arange(12))
        ctx.save_for_backward(w, log_penalty)
        return w

    @staticmethod
    def backward(ctx, ct):
        w, log_penalty = ctx.saved_tensors
        u = tg.linalg.solve(tg.jacobian(lambda w: optimality(w, log_penalty))(w), ct)       # the Jacobian is a Hessian: symmetric
        return -tg.vjp(lambda t: optimality(w, t), log_penalty)[1](u)[0]


@tg.trace
def validation(log_penalty):
    return tg.value_and_grad(lambda t: loss(Fit.apply(t), TEST_X, TEST_Y))(log_penalty)


def run():
    grid = np.linspace(-8, 2, 41)
    values, slopes = np.array([[v.item() for v in validation(tg.tensor(t, dtype=tg.float64))] for t in grid]).T
    h = 1e-4
    numeric = [(validation(tg.tensor(t + h, dtype=tg.float64))[0] - validation(tg.tensor(t - h, dtype=tg.float64))[0]).item() / (2 * h)
               for t in grid[::8]]
    t = tg.tensor(-6.0, dtype=tg.float64)
    path = []
    for _ in range(60):
        value, gradient = validation(t)
        path.append((t.item(), value.item()))
        t = t - 5.0 * gradient
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.5))
    axes[0].plot(grid, values)
    axes[0].plot(*np.array(path).T, "o", ms=4)
    axes[0].set_title("loss on other data, by log of the penalty")
    axes[1].plot(grid, slopes, label="implicit derivative")
    axes[1].plot(grid[::8], numeric, "o", label="finite differences")
    axes[1].legend()
    return {"error of the derivative": np.abs(slopes[::8] - numeric).max(), "loss found": path[-1][1], "best of the grid": values.min(),
            "slope at the end": abs(gradient.item())}, figure, validation


if __name__ == "__main__":
    show.main(run)
