"""In-place changes of tensors from outside a vmap, a branch or an iteration: right, or an error at the user's line that leaves them."""

import linecache
from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.values import close

RNG = np.random.default_rng(5)


def draw(*shape):
    return tg.tensor(RNG.standard_normal(shape))


def setitem(out, row):
    out[0] = row[0]


def of_a_view(out, row):
    view_of_out = out[1:]
    view_of_out.mul_(row[1:])


def of_two_views(out, row):
    out.reshape(-1, 1)[1:].sub_(row[1:, None])


def of_the_grad(out, row):
    out.grad = row


def by_backward(out, row):
    (out.detach().requires_grad_() * out * row).sum().backward()


def by_data(out, row):
    out.data = row


def in_a_grad(out, row):
    return tg.grad(lambda r: (out.add_(r) * r).sum())(row)


CHANGES = {
    "setitem": setitem, "view": of_a_view, "views": of_two_views, "grad": of_the_grad, "data": by_data, "in grad": in_a_grad,
    "add_": lambda out, row: out.add_(row), "copy_": lambda out, row: out.copy_(row), "fill_": lambda out, row: out.fill_(row.sum()),
    "index_put_": lambda out, row: out.index_put_((tg.tensor([0]),), row[:1]), "iadd": lambda out, row: out.__iadd__(row * 2),
    "out": lambda out, row: tg.add(row, 1, out=out), "random": lambda out, row: out.add_(tg.rand(out.shape[0], dtype=tg.float64)),
}


@one_of(8, "n", [3, 12, 65, 129], 1)
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_mapped_takes_no_value_of_an_example(run, name, n):
    out, rows = draw(n), draw(5, n)
    before = out.numpy()

    def fn(row):
        CHANGES[name](out, row)
        return row.sum()

    with pytest.raises(tg.TraceError, match=rf"vmap: `out` \(float64\[{n}\]\) is not mapped.*in_dims.*test_scopes.py") as error:
        run(tg.vmap(fn, randomness="different"))(rows)
    file, line = error.value.line.rsplit(":", 1)
    assert "out" in linecache.getline(file, int(line)), "the line that changes it"
    close(out, before)
    assert out.grad is None
    close(out + 1, before + 1)


def test_what_is_not_mapped_takes_values_that_all_examples_share(run):
    count, rows = tg.zeros(12, dtype=tg.float64), draw(65, 12)

    def fn(row):
        count.add_(1)
        count[3:].mul_(2)
        return row * count

    expected = np.array([1.0] * 3 + [2.0] * 9)
    close(run(tg.vmap(fn))(rows), rows.numpy() * expected)
    close(count, expected)


def test_vmaps_inside_each_other_keep_their_own(run):
    rows, seen = draw(12, 7), tg.zeros((), dtype=tg.float64)

    def inner(row):
        own = row * 2                                                   # what the outer one made is its own
        return tg.vmap(lambda x: own.add_(x).sum())(row)

    def outer(row):
        own = row * 2
        tg.vmap(lambda x: own.add_(row).sum() + x)(row)                  # a value of the outer example
        return own

    def through(row):                                                   # the outer one's argument, mapped by the inner one
        tg.vmap(lambda x: x.mul_(3))(row)
        return row

    def captured(row):
        return tg.vmap(lambda x: seen.add_(x) + x)(row)

    with pytest.raises(tg.TraceError, match=r"add_: vmap: `own` \(float64\[7\]\) is not mapped"):
        run(tg.vmap(inner))(rows)
    with pytest.raises(tg.TraceError, match=r"add_: vmap: `seen` \(float64\[\]\) is not mapped"):
        run(tg.vmap(captured))(rows)
    close(run(tg.vmap(outer))(rows), rows.numpy() * 3)
    before = rows.numpy()
    close(run(tg.vmap(through))(rows), before * 3)
    close(rows, before * 3)
    assert seen.item() == 0


def test_what_an_example_s_backward_writes(run):
    """Of a Function, and of a hook, also at the unit tensors of a Jacobian."""
    seen = tg.zeros(12, dtype=tg.float64)

    def fn(x):
        y = x * 1
        y.register_hook(lambda g: seen.add_(g) * 0 + g)
        return (y * y).sin()

    x = draw(12)
    for transform in (tg.jacrev(fn), tg.vmap(tg.grad(lambda x: fn(x).sum()))):
        with pytest.raises(tg.TraceError, match=r"add_: vmap: `seen` \(float64\[12\]\)"):
            run(transform)(x if transform.__wrapped__ is fn else draw(65, 12))
        close(seen, np.zeros(12))
    tg.grad(lambda x: fn(x).sum())(x)
    close(seen, 2 * x.numpy() * np.cos(x.numpy() ** 2))


