"""torch.compile(model, backend="tracegrad") beside torch's eager mode: values, gradients, parameters, and what torch computes itself."""

from __future__ import annotations

import copy
import gc
import math
import subprocess
import sys
import tomllib
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._dynamo

    from tracegrad import from_dlpack
    from tracegrad.codegen.compiler import passes
    from tracegrad.errors import DeviceError
    from tracegrad.execute.devices import find_device
    from tracegrad.runtime.device import Device
    from tracegrad.torch_backend import backend, compiler
    from tracegrad.torch_backend import tensor_layouts as memory

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")       # dynamo looks at it when a graph was broken


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    """torch's seed, and none of its compiled functions, before each test."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(fn: Any, **options: Any) -> Any:
    return torch.compile(fn, backend=backend, **options)


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def steps(model: Any, batches: list[Any], loss: Callable[[Any, Any], Any], rate: float = 0.05) -> None:
    """Train both; losses, gradients, parameters and buffers are the same after each step, and the parameters the same objects."""
    other = copy.deepcopy(model)
    fast = compiled(other)
    before = [(p, p.data_ptr()) for p in other.parameters()]
    sides = [(model, model, torch.optim.SGD(model.parameters(), rate)), (fast, other, torch.optim.SGD(other.parameters(), rate))]
    for batch in batches:
        losses = []
        for call, _, optimizer in sides:
            optimizer.zero_grad()
            value = loss(call, batch)
            value.backward()
            losses.append(value.detach())
        close(losses[1], losses[0])
        for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
            assert q.grad.stride() == p.grad.stride()
        for *_, optimizer in sides:
            optimizer.step()
        for p, q in zip([*model.parameters(), *model.buffers()], [*other.parameters(), *other.buffers()], strict=True):
            close(q, p)
    assert all(p is q and p.data_ptr() == place for (p, place), q in zip(before, other.parameters(), strict=True))


def beside(fn: Any, *args: Any, **options: Any) -> Any:
    """fn and the compiled fn: results and the gradients of the arguments that require them. Returns the compiled one."""
    fast = compiled(fn, **options)
    found = []
    for call in (fn, fast):
        own = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in args]
        results = call(*own)
        listed = [x for x in (results if isinstance(results, tuple) else (results,)) if isinstance(x, torch.Tensor)]
        sums = [(x * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).reshape(x.shape)).sum() for x in listed if x.requires_grad]
        if sums:
            sum(sums).backward()
        found.append((results, [x.grad for x in own if isinstance(x, torch.Tensor) and x.requires_grad]))
    (wanted, gradients), (got, others) = found
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for x, y in pairs:
        if isinstance(y, torch.Tensor):
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            close(x, y)
        else:
            assert x == y
    for x, y in zip(others, gradients, strict=True):
        close(x, y)
    return fast


# ------------------------------------------------------------------------------------------------------------------ models


def test_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (name, value), = project["project"]["entry-points"]["torch_dynamo_backends"].items()
    assert name == "tracegrad"
    assert EntryPoint(name, value, "torch_dynamo_backends").load() is backend


def test_mlp() -> None:
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5))
    batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]
    steps(model, batches, lambda f, b: F.cross_entropy(f(b[0]), b[1]))


def test_convnet_with_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(8, 8, 3, stride=2, bias=False),
                          nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    batches = [(torch.randn(4, 3, 12, 12), torch.randint(5, (4,))) for _ in range(3)]
    steps(model, batches, lambda f, b: F.cross_entropy(f(b[0]), b[1]))


def test_lstm_cell_in_a_loop() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.last = nn.LSTMCell(6, 8), nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            h = c = x.new_zeros(x.shape[1], 8)
            for row in x:
                h, c = self.cell(row, (h, c))
            return self.last(h)

    batches = [(torch.randn(5, 3, 6), torch.randn(3, 1)) for _ in range(3)]
    steps(Model(), batches, lambda f, b: F.mse_loss(f(b[0]), b[1]))


def test_transformer_block_with_embedding() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(30, 16), nn.Embedding(10, 16)
            self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
            self.qkv, self.out, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)
            self.head = nn.Linear(16, 30, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids: Any) -> Any:
            n, length = ids.shape
            x = self.tokens(ids) + self.places(torch.arange(length))
            q, k, v = (y.view(n, length, 2, 8).transpose(1, 2) for y in self.qkv(self.first(x)).split(16, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(n, length, 16))
            return self.head(x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh")))

    batches = [torch.randint(30, (2, 9)) for _ in range(3)]
    steps(Block(), batches, lambda f, b: F.cross_entropy(f(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()))


def black_scholes(price: Any, strike: Any, years: Any, rate: float, volatility: Any) -> Any:
    root = volatility * years.sqrt()
    first = ((price / strike).log() + (rate + volatility * volatility / 2) * years) / root
    normal = lambda x: (1 + torch.erf(x / math.sqrt(2))) / 2
    return price * normal(first) - strike * torch.exp(-rate * years) * normal(first - root)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_black_scholes(dtype: Any) -> None:
    own = [torch.rand(100, dtype=dtype) + 0.5 for _ in range(3)]
    volatility = (torch.rand(100, dtype=dtype) + 0.1).requires_grad_()
    beside(black_scholes, own[0].requires_grad_(), own[1], own[2], 0.05, volatility)


def test_stencil_by_slicing() -> None:
    def heat(u: Any) -> Any:
        for _ in range(3):
            inner = u[1:-1, 1:-1] + 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
            u = u.clone()
            u[1:-1, 1:-1] = inner
        return u

    beside(heat, torch.randn(12, 10, requires_grad=True))


# ------------------------------------------------------------------------------------------------- what graphs take and give


def test_outputs_that_are_arguments_views_and_none() -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    fast = compiled(lambda x, y: (x, x.t(), (z := x * y), z.t(), z.view(-1), None, 3, z[1:], x.t() + 1))
    same, turned, z, zt, flat, nothing, three, part, more = fast(x, y)
    assert same is x
    assert turned.data_ptr() == x.data_ptr()
    assert (nothing, three) == (None, 3)
    close(z, x * y)
    z.add_(1)                                           # what is a view of it in torch sees the change, nothing else does
    close(zt, z.t())
    close(flat, z.view(-1))
    close(part, z[1:])
    assert more.stride() == (x.t() + 1).stride()
    close(more, x.t() + 1)
    close(fast(x, y)[2], x * y)


@pytest.mark.usefixtures("on_numpy")
def test_results_that_share_memory() -> None:
    """Without gradients nobody but the backend sees to it. What is expanded is so in torch: it has the strides and cannot be written."""
    def fn(x: Any) -> Any:
        y = (x * 2).view(-1)
        first, second = y.split(6)
        return second, first, y[4:8], (x + 1).sum(0).expand(3, 3), x.unbind()[1]

    x = torch.arange(12.0).reshape(4, 3)
    found, wanted = compiled(fn)(x), fn(x)
    for results in (found, wanted):
        results[2].add_(100)                             # overlaps with both halves
    close(found, wanted)
    assert [y.stride() for y in found] == [y.stride() for y in wanted]
    assert found[4].data_ptr() == wanted[4].data_ptr() == x[1].data_ptr()


def test_results_are_nobody_elses() -> None:
    """Torch may write a result or an argument afterwards; the next call knows nothing of it."""
    fast = compiled(lambda x: (x.clone(), x * 1.0, torch.zeros(5), x.reshape(10, 10).contiguous(), torch.tensor([1.0, 2.0])))
    x = torch.randn(100)
    kept = x.clone()
    for _ in range(3):
        results = fast(x)
        for r in (*results[:3], results[4]):
            r.add_(1)
        close(results[4], torch.tensor([2.0, 3.0]))
        close(results[0], kept + 1)
        close(results[1], kept + 1)
        close(results[2], torch.ones(5))
        close(x, kept)
    first = fast(x)[1]
    x.zero_()
    close(first, kept)


@pytest.mark.recall
@pytest.mark.skipif(not find_device(None).in_host_memory, reason="results are copies on this device")
def test_memory_of_a_result_is_its_own_as_long_as_anything_has_it() -> None:
    def fn(x: Any, y: Any) -> Any:
        return (x * 2 + y).sin(), (x + y).t() * 1.5, x.to(torch.bfloat16) + 1, x[:1, :1] - 1

    def numbers(r: Any) -> Any:
        return np.array(r.numpy() if hasattr(r, "numpy") else r)

    fast, x, y = compiled(fn), torch.randn(30, 20), torch.randn(30, 20)
    fast(x, y)
    for hold in (lambda r: r, lambda r: r[3:5], lambda r: r.numpy(), lambda r: r.view(-1)[7:], lambda r: from_dlpack(r, copy=False)):
        first = fast(x, y)[0]
        kept, place, wanted = hold(first), first.data_ptr(), numbers(hold(fn(x, y)[0]))
        del first
        for k in range(3):
            found, others = fast(x - k, y), fn(x - k, y)
            assert found[0].data_ptr() != place
            assert [r.stride() for r in found] == [r.stride() for r in others]
            close(found, others)
        np.testing.assert_allclose(numbers(kept), wanted, atol=1e-5)
        del kept


@pytest.mark.recall
@pytest.mark.skipif(not find_device(None).in_host_memory, reason="results are copies on this device")
def test_a_graph_is_waited_for_once(programs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results are not handed over one by one; equal ones (the gradients of two biases) are not the same memory."""
    cell, xs = nn.LSTMCell(6, 8), torch.randn(5, 3, 6)

    def loss(xs: Any) -> Any:
        h = c = xs.new_zeros(xs.shape[1], 8)
        for x in xs:
            h, c = cell(x, (h, c))
        return h.square().mean()

    fast, waits = compiled(loss), list[Any]()
    drain = type(find_device(None)).drain
    monkeypatch.setattr(type(find_device(None)), "drain", lambda self, queue: waits.append(queue) or drain(self, queue))
    wanted = torch.autograd.grad(loss(xs), list(cell.parameters()))
    for k in range(4):
        waits.clear()
        value = fast(xs)
        found = torch.autograd.grad(value, list(cell.parameters()))
        close(value, loss(xs))
        close(found, wanted)
        assert found[2].data_ptr() != found[3].data_ptr()
        assert k == 0 or len(waits) == 2
    assert [program._run is not None for program in programs] == [True, True]


