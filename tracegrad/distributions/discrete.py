"""Distributions of counts and of choices: by probs, or by logits, their logarithms (Bernoulli: of the odds).

Source of the probabilities, moments and entropies: Johnson, Kemp and Kotz, Univariate Discrete Distributions, 2005.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tracegrad.distributions import constraints
from tracegrad.distributions.distribution import Distribution, ExponentialFamily, inside_one, leading, parameters
from tracegrad.errors import ArgumentError, MissingRuleError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.random.sampling import binomial, gamma_numbers, poisson
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.filled import arange, eye
from tracegrad.tensors.tensor import Tensor
from tracegrad.tensors.type_info import finfo


def _one_of(name: str, probs: Any, logits: Any) -> tuple[str, Any]:
    if (probs is None) == (logits is None):
        raise ArgumentError(f"{name}: give one of probs and logits")
    return ("probs", probs) if logits is None else ("logits", logits)


def _inside(probs: Tensor) -> Any:
    """Probabilities whose logarithms are finite."""
    eps = float(finfo(probs.dtype).eps)
    return probs.clamp(eps, 1 - eps)


class _ByOdds(Distribution):
    """Of one probability, or the logarithm of its odds."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = _one_of(type(self).__name__, probs, logits)
        (vars(self)[name],) = parameters(type(self).__name__, value)
        super().__init__(vars(self)[name].shape, (), validate_args)

    @property
    def probs(self) -> Any:
        given: Tensor | None = vars(self).get("probs")
        return vars(self)["logits"].sigmoid() if given is None else given

    @property
    def logits(self) -> Any:
        given: Tensor | None = vars(self).get("logits")
        if given is not None:
            return given
        p = _inside(vars(self)["probs"])
        return p.log() - (-p).log1p()


class Bernoulli(_ByOdds, ExponentialFamily):
    """1 with probability probs, else 0.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Bernoulli(probs=0.25).log_prob(tg.tensor(1.0)).exp()
    """

    support = constraints.boolean
    has_enumerate_support = True

    @property
    def mean(self) -> Any:
        return self.probs

    @property
    def mode(self) -> Any:
        p = self.probs
        return PUBLIC["where"](p == 0.5, math.nan, (p >= 0.5).to(dtype=p.dtype))

    @property
    def variance(self) -> Any:
        p = self.probs
        return p * (1 - p)

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        with no_grad():
            return PUBLIC["bernoulli"](self.probs.expand(self._shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Any:
        logits = self.logits
        return self._value("log_prob", value) * logits - PUBLIC["softplus"](logits)

    def entropy(self) -> Any:
        return PUBLIC["softplus"](self.logits) - self.probs * self.logits

    def enumerate_support(self, expand: bool = True) -> Any:
        return self._enumerated(arange(2, dtype=self.probs.dtype, device=self.probs.device), expand)

    _mean_carrier_measure = 0.0

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.logits,)

    def _log_normalizer(self, x: Any) -> Any:
        return PUBLIC["softplus"](x)


class Geometric(_ByOdds):
    """The failures before the first success of probability probs.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Geometric(probs=0.5).mean
    """

    support = constraints.nonnegative_integer

    @property
    def mean(self) -> Any:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Any:
        return self.probs * 0

    @property
    def variance(self) -> Any:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        p = self.probs
        with no_grad():
            return (inside_one(self._shape(sample_shape), p).log() / (-p).log1p()).floor()

    def log_prob(self, value: Tensor) -> Any:
        x = self._value("log_prob", value)
        p = self.probs
        return PUBLIC["xlogy"](x, 1 - p) + p.log()

    def entropy(self) -> Any:
        return Bernoulli(self.probs, validate_args=False).entropy() / self.probs


class Binomial(_ByOdds):
    """The successes of total_count trials. Samples are drawn on the host.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Binomial(5, probs=0.5).mean
    """

    arg_constraints = {"total_count": constraints.nonnegative_integer, **_ByOdds.arg_constraints}
    has_enumerate_support = True

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = _one_of("Binomial", probs, logits)
        made = value if isinstance(value, Tensor) else parameters("Binomial", value)[0]
        self.total_count, vars(self)[name] = parameters("Binomial", PUBLIC["as_tensor"](total_count, dtype=made.dtype), made)
        Distribution.__init__(self, self.total_count.shape, (), validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Any:
        return self.total_count * self.probs

    @property
    def mode(self) -> Any:
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Any:
        p = self.probs
        return self.total_count * p * (1 - p)

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        shape = self._shape(sample_shape)
        with no_grad():
            return binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Tensor) -> Any:
        k, n, lgamma = self._value("log_prob", value), self.total_count, PUBLIC["lgamma"]
        logits = self.logits
        ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
        return ways + k * logits - n * PUBLIC["softplus"](logits)

    def enumerate_support(self, expand: bool = True) -> Any:
        total = int(self.total_count.max())
        if not bool((self.total_count == total).all()):
            raise MissingRuleError("Binomial.enumerate_support: the elements of total_count differ")
        return self._enumerated(arange(total + 1, dtype=self.probs.dtype, device=self.probs.device), expand)

    def entropy(self) -> Any:
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)


