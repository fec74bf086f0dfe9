"""Optimizers against their formulas in numpy float64, untraced and traced; learning rates, states, schedulers."""

import copy
import math

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.errors import ArgumentError, AutogradError, ShapeError, TraceError
from tracegrad.execute import policy

RNG = np.random.default_rng(3)
START = [RNG.normal(size=(3, 2)), RNG.normal(size=(4,))]
TARGET = [RNG.normal(size=(3, 2)), RNG.normal(size=(4,))]
STEPS = 7             # RAdam's second branch begins at the sixth


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


def stepwise(formula):
    """An optimizer given as a generator: it gets gradients and yields what to add to the parameter."""
    def run(w, target, lr, maximize=False, weight_decay=0.0, **options):
        w, update = w.copy(), None
        for _ in range(STEPS):
            g = gradient(w, target) * (-1 if maximize else 1) + weight_decay * w
            if update is None:
                update = formula(w.shape, lr, **options)
                next(update)
            w = w + update.send(g)
        return w
    return run


@stepwise
def rmsprop(shape, lr, alpha=0.99, eps=1e-8, momentum=0.0, centered=False):
    v, mean, buffer, step = np.zeros(shape), np.zeros(shape), np.zeros(shape), None
    while True:
        g = yield step
        v, mean = alpha * v + (1 - alpha) * g * g, alpha * mean + (1 - alpha) * g
        buffer = momentum * buffer + g / (np.sqrt(v - mean ** 2 if centered else v) + eps)
        step = -lr * buffer


@stepwise
def adagrad(shape, lr, lr_decay=0.0, initial_accumulator_value=0.0, eps=1e-10):
    total, t, step = np.full(shape, initial_accumulator_value), 0, None
    while True:
        g = yield step
        total = total + g * g
        step = -lr / (1 + t * lr_decay) * g / (np.sqrt(total) + eps)
        t += 1


@stepwise
def adadelta(shape, lr, rho=0.9, eps=1e-6):
    v, d, step = np.zeros(shape), np.zeros(shape), None
    while True:
        g = yield step
        v = rho * v + (1 - rho) * g * g
        delta = np.sqrt(d + eps) / np.sqrt(v + eps) * g
        d = rho * d + (1 - rho) * delta ** 2
        step = -lr * delta


@stepwise
def adamax(shape, lr, betas=(0.9, 0.999), eps=1e-8):
    m, u, t, step = np.zeros(shape), np.zeros(shape), 0, None
    while True:
        g = yield step
        t += 1
        m, u = betas[0] * m + (1 - betas[0]) * g, np.maximum(betas[1] * u, np.abs(g) + eps)
        step = -lr / (1 - betas[0] ** t) * m / u


@stepwise
def nadam(shape, lr, betas=(0.9, 0.999), eps=1e-8, momentum_decay=4e-3):
    m, v, t, product, step = np.zeros(shape), np.zeros(shape), 0, 1.0, None
    while True:
        g = yield step
        t += 1
        now, after = (betas[0] * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in (t, t + 1))
        product *= now
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        m_hat = after * m / (1 - product * after) + (1 - now) * g / (1 - product)
        step = -lr * m_hat / (np.sqrt(v / (1 - betas[1] ** t)) + eps)


@stepwise
def radam(shape, lr, betas=(0.9, 0.999), eps=1e-8):
    m, v, t, step = np.zeros(shape), np.zeros(shape), 0, None
    most = 2 / (1 - betas[1]) - 1
    while True:
        g = yield step
        t += 1
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        rho = most - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        step = -lr * m / (1 - betas[0] ** t)
        if rho > 5:
            r = math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
            step = step * r * math.sqrt(1 - betas[1] ** t) / (np.sqrt(v) + eps)


@stepwise
def rprop(shape, lr, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0)):
    before, size, step = np.zeros(shape), np.full(shape, lr), None
    while True:
        g = yield step
        size = np.clip(size * np.select([g * before > 0, g * before < 0], etas[::-1], 1.0), *step_sizes)
        g = np.where(g * before < 0, 0.0, g)
        before, step = g, -np.sign(g) * size


def asgd(w, target, lr, lambd=1e-4, alpha=0.75, weight_decay=0.0):
    w, eta = w.copy(), lr
    for t in range(1, STEPS + 1):
        w = w * (1 - lambd * eta) - eta * (gradient(w, target) + weight_decay * w)
        eta = lr / (1 + lambd * lr * t) ** alpha
    return w


