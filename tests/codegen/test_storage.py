"""codegen.planning.memory: which temporaries share a block. codegen.planning.assemble: that what a plan reads was written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracegrad.codegen import compiler
from tracegrad.codegen.planning import lowering_cache
from tracegrad.codegen.planning.memory_plan import assign
from tracegrad.errors import CompilerBug
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import placeholder
from tracegrad.support.dtypes import float32
from tracegrad.support.plan import Target


def test_the_freed_block_that_fits_best_is_reused() -> None:
    sizes = {"a": 65536, "b": 6400, "c": 12800, "d": 6401, "e": 64, "f": 131072}
    made, blocks = assign(sizes, [["a", "b", "c"], ["d"], ["e"], ["f"]])
    assert made == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 3, "f": 0}            # f's grows; that of e would be much too large
    assert blocks == [131072, 6400, 12800, 64]


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_is_alive_shares_a_block(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = {i: int(n) for i, n in enumerate(rng.choice([0, 4, 64, 65, 300, 4096, 5000, 65536], 40))}
    uses = [[int(t) for t in rng.integers(max(0, i - 4), i + 1, rng.integers(0, 4))] for i in range(40)]
    made, blocks = assign(sizes, uses)
    alive = {t: [step for step, touched in enumerate(uses) if t in touched] for t in made}
    for t, block in made.items():
        assert blocks[block] >= sizes[t]
        for other in made:
            if other != t and made[other] == block:
                assert alive[t][-1] < alive[other][0] or alive[other][-1] < alive[t][0]


@pytest.mark.parametrize(("lost", "match"), [(0, "reads '.*', which nothing before it writes"), (-1, "no step writes the result")])
def test_a_plan_that_lacks_a_step_is_refused(lost: int, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lower_all = lowering_cache.lower_all

    def fewer(groups: Any, context: Any) -> list[Any]:
        steps = lower_all(groups, context)
        assert len(steps) > 1
        del steps[lost]
        return steps

    x = placeholder(Aval((64, 64), float32), "x")
    graph = Graph.capture([x], [x @ x @ x])
    compiler.compile_graph(graph, Target())
    monkeypatch.setattr(compiler, "lower_all", fewer)
    with pytest.raises(CompilerBug, match=match):
        compiler.compile_graph(graph, Target())
