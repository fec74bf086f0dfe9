"""Calls of composed functions whose nodes nobody asks for (ir.LazyNode): whoever asks sees what he saw when the call was made at length.

The first calls of a function make nodes, later ones of the same signature do not. So every test makes some iterations of a loop that are
the same to the user, and compares what the later ones tell with what the first one told.
"""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.autodiff.histories import PROGRAMS, REFUSED
from tests.autodiff.test_history import EXPECTED, leaves, values
from tests.helpers import corpus
from tests.helpers.marks import DEVICES, one_of
from tests.helpers.values import given
from tracegrad import nn
from tracegrad.autograd import backward_cache
from tracegrad.execute.program import recipes
from tracegrad.graph.ir import LazyNode
from tracegrad.nn import functional as F

TURNS = 6


CALLS = {
    "linear": F.linear,
    "log_softmax": lambda x, w, b: F.log_softmax(x @ w.T, -1),
    "layer_norm": lambda x, w, b: F.layer_norm(F.linear(x, w), (7,), None, b),
    "row": lambda x, w, b: F.linear(x, w, b)[2],
    "part of a row": lambda x, w, b: F.linear(x, w, b).softmax(0)[1, 2:5],
    "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "stack": lambda x, w, b: tg.stack([F.linear(x, w, b)[k].square().sum() for k in range(3)]),
    "standard deviation": lambda x, w, b: F.linear(x, w, b).std(1),
    "matrices of one": lambda x, w, b: tg.outer(b, b).unsqueeze(0) * 0.5,
    "cross entropy": lambda x, w, b: F.cross_entropy(F.linear(x, w, b), tg.tensor([1, 2, 0, 6, 5]), reduction="none"),
}


def parameters(dtype=tg.float32):
    return [t.to(dtype).detach().requires_grad_() for t in (given(0, 5, 13), given(1, 7, 13), given(2, 7))]


def told(error):
    return type(error).__name__, str(error).split(":")[0], str(error).split(".py")[0], str(error)[-70:]


@one_of(4, ("name", "device"), product(CALLS, DEVICES), indirect=["device"])
def test_what_a_freed_call_tells_is_the_same_in_every_iteration(name, device):
    x, w, b = parameters()
    found = []
    for _ in range(TURNS):
        y = CALLS[name](x, w, b)
        y.sum().backward()
        grads = [None if p.grad is None else p.grad.numpy() for p in (x, w, b)]
        x.grad = w.grad = b.grad = None
        with pytest.raises(tg.AutogradError) as again:
            y.square().sum().backward()
        found.append((told(again.value), grads, y.detach().numpy()))
    for what, grads, value in found[1:]:
        assert what == found[0][0]
        np.testing.assert_allclose(value, found[0][2], rtol=2e-6, atol=2e-6)
        for g, first in zip(grads, found[0][1], strict=True):
            assert (g is None) == (first is None)
            if g is not None:
                np.testing.assert_allclose(g, first, rtol=1e-5, atol=2e-5)


