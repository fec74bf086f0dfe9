"""A physics-informed network: it learns the solution of Burgers' equation from the equation alone.

u_t + u u_x = v u_xx with u(x, 0) = -sin(pi x) forms a shock. The loss is how far the network is from the equation at random points.
It has a second derivative in x, and its gradient a third. A finite-difference solution checks the result.

In its kernels: `jvp` of `jvp` carries value, u_x and u_xx through each layer together; tanh stands twice in `step.source()`, once a layer.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

VISCOSITY = 0.1


def solution(model, t, x):
    """The network's u; the start and the ends, where u is known, are built in."""
    raw = model(tg.stack([t, x], 1))[:, 0]
    return -tg.sin(np.pi * x) + t * (1 - x**2) * raw


def residual(model, t, x):
    ones = tg.ones_like(x)

    def u_x(x):
        return tg.jvp(lambda x: solution(model, t, x), (x,), (ones,))

    (u, ux), (_, uxx) = tg.jvp(u_x, (x,), (ones,))
    ut = tg.jvp(lambda t: solution(model, t, x), (t,), (ones,))[1]
    return ut + u * ux - VISCOSITY * uxx


def finite_differences(points=401, end=1.0):
    x = np.linspace(-1, 1, points)
    h = x[1] - x[0]
    dt = 0.2 * h**2 / VISCOSITY
    steps = int(np.ceil(end / dt))
    u = -np.sin(np.pi * x)
    for _ in range(steps):
        middle = u[1:-1]
        flux = (u[2:] ** 2 - u[:-2] ** 2) / (4 * h)
        u[1:-1] = middle + end / steps * (VISCOSITY * (u[2:] - 2 * middle + u[:-2]) / h**2 - flux)
    return x, u


def run():
    model = tg.nn.Sequential(tg.nn.Linear(2, 32), tg.nn.Tanh(), tg.nn.Linear(32, 32), tg.nn.Tanh(), tg.nn.Linear(32, 1))
    optimizer = tg.optim.Adam(model.parameters(), lr=3e-3)

    @tg.trace
    def step():
        t, x = tg.rand(512), 2 * tg.rand(512) - 1
        loss = (residual(model, t, x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for k in range(1500):
        optimizer.param_groups[0]["lr"] = 5e-3 / (1 + k / 300)
        losses.append(step().item())
    x, exact = finite_differences()
    found = solution(model, tg.ones(len(x)), tg.from_numpy(x.astype(np.float32))).detach().numpy()
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.5))
    axes[0].plot(x, exact, label="finite differences, t = 1")
    axes[0].plot(x, found, "--", label="network")
    axes[0].plot(x, -np.sin(np.pi * x), ":", label="t = 0")
    axes[0].legend()
    axes[1].semilogy(losses)
    axes[1].set_title("loss")
    return {"first loss": losses[0], "last loss": np.mean(losses[-50:]),
            "largest error at t = 1": np.abs(found - exact).max()}, figure, step


if __name__ == "__main__":
    show.main(run)
