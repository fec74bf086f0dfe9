"""Optimizers and schedulers beside torch's own, step by step in float64. Run where torch is installed (`make test-all`)."""

import warnings

import numpy as np
import pytest

import tracegrad as tg

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_numpy")]
RNG = np.random.default_rng(13)
START = [RNG.normal(size=(7, 5)), RNG.normal(size=(13,)), RNG.normal(size=())]
DATA = RNG.normal(size=(33, 7))

CASES = [
    ("SGD", dict(lr=0.05)), ("SGD", dict(lr=0.02, momentum=0.9, weight_decay=0.1)), ("SGD", dict(lr=0.02, momentum=0.8, dampening=0.3)),
    ("SGD", dict(lr=0.02, momentum=0.8, nesterov=True, maximize=True)),
    ("Adam", dict(lr=0.1)), ("Adam", dict(lr=0.1, amsgrad=True, weight_decay=0.1)), ("Adam", dict(lr=0.1, maximize=True, foreach=False)),
    ("AdamW", dict(lr=0.1, weight_decay=0.2, betas=(0.8, 0.95))), ("AdamW", dict(amsgrad=True)),
    ("RMSprop", dict()), ("RMSprop", dict(lr=0.02, momentum=0.9)), ("RMSprop", dict(lr=0.02, centered=True, weight_decay=0.1)),
    ("RMSprop", dict(lr=0.02, centered=True, momentum=0.5, alpha=0.9, maximize=True)),
    ("Adagrad", dict(lr=0.1)), ("Adagrad", dict(lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5)),
    ("Adadelta", dict()), ("Adadelta", dict(lr=0.5, rho=0.8, weight_decay=0.1, maximize=True)),
    ("Adafactor", dict()), ("Adafactor", dict(lr=0.3, beta2_decay=-0.5, eps=(1e-3, 0.1), d=1.5, weight_decay=0.1)),
    ("Adamax", dict()), ("Adamax", dict(lr=0.1, betas=(0.8, 0.9), weight_decay=0.1)),
    ("NAdam", dict()), ("NAdam", dict(lr=0.1, weight_decay=0.1)), ("NAdam", dict(lr=0.1, weight_decay=0.1, decoupled_weight_decay=True)),
    ("RAdam", dict(lr=0.1)), ("RAdam", dict(lr=0.1, betas=(0.8, 0.9), weight_decay=0.1)),
    ("RAdam", dict(lr=0.1, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
    ("Rprop", dict()), ("Rprop", dict(lr=0.1, etas=(0.4, 1.5), step_sizes=(1e-3, 0.3))),
    ("ASGD", dict(lr=0.05)), ("ASGD", dict(lr=0.05, lambd=0.01, t0=5, weight_decay=0.1)),
    ("LBFGS", dict(lr=0.1)), ("LBFGS", dict(line_search_fn="strong_wolfe")),
    ("LBFGS", dict(line_search_fn="strong_wolfe", history_size=3, max_iter=4)), ("LBFGS", dict(lr=0.3, max_iter=3, max_eval=2)),
    ("LBFGS", dict(line_search_fn="strong_wolfe", max_iter=4, max_eval=3)),
]


def problem(lib):
    """Parameters and a loss that is far from quadratic."""
    params = [lib.tensor(w, requires_grad=True) for w in START]
    x = lib.tensor(DATA)

    def loss():
        y = lib.tanh(x @ params[0] * params[2]).sum(1)
        return (y ** 2).mean() + ((params[1] ** 2 - 1.0) ** 2).mean() + lib.sin(params[2] * 3.0) * 0.5 + (params[0] ** 2).mean() * 0.1
    return params, loss


def history(lib, name, options, steps, scheduler=None, traced=False, groups=False):
    params, loss = problem(lib)
    given = [{"params": params[:1]}, {"params": params[1:], "lr": 0.03}] if groups else params
    opt = getattr(lib.optim, name)(given, **options)
    schedule = None if scheduler is None else scheduler(lib.optim.lr_scheduler, opt)

    def closure():
        opt.zero_grad()
        value = loss()
        value.backward()
        return value

    def step():
        return opt.step(closure)

    run = tg.trace(step) if traced else step
    seen = []
    for k in range(steps):
        run()
        if schedule is not None:
            schedule.step(*([1.0 / (k + 1) if k < 5 else 0.2] if type(schedule).__name__ == "ReduceLROnPlateau" else []))
        seen.append([p.detach().numpy().copy() for p in params] + [np.array([g["lr"] for g in opt.param_groups])])
    if traced:
        assert len(run.compilations) == 1
    return seen, opt, schedule


@pytest.mark.parametrize(("name", "options", "traced"), [
    (*case, traced) for case in CASES for traced in (False, True) if not (traced and case[0] == "LBFGS")])
def test_steps(name, options, traced):
    steps, rtol, atol = 20, 1e-9, 1e-12
    if name == "LBFGS":             # not to be traced; and a line search makes much of the last digit: fewer steps, less exact
        steps, rtol, atol = 3 if options.get("max_iter") else 2, 1e-7, 1e-8
    ours, opt, _ = history(tg, name, options, steps, traced=traced)
    theirs, reference, _ = history(torch, name, options, steps)
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for p, q in zip(a, b, strict=True):
            np.testing.assert_allclose(p, q, rtol=rtol, atol=atol, err_msg=f"step {k}")
    if name != "LBFGS":
        mine, his = opt.state_dict()["state"], reference.state_dict()["state"]
        for number, state in his.items():
            for key, value in state.items():
                if value is not None and key in mine[number]:
                    np.testing.assert_allclose(mine[number][key].numpy(), np.asarray(value), rtol=1e-9, atol=1e-12, err_msg=key)
                    assert str(mine[number][key].dtype) == str(value.dtype)[6:], key


SCHEDULERS = {
    "StepLR": lambda s, o: s.StepLR(o, 4, 0.5), "MultiStepLR": lambda s, o: s.MultiStepLR(o, [3, 7, 7, 15], 0.5),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9), "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 7, 0.01),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 4, 2, 0.001),
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda e: 1 / (e + 1)), "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.95),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.2, 0.9, 6), "ConstantLR": lambda s, o: s.ConstantLR(o, 0.3, 4),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 9, 2.0),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=26), "OneCycleLR3": lambda s, o: s.OneCycleLR(
        o, 0.1, epochs=5, steps_per_epoch=6, three_phase=True, anneal_strategy="linear"),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, 5), "CyclicLR2": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 4, mode="triangular2"),
    "CyclicLR3": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 4, mode="exp_range", gamma=0.9, base_momentum=0.5),
    "SequentialLR": lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 10), s.StepLR(o, 3)], [5, 15]),
    "SequentialLR2": lambda s, o: s.SequentialLR(o, [s.ConstantLR(o, 0.1, 2), s.ExponentialLR(o, 0.9)], [2]),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 3), s.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=1, min_lr=0.001),
}


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name, groups):
    for kind, options in (("SGD", dict(lr=0.05, momentum=0.9)), ("Adam", dict(lr=0.05))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, _, reference = history(torch, kind, options, 24, SCHEDULERS[name], groups=groups)
        ours, _, schedule = history(tg, kind, options, 24, SCHEDULERS[name], traced=True, groups=groups)
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            for p, q in zip(a, b, strict=True):
                np.testing.assert_allclose(p, q, rtol=1e-9, atol=1e-12, err_msg=f"step {k}")
        np.testing.assert_allclose(schedule.get_last_lr(), reference.get_last_lr(), rtol=1e-12)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore")
def test_a_second_scheduler(name):
    """One that is made for an optimizer which another scheduler has moved: CyclicLR forgot the rate from which that one had begun."""
    found = []
    for lib in (tg, torch):
        opt = lib.optim.SGD([lib.ones(1, requires_grad=True)], lr=0.1, momentum=0.7)
        first, seen = lib.optim.lr_scheduler.LinearLR(opt, 0.3, total_iters=3), []
        for _ in range(2):
            opt.step()
            first.step()
        second = SCHEDULERS[name](lib.optim.lr_scheduler, opt)
        for _ in range(6):
            group = opt.param_groups[0]
            seen.append([group["lr"], group["momentum"], group["initial_lr"]])
            opt.step()
            second.step(*[0.5] * (name == "ReduceLROnPlateau"))
        found.append(seen)
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_warm_restarts_by_fractions():
    rates = []
    for lib in (tg, torch):
        opt = lib.optim.SGD([lib.ones(1, requires_grad=True)], lr=0.5)
        schedule = lib.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 3, 2)
        rates.append([])
        for k in range(60):
            schedule.step(k / 4)
            rates[-1].append(opt.param_groups[0]["lr"])
    np.testing.assert_allclose(*rates, rtol=1e-12)