def test_results_changed_in_place_have_gradients() -> None:
    def step(f: Any, x: Any) -> Any:
        y, z = f(x)
        y.mul_(2)
        z.add_(y)
        return torch.autograd.grad(z.sum(), x)[0]

    for x in (torch.randn(4, 3, requires_grad=True), torch.randn(3, 4).t().requires_grad_()):
        fn = lambda x: (x + 1, x.sin() * x)
        close(step(compiled(fn), x), step(fn, x))


def test_threads() -> None:
    """Calls and backward passes of several threads at once."""
    fast, w = compiled(lambda x, w: (x @ w).tanh()), torch.randn(3, 4, requires_grad=True)

    def work(k: int) -> Any:
        x = torch.full((5, 3), float(k))
        found = [torch.autograd.grad(fast(x, w).sum(), w)[0] for _ in range(10)]
        return all(torch.equal(found[0], other) for other in found), found[0], torch.autograd.grad((x @ w).tanh().sum(), w)[0]

    work(0)
    with ThreadPoolExecutor(4) as pool:
        for same, got, wanted in pool.map(work, range(8)):
            assert same
            close(got, wanted)


def test_mutation_of_arguments_and_buffers() -> None:
    def fn(x: Any, total: Any) -> Any:
        total.add_(x.sum(0))
        x[0] = 0
        return x.sin()

    x, total = torch.randn(4, 3), torch.zeros(3)
    own, others = x.clone(), total.clone()
    fast = compiled(fn)
    for _ in range(3):
        close(fast(own, others), fn(x, total))
        close(own, x)
        close(others, total)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        return x + y, x == y, x * 2, x.float() + 0.5, torch.where(x > y, x, y), x.sum(0)

    x, y = (torch.randint(0, 2 if dtype is torch.bool else 9, (5, 3)).to(dtype) for _ in range(2))
    beside(fn, x, y)


