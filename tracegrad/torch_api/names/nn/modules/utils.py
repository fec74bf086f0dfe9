"""torch.nn.modules.utils: a number, or a tuple of numbers, as a tuple."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any


def _ntuple(n: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda x: tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))


_single, _pair, _triple, _quadruple = _ntuple(1), _ntuple(2), _ntuple(3), _ntuple(4)


def _reverse_repeat_tuple(t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    return tuple(x for x in reversed(t) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take `prefix` off the names that begin with it."""
    for name in [k for k in state_dict if k.startswith(prefix)]:
        state_dict[name[len(prefix):]] = state_dict.pop(name)