class NegativeBinomial(_ByOdds):
    """The successes of probability probs before total_count failures, which may be any number above 0. Samples are drawn on the host.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.NegativeBinomial(tg.tensor(4.0), probs=tg.tensor(0.25)).mean
    """

    arg_constraints = {"total_count": constraints.greater_than_eq(0), "probs": constraints.half_open_interval(0.0, 1.0),
                       "logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = _one_of("NegativeBinomial", probs, logits)
        made = value if isinstance(value, Tensor) else parameters("NegativeBinomial", value)[0]
        count = PUBLIC["as_tensor"](total_count, dtype=made.dtype)                # not by way of float32
        self.total_count, vars(self)[name] = parameters("NegativeBinomial", count, made)
        Distribution.__init__(self, self.total_count.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Any:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Any:
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        with no_grad():
            return poisson(gamma_numbers(self.total_count.expand(self._shape(sample_shape))) * self.logits.exp())

    def log_prob(self, value: Tensor) -> Any:
        x, n, lgamma, softplus = self._value("log_prob", value), self.total_count, PUBLIC["lgamma"], PUBLIC["softplus"]
        ways = PUBLIC["where"](n + x == 0, 0.0, lgamma(n + x) - lgamma(x + 1) - lgamma(n))
        return ways - n * softplus(self.logits) - x * softplus(-self.logits)


class Poisson(ExponentialFamily):
    """Numbers of events of this rate. Samples are drawn on the host.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Poisson(2.0).mean
    """

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = parameters("Poisson", rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        return self.rate

    @property
    def mode(self) -> Any:
        return self.rate.floor()

    @property
    def variance(self) -> Any:
        return self.rate

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        with no_grad():
            return poisson(self.rate.expand(self._shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Any:
        x = self._value("log_prob", value)
        return PUBLIC["xlogy"](x, self.rate) - self.rate - PUBLIC["lgamma"](x + 1)

    def entropy(self) -> Any:
        raise self._missing("entropy")

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return (self.rate.log(),)

    def _log_normalizer(self, x: Any) -> Any:
        return x.exp()


class Categorical(Distribution):
    """A choice (int64) among the last dimension of probs, which need not add up to 1, or of logits.

    Raises ArgumentError unless one of probs and logits is given, ShapeError for one without dimensions.

    >>> tg.distributions.Categorical(logits=tg.zeros(4)).entropy().exp()
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = _one_of("Categorical", probs, logits)
        if not isinstance(value, Tensor) or value.ndim < 1:
            raise ShapeError(f"Categorical: {name} must be a Tensor of at least one dimension, the choices last")
        vars(self)[name] = value / value.sum(-1, True) if name == "probs" else value - value.logsumexp(-1, True)
        super().__init__(value.shape[:-1], (), validate_args)

    @property
    def _num_events(self) -> int:
        return int(self._given.shape[-1])

    @property
    def _given(self) -> Any:
        return vars(self)["probs"] if "probs" in vars(self) else vars(self)["logits"]

    @property
    def param_shape(self) -> tuple[int, ...]:
        return tuple(self._given.shape)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def probs(self) -> Any:
        given: Tensor | None = vars(self).get("probs")
        return vars(self)["logits"].softmax(-1) if given is None else given

    @property
    def logits(self) -> Any:
        given: Tensor | None = vars(self).get("logits")
        return _inside(vars(self)["probs"]).log() if given is None else given

    @property
    def mean(self) -> Any:
        return self.probs.sum(-1) * math.nan

    @property
    def mode(self) -> Any:
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Any:
        return self.probs.sum(-1) * math.nan

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        lead = leading(sample_shape)
        count, n = math.prod(lead), self._num_events
        with no_grad():
            drawn = PUBLIC["multinomial"](self.probs.reshape((-1, n)), count, True).t()
            return drawn.reshape((*lead, *self._batch_shape))

    def log_prob(self, value: Tensor) -> Any:
        chosen = self._value("log_prob", value).long().unsqueeze(-1)
        shape = PUBLIC["broadcast_shapes"](chosen.shape[:-1], self._batch_shape)
        return self.logits.expand((*shape, self._num_events)).gather(-1, chosen.expand((*shape, 1))).squeeze(-1)

    def entropy(self) -> Any:
        logits = self.logits
        return -(logits.clamp(min=float(finfo(logits.dtype).min)) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Any:
        return self._enumerated(arange(self._num_events, device=self._given.device), expand)


class _OfChoices(Distribution):
    """What is made of a Categorical: a vector with a number for each choice."""

    arg_constraints = Categorical.arg_constraints

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits, validate_args)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(vars(self), _categorical=self._categorical.expand(batch_shape), _batch_shape=tuple(batch_shape))
        return made

    @property
    def probs(self) -> Any:
        return self._categorical.probs

    @property
    def logits(self) -> Any:
        return self._categorical.logits


class OneHotCategorical(_OfChoices):
    """A Categorical whose samples are one-hot vectors, as the parameters' dtype. probs, logits (*, n).

    Raises ArgumentError unless one of probs and logits is given, ShapeError for one without dimensions.

    >>> tg.distributions.OneHotCategorical(probs=tg.tensor([0.2, 0.8])).sample()
    """

    support = constraints.one_hot
    has_enumerate_support = True

    @property
    def mean(self) -> Any:
        return self.probs

    @property
    def mode(self) -> Any:
        return self._hot(self._categorical.mode)

    @property
    def variance(self) -> Any:
        return self.probs * (1 - self.probs)

    def _hot(self, chosen: Tensor) -> Any:
        return PUBLIC["one_hot"](chosen, self._event_shape[0]).to(dtype=self._categorical._given.dtype)

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self._hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Any:
        return self._categorical.log_prob(self._value("log_prob", value).argmax(-1))

    def entropy(self) -> Any:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Any:
        given = self._categorical._given
        return self._enumerated(eye(self._event_shape[0], dtype=given.dtype, device=given.device), expand)


class Multinomial(_OfChoices):
    """How often each of the choices of probs (the last dimension; or of logits) comes among total_count of them.

    dtype: float, as of the parameters. Raises ArgumentError for a negative count, and unless one of probs and logits is given.

    >>> tg.distributions.Multinomial(10, tg.ones(4)).sample().sum()
    """

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if not isinstance(total_count, int) or total_count < 0:
            raise ArgumentError(f"Multinomial: total_count must be an int of at least 0, got {total_count!r}")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.multinomial(self.total_count)

    @property
    def param_shape(self) -> Any:
        return self._categorical.param_shape

    @property
    def mean(self) -> Any:
        return self.probs * self.total_count

    @property
    def variance(self) -> Any:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        lead = leading(sample_shape)
        given = self._categorical._given
        with no_grad():
            chosen = self._categorical.sample((self.total_count, *lead)).movedim(0, -1)                  # (*lead, *batch, total_count)
            counts = PUBLIC["zeros"](self._shape(lead), dtype=given.dtype, device=given.device)
            return counts.scatter_add(-1, chosen, PUBLIC["ones_like"](chosen).to(dtype=given.dtype))

    def log_prob(self, value: Tensor) -> Any:
        x, lgamma = self._value("log_prob", value), PUBLIC["lgamma"]
        logits = PUBLIC["where"]((x == 0) & (self.logits == -math.inf), 0.0, self.logits)
        return lgamma(x.sum(-1) + 1) - lgamma(x + 1).sum(-1) + (logits * x).sum(-1)

    def entropy(self) -> Any:
        n = PUBLIC["as_tensor"](float(self.total_count), dtype=self.probs.dtype, device=self.probs.device)
        by_count = Binomial(self.total_count, self.probs, validate_args=False)
        support = by_count._enumerated(arange(1, self.total_count + 1, dtype=n.dtype, device=n.device), False)
        shared = (by_count.log_prob(support).exp() * (support + 1).lgamma()).sum((0, -1))
        return n * self._categorical.entropy() - (n + 1).lgamma() + shared


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """Samples are one-hot; their derivative is that of the probabilities (Bengio et al. 2013). probs, logits (*, n); dtype: float.

    Raises ArgumentError unless one of probs and logits is given, ShapeError for one without dimensions.

    >>> tg.distributions.OneHotCategoricalStraightThrough(probs=tg.tensor([0.2, 0.8])).rsample()
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