def test_empty_and_0d_tensors() -> None:
    x, y = torch.randn(0, 3, requires_grad=True), torch.randn((), requires_grad=True)
    beside(lambda x, y: (x.sum(), x + y, torch.cat([x, x]), y.exp()), x, y)


def test_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    y = compiled(model)(x)
    close(y, model(x))
    assert y.stride() == model(x).stride()
    beside(lambda x: x * 2, torch.randn(2, 3, 4).transpose(0, 2))


def test_strides_of_memory() -> None:
    """as_strided counts from the beginning of the memory that its argument is a part of."""
    fn = lambda x: (x.as_strided((2, 2), (3, 1), 5), x.as_strided((2, 2), (3, 1), 5) * 2, (x * 2).as_strided((2, 2), (3, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for x in (torch.randn(20), torch.randn(20)[3:], torch.randn(8, 5).t()):
            close(compiled(fn)(x), fn(x))
        fast = compiled(lambda x: x.as_strided((2, 2), (3, 1), 5) * 2)
        for x in (torch.randn(17), torch.randn(20)[3:]):                    # one graph
            close(fast(x), x.as_strided((2, 2), (3, 1), 5) * 2)


@pytest.mark.usefixtures("on_numpy")
def test_strides_of_a_result() -> None:
    """as_strided of what a graph computes is computed, also of a view: it counts in the memory of what that is a view of."""
    fn = lambda x: ((y := x.t() * 2)[1:].as_strided((2, 3), (1, 2), 1) + 1, y.t()[::2].as_strided((3,), (2,)).sin())
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        beside(fn, torch.randn(4, 3, requires_grad=True))


def test_graph_breaks_and_no_grad() -> None:
    def fn(x: Any) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        return (y * 2 if y.sum() > 0 else y * 3).cos()

    beside(fn, torch.ones(5, requires_grad=True))
    beside(fn, -torch.ones(5, requires_grad=True))
    with torch.no_grad():
        model = nn.Linear(4, 3)
        assert not compiled(model)(torch.ones(2, 4)).requires_grad
        close(compiled(model)(torch.ones(2, 4)), model(torch.ones(2, 4)))


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_sizes_that_vary(dynamic: Any) -> None:
    def fn(x: Any, w: Any) -> Any:
        return (x @ w).tanh().view(-1), x.shape[0] * 2, x.new_ones(x.shape[0])

    w = torch.randn(3, 4, requires_grad=True)
    fast = beside(fn, torch.randn(5, 3), w, dynamic=dynamic)
    for n in (6, 9, 5, 1, 6):
        x = torch.randn(n, 3)
        close(fast(x, w)[0], fn(x, w)[0])
        assert fast(x, w)[1:2] == (2 * n,)
        assert fast(x, w)[2].shape == (n,)
        own, other = (torch.autograd.grad(f(x, w)[0].square().sum(), w)[0] for f in (fn, fast))
        close(other, own)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are made."""
    found: list[Any] = []

    class Noted(compiler.Program):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr(compiler, "Program", Noted)
    return found


def test_products_of_a_cell_in_a_loop_are_one(programs: list[Any]) -> None:
    """A product of all rows with the weights, and one for the gradient of each weight."""
    cell = nn.LSTMCell(6, 8)

    def fn(x: Any) -> Any:
        h = c = x.new_zeros(x.shape[1], 8)
        for row in x:
            h, c = cell(row, (h, c))
        return h

    beside(fn, torch.randn(6, 3, 6))
    counts = []
    for program in programs:
        graph, target = program._traced._seen().program.graph, find_device(None).target
        for name, run in passes():
            graph = run(graph, target)
            if name == "products":
                break
        counts.append(sum(node.fn.name == "matmul" for node in graph))
    assert counts == [7, 7]                             # for h 6 and 5, one after the other


def test_views_of_arguments_are_not_handed_over(programs: list[Any]) -> None:
    """The backward graph makes rows of an argument again, instead of one argument each."""
    weight = torch.randn(3, requires_grad=True)
    beside(lambda x, w: torch.stack([(row * w).sin() for row in x]), torch.randn(5, 3), weight)
    assert [len(program._arguments) for program in programs] == [2, 3]


def test_small_tensors_of_a_kind_are_handed_over_as_one(programs: list[Any]) -> None:
    """What is a result as well, or large, or of a kind that there are few of is not among them."""
    cell = nn.LSTMCell(6, 8)

    def fn(x: Any, y: Any) -> Any:
        h = c = x.new_zeros(x.shape[1], 8)
        for row in x:
            h, c = cell(row, (h, c))
        for _ in range(6):
            y = y @ y.cos() / 130
        return h, c, y

    beside(fn, torch.randn(6, 3, 6), torch.randn(130, 130, requires_grad=True))
    shapes = [[tuple(layout.shape) for layout in program._layouts] for program in programs]
    assert [shape for shape in shapes[0] if len(shape) == 3] == [(35, 3, 8)]        # gates, cells and states but for the last ones
    assert shapes[0].count((3, 8)) == 2
    assert shapes[0].count((130, 130)) > 5
    assert [len(program._arguments) for program in programs][1] < 20


def test_attention_is_not_computed_again(programs: list[Any]) -> None:
    """The forward kernel has the rows' sums beside the result; the gradient's reads both."""
    q, k, v = (torch.randn(1, 2, 130, 16, requires_grad=True) for _ in range(3))
    beside(F.scaled_dot_product_attention, q, k, v)
    fused = [[node.fn.name for node in program._traced._seen().program.graph if node.fn.family == "attention"] for program in programs]
    assert fused == [["dot_product_attention", "attention_sums"], ["attention_gradient_of_sums"] * 3]


def test_a_small_argument_is_copied_when_the_graph_is_called() -> None:
    """A number that torch changes afterwards, of any strides and dtype."""
    fast, numbers = compiled(lambda x, y: (x.clone(), x.t() * y)), torch.arange(6.0)
    ones = torch.ones(2, 3)
    for x in (ones, torch.ones(3, 2).t(), torch.ones(1, 1).expand(2, 3), numbers.view(2, 3), ones.to(torch.bfloat16)):
        y = torch.tensor(2.0)
        kept, found = x.clone(), fast(x, y)
        y.zero_()
        if x is not numbers and x.stride() != (0, 0):
            x.add_(1)
        close(found, (kept, kept.t() * 2))


def test_a_small_argument_is_uploaded_where_its_contents_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes an argument, or a result that is one, changes nothing for the next call."""
    uploads, upload = list[Any](), memory.upload
    monkeypatch.setattr(memory, "upload", lambda *args, **options: uploads.append(args) or upload(*args, **options))
    fast, y = compiled(lambda x, y: (x.clone(), x.t() * 1.0, x.view(-1), (x * y).sum())), torch.randn(2, 3)
    for number in (1.0, 1.0, 1.0, -0.0, 0.0, 1.0, 1.0):
        x = torch.full((2, 3), number)
        kept, found = x.clone(), fast(x, y)
        close(found, (kept, kept.t(), kept.view(-1), (kept * y).sum()))
        assert bool(found[0].signbit().all()) == (math.copysign(1, number) < 0)
        for result in found[:2]:
            result.add_(1)
        x.add_(1)
    assert len(uploads) == 5 or type(find_device(None)) is not Device


def test_an_integer_that_varies_is_an_operand(programs: list[Any]) -> None:
    """torch makes the first value a constant. Of the others there is one forward and one backward program."""
    def fn(x: Any, n: Any) -> Any:
        return (x * n).sin() + n, x / n - n * 0.5, torch.where(x > 0, x, n)

    x, fast = torch.randn(5, 3, requires_grad=True), compiled(fn)
    for n in (7, 3, 4, 9, -2, 7, 2**40):
        close(fast(x, n), fn(x, n))
        own, other = (torch.autograd.grad(sum(y.square().sum() for y in f(x, n)[:2]) / n, x)[0] for f in (fn, fast))
        close(other, own)
    assert len(programs) == 4


def test_an_integer_that_decides_what_is_computed_is_a_constant() -> None:
    def fn(x: Any, n: Any) -> Any:
        return x.roll(n), x[:n] + n, torch.full((2, n), n), x * (n + 1), x.clamp(max=n)

    x, fast = torch.randn(9, 3), compiled(fn)
    for n in (7, 3, 4, 9, 7):
        close(fast(x, n), fn(x, n))


def test_a_third_size_builds_nothing(programs: list[Any]) -> None:
    w, fast = torch.randn(24, 16), compiled(lambda x, w: (x @ w).relu())
    built = []
    for n in (64, 96, 160, 224):
        x = torch.randn(n, 24)
        torch._dynamo.mark_dynamic(x, 0)
        close(fast(x, w), (x @ w).relu())
        built.append({function.key for program in programs for function in program._traced.plan.functions})
    assert len(programs) == 4
    assert built[1] == built[2] == built[3]


# --------------------------------------------------------------------------------------------------- what torch computes itself


def test_an_operator_that_is_not_mapped_is_named_once() -> None:
    def fn(x: Any) -> Any:
        return torch.linalg.det(x * 2) + 1, x.sin()

    x = torch.randn(3, 3)
    with pytest.warns(RuntimeWarning, match=r"torch computes aten\._linalg_det\.default"):
        close(compiled(fn)(x), fn(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(compiled(lambda x: torch.linalg.det(x) * 3)(x), torch.linalg.det(x) * 3)


def test_complex_numbers_and_fourier_transforms() -> None:
    """Conjugates are marks on a tensor in torch: as arguments, as results, and in between."""
    def fn(x: Any, z: Any) -> Any:
        spectrum = torch.fft.rfft(x)
        return torch.fft.irfft(spectrum * spectrum.conj()), torch.complex(x, x).conj(), z * 2, (z * 2).conj().abs(), torch.fft.ifft2(z).imag

    x, z = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8, dtype=torch.complex64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (z, z.conj()):
            found = compiled(fn)(x, given)
            close(found, fn(x, given))
            own, other = (torch.autograd.grad(sum(y.abs().sum() for y in f(x, given)), x)[0] for f in (fn, compiled(fn)))
            close(other, own)


def test_errors_of_values() -> None:
    """What torch checks in a graph is checked: an assertion of the program, and that a matrix is positive definite."""
    def asserted(x: Any) -> Any:
        torch._assert_async((x > 0).all(), "only positive numbers")
        return x * 2

    cases = (asserted, torch.eye(3) + 1, "only positive numbers"), (torch.linalg.cholesky, torch.eye(3), "not positive-definite")
    for fn, x, message in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            fast = beside(fn, x.requires_grad_())
            with pytest.raises(RuntimeError, match=message):
                fast(-x)


def test_a_view_of_a_result_is_not_the_result() -> None:
    """It begins where the result does and has as many elements, which lie elsewhere."""
    result = compiled(lambda a: a * 2)(torch.arange(4.0))
    for view in (result[:2].expand(2, 2), result.as_strided((2, 2), (1, 1)), result.view(2, 2).t(), result.view(torch.int32)):
        torch._dynamo.reset()
        assert torch.equal(compiled(lambda b: b + 1)(view), view + 1)


def test_memory_is_let_go_of() -> None:
    """What stands for a tensor while it lives keeps neither it nor its memory; another one in its place is another one."""
    fast, w = compiled(lambda x, w: (x @ w).sin()), torch.randn(3, 4, requires_grad=True)
    gone = []
    for k in range(4):
        x = torch.randn(50, 3)
        gone.append(weakref.ref(x.untyped_storage()))
        y = fast(x, w)
        close(torch.autograd.grad(y.sum(), w)[0], x.t() @ (x @ w).cos())
        with torch.no_grad():
            w.data = w.data * 2 if k % 2 else w.data.add_(1)
    del x, y
    gc.collect()
    assert not any(ref() for ref in gone)


def test_a_graph_that_cannot_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may lack what a graph needs."""
    def fails(fn: Any, dynamic: Any) -> Any:
        def call(*tensors: Any) -> Any:
            raise DeviceError("this device has no float64 (of the test)")
        return call

    monkeypatch.setattr(compiler, "trace", fails)
    fast, x = compiled(lambda x: x.sin() * 2), torch.randn(5, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="torch runs a graph as it is, because of an error: this device has no float64"):
        close(fast(x), x.sin() * 2)
    close(torch.autograd.grad(fast(x).sum(), x)[0], x.cos() * 2)


def test_random_numbers_are_torchs() -> None:
    def fn(x: Any) -> Any:
        return F.dropout(x * 2, 0.5) + 1

    x = torch.randn(50, requires_grad=True)
    fast = compiled(fn)
    for seed in range(3):
        torch.manual_seed(seed)
        wanted = fn(x)
        torch.manual_seed(seed)
        got = fast(x)
        close(got, wanted)
        close(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(wanted.sum(), x)[0])


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_is_torchs_only_where_it_draws(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    by_torch = compiler.Program._by_torch

    def noted(self: Any, node: Any, *rest: Any) -> Any:
        left.append(str(node.target))
        return by_torch(self, node, *rest)

    monkeypatch.setattr(compiler.Program, "_by_torch", noted)

    def fn(q: Any) -> Any:
        return F.scaled_dot_product_attention(q, q * 2, q - 1, dropout_p=dropout)

    q = torch.randn(2, 3, 8, 4)
    torch.manual_seed(1)
    wanted = fn(q)
    torch.manual_seed(1)
    close(compiled(fn)(q), wanted)
    assert bool(left) is bool(dropout)


@pytest.mark.usefixtures("on_numpy")
def test_several_draws_come_in_the_order_of_the_program() -> None:
    def fn(x: Any) -> Any:
        y = F.dropout(x, 0.5)
        z = torch.randn_like(x) + torch.rand(50)
        return z, F.dropout(y * z, 0.3), torch.bernoulli(torch.full((50,), 0.5)) * y

    x = torch.randn(50, requires_grad=True)
    fast = compiled(fn)
    for call in (fast, fast):
        torch.manual_seed(3)
        wanted, after = fn(x), torch.rand(1)
        torch.manual_seed(3)
        close(call(x), wanted)
        assert torch.equal(torch.rand(1), after)


@pytest.mark.usefixtures("on_numpy")
def test_transforms_in_a_graph() -> None:
    """Under vmap numbers are operands of tensors' operators."""
    def fn(x: Any) -> Any:
        each = torch.vmap(lambda row: row * 2 + row.sum())(x)
        slope = torch.func.grad(lambda y: (y.sin() * y).sum())(x)
        return each, slope, torch.utils.checkpoint.checkpoint(lambda y: y.exp().sin(), x, use_reentrant=False)

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        beside(fn, torch.randn(4, 3, requires_grad=True))


def test_options_are_refused() -> None:
    with pytest.raises(Exception, match="has no options, got level"):
        compiled(lambda x: x + 1, options={"level": 3})(torch.ones(3))


def test_torch_is_not_imported_by_tracegrad() -> None:
    code = "import sys, tracegrad, tracegrad.torch_backend; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
