"""Random counts, `poisson` and `binomial`, gamma and von Mises numbers. How many numbers a draw takes depends on values: NumPy makes them.

They belong to the same stream as the others (`random_state`): seed and place are the key and the counter of NumPy's Philox.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tracegrad.custom.custom_function import Function
from tracegrad.custom.host_call import host_call
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import REGISTRY
from tracegrad.support import dtypes
from tracegrad.support.modes import state
from tracegrad.tensors.creation.arguments import create
from tracegrad.tensors.creation.random_numbers import seed_and_offset
from tracegrad.tensors.tensor import Tensor, new_tensor


def _counts(draw: Callable[..., Any], *parameters: Tensor) -> Tensor:
    """draw(NumPy's generator, *parameters), as the first's dtype. Its derivative is 0, as torch has it."""
    given, like = [p.detach() for p in parameters], (parameters[0].shape, parameters[0].dtype)
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
        drawn = _counts(lambda stream, a: stream.standard_gamma(np.asarray(a, np.float64)), concentration)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    def backward(ctx: Any, ct: Tensor) -> Any:
        concentration, drawn = ctx.saved_tensors
        return ct * host_call(_gamma_slope, concentration, drawn)


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


def von_mises_numbers(concentration: Tensor) -> Tensor:
    """Angles of the von Mises distributions of these concentrations around 0, for tracegrad.distributions."""
    return _counts(lambda stream, k: stream.vonmises(0.0, np.asarray(k, np.float64)), concentration)


@create(draws=True)
def poisson(input: Tensor) -> Tensor:
    """Numbers of events of rate `input` (floats, not negative), as its dtype. On the host; generator: as in `rand`.

    Raises DTypeError for other dtypes than floats, and ArgumentError, when the values are computed, for a negative rate.

    >>> tg.poisson(tg.tensor([0.5, 3.0, 40.0]))
    """
    if not dtypes.is_float(input.dtype):
        raise DTypeError(f"poisson: takes rates in a float tensor, got {input.dtype}; use x.float()")

    def draw(stream: Any, rate: Any) -> Any:
        if not (rate >= 0).all():
            raise ArgumentError(f"poisson: the rates must not be negative, got {rate.min()}")
        return stream.poisson(np.asarray(rate, np.float64))

    return _counts(draw, input)


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
        if not ((trials >= 0).all() and (chance >= 0).all() and (chance <= 1).all()):
            raise ArgumentError("binomial: the counts must not be negative, and the probabilities from 0 to 1")
        return stream.binomial(trials.astype(np.int64), np.asarray(chance, np.float64))

    return _counts(draw, *given)
