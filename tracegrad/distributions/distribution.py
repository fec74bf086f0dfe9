"""The bases of distributions, `Independent` and `ExponentialFamily`. Start at `Distribution`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from tracegrad.config import config
from tracegrad.distributions.constraints import Constraint, by_rows, elementwise, independent, is_dependent
from tracegrad.errors import ArgumentError, MissingRuleError, ShapeError
from tracegrad.execute.realize import held_view
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import LazyNode, Size
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import Named
from tracegrad.ops.arguments import sizes_of
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.support import dtypes
from tracegrad.support.blas import silent
from tracegrad.support.modes import no_grad, state, unusual
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.tensors.creation.random_numbers import rand
from tracegrad.tensors.tensor import Tensor


def parameters(name: str, *values: Any) -> list[Tensor]:
    """Parameters as tensors of one shape: numbers take the tensors' dtype, or the default one."""
    known = next((v for v in values if isinstance(v, Tensor)), None)
    dtype = dtypes.get_default_dtype() if known is None else known.dtype
    made = [v if isinstance(v, Tensor) else tensor(v, dtype=dtype, device=None if known is None else known.device) for v in values]
    shape = broadcast_shapes(name, [v.shape for v in made])
    return [v.expand(shape) for v in made]


def inside_one(shape: tuple[int, ...], like: Tensor) -> Any:
    """Uniform numbers between 0 and 1, neither of which comes, of a tensor's dtype and device."""
    return rand(*shape, dtype=like.dtype, device=like.device).clamp(min=2.0**-53 if like.dtype.itemsize == 8 else 2.0**-25)


def leading(sample_shape: Sequence[int] | int) -> tuple[int, ...]:
    """What sample_shape says of the first dimensions: a number is that of one."""
    return (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)


def valued() -> bool:
    """Whether there are values to check: not in a trace, and not for the examples of a vmap."""
    return state.trace is None and not state.examples


_REARRANGED = frozenset(("expand", "permute", "reshape"))      # movements that leave out no element


def _elements(value: Tensor) -> Any:
    """A NumPy array of all elements of `value`, in some order and number; None where NumPy does not hold them."""
    node = resolve(value._node())
    if (unusual[0] and not state.plain) or not (config.eager and config.recall) or not node.aval.size:
        return None
    while node.value is None and node.fn.name in _REARRANGED and type(node) is not LazyNode:
        node = resolve(node.operands[0])
    held = node.value
    return held.array if type(held) is HostBuffer and not held.deferred_checks and node.aval.dtype.char in "fdil" else None


def satisfied(constraint: Constraint, value: Tensor) -> bool:
    """Whether all of value satisfies the constraint. What NumPy holds it is asked for: a distribution is often made anew at each step."""
    array = _elements(value)
    if array is not None and value.ndim >= constraint.event_dim:
        if (single := elementwise(constraint)) is not None:
            return bool(silent.call(single.check, array).all())
        if by_rows(constraint) and (rows := held_view(value._node())) is not None:
            return bool(silent.call(constraint.check, rows).all())
    with no_grad():
        return bool(constraint.check(value).all())


