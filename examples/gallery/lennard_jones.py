"""Molecular dynamics: a liquid of 64 atoms, and a chain of 24 that folds.

Forces are minus the gradient of the energy, and nobody writes them down. In the liquid the total energy must stay what it was. The
chain has springs between neighbours and attraction between all others; cooled slowly, it folds into a ball.

In its kernels: energy and forces of all pairs, and the step of the integrator, inside the loop of one `scan`.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg

DT = 0.004


def pair_energy(x, box=None, first=1):
    """Lennard-Jones energy of all pairs of atoms that are `first` or more apart in number. x: (n, 3)."""
    n = x.shape[0]
    between = x[:, None] - x[None]
    if box is not None:
        between = between - box * tg.round(between / box)           # to the nearest image
    pair = tg.triu(tg.ones(n, n, dtype=tg.bool), first)
    inverse = tg.where(pair, 1.0 / tg.where(pair, (between**2).sum(-1), 1.0), 0.0) ** 3
    return 4.0 * (inverse**2 - inverse).sum()


def chain_energy(x):
    bonds = ((x[1:] - x[:-1]) ** 2).sum(-1) ** 0.5
    return 100.0 * ((bonds - 1.0) ** 2).sum() + pair_energy(x, first=2)


def integrator(energy, steps, friction=0.0):
    """Velocity Verlet (with friction: Langevin's equation) for so many steps. The traced function gives positions, velocities, energies."""
    @tg.trace
    def simulate(x, v, temperature):
        def step(state, _):
            x, v, force = state
            v = v + 0.5 * DT * force
            if friction:
                v = (1 - friction * DT) * v + tg.sqrt(2 * friction * DT * temperature) * tg.randn_like(v)
            x = x + DT * v
            value, gradient = tg.value_and_grad(energy)(x)
            v = v - 0.5 * DT * gradient
            return (x, v, -gradient), value + 0.5 * (v**2).sum()

        (x, v, _), energies = tg.scan(step, (x, v, -tg.grad(energy)(x)), tg.arange(steps))
        return x, v, energies

    return simulate


def run():
    box, rng = 4.6, np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(4)] * 3), -1).reshape(-1, 3) * box / 4
    liquid = integrator(lambda x: pair_energy(x, box), 1000)
    _, _, energies = liquid(tg.from_numpy(grid.astype(np.float32)), tg.from_numpy(rng.standard_normal((64, 3)).astype(np.float32)), 1.0)
    drift = (energies.max() - energies.min()).item() / abs(energies.mean().item())

    fold = integrator(chain_energy, 1000, friction=1.0)
    chain, v = np.zeros((24, 3), np.float32), tg.zeros(24, 3)
    chain[:, 0] = np.arange(24)
    chain[:, 1:] = 0.1 * rng.standard_normal((24, 2))
    chain = start = tg.from_numpy(chain)
    for temperature in np.linspace(1.0, 0.05, 20):
        chain, v, _ = fold(chain, v, float(temperature))

    def radius(x):
        return ((x - x.mean(0)) ** 2).sum(-1).mean().sqrt().item()

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5))
    axes[0].plot(energies.numpy())
    axes[0].set_title("total energy of the liquid")
    for axis, shape, title in ((axes[1], start, "chain"), (axes[2], chain, "folded")):
        axis.plot(*shape.numpy()[:, :2].T, "o-", ms=10)
        axis.set_aspect("equal")
        axis.set_title(title)
    return {"relative drift of the energy": drift, "radius of the chain": radius(start), "radius when folded": radius(chain),
            "energy when folded": chain_energy(chain).item()}, figure, liquid


if __name__ == "__main__":
    show.main(run)
