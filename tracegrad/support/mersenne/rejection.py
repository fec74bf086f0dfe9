"""Random numbers that take as many words as their values ask for, drawn from torch's generator: each function draws an array's in order.

The methods are published ones, with the constants, the precision and the order of draws that torch's CPU code has, so that a seed gives
torch's numbers: G. Marsaglia and W. W. Tsang, A simple method for generating gamma variables, 2000; W. Hoermann, The transformed rejection
method for generating Poisson random variables, 1993, and The generation of binomial random variates, 1993; D. J. Best and N. I. Fisher,
Efficient simulation of the von Mises distribution, 1979.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracegrad.support.mersenne.generator import Array, Mersenne

_THIRD, _SQUEEZE = np.float32(1.0) / np.float32(3.0), float(np.float32(0.0331))
_TAILS = (0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211, 0.0138761288230707,
          0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287)     # what Stirling's formula lacks of log k!


def _each(draw: Any, *given: Array) -> Array:
    """draw of each number of the arrays, which have one shape, in order."""
    return np.array([draw(*numbers) for numbers in zip(*[g.ravel() for g in given], strict=True)], given[0].dtype).reshape(given[0].shape)


def poisson(stream: Mersenne, rate: Array) -> Array:
    """Numbers of events. Below a rate of 10 by the product of uniform numbers, else by transformed rejection."""
    return _each(lambda r: _rejected_poisson(stream, float(r)) if r >= 10 else _multiplied(stream, float(r)), rate)


def _multiplied(stream: Mersenne, rate: float) -> int:
    count, product, least = 0, 1.0, math.exp(-rate)
    while rate:
        product *= stream.double()
        if product <= least:
            break
        count += 1
    return count


def _rejected_poisson(stream: Mersenne, rate: float) -> int:
    b = 0.931 + 2.53 * math.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    while True:
        u, v = stream.double() - 0.5, stream.double()
        us = 0.5 - abs(u)
        k = math.floor((2 * a / us + b) * u + rate + 0.43)
        if us >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
            return k
        if k < 0 or (us < 0.013 and v > us):
            continue
        if math.log(v) + math.log(inverse) - math.log(a / (us * us) + b) <= -rate + k * math.log(rate) - math.lgamma(k + 1):
            return k


def standard_gamma(stream: Mersenne, shape: Array) -> Array:
    """Gamma numbers of rate 1. Shapes are numbers of their dtype, and all else is float64."""
    least = float(np.finfo(shape.dtype).tiny)
    return _each(lambda a: max(least, _one_gamma(stream, a)), shape)


def _one_gamma(stream: Mersenne, shape: Any) -> float:
    kind, scale = type(shape), 1.0
    if shape < 1:
        if shape == 0:
            return 0.0
        scale = (1 - stream.double()) ** float(kind(1) / shape)
        shape = kind(shape + kind(1))
    d = float(kind(shape - kind(_THIRD)))
    c = 1 / math.sqrt(9 * d)
    while True:
        y = 0.0
        while y <= 0:
            x = stream.one_normal()
            y = 1 + c * x
        v, u, xx = y**3, 1 - stream.double(), x * x
        if u < 1 - _SQUEEZE * xx * xx or math.log(u) < 0.5 * xx + d * (1 - v + math.log(v)):
            return scale * d * v


def binomial(stream: Mersenne, trials: Array, chance: Array) -> Array:
    """How many trials succeed: by waiting times where few do, else by transformed rejection. In the arrays' own precision, as in torch."""
    kind = trials.dtype.type

    def draw(n: Any, p: Any) -> Any:
        if n <= 0 or p <= 0:
            return kind(0)
        if p >= 1:
            return n
        few = p if p <= 0.5 else kind(1.0 - float(p))
        found = _rejected_binomial(stream, n, few) if n * few >= 10 else _waited(stream, n, few)
        return found if p <= 0.5 else n - found

    with np.errstate(all="ignore"):
        return _each(draw, trials, chance)


def _waited(stream: Mersenne, n: Any, p: Any) -> Any:
    kind, log = type(n), np.log1p(-p)
    passed = count = kind(0)
    while True:
        passed += np.ceil(np.log(kind(stream.double())) / log)
        if passed > n:
            return count
        count += kind(1)


def _rejected_binomial(stream: Mersenne, n: Any, p: Any) -> Any:
    kind = type(n)
    deviation = np.sqrt(n * p * (kind(1) - p))
    b = kind(1.15 + 2.53 * float(deviation))
    a = kind(-0.0873 + 0.0248 * float(b) + 0.01 * float(p))
    c, box = kind(float(n * p) + 0.5), kind(0.92 - 4.2 / float(b))
    ratio, alpha = p / (kind(1) - p), kind((2.83 + 5.1 / float(b)) * float(deviation))
    m = np.floor((n + kind(1)) * p)
    while True:
        u, v = kind(stream.double() - 0.5), kind(stream.double())
        us = kind(0.5 - float(abs(u)))
        k = np.floor((kind(2) * a / us + b) * u + c)
        if k < 0 or k > n:
            continue
        if us >= 0.07 and v <= box:
            return k
        v = np.log(v * alpha / (a / (us * us) + b))
        bound = (float(m + 0.5) * float(np.log((m + 1) / (ratio * (n - m + 1)))) + float(n + 1) * float(np.log((n - m + 1) / (n - k + 1)))
                 + float(k + 0.5) * float(np.log(ratio * (n - k + 1) / (k + 1))) + _tail(m) + _tail(n - m) - _tail(k) - _tail(n - k))
        if v <= kind(bound):
            return k


def _tail(k: Any) -> float:
    if k <= 9:
        return _TAILS[int(k)]
    next_one = float(k) + 1
    square = next_one * next_one
    return (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / next_one


def von_mises(stream: Mersenne, concentration: Array) -> Array:
    """Angles around 0, of float64: all are drawn again until each was accepted once."""
    k = concentration.astype(np.float64)
    tau = 1 + np.sqrt(1 + 4 * k * k)
    rho = (tau - np.sqrt(2 * tau)) / (2 * k)
    r = np.where(k < 1e-5, 1 / k + k, (1 + rho * rho) / (2 * rho))
    found, done = np.zeros(k.shape), np.zeros(k.shape, bool)
    with np.errstate(all="ignore"):
        while not done.all():
            u, v, w = stream.uniform((3, *k.shape), np.float64)
            z = np.cos(math.pi * u)
            f = (1 + r * z) / (r + z)
            c = k * (r - f)
            accepted = (c * (2 - c) - v > 0) | (np.log(c / v) + 1 - c >= 0)
            found = np.where(accepted, np.sign(w - 0.5) * np.arccos(f), found)
            done |= accepted
    return found


def rrelu_slopes(stream: Mersenne, negative: Array, low: float, high: float) -> Array:
    """A slope between low and high for each element that is not positive, 1 for the others, which draw none. float64."""
    slopes = np.ones(negative.shape)
    slopes[negative] = stream.doubles(int(negative.sum())) * (high - low) + low
    return slopes
