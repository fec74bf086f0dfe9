"""C templates of the special functions: the text that each Formula of `ops/special.py` writes of itself. Rendered by `library`."""

from __future__ import annotations

from functools import cache

from tracegrad.function import REGISTRY
from tracegrad.ops.formula import Formula, pair_text
from tracegrad.ops.pair_functions import PAIR_FORMULAS

_PAIRS = {f"tg_pair_{name}": formula for name, formula in PAIR_FORMULAS.items()}
NAMES = frozenset(f"tg_{name}" for name, op in REGISTRY.items() if isinstance(op, Formula)) | frozenset(_PAIRS)


@cache
def text(name: str, double: bool, fp64: bool) -> str:
    """The template of the helper `name`, for float or double, on a device that has double or not."""
    if name in _PAIRS:
        return pair_text(name, _PAIRS[name])
    op = REGISTRY[name.removeprefix("tg_")]
    assert isinstance(op, Formula)
    return op.c_text(double, fp64)
