"""In a trace a body may assign new tensors to attributes, variables and items outside: each replay does it anew."""

from __future__ import annotations

import numpy as np
import optree
import pytest

import tracegrad as tg
from tracegrad import nn

pytestmark = pytest.mark.usefixtures("on_numpy")

def batches(count=4, rows=7, columns=13):
    rng = np.random.default_rng(0)
    return [tg.tensor(rng.standard_normal((rows, columns)).astype(np.float32)) for _ in range(count)]


class Running(nn.Module):
    """Running averages as torch's users write them."""

    def __init__(self, columns=13):
        super().__init__()
        self.register_buffer("mean", tg.zeros(columns))
        self.register_buffer("square", tg.ones(columns))
        self.weight = nn.Parameter(tg.linspace(0.5, 1.5, columns))
        self.seen = None

    def forward(self, x):
        with tg.no_grad():
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.square = 0.9 * self.square + 0.1 * (x * x).mean(0)
        self.seen = ((x - self.mean) / self.square.sqrt()).detach()
        self.largest = self.seen.max()
        return (x - self.mean) / self.square.sqrt() * self.weight


def test_buffers_of_a_module_are_assigned_at_every_call(device):
    plain, traced = Running(), Running()
    step = tg.trace(traced)
    kept = []
    for x in batches():
        before = traced.mean
        was = before.numpy()
        np.testing.assert_allclose(step(x).detach().numpy(), plain(x).detach().numpy(), rtol=1e-5, atol=1e-6)
        for name in ("mean", "square", "seen", "largest"):
            np.testing.assert_allclose(getattr(traced, name).numpy(), getattr(plain, name).numpy(), rtol=1e-5, atol=1e-6)
        assert traced.mean is not before
        kept.append((before, was))
    for tensor, was in kept:                         # it is another tensor each time: who holds an earlier one sees its value
        np.testing.assert_array_equal(tensor.numpy(), was)
    assert set(traced.state_dict()) == {"mean", "square", "weight"}
    assert len(step.compilations) <= 2               # `seen` and `largest` are there from the second call on


def test_a_step_with_backward_and_an_exponential_average(device):
    def program(wrap):
        model = nn.Linear(13, 5)
        with tg.no_grad():
            model.weight.copy_(tg.linspace(-1, 1, 65).reshape(5, 13))
            model.bias.zero_()
        optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
        average = {"weight": model.weight.detach().clone()}

        @wrap
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            average["weight"] = 0.5 * average["weight"] + 0.5 * model.weight.detach()
            return loss

        found = [(step(x).detach().numpy(), average["weight"].numpy()) for x in batches()]
        return found, step

    plain, _ = program(lambda f: f)
    traced, step = program(tg.trace)
    for ours, wanted in zip(traced, plain, strict=True):
        np.testing.assert_allclose(ours[0], wanted[0], rtol=1e-5)
        np.testing.assert_allclose(ours[1], wanted[1], rtol=1e-5, atol=1e-6)
    assert step.compilations == ["first call"]


def test_variables_of_closures_and_globals_and_items_of_lists():
    total = tg.tensor(0.0)
    held = [tg.zeros(3), tg.ones(3)]

    @tg.trace
    def add(x):
        nonlocal total
        global LATEST
        total = total + x.sum()
        held[1] = held[0] + held[1] * x
        LATEST = x * 3
        return total * 2

    for k in range(1, 4):
        result = add(tg.full((3,), 2.0))
        assert result.item() == 12.0 * k
        assert total.item() == 6.0 * k
        assert LATEST.tolist() == [6.0] * 3
    assert held[1].tolist() == [8.0] * 3


LATEST = None


def test_what_is_returned_is_what_was_assigned():
    class Box:
        value = None

    box = Box()
    box.value = tg.zeros(4)

    @tg.trace
    def f(x):
        box.value = box.value + x
        box.row = box.value[1:3]
        return box.value, box.value[0]

    for k in range(1, 4):
        whole, first = f(tg.ones(4))
        assert whole is box.value
        assert whole.tolist() == [float(k)] * 4
        whole.add_(1.0)                              # as untraced: the results are views of it
        assert first.item() == k + 1
        assert box.row.tolist() == [k + 1.0] * 2
        whole.sub_(1.0)


