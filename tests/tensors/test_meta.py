"""The device "meta": shapes and dtypes without values."""

import pytest

import tracegrad as tg
from tracegrad import nn


def test_tensors_have_shapes_and_take_no_memory():
    with tg.device("meta"):
        t = tg.randn(200_000, 300_000)                 # 240 GB, if it had values
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert (t @ t.mT).shape == (200_000, 200_000)
    assert ((t + 1).sum().device.type, (t > 0).dtype) == ("meta", tg.bool_)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    y = model(tg.ones(5, 3, device="meta"))
    assert (y.shape, y.requires_grad) == ((5, 4), True)
    t[0] = 1
    t.normal_()
    nn.init.trunc_normal_(t)
    tg.ones(2).numpy()                                  # computes what is pending elsewhere
    assert tg.ones(2).to("meta").device.name == "meta"


@pytest.mark.parametrize("read", [
    lambda t: t.sum().item(), lambda t: t.to("cpu"), lambda t: t.tolist(), lambda t: t.numpy(), lambda t: bool(t.any()),
    lambda t: tg.ones(3, device="cpu").copy_(t).tolist(),
])
@pytest.mark.parametrize("make", [lambda: tg.zeros(3, device="meta"), lambda: tg.tensor([1.0, 2.0, 3.0], device="meta"),
                                  lambda: tg.ones(3).to("meta") * 2])
def test_values_are_refused(read, make):
    with pytest.raises(tg.DeviceError, match=r"'meta' .*has no values.*to_empty"):
        read(make())


def test_a_model_gets_its_values_later():
    model = nn.Linear(2, 2, device="meta")
    assert model.to_empty(device="numpy").weight.device.name == "numpy"
    other = nn.Linear(2, 2, device="meta")
    other.load_state_dict({"weight": tg.eye(2), "bias": tg.ones(2)}, assign=True)
    assert (other(tg.ones(1, 2)).tolist(), other.weight.requires_grad) == ([[2.0, 2.0]], True)
