"""Indices out of range: every function that takes indices reports them, on every device, at the line where it was called."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.marks import one_of
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import REGISTRY, bind, cast, placeholder
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.ops.arrays.index_checks import interval
from tracegrad.runtime.faults import ROWS

N = 5                                # the dimension that indices are for
GOOD = [4, 0, 2]


def put(x: Any, index: Any) -> Any:
    y = x * 1.0
    y[index] = 7.0
    return y


# What is called, of a float32 tensor (5, 3) and indices (3): the name in the error, the function, whether negative ones count from the end.
CASES: list[tuple[str, Any, bool]] = [
    ("getitem", lambda x, at: x[at], True),
    ("getitem", lambda x, at: x.t()[:, at], True),
    ("getitem", lambda x, at: x[at, at % 3], True),
    ("setitem", put, True),
    ("take", lambda x, at: x[:, 0].take(at), True),
    ("take_along_dim", lambda x, at: x.take_along_dim(at.reshape(3, 1), 0), True),
    ("take_along_dim", lambda x, at: x[:, 1].take_along_dim(at), True),
    ("gather", lambda x, at: x.gather(0, at.reshape(1, 3)), False),
    ("gather", lambda x, at: x.t().gather(1, at.int().reshape(3, 1)), False),
    ("scatter", lambda x, at: x.scatter(0, at.reshape(1, 3), 2.0), False),
    ("scatter_add", lambda x, at: x.scatter_add(0, at.reshape(1, 3), x[:1]), False),
    ("index_select", lambda x, at: x.index_select(0, at), False),
    ("index_add", lambda x, at: x.index_add(0, at, x[:3]), False),
    ("index_copy", lambda x, at: x.index_copy(0, at, x[:3]), False),
    ("embedding", lambda x, at: F.embedding(at, x, padding_idx=1), False),
    ("one_hot", lambda x, at: F.one_hot(at, N) * x.sum(), False),
    ("nll_loss", lambda x, at: F.nll_loss(x.t(), at), False),
    ("cross_entropy", lambda x, at: F.cross_entropy(x.t(), at, reduction="none"), False),
    ("cross_entropy", lambda x, at: F.cross_entropy(x.t(), at, x[:, 0] ** 2, label_smoothing=0.1), False),
]
IDS = [f"{name}{k}" for k, (name, _, _) in enumerate(CASES)]
X = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)


def untraced(fn: Any) -> Any:
    return lambda x, at: fn(x, at).numpy()


def traced(fn: Any) -> Any:
    whole = tg.trace(fn)
    return lambda x, at: whole(x, at).numpy()


def gradient(fn: Any) -> Any:
    def run(x: Any, at: Any) -> Any:
        x = x.clone().requires_grad_()
        (fn(x, at) ** 2).sum().backward()
        return x.grad.numpy()
    return run


def traced_gradient(fn: Any) -> Any:
    whole = tg.trace(tg.grad(lambda x, at: (fn(x, at) ** 2).sum()))
    return lambda x, at: whole(x, at).numpy()


def backward_through_a_replay(fn: Any) -> Any:
    return gradient(tg.trace(fn))


@pytest.mark.usefixtures("device")
@one_of(7, ("case", "side", "way"), product(
    range(len(CASES)), ["too large", "too small"], [untraced, traced, gradient, traced_gradient, backward_through_a_replay],
), ids=lambda value: IDS[value] if isinstance(value, int) else getattr(value, "__name__", value))
def test_every_function_reports(case: int, side: str, way: Any) -> None:
    name, fn, wraps = CASES[case]
    low = -N if wraps else 0
    wrong = N if side == "too large" else low - 1
    x = tg.tensor(X)
    run = way(fn)
    right = run(x, tg.tensor([*GOOD[1:], low]))
    with pytest.raises(tg.IndexOutOfRange) as caught:
        run(x, tg.tensor([GOOD[1], wrong, low]))
    message = str(caught.value)
    place = put if name == "setitem" else fn
    assert message.startswith(f"{name} at {__file__}:{place.__code__.co_firstlineno + (2 if place is put else 0)}: ")
    assert f" holds {wrong}, out of range for" in message
    assert f"valid are {low} to {N - 1}" in message
    assert isinstance(caught.value, IndexError)
    np.testing.assert_array_equal(run(x, tg.tensor([*GOOD[1:], low])), right)             # the next call is clean
    assert x.tolist() == X.tolist()
    tg.synchronize()                                                                       # and nothing is left to say


# --------------------------------------------------------------------------------------------------------- who is told, and when


def fails(read: Any) -> str:
    """The message of the error that it raises."""
    with pytest.raises(tg.IndexOutOfRange) as caught:
        read()
    return str(caught.value)


@pytest.mark.usefixtures("device")
class TestWhoIsTold:
    def test_what_does_not_depend_on_it_is_as_it_was(self):
        """Also where both are results of one program."""
        x, at = tg.tensor(X), tg.tensor([9])
        bad, good = x[at], x * 2
        fails(bad.numpy)
        np.testing.assert_array_equal(good.numpy(), X * 2)
        bad, good = tg.trace(lambda x, at: (x[at], x * 3))(x, at)
        np.testing.assert_array_equal(good.numpy(), X * 3)
        fails(bad.numpy)
        fails(bad.numpy)                                           # it stays wrong

    @pytest.mark.parametrize("read", [lambda x: x.sum().item(), lambda x: x.tolist(), repr, np.asarray, lambda x: bool((x > 0).any()),
                                      lambda x: x.to("numpy").numpy(), lambda x: [row.tolist() for row in x]])
    def test_what_follows_from_it_is_wrong(self, read):
        x, at = tg.tensor(X), tg.tensor([9])
        bad = x[at]
        with pytest.raises(tg.IndexOutOfRange):
            read(tg.trace(lambda y: y + 1)(bad * 2) - 1)

    def test_gather_only_in_the_past_of_a_loop(self):
        x = tg.tensor(X)
        step = tg.trace(lambda x, at: x * 0.5 + x[at])
        for k in range(3 * ROWS):                                            # nobody looks; more runs than are remembered
            x = step(x, tg.tensor([N if k == 1 else 0]))
        fails(x.numpy)

    def test_an_in_place_update_is_wrong_until_it_is_overwritten(self):
        w = tg.tensor(X)
        other = tg.tensor(X)

        @tg.trace
        def step(at):
            w.sub_(w[at].sum())
            other.mul_(2.0)

        step(tg.tensor([0]))
        before = w.numpy()
        step(tg.tensor([N]))
        step(tg.tensor([0]))
        fails(w.numpy)
        fails((w + 1).numpy)
        np.testing.assert_array_equal(other.numpy(), X * 8)
        w.copy_(tg.tensor(before))
        np.testing.assert_array_equal(w.numpy(), before)

    def test_a_copy_is_as_wrong(self):
        """A traced update of a tensor whose old value somebody else holds works on a copy."""
        w = tg.tensor(X)[tg.tensor([9])]
        old = w.clone()
        same = w.detach()

        @tg.trace
        def step():
            w.add_(1.0)

        fails(lambda: (step(), w.numpy()))
        fails(old.numpy)
        fails(same.numpy)

    def test_synchronize_tells_once_what_nobody_read(self):
        f = tg.trace(lambda x, at: x[at])
        f(tg.tensor(X), tg.tensor([-6]))
        assert " holds -6," in fails(tg.synchronize)
        tg.synchronize()
        x = tg.tensor(X).index_select(0, tg.tensor([5]))
        fails(tg.synchronize)
        fails(x.numpy)
        tg.synchronize()

    def test_a_line_of_its_own_for_each_use_of_a_cached_program(self):
        x = tg.tensor(X)
        calls = (
            lambda at: x.index_select(0, at),
            lambda at: x.index_select(0, at),
        )
        for call, wrong in zip(calls, (7, 8), strict=True):
            message = fails(call(tg.tensor([wrong])).numpy)
            assert f" at {__file__}:{call.__code__.co_firstlineno}: index holds {wrong}," in message

    def test_the_worst_of_many_is_named(self):
        wrong = np.zeros(10_000, np.int64)
        wrong[[70, 7_000]] = 12, 2**40
        wrong[9] = -3
        message = fails(lambda: tg.tensor(X).index_select(0, tg.tensor(wrong)).numpy())
        assert int(message.split(" holds ")[1].split(",")[0]) >= 2**31 - 1

    def test_a_host_step_never_sees_it(self):
        seen = []

        @tg.trace
        def f(x, at):
            return tg.host_call(lambda a: seen.append(a) or a, x[at], like=((1, 3), tg.float32)) + 1

        assert f(tg.tensor(X), tg.tensor([1])).shape == (1, 3)
        fails(lambda: f(tg.tensor(X), tg.tensor([5])).numpy())
        assert len(seen) == 1 or tg.device().kind == "numpy"
        np.testing.assert_array_equal(f(tg.tensor(X), tg.tensor([2])).numpy(), X[[2]] + 1)

    def test_a_loop_on_the_device(self):
        f = tg.trace(lambda x, at: tg.while_loop(lambda c: c[0].sum() < 20, lambda c: (c[0] + x[c[1]], c[1] + 1), (x[0], at)))
        fails(lambda: np.array(f(tg.ones(3, 4), tg.tensor(0))[0]))


# ------------------------------------------------------------------------------------------------------------- what is in order


@pytest.mark.usefixtures("device")
class TestNoFalseAlarm:
    def test_ignore_index(self):
        scores = tg.tensor(X)
        want = F.cross_entropy(scores[:2], tg.tensor([1, 2])).item()
        for ignored in (-100, 3, 1000):
            loss = F.cross_entropy(scores[:3], tg.tensor([1, 2, ignored]), ignore_index=ignored)
            np.testing.assert_allclose(loss.item(), want, rtol=1e-6)
        fails(lambda: F.cross_entropy(scores[:3], tg.tensor([1, 2, -100]), ignore_index=-1).item())

    def test_the_branch_not_taken(self):
        x = tg.tensor(X)

        def branch(at):
            return tg.cond((at < N).all(), lambda at: x[at].sum(), lambda at: x.sum(), at)

        f = tg.trace(branch)
        g = tg.trace(lambda x, at: tg.grad(lambda x: tg.cond((at < N).all(), lambda x: x[at].sum(), lambda x: x.sum(), x))(x))
        np.testing.assert_allclose(f(tg.tensor([9])).item(), X.sum(), rtol=1e-5)
        np.testing.assert_allclose(f(tg.tensor([2])).item(), X[2].sum(), rtol=1e-5)
        np.testing.assert_array_equal(g(x, tg.tensor([9])).numpy(), np.ones((N, 3)))
        fails(lambda: f(tg.tensor([-9])).item())
        fails(lambda: g(x, tg.tensor([-9])).numpy())
        each = tg.vmap(branch)
        np.testing.assert_allclose(each(tg.tensor([[1], [9]])).numpy(), [X[1].sum(), X.sum()], rtol=1e-5)

    def test_values_that_are_computed_for_nothing(self):
        """Where a pad hides what was gathered, an index there is nobody's; a mask's places are not the user's indices."""
        x = tg.tensor(X)
        shifted = F.pad(x[tg.tensor([1, 2, 3, 4, 5]) - 1], (2, 3, 1, 2))
        np.testing.assert_array_equal(shifted.numpy(), np.pad(X, ((1, 2), (2, 3))))
        x[x > 0] = tg.tensor(np.arange(1.0, 1 + (X > 0).sum(), dtype=np.float32))
        assert x.max().item() == (X > 0).sum()

    def test_vmap(self):
        x = tg.tensor(X)
        f = tg.vmap(lambda at: x[at])
        np.testing.assert_array_equal(f(tg.tensor([4, -5])).numpy(), X[[4, 0]])
        fails(lambda: f(tg.tensor([4, 5])).numpy())
        fails(lambda: tg.vmap(lambda x, at: x[at])(x, tg.tensor([0, 1, 2, 3, 0])).numpy())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("index", [[0, 5], np.array([-6]), 5, (slice(None), [3])], ids=str)
