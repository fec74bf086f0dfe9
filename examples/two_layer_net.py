"""The classic two-layer network, trained by hand-written steps: forward, backward and update in one traced function.

Shows a custom Function (a ReLU with its own backward), in-place updates inside a traced step, and a learning rate that may
change every step without recompiling. Beside each loss stands the one of a NumPy float64 run from the same weights.

float32 weights near 1 cannot hold changes below 3e-8: late in the training, at a loss near 1e-2, the updates fall below that and any
float32 run stays behind the float64 one. With --dtype float64 the two agree to the end.

    python examples/two_layer_net.py [--device NAME] [--steps 500] [--dtype float64]
"""

import argparse

import numpy as np

import tracegrad as tg

N, D_IN, H, D_OUT = 64, 1000, 100, 10
LEARNING_RATE = 1e-6


class MyReLU(tg.Function):
    """max(x, 0), with its derivative written by hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_x = grad_output.clone()
        grad_x[x < 0] = 0
        return grad_x


def numpy_losses(x, y, w1, w2, steps):
    """The same training in NumPy float64, derivatives by hand."""
    x, y, w1, w2 = (a.astype(np.float64) for a in (x, y, w1, w2))
    for _ in range(steps):
        h = x @ w1
        difference = np.maximum(h, 0) @ w2 - y
        yield (difference**2).sum()
        grad_w2 = np.maximum(h, 0).T @ (2 * difference)
        grad_w1 = x.T @ ((2 * difference) @ w2.T * (h >= 0))
        w1, w2 = w1 - LEARNING_RATE * grad_w1, w2 - LEARNING_RATE * grad_w2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="index, kind (cpu, gpu) or part of the name of an OpenCL device")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    args = parser.parse_args()
    if args.device:
        tg.set_device(args.device)

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in ((N, D_IN), (N, D_OUT), (D_IN, H), (H, D_OUT))]
    x, y, w1, w2 = (tg.from_numpy(a.astype(args.dtype)) for a in arrays)
    w1.requires_grad_()
    w2.requires_grad_()

    @tg.trace
    def step(x, y, lr):
        y_pred = MyReLU.apply(x.mm(w1)).mm(w2)
        loss = (y_pred - y).pow(2).sum()
        loss.backward()
        with tg.no_grad():
            w1.sub_(w1.grad, alpha=lr)
            w2.sub_(w2.grad, alpha=lr)
        w1.grad = w2.grad = None
        return loss

    print("  step             loss    NumPy float64    difference")
    for t, expected in enumerate(numpy_losses(*arrays, args.steps), start=1):
        loss = step(x, y, LEARNING_RATE)
        if t == 1 or t % 100 == 0:
            print(f"{t:6d}  {loss.item():15.6g}  {expected:15.6g}  {abs(loss.item() - expected) / expected:12.1e}")

    kernels = step.kernels()
    print(f"\nThe whole step is {len(kernels)} kernels. One of them:\n")
    print(next(iter(kernels), kernels))                             # without any, `kernels` says why


if __name__ == "__main__":
    main()
