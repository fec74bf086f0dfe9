"""torch.distributions' names: random values with densities, moments, entropies. Start at `distribution.py`; kl_divergence at the end.

Values without constraints become values with one by `biject_to` and `transform_to`: see constraint_registry.py.
"""

from __future__ import annotations

from tracegrad.distributions import constraint_registry, constraints, transforms, utils
from tracegrad.distributions.constraint_registry import biject_to, transform_to
from tracegrad.distributions.continuous import Beta, Chi2, Dirichlet, Exponential, Gamma, Uniform
from tracegrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Multinomial,
    NegativeBinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from tracegrad.distributions.distribution import Distribution, ExponentialFamily, Independent
from tracegrad.distributions.divergence import kl_divergence, register_kl
from tracegrad.distributions.joined_transforms import (
    CatTransform,
    CorrCholeskyTransform,
    CumulativeDistributionTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    ReshapeTransform,
    StackTransform,
    identity_transform,
)
from tracegrad.distributions.location_scale import (
    Cauchy,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
)
from tracegrad.distributions.low_rank import LowRankMultivariateNormal
from tracegrad.distributions.matrices import LKJCholesky, Wishart
from tracegrad.distributions.mixture import MixtureSameFamily
from tracegrad.distributions.positive import FisherSnedecor, GeneralizedPareto, InverseGamma, Pareto, VonMises, Weibull
from tracegrad.distributions.relaxed import (
    ContinuousBernoulli,
    Kumaraswamy,
    LogisticNormal,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
)
from tracegrad.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    PowerTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    TransformedDistribution,
)

__all__ = [
    "AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Binomial", "CatTransform", "Categorical", "Cauchy", "Chi2",
    "ComposeTransform", "ContinuousBernoulli", "CorrCholeskyTransform", "CumulativeDistributionTransform", "Dirichlet", "Distribution",
    "ExpTransform", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric", "Gumbel",
    "HalfCauchy", "HalfNormal", "Independent", "IndependentTransform", "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace",
    "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "LowerCholeskyTransform", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough", "Pareto", "Poisson",
    "PositiveDefiniteTransform", "PowerTransform", "RelaxedBernoulli", "RelaxedOneHotCategorical", "ReshapeTransform",
    "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform", "StackTransform", "StickBreakingTransform", "StudentT",
    "TanhTransform", "Transform", "TransformedDistribution", "Uniform", "VonMises", "Weibull", "Wishart", "biject_to",
    "constraint_registry", "constraints", "identity_transform", "kl_divergence", "register_kl", "transform_to", "transforms", "utils",
]