def test_another_tensor_put_there_is_read():
    class Box:
        pass

    box = Box()
    box.state = tg.zeros(4)

    @tg.trace
    def f(x):
        box.state = box.state * 0.5 + x
        return box.state.sum()

    assert f(tg.ones(4)).item() == 4.0
    box.state = tg.full((4,), 10.0)
    assert f(tg.ones(4)).item() == 24.0
    box.state = tg.full((4,), 10.0, dtype=tg.float64)          # another dtype: another recording
    assert f(tg.ones(4)).dtype == tg.float64
    box.state = x = tg.ones(4)                                 # the very argument: two ways to one tensor, another recording
    for _ in range(2):
        assert f(x).item() == 6.0
        assert (box.state.tolist(), x.tolist()) == ([1.5] * 4, [1.0] * 4)
        box.state = x
    assert len(f.compilations) == 3


def test_a_state_with_a_history_goes_on():
    class Box:
        pass

    def program(wrap):
        box, w = Box(), tg.tensor([0.5, -0.25], requires_grad=True)
        box.h = tg.ones(2)
        f = wrap(lambda x: setattr(box, "h", box.h * w + x))
        for k in range(3):
            f(tg.full((2,), float(k)))
        box.h.sum().backward()
        return box.h.tolist(), w.grad.tolist()

    assert program(tg.trace) == program(lambda f: f)


def test_attributes_of_a_class():
    class Totals:
        whole = tg.zeros(3)

    @tg.trace
    def f(x):
        Totals.whole = Totals.whole + x
        Totals.last = x * 2
        return Totals.whole * 1

    for k in range(1, 4):
        assert f(tg.full((3,), 2.0)).tolist() == [2.0 * k] * 3
        assert (Totals.whole.tolist(), Totals.last.tolist()) == ([2.0 * k] * 3, [4.0] * 3)


def test_a_body_that_fails_leaves_what_was_there():
    class Box:
        pass

    box = Box()
    box.state, old = tg.zeros(3), None
    old = box.state

    @tg.trace
    def f(x):
        box.state = box.state + x
        box.new = x * 2
        raise KeyError("no")

    with pytest.raises(KeyError):
        f(tg.ones(3))
    assert box.state is old
    assert not hasattr(box, "new")


def test_what_two_paths_lead_to_is_read_by_each():
    box = Box()
    box.state = box.again = tg.zeros(3)

    @tg.trace
    def f(x):
        box.state = box.state + x
        return box.again * 1.0

    for k in range(3):                                         # after the first call they are two tensors
        assert f(tg.ones(3)).tolist() == [0.0] * 3
        assert box.state.tolist() == [k + 1.0] * 3
        assert box.again.tolist() == [0.0] * 3



class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def keeps_old(b, x):
    b.old, b.h = b.h, b.h + x
    return b.old * 2 + b.h


def returns_old(b, x):
    old = b.h
    b.h = b.h + x
    return old


def returns_view_of_old(b, x):
    old = b.h[2:]
    b.h = b.h * 0.5 + x
    return old


def keeps_argument(b, x):
    out, b.h = b.h + x, x
    return out


def keeps_view_of_argument(b, x):
    out, b.h = b.h + x[::2].sum() + x, x[1:5]
    b.h = tg.cat([b.h, b.h, b.h, b.h])[: x.shape[0]]
    return out


def keeps_what_it_returns_detached(b, x):
    h = tg.tanh(b.h + x)
    b.h = h.detach()
    return h


def keeps_a_part_of_what_it_returns(b, x):
    h = tg.cat([b.h * 2 + x, x])
    b.h = h[: x.shape[0]]
    return h


def keeps_two_parts_of_one(b, x):
    b.h, b.c = tg.stack([b.h * 0.5 + x, b.c - x])
    return b.h - b.c


def keeps_a_tuple(b, x):
    h, c = b.pair
    b.pair = h * 0.5 + x, c + h
    return b.pair[1] * 1


def keeps_a_tuple_of_views(b, x):
    b.pair = tg.cat([b.pair[0] + x, b.pair[1] * x]).chunk(2)
    return b.pair[0] + b.pair[1]


def keeps_a_nest(b, x):
    b.nest = {"b": [b.nest["b"][0] + x, (b.nest["b"][1][0] * 0.5, None, 3)], "a": b.nest["a"] - b.nest["b"][0]}
    return b.nest["a"] + b.nest["b"][1][0]


