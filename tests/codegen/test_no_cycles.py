"""What a plan was made of goes when the plan is there: nothing of it refers to itself, so the search for cycles finds none of it."""

from __future__ import annotations

import gc

import pytest

from tests.codegen.test_codegen_structure import leaf, op, softmax
from tests.helpers.corpus import TARGETS
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.index.index import Atom, Index, Var
from tracegrad.codegen.kernel.ir.expressions import Expression
from tracegrad.codegen.kernel.ir.statements import Block, Statement
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.config import config
from tracegrad.graph.ir import Graph
from tracegrad.ops.arrays.shaping.reordering import roll
from tracegrad.support.modes import uncollected

PARTS = Writer, Evaluator, Var, Atom, Index, Expression, Block, Statement


@pytest.mark.parametrize("target", ["avx2", "gpu"])
@pytest.mark.parametrize("varying", [(), (40,)])
def test_what_a_plan_was_made_of_goes(target, varying, monkeypatch):
    """There are tens of thousands of such objects: to search for them took a quarter of the time that a convnet's new batch size takes."""
    monkeypatch.setattr(config, "check", False)
    x, w = leaf(40, 24, label="x"), leaf(24, 24, label="w")
    y = softmax(op("matmul", x, w)) * x.sum(0)
    graph = Graph.capture([x, w], [y, roll(y, 1, 1) * 2.0, y.sum(1)])
    compile_graph(graph, TARGETS[target], varying=frozenset(varying))
    gc.collect()
    with uncollected():
        plan = compile_graph(graph, TARGETS[target], varying=frozenset(varying))
        assert plan.kernels
        gc.set_debug(gc.DEBUG_SAVEALL)                       # what is found is kept to be looked at
        try:
            del plan
            gc.collect()
            found = [type(x).__name__ for x in gc.garbage if isinstance(x, PARTS)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert found == []
