"""torch.distributions' names: random values with densities, moments, entropies. Start at `distribution.py`; kl_divergence at the end.

What is not here: distributions whose samples need loops of their own (VonMises, Wishart, ...); derivatives of gamma samples.
"""

from __future__ import annotations

from tracegrad.distributions import constraints, transforms
from tracegrad.distributions.continuous import (
    Beta,
    Cauchy,
    Chi2,
    Dirichlet,
    Exponential,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
)
from tracegrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from tracegrad.distributions.distribution import Distribution, Independent
from tracegrad.distributions.divergence import kl_divergence, register_kl
from tracegrad.distributions.mixture import MixtureSameFamily
from tracegrad.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    TanhTransform,
    Transform,
    TransformedDistribution,
)

__all__ = [
    "AffineTransform", "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ComposeTransform", "Dirichlet", "Distribution",
    "ExpTransform", "Exponential", "Gamma", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "Laplace", "LogNormal",
    "MixtureSameFamily", "MultivariateNormal", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough", "Poisson",
    "SigmoidTransform", "StudentT", "TanhTransform", "Transform", "TransformedDistribution", "Uniform", "constraints", "kl_divergence",
    "register_kl", "transforms",
]
