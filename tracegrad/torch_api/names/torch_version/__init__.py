"""torch.torch_version: versions that compare as numbers, as `torch.__version__` does with texts and tuples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["TorchVersion"]

_PARTS = re.compile(r"v?(\d+(?:\.\d+)*)[._-]?(dev|a|b|c|rc|alpha|beta|post)?[._-]?(\d*)")
_BEFORE = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "c": -1, "rc": -1, None: 0, "post": 1}


def _key(version: Any) -> Any:
    """What orders a version, which is a text or its numbers; None of what is none."""
    text = version if isinstance(version, str) else ".".join(map(str, version)) if isinstance(version, Iterable) else ""
    found = _PARTS.match(text.strip())
    if found is None:
        return None
    numbers = [int(n) for n in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers, _BEFORE[found[2]], int(found[3] or 0)


class TorchVersion(str):
    """The text of a version. It compares with texts and tuples of numbers: TorchVersion("2.14.1") > "2.4", and > (2, 4).

    What is no version is compared as text.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def _compared(self, other: Any, how: str) -> Any:
        mine, others = _key(self), _key(other)
        if others is None:
            return getattr(str, how)(str(self), other)
        return getattr(tuple, how)(mine, others)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, "__lt__")

    def __le__(self, other: Any) -> Any:
        return self._compared(other, "__le__")

    def __eq__(self, other: object) -> Any:
        return self._compared(other, "__eq__")

    def __ne__(self, other: object) -> Any:
        return self._compared(other, "__ne__")

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, "__ge__")

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, "__gt__")
