"""Mutation: in-place methods, index assignment, views, updates under no_grad, version counters; with torch's meanings.

One difference: values are immutable nodes of the graph, so an in-place operation on what a built-in operation saved leaves its
gradient right, where torch raises. Custom Functions' saved tensors are checked as in torch (tests/custom/test_custom_functions.py).
"""

import copy
from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.values import close, f64
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, ShapeError, TraceError
from tracegrad.testing import gradcheck, gradgradcheck

pytestmark = pytest.mark.usefixtures("device")


def in_place(x):
    a = x * 2.0
    b = a * a                                    # saved a: torch would raise at backward
    a.add_(1.0)
    a.mul_(x)
    a += x
    a[0] = x[1] * 3.0
    a[1:] *= 2.0
    return a * b


def through_views(x):
    a = x * 1.0
    v = a.reshape(3, 1).t()
    v.mul_(2.0)
    a[1:].add_(x[:2])
    v[0, 0] = 7.0 * x[2]
    return a * v.reshape(3)


def masked(x):
    g = x * x
    g[x < 0] = 0.0
    return g * x


@pytest.mark.parametrize("fn", [in_place, through_views])
def test_gradients_through_in_place_operations(run, fn):
    x = f64(0.5, -1.5, 2.0)
    assert gradcheck(run(fn), x)
    assert gradgradcheck(run(fn), x)


def test_assignment_under_a_mask_of_values(run):
    x = f64(0.5, -1.5, 2.0)
    assert gradcheck(run(masked), x)
    close(run(masked)(x), [0.125, 0.0, 8.0])


def test_in_place_results_are_the_tensor_itself(run):
    def fn(x):
        a = x * 1.0
        assert a.add_(1.0) is a
        assert a.zero_() is a
        assert a.copy_(x) is a
        assert a.fill_(3.0) is a
        a += 1.0
        return a

    close(run(fn)(f64(1.0)), [4.0])


def test_views_share_their_base(run):
    def fn(x):
        base = x.clone()
        row, column, flat = base[0], base[:, 1], base.reshape(-1)
        row.zero_()
        flat[3] = 9.0
        base += 1.0
        return base, row, column, flat

    x = tg.tensor(np.array([[1.0, 2.0], [3.0, 4.0]]))
    base, row, column, flat = run(fn)(x)
    close(base, [[1.0, 1.0], [4.0, 10.0]])
    close(row, [1.0, 1.0])
    close(column, [1.0, 10.0])
    close(flat, [1.0, 1.0, 4.0, 10.0])


@pytest.mark.parametrize(
    "view",
    [lambda x: x.ravel(), lambda x: tg.reshape(x, (4,)), lambda x: x.swapdims(0, 1)[0], lambda x: tg.transpose(x, 0, 1),
     lambda x: x.diagonal(), lambda x: tg.diagonal(x, 1), lambda x: x.moveaxis(0, 1), lambda x: tg.unbind(x)[1]],
)
def test_functions_and_aliases_make_views_too(run, view):
    def fn(x):
        base = x.clone()
        view(base).mul_(-1.0)
        return base

    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    number = view(tg.arange(4).reshape(2, 2)).tolist()
    expected = x.copy().reshape(-1)
    expected[np.ravel(number)] *= -1
    close(run(fn)(tg.tensor(x)), expected.reshape(2, 2))


def test_a_mask_beside_other_indices_and_a_wrong_number_of_values():
    x = tg.tensor(np.arange(6.0).reshape(2, 3))
    x[x[:, 0] > 1, 0] = -1.0
    x[:, tg.tensor([True, False, True])] += 10.0
    close(x, [[10, 1, 12], [9, 4, 15]])
    for mask, values in ((x > 9, tg.ones(2)), (x > 99, tg.ones(2))):
        with pytest.raises(ShapeError, match=r"^setitem: "):
            x[mask] = values
    x[x > 99] += 1.0                             # nothing is hit
    close(x, [[10, 1, 12], [9, 4, 15]])


