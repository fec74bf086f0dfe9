"""Distributions of numbers from 0 to 1: relaxations of choices, and others. Start at `RelaxedBernoulli`.

Sources: Maddison, Mnih and Teh, The Concrete Distribution, 2017; Loaiza-Ganem and Cunningham, The continuous Bernoulli, 2019;
Kumaraswamy, A generalized probability density function for double-bounded random processes, 1980.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tracegrad.distributions import constraints
from tracegrad.distributions.continuous import inside
from tracegrad.distributions.discrete import Categorical, _ByOdds, _OfChoices
from tracegrad.distributions.distribution import ExponentialFamily, inside_one, parameters
from tracegrad.distributions.location_scale import EULER, Normal
from tracegrad.distributions.transforms import (
    AffineTransform,
    Derived,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    StickBreakingTransform,
    TransformedDistribution,
)
from tracegrad.distributions.utils import of_base
from tracegrad.graph.operators import PUBLIC
from tracegrad.tensors.creation.from_data import as_tensor
from tracegrad.tensors.creation.random_numbers import rand


class LogitRelaxedBernoulli(_ByOdds):
    """The logits of RelaxedBernoulli's numbers.

    >>> from tracegrad.distributions.relaxed import LogitRelaxedBernoulli
    >>> LogitRelaxedBernoulli(tg.tensor(0.5), probs=tg.tensor(0.3)).rsample()
    """

    support = constraints.real
    has_rsample = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        self.temperature = as_tensor(temperature, dtype=self._given.dtype, device=self._given.device)

    @property
    def _given(self) -> Any:
        return vars(self).get("probs", vars(self).get("logits"))

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        made = super()._expanded(batch_shape)
        made.temperature = self.temperature                         # one for all
        return made

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        u = inside_one(self._shape(sample_shape), self._given)
        return (u.log() - (-u).log1p() + self.logits) / self.temperature

    def log_prob(self, value: Any) -> Any:
        away = self.logits - self._value("log_prob", value) * self.temperature
        return self.temperature.log() + away - 2 * PUBLIC["softplus"](away)


class ExpRelaxedCategorical(_OfChoices):
    """The logarithms of RelaxedOneHotCategorical's vectors."""

    support = constraints.real_vector
    has_rsample = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        given = self._categorical._given
        self.temperature = as_tensor(temperature, dtype=given.dtype, device=given.device)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        noise = -(-inside_one(self._shape(sample_shape), self._categorical._given).log()).log()
        return ((self.logits + noise) / self.temperature).log_softmax(-1)

    def log_prob(self, value: Any) -> Any:
        k = self._event_shape[0]
        scores = (self.logits - self._value("log_prob", value) * self.temperature).log_softmax(-1).sum(-1)
        return scores + math.lgamma(k) + (k - 1) * self.temperature.log()


class _Relaxed(TransformedDistribution):
    """What has its base's parameters."""

    temperature = of_base("temperature")
    probs = of_base("probs")
    logits = of_base("logits")


class RelaxedBernoulli(_Relaxed):
    """Numbers from 0 to 1 that tend to those of Bernoulli as temperature tends to 0, and are differentiable functions of probs or logits.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.RelaxedBernoulli(tg.tensor(0.5), probs=tg.tensor([0.3, 0.9])).rsample()
    """

    arg_constraints = _ByOdds.arg_constraints

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(LogitRelaxedBernoulli(temperature, probs, logits, validate_args), SigmoidTransform(), validate_args)


class RelaxedOneHotCategorical(_Relaxed):
    """Vectors that tend to those of OneHotCategorical as temperature tends to 0, differentiable functions of probs or logits.

    probs, logits (*, n), temperature a number or of the batch's shape; dtype: float. Raises ArgumentError unless one of probs and logits
    is given.

    >>> tg.distributions.RelaxedOneHotCategorical(tg.tensor(0.5), logits=tg.zeros(4)).rsample().sum()
    """

    arg_constraints = Categorical.arg_constraints
    support = constraints.simplex

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(ExpRelaxedCategorical(temperature, probs, logits, validate_args), ExpTransform(), validate_args)


class LogisticNormal(TransformedDistribution):
    """Vectors of n + 1 probabilities, made of n normal numbers (the last dimension of loc and scale) by stick-breaking.

    dtype: float, as of the parameters. Raises ArgumentError for what is out of range.

    >>> tg.distributions.LogisticNormal(tg.zeros(3), tg.ones(3)).rsample().sum()
    """

    arg_constraints = Normal.arg_constraints
    support = constraints.simplex

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale, validate_args), StickBreakingTransform(), validate_args)

    loc = of_base("loc")
    scale = of_base("scale")

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        shape = (*batch_shape, self.loc.shape[-1])
        return self._again(LogisticNormal, self.loc.expand(shape), self.scale.expand(shape), self._validate_args)


