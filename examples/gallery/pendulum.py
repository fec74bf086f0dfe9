"""Optimal control: a weak motor swings a pendulum up.

The motor cannot lift the pendulum, so it has to swing. The torques at 150 times are the unknowns; the gradient of the cost comes
through the simulation.

In its kernels: the simulation of 150 steps and its adjoint are two loops in one kernel.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

STEPS, DT, STRONGEST = 150, 0.04, 0.5          # gravity's torque is 1 where the pendulum is level


def simulate(raw):
    """Angles (0 is down), velocities and torques."""
    torques = STRONGEST * tg.tanh(raw)

    def step(state, torque):
        angle, velocity = state
        velocity = velocity + DT * (torque - tg.sin(angle) - 0.02 * velocity) * 4
        angle = angle + DT * velocity
        return (angle, velocity), (angle, velocity)

    start = tg.zeros((), dtype=raw.dtype), tg.zeros((), dtype=raw.dtype)
    angles, velocities = tg.scan(step, start, torques)[1]
    return angles, velocities, torques


@tg.trace
def cost(raw):
    def loss(raw):
        angles, velocities, torques = simulate(raw)
        end = (1 + tg.cos(angles[-20:])).mean() + 0.1 * (velocities[-20:] ** 2).mean()
        return end + 0.01 * (torques**2).mean()

    return tg.value_and_grad(loss)(raw)


def run():
    raw = 0.3 * tg.randn(STEPS, dtype=tg.float64)
    optimizer = tg.optim.Adam([raw], lr=0.05)
    costs = []
    for _ in range(500):
        value, raw.grad = cost(raw)
        optimizer.step()
        costs.append(value.item())
    angles, velocities, torques = (t.numpy() for t in tg.trace(simulate)(raw))
    time = DT * np.arange(STEPS)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5))
    axes[0].plot(time, angles / np.pi, label="angle / pi")
    axes[0].plot(time, torques, label="torque")
    axes[0].legend()
    axes[1].semilogy(costs)
    axes[1].set_title("cost")
    axes[2].plot(np.sin(angles), -np.cos(angles), "-", lw=0.5)
    axes[2].scatter(np.sin(angles), -np.cos(angles), c=time, s=10)
    axes[2].set_aspect("equal")
    return {"first cost": costs[0], "last cost": costs[-1], "height at the end (1)": -np.cos(angles[-20:]).mean(),
            "speed at the end (0)": np.abs(velocities[-20:]).mean()}, figure, cost


if __name__ == "__main__":
    show.main(run)
