"""C templates of the special functions: the text that each Formula of `ops/special/` writes of itself. Rendered by
`library`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.primitives.formula import PAIR_FORMULAS, Formula, pair_text
from tracegrad.support.cache import memoize

_PAIR = "tg_pair_"
_NAME = re.compile(r"tg_(?:d(\d+)_)?(\w+)")             # of a Formula, or of its derivative of some order


def _of_pairs(name: str) -> Callable[..., Any] | None:
    return PAIR_FORMULAS.get(name.removeprefix(_PAIR)) if name.startswith(_PAIR) else None


@memoize(None)
def known(name: str) -> bool:
    """Whether `name` is one of these functions."""
    match = _NAME.fullmatch(name)
    return _of_pairs(name) is not None or (match is not None and isinstance(REGISTRY.get(match[2]), Formula))


@memoize(None)
def text(name: str, double: bool, fp64: bool) -> str:
    """The template of the helper `name`, for float or double, on a device that has double or not."""
    formula = _of_pairs(name)
    if formula is not None:
        return pair_text(name, formula)
    match = _NAME.fullmatch(name)
    assert match is not None
    op = REGISTRY[match[2]]
    assert isinstance(op, Formula)
    return op.c_text(double, fp64, **({"order": int(match[1])} if match[1] else {}))