@pytest.mark.parametrize("average", ["swa", "ema"])
def test_averaged_models(average):
    found = []
    for lib in (tg, torch):
        utils = lib.optim.swa_utils
        model = lib.nn.Linear(3, 2).double()
        fn = utils.get_ema_multi_avg_fn(0.8) if average == "ema" else None
        averaged = utils.AveragedModel(model, multi_avg_fn=fn)
        for k in range(7):
            with lib.no_grad():
                model.weight.copy_(lib.tensor(np.cos(np.arange(6.0) * (k + 1)).reshape(2, 3)))
                model.bias.copy_(lib.tensor(np.sin(np.arange(2.0) * (k + 1))))
            averaged.update_parameters(model)
        assert next(iter(averaged.state_dict())) == "n_averaged"
        found.append(averaged(lib.ones(4, 3, dtype=lib.float64)).detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_swalr():
    rates = []
    for lib in (tg, torch):
        opt = lib.optim.SGD([lib.ones(1, requires_grad=True)], lr=0.5)
        schedule = lib.optim.swa_utils.SWALR(opt, 0.1, 5)
        rates.append([])
        for _ in range(10):
            opt.step()
            schedule.step()
            rates[-1].append(opt.param_groups[0]["lr"])
    np.testing.assert_allclose(*rates, rtol=1e-9)


def test_state_of_torch_is_taken_over():
    """A run begun in torch goes on here."""
    theirs, _, _ = history(torch, "Adam", dict(lr=0.1, amsgrad=True), 20)
    _, half, _ = history(torch, "Adam", dict(lr=0.1, amsgrad=True), 10)
    params, loss = problem(tg)
    for p, w in zip(params, theirs[9], strict=False):
        p.data = tg.tensor(w)
    opt = tg.optim.Adam(params, amsgrad=True)
    state = half.state_dict()
    opt.load_state_dict({"state": {k: {n: v.numpy() for n, v in s.items()} for k, s in state["state"].items()},
                         "param_groups": state["param_groups"]})
    for _ in range(10):
        opt.zero_grad()
        loss().backward()
        opt.step()
    for p, w in zip(params, theirs[19], strict=False):
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-9)


