"""Distributions with a location and a scale: Normal, LogNormal, Laplace, Cauchy, Gumbel, StudentT, MultivariateNormal, and halves of them.

Each is one class: parameters, moments, density and how it is drawn.
Source of the densities, moments and entropies: Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions, 1994.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tracegrad.distributions import constraints
from tracegrad.distributions.continuous import inside, within
from tracegrad.distributions.distribution import Distribution, ExponentialFamily, parameters
from tracegrad.distributions.transforms import AbsTransform, AffineTransform, Derived, ExpTransform
from tracegrad.distributions.utils import of_base
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.random.sampling import gamma_numbers
from tracegrad.support import dtypes
from tracegrad.tensors.creation.filled import empty
from tracegrad.tensors.creation.random_numbers import draw_uniform, randn
from tracegrad.tensors.tensor import Tensor

EULER = 0.57721566490153286
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class _LocationScale(Distribution):
    """loc + scale * a standard one."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = parameters(type(self).__name__, loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    def _standard(self, shape: tuple[int, ...]) -> Any:
        raise NotImplementedError

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self.loc + self.scale * self._standard(self._shape(sample_shape))

    def _normed(self, call: str, value: Tensor) -> Any:
        return (self._value(call, value) - self.loc) / self.scale

    @property
    def mean(self) -> Any:
        return self.loc

    @property
    def mode(self) -> Any:
        return self.loc


class Normal(_LocationScale, ExponentialFamily):
    """The normal distribution of mean loc and standard deviation scale.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Normal(0.0, 1.0).log_prob(tg.tensor(0.0))
    """

    @property
    def stddev(self) -> Any:
        return self.scale

    @property
    def variance(self) -> Any:
        return self.scale**2

    def _standard(self, shape: tuple[int, ...]) -> Any:
        return randn(*shape, dtype=self.loc.dtype, device=self.loc.device)

    def log_prob(self, value: Tensor) -> Any:
        return -(self._value("log_prob", value) - self.loc)**2 / (2 * self.scale**2) - self.scale.log() - _HALF_LOG_2PI

    def cdf(self, value: Tensor) -> Any:
        return 0.5 * (1 + (self._normed("cdf", value) / math.sqrt(2)).erf())

    def icdf(self, value: Tensor) -> Any:
        return self.loc + self.scale * PUBLIC["erfinv"](2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Any:
        return 0.5 + _HALF_LOG_2PI + self.scale.log()

    _mean_carrier_measure = 0.0

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return self.loc / self.variance, -0.5 / self.variance

    def _log_normalizer(self, x: Any, y: Any) -> Any:
        return -0.25 * x**2 / y + 0.5 * (-math.pi / y).log()


class LogNormal(Derived):
    """exp of a normal one: loc and scale are of the logarithm.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.LogNormal(0.0, 1.0).mean
    """

    arg_constraints = _LocationScale.arg_constraints
    support = constraints.positive

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale, False), ExpTransform(), validate_args)

    loc = of_base("loc")
    scale = of_base("scale")

    @property
    def mean(self) -> Any:
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def mode(self) -> Any:
        return (self.loc - self.scale**2).exp()

    @property
    def variance(self) -> Any:
        return (self.scale**2).expm1() * (2 * self.loc + self.scale**2).exp()

    def entropy(self) -> Any:
        return self.base_dist.entropy() + self.loc


class Laplace(_LocationScale):
    """The Laplace (double exponential) distribution.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Laplace(0.0, 1.0).variance
    """

    @property
    def stddev(self) -> Any:
        return math.sqrt(2) * self.scale

    @property
    def variance(self) -> Any:
        return 2 * self.scale**2

    def _standard(self, shape: tuple[int, ...]) -> Any:
        eps = float(dtypes.finfo(dtypes.as_dtype(self.loc.dtype)).eps)
        u = draw_uniform(shape, self.loc.dtype, self.loc.device, eps - 1, 1.0)         # torch's numbers
        return -u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Any:
        return -(2 * self.scale).log() - self._normed("log_prob", value).abs()

    def cdf(self, value: Tensor) -> Any:
        z = self._normed("cdf", value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Tensor) -> Any:
        u = value - 0.5
        return self.loc - self.scale * u.sign() * (-2 * u.abs()).log1p()

    def entropy(self) -> Any:
        return 1 + (2 * self.scale).log()


