"""Gradient descent whose step grows and shrinks, as `particle` and `saddle` want it, in one `while_loop`."""

import tracegrad as tg


def reverse(f):
    return tg.grad(f)


def forward(f):
    return tg.func.jacfwd(f)


def minimum(gradient, f, start):
    """Where f is smallest. gradient: `reverse` or `forward`."""
    def step(state):
        x, fx, gx, eta, count, _ = state
        doubling = count == 10
        new = x - eta * gx
        f_new, g_new = f(new), gradient(f)(new)
        end = (norm(gx) <= 1e-5) | (~doubling & (norm(x - new) <= 1e-5))
        better = ~doubling & ~end & (f_new < fx)
        eta = tg.where(doubling, 2 * eta, tg.where(better, eta, eta / 2))
        count = tg.where(better, count + 1, 0)
        return tg.where(better, new, x), tg.where(better, f_new, fx), tg.where(better, g_new, gx), eta, count, ~end

    first = start, f(start), gradient(f)(start), tg.full_like(start[0], 1e-5), tg.tensor(0), tg.tensor(True)
    return tg.while_loop(lambda state: state[-1], step, first)[0]


def norm(x):
    return (x * x).sum().sqrt()


MODES = {"f": forward, "r": reverse}