@pytest.mark.parametrize("options", [dict(max_iter=3), dict(max_iter=3, line_search_fn="strong_wolfe")])
def test_lbfgs_maximizes(options):
    """It had no maximize, which torch has."""
    found = []
    for lib in (tg, torch):
        x = lib.tensor([1.0, -0.5], dtype=lib.float64, requires_grad=True)
        opt = lib.optim.LBFGS([x], lr=0.5, maximize=True, **options)

        def closure(x=x, opt=opt):
            opt.zero_grad()
            value = -((x - 3) ** 4).sum() - (x[0] * x[1]) ** 2
            value.backward()
            return value

        found.append([opt.step(closure).item() for _ in range(3)] + x.detach().numpy().tolist())
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("back", [False, True], ids=["from torch", "to torch"])
@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] != "LBFGS"])
def test_state_goes_over_in_the_middle(name, options, back):
    """Five steps in one library and five in the other are ten in torch: RMSprop, Rprop and Adadelta kept no step, which torch asks for, and
    SGD took the first gradient after a momentum of torch's for the very first, which is not dampened."""
    first, then = (tg, torch) if back else (torch, tg)
    expected, _, _ = history(torch, name, options, 10)
    half, opt, _ = history(first, name, options, 5)
    saved = opt.state_dict()
    params, loss = problem(then)
    for p, w in zip(params, half[4], strict=False):
        p.data = then.tensor(w)
    opt = getattr(then.optim, name)(params, **options)
    numbers = {k: {n: then.tensor(np.array(v.detach().numpy())) for n, v in mine.items()} for k, mine in saved["state"].items()}
    opt.load_state_dict({"state": numbers, "param_groups": [dict(group) for group in saved["param_groups"]]})
    for _ in range(5):
        opt.zero_grad()
        loss().backward()
        opt.step()
    for p, w in zip(params, expected[9], strict=False):
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-8, atol=1e-12)       # (a product in float32)
