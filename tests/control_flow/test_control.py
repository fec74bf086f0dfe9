"""cond, while_loop, scan: traced and untraced, differentiated, batched."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of


def both(fn):
    """A function and its traced twin."""
    return [fn, tg.trace(fn)]


def root(x):
    return tg.cond((x > 0).all(), lambda x: x.sqrt(), lambda x: x * 3.0 + 1.0, x)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("which", [0, 1], ids=["untraced", "traced"])
class TestCond:
    def test_takes_the_branch(self, which):
        f = both(root)[which]
        assert f(tg.tensor(4.0)).item() == 2.0
        assert f(tg.tensor(-4.0)).item() == -11.0

    def test_derivatives_are_those_of_the_branch_taken(self, which):
        first = both(tg.grad(root))[which]
        second = both(tg.grad(tg.grad(root)))[which]
        third = both(tg.grad(tg.grad(tg.grad(root))))[which]
        np.testing.assert_allclose([first(tg.tensor(4.0)).item(), second(tg.tensor(4.0)).item(), third(tg.tensor(4.0)).item()],
                                   [0.25, -1 / 32, 3 / 256], rtol=1e-5)
        # sqrt has NaN here, at every order
        assert [first(tg.tensor(-4.0)).item(), second(tg.tensor(-4.0)).item(), third(tg.tensor(-4.0)).item()] == [3.0, 0.0, 0.0]

    def test_forward_mode_and_hessian(self, which):
        f = both(lambda x, t: tg.jvp(root, (x,), (t,))[1])[which]
        h = both(tg.hessian(root))[which]
        for x, slope, curve in ((4.0, 0.25, -1 / 32), (-4.0, 3.0, 0.0)):
            np.testing.assert_allclose(f(tg.tensor(x), tg.tensor(1.0)).item(), slope, rtol=1e-5)
            np.testing.assert_allclose(h(tg.tensor(x)).item(), curve, rtol=1e-5)

    def test_gradients_reach_closures(self, which):
        def f(w, x):
            return tg.cond(x.sum() > 0, lambda y: (y * w.log()).sum(), lambda y: (y * w).sum(), x)

        g = both(tg.grad(f))[which]
        w = tg.tensor([2.0, -4.0])
        np.testing.assert_allclose(g(w, tg.tensor([-1.0, -2.0])).numpy(), [-1.0, -2.0])
        np.testing.assert_allclose(g(w, tg.tensor([1.0, 2.0])).numpy(), [0.5, -0.5])

    def test_several_results_in_containers(self, which):
        f = both(lambda p, x: tg.cond(p, lambda x: {"a": x + 1, "b": (x > 0, 2.0)}, lambda x: {"a": x, "b": (x < 0, 1.0)}, x))[which]
        out = f(tg.tensor(False), tg.tensor([1.0, -1.0]))
        assert out["a"].tolist() == [1.0, -1.0]
        assert out["b"][0].tolist() == [False, True]
        assert float(out["b"][1]) == 1.0

    def test_the_predicate_must_be_one_element(self, which):
        with pytest.raises(tg.ShapeError, match="cond: pred has shape"):
            both(lambda x: tg.cond(x > 0, lambda x: x, lambda x: -x, x))[which](tg.ones(3))


@pytest.mark.usefixtures("device")
def test_backward_in_a_traced_step_with_cond():
    w = tg.tensor([4.0, 9.0], requires_grad=True)

    @tg.trace
    def step(x):
        loss = tg.cond(x > 0, lambda w: w.sqrt().sum(), lambda w: (w * w).sum(), w)
        loss.backward()
        with tg.no_grad():
            w.sub_(w.grad, alpha=1.0)
            w.grad = None
        return loss

    assert step(tg.tensor(1.0)).item() == 5.0
    np.testing.assert_allclose(w.detach().numpy(), [3.75, 9 - 1 / 6], rtol=1e-6)
    step(tg.tensor(-1.0))
    np.testing.assert_allclose(w.detach().numpy(), [-3.75, -(9 - 1 / 6)], rtol=1e-6)


@pytest.mark.usefixtures("device")
def test_vmap_of_cond_and_its_gradient():
    x = tg.tensor([4.0, -4.0, 9.0])
    np.testing.assert_allclose(tg.vmap(root)(x).numpy(), [2.0, -11.0, 3.0])
    np.testing.assert_allclose(tg.vmap(tg.grad(root))(x).numpy(), [0.25, 3.0, 1 / 6], rtol=1e-6)
    np.testing.assert_allclose(tg.grad(lambda x: tg.vmap(root)(x).sum())(x).numpy(), [0.25, 3.0, 1 / 6], rtol=1e-6)
    np.testing.assert_allclose(tg.vmap(tg.grad(tg.grad(root)))(x).numpy(), [-1 / 32, 0.0, -1 / 108], rtol=1e-5)


@pytest.mark.usefixtures("device")
def test_derivatives_of_a_cond_read_what_is_around():
    """Branches that read a row, a carry without a derivative or another argument of a vmap, which their derivatives did not find."""
    def chain(x, rows):
        def iterate(carry, row):
            count, x = carry
            x = tg.cond(count % 2 == 0, lambda: x.sin() * row, lambda: tg.cond(count > 2, lambda x: x * row, lambda x: x * x * count, x))
            return (count + 1, x), (x * x).sum()
        return tg.scan(iterate, (tg.tensor(0), x), rows)[1].sum()

    def one(x, scale):
        return tg.cond(scale > 0, lambda x: x * x * scale.exp(), lambda x: x * scale, x).sum()

    def written_out(x, rows):
        total = 0.0
        for i in range(len(rows)):
            x = x.sin() * rows[i] if i % 2 == 0 else x * rows[i] if i > 2 else x * x * i
            total = total + (x * x).sum()
        return total

    x, rows, scales = tg.linspace(-1, 1, 10), tg.linspace(0.5, 1.5, 5), tg.tensor([0.5, -2.0, 1.0])
    for argnums in (0, 1):
        wanted = tg.grad(written_out, argnums)(x, rows).numpy()
        np.testing.assert_allclose(tg.trace(tg.grad(chain, argnums))(x, rows).numpy(), wanted, rtol=1e-5, atol=1e-6)
    def curve(f):
        return lambda x: tg.jvp(tg.grad(lambda x: f(x, rows)), (x,), (x,))[1]

    np.testing.assert_allclose(tg.trace(curve(chain))(x).numpy(), curve(written_out)(x).numpy(), rtol=1e-4, atol=1e-5)
    many = tg.vmap(tg.grad(chain), (None, 0))(x, tg.stack([rows, 0.5 * rows])).numpy()
    np.testing.assert_allclose(many[1], tg.grad(written_out)(x, 0.5 * rows).numpy(), rtol=1e-5, atol=1e-6)
    for way in (lambda f: f, tg.trace):
        slopes = way(tg.vmap(tg.grad(one), (None, 0)))(x, scales).numpy()
        np.testing.assert_allclose(slopes, [[*(2 * x * np.exp(0.5)).tolist()], [-2.0] * 10, [*(2 * x * np.e).tolist()]], rtol=1e-5)


def test_branches_must_agree():
    f = tg.trace(lambda x: tg.cond(x > 0, lambda x: x.reshape(1), lambda x: x, x))
    with pytest.raises(tg.ShapeError, match=r"cond: the branches return different shapes.*test_control"):
        f(tg.tensor(1.0))
    f = tg.trace(lambda x: tg.cond(x > 0, lambda x: (x, x), lambda x: x, x))
    with pytest.raises(tg.ArgumentError, match="structures"):
        f(tg.tensor(1.0))


def test_an_effect_in_a_branch_is_refused_and_undone():
    total = tg.zeros(())

    @tg.trace
    def f(x):
        return tg.cond(x > 0, lambda x: total.add_(x) * 1, lambda x: x, x)

    with pytest.raises(tg.TraceError, match="must not change tensors from outside"):
        f(tg.tensor(1.0))
    assert total.item() == 0.0


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("which", [0, 1], ids=["untraced", "traced"])
class TestWhile:
    def test_newton(self, which):
        def f(a, tolerance):
            start = (a, tg.tensor(0))
            return tg.while_loop(lambda s: (s[0] * s[0] - a).abs() > tolerance, lambda s: (0.5 * (s[0] + a / s[0]), s[1] + 1), start)

        g = both(f)[which]
        x, n = g(tg.tensor(2.0), 1e-4)
        np.testing.assert_allclose(x.item(), 2**0.5, rtol=1e-4)
        assert n.item() == 3
        x, n = g(tg.tensor(100.0), 1e-2)
        np.testing.assert_allclose(x.item(), 10, rtol=1e-4)
        assert n.item() > 4

    def test_no_iteration_at_all(self, which):
        f = both(lambda x: tg.while_loop(lambda x: x.sum() < 0, lambda x: x * 2, x))[which]
        assert f(tg.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]

    def test_between_other_work(self, which):
        f = both(lambda x: tg.while_loop(lambda y: y.max() < 100, lambda y: y * y + 1, x.exp()) - x)[which]
        x = np.array([0.0, 1.0], np.float32)
        y = np.exp(x)
        while y.max() < 100:
            y = y * y + 1
        np.testing.assert_allclose(f(tg.tensor(x)).numpy(), y - x, rtol=1e-5)

    def test_the_body_keeps_shapes(self, which):
        f = both(lambda x: tg.while_loop(lambda x: x.sum() < 9, lambda x: tg.cat([x, x]), x))[which]
        with pytest.raises(tg.ShapeError, match="while_loop"):
            f(tg.ones(2))


def test_random_numbers_in_a_traced_loop_are_refused():
    with pytest.raises(tg.TraceError, match="random"):
        tg.trace(lambda x: tg.while_loop(lambda y: y < 100, lambda y: y + tg.rand(()), x))(tg.tensor(2.0))


def recurrence(w, xs):
    """c' = tanh(w c + x): a small RNN; the last state and all of them."""
    return tg.scan(lambda c, x: ((w * c + x).tanh(), c * x), tg.zeros(xs.shape[1]), xs)


