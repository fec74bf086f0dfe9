"""Long elementwise work on a CPU: two vectors are computed side by side, and results are those of the interpreter."""

import re

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.ir.expressions import Infix, Local, Zeros
from tracegrad.codegen.kernel.ir.statements import Declare
from tracegrad.codegen.kernel.statement_passes import side_by_side
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.support.dtypes import int32
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

WIDE = TARGETS["avx512"]


def op(name, *operands):
    return bind(REGISTRY[name], operands, {})


def long(x):
    return op("erf", op("div", op("exp", op("erf", x)), op("log", x)))


def short(x):
    return op("exp", x)


def checked(x):
    """Long, and reports what is out of range."""
    index = bind(REGISTRY["cast"], (x,), {"dtype": np.dtype("int64"), "weak": False})
    index = bind(REGISTRY["in_range"], (index,), dict(size=3, wrap=False, ignore=None, call="f", what="index", of="a", position=-1))
    return long(bind(REGISTRY["cast"], (index,), {"dtype": np.dtype("float32"), "weak": False}))


def text(fn, n: int, target: Target) -> str:
    x = placeholder(Aval((n,), np.dtype("float32")), "x")
    return compile_graph(Graph.capture([x], [fn(x)]), target).source.split("__kernel", 1)[1]


@pytest.mark.parametrize(("fn", "n", "target", "times"), [
    (long, 1 << 16, WIDE, 2), (long, 1 << 16, TARGETS["avx2"], 1), (short, 1 << 16, WIDE, 1), (long, 48, WIDE, 1),
    (checked, 1 << 16, WIDE, 1),
], ids=["long", "few registers", "short", "few elements", "index tested"])
def test_each_step_of_long_work_is_done_for_two_vectors(fn, n, target, times) -> None:
    """A function of the first vector is followed by that of the second, which does not wait for it."""
    called = re.findall(r"tg_(?:erf|exp|log)(?=\()", text(fn, n, target))
    each = called[::times]
    assert called == [name for name in each for _ in range(times)]
    assert len(each) == (1 if fn is short else 4)


def value_and_slope(x, y):
    total = ((x * y).exp() + 1.0).log() * tg.erf(y) - tg.erf(x - y).tanh()
    return total, total.sum(-1), (total * x).exp().mean()


@pytest.mark.parametrize("size", [31, 128, 135, 136, 150, 1000, 20003])
def test_the_second_vector_is_that_behind_the_first(size) -> None:
    """Elements, sums over rows and over all of it, where whole pairs of vectors fit and where they do not."""
    rng = np.random.default_rng(size)
    x, y = (rng.uniform(-1, 1, (3, size)).astype(np.float32) for _ in range(2))
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with Checked({"avx512": WIDE, "sse": Target(cores=2, simd_bytes=16, registers=32)}, tuning=Tuning(side_by_side=8)) as checked:
            tg.trace(value_and_slope)(*map(tg.tensor, (x, y)))[2].numpy()
        assert checked.count == 2
    finally:
        tg.set_device(previous)


def test_vectors_that_share_a_variable_stay_one_behind_the_other():
    """What the first one declares for both stands before it is read. (Both declare as many.)"""
    shared, first, second, third, fourth = (Local(name, int32, 16) for name in ("cols", "at", "x", "at", "y"))
    items = [Declare(first, "int16", Zeros(int32, 16)), Declare(shared, "int16", Zeros(int32, 16)), Declare(second, "int16", first),
             Declare(third, "int16", Infix("+", shared, shared)), Declare(fourth, "int16", third),
             Declare(Local("z", int32, 16), "int16", fourth)]
    wanted = [*items]
    side_by_side(items, [0, 3])
    assert items == wanted
    items[3] = Declare(third, "int16", Zeros(int32, 16))
    wanted = [items[k] for k in (0, 3, 1, 4, 2, 5)]
    side_by_side(items, [0, 3])
    assert items == wanted