def keeps_a_list_of_caches(b, x):
    for k, (keys, values) in enumerate(b.layers):
        b.layers[k] = keys + x, values * 0.9 + keys
        x = x + b.layers[k][1]
    return x


def grows(b, x):
    b.cache = (x[:1], x[1:2]) if b.cache is None else tuple(tg.cat([old, new]) for old, new in zip(b.cache, (x[:1], x[1:2]), strict=True))
    return b.cache[0].sum() + b.cache[1].prod()


def counts(b, x):
    b.counted = b.counted[0] + x, b.counted[1] + 1
    return b.counted[0] / b.counted[1]


def changes_and_replaces(b, x):
    old = b.h
    old.add_(x)
    b.h = old * 2
    return old * 1


def swaps(b, x):
    b.h, b.c = b.c, b.h
    return b.h * 2 + b.c * x


def keeps_one_in_two(b, x):
    b.h = b.c = b.h * 0.5 + b.c + x
    return b.h * 1


def only_looks(b, x):
    first = b.seen is None or b.seen.shape != x.shape
    b.seen = x * 2
    return x * (3 if first else 4)


def is_sometimes_reset(b, x):
    b.pair = (x * 0.5, x) if b.pair is None else (b.pair[0] + x, b.pair[1])
    return b.pair[0] - b.pair[1]


KEEPING = [
    keeps_old, returns_old, returns_view_of_old, keeps_argument, keeps_view_of_argument, keeps_what_it_returns_detached,
    keeps_a_part_of_what_it_returns, keeps_two_parts_of_one, keeps_a_tuple, keeps_a_tuple_of_views, keeps_a_nest, keeps_a_list_of_caches,
    grows, counts, changes_and_replaces, swaps, keeps_one_in_two, only_looks, is_sometimes_reset,
]


def starting(size):
    h, c = tg.linspace(-1, 1, size), tg.linspace(0, 2, size)
    return Box(h=h, c=c, old=None, pair=(h, c), nest={"b": [c, (h, None, 3)], "a": h}, layers=[(h, c), (c, h), (h * 2, c * 2)], cache=None,
               counted=(h, 0), seen=None)


def values(x):
    return optree.tree_map(lambda v: v.tolist() if isinstance(v, tg.Tensor) else v, x)


@pytest.mark.parametrize("given", ["others", "result", "state", "same"])
@pytest.mark.parametrize("fn", KEEPING, ids=lambda fn: fn.__name__)
def test_what_is_kept_is_what_is_there_at_the_next_call(fn, given):
    """given: what the next call gets: another tensor, the last result, what is kept itself, or always the same."""
    size = 12
    plain, traced = starting(size), starting(size)
    step = tg.trace(fn)
    x, y = tg.linspace(0, 1, size), tg.linspace(0, 1, size)
    for k in range(6):
        if k == 4:
            for box in (plain, traced):
                box.pair = None if fn is is_sometimes_reset else tuple(t.clone() for t in box.pair)
        wanted, found = fn(plain, x), step(traced, y)
        assert values(found) == pytest.approx(values(wanted), rel=1e-5, abs=1e-6)
        for name in vars(plain):
            flat, form = optree.tree_flatten(values(vars(plain)[name]), none_is_leaf=True)
            ours, same = optree.tree_flatten(values(vars(traced)[name]), none_is_leaf=True)
            assert form == same
            for a, b in zip(ours, flat, strict=True):
                assert a == (b if b is None else pytest.approx(b, rel=1e-5, abs=1e-6)), name
        if given == "others":
            x, y = tg.linspace(k, 1, size), tg.linspace(k, 1, size)
        elif given == "result" and wanted.shape == x.shape:
            x, y = wanted, found
        elif given == "state" and plain.h.shape == x.shape:
            x, y = plain.h, traced.h
    if fn not in (grows, counts, is_sometimes_reset) and given != "result":
        assert len(step.compilations) <= 5


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
def test_a_recurrent_network_trained_through_the_steps_since_its_state_was_detached(detached, inside):
    def program(wrap):
        tg.manual_seed(0)
        cell, out, box = nn.LSTMCell(5, 12), nn.Linear(12, 1), Box(state=None)
        parameters = [*cell.parameters(), *out.parameters()]
        optimizer = tg.optim.SGD(parameters, lr=0.1)

        def step(x):
            box.state = cell(x, box.state)
            loss = out(box.state[0]).square().mean()
            if detached:
                box.state = tuple(v.detach() for v in box.state)
            if inside:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss

        step, losses = wrap(step), []
        for k in range(6):
            if k % 2 == 0 and not detached:
                box.state = None
            loss = step(tg.linspace(-1, k, 15).reshape(3, 5))
            losses.append(loss.item())
            if not inside and (detached or k % 2):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return losses, step

    if inside and not detached:                                # the second call would go back through what the first has freed
        return
    plain, _ = program(lambda f: f)
    traced, step = program(tg.trace)
    assert traced == pytest.approx(plain, rel=1e-5)
    assert len(step.compilations) <= 3


