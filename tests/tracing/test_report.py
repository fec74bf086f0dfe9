"""Programs as text: the Python of a traced function computes the same; kernels, explanation, dot and one-line-per-node text."""

import ast
import copy
import io
import json
import keyword
import pickle
import re
import textwrap
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tests.ops.test_registry import OPS, accepts, cases, operands
from tracegrad import nn, optim
from tracegrad.__main__ import main
from tracegrad.errors import ArgumentError
from tracegrad.execute.compile import executable_graph
from tracegrad.graph import printing
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import bind, placeholder
from tracegrad.inspection.python_source import python_source
from tracegrad.inspection.report import Kernels, explain
from tracegrad.nn import functional as F
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.runtime.programs import build as runtime_program
from tracegrad.support.plan import Launch, Plan, Slot, Target
from tracegrad.support.tuning import Tuning, tuned

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(9)


def random(*shape, dtype="float64", requires_grad=False):
    return tg.tensor(RNG.uniform(0.3, 1.7, size=shape).astype(dtype), requires_grad=requires_grad)


def run_source(traced):
    """Outputs of the traced function's Python, and of its graph, on random inputs."""
    graph, text = traced.graph, traced.source()
    space = {}
    exec(compile(text, "<source>", "exec"), space)
    values = []
    for node in graph.inputs:
        kind, shape = node.dtype.kind, node.shape
        drawn = RNG.integers(0, 3, size=shape) if kind in "iub" else RNG.uniform(0.3, 1.7, size=shape)
        values.append(np.asarray(drawn).astype(node.dtype))
    given = [v.item() if node.aval.weak else tg.tensor(v) for v, node in zip(values, graph.inputs, strict=True)]
    function = space[printing.identifier(traced.__name__)]
    got = [o.numpy() if isinstance(o, tg.Tensor) else np.asarray(o) for o in function(*given)]
    return text, got, interpret(executable_graph(graph), values)


def with_gradients(f):
    """A traced function that returns f's result and its gradients in the tensors it is given."""

    @tg.trace
    def both(*tensors):
        result = f(*tensors)
        grads = tg.autograd.grad(result.sum(), [t for t in tensors if t.requires_grad], allow_unused=True)
        return result, [g for g in grads if g is not None]

    return both


A, B, V, IMAGE = (3, 4), (4, 5), (4,), (2, 2, 6, 6)
FUNCTIONS = [
    (lambda a, b: (a @ b).relu() + 1.0, [A, B]),
    (lambda a, v: (a - v) / (a * v + 2) ** 2 - -a, [A, V]),
    (lambda a: a ** (a ** 0.5) - (a - (a - 1.0)) % 0.7, [A]),
    (lambda a: tg.where((a > 1) & ~(a < 0.5), a.exp(), -1.0), [A]),
    (lambda a: a.softmax(-1).log() * a.mean(0), [A]),
    (lambda a: F.layer_norm(a, (4,)), [A]),
    (lambda a: F.log_softmax(a, 0).std(1, keepdim=True) * a.amax(1, keepdim=True), [A]),
    (lambda a: a.t().reshape(2, 6)[:, 1::2].flip(0).cumsum(1), [A]),
    (lambda a: tg.cat([a, a * 2, F.pad(a, (1, 2))[:, :4]], dim=0).tril(), [A]),
    (lambda a: a.permute(2, 0, 1).unsqueeze(0).expand(2, 4, 2, 3).sum((0, 2)) * 3, [(2, 3, 4)]),
    (lambda a: a.prod(1) + a.norm() + a.var(), [A]),
    (lambda a: a[tg.tensor([2, 0, 0])] * a.argmax(1).reshape(3, 1), [A]),
    (lambda a: a.sort(1)[0] * tg.arange(4), [A]),
    (lambda a: a.to(tg.float32).to(tg.int64).to(tg.float64) * a + tg.full((4,), float("inf")).minimum(a), [A]),
    (lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1, stride=2), 2).flatten(1), [IMAGE, (3, 2, 3, 3)]),
    (lambda x, w: F.avg_pool2d(F.conv_transpose2d(x, w, stride=2), 3, stride=2, padding=1), [IMAGE, (2, 3, 2, 2)]),
    (lambda a: F.gelu(a) + F.silu(a) * F.softplus(a) + a.clamp(0.5, 1.5), [A]),
    (lambda a: F.scaled_dot_product_attention(a, a, a, is_causal=True), [(2, 3, 4)]),
    (lambda a: a * (tg.rand(3, 4, dtype=tg.float64) > 0.5), [A]),
    (lambda a: (a * 2).sum() if a.ndim == 0 else a, [()]),
    (lambda a: (a.detach() * a).clone() + a.eq(a).sum() + (a > 1).any(), [A]),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_source_computes_the_same(number):
    f, shapes = FUNCTIONS[number]
    traced = with_gradients(f)
    traced(*(random(*shape, requires_grad=True) for shape in shapes))
    text, got, expected = run_source(traced)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape, text
        assert a.dtype == b.dtype, text
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=text)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_source_of_every_op(op):
    """Executed, it is what the op's numpy rule says; what has a name in the public interface is called by it."""
    for shapes, attrs in cases(op):
        dtype = np.dtype("uint32" if op.name == "philox" else next(
            d for d in ("float64", "int32", "complex128") if accepts(op, np.dtype(d))))
        arrays = operands(op, shapes, dtype)
        inputs = [placeholder(Aval(a.shape, a.dtype), "xyzwuv"[i]) for i, a in enumerate(arrays)]
        text = python_source(Graph.capture(inputs, [bind(op, tuple(inputs), attrs)]), "f")
        space = {}
        exec(compile(text, "<source>", "exec"), space)
        with np.errstate(all="ignore"):
            expected = np.asarray(op.numpy(*arrays, **attrs))
        (got,) = space["f"](*map(tg.tensor, arrays))
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), text
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, err_msg=text)
        unnamed = {"philox", "conv2d_weight_grad", "unfold", "in_range", "as_known", "in_domain", "scatter_add", "scatter_set",
                   "scatter_max", "scatter_min", "recurrence", "cofactors", "minors", "frechet_exp", "lu_factor", "pivot_order",
                   "ldl_unpack", "factor_info", "geqrf", "lyapunov", "dot_product_attention", "attention_gradient",
                   "attention_sums", "attention_gradient_of_sums", "slice_at", "pad_at", "airy_ai_slope"}
        assert "primitive" not in text or op.name in unnamed or "interior" in attrs or "padding" in attrs, text


