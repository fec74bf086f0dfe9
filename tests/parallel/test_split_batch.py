"""split_batch: values, gradients and updates are those of one device, whatever the shares; what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.two_devices import two_devices
from tracegrad import nn
from tracegrad.errors import ArgumentError, DeviceError, ShapeError
from tracegrad.nn import functional as F
from tracegrad.parallel import batches
from tracegrad.runtime.limits import Limits

RNG = np.random.default_rng(5)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The default device beside the interpreter, which builds no kernels."""
    return two_devices("numpy", "eager", monkeypatch)


def doubles(*shape: int) -> Any:
    return tg.tensor(RNG.standard_normal(shape))


def network() -> Any:
    tg.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


@one_of(2, ("traced", "shares"), [(True, (1, 1)), (False, (3, 1)), (False, (1, 1)), (True, (3, 1)), (True, (0, 2)),
                                        (False, (0.3, 0.1, 0.6))])
def test_training_is_that_of_one_device(traced: bool, shares: Any, two: Any) -> None:
    devices = [two[k % 2] for k in range(len(shares))]
    ends = []
    for split in (False, True):
        model = network()
        optimizer = tg.optim.Adam(model.parameters(), lr=0.01)

        def loss_of(x: Any, y: Any, model: Any = model) -> Any:
            return F.mse_loss(model(x), y)

        loss_fn = tg.parallel.split_batch(loss_of, devices, out_dims="mean", shares=shares, module=model) if split else loss_of

        def step(x: Any, y: Any, loss_fn: Any = loss_fn, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = loss_fn(x, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        rng, run = np.random.default_rng(1), tg.trace(step) if traced else step
        losses = [run(*(tg.tensor(rng.standard_normal(shape)) for shape in ((11, 5), (11, 2)))).to(two[0]).item() for _ in range(4)]
        assert all(p.grad.device is p.device for p in model.parameters())
        ends.append([losses, *(p.detach().numpy() for p in model.parameters())])
    for found, expected in zip(*ends, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_a_module_and_its_derivatives(two: Any) -> None:
    """The parameters are the module's own: first and second derivatives, in their own place; results along any dimension."""
    model, x = network(), doubles(6, 5).requires_grad_()
    f = tg.parallel.split_batch(model, two, shares=(1, 2))
    assert f.shares == (1.0, 2.0)
    grads = []
    for call in (model, f):
        y = call(x)
        first = tg.autograd.grad(y.square().sum(), [x, *model.parameters()], create_graph=True)
        second = tg.autograd.grad(sum(g.square().sum() for g in first), [x, *model.parameters()])
        assert all(g.device is two[0] for g in (y, *first, *second))
        grads.append([t.detach().numpy() for t in (y, *first, *second)])
    for found, expected in zip(*grads, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    for _ in range(2):                                      # the same bits each time
        again = tg.autograd.grad(f(x).square().sum(), [*model.parameters()])
        first = tg.autograd.grad(f(x).square().sum(), [*model.parameters()])
        assert all((a.numpy() == b.numpy()).all() for a, b in zip(again, first, strict=True))


def test_arguments_and_results(two: Any) -> None:
    a, w = doubles(3, 5), doubles(3)

    def f(pair: Any, w: Any, *, scale: Any) -> Any:
        sizes.append(pair[0].shape[1])
        product = pair[0] * pair[1] * w[:, None] * scale
        return product, {"total": product.sum(), "mean": product.mean()}, None

    sizes: list[int] = []
    split = tg.parallel.split_batch(f, two, batch_dims=(1, None), out_dims=(1, {"total": "sum", "mean": "mean"}, 0), shares=[2, 1])
    for size, expected in ((5, [3, 2]), (1, [1]), (0, [0]), (4, [3, 1])):
        sizes.clear()
        given = (doubles(3, size), doubles(3, size))
        product, numbers, nothing = split(given, w, scale=tg.tensor(2.0).double())
        assert sizes == expected
        wanted = given[0].numpy() * given[1].numpy() * w.numpy()[:, None] * 2
        np.testing.assert_allclose(product.numpy(), wanted, rtol=1e-12)
        np.testing.assert_allclose(numbers["total"].item(), wanted.sum(), rtol=1e-10, atol=1e-12)
        if size:
            np.testing.assert_allclose(numbers["mean"].item(), wanted.mean(), rtol=1e-10, atol=1e-12)
        assert nothing is None
        assert product.device is two[0]
    assert tg.parallel.split_batch(lambda x: x * 2, two, batch_dims=-1, out_dims=1, shares=[1, 1])(a).tolist() == (a * 2).tolist()


def test_sizes() -> None:
    counts = batches._counts
    assert counts(7, (1, 1)) == [4, 3]
    assert counts(10, (3, 1)) == [8, 2]
    assert counts(2, (1, 1, 1)) == [1, 1, 0]
    assert counts(5, (0, 1)) == [0, 5]
    assert counts(0, (1, 2)) == [0, 0]
    for _ in range(200):
        shares = RNG.uniform(0.01, 1, RNG.integers(1, 6))
        size = int(RNG.integers(0, 1000))
        found = counts(size, tuple(shares))
        assert sum(found) == size
        assert np.abs(np.array(found) - size * shares / shares.sum()).max() < 1


def test_shares_by_measured_speed(monkeypatch: pytest.MonkeyPatch, two: Any) -> None:
    """Devices that are alike get equal parts and are not measured; others by arithmetic and memory, once."""
    here = tg.device()
    if here.kind == "numpy":
        pytest.skip("no device with a speed")
    measured: list[Any] = []
    other = type(here)(here.cl_device)
    other.name = "another"
    monkeypatch.setattr(batches, "limits", lambda d: measured.append(d) or Limits(4e9, 16e9 if d is other else 1e9, 0.0))
    assert tg.parallel.split_batch(lambda x: x, [here, here]).shares == (1.0, 1.0)
    assert measured == []
    f = tg.parallel.split_batch(lambda x: x, [here, other])
    assert f.shares[1] == 4 * f.shares[0]
    assert measured == [here, other]


def test_a_batch_norm_keeps_what_the_first_part_saw(two: Any) -> None:
    model, x = nn.BatchNorm1d(5).double(), doubles(8, 5)
    tg.parallel.split_batch(model, two, shares=(1, 1))(x)
    np.testing.assert_allclose(model.running_mean.numpy(), 0.1 * x.numpy()[:4].mean(0), rtol=1e-12)
    assert model.num_batches_tracked.item() == 1


def test_what_is_refused(two: Any) -> None:
    x, split = doubles(4, 3), tg.parallel.split_batch
    with pytest.raises(ArgumentError, match="split_batch: no devices are given"):
        split(lambda x: x, [])
    for shares in ([1], [1, -1], [0, 0], [1, float("nan")]):
        with pytest.raises(ArgumentError, match="shares must be 2 numbers, one a device"):
            split(lambda x: x, two, shares=shares)
    with pytest.raises(ArgumentError, match="has no speed to be measured; give shares="):
        split(lambda x: x, two)

    def call(fn: Any, *args: Any, **how: Any) -> Any:
        return split(fn, two, shares=[1, 1], **how)(*args)

    with pytest.raises(ShapeError, match=r"split_batch: the batches have different sizes \[4, 3\]"):
        call(lambda x, y: x, x, x[0])
    with pytest.raises(ShapeError, match="batch_dims 2 is out of range"):
        call(lambda x: x, x, batch_dims=2)
    with pytest.raises(ArgumentError, match="batch_dims has 2 entries for 1 arguments"):
        call(lambda x: x, x, batch_dims=(0, 0))
    with pytest.raises(ArgumentError, match="no tensor is cut"):
        call(lambda x: x, x, batch_dims=None)
    with pytest.raises(ArgumentError, match=r"batch_dims holds dimensions \(int\) or None, got 'x'"):
        call(lambda x: x, x, batch_dims="x")
    with pytest.raises(ArgumentError, match=r"out_dims .* does not fit the structure of the results"):
        call(lambda x: x, x, out_dims=(0, 1))
    with pytest.raises(ShapeError, match='results without a batch are put together by out_dims="sum" or "mean"'):
        call(lambda x: x.sum(), x)
    with pytest.raises(ArgumentError, match="got 'max'"):
        call(lambda x: x, x, out_dims="max")
    with pytest.raises(ArgumentError, match="fn must return tensors, got a int"):
        call(lambda x: 3, x)
    with pytest.raises(ArgumentError, match="the parts return different structures"):
        call(lambda x: x if x.device is two[0] else (x,), x)
    w = doubles(3)
    with pytest.raises(DeviceError, match=r"different devices, .* move one with x.to\(device\)"):
        call(lambda x: x * w, x)
    model = network()
    with pytest.raises(DeviceError, match=r"different devices"):
        call(model.forward, doubles(4, 5))
    assert all(p.device is tg.device() for p in model.parameters())