def looped(w, xs):
    c, ys = tg.zeros(xs.shape[1]), []
    for i in range(xs.shape[0]):
        ys.append(c * xs[i])
        c = (w * c + xs[i]).tanh()
    return c, tg.stack(ys)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("which", [0, 1], ids=["untraced", "traced"])
class TestScan:
    xs = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)

    def test_values_and_derivatives(self, which):
        w, xs = tg.tensor(0.7), tg.tensor(self.xs)
        for a, b in zip(both(recurrence)[which](w, xs), looped(w, xs), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)

        def loss(f):
            def g(w, xs):
                c, ys = f(w, xs)
                return (c * c).sum() + ys.sin().sum()
            return g

        for a, b in zip(both(tg.grad(loss(recurrence), (0, 1)))[which](w, xs), tg.grad(loss(looped), (0, 1))(w, xs), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
        second = both(tg.grad(lambda w, xs: (tg.grad(loss(recurrence), 1)(w, xs) ** 2).sum()))[which](w, xs)
        wanted = tg.grad(lambda w, xs: (tg.grad(loss(looped), 1)(w, xs) ** 2).sum())(w, xs)
        np.testing.assert_allclose(second.item(), wanted.item(), rtol=1e-4)

    def test_length_reverse_and_none(self, which):
        f = both(lambda x: tg.scan(lambda c, _: (c * 2, None), x, length=5))[which]
        assert f(tg.tensor(1.0))[0].item() == 32
        assert f(tg.tensor(1.0))[1] is None
        f = both(lambda x: tg.scan(lambda c, x: (c * 2 + x, c), tg.tensor(0.0) if which == 0 else x[0] * 0, x, reverse=True))[which]
        last, ys = f(tg.tensor([1.0, 2.0, 4.0]))
        assert last.item() == 21
        assert ys.tolist() == [10.0, 4.0, 0.0]

    def test_errors(self, which):
        with pytest.raises(tg.ArgumentError, match="scan: without xs, give length"):
            both(lambda x: tg.scan(lambda c, _: (c, None), x))[which](tg.ones(2))
        with pytest.raises(tg.ShapeError, match="must keep shape"):
            both(lambda x: tg.scan(lambda c, _: (tg.cat([c, c]), None), x, length=2))[which](tg.ones(2))


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("wrap", [lambda f: f, tg.trace])
def test_the_forms_of_torch(wrap):
    x, y = tg.tensor([1.0, -2.0]), tg.tensor([3.0, 4.0])

    @wrap
    def chosen(p, x, y):
        both = tg.cond(p.sum() > 0, lambda x, y: (x + y,), lambda x, y: (x * y,), operands=(x, y))
        return both[0], tg.cond(p.sum() > 0, abs, abs, operands=[x])

    assert chosen(x, x, y)[0].tolist() == [3.0, -8.0]
    assert chosen(y, x, y)[0].tolist() == [4.0, 2.0]
    assert chosen(y, x, y)[1].tolist() == [1.0, 2.0]

    @wrap
    def turned(x, y):
        return tg.while_loop(lambda i, x, y: i < 3, lambda i, x, y: (i + 1, x + y, y), carried_inputs=(tg.tensor(0), x, y))

    i, last, same = turned(x, y)
    assert (i.item(), last.tolist(), same.tolist()) == (3, [10.0, 10.0], [3.0, 4.0])
    gradient = tg.grad(lambda x: turned(x, x * 2.0)[1].sum())(x)
    assert gradient.tolist() == [7.0, 7.0]
    with pytest.raises(tg.ArgumentError, match=r"cond: operands must be a tuple.* 1 more"):
        tg.cond(True, abs, abs, x, operands=(x,))
    with pytest.raises(tg.ArgumentError, match=r"while_loop: carried_inputs must be a tuple, and stands for init; got Tensor"):
        tg.while_loop(bool, abs, carried_inputs=x)


# ------------------------------------------------------------------------------------- transforms in what is recorded


def _cube(v):
    return (v ** 3).sum()


INNER = {
    "grad": tg.grad(_cube),
    "value_and_grad": lambda x: tg.value_and_grad(_cube)(x)[1],
    "vjp": lambda x: tg.vjp(lambda v: v ** 3, x)[1](x.sin())[0],
    "jvp": lambda x: tg.jvp(lambda v: v ** 3, (x,), (x * 1.0,))[1],
    "linearize": lambda x: tg.linearize(lambda v: v ** 3, x)[1](x * 1.0),
    "jacobian": lambda x: tg.jacobian(lambda v: v ** 3)(x).sum(1),
    "jacfwd": lambda x: tg.jacfwd(lambda v: v ** 3)(x).sum(1),
    "hessian": lambda x: tg.hessian(_cube)(x).sum(0),
    "hvp": lambda x: tg.hvp(_cube, (x,), (x * 1.0,))[1],
    "vmap of grad": tg.vmap(tg.grad(lambda v: v ** 3)),
    "grad of grad": tg.grad(lambda v: tg.grad(_cube)(v).sin().sum()),
}


def _turns(step, carry, rows):
    ys = []
    for row in rows:
        carry, y = step(carry, row)
        ys.append(y)
    return carry, tg.stack(ys)


def _while(test, body, value):
    while bool(test(value)):
        value = body(value)
    return value


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_derivatives_through_a_transform_in_a_body(inner):
    """What a transform makes of a carry, a row or an operand has a history: only the bodies' stand-ins for them say so."""
    def in_scan(scan, _, __):
        def f(x):
            c, ys = scan(lambda c, r: (inner(c) * 0.1 + inner(r), inner(r * c).sum()), x[0], x)
            return c.sin().sum() + ys.sin().sum()
        return f

    def in_while(_, loop, __):
        def f(x):
            return loop(lambda s: s[1] < 3, lambda s: (inner(s[0]).sin() + s[0] * x[1], s[1] + 1), (x[0], tg.tensor(0)))[0].sum()
        return f

    def in_cond(_, __, branch):
        def f(x):
            return branch(x.sum() < 100, lambda x: inner(x[0] * x[1]).sum(), lambda x: inner(x[1]).sum() * 2.0, x)
        return f

    x = tg.tensor(np.random.default_rng(5).uniform(0.2, 0.9, (3, 7)))
    previous = tg.device()
    tg.set_device("numpy")
    try:
        x = tg.tensor(x.numpy())
        for program in (in_scan, in_while, in_cond):
            traced = program(tg.scan, tg.while_loop, tg.cond)
            plain = program(_turns, _while, lambda p, yes, no, *operands: (yes if bool(p) else no)(*operands))
            wanted = tg.grad(plain)(x).numpy()
            assert np.abs(wanted).max() > 0.1
            np.testing.assert_allclose(tg.trace(tg.grad(traced))(x).numpy(), wanted, rtol=1e-10, atol=1e-10, err_msg=program.__name__)
            leaf = x.clone().requires_grad_()
            tg.trace(traced)(leaf).backward()
            np.testing.assert_allclose(leaf.grad.numpy(), wanted, rtol=1e-10, atol=1e-10, err_msg=program.__name__)
            twice = tg.grad(lambda x, f=plain: tg.grad(f)(x).sin().sum())(x).numpy()
            found = tg.trace(tg.grad(lambda x, f=traced: tg.grad(f)(x).sin().sum()))(x).numpy()
            np.testing.assert_allclose(found, twice, rtol=1e-8, atol=1e-8, err_msg=program.__name__)
    finally:
        tg.set_device(previous)


@one_of(2, "n", [7, 33, 65])
def test_steps_of_gradient_descent_in_a_scan(n):
    """On the device: how the loss after some steps depends on the data and on the learning rate (as hyperparameters are learnt)."""
    rng = np.random.default_rng(n)
    x, y, rate = tg.tensor(rng.standard_normal((5, n))), tg.tensor(rng.standard_normal(5)), tg.tensor(0.02, dtype=tg.float64)

    def after(scan):
        def f(x, y, rate):
            def step(w, t):
                def loss(w):
                    return ((w.tanh() * t[0]).sum() - t[1]) ** 2 + 0.01 * (w ** 4).sum()
                w = w - rate * tg.grad(loss)(w)
                return w, loss(w)
            w, losses = scan(step, x[0] * 0.1, (x, y))
            return losses.sum() + (w * w).sum()
        return tg.grad(f, (0, 1, 2))

    found = tg.trace(after(tg.scan))(x, y, rate)
    wanted = after(lambda step, w, xs: _turns(step, w, [tuple(t[i] for t in xs) for i in range(5)]))(x, y, rate)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9)


