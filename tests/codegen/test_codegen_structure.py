"""What the code generator makes of programs, without a device: how many kernels, which text, how long it takes."""

import re
import time
from typing import Any

import networkx as nx
import numpy as np
import pytest

import tracegrad as tg
from tracegrad import ops  # noqa: F401
from tracegrad.autodiff import derivatives
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.graph.reductions import canonical
from tracegrad.codegen.graph.simplify import simplify
from tracegrad.codegen.kernel.index.index import Var, ravel, unravel
from tracegrad.codegen.planning.memory_plan import assign
from tracegrad.codegen.schedule.grouping import Flat, Group
from tracegrad.codegen.schedule.order import in_order, reaches
from tracegrad.config import config
from tracegrad.errors import GraphError
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind, const, placeholder
from tracegrad.ops.arrays.shaping.reordering import roll
from tracegrad.ops.primitives import movement as mv
from tracegrad.passes.verify import verify
from tracegrad.support.plan import Plan, Target

TARGET = Target()
F2, F4 = np.dtype("float16"), np.dtype("float32")


def leaf(*shape: int, label: str = "", dtype: Any = F4, weak: bool = False) -> Node:
    return placeholder(Aval(shape, np.dtype(dtype), weak), label)


def op(name: str, *operands: Any, **attrs: Any) -> Node:
    return bind(REGISTRY[name], operands, attrs)


def plan_of(inputs: list[Node], outputs: list[Any], **options: Any) -> Plan:
    return compile_graph(Graph.capture(inputs, outputs), TARGET, **options)


def kernels(inputs: list[Node], outputs: list[Any]) -> int:
    return len(plan_of(inputs, outputs).steps)


def with_gradient(fn: Any, *leaves: Node) -> tuple[list[Node], list[Any]]:
    variables = [derivatives.variable(x) for x in leaves]
    y = fn(*variables)
    return list(leaves), [y, *derivatives.vjp([y], variables, [derivatives.ones_like(y)])]


def softmax(x: Any) -> Any:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred * ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt()


# --------------------------------------------------------------------------------------------------------------- how many kernels


def test_an_elementwise_chain_is_one_kernel() -> None:
    x = leaf(1 << 20)
    y = x
    for _ in range(4):
        y = (y * 1.5 + x).tanh()
    assert kernels([x], [y]) == 1


def test_a_chain_and_its_gradient_share_a_kernel() -> None:
    inputs, outputs = with_gradient(lambda x: ((x * 2.0).tanh() * x).exp().sum(), leaf(1 << 20))
    assert kernels(inputs, outputs) == 2          # the second adds up the chunks' sums


def test_softmax_is_one_kernel() -> None:
    x = leaf(512, 1000)
    assert kernels([x], [softmax(x)]) == 1


def test_softmax_and_its_gradient_are_one_kernel() -> None:
    x, g = leaf(512, 1000), leaf(512, 1000)
    v = derivatives.variable(x)
    y = softmax(v)
    assert kernels([x, g], [y, *derivatives.vjp([y], [v], [g])]) == 1


def test_layer_norm_and_its_gradient_are_one_kernel() -> None:
    x, g = leaf(512, 1000), leaf(512, 1000)
    v = derivatives.variable(x)
    y = layer_norm(v)
    assert kernels([x, g], [y, *derivatives.vjp([y], [v], [g])]) == 1


@pytest.mark.parametrize("columns", [24, 1000])
def test_a_loss_of_normalized_rows_is_added_up_row_by_row(columns: int) -> None:
    """What normalizes a row has its elements at hand: no second kernel reads the array again."""
    def loss(x: Any) -> Any:
        return (layer_norm(x) ** 3).sum()

    inputs, outputs = with_gradient(loss, leaf(100_000, columns))
    plan = plan_of(inputs, outputs)
    assert sum(plan.inputs[0] in launch.args for launch in plan.launches) == 1, plan.source