def test_source_of_what_the_user_wrote(device):
    """Kernels, expressions, host functions and loops stand in front of the function; with them in place the text runs."""
    if device.kind == "numpy":
        pytest.skip("kernels need an OpenCL device")
    leaky = tg.elementwise("(x > 0) ? x : a*x", derivatives={"x": "(x > 0) ? 1 : a"}, name="leaky")
    cube = tg.opencl_function(entry="cube", backward=lambda g, x, k: g * 3 * x * x * k, source="""
        __kernel void cube(__global const float *x, __global float *y, const float k) {  // a \\ and a \"
            int i = get_global_id(0);
            y[i] = x[i] * x[i] * x[i] * k;
        }""")
    both = tg.opencl_function(entry="both", shape=lambda s: [s, (1,)], dtype=[None, "int32"], source="""
        __kernel void both(__global const float *x, __global float *y, __global int *n) {
            int i = get_global_id(0);
            y[i] = -x[i];
            if (i == 0) n[0] = 7;
        }""")

    @tg.trace
    def step(x, k):
        def loss(x):
            return cube(leaky(x, 0.1), k).sum()

        value, slope = tg.value_and_grad(loss)(x)
        negative, seven = both(x)
        last = tg.while_loop(lambda v: v[0].sum() < 100, lambda v: (v[0] * 2, v[1] + k), (x * x, x))
        order = tg.host_call(np.sort, negative)
        return value, slope, seven, last, order

    x = tg.tensor(RNG.standard_normal(7).astype("float32"))
    with tuned(Tuning(iteration_work=0)):                               # else the loop is in one kernel
        expected = step(x, 1.5)
    text, space = step.source(), {}
    exec(compile(text.replace("sort = ...", "import numpy; sort = numpy.sort"), "<source>", "exec"), space)
    for name in ("leaky = tg.elementwise(", "cube = tg.opencl_function(", "d_leaky(", "def condition(", "value, slope, "):
        assert name in text, text
    got = space["step"](x, 1.5)
    flat = [expected[0], expected[1], expected[2], *expected[3], expected[4]]
    for a, b in zip(got, flat, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, err_msg=text)
    kernels = step.kernels()
    assert {"cube", "both", "goes_on_k0"} <= set(kernels.names)
    assert "// while_loop: condition\n" in str(kernels)
    assert "goes_on[0]" in kernels["goes_on_k0"]
    assert "while_loop: body: " in step.explain()