def adafactor(w, target, lr, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0):
    w = w.copy()
    rows, columns, whole = np.zeros((*w.shape[:-1], 1)), np.zeros((*w.shape[:-2], 1, *w.shape[-1:])), np.zeros(w.shape)
    least = np.finfo(float).eps if eps[0] is None else eps[0]
    for t in range(1, STEPS + 1):
        g, share = gradient(w, target), t**beta2_decay
        rate = max(eps[1], math.sqrt((w * w).mean())) * min(lr, t**-0.5)
        w = w * (1 - lr * weight_decay)
        whole = whole + (g * g - whole) * share
        moments = whole
        if w.ndim > 1:
            rows, columns = (v + ((g * g).mean(d, keepdims=True) - v) * share for v, d in ((rows, -1), (columns, -2)))
            moments = rows @ columns / np.maximum(rows.mean(-2, keepdims=True), least)
        update = g / np.sqrt(np.maximum(moments, least**2))
        w = w - rate * update / max(1.0, math.sqrt((update * update).mean()) / d)
    return w


CASES = [
    (optim.Adafactor, adafactor, dict(lr=0.1)),
    (optim.Adafactor, adafactor, dict(lr=0.5, beta2_decay=-0.5, eps=(1e-3, 0.1), d=1.5, weight_decay=0.1)),
    (optim.RMSprop, rmsprop, dict(lr=0.02)),
    (optim.RMSprop, rmsprop, dict(lr=0.02, alpha=0.9, momentum=0.7, centered=True, weight_decay=0.1)),
    (optim.Adagrad, adagrad, dict(lr=0.1, maximize=True)),
    (optim.Adagrad, adagrad, dict(lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3, weight_decay=0.1)),
    (optim.Adadelta, adadelta, dict(lr=0.9, rho=0.8, weight_decay=0.1)),
    (optim.Adamax, adamax, dict(lr=0.1, betas=(0.8, 0.95), weight_decay=0.1)),
    (optim.NAdam, nadam, dict(lr=0.1, weight_decay=0.1, maximize=True)),
    (optim.RAdam, radam, dict(lr=0.1, weight_decay=0.1)),
    (optim.RAdam, radam, dict(lr=0.1, betas=(0.8, 0.9))),
    (optim.Rprop, rprop, dict(lr=0.1, etas=(0.4, 1.3), step_sizes=(0.01, 0.15))),
    (optim.ASGD, asgd, dict(lr=0.05, lambd=0.1, weight_decay=0.1)),
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


@pytest.fixture
def in_double():
    """The numbers that parameters share (steps, learning rates) are kept in the default dtype, as in torch."""
    tg.set_default_dtype(tg.float64)
    yield
    tg.set_default_dtype(tg.float32)


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
@pytest.mark.usefixtures("on_numpy", "in_double")
def test_formula(kind, formula, options, traced):
    params = parameters()
    step = make_step(params, kind(params, **options))
    step = tg.trace(step) if traced else step
    for _ in range(STEPS):
        step()
    for p, w, t in zip(params, START, TARGET, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), formula(w, t, **options), rtol=1e-9)
    if traced:
        assert len(step.compilations) == 1


@pytest.mark.usefixtures("in_double")
def test_all_formulas_on_the_device(device):
    """One traced step updates by every optimizer: it is compiled once."""
    sets = [parameters() for _ in CASES]
    steps = [make_step(params, kind(params, **options)) for params, (kind, _, options) in zip(sets, CASES, strict=True)]
    run = tg.trace(lambda: [step() for step in steps])
    for _ in range(STEPS):
        run()
    for params, (kind, formula, options) in zip(sets, CASES, strict=True):
        for p, w, t in zip(params, START, TARGET, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), formula(w, t, **options), rtol=1e-9, err_msg=kind.__name__)
    assert len(run.compilations) == 1


