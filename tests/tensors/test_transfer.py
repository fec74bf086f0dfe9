"""Tensor.to between devices is an operation: its derivative is the transfer back, at every order. Reference: the same on one device.

`pair` is two devices: the default one beside the interpreter (both ways), beside a Device of its own on the same driver (another context,
other queues), and beside each other driver that is installed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.two_devices import DRIVERS, leaf, same, two_devices
from tracegrad import nn
from tracegrad.errors import AutogradError, DeviceError, TraceError, UnsupportedError
from tracegrad.execute import realize as realize_module
from tracegrad.nn import functional as F
from tracegrad.runtime.device import Device
from tracegrad.utils.checkpoint import checkpoint


@pytest.fixture(ids="-".join, params=[
    ("numpy", "eager"), ("numpy", "kernels"), ("twin", "kernels"), *((driver, "kernels") for driver in (*DRIVERS, "another driver")),
    *(pytest.param(case, marks=pytest.mark.long) for case in (("from numpy", "eager"), ("from numpy", "kernels"), ("twin", "eager")))])
def pair(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two devices, with numpy for small work and without."""
    return two_devices(*request.param, monkeypatch)


@pytest.fixture(params=["eager", "kernels"])
def two(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The default device beside the interpreter."""
    return two_devices("numpy", request.param, monkeypatch)


# ---------------------------------------------------------------------------------------------------------------- the derivative


@pytest.mark.matrix
def test_the_gradient_goes_back(pair: Any) -> None:
    a, b = pair
    x = leaf([1.0, 2.0, 3.0], a)
    y = x * x
    z = y.to(b) * 3
    assert z.device is b
    assert z.requires_grad
    (z.to(a) + y).sum().backward()
    assert x.grad.tolist() == [8.0, 16.0, 24.0]
    assert x.grad.device is a


@pytest.mark.matrix
def test_back_and_forth_several_times(pair: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = pair
    x, w = leaf([0.5, -1.0, 2.0], a), leaf([1.0, 2.0, 3.0], b)
    at, here = x, a
    for k in range(5):
        here = b if here is a else a
        at = (at.to(here) * (0.3 * k + 0.3)).sin() + (w.to(here) if k % 2 else w.to(here).exp() * 0.1)
    at.sum().backward()
    t, v = (torch.tensor(p.tolist(), requires_grad=True) for p in (x, w))
    there = t
    for k in range(5):
        there = (there * (0.3 * k + 0.3)).sin() + (v if k % 2 else v.exp() * 0.1)
    there.sum().backward()
    same(x.grad, t.grad)
    same(w.grad, v.grad)
    assert (x.grad.device, w.grad.device) == (a, b)


@pytest.mark.matrix
def test_every_order(pair: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = pair
    x = leaf([1.5, -0.5], a)
    y = (x ** 4).to(b).sin().to(a).sum()
    t = torch.tensor(x.tolist(), requires_grad=True)
    s = (t ** 4).sin().sum()
    for _ in range(3):
        (y,), (s,) = tg.autograd.grad(y, x, create_graph=True), torch.autograd.grad(s, t, create_graph=True)
        assert y.device is a
        same(y, s, 1e-4)
        y, s = y.sum(), s.sum()
    y.backward()
    s.backward()
    same(x.grad, t.grad, 1e-4)


def test_gradients_of_leaves_on_both_devices(pair: Any) -> None:
    a, b = pair
    x, w = leaf([1.0, 2.0], a), leaf([3.0, 4.0], b)
    loss = (x.exp().to(b) * w).sum()
    gx, gw = tg.autograd.grad(loss, [x, w], retain_graph=True)
    assert (gx.device, gw.device) == (a, b)
    same(gx, np.exp([1.0, 2.0]) * [3, 4])
    same(gw, np.exp([1.0, 2.0]))
    mixed, = tg.autograd.grad(gx.sum().to(b) + gw.sum(), [x], allow_unused=True) if gx.requires_grad else (None,)
    assert mixed is None
    batched = tg.autograd.grad(w * x.exp().to(b), [x, w], tg.eye(2, device=b), is_grads_batched=True)
    assert [g.device for g in batched] == [a, b]
    zeros = tg.autograd.grad(w.sum(), [x, w], materialize_grads=True)
    assert [g.device for g in zeros] == [a, b]
    same(zeros[0], np.zeros(2))


def _model(a: Any, b: Any) -> Any:
    def f(x: Any, w: Any) -> Any:
        return ((x * x).to(b) * w.sin()).exp().to(a) + w.to(a) * x
    return f


def test_transforms(pair: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = pair
    f, plain = _model(a, b), _model("cpu", "cpu")
    x, w = tg.tensor([0.5, -0.25], device=a), tg.tensor([0.75, 0.1], device=b)
    t, v = torch.tensor(x.tolist()), torch.tensor(w.tolist())
    value, (gx, gw) = tg.value_and_grad(lambda x, w: f(x, w).sum(), argnums=(0, 1))(x, w)
    assert (value.device, gx.device, gw.device) == (a, a, b)
    for found, expected in zip((gx, gw), torch.func.grad(lambda t, v: plain(t, v).sum(), argnums=(0, 1))(t, v), strict=True):
        same(found, expected)
    out, moved = tg.jvp(f, (x, w), (tg.ones(2, device=a), tg.ones(2, device=b)))
    expected = torch.func.jvp(plain, (t, v), (torch.ones(2), torch.ones(2)))
    assert (out.device, moved.device) == (a, a)
    same(moved, expected[1])
    out, pull = tg.vjp(f, x, w)
    pulled = pull(tg.ones(2, device=a))
    assert [p.device for p in pulled] == [a, b]
    same(pulled[1], torch.func.vjp(plain, t, v)[1](torch.ones(2))[1])
    _, push = tg.linearize(f, x, w)
    same(push(tg.ones(2, device=a), tg.ones(2, device=b)), expected[1])
    for name in ("jacrev", "jacfwd"):
        found = getattr(tg, name)(f, argnums=(0, 1))(x, w)
        for block, wanted in zip(found, getattr(torch.func, name)(plain, argnums=(0, 1))(t, v), strict=True):
            same(block, wanted)
    jacobians = tg.jacrev(lambda x, w: (f(x, w), w * 2), argnums=(0, 1))(x, w)
    assert [[block.device for block in row] for row in jacobians] == [[a, b], [a, b]]
    jacobians = tg.jacfwd(lambda x, w: (f(x, w), w * 2), argnums=(0, 1))(x, w)
    assert [[block.device for block in row] for row in jacobians] == [[a, a], [b, b]]
    same(tg.hessian(lambda x: f(x, w).sum())(x), torch.func.hessian(lambda t: plain(t, v).sum())(t), 1e-4)
    same(tg.jacrev(lambda x: x.to(b))(x), np.eye(2))
    _, product = tg.hvp(lambda x: f(x, w).sum(), (x,), (tg.ones(2, device=a),))
    same(product, torch.func.hessian(lambda t: plain(t, v).sum())(t).sum(1), 1e-4)


def test_vmap(pair: Any) -> None:
    a, b = pair
    x, w = tg.tensor(np.arange(6.0).reshape(3, 2), dtype=tg.float32, device=a), tg.tensor([2.0, 3.0], device=b)
    sent, back = tg.vmap(lambda row: (row.to(b) * w, (row.to(b) * w).to(a) + row))(x)
    assert (sent.device, back.device) == (b, a)
    same(sent, np.arange(6.0).reshape(3, 2) * [2, 3])
    same(back, np.arange(6.0).reshape(3, 2) * [3, 4])
    per_example = tg.vmap(tg.grad(lambda row: ((row.to(b) * w) ** 2).sum()))(x)
    assert per_example.device is a
    same(per_example, 2 * np.arange(6.0).reshape(3, 2) * [4, 9])
    chunked = tg.vmap(lambda row: row.to(b) + w, chunk_size=2)(x)
    assert chunked.device is b
    x.requires_grad_()
    assert tg.vmap(lambda row: row.to(b))(x).requires_grad
    with tg.no_grad():
        assert not tg.vmap(lambda row: row.to(b))(x).requires_grad
    x = x.detach()
    same(tg.vmap(lambda row: w.to(a) + row, in_dims=1, out_dims=1)(x.T.contiguous()), np.arange(6.0).reshape(3, 2).T + [[2], [3]])


def test_forward_mode_levels(two: Any) -> None:
    a, b = two
    with tg.autograd.forward_ad.dual_level():
        x = tg.autograd.forward_ad.make_dual(tg.tensor([3.0], device=a), tg.tensor([2.0], device=a))
        value, tangent = tg.autograd.forward_ad.unpack_dual((x * x).to(b) * 2)
    assert (value.device, tangent.device) == (b, b)
    assert tangent.tolist() == [24.0]


def test_gradcheck(two: Any) -> None:
    a, b = two
    x, w = leaf([0.5, 1.5], a, tg.float64), leaf([0.25, 2.0], b, tg.float64)
    z = leaf([1 + 2j, 0.5 - 1j], a, tg.complex128)
    f = _model(a, b)
    assert tg.autograd.gradcheck(f, (x, w))
    assert tg.autograd.gradgradcheck(f, (x, w))
    assert tg.autograd.gradcheck(lambda z: (z * z).to(b).sin().to(a), (z,))


# ------------------------------------------------------------------------------------------------------------ hooks, histories


def test_hooks_and_retained_gradients(pair: Any) -> None:
    a, b = pair
    seen = []
    x = leaf([1.0, 2.0], a)
    y = x * 2
    z = y.to(b)
    assert z.grad_fn.name() == "transfer"
    assert z.grad_fn.next_functions[0][0] == y.grad_fn
    for name, t in dict(x=x, y=y, z=z).items():
        t.register_hook(lambda g, name=name: seen.append((name, g.device, g.tolist())))
    z.register_hook(lambda g: g * 10)
    y.retain_grad()
    z.retain_grad()
    x.register_post_accumulate_grad_hook(lambda t: seen.append(("after", t.grad.device, t.grad.tolist())))
    (z * 3).sum().backward()
    assert seen == [("z", b, [3.0, 3.0]), ("y", a, [30.0, 30.0]), ("x", a, [60.0, 60.0]), ("after", a, [60.0, 60.0])]
    assert (z.grad.device, y.grad.device) == (b, a)
    assert y.grad.tolist() == [30.0, 30.0]


def test_hooks_of_modules(pair: Any) -> None:
    a, b = pair
    seen: list[Any] = []

    class Sends(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * 2).to(b) * 3

    module = Sends()
    module.register_full_backward_hook(lambda _, given, got: seen.append((given[0].device, got[0].device, given[0].tolist())))
    x = leaf([1.0], a)
    module(x * 1).sum().backward()
    assert seen == [(a, b, [6.0])]
    assert x.grad.tolist() == [6.0]


def test_a_hook_must_keep_the_device(two: Any) -> None:
    a, b = two
    x = leaf([1.0], a)
    x.register_hook(lambda g: g.to(b))
    with pytest.raises(DeviceError, match=r"register_hook: .*numpy.*x?to\(device\)"):
        (x * 2).sum().backward()


def test_histories_are_kept_and_freed(pair: Any) -> None:
    a, b = pair
    x = leaf([1.0, 2.0], a)
    y = (x * x).to(b).exp().sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    same(x.grad, 2 * once)
    with pytest.raises(AutogradError, match="freed"):
        y.backward()
    z = x.to(b).to(a).sum()                         # nothing is saved: as often as one likes, as in torch
    for _ in range(2):
        z.backward()


def test_gradients_add_up_where_the_leaf_lies(pair: Any) -> None:
    a, b = pair
    x = leaf([1.0, 2.0], a)
    for _ in range(4):
        (x.to(b) * 3).sum().backward()
        assert x.grad.device is a
    assert x.grad.tolist() == [12.0, 12.0]
    x.grad.zero_()
    ((x * 2).to(b).sum() + (x * 5).to(b).sum()).backward()
    assert x.grad.tolist() == [7.0, 7.0]


def test_without_a_history(pair: Any) -> None:
    a, b = pair
    x = leaf([1.0, 2.0], a)
    with tg.no_grad():
        y = (x * 2).to(b)
    assert not y.requires_grad
    assert y.is_leaf
    with tg.inference_mode():
        assert not x.to(b).requires_grad
    assert not x.detach().to(b).requires_grad
    assert (x * 2).to(b).detach().tolist() == y.tolist() == [2.0, 4.0]
    with tg.no_grad(), tg.enable_grad():
        assert (x * 2).to(b).requires_grad
    z = y.to(a).requires_grad_()
    z.sum().backward()
    assert z.grad.device is a


def test_writes_after_the_transfer_stay_apart(pair: Any) -> None:
    a, b = pair
    x = leaf([1.0, 2.0, 3.0], a)
    y = x * 1
    z = y.to(b)
    z.mul_(3)
    z[0] = 7.0
    y.add_(10)
    y[1:].mul_(2)
    assert z.tolist() == [7.0, 6.0, 9.0]
    assert y.tolist() == [11.0, 24.0, 26.0]
    (z.sum() + (y * y).to(b).sum()).backward()
    assert x.grad.tolist() == [22.0, 3 + 2 * 24 * 2, 3 + 2 * 26 * 2]


def test_views(pair: Any) -> None:
    a, b = pair
    x = leaf(np.arange(6.0).reshape(2, 3), a)
    y = x * 1
    row = y.T[1:].to(b)
    part = row[0]
    part *= 5                                       # a view of what was sent: y is not written
    assert row.tolist() == [[5.0, 20.0], [2.0, 5.0]]
    assert y[:, 1].tolist() == [1.0, 4.0]
    row.sum().backward()
    assert x.grad.tolist() == [[0.0, 5.0, 1.0], [0.0, 5.0, 1.0]]


def test_copy_between_devices(pair: Any) -> None:
    a, b = pair
    x = leaf([1.0, 2.0], a)
    y = tg.zeros(3, device=b)
    y.copy_((x * x).sum())
    assert y.requires_grad
    w = tg.zeros(2, 2, device=b)
    w[0].copy_(x * 3)
    w[1] = x * 4                                    # as in torch, whose x[i] = y is a copy_
    (y.sum() + w.sum()).backward()
    assert x.grad.tolist() == [3 * 2 + 7.0, 3 * 4 + 7.0]
    with tg.no_grad():
        x.copy_(tg.tensor([5.0, 6.0], device=b))
    assert x.tolist() == [5.0, 6.0]
    assert x.is_leaf
    z = tg.zeros(3, device=a)
    z[tg.tensor([0, 2], device=a)] = tg.tensor(2.0, device=b)
    assert z.tolist() == [2.0, 0.0, 2.0]


def test_nothing_is_sent_where_nothing_changes(two: Any) -> None:
    a, b = two
    x = leaf([1.0], a)
    assert x.to(a) is x
    assert x.to(a, copy=True) is not x
    y = x.to(b, non_blocking=True)
    assert y.to(b) is y
    z = y.to(b, copy=True)
    assert z is not y
    (z * 2).sum().backward()
    assert x.grad.tolist() == [2.0]
    if tg.device("cpu") is a:                       # the first one is meant
        assert x.cpu() is x
        assert y.cpu().device is a
    assert tg.tensor(1.0, device=a).to(y).device is b
    assert x.to(b, tg.float64, True, True).dtype == tg.float64
    assert x.to_device(b).requires_grad


def test_dtype_and_device_together(two: Any) -> None:
    a, b = two
    x = leaf([1.5, 2.5], a)
    y = x.to(b, tg.float64)
    assert (y.dtype, y.device) == (tg.float64, b)
    (y * y).sum().to(a, tg.float16).backward()
    assert x.grad.tolist() == [3.0, 5.0]
    assert x.grad.dtype == tg.float32
    assert x.to(device=b, dtype=tg.int32).tolist() == [1, 2]
    assert not x.to(b, tg.int64).requires_grad
    with pytest.warns(UserWarning, match="imaginary"):
        tg.tensor([1 + 2j], device=a).to(b, tg.float32)


def test_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot convert, the other one does; what it is asked to compute is the error that it is without a transfer."""
    monkeypatch.setattr(tg.config, "eager", False)
    if tg.device().kind == "numpy":
        pytest.skip("needs an OpenCL device")
    narrow, wide = Device(tg.device().cl_device, tg.device().cl_basic), tg.device("numpy")
    monkeypatch.setattr(narrow, "fp64", False, raising=False)
    monkeypatch.setattr(narrow, "target", dataclasses.replace(narrow.target, fp64=False), raising=False)
    x = leaf([1.5, 2.5], wide, tg.float64)
    y = x.to(narrow, tg.float32)
    assert y.dtype == tg.float32
    (y * y).to(wide, tg.float64).sum().backward()
    assert x.grad.tolist() == [3.0, 5.0]
    assert x.grad.dtype == tg.float64
    w = leaf([1.5, 2.5], narrow)
    (w.to(wide, tg.float64) ** 2).sum().backward()
    assert w.grad.tolist() == [3.0, 5.0]
    sent = x.detach().to(narrow)
    assert sent.to(wide).tolist() == [1.5, 2.5]
    with pytest.raises(UnsupportedError, match="no float64"):
        (sent * 2).tolist()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 1, 2)], ids=str)
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...], two: Any) -> None:
    a, b = two
    if dtype in ("float64", "complex128") and not a.fp64:
        pytest.skip("no float64")
    rng = np.random.default_rng(0)
    values = (rng.uniform(0, 5, shape) + (1j if dtype.startswith("complex") else 0)).astype(dtype)
    x = tg.tensor(values, device=a)
    y = x.to(b)
    assert (y.dtype, y.shape, y.device) == (x.dtype, shape, b)
    np.testing.assert_array_equal(y.to(a).numpy(), values)
    if x.dtype.kind in "fc":
        x.requires_grad_()
        z = (x * 2).to(b) * 3
        z.backward(tg.ones_like(z))
        assert (x.grad.dtype, x.grad.shape, x.grad.device) == (x.dtype, shape, a)
        np.testing.assert_array_equal(x.grad.numpy(), np.full(shape, 6, dtype))
    else:
        assert not y.requires_grad


