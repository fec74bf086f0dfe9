"""kl_divergence of distributions of two kinds. Start at `EXPECTED`: what q's log-density is in the mean over p, of a few moments of p.

Moments: E[x], E[x^2], E[log x] and E[exp(-t x)]. Infinite where p has values that q has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tracegrad.distributions.continuous import Beta, Exponential, Gamma, Uniform
from tracegrad.distributions.discrete import Bernoulli, Binomial, Poisson
from tracegrad.distributions.divergence import kl_divergence, register_kl
from tracegrad.distributions.location_scale import Cauchy, Gumbel, Laplace, MultivariateNormal, Normal
from tracegrad.distributions.low_rank import LowRankMultivariateNormal
from tracegrad.distributions.positive import Pareto
from tracegrad.distributions.relaxed import ContinuousBernoulli
from tracegrad.graph.operators import PUBLIC

EULER = 0.57721566490153286


def _where(condition: Any, a: Any, b: Any) -> Any:
    return PUBLIC["where"](condition, a, b)


def _mean_log(p: Any) -> Any:
    """E[log x] of a distribution of positive numbers."""
    if isinstance(p, Uniform):
        low, high = (PUBLIC["xlogy"](x, x) for x in (p.low, p.high))
        return (high - low) / (p.high - p.low) - 1
    if isinstance(p, Pareto):
        return p.scale.log() + 1 / p.alpha
    if isinstance(p, Beta):
        return p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    return (p.concentration.digamma() if isinstance(p, Gamma) else -EULER) - p.rate.log()


def _mean_exp(p: Any, t: Any) -> Any:
    """E[exp(-t x)]."""
    if isinstance(p, Normal):
        return (0.5 * (t * p.scale)**2 - t * p.loc).exp()
    if isinstance(p, Uniform):
        return ((-t * p.low).exp() - (-t * p.high).exp()) / (t * (p.high - p.low))
    return (1 + t / p.rate)**-(p.concentration if isinstance(p, Gamma) else 1.0)


def _positive(p: Any, found: Any) -> Any:
    return _where(p.low < 0, -math.inf, found) if isinstance(p, Uniform) else found


def _in_exponential(p: Any, q: Exponential) -> Any:
    return _positive(p, q.rate.log() - q.rate * p.mean)


def _in_gamma(p: Any, q: Gamma) -> Any:
    a = q.concentration
    return _positive(p, a * q.rate.log() - a.lgamma() + (a - 1) * _mean_log(p) - q.rate * p.mean)


def _in_normal(p: Any, q: Normal) -> Any:
    spread = p.variance + (p.mean - q.loc)**2
    return -0.5 * math.log(2 * math.pi) - q.scale.log() - _where(p.variance == math.inf, math.inf, spread) / (2 * q.scale**2)


def _in_gumbel(p: Any, q: Gumbel) -> Any:
    return -q.scale.log() - (p.mean - q.loc) / q.scale - (q.loc / q.scale).exp() * _mean_exp(p, 1 / q.scale)


def _in_laplace(p: Normal, q: Laplace) -> Any:
    away, root = p.loc - q.loc, p.scale * math.sqrt(2)
    distance = root / math.sqrt(math.pi) * (-(away / root)**2).exp() + away * (away / root).erf()
    return -(2 * q.scale).log() - distance / q.scale


def _in_uniform(p: Any, q: Uniform) -> Any:
    """Of p from 0 to 1."""
    return _where((q.low > 0) | (q.high < 1), -math.inf, -(q.high - q.low).log())


def _in_beta(p: Uniform, q: Beta) -> Any:
    a, b = q.concentration1, q.concentration0
    rest = Uniform(1 - p.high, 1 - p.low, False)
    found = (a + b).lgamma() - a.lgamma() - b.lgamma() + (a - 1) * _mean_log(p) + (b - 1) * _mean_log(rest)
    return _where((p.low < 0) | (p.high > 1), -math.inf, found)


def _in_continuous_bernoulli(p: Any, q: ContinuousBernoulli) -> Any:
    found = p.mean * q.logits - PUBLIC["softplus"](q.logits) + q._log_norm()
    return _where((p.low < 0) | (p.high > 1), -math.inf, found) if isinstance(p, Uniform) else found


def _in_pareto(p: Uniform, q: Pareto) -> Any:
    return _where(p.low < q.scale, -math.inf, q.alpha.log() + q.alpha * q.scale.log() - (q.alpha + 1) * _mean_log(p))


# E[log q] over p, of each kind of p for which there is a form
EXPECTED: dict[type, tuple[Callable[[Any, Any], Any], tuple[type, ...]]] = {
    Exponential: (_in_exponential, (Beta, ContinuousBernoulli, Gamma, Pareto, Uniform)),
    Gamma: (_in_gamma, (Beta, Exponential, Pareto, Uniform)),
    Normal: (_in_normal, (Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Laplace, Pareto, Uniform)),
    Gumbel: (_in_gumbel, (Exponential, Gamma, Normal, Uniform)),
    Laplace: (_in_laplace, (Normal,)),
    Uniform: (_in_uniform, (Beta, ContinuousBernoulli)),
    Beta: (_in_beta, (Uniform,)),
    ContinuousBernoulli: (_in_continuous_bernoulli, (Beta, ContinuousBernoulli, Uniform)),
    Pareto: (_in_pareto, (Uniform,)),
}
# Of each kind of p, the kinds of q that have not all of its values
BEYOND: dict[type, tuple[type, ...]] = {
    Beta: (Pareto,), ContinuousBernoulli: (Pareto,), Pareto: (Beta, ContinuousBernoulli, Uniform),
    Poisson: (Bernoulli, Binomial), **dict.fromkeys((Exponential, Gamma), (Beta, ContinuousBernoulli, Pareto, Uniform)),
    **dict.fromkeys((Gumbel, Laplace, Normal), (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
}


def _rule(expected: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda p, q: -p.entropy() - expected(p, q)


def _infinite(p: Any, q: Any) -> Any:
    return PUBLIC["full_like"](p.mean, math.inf).expand(PUBLIC["broadcast_shapes"](p.batch_shape, q.batch_shape))


for _q, (_expected, _kinds) in EXPECTED.items():
    for _p in _kinds:
        register_kl(_p, _q)(_rule(_expected))
for _p, _kinds in BEYOND.items():
    for _q in _kinds:
        register_kl(_p, _q)(_infinite)


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Any:
    return -p.entropy() - PUBLIC["xlogy"](p.probs, q.rate) + q.rate


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Any:
    return ((p.scale + q.scale)**2 + (p.loc - q.loc)**2).log() - (4 * p.scale * q.scale).log()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Any:
    ratio, away = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return -ratio.log() + away + EULER * (ratio - 1) + (-away + (1 + ratio).lgamma()).exp() - 1


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Any:
    ratio = q.alpha / p.alpha
    found = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return _where(p.scale < q.scale, math.inf, found)


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _low_rank(p: Any, q: Any) -> Any:
    return kl_divergence(*[MultivariateNormal(d.loc, scale_tril=d.scale_tril, validate_args=False) for d in (p, q)])
