"""Invertible functions of random values, and distributions made with them. Start at `TransformedDistribution`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from tracegrad.distributions import constraints
from tracegrad.distributions.distribution import Distribution
from tracegrad.distributions.utils import clamp_open
from tracegrad.errors import ArgumentError, MissingRuleError, ShapeError
from tracegrad.graph.operators import PUBLIC, Named
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor
from tracegrad.tensors.type_info import finfo


class Transform(Named):
    """An invertible function, by torch's protocol. cache_size: 1 keeps the latest x and y, so that `log_prob` of a sample inverts nothing.

    dtype: float. A subclass gives `_call`, `_inverse`, `log_abs_det_jacobian`, and `domain` and `codomain`, whose `event_dim` is how many
    of the last dimensions make one value. What it lacks raises MissingRuleError; another cache_size an ArgumentError.

    >>> t = tg.distributions.ExpTransform()
    >>> t.inv(t(tg.zeros(2)))
    Tensor([0., 0.], device='cpu')
    """

    domain: constraints.Constraint = constraints.real
    codomain: constraints.Constraint = constraints.real
    bijective = True
    sign: Any = 1
    _told: tuple[Any, ...] = ()                                          # what `repr` shows
    _trace_all_attributes = True                                         # a traced function may reach it: its tensors are watched
    _trace_by_reference = ("_cached_x_y",)                               # ... but for these
    _cached_x_y: tuple[Any, Any] = (None, None)

    def __init__(self, cache_size: int = 0) -> None:
        super().__init__()                          # of a Module, where a transform is one, too
        if cache_size not in (0, 1):
            raise ArgumentError(f"{type(self).__name__}: cache_size is 0 or 1, got {cache_size!r}")
        self._cache_size = cache_size

    @property
    def event_dim(self) -> int:
        """How many of the last dimensions make one value, where that is the same before and after."""
        if self.domain.event_dim != self.codomain.event_dim:
            raise ArgumentError(f"{type(self).__name__}: event_dim is {self.domain.event_dim} before it and {self.codomain.event_dim} "
                                "after it; use domain.event_dim or codomain.event_dim")
        return self.domain.event_dim

    def __call__(self, x: Tensor) -> Any:
        if not self._cache_size or state.trace is not None:
            return self._call(x)
        if self._cached_x_y[0] is not x:
            self._cached_x_y = x, self._call(x)
        return self._cached_x_y[1]

    def _inv_call(self, y: Tensor) -> Any:
        if not self._cache_size or state.trace is not None:
            return self._inverse(y)
        if self._cached_x_y[1] is not y:
            self._cached_x_y = self._inverse(y), y
        return self._cached_x_y[0]

    def with_cache(self, cache_size: int = 1) -> Transform:
        """Itself, or one like it with that cache_size."""
        if self._cache_size == cache_size:
            return self
        made = copy.copy(self)
        Transform.__init__(made, cache_size)
        return made

    def _call(self, x: Tensor) -> Any:
        raise MissingRuleError(f"{type(self).__name__} has no _call")

    def _inverse(self, y: Tensor) -> Any:
        raise MissingRuleError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        """log |dy/dx|, for each element."""
        raise MissingRuleError(f"{type(self).__name__} has no log_abs_det_jacobian")

    @property
    def inv(self) -> Transform:
        return _InverseTransform(self)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what becomes of a tensor of `shape`."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what becomes a tensor of `shape`."""
        return tuple(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._told))})"