def test_a_full_sum_is_two_kernels() -> None:
    x = leaf(1 << 20)
    assert kernels([x], [(x * x).sum()]) == 2
    small = leaf(1000)
    assert kernels([small], [(small * small).sum()]) == 1


def test_bias_and_activation_belong_to_the_product() -> None:
    x, w, b = leaf(64, 32), leaf(32, 16), leaf(16)
    assert len(plan_of([x, w, b], [(x @ w + b).relu()]).steps) == 1


def test_movement_is_never_a_kernel_of_its_own() -> None:
    x = leaf(20, 30, 40)
    assert kernels([x], [x.permute((2, 0, 1)).reshape(40, 600) * 2.0]) == 1
    plan = plan_of([x], [x.reshape(600, 40)])
    assert plan.steps == ()
    assert plan.outputs == plan.inputs


def test_a_step_writes_its_parameters_in_place() -> None:
    w, g, lr = leaf(100, label="w"), leaf(100, label="g"), leaf(label="lr", dtype="float64", weak=True)
    plan = plan_of([w, g, lr], [w - g * lr], donate={0: 0})
    assert len(plan.launches) == 1
    assert plan.slots[plan.outputs[0]].alias == plan.inputs[0]
    assert plan.scalars == 1
    assert "__global float *w" in plan.source


def test_an_old_value_that_is_still_read_is_copied_over_last() -> None:
    w = leaf(40, 40)
    plan = plan_of([w], [w.t() + 1.0, w * 2.0], donate={0: 0})
    assert "copy" in plan.launches[-1].note


def test_unfused_is_one_kernel_per_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "fuse", False)
    x = leaf(512, 1000)
    assert kernels([x], [softmax(x)]) == 5


# ------------------------------------------------------------------------------------------------------------------ simplification


@pytest.mark.parametrize(("make", "left"), [
    (lambda x: x * 1.0, []),
    (lambda x: op("neg", op("neg", x)), []),
    (lambda x: x + const(-0.0, F4), []),
    (lambda x: x + 0.0, ["add"]),                    # -0.0 + 0.0 is 0.0
    (lambda x: x * 0.0, ["mul"]),                    # NaN * 0 is NaN
    (lambda x: op("pow", x, const(2.0, F4)), ["mul"]),
    (lambda x: op("pow", x, const(0.5, F4)), ["sqrt"]),
    (lambda x: x.permute((1, 0)).permute((1, 0)), []),
    (lambda x: x.reshape(12).reshape(2, 6).reshape(3, 4), []),
    (lambda x: op("sum", op("expand", op("reshape", x, shape=(3, 4, 1)), shape=(3, 4, 5)), dim=(2,)), ["mul", "reshape"]),
    (lambda x: op("slice", op("pad", x, low=(1, 0), high=(2, 0), interior=(0, 0), value=0.0), start=(1, 0), stop=(4, 4), step=(1, 1)), []),
    (lambda x: op("where", const(True, np.dtype(bool)), x, x * 2.0), []),
    (lambda x: op("detach", op("copy", x)), []),
    (lambda x: op("matmul", x.reshape(3, 1, 4), x.reshape(3, 4, 1)), ["mul", "sum"]),       # many short products of two vectors
    (lambda x: op("matmul", x.reshape(12, 1), x.reshape(1, 12)), ["mul"]),
    (lambda x: op("matmul", x, x.permute((1, 0))), ["matmul", "permute"]),
    (lambda x: op("matmul", op("cast", x, dtype=F2, weak=False).reshape(12, 1), op("cast", x, dtype=F2, weak=False).reshape(1, 12)),
     ["cast", "matmul"]),
])
def test_simplification(make: Any, left: list[str]) -> None:
    x = leaf(3, 4)
    graph = simplify(Graph.capture([x], [make(x)]))
    found = {n.fn.name for n in graph if n.fn.family != "leaf"}
    assert found <= set(left) | {"reshape"}
    assert set(left) - {"reshape"} <= found


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "seen"), [
    ((2, 2), 1, 3, 1, False), ((2, 5), 1, 3, 1, False), ((5, 5), 1, 3, 1, True), ((1, 6), 1, 2, 1, False), ((2, 2), 2, 3, 3, True),
    ((2, 2), 3, 1, 1, True), ((0, 3), 1, 1, 1, False)])
