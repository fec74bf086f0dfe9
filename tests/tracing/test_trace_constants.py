"""What a traced function computes of constants has values while it is recorded: of arange, eye, tensors of numbers, masks, shapes.

All are those of every replay. What depends on anything else has none, and is an error at the user's line.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.nn import functional as F

OUTSIDE = tg.ones(2)


def changed(x):
    k = tg.arange(x.shape[0])
    k += 1
    k[0] = 7
    return x[: int((k > 2).sum())] * k.max().item()


def literal_changed(x):
    k = tg.tensor([1, 2])
    before = k.max().item()
    k.add_(3)
    return x * before + k.max().item()


def blocks(x):
    """A mask for blocks, as attention has it, made with loops over constants."""
    n = x.shape[0]
    mask = tg.zeros(n, n, dtype=tg.bool_)
    for i in tg.arange(0, n, 2).tolist():
        mask[i:i + 2, i:i + 2] = True
    rows, columns = mask.nonzero().unbind(1)
    return (x[rows] * x[columns]).sum() + mask.sum() * x.mean() + (x[:, None] * x)[mask].sum()


def views(x):
    k = tg.arange(2 * x.shape[0]).reshape(2, -1)
    top = k[0]
    top[1] = 40
    return x[k[0] < 40] * k[0, 1].item()


CASES = {
    "tolist": lambda x: x + sum(tg.arange(3).tolist()),
    "int": lambda x: x[int(tg.tensor(x.shape[0] - 1))],
    "numpy": lambda x: x * float(np.sin(tg.linspace(0, 1, 5).numpy()).sum()),
    "if": lambda x: x * 2 if tg.arange(3).sum() > 2 else x,
    "mask of constants": lambda x: (lambda k: k[k > 1])(tg.arange(3)) + x[:1],
    "x[mask]": lambda x: x[tg.arange(x.shape[0]) % 3 == 0],
    "x[~mask] = y": lambda x: (lambda y: (y.__setitem__(~(tg.arange(y.shape[0]) > 0), tg.full((1,), 5.0)), y)[1])(x.clone()),
    "masked_select": lambda x: tg.masked_select(x, tg.arange(x.shape[0]) > 0),
    "lower triangle": lambda x: (x[:, None] - x)[tg.ones(x.shape[0], x.shape[0]).tril().bool()],
    "nonzero": lambda x: x[tg.nonzero(tg.eye(x.shape[0]))[:, 0]],
    "where": lambda x: x[tg.where(tg.arange(x.shape[0]) % 2 == 0)[0]],
    "unique": lambda x: x[0] * tg.unique(tg.tensor([3, 1, 3])),
    "bincount": lambda x: x[0] * tg.bincount(tg.tensor([0, 1, 1])),
    "repeat_interleave": lambda x: x.repeat_interleave(tg.arange(x.shape[0]) % 3),
    "one_hot": lambda x: F.one_hot(tg.arange(x.shape[0])) * x,
    "shapes": lambda x: x.reshape(tg.tensor([x.shape[0], 1]).tolist()) * int(tg.prod(tg.tensor(x.shape))),
    "combinations": lambda x: x[tg.combinations(tg.arange(x.shape[0]), 2)].prod(1),
    "sorted": lambda x: x[(tg.argsort(tg.tensor([3.0, 1.0, 2.0])) % x.shape[0]).tolist()],
    "changed in place": changed, "a literal changed in place": literal_changed, "a base changed through its view": views, "blocks": blocks,
    "in a gradient": tg.grad(lambda v: v[tg.arange(v.shape[0]) > 0].pow(2).sum()),
    "in vmap": lambda x: tg.vmap(lambda v: v[tg.arange(v.shape[0]) > 0] * tg.arange(4).max().item())(tg.stack([x, x * 2])),
    "in scan": lambda x: tg.scan(lambda c, v: (c + v[tg.arange(v.shape[0]) > 0].sum(), c), x[0] * 0, tg.stack([x, x * 2]))[0],
    "in cond": lambda x: tg.cond(x.sum() > 0, lambda x: x[tg.arange(x.shape[0]) > 0], lambda x: x[1:] * 0, x),
}


@one_of(10, ("name", "n"), product(CASES, [2, 12, 33]))
def test_values_of_constants_are_those_of_every_call(name, n):
    traced = tg.trace(CASES[name])
    for seed in range(3):
        x = tg.tensor(np.random.default_rng(seed).standard_normal(n).astype(np.float32))
        np.testing.assert_allclose(traced(x).numpy(), CASES[name](x).numpy(), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("fn", [
    lambda x: x[(x * 0 + tg.arange(x.shape[0])) > 2], lambda x: x * (tg.arange(x.shape[0]) * x).sum().item(),
    lambda x: x * tg.rand(3).sum().item(), lambda x: x * OUTSIDE.sum().item(),
    lambda x: x * tg.scan(lambda c, _: (c + 1, c), tg.zeros(()), length=3)[0].item(),
    lambda x: x * tg.host_call(lambda a: a + 1, tg.ones(2), like=tg.ones(2)).sum().item(),
    tg.vmap(lambda v: v * (v * 0 + tg.arange(3)).sum().item()), lambda x: tg.scan(lambda c, v: (c * c.item(), v), x[0], x)[0],
], ids=["of an argument", "of a product", "random", "from outside", "a loop", "a call", "an example", "a carry"])  # fmt: skip
def test_what_depends_on_anything_else_has_no_value(fn):
    with pytest.raises((tg.TraceError, TypeError)) as caught:
        tg.trace(fn)(tg.ones(5))
    assert isinstance(caught.value, tg.TraceError), caught.value
    assert __file__ in str(caught.value)


def test_arrays_are_copies_and_shared_ones_are_read_only():
    def fn(x):
        k = tg.arange(3)
        k.numpy()[0] = 100                                 # a copy
        shared = np.asarray(k)
        assert not shared.flags.writeable
        assert shared.tolist() == k.tolist() == [0, 1, 2]
        return x * k.sum().item()

    assert tg.trace(fn)(tg.ones(2)).tolist() == [3, 3]


def test_a_tensor_of_numbers_costs_a_call_nothing():
    """It is a constant of the program: no input of it, and an index that is known to be in range, of which nobody has to ask."""
    f = tg.trace(lambda x: x[tg.tensor([3, 1, 2])] * tg.tensor([1.0, 2.0, 3.0]))
    for k in (1.0, 2.0):
        assert f(tg.arange(5.0) * k).tolist() == [3.0 * k, 2.0 * k, 6.0 * k]
    if f.plan is not None:
        assert len(f.plan.inputs) == 1
        assert not f.plan.checks
    with pytest.raises(tg.IndexOutOfRange, match=r"holds 9"):
        tg.trace(lambda x: x[tg.tensor([3, 9])])(tg.arange(5.0)).numpy()

    @tg.trace
    def gives(x):
        k = tg.tensor([1.0, 2.0])
        first = k * x
        k += 1
        return first, k

    for _ in range(3):                                     # what is returned is the call's own
        first, k = gives(tg.tensor(2.0))
        assert first.tolist() == [2.0, 4.0]
        assert k.tolist() == [2.0, 3.0]
        k.add_(7)
