"""torch.distributions' names: random values with densities, moments, entropies. Start at `distribution.py`; kl_divergence at the end.

What is not here: distributions of matrices (Wishart, LKJCholesky), and the registry of transforms to constraints (biject_to).
"""

from __future__ import annotations

from tracegrad.distributions import constraints, transforms
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
from tracegrad.distributions.distribution import Distribution, Independent
from tracegrad.distributions.divergence import kl_divergence, register_kl
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
    LowerCholeskyTransform,
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
    "AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ComposeTransform",
    "ContinuousBernoulli", "Dirichlet", "Distribution", "ExpTransform", "Exponential", "FisherSnedecor", "Gamma", "GeneralizedPareto",
    "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "IndependentTransform", "InverseGamma", "Kumaraswamy",
    "Laplace", "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "LowerCholeskyTransform", "MixtureSameFamily",
    "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough",
    "Pareto", "Poisson", "PowerTransform", "RelaxedBernoulli", "RelaxedOneHotCategorical", "SigmoidTransform", "SoftmaxTransform",
    "SoftplusTransform", "StickBreakingTransform", "StudentT", "TanhTransform", "Transform", "TransformedDistribution", "Uniform",
    "VonMises", "Weibull", "constraints", "kl_divergence", "register_kl", "transforms",
]
