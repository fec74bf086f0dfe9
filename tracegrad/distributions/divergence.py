"""kl_divergence, by the types of its two distributions. Start at `kl_divergence`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tracegrad.distributions.continuous import Beta, Dirichlet, Exponential, Gamma, Uniform
from tracegrad.distributions.discrete import Bernoulli, Binomial, Categorical, Geometric, OneHotCategorical, Poisson
from tracegrad.distributions.distribution import Distribution, Independent
from tracegrad.distributions.location_scale import HalfNormal, Laplace, LogNormal, MultivariateNormal, Normal
from tracegrad.errors import ArgumentTypeError, MissingRuleError, ShapeError
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.tensors.tensor import Tensor

_RULES: dict[tuple[type, type], Callable[[Any, Any], Any]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    """A decorator: the function gives kl_divergence(p, q) for these types and for classes derived from them.

    The function returns a float tensor of the batch's shape. Raises ArgumentTypeError unless both are classes.

    >>> class Mine(tg.distributions.Normal):
    ...     pass
    >>> @tg.distributions.register_kl(Mine, Mine)
    ... def divergence(p, q):
    ...     return (p.loc - q.loc) ** 2
    >>> tg.distributions.kl_divergence(Mine(1.0, 1.0), Mine(3.0, 1.0))
    Tensor(4., device='cpu')
    """
    for given in (type_p, type_q):
        if not isinstance(given, type):
            raise ArgumentTypeError(f"register_kl: takes two classes of distributions, got {given!r}")

    def register(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        _RULES[type_p, type_q] = rule
        return rule

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Any:
    """The Kullback-Leibler divergence KL(p || q), for each of the batch. dtype: float, as of the parameters.

    Raises MissingRuleError (a NotImplementedError) where no rule is known: `register_kl` adds one.

    >>> tg.distributions.kl_divergence(tg.distributions.Normal(0.0, 1.0), tg.distributions.Normal(1.0, 1.0))
    """
    for a in type(p).__mro__:
        for b in type(q).__mro__:
            if (a, b) in _RULES:
                return _RULES[a, b](p, q)
    raise MissingRuleError(f"kl_divergence: no rule for {type(p).__name__} and {type(q).__name__}; add one with register_kl")


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale)**2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale)**2 - 1 - ratio.log())


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Any:
    return _normal(Normal(0.0 * p.scale, p.scale, False), Normal(0.0 * q.scale, q.scale, False))


@register_kl(LogNormal, LogNormal)
def _log_normal(p: LogNormal, q: LogNormal) -> Any:
    return _normal(Normal(p.loc, p.scale, False), Normal(q.loc, q.scale, False))


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Any:
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + away / q.scale + ratio * (-away / p.scale).exp() - 1


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Any:
    outside = (q.low > p.low) | (q.high < p.high)
    return PUBLIC["where"](outside, math.inf, ((q.high - q.low) / (p.high - p.low)).log())


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Any:
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Any:
    a, b = p.concentration, q.concentration
    return b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma() + (a - b) * a.digamma() + (q.rate - p.rate) * (a / p.rate)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Any:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    norm = (a + b).lgamma() + c.lgamma() + d.lgamma() - (c + d).lgamma() - a.lgamma() - b.lgamma()
    return norm + (a - c) * a.digamma() + (b - d) * b.digamma() + (c + d - a - b) * (a + b).digamma()


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Any:
    a, b = p.concentration, q.concentration
    norm = a.sum(-1).lgamma() - b.sum(-1).lgamma() + (b.lgamma() - a.lgamma()).sum(-1)
    return norm + ((a - b) * (a.digamma() - a.sum(-1, True).digamma())).sum(-1)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Any:
    n = p.event_shape[0]
    if q.event_shape != p.event_shape:
        raise ShapeError(f"kl_divergence: the events have the shapes {p.event_shape} and {q.event_shape}, which must be equal")
    batch = PUBLIC["broadcast_shapes"](p.batch_shape, q.batch_shape)
    factor = q.scale_tril.expand((*batch, n, n))

    def solved(x: Tensor) -> Any:
        return (LINALG["solve_triangular"](factor, x, upper=False)**2).sum((-2, -1))

    trace = solved(p.scale_tril.expand((*batch, n, n)))
    away = solved((q.loc - p.loc).expand((*batch, n)).unsqueeze(-1))
    return q._half_log_det() - p._half_log_det() + 0.5 * (trace + away - n)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Any:
    softplus, chance = PUBLIC["softplus"], p.probs
    ones = PUBLIC["where"](chance == 0, 0.0, chance * (softplus(-q.logits) - softplus(-p.logits)))
    zeros = PUBLIC["where"](chance == 1, 0.0, (1 - chance) * (softplus(q.logits) - softplus(p.logits)))
    return ones + zeros


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Any:
    each = _bernoulli(Bernoulli(probs=p.probs, validate_args=False), Bernoulli(probs=q.probs, validate_args=False))
    return PUBLIC["where"](p.total_count > q.total_count, math.inf,
                           PUBLIC["where"](p.total_count == q.total_count, p.total_count * each, math.nan))


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Any:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Any:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Any:
    t = p.probs * (p.logits - q.logits)
    t = PUBLIC["where"](q.probs == 0, math.inf, t)
    return PUBLIC["where"](p.probs == 0, 0.0, t).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Any:
    return _categorical(p._categorical, q._categorical)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise MissingRuleError(f"kl_divergence: p takes {p.reinterpreted_batch_ndims} dimensions as an event, q "
                               f"{q.reinterpreted_batch_ndims}; they must be as many")
    return p._summed(kl_divergence(p.base_dist, q.base_dist))