def branches(x, change):
    return tg.cond(x.sum() > 0, lambda x: change(x) * 1, lambda x: x * 2, x)


def iterations(x, change):
    return tg.while_loop(lambda v: v[0].sum() < 400 + x.sum(), lambda v: (v[0] * 2 + 0 * change(v[0]), v[1]), (x.abs() + 1, x))[0]


def conditions(x, change):
    return tg.while_loop(lambda v: (v * 2 + 0 * change(v)).sum() < 400 + x.sum(), lambda v: v * 2, x.abs() + 1)


@pytest.mark.parametrize("n", [12, 65])
@pytest.mark.parametrize("way", ["vmap", "trace", "both", "grad"])
@pytest.mark.parametrize(("loop", "change"), [
    (branches, "argument"),                             # (a loop's are its own)
    *((loop, change) for loop in (branches, iterations, conditions) for change in ("outside", "made", "view", "shape", "grad")),
])
def test_recorded_functions_have_no_effects(loop, change, way, n):
    """They are recorded once, or twice, and both branches are: what they would change would be changed so often."""
    total, x = tg.zeros(n, dtype=tg.float64), draw(3, n)
    before = x.numpy()

    def fn(x):
        made = x * 3
        changes = {
            "outside": lambda v: total.add_(1), "made": made.mul_, "view": lambda v: made[1:].neg_().sum(),
            "argument": lambda v: v.add_(1), "shape": lambda v: made.unsqueeze_(0)[0], "grad": lambda v: _with_grad(total) * v,
        }
        return loop(x, changes[change]) + made

    each = {"vmap": tg.vmap(fn), "trace": tg.trace(lambda x: fn(x[0])), "both": tg.trace(tg.vmap(fn)),
            "grad": tg.vmap(tg.grad(lambda x: fn(x).sum()))}[way]
    with pytest.raises(tg.TraceError, match=r"(cond|while_loop): inside @trace or vmap a function must not change .*\[.*test_scopes"):
        each(x)
    close(total, np.zeros(n))
    close(x, before)
    assert total.grad is None


def _with_grad(total):
    total.grad = total * 0
    return total


def _added(c, x):
    c += x
    return c, c


def _scaled(c, x):
    y = c.add_(x) * 2
    c.mul_(0.5)
    return c, y


def _parts(c, x):
    c[1:] += x[1:]
    x.view(-1, 1)[:2] *= 3
    return c + x, (c, x.neg_())


def _halves(c, x):
    c.unsqueeze_(0)
    return c[0] + x, c


@pytest.mark.parametrize("n", [3, 12, *(pytest.param(n, marks=pytest.mark.long) for n in (20, 65))])     # (65 unrolled: a minute)
@one_of(3, ("body", "way"), product([_added, _scaled, _parts, _halves], ["plain", "vmap", "trace", "both", "grad"]))
def test_what_an_iteration_is_given_is_its_own(body, way, n):
    """`carry += x`, as users of JAX write it: neither init nor xs change, nor what earlier iterations returned."""
    start, xs = draw(2, 4), draw(2, n, 4)
    before = start.numpy(), xs.numpy()

    def loop(c, xs):
        ys = []
        for x in xs.unbind(0):
            c, y = body(c.clone(), x.clone())
            ys.append([t.clone() for t in (y if isinstance(y, tuple) else (y,))])
        return c, *map(tg.stack, zip(*ys, strict=True))

    def fn(c, xs):
        c, ys = tg.scan(body, c, xs)
        return c, *(ys if isinstance(ys, tuple) else (ys,))

    def pulled(fn):
        return tg.grad(lambda c, xs: sum((r * r).sum() for r in fn(c, xs)), argnums=(0, 1))

    def first(fn):
        return lambda c, xs: fn(c[0], xs[0])

    each = {"plain": first(fn), "vmap": tg.vmap(fn), "trace": tg.trace(first(fn)), "both": tg.trace(tg.vmap(fn)),
            "grad": tg.trace(first(pulled(fn)))}[way]
    plain = {"vmap": tg.vmap(loop), "both": tg.vmap(loop), "grad": first(pulled(loop))}.get(way, first(loop))
    for found, expected in zip(each(start, xs), plain(start, xs), strict=True):
        close(found, expected.numpy())
    close(start, before[0])
    close(xs, before[1])


