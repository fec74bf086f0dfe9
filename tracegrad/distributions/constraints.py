"""What values are allowed: torch.distributions.constraints' names. `positive.check(x)` gives a bool for each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.support import dtypes

__all__ = ["Constraint", "MixtureSameFamilyConstraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property",
           "greater_than", "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval",
           "is_dependent", "less_than", "lower_cholesky", "lower_triangular", "multinomial", "nonnegative",
           "nonnegative_integer", "one_hot", "positive", "positive_definite", "positive_integer", "positive_semidefinite",
           "real", "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval"]


class Constraint:
    """A set of values. Classes derived from it define check(value): whether each is in it, without the last `event_dim` dimensions,

    which make one value. is_discrete: of integers.
    """

    is_discrete: bool = False
    event_dim: int = 0

    def check(self, value: Any) -> Any:
        """Whether each value is in the set, as a tensor of bools."""
        raise NotImplementedError(f"check: {type(self).__name__} does not define it")

    def __repr__(self) -> str:
        return f"{type(self).__name__.removeprefix('_')}()"


class _Bounded(Constraint):
    """A set that numbers describe, which its text tells."""

    lower_bound: Any
    upper_bound: Any

    def __init__(self, **bounds: Any) -> None:
        vars(self).update(bounds)
        self._bounds = bounds

    def __repr__(self) -> str:
        name = "".join(word[0].upper() + word[1:] for word in type(self).__name__.removeprefix("_").split("_"))
        return f"{name}({', '.join(f'{k}={v}' for k, v in self._bounds.items())})"


class integer_interval(_Bounded):
    """The integers from lower_bound to upper_bound, both included."""

    is_discrete = True

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__(lower_bound=lower_bound, upper_bound=upper_bound)

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & (value >= self.lower_bound) & (value <= self.upper_bound)


class _integer_greater_than(_Bounded):
    """The integers from lower_bound on, which is included."""

    is_discrete = True

    def __init__(self, lower_bound: Any) -> None:
        super().__init__(lower_bound=lower_bound)

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & (value >= self.lower_bound)


class interval(_Bounded):
    """The numbers from lower_bound to upper_bound, both included."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__(lower_bound=lower_bound, upper_bound=upper_bound)

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class half_open_interval(interval):
    """The numbers from lower_bound, which is included, to upper_bound, which is not."""

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class greater_than(_Bounded):
    """The numbers above lower_bound."""

    def __init__(self, lower_bound: Any) -> None:
        super().__init__(lower_bound=lower_bound)

    def check(self, value: Any) -> Any:
        return value > self.lower_bound


class greater_than_eq(greater_than):
    """The numbers from lower_bound on, which is included."""

    def check(self, value: Any) -> Any:
        return value >= self.lower_bound


class less_than(_Bounded):
    """The numbers below upper_bound."""

    def __init__(self, upper_bound: Any) -> None:
        super().__init__(upper_bound=upper_bound)

    def check(self, value: Any) -> Any:
        return value < self.upper_bound


class multinomial(_Bounded):
    """Counts, along the last dimension, that add up to upper_bound at most. As in torch fractions may be counts, too."""

    is_discrete, event_dim = True, 1

    def __init__(self, upper_bound: Any) -> None:
        super().__init__(upper_bound=upper_bound)

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _Real(Constraint):
    def check(self, value: Any) -> Any:
        return value == value                                           # NaN is not


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value == 0) | (value == 1)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & (abs(value.sum(-1) - 1) < 1e-6)


class _OneHot(Constraint):
    is_discrete, event_dim = True, 1

    def check(self, value: Any) -> Any:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Any) -> Any:
        return (value.tril() == value).all(-1).all(-1)


class _LowerCholesky(_LowerTriangular):
    def check(self, value: Any) -> Any:
        return super().check(value) & (value.diagonal(0, -2, -1) > 0).all(-1)


class _CorrCholesky(_LowerCholesky):
    def check(self, value: Any) -> Any:
        close = 10 * value.shape[-1] * float(dtypes.finfo(dtypes.as_dtype(value.dtype)).eps)
        return super().check(value) & (((value * value).sum(-1).sqrt() - 1).abs() <= close).all(-1)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Any) -> Any:
        return PUBLIC["full"](value.shape[:-2], value.shape[-2] == value.shape[-1], dtype="bool", device=value.device)


class _Symmetric(_Square):
    def check(self, value: Any) -> Any:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return (value - value.mT).abs().amax((-2, -1)) <= 1e-6 * value.abs().amax((-2, -1))


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Any) -> Any:
        return super().check(value) & (LINALG["eigvalsh"](value) >= 0).all(-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Any) -> Any:
        return super().check(value) & (LINALG["eigvalsh"](value) > 0).all(-1)


