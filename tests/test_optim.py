"""Optimizers against their formulas in numpy float64, untraced and traced; learning rates, states, schedulers."""

import math

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.errors import ArgumentError, TraceError

RNG = np.random.default_rng(3)
START = [RNG.normal(size=(3, 2)), RNG.normal(size=(4,))]
TARGET = [RNG.normal(size=(3, 2)), RNG.normal(size=(4,))]
STEPS = 6


def gradient(w, target):
    """Of sum((w - target)**2 * w)."""
    return 2 * (w - target) * w + (w - target) ** 2


def sgd(w, target, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False):
    w, buffer = w.copy(), None
    for _ in range(STEPS):
        d = gradient(w, target) * (-1 if maximize else 1) + weight_decay * w
        if momentum:
            buffer = d if buffer is None else momentum * buffer + (1 - dampening) * d
            d = d + momentum * buffer if nesterov else buffer
        w = w - lr * d
    return w


def adam(w, target, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False, decoupled=False):
    w, m, v, most = w.copy(), 0.0, 0.0, 0.0
    for t in range(1, STEPS + 1):
        g = gradient(w, target) * (-1 if maximize else 1)
        if decoupled:
            w = w * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * w
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        most = np.maximum(most, v)
        w = w - lr * (m / (1 - betas[0] ** t)) / (np.sqrt((most if amsgrad else v) / (1 - betas[1] ** t)) + eps)
    return w


CASES = [
    (optim.SGD, sgd, dict(lr=0.05)),
    (optim.SGD, sgd, dict(lr=0.02, momentum=0.9, weight_decay=0.1)),
    (optim.SGD, sgd, dict(lr=0.02, momentum=0.8, dampening=0.3)),
    (optim.SGD, sgd, dict(lr=0.02, momentum=0.8, nesterov=True)),
    (optim.SGD, sgd, dict(lr=0.01, maximize=True)),
    (optim.Adam, adam, dict(lr=0.1)),
    (optim.Adam, adam, dict(lr=0.1, betas=(0.0, 0.9), weight_decay=0.2)),
    (optim.Adam, adam, dict(lr=0.1, amsgrad=True, maximize=True)),
    (optim.AdamW, lambda *a, **k: adam(*a, decoupled=True, **k), dict(lr=0.1, weight_decay=0.3)),
]


def parameters(dtype="float64"):
    return [tg.tensor(w, dtype=dtype, requires_grad=True) for w in START]


def make_step(params, opt):
    targets = [tg.tensor(t, dtype=params[0].dtype) for t in TARGET]

    def step():
        opt.zero_grad()
        loss = sum(((w - t) ** 2 * w).sum() for w, t in zip(params, targets, strict=True))
        loss.backward()
        opt.step()
        return loss

    return step


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("kind", "formula", "options"), CASES)
def test_formula(kind, formula, options, traced, device):
    params = parameters()
    step = make_step(params, kind(params, **options))
    step = tg.trace(step) if traced else step
    for _ in range(STEPS):
        step()
    for p, w, t in zip(params, START, TARGET, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), formula(w, t, **options), rtol=1e-9)
    if traced:
        assert len(step.compilations) == 1