def test_forward_mode_through_a_loop_in_a_branch():
    """What a branch's loop gives depends on some of the operands only, result by result: its derivative is known to be linear."""
    def carried(x, w):
        return tg.scan(lambda c, r: (c * w + r, None), w, x)[0]

    def stacked(x, w):
        return tg.scan(lambda c, r: (c * 2.0 + r.sin(), (c * r).sum()), w, x)[1]

    def repeated(x, w):
        return tg.while_loop(lambda s: s[1] < 3, lambda s: ((s[0] * w + x[0]).sin(), s[1] + 1), (w, tg.tensor(0)))[0]

    rng = np.random.default_rng(2)
    x, w = rng.uniform(0.2, 0.9, (5, 7)), rng.uniform(0.2, 0.9, 7)
    t = rng.standard_normal((5, 7)), rng.standard_normal(7)
    previous = tg.device()
    tg.set_device("numpy")
    try:
        for inner in (carried, stacked, repeated):
            def f(x, w, inner=inner):
                return tg.cond(w.sum() > 0, lambda x, w: inner(x, w).sin().sum(), lambda x, w: w.sum(), x, w)

            def slopes(x, w, f=f):
                return tg.cat([g.reshape(-1) for g in tg.grad(f, (0, 1))(x, w)])

            def both_at(h, g):
                return g(*(tg.tensor(a + h * b) for a, b in zip((x, w), t, strict=True))).numpy()

            given, along = tuple(map(tg.tensor, (x, w))), tuple(map(tg.tensor, t))
            first, second = tg.trace(lambda *a, f=f, s=slopes, along=along: (tg.jvp(f, a, along)[1], tg.jvp(s, a, along)[1]))(*given)
            for found, g in ((first, f), (second, slopes)):
                wanted = (both_at(1e-5, g) - both_at(-1e-5, g)) / 2e-5
                assert np.abs(wanted).max() > 1e-2
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-6, err_msg=inner.__name__)
    finally:
        tg.set_device(previous)
