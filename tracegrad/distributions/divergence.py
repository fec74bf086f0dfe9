"""kl_divergence, by the types of its two distributions. Start at `kl_divergence`; of different kinds, at `EXPECTED`.

Those go by what q's log-density is in the mean over p, of a few moments of p: E[x], E[x^2], E[log x] and E[exp(-t x)].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tracegrad.distributions.continuous import Beta, Dirichlet, Exponential, Gamma, Uniform
from tracegrad.distributions.discrete import Bernoulli, Binomial, Categorical, Geometric, OneHotCategorical, Poisson
from tracegrad.distributions.distribution import Distribution, Independent
from tracegrad.distributions.location_scale import Cauchy, Gumbel, HalfCauchy, HalfNormal, Laplace, LogNormal, MultivariateNormal, Normal
from tracegrad.distributions.low_rank import LowRankMultivariateNormal
from tracegrad.distributions.positive import InverseGamma, Pareto
from tracegrad.distributions.relaxed import ContinuousBernoulli
from tracegrad.distributions.transforms import Transform, TransformedDistribution
from tracegrad.errors import ArgumentTypeError, MissingRuleError, ShapeError
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.tensors.tensor import Tensor

EULER = 0.57721566490153286
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
    raise _missing(p, q)


def _missing(p: Distribution, q: Distribution, why: str = "") -> MissingRuleError:
    return MissingRuleError(f"kl_divergence: no rule for {type(p).__name__} and {type(q).__name__}{why}; add one with register_kl")


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Any:
    """That of the bases, which transforms keep that lose nothing."""
    if not _equal(p.transforms, q.transforms) or p.event_shape != q.event_shape:
        raise _missing(p, q, " by other transforms")
    if not all(t.bijective for t in p.transforms):
        raise _missing(p, q, " by transforms that have no inverse")
    found = kl_divergence(p.base_dist, q.base_dist)
    return found.sum(tuple(range(len(p.batch_shape), found.ndim))) if found.ndim > len(p.batch_shape) else found


def _equal(a: Any, b: Any) -> bool:
    """Whether these transforms, or what they are made of, are the same."""
    if a is b:
        return True
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return bool(PUBLIC["all"](PUBLIC["eq"](a, b)))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, Transform) and type(a) is type(b):
        given = [{k: v for k, v in vars(t).items() if k not in _NOT_COMPARED and not callable(v)} for t in (a, b)]
        return given[0].keys() == given[1].keys() and all(_equal(v, given[1][k]) for k, v in given[0].items())
    return bool(a == b)


_NOT_COMPARED = frozenset(("_cached_x_y", "_cache_size", "sign", "bijective", "domain", "codomain"))      # results, or made of the others


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale)**2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale)**2 - 1 - ratio.log())


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Any:
    return _normal(Normal(0.0 * p.scale, p.scale, False), Normal(0.0 * q.scale, q.scale, False))


@register_kl(HalfCauchy, HalfCauchy)
def _half_cauchy(p: HalfCauchy, q: HalfCauchy) -> Any:
    return _cauchy(Cauchy(0.0 * p.scale, p.scale, False), Cauchy(0.0 * q.scale, q.scale, False))


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


@register_kl(InverseGamma, InverseGamma)
def _inverse_gamma(p: InverseGamma, q: InverseGamma) -> Any:
    return _gamma(Gamma(p.concentration, p.rate, False), Gamma(q.concentration, q.rate, False))


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


# ------------------------------------------------------------------------------------------------------------ of different kinds


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
    def rule(p: Any, q: Any) -> Any:
        found = -p.entropy() - expected(p, q)
        return _where(found == math.inf, math.inf, found)               # which nothing has a gradient of, as in torch

    return rule


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