def test_the_gradient_of_pixels_that_no_window_sees_is_zeros(size: Any, kernel: int, stride: int, padding: int, seen: bool) -> None:
    attrs = dict(stride=(stride, stride), padding=((padding, padding),) * 2, dilation=(1, 1), groups=1)
    x, w = leaf(1, 2, *size), leaf(3, 2, kernel, kernel)
    g = leaf(*REGISTRY["conv2d"].aval(x.aval, w.aval, **attrs).shape)
    node = op("conv2d_input_grad", g, w, size=size, **attrs)
    assert any(n.fn.family == "conv" for n in simplify(Graph.capture([g, w], [node]))) == (seen or node.aval.size == 0)
    plan = compile_graph(Graph.capture([g, w], [node]), TARGET)
    assert any("taps" in launch.note for launch in plan.launches) == seen


def test_long_reductions_are_cut_in_chunks() -> None:
    x = leaf(1 << 20)
    names = [n.fn.name for n in canonical(Graph.capture([x], [x.sum()]), TARGET)]
    assert "partial" in names


# ---------------------------------------------------------------------------------------------------------------------- the index


def test_index_arithmetic_collapses() -> None:
    i = Var("i", 24).index
    assert ravel(unravel(i, (2, 3, 4)), (2, 3, 4)) == i
    assert ravel(unravel(ravel(unravel(i, (4, 6)), (4, 6)), (2, 12)), (2, 12)) == i
    row, col = Var("row", 5).index, Var("col", 8).index
    assert [x.c() for x in unravel(row * 8 + col, (5, 8))] == ["row", "col"]
    assert [x.c() for x in unravel(row * 8 + col, (5, 2, 4))] == ["row", "col / 4", "col % 4"]


def test_variables_are_themselves_whatever_they_are_called() -> None:
    one, other = Var("col", 8), Var("col", 8)
    assert one.index != other.index
    assert (one.index - other.index).terms
    assert one.index // 4 != other.index // 4
    assert (one.index * 3 + 1).stride(one) == 3
    assert (one.index * 3 + 1).stride(other) == 0


@pytest.mark.parametrize("seed", range(20))
def test_index_arithmetic_is_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(100):
        names = {n: int(rng.choice([2, 3, 4, 6, 8, 16])) for n in "abc"}
        vars = {n: Var(n, size).index for n, size in names.items()}
        values = {n: int(rng.integers(size)) for n, size in names.items()}
        n = rng.choice(list("abc"))
        symbolic, number = vars[n], values[n]
        for _ in range(int(rng.integers(1, 7))):
            k, other = int(rng.choice([1, 2, 3, 4, 6, 8, 12])), rng.choice(list("abc"))
            match rng.integers(5):
                case 0:
                    symbolic, number = symbolic // k, number // k
                case 1:
                    symbolic, number = symbolic % k, number % k
                case 2:
                    symbolic, number = symbolic * k, number * k
                case 3:
                    symbolic, number = symbolic + vars[other] * k, number + values[other] * k
                case _:
                    symbolic, number = symbolic - k, number - k
        assert symbolic.lo <= number <= symbolic.hi
        assert eval(symbolic.c().replace("/", "//"), {}, values) == number


# ------------------------------------------------------------------------------------------------------------------- the whole plan


