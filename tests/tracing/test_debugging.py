"""tg.debug and f.compare: which operation is the first whose numbers go wrong, and that they change nothing."""

import inspect

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.errors import ArgumentError
from tracegrad.execute.program import Program
from tracegrad.nn import functional as F
from tracegrad.support.plan import Launch


def line_of(fn, text):
    """Where a line with this text stands in a function."""
    lines, first = inspect.getsourcelines(fn._fn if hasattr(fn, "_fn") else fn)
    return f"test_debugging.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def test_the_first_nan_with_its_operands(device):
    @tg.trace
    def loss(x, w):
        y = x - w
        z = y.log()
        return (z * 2.0).mean()

    found = tg.debug(loss)(tg.tensor([[3.0, 5.0], [4.0, 1.0]]), tg.tensor([1.0, 2.0]))
    first = found.first
    assert found
    assert (first.kind, first.operation.op, first.operation.derived) == ("nan", "log", False)
    assert first.operation.line == line_of(loss, "y.log()")
    assert first.operation.source == "z = y.log()"
    assert (first.index, first.count) == ((1, 1), 1)
    assert [(o.name, o.values.tolist()) for o in first.operands] == [("y", -1.0)]
    assert "y = -1" in str(found)
    assert not tg.debug(loss)(tg.tensor([[3.0, 5.0], [4.0, 3.0]]), tg.tensor([1.0, 2.0]))


def test_it_is_found_in_the_backward(device):
    @tg.trace
    def gradient(x, w):
        def inner(w):
            y = x * w
            return y.sqrt().sum()
        return tg.grad(inner)(w)

    found = tg.debug(gradient)(tg.tensor([1.0, 0.0]), tg.tensor([1.0, 1.0]))
    assert found.first.kind == "inf"
    assert found.first.operation.derived
    assert found.first.operation.line == line_of(gradient, "y.sqrt()")
    assert "the backward of" in str(found)
    assert found.found["nan"].operation.line == line_of(gradient, "x * w")


def test_infinities_and_denormals(device):
    big = tg.trace(lambda x: (x * x).sqrt())
    found = tg.debug(big)(tg.tensor([1.0, 1e30, 2.0]))
    assert (found.first.kind, found.first.index, found.first.operands[0].values.tolist()) == ("inf", (1,), pytest.approx(1e30))
    assert np.isinf(found.first.value)
    small = tg.trace(lambda x: x * 1e-3)
    found = tg.debug(small)(tg.tensor([1.0, 1e-37, 0.0]))
    assert (found.first.kind, found.first.index, found.first.count) == ("denormal", (1,), 1)
    assert not tg.debug(small, find=("nan", "inf"))(tg.tensor([1.0, 1e-37, 0.0]))
    assert tg.debug(small)(tg.tensor([1e-40])).first.operation.op == "input", "what is given is looked at, too"


@one_of(2, "dtype", [tg.float16, tg.bfloat16, tg.float64, tg.complex64])
def test_all_dtypes(dtype):
    f = tg.trace(lambda x: (x / (x - x)) * 0.0)
    found = tg.debug(f)(tg.tensor([1.0, 2.0]).to(dtype))
    assert found.first.operation.op == "div"
    assert found.first.kind in (("nan",) if dtype == tg.complex64 else ("inf",))
    assert set(found.found) >= {"nan"}


def test_operands_of_reductions_and_products():
    f = tg.trace(lambda x: (x * 1e30).sum(1))
    found = tg.debug(f)(tg.tensor([[1.0, 2.0, 3.0], [1e8, 1e8, 3e8], [0.0, 0.0, 0.0]]))
    assert (found.first.operation.op, found.first.index) == ("sum", (1,))
    np.testing.assert_allclose(found.first.operands[0].values, [1e38, 1e38, 3e38], rtol=1e-6)
    product = tg.trace(lambda a, b: a @ b)
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    a[2], b[:, 3] = 1e20, 1e20
    first = tg.debug(product)(tg.tensor(a), tg.tensor(b)).first
    assert first.index == (2, 3)
    assert [o.values.tolist() for o in first.operands] == [a[2].tolist(), b[:, 3].tolist()]
    batched = tg.debug(product)(tg.tensor(np.stack([a * 0, a])), tg.tensor(np.stack([b, b]))).first
    assert (batched.index, [o.values.shape for o in batched.operands]) == ((1, 2, 3), [(4,), (4,)])


