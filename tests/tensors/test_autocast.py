"""Mixed precision: which operands `autocast` casts, in traces, too, and how `GradScaler` changes its scale."""

import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.nn import functional as F
from tracegrad.testing import gradcheck

HALF = {"bfloat16": tg.bfloat16, "float16": tg.float16}


@one_of(2, "dtype", HALF.values(), ids=HALF)
def test_products_are_made_in_16_bits(run, dtype):
    tg.manual_seed(0)                                   # of other weights a sum may lie on the relu's other side
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))

    @run
    def step(x, y):
        with tg.autocast("cpu", dtype):
            hidden = model[0](x)
            out = model[3](model[2](model[1](hidden)))
            loss = F.mse_loss(out, y)
        return hidden, out, loss, *tg.autograd.grad(loss, list(model.parameters()))

    x, y = tg.linspace(-1, 1, 15).reshape(5, 3), tg.ones(5, 2)
    for _ in range(3):
        hidden, out, loss, *gradients = step(x, y)
        assert [t.dtype for t in (hidden, out, loss)] == [dtype, dtype, tg.float32]
        assert {g.dtype for g in gradients} == {tg.dtype("float32")}
    exact = tg.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
    for a, b in zip(gradients, exact, strict=True):
        assert (a - b).abs().max() <= 0.05 * max(1.0, b.abs().max().item())
    assert model(x).dtype == tg.float32


def test_a_traced_function_is_recorded_for_each_mode():
    f = tg.trace(lambda a: a @ a)
    a = tg.eye(3)
    assert f(a).dtype == tg.float32
    for _ in range(3):
        with tg.autocast("cpu"):
            assert f(a).dtype == tg.bfloat16
        assert f(a).dtype == tg.float32


def test_blocks_in_blocks_and_decorators():
    a = tg.eye(2)

    @tg.autocast("cpu", dtype=tg.float16)
    def product(x):
        return x @ x

    assert product(a).dtype == tg.float16
    with tg.autocast("cpu"):
        with tg.autocast("cpu", enabled=False):
            assert (a @ a).dtype == tg.float32
        with tg.autocast("gpu"):                        # of other devices
            assert (a @ a).dtype == tg.float32
        assert (a @ a).dtype == tg.bfloat16
        assert (a.double() @ a.double()).dtype == tg.float64
        assert F.scaled_dot_product_attention(a[None], a[None], a[None]).dtype == tg.bfloat16
        assert nn.LSTM(2, 3)(a[None])[0].dtype == tg.bfloat16
        assert (a.bfloat16().softmax(-1).dtype, a.softmax(-1).dtype) == (tg.bfloat16, tg.float32)
        assert tg.linalg.inv(a.bfloat16()).dtype == tg.float32
    with pytest.warns(UserWarning, match="not to float32"), tg.autocast("cpu", dtype=tg.float32):
        assert (a @ a).dtype == tg.float32
    with pytest.raises(tg.ArgumentError, match="device_type is a string"):
        tg.autocast(tg.float32)


def test_functions_of_users_see_the_casts():
    @tg.amp.custom_fwd(device_type="cpu", cast_inputs=tg.float32)
    def forward(ctx, x):
        assert x.dtype == tg.float32
        return x @ x

    Square = type("Square", (tg.Function,), {"forward": staticmethod(forward),
                                             "backward": tg.amp.custom_bwd(device_type="cpu")(staticmethod(lambda ctx, g: g))})
    with tg.autocast("cpu"):
        assert Square.apply(tg.eye(2).bfloat16()).dtype == tg.float32


def test_a_scaler_steps_where_nothing_overflows():
    w = nn.Parameter(tg.ones(2))
    optimizer = tg.optim.SGD([w], lr=0.1)
    scaler = tg.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for factor, scale, value in ((1.0, 8.0, 0.9), (float("inf"), 4.0, 0.9), (1.0, 4.0, 0.8), (1.0, 8.0, 0.7)):
        optimizer.zero_grad()
        loss = scaler.scale((w * factor).sum())
        loss.backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert (scaler.get_scale(), scaler.is_enabled()) == (scale, True)
        assert w.tolist() == pytest.approx([value] * 2)
    other = tg.GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    with pytest.raises(tg.ArgumentError, match="growth_factor"):
        tg.GradScaler("cpu", growth_factor=1.0)


def test_derivatives_without_a_cast_are_exact(run):
    with tg.autocast("cpu"):
        assert gradcheck(run(lambda x: (x @ x).sum()), tg.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=tg.float64, requires_grad=True))