def test_what_is_known_at_the_call_fails_at_the_call(index):
    x = tg.tensor(X)
    for call in (lambda: x[index], lambda: x.__setitem__(index, 0.0)):
        assert "out of range" in fails(call)
    assert "getitem: index holds 7" in fails(lambda: x[tg.full((2,), 7)])
    assert "embedding: input holds 5" in fails(lambda: F.embedding(tg.arange(2) * 0 + 5, x))
    assert x.tolist() == X.tolist()


# ----------------------------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("index", [
    lambda x: tg.arange(N), lambda x: x.argmax(0), lambda x: x.argsort(0)[:, 0], lambda x: x.topk(2, 0).indices[:, 1],
    lambda x: x[:, 0].sort().indices, lambda x: tg.cat([tg.arange(2), tg.arange(N)]), lambda x: (x[:, 0] * 9).long().clamp(0, 4),
    lambda x: tg.randint(-N, N, (4,)), lambda x: tg.randint(0, 2, (4,), dtype=tg.int32) + 3, lambda x: (x[:, 0] > 0).long(),
    lambda x: x.argmax(0) % N - N, lambda x: (x[:, 0] * 9).long() % N, lambda x: (x[:, 0] * 9).long() & 3,
    lambda x: tg.where(x[:, 0] > 0, 0, tg.arange(N)),
], ids=lambda f: str(f.__code__.co_firstlineno))
def test_what_cannot_be_out_of_range_is_not_looked_at(index):
    f = tg.trace(lambda x: x[index(x)])
    f(tg.tensor(X)).numpy()
    assert not any(n.fn.name == "in_range" for n in f.graph)