def training():
    tg.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = tg.optim.SGD(model.parameters(), lr=0.1)

    @tg.trace
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def test_it_changes_nothing(device):
    model, step = training()
    x, y = tg.randn(6, 4), tg.tensor([0, 1, 0, 1, 1, 0])
    step(x, y)
    before, state = [p.detach().numpy().copy() for p in model.parameters()], tg.get_rng_state()
    compilations = len(step.compilations)
    found = tg.debug(step, find=("nan", "inf"))(x, y)
    assert not found
    assert step.compare(x, y)
    assert len(found.ranges) > 10
    assert all(np.array_equal(a, p.detach().numpy()) for a, p in zip(before, model.parameters(), strict=True))
    assert (tg.get_rng_state() == state) is True or np.array_equal(tg.get_rng_state(), state)
    assert len(step.compilations) == compilations
    with tg.no_grad():
        model[2].weight[0, 0] = float("nan")
    found = tg.debug(step)(x, y)
    assert (found.first.kind, found.first.operation.op, found.first.operation.name) == ("nan", "input", "model.2.weight")
    assert found.first.index == (0, 0)


def test_modules_are_named():
    class Bad(nn.Module):
        def forward(self, x):
            return x.log()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), Bad()

        def forward(self, x):
            return self.second(self.first(x) * 0.0 - 1.0)

    model = Net()

    @tg.trace
    def f(x):
        return model(x)

    found = tg.debug(f)(tg.ones(2, 3))
    assert found.first.operation.module == "model.second"
    assert " in " in str(found)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_iteration_of_a_loop(device, reverse):
    @tg.trace
    def f(x):
        def body(h, row):
            left = h - row
            return left.sqrt(), left.sum()
        return tg.scan(body, tg.tensor([5.0, 9.0]), x, reverse=reverse)

    found = tg.debug(f)(tg.tensor([[1.0, 0.0], [1.0, 5.0], [0.0, 0.0]]))
    first = found.first
    assert (first.kind, first.operation.op, first.operation.line) == ("nan", "sqrt", line_of(f, "left.sqrt()"))
    assert (first.iteration, first.index) == (1, (1,))
    assert float(first.operands[0].values) < 0
    assert "iteration 1" in str(found)


def test_ranges_and_histograms():
    @tg.trace
    def f(x):
        y = x * 4.0
        return y.sum()

    found = tg.debug(f)(tg.tensor([0.0, 1.0, 2.0, 16.0, -3.0, float("inf")]))
    y = next(r for r in found.ranges if r.operation.op == "mul")
    assert (y.operation.name, y.low, y.high, y.zeros, y.wrong) == ("y", -12.0, 64.0, 1, 1)
    assert y.edges == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert y.histogram == [1, 2, 0, 0, 1]
    assert len(y.bars) == 5
    for text in (found.table(), found._repr_html_()):
        assert y.bars in text
        assert "-12" in text
    wide = next(r for r in tg.debug(f)(10.0 ** tg.arange(-30.0, 30.0)).ranges if r.operation.op == "mul")
    assert sum(wide.histogram) == 60
    assert len(wide.histogram) <= 12
    assert wide.edges[0] <= np.log2(4e-30) < np.log2(4e29) < wide.edges[-1]


def test_the_checks_are_in_the_kernels(kernels, monkeypatch):
    """One plan looks at all intermediates: none of them is stored, and nothing is computed by the host."""
    plans = []
    real = Program.__call__

    def call(self, *args):
        plans.append(self.plan)
        return real(self, *args)

    f = tg.trace(lambda x: ((x * 2.0).sin() + x).tanh())
    x = tg.ones(1000, 1000)
    f(x)
    monkeypatch.setattr(Program, "__call__", call)
    assert not tg.debug(f)(x)
    (plan,) = plans
    assert all(isinstance(step, Launch) for step, _ in plan.each())
    assert max(slot.nbytes for slot in plan.slots if slot.kind != "input") < x.numel() * 4
    assert sum(launch.bytes for launch in plan.launches) < 3 * x.numel() * 4


def test_a_look_that_comes_again_compiles_nothing(device, monkeypatch):
    f = tg.trace(lambda x: x.log().sum())
    assert not tg.debug(f)(tg.tensor([1.0, 2.0]))
    made = []
    monkeypatch.setattr(Program, "compile", lambda self, *args, **kwargs: made.append(self))
    assert not tg.debug(f)(tg.tensor([3.0, 2.0]))
    assert made == []
    monkeypatch.undo()
    first, second = tg.debug(f)(tg.tensor([1.0, -1.0])), tg.debug(f)(tg.tensor([-2.0, 1.0]))
    assert (first.first.index, second.first.index) == ((1,), (0,))
    assert [r.low for r in first.ranges[:1]] == [-1.0]                      # each has its own call's values
    assert [r.low for r in second.ranges[:1]] == [-2.0]


