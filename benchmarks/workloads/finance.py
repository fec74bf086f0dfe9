"""Black and Scholes's price of four million call options, with five sensitivities and gamma, the second derivative by the spot."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import Derived

OPTIONS = 4_000_000
ROOT_HALF = 0.5**0.5


def price(m, spot, strike, years, rate, volatility):
    """m: erf, exp, log, sqrt."""
    spread = volatility * m.sqrt(years)
    d1 = (m.log(spot / strike) + (rate + 0.5 * volatility * volatility) * years) / spread
    d2 = d1 - spread
    return 0.5 * (spot * (1.0 + m.erf(d1 * ROOT_HALF)) - strike * m.exp(-rate * years) * (1.0 + m.erf(d2 * ROOT_HALF)))


class BlackScholes(Derived):
    name = "black-scholes"
    title = "Black-Scholes, 4M options: value, 5 greeks, gamma"
    tolerance = 1e-4

    def data(self, rng):
        ranges = {"spot": (80, 120), "strike": (80, 120), "years": (0.2, 2), "rate": (0.01, 0.05), "volatility": (0.1, 0.5)}
        return {name: rng.uniform(low, high, OPTIONS).astype(np.float32) for name, (low, high) in ranges.items()}

    def function(self, t, F, *inputs):
        return price(t, *inputs)

    def program(self, grad, value_and_grad, f, names):
        def total(*inputs):
            return f(*inputs).sum()

        greeks = grad(total, (0, 1, 2, 3, 4))

        def program(*inputs):
            gamma = grad(lambda spot: grad(total)(spot, *inputs[1:]).sum())(inputs[0])
            return f(*inputs), *greeks(*inputs), gamma

        return program

    def torch(self, **inputs):
        import torch

        wanted = [x.requires_grad_() for x in inputs.values()]

        def run():
            value = price(torch, *wanted)
            greeks = torch.autograd.grad(value.sum(), wanted, create_graph=True)
            return value, *greeks, *torch.autograd.grad(greeks[0].sum(), wanted[0])

        return run

    def jax_function(self, *inputs):
        import jax

        names = {"erf": jax.scipy.special.erf, "exp": jax.numpy.exp, "log": jax.numpy.log, "sqrt": jax.numpy.sqrt}
        return price(type("Names", (), {name: staticmethod(f) for name, f in names.items()}), *inputs)

    def pytensor(self, **inputs):
        import pytensor
        import pytensor.tensor as pt

        symbols = [pt.tensor(dtype=a.dtype, shape=a.shape) for a in inputs.values()]
        value = price(pt, *symbols)
        greeks = pt.grad(value.sum(), symbols)
        f = pytensor.function(symbols, [value, *greeks, pt.grad(greeks[0].sum(), symbols[0])])
        return lambda: tuple(f(*inputs.values()))

    def drjit(self, spot, strike, years, rate, volatility):
        import drjit as dr

        inputs = [spot, strike, years, rate, volatility]

        def run():
            # Dr.Jit has no derivative of a derivative: gamma by its formula.
            for x in inputs:
                dr.enable_grad(x)
            value = price(dr, *inputs)
            dr.backward(value)
            greeks = [dr.grad(x) for x in inputs]
            for x in inputs:
                dr.disable_grad(x)
                dr.set_grad(x, 0)
            s, k, t, r, v = inputs
            spread = v * dr.sqrt(t)
            d1 = (dr.log(s / k) + (r + 0.5 * v * v) * t) / spread
            gamma = dr.exp(-0.5 * d1 * d1) / (s * spread * (2 * np.pi) ** 0.5)
            return dr.detach(value), *greeks, gamma

        return run
