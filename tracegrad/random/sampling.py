"""Random counts, `poisson` and `binomial`, gamma and von Mises numbers. How many numbers a draw takes depends on values: NumPy makes them.

They belong to the same stream as the others (`random_state`): seed and place are the key and the counter of NumPy's Philox.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tracegrad.custom.custom_function import Function
from tracegrad.custom.host_call import host_call
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import REGISTRY
from tracegrad.support import dtypes
from tracegrad.support.mersenne import rejection
from tracegrad.support.modes import state
from tracegrad.tensors.creation.arguments import create
from tracegrad.tensors.creation.random_numbers import of_parameters, seed_and_offset, torchs_stream
from tracegrad.tensors.tensor import Tensor, from_own, new_tensor


def _counts(draw: Callable[..., Any], torchs: Callable[..., Any], *parameters: Tensor) -> Tensor:
    """draw(NumPy's generator, *parameters), as the first's dtype, or torchs(torch's generator, *parameters). Its derivative is 0."""
    given, like = [p.detach() for p in parameters], (parameters[0].shape, parameters[0].dtype)
    host = torchs_stream(prod(like[0]), given[0].device)
    if host is not None:
        return from_own(np.asarray(torchs(host, *[p.numpy() for p in given])).astype(like[1]), given[0].device)
    seed, offset = seed_and_offset(like[0], 1)

    def on_host(seed: Any, offset: Any, *values: Any) -> Any:
        stream = np.random.Generator(np.random.Philox(key=int(seed), counter=[0, 0, 1, int(offset)]))
        return np.asarray(draw(stream, *values)).astype(like[1])

    if state.trace is None and offset.value is None:
        raise ArgumentError("vmap: random counts (poisson, binomial) are made on the host, for all examples alike; draw outside and map "
                            "over them")
    if state.trace is None:
        return host_call(partial(on_host, seed.value, offset.value), *given, like=like)  # type: ignore[no-any-return]
    return host_call(on_host, *(new_tensor(n, given[0].device) for n in (seed, offset)), *given, like=like)  # type: ignore[no-any-return]


class _GammaNumbers(Function):
    """Gamma numbers, and how they move with their shapes (implicit reparametrization: Figurnov, Mohamed and Mnih 2018)."""

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        drawn = _counts(lambda stream, a: stream.standard_gamma(np.asarray(a, np.float64)), rejection.standard_gamma, concentration)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    def backward(ctx: Any, ct: Tensor) -> Any:
        concentration, drawn = ctx.saved_tensors
        return ct * host_call(_gamma_slope, concentration, drawn)


class _DirichletNumbers(Function):
    """Gamma numbers of float64 over their sum along the last dimension, and how they move: each as a beta number, the others in proportion.

    (Implicit reparametrization, as torch has it: an estimator of the same gradient as by the gamma numbers, but not the same numbers.)
    """

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        drawn = _counts(lambda stream, a: _normalized(stream.standard_gamma(np.asarray(a, np.float64)), a.dtype),
                        lambda stream, a: _normalized(rejection.standard_gamma(stream, a.astype(np.float64)), a.dtype), concentration)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    def backward(ctx: Any, ct: Tensor) -> Any:
        concentration, x = ctx.saved_tensors
        return (ct - (ct * x).sum(-1, True)) * host_call(_dirichlet_slope, concentration, x)


def _normalized(z: Any, dtype: Any) -> Any:
    """Gamma numbers over their sum, between 0 and 1, which do not come."""
    z, info = np.maximum(z, np.finfo(np.float64).tiny), dtypes.finfo(dtype)
    return np.clip(z / z.sum(-1, keepdims=True), float(info.tiny), 1 - float(info.eps) / 2)


def _dirichlet_slope(a: Any, x: Any) -> Any:
    """dx / da / (1 - x) at constant I_x(a, b), the share of smaller beta numbers, b the sum of the other shapes.

    -(dI / da) / (dI / dx), of the series of I by x, or of 1 - I by 1 - x where that is smaller ([DLMF] 8.17.8), term by term.
    """
    kind, a, x = a.dtype, a.astype(np.float64), x.astype(np.float64)
    b = a.sum(-1, keepdims=True) - a
    digamma, low = REGISTRY["digamma"].numpy, x <= 0.5
    at, first, sign = np.where(low, x, 1 - x), np.where(low, a, b), np.where(low, -1.0, 1.0)
    log, psi, own = np.log(x), digamma(a + b), np.where(low, digamma(a + 1), digamma(a))
    term, k = np.ones_like(x), 0
    total = log + psi - own
    while (term * (np.abs(log + psi - own) + 1) > 1e-16 * np.abs(total)).any():
        psi, own = psi + 1 / (a + b + k), own + np.where(low, 1 / (a + 1 + k), 0.0)
        term = term * at * (a + b + k) / (first + 1 + k)
        total, k = total + term * (log + psi - own), k + 1
    return (sign * x / first * total).astype(kind)


def _gamma_slope(a: Any, z: Any) -> Any:
    """dz / da at constant P(a, z), the share of smaller gamma numbers: -(dP / da) / (dP / dz).

    Of P's series of z^(a + k) e^-z / gamma(a + k + 1) ([DLMF] 8.7.1) term by term; where its terms are small, the rest is, too.
    """
    kind, a, z = a.dtype, a.astype(np.float64), z.astype(np.float64)
    log, psi = np.log(np.where(z > 0, z, 1.0)), REGISTRY["digamma"].numpy(a + 1)
    term, k = z / a, 0
    total = term * (psi - log)
    while (term * np.maximum(np.abs(psi - log), 1.0) > 1e-17 * np.abs(total)).any() or (z > a + k).any():
        k += 1
        psi = psi + 1 / (a + k)
        term = term * (z / (a + k))
        total = total + term * (psi - log)
    return np.where(z > 0, total, 0.0).astype(kind)


def gamma_numbers(concentration: Tensor) -> Any:
    """Numbers of the gamma distributions of these shapes and of rate 1, for tracegrad.distributions. They have a first derivative."""
    return _GammaNumbers.apply(concentration)


def dirichlet_numbers(concentration: Tensor) -> Any:
    """Vectors along the last dimension of the Dirichlet distributions of these shapes, for tracegrad.distributions. First derivatives."""
    return _DirichletNumbers.apply(concentration)


def von_mises_numbers(concentration: Tensor) -> Tensor:
    """Angles of the von Mises distributions of these concentrations around 0, for tracegrad.distributions."""
    return _counts(lambda stream, k: stream.vonmises(0.0, np.asarray(k, np.float64)), rejection.von_mises, concentration)


@create(draws=True)
def poisson(input: Tensor) -> Tensor:
    """Numbers of events of rate `input` (floats, not negative), as its dtype. On the host; generator: as in `rand`.

    Raises DTypeError for other dtypes than floats, and ArgumentError, when the values are computed, for a negative rate.

    >>> tg.poisson(tg.tensor([0.5, 3.0, 40.0]))
    """
    if not dtypes.is_float(input.dtype):
        raise DTypeError(f"poisson: takes rates in a float tensor, got {input.dtype}; use x.float()")

    def draw(stream: Any, rate: Any) -> Any:
        return stream.poisson(np.asarray(_checked_rate(rate), np.float64))

    return of_parameters(_counts(draw, lambda stream, rate: rejection.poisson(stream, _checked_rate(rate)), input), input)


def _checked_rate(rate: Any) -> Any:
    if not (rate >= 0).all():
        raise ArgumentError(f"poisson: the rates must not be negative, got {rate.min()}")
    return rate


@create(draws=True)
def binomial(count: Tensor, prob: Tensor) -> Tensor:
    """How many of `count` trials of probability `prob` succeed, both float tensors of one dtype whose shapes broadcast. On the host.

    Raises DTypeError and ShapeError for what they are not, and ArgumentError, when the values are computed, for negative counts and
    probabilities outside of 0 to 1. generator: as in `rand`.

    >>> tg.binomial(tg.tensor([10.0, 100.0]), tg.tensor([0.5, 0.1]))
    """
    for p in (count, prob):
        if not dtypes.is_float(p.dtype):
            raise DTypeError(f"binomial: count and prob must be float tensors, got {p.dtype}; use x.float()")
    if count.dtype != prob.dtype:
        raise DTypeError(f"binomial: count {count.dtype} and prob {prob.dtype} must have one dtype; cast one of them")
    try:
        given = PUBLIC["broadcast_tensors"](count, prob)
    except ShapeError as error:
        error.called("binomial")
        raise

    def draw(stream: Any, trials: Any, chance: Any) -> Any:
        _check_trials(trials, chance)
        return stream.binomial(trials.astype(np.int64), np.asarray(chance, np.float64))

    def torchs(stream: Any, trials: Any, chance: Any) -> Any:
        _check_trials(trials, chance)
        return rejection.binomial(stream, trials, chance)

    return _counts(draw, torchs, *given)


def _check_trials(trials: Any, chance: Any) -> None:
    if not ((trials >= 0).all() and (chance >= 0).all() and (chance <= 1).all()):
        raise ArgumentError("binomial: the counts must not be negative, and the probabilities from 0 to 1")
