"""Constraints, transforms, the registries and distributions of matrices, beside torch."""

from __future__ import annotations

import pytest

from tests.torch_api.both import beside_torch

torch = pytest.importorskip("torch")
# Every public name of torch's, and a class of each of its modules.
NAMES = sorted(set(torch.distributions.__all__))
MODULES = sorted((cls.__module__.rpartition(".")[2], name) for name, cls in vars(torch.distributions).items() if isinstance(cls, type))


def test_edges_of_supports_and_infinite_divergences():
    """The distribution function of a Weibull number at 0; what is infinite has no gradient."""
    beside_torch("""
from torch import distributions as D
say("at 0", lambda: D.Weibull(torch.tensor([1.5, 3.0]), torch.tensor([0.5, 2.0])).cdf(torch.tensor([0.0, 1.0])))
say("fractions", lambda: D.Multinomial(6, torch.tensor([0.2, 0.3, 0.5])).log_prob(torch.tensor([0.5, 1.5, 0.25])))
def infinite(p, q, *of):
    k = D.kl_divergence(p, q)
    return k, *(g if g is not None else torch.zeros_like(x) for g, x in zip(torch.autograd.grad(k.sum(), of, allow_unused=True), of))
low, alpha, rate = (torch.tensor(x, requires_grad=True) for x in ([-1.0, 0.5], [0.7, 3.0], [2.0, 0.2]))
say("uniform", lambda: infinite(D.Uniform(low, 1.0), D.Exponential(rate), low, rate))
say("pareto", lambda: infinite(D.Pareto(1.0, alpha), D.Exponential(rate), alpha))
""", 1e-5)


def test_constraints():
    beside_torch("""
from torch.distributions import constraints as c
x = torch.tensor([[-1.0, 0.0, 0.5], [1.0, 2.0, 3.0], [float("nan"), 1.0, 1.5]])
m = torch.stack([torch.eye(3), torch.tensor([[1.0, 0, 0], [0.6, 0.8, 0], [0, 0, 1]]), torch.ones(3, 3)])
symmetric = torch.stack([torch.eye(3), torch.eye(3) + 1, -torch.eye(3)])
names = "boolean nonnegative nonnegative_integer one_hot positive positive_integer real real_vector simplex unit_interval"
matrices = "corr_cholesky lower_cholesky lower_triangular positive_semidefinite positive_definite square symmetric"
for n in names.split() + matrices.split():
    k = getattr(c, n)
    say(n, lambda: (k.check(symmetric if "definite" in n else m if n in matrices else x), repr(k), k.is_discrete, k.event_dim))
made = dict(interval=(0.0, 2.0), half_open_interval=(0.0, 1.0), integer_interval=(0, 2), greater_than=(0.5,), greater_than_eq=(0.5,),
            less_than=(1.0,), multinomial=(4,))
for n, bounds in made.items():
    k = getattr(c, n)(*bounds)
    say(n, lambda: (k.check(x), k.is_discrete, k.event_dim, repr(k) if n != "multinomial" else ""))
say("fractions", lambda: c.multinomial(4).check(torch.tensor([[0.5, 1.5, 0.25], [0.5, 3.5, 0.25]])))
for n, k in dict(cat=c.cat([c.real, c.positive], 1, [1, 2]), stack=c.stack([c.real, c.positive, c.unit_interval]),
                 independent=c.independent(c.positive, 1)).items():
    say(n, lambda: (k.check(x), k.is_discrete, k.event_dim))
say("dependent", lambda: (c.is_dependent(c.dependent), c.is_dependent(c.real), c.dependent(event_dim=1).event_dim))
""")