@pytest.mark.parametrize("run", [lambda f: f, tg.trace, tg.vmap], ids=["plain", "trace", "vmap"])
def test_what_a_while_loop_gives_its_functions_is_their_own(run):
    """The condition changes what it was given, too: the body does not see it."""
    start = draw(2, 12).abs() + 0.5
    before = start.numpy()

    def fn(x):
        return tg.while_loop(lambda v: v.mul_(10).sum() < 1000, lambda v: v.mul_(2), x)

    def expected(x):
        while (x * 10).sum() < 1000:
            x = x * 2
        return x

    found = run(fn)(start) if run is tg.vmap else run(lambda x: fn(x[0])[None])(start)
    close(found, np.stack([expected(x) for x in before[:len(found)]]))
    close(start, before)


@one_of(2, "n", [3, 12, 65, 129])
@pytest.mark.parametrize("way", ["plain", "vmap", "trace", "both", "grad"])
def test_a_scan_changes_tensors_from_outside_in_every_iteration(way, n):
    """Also those that the same trace or vmap made."""
    def fn(xs):
        total, steps = xs[0] * 0, tg.zeros((), dtype=tg.float64)

        def body(c, x):
            own = c * 2
            own.add_(x)                                   # its own it may change in any case
            with tg.no_grad():
                steps.add_(1)
            return own - c + total.add_(x), steps * 1

        c, ys = tg.scan(body, xs[0] * 0, xs)
        return c, total, ys

    def value(xs):
        sums = np.cumsum(xs, 0)
        return sums[-1] + sums.sum(0), sums[-1], np.arange(1.0, n + 1)

    xs = draw(2, n, 3)
    if way == "grad":
        weights = np.arange(n, 0, -1.0) + 2
        close(tg.grad(lambda xs: sum(r.sum() for r in fn(xs)[:2]))(xs[0]), np.repeat(weights[:, None], 3, 1))
        return
    def first(xs):
        return [r[None] for r in fn(xs[0])]

    each = {"plain": first, "vmap": tg.vmap(fn), "trace": tg.trace(first), "both": tg.trace(tg.vmap(fn))}[way]
    for found, *expected in zip(each(xs), value(xs[0].numpy()), value(xs[1].numpy()), strict=True):
        close(found, np.stack(expected[:found.shape[0]]))


@pytest.mark.parametrize("way", [lambda f: f, tg.trace, tg.vmap])
def test_an_iteration_may_catch_errors_and_ask_for_gradients_of_its_carry(way):
    def fn(xs):
        total = xs[0] * 0

        def body(c, x):
            try:
                total.add_(x)
            except Exception:
                return c * np.nan, None
            c = c.detach() + 0.1
            c.requires_grad_()
            (g,) = tg.autograd.grad((c * c * x).sum(), c)
            return c + g.detach(), None

        return tg.scan(body, xs[0] * 0, xs)[0] + total

    def expected(xs):
        c = xs[0] * 0
        for x in xs:
            c = (c + 0.1) * (1 + 2 * x)
        return c + xs.sum(0)

    xs = draw(3, 12, 4)
    if way is tg.vmap:
        close(way(fn)(xs), np.stack([expected(x) for x in xs.numpy()]))
    else:
        close(way(fn)(xs[0]), expected(xs[0].numpy()))


@pytest.mark.parametrize("leak", ["vmap", "scan", "while_loop", "use"])
def test_a_trace_knows_what_leaks_from_inside(leak):
    """It returned what happened to lie in memory."""
    def fn(x):
        kept = []
        if leak == "scan":
            tg.scan(lambda c, x: (c + x, kept.append(c)), x[0] * 0, x)
        elif leak == "while_loop":
            tg.while_loop(lambda v: v.sum() < 40, lambda v: kept.append(v) or v * 2, x)
        else:
            tg.vmap(lambda x: kept.append(x) or x * 2)(x)
        return kept[0] + 1 if leak == "use" else kept

    with pytest.raises(tg.TraceError, match=r"fn: a tensor from inside a vmap, .* scan \(.*test_scopes.*return it from there"):
        tg.trace(fn)(draw(12).abs() + 1)