def test_results_are_called_as_the_user_does(device):
    """In kernels and in source(): by the return statement, by keys, by the argument that a gradient belongs to, or by the function."""
    w = tg.ones(3, requires_grad=True)

    def loss(w):
        return (w * w).sum()

    def returns(x):
        total = x.sum()
        return x * 2, total

    def one(x):
        return x.exp() * x

    programs = [
        (one, ["one"]),
        (lambda x: x.exp() * x, ["result"]),
        (returns, ["returns_0", "total"]),
        (lambda x: {"first": x + 1, "second": (x * 2, x * 3)}, ["first", "second_0", "second_1"]),
        (tg.grad(loss), ["w_grad"]),
        (tg.value_and_grad(loss), ["loss", "w_grad"]),
    ]
    for fn, names in programs:
        f = tg.trace(fn)
        f(tg.arange(3.0))
        assert f"return ({', '.join(names)}{',' * (len(names) == 1)})" in f.source(), f.source()
        if device.kind != "numpy":
            assert {s.name for s in f.plan.slots if s.kind == "output"} == set(names)
            assert all(name.rpartition("_k")[0] in names for name in f.kernels().names)

    @tg.trace
    def step(x, rate):
        loss = (w * w * x).sum()
        loss.backward()
        with tg.no_grad():
            w.sub_(w.grad, alpha=rate)
        return loss

    step(tg.arange(3.0), 0.5)
    assert "return (loss, w_new, w_grad)" in step.source()
    if device.kind != "numpy":
        text = str(step.kernels())
        assert "const float rate" in text
        assert "float w_new" in text.replace("float8", "float").replace("float2", "float")


def test_generated_programs_leave_the_driver_nothing_to_say(monkeypatch):
    """No warnings in the driver's log; PoCL prints their number."""
    previous, fresh = tg.device(), float(np.random.default_rng().random())      # a program that no cache holds
    tg.set_device("pocl")
    logs = []
    real = runtime_program._build

    def build(context, cl_device, source, given):
        program = real(context, cl_device, source, given)
        logs.append((program.get_build_info(cl_device, cl.program_build_info.LOG), source))
        return program

    monkeypatch.setattr(runtime_program, "_build", build)
    try:
        with_gradients(lambda a: (a.sin().tanh() * a.softmax(1) + fresh).amax(1))(tg.randn(64, 101, requires_grad=True))
    finally:
        tg.set_device(previous)
    assert logs
    for log, source in logs:
        assert not log.strip(), f"{log}\n{source}"


def training_step():
    tg.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3))
    opt = optim.Adam(model.parameters(), lr=0.01)

    @tg.trace
    def step(x, y, scale):
        opt.zero_grad()
        prediction = model(x)
        loss = F.cross_entropy(prediction, y) * scale
        loss.backward()
        opt.step()
        return loss

    step(tg.randn(8, 5), tg.randint(0, 3, (8,)), 2.0)
    return step


def test_source_of_a_training_step():
    step = training_step()
    text, got, expected = run_source(step)
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    head, body = text.split("\n    # test_report.py", 1)
    assert "model_0_weight, model_0_bias" in head
    assert "loss = F.cross_entropy(prediction, y) * scale" in body
    assert "# backward of line" in body
    assert "prediction = " in body
    assert "tg.relu(" in body
    assert "model_3_weight_grad = " in body
    assert "model_3_weight_new = " in body
    assert max(map(len, text.split("\n"))) < 140
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            assert not keyword.iskeyword(node.id)
    assert step.source() == text


def test_source_reads_like_the_program():
    w1, w2 = random(4, 8, requires_grad=True), random(8, 2, requires_grad=True)

    @tg.trace
    def loss_of(x, y, lr):
        h = (x @ w1).relu()
        y_pred = h @ w2
        loss = ((y_pred - y) ** 2).sum()
        loss.backward()
        with tg.no_grad():
            w1.sub_(w1.grad * lr)
        return loss

    loss_of(random(3, 4), random(3, 2), 0.1)
    lines = [line.strip() for line in loss_of.source().splitlines()]
    assert "def loss_of(x, y, lr, w1, w2):" in lines or "def loss_of(x, y, w1, w2, lr):" in lines
    for wanted in ("h = tg.relu(matmul)", "y_pred = h @ w2", "loss = (sub * sub).sum()", "w1_new = w1 - w1_grad * lr",
                   "return (loss, w1_new, w1_grad, w2_grad)"):
        assert wanted in lines, "\n".join(lines)


