"""Normal vectors whose covariance is of low rank but for its diagonal: `LowRankMultivariateNormal`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tracegrad.distributions import constraints
from tracegrad.distributions.distribution import Distribution
from tracegrad.errors import ShapeError
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.tensors.creation.random_numbers import randn
from tracegrad.tensors.tensor import Tensor


class LowRankMultivariateNormal(Distribution):
    """Normal vectors of mean loc (*, n) and covariance W W^T + D: cov_factor W (*, n, r), and cov_diag (*, n), the diagonal of D.

    Inverse and determinant by r x r matrices (Woodbury's identity, the matrix determinant lemma).
    dtype: float, as of the parameters. Raises ArgumentError for what is out of range.

    >>> tg.distributions.LowRankMultivariateNormal(tg.zeros(3), tg.ones(3, 1), tg.ones(3)).log_prob(tg.zeros(3))
    """

    arg_constraints = {"loc": constraints.real_vector, "cov_factor": constraints.real_matrix, "cov_diag": constraints.positive_vector}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None) -> None:
        if loc.ndim < 1 or cov_factor.ndim < 2 or cov_factor.shape[-2:-1] != loc.shape[-1:] or cov_diag.shape[-1:] != loc.shape[-1:]:
            raise ShapeError(f"LowRankMultivariateNormal: loc {loc.shape}, cov_factor {cov_factor.shape} and cov_diag {cov_diag.shape} "
                             "must be (*, n), (*, n, r) and (*, n)")
        batch = PUBLIC["broadcast_shapes"](loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        n = loc.shape[-1]
        self.loc, self.cov_diag = loc.expand((*batch, n)), cov_diag.expand((*batch, n))
        self.cov_factor = cov_factor.expand((*batch, n, cov_factor.shape[-1]))
        super().__init__(batch, (n,), validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        batch, (n, r) = tuple(batch_shape), self.cov_factor.shape[-2:]
        return self._again(LowRankMultivariateNormal, self.loc.expand((*batch, n)), self.cov_factor.expand((*batch, n, r)),
                           self.cov_diag.expand((*batch, n)), False)

    def _capacitance(self) -> Any:
        """The Cholesky factor of I + W^T D^-1 W."""
        w: Any = self.cov_factor
        return LINALG["cholesky"](PUBLIC["eye"](w.shape[-1], dtype=w.dtype, device=w.device) + w.mT @ (w / self.cov_diag.unsqueeze(-1)))

    @property
    def mean(self) -> Any:
        return self.loc

    @property
    def mode(self) -> Any:
        return self.loc

    @property
    def variance(self) -> Any:
        return self.cov_factor.square().sum(-1) + self.cov_diag

    @property
    def covariance_matrix(self) -> Any:
        w: Any = self.cov_factor
        return w @ w.mT + self.cov_diag.diag_embed()

    @property
    def precision_matrix(self) -> Any:
        scaled: Any = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        half = LINALG["solve_triangular"](self._capacitance(), scaled, upper=False)
        return self.cov_diag.reciprocal().diag_embed() - half.mT @ half

    @property
    def scale_tril(self) -> Any:
        return LINALG["cholesky"](self.covariance_matrix)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        shape, w = self._shape(sample_shape), self.cov_factor
        factors = randn(*shape[:-1], w.shape[-1], dtype=w.dtype, device=w.device)
        noise = randn(*shape, dtype=w.dtype, device=w.device)
        return self.loc + (w @ factors.unsqueeze(-1)).squeeze(-1) + self.cov_diag.sqrt() * noise

    def _log_det(self, capacitance: Any) -> Any:
        return 2 * capacitance.diagonal(0, -2, -1).log().sum(-1) + self.cov_diag.log().sum(-1)

    def log_prob(self, value: Tensor) -> Any:
        away = self._value("log_prob", value) - self.loc
        chol = self._capacitance()
        seen = (self.cov_factor.mT @ (away / self.cov_diag).unsqueeze(-1))
        half = LINALG["solve_triangular"](chol.expand((*seen.shape[:-2], *chol.shape[-2:])), seen, upper=False).squeeze(-1)
        distance = (away.square() / self.cov_diag).sum(-1) - half.square().sum(-1)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + self._log_det(chol) + distance)

    def entropy(self) -> Any:
        return 0.5 * (self._event_shape[0] * (1 + math.log(2 * math.pi)) + self._log_det(self._capacitance()))
