"""Lazy layers: they become what they stand for at the first call, keep their parameters' objects, and load before it."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ShapeError, TraceError

pytestmark = pytest.mark.usefixtures("on_numpy")
CASES = {
    "Linear": ((13,), {}, (7, 5)), "Conv1d": ((6, 3), {"groups": 2}, (2, 4, 13)), "Conv2d": ((6, 3), {"padding": 1}, (2, 3, 9, 7)),
    "Conv3d": ((5, 2), {"bias": False}, (1, 3, 4, 5, 3)), "ConvTranspose1d": ((6, 3), {"stride": 2}, (2, 4, 7)),
    "ConvTranspose2d": ((6, 3), {"groups": 2}, (2, 4, 5, 5)), "ConvTranspose3d": ((3, 2), {}, (1, 2, 3, 3, 3)),
    "BatchNorm1d": ((), {}, (7, 5)), "BatchNorm2d": ((1e-3,), {"momentum": None}, (4, 5, 3, 3)),
    "BatchNorm3d": ((), {"affine": False}, (4, 5, 3, 2, 2)),
    "InstanceNorm1d": ((), {"affine": False}, (5, 13)), "InstanceNorm2d": ((), {"track_running_stats": False}, (2, 5, 7, 3)),
    "InstanceNorm3d": ((), {}, (2, 3, 4, 5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_lazy_layers_become_the_others(name: str) -> None:
    args, kwargs, shape = CASES[name]
    x = tg.tensor(np.random.default_rng(3).normal(size=shape))
    lazy = getattr(nn, f"Lazy{name}")(*args, **kwargs).double()
    assert lazy.has_uninitialized_params()
    twin, loaded = copy.deepcopy(lazy), copy.deepcopy(lazy)
    before = list(lazy.parameters())
    count = shape[1 if name.startswith("Batch") or len(shape) > int(name[-2:-1] if name[-1] == "d" else 9) + 1 else 0]
    # torch's lazy instance norms have a lazy batch norm's defaults
    kwargs = {"affine": True, "track_running_stats": True} | kwargs if name.startswith("Instance") else kwargs
    plain = getattr(nn, name)(*([shape[-1] if name == "Linear" else count] + list(args)), **kwargs).double()
    tg.manual_seed(3)
    lazy(x)
    assert type(lazy) is type(plain)
    assert repr(lazy) == repr(plain)
    assert all(a is b for a, b in zip(before, lazy.parameters(), strict=True))
    assert all(type(p) is nn.Parameter and p.requires_grad for p in lazy.parameters())
    tg.manual_seed(3)
    plain.reset_parameters()
    for (n, a), b in zip(plain.state_dict().items(), lazy.state_dict().values(), strict=True):
        assert a.shape == b.shape
        if "running" not in n and "tracked" not in n:
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    twin(x)
    loaded.load_state_dict(plain.state_dict())
    np.testing.assert_allclose(loaded(x).detach().numpy(), plain(x).detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "LBFGS"])
def test_optimizers_may_come_before_the_first_call(name: str) -> None:
    def train(lazy: bool) -> list[float]:
        tg.manual_seed(0)
        net = nn.Sequential(nn.LazyLinear(13), nn.Tanh(), nn.LazyLinear(1)).double()
        x = tg.randn(33, 7, dtype=tg.float64)
        net = net if lazy else (net(x), net)[1]
        optimizer = getattr(tg.optim, name)(net.parameters(), lr=0.05)

        def closure() -> tg.Tensor:
            optimizer.zero_grad()
            loss = ((net(x) - x[:, :1].sin()) ** 2).mean()
            loss.backward()
            return loss

        return [float(optimizer.step(closure)) for _ in range(5)]

    assert train(True) == train(False)


def test_a_traced_step_needs_the_state_of_its_optimizer() -> None:
    net = nn.LazyLinear(3)
    optimizer, x = tg.optim.Adam(net.parameters()), tg.randn(5, 7)
    net(x)

    @tg.trace
    def step(x: tg.Tensor) -> tg.Tensor:
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(TraceError, match=r"Adam: it keeps nothing of a parameter, since it was made before a lazy layer's first call"):
        step(x)
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step(x)


def test_traces_come_after_the_first_call() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    x = tg.randn(5, 2, 7, 7)
    with pytest.raises(TraceError, match=r"LazyConv2d: .*call the model once before"):
        tg.trace(net.forward)(x)
    net(x)
    optimizer = tg.optim.Adam(net.parameters(), lr=0.01)

    @tg.trace
    def step(x: tg.Tensor) -> tg.Tensor:
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x).item() for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


def test_errors_of_lazy_layers() -> None:
    with pytest.raises(ShapeError, match=r"LazyConv1d: in_channels 3, .* multiple of groups 2"):
        nn.LazyConv1d(4, 3, groups=2)(tg.zeros(1, 3, 9))
    with pytest.raises(ShapeError, match="LazyConv2d: cannot tell in_channels"):
        nn.LazyConv2d(4, 3)(tg.zeros(5))