def test_source_of_a_custom_function():
    class Cube(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, ct):
            (x,) = ctx.saved_tensors
            return ct * x * x * 3

    traced = with_gradients(lambda a: Cube.apply(a) * 2)
    traced(random(3, requires_grad=True))
    text, got, expected = run_source(traced)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=text)


def test_deep_graphs_do_not_recurse():
    @tg.trace
    def deep(x):
        for _ in range(3000):
            x = x * 1.01 + 0.1
        return x

    deep(random(2))
    text, got, expected = run_source(deep)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-12)
    assert max(map(len, text.splitlines())) < 140
    assert deep.explain()
    assert printing.to_dot(deep.graph)


# ----------------------------------------------------------------------------------------------------------------- kernels

SOURCE = """\
// a helper
static float twice(float x) { return 2 * x; }

// loss.py:3: x = {"a": 1}
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void first_k0(__global const float *x, __global float *y)
{
    // a comment with first_k0( and }
    for (int i = 0; i < 3; i++) { y[i] = twice(x[i]); }
}

kernel void second(global float *y) {
    y[0] = 1; /* } */
}
"""


def plan(**more):
    steps = (Launch("first_k0", (1,), (1,), (0, 1), flops=6000, bytes=24, note="a reduction ends it"), Launch("second", (1,), None, (1,)))
    slots = (Slot("input", (3,), np.dtype("float32"), "x"), Slot("output", (3,), np.dtype("float32"), "y", alias=0),
             Slot("temp", (512,), np.dtype("float32"), "t", block=0))
    return Plan(SOURCE, steps, slots, (0,), (1,), blocks=(2048,), **more)


def test_kernels():
    kernels = Kernels(plan())
    assert str(kernels) == SOURCE
    assert kernels.names == ["first_k0", "second"]
    assert len(kernels) == 2
    assert kernels[0].startswith("// loss.py:3")
    assert kernels[0].endswith("}\n}\n")
    assert kernels["second"] == kernels[-1] == "kernel void second(global float *y) {\n    y[0] = 1; /* } */\n}\n"
    assert list(kernels) == [kernels[0], kernels[1]]
    assert repr(kernels) == "<2 kernels: first_k0, second>"
    with pytest.raises(IndexError, match="kernels: there is no kernel 2; there are 2"):
        kernels[2]
    with pytest.raises(ArgumentError, match="there are first_k0, second"):
        kernels["third"]


def test_kernels_that_are_copied_encoded_and_put_into_texts():
    kernels = Kernels(plan())
    for same in (*(pickle.loads(pickle.dumps(kernels, protocol)) for protocol in range(2, 6)), copy.copy(kernels), copy.deepcopy(kernels)):
        assert same == SOURCE
        assert (type(same), same.names, same[1], len(same)) == (Kernels, kernels.names, kernels[1], 2)
    assert type(str(kernels)) is str
    assert {SOURCE: 1}[kernels] == 1
    assert (kernels[::-1], kernels[5:2], kernels[10:10**9:3]) == (SOURCE[::-1], "", SOURCE[10::3])
    assert kernels.encode() == bytes(kernels, "utf-8") == SOURCE.encode()
    assert kernels.split("\n") == SOURCE.split("\n")
    assert kernels.partition("kernel") == SOURCE.partition("kernel")
    assert json.dumps(kernels) == json.dumps(SOURCE)
    assert textwrap.indent(kernels, "  ") == textwrap.indent(SOURCE, "  ")
    assert "".join(reversed(kernels)) == kernels[1] + kernels[0]