def test_registries_and_transforms():
    beside_torch("""
from torch import distributions as d
from torch.distributions import constraints as c
torch.manual_seed(0)
x = torch.randn(4, 3).double()
square = torch.randn(2, 3, 3).double()
kinds = dict(real=(c.real, x), positive=(c.positive, x), nonnegative=(c.nonnegative, x), unit=(c.unit_interval, x), simplex=(c.simplex, x),
             cholesky=(c.lower_cholesky, square), definite=(c.positive_definite, square), corr=(c.corr_cholesky, x),
             below=(c.less_than(2.0), x), between=(c.interval(1.0, 3.0), x), half=(c.half_open_interval(0.0, 3.0), x),
             independent=(c.independent(c.positive, 1), x), cat=(c.cat([c.real, c.positive], 1, [1, 2]), x),
             stack=(c.stack([c.real, c.positive, c.unit_interval], 1), x))
def found(registry, constraint, x):
    t = registry(constraint)
    x = x.clone().requires_grad_()
    y = t(x)
    y.sum().backward()
    return y, t.inv(y.detach()), constraint is c.corr_cholesky or t.event_dim, constraint.check(y.detach()), x.grad
def jacobian(constraint, x):
    t = d.biject_to(constraint)
    return t.log_abs_det_jacobian(x, t(x)), list(t.forward_shape(x.shape)), list(t.inverse_shape(t(x).shape))
for n, (constraint, value) in kinds.items():
    say(n + " transform_to", lambda: found(d.transform_to, constraint, value))
    if n not in ("cholesky", "definite"):
        say(n + " biject_to", lambda: found(d.biject_to, constraint, value))
        if n != "real":
            say(n + " jacobian", lambda: jacobian(constraint, value))
t = d.ReshapeTransform((3,), (1, 3))
say("reshape", lambda: (t(x), t.inv(t(x)), t.log_abs_det_jacobian(x, t(x)), list(t.forward_shape((4, 3)))))
t = d.CumulativeDistributionTransform(d.Normal(torch.zeros(3).double(), 1.0))
say("cdf", lambda: (t(x), t.inv(t(x)), t.log_abs_det_jacobian(x, t(x))))
def none():
    try:
        d.biject_to(c.positive_definite)
    except NotImplementedError:
        return "none"
say("none", none)
class Own(c.Constraint):
    pass
d.transform_to.register(Own)(lambda constraint: d.ExpTransform())
say("own", lambda: d.transform_to(Own())(x))
u = d.utils
import torch.distributions.utils
say("utils", lambda: (u.broadcast_all(1.0, x)[0], u.clamp_probs(torch.tensor([0.0, 0.5, 1.0])), u.logits_to_probs(x),
                      u.logits_to_probs(x, True), u.probs_to_logits(x.sigmoid(), True), u.probs_to_logits(x.softmax(-1)),
                      u.tril_matrix_to_vec(square, -1),
                      u.vec_to_tril_matrix(x, 0), u.vec_to_tril_matrix(x, -1)))
""", 1e-9)


def test_distributions_of_matrices():
    beside_torch("""
from torch import distributions as d
torch.manual_seed(0)
a = torch.randn(2, 3, 3).double()
s = a @ a.mT + torch.eye(3)
v = torch.eye(3).double() * 2 + 0.3
for kw in ("covariance_matrix", "precision_matrix", "scale_tril"):
    w = d.Wishart(torch.tensor([4.0, 6.0]).double(), **{kw: torch.linalg.cholesky(s) if kw == "scale_tril" else s})
    say(kw, lambda: (w.log_prob(v), w.entropy(), w.mean, w.variance, w.mode, list(w.event_shape), list(w.expand((5, 2)).batch_shape)))
    one = d.Wishart(torch.tensor(4.0).double(), **{kw: torch.linalg.cholesky(s)[0] if kw == "scale_tril" else s[0]})
    q = d.Wishart(torch.tensor(5.0).double(), covariance_matrix=v)
    say(kw + " kl", lambda: d.kl_divergence(one, q))              # (torch adds up those of a batch)
say("samples", lambda: (list(w.rsample((7,)).shape), d.constraints.positive_definite.check(w.sample((3,)))))
l = d.LKJCholesky(3, torch.tensor([0.5, 2.0]))
say("lkj", lambda: (l.log_prob(torch.tensor([[1.0, 0, 0], [0.6, 0.8, 0], [0.0, 0.6, 0.8]])), list(l.sample((5,)).shape),
                    l.support.check(l.sample((5,))).all().item(), list(l.batch_shape)))
def refused():
    try:
        d.Wishart(torch.tensor(1.0), torch.eye(3))
    except ValueError:
        return "refused"
say("df", refused)
""", 1e-6)


def test_samples_of_matrices_have_their_mean():
    beside_torch("""
from torch import distributions as d
torch.manual_seed(1)
s = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
mean = d.Wishart(torch.tensor(5.0), s).sample((20000,)).mean(0)
say("wishart", lambda: ((mean - 5 * s).abs() < 0.15).tolist())
l = d.LKJCholesky(3, 2.0).sample((20000,))
correlations = l @ l.mT
say("lkj", lambda: (abs(correlations[:, 0, 1].mean().item()) < 0.02, abs(correlations[:, 1, 2].var().item() - 1 / 6) < 0.02))
""")