def test_detach_in_place():
    leaf = f64(1.0, 2.0)
    assert leaf.detach_() is leaf
    assert not leaf.requires_grad
    with pytest.raises(AutogradError, match=r"^detach_: a view"):
        f64(1.0, 2.0)[0].detach_()


def test_grad_modes_in_all_their_forms():
    x = f64(1.0)

    @tg.no_grad
    def bare(x):
        return x * 2.0

    @tg.no_grad()
    def generated(x):
        got = yield x * 2.0
        yield x * got

    assert not bare(x).requires_grad
    generator = generated(x)
    assert not next(generator).requires_grad
    assert tg.is_grad_enabled()
    assert generator.send(3.0).item() == 3.0
    try:
        tg.set_grad_enabled(False)               # a call alone holds, as in torch
        assert not (x * 2.0).requires_grad
        with tg.set_grad_enabled(True):
            assert (x * 2.0).requires_grad
        assert not tg.is_grad_enabled()
    finally:
        tg.set_grad_enabled(True)


def test_a_generator_in_a_grad_mode_hears_of_errors_and_of_its_end():
    told = []

    @tg.no_grad()
    def generated(x):
        try:
            while True:
                try:
                    yield x * 2.0
                except ValueError as error:
                    told.append((str(error), tg.is_grad_enabled()))
        finally:
            told.append(("closed", tg.is_grad_enabled()))

    generator = generated(f64(1.0))
    next(generator)
    assert not generator.throw(ValueError("thrown")).requires_grad
    assert tg.is_grad_enabled()
    with pytest.raises(KeyError):
        generator.throw(KeyError("another"))
    second = generated(f64(1.0))
    next(second)
    second.close()
    assert told == [("thrown", False), ("closed", False), ("closed", False)]
    assert tg.is_grad_enabled()


def test_data_is_given_and_given_back():
    """As where averaged weights take the parameters' place for an evaluation: what was there is kept, not written over."""
    p = tg.nn.Parameter(tg.arange(3.0))
    shadow, backup, other, detached = tg.full((3,), 7.0), p.data, p.data, p.detach()
    state = tg.nn.ParameterList([p]).state_dict()
    p.data = shadow
    p.data.add_(1)
    close(p, [8, 8, 8])
    close(shadow, [7, 7, 7])
    other[0] = 5.0                                          # these share their memory still
    for kept in (backup, other, detached, state["0"]):
        close(kept, [5, 1, 2])
    p.data = backup
    close(p, [5, 1, 2])
    (p * p).sum().backward()
    close(p.grad, [10, 2, 4])


def test_data_of_another_shape_and_dtype():
    p = tg.nn.Parameter(tg.arange(6.0).reshape(3, 2))
    optimizer = tg.optim.SGD([p], lr=0.5)
    whole = p.data
    p.data = whole[:2]
    assert p.shape == (2, 2)
    assert p.is_leaf
    assert p.requires_grad
    close(whole.sum(), 15)
    p.data = p.data.half()
    assert p.dtype == tg.float16
    p.sum().backward()
    optimizer.step()
    close(p, [[-0.5, 0.5], [1.5, 2.5]])
    close(whole, [[0, 1], [2, 3], [4, 5]])
    model = tg.nn.Linear(2, 2)
    best = model.state_dict()
    wanted = best["weight"].tolist()
    model.half()
    tg.nn.init.zeros_(model.weight)
    assert best["weight"].dtype == tg.float32
    assert best["weight"].tolist() == wanted


def test_data_of_a_view_leaves_the_base():
    base = tg.zeros(4)
    for given in ([1.0, 2.0], [3.0]):
        view = base[:2]
        view.data = tg.tensor(given)
        view.add_(1)
        close(view, [n + 1 for n in given])
    close(base, [0, 0, 0, 0])


