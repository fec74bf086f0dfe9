"""The Ising model: a magnet of 64 x 64 spins cools down.

Spins of the white squares of a checkerboard do not touch each other, so all of them can be changed in one step, then the black ones.
Below the critical temperature 2.269 the spins agree. Onsager's formula gives by how much, and the simulation is compared with it.

In its kernels: 100 sweeps are a loop in one kernel: it draws random bits, adds the four neighbours and flips, a color after the other.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

SIZE, SWEEPS = 64, 100
rows, columns = np.indices((SIZE, SIZE))
WHITE = tg.from_numpy((rows + columns) % 2 == 0)


@tg.trace
def sweeps(spins, temperature):
    def sweep(spins, _):
        for squares in (WHITE, ~WHITE):
            around = sum(tg.roll(spins, shift, dim) for dim in (0, 1) for shift in (1, -1))
            accept = tg.rand(SIZE, SIZE) < tg.exp(-2.0 * spins * around / temperature)
            spins = tg.where(squares & accept, -spins, spins)
        return spins, spins.mean()

    return tg.scan(sweep, spins, tg.arange(SWEEPS))


def run():
    temperatures = np.linspace(1.6, 3.2, 9)
    measured, pictures = [], []
    spins = tg.ones(SIZE, SIZE)
    for temperature in temperatures:
        spins, _ = sweeps(spins, float(temperature))             # so that it forgets the last temperature
        spins, magnetization = sweeps(spins, float(temperature))
        measured.append(magnetization.abs().mean().item())
        pictures.append(spins.numpy())
    exact = np.maximum(0.0, 1 - np.sinh(2 / temperatures) ** -4.0) ** 0.125
    figure, axes = plt.subplots(1, 4, figsize=(12, 3))
    for axis, k in zip(axes, (0, 4, 8), strict=False):
        axis.imshow(pictures[k], cmap="gray")
        axis.set_title(f"temperature {temperatures[k]:.1f}")
        axis.axis("off")
    axes[3].plot(temperatures, measured, "o", label="measured")
    axes[3].plot(temperatures, exact, label="Onsager")
    axes[3].legend()
    return {"magnetization at 1.6": measured[0], "Onsager's": exact[0], "magnetization at 3.2": measured[-1]}, figure, sweeps


if __name__ == "__main__":
    show.main(run)
