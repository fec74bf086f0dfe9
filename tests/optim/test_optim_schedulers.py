"""Learning-rate schedulers against their closed forms; combinations; in traced steps; averaged models."""

import copy
import math
import pickle

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.errors import ArgumentError
from tracegrad.optim import lr_scheduler as s
from tracegrad.optim import swa_utils

pytestmark = pytest.mark.usefixtures("on_numpy")


def optimizer(lr=1.0, kind=optim.SGD, **options):
    return kind([tg.ones(2, requires_grad=True)], lr=lr, **options)


def rates(scheduler, count=17):
    found = []
    for _ in range(count):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.step()
    return found


def cosine(share, high=1.0, low=0.0):
    return low + (high - low) * (1 + math.cos(math.pi * share)) / 2


CLOSED = {
    "step": (lambda o: s.StepLR(o, 4, 0.5), lambda e: 0.5 ** (e // 4)),
    "multi step": (lambda o: s.MultiStepLR(o, [3, 7, 7], 0.5), lambda e: 0.5 ** ((e >= 3) + 2 * (e >= 7))),
    "exponential": (lambda o: s.ExponentialLR(o, 0.9), lambda e: 0.9 ** e),
    "constant": (lambda o: s.ConstantLR(o, 0.25, 5), lambda e: 0.25 if e < 5 else 1.0),
    "linear": (lambda o: s.LinearLR(o, 0.2, 0.8, 6), lambda e: 0.2 + 0.6 * min(e, 6) / 6),
    "polynomial": (lambda o: s.PolynomialLR(o, 9, 2.0), lambda e: max(0.0, 1 - e / 9) ** 2),
    "cosine": (lambda o: s.CosineAnnealingLR(o, 5, 0.1), lambda e: cosine(e / 5, low=0.1)),
    "warm restarts": (lambda o: s.CosineAnnealingWarmRestarts(o, 3, 2),
                      lambda e: cosine(e / 3 if e < 3 else (e - 3) / 6 if e < 9 else (e - 9) / 12)),
    "lambda": (lambda o: s.LambdaLR(o, lambda e: 1 / (e + 1)), lambda e: 1 / (e + 1)),
    "multiplicative": (lambda o: s.MultiplicativeLR(o, lambda e: 1 - 1 / (e + 1)), lambda e: 1 / (e + 1)),
    "cyclic": (lambda o: s.CyclicLR(o, 0.1, 0.5, 2, 3, cycle_momentum=False),
               lambda e: [0.1, 0.3, 0.5, 0.5 - 0.4 / 3, 0.5 - 0.8 / 3][e % 5]),
    "one cycle": (lambda o: s.OneCycleLR(o, 1.0, total_steps=20, pct_start=0.25, cycle_momentum=False),
                  lambda e: cosine(1 - e / 4, low=0.04) if e <= 4 else cosine((e - 4) / 15, low=4e-6)),
    "sequential": (lambda o: s.SequentialLR(o, [s.ConstantLR(o, 0.1, 99), s.ExponentialLR(o, 0.9)], [4]),
                   lambda e: 0.1 if e < 4 else 0.9 ** (e - 4)),
    "chained": (lambda o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 3), s.ExponentialLR(o, 0.9)]),
                lambda e: (0.1 if e < 3 else 1.0) * 0.9 ** e),
}


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms(name):
    make, expected = CLOSED[name]
    np.testing.assert_allclose(rates(make(optimizer())), [expected(e) for e in range(17)], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", CLOSED)
def test_states_go_on(name):
    make, expected = CLOSED[name]
    first = make(optimizer())
    rates(first, 5)
    opt = optimizer()
    later = make(opt)
    opt.load_state_dict(first.optimizer.state_dict())
    later.load_state_dict(first.state_dict())
    assert later.get_last_lr() == [opt.param_groups[0]["lr"]]
    np.testing.assert_allclose(rates(later, 9), [expected(e) for e in range(5, 14)], rtol=1e-12, atol=1e-15)


def test_groups_are_dicts():
    """As torch's: by isinstance, and by all that a dict does; a copy, a pickle and a merger have the same items."""
    group = tg.optim.SGD([tg.zeros(3).requires_grad_()], lr=0.1, momentum=0.9).param_groups[0]
    assert isinstance(group, dict)
    items = dict(group)
    assert items == {**group} == group.copy() == group
    assert items["lr"] == 0.1
    for other in (copy.copy(group), pickle.loads(pickle.dumps(group))):
        assert isinstance(other, dict)
        assert {k: v for k, v in other.items() if k != "params"} == {k: v for k, v in items.items() if k != "params"}
    assert (group | {"lr": 0.5})["lr"] == ({"lr": 0.5} | {"momentum": 0.1, **group})["lr"] + 0.4
    group.update(lr=0.2)
    assert (group.setdefault("initial_lr", 0.3), group.lr, group.pop("initial_lr"), "initial_lr" in group) == (0.3, 0.2, 0.3, False)


def test_groups_have_rates_of_their_own():
    opt = optim.SGD([{"params": [tg.ones(1, requires_grad=True)]}, {"params": [tg.ones(1, requires_grad=True)], "lr": 0.5}], lr=1.0)
    scheduler = s.LambdaLR(opt, [lambda e: 0.1 ** e, lambda e: 0.5 ** e])
    scheduler.step()
    assert scheduler.get_last_lr() == pytest.approx([0.1, 0.25])
    with pytest.raises(ArgumentError, match="lr_lambda has 1 entries for 2 groups"):
        s.LambdaLR(opt, [lambda e: 1.0])


def test_reduce_on_plateau():
    opt = optimizer()
    scheduler = s.ReduceLROnPlateau(opt, factor=0.5, patience=1, cooldown=1, min_lr=0.2)
    seen = []
    for measure in [5.0, 4.0, tg.tensor(4.0), 4.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]:
        scheduler.step(measure)
        seen.append(opt.param_groups[0]["lr"])
    assert seen == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2]
    assert s.ReduceLROnPlateau(opt, "max", threshold_mode="abs", threshold=0.5)._better(-1e9)


