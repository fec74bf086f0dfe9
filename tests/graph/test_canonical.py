"""tracegrad.graph.canonical: what tells structures of nodes apart, and which numbers do not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.ops.test_registry import OPS
from tracegrad.execute.realize import Work
from tracegrad.graph.canonical import Numbers, canonical, contribution, fixed, is_number
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import REGISTRY, bind, const, data, placeholder

F4, F8, I8 = np.dtype("float32"), np.dtype("float64"), np.dtype("int64")


def leaf(*shape: int, dtype: Any = F4) -> Node:
    return data(Aval(shape, dtype), object())


def work_key(*roots: Node) -> Any:
    return canonical(roots).key(roots)


def program_key(*roots: Node) -> Any:
    return canonical(roots, leaf=lambda n: n.aval if n.fn.name == "data" else None).key(roots)


def test_order_places_and_leaves() -> None:
    x, y = leaf(3), leaf(3)
    product = x * y
    total = product + x
    found = canonical([total, product])
    assert (found.order, found.leaves, found.places) == ([product, total], [x, y], [(~0, ~1), (0, ~0)])
    assert found.number == {x: ~0, y: ~1, product: 0, total: 1}
    assert found.key([total]) != found.key([product])
    given = canonical([total], inputs=[y, x])
    assert (given.leaves, given.places) == ([y, x], [(~1, ~0), (0, ~1)])


def test_equal_structures_of_other_nodes_have_one_key_and_others_another() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x * y).sum((0,)) + x

    for key in (work_key, program_key):
        assert key(f(leaf(3), leaf(3))) == key(f(leaf(3), leaf(3)))
        x = leaf(3)
        assert key(f(x, x)) != key(f(leaf(3), leaf(3)))                     # one leaf twice is not two
        assert key(f(leaf(4), leaf(4))) != key(f(leaf(3), leaf(3)))
        assert key(leaf(3) - leaf(3)) != key(leaf(3) + leaf(3))
        assert key(x - leaf(3), x) != key(leaf(3) - x, x)


def test_a_number_is_an_operand_of_work_and_a_part_of_a_program() -> None:
    x = leaf(3)
    at = [bind(REGISTRY["offset"], (), {"value": np.int64(k), "bits": np.int64(k).tobytes()}) for k in (1, 2)]
    for a, b in ((const(2.0, F4), const(3.0, F4)), (const(0.0, F4), const(-0.0, F4))):
        assert is_number(a)
        assert work_key(x * a) == work_key(x * b)
        assert program_key(x * a) != program_key(x * b)
    assert is_number(at[0])
    assert work_key(at[0]) == work_key(at[1])
    assert program_key(at[0]) != program_key(at[1])
    assert program_key(x * const(float("nan"), F4)) == program_key(leaf(3) * const(float("nan"), F4))
    # Of another dtype it is another program, and a Python number that promotes nothing is no operand.
    assert work_key(const(2.0, F4)) != work_key(const(2.0, F8))
    weak = [const(k, F8, weak=True) for k in (2.0, 3.0)]
    assert not is_number(weak[0])
    assert work_key(weak[0]) != work_key(weak[1])


@pytest.mark.parametrize("op", [op for op in OPS if len(op.cases) > 1], ids=lambda op: op.name)
def test_the_short_way_of_work_tells_apart_whatever_contribution_does(op: Any) -> None:
    made = []
    for operands, attrs in op.cases:
        nodes = tuple(leaf(*o.shape, dtype=o.dtype) if isinstance(o, np.ndarray) else leaf(*o) for o in operands)
        made.append(bind(op, nodes, attrs))
    for a in made:
        for b in made:
            same = contribution(a) == contribution(b) and [o.aval for o in a.operands] == [o.aval for o in b.operands]
            assert (program_key(a) == program_key(b)) == same
            assert (work_key(a) == work_key(b)) == same


def test_what_differentiation_alone_cares_about_is_no_part_of_work() -> None:
    x = leaf(3)
    variable = bind(REGISTRY["variable"], (x,), {"uid": -1})
    plain, tracked, cut = x * x, variable * variable, bind(REGISTRY["detach"], (variable,), {}) * x
    assert work_key(plain) == work_key(tracked) == work_key(cut)
    assert len({program_key(n) for n in (plain, tracked, cut)}) == 3


def test_what_work_cannot_start_with_is_noted() -> None:
    p = placeholder(Aval((3,), F4))
    iota = bind(REGISTRY["iota"], (), {"shape": (3,), "dim": 0, "dtype": F4})
    sent = bind(REGISTRY["transfer"], (leaf(3),), {"source": "a", "target": "b"})
    assert set(canonical([p * iota, leaf(3) * sent]).starts) == {p, iota, sent}
    assert canonical([sent]).starts == [sent]
    sent.value = object()
    assert canonical([leaf(3) * sent]).starts == []


def test_numbers_that_were_seen_to_change_are_operands_and_the_others_are_known() -> None:
    nodes = [const(1.0, F4), const(2.0, F4), const(True, np.dtype(bool))]
    numbers = Numbers()
    numbers.note((b"1", b"2", b"t"), nodes)
    assert numbers.varying == frozenset()
    assert numbers.seen((b"1", b"3", b"t"), nodes) == {1}
    assert numbers.varying == frozenset()                                  # nothing is noted by asking
    numbers.note((b"1", b"3", b"f"), nodes)
    assert numbers.varying == {1}                                          # a bool chooses another program
    numbers.note((b"0", b"3", b"f"), nodes)
    assert numbers.varying == {0, 1}
    assert fixed((b"5", b"6", b"t"), numbers.varying) == (b"t",)


def test_pending_work_has_the_canonical_key() -> None:
    x = tg.ones(3)._node()
    a, b = (Work([x * const(k, F4)], tg.device()) for k in (2.0, 3.0))
    assert a.key == b.key
    assert a.program is b.program
    assert [work.constants[0].attrs["value"] for work in (a, b)] == [2.0, 3.0]
    assert a.key == canonical(a.targets).key(a.targets, a.device, tg.config.eager)


def test_nodes_may_outlive_their_module():
    """When Python ends, a module's names are gone before the last nodes are: interned ones still leave their table in silence."""
    program = ("import numpy as np\nfrom tracegrad.graph import ir\nfrom tracegrad.graph.primitive import REGISTRY, bind, const\n"
               "node = bind(REGISTRY['exp'], (const(1.5, np.dtype('float32')),), {})\n"
               "table = ir.INTERN\nbefore = len(table)\nvars(ir)['INTERN'] = None\ndel node\nassert len(table) < before")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