@pytest.mark.parametrize(("kind", "formula"), [(optim.Adam, adam), (optim.NAdam, nadam), (optim.RAdam, radam)])
def test_float32_bias_corrections_are_exact_enough(kind, formula, device):
    params = parameters("float32")
    step = make_step(params, kind(params, lr=0.1))
    for _ in range(STEPS):
        step()
    np.testing.assert_allclose(params[0].detach().numpy(), formula(START[0], TARGET[0], 0.1), rtol=2e-5, atol=1e-6)


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
        (lambda w: optim.SGD([w], lr="0.1"), "Python number"),
        (lambda w: optim.SGD([w], lr=tg.tensor(-0.1)), "negative"),
        (lambda w: optim.SGD([w], lr=tg.tensor([0.1, 0.2])), r"one float, got float32\[2\]"),
        (lambda w: optim.SGD([w], lr=0.1, nesterov=True), "nesterov"),
        (lambda w: optim.Adam([w], betas=(1.0, 0.9)), "betas"),
    ])
    def test_bad_arguments(self, make, match):
        with pytest.raises(ArgumentError, match=match):
            make(tg.ones(2, requires_grad=True))

    @pytest.mark.parametrize("traced", [False, True])
    @pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW, optim.Adadelta, optim.RAdam, optim.ASGD, optim.Rprop])
    def test_a_learning_rate_that_is_a_tensor(self, kind, traced):
        def trained(lr, halve, replace):
            w = nn.Parameter(tg.tensor(np.linspace(-2.0, 3.0, 65)))
            opt = kind([w], lr=lr)

            def step():
                opt.zero_grad()
                ((w - 0.5) ** 2 * w).mean().backward()
                opt.step()
            step = tg.trace(step) if traced else step
            for k in range(5):
                if k == 2:
                    halve(opt.param_groups[0])
                if k == 4:
                    opt.param_groups[0]["lr"] = replace
                step()
            assert not traced or len(step.compilations) <= 2           # the second: another tensor
            return w.detach().numpy()

        def halve(group):
            if isinstance(group["lr"], tg.Tensor):
                group["lr"].mul_(0.5)
            else:
                group["lr"] *= 0.5
        np.testing.assert_allclose(trained(tg.tensor(0.25), halve, tg.tensor(0.0625)), trained(0.25, halve, 0.0625), rtol=1e-6)

    def test_schedulers_write_into_a_learning_rate_that_is_a_tensor(self):
        lr = tg.tensor(0.5)
        opt = optim.SGD([tg.ones(3, requires_grad=True)], lr=lr)
        scheduler = optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
        scheduler.step()
        assert opt.param_groups[0]["lr"] is lr
        assert lr.item() == 0.25
        assert scheduler.get_last_lr() == [0.25]

    def test_what_torch_takes_to_choose_an_implementation(self):
        w = tg.ones(2, requires_grad=True)
        for kind in (optim.SGD, optim.AdamW, optim.RMSprop, optim.ASGD):
            kind([w], foreach=True, fused=False, capturable=True)
            with pytest.raises(ArgumentError, match=f"{kind.__name__}: differentiable"):
                kind([w], differentiable=True)
            with pytest.raises(TypeError, match="unexpected argument 'learning_rate'"):
                kind([w], learning_rate=0.1)

    def test_named_parameters(self):
        layer = nn.Linear(2, 2)
        opt = optim.Adam(layer.named_parameters())
        assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
        assert opt.param_groups[0]["params"][0] is layer.weight
        opt.add_param_group({"params": [("scale", tg.ones(1, requires_grad=True))], "lr": 0.5})
        assert [g["lr"] for g in opt.param_groups] == [0.001, 0.5]
        with pytest.raises(ArgumentError, match='mapping with "params"'):
            opt.add_param_group({"lr": 0.5})
        with pytest.raises(ArgumentError, match="params: some have names"):
            opt.add_param_group({"params": tg.ones(1, requires_grad=True)})
        assert len(opt.param_groups) == 2
        for given in ([("weight", layer.weight), layer.bias], [layer.weight, ("bias", layer.bias)],
                      [{"params": [layer.weight]}, {"params": [("bias", layer.bias)]}]):
            with pytest.raises(ArgumentError, match="Adam: params: some have names"):
                optim.Adam(given)

    @pytest.mark.parametrize(("kind", "options"), [
        (optim.RMSprop, dict(momentum=0.9, centered=True)), (optim.Adagrad, {}), (optim.Adadelta, {}), (optim.Adamax, {}),
        (optim.NAdam, {}), (optim.RAdam, {}), (optim.Rprop, {}), (optim.ASGD, dict(t0=2)), (optim.LBFGS, dict(max_iter=3))])
    def test_every_state_goes_on(self, kind, options):
        whole, first, second = parameters(), parameters(), parameters()
        opts = [kind(p, **options) for p in (whole, first, second)]

        def steps(params, opt, count):
            targets = [tg.tensor(t) for t in TARGET]

            def closure():
                opt.zero_grad()
                loss = sum(((w - t) ** 2 * w).sum() for w, t in zip(params, targets, strict=True))
                loss.backward()
                return loss
            for _ in range(count):
                opt.step(closure)
        steps(whole, opts[0], 7)
        steps(first, opts[1], 4)
        for p, q in zip(first, second, strict=True):
            q.data = p.detach()
        opts[2].load_state_dict(opts[1].state_dict())
        steps(second, opts[2], 3)
        for p, q in zip(whole, second, strict=True):
            np.testing.assert_allclose(q.detach().numpy(), p.detach().numpy(), rtol=1e-12)

    def test_a_line_search_ends_with_the_evaluations_of_its_step(self):
        """As torch 2.13's: a search has what max_eval leaves (its 29 calls here, where 25 iterations a search make 30 and other steps)."""
        x = tg.tensor(np.random.default_rng(3).normal(size=8), requires_grad=True)
        opt, calls = optim.LBFGS([x], lr=0.5, max_iter=6, history_size=3, line_search_fn="strong_wolfe"), []

        def closure():
            opt.zero_grad()
            loss = ((x**2 - 1) ** 2).sum() + (x[1:] - x[:-1]).pow(2).sum()
            loss.backward()
            calls.append(loss.item())
            return loss

        for _ in range(4):
            opt.step(closure)
        assert len(calls) == 29
        assert abs(calls[15] - 1.04872966941) < 1e-9

    def test_lbfgs(self):
        for line_search in (None, "strong_wolfe"):
            w = tg.tensor([-1.2, 1.0], dtype=tg.float64, requires_grad=True)
            opt = optim.LBFGS([w], lr=1.0 if line_search else 0.005, max_iter=20, line_search_fn=line_search)

            def closure(w=w, opt=opt):
                opt.zero_grad()
                loss = 100 * (w[1] - w[0] ** 2) ** 2 + (1 - w[0]) ** 2          # Rosenbrock's valley
                loss.backward()
                return loss

            first = opt.step(closure)
            assert first.item() == pytest.approx(24.2)
            for _ in range(3):
                opt.step(closure)
            if line_search:
                np.testing.assert_allclose(w.detach().numpy(), [1.0, 1.0], atol=1e-4)
            else:
                assert closure().item() < 24.2
        with pytest.raises(ArgumentError, match="closure"):
            opt.step()
        with pytest.raises(TraceError, match="decides by values"):
            tg.trace(lambda: opt.step(closure))()
        with pytest.raises(ArgumentError, match="one group"):
            optim.LBFGS([{"params": [w]}, {"params": [tg.ones(1, requires_grad=True)]}])

    @pytest.mark.parametrize("maximize", [False, True])
    def test_lbfgs_along_a_line(self, maximize):
        """The cubic through two points of a line has no least place (a ZeroDivisionError): the steps go as far as they may, as in torch."""
        w = tg.tensor([1.0, 2.0], requires_grad=True)
        opt = optim.LBFGS([w], max_iter=3, line_search_fn="strong_wolfe", maximize=maximize)

        def closure():
            opt.zero_grad()
            loss = (w * tg.tensor([1.0, 2.0])).sum()
            loss.backward()
            return loss

        opt.step(closure)
        assert (closure().item() > 50) if maximize else (closure().item() < -50)

    def test_clip_grad_norm(self):
        w = tg.tensor([3.0, 4.0], requires_grad=True)
        (w * w).sum().backward()
        assert nn.utils.clip_grad_norm_([w], 1.0).item() == pytest.approx(10.0)
        np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.8], rtol=1e-5)
        nn.utils.clip_grad_value_([w], 0.7)
        np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.7], rtol=1e-5)
        assert nn.utils.get_total_norm([w.grad, tg.tensor([[2.0]])], norm_type=math.inf).item() == 2.0
        w.grad = tg.tensor([math.inf, 0.7])
        with pytest.raises(AutogradError, match=r"clip_grad_norm_: the norm of order 2\.0 is inf"):
            nn.utils.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)
        assert w.grad.tolist()[1] == pytest.approx(0.7)

    def test_gradients_are_measured_and_scaled_together(self, monkeypatch):
        """No more than one piece of work waits for whoever looks, whichever time it is."""
        monkeypatch.setattr(tg.config, "eager", True)
        w, v = tg.ones(7, requires_grad=True), tg.ones(12, 3, requires_grad=True)
        for scale in (1.0, 2.0, 3.0, 0.01, 0.02, 4.0):
            w.grad, v.grad = tg.full((7,), scale), tg.full((12, 3), -scale)
            tg.flush()
            before = policy.counts["interpreted"]
            total = nn.utils.clip_grad_norm_([w, v], 1.0)
            assert policy.counts["interpreted"] - before <= 1
            norm = scale * math.sqrt(43)
            assert total.item() == pytest.approx(norm)
            np.testing.assert_allclose(v.grad.numpy(), np.full((12, 3), -scale / max(norm, 1.0)), rtol=1e-5)

    def test_parameters_as_a_vector(self):
        layer = nn.Linear(3, 2)
        v = nn.utils.parameters_to_vector(layer.parameters())
        np.testing.assert_array_equal(v.detach().numpy(), np.concatenate([p.detach().numpy().ravel() for p in layer.parameters()]))
        v.sum().backward()
        assert layer.weight.grad.tolist() == [[1.0] * 3] * 2
        nn.utils.vector_to_parameters(tg.arange(8.0), layer.parameters())
        assert layer.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert layer.bias.tolist() == [6, 7]
        with pytest.raises(ShapeError, match="vec must be"):
            nn.utils.vector_to_parameters(tg.arange(9.0), layer.parameters())


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.usefixtures("on_numpy")
def test_muon(traced):
    rng = np.random.default_rng(3)
    for (m, n), options, factor in (((7, 13), {}, 1.0), ((33, 5), {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}, 0.2 * 33**0.5)):
        w, target, buffer = rng.normal(size=(m, n)), rng.normal(size=(m, n)), 0.0
        p = tg.tensor(w, requires_grad=True)
        opt = optim.Muon([p], lr=0.05, momentum=0.9, **options)
        goal = tg.tensor(target)

        def step(p=p, opt=opt, goal=goal):
            opt.zero_grad()
            ((p - goal) ** 2).sum().backward()
            opt.step()

        run = tg.trace(step) if traced else step
        for _ in range(4):
            run()
            g = 2 * (w - target)
            buffer = buffer + (g - buffer) * 0.1
            x = g + (buffer - g) * 0.9 if options.get("nesterov", True) else buffer
            x = x / np.linalg.norm(x)
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
            assert np.abs(np.linalg.svd(x, compute_uv=False) - 1).max() < 0.5
            w = w * (1 - 0.05 * 0.1) - 0.05 * factor * x
            np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-9)
    with pytest.raises(ShapeError, match="Muon: takes matrices"):
        optim.Muon([tg.ones(3, requires_grad=True)])
    with pytest.raises(ArgumentError, match="adjust_lr_fn"):
        optim.Muon([tg.ones(3, 3, requires_grad=True)], adjust_lr_fn="other")


