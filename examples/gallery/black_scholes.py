"""Black-Scholes: prices of options, their greeks as derivatives, and volatilities from market prices.

A greek is a derivative of the price, so `grad` gives all first ones and `grad` of `grad` gamma. The formulas of a textbook check
them. The calibration asks which volatility explains a price: Newton's method, with vega as the slope.

In its kernels: price, delta, vega and gamma of 1,000 options are one kernel. exp(-d²/2) of d1 and of d2 stands once, for all of them.
"""

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg


def normal_cdf(x):
    return 0.5 * tg.erfc(-x / 2**0.5)


def call_price(spot, strike, years, volatility, rate=0.02):
    d1 = (tg.log(spot / strike) + (rate + volatility**2 / 2) * years) / (volatility * years**0.5)
    return spot * normal_cdf(d1) - strike * tg.exp(-rate * years) * normal_cdf(d1 - volatility * years**0.5)


@tg.trace
def greeks(spot, strike, years, volatility):
    """Price, delta, vega and gamma of each option."""
    def total(spot, volatility):                    # options do not depend on each other: the gradient of the sum is each one's derivative
        return call_price(spot, strike, years, volatility).sum()

    delta, vega = tg.grad(total, argnums=(0, 1))(spot, volatility)
    gamma = tg.grad(lambda s: tg.grad(total)(s, volatility).sum())(spot)
    return call_price(spot, strike, years, volatility), delta, vega, gamma


@tg.trace
def newton_step(volatility, price, spot, strike, years):
    def total(v):
        found = call_price(spot, strike, years, v)
        return found.sum(), found

    vega, found = tg.grad(total, has_aux=True)(volatility)
    return (volatility - (found - price) / vega).clamp(0.01, 3.0)


def run():
    spot = tg.linspace(60, 150, 1000, dtype=tg.float64)
    strike, years, volatility = (tg.full((1000,), value, dtype=tg.float64) for value in (100.0, 0.75, 0.3))
    price, delta, vega, gamma = greeks(spot, strike, years, volatility)

    s = spot.numpy()
    d1 = (np.log(s / 100) + (0.02 + 0.045) * 0.75) / (0.3 * 0.75**0.5)
    density = np.exp(-d1**2 / 2) / (2 * np.pi) ** 0.5

    strikes = tg.linspace(80, 120, 41, dtype=tg.float64)
    smile = 0.25 + 0.3 * ((strikes / 100 - 1) ** 2)                               # what the market thinks
    now, year = tg.full((41,), 100.0, dtype=tg.float64), tg.ones(41, dtype=tg.float64)
    market = call_price(now, strikes, year, smile)
    found = tg.full((41,), 0.5, dtype=tg.float64)
    for _ in range(8):
        found = newton_step(found, market, now, strikes, year)

    figure, axes = plt.subplots(1, 3, figsize=(12, 3))
    axes[0].plot(s, price.numpy(), label="price")
    axes[0].plot(s, np.maximum(s - 100, 0), "--", label="today's value")
    axes[0].legend()
    for name, greek in (("delta", delta), ("vega / 40", vega / 40), ("gamma * 50", gamma * 50)):
        axes[1].plot(s, greek.numpy(), label=name)
    axes[1].legend()
    axes[2].plot(strikes.numpy(), smile.numpy(), "o", label="the market's volatility")
    axes[2].plot(strikes.numpy(), found.numpy(), label="found from its prices")
    axes[2].legend()
    return {"error of vega": np.abs(vega.numpy() - s * density * 0.75**0.5).max(),
            "error of gamma": np.abs(gamma.numpy() - density / (s * 0.3 * 0.75**0.5)).max(),
            "error of the volatilities": (found - smile).abs().max().item()}, figure, greeks


if __name__ == "__main__":
    show.main(run)