class _InverseTransform(Transform):
    def __init__(self, of: Transform) -> None:
        super().__init__()
        self._of, self.sign, self.bijective, self._told = of, of.sign, of.bijective, (of,)
        self.domain, self.codomain = of.codomain, of.domain
        self.forward_shape, self.inverse_shape = of.inverse_shape, of.forward_shape  # type: ignore[method-assign]

    def _call(self, x: Tensor) -> Any:
        return self._of._inv_call(x)

    def _inverse(self, y: Tensor) -> Any:
        return self._of(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return -self._of.log_abs_det_jacobian(y, x)

    @property
    def inv(self) -> Transform:
        return self._of


class ExpTransform(Transform):
    """y = exp(x). Any shape, which stays; dtype: float. Raises DTypeError for what is no tensor.

    >>> tg.distributions.ExpTransform()(tg.tensor([-1.0, 2.0]))
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Any:
        return PUBLIC["exp"](x)

    def _inverse(self, y: Tensor) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return x


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x)). Any shape, which stays; dtype: float. Raises DTypeError for what is no tensor.

    >>> tg.distributions.SigmoidTransform()(tg.tensor([-1.0, 2.0]))
    """

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Any:
        return clamp_open(x.sigmoid())

    def _inverse(self, y: Tensor) -> Any:
        return clamp_open(y).log() - (-clamp_open(y)).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return -PUBLIC["softplus"](-x) - PUBLIC["softplus"](x)


class TanhTransform(Transform):
    """y = tanh(x). Any shape, which stays; dtype: float. Raises DTypeError for what is no tensor.

    >>> tg.distributions.TanhTransform()(tg.tensor([-1.0, 2.0]))
    """

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Any:
        return PUBLIC["tanh"](x)

    def _inverse(self, y: Tensor) -> Any:
        return PUBLIC["atanh"](y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return 2.0 * (math.log(2.0) - x - PUBLIC["softplus"](-2.0 * x))


class PowerTransform(Transform):
    """y = x^exponent, of positive x. dtype: float. Raises ShapeError where the shapes of x and exponent do not broadcast.

    >>> tg.distributions.PowerTransform(2.0)(tg.tensor([1.0, 2.0]))
    """

    domain = codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent
        self.sign = exponent.sign() if isinstance(exponent, Tensor) else math.copysign(1, exponent)

    def _call(self, x: Tensor) -> Any:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Any:
        return y**(1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return (self.exponent * y / x).abs().log()


class SoftplusTransform(Transform):
    """y = log(1 + exp(x)). Any shape, which stays; dtype: float. Raises DTypeError for what is no tensor.

    >>> tg.distributions.SoftplusTransform()(tg.tensor([-1.0, 2.0]))
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Any:
        return PUBLIC["softplus"](x)

    def _inverse(self, y: Tensor) -> Any:
        return y + (-(-y).expm1()).log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return -PUBLIC["softplus"](-x)


class AbsTransform(Transform):
    """y = |x|, whose inverse is y. Any shape, which stays; dtype: real. It is no bijection: log_abs_det_jacobian raises MissingRuleError.

    >>> tg.distributions.AbsTransform()(tg.tensor([-1.0, 2.0]))
    """

    codomain, bijective = constraints.positive, False

    def _call(self, x: Tensor) -> Any:
        return x.abs()

    def _inverse(self, y: Tensor) -> Any:
        return y


class SoftmaxTransform(Transform):
    """y = softmax(x) over the last dimension, whose inverse is log(y). dtype: float.

    It is no bijection: log_abs_det_jacobian raises MissingRuleError.

    >>> tg.distributions.SoftmaxTransform()(tg.tensor([1.0, 2.0]))
    """

    domain, codomain, bijective = constraints.real_vector, constraints.simplex, False

    def _call(self, x: Tensor) -> Any:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Any:
        return y.log()


class StickBreakingTransform(Transform):
    """From n real numbers (the last dimension) to n + 1 probabilities: each is a share, sigmoid(x_k - log(n - k)), of what is left.

    dtype: float. Raises ShapeError for a tensor without dimensions.

    >>> tg.distributions.StickBreakingTransform()(tg.tensor([1.0, 2.0]))
    """

    domain, codomain = constraints.real_vector, constraints.simplex

    def _offset(self, x: Any, n: int) -> Any:
        return PUBLIC["arange"](n, 0, -1, dtype=x.dtype, device=x.device).log()

    def _call(self, x: Tensor) -> Any:
        if not x.ndim:
            raise ShapeError("StickBreakingTransform: takes at least 1 dimension, got (); use x.unsqueeze(0)")
        shares = clamp_open((x - self._offset(x, x.shape[-1])).sigmoid())
        left = (1 - shares).cumprod(-1)
        ones = PUBLIC["ones_like"](left[..., :1])
        return PUBLIC["cat"]((shares, ones), -1) * PUBLIC["cat"]((ones, left), -1)

    def _inverse(self, y: Tensor) -> Any:
        n = y.shape[-1] - 1
        left = (1 - y[..., :n].cumsum(-1)).clamp(min=float(finfo(y.dtype).tiny))
        return y[..., :n].log() - left.log() + self._offset(y, n)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        x = x - self._offset(x, x.shape[-1])
        return (y[..., :-1].log() - x - PUBLIC["softplus"](-x)).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


class IndependentTransform(Transform):
    """base_transform, the Jacobian of which is summed over the last reinterpreted_batch_ndims dimensions.

    dtype: float. log_abs_det_jacobian raises IndexOutOfRange for fewer dimensions.

    >>> t = tg.distributions.IndependentTransform(tg.distributions.ExpTransform(), 1)
    >>> t.log_abs_det_jacobian(tg.ones(3, 2), t(tg.ones(3, 2)))
    Tensor([2., 2., 2.], device='cpu')
    """

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.base_transform, self.reinterpreted_batch_ndims = self._told = base_transform, reinterpreted_batch_ndims
        self.domain = constraints.independent(base_transform.domain, reinterpreted_batch_ndims)
        self.codomain = constraints.independent(base_transform.codomain, reinterpreted_batch_ndims)
        self.sign, self.bijective = base_transform.sign, base_transform.bijective

    def _call(self, x: Tensor) -> Any:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Any:
        return self.base_transform._inv_call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        return _summed(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.inverse_shape(shape)


class AffineTransform(Transform):
    """y = loc + scale * x. dtype: float. Raises ShapeError where the shapes of x, loc and scale do not broadcast.

    >>> tg.distributions.AffineTransform(1.0, 2.0)(tg.tensor([-1.0, 2.0]))
    """

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale = loc, scale
        if event_dim:
            self.domain = self.codomain = constraints.independent(constraints.real, event_dim)
        self.sign = scale.sign() if isinstance(scale, Tensor) else math.copysign(1, scale)

    def _call(self, x: Tensor) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        scale = self.scale
        each = scale.abs().log() if isinstance(scale, Tensor) else math.log(abs(scale))
        full = PUBLIC["zeros_like"](x) + each
        return full.sum(tuple(range(-self.event_dim, 0))) if self.event_dim else full


class ComposeTransform(Transform):
    """The parts one after the other. Shapes, dtypes and errors are theirs; raises ArgumentTypeError for a part that is no Transform.

    >>> tg.distributions.ComposeTransform([tg.distributions.ExpTransform(), tg.distributions.AffineTransform(1.0, 2.0)])(tg.zeros(2))
    Tensor([3., 3.], device='cpu')
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        if self.parts:
            self.domain, self.codomain = self._ends()
        self.bijective = all(part.bijective for part in self.parts)
        self.sign = math.prod(part.sign for part in self.parts)

    def __repr__(self) -> str: return "ComposeTransform(\n    " + ",\n    ".join(map(repr, self.parts)) + "\n)"

    def _call(self, x: Tensor) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Any:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def _ends(self) -> tuple[constraints.Constraint, constraints.Constraint]:
        """domain and codomain: a value has the dimensions that any part takes as one."""
        first, last = self.parts[0].domain, self.parts[-1].codomain
        before, after = last.event_dim, first.event_dim
        for part in reversed(self.parts):
            before = max(before + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        for part in self.parts:
            after = max(after + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return constraints.of_dims(first, before), constraints.of_dims(last, after)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        total: Any = 0.0 if self.parts else PUBLIC["zeros_like"](x)
        event = self.domain.event_dim
        for k, part in enumerate(self.parts, 1):
            after = part(x) if k < len(self.parts) else y
            total = total + _summed(part.log_abs_det_jacobian(x, after), event - part.domain.event_dim)
            event += part.codomain.event_dim - part.domain.event_dim
            x = after
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


def _summed(x: Any, dims: int) -> Any:
    """x summed over its last dimensions."""
    return x.sum(tuple(range(-dims, 0))) if dims > 0 else x


class TransformedDistribution(Distribution):
    """What becomes of the base distribution's values by elementwise transforms, one after the other.

    dtype: float, as of the base. Raises ArgumentTypeError for what is no Transform, and ShapeError where one takes more dimensions as one
    value than the base has.

    >>> base = tg.distributions.Normal(0.0, 1.0)
    >>> tg.distributions.TransformedDistribution(base, [tg.distributions.TanhTransform()]).log_prob(tg.tensor(0.5))
    """

    def __init__(self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
                 validate_args: bool | None = None) -> None:
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        shape, events = (*base_distribution.batch_shape, *base_distribution.event_shape), len(base_distribution.event_shape)
        whole = ComposeTransform(self.transforms)
        before, after = whole.domain.event_dim, whole.codomain.event_dim
        if before > len(shape):
            raise ShapeError(f"TransformedDistribution: a transform takes {before} dimensions as one value, the distribution has {shape}")
        shape, events = whole.forward_shape(shape), max(after, events + after - before)
        super().__init__(shape[:len(shape) - events], shape[len(shape) - events:], validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> constraints.Constraint:
        return constraints.of_dims(self.transforms[-1].codomain, len(self._event_shape)) if self.transforms else self.base_dist.support

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        return self._again(TransformedDistribution, self._expanded_base(batch_shape), self.transforms, self._validate_args)

    def _expanded_base(self, batch_shape: Sequence[int]) -> Distribution:
        """The base for that batch: some of its own batch dimensions may be part of a transform's value."""
        return self.base_dist.expand((*batch_shape, *self.base_dist.batch_shape[len(self._batch_shape):]))

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
            x = t._inv_call(y)
            event += t.domain.event_dim - t.codomain.event_dim
            total = total - _summed(t.log_abs_det_jacobian(x, y), event - t.domain.event_dim)
            y = x
        return _summed(self.base_dist.log_prob(y), event - len(self.base_dist.event_shape)) + total

    def _monotone(self, p: Tensor) -> Any:
        """p, or 1 - p where the transforms turn the order of values round."""
        sign: Any = 1.0
        for t in self.transforms:
            sign = sign * t.sign
        return sign * (p - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Any:
        if self._event_shape:
            raise self._missing("cdf")
        for t in reversed(self.transforms):
            value = t._inv_call(value)
        return self._monotone(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Any:
        if self._event_shape:
            raise self._missing("icdf")
        return self._applied(self.base_dist.icdf(self._monotone(value)))

    def _shown(self) -> Iterable[str]:
        return [name for name in self.arg_constraints if name in vars(self)]


class Derived(TransformedDistribution):
    """One that has a name, and parameters: attributes, or properties that read those of the base."""

    def _parameter(self, name: str) -> Any:
        return getattr(self, name, None)                        # None while `expand` makes one

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        made = super()._expanded(batch_shape)
        for name in self.arg_constraints.keys() & vars(self).keys():
            vars(made)[name] = vars(self)[name].expand(tuple(batch_shape))
        return made
