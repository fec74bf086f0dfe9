"""In a trace, `x[i]` of an integer tensor i is a view, although nobody knows i there: what is written to one reaches the other."""

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.graph.ir import topological

X, I = np.arange(12.0).reshape(4, 3), np.array(2)


def written(x, i):
    x = x * 1
    x[i].mul_(2)
    return x


def base_written(x, i):
    x = x * 1
    row = x[i]
    x[i] = 7.0
    return row + 0, x


def view_of_it(x, i):
    x = x * 1
    row = x[i]
    part = row[1:]
    part.add_(5)
    x.mul_(2)
    return row, part, x


def column(x, i):
    x = x * 1
    x[:, i].zero_()
    x[i, ..., None][1:].fill_(3)
    x[i, 1:].sub_(1)
    return x


def transposed(x, i):
    x = x * 1
    x.t()[i - 1].add_(1)
    x.view(-1)[i].mul_(10)
    return x


def added(x, i):
    x = x * 1
    row = x[i]
    row += row
    x[i] -= 1
    x[-i] *= 2
    return x, row


def differentiated(x, i):
    w = x.clone().requires_grad_()
    y = w * 2
    y[i].mul_(y[0].clone())
    return tg.autograd.grad((y ** 2).sum(), w)[0]


def without_history(x, i):
    w = x.clone().requires_grad_()
    with tg.no_grad():
        w[i].mul_(0.5)
    return w.detach(), tg.autograd.grad((w ** 2).sum(), w)[0]


@pytest.mark.parametrize("fn", [written, base_written, view_of_it, column, transposed, added, differentiated, without_history])
def test_as_untraced(fn):
    traced = tg.trace(fn)
    for i in (2, 0):
        expected, found = fn(tg.tensor(X), i), traced(tg.tensor(X), tg.tensor(i))
        for want, got in zip(*((r if isinstance(r, tuple) else (r,)) for r in (expected, found)), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_what_is_global_is_written():
    weights = tg.tensor(X)

    @tg.trace
    def halve(i):
        weights[i].mul_(0.5)

    for i in (1, 3, 1):
        halve(tg.tensor(i))
    np.testing.assert_array_equal(weights.numpy(), X * np.array([1, 0.25, 1, 0.5])[:, None])


def test_an_example_writes_its_own_row():
    batch = np.arange(24.0).reshape(2, 4, 3)

    def one(x, i):
        x = x * 1
        x[i].add_(1)
        return x

    expected = batch.copy()
    expected[[0, 1], [1, 3]] += 1
    for fn in (tg.vmap(one), tg.trace(tg.vmap(one))):
        np.testing.assert_array_equal(fn(tg.tensor(batch), tg.tensor([1, 3])).numpy(), expected)


def test_a_result_is_no_view_of_the_argument():
    x = tg.tensor(X)
    row = tg.trace(lambda x, i: x[i])(x, tg.tensor(2))
    row.zero_()
    np.testing.assert_array_equal(x.numpy(), X)


def test_adding_to_a_row_is_one_write():
    def scatters(write):
        def fn(x, i):
            x = x * 1
            write(x, i)
            return x

        traced = tg.trace(fn)
        traced(tg.tensor(X), tg.tensor(2))
        return sum(node.fn.family == "scatter" for node in topological(traced.graph.outputs))

    def added(x, i):
        x[i] += 1

    def put(x, i):
        x[i] = x[i] + 1

    assert scatters(added) == scatters(put) == 1
