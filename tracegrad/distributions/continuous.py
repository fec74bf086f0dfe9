"""Distributions of real numbers with shapes or bounds: Uniform, Exponential, Gamma, Chi2, Beta, Dirichlet. Each is one class.

A class has parameters, moments, density and how it is drawn. `location_scale.py` has the others.
Source of the densities, moments and entropies: Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions, 1994.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tracegrad.distributions import constraints
from tracegrad.distributions.distribution import Distribution, ExponentialFamily, parameters, valued
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.random.sampling import dirichlet_numbers, gamma_numbers
from tracegrad.tensors.creation.filled import empty
from tracegrad.tensors.creation.random_numbers import rand
from tracegrad.tensors.tensor import Tensor
from tracegrad.tensors.type_info import finfo


def within(holds: Tensor, x: Tensor, otherwise: float) -> Any:
    return PUBLIC["where"](holds, x, otherwise)


class Uniform(Distribution):
    """Numbers from low (included) to high (excluded).

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Uniform(0.0, 2.0).entropy()
    """

    arg_constraints = {"low": constraints.real, "high": constraints.real}
    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = parameters("Uniform", low, high)
        super().__init__(self.low.shape, (), validate_args)
        if self._validate_args and valued() and not bool((self.low < self.high).all()):
            raise ArgumentError(f"Uniform: low has to be less than high, got {self.low} and {self.high}")

    @property
    def support(self) -> constraints.Constraint:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Any:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Any:
        return self.high * math.nan

    @property
    def variance(self) -> Any:
        return (self.high - self.low)**2 / 12

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self.low + rand(*self._shape(sample_shape), dtype=self.low.dtype, device=self.low.device) * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Any:
        x = self._value("log_prob", value)
        return within((self.low <= x) & (x < self.high), -(self.high - self.low).log(), -math.inf)

    def cdf(self, value: Tensor) -> Any:
        return ((self._value("cdf", value) - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Any:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Any:
        return (self.high - self.low).log()


def inside(like: Tensor) -> Uniform:
    """Numbers between 0 and 1, neither of which comes, for each element of a tensor."""
    limits = finfo(like.dtype)
    return Uniform(PUBLIC["full_like"](like, float(limits.tiny)), PUBLIC["full_like"](like, 1 - float(limits.eps)), False)


class Exponential(ExponentialFamily):
    """Waiting times for events of this rate.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Exponential(2.0).mean
    """

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = parameters("Exponential", rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        return 1 / self.rate

    @property
    def mode(self) -> Any:
        return self.rate * 0

    @property
    def stddev(self) -> Any:
        return 1 / self.rate

    @property
    def variance(self) -> Any:
        return self.rate**-2

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return empty(self._shape(sample_shape), dtype=self.rate.dtype, device=self.rate.device).exponential_() / self.rate

    def log_prob(self, value: Tensor) -> Any:
        return self.rate.log() - self.rate * self._value("log_prob", value)

    def cdf(self, value: Tensor) -> Any:
        return 1 - (-self.rate * self._value("cdf", value)).exp()

    def icdf(self, value: Tensor) -> Any:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Any:
        return 1 - self.rate.log()

    _mean_carrier_measure = 0.0

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (-self.rate,)

    def _log_normalizer(self, x: Any) -> Any:
        return -(-x).log()


class Gamma(ExponentialFamily):
    """The gamma distribution of shape concentration and of a rate. Samples are drawn on the host; they have a first derivative.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Gamma(2.0, 1.0).mean
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = parameters(type(self).__name__, concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        return self.concentration / self.rate

    @property
    def mode(self) -> Any:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Any:
        return self.concentration / self.rate**2

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return gamma_numbers(self.concentration.expand(self._shape(sample_shape))) / self.rate

    def log_prob(self, value: Tensor) -> Any:
        x, a = self._value("log_prob", value), self.concentration
        return PUBLIC["xlogy"](a, self.rate) + PUBLIC["xlogy"](a - 1, x) - self.rate * x - a.lgamma()

    def cdf(self, value: Tensor) -> Any:
        return PUBLIC["igamma"](self.concentration, self.rate * self._value("cdf", value))

    def entropy(self) -> Any:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()

    _mean_carrier_measure = 0.0

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return self.concentration - 1, -self.rate

    def _log_normalizer(self, x: Any, y: Any) -> Any:
        return (x + 1).lgamma() - (x + 1) * (-y).log()


class Chi2(Gamma):
    """The sum of df squared normal numbers.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Chi2(3.0).mean
    """

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (self.df,) = parameters("Chi2", df)
        super().__init__(0.5 * self.df, 0.5, validate_args)

    def _shown(self) -> Iterable[str]:
        return ()


class Beta(ExponentialFamily):
    """The beta distribution, of numbers from 0 to 1. Samples are drawn on the host; they have a first derivative.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Beta(2.0, 3.0).mean
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = parameters("Beta", concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)

    def _shown(self) -> Iterable[str]:
        return ()

    @property
    def mean(self) -> Any:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Any:
        return Dirichlet(PUBLIC["stack"]((self.concentration1, self.concentration0), -1), False).mode[..., 0]

    @property
    def variance(self) -> Any:
        a, b = self.concentration1, self.concentration0
        return a * b / ((a + b)**2 * (a + b + 1))

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        both = PUBLIC["stack"]([self.concentration1, self.concentration0], -1)
        return dirichlet_numbers(both.expand((*self._shape(sample_shape), 2)))[..., 0]

    def log_prob(self, value: Tensor) -> Any:
        x, a, b = self._value("log_prob", value), self.concentration1, self.concentration0
        inside = PUBLIC["xlogy"](a - 1, x) + PUBLIC["xlogy"](b - 1, 1 - x)
        return inside + (a + b).lgamma() - a.lgamma() - b.lgamma()

    def entropy(self) -> Any:
        a, b = self.concentration1, self.concentration0
        total = a + b
        return (a.lgamma() + b.lgamma() - total.lgamma() - (a - 1) * a.digamma() - (b - 1) * b.digamma() + (total - 2) * total.digamma())

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return self.concentration1, self.concentration0

    def _log_normalizer(self, x: Any, y: Any) -> Any:
        return x.lgamma() + y.lgamma() - (x + y).lgamma()


class Dirichlet(ExponentialFamily):
    """Vectors of probabilities; concentration has them in its last dimension. Samples: from the host, with a first derivative.

    dtype: float, as of the parameters. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Dirichlet(tg.tensor([1.0, 2.0])).mean
    """

    arg_constraints = {"concentration": constraints.positive_vector}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ShapeError("Dirichlet: concentration must be a Tensor of at least one dimension")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args)

    @property
    def mean(self) -> Any:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Any:
        least = (self.concentration - 1).clamp(min=0)
        total = least.sum(-1, True)
        peak = PUBLIC["one_hot"](self.concentration.argmax(-1), self.concentration.shape[-1]).to(dtype=least.dtype)
        return PUBLIC["where"]((self.concentration < 1).all(-1, True), peak, least / total)

    @property
    def variance(self) -> Any:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return dirichlet_numbers(self.concentration.expand(self._shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Any:
        x, a = self._value("log_prob", value), self.concentration
        return PUBLIC["xlogy"](a - 1, x).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Any:
        a = self.concentration
        total, k = a.sum(-1), a.shape[-1]
        return a.lgamma().sum(-1) - total.lgamma() - (k - total) * total.digamma() - ((a - 1) * a.digamma()).sum(-1)

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.concentration,)

    def _log_normalizer(self, x: Any) -> Any:
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()