@pytest.mark.parametrize(("kind", "options"), [(optim.SGD, dict(momentum=0.9)), (optim.AdamW, {}), (optim.RMSprop, dict(momentum=0.5))])
def test_a_momentum_that_moves_compiles_nothing(kind, options, device):
    """Rates and momenta change at every call of the traced step; the weights are those of the untraced one."""
    found = []
    for traced in (False, True):
        w = tg.tensor([1.0, -2.0, 3.0], dtype=tg.float64, requires_grad=True)
        opt = kind([w], lr=0.1, **options)
        scheduler = s.OneCycleLR(opt, 0.1, total_steps=12)

        def step(w=w, opt=opt):
            opt.zero_grad()
            ((w ** 2).sum() + w.sin().sum()).backward()
            opt.step()

        run = tg.trace(step) if traced else step
        momenta = []
        for _ in range(12):
            run()
            momenta.append(opt.param_groups[0]["betas"][0] if kind is optim.AdamW else opt.param_groups[0]["momentum"])
            scheduler.step()
        assert len(set(momenta)) > 5
        assert min(momenta) == pytest.approx(0.85, abs=0.02)
        found.append(w.detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-12)
    assert len(run.compilations) == 1
    state = opt.state_dict()["param_groups"][0]
    assert ("betas" in state) == (kind is optim.AdamW)
    assert not any(name.startswith("_") for name in state)


@pytest.mark.parametrize("kind", [optim.SGD, optim.RMSprop])
def test_a_momentum_of_zero_is_cycled_too(kind):
    """As in torch: the schedulers set it before the first step."""
    opt = kind([tg.ones(12, requires_grad=True)], lr=0.1)
    schedule, found = s.OneCycleLR(opt, 0.1, total_steps=10), []
    for _ in range(6):
        found.append(opt.param_groups[0]["momentum"])
        opt.param_groups[0]["params"][0].sum().backward()
        opt.step()
        schedule.step()
    assert found[0] == pytest.approx(0.95)
    assert min(found) == pytest.approx(0.85)


@pytest.mark.parametrize(("make", "match"), [
    (lambda o: s.OneCycleLR(o, 0.1), "total_steps"),
    (lambda o: s.OneCycleLR(optim.Adagrad(o.param_groups[0]["params"]), 0.1, total_steps=5), "cycle_momentum"),
    (lambda o: s.CyclicLR(o, 0.1, 1.0, mode="square"), "mode"), (lambda o: s.LinearLR(o, 0.0), "start_factor"),
    (lambda o: s.SequentialLR(o, [s.StepLR(o, 3)], [2]), "0 milestones"), (lambda o: s.ChainedScheduler([]), "no schedulers"),
    (lambda o: s.ChainedScheduler([s.ReduceLROnPlateau(o)]), "needs no argument"), (lambda o: s.StepLR(o, 3, last_epoch=4), "initial_lr"),
    (lambda o: s.SequentialLR(o, [s.StepLR(optimizer(), 3)], []), "another optimizer"), (lambda o: s.StepLR(3, 3), "expected an Optimizer"),
    (lambda o: s.ReduceLROnPlateau(o, "least"), "mode"), (lambda o: s.CosineAnnealingWarmRestarts(o, 0), "T_0"),
])
def test_bad_arguments(make, match):
    with pytest.raises(ArgumentError, match=match):
        make(optimizer())


@pytest.mark.parametrize("traced", [False, True])
def test_averaged_models(traced):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    equal, ema = swa_utils.AveragedModel(model), swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.8))

    def update():
        for averaged in (equal, ema):
            averaged.update_parameters(model)

    run = tg.trace(update) if traced else update
    weights = []
    for k in range(5):
        model[0].weight.data = tg.tensor(np.cos(np.arange(12.0) * (k + 1)).reshape(4, 3))
        model[1].running_mean.copy_(tg.full((4,), float(k), dtype=tg.float64))
        run()
        weights.append(model[0].weight.detach().numpy())
    expected = weights[0]
    for w in weights[1:]:
        expected = expected * 0.8 + w * 0.2
    np.testing.assert_allclose(equal.module[0].weight.detach().numpy(), np.mean(weights, 0), rtol=1e-12)
    np.testing.assert_allclose(ema.module[0].weight.detach().numpy(), expected, rtol=1e-12)
    assert equal.n_averaged.item() == 5
    assert ema.module[1].running_mean.tolist() == [4.0] * 4
    assert ema.module[0].weight.requires_grad
    batches = [tg.tensor(np.random.default_rng(k).normal(size=(7, 3))) for k in range(3)]
    swa_utils.update_bn(batches, ema)
    outs = [ema.module[0](x).detach().numpy() for x in batches]
    np.testing.assert_allclose(ema.module[1].running_mean.numpy(), np.mean([o.mean(0) for o in outs], 0), rtol=1e-10)
    assert ema.module[1].momentum == 0.1


def test_swalr():
    opt = optimizer()
    scheduler = swa_utils.SWALR(opt, 0.2, anneal_epochs=4, anneal_strategy="linear")
    np.testing.assert_allclose(rates(scheduler, 7), [1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2], rtol=1e-12)