def test_the_same_program_gives_the_same_text() -> None:
    def text() -> str:
        def loss(x: Any, w: Any) -> Any:
            return softmax(layer_norm(x) @ w).sum(0).exp().sum()
        inputs, outputs = with_gradient(loss, leaf(64, 40, label="x"), leaf(40, 30, label="w"))
        return plan_of(inputs, outputs).source
    assert text() == text()


def test_kernels_bear_the_names_and_lines_of_the_program() -> None:
    x = leaf(1000, label="x")
    h = x.exp() * 2.0
    source = plan_of([x], [h], name=lambda n: "h" if n is h else "").source
    assert "__global const float *restrict x" in source
    assert "__global float *restrict h" in source
    assert "test_codegen_structure.py:" in source
    assert "h = x.exp() * 2.0" in source


NOISE = (
    r"\(\([^()]*\)\)",                                      # doubled parentheses
    r"(?<![.\w])[01] \* |\* [01](?![.\w])|[-+] 0[\];,)]",    # arithmetic with nothing in it
    r"for \(int (\w+) = 0; \1 < (\d+); \1 \+= \2\)|for \(int (\w+) = 0; \3 < 1;",         # a loop of one iteration
    r"\(-\w+\) \?",                                         # a mask of what is one condition for all lanes
    r"_v\d\d",                                              # the second accumulator's second half
)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("program", ["softmax", "layer_norm", "amax", "pad", "product", "batched", "conv", "topk", "stack", "where"])
def test_kernels_hold_no_noise(program: str, kind: str) -> None:
    def body(x: Any) -> Any:
        wide = tg.nn.functional.pad(x, (1, 1, 1, 1))
        parts = x.reshape(2, 32, 33)
        return {
            "softmax": softmax(x), "layer_norm": layer_norm(x), "amax": x.amax(1) * x.sum(1), "topk": x.topk(3)[0],
            "stack": tg.stack([x, x * 2.0, x], 1), "where": tg.where(x[:, :1] > 0, x.exp(), x * 2.0),
            "pad": wide[2:, 1:-1] + wide[1:-1, :-2] - x, "product": (x @ w).exp() + b, "batched": (parts @ parts.transpose(1, 2)).exp(),
            "conv": tg.nn.functional.conv2d(x.reshape(8, 1, 8, 33), kernels, padding=1).exp(),
        }[program]

    x, w, b, kernels = leaf(64, 33, label="x"), leaf(33, 7, label="w1"), leaf(7, label="b"), leaf(5, 1, 3, 3, label="kernels")
    inputs, outputs = with_gradient(body, x)
    target = Target(kind=kind, local_memory=1 << 15)
    source = compile_graph(Graph.capture([*inputs, w, b, kernels], outputs), target).source
    for text in source.split("__kernel")[1:]:
        code = re.sub(r"//[^\n]*", "", text)
        for pattern in NOISE:
            found = re.search(pattern, code)
            assert not found, f"{found}\n{text}"
        declared = re.findall(r"^ *(?:const )?(?:__global )?(?:const )?\w+ \*?(\w+) = ", code, re.MULTILINE)
        assert not [name for name in declared if len(re.findall(rf"\b{name}\b", code)) < 2], text
        for block in re.split(r"[{}]", code):
            indices = re.findall(r"\bat\d* = ([^;]*);", block)
            assert len(set(indices)) == len(indices), text


def test_temporaries_share_storage() -> None:
    blocks, sizes = assign({"a": 100, "b": 100, "c": 100}, [["a"], ["a", "b"], ["b", "c"], ["c"]])
    assert blocks["a"] == blocks["c"] != blocks["b"]
    assert len(sizes) == 2


def test_the_checker_names_node_and_pass() -> None:
    x = leaf(3)
    y = x.exp()
    graph = Graph.capture([x], [y])
    y.aval = Aval((4,), F4)
    with pytest.raises(GraphError, match=r"after some pass: its rule gives float32\[3\]"):
        verify(graph, "some pass")
    y.aval = Aval((3,), F4)


