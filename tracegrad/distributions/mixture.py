"""Mixtures of distributions of one family: `MixtureSameFamily`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tracegrad.distributions.constraints import Constraint, MixtureSameFamilyConstraint
from tracegrad.distributions.discrete import Categorical
from tracegrad.distributions.distribution import Distribution
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor


class MixtureSameFamily(Distribution):
    """A choice by mixture_distribution, a Categorical, among the last batch dimension of component_distribution.
    dtype: float, as of the components.

    Raises ArgumentError where mixture_distribution is no Categorical, ShapeError where the batches do not fit.

    >>> d = tg.distributions.MixtureSameFamily(
    ...     tg.distributions.Categorical(logits=tg.zeros(5, 3)), tg.distributions.Normal(tg.randn(5, 3), 1.0))
    >>> d.log_prob(tg.ones(5)).shape
    """

    def __init__(self, mixture_distribution: Any, component_distribution: Any, validate_args: bool | None = None) -> None:
        mixture, component = mixture_distribution, component_distribution
        if not isinstance(mixture, Categorical) or not isinstance(component, Distribution):
            raise ArgumentError("MixtureSameFamily: takes a Categorical and a Distribution, got "
                                f"{type(mixture).__name__} and {type(component).__name__}")
        self.mixture_distribution, self.component_distribution = mixture, component
        *batch, count = component.batch_shape or (0,)
        ours = mixture.param_shape
        if count != ours[-1] or any(a not in (1, b) for a, b in zip(ours[-2::-1], batch[::-1], strict=False)) or len(ours) - 1 > len(batch):
            raise ShapeError(f"MixtureSameFamily: the mixture's probabilities {ours} do not fit the components' batch "
                             f"{tuple(component.batch_shape)}: the last sizes must be equal, the others broadcast to the components'")
        super().__init__(batch, component.event_shape, validate_args)

    def _over_events(self, x: Tensor) -> Any:
        """Numbers of the components (..., K), with a dimension of 1 for each of an event."""
        return x.reshape((*x.shape, *(1 for _ in self._event_shape)))

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        component = self.component_distribution.expand((*batch_shape, self.mixture_distribution.param_shape[-1]))
        return self._again(MixtureSameFamily, self.mixture_distribution.expand(batch_shape), component, self._validate_args)

    @property
    def support(self) -> Constraint:
        """That of a component: components of one family have the same, whatever their parameters, unless these bound it."""
        return MixtureSameFamilyConstraint(self.component_distribution.support)

    def _beside(self, value: Tensor) -> Any:
        """A value for each of the components."""
        return value.unsqueeze(-1 - len(self._event_shape))

    def _averaged(self, x: Any) -> Any:
        return (self._over_events(self.mixture_distribution.probs) * x).sum(-1 - len(self._event_shape))

    @property
    def mean(self) -> Any:
        return self._averaged(self.component_distribution.mean)

    @property
    def variance(self) -> Any:
        """The mean of the variances and the variance of the means."""
        apart = self.component_distribution.mean - self._beside(self.mean)
        return self._averaged(self.component_distribution.variance) + self._averaged(apart**2)

    def log_prob(self, value: Tensor) -> Any:
        each = self.component_distribution.log_prob(self._beside(self._value("log_prob", value)))
        return (each + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def cdf(self, value: Tensor) -> Any:
        each = self.component_distribution.cdf(self._beside(self._value("cdf", value)))
        return (each * self.mixture_distribution.probs).sum(-1)

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        with no_grad():
            shape = self._shape(sample_shape)
            place = len(shape) - len(self._event_shape)
            chosen = self.mixture_distribution.expand(self._batch_shape).sample(sample_shape)        # first, as in torch: random numbers
            drawn = self.component_distribution.sample(sample_shape)
            chosen = self._over_events(chosen.unsqueeze(-1)).expand((*shape[:place], 1, *self._event_shape))
            return drawn.gather(place, chosen).squeeze(place)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self.mixture_distribution!r},\n  {self.component_distribution!r})"
