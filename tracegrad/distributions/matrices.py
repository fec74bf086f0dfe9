"""Distributions of matrices: `Wishart` and `LKJCholesky`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tracegrad.distributions import constraints
from tracegrad.distributions.continuous import Beta, Chi2
from tracegrad.distributions.distribution import Distribution, ExponentialFamily, leading, valued
from tracegrad.distributions.divergence import register_kl
from tracegrad.distributions.location_scale import MultivariateNormal
from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.support import dtypes
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.random_numbers import randn, torchs_stream
from tracegrad.tensors.tensor import Tensor


def _tiny(x: Tensor) -> float:
    return float(dtypes.finfo(dtypes.as_dtype(x.dtype)).tiny)


def _mvdigamma(x: Any, p: int) -> Any:
    """The derivative of `mvlgamma`."""
    steps = PUBLIC["arange"](1 - p, 1, dtype=x.dtype, device=x.device) / 2
    return PUBLIC["digamma"](x.unsqueeze(-1) + steps).sum(-1)


class Wishart(ExponentialFamily):
    """Positive definite matrices: of df vectors x of covariance S, the sum of x x^T. S (*, p, p) by covariance_matrix, by its inverse

    precision_matrix, or by its Cholesky factor scale_tril. df > p - 1. Samples by Bartlett's decomposition.
    dtype: float, as of the parameters. Raises ArgumentError for what is out of range.

    >>> tg.distributions.Wishart(tg.tensor(3.0), tg.eye(2)).log_prob(tg.eye(2))
    """

    arg_constraints = {"covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
                       "scale_tril": constraints.lower_cholesky, "df": constraints.greater_than(0)}
    support = constraints.positive_definite
    has_rsample = True

    def __init__(self, df: Any, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
                 scale_tril: Tensor | None = None, validate_args: bool | None = None) -> None:
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ArgumentError("Wishart: give one of covariance_matrix, precision_matrix and scale_tril")
        p = given[0].shape[-1]
        df = PUBLIC["as_tensor"](df, dtype=given[0].dtype, device=given[0].device)
        batch = PUBLIC["broadcast_shapes"](df.shape, given[0].shape[:-2])
        loc = PUBLIC["zeros"]((*batch, p), dtype=given[0].dtype, device=given[0].device)
        self.df = df.expand(batch)
        self._normal = MultivariateNormal(loc, covariance_matrix, precision_matrix, scale_tril, validate_args)
        super().__init__(batch, (p, p), validate_args)
        if self._validate_args and valued() and bool((df <= p - 1).any()):
            raise ArgumentError(f"Wishart: df has to be greater than p - 1 = {p - 1}, got {df}")

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        factor = self._normal.scale_tril
        made = self._again(Wishart, self.df.expand(tuple(batch_shape)), scale_tril=factor.expand((*batch_shape, *factor.shape[-2:])),
                           validate_args=False)
        made._normal = self._normal.expand(tuple(batch_shape))          # which knows the matrix that was given
        return made

    def _parameter(self, name: str) -> Any:
        return self.df if name == "df" else self._normal._parameter(name)

    @property
    def scale_tril(self) -> Any:
        return self._normal.scale_tril

    @property
    def covariance_matrix(self) -> Any:
        return self._normal.covariance_matrix

    @property
    def precision_matrix(self) -> Any:
        return self._normal.precision_matrix

    @property
    def mean(self) -> Any:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Any:
        factor = self.df - self._event_shape[-1] - 1
        return PUBLIC["where"](factor > 0, factor, math.nan)[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Any:
        s = self.covariance_matrix
        diagonal = s.diagonal(0, -2, -1)
        return self.df[..., None, None] * (s**2 + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2))

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        shape = leading(sample_shape)
        drawn = self._bartlett(shape)
        if torchs_stream(math.prod(drawn.shape), drawn.device) is None:
            return drawn
        return self._bartlett((math.prod(shape),)).reshape(drawn.shape)      # torch takes definite ones for singular, and draws again

    def _bartlett(self, shape: tuple[int, ...]) -> Any:
        p = self._event_shape[-1]
        steps = PUBLIC["arange"](p, dtype=self.df.dtype, device=self.df.device)
        diagonal = Chi2(self.df.unsqueeze(-1) - steps).rsample(shape).sqrt().clamp(min=_tiny(self.df))
        below = randn(*shape, *self._batch_shape, p * (p - 1) // 2, dtype=self.df.dtype, device=self.df.device)
        places = PUBLIC["tril_indices"](p, p, -1, device=self.df.device)
        zeros = PUBLIC["zeros"]((*shape, *self._batch_shape, p, p), dtype=self.df.dtype, device=self.df.device)
        lower = PUBLIC["index_put"](zeros.movedim((-2, -1), (0, 1)), (places[0], places[1]), below.movedim(-1, 0)).movedim((0, 1), (-2, -1))
        factor = self.scale_tril @ (lower + diagonal.diag_embed())
        return factor @ factor.mT

    def log_prob(self, value: Tensor) -> Any:
        value, p = self._value("log_prob", value), self._event_shape[-1]
        trace = PUBLIC["cholesky_solve"](value, self.scale_tril).diagonal(0, -2, -1).sum(-1)
        return (0.5 * (self.df - p - 1) * LINALG["slogdet"](value)[1] - 0.5 * trace
                - self.df * (0.5 * p * math.log(2.0) + self._normal._half_log_det()) - PUBLIC["mvlgamma"](self.df / 2, p))

    def entropy(self) -> Any:
        p, half = self._event_shape[-1], self.df / 2
        return ((p + 1) * (self._normal._half_log_det() + 0.5 * p * math.log(2.0)) + PUBLIC["mvlgamma"](half, p)
                - 0.5 * (self.df - p - 1) * _mvdigamma(half, p) + half * p)

    _mean_carrier_measure = 0.0

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        return -0.5 * self.precision_matrix, 0.5 * (self.df - self._event_shape[-1] - 1)

    def _log_normalizer(self, x: Any, y: Any) -> Any:
        p = self._event_shape[-1]
        half = y + 0.5 * (p + 1)
        return -half * LINALG["slogdet"](-2 * x)[1] + half * (p * math.log(2.0)) + PUBLIC["mvlgamma"](half, p)


@register_kl(Wishart, Wishart)
def _wishart(p: Wishart, q: Wishart) -> Any:
    n = p._event_shape[-1]
    trace = PUBLIC["cholesky_solve"](p.covariance_matrix, q.scale_tril).diagonal(0, -2, -1).sum(-1)
    return (q.df * (q._normal._half_log_det() - p._normal._half_log_det()) + 0.5 * p.df * (trace - n)
            + PUBLIC["mvlgamma"](q.df / 2, n) - PUBLIC["mvlgamma"](p.df / 2, n) + 0.5 * (p.df - q.df) * _mvdigamma(p.df / 2, n))


class LKJCholesky(Distribution):
    """The lower Cholesky factor of a correlation matrix of `dim` x `dim`, with a density that goes with det^(concentration - 1).

    concentration 1: all correlation matrices alike; larger ones: closer to the identity. Samples by the onion method.
    dtype: float, as of the parameters. Raises ArgumentError for what is out of range.

    >>> tg.distributions.LKJCholesky(3, 0.5).log_prob(tg.eye(3))
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ArgumentError(f"LKJCholesky: dim has to be 2 or more, got {dim}")
        self.dim = dim
        self.concentration = concentration if isinstance(concentration, Tensor) else PUBLIC["tensor"](float(concentration))
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        shape, c = leading(sample_shape), self.concentration
        with no_grad():
            rows = PUBLIC["arange"](self.dim, dtype=c.dtype, device=c.device)
            before = (rows - 1).clamp(min=0)
            squares = Beta(before + 0.5, c.unsqueeze(-1) + 0.5 * (self.dim - 2) - 0.5 * before).sample(shape)
            normal = randn(*self._shape(shape), dtype=c.dtype, device=c.device).tril(-1)
            length = (normal * normal).sum(-1, keepdim=True).sqrt()
            below = normal / PUBLIC["where"](length > 0, length, 1.0) * squares.unsqueeze(-1).sqrt()
            return below + (1 - (below * below).sum(-1)).clamp(min=_tiny(c)).sqrt().diag_embed()

    def log_prob(self, value: Tensor) -> Any:
        value, n, c = self._value("log_prob", value), self.dim, self.concentration
        powers = 2 * (c - 1).unsqueeze(-1) + n - PUBLIC["arange"](2, n + 1, dtype=c.dtype, device=c.device)
        density = (powers * value.diagonal(0, -2, -1)[..., 1:].log()).sum(-1)
        alpha = c + 0.5 * (n - 1)
        return density - (0.5 * (n - 1) * math.log(math.pi) + PUBLIC["mvlgamma"](alpha - 0.5, n - 1) - (n - 1) * PUBLIC["lgamma"](alpha))
