"""`tg.materialize`: a value that a program stores where it is asked to, and computes once; the identity to everything else."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg

pytestmark = pytest.mark.usefixtures("kernels")
X = np.random.default_rng(0).normal(size=(300, 400)).astype(np.float32)


def hinted(hint):
    return tg.materialize if hint else lambda x: x


def both_sums(x, hint):
    """The product is cheap: without a hint both kernels compute it."""
    y = hinted(hint)(x * 2)
    return (y - 1).sum(0), (y + 1).exp().T.flatten()[:1000].cumsum(0)


def distances(p, c, hint):
    """A short sum is computed again for each of the elements that read it."""
    squares = hinted(hint)((p * p).sum(1))
    return (squares[:, None] - p @ c.T).exp()


def traced(fn, *args, hint):
    def program(*args):
        return fn(*args, hint)

    f = tg.trace(program)
    f(*args)
    return f


def temporaries(f, shape):
    return sum(s.kind == "temp" and s.shape == shape for s in f.plan.slots)


def test_is_stored_and_computed_once():
    x = tg.tensor(X)
    without, stored = (traced(both_sums, x, hint=hint) for hint in (False, True))
    assert (temporaries(without, X.shape), temporaries(stored, X.shape)) == (0, 1)
    assert "materialize" not in without.explain()
    assert "stores what materialize asks for (line 20)" in stored.explain()
    for a, b in zip(without(x), stored(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_short_sum_is_computed_once():
    p, c = tg.tensor(X[:, :8]), tg.tensor(X[:50, :8])
    f = traced(distances, p, c, hint=True)
    assert temporaries(f, (300,)) == 1
    np.testing.assert_allclose(f(p, c).numpy(), distances(p, c, False).numpy(), rtol=1e-5)


TWICE = {
    "an argument": (tg.materialize, lambda x: x),
    "a stored value": (lambda x: tg.materialize(tg.materialize(x * 2)), lambda x: tg.materialize(x * 2)),
    "a product": (lambda x: tg.materialize(x @ x.T), lambda x: x @ x.T),
}


@pytest.mark.parametrize("name", TWICE)
def test_nothing_is_stored_twice(name):
    """Nor what lies in memory in any case."""
    plans = []
    for fn in TWICE[name]:
        f = tg.trace(lambda x, fn=fn: fn(x).cumsum(0) + 1)
        f(tg.tensor(X))
        plans.append([(launch.flops, launch.bytes) for launch in f.plan.launches])
    assert plans[0] == plans[1]


def test_derivatives_and_batches(run):
    def f(x, hint):
        return (hinted(hint)(x.sin()) * hinted(hint)(x * 3)).sum()

    x, t = tg.tensor(X[:6, :5].astype(np.float64)), tg.tensor(X[6:12, :5].astype(np.float64))
    for transform in (tg.grad, tg.hessian, lambda fn: tg.vmap(tg.grad(fn)), lambda fn: lambda x: tg.jvp(fn, (x,), (t,))[1],
                      tg.func.hessian_diagonal, lambda fn: lambda x: tg.func.sparse_hessian(fn)(x).to_dense()):
        wanted, found = transform(lambda x: f(x, False))(x), run(transform(lambda x: f(x, True)))(x)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-12)
    nodes = tg.trace(tg.grad(lambda x: (tg.materialize(x.sin()) * 2).sum()))
    nodes(x)
    assert nodes.source().count("materialize") == 1                  # in the comment alone: of the identity nothing is left in a gradient


def test_kinds_of_values(device):
    """Integers, bools, complex numbers, no elements, a single one; in a loop's body; untraced."""
    f = tg.trace(lambda i, b, z, e, s: [tg.materialize(v + v) for v in (i, b, z, e, s)])
    given = tg.arange(5), tg.tensor([True, False]), tg.tensor([1 + 2j, 3j]), tg.zeros(0, 3), tg.tensor(2.0)
    for values in (f(*given), [tg.materialize(v + v) for v in given]):
        assert [v.tolist() for v in values] == [[0, 2, 4, 6, 8], [True, False], [2 + 4j, 6j], [], 4.0]
    loop = tg.trace(lambda x: tg.scan(lambda c, r: (tg.materialize(c * 2 + r), tg.materialize(c)), x[0], x))
    last, rows = loop(tg.ones(3, 2))
    assert last.tolist() == [15.0, 15.0]
    assert rows.tolist() == [[1.0, 1.0], [3.0, 3.0], [7.0, 7.0]]