def test_float32_bias_corrections_are_exact_enough(device):
    params = parameters("float32")
    step = make_step(params, optim.Adam(params, lr=0.1))
    for _ in range(STEPS):
        step()
    np.testing.assert_allclose(params[0].detach().numpy(), adam(START[0], TARGET[0], 0.1), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_learning_rate_is_a_run_time_number(kind, device):
    plain, traced = parameters(), parameters()
    opts = [kind(plain, lr=0.1), kind(traced, lr=0.1)]
    steps = [make_step(plain, opts[0]), tg.trace(make_step(traced, opts[1]))]
    for i in range(4):
        for opt, step in zip(opts, steps, strict=True):
            opt.param_groups[0]["lr"] = 0.1 / (i + 1)
            step()
    np.testing.assert_allclose(traced[0].detach().numpy(), plain[0].detach().numpy(), rtol=1e-12)
    assert len(steps[1].compilations) == 1


@pytest.mark.usefixtures("on_numpy")
class TestInterface:
    def test_other_hyperparameters_record_anew(self):
        params = parameters()
        opt = optim.SGD(params, lr=0.01, momentum=0.9)
        step = tg.trace(make_step(params, opt))
        step()
        opt.param_groups[0]["momentum"] = 0.5
        step()
        assert len(step.compilations) == 2

    def test_setting_the_rate_inside_a_trace_is_refused(self):
        params = parameters()
        opt = optim.SGD(params, lr=0.01)

        @tg.trace
        def step():
            opt.param_groups[0]["lr"] = 0.5

        with pytest.raises(TraceError, match="outside"):
            step()

    def test_groups(self):
        a, b = parameters()
        opt = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.0}], lr=0.1)
        before = b.detach().numpy()
        make_step([a, b], opt)()
        np.testing.assert_array_equal(b.detach().numpy(), before)
        np.testing.assert_allclose(a.detach().numpy(), START[0] - 0.1 * gradient(START[0], TARGET[0]), rtol=1e-12)
        assert dict(opt.param_groups[1])["lr"] == 0.0
        assert opt.lr == 0.1
        opt.lr = 0.3
        assert [g["lr"] for g in opt.param_groups] == [0.3, 0.3]

    def test_a_parameter_without_a_gradient_stays_and_counts_by_itself(self):
        for traced in (False, True):
            a, b = parameters()
            opt = optim.Adam([a, b], lr=0.1)

            def first(a=a, opt=opt):
                opt.zero_grad()
                (a * a).sum().backward()
                opt.step()

            first = tg.trace(first) if traced else first
            first()
            first()
            np.testing.assert_array_equal(b.detach().numpy(), START[1])
            opt.zero_grad()
            (b * 1.0).sum().backward()
            opt.step()
            np.testing.assert_allclose(b.detach().numpy(), START[1] - 0.1, rtol=1e-6)      # its first step, not its third
            assert opt.state[a]["step"].item() == 2
            assert opt.state[b]["step"].item() == 1

    def test_state_dict_goes_on(self):
        whole, first, second = parameters(), parameters(), parameters()
        opts = [optim.AdamW(p, lr=0.1, weight_decay=0.1) for p in (whole, first)]
        for p, opt in zip((whole, first), opts, strict=True):
            step = make_step(p, opt)
            for _ in range(3):
                step()
        for p, q in zip(first, second, strict=True):
            q.data = p.detach()
        later = optim.AdamW(second, lr=0.5)
        later.load_state_dict(opts[1].state_dict())
        assert later.param_groups[0]["lr"] == 0.1
        assert later.state[second[0]]["step"] is later.state[second[1]]["step"]
        make_step(whole, opts[0])()
        make_step(second, later)()
        np.testing.assert_allclose(second[1].detach().numpy(), whole[1].detach().numpy(), rtol=1e-12)

    def test_closure(self):
        params = parameters()
        opt = optim.SGD(params, lr=0.01)

        def closure():
            opt.zero_grad()
            loss = (params[0] ** 2).sum()
            loss.backward()
            return loss

        assert opt.step(closure).item() == pytest.approx((START[0] ** 2).sum())

    def test_zero_grad(self):
        params = parameters()
        opt = optim.SGD(params, lr=0.01)
        make_step(params, opt)()
        opt.zero_grad(set_to_none=False)
        assert not params[0].grad.numpy().any()
        opt.zero_grad()
        assert params[0].grad is None

    @pytest.mark.parametrize(("make", "match"), [
        (lambda w: optim.SGD(w, lr=0.1), "one Tensor"),
        (lambda w: optim.SGD([], lr=0.1), "no parameters"),
        (lambda w: optim.SGD([w, w], lr=0.1), "twice"),
        (lambda w: optim.SGD([w * 2], lr=0.1), "not a leaf"),
        (lambda w: optim.SGD([3.0], lr=0.1), "expected Tensors"),
        (lambda w: optim.SGD([w], lr=-0.1), "negative"),
        (lambda w: optim.SGD([w], lr=tg.tensor(0.1)), "Python number"),
        (lambda w: optim.SGD([w], lr=0.1, nesterov=True), "nesterov"),
        (lambda w: optim.Adam([w], betas=(1.0, 0.9)), "betas"),
    ])
    def test_bad_arguments(self, make, match):
        with pytest.raises(ArgumentError, match=match):
            make(tg.ones(2, requires_grad=True))

    def test_schedulers(self):
        opt = optim.SGD([tg.ones(2, requires_grad=True)], lr=1.0)
        kinds = [
            (lambda: optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5), lambda e: 0.5 ** (e // 2)),
            (lambda: optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4, eta_min=0.2), lambda e: 0.6 + 0.4 * math.cos(math.pi * e / 4)),
            (lambda: optim.lr_scheduler.LambdaLR(opt, lambda e: 1 / (e + 1)), lambda e: 1 / (e + 1)),
        ]
        for make, expected in kinds:
            scheduler = make()
            rates = []
            for _ in range(5):
                rates.append(opt.param_groups[0]["lr"])
                scheduler.step()
            np.testing.assert_allclose(rates, [expected(e) for e in range(5)])
            state = scheduler.state_dict()
            assert state["last_epoch"] == 5
            scheduler.load_state_dict(state)
            opt.param_groups[0]["lr"] = 1.0

    def test_clip_grad_norm(self):
        w = tg.tensor([3.0, 4.0], requires_grad=True)
        (w * w).sum().backward()
        assert nn.utils.clip_grad_norm_([w], 1.0).item() == pytest.approx(10.0)
        np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.8], rtol=1e-5)
        nn.utils.clip_grad_value_([w], 0.7)
        np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.7], rtol=1e-5)
