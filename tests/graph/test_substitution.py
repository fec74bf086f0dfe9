"""Nodes of a graph put in the place of others: what passes are made of."""

from __future__ import annotations

import numpy as np

from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.graph.substitution import rebound, replaced


def program() -> Graph:
    """exp(x) + exp(x) and cos(x), each at a line of its own."""
    x = placeholder(Aval((3,), np.dtype(np.float32)))
    with located("line 1"):
        e = bind(REGISTRY["exp"], (x,), {})
    with located("line 2"):
        return Graph.capture([x], [bind(REGISTRY["add"], (e, e), {}), bind(REGISTRY["cos"], (x,), {})])


def test_what_is_chosen_is_made_anew_and_what_reads_it_rebound() -> None:
    graph = program()
    seen = []

    def made(node, x):
        seen.append((node, x))
        return bind(REGISTRY["sin"], (x,), {})

    found = replaced(graph, lambda node: node.fn.name == "exp", made)
    total, cosine = found.outputs
    (exp, operand), = seen
    assert (exp, operand) == (graph.outputs[0].operands[0], graph.inputs[0])
    assert [o.fn.name for o in total.operands] == ["sin", "sin"]
    assert (total.operands[0].loc, total.loc) == (exp.loc, graph.outputs[0].loc)
    assert cosine is graph.outputs[1]                        # what reads nothing new is the node that it was
    assert found.inputs == graph.inputs


def test_nothing_is_rebuilt_where_nothing_is_chosen() -> None:
    graph = program()
    assert replaced(graph, lambda node: False, rebound) is graph


def test_a_node_of_its_own_operands_is_itself() -> None:
    total = program().outputs[0]
    assert rebound(total, total.operands) is total
    other = rebound(total, (total.operands[0].operands[0],) * 2)
    assert (other.fn, other.loc) == (total.fn, total.loc)