class independent(Constraint):
    """What satisfies base_constraint, the last reinterpreted_batch_ndims dimensions of the bools together."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Any) -> Any:
        found = self.base_constraint.check(value)
        if found.ndim < self.reinterpreted_batch_ndims:
            raise ArgumentError(f"independent.check: expected value.dim() >= {self.event_dim}, got {value.ndim}")
        for _ in range(self.reinterpreted_batch_ndims):
            found = found.all(-1)
        return found

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


def of_dims(constraint: Constraint, event_dim: int) -> Constraint:
    """The constraint, for values of so many dimensions."""
    more = event_dim - constraint.event_dim
    return independent(constraint, more) if more > 0 else constraint


def elementwise(constraint: Constraint) -> Constraint | None:
    """What all numbers have to satisfy, each by itself, where a NumPy array may be asked as well as a tensor; None of other constraints."""
    while type(constraint) is independent:
        constraint = constraint.base_constraint
    bounds = vars(constraint).get("_bounds", {})
    return constraint if type(constraint) in _ELEMENTWISE and all(type(b) in (int, float) for b in bounds.values()) else None


def by_rows(constraint: Constraint) -> bool:
    """Whether a NumPy array may be asked as well as a tensor, as it stands: what vectors along the last dimension have to satisfy."""
    return type(constraint) in _BY_ROWS


class cat(Constraint):
    """Along `dim`, one constraint for each piece, of `lengths` elements (default: 1 each)."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None) -> None:
        self.cseq, self.dim, self.lengths = list(cseq), dim, list(lengths or [1] * len(cseq))
        self.is_discrete, self.event_dim = any(c.is_discrete for c in cseq), max(c.event_dim for c in cseq)

    def check(self, value: Any) -> Any:
        parts = PUBLIC["split"](value, self.lengths, self.dim)
        return PUBLIC["cat"]([c.check(part) for c, part in zip(self.cseq, parts, strict=True)], self.dim)

    def __repr__(self) -> str:
        return "Cat()"


class stack(Constraint):
    """Along `dim`, one constraint for each slice."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(c.is_discrete for c in cseq)
        self.event_dim = max(c.event_dim for c in cseq) + (dim < 0)

    def check(self, value: Any) -> Any:
        return PUBLIC["stack"]([c.check(part) for c, part in zip(self.cseq, value.unbind(self.dim), strict=True)], self.dim)

    def __repr__(self) -> str:
        return "Stack()"


class MixtureSameFamilyConstraint(Constraint):
    """What every component's base_constraint allows: the components are a dimension more, the last of the batch."""

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint, self.is_discrete, self.event_dim = base_constraint, base_constraint.is_discrete, base_constraint.event_dim

    def check(self, value: Any) -> Any:
        return self.base_constraint.check(value.unsqueeze(-1 - self.event_dim)).all(-1)

    def __repr__(self) -> str:
        return f"MixtureSameFamilyConstraint({self.base_constraint!r})"


class _Dependent(Constraint):
    """A set that depends on other parameters: nothing is checked. Called with is_discrete and event_dim: one with these."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> Constraint:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)

    def check(self, value: Any) -> Any:
        raise ArgumentError("check: a dependent constraint cannot be checked; ask a distribution, whose parameters decide")


class dependent_property(property, _Dependent):
    """A property whose value is a constraint, and which in the class says that the constraint depends on parameters."""

    def __init__(self, fn: Callable[..., Any] | None = None, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        super().__init__(fn)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, fn: Any) -> Any:  # type: ignore[override]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: Any) -> bool:
    """Whether it depends on parameters, so that nothing can be checked without them."""
    return isinstance(constraint, _Dependent)


_ELEMENTWISE = frozenset((integer_interval, _integer_greater_than, interval, half_open_interval, greater_than, greater_than_eq, less_than,
                          _Real, _Boolean))
_BY_ROWS = frozenset((_Simplex, _OneHot))
dependent = _Dependent()
real: Constraint = _Real()
positive: Constraint = greater_than(0.0)
nonnegative: Constraint = greater_than_eq(0.0)
unit_interval: Constraint = interval(0.0, 1.0)
boolean: Constraint = _Boolean()
nonnegative_integer: Constraint = _integer_greater_than(0)
positive_integer: Constraint = _integer_greater_than(1)
real_vector: Constraint = independent(real, 1)
real_matrix: Constraint = independent(real, 2)
positive_vector: Constraint = independent(positive, 1)
simplex: Constraint = _Simplex()
one_hot: Constraint = _OneHot()
lower_triangular: Constraint = _LowerTriangular()
lower_cholesky: Constraint = _LowerCholesky()
corr_cholesky: Constraint = _CorrCholesky()
square: Constraint = _Square()
symmetric: Constraint = _Symmetric()
positive_semidefinite: Constraint = _PositiveSemidefinite()
positive_definite: Constraint = _PositiveDefinite()
