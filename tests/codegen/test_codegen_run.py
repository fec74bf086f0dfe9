"""Compiled plans against the interpreter: fused kernels = unfused kernels = the ops' numpy rules, on chosen and on random graphs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.marks import one_of
from tracegrad import ops  # noqa: F401
from tracegrad.codegen.compiler import compile_graph
from tracegrad.config import config
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota, placeholder
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.runtime import buffer, device
from tracegrad.runtime.launch import Executable
from tracegrad.support.plan import Plan, Target

rng = np.random.default_rng(0)
START = rng.bit_generator.state


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "check", True)
    rng.bit_generator.state = START           # whichever tests ran before


def f4(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def op(name: str, *operands: Any, **attrs: Any) -> Node:
    return bind(REGISTRY[name], operands, attrs)


def capture(fn: Callable[..., Any], arrays: Sequence[Any]) -> Graph:
    """The graph of fn over placeholders; Python floats are run-time scalars."""
    leaves = [placeholder(Aval(np.shape(a), np.asarray(a).dtype, isinstance(a, float)), "abcdefgh"[i]) for i, a in enumerate(arrays)]
    out = fn(*leaves)
    return Graph.capture(leaves, list(out) if isinstance(out, (tuple, list)) else [out])


def execute(graph: Graph, plan: Plan, arrays: Sequence[Any]) -> list[Any]:
    on = device.find("")
    buffers = [buffer.upload(on, np.asarray(a)) for a in arrays if not isinstance(a, float)]
    found = Executable(plan, on).run(buffers, [a for a in arrays if isinstance(a, float)])
    return [b.download(n.shape, n.dtype) for b, n in zip(found, graph.outputs, strict=True)]


def agree(got: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> None:
    for g, w in zip(got, wanted, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        if g.dtype.kind == "f":
            scale = np.nanmax(np.abs(np.where(np.isfinite(w), w, 0)), initial=1.0)
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(g, w)


def check(fn: Callable[..., Any], *arrays: Any, donate: dict[int, int] | None = None, tolerance: float = 2e-5) -> Plan:
    """fn's compiled results, fused and unfused, are the interpreter's; returns the fused plan."""
    graph = capture(fn, arrays)
    wanted = interpret(graph, arrays)
    target = device.find("").target
    plan = compile_graph(graph, target, donate=donate)
    agree(execute(graph, plan, arrays), wanted, tolerance)
    fuse, config.fuse = config.fuse, False
    try:
        unfused = compile_graph(graph, target, donate=donate)
    finally:
        config.fuse = fuse
    agree(execute(graph, unfused, arrays), wanted, tolerance)
    return plan


def softmax(x: Node) -> Any:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


# ------------------------------------------------------------------------------------------------------------------ the cases


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 31, 64, 1000, 100_003])
def test_elementwise_of_any_size(n: int) -> None:
    check(lambda x, y: ((x * 2.0 + y).tanh(), x - y, x > y), f4(n), f4(n))


@pytest.mark.parametrize("shapes", [
    ((30, 40), (40,), (30, 1)), ((5, 6, 7), (6, 1), (5, 1, 7)), ((2, 64, 9, 16), (64, 1, 1), ()), ((3, 2), (2,), (1, 1)),
])
def test_broadcasting(shapes: Any) -> None:
    check(lambda x, y, z: (x * y + z).tanh(), *(f4(*s) for s in shapes))


@one_of(3, ("shape", "dtype"), product([(3, 5, 100), (7, 33), (1, 20_000), (200, 3), (4, 8), (64, 1000)], [np.float32, np.float64]))
def test_softmax(shape: Any, dtype: Any) -> None:
    check(softmax, f4(*shape).astype(dtype))


@one_of(3, "name", ["sum", "amax", "amin"])
@pytest.mark.parametrize("shape", [(20, 30, 40), (3, 17, 2), (1, 1, 50), (5, 1, 7), (40, 300, 3)])
def test_reductions_over_every_subset_of_dims(name: str, shape: Any) -> None:
    dims = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    check(lambda x: [op(name, x, dim=d) for d in dims], f4(*shape))
    check(lambda x: [op(name, x, dim=d) for d in dims], rng.integers(-9, 9, shape))


def test_long_reductions() -> None:
    check(lambda x: ((x * x).sum(), x * 2.0), f4(300_007))
    check(lambda x: ((x * x).sum(0), x * 2.0), f4(3000, 77))
    check(lambda x: op("prod", x * 0.01 + 1.0, dim=(0, 1)), f4(200, 30))


def test_bools_are_logic() -> None:
    def fn(a: Any, b: Any, x: Any) -> Any:
        return (a & b, a | b, ~a, a ^ b, op("eq", a, b), op("lt", a, b), (x > 0.0) & a, op("where", a, x, x * 0.5),
                op("sum", a, dim=(0,)), op("amin", a, dim=(1,)), op("add", a, b), cast(a, x.dtype) + x)
    check(fn, rng.integers(0, 2, (33, 19)).astype(bool), rng.integers(0, 2, (33, 19)).astype(bool), f4(33, 19))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "uint64"])
def test_integers_wrap(dtype: str) -> None:
    low, high = (30_000, 65_535) if dtype == "uint16" else (0, 127)            # C multiplies two ushort as int, which would overflow
    a, b = (rng.integers(low, high, (9, 33)).astype(dtype) for _ in range(2))
    check(lambda x, y: (x + y, x * y, op("eq", x, y), x > y, op("maximum", x, y), op("sum", x, dim=(1,)), op("amax", x, dim=(0,)), ~x),
          a, b)


KINDS = ("bool", "int8", "uint8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


@pytest.mark.parametrize("source", KINDS)
def test_casts(source: str) -> None:
    x = (rng.integers(0, 2 if source == "bool" else 100, (5, 33))).astype(source)
    check(lambda a: [cast(a, np.dtype(d)) for d in KINDS if d != source], x)


def test_half_is_stored_as_half() -> None:
    check(lambda x, y: (x + y, x * 2.0, op("sum", x, dim=(0,))), f4(9, 33).astype(np.float16), f4(9, 33).astype(np.float16), tolerance=4e-3)


def test_movement_is_index_arithmetic() -> None:
    x = f4(10, 20, 30)
    check(lambda x: (x.permute((2, 0, 1)) + 1.0, x.permute((1, 0, 2)).sum(-1), x.transpose(0, 2).reshape(-1) * 2.0), x)
    check(lambda x: op("flip", x, dims=(0, 2)) + op("slice", x, start=(0, 0, 0), stop=(10, 20, 1), step=(1, 1, 1)), x)
    check(lambda x: op("slice", x, start=(1, 2, 0), stop=(9, 20, 30), step=(2, 3, 1)).exp(), x)
    check(lambda x: op("pad", x, low=(1, 0, 2), high=(0, 3, 1), interior=(0, 1, 0), value=1.5) * 2.0, x)
    check(lambda x: op("pad", x, low=(1, 0, 2), high=(0, 3, 1), interior=(0, 0, 0), value=0.0).sum(-1), x)
    check(lambda x: op("concat", x, x * 2.0, x.exp(), dim=1) + 1.0, x)
    check(lambda x: op("concat", x, x * 2.0, dim=2).reshape(-1) + 1.0, x)


def test_transposed_reads_take_several_rows_at_once() -> None:
    x, y = f4(301, 213), f4(213, 301)
    check(lambda x, y: (x.permute((1, 0)) * 2.0, x.permute((1, 0)) + y.exp()), x, y)
    nodes = [placeholder(Aval(a.shape, a.dtype)) for a in (x, y)]
    source = compile_graph(Graph.capture(nodes, [op("mul", nodes[0].permute((1, 0)), nodes[1])]), Target()).source
    assert source.index("for (int col") < source.index("for (int row")


def test_empty_arrays() -> None:
    check(lambda x: (x + 1.0, x.sum(0), x.sum(1), x.sum(), op("concat", x, x, dim=0)), f4(0, 5))
    check(lambda x, y: x @ y, f4(3, 0), f4(0, 4))
    check(lambda x, y: op("permute", x, dims=(1, 0)) * 2.0 @ op("permute", y, dims=(1, 0)), f4(0, 3), f4(4, 0))


def test_scalars_are_kernel_arguments() -> None:
    plan = check(lambda x, lr: (x * lr, x - lr * 0.5, x * (lr * 2.0 + 1.0)), f4(100), 0.3)
    assert plan.scalars == 1
    assert len(plan.launches) == 1


def test_outputs_of_every_kind() -> None:
    check(lambda x: (x, x, x + 1.0, x + 1.0, x.reshape(-1), op("expand", const(3.0, x.dtype), shape=(4,)), const(2.0, x.dtype)), f4(3, 4))
    check(lambda x: (iota((5, 40), 1), iota((5, 40), 0, np.dtype("float32")) + x), f4(5, 40))


@one_of(3, "sizes", [(33, 50, 20), (1, 7, 1), (5, 1, 3), (64, 64, 64), (130, 70, 9)])
def test_products_with_fused_ends(sizes: Any) -> None:
    m, k, n = sizes
    check(lambda x, w, b: (x @ w + b).relu(), f4(m, k), f4(k, n), f4(n))
    check(lambda x, w: x.t() @ w.t(), f4(k, m), f4(n, k))
    check(lambda x, w, g: (op("where", (x @ w) > 0.0, g, g * 0.0), (x @ w).sum(0), x @ w), f4(m, k), f4(k, n), f4(m, n))
    check(lambda x, w: (x * 2.0 + 1.0).exp() @ w, f4(m, k), f4(k, n), tolerance=2e-4)


def test_batched_products() -> None:
    check(lambda x, w: x @ w, f4(3, 4, 33, 50), f4(3, 4, 50, 20))
    check(lambda q, k, v: softmax(q @ k.transpose(-1, -2) * 0.25) @ v, f4(2, 3, 17, 16), f4(2, 3, 17, 16), f4(2, 3, 17, 16))


def test_gather() -> None:
    index = rng.integers(0, 10, (4, 7))
    check(lambda x, i: (op("take", x, i), op("take", x, i).sum(-1)), f4(10, 20), index)
    check(lambda x, i: op("take", x, i) * 2.0, f4(10), index)


def test_layer_norm() -> None:
    def norm(x: Any, g: Any, b: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        return centred * ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt() * g + b
    plan = check(norm, f4(64, 300), f4(300), f4(300))
    assert len(plan.launches) == 1


@pytest.mark.parametrize(("fn", "donate"), [
    (lambda p, g: (p - g * 0.1,), {0: 0}),
    (lambda p, g: (g, p), {0: 0, 1: 1}),
    (lambda p, g: (p.t() - g * 0.1, p.sum()), {0: 0}),
    (lambda p, g: (p - g * 0.1, p, p * 2.0), {0: 0}),
    (lambda p, g: (p - p.t() @ (g @ p) * 0.1, (g @ p).sum()), {0: 0}),
    (lambda p, g: (p + p.sum(1, keepdim=True), g * p), {0: 0, 1: 1}),
    (lambda p, g: (p + 1.0, p + 1.0), {0: 0, 1: 1}),
    (lambda p, g: (p, p * g), {0: 0, 1: 1}),
    (lambda p, g: (softmax(p), g), {0: 0}),
])
def test_results_in_the_buffers_of_inputs(fn: Any, donate: Any) -> None:
    check(fn, f4(30, 30), f4(30, 30), donate=donate)


# ------------------------------------------------------------------------------------------------------------- random graphs


@st.composite
def programs(draw: Any) -> tuple[list[tuple[int, ...]], list[tuple[Any, ...]], int]:
    """Shapes of two inputs, a list of steps (what to apply, to which earlier values), and how many results to keep."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33]), min_size=1, max_size=3)))
    steps = draw(st.lists(st.tuples(st.sampled_from(
        ["add", "mul", "sub", "maximum", "tanh", "neg", "exp", "sum", "amax", "mean_back", "permute", "reshape", "expand", "slice", "pad",
         "flip", "concat", "where", "sum0", "matmul", "cast"]), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=14))
    return [shape, shape], steps, draw(st.integers(1, 4))


def build(leaves: list[Node], steps: list[tuple[Any, ...]], keep: int) -> list[Node]:
    values: list[Node] = list(leaves)
    for name, i, j in steps:
        x, y = values[i % len(values)], values[j % len(values)]
        n = len(x.shape)
        if name in ("add", "mul", "sub", "maximum"):
            same = [v for v in values if v.shape == x.shape]
            new = op(name, x, same[j % len(same)])
            new = op("tanh", new) if name == "mul" else new
        elif name in ("tanh", "neg"):
            new = op(name, x)
        elif name == "exp":
            new = op("exp", op("tanh", x))
        elif name in ("sum", "amax", "sum0"):
            if not n:
                continue
            dim = (j % n,) if name != "sum0" else (0,)
            new = op("amax" if name == "amax" else "sum", x, dim=dim)
        elif name == "mean_back":
            if not n:
                continue
            total = op("sum", x, dim=(n - 1,)) * (1.0 / x.shape[-1])
            new = x - op("expand", op("reshape", total, shape=(*x.shape[:-1], 1)), shape=x.shape)
        elif name == "permute":
            new = op("permute", x, dims=tuple((d + j) % n for d in range(n))) if n else x
        elif name == "reshape":
            new = op("reshape", x, shape=(x.aval.size,)) if j % 2 or x.aval.size % 2 else op("reshape", x, shape=(2, x.aval.size // 2))
        elif name == "expand":
            if x.aval.size > 4000:
                continue
            column = op("reshape", x, shape=(*x.shape, 1))
            new = op("expand", column, shape=(*x.shape, 1 + j % 9)) if j % 2 else op("expand", x, shape=(1 + j % 9, *x.shape))
        elif name == "slice":
            start, step = tuple(j % 2 if d > 1 else 0 for d in x.shape), (1 + j % 3,) * n
            new = op("slice", x, start=start, stop=x.shape, step=step) if n else x
        elif name == "pad":
            if x.aval.size > 4000:
                continue
            new = op("pad", x, low=(j % 3,) * n, high=(j % 2,) * n, interior=(j % 2,) * n, value=0.5) if n else x
        elif name == "flip":
            new = op("flip", x, dims=(j % n,)) if n else x
        elif name == "concat":
            new = op("concat", x, x * 0.5, dim=j % n) if n and x.aval.size < 4000 else x
        elif name == "where":
            same = [v for v in values if v.shape == x.shape]
            new = op("where", x > 0.25, x, same[j % len(same)])
        elif name == "matmul":
            if n != 2 or x.aval.size > 4000:
                continue
            new = op("tanh", op("matmul", x, op("permute", x, dims=(1, 0))))
        else:
            new = cast(op("gt", x, y), x.dtype) if x.shape == y.shape else x
        if new.aval.size > 20_000:
            continue
        values.append(new)
    return values[-keep:]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(programs())
def test_random_graphs(program: Any) -> None:
    shapes, steps, keep = program
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(s).astype(np.float32) for s in shapes]
    check(lambda *leaves: build(list(leaves), steps, keep), *arrays, tolerance=2e-4)


@one_of(3, ("shape", "name"), product([(7,), (30, 40), (3, 4, 5), (1, 1), (2000, 3)], ["argmax", "argmin"]))
def test_argmax(name: str, shape: Any) -> None:
    x = rng.integers(0, 9, shape).astype(np.float32)
    x.reshape(-1)[x.size // 2] = np.nan
    check(lambda x: [op(name, x, dim=d) for d in range(len(shape))], x)
    check(lambda x: [op(name, x * 2 + 1, dim=d) for d in range(len(shape))], rng.integers(0, 9, shape))


@pytest.mark.parametrize("local_memory", [0, 32 << 10])
def test_gpu_kernels_are_right_on_a_cpu(local_memory: int) -> None:
    target = replace(device.find("").target, kind="gpu", local_memory=local_memory)
    for fn, *arrays in (
        (softmax, f4(7, 100)), (softmax, f4(3, 5, 9)), (lambda x: [op("sum", x, dim=d) for d in [(0,), (1,), (0, 1)]], f4(300, 40)),
        (lambda x: ((x * x).sum(), x * 2.0), f4(100_003)), (lambda x, y: (x + y).tanh(), f4(30, 40), f4(40)),
        (lambda x: op("argmax", x, dim=1), f4(30, 40)), (lambda x, w, b: (x @ w + b).relu(), f4(33, 20), f4(20, 17), f4(17)),
    ):
        graph = capture(fn, arrays)
        agree(execute(graph, compile_graph(graph, target), arrays), interpret(graph, arrays), 2e-5)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 3)])
def test_additions_into_one_row_read_what_was_added_before(shape: Any) -> None:
    """The row that is read lies at a constant place, but other iterations write it: the read stays in the loop."""
    count = 5
    check(lambda x, i, s: op("scatter_add", x, i, s), f4(*shape), np.zeros(count, np.int64), f4(count, *shape[1:]))