@one_of(5, ("name", "device"), product(CALLS, DEVICES), indirect=["device"])
def test_derivatives_of_derivatives_hooks_and_histories(name, device):
    x, w, b = parameters(tg.float64 if device.fp64 else tg.float32)
    found = []
    for _ in range(TURNS):
        y = CALLS[name](x, w, b)
        names, rest = [], [y.grad_fn]
        while rest:                                                 # from the result to the leaves, each way once
            fn = rest.pop(0)
            names.append(fn.name())
            rest += [f for f, _ in fn.next_functions if f is not None]
        seen = []
        y.register_hook(lambda g, seen=seen: seen.append(g.detach().numpy()) or g * 2.0)
        y.square().sum().backward(retain_graph=True)
        first = [None if p.grad is None else p.grad.numpy() for p in (x, w, b)]
        x.grad = w.grad = b.grad = None
        gs = tg.autograd.grad(y.square().mean(), [w], create_graph=True, allow_unused=True)
        second = None if gs[0] is None else tg.autograd.grad(gs[0].square().sum(), w)[0].numpy()
        found.append((names, first, second, seen[0]))
    for attempt in found[1:]:
        assert attempt[0] == found[0][0]
        for one, other in zip((*attempt[1], *attempt[2:]), (*found[0][1], *found[0][2:]), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_histories_give_what_torch_gives_in_every_iteration(name, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    for _ in range(TURNS):
        for ours, theirs in zip(values(PROGRAMS[name](tg, *leaves())), EXPECTED[name], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", REFUSED)
def test_freed_histories_are_refused_in_every_iteration(name, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    for _ in range(TURNS):
        with pytest.raises(tg.AutogradError, match=r"the history of .* was freed by an earlier backward"):
            REFUSED[name](tg, *leaves())


# ------------------------------------------------------------------------------------------------------- programs by chance


def _changed(x, value):
    """x, after a change in place of it or a part of it; AutogradError where it is a leaf."""
    x.add_(0.5) if value is None else x[value].mul_(2.0)
    return x


def _hooked(x):
    x.register_hook(lambda g: g * 1.5)
    return x * 1.0


def _apart(x):
    with tg.no_grad():
        return x * 2.0


STEPS = [
    lambda r, a, b: F.linear(a, b), lambda r, a, b: F.softmax(a, r.choice([0, 1])), lambda r, a, b: F.log_softmax(a, -1),
    lambda r, a, b: a[r.randrange(4)], lambda r, a, b: a[:, r.randrange(6)], lambda r, a, b: a.t(), lambda r, a, b: a.reshape(24),
    lambda r, a, b: F.layer_norm(a, (6,)), lambda r, a, b: a * b + 1.0, lambda r, a, b: F.gelu(a), lambda r, a, b: tg.stack([a[0], b[1]]),
    lambda r, a, b: tg.cat([a, b])[2:6], lambda r, a, b: a.std(0), lambda r, a, b: _apart(a), lambda r, a, b: a.detach(),
    lambda r, a, b: _changed(a * 1.0, None), lambda r, a, b: _changed(a.tanh(), r.randrange(4)), lambda r, a, b: _hooked(a),
    lambda r, a, b: F.silu(a) - b.mean(1, keepdim=True), lambda r, a, b: a.chunk(2)[1], lambda r, a, b: a.clone()[1:3],
    lambda r, a, b: F.elu(a, 0.5) + F.softplus(b), lambda r, a, b: _changed(a, r.choice([None, 2])),
    # with floats that are others in each iteration
    lambda r, a, b: a * NUMBER[0] + b, lambda r, a, b: (a - NUMBER[0]) * (1.0 - NUMBER[0]), lambda r, a, b: NUMBER[0] / (a * a + 1.0),
    lambda r, a, b: a / (2.0 + NUMBER[0]) - b * 0.3, lambda r, a, b: (a * a + 0.1) ** NUMBER[0], lambda r, a, b: a.clamp(NUMBER[0]) * b,
    lambda r, a, b: tg.where(a > NUMBER[0], a, b * NUMBER[0]), lambda r, a, b: F.leaky_relu(a, NUMBER[0] * 0.1) + NUMBER[0],
]
NUMBER, NUMBERS = [0.0], [0.3, 0.3, -0.3, 0.7, 1.0, 0.4, 0.0, 0.6]


def leaves_of(root):
    """Those that root's history comes from, each once."""
    found, rest = {}, [root.grad_fn]
    while rest:
        fn = rest.pop()
        if fn.variable is not None:
            found[id(fn.variable)] = fn.variable
        rest += [f for f, _ in fn.next_functions if f is not None]
    return list(found.values())


def by_chance(seed, reached, attempt, first=False):
    """What one iteration of a program gives: numbers that it looked at, errors, gradients, values.

    reached: the leaves by which it takes gradients, found out at first (who asks for a history has the nodes of all calls made).
    """
    r = random.Random(seed)
    NUMBER[0] = NUMBERS[attempt]
    starts = [given(seed * 7 + i, *shape).requires_grad_() for i, shape in enumerate([(4, 6), (4, 6), (4, 6), (6,)])]
    made, seen, found, taken, asked = list(starts), [], [], [], 0
    for _ in range(r.randrange(3, 12)):
        a, b = (r.choice([t for t in made if t.shape == (4, 6)]) for _ in range(2))
        try:
            made.append(r.choice(STEPS)(r, a, b))
        except tg.TracegradError as error:
            seen.append(str(error).split(" (at ")[0])
        if r.random() < 0.3:
            seen.append(made[-1].detach().sum().item() if r.random() < 0.5 else made[-1].reshape(-1)[0].item())
    roots = [t for t in made[4:] if t.requires_grad]
    for _ in range(r.randrange(1, 4) if roots else 0):
        root, way, others = r.choice(roots), r.randrange(7), r.sample(roots, min(2, len(roots)))
        try:
            if way == 0:
                root.square().sum().backward(retain_graph=True)
            elif way == 1:
                first = [g for g in tg.autograd.grad(root.square().sum(), starts, create_graph=True, allow_unused=True) if g is not None]
                second = [g.square().sum() for g in first if g.requires_grad]
                if second:
                    tg.stack(second).sum().backward()
            elif way < 5:                                           # by all leaves that there are, or some of them
                if first:
                    reached.append([k for k, s in enumerate(starts) if any(s is leaf for leaf in leaves_of(root))])
                by = [starts[k] for k in reached[asked]] or starts
                asked += 1
                by = by if way < 4 else r.sample(by, r.randrange(1, len(by) + 1))
                taken += [g for g in tg.autograd.grad(root.square().sum(), by, allow_unused=True) if g is not None]
            else:
                (root.sum() + tg.stack([t.mean() for t in others]).sum()).backward()
        except tg.TracegradError as error:
            seen.append(str(error).split(" (at ")[0])
    for t in (*[p.grad for p in starts], *taken, *made[4:]):
        found.append(None)
        with contextlib.suppress(tg.AutogradError):                  # its history was freed before it was computed
            found[-1] = None if t is None else t.detach().numpy()
    return seen, found


@one_of(2, "seed", range(80))
def test_programs_by_chance_are_the_same_in_every_iteration_and_at_length(seed, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    reached = []
    with monkeypatch.context() as patch:
        patch.setattr(tg.config, "recall", False)
        by_chance(seed, reached, 0, first=True)
        wanted = [by_chance(seed, reached, attempt) for attempt in range(len(NUMBERS))]
    for attempt, (seen, found) in enumerate(wanted):
        told, made = by_chance(seed, reached, attempt)
        assert len(told) == len(seen)
        for one, other in zip(told, seen, strict=True):
            assert one == (other if isinstance(other, str) else pytest.approx(other, rel=2e-3, abs=2e-3, nan_ok=True))
        for one, other in zip(made, found, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", corpus.programs())
def test_gradients_of_the_corpus_in_every_iteration_with_other_numbers(name, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    program = corpus.programs()[name]

    def gradients(attempt):
        x, y = (given(attempt + k, *corpus.N).requires_grad_() for k in (0, 100))
        found = program(x * 1.0, y * 1.0, 0.5)
        floats = [r for r in (found if isinstance(found, tuple) else (found,)) if r.dtype.kind == "f" and r.requires_grad]
        if not floats:
            return []
        sum((r.float() * r.float()).mean() for r in floats).backward()
        return [r.detach().numpy() for r in floats] + [None if v.grad is None else v.grad.numpy() for v in (x, y)]

    made = [gradients(attempt) for attempt in range(14)]
    with monkeypatch.context() as patch:
        patch.setattr(tg.config, "recall", False)
        wanted = [gradients(attempt) for attempt in range(14)]
    for attempt, (found, others) in enumerate(zip(made, wanted, strict=True)):
        for a, b in zip(found, others, strict=True):
            assert (a is None) == (b is None), attempt
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=f"iteration {attempt}")


@pytest.mark.recall
def test_places_that_differ_only_in_where_they_start_share_a_derivative_and_keep_their_own(device, monkeypatch):
    known = []
    real = backward_cache.Backward._results
    monkeypatch.setattr(backward_cache.Backward, "_results", lambda *given: known.append(real(*given)) or known[-1])
    x, w, b = parameters()
    for k in (0, 3, 1, 4, 2, 0, 4, 3, 1):
        row = F.log_softmax(F.linear(x, w, b), -1)[k]
        row[k + 1].backward()
        grad = w.grad.numpy()
        p = np.exp(row.detach().numpy().astype(np.float64))
        np.testing.assert_allclose(grad, np.outer((np.arange(7) == k + 1) - p, x.detach().numpy()[k]), rtol=1e-4, atol=1e-5)
        x.grad = w.grad = b.grad = None
    assert sum(made is not None for made in known) >= 4


def test_numbers_and_dimensions_are_a_part_of_a_calls_structure(device):
    x, c = given(3, 9, 9).requires_grad_(), given(4, 9, 9)
    a, weights = x.detach().numpy().astype(np.float64), c.numpy().astype(np.float64)

    def elu(alpha):
        return F.elu(x, alpha), weights * np.where(a > 0, 1, alpha * np.exp(a))

    def rolled(k):                                                   # which differs in attributes alone
        return x.roll(k), np.roll(weights, -k)

    def softmax(dim):
        p = np.exp(a) / np.exp(a).sum(dim, keepdims=True)
        return F.softmax(x, dim), p * (weights - (p * weights).sum(dim, keepdims=True))

    for fn, ways in ((elu, (0.75, -0.5)), (rolled, (1, 20)), (softmax, (0, 1))):
        for k in range(8):
            y, wanted = fn(ways[k % 2])
            (y * c).sum().backward()
            np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-4, atol=1e-5)
            x.grad = None


def test_a_call_that_was_freed_lets_go_of_what_it_saved(device):
    x, w, b = parameters()
    alive = []
    for _ in range(TURNS):
        hidden, bias = (x * 2.0).softmax(0), b.exp()
        y = F.linear(hidden, w, bias)                                # the way to the bias stays
        refs = weakref.ref(hidden._n), weakref.ref(bias._n)
        y.sum().backward()
        del hidden, bias
        gc.collect()
        alive.append([ref() is not None for ref in refs])
        assert [f.name() for f, _ in y.grad_fn.next_functions][1] == "exp"
        x.grad = w.grad = b.grad = None
    assert alive == [[False, False]] * TURNS


def test_a_freed_call_still_has_the_way_that_nothing_was_saved_for(device):
    x, w, b = parameters()
    for _ in range(TURNS):
        y = F.linear(x, w, b)
        y.sum().backward()
        names = [f.name() if f is not None else None for f, _ in y.grad_fn.next_functions]
        assert names == ["matmul", "AccumulateGrad"] or names == ["reshape", "AccumulateGrad"]
        assert y.grad_fn.next_functions[1][0].variable is b
        x.grad = w.grad = b.grad = None


@pytest.mark.parametrize("looked", [False, True])
def test_views_of_a_history_follow_their_base(looked, device):
    w = given(5, 4, 6).requires_grad_()
    for _ in range(TURNS):
        h = w * 2.0
        if looked:
            h.sum().item()
        v, t = h[1], h.t()
        kept = v.detach().numpy().copy()
        h.add_(1.0)
        np.testing.assert_allclose(v.detach().numpy(), kept + 1.0, rtol=1e-6)
        np.testing.assert_allclose(t.detach().numpy(), h.detach().numpy().T)
        v.mul_(3.0)
        np.testing.assert_allclose(h.detach().numpy()[1], 3.0 * (kept + 1.0), rtol=1e-6)
        assert t[0, 1].item() == h[0 + 1, 0].item() == v[0].item()
        (h.sum() + v[2] + t[5].sum()).backward()
        wanted = np.full((4, 6), 2.0)
        wanted[1] *= 3.0
        wanted[1, 2] += 6.0
        wanted[:, 5] += (2.0, 6.0, 2.0, 2.0)
        np.testing.assert_allclose(w.grad.numpy(), wanted, rtol=1e-6)
        with tg.no_grad():
            assert not h[1].requires_grad
            assert not h.t().requires_grad
        w.grad = None


def test_views_of_a_history_are_views_in_every_iteration(device):
    w = given(6, 4, 6).requires_grad_()
    for _ in range(TURNS):
        h = w * 1.0
        row, same, apart = h[2], h.view(24), h.t().reshape(24)
        assert row._base is h
        assert same._base is h
        assert apart._base is None                                   # torch has a copy there
        assert row.requires_grad
        assert not row.is_leaf
        a, b = h.chunk(2)
        assert a._base is h
        (a.sum() + 2.0 * b.sum() + row.sum() + same[3] + apart[1]).backward()
        wanted = np.repeat([1.0, 2.0], 12).reshape(4, 6)
        wanted[2] += 1.0
        wanted[0, 3] += 1.0
        wanted[1, 0] += 1.0
        np.testing.assert_allclose(w.grad.numpy(), wanted)
        w.grad = None


def test_a_read_at_every_move_gives_the_same_gradients(monkeypatch):
    """A policy that is looked at before its derivative is taken, with episodes of varying length: with and without what is remembered."""
    monkeypatch.setattr(tg.config, "eager", True)

    def episodes():
        tg.manual_seed(7)
        policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = tg.optim.Adam(policy.parameters(), lr=1e-2)
        found, draws = [], np.random.default_rng(1)
        for episode in range(40):
            logs, seen = [], 0.0
            for _ in range(1 + episode % 4):
                logits = policy(tg.tensor([float(draws.normal()), 1.0]))
                seen += tg.softmax(logits, -1)[1].item()
                logs.append(F.log_softmax(logits, -1)[int(draws.integers(2))])
            loss = (-1.0 if episode % 3 else 1.0) * tg.stack(logs).sum() / len(logs)
            optimizer.zero_grad()
            loss.backward()
            found.append((seen, loss.item(), *[p.grad.numpy() for p in policy.parameters()]))
            optimizer.step()
        return found

    quick = episodes()
    monkeypatch.setattr(backward_cache.Backward, "run", lambda self: None)
    slow = episodes()
    for one, other in zip(quick, slow, strict=True):
        assert one[:2] == pytest.approx(other[:2], rel=1e-5)
        for g, h in zip(one[2:], other[2:], strict=True):
            np.testing.assert_array_equal(g, h)


@pytest.mark.recall
def test_a_lazy_node_is_an_ordinary_one_from_the_first_read_on(device):
    x, w, b = parameters()
    for _ in range(3):
        y = F.linear(x, w, b)
    node = y._n
    assert type(node) is LazyNode
    assert len(node.operands) == 2
    assert type(node) is not LazyNode
    assert node.operands[1] is b._n
    with pytest.raises(AttributeError, match="no attribute"):
        F.linear(x, w, b)._n.anything


def test_lines_of_code_that_comes_and_goes():
    """What is known of an instruction is of that code, not of another one that has its place in memory later."""
    x = given(7, 3).requires_grad_()
    for k in range(50):
        names = {"x": x, "F": F}
        exec(compile("\n" * k + "def f(): return x * 2.0, (x\n + 1.0)\ny = f(); z = F.softmax(x, 0)", f"file {k}", "exec"), names)
        lines = [(n._n.loc.filename, n._n.loc.line, n._n.loc.function) for n in (*names["y"], names["z"])]
        assert [line[0] for line in lines] == [f"file {k}"] * 3
        assert lines[0][1:] == (k + 1, "f")
        assert lines[1][1] in (k + 1, k + 2)
        assert lines[2][1:] == (k + 3, "<module>")
        del names


@pytest.mark.parametrize("numbers", [[1e300, -0.0, float("nan")], [0.1, 2.0], [float("-inf")]])
def test_tensors_of_floats_are_what_numpy_makes_of_them(numbers, device):
    with np.errstate(over="ignore"):
        for dtype in (tg.float32, tg.float64) if device.fp64 else (tg.float32,):
            tg.set_default_dtype(dtype)
            try:
                x = tg.tensor(numbers)
            finally:
                tg.set_default_dtype(tg.float32)
            wanted = np.array(numbers).astype(dtype)
            assert x.dtype == dtype
            np.testing.assert_array_equal(x.numpy(), wanted)
            np.testing.assert_array_equal(np.signbit(x.numpy()), np.signbit(wanted))
            x.add_(0.0)
            assert tg.tensor(numbers, requires_grad=True).requires_grad


def test_what_is_remembered_of_structures_is_counted_and_forgotten(monkeypatch):
    recipes.clear()
    monkeypatch.setattr(recipes, "budget", 3000)
    monkeypatch.setattr(tg.config, "eager", True)
    x, w, b = parameters()

    def step(n):
        loss = x.sum()
        for k in range(n):
            loss = loss + F.log_softmax(F.linear(x, w, b), -1)[k % 5, k % 7]
        loss.backward()
        found = w.grad.numpy()
        x.grad = w.grad = b.grad = None
        return found

    first = [step(n) for n in range(1, 9)]
    for _ in range(2):
        for n in (1, 2, 8, 3, 7, 4, 6, 5, 8, 1):
            np.testing.assert_allclose(step(n), first[n - 1], rtol=1e-4, atol=1e-5)
    known = recipes
    assert known.size() == sum(recipes.weigh(*item) for item in known.entries())
    assert known.size() <= 3000 or len(known.entries()) <= 2
