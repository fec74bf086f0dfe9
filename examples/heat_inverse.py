"""Recovers the initial temperature of a plate from a later, blurred and noisy measurement, through the heat equation's adjoint.

The forward model is the explicit five-point scheme for du/dt = k (d²u/dx² + d²u/dy²) with cold edges, float64. The gradient of the
misfit is one `value_and_grad` through all time steps. The minimiser is accelerated projected gradient (temperatures are
not negative); its step is 1 because the scheme never increases a norm.

    python examples/heat_inverse.py [--device NAME]         writes examples/out/heat_inverse.png
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tracegrad as tg
from tracegrad.nn import functional as F

SIZE, TIME_STEPS, DIFFUSION = 64, 40, 0.2               # DIFFUSION = k dt / h²: stable up to 0.25
ITERATIONS, NOISE = 200, 0.002


def diffuse(u):
    """The temperature after TIME_STEPS steps."""
    for _ in range(TIME_STEPS):
        p = F.pad(u, (1, 1, 1, 1))
        u = u + DIFFUSION * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u)
    return u


def initial_temperature():
    """Two warm discs and a bar."""
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    u = np.where((x - 0.3) ** 2 + (y - 0.35) ** 2 < 0.15**2, 1.0, 0.0)
    u = np.where((x - 0.7) ** 2 + (y - 0.3) ** 2 < 0.1**2, 0.7, u)
    return np.where((abs(x - 0.5) < 0.3) & (abs(y - 0.75) < 0.06), 0.9, u)


def save_picture(truth, measured, recovered):
    path = Path(__file__).parent / "out" / "heat_inverse.png"
    path.parent.mkdir(exist_ok=True)
    plt.switch_backend("agg")
    figure, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained")
    for axis, image, title in zip(axes, (truth, measured, recovered), ("initial", "measured later", "recovered"), strict=True):
        shown = axis.imshow(image, vmin=0, vmax=1, cmap="inferno")
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(shown, ax=axes, shrink=0.8)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device (it needs float64)")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)

    rng = np.random.default_rng(0)
    truth = initial_temperature()
    later = tg.trace(diffuse)(tg.from_numpy(truth)).numpy()
    measured = tg.from_numpy(later + NOISE * rng.standard_normal(later.shape))

    # The adjoint test: <A u, v> = <u, Aᵀ v> for the forward model A and the adjoint that was derived from it.
    u, v = (tg.from_numpy(rng.standard_normal(truth.shape)) for _ in range(2))
    result, pull_back = tg.vjp(diffuse, u)
    left, right = (result * v).sum().item(), (u * pull_back(v)[0]).sum().item()
    print(f"adjoint test: <Au, v> = {left:.12g}, <u, A'v> = {right:.12g}, relative difference {abs(left - right) / abs(left):.1e}")

    @tg.trace
    def misfit_and_gradient(u):
        return tg.value_and_grad(lambda u: 0.5 * ((diffuse(u) - measured) ** 2).sum())(u)

    u = previous = tg.zeros_like(measured)
    momentum = 1.0
    for iteration in range(ITERATIONS + 1):
        misfit, gradient = misfit_and_gradient(u)
        if iteration % 50 == 0:
            error = np.linalg.norm(u.numpy() - truth) / np.linalg.norm(truth)
            print(f"iteration {iteration:4d}   misfit {misfit.item():10.4e}   error of the initial field {error:.3f}")
        best = (u - gradient).clamp(min=0)
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        u = best + (momentum - 1) / following * (best - previous)
        previous, momentum = best, following

    floor = 0.5 * NOISE**2 * SIZE**2
    blurred = np.linalg.norm(measured.numpy() - truth) / np.linalg.norm(truth)
    print(f"expected misfit of the noise alone {floor:.4e}; error of the measurement itself {blurred:.3f}")
    save_picture(truth, measured.numpy(), previous.numpy())

    kernels = misfit_and_gradient.kernels()
    print(f"\nForward and adjoint are {len(kernels)} kernels. One of them:\n")
    print(next(iter(kernels), kernels))                             # without any, `kernels` says why


if __name__ == "__main__":
    main()