@pytest.mark.parametrize("n", [2500, 10_000])
def test_long_programs_compile_in_linear_time(n: int) -> None:
    x, w = leaf(64), leaf(64)
    y: Any = x
    for i in range(n):
        y = (y * w).tanh() if i % 2 else y + x
    start = time.process_time()                        # quadratic in 10,000 would be minutes
    plan = plan_of([x, w], [y])
    assert time.process_time() - start < n * 4e-3
    assert all(text.count("\n") < 1500 for text in plan.source.split("__kernel"))


def test_repeated_stencils_do_not_compound() -> None:
    """Each step of a stencil reads the one before at several places: fusing them all would multiply the work with every step."""
    x = leaf(64, 64)
    u: Any = x
    for _ in range(20):
        p = op("pad", u, low=(1, 1), high=(1, 1), interior=(0, 0), value=0.0)
        up = op("slice", p, start=(2, 1), stop=(66, 65), step=(1, 1))
        down = op("slice", p, start=(0, 1), stop=(64, 65), step=(1, 1))
        u = u + (up + down - u * 2.0) * 0.2
    plan = plan_of([x], [u])
    assert 10 <= len(plan.launches) <= 20
    assert len(plan.source) < 60_000


def test_stencils_of_products_of_stencils_do_not_compound() -> None:
    """Shallow water and its gradient, where nearly every value is read at four places of what is read at four places."""
    def difference(u: Any, dim: int) -> Any:
        return (roll(u, -1, dim) - roll(u, 1, dim)) * 0.5

    def misfit(h: Any) -> Any:
        u, v = h * 0.0, h * 0.0
        for _ in range(6):
            u, v = (u - 0.1 * (difference(h, 1) + 0.01 * u + u * difference(u, 1) + v * difference(u, 0) - 0.05 * v),
                    v - 0.1 * (difference(h, 0) + 0.01 * v + u * difference(v, 1) + v * difference(v, 0) + 0.05 * u))
            h = h - 0.1 * (difference((1.0 + h) * u, 1) + difference((1.0 + h) * v, 0))
        return ((h - seen) ** 2).mean()

    seen, start = leaf(96, 96), leaf(96, 96)
    inputs, outputs = with_gradient(misfit, start)
    plan = plan_of([*inputs, seen], outputs)
    assert max(text.count("\n") for text in plan.source.split("__kernel")) < 700
    assert len(plan.launches) < 40


def test_a_roll_of_rows_reads_one_row() -> None:
    """Around the end it is a row's number that is chosen, not its values; there and back again is the row itself."""
    u = leaf(200, 256, label="u")
    body = plan_of([u], [roll(u, 1, 0) + roll(u, -1, 0)]).source
    assert "int at = row < 1 ? row + 199 : row - 1;" in body
    assert "inside" not in body
    assert body.count("= LOAD(") == 2
    body = plan_of([u], [roll(roll(u, 1, 0) * u, -1, 0) * roll(u, -1, 0)]).source
    assert body.count("= LOAD(") == 2                            # of this row and of the next
    assert body.count("int at") == 1
    for back_again in (roll(roll(u, 3, 0) * 2.0, 197, 0), roll(roll(u, 150, 0), 50, 0)):
        body = plan_of([u], [back_again * u]).source
        assert "int at" not in body


@pytest.mark.parametrize("n", [8, 13, 16, 24, 100, 256, 300])
def test_a_roll_of_columns_reads_whole_vectors(n: int) -> None:
    """A vector that goes around the end is put together of the row's last and its first: nothing is read number by number."""
    u = leaf(200, n, label="u")
    for x in (roll(u, 1, 1) + roll(u, -1, 1), roll(roll(u, 1, 1) * u, -1, 1) * roll(u, -1, 1), roll(roll(u, 3, 1) * 2.0, n - 3, 1) * u):
        body = plan_of([u], [x]).source
        assert "GATHER" not in body
        assert "_IF(" not in body
        assert "cols" not in body
        assert "int8 at" not in body
    first = plan_of([u], [roll(u, 1, 1)]).source.partition("float8 u_i")[2].partition("STORE")[0]
    assert first.count("LOAD(") == (1 if n == 8 else 2)
    assert re.search(r"\.s7, \w+\.s0123, \w+\.s45, \w+\.s6\)", first)


