"""Invertible functions of random values, and distributions made with them. Start at `TransformedDistribution`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tracegrad.distributions import constraints
from tracegrad.distributions.distribution import Distribution
from tracegrad.errors import MissingRuleError
from tracegrad.modes import no_grad
from tracegrad.operators import PUBLIC
from tracegrad.tensor import Tensor


class Transform:
    """An elementwise invertible function. cache_size is accepted: `log_prob` of a sample inverts it, exactly or nearly so."""

    codomain = constraints.real
    sign: Any = 1
    _trace_all_attributes = True                                         # a traced function may reach it: its tensors are watched

    def __init__(self, cache_size: int = 0) -> None:
        self._cache_size = cache_size

    def __call__(self, x: Tensor) -> Any:
        raise MissingRuleError(f"{type(self).__name__} has no __call__")

    def _inverse(self, y: Tensor) -> Any:
        raise MissingRuleError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        """log |dy/dx|, for each element."""
        raise MissingRuleError(f"{type(self).__name__} has no log_abs_det_jacobian")

    @property
    def inv(self) -> Transform:
        return _Inverse(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, of: Transform) -> None:
        super().__init__()
        self._of, self.sign = of, of.sign

    def __call__(self, x: Tensor) -> Any:
        return self._of._inverse(x)

    def _inverse(self, y: Tensor) -> Any:
        return self._of(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return -self._of.log_abs_det_jacobian(y, x)

    @property
    def inv(self) -> Transform:
        return self._of


class ExpTransform(Transform):
    """y = exp(x)"""

    codomain = constraints.positive

    def __call__(self, x: Tensor) -> Any:
        return x.exp()

    def _inverse(self, y: Tensor) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return x


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x))"""

    codomain = constraints.unit_interval

    def __call__(self, x: Tensor) -> Any:
        return x.sigmoid()

    def _inverse(self, y: Tensor) -> Any:
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return -PUBLIC["softplus"](-x) - PUBLIC["softplus"](x)


class TanhTransform(Transform):
    """y = tanh(x)"""

    codomain = constraints.interval(-1.0, 1.0)

    def __call__(self, x: Tensor) -> Any:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Any:
        return PUBLIC["atanh"](y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return 2.0 * (math.log(2.0) - x - PUBLIC["softplus"](-2.0 * x))


class AffineTransform(Transform):
    """y = loc + scale * x"""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim
        self.sign = scale.sign() if isinstance(scale, Tensor) else math.copysign(1, scale)

    def __call__(self, x: Tensor) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        scale = self.scale
        each = scale.abs().log() if isinstance(scale, Tensor) else math.log(abs(scale))
        full = PUBLIC["zeros_like"](x) + each
        return full.sum(tuple(range(-self.event_dim, 0))) if self.event_dim else full


class ComposeTransform(Transform):
    """The parts one after the other."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        self.codomain = self.parts[-1].codomain if self.parts else constraints.real
        self.sign = math.prod(part.sign for part in self.parts)

    def __call__(self, x: Tensor) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Any:
        for part in reversed(self.parts):
            y = part._inverse(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        total: Any = 0.0
        for part in self.parts:
            y = part(x)
            total = total + part.log_abs_det_jacobian(x, y)
            x = y
        return total


class TransformedDistribution(Distribution):
    """What becomes of the base distribution's values by elementwise transforms, one after the other.

    >>> base = tg.distributions.Normal(0.0, 1.0)
    >>> tg.distributions.TransformedDistribution(base, [tg.distributions.TanhTransform()]).log_prob(tg.tensor(0.5))
    """

    def __init__(self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
                 validate_args: bool | None = None) -> None:
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        super().__init__(base_distribution.batch_shape, base_distribution.event_shape, validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> constraints.Constraint:
        return self.transforms[-1].codomain if self.transforms else self.base_dist.support

    def expand(self, batch_shape: Sequence[int]) -> Self:
        return type(self)(self.base_dist.expand(batch_shape), self.transforms, self._validate_args)

    def _applied(self, x: Tensor) -> Any:
        for t in self.transforms:
            x = t(x)
        return x

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        with no_grad():
            return self._applied(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self._applied(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Any:
        y, total, event = self._value("log_prob", value), 0.0, len(self._event_shape)
        for t in reversed(self.transforms):
            x = t._inverse(y)
            jacobian = t.log_abs_det_jacobian(x, y)
            done = getattr(t, "event_dim", 0)
            total = total - (jacobian.sum(tuple(range(done - event, 0))) if event > done else jacobian)
            y = x
        return self.base_dist.log_prob(y) + total

    def _monotone(self, p: Tensor) -> Any:
        """p, or 1 - p where the transforms turn the order of values round."""
        sign: Any = 1.0
        for t in self.transforms:
            sign = sign * t.sign
        return sign * (p - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Any:
        for t in reversed(self.transforms):
            value = t._inverse(value)
        return self._monotone(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Any:
        return self._applied(self.base_dist.icdf(self._monotone(value)))

    def __repr__(self) -> str:
        return f"TransformedDistribution({self.base_dist}, {self.transforms})"
