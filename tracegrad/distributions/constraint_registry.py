"""From unconstrained numbers to values that satisfy a constraint: `biject_to` and `transform_to` give a transform for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.distributions import constraints, joined_transforms, transforms
from tracegrad.errors import ArgumentTypeError, MissingRuleError

Factory = Callable[[Any], transforms.Transform]


class ConstraintRegistry:
    """Functions that make a transform of a constraint, by the constraint's class.

    >>> tg.distributions.transform_to(tg.distributions.constraints.positive)(tg.zeros(2))
    """

    def __init__(self) -> None:
        self._factories: dict[type, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """factory(constraint) makes the transform to constraints of this class, or of this one's class. Without factory: a decorator.

        Raises ArgumentTypeError for what is no constraint.
        """
        if factory is None:
            return lambda function: self.register(constraint, function)
        kind = constraint if isinstance(constraint, type) else type(constraint)
        if not issubclass(kind, constraints.Constraint):
            raise ArgumentTypeError(f"register: expected a Constraint or a class of them, got {constraint!r}")
        self._factories[kind] = factory
        return factory

    def __call__(self, constraint: constraints.Constraint) -> transforms.Transform:
        """The transform. Raises MissingRuleError (a NotImplementedError) where none is registered."""
        factory = self._factories.get(type(constraint))
        if factory is None:
            raise MissingRuleError(f"Cannot transform {type(constraint).__name__} constraints; add a transform with register")
        return factory(constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _both(*constraint: Any) -> Callable[[Factory], Factory]:
    def register(factory: Factory) -> Factory:
        for one in constraint:
            biject_to.register(one, factory)
            transform_to.register(one, factory)
        return factory

    return register


@_both(constraints.real)
def _real(_: Any) -> transforms.Transform:
    return joined_transforms.identity_transform


@_both(constraints.greater_than, constraints.greater_than_eq)
def _above(constraint: Any) -> transforms.Transform:
    return transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(constraint.lower_bound, 1)])


@_both(constraints.less_than)
def _below(constraint: Any) -> transforms.Transform:
    return transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(constraint.upper_bound, -1)])


@_both(constraints.interval, constraints.half_open_interval)
def _between(constraint: Any) -> transforms.Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    return transforms.ComposeTransform([transforms.SigmoidTransform(), transforms.AffineTransform(low, high - low)])


biject_to.register(constraints.simplex, lambda _: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda _: transforms.SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda _: joined_transforms.LowerCholeskyTransform())
transform_to.register(constraints.positive_definite, lambda _: joined_transforms.PositiveDefiniteTransform())
transform_to.register(constraints.positive_semidefinite, lambda _: joined_transforms.PositiveDefiniteTransform())
_both(constraints.corr_cholesky)(lambda _: joined_transforms.CorrCholeskyTransform())


def _of_parts(registry: ConstraintRegistry) -> None:
    registry.register(constraints.independent, lambda c: transforms.IndependentTransform(
        registry(c.base_constraint), c.reinterpreted_batch_ndims))
    registry.register(constraints.cat, lambda c: joined_transforms.CatTransform([registry(part) for part in c.cseq], c.dim, c.lengths))
    registry.register(constraints.stack, lambda c: joined_transforms.StackTransform([registry(part) for part in c.cseq], c.dim))


_of_parts(biject_to)
_of_parts(transform_to)
