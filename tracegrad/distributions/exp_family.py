"""The base of exponential families: `ExponentialFamily`."""

from __future__ import annotations

from typing import Any

from tracegrad.autograd import grad
from tracegrad.distributions.distribution import Distribution
from tracegrad.errors import MissingRuleError


class ExponentialFamily(Distribution):
    """Distributions whose density is h(x) exp(t(x) . theta - A(theta)): classes derived from it tell theta and A, and have their entropy.

    _natural_params: a tuple, theta. _log_normalizer(*theta): A. _mean_carrier_measure: the mean of log h.
    """

    @property
    def _natural_params(self) -> tuple[Any, ...]:
        raise MissingRuleError(f"{type(self).__name__} does not define _natural_params")

    def _log_normalizer(self, *natural_params: Any) -> Any:
        raise MissingRuleError(f"{type(self).__name__} does not define _log_normalizer")

    @property
    def _mean_carrier_measure(self) -> Any:
        raise MissingRuleError(f"{type(self).__name__} does not define _mean_carrier_measure")

    def entropy(self) -> Any:
        """A(theta) - theta . dA/dtheta - E[log h]."""
        theta = [p.detach().requires_grad_() for p in self._natural_params]
        normalizer = self._log_normalizer(*theta)
        found = normalizer - self._mean_carrier_measure
        for p, g in zip(theta, grad(normalizer.sum(), theta, create_graph=True), strict=True):
            found = found - (p * g).reshape((*self._batch_shape, -1)).sum(-1)
        return found
