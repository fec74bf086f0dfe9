"""C templates of the special functions: the text that each Formula of `ops/special/` writes of itself. Rendered by
`library`."""

from __future__ import annotations

import re

from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.primitives.formula import Formula, pair_text
from tracegrad.ops.special.double_float import PAIR_FORMULAS
from tracegrad.support.cache import memoize

_PAIRS = {f"tg_pair_{name}": formula for name, formula in PAIR_FORMULAS.items()}
_NAME = re.compile(r"tg_(?:d(\d+)_)?(\w+)")             # of a Formula, or of its derivative of some order


@memoize(None)
def known(name: str) -> bool:
    """Whether `name` is one of these functions."""
    match = _NAME.fullmatch(name)
    return name in _PAIRS or (match is not None and isinstance(REGISTRY.get(match[2]), Formula))


@memoize(None)
def text(name: str, double: bool, fp64: bool) -> str:
    """The template of the helper `name`, for float or double, on a device that has double or not."""
    if name in _PAIRS:
        return pair_text(name, _PAIRS[name])
    match = _NAME.fullmatch(name)
    assert match is not None
    op = REGISTRY[match[2]]
    assert isinstance(op, Formula)
    return op.c_text(double, fp64, **({"order": int(match[1])} if match[1] else {}))