def test_constants_are_values_of_their_device(pair: Any) -> None:
    """A constant of the graph may be known on every device: its value on one is no other's."""
    a, b = pair
    ones, same_ones = tg.ones(3, device=a), tg.ones(3, device=b)
    sent = (ones * 2).to(b)
    assert (sent + same_ones).tolist() == [3.0] * 3
    x = leaf([1.0, 2.0, 3.0], a)
    y = x.to(b)
    y.backward(tg.ones(3, device=b))
    (x * 1).to(b).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    assert (tg.arange(3, device=a).to(b) + tg.arange(3, device=b)).tolist() == [0, 2, 4]
    assert tg.jacrev(lambda x: x.to(b).to(a))(x).tolist() == np.eye(3).tolist()


# ----------------------------------------------------------------------------------------------------------- what is computed when


def test_pending_work_is_partitioned_by_device(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One subgraph for each time that a device is come to; and nothing that one computed is computed by another."""
    a, b = two
    works: list[Any] = []
    real = realize_module._values
    monkeypatch.setattr(realize_module, "_values", lambda work: works.append(work) or real(work))
    x = leaf([0.1, 0.2, 0.3], a)
    y = (x.exp().sin() * x).to(b)
    (y.cos() * y).to(a).tanh().sum().backward()
    assert [w.device for w in works] == [a, b, a, b, a]
    for name in ("exp", "sin", "cos", "tanh"):
        forward = [n for w in works for n in w.order if n.fn.name == name]
        assert len(forward) == {"sin": 2, "cos": 2}.get(name, 1), name         # each is the other's derivative


def test_what_is_drawn_or_called_is_so_once(pair: Any) -> None:
    a, b = pair
    tg.manual_seed(3)
    x = leaf(np.ones(64), a)
    y = F.dropout(x, 0.5)
    (F.dropout(y.to(b), 0.5) * 3).to(a).sum().backward()
    kept = y.detach().numpy()
    assert set(x.grad.tolist()) <= {0.0, 12.0}
    assert not x.grad.numpy()[kept == 0].any()


def test_extrema_that_are_computed_before_and_compared_after(pair: Any) -> None:
    a, b = pair
    x = leaf(np.linspace(0.1, 3, 50), a)
    for _ in range(15):
        x.grad = None
        (x.sin().exp().amax().to(b) * 2).to(a).backward()
        assert np.count_nonzero(x.grad.numpy()) == 1


def test_indices_out_of_range_are_told(two: Any) -> None:
    a, b = two
    table, index = leaf([1.0, 2.0], a), tg.tensor([0, 5], device=a)
    with pytest.raises(IndexError):
        (table[index] * 2).to(b).sum().item()
    assert (table.to(b) * 2).sum().item() == 6.0


OPERATIONS = [
    lambda x, y: x + y,
    lambda x, y: x * y.tanh(),
    tg.maximum,
    lambda x, y: x.sin() - y,
    lambda x, y: (x @ y.T).tanh() @ y,
    lambda x, y: x.softmax(1) * y,
    lambda x, y: x.cumsum(0) * 0.3 + y,
    lambda x, y: x - x.amax(1, keepdim=True) + y.mean(),
    lambda x, y: x.flip(0),
    lambda x, y: tg.cat([x[1:], y[:1]]),
    lambda x, y: x.sort(1).values + y,
    lambda x, y: x[y.argsort(0)[:, 0]],
    lambda x, y: x.clone().mul_(y),
    lambda x, y: tg.where(x > y, x, -y),
    lambda x, y: x.detach() * y,
    lambda x, y: x.expand(2, 3, 4).sum(0) * 0.5 + y,
]


def random_leaves(seed: int, devices: Any) -> list[Any]:
    """Three leaves on two devices."""
    rng = np.random.default_rng(1000 + seed)
    return [leaf(rng.standard_normal((3, 4)), devices[k % 2]) for k in range(3)]


def random_program(seed: int, devices: Any, leaves: Any = ()) -> list[Any]:
    """A loss, its gradients, and second derivatives, of operations that are done on one of the devices, each drawn."""
    rng = np.random.default_rng(seed)
    leaves = leaves or random_leaves(seed, devices)
    known = list(leaves)
    for _ in range(12):
        x, y, operation = (rng.integers(n) for n in (len(known), len(known), len(OPERATIONS)))
        where = devices[rng.integers(2)]
        known.append(OPERATIONS[operation](known[x].to(where), known[y].to(where)))
        if rng.random() < 0.1 and known[-1]._trace is None:
            known[-1].tolist()                      # somebody looks
    loss = sum(k.to(devices[0]).square().mean() for k in known[-4:]) + sum(k.to(devices[0]).sin().mean() for k in leaves)
    first = tg.autograd.grad(loss, leaves, create_graph=True)
    second = tg.autograd.grad(sum(g.to(devices[1]).square().sum() for g in first), leaves)
    for p, g, h in zip(leaves, first, second, strict=True):
        assert h.device is g.device is p.device
    return [loss, *first, *second]


@pytest.mark.parametrize(("seed", "way"), [
    *((k, "eager") for k in range(4)), *(pytest.param(k, "eager", marks=pytest.mark.long) for k in range(4, 40)),
    *(pytest.param(k, "kernels", marks=pytest.mark.long) for k in range(6))])
def testrandom_programs_are_those_of_one_device(seed: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two_devices("numpy", way, monkeypatch)
    for found, expected in zip(random_program(seed, (a, b)), random_program(seed, (a, a)), strict=True):
        wanted = expected.detach().numpy()
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=2e-3, atol=2e-4 * max(1.0, np.abs(wanted).max()))


# ------------------------------------------------------------------------------------------------------------------------ models


class Two(nn.Module):
    """Layers on two devices."""

    def __init__(self, a: Any, b: Any) -> None:
        super().__init__()
        tg.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.norm = nn.LayerNorm(8)
        self.a, self.b = a, b
        self.first.to(a)
        self.second.to(b)
        self.norm.to(device=b)
        self.third.to(a)

    def forward(self, x: Any) -> Any:
        x = self.first(x).relu()
        x = self.norm(self.second(x.to(self.b)).tanh())
        return self.third(x.to(self.a))


OPTIMIZERS = {
    "SGD": lambda p: tg.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: tg.optim.Adam(p, lr=0.01),
    "AdamW, a tensor as lr": lambda p: tg.optim.AdamW(p, lr=tg.tensor(0.01)),
    "RMSprop": lambda p: tg.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: tg.optim.Adagrad(p, lr=0.05),
}


def _train(model: Any, make: Any, steps: int, clip: float | None = None) -> list[Any]:
    optimizer = make(model.parameters())
    rng = np.random.default_rng(1)
    seen = []
    for _ in range(steps):
        x = tg.tensor(rng.standard_normal((16, 4)), dtype=tg.float32, device=model.a)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip).item() if clip else 0.0
        optimizer.step()
        seen.append([loss.item(), norm, *(p.detach().numpy() for p in model.parameters())])
    for p in model.parameters():
        assert p.grad.device is p.device
        for value in optimizer.state.get(p, {}).values():
            assert not isinstance(value, tg.Tensor) or value.device is p.device
    return seen


def _agree(found: list[Any], expected: list[Any]) -> None:
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=f"step {step + 1}")


@pytest.mark.matrix
def test_training_is_that_of_one_device(pair: Any) -> None:
    """30 steps, since recurring work is recalled from the third and from the twelfth time on."""
    a, b = pair
    _agree(_train(Two(a, b), OPTIMIZERS["SGD"], 30, clip=1.0), _train(Two(a, a), OPTIMIZERS["SGD"], 30, clip=1.0))


@one_of(len(OPTIMIZERS) - 1, "optimizer", list(OPTIMIZERS)[1:], 1)
def test_optimizers_of_parameters_on_several_devices(optimizer: str, two: Any) -> None:
    a, b = two
    _agree(_train(Two(a, b), OPTIMIZERS[optimizer], 15), _train(Two(a, a), OPTIMIZERS[optimizer], 15))


EVERY = [name for name in tg.optim.__all__ if isinstance(getattr(tg.optim, name), type) and name != "Optimizer"
         and issubclass(getattr(tg.optim, name), tg.optim.Optimizer)]


@one_of(4, ("name", "options"), [*((name, {}) for name in EVERY), ("LBFGS", {"line_search_fn": "strong_wolfe", "max_iter": 4})])
def test_every_optimizer_steps_on_two_devices(name: str, options: dict[str, Any], two: Any) -> None:
    """Values and states are those of one device, after a state was saved and loaded too.

    A line search turns a difference of 1e-7 into another minimum after twenty iterations: float64, and few iterations.
    """
    dtype = tg.float64 if all(device.fp64 for device in two) else tg.float32
    ends = []
    for a, b in (two, (two[0], two[0])):
        model = nn.Sequential(nn.Linear(3, 4, bias=False, device=a, dtype=dtype), nn.Linear(4, 2, bias=False, device=b, dtype=dtype))
        for k, p in enumerate(model.parameters()):
            with tg.no_grad():
                p.copy_(tg.tensor(np.sin(np.arange(p.numel()) + k).reshape(p.shape), dtype=p.dtype, device=p.device))
        x = tg.tensor(np.cos(np.arange(15.0)).reshape(5, 3), dtype=dtype, device=a)

        def closure(model: Any = model, x: Any = x, b: Any = b) -> Any:
            for p in model.parameters():
                p.grad = None
            loss = (model[1](model[0](x).tanh().to(b)) ** 2).sum()
            loss.backward()
            return loss

        optimizer = getattr(tg.optim, name)(model.parameters(), **options)
        for step in range(6):
            if step == 3:
                saved = optimizer.state_dict()
                optimizer = getattr(tg.optim, name)(model.parameters(), **options)
                optimizer.load_state_dict(saved)
            closure()
            optimizer.step(closure)
        assert [p.device for p in model.parameters()] == [a, b]
        ends.append([closure().item(), *(p.detach().numpy() for p in model.parameters())])
    _agree(ends[:1], ends[1:])


def test_clipping_over_several_devices(pair: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = pair
    for norm_type in (2.0, 1.0, float("inf")):
        x, w = leaf([3.0, 4.0], a), leaf([12.0], b)
        x.grad, w.grad = x.detach().clone(), w.detach().clone()
        t, v = torch.tensor([3.0, 4.0], requires_grad=True), torch.tensor([12.0], requires_grad=True)
        t.grad, v.grad = t.detach().clone(), v.detach().clone()
        total = nn.utils.clip_grad_norm_([x, w], 1.0, norm_type)
        expected = torch.nn.utils.clip_grad_norm_([t, v], 1.0, norm_type)
        assert total.device is a                        # the first gradient's, as in torch
        same(total, expected)
        same(x.grad, t.grad)
        same(w.grad, v.grad)
        assert (x.grad.device, w.grad.device) == (a, b)


def test_a_model_is_moved_by_layers_and_back(two: Any) -> None:
    a, b = two
    model = nn.Sequential(nn.Linear(2, 2, device=a), nn.ReLU(), nn.Linear(2, 2, device=a))
    optimizer = tg.optim.Adam(model.parameters(), lr=0.1)
    x = tg.ones(3, 2, device=a)

    def step() -> None:
        optimizer.zero_grad()
        model[2](model[1](model[0](x)).to(model[2].weight.device)).sum().backward()
        optimizer.step()

    reference = nn.Sequential(nn.Linear(2, 2, device=a), nn.ReLU(), nn.Linear(2, 2, device=a))
    reference.load_state_dict(model.state_dict())
    other = tg.optim.Adam(reference.parameters(), lr=0.1)
    for where in (b, b, a, b):
        model[2].to(where)
        assert model[2].weight.device is where
        assert model[2].weight.grad is None or model[2].weight.grad.device is where
        assert model[0].weight.device is a
        step()
        other.zero_grad()
        reference(x).sum().backward()
        other.step()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            same(p, q)


def test_a_leaf_that_moves_before_the_backward(pair: Any) -> None:
    """Its gradient arrives where it lies then; its hooks see it there."""
    a, b = pair
    seen = []
    p = nn.Parameter(tg.tensor([1.0, 2.0], device=a))
    p.register_hook(lambda g: seen.append(g.device))
    first = (p * p).sum()
    p.data = p.data.to(b)
    second = (p * 3).sum()
    (first.to(b) + second).backward()
    assert p.grad.tolist() == [5.0, 7.0]
    assert (p.grad.device, seen) == (b, [b, b])
    third = (p * p * p).sum()
    p.data = p.data.to(a)
    assert p.grad.device is a
    third.backward()
    assert p.grad.tolist() == [8.0, 19.0]
    fourth = (p * 4).sum()
    p.data = p.data.to(b)
    (found,) = tg.autograd.grad(fourth, [p])
    assert found.device is b
    assert found.tolist() == [4.0, 4.0]


def test_averages_of_a_model_on_two_devices(two: Any) -> None:
    a, b = two
    model = Two(a, b)
    average = tg.optim.swa_utils.AveragedModel(model)
    for k in range(3):
        for p in model.parameters():
            p.data.fill_(k)
        average.update_parameters(model)
    for p, q in zip(model.parameters(), average.module.parameters(), strict=True):
        assert p.device is q.device
        same(q, np.ones(q.shape))


def test_states_go_from_device_to_device(two: Any, tmp_path: Any) -> None:
    a, b = two
    model, other = Two(a, b), Two(b, a)
    for p in other.parameters():
        p.data.zero_()
    optimizer, second = (tg.optim.Adam(m.parameters(), lr=0.01) for m in (model, other))
    x = tg.ones(2, 4, device=a)
    model(x).sum().backward()
    optimizer.step()
    other.load_state_dict(model.state_dict())
    second.load_state_dict(optimizer.state_dict())
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p.device is not q.device
        same(p, q)
        assert all(not isinstance(v, tg.Tensor) or v.device is q.device for v in second.state[q].values())
    tg.save(model.state_dict(), tmp_path / "model")
    third = Two(b, b)
    third.load_state_dict(tg.load(tmp_path / "model"))
    for p, q in zip(model.parameters(), third.parameters(), strict=True):
        same(p, q)
        assert q.device is b


def test_checkpoints(pair: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = pair
    x = leaf([0.5, 1.0], a)
    checkpoint(lambda x: (x.sin().to(b) * 2).exp().to(a), x, use_reentrant=False).sum().backward()
    t = torch.tensor(x.tolist(), requires_grad=True)
    (t.sin() * 2).exp().sum().backward()
    same(x.grad, t.grad)


def test_batches_are_sent(two: Any) -> None:
    a, b = two
    data = nn_data(a)
    w = leaf([1.0, 1.0], b)
    total = 0.0
    for x, _ in tg.utils.data.DataLoader(data, batch_size=2, pin_memory=True):
        assert x.device is a
        assert x.pin_memory() is x
        loss = (x.to(b, non_blocking=True) * w).sum()
        loss.backward()
        total += loss.item()
    assert w.grad.tolist() == [0.0 + 2 + 4, 1.0 + 3 + 5]
    assert w.grad.device is b


def nn_data(device: Any) -> Any:
    rows = tg.arange(6.0, device=device).reshape(3, 2)
    return tg.utils.data.TensorDataset(rows, tg.arange(3, device=device))


def test_a_backward_with_sent_batches_is_still_recalled(recalled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent has no history: the model on one device makes the step that it made before."""
    monkeypatch.setattr(tg.config, "eager", True)
    if tg.device().kind == "numpy":
        pytest.skip("one device")
    w = leaf([1.0, 2.0], tg.device())
    for k in range(8):
        batch = tg.tensor([k + 1.0, 2.0], device="numpy")
        w.grad = None
        (batch.to(w.device) * w).sum().backward()
        assert w.grad.tolist() == [k + 1.0, 2.0]
    assert recalled() >= 5


def test_a_backward_over_two_devices_is_never_recalled(recalled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tg.config, "eager", True)
    if tg.device().kind == "numpy":
        pytest.skip("one device")
    a, b = tg.device(), tg.device("numpy")
    w, v = leaf([1.0, 2.0], a), leaf([3.0, 4.0], b)
    for k in range(30):
        w.grad = v.grad = None
        here, there = (a, b) if k % 2 else (b, a)
        ((w.to(here) * (k + 1.0)).sin().to(there) * v.to(there)).sum().backward()
        np.testing.assert_allclose(v.grad.numpy(), np.sin((k + 1.0) * np.array([1, 2])), rtol=1e-4, atol=1e-5)
        assert (w.grad.device, v.grad.device) == (a, b)
    assert recalled() == 0


# -------------------------------------------------------------------------------------------------------------- custom Functions


class Sent(tg.Function):
    """x on one device, w on another, two results, one on each."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        sent = x.sin().to(w.device)
        ctx.save_for_backward(x, w, sent=sent)
        return sent * w, x * 2

    @staticmethod
    def backward(ctx: Any, gs: Any, gx: Any) -> Any:
        x, w, sent = ctx.saved_tensors
        assert (gs.device, gx.device, sent.device) == (w.device, x.device, w.device)
        return (gs * w).to(x.device) * x.cos() + gx * 2, gs * sent


def test_custom_functions_on_two_devices(pair: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = pair
    x, w = leaf([0.5, 1.0], a), leaf([2.0, 3.0], b)
    t, v = (torch.tensor(p.tolist(), requires_grad=True) for p in (x, w))
    y, z = Sent.apply(x, w)
    assert (y.device, z.device) == (b, a)
    first = tg.autograd.grad((y * y).sum() + (z ** 3).to(b).sum(), [x, w], create_graph=True)
    ty, tz = t.sin() * v, t * 2
    expected = torch.autograd.grad((ty * ty).sum() + (tz ** 3).sum(), [t, v], create_graph=True)
    for found, wanted in zip(first, expected, strict=True):
        same(found, wanted, 1e-4)
    second = tg.autograd.grad(first[0].sum().to(b) + first[1].sum(), [x, w])
    for found, wanted, device in zip(second, torch.autograd.grad(expected[0].sum() + expected[1].sum(), [t, v]), (a, b), strict=True):
        same(found, wanted, 1e-4)
        assert found.device is device
    y, z = Sent.apply(x, w)
    z.sum().backward()                              # zeros stand for the other result's gradient, on its device
    assert x.grad.tolist() == [2.0, 2.0]
    _, moved = tg.jvp(lambda x: Sent.apply(x, w)[0], (x.detach(),), (tg.ones(2, device=a),))
    assert moved.device is b
    same(moved, (torch.cos(t) * v).detach())


def test_a_custom_gradient_on_the_wrong_device(two: Any) -> None:
    a, b = two

    class Wrong(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.to(b)

    number, x = leaf(1.5, a), leaf([1.0, 2.0], a)
    Wrong.apply(number).backward()        # torch moves what has no dimensions
    assert number.grad.item() == 1.0
    with pytest.raises(DeviceError, match=r"Wrong.backward: the gradient for 'x' is on .*numpy.*, expected on .*; move it with x.to"):
        Wrong.apply(x).sum().backward()


# ------------------------------------------------------------------------------------------------------------------------ errors


MIXED = {
    "add": lambda x, y: x + y,
    "matmul": lambda x, y: x @ y,
    "where": lambda x, y: tg.where(x > 0, x, y),
    "cat": lambda x, y: tg.cat([x, y]),
    "stack": lambda x, y: tg.stack([x, y]),
    "linear": F.linear,
    "mse_loss": F.mse_loss,
    "embedding": lambda x, y: F.embedding(x.long(), y),
    "gather": lambda x, y: x.gather(0, y.long()),
    "index": lambda x, y: x[y.long()],
    "setitem": lambda x, y: x.__setitem__(tg.tensor([0], device=x.device), y[:1]),
    "in place": lambda x, y: x.add_(y),
    "out": lambda x, y: tg.add(x, x, out=y),
    "clamp": lambda x, y: x.clamp(y),
    "lerp": lambda x, y: x.lerp(y, 0.5),
    "addmm": lambda x, y: tg.addmm(x, x, y),
    "einsum": lambda x, y: tg.einsum("ij,jk", x, y),
    "solve": tg.linalg.solve,
    "grad": lambda x, y: setattr(x, "grad", y),
    "backward": lambda x, y: x.requires_grad_().mul(2).backward(y),
    "jvp": lambda x, y: tg.jvp(lambda t: t * 2, (x,), (y,)),
    "vmap": tg.vmap(lambda r, s: r + s),
    "trace": lambda x, y: tg.trace(lambda: x + y)(),
}


@pytest.mark.parametrize("call", list(MIXED))
def test_mixed_operands_name_both_devices_and_the_way_out(call: str, two: Any) -> None:
    a, b = two
    x, y = tg.ones(2, 2, device=a), tg.ones(2, 2, device=b)
    with pytest.raises((DeviceError, TraceError)) as error:
        MIXED[call](x, y)
    text = str(error.value)
    assert str(a) in text
    assert str(b) in text
    assert "move" in text or "make out on" in text


def test_kernels_of_users_take_operands_of_one_device(two: Any) -> None:
    a, b = two
    add = tg.opencl_function(source="__kernel void add(__global const float *x, __global const float *y, __global float *z)"
                             "{ size_t i = get_global_id(0); z[i] = x[i] + y[i]; }", entry="add")
    with pytest.raises(DeviceError, match=r"add: the operands are on different devices, .*numpy.*move one with x.to\(device\)"):
        add(tg.ones(2, device=a), tg.ones(2, device=b))
    with pytest.raises(DeviceError, match="cond: the operands are on different devices"):
        tg.vmap(lambda p: tg.cond(p > 0, lambda v: v, lambda v: v * 2, (tg.ones(2, device=b),)))(tg.ones(3, device=a))


def test_calls_of_traces_stand_before_and_after_a_transfer(two: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = two
    x = leaf([1.0], a)
    traced = tg.trace(lambda x: (x * x).sin())
    t = torch.tensor([1.0], requires_grad=True)
    ((t * t).sin() ** 2).sin().backward()
    for _ in range(15):
        x.grad = None
        y = traced(traced(x).to(b))                 # calls on several devices, and a history through them
        y.sum().to(a).backward()
        same(x.grad, t.grad)


def test_loops_and_branches(two: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = two
    x = leaf([0.1, 0.2], a)
    t = torch.tensor(x.tolist(), requires_grad=True)
    carry, ys = tg.scan(lambda c, row: ((c.to(b) * 2).sin().to(a) + row, c.to(b)), x, tg.ones(20, 2, device=a))
    assert (carry.device, ys.device) == (a, b)
    (carry.sum() + ys.sum().to(a)).backward()
    there, kept = t, []
    for _ in range(20):
        kept.append(there)
        there = (there * 2).sin() + 1
    (there.sum() + torch.stack(kept).sum()).backward()
    same(x.grad, t.grad, 1e-3)
    both, _ = tg.scan(lambda c, _: ((c[0] * 2, c[1] + 1), None), (tg.ones(1, device=a), tg.ones(1, device=b)), length=12)
    assert [c.tolist() for c in both] == [[4096.0], [13.0]]
    assert [c.device for c in both] == [a, b]
    assert tg.while_loop(lambda v: v.sum() < 50, lambda v: (v.to(b) * 2).to(a), tg.ones(2, device=a)).tolist() == [32.0, 32.0]
    with pytest.raises(TraceError, match="while_loop records in a vmap runs on one device"):
        tg.vmap(lambda v: tg.while_loop(lambda v: v.sum() < 50, lambda v: (v.to(b) * 2).to(a), v))(tg.ones(3, 2, device=a))


def test_anomaly_detection_finds_the_step(two: Any) -> None:
    a, b = two
    x = leaf([0.0], a)
    with pytest.raises(AutogradError, match="sqrt"), tg.autograd.detect_anomaly():
        ((x.sqrt() * 0).to(b) * 2).sum().backward()