def test_all_names_and_modules_are_here():
    beside_torch(f"""
import importlib, types
import torch.distributions as d
names = {NAMES!r}
say("names", lambda: [hasattr(d, n) for n in names])
say("modules", lambda: [hasattr(importlib.import_module("torch.distributions." + m), n) for m, n in {MODULES!r}])
""")


def test_exponential_families_have_their_entropy():
    beside_torch("""
from torch import distributions as d
class Own(d.ExponentialFamily):
    "Exponential numbers."
    arg_constraints = {}
    _mean_carrier_measure = 0
    def __init__(self, rate):
        self.rate = rate
        super().__init__(rate.shape)
    @property
    def _natural_params(self):
        return (-self.rate,)
    def _log_normalizer(self, x):
        return -torch.log(-x)
say("entropy", lambda: Own(torch.tensor([0.5, 2.0])).entropy())
""", 1e-6)


def test_transforms_of_ones_own_are_written_as_for_torch():
    """`_call` and `_inverse`, a domain and a codomain of which one value has several dimensions, and a cache."""
    beside_torch("""
import torch.distributions as D
from torch.distributions import constraints
torch.manual_seed(0)
class Rotation(D.Transform):
    domain = codomain = constraints.real_vector
    bijective = True
    def __init__(self, angle, cache_size=0):
        super().__init__(cache_size=cache_size)
        c, s = torch.cos(angle), torch.sin(angle)
        self.matrix, self.inverses = torch.stack([torch.stack([c, -s]), torch.stack([s, c])]), 0
    def _call(self, x):
        return x @ self.matrix.T
    def _inverse(self, y):
        self.inverses += 1
        return y @ self.matrix
    def log_abs_det_jacobian(self, x, y):
        return x.new_zeros(x.shape[:-1])
def of(transforms, *batch):
    return D.TransformedDistribution(D.Normal(torch.zeros(*batch, 2), torch.ones(2)), transforms)
x = torch.linspace(-0.9, 0.8, 12).reshape(2, 3, 2)
angle = torch.tensor(0.3, requires_grad=True)
for name, parts in {"one": [Rotation(angle)], "before": [Rotation(angle), D.SigmoidTransform()],
                    "after": [D.TanhTransform(), Rotation(angle)],
                    "inverse": [Rotation(angle).inv, D.AffineTransform(1.0, torch.tensor([2.0, 3.0]), event_dim=1)],
                    "composed": [D.ComposeTransform([Rotation(angle), D.TanhTransform()]).inv]}.items():
    d = of(parts, 3)
    say(name, lambda: (d.batch_shape, d.event_shape, d.support.event_dim, d.expand((4, 3)).batch_shape))
    whole = D.ComposeTransform(parts)
    say(name + " values", lambda: d.log_prob(whole(x)))
    say(name + " whole", lambda: (whole.domain.event_dim, whole.codomain.event_dim, whole.log_abs_det_jacobian(x, whole(x)).shape))
corr = D.TransformedDistribution(D.Normal(torch.zeros(5, 3), 1.0), D.CorrCholeskyTransform())
say("corr", lambda: (corr.batch_shape, corr.event_shape, corr.log_prob(D.CorrCholeskyTransform()(torch.linspace(-1, 1, 15).reshape(5, 3)))))
def refused(f):
    try:
        f()
    except ValueError:
        return True
say("dims", lambda: refused(lambda: D.CorrCholeskyTransform().event_dim))
kept = Rotation(angle, cache_size=1)
y = kept(x)
say("kept", lambda: (kept.inv(y) is x, kept(x) is y, kept.inverses, kept.with_cache(1) is kept,
                      D.ExpTransform().with_cache(1)(x) is x))
say("size", lambda: refused(lambda: Rotation(angle, cache_size=2)))
""", tolerance=1e-6)


def test_transforms_that_are_modules_and_parameters_that_depend():
    """Another base of a transform is begun, too; a parameter whose constraint depends on others is not checked."""
    beside_torch("""
from torch import distributions as d
class Learned(d.Transform, torch.nn.Module):
    __hash__ = torch.nn.Module.__hash__
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
class Point(d.Distribution):
    arg_constraints = {"v": d.constraints.dependent}
    def __init__(self, v):
        self.v = v
        super().__init__(v.shape)
say("parameters", lambda: [p.shape for p in Learned().parameters()])
say("shape", lambda: Point(torch.ones(3)).batch_shape)
""")