def test_data_that_is_given_back_still_shares_memory():
    """`x.data += y` writes in place, and then gives x.data back what it is."""
    p = tg.nn.Parameter(tg.arange(3.0))
    before, detached = p.data, p.detach()
    p.data -= 1
    p.data *= 2
    close(before, [-2, 0, 2])
    close(detached, [-2, 0, 2])
    detached[0] = 5.0
    close(p, [5, 0, 2])
    base = tg.zeros(4)
    view = base[1:3]
    view.data += 1
    view.add_(1)
    close(base, [0, 2, 2, 0])


def test_operators_in_place_take_no_lists():
    x = tg.zeros(2)
    with pytest.raises(TypeError, match="unsupported operand"):
        x += [1.0]
    close(x, [0, 0])


def test_a_deep_copy_has_the_gradient():
    x = f64(1.0, 2.0)
    x.sum().backward()
    copied = copy.deepcopy(x)
    copied.grad.zero_()
    close(x.grad, [1, 1])
    assert copied.requires_grad


def test_a_view_of_an_outside_tensor_written_in_a_trace():
    base = tg.tensor(np.zeros((2, 2)))
    view = base[1]

    @tg.trace
    def write(k):
        view.add_(k)
        base[0, 0] = 5.0

    for _ in range(3):
        write(1.0)
    close(base, [[5.0, 0.0], [3.0, 3.0]])
    close(view, [3.0, 3.0])


def test_clone_and_computed_results_do_not_share(run):
    def fn(x):
        a = x * 1.0
        b, c = a.clone(), a + 0.0
        a.zero_()
        return b, c

    b, c = run(fn)(f64(1.0, 2.0))
    close(b, [1.0, 2.0])
    close(c, [1.0, 2.0])


def test_expanded_tensors_cannot_be_written():
    a = f64(1.0, grad=False).expand(3)
    with pytest.raises(ArgumentError, match=r"several elements of an expanded tensor.* clone\(\) it first"):
        a.add_(1.0)


