"""Distributions of positive numbers (lifetimes, ratios, sizes), and of angles. Start at `Weibull`.

Source of the densities, moments and entropies: Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions, 1994; of VonMises:
Mardia and Jupp, Directional Statistics, 2000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracegrad.distributions import constraints
from tracegrad.distributions.continuous import Exponential, Gamma
from tracegrad.distributions.distribution import Distribution, inside_one, parameters
from tracegrad.distributions.location_scale import EULER
from tracegrad.distributions.transforms import AffineTransform, Derived, ExpTransform, PowerTransform
from tracegrad.distributions.utils import of_base
from tracegrad.graph.operators import PUBLIC, SPECIAL
from tracegrad.random.sampling import gamma_numbers, von_mises_numbers
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor


class Weibull(Derived):
    """scale times the 1 / concentration-th power of a standard exponential number.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Weibull(tg.tensor(1.0), tg.tensor(2.0)).mean
    """

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = parameters("Weibull", scale, concentration)
        base, power = Exponential(PUBLIC["ones_like"](self.scale), False), PowerTransform(self.concentration.reciprocal())
        super().__init__(base, [power, AffineTransform(0.0, self.scale)], validate_args)

    def _moment(self, n: int) -> Any:
        return (1 + n / self.concentration).lgamma().exp()

    @property
    def mean(self) -> Any:
        return self.scale * self._moment(1)

    @property
    def mode(self) -> Any:
        k = self.concentration
        return self.scale * (1 - 1 / k).clamp(min=0)**k.reciprocal()

    @property
    def variance(self) -> Any:
        return self.scale**2 * (self._moment(2) - self._moment(1)**2)

    def log_prob(self, value: Tensor) -> Any:
        y, k = self._value("log_prob", value) / self.scale, self.concentration
        return (k / self.scale).log() + PUBLIC["xlogy"](k - 1, y) - y**k

    def cdf(self, value: Tensor) -> Any:
        value = self._value("cdf", value, constraints.nonnegative)              # of 0 it is 0, as in torch
        return -(-(value / self.scale)**self.concentration).expm1()

    def icdf(self, value: Tensor) -> Any:
        return self.scale * (-(-value).log1p())**self.concentration.reciprocal()

    def entropy(self) -> Any:
        k = self.concentration
        return EULER * (1 - 1 / k) + (self.scale / k).log() + 1


class Pareto(Derived):
    """Numbers above scale that exceed x with probability (scale / x)^alpha.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Pareto(tg.tensor(1.0), tg.tensor(3.0)).mean
    """

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = parameters("Pareto", scale, alpha)
        super().__init__(Exponential(self.alpha, False), [ExpTransform(), AffineTransform(0.0, self.scale)], validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Any:
        a = self.alpha
        return PUBLIC["where"](a > 1, a * self.scale / (a - 1), math.inf)

    @property
    def mode(self) -> Any:
        return self.scale

    @property
    def variance(self) -> Any:
        a = self.alpha
        return PUBLIC["where"](a > 2, self.scale**2 * a / ((a - 1)**2 * (a - 2)), math.inf)

    def log_prob(self, value: Tensor) -> Any:
        x = self._value("log_prob", value)
        return self.alpha.log() + self.alpha * self.scale.log() - (self.alpha + 1) * x.log()

    def cdf(self, value: Tensor) -> Any:
        return 1 - (self.scale / self._value("cdf", value))**self.alpha

    def icdf(self, value: Tensor) -> Any:
        return self.scale * (1 - value)**-self.alpha.reciprocal()

    def entropy(self) -> Any:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())


class GeneralizedPareto(Distribution):
    """Excesses over a threshold loc (Pickands 1975): P(x > loc + scale y) = (1 + concentration y)^(-1 / concentration); exponential for 0.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.GeneralizedPareto(tg.tensor(0.0), tg.tensor(1.0), tg.tensor(0.25)).mean
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real}
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale, self.concentration = parameters("GeneralizedPareto", loc, scale, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def support(self) -> constraints.Constraint:
        end = PUBLIC["where"](self.concentration < 0, self.loc - self.scale / self.concentration, math.inf)
        return constraints.interval(self.loc, end)

    def _or_exponential(self, otherwise: Any, exponential: Any) -> Any:
        """otherwise(concentration), and exponential where that is 0."""
        k, where = self.concentration, PUBLIC["where"]
        return where(k == 0, exponential, otherwise(where(k == 0, 1.0, k)))

    def _log_survival(self, value: Tensor) -> Any:
        y = (value - self.loc) / self.scale
        return self._or_exponential(lambda k: -(k * y).log1p() / k, -y)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self.icdf(inside_one(self._shape(sample_shape), self.loc))

    def log_prob(self, value: Tensor) -> Any:
        return (1 + self.concentration) * self._log_survival(self._value("log_prob", value)) - self.scale.log()

    def log_survival_function(self, value: Tensor) -> Any:
        """log P(x > value)"""
        return self._log_survival(self._value("log_survival_function", value))

    def cdf(self, value: Tensor) -> Any:
        return -self._log_survival(self._value("cdf", value)).expm1()

    def log_cdf(self, value: Tensor) -> Any:
        """log P(x <= value)"""
        return self.cdf(value).log()

    def icdf(self, value: Tensor) -> Any:
        log = -(-value).log1p()
        return self.loc + self.scale * self._or_exponential(lambda k: (k * log).expm1() / k, log)

    @property
    def mean(self) -> Any:
        k = self.concentration
        return PUBLIC["where"](k < 1, self.loc + self.scale / (1 - k), math.nan)

    @property
    def mode(self) -> Any:
        return self.loc

    @property
    def variance(self) -> Any:
        k = self.concentration
        return PUBLIC["where"](k < 0.5, self.scale**2 / ((1 - k)**2 * (1 - 2 * k)), math.nan)

    def entropy(self) -> Any:
        return self.scale.log() + self.concentration + 1


class InverseGamma(Derived):
    """The reciprocal of a number of Gamma(concentration, rate).

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.InverseGamma(tg.tensor(3.0), tg.tensor(2.0)).mean
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        super().__init__(Gamma(concentration, rate, False), PowerTransform(-1.0), validate_args)

    concentration = of_base("concentration")
    rate = of_base("rate")

    @property
    def mean(self) -> Any:
        a = self.concentration
        return PUBLIC["where"](a > 1, self.rate / (a - 1), math.inf)

    @property
    def mode(self) -> Any:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Any:
        a = self.concentration
        return PUBLIC["where"](a > 2, self.rate**2 / ((a - 1)**2 * (a - 2)), math.inf)

    def log_prob(self, value: Tensor) -> Any:
        x, a = self._value("log_prob", value), self.concentration
        return a * self.rate.log() - a.lgamma() - (a + 1) * x.log() - self.rate / x

    def cdf(self, value: Tensor) -> Any:
        return PUBLIC["igammac"](self.concentration, self.rate / self._value("cdf", value))

    def entropy(self) -> Any:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class FisherSnedecor(Distribution):
    """Fisher's F: the ratio of two means of squares of df1 and df2 normal numbers.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.FisherSnedecor(tg.tensor(2.0), tg.tensor(6.0)).mean
    """

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = parameters("FisherSnedecor", df1, df2)
        super().__init__(self.df1.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        return PUBLIC["where"](self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Any:
        return PUBLIC["where"](self.df1 > 2, (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2), math.nan)

    @property
    def variance(self) -> Any:
        m, n = self.df1, self.df2
        return PUBLIC["where"](n > 4, 2 * n**2 * (m + n - 2) / (m * (n - 2)**2 * (n - 4)), math.nan)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        shape = self._shape(sample_shape)
        x, y = gamma_numbers((self.df1 / 2).expand(shape)), gamma_numbers((self.df2 / 2).expand(shape))
        return x * self.df2 / (y * self.df1)

    def log_prob(self, value: Tensor) -> Any:
        x, a, b = self._value("log_prob", value), self.df1 / 2, self.df2 / 2
        ratio = self.df1 / self.df2
        log = PUBLIC["xlogy"](a - 1, x) + a * ratio.log() - (a + b) * (ratio * x).log1p()
        return log + (a + b).lgamma() - a.lgamma() - b.lgamma()


class VonMises(Distribution):
    """Angles from -pi to pi around loc. mean and variance are the circular ones. Samples are drawn on the host and have no derivative.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.VonMises(tg.tensor(0.0), tg.tensor(4.0)).variance
    """

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = parameters("VonMises", loc, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        return self.loc

    @property
    def mode(self) -> Any:
        return self.loc

    @property
    def variance(self) -> Any:
        return 1 - SPECIAL["i1e"](self.concentration) / SPECIAL["i0e"](self.concentration)

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        with no_grad():
            turned = von_mises_numbers(self.concentration.expand(self._shape(sample_shape))) + self.loc
            return (turned + math.pi) % (2 * math.pi) - math.pi

    def log_prob(self, value: Tensor) -> Any:
        k = self.concentration
        away = self._value("log_prob", value) - self.loc
        return k * (away.cos() - 1) - math.log(2 * math.pi) - SPECIAL["i0e"](k).log()