class Cauchy(_LocationScale):
    """The Cauchy distribution, which has no mean.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Cauchy(0.0, 1.0).entropy()
    """

    @property
    def mean(self) -> Any:
        return self.loc * math.nan

    @property
    def variance(self) -> Any:
        return self.scale * math.inf

    def _standard(self, shape: tuple[int, ...]) -> Any:
        return empty(shape, dtype=self.loc.dtype, device=self.loc.device).cauchy_()

    def log_prob(self, value: Tensor) -> Any:
        return -math.log(math.pi) - self.scale.log() - (self._normed("log_prob", value)**2).log1p()

    def cdf(self, value: Tensor) -> Any:
        return self._normed("cdf", value).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Any:
        return ((value - 0.5) * math.pi).tan() * self.scale + self.loc

    def entropy(self) -> Any:
        return math.log(4 * math.pi) + self.scale.log()


class _Half(Derived):
    """The absolute value of a symmetric distribution around 0: twice its density above."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    _whole: type[_LocationScale]

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(self._whole(0.0, scale, False), AbsTransform(), validate_args)

    scale = of_base("scale")

    @property
    def mode(self) -> Any:
        return 0.0 * self.scale

    def log_prob(self, value: Tensor) -> Any:
        value = self._value("log_prob", value)
        return within(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value: Tensor) -> Any:
        return 2 * self.base_dist.cdf(self._value("cdf", value)) - 1

    def icdf(self, value: Tensor) -> Any:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Any:
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    """The absolute value of a normal number of mean 0 and standard deviation scale.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.HalfNormal(1.0).mean
    """

    _whole = Normal

    @property
    def mean(self) -> Any:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Any:
        return self.scale**2 * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """The absolute value of a Cauchy number around 0.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.HalfCauchy(1.0).entropy()
    """

    _whole = Cauchy

    @property
    def mean(self) -> Any:
        return self.scale * math.inf

    @property
    def variance(self) -> Any:
        return self.scale * math.inf


class Gumbel(Derived):
    """The Gumbel distribution: of the largest of many.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Gumbel(0.0, 1.0).mean
    """

    arg_constraints = _LocationScale.arg_constraints
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = parameters("Gumbel", loc, scale)
        log = ExpTransform().inv
        super().__init__(inside(self.loc), [log, AffineTransform(0.0, -1.0), log, AffineTransform(self.loc, -self.scale)], validate_args)

    @property
    def mean(self) -> Any:
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Any:
        return (math.pi**2 / 6) * self.scale**2

    @property
    def mode(self) -> Any:
        return self.loc

    def log_prob(self, value: Tensor) -> Any:
        y = (self.loc - self._value("log_prob", value)) / self.scale
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Any:
        return (-((self.loc - self._value("cdf", value)) / self.scale).exp()).exp()

    def icdf(self, value: Tensor) -> Any:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Any:
        return self.scale.log() + (1 + EULER)


class StudentT(Distribution):
    """Student's t of df degrees of freedom, moved and scaled. Samples are drawn on the host; they have a first derivative.

    Parameters: numbers or float tensors (*), whose dtype samples have. Raises ArgumentError for what is out of range.

    >>> tg.distributions.StudentT(3.0).variance
    """

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = parameters("StudentT", df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        return within(self.df > 1, self.loc, math.nan)

    @property
    def mode(self) -> Any:
        return self.loc

    @property
    def variance(self) -> Any:
        finite = self.scale**2 * self.df / (self.df - 2)
        return within(self.df > 1, within(self.df > 2, finite, math.inf), math.nan)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        shape = self._shape(sample_shape)
        normal = randn(*shape, dtype=self.df.dtype, device=self.df.device)
        chi2 = 2 * gamma_numbers((0.5 * self.df).expand(shape))
        return self.loc + self.scale * normal * (self.df / chi2).sqrt()

    def log_prob(self, value: Tensor) -> Any:
        y, df = (self._value("log_prob", value) - self.loc) / self.scale, self.df
        norm = self.scale.log() + 0.5 * df.log() + 0.5 * math.log(math.pi) + (0.5 * df).lgamma() - (0.5 * (df + 1)).lgamma()
        return -0.5 * (df + 1) * (y**2 / df).log1p() - norm

    def entropy(self) -> Any:
        df = self.df
        beta = (0.5 * df).lgamma() + math.lgamma(0.5) - (0.5 * (df + 1)).lgamma()
        return self.scale.log() + 0.5 * (df + 1) * ((0.5 * (df + 1)).digamma() - (0.5 * df).digamma()) + 0.5 * df.log() + beta


def _precision_to_scale_tril(precision: Tensor) -> Any:
    """The Cholesky factor (..., n, n) of the inverse of `precision`: L^-T of its own factor, turned upside down, is lower triangular."""
    flipped = LINALG["cholesky"](precision.flip((-2, -1))).flip((-2, -1)).mT
    eye = PUBLIC["eye"](precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return LINALG["solve_triangular"](flipped, eye, upper=False)


_MATRICES = "covariance_matrix", "precision_matrix", "scale_tril"


class MultivariateNormal(Distribution):
    """Normal vectors of mean loc (*, n), and one of covariance_matrix, precision_matrix or its Cholesky factor scale_tril (*, n, n).

    dtype: float32 or float64, else DTypeError.

    >>> tg.distributions.MultivariateNormal(tg.zeros(2), tg.eye(2)).log_prob(tg.zeros(2))
    """

    arg_constraints = {"loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
                       "precision_matrix": constraints.positive_definite, "scale_tril": constraints.lower_cholesky}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
                 scale_tril: Tensor | None = None, validate_args: bool | None = None) -> None:
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ArgumentError("MultivariateNormal: give one of covariance_matrix, precision_matrix and scale_tril")
        if loc.ndim < 1 or given[0].ndim < 2 or given[0].shape[-2:] != (loc.shape[-1], loc.shape[-1]):
            raise ShapeError(f"MultivariateNormal: loc {loc.shape} and the matrix {given[0].shape} must be (*, n) and (*, n, n)")
        batch = PUBLIC["broadcast_shapes"](loc.shape[:-1], given[0].shape[:-2])
        n = loc.shape[-1]
        self.loc = loc.expand((*batch, n))
        for name, m in (("covariance_matrix", covariance_matrix), ("precision_matrix", precision_matrix), ("scale_tril", scale_tril)):
            if m is not None:
                vars(self)[name] = m.expand((*batch, n, n))
        super().__init__(batch, (n,), validate_args)
        # The factor has torch's name: subclasses that compute it when it is asked for (gpytorch's) have a property of that name.
        if scale_tril is not None:
            self._unbroadcasted_scale_tril = vars(self)["scale_tril"]
        elif covariance_matrix is not None:
            self._unbroadcasted_scale_tril = LINALG["cholesky"](vars(self)["covariance_matrix"])
        else:
            self._unbroadcasted_scale_tril = _precision_to_scale_tril(vars(self)["precision_matrix"])

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        batch, n = tuple(batch_shape), self.loc.shape[-1]
        factor = self._unbroadcasted_scale_tril.expand((*batch, n, n))
        made = self._again(MultivariateNormal, self.loc.expand((*batch, n)), scale_tril=factor, validate_args=False)
        given = {name: m.expand((*batch, n, n)) for name in _MATRICES if (m := vars(self).get(name)) is not None}
        if given:                                               # the matrix that was given stays the one that is known
            vars(made).pop("scale_tril", None)
            vars(made).update(given)
        return made

    @property
    def scale_tril(self) -> Any:
        return self._unbroadcasted_scale_tril

    @property
    def covariance_matrix(self) -> Any:
        given: Tensor | None = vars(self).get("covariance_matrix")
        return self._unbroadcasted_scale_tril @ self._unbroadcasted_scale_tril.mT if given is None else given

    @property
    def precision_matrix(self) -> Any:
        given: Tensor | None = vars(self).get("precision_matrix")
        return PUBLIC["cholesky_inverse"](self._unbroadcasted_scale_tril) if given is None else given

    @property
    def mean(self) -> Any:
        return self.loc

    @property
    def mode(self) -> Any:
        return self.loc

    @property
    def variance(self) -> Any:
        return (self._unbroadcasted_scale_tril**2).sum(-1)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        eps = randn(*self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self._unbroadcasted_scale_tril @ eps.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self) -> Any:
        return self._unbroadcasted_scale_tril.diagonal(0, -2, -1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Any:
        away = (self._value("log_prob", value) - self.loc).unsqueeze(-1)
        shape = PUBLIC["broadcast_shapes"](away.shape[:-2], self._batch_shape)
        n = self.loc.shape[-1]
        factor = self._unbroadcasted_scale_tril.expand((*shape, n, n))
        z = LINALG["solve_triangular"](factor, away.expand((*shape, n, 1)), upper=False).squeeze(-1)
        return -0.5 * (z**2).sum(-1) - self._half_log_det() - n * _HALF_LOG_2PI

    def entropy(self) -> Any:
        return self.loc.shape[-1] * (0.5 + _HALF_LOG_2PI) + self._half_log_det()