def test_a_stencils_inside_is_read_as_vectors() -> None:
    """Only the first and the last vector of a row look at the guards of their neighbours, which are loaded by a mask."""
    u = leaf(200, 256, label="u")
    p = op("pad", u, low=(1, 1), high=(1, 1), interior=(0, 0), value=0.0)
    left, right = (op("slice", p, start=(1, at), stop=(201, 256 + at), step=(1, 1)) for at in (0, 2))
    source = plan_of([u], [u + (left + right - u * 2.0) * 0.2]).source
    inside = source.partition("for (int col = 8; col < 248; col += 8) {")[2].partition("}")[0]
    assert "LOAD(float8, u + row * 256 + col - 1)" in inside
    assert "_IF(" not in inside
    assert source.count("= LOAD8_IF") == 2
    assert "GATHER" not in source


def functions(plan: Plan) -> int:
    return plan.source.count("\n__kernel void ")


def test_equal_steps_share_one_kernel() -> None:
    """Forty steps of a stencil are forty launches of a few functions: the text does not grow with the steps."""

    def run(steps: int) -> Plan:
        u = leaf(128, 128, label="u")
        x = u
        for _ in range(steps):
            p = op("pad", x, low=(1, 1), high=(1, 1), interior=(0, 0), value=0.0)
            up = op("slice", p, start=(2, 1), stop=(130, 129), step=(1, 1))
            x = (up + op("slice", p, start=(0, 1), stop=(128, 129), step=(1, 1))) * 0.5
        return plan_of([u], [x])

    short, long = run(12), run(40)
    assert len(long.launches) > 2 * len(short.launches)
    assert functions(short) <= functions(long) <= 3
    assert "launched" in long.source


def test_kernels_that_differ_in_a_function_a_type_or_a_constant_are_not_shared() -> None:
    for a, b in (("exp", "tanh"), ("sin", "cos")):
        x, y = leaf(5000), leaf(5000, 1)
        plan = plan_of([x, y], [op(a, x), op(b, y.permute((1, 0)))])
        assert functions(plan) == len(plan.launches)
    x, y = leaf(100_000), leaf(200_000)
    assert functions(plan_of([x, y], [x * 2.0, y * 3.0])) == 2
    assert functions(plan_of([x, y], [x * 2.0, y * 2.0])) == 1             # sizes may differ: see test_extents.py


def test_a_small_function_and_its_gradient_are_one_kernel() -> None:
    inputs, outputs = with_gradient(lambda x: ((x.sin() * 2.0 - 1.0).exp() * x).sum(), leaf(10))
    plan = plan_of(inputs, outputs)
    assert len(plan.launches) == 1
    assert plan.source.count("tg_sin(float8 x)") == 1


def test_a_few_values_that_are_there_are_added_up_where_the_sum_is_needed() -> None:
    x, y = leaf(8), leaf(5000)
    assert kernels([x, y], [y * x.sum()]) == 1


def test_small_kernels_share_a_launch() -> None:
    """Updates of small parameters and what else one work-item does; each buffer has one name, and what is written is not const."""
    x = leaf(64, 40, label="x")
    ws = [leaf(n, label=f"w{n}") for n in (10, 20, 40)]
    column = op("sum", x, dim=(0,))
    outs = [w - op("slice", column, start=(0,), stop=w.shape, step=(1,)) * 0.1 for w in ws]
    plan = plan_of([x, *ws], outs, donate={0: 1, 1: 2, 2: 3})
    assert len(plan.launches) == 1
    header = plan.source.partition("__kernel void")[2].partition("{")[0]
    assert header.count("x") - header.count("restrict x") == 0
    for name in ("w10", "w20", "w40"):
        assert f"__global float *{name}" in header
    assert "small kernels in one launch" in plan.launches[0].note


