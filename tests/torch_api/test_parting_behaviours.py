"""Where programs written for torch parted from it: errors, gradients that are 0, versions of state dicts, orders of hooks; beside torch."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.torch_api.both import beside_torch, reports
from tracegrad import nn


def test_values_outside_their_domain():
    beside_torch("""
import torch.nn.functional as F
def refused(call):
    try:
        call().sum().item()
    except RuntimeError as error:
        return "should be between 0 and 1" in str(error)
def bce(p, t):
    return refused(lambda: F.binary_cross_entropy(torch.tensor(p), torch.tensor(t)))
nan = float("nan")
say("binary", lambda: [bce(*v) for v in (([1.5, 0.2], [1.0, 0.0]), ([0.5, 0.2], [2.0, 0.0]), ([nan, 0.2], [1.0, 0.0]), ([-0.1], [1.0]),
                                         ([0.0, 1.0], [1.0, 0.0]), ([1.0, 0.0], [1.0, 0.0]))])
say("gradient", lambda: torch.autograd.grad(F.binary_cross_entropy((x := torch.tensor([0.25, 0.5], requires_grad=True)),
                                                                   torch.tensor([1.0, 0.0])), x))
weights = [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0], [nan, 1.0, 1.0], [float("inf"), 1.0, 1.0], [1.0, 1.0, 1.0]
def drawn(w, replacement):
    try:
        return (torch.multinomial(torch.tensor(w), 1, replacement=replacement) * 0).item()
    except RuntimeError:
        return "refused"
say("multinomial", lambda: [drawn(w, replacement) for w in weights for replacement in (False, True)])
""")


def test_multinomial_says_what_is_wrong():
    for weights, count, words in (([0.0, 0.0], 1, "the sum of a distribution positive"), ([0.0, 1.0], 2, "at least 2 of a distribution")):
        with pytest.raises(tg.ArgumentError, match=f"multinomial.*probabilities must be 0 or larger and finite, and {words}"):
            tg.multinomial(tg.tensor(weights), count).tolist()


def test_gradients_of_what_copy_overwrites():
    beside_torch("""
def run(write, times=1):
    found = []
    for _ in range(times):
        x, z = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
        y = x * 2
        write(y, z)
        (y * y).sum().backward()
        found.append([x.grad, z.grad])
    return found
say("all", lambda: run(lambda y, z: y.copy_(z), 4))
say("part", lambda: run(lambda y, z: y[:1].copy_(z[1:]), 4))
say("data", lambda: run(lambda y, z: y.copy_(z.detach()), 4))
say("twice", lambda: run(lambda y, z: y.copy_(z).copy_(z * 3), 4))
def leaf():
    x, z = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
    with torch.no_grad():
        x.copy_(z)
    (x * x).sum().backward()
    return x.grad, z.grad, x.is_leaf
say("leaf", leaf)
""")


def test_gradients_of_impossible_alignments():
    """NaN of the steps that such a sequence has, as torch's; 0 with zero_infinity. With respect to scores, as torch is right there only."""
    beside_torch("""
import torch.nn.functional as F
def run(lengths, sizes, **options):
    torch.manual_seed(0)
    scores = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    loss = F.ctc_loss(scores.log_softmax(2), torch.tensor([[1, 1, 2], [2, 3, 1]]), torch.tensor(lengths), torch.tensor(sizes), **options)
    loss.sum().backward()
    return loss, scores.grad
for zero in (False, True):
    for reduction in ("none", "sum", "mean"):
        for lengths, sizes in (([3, 3], [3, 2]), ([3, 3], [3, 3]), ([3, 2], [3, 3]), ([3, 3], [2, 3])):
            say(f"{zero} {reduction} {lengths} {sizes}", lambda: run(lengths, sizes, zero_infinity=zero, reduction=reduction))
""", 1e-12)


def test_impossible_alignments_by_kernels():
    scores = tg.tensor(np.random.default_rng(0).normal(size=(3, 2, 4)), requires_grad=True)

    @tg.trace
    def gradient(scores, zero):
        loss = nn.functional.ctc_loss(scores.log_softmax(2), tg.tensor([[1, 1, 2], [2, 3, 1]]), [3, 3], [3, 2], reduction="sum",
                                      zero_infinity=zero)
        return tg.autograd.grad(loss, scores)[0]

    assert np.isnan(gradient(scores, False).numpy()).tolist() == [[[True] * 4, [False] * 4]] * 3
    assert (gradient(scores, True).numpy()[:, 0] == 0).all()


