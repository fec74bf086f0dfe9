"""A neural differential equation: a network learns the law of motion of a spiral from noisy points.

The network is the right-hand side, Runge-Kutta's method solves the equation, and the gradient comes through the solver. Asked to go
on after the last point, it goes on along the spiral. The solver starts at each of the points and runs to the ten that follow.

In its kernels: the loops over time steps, of the solution and of its derivative, hold the network's products. Its weights are packed once,
before the loops.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

DT, POINTS, AHEAD, WINDOW = 0.04, 100, 150, 10
LAW = np.array([[-0.1, 2.0], [-2.0, -0.1]])


def solve(f, start, steps):
    """Runge-Kutta's method: the states after each of the steps."""
    def step(x, _):
        k1 = f(x)
        k2 = f(x + DT / 2 * k1)
        k3 = f(x + DT / 2 * k2)
        k4 = f(x + DT * k3)
        x = x + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x, x

    return tg.scan(step, start, tg.arange(steps))[1]


def run():
    rng = np.random.default_rng(0)
    truth = solve(lambda x: x**3 @ tg.from_numpy(LAW.T), tg.tensor([[1.6, 0.0]], dtype=tg.float64), AHEAD)[:, 0].numpy().astype(np.float32)
    seen = tg.from_numpy(truth[:POINTS] + 0.01 * rng.standard_normal((POINTS, 2)).astype(np.float32))
    starts, follow = seen[:-WINDOW], tg.stack([seen[k : POINTS - WINDOW + k] for k in range(1, WINDOW + 1)])
    model = tg.nn.Sequential(tg.nn.Linear(2, 32), tg.nn.Tanh(), tg.nn.Linear(32, 2))
    optimizer = tg.optim.Adam(model.parameters(), lr=0.01)

    def law(x):
        return model(x**3)

    @tg.trace
    def step():
        loss = ((solve(law, starts, WINDOW) - follow) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step().item() for _ in range(2000)]
    with tg.no_grad():
        path = solve(law, tg.tensor([[1.6, 0.0]]), AHEAD)[:, 0].numpy()
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    axes[0].plot(*truth.T, "--", color="gray", label="true")
    axes[0].plot(*seen.numpy().T, "k.", label="seen")
    axes[0].plot(*path.T, label="network")
    axes[0].legend()
    axes[1].semilogy(losses)
    axes[1].set_title("loss")
    return {"first loss": losses[0], "last loss": losses[-1], "error where seen": np.abs(path - truth)[:POINTS].max(),
            "error ahead": np.abs(path - truth)[POINTS:].max()}, figure, step


if __name__ == "__main__":
    show.main(run)
