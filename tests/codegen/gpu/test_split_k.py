"""How a GPU's product is cut along k: what is chosen from a short list is the best of all numbers of parts."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tracegrad.codegen.kernel.ir.vectors import ceil_div
from tracegrad.codegen.matmul import gpu


def time_of(parts: int, p: Any, groups: int, items: int, flops: float) -> float:
    """The model of `gpu.split`, of one number of parts."""
    each = ceil_div(groups * parts, p.target.cores)
    busy = groups * parts / (p.target.cores * each) * min(1.0, each * items / gpu._ITEMS)
    results = 2 * parts * p.batch * p.m * p.n * p.dtype.itemsize
    return flops / busy / gpu._BALANCE + (results + gpu._LAUNCH if parts > 1 else 0)


def test_the_best_number_of_parts_is_in_a_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, inner = list[tuple[Any, ...]](), gpu._core_time

    def counted(*given: Any) -> float:
        tried.append(given)
        return inner(*given)

    monkeypatch.setattr(gpu, "_core_time", counted)
    for m, k, cores, groups, items in product((8, 100, 4096), (300, 32768, 1 << 20), (1, 16, 132), (1, 3, 144, 2000), (16, 256)):
        p: Any = SimpleNamespace(target=SimpleNamespace(cores=cores), batch=1, m=m, n=64, k=k, flops=128 * m * k,
                                 dtype=SimpleNamespace(itemsize=4))
        tried.clear()
        parts, time = gpu.split(p, groups, items, p.flops)
        most = max(1, min(ceil_div(gpu._WAVES * cores, groups), k // 128)) if p.flops >= 1 << 19 else 1
        least = min(time_of(n, p, groups, items, p.flops) for n in range(1, most + 1))
        assert time == pytest.approx(least, rel=1e-9)
        assert time_of(parts, p, groups, items, p.flops) == pytest.approx(least, rel=1e-9)
        assert len(tried) <= gpu._WAVES + 2