@pytest.mark.parametrize(("kind", "shapes"), [("Adafactor", ((5,), (65,))), ("Adafactor", ((1,), (1,))), ("Muon", ((12, 5), (7, 7)))])
def test_parameters_of_a_group_keep_their_own_means_and_norms(kind, shapes, monkeypatch):
    """Recurring untraced steps are made of all parameters end to end, but not where an element's step reads others."""
    monkeypatch.setattr(tg.config, "eager", tg.device().in_host_memory)
    rng = np.random.default_rng(4)
    starts = [rng.normal(size=s).astype(np.float32) for s in shapes]

    def trained(groups):
        params = [tg.tensor(w, requires_grad=True) for w in starts]
        optimizers = [getattr(optim, kind)(g, lr=0.1) for g in groups(params)]
        for _ in range(8):
            for k, p in enumerate(params):
                p.grad = None
                ((p - k) ** 2).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        return [p.detach().numpy() for p in params]

    for together, alone in zip(trained(lambda ps: [ps]), trained(lambda ps: [[p] for p in ps]), strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.usefixtures("on_numpy")
def test_the_learning_rate_before_the_first_step_is_the_first(traced):
    """A scheduler that is made with the optimizer (a warm-up) changes it before anything is done: nothing keeps what was there before."""
    for kind in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adagrad", "Adadelta", "Adamax", "Rprop", "RMSprop", "ASGD", "Adafactor"):
        ends = []
        for early in (False, True):
            params = parameters()
            opt = getattr(optim, kind)(params, lr=0.4 if early else 0.02)
            if early:
                optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.05)
            step = make_step(params, opt)
            run = tg.trace(step) if traced else step
            for _ in range(3):
                run()
            ends.append([w.tolist() for w in params])
        for late, early in zip(*ends, strict=True):
            np.testing.assert_allclose(early, late, rtol=1e-12, err_msg=kind)


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, lr=0.1), optim.Adam, lambda p: optim.LBFGS(p, max_iter=2)])
def test_hooks_around_a_step(make, on_numpy):
    p = nn.Parameter(tg.ones(7))
    optimizer, log = make([p]), []

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        log.append("loss")
        return loss

    def other(o, args, kwargs):
        log.append(("pre", o is optimizer, args[0] is optimizer, list(kwargs)))
        return (optimizer, closure), {}

    handle = optimizer.register_step_pre_hook(other)
    optimizer.register_step_post_hook(lambda o, args, kwargs: log.append(("post", args[1] is closure)))
    optimizer.step(closure=None)
    assert (log[0], log[1], log[-1]) == (("pre", True, True, ["closure"]), "loss", ("post", True))
    assert (p < 1).all()
    handle.remove()
    del log[:]
    optimizer.step(closure)
    assert log[0] == "loss"
    optimizer.register_step_pre_hook(lambda *args: 3)
    with pytest.raises(tg.ArgumentError, match=r"step: a pre-hook must return None or \(args, kwargs\), got 3"):
        optimizer.step(closure)


