"""What values are allowed: torch.distributions.constraints' names. `positive.check(x)` gives a bool for each value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.graph.operators import LINALG


class Constraint:
    """A set of values. check(value): whether each is in it, without the last `event_dim` dimensions, which make one value."""

    def __init__(self, name: str, check: Callable[[Any], Any], is_discrete: bool = False, event_dim: int = 0) -> None:
        self.name, self._check, self.is_discrete, self.event_dim = name, check, is_discrete, event_dim

    def check(self, value: Any) -> Any:
        return self._check(value)

    def __repr__(self) -> str:
        return self.name


def integer_interval(lower_bound: int, upper_bound: int) -> Constraint:
    """The integers from lower_bound to upper_bound, both included."""
    return Constraint(f"IntegerInterval(lower_bound={lower_bound}, upper_bound={upper_bound})",
                      lambda x: (x % 1 == 0) & (x >= lower_bound) & (x <= upper_bound), is_discrete=True)


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """The numbers from lower_bound to upper_bound, both included."""
    return Constraint(f"Interval(lower_bound={lower_bound}, upper_bound={upper_bound})",
                      lambda x: (x >= lower_bound) & (x <= upper_bound))


def greater_than(lower_bound: Any) -> Constraint:
    return Constraint(f"GreaterThan(lower_bound={lower_bound})", lambda x: x > lower_bound)


def _positive_definite(x: Any) -> Any:
    symmetric = (x - x.mT).abs().amax((-2, -1)) <= 1e-6 * x.abs().amax((-2, -1))
    return symmetric & (LINALG["eigvalsh"](x) > 0).all(-1)


real = Constraint("Real()", lambda x: x == x)                                            # NaN is not
positive = greater_than(0.0)
nonnegative = Constraint("GreaterThanEq(lower_bound=0.0)", lambda x: x >= 0)
unit_interval = interval(0.0, 1.0)
boolean = Constraint("Boolean()", lambda x: (x == 0) | (x == 1), is_discrete=True)
nonnegative_integer = Constraint("IntegerGreaterThan(lower_bound=0)", lambda x: (x % 1 == 0) & (x >= 0), is_discrete=True)
real_vector = Constraint("IndependentConstraint(Real(), 1)", lambda x: (x == x).all(-1), event_dim=1)
positive_vector = Constraint("IndependentConstraint(GreaterThan(lower_bound=0.0), 1)", lambda x: (x > 0).all(-1), event_dim=1)
real_matrix = Constraint("IndependentConstraint(Real(), 2)", lambda x: (x == x).all(-1).all(-1), event_dim=2)
simplex = Constraint("Simplex()", lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6), event_dim=1)
one_hot = Constraint("OneHot()", lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1), is_discrete=True, event_dim=1)
lower_cholesky = Constraint("LowerCholesky()", lambda x: (x.tril() == x).all(-1).all(-1) & (x.diagonal(0, -2, -1) > 0).all(-1), event_dim=2)
positive_definite = Constraint("PositiveDefinite()", _positive_definite, event_dim=2)
