"""What torch.compile makes of a function: a traced one, in which Python may look at the floats that it is given. Start at `Compiled`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optree

from tracegrad.errors import TracegradError
from tracegrad.tracing.guards import ORDERED
from tracegrad.tracing.trace import NoReplay, Traced

_LIMIT = 8          # recordings for other numbers, as torch's recompile_limit: beyond them the function runs as it is


class _Number:
    """A float or complex number that is a static argument: equal if it has the same digits."""

    def __init__(self, value: float | complex) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and repr(self.value) == repr(other.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


class Compiled(Traced):
    """A traced function that is recorded for each value of its floats, once its body was seen to look at one, as torch.compile specializes.

    (`if p > 0`, `math.sqrt(scale)`, `dropout(x, p)`.) From the ninth tuple of numbers on it runs untraced.

    >>> f = torch.compile(lambda x, p: x * 2 if p > 0 else x)
    >>> f(torch.ones(2), 0.5)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers: set[tuple[_Number, ...]] | None = None               # None: they are run-time numbers

    def _found(self, args: Any, kwargs: Any) -> Any:
        given: Any = args, kwargs
        if self._numbers is not None:
            return self._specialized(args, kwargs, self._numbers)
        try:
            return super()._found(args, kwargs)
        except TracegradError:
            if self._changing or not any(isinstance(x, (float, complex)) for x in optree.tree_leaves(given)):
                raise
            numbers: set[tuple[_Number, ...]] = set()
            found = self._specialized(args, kwargs, numbers)                # what fails for another reason fails again
            self._numbers = numbers
            return found

    def _specialized(self, args: Any, kwargs: Any, known: set[tuple[_Number, ...]]) -> Any:
        given: Any = args, kwargs
        leaves, tree = optree.tree_flatten(given, none_is_leaf=True, namespace=ORDERED)
        leaves = [_Number(x) if isinstance(x, (float, complex)) else x for x in leaves]
        numbers = tuple(x for x in leaves if isinstance(x, _Number))
        if numbers not in known and len(known) >= _LIMIT:
            raise NoReplay
        found = super()._found(*optree.tree_unflatten(tree, leaves))
        known.add(numbers)
        return found

    def _tracers(self, recording: Any, flat: Sequence[Any], labels: list[str], guard_set: Any) -> list[Any]:
        return [x.value if isinstance(x, _Number) else x for x in super()._tracers(recording, flat, labels, guard_set)]