@one_of(2, "n", [12, 66])
def test_one_of_many_windows_is_written(run, n):
    """Windows that overlap cannot be written at once, each of them can."""
    taper, x = np.linspace(0.5, 1.0, 4), np.arange(float(n))
    weights = tg.tensor(taper)

    def windows(a, p, flags):
        frames = a.unfold(0, 4, 2)
        for i in (0, 4):
            frames[i] *= weights
        frames[1].add_(1)
        frames[1, 2:] = 7
        a.expand(3, n)[1][5:7] = -1
        a[:, None].expand(n, 3)[8:, 1] *= 2
        flags.unfold(0, 3, 1)[::4].logical_not_()
        b = p * 2
        b.unfold(0, 5, 1)[::5].mul_(a[:(n - 5) // 5 * 5 + 5].view(-1, 5))
        return a * 1, b, ~flags

    call = run(windows)
    for _ in range(3):
        a, expected, flags = tg.tensor(x), x.copy(), tg.arange(n) > 4
        p = f64(*np.ones(n))
        found, b, inverse = call(a, p, flags)
        for i in (0, 4):
            expected[2 * i:2 * i + 4] *= taper
        expected[2:6] += 1
        expected[4:6], expected[5:7] = 7, -1
        expected[8:] *= 2
        close(found, expected)
        b.sum().backward()
        width = (n - 5) // 5 * 5 + 5
        close(p.grad, 2 * np.r_[expected[:width], np.ones(n - width)])
        swapped = np.arange(n) > 4
        for i in range(0, n - 2, 4):
            swapped[i:i + 3] ^= True
        assert np.array_equal(inverse.numpy(), ~swapped)


def test_in_place_cannot_change_shape_or_category():
    a = f64(1.0, 2.0, grad=False)
    with pytest.raises(ShapeError, match=r"add_: the result has shape \(3, 2\), the tensor \(2,\)"):
        a.add_(tg.zeros(3, 2, dtype=tg.float64))
    with pytest.raises(DTypeError, match="the result is float64 and can't be cast to the tensor's int64"):
        tg.tensor([1, 2]).add_(f64(1.0, 2.0, grad=False))


@pytest.mark.parametrize("change", [
    lambda w: w.add_(1.0), lambda w: w.zero_(), lambda w: w.__setitem__(0, 1.0), lambda w: w[0].mul_(2.0),
    lambda w: w.reshape(-1).add_(1.0),
], ids=["add_", "zero_", "setitem", "view", "reshape"])
def test_a_leaf_modified_in_place_outside_no_grad_is_an_error(run, change):
    w = f64(1.0, 2.0)
    with pytest.raises(AutogradError, match=r"a leaf tensor that requires grad was modified in place; do it inside `with tg.no_grad"):
        run(change)(w)
    close(w, [1.0, 2.0])
    assert w._version == 0


def test_no_grad_updates_of_leaves(run):
    w = f64(1.0, 2.0)
    kept = w

    @run
    def step():
        loss = (w * w).sum()
        loss.backward()
        with tg.no_grad():
            w.sub_(0.25 * w.grad)
            w[0] *= 2.0
        w.grad.zero_()
        return loss

    value = np.array([1.0, 2.0])
    for k in range(4):
        assert step().item() == pytest.approx(float((value ** 2).sum()))
        value = value * 0.5 * np.array([2.0, 1.0])
        close(w, value)
        close(w.grad, [0.0, 0.0])
        assert w._version > k
    assert w.is_leaf
    assert w.requires_grad
    assert kept is w


def test_grad_set_to_none(run):
    w = f64(3.0)

    @run
    def step():
        w.grad = None
        (w * w).sum().backward()

    for _ in range(3):
        step()
        close(w.grad, [6.0])
    w.grad = None
    assert w.grad is None


def test_a_grad_that_does_not_fit_is_an_error():
    w = f64(1.0, 2.0)
    with pytest.raises(ShapeError, match="does not fit"):
        w.grad = f64(1.0, grad=False)
    with pytest.raises(DTypeError, match="expected a Tensor or None"):
        w.grad = 1.0


def test_data_and_detach_share_the_memory(run):
    w = f64(1.0, 2.0)

    @run
    def step():
        w.data -= 0.5
        w.detach()[0] = 7.0
        w.data.mul_(2.0)

    step()
    close(w, [14.0, 3.0])
    assert w.is_leaf
    assert w.requires_grad


def detached_written(x, w):
    v = x.detach()
    v.mul_(w)
    v[0] = w[1] * 3.0
    return x, v, (v * v).sum()


def detached_view_written(x, w):
    v = x.detach()
    v[1:].mul_(w[1:])
    v *= w
    return x, v, (v * x).sum()


def detached_then_values(x, w):
    v = x.data
    v += w
    with tg.no_grad():
        v.mul_(2.0)
    x.add_(1.0)
    return x, v, (v * v).sum()


def detached_twice(x, w):
    v = x.detach()
    v.mul_(w)
    u = v.detach()
    u.mul_(w)
    u[0] += 1.0
    return x, u, (u * w + v).sum()


@pytest.mark.parametrize("of", ["plain", "history", "nobody's"])
@pytest.mark.parametrize(("program", "seen", "result", "gradient"), [            # as torch gives them
    (detached_written, [4.5, 3.0], [4.5, 3.0], [0.0, 39.0]),
    (detached_view_written, [0.5, 4.5], [0.5, 4.5], [0.5, 27.0]),
    (detached_then_values, [4.0, 8.0], [4.0, 8.0], [8.0, 16.0]),
    (detached_twice, [1.25, 4.5], [1.25, 4.5], [2.5, 11.0]),
])
def test_what_is_written_to_a_detached_tensor_has_a_history_there(program, seen, result, gradient, of):
    """The tensor that it was made of gets the values only."""
    w = f64(0.5, 1.5)
    start = f64(1.0, 2.0, grad=False)

    def step(w):
        x = {"plain": lambda: start * 1.0, "history": lambda: start + 0.0 * w, "nobody's": lambda: start.clone().view(2)}[of]()
        x, v, loss = program(x, w)
        assert v.requires_grad
        assert x.requires_grad == (of == "history")
        return x.detach(), v.detach(), tg.autograd.grad(loss, w)[0]

    for _ in range(3):
        found = step(w)
        for value, wanted in zip(found, (seen, result, gradient), strict=True):
            close(value, wanted)
    traced = tg.trace(step)
    for value, wanted in zip(traced(w), (seen, result, gradient), strict=True):
        close(value, wanted)


def test_views_without_history_are_not_written_with_one():
    w, x = f64(0.5, 1.5), f64(1.0, 2.0, grad=False)
    y = w * 2.0
    with tg.no_grad():
        row = y[:1]
    with pytest.raises(AutogradError, match=r"^mul_: a view that was made under no_grad"):
        row.mul_(w[:1])
    v = x.detach()

    @tg.trace
    def by(w):
        v.mul_(w)

    with pytest.raises(AutogradError, match=r"^mul_: inside @trace .* what detach\(\) made outside"):
        by(w)
    close(x, [1.0, 2.0])
    close(y, [1.0, 3.0])
    v.mul_(w)
    assert v.detach_() is v
    assert not v.requires_grad


def test_gradients_of_a_step_that_began_before_an_update():
    w = f64(2.0)
    y = w * w
    with tg.no_grad():
        w.fill_(100.0)
    y.sum().backward()
    close(w.grad, [4.0])                         # of the values that were used


@pytest.mark.parametrize("n", [3, 65, 130])
def test_gradients_of_leaves_that_were_written_since(run, n):
    """autograd.grad and backward(inputs=...) know what a leaf was when it was read, as backward does."""
    w, v = f64(*np.linspace(0.5, 2.0, n)), f64(*np.linspace(1.0, 3.0, n))
    factors = tg.tensor(np.linspace(-1.0, 1.0, n))
    before = v.detach().clone()

    def written(w, v):
        first = w * factors
        with tg.no_grad():
            w -= 0.25 * w
        return first, first + w * v                             # of what it was, and of what it is now

    def by_grad(w, v):
        first, both = written(w, v)
        old, = tg.autograd.grad(first.sum(), w, retain_graph=True)
        return old, *tg.autograd.grad(both.sum(), [w, v, w], create_graph=True)

    call, value = run(by_grad), w.detach().numpy().copy()
    for _ in range(5):
        value *= 0.75
        old, new, of_v, again = call(w, v)
        close(old, factors.numpy())
        close(new, factors.numpy() + before.numpy())
        close(again, new.detach().numpy())
        close(of_v, value)
    first, _ = written(w, v)
    first.sum().backward(inputs=[w])
    close(w.grad, factors.numpy())
    assert v.grad is None


def test_a_leaf_that_no_longer_requires_grad_gets_no_gradient():
    for n in (3, 31, 65, 130):
        x, y = f64(*np.ones(n)), f64(*np.ones(n))
        for repeat in range(7):                                   # a discriminator, frozen once its scores are computed
            x.requires_grad_(), y.requires_grad_()
            loss = (x * y * repeat).sum()
            y.requires_grad_(False)
            loss.backward()
            assert y.grad is None
            close(x.grad, np.full(n, repeat))
            x.grad = None
        y.requires_grad_()
        loss = (x * y).sum()
        y.requires_grad_(False).requires_grad_()
        loss.backward()
        close(y.grad, np.ones(n))


WRITES = {
    "whole": lambda y: y.add_(1),
    "view": lambda y: y[2:9].zero_(),
    "reshaped": lambda y: y.view(-1, 1).mul_(2),
    "moved": lambda y: y[None].narrow(1, 3, 4).fill_(7.0),
    "element": lambda y: y.__setitem__(0, 5.0),
    "out": lambda y: tg.mul(y, 2, out=y),
}


@one_of(3, ("name", "known", "n"), product(WRITES, [False, True], [12, 65]))
def test_a_history_stays_when_the_value_is_written_under_no_grad(run, name, known, n):
    """As in torch: later operations see the new value, and the gradient goes on to what the old one was made of."""
    write = WRITES[name]
    expected = tg.arange(1.0, n + 1, dtype=tg.float64) * 3
    write(expected)
    expected = expected.numpy()
    x = tg.arange(1.0, n + 1, dtype=tg.float64).requires_grad_()

    def fn(detached):
        y = x * 3.0
        if known and run is not tg.trace:
            y.detach().numpy()
        if detached:
            write(y.detach())
        else:
            with tg.no_grad():
                write(y)
        assert (y.requires_grad, y.is_leaf) == (True, False)
        return y, tg.autograd.grad((y * y).sum(), x)[0]

    traced = run(fn)
    for detached in (False, True, False, True):
        y, gradient = traced(detached)
        close(y.detach(), expected)
        close(gradient, 6 * expected)


def test_a_chain_of_writes_with_and_without_a_history(run):
    def fn(x):
        y = x * 2.0
        with tg.no_grad():
            y.add_(x)
        y.mul_(x)
        with tg.no_grad():
            y[0] = 1.0
        return y, tg.autograd.grad(y.sum(), x)[0]

    y, gradient = run(fn)(f64(1.0, 2.0, 3.0))
    close(y.detach(), [1.0, 12.0, 27.0])
    close(gradient, [5.0, 10.0, 15.0])                      # 2x + x, and the 2 of what y was made by


def test_intermediates_of_transforms_are_written_under_no_grad(run):
    def fn(x):
        y = x * 2.0
        with tg.no_grad():
            y.mul_(3)
        return (y * y).sum()

    x = f64(1.0, 2.0, grad=False)
    close(run(tg.grad(fn))(x), [24.0, 48.0])                # 2 * 6x * 2
    close(run(tg.jacfwd(fn))(x), [24.0, 48.0])


def test_a_tensor_without_grad_gains_a_history_by_a_write(run):
    def fn(x):
        buffer = tg.zeros(3, dtype=tg.float64)
        buffer[1:] = x * x
        return buffer.sum()

    assert gradcheck(run(fn), f64(1.0, 2.0))
    assert gradgradcheck(run(fn), f64(1.0, 2.0))


def test_a_history_that_a_trace_would_lose_is_an_error():
    w, total = f64(2.0), f64(0.0, grad=False)

    @tg.trace
    def grows():
        total.add_(w * w)

    with pytest.raises(TraceError, match=r"test_mutation.py:\d+: a float64\[1\] tensor from outside was modified in place by a value that"):
        grows()

    @tg.trace
    def step():
        w.grad = None
        loss = w * w
        loss.backward()
        with tg.no_grad():
            total.add_(w)
        total.add_((w * w).detach())
        total.add_(loss)

    step()
    step()
    close(total, [20.0])


def test_version_counters():
    a = f64(1.0, 2.0, grad=False)
    v, d = a[0], a.detach()
    assert (a._version, v._version, d._version) == (0, 0, 0)
    a.add_(1.0)
    v.mul_(2.0)
    d.zero_()
    assert a._version == v._version == d._version == 3
    assert (a + 1)._version == 0
    step = tg.trace(lambda t: t.add_(1.0))
    step(a)
    step(a)
    assert a._version == 5


def test_a_failed_trace_changes_nothing():
    a = f64(1.0, grad=False)

    @tg.trace
    def fails(a):
        a.add_(1.0)
        raise KeyError("stop")

    with pytest.raises(KeyError):
        fails(a)
    close(a, [1.0])
    assert a._version == 0


def _filled(x):
    y = (x * x).exp()
    y.zero_()
    y[0] = x[0]
    y.fill_(3.0)
    return y


@pytest.mark.parametrize("fn", [_filled, tg.trace(_filled)], ids=["untraced", "traced"])
def test_what_is_overwritten_still_requires_grad_which_is_zeros(fn):
    for _ in range(15):                                     # the last ones are recalled
        x = f64(1.0, 2.0)
        y = fn(x)
        assert y.requires_grad
        (y.sum() + 2 * x.sum()).backward()
        close(y, [3.0, 3.0])
        close(x.grad, [2.0, 2.0])


def test_transforms_of_what_is_overwritten_are_zeros():
    x = f64(1.0, 2.0, grad=False)
    close(tg.func.jacfwd(_filled)(x), np.zeros((2, 2)))
    close(tg.func.jacrev(_filled)(x), np.zeros((2, 2)))
    close(tg.func.hessian(lambda x: _filled(x).sum())(x), np.zeros((2, 2)))
    close(tg.vmap(tg.func.grad(lambda x: _filled(x).sum() + x.sum()))(tg.stack([x, x])), np.ones((2, 2)))


def test_what_is_overwritten_outside_of_a_trace_would_lose_its_history():
    """As with any other change of it: torch's would keep it."""
    y = f64(1.0, 2.0) * 2

    @tg.trace
    def reset():
        y.zero_()

    with pytest.raises(TraceError, match="its derivative would be lost"):
        reset()
    close(y, [2.0, 4.0])


def test_nothing_computes_what_is_overwritten():
    f = tg.trace(lambda x: (x * 3.0).sin().fill_(2.0) + x)
    f(f64(1.0, 2.0))
    assert " sin(" not in str(f.kernels())


def test_the_gradients_of_a_module_become_zeros_without_a_history():
    m = tg.nn.Linear(2, 1)
    (m(tg.ones(1, 2)) ** 2).sum().backward(create_graph=True)
    assert m.weight.grad.requires_grad
    m.zero_grad(set_to_none=False)
    assert not m.weight.grad.requires_grad
    close(m.weight.grad, [[0.0, 0.0]])


@pytest.mark.parametrize("refill", [lambda d: d.zero_(), lambda d: d.__setitem__(slice(None), 0.3), lambda d: d.fill_(2.0)])
def test_what_was_detached_and_written_with_a_history_keeps_one_when_it_is_overwritten(refill):
    """As any tensor does: it requires grad, and the gradient of what was there is 0."""
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    d = tg.zeros(2).detach()
    d.copy_(x * 2)
    refill(d)
    assert d.requires_grad
    d.sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("made", [lambda x: x.exp(), lambda x: x * x, lambda x: tg.where(x > 0, x, x * 3), lambda x: (x * 2).exp().sum(0)])
@pytest.mark.parametrize("again", [False, True])
def test_what_was_copied_into_a_tensor_is_its_value_after_a_backward(made, again):
    """Backward lets go of what was saved; the tensor has the value still, at each step of a loop."""
    for step in range(6):
        x = tg.tensor([[0.5, 1.0], [2.0, 0.25]], requires_grad=True) * (step + 1.0)
        y = x * 2
        y.copy_(made(x))
        z = y * 3
        if again:
            y.copy_(y * 2)
        (y * y.detach()).sum().backward()
        wanted = np.broadcast_to(made(x.detach()).numpy(), (2, 2)) * (2 if again else 1)
        np.testing.assert_allclose(y.detach().numpy(), wanted, rtol=1e-6)
        np.testing.assert_allclose(z.detach().numpy(), 3 * wanted / (2 if again else 1), rtol=1e-6)


DEPTH = 1100                # of views of views: more than Python's functions may call each other


@pytest.mark.parametrize("step", [lambda v: v[:], lambda v: v.detach(), lambda v: v.view(4)], ids=["part", "detach", "reshape"])
def test_views_of_views_of_views(step):
    x = tg.zeros(4)
    view = x
    for _ in range(DEPTH):
        view = step(view)
    view.add_(1)
    close(x, [1, 1, 1, 1])
    x.mul_(3)
    close(view, [3, 3, 3, 3])
    assert view.is_contiguous()
    f = tg.trace(lambda: view.add_(1).sum())
    assert f().item() == 16
    assert f().item() == 20
    close(x, [5, 5, 5, 5])


def test_views_of_views_of_a_history():
    leaf = tg.ones(4, requires_grad=True)
    whole = leaf * 1
    view = whole
    for _ in range(DEPTH // 2):            # each level of a write calls twice
        view = view[:]
    view.mul_(2)
    whole.mul_(3)
    view.sum().backward()
    close(leaf.grad, [6, 6, 6, 6])
