"""Newton's method with Hessian-vector products: the Rosenbrock function in 100 dimensions and a logistic regression.

A Hessian is never formed: `jvp` of `grad` gives its product with a vector at the cost of a few gradients, and conjugate gradients
need no more. float64.

    python examples/newton.py [--device NAME]
"""

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer

import tracegrad as tg
from tracegrad.nn import functional as F


def rosenbrock(x):
    """The extended Rosenbrock function: its one stationary point is the minimum 0 at (1, ..., 1), at the end of curved valleys."""
    a, b = x[0::2], x[1::2]
    return (100 * (b - a**2) ** 2 + (1 - a) ** 2).sum()


def conjugate_gradients(product, b, tolerance, limit):
    """Solves product(p) = b until the residual is `tolerance` times |b|; stops at a direction of negative curvature."""
    p, r = tg.zeros_like(b), b
    d, rr = r, r.dot(r).item()
    goal = tolerance**2 * rr
    for count in range(1, limit + 1):
        hd = product(d)
        curvature = d.dot(hd).item()
        if curvature <= 0:
            return (b if count == 1 else p), count
        alpha = rr / curvature
        p, r = p + alpha * d, r - alpha * hd
        rr, before = r.dot(r).item(), rr
        if rr <= goal:
            break
        d = r + rr / before * d
    return p, count


def newton_cg(f, x, steps=200, goal=1e-9):
    """Minimises f from x. Returns the minimiser and the traced gradient."""
    value_and_grad = tg.trace(tg.value_and_grad(f))
    value = tg.trace(f)
    hessian_product = tg.trace(lambda x, v: tg.jvp(tg.grad(f), (x,), (v,))[1])

    print("  step               f       |gradient|   products   step length")
    fx, g = value_and_grad(x)
    for step in range(steps + 1):
        norm = g.dot(g).item() ** 0.5
        if norm <= goal or step == steps:
            print(f"{step:6d}  {fx.item():14.6e}   {norm:14.6e}")
            return x, value_and_grad
        p, products = conjugate_gradients(lambda v, x=x: hessian_product(x, v), -g, min(0.1, norm**0.5), 4 * x.shape[0])
        slope, length = g.dot(p).item(), 1.0
        while value(x + length * p).item() > fx.item() + 1e-4 * length * slope and length > 1e-10:
            length /= 2
        if step % 5 == 0:
            print(f"{step:6d}  {fx.item():14.6e}   {norm:14.6e}   {products:8d}   {length:11g}")
        x = x + length * p
        fx, g = value_and_grad(x)
    raise AssertionError("unreachable")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device (it needs float64)")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)

    print("Rosenbrock, 100 dimensions, from near (-1.2, 1, -1.2, 1, ...)")
    start = np.tile([-1.2, 1.0], 50) + 0.1 * np.random.default_rng(0).standard_normal(100)
    x, traced = newton_cg(rosenbrock, tg.from_numpy(start))
    print(f"distance of the result from (1, ..., 1): {np.abs(x.numpy() - 1).max():.1e}\n")

    data = load_breast_cancer()
    features = (data.data - data.data.mean(0)) / data.data.std(0)
    features = tg.from_numpy(np.column_stack([features, np.ones(len(features))]))
    labels = tg.from_numpy(data.target.astype(np.float64))

    def loss(w):
        return F.binary_cross_entropy_with_logits(features @ w, labels) + 0.5e-3 * (w * w).sum()

    print("Logistic regression, 569 patients, 30 features and a constant, L2 penalty 1e-3")
    w, _ = newton_cg(loss, tg.from_numpy(np.zeros(31)))
    right = (((features @ w) > 0) == (labels > 0.5)).numpy().mean()
    print(f"right on {right:.2%} of the data it was fitted to\n")

    print("Rosenbrock's value and gradient as generated:\n")
    kernels = traced.kernels()
    print(next(iter(kernels), kernels))                             # without any, `kernels` says why


if __name__ == "__main__":
    main()