def test_versions_in_state_dicts():
    beside_torch("""
from torch import nn
import io
log = []
class Part(nn.Module):
    _version = 3
    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        log.append([prefix, dict(local_metadata)])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
def versions():
    model = nn.Sequential(Part(), nn.BatchNorm1d(2), nn.Linear(2, 2))
    state = model.state_dict()
    model.load_state_dict(state)
    model.load_state_dict(dict(state))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read = torch.load(file)
    model.load_state_dict(read)
    state._metadata["0"]["version"] = 1
    model.load_state_dict(state)
    return log, read._metadata, list(state), type(state).__name__
say("versions", versions)
def lacking(change):
    state = nn.BatchNorm1d(2).state_dict()
    del state["num_batches_tracked"]
    try:
        return list(nn.BatchNorm1d(2).load_state_dict(change(state)).missing_keys)
    except RuntimeError as error:
        return "num_batches_tracked" in str(error)
def of_version(n):
    def change(state):
        state._metadata[""]["version"] = n
        return state
    return change
say("lacking", lambda: [lacking(change) for change in (lambda s: s, dict, of_version(1), of_version(2))])
def hooks():
    layer, found = nn.Linear(1, 1), []
    layer._register_state_dict_hook(lambda module, state, prefix, local_metadata: found.append(local_metadata))
    layer._register_load_state_dict_pre_hook(lambda state, prefix, local_metadata, *rest: found.append(local_metadata))
    layer.load_state_dict(layer.state_dict())
    return found
say("hooks", hooks)
""")


def test_order_of_hooks_in_a_backward():
    """A leaf's gradient is complete, and its hooks have run, before hooks of what is computed later."""
    beside_torch("""
from torch import nn
def order(make, inputs):
    log = []
    net = make()
    for name, module in net.named_modules():
        module.register_full_backward_hook(lambda m, gi, go, n=name: log.append("full " + n))
        module.register_full_backward_pre_hook(lambda m, go, n=name: log.append("pre " + n))
    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, n=name: log.append(f"post {n} {p.grad is not None}"))
        p.register_hook(lambda g, n=name: log.append("hook " + n))
    net(inputs).sum().backward()
    return [[word for word in log if not word.startswith("hook")], [word for word in log if word.startswith("hook")]]
say("layers", lambda: order(lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.ones(1, 2, requires_grad=True)))
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
    def forward(self, x):
        return self.layer(self.layer(x).tanh())
say("twice", lambda: order(Twice, torch.ones(1, 2, requires_grad=True)))
def optimizer_in_backward():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.tensor([[1.0, 2.0]])
    def step(p):
        p.sub_(0.1 * p.grad)
        p.grad = None
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
    losses = []
    for _ in range(5):
        loss = net(x).square().sum()
        loss.backward()
        losses.append(loss)
    return losses, [p.grad for p in net.parameters()]
say("optimizer in backward", optimizer_in_backward)
""", 1e-6)


def test_functions_of_two_numbers():
    beside_torch("""
pairs = (7, 2), (7.5, 2), (-7, 2.0), (3 + 1j, 2)
for name in ("add", "sub", "mul", "div", "true_divide", "multiply", "subtract", "divide", "floor_divide"):
    for a, b in pairs[:-1] if name == "floor_divide" else pairs:
        say(f"{name} {a} {b}", lambda: [(y := getattr(torch, name)(a, b)), str(y.dtype), y.shape])
say("options", lambda: [torch.add(7, 2, alpha=3), torch.sub(7, 2, alpha=3), torch.div(800, 3, rounding_mode="floor")])
say("names", lambda: [torch.add.__name__, torch.multiply.__name__, torch.add(torch.ones(2), 2), torch.add(2, torch.ones(2))])
def others():
    found = []
    for name in ("pow", "maximum", "eq", "lt", "atan2", "fmod", "remainder", "logical_and"):
        try:
            getattr(torch, name)(7, 2)
        except TypeError:
            found.append(name)
    return found
say("others", others)
""")