def test_small_products_are_loops_in_one_launch() -> None:
    """What one core does before others wake up: every work-item becomes an iteration of a loop. An operand used twice has one name."""
    a, b = leaf(40, 30, label="a"), leaf(40, 40, label="item0")
    y = op("matmul", a.t(), a)
    plan = plan_of([a, b], [op("matmul", a, y), (y * 2.0).sum(), op("matmul", b, b)])
    assert len(plan.launches) == 1
    assert "get_global_id" not in plan.source
    assert plan.source.count("for (int i_part") >= 2


def test_a_kernel_that_updates_an_input_is_called_after_it() -> None:
    w, g = leaf(100_000, label="w"), leaf(100_000, label="g")
    assert plan_of([w, g], [w - g * 0.1], donate={0: 0}).launches[0].entry == "w_k0"


def test_nodes_shared_with_another_program_do_not_bring_their_lines() -> None:
    x = leaf(1000, dtype="int64")
    kept = op("add", op("iota", shape=(1000,), dim=0, dtype=np.dtype("int64")), const(1, np.dtype("int64")))
    plan = plan_of([x], [x * kept])
    assert "x * kept" in plan.source
    assert "kept = op(" not in plan.source


@pytest.mark.parametrize("seed", range(20))
def test_kernels_run_after_those_they_need_and_else_by_number(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = [Group(Flat(1), int(number)) for number in rng.permutation(30)]
    before = {g: {h for h in groups[:i] if rng.random() < 0.1} for i, g in enumerate(groups)}
    graph = nx.DiGraph([(h, g) for g, earlier in before.items() for h in earlier])
    graph.add_nodes_from(groups)
    found = in_order(graph)
    place = {g: i for i, g in enumerate(found)}
    assert all(place[h] < place[g] for h, g in graph.edges)
    for i, g in enumerate(found):                           # whoever comes later and has a smaller number waits for something
        assert all(h.number > g.number or not before[h] <= set(found[:i]) for h in found[i + 1:])
    for group in groups:
        others = [g for g in groups if g is not group and rng.random() < 0.1]
        assert reaches(graph, group, others) == any(nx.has_path(graph, group, g) for g in others)


def _code(source: str) -> str:
    """Without what tells of which lines it is made."""
    return re.sub(r" *//.*", "", source)


@pytest.mark.parametrize(("shape", "dim", "k"), [((5000,), 0, 1), ((40, 300), 1, 299), ((40, 300), 0, 7)])
def test_the_end_before_the_beginning_is_a_roll(shape: tuple[int, ...], dim: int, k: int) -> None:
    x = leaf(*shape, label="x")
    n = shape[dim]
    turned = op("concat", mv.narrow(x, dim, k, n - k), mv.narrow(x, dim, 0, k), dim=dim)
    source = plan_of([x], [turned * x]).source
    assert _code(source) == _code(plan_of([x], [roll(x, -k, dim) * x]).source)
    for other in (op("concat", mv.narrow(x, dim, 0, k), mv.narrow(x, dim, k, n - k), dim=dim),
                  op("concat", mv.narrow(x, dim, n - k, k), mv.narrow(x, dim, 0, n - k), dim=dim),
                  op("concat", mv.narrow(x, dim, k, n - k), mv.narrow(leaf(*shape), dim, 0, k), dim=dim)):
        rolled = [node for node in simplify(Graph.capture([x], [other])) if node.fn.name == "roll"]
        assert bool(rolled) == (other.operands[0].operands == other.operands[1].operands and other.operands[0].attrs["start"][dim] == n - k)