def test_debug_of_an_untraced_function_and_refusals():
    assert tg.debug(lambda x: (x - 1).log())(tg.zeros(2)).first.operation.op == "log"
    found = tg.debug(tg.exp, find=("nan", "inf"))(tg.ones(2))
    assert str(found) == f"exp: {len(found.ranges)} intermediates, none with nan or inf"
    with pytest.raises(ArgumentError, match=r"^debug: find takes some of .* got \('zero',\)"):
        tg.debug(lambda x: x, find=("zero",))(tg.ones(1))
    f = tg.trace(lambda x: x.sin())
    for look in (tg.debug(f), f.compare):
        with pytest.raises(ArgumentError, match=r"^(debug|compare): .* inside another trace"):
            tg.trace(look)(tg.ones(1))


# --------------------------------------------------------------------------------------------------------------- compare


def test_the_first_operation_that_leaves_float64(device):
    @tg.trace
    def f(x):
        big = x + 1000.0
        small = big - 1000.0
        return small * 2.0

    x = tg.tensor([1e-4, 0.5, 3.0])
    found = f.compare(x)
    assert found.first is None
    found = f.compare(tg.tensor([1e-4, 3e-4, 2e-4]))
    assert not found
    assert (found.first.operation.op, found.first.operation.line) == ("sub", line_of(f, "big - 1000.0"))
    assert found.first.reference == pytest.approx([1e-4, 3e-4, 2e-4][found.first.index[0]], rel=1e-6)
    assert found.first.error == pytest.approx(abs(found.first.value - found.first.reference) / 3e-4, rel=1e-3)
    assert found.first.operands[0].name == "big"
    assert abs(float(found.first.operands[0].values) - float(found.first.references[0].values)) < 1e-4
    assert "leaves it first at sub" in str(found)
    assert f.compare(tg.tensor([1e-4, 3e-4, 2e-4]), tolerance=0.5)
    assert [operation.op for operation, _ in found.errors] == ["input", "add", "sub", "mul"]


def test_a_device_beside_the_interpreter(kernels):
    f = tg.trace(lambda x, w: tg.softmax(x @ w, 1).sum(0))
    x, w = tg.randn(20, 30), tg.randn(30, 10)
    found = f.compare(x, w, reference="numpy")
    assert found
    exact = tg.trace(lambda x: x * 2.0).compare(tg.ones(3))
    assert str(exact).endswith("beside float64: no operation of 2 leaves it; all results are the same")
    left = tg.trace(lambda x: x * 2.0 / 3.0).compare(tg.ones(3), tolerance=0.0)
    assert [line.split()[1] for line in str(left).partition("largest errors:\n")[2].splitlines()] == ["div"], "those that differ alone"
    assert "the device numpy" in str(found)
    exact = f.compare(x, w, reference="numpy", tolerance=0.0)
    assert not exact
    assert exact.first.operation.op in ("matmul", "exp", "sum", "amax", "sub", "div")


def test_halves_random_numbers_loops_and_casts_beside_float64(device):
    @tg.trace
    def f(x, n):
        noise = tg.rand(5, 5)
        h = tg.scan(lambda h, row: (tg.tanh(h + row), h.sum()), tg.zeros(5), x + noise)[0]
        half = (h.half() * 2.0).float()
        index = x.argmax(1)
        return half.sum() * n, x.gather(1, index[:, None]), tg.linalg.solve(x + 5.0 * tg.eye(5), h)

    x = tg.randn(5, 5)
    found = f.compare(x, 0.5, tolerance=0.05)
    assert found, str(found)
    assert {"tanh", "rand", "mul"} & {operation.op for operation, _ in found.errors}
    assert f.compare(x, 0.5, reference="numpy", tolerance=0.05)


def test_nan_and_infinities_are_alike_where_they_are_the_same():
    f = tg.trace(lambda x: x.log())
    assert f.compare(tg.tensor([-1.0, 0.0, 1.0]))
    overflow = tg.trace(lambda x: x * x)
    found = overflow.compare(tg.tensor([1e30]))
    assert found.first.error == float("inf")