@pytest.mark.parametrize("make", [
    lambda p: optim.SGD(p, 0.1, 0.9, dampening=0.5), optim.Adam, optim.RMSprop, lambda p: optim.LBFGS(p, max_iter=2)])
def test_hooks_around_saving_and_loading(make, on_numpy):
    first, second = make([nn.Parameter(tg.ones(7))]), make([nn.Parameter(tg.ones(7))])
    log = []
    first.register_state_dict_pre_hook(lambda o: log.append(("saving", o is first)))
    handle = first.register_state_dict_post_hook(lambda o, saved: saved.update(note=len(log)))
    first.register_state_dict_post_hook(lambda o, saved: log.append(sorted(saved)), prepend=True)
    saved = first.state_dict()
    assert log == [("saving", True), ["param_groups", "state"]]
    assert saved["note"] == 2
    handle.remove()
    assert "note" not in first.state_dict()
    first.register_state_dict_post_hook(lambda o, saved: {"wrapped": saved})
    wrapped = first.state_dict()
    assert list(wrapped) == ["wrapped"]

    del log[:]
    second.register_load_state_dict_post_hook(lambda o: log.append(("loaded", o.param_groups[0]["lr"])))
    second.register_load_state_dict_pre_hook(lambda o, saved: saved.pop("wrapped"))
    second.register_load_state_dict_pre_hook(lambda o, saved: log.append(list(saved)), prepend=True)
    wrapped["wrapped"]["param_groups"][0]["lr"] = 0.25
    second.load_state_dict(wrapped)
    assert log == [["wrapped"], ("loaded", 0.25)]
    assert list(wrapped) == ["wrapped"]                     # hooks see a copy