def test_devices_dtypes_and_sizes_in_files(tmp_path):
    """Read from plain data, also by torch itself."""
    pytest.importorskip("torch")
    path = str(tmp_path / "plain.pt")
    what = 'dict(d=torch.device("cpu"), c=torch.device("cuda"), s=torch.Size([1, 2]), t=torch.float32, x=torch.ones(2))'
    write = f"torch.save({what}, {path!r})"
    read = f"""
found = torch.load({path!r}, weights_only=True)
say("read", lambda: [str(found["d"]), found["d"] == torch.device("cpu"), str(found["c"]), str(found["s"]), type(found["s"]) is torch.Size,
                     found["t"] is torch.float32, found["x"]])
"""
    for writer in (True, False):
        reports(write, writer)
        assert reports(read, True) == reports(read, False)
    assert tg.load(path)["s"].numel() == 2


def test_numbers_that_parted():
    """Antialiased resampling to one pixel, norms of empty matrices, threshold of integers, infinite bases, polynomials of degree 0."""
    beside_torch("""
import torch.nn.functional as F
nan, inf = float("nan"), float("inf")
x = torch.sin(torch.arange(24.0)).reshape(1, 1, 4, 6)
for mode in ("bilinear", "bicubic"):
    say(f"one pixel {mode}", lambda: F.interpolate(x, 1, mode=mode, align_corners=True, antialias=True))
for ord in (1, 2, inf, "nuc"):
    say(f"empty {ord}", lambda: [torch.linalg.matrix_norm(torch.zeros(shape), ord) for shape in ((0, 3), (3, 0), (2, 0, 3))])
say("threshold", lambda: [(y := F.threshold(torch.tensor([1, 2, 5]), 2.5, 2.7)).tolist(), str(y.dtype)])
z = torch.tensor([complex(inf, 0), complex(0, inf), 0j, 1 + 2j])
say("powers", lambda: [z**-1, z.to(torch.complex128)**-1, z**-2, z.clone().pow_(-1)])
for name in ("chebyshev_polynomial_t", "chebyshev_polynomial_w", "hermite_polynomial_h", "laguerre_polynomial_l", "legendre_polynomial_p"):
    p = getattr(torch.special, name)
    say(name, lambda: [p(torch.tensor([nan, 0.25]), 0), p(torch.tensor([nan, 0.25]), torch.tensor([0, 1])), p(0.25, torch.tensor([0, 3])),
                       p(torch.tensor([0.25, 0.5]), torch.tensor([0.0, 3.0]).double()).dtype])
def likely(variance):
    try:
        return F.gaussian_nll_loss(torch.ones(2), torch.zeros(2), torch.tensor(variance)).item()
    except ValueError:
        return "refused"
say("variances", lambda: [likely([-1.0, 1.0]), likely([0.0, 1.0]), likely([2.0, 1.0])])
""", 1e-5)


def test_polynomials_of_float16_with_float64():
    found = tg.special.hermite_polynomial_h(tg.tensor([0.1], dtype=tg.float16), tg.tensor([3.0], dtype=tg.float64))
    assert found.dtype == tg.float64
    assert np.isnan(nn.functional.gaussian_nll_loss(tg.ones(2), tg.zeros(2), tg.tensor([-1.0, 1.0])).item())


def test_autocast_is_asked_for_when_torch_amp_is_imported():
    """The module torch.amp was taken for tracegrad's: an AttributeError."""
    beside_torch("""
import torch.amp
import torch.cuda.amp
def enabled():
    with torch.autocast("cpu"):
        return [torch.is_autocast_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_cpu_enabled(),
                str(torch.get_autocast_dtype("cpu"))]
say("inside", enabled)
say("outside", lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_cpu_enabled(), str(torch.get_autocast_cpu_dtype())))
say("formats", lambda: torch.legacy_contiguous_format is torch.contiguous_format)
""")


def test_optimizers_of_programs_have_names_of_their_own():
    """_hooks, _prepare and the like were names of tracegrad's Optimizer: errors."""
    beside_torch("""
from torch import optim
class Mine(optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))
        self._hooks, self._made, self._saved = [], None, 0
    def _prepare(self, group):
        self._saved += 1
    def _load(self):
        return 1
    def _changed(self):
        return 2
    def _unused(self):
        return 3
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            self._prepare(group)
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])
                self.state[p]["seen"] = torch.ones(1)
def trained():
    p = torch.nn.Parameter(torch.ones(2))
    opt, calls = Mine([p], 0.25), []
    opt.register_step_post_hook(lambda *_: calls.append(1))
    (p * p).sum().backward()
    opt.step()
    opt.load_state_dict(opt.state_dict())
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    return p, opt._saved, opt._hooks, len(calls), len(opt.param_groups), list(opt.state[p])
say("trained", trained)
""")