def test_intervals_hold():
    """Of random expressions: what numpy computes lies in the interval, overflow included."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        start = placeholder(Aval((16,), np.dtype(rng.choice(["int8", "uint8", "int32", "int64"]))))
        info = np.iinfo(start.dtype)
        nodes: list[Any] = [start, REGISTRY['minimum'](start, 9) if rng.random() < 0.5 else start]
        for _ in range(6):
            a, b = (nodes[rng.integers(len(nodes))] for _ in range(2))
            op = rng.choice(["add", "sub", "mul", "remainder", "maximum", "minimum", "bitwise_and", "where", "clamp", "cast", "flip",
                             "pad"])
            if op == "where":
                nodes.append(REGISTRY['where'](a < b, a, b))
            elif op == "cast":
                nodes.append(cast(a, np.dtype(rng.choice(["int16", "int64"]))))
            elif op == "flip":
                nodes.append(a.flip(0))
            elif op == "pad":
                nodes.append(bind(REGISTRY["pad"], (a[1:],), {"low": (1,), "high": (0,), "interior": (0,), "value": 3}))
            elif op == "clamp":
                nodes.append(a.clamp(int(rng.integers(0, 9)), int(rng.integers(9, 100))))
            else:
                nodes.append(getattr(tg, str(op))(a, b))
        values = rng.integers(info.min, info.max, 16, start.dtype, endpoint=True)
        results = interpret(Graph.capture([start], nodes), [values])
        for node, value in zip(nodes, results, strict=True):
            low, high = interval(node)
            assert low <= value.min() <= value.max() <= high, node
