"""Three Functions of one's own: a stable derivative, a straight-through estimator, a clipped gradient; and a second derivative.

A custom Function is differentiated through *its* backward at every order, and is fused like any other operation.

    python examples/custom_function.py [--device NAME]
"""

import argparse

import numpy as np

import tracegrad as tg


class Log1pExp(tg.Function):
    """log(1 + exp(x)). The derivative that follows from the formula is inf/inf for a large x; this one is right everywhere."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) + tg.log1p(tg.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * tg.sigmoid(x)


class RoundStraightThrough(tg.Function):
    """Round to integers; pretend in the derivative that it was the identity."""

    @staticmethod
    def forward(ctx, x):
        return tg.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class ClipGradient(tg.Function):
    """The identity, whose gradient is limited to [-limit, limit]. `limit` is not differentiated: its gradient is None."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-ctx.limit, ctx.limit), None


def stable_derivative():
    x = tg.tensor([-100.0, -1.0, 0.0, 1.0, 100.0])
    naive = tg.grad(lambda x: tg.log(1 + tg.exp(x)).sum())(x)
    first = tg.grad(lambda x: Log1pExp.apply(x).sum())
    second = tg.grad(lambda x: first(x).sum())
    print("log(1 + exp(x)) at    ", x.numpy())
    print("  derivative, naive   ", naive.numpy())
    print("  derivative, Log1pExp", first(x).numpy())
    print("  second derivative   ", second(x).numpy())

    s = 1 / (1 + np.exp(-x.numpy().astype(np.float64)))
    error = max(abs(first(x).numpy() - s).max(), abs(second(x).numpy() - s * (1 - s)).max())
    print(f"  largest error against sigmoid and its derivative: {error:.1e}\n")


def fit_quantised_line():
    """Fit y = 0.25 k x with an integer k by gradient descent: impossible with round()'s true derivative, which is 0."""
    x = tg.linspace(-1, 1, 101)
    y = 0.25 * 7 * x
    k = tg.tensor(0.5, requires_grad=True)

    @tg.trace
    def step(lr):
        loss = ((0.25 * RoundStraightThrough.apply(k) * x - y) ** 2).mean()
        loss.backward()
        with tg.no_grad():
            k.sub_(k.grad, alpha=lr)
        k.grad = None
        return loss

    for _ in range(200):
        loss = step(2.0)
    print(f"straight-through rounding: k = {round(k.item())} (expected 7), loss {loss.item():.1e}\n")


def clipped_gradient():
    x = tg.tensor([-2.0, 0.1, 3.0], requires_grad=True)
    (ClipGradient.apply(x, 1.0) ** 2).sum().backward()
    print("gradient of x², clipped to [-1, 1], at", x.detach().numpy(), "is", x.grad.numpy(), "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)

    stable_derivative()
    fit_quantised_line()
    clipped_gradient()

    @tg.trace
    def value_and_slope(x):
        return tg.value_and_grad(lambda x: Log1pExp.apply(x).sum())(x)

    value_and_slope(tg.linspace(-5, 5, 1000))
    print("Log1pExp and its derivative, traced: both meanings inlined in the generated code:\n")
    print(value_and_slope.kernels())


if __name__ == "__main__":
    main()
