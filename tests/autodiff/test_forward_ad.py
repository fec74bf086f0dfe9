"""Duals of tg.autograd.forward_ad against tg.jvp and formulas: layers, in-place writes, gradients, traces; levels and their errors."""

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.values import close
from tracegrad import nn
from tracegrad.autograd import forward_ad as fw
from tracegrad.errors import ArgumentError, AutogradError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")
A, B = np.linspace(-1, 1, 65), np.cos(np.arange(65.0))


@pytest.fixture
def xv(on_numpy):
    return tg.tensor(A), tg.tensor(B)


def pushed(f, *duals):
    with fw.dual_level():
        return fw.unpack_dual(f(*[fw.make_dual(x, v) for x, v in duals]))


def test_tangents_are_those_of_jvp(run, xv):
    def f(x):
        y = (x * 2).sin()
        y[::3] *= x[::3]
        return y.softmax(0).log().cumsum(0)
    primal, tangent = run(lambda x, v: tuple(pushed(f, (x, v))))(*xv)
    wanted = tg.jvp(f, xv[:1], xv[1:])
    close(primal, wanted[0])
    close(tangent, wanted[1])
    assert not primal.requires_grad
    assert not tangent.requires_grad


def test_of_parameters_and_through_them(xv):
    x, v = xv
    model = nn.Sequential(nn.Linear(65, 7), nn.LayerNorm(7), nn.Linear(7, 3)).double()
    directions = {name: tg.ones_like(p) for name, p in model.named_parameters()}

    def call(p):
        return tg.func.functional_call(model, p, (x,))
    with fw.dual_level():
        duals = {name: fw.make_dual(p.detach(), directions[name]) for name, p in model.named_parameters()}
        tangent = fw.unpack_dual(call(duals)).tangent
    close(tangent, tg.jvp(call, ({k: p.detach() for k, p in model.named_parameters()},), (directions,))[1])
    along = pushed(model, (x, v)).tangent                   # a tangent has the history of what does not carry it
    weight = model[0].weight
    close(tg.autograd.grad(along.sum(), weight)[0], tg.grad(lambda w: tg.jvp(
        lambda x: tg.func.functional_call(model, {"0.weight": w}, (x,)), (x,), (v,))[1].sum())(weight.detach()))


def test_gradients_carry_tangents(xv):
    x, v = xv
    with fw.dual_level():
        a, x = x, fw.make_dual(x.clone().requires_grad_(), v)
        (gradient,) = tg.autograd.grad((x**3).sum(), x)
        close(fw.unpack_dual(gradient).tangent, 6 * a * v)
        inner = tg.grad(lambda x: (x**3).sum())(x)
        close(fw.unpack_dual(inner).tangent, 6 * a * v)


def test_levels(xv):
    x, v = xv
    with tg.no_grad(), fw.dual_level():
        assert fw.unpack_dual(fw.make_dual(x, v) * 2).tangent is not None
        assert fw.unpack_dual(x * 2).tangent is None
    assert fw.unpack_dual(x) == (x, None)
    assert fw.enter_dual_level() == 0
    with pytest.raises(AutogradError, match="nested"):
        fw.enter_dual_level()
    with pytest.raises(AutogradError, match="under no_grad"), tg.no_grad():
        fw.make_dual(x, v)
    with pytest.raises(ShapeError, match="tangent has shape"):
        fw.make_dual(x, v[:3])
    with pytest.raises(ArgumentError, match="int64"):
        fw.make_dual(tg.arange(3), tg.arange(3))
    fw.exit_dual_level()
    with pytest.raises(AutogradError, match="make_dual: no level"):
        fw.make_dual(x, v)