@pytest.mark.parametrize("make", [lambda p: optim.Adam(p, lr=0.1), lambda p: optim.NAdam(p, lr=0.1), lambda p: optim.ASGD(p, lr=0.1, t0=2)])
def test_traced_steps_whose_frozen_parameters_change_at_every_call(make, on_numpy):
    def train(wrap):
        weights = [nn.Parameter(tg.tensor(np.full(12, 1.0 + k))) for k in range(4)]
        optimizer = make(weights)

        @wrap
        def step(x):
            optimizer.zero_grad()
            loss = (sum(w * (k + 1) for k, w in enumerate(weights)) * x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        for repeat in range(9):
            for k, w in enumerate(weights):
                w.requires_grad_((repeat + k * k) % (k + 2) != 1)
            step(tg.tensor(np.linspace(-1, 1, 12)))
        return [w.detach().numpy() for w in weights] + [optimizer.state[w]["step"].item() for w in weights]

    for found, wanted in zip(train(tg.trace), train(lambda f: f), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop", "Adagrad", "Rprop", "ASGD"])
@pytest.mark.parametrize("traced", [False, True])
def test_a_saved_optimizer_that_had_no_state_begins_anew(kind, traced, on_numpy):
    """torch's state dicts before the first step are empty: momentum and counts of the steps so far were kept."""
    options = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
    ends = []
    for fresh in (False, True):
        p = nn.Parameter(tg.linspace(0.5, 2.0, 10))
        make = lambda p=p: getattr(optim, kind)([p], lr=0.05, **options)
        optimizer = make()

        def step(p=p, optimizer=optimizer):
            optimizer.zero_grad()
            (p**4).sum().backward()
            optimizer.step()

        run = tg.trace(step) if traced else step
        for _ in range(4):
            run()
        if fresh:
            optimizer = make()
            run = lambda p=p, optimizer=optimizer, step=step: step(p, optimizer)
        else:
            optimizer.load_state_dict({"state": {}, "param_groups": optimizer.state_dict()["param_groups"]})
        for _ in range(4):
            run()
        ends.append(p.tolist())
    np.testing.assert_allclose(*ends, rtol=1e-6)


@pytest.mark.parametrize("kind", ["Adam", "RMSprop", "Adagrad", "Adadelta"])
def test_a_cleared_state_begins_anew(kind, on_numpy):
    """Also beside a parameter that has no gradient, of which nothing is kept then."""
    ends = []
    for fresh in (False, True):
        p, idle = nn.Parameter(tg.linspace(0.5, 2.0, 10)), nn.Parameter(tg.ones(3))
        make = lambda p=p, idle=idle: getattr(optim, kind)([p, idle], lr=0.05)
        optimizer = make()
        for k in range(8):
            if k == 4:
                if fresh:
                    optimizer = make()
                else:
                    optimizer.state.clear()
            optimizer.zero_grad()
            (p**4).sum().backward()
            optimizer.step()
        ends.append(p.tolist())
    np.testing.assert_allclose(*ends, rtol=1e-6)


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Rprop", "Adadelta"])
def test_two_steps_in_a_trace_of_which_the_second_has_fewer_gradients(name):
    """Nothing is computed of their counts, so that they may be shared by parameters which go on and others which stay behind."""
    found = []
    for wrap in (lambda f: f, tg.trace):
        a, b = (tg.linspace(low, 1.5, 10).requires_grad_() for low in (0.5, -0.5))
        optimizer = getattr(tg.optim, name)([a, b], lr=0.01)

        @wrap
        def step(a=a, b=b, optimizer=optimizer):
            for loss in ((a * b) ** 2, a**2):
                optimizer.zero_grad()
                loss.sum().backward()
                optimizer.step()
            return a.sum() + 2 * b.sum()

        found.append([float(step()) for _ in range(5)])
    assert len(set(found[0])) == 5
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_states_and_groups_that_do_not_fit_leave_the_optimizer_as_it_was():
    w = tg.ones(3, requires_grad=True)
    optimizer = tg.optim.Adam([w], lr=0.1)
    w.sum().backward()
    optimizer.step()
    before = optimizer.state[w]["exp_avg"].tolist()
    for change in (lambda s: s["state"][0].update(exp_avg=tg.zeros(3), exp_avg_sq=tg.ones(7)),
                   lambda s: s["param_groups"][0].update(betas=(0.9, 2.0)),
                   lambda s: s["param_groups"][0].update(lr=-1.0)):
        saved = copy.deepcopy(optimizer.state_dict())
        saved["param_groups"][0]["lr"] = 5.0
        change(saved)
        with pytest.raises(tg.ArgumentError):
            optimizer.load_state_dict(saved)
        group = optimizer.param_groups[0]
        assert (group["lr"], group["betas"], optimizer.state[w]["exp_avg"].tolist()) == (0.1, (0.9, 0.999), before)
    with pytest.raises(tg.ArgumentError, match="eps"):
        optimizer.add_param_group({"params": [tg.ones(2, requires_grad=True)], "eps": -1})
    assert len(optimizer.param_groups) == 1