class Kumaraswamy(Derived):
    """Like Beta, with a closed cumulative distribution: 1 - (1 - x^a)^b of concentration1 a and concentration0 b.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Kumaraswamy(tg.tensor(1.0), tg.tensor(1.0)).mean
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = parameters("Kumaraswamy", concentration1, concentration0)
        powers = [PowerTransform(c.reciprocal()) for c in (self.concentration0, self.concentration1)]
        super().__init__(inside(self.concentration1), [powers[0], AffineTransform(1.0, -1.0), powers[1]], validate_args)

    def _moment(self, n: int) -> Any:
        """b B(1 + n / a, b)"""
        a, b = 1 + n / self.concentration1, self.concentration0
        return (a.lgamma() + b.lgamma() - (a + b).lgamma() + b.log()).exp()

    @property
    def mean(self) -> Any:
        return self._moment(1)

    @property
    def mode(self) -> Any:
        a, b = self.concentration1, self.concentration0
        peaked = (a >= 1) & (b >= 1) & (a * b > 1)
        where = PUBLIC["where"]
        return where(peaked, where(peaked, (a - 1) / (a * b - 1), 0.0) ** a.reciprocal(), math.nan)

    @property
    def variance(self) -> Any:
        return self._moment(2) - self.mean**2

    def log_prob(self, value: Any) -> Any:
        x, a, b = self._value("log_prob", value), self.concentration1, self.concentration0
        return (a * b).log() + PUBLIC["xlogy"](a - 1, x) + PUBLIC["xlogy"](b - 1, 1 - x**a)

    def cdf(self, value: Any) -> Any:
        return 1 - (1 - self._value("cdf", value)**self.concentration1)**self.concentration0

    def icdf(self, value: Any) -> Any:
        where, power = PUBLIC["where"], self.concentration0.reciprocal()
        inside = where(value < 1, value, 0.0)                # at 1 the logarithm is infinite, and its derivative NaN
        share = where(value < 1, -((-inside).log1p() * power).expm1(), 1 - (1 - value)**power)
        return share**self.concentration1.reciprocal()

    def entropy(self) -> Any:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()


class ContinuousBernoulli(_ByOdds, ExponentialFamily):
    """Numbers x from 0 to 1 of density C probs^x (1 - probs)^(1 - x); lims: between these probs, C and the moments are series around 1/2.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.ContinuousBernoulli(tg.tensor(0.3)).log_prob(tg.tensor(0.6))
    """

    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
                 validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        self._lims = lims[0], lims[1]

    def _by(self, far: Any, near: Any) -> Any:
        """far(probs) outside of lims, near(probs - 1/2) within."""
        p, where = self.probs, PUBLIC["where"]
        within = (p >= self._lims[0]) & (p <= self._lims[1])
        return where(within, near(where(within, p - 0.5, 0.0)), far(where(within, self._lims[0], p)))

    def _log_norm(self) -> Any:
        return self._by(lambda p: ((-p).log1p() - p.log()).abs().log() - (1 - 2 * p).abs().log(),
                        lambda d: math.log(2.0) + (4 / 3 + 104 / 45 * d**2) * d**2)

    @property
    def mean(self) -> Any:
        return self._by(lambda p: p / (2 * p - 1) + 1 / ((-p).log1p() - p.log()), lambda d: 0.5 + (1 / 3 + 16 / 45 * d**2) * d)

    @property
    def variance(self) -> Any:
        return self._by(lambda p: p * (p - 1) / (1 - 2 * p)**2 + 1 / ((-p).log1p() - p.log())**2,
                        lambda d: 1 / 12 - (1 / 15 - 128 / 945 * d**2) * d**2)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        p = self.probs
        return self.icdf(rand(*self._shape(sample_shape), dtype=p.dtype, device=p.device))

    def log_prob(self, value: Any) -> Any:
        x, logits = self._value("log_prob", value), self.logits
        return x * logits - PUBLIC["softplus"](logits) + self._log_norm()

    def cdf(self, value: Any) -> Any:
        x = self._value("cdf", value).clamp(0.0, 1.0)        # below 0 there is nothing, and above 1 all
        return self._by(lambda p: (p**x * (1 - p)**(1 - x) + p - 1) / (2 * p - 1), lambda d: x + 0 * d)

    def icdf(self, value: Any) -> Any:
        return self._by(lambda p: ((-p + value * (2 * p - 1)).log1p() - (-p).log1p()) / (p.log() - (-p).log1p()), lambda d: value + 0 * d)

    def entropy(self) -> Any:
        logits = self.logits
        return PUBLIC["softplus"](logits) - self.mean * logits - self._log_norm()

    _mean_carrier_measure = 0.0

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.logits,)

    def _log_normalizer(self, x: Any) -> Any:
        same = ContinuousBernoulli(logits=x, lims=self._lims, validate_args=False)
        return PUBLIC["softplus"](x) - same._log_norm()