class Distribution(Named):
    """Base of distributions, as in torch.distributions: `sample_shape + batch_shape + event_shape` is a sample's shape.

    dtype: float, as of the parameters; of choices and counts, what their class says.

    validate_args: whether values of parameters and of log_prob's argument are checked, which waits for them; None: the default, True
    unless `Distribution.set_default_validate_args(False)` was called. In a trace or a vmap, where there are no values, nothing is.
    Raises ArgumentError (a ValueError) that names the parameter and what it has to be.

    >>> tg.distributions.Normal(tg.zeros(3), 1.0).log_prob(tg.ones(3))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    has_rsample: ClassVar[bool] = False
    has_enumerate_support: ClassVar[bool] = False
    _trace_all_attributes: ClassVar[bool] = True                         # a traced function may reach it: its tensors are watched
    _validate_args: bool = True

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check values unless they are told."""
        Distribution._validate_args = bool(value)

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args
        if not self._validate_args or not valued():
            return
        for name, constraint in self.arg_constraints.items():
            value = self._parameter(name)
            if isinstance(value, Tensor) and not is_dependent(constraint):
                if not satisfied(constraint, value):
                    raise ArgumentError(f"{type(self).__name__}: parameter {name} {value.dtype}{list(value.shape)} has to satisfy "
                                        f"{constraint}, found invalid values: {value}")

    def _parameter(self, name: str) -> Any:
        """A parameter that was given; None for the other one of probs and logits."""
        return vars(self).get(name)

    # -- shapes

    @property
    def batch_shape(self) -> Size:
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        return self._event_shape

    def _shape(self, sample_shape: Sequence[int] | int = ()) -> tuple[int, ...]:
        return (*leading(sample_shape), *self._batch_shape, *self._event_shape)

    def _extended_shape(self, sample_shape: Sequence[int] | int = ()) -> Size:
        """The shape of samples, by torch's name, which programs' own distributions use."""
        return Size(self._shape(sample_shape))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """The same distribution with its parameters broadcast to batch_shape.

        _instance: as in torch, what a subclass has begun that has attributes of its own; it gets those that it lacks. Raises ShapeError for
        a shape that the batch does not broadcast to.
        """
        made = self._expanded(sizes_of("expand", batch_shape))
        if _instance is None:
            return made
        vars(_instance).update({**vars(made), **vars(_instance)})
        return _instance  # type: ignore[no-any-return]

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        """What the `expand` of a subclass begins with, by torch's name: an instance without attributes, or the one that is given."""
        if _instance is not None:
            return _instance
        if type(self).__init__ is not cls.__init__:  # type: ignore[misc]
            raise MissingRuleError(f"expand: {type(self).__name__} has an __init__ of its own, and needs an expand of its own: that of "
                                   f"{cls.__name__} does not know its attributes")
        return object.__new__(type(self))

    def _again(self, cls: type, *args: Any, **kwargs: Any) -> Self:
        """One of the same class, made by the __init__ of `cls`, with the attributes that a subclass of that has beside."""
        made = object.__new__(type(self))
        cls.__init__(made, *args, **kwargs)  # type: ignore[misc]
        if type(self) is not cls:
            known = vars(made).keys() | self.arg_constraints.keys()
            made.__dict__.update({name: value for name, value in vars(self).items() if name not in known})
        return made

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(vars(self))
        batch = Size(batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                last = self.arg_constraints[name].event_dim if name in self.arg_constraints else 0
                made.__dict__[name] = value.expand((*batch, *value.shape[value.ndim - last:]))
        made._batch_shape = batch
        return made

    # -- what it is

    @property
    def support(self) -> Constraint:
        raise self._missing("support")

    @property
    def mean(self) -> Any:
        raise self._missing("mean")

    @property
    def mode(self) -> Any:
        raise self._missing("mode")

    @property
    def variance(self) -> Any:
        raise self._missing("variance")

    @property
    def stddev(self) -> Any:
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        """Random values without history, sample_shape of them for each of the batch."""
        with no_grad():
            return self.rsample(sample_shape).detach()

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        """Random values that are differentiable functions of the parameters (the reparametrization trick)."""
        raise MissingRuleError(f"{type(self).__name__}.rsample: its samples have no derivative by the parameters; use sample() and "
                               "log_prob() (the score function)")

    def log_prob(self, value: Tensor) -> Any:
        """The logarithm of the density, or of the probability, at value."""
        raise self._missing("log_prob")

    def cdf(self, value: Tensor) -> Any:
        """The probability of a value that is not larger."""
        raise self._missing("cdf")

    def icdf(self, value: Tensor) -> Any:
        """The value of which `cdf` is this."""
        raise self._missing("icdf")

    def entropy(self) -> Any:
        raise self._missing("entropy")

    def perplexity(self) -> Any:
        return self.entropy().exp()

    def enumerate_support(self, expand: bool = True) -> Any:
        """All values of a discrete distribution, along a new first dimension."""
        raise self._missing("enumerate_support")

    def _enumerated(self, values: Tensor, expand: bool) -> Any:
        """values (n, *event_shape) as what enumerate_support gives: with dimensions for the batch, of its sizes if expand."""
        n, ones = values.shape[0], [1] * len(self._batch_shape)
        values = values.reshape((n, *ones, *self._event_shape))
        return values.expand((n, *self._shape())) if expand else values

    def _missing(self, what: str) -> MissingRuleError:
        return MissingRuleError(f"{type(self).__name__}.{what}: there is no closed form of it here")

    def _value(self, call: str, value: Any, support: Any = None) -> Any:
        """value as a tensor whose shape broadcasts with samples'; and is in the support (default: the distribution's)."""
        name = f"{type(self).__name__}.{call}"
        self._of_shape(name, value)
        if self._validate_args:
            self._in_support(name, value, support or self.support)
        return value

    def _of_shape(self, name: str, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise ArgumentError(f"{name}: value must be a Tensor, got {type(value).__name__}")
        k = len(self._event_shape)
        if value.ndim < k or value.shape[value.ndim - k:] != self._event_shape:
            raise ShapeError(f"{name}: the last dimensions of value {value.shape} must be {self._event_shape}, the shape of an event")
        broadcast_shapes(name, [value.shape, self._shape()])

    @staticmethod
    def _in_support(name: str, value: Any, support: Any) -> None:
        if valued() and not satisfied(support, value):
            raise ArgumentError(f"{name}: value has to be in the support, {support}, found invalid values: {value}")

    def _validate_sample(self, value: Any) -> None:
        """Raise ArgumentError or ShapeError for what is no value of the distribution: torch's name, for `log_prob` of programs' classes.

        Without a `support` only the shape is checked, with a warning.
        """
        name = f"{type(self).__name__}.log_prob"
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(f"{name}: {type(self).__name__} has no support, so values are not checked; define it, or give "
                          "validate_args=False", stacklevel=2)
            support = None
        self._of_shape(name, value)
        if support is not None:
            self._in_support(name, value, support)

    def __repr__(self) -> str:
        given = {n: v for n in self._shown() if isinstance(v := self._parameter(n), Tensor)}
        values = (f"{n}: {v.item() if v.ndim == 0 else v if v.numel() == 1 else v.shape}" for n, v in given.items())
        return f"{type(self).__name__}({', '.join(values)})"

    def _shown(self) -> Iterable[str]:
        """The parameters that `repr` tells of: as in torch, none that belong to the distribution that this one is made of."""
        return self.arg_constraints


class Independent(Distribution):
    """`base` with its last reinterpreted_batch_ndims batch dimensions taken as part of an event: log_prob sums over them.

    dtype: as of base. Raises ArgumentError for more dimensions than the batch has.

    >>> d = tg.distributions.Normal(tg.zeros(5, 3), 1.0)
    >>> tg.distributions.Independent(d, 1).log_prob(tg.ones(5, 3)).shape
    """

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None) -> None:
        n = reinterpreted_batch_ndims
        if not 0 <= n <= len(base_distribution.batch_shape):
            raise ArgumentError(f"Independent: reinterpreted_batch_ndims is {n}, but the base's batch dimensions are "
                                f"{base_distribution.batch_shape}")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        batch = base_distribution.batch_shape
        super().__init__(batch[:len(batch) - n], batch[len(batch) - n:] + base_distribution.event_shape, validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    def _expanded(self, batch_shape: Sequence[int]) -> Self:
        n = self.reinterpreted_batch_ndims
        return self._again(Independent, self.base_dist.expand((*batch_shape, *self._event_shape[:n])), n, self._validate_args)

    @property
    def support(self) -> Constraint:
        return independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    def _count(self) -> int:
        count = 1
        for size in self._event_shape[:self.reinterpreted_batch_ndims]:
            count *= size
        return count

    def _summed(self, x: Tensor) -> Any:
        return x.sum(tuple(range(-self.reinterpreted_batch_ndims, 0))) if self.reinterpreted_batch_ndims else x

    @property
    def mean(self) -> Any:
        return self.base_dist.mean

    @property
    def mode(self) -> Any:
        return self.base_dist.mode

    @property
    def variance(self) -> Any:
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] | int = ()) -> Any:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Any:
        return self._summed(self.base_dist.log_prob(self._value("log_prob", value)))

    def entropy(self) -> Any:
        return self._summed(self.base_dist.entropy())

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


class ExponentialFamily(Distribution):
    """Distributions whose density is h(x) exp(t(x) . theta - A(theta)): classes derived from it tell theta and A, and have their entropy.

    dtype: float, as of the parameters. `entropy` raises MissingRuleError where a class does not tell them.

    _natural_params: a tuple, theta. _log_normalizer(*theta): A. _mean_carrier_measure: the mean of log h.

    >>> isinstance(tg.distributions.Normal(0.0, 1.0), tg.distributions.ExponentialFamily)
    True
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
        normalizer.sum().backward(create_graph=True, inputs=theta)
        for p in theta:
            found = found - (p * p.grad).reshape((*self._batch_shape, -1)).sum(-1)
        return found
