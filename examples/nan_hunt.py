"""A training run that becomes NaN: which operation is the first, where float32 leaves float64, and the page of the step.

The model predicts a distance as the root of a sum of squares. Where the sum is 0, the root's derivative is infinite.

    python examples/nan_hunt.py [--device NAME] [--page FILE]
"""

import argparse

import numpy as np

import tracegrad as tg
from tracegrad import nn


def training(distance):
    """A traced step that fits a linear map so that `distance` of its results is what is wanted."""
    tg.manual_seed(0)
    model = nn.Linear(2, 2)

    @tg.trace
    def step(x, wanted, lr):
        error = distance(model(x) - model(-x)) - wanted
        loss = (error * error).mean()
        loss.backward()
        with tg.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=lr)
                p.grad = None
        return loss

    return step


def plain(d):
    """The length of each row."""
    return (d * d).sum(1).sqrt()


def careful(d):
    """The same, with a derivative where it is 0."""
    return ((d * d).sum(1) + 1e-12).sqrt()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    parser.add_argument("--page", help="write the step's page to this file")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)

    points = np.random.default_rng(0).standard_normal((100, 2)).astype(np.float32)
    points[17] = 0.0                                     # both halves of the model give the same for this one
    x, wanted = tg.from_numpy(points), tg.from_numpy(2 * np.linalg.norm(points, axis=1) + 0.5)

    step = training(plain)
    print("before the first step:")
    print(tg.debug(step, find=("nan", "inf"))(x, wanted, 0.05))
    print("\nand so the loss is", [round(step(x, wanted, 0.05).item(), 4) for _ in range(3)])

    step = training(careful)
    losses = [step(x, wanted, 0.05).item() for _ in range(100)]
    found = tg.debug(step, find=("nan", "inf"))(x, wanted, 0.05)
    print(f"\nwith 1e-12 below the root: {found}; the loss goes from {losses[0]:.4f} to {losses[-1]:.4f}")
    assert not found
    assert losses[-1] < 0.5 * losses[0]

    print("\nthe ranges of what is computed:")
    print(found.table())
    print()
    print(step.compare(x, wanted, 0.05, tolerance=1e-3))
    kernels = step.kernels()
    print()
    print(next(iter(kernels), kernels))                             # without any, `kernels` says why
    if args.page:
        step.page(args.page)
        print(f"wrote {args.page}")


if __name__ == "__main__":
    main()