def test_kernels_are_their_text(tmp_path):
    """What users do with the text of kernels: slices, searches, lines, files."""
    kernels = Kernels(plan())
    assert isinstance(kernels, str)
    assert kernels == SOURCE
    assert (kernels[:20], kernels[-9:], kernels[3:30:2]) == (SOURCE[:20], SOURCE[-9:], SOURCE[3:30:2])
    assert "kernel void second" in kernels
    assert "no such text" not in kernels
    assert kernels.find("second") == SOURCE.find("second")
    assert kernels.count("kernel void") == 2
    assert kernels.splitlines() == SOURCE.splitlines()
    assert kernels.replace("kernel", "__kernel") == SOURCE.replace("kernel", "__kernel")
    assert re.search(r"kernel void (\w+)", kernels)[1] == "first_k0"
    assert re.findall(r"void (\w+)", kernels) == ["first_k0", "second"]
    assert f"{kernels}!" == kernels + "!" == SOURCE + "!"
    for written in (io.StringIO(), (tmp_path / "kernels.cl").open("w+")):
        with written as file:
            file.write(kernels)
            file.seek(0)
            assert file.read() == SOURCE
    (tmp_path / "again.cl").write_text(kernels)
    assert json.loads(json.dumps({"text": kernels})) == {"text": SOURCE}
    for again in (pickle.loads(pickle.dumps(kernels)), copy.deepcopy(kernels)):
        assert (again, again.names, [*again], repr(again)) == (kernels, kernels.names, [*kernels], repr(kernels))
    assert kernels[np.int64(1)] == kernels[1]
    with pytest.raises(TypeError):
        kernels[1.0]
    assert not Kernels(None)
    assert Kernels(None)[:2] == "//"


def test_kernels_of_the_interpreter():
    kernels = Kernels(None)
    assert len(kernels) == 0
    assert "interprets" in str(kernels)
    with pytest.raises(IndexError, match="interprets"):
        kernels[0]
    assert list(kernels) == []


def test_explain():
    step = training_step()
    text = step.explain()
    assert "recorded 1 time" in text
    assert "1. first call" in text
    one = tg.trace(lambda x: x * 2.0)
    one(tg.ones(3))
    assert "1 operation (1 written, 0 derived), 1 input, 1 output: " in one.explain()
    assert "interprets" in text

    class Fake:
        graph, device = step.graph, SimpleNamespace(target=Target())
        executable, own_size = object(), None

    Fake.plan = plan(notes=("dead code removed",))
    text = explain(Fake, "step", [])
    for wanted in ("step on namespace", "fused into 2 kernels, 2 launches", "first_k0: 6.0 kflop, 24 B moved", "a reduction ends it",
                   "temporary memory: 2.0 KiB in 1 block for 1 intermediate", "updated in place: x", "dead code removed",
                   "recorded 0 times"):
        assert wanted in text


def test_explain_tells_what_each_kernel_computes_and_why_it_ends(device):
    if device.kind == "numpy":
        pytest.skip("the interpreter has no kernels")

    @tg.trace
    def f(x, w):
        h = (x @ w).relu()
        return h - h.mean(0)

    f(tg.rand(8, 16), tg.rand(16, 4))
    f(tg.rand(4, 16), tg.rand(16, 4))
    line = f.__wrapped__.__code__.co_firstlineno + 2
    text = f.explain()
    assert re.search(rf"computes matmul, le, where.* \(lines? {line}", text)
    assert "is read at other positions" in text
    assert "its results are results of the program" in text
    assert re.search(rf"sub \(lines? ({line}-)?{line + 1}\)", text)
    assert "2. x was float32[8, 16] and is float32[4, 16]" in text


def test_of_real_plans(device):
    @tg.trace
    def f(x):
        return (x * 2).exp().sum()

    f(tg.ones(5))
    assert "f" in f.explain()
    kernels = f.kernels()
    if device.kind != "numpy":
        assert len(kernels) >= 1
        assert all("kernel void" in k and k in str(kernels) for k in kernels)


# ------------------------------------------------------------------------------------------------------------------- graphs


def test_to_text_and_dot():
    @tg.trace
    def f(x, n):
        y = x * x
        return y.sum() * n

    f(random(2, 3), 3.0)
    text = printing.to_text(f.graph)
    assert text.splitlines()[0].startswith("x: float64[2,3] = placeholder()")
    assert "= mul(x, x)" in text
    assert "dim=(0, 1)" in text
    dot = printing.to_dot(f.graph)
    assert dot.startswith("digraph")
    assert dot.count('"x" -> "y" [label=') == 2
    assert dot.count("peripheries=2") == 1


def test_names():
    assert printing.identifier("model.0.weight") == "model_0_weight"
    assert printing.identifier("0") == "_0"
    assert printing.identifier("") == "value"


# ------------------------------------------------------------------------------------------------------------- command line


def test_command_line(capsys):
    assert main(["devices"]) == 0
    assert "driver" in capsys.readouterr().out
    assert main(["doctor"]) in (0, 1)
    assert "pyopencl" in capsys.readouterr().out
    assert main([]) == 2
    assert "run a script, and write the page" in capsys.readouterr().err
