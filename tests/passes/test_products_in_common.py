"""Small products with a matrix in common become one (tracegrad/passes/products.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.compiler import shared
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.passes import products as passes

SOME = {name: TARGETS[name] for name in ("avx2", "gpu")}


def op(name: str, *operands: Any, **attrs: Any) -> Any:
    return bind(REGISTRY[name], operands, attrs)


def of(*shape: int, dtype: str = "float64") -> Any:
    return placeholder(Aval(shape, np.dtype(dtype)))


def row(x: Any, i: int) -> Any:
    cut = op("slice", x, start=(i, 0, 0), stop=(i + 1, *x.shape[1:]), step=(1, 1, 1))
    return op("reshape", cut, shape=x.shape[1:])


def total(terms: list[Any]) -> Any:
    found, *rest = terms
    for term in rest:
        found = op("add", found, term)
    return found


def transposed(x: Any) -> Any:
    return op("permute", x, dims=(1, 0))


def merged(inputs: list[Any], outputs: list[Any]) -> int:
    """How many products the graph has when it has gone through the pass. Its values are the same."""
    graph = Graph.capture(inputs, outputs)
    found = passes.products(graph, shared())
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(x.shape).astype(x.dtype) for x in inputs]
    for a, b in zip(interpret(graph, arrays), interpret(found, arrays), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4 if a.dtype.itemsize < 8 else 1e-12)
        assert a.dtype == b.dtype
    return sum(node.fn.name == "matmul" for node in found)


@pytest.mark.parametrize(("steps", "used", "count"), [(6, 6, 1), (6, 4, 1), (6, 3, 3), (12, 5, 5), (100, 100, 1)])
def test_rows_of_one_array_times_a_matrix(steps, used, count):
    """Of enough rows, and not where most of the array would be for nothing."""
    x, w = of(steps, 3, 5), of(5, 7)
    assert merged([x, w], [op("matmul", row(x, i), w) for i in range(used)]) == count


def test_the_array_may_be_a_matrix_or_computed():
    x, w = of(12, 5), of(5, 7)
    y = op("sin", x)
    cut = [op("slice", y, start=(i, 0), stop=(i + 3, 5), step=(1, 1)) for i in range(0, 12, 3)]
    assert merged([x, w], [op("matmul", part, w) for part in cut]) == 1


@pytest.mark.parametrize("changed", ["columns", "step", "rows", "matrix"])
def test_other_rows_stay(changed):
    x, ws = of(6, 80 if changed == "rows" else 4, 5), [of(5, 7) for _ in range(6)]
    parts = []
    for i in range(6):
        if changed == "columns":
            parts.append(op("reshape", op("slice", x, start=(0, 0, 0), stop=(6, 4, 5), step=(1, 1, 1)), shape=(24, 5)) if i else row(x, i))
        elif changed == "step":
            cut = op("slice", x, start=(0, i % 2, 0), stop=(6, 4, 5), step=(i + 2, 2, 1))
            parts.append(op("reshape", cut, shape=(cut.shape[0] * 2, 5)))
        else:
            parts.append(row(x, i))
    own = ws if changed == "matrix" else [ws[0]] * 6
    assert merged([x, *ws], [op("matmul", part, w) for part, w in zip(parts, own, strict=True)]) == len({*zip(parts, own, strict=True)})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("terms", "more"), [(4, 0), (9, 2), (60, 1)])
def test_a_sum_of_products_of_few_terms(terms, more, dtype):
    """With other terms between them; 60 are put together some at a time."""
    firsts, seconds = [of(2, 9, dtype=dtype) for _ in range(terms)], [of(2, 8, dtype=dtype) for _ in range(terms)]
    others = [of(9, 8, dtype=dtype) for _ in range(more)]
    each = [op("matmul", transposed(a), b) for a, b in zip(firsts, seconds, strict=True)]
    for k, x in enumerate(others):
        each.insert(2 * k + 1, op("sin", x))
    assert merged([*firsts, *seconds, *others], [total(each)]) == 1


@pytest.mark.parametrize("changed", ["few", "long", "used", "halves", "integers"])
def test_other_sums_stay(changed):
    """Of few products, of many terms each, of products that are needed themselves, of what is rounded or exact."""
    count, k = (3 if changed == "few" else 6), (200 if changed == "long" else 2)
    dtype = {"halves": "float16", "integers": "int32"}.get(changed, "float64")
    firsts, seconds = [of(9, k, dtype=dtype) for _ in range(count)], [of(k, 8, dtype=dtype) for _ in range(count)]
    each = [op("matmul", a, b) for a, b in zip(firsts, seconds, strict=True)]
    graph = Graph.capture([*firsts, *seconds], [total(each), *(each[1:] if changed == "used" else [])])
    assert passes.products(graph, shared()) is graph


def test_products_that_wait_for_each_other():
    """Each is made of the one before: of these none is another's part, but the gradient's are."""
    def loss(w: Any, x: Any) -> Any:
        h = x[0] @ w
        for i in range(1, 6):
            h = (h + x[i] @ w).tanh() @ w[:, :5]
        return h.sum()

    rng = np.random.default_rng(0)
    w, x = tg.tensor(rng.standard_normal((5, 5)) / 3), tg.tensor(rng.standard_normal((6, 3, 5)))
    plain = tg.grad(loss)(w, x)
    traced = tg.trace(tg.grad(loss))
    np.testing.assert_allclose(traced(w, x), plain, rtol=1e-9)


@pytest.mark.usefixtures("on_numpy")
def test_a_cell_in_a_loop_by_kernels():
    """The gradients of a recurrent cell's weights, for each kind of device, are what the interpreter computes."""
    def loss(w: Any, u: Any, x: Any) -> Any:
        h = tg.zeros(3, 8, dtype=x.dtype)
        for i in range(6):
            h = (x[i] @ w + h @ u).tanh()
        return h.sum()

    rng = np.random.default_rng(0)
    given = [tg.tensor(rng.standard_normal(shape) / 3) for shape in ((5, 8), (8, 8), (6, 3, 5))]
    with Checked(SOME) as checked:
        tg.trace(tg.grad(loss, (0, 1)))(*given)
    assert checked.count