def test_what_is_only_written_needs_no_recording_for_what_was_there():
    class Last:
        seen = None

    box = Last()

    @tg.trace
    def f(x):
        box.seen = x * 2, x.sum()
        return x + 1

    for size in (12, 65, 7, 12, 130, 65, 7):
        f(tg.ones(size))
        assert box.seen[0].shape == (size,)
    assert len(f.compilations) == 5                            # the very first, where nothing was there, and one for each size


def test_lists_that_others_hold_are_no_new_values():
    shared = [tg.zeros(3)]
    box = Box(a=None, b=None, held=shared)

    @tg.trace
    def f(x):
        box.a = box.b = [x * 2]
        return x + 1

    with pytest.raises(tg.TraceError, match=r"assigns the same list to a and b.*a new one to each"):
        f(tg.ones(3))
    assert box.a is box.b is None

    @tg.trace
    def g(x):
        box.held[0] = x * 3                                    # into a list that is there, and that list replaced
        box.held = [x * 4]
        return x + 1

    g(tg.ones(3))
    assert (shared[0].tolist(), box.held[0].tolist()) == ([3.0] * 3, [4.0] * 3)
    with pytest.raises(tg.TraceError, match="assigns to item 0 of what held held"):
        g(tg.ones(3))


def test_leaves_that_the_body_makes():
    def f(x):
        w = (x * 2).detach().requires_grad_()
        return w, (w * x).sum(), w * 3

    def g(x):                                                  # nothing but a leaf
        return (x * 2).detach().requires_grad_()

    for fn in (f, tg.trace(f)):
        for k in (1.0, 2.0, 3.0):
            x = tg.full((12,), k, requires_grad=True)
            w, loss, more = fn(x)
            assert (w.is_leaf, w.requires_grad, more.is_leaf) == (True, True, False)
            (loss + more.sum()).backward()
            assert (w.grad.tolist(), x.grad.tolist()) == ([k + 3] * 12, [2 * k] * 12)
    for fn in (g, tg.trace(g)):
        for with_grad in (True, False):
            with tg.set_grad_enabled(with_grad):
                w = fn(tg.ones(12))
                assert (w.is_leaf, w.requires_grad, w.tolist()) == (True, True, [2.0] * 12)
            (w * w).sum().backward()
            assert w.grad.tolist() == [4.0] * 12


@pytest.mark.parametrize("way", ["grad", "backward"])
def test_a_step_that_replaces_what_it_trains(way):
    def program(wrap):
        box = Box(w=tg.linspace(-1, 1, 12, requires_grad=True))

        def step(x):
            loss = (box.w * x).square().sum()
            if way == "grad":
                slope, = tg.autograd.grad(loss, box.w)
                box.w = (box.w - 0.01 * slope).detach().requires_grad_()
            else:
                loss.backward()
                with tg.no_grad():
                    box.w = box.w - 0.01 * box.w.grad
                box.w.requires_grad_()
            return loss.detach()

        step = wrap(step)
        losses = [step(tg.full((12,), float(k))).item() for k in range(1, 6)]
        assert box.w.is_leaf
        assert box.w.grad is None
        (box.w * 2).sum().backward()
        return losses, box.w.tolist(), box.w.grad.tolist()

    for ours, wanted in zip(program(tg.trace), program(lambda f: f), strict=True):
        assert ours == pytest.approx(wanted, rel=1e-5)


def test_backward_outside_after_every_call_of_what_detaches_its_state():
    def program(wrap):
        box = Box(h=tg.zeros(12), w=tg.ones(12, requires_grad=True))

        def step(x):
            box.h = box.h.detach() * box.w + x
            return box.h.sum()

        step = wrap(step)
        for k in range(5):
            step(tg.full((12,), float(k)))
            box.h.square().sum().backward()
        return box.h.tolist(), box.w.grad.tolist()

    assert program(tg.trace) == program(lambda f: f)


@pytest.mark.parametrize("rows", [1, 12])
def test_keys_that_the_body_puts_into_a_dictionary(rows):
    """A cache of keys and values that is empty at first, one entry a layer."""
    def steps(decorate):
        cache: dict[int, tuple[tg.Tensor, ...]] = {}
        weights = [tg.tensor(np.random.default_rng(k).standard_normal((12, 12)) / 4) for k in range(4)]

        @decorate
        def attend(x):
            for layer in range(2):
                k, v = x @ weights[2 * layer], x @ weights[2 * layer + 1]
                if layer in cache:
                    k, v = tg.cat([cache[layer][0], k]), tg.cat([cache[layer][1], v])
                cache[layer] = k, v
                x = tg.softmax(x @ k.T, -1) @ v
            return x

        x = tg.tensor(np.random.default_rng(9).standard_normal((rows, 12)))
        out = []
        for _ in range(4):
            x = attend(x)
            out.append(x.numpy())
        return [*out, *(t.numpy() for entry in cache.values() for t in entry)]

    for got, wanted in zip(steps(tg.trace), steps(lambda fn: fn), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_flags_that_the_body_switches():
    """`model.train()` at the head of one function and `model.eval()` at that of another, by turns; a mode that switches at every call."""
    def steps(decorate):
        model = tg.nn.Sequential(tg.nn.Linear(5, 12), tg.nn.BatchNorm1d(12), tg.nn.Dropout(0.0), tg.nn.Linear(12, 3)).double()
        with tg.no_grad():
            for p in model.parameters():
                p.copy_(tg.tensor(np.random.default_rng(p.numel()).standard_normal(tuple(p.shape)) / 3))
        optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
        model.forward_only, model.mode = False, "new"

        @decorate
        def train(x):
            model.train()
            model.mode = "trained"
            loss = (model(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        @decorate
        def evaluate(x):
            model.eval()
            with tg.no_grad():
                return model(x) * (2 if model.mode == "trained" else 1)

        @decorate
        def alternate(x):
            model.forward_only = not model.forward_only
            return x if model.forward_only else -x

        out = []
        for k in range(6):
            x = tg.tensor(np.random.default_rng(k).standard_normal((17, 5)))
            out += [train(x).numpy(), np.array(model.training), evaluate(x).numpy(), np.array(model[1].training)]
            if k == 3:
                out.append(evaluate(x).numpy())              # twice in a row
                model.train()                                # and somebody switches it
            out.append(alternate(x).numpy())
        return out, [f for f in (train, evaluate, alternate) if decorate is tg.trace]

    got, functions = steps(tg.trace)
    for g, wanted in zip(got, steps(lambda fn: fn)[0], strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-12)
    assert all(len(f.compilations) <= 4 for f in functions)


def test_a_counter_is_refused():
    class State:
        iterations = 0

    state = State()

    @tg.trace
    def step(x):
        state.iterations += 1
        return x * state.iterations

    assert step(tg.ones(12)).sum().item() == 12
    with pytest.raises(tg.TraceError, match="iterations was 1 and is 2"):
        step(tg.ones(12))


@pytest.mark.parametrize("result", [lambda d, a: (d, a), lambda d, a: (d[1:], d, a), lambda d, a: (a, d[:1])])
def test_what_was_written_with_a_history_is_returned_with_it_beside_what_it_was_detached_from(result):
    def f(x, y):
        a = x * 1.0
        d = a.detach()
        d.mul_(y)
        return result(d, a)

    for fn in (f, tg.trace(f)) * 2:
        x, y = tg.tensor([1.0, 2.0]), tg.tensor([3.0, 4.0], requires_grad=True)
        found = fn(x, y)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in f(x, y)]
        sum((t * t.detach()).sum() for t in found if t.requires_grad).backward()
        wanted = y.grad.numpy()
        y.grad = None
        sum((t * t.detach()).sum() for t in f(x, y) if t.requires_grad).backward()
        np.testing.assert_array_equal(wanted, y.grad.numpy())
        with tg.no_grad():
            found[0].mul_(2)                    # they share their memory as before
        before = [t.tolist() for t in f(x, y)]
        assert [t.tolist() for t in found[1:]] != before[1:]
