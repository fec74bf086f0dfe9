"""tg.distributions against SciPy's and against sums over samples; derivatives, traces, and what is refused."""

import numpy as np
import pytest
from scipy import special, stats

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.values import close
from tracegrad import distributions as D
from tracegrad.errors import ArgumentError, MissingRuleError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")                # but for the tests that ask for every device
N = 33
ANY, POSITIVE, CHANCE = np.linspace(-2, 3, N), np.linspace(0.3, 4, N), np.linspace(0.03, 0.97, N)
COUNTS = np.arange(N) % 9
_A = np.sin(np.arange(48.0)).reshape(3, 4, 4)
COVARIANCE = _A @ _A.transpose(0, 2, 1) + 2 * np.eye(4)


def t(a):
    return tg.tensor(a)


# name: the distribution, SciPy's, values
CONTINUOUS = {
    "normal": (lambda: D.Normal(t(ANY), t(POSITIVE)), stats.norm(ANY, POSITIVE), ANY[::-1]),
    "log_normal": (lambda: D.LogNormal(t(ANY / 3), t(POSITIVE / 3)), stats.lognorm(POSITIVE / 3, scale=np.exp(ANY / 3)), POSITIVE),
    "laplace": (lambda: D.Laplace(t(ANY), t(POSITIVE)), stats.laplace(ANY, POSITIVE), ANY[::-1]),
    "cauchy": (lambda: D.Cauchy(t(ANY), t(POSITIVE)), stats.cauchy(ANY, POSITIVE), ANY[::-1]),
    "gumbel": (lambda: D.Gumbel(t(ANY), t(POSITIVE)), stats.gumbel_r(ANY, POSITIVE), ANY[::-1]),
    "half_normal": (lambda: D.HalfNormal(t(POSITIVE)), stats.halfnorm(scale=POSITIVE), POSITIVE[::-1]),
    "half_cauchy": (lambda: D.HalfCauchy(t(POSITIVE)), stats.halfcauchy(scale=POSITIVE), POSITIVE[::-1]),
    "uniform": (lambda: D.Uniform(t(ANY), t(ANY + POSITIVE)), stats.uniform(ANY, POSITIVE), ANY + POSITIVE / 3),
    "exponential": (lambda: D.Exponential(t(POSITIVE)), stats.expon(scale=1 / POSITIVE), POSITIVE[::-1]),
    "gamma": (lambda: D.Gamma(t(POSITIVE), t(POSITIVE[::-1].copy())), stats.gamma(POSITIVE, scale=1 / POSITIVE[::-1]), POSITIVE),
    "chi2": (lambda: D.Chi2(t(POSITIVE)), stats.chi2(POSITIVE), POSITIVE[::-1]),
    "beta": (lambda: D.Beta(t(POSITIVE), t(POSITIVE[::-1].copy())), stats.beta(POSITIVE, POSITIVE[::-1]), CHANCE),
    "weibull": (lambda: D.Weibull(t(POSITIVE), t(POSITIVE[::-1].copy())), stats.weibull_min(POSITIVE[::-1], scale=POSITIVE), POSITIVE),
    "pareto": (lambda: D.Pareto(t(POSITIVE), t(POSITIVE + 2)), stats.pareto(POSITIVE + 2, scale=POSITIVE), 2 * POSITIVE),
    "generalized_pareto": (lambda: D.GeneralizedPareto(t(ANY), t(POSITIVE), t(ANY / 7)), stats.genpareto(ANY / 7, ANY, POSITIVE),
                           ANY + CHANCE),
    "inverse_gamma": (lambda: D.InverseGamma(t(POSITIVE + 2), t(POSITIVE)), stats.invgamma(POSITIVE + 2, scale=POSITIVE), POSITIVE),
    "fisher_snedecor": (lambda: D.FisherSnedecor(t(POSITIVE), t(POSITIVE + 4)), stats.f(POSITIVE, POSITIVE + 4), POSITIVE),
    "student_t": (lambda: D.StudentT(t(POSITIVE + 2.5), t(ANY), t(POSITIVE)), stats.t(POSITIVE + 2.5, ANY, POSITIVE), ANY[::-1]),
}
DISCRETE = {
    "bernoulli": (lambda: D.Bernoulli(t(CHANCE)), stats.bernoulli(CHANCE), COUNTS % 2),
    "bernoulli_logits": (lambda: D.Bernoulli(logits=t(ANY)), stats.bernoulli(1 / (1 + np.exp(-ANY))), COUNTS % 2),
    "geometric": (lambda: D.Geometric(t(CHANCE)), stats.geom(CHANCE, loc=-1), COUNTS),
    "binomial": (lambda: D.Binomial(17, t(CHANCE)), stats.binom(17, CHANCE), COUNTS),
    "negative_binomial": (lambda: D.NegativeBinomial(t(POSITIVE), t(CHANCE)), stats.nbinom(POSITIVE, 1 - CHANCE), COUNTS),
    "poisson": (lambda: D.Poisson(t(POSITIVE)), stats.poisson(POSITIVE), COUNTS),
}
NO_MOMENTS = ("cauchy", "half_cauchy")


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_against_scipy(name):
    make, reference, values = (CONTINUOUS | DISCRETE)[name]
    d, x = make(), t(np.array(values, np.float64))
    assert (d.batch_shape, d.event_shape) == ((N,), ())
    close(d.log_prob(x), (reference.logpdf if name in CONTINUOUS else reference.logpmf)(values))
    if name not in NO_MOMENTS:
        close(d.mean, reference.mean())
        close(d.variance, reference.var())
        close(d.stddev, reference.std())
    if name in ("fisher_snedecor", "negative_binomial"):
        pass                                                                     # no entropy, as in torch
    elif name != "poisson":
        close(d.entropy(), reference.entropy(), 1e-7)
    else:
        with pytest.raises(MissingRuleError, match=r"Poisson\.entropy: there is no closed form"):
            d.entropy()
    if name in CONTINUOUS and name not in ("beta", "fisher_snedecor", "student_t"):
        close(d.cdf(x), reference.cdf(values))
    if name in ("normal", "log_normal", "laplace", "cauchy", "gumbel", "uniform", "exponential", "weibull", "pareto", "generalized_pareto"):
        close(d.icdf(t(CHANCE)), reference.ppf(CHANCE))


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_samples(name):
    """Of 4,000 samples for each of the batch, the share below each of nine quantiles is within five standard errors."""
    make, reference, _ = (CONTINUOUS | DISCRETE)[name]
    tg.manual_seed(5)
    x = make().sample((4000,))
    assert (x.shape, x.dtype, x.requires_grad) == ((4000, N), tg.float64, False)
    values = x.numpy()
    for q in np.arange(0.1, 0.95, 0.1):
        at = reference.ppf(q)
        expected = reference.cdf(at)
        error = np.sqrt(np.maximum(expected * (1 - expected), 1e-4) / 4000)
        assert (np.abs((values <= at).mean(0) - expected) < 5 * error).all(), q


def test_vectors():
    loc, at = _A[0, 0], _A[1]
    by = {"covariance_matrix": COVARIANCE, "precision_matrix": np.linalg.inv(COVARIANCE), "scale_tril": np.linalg.cholesky(COVARIANCE)}
    for name, matrix in by.items():
        d = D.MultivariateNormal(t(loc), **{name: t(matrix)})
        assert (d.batch_shape, d.event_shape) == ((3,), (4,))
        references = [stats.multivariate_normal(loc, c) for c in COVARIANCE]
        close(d.log_prob(t(at[:3])), [r.logpdf(x) for r, x in zip(references, at, strict=False)])
        close(d.entropy(), [r.entropy() for r in references])
        close(d.covariance_matrix, COVARIANCE)
        close(d.precision_matrix, np.linalg.inv(COVARIANCE))
        close(d.variance, np.diagonal(COVARIANCE, 0, 1, 2))
    tg.manual_seed(1)
    x = d.sample((5000,)).numpy()
    for b in range(3):
        np.testing.assert_allclose(np.cov(x[:, b].T), COVARIANCE[b], atol=0.5)
    a = np.exp(_A[0])
    dirichlet = D.Dirichlet(t(a))
    p = np.exp(_A[1]) / np.exp(_A[1]).sum(-1, keepdims=True)
    close(dirichlet.log_prob(t(p)), [stats.dirichlet(row).logpdf(x) for row, x in zip(a, p, strict=True)])
    close(dirichlet.entropy(), [stats.dirichlet(row).entropy() for row in a])
    close(dirichlet.mean, [stats.dirichlet(row).mean() for row in a])
    close(dirichlet.variance, [stats.dirichlet(row).var() for row in a])
    np.testing.assert_allclose(dirichlet.sample((4000,)).numpy().mean(0), a / a.sum(-1, keepdims=True), atol=0.03)


def test_categorical(run):
    logits = np.cos(np.arange(35.0)).reshape(5, 7)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.array([0, 3, 6, 2, 1])

    def fn(logits, chosen):
        d, e = D.Categorical(logits=logits), D.Categorical(logits.exp() * 3)
        return d.log_prob(chosen), e.log_prob(chosen), d.entropy(), e.probs, D.OneHotCategorical(logits=logits).log_prob(
            tg.nn.functional.one_hot(chosen, 7))

    a, b, entropy, probs, hot = run(fn)(t(logits), t(chosen))
    for found in (a, b, hot):
        close(found, np.log(p[np.arange(5), chosen]))
    close(entropy, stats.entropy(p, axis=-1))
    close(probs, p)
    tg.manual_seed(0)
    drawn = D.Categorical(logits=t(logits)).sample((6000,))
    assert (drawn.shape, drawn.dtype) == ((6000, 5), tg.int64)
    share = np.stack([np.bincount(column, minlength=7) for column in drawn.numpy().T]) / 6000
    np.testing.assert_allclose(share, p, atol=0.03)
    assert D.OneHotCategorical(t(p)).sample((3, 2)).sum(-1).tolist() == [[[1.0] * 5] * 2] * 3
    assert D.Categorical(t(p)).enumerate_support().shape == (7, 5)
    close(D.Categorical(t(p)).log_prob(D.Categorical(t(p)).enumerate_support()).exp(), p.T)


KINDS = {
    "normal": D.Normal, "log_normal": D.LogNormal, "laplace": D.Laplace,
    "exponential": lambda a, b: D.Exponential(b), "gamma": lambda a, b: D.Gamma(b, b + 1), "beta": lambda a, b: D.Beta(b, b * 2),
    "dirichlet": lambda a, b: D.Dirichlet(tg.stack((b, b * 2, b + 1), -1)), "bernoulli": lambda a, b: D.Bernoulli(logits=a),
    "binomial": lambda a, b: D.Binomial(9, logits=a), "poisson": lambda a, b: D.Poisson(b), "geometric": lambda a, b: D.Geometric(logits=a),
    "categorical": lambda a, b: D.Categorical(logits=tg.stack((a, b, a * b), -1)),
    "multivariate_normal": lambda a, b: D.MultivariateNormal(tg.stack((a, b), -1), scale_tril=tg.diag_embed(tg.stack((b, b + 1), -1))),
    "independent": lambda a, b: D.Independent(D.Normal(a, b), 1),
}


@one_of(2, "name", KINDS)
def test_kl_divergence(name):
    """The mean of log p - log q over samples of p, within six standard errors; 0 of p to itself."""
    make = KINDS[name]
    p, q = make(t(ANY[::4] / 3), t(POSITIVE[::4])), make(t(ANY[::4][::-1] / 4), t(POSITIVE[::4] * 1.2))
    tg.manual_seed(2)
    x = p.sample((20000,))
    each = (p.log_prob(x) - q.log_prob(x)).numpy()
    found = D.kl_divergence(p, q).numpy()
    assert (np.abs(each.mean(0) - found) < 6 * each.std(0) / np.sqrt(20000) + 1e-9).all()
    close(D.kl_divergence(p, p), np.zeros_like(found), 1e-7)


def kinds():
    a, b, c = t(ANY[::4] / 3), t(POSITIVE[::4]), t(POSITIVE[::4]) / (t(POSITIVE[::4]) + 1)
    matrices = tg.tensor([[0.5], [1.0]], dtype=tg.float64), tg.tensor([0.4, 0.6], dtype=tg.float64)
    vectors = D.LowRankMultivariateNormal(tg.tensor([0.3, -0.2], dtype=tg.float64), *matrices)
    made = [D.Beta(b, b + 1), D.ContinuousBernoulli(c), D.Exponential(b), D.Gamma(b + 0.5, b), D.Gumbel(a, b + 0.2), D.Laplace(a, b),
            D.Normal(a, b), D.Pareto(b, b + 2.5), D.Uniform(c / 2, c), D.Uniform(c - 1, c + 1), D.Cauchy(a, b), D.Bernoulli(c),
            D.Poisson(b)]
    for each in made:
        each._validate_args = False                                             # values beyond the support are asked for
    return made, vectors


def test_kl_of_different_kinds():
    """As the test above; where p has values that q has not, infinite."""
    tg.manual_seed(3)
    found, infinite = 0, 0
    for p in kinds()[0]:
        x = p.sample((4000,))
        for q in kinds()[0]:
            try:
                kl = D.kl_divergence(p, q).numpy()
            except MissingRuleError:
                continue
            inside = np.asarray(q.support.check(x)) | (p is q)
            each = p.log_prob(x).numpy() - np.where(inside, q.log_prob(x).numpy(), 0.0)
            found, infinite = found + 1, infinite + int(np.isinf(kl).any())
            assert ((~inside).any(0) <= np.isinf(kl)).all(), (p, q)
            each, kl = (np.where(np.isfinite(kl), a, 0.0) for a in (each, kl))
            assert (np.abs(each.mean(0) - kl) < 8 * each.std(0) / np.sqrt(4000) + 1e-6).all(), (p, q)
    assert found > 80
    assert infinite > 30
    low, whole = kinds()[1], D.MultivariateNormal(tg.zeros(2, dtype=tg.float64), tg.eye(2, dtype=tg.float64) * 2)
    same = D.MultivariateNormal(low.loc, low.covariance_matrix)
    close(D.kl_divergence(low, whole), D.kl_divergence(same, whole).numpy(), 1e-9)
    close(D.kl_divergence(whole, low), D.kl_divergence(whole, same).numpy(), 1e-9)


def test_kl_of_what_the_same_transforms_make():
    """It is that of the bases; of halves of distributions around 0, that of the wholes."""
    one, two = (D.Normal(tg.tensor([a, 0.5]), tg.tensor([b, 1.5])) for a, b in ((0.0, 1.0), (0.4, 0.7)))
    each = D.kl_divergence(one, two).numpy()
    made = [[D.TransformedDistribution(base, [D.AffineTransform(tg.tensor(1.0), -2.0), D.TanhTransform(), D.ExpTransform().inv.inv])
             for base in (one, two)], [D.LogisticNormal(base.loc, base.scale) for base in (one, two)]]
    close(D.kl_divergence(*made[0]), each, 1e-6)
    close(D.kl_divergence(*made[1]), each.sum(), 1e-6)
    for p, q, a, b in ((D.InverseGamma(2.0, 3.0), D.InverseGamma(4.0, 1.0), D.Gamma(2.0, 3.0), D.Gamma(4.0, 1.0)),
                       (D.HalfCauchy(2.0), D.HalfCauchy(3.0), D.Cauchy(0.0, 2.0), D.Cauchy(0.0, 3.0))):
        close(D.kl_divergence(p, q), D.kl_divergence(a, b).numpy(), 1e-6)
    for transforms, why in (([D.AffineTransform(1.0, 2.0)], "other transforms"), ([D.AbsTransform()], "transforms that have no inverse")):
        with pytest.raises(MissingRuleError, match=why):
            D.kl_divergence(D.TransformedDistribution(one, transforms), D.TransformedDistribution(
                two, [D.AffineTransform(1.0, 3.0)] if why == "other transforms" else [D.AbsTransform()]))


def test_kl_of_uniform_and_unknown():
    close(D.kl_divergence(D.Uniform(0.0, 1.0), D.Uniform(-1.0, 3.0)), np.log(4), 1e-6)
    assert D.kl_divergence(D.Uniform(0.0, 1.0), D.Uniform(0.5, 3.0)).item() == np.inf
    with pytest.raises(MissingRuleError, match="no rule for Gumbel and Poisson; add one with register_kl"):
        D.kl_divergence(D.Gumbel(0.0, 1.0), D.Poisson(1.0))


@pytest.mark.usefixtures("device")
def test_gradients(run):
    """A variational bound with rsample, and a policy gradient with log_prob."""
    x = t(ANY).requires_grad_()

    def bound(x):
        q = D.Normal(x, (x / 3).exp())
        return D.kl_divergence(q, D.Normal(tg.zeros_like(x), 1.0)).sum()

    scale = np.exp(ANY / 3)
    close(tg.autograd.grad(run(bound)(x), x)[0], ANY + (scale**2 - 1) / 3)
    tg.manual_seed(3)
    sample = D.Normal(x, 2.0).rsample()
    (g,) = tg.autograd.grad((sample**2).sum(), x)
    close(g, 2 * sample)
    logits = tg.zeros(5, 4, dtype=tg.float64, requires_grad=True)
    chosen = t(np.array([0, 1, 2, 3, 0]))
    (g,) = tg.autograd.grad(run(lambda z: D.Categorical(logits=z).log_prob(chosen).sum())(logits), logits)
    close(g, np.eye(4)[[0, 1, 2, 3, 0]] - 0.25)
    with pytest.raises(MissingRuleError, match=r"VonMises\.rsample: its samples have no derivative.*use sample\(\) and log_prob\(\)"):
        D.VonMises(1.0, 1.0).rsample()


@pytest.mark.usefixtures("device")
def test_transformed():
    base = D.Normal(t(ANY / 5), t(POSITIVE))
    d = D.TransformedDistribution(base, [D.TanhTransform(), D.AffineTransform(0.5, -2.0)])
    y = np.linspace(-1.3, 2.3, N)
    z = (y - 0.5) / -2
    inner = stats.norm(ANY / 5, POSITIVE)
    close(d.log_prob(t(y)), inner.logpdf(np.arctanh(z)) - np.log(1 - z**2) - np.log(2))
    close(d.cdf(t(y)), 1 - inner.cdf(np.arctanh(z)))
    close(d.icdf(d.cdf(t(y))), y, 1e-7)
    tg.manual_seed(4)
    sample = d.rsample((7,))
    assert sample.shape == (7, N)
    assert bool(((sample > -1.5) & (sample < 2.5)).all())
    exp = D.TransformedDistribution(D.Independent(base, 1), D.ComposeTransform([D.AffineTransform(1.0, 0.5), D.ExpTransform()]))
    close(exp.log_prob(t(POSITIVE)), (inner.logpdf((np.log(POSITIVE) - 1) * 2) - np.log(POSITIVE) - np.log(0.5)).sum())
    assert (exp.batch_shape, exp.event_shape, exp.has_rsample) == ((), (N,), True)


def test_shapes():
    d = D.Normal(tg.zeros(5, 1), tg.ones(3))
    assert (d.batch_shape, d.sample((2, 7)).shape, d.expand((4, 5, 3)).sample().shape) == ((5, 3), (2, 7, 5, 3), (4, 5, 3))
    assert D.Independent(d, 1).log_prob(tg.zeros(5, 3)).shape == (5,)
    assert D.Normal(0.0, 1.0).sample().shape == ()
    assert D.Normal(0.0, 1.0).sample().dtype == tg.float32
    assert D.Categorical(tg.ones(2, 3)).expand((4, 2)).sample((6,)).shape == (6, 4, 2)
    assert D.MultivariateNormal(tg.zeros(3), tg.eye(3)).expand((2,)).sample().shape == (2, 3)
    assert repr(D.Normal(0.0, 1.0)) == "Normal(loc: 0.0, scale: 1.0)"
    assert repr(d) == "Normal(loc: (5, 3), scale: (5, 3))"


@pytest.mark.parametrize(("wrong", "error", "match"), [
    (lambda: D.Normal(tg.zeros(2), -tg.ones(2)), ArgumentError, r"Normal: parameter scale float32\[2\] has to satisfy GreaterThan"),
    (lambda: D.Normal(0.0, float("nan")), ArgumentError, "parameter scale"),
    (lambda: D.Bernoulli(tg.tensor([1.5])), ArgumentError, r"Bernoulli: parameter probs float32\[1\] has to satisfy Interval"),
    (lambda: D.Categorical(logits=tg.tensor([1.5, float("nan")])), ArgumentError, "Categorical: parameter logits"),
    (lambda: D.Categorical(tg.tensor([[-1.0, 2.0]])), ArgumentError, "Categorical: parameter probs"),
    (D.Categorical, ArgumentError, "Categorical: give one of probs and logits"),
    (lambda: D.Categorical(tg.tensor(1.0)), ShapeError, "at least one dimension"),
    (lambda: D.Normal(tg.zeros(2), tg.ones(3)), ShapeError, "Normal"),
    (lambda: D.Uniform(2.0, 1.0), ArgumentError, "Uniform: low has to be less than high"),
    (lambda: D.MultivariateNormal(tg.zeros(2), -tg.eye(2)), ArgumentError, "parameter covariance_matrix .* PositiveDefinite"),
    (lambda: D.MultivariateNormal(tg.zeros(2)), ArgumentError, "give one of covariance_matrix, precision_matrix and scale_tril"),
    (lambda: D.Independent(D.Normal(tg.zeros(2), 1.0), 2), ArgumentError, r"reinterpreted_batch_ndims is 2"),
    (lambda: D.Exponential(1.0).log_prob(tg.tensor(-1.0)), ArgumentError, r"Exponential\.log_prob: value has to be in the support"),
    (lambda: D.Categorical(tg.ones(3)).log_prob(tg.tensor(3)), ArgumentError, r"IntegerInterval\(lower_bound=0, upper_bound=2\)"),
    (lambda: D.Normal(tg.zeros(3), 1.0).log_prob(tg.zeros(4)), ShapeError, r"Normal\.log_prob"),
    (lambda: D.Normal(tg.zeros(3), 1.0).log_prob(0.0), ArgumentError, "value must be a Tensor, got float"),
])
def test_mistakes(wrong, error, match):
    with pytest.raises(error, match=match):
        wrong()


def test_a_continuous_bernoulli_has_no_probability_outside_of_its_interval():
    """Without checks: below 0 the cumulative probability is 0, above 1 it is 1 (it was the formula's, 12 and -0.2)."""
    d = tg.distributions.ContinuousBernoulli(tg.tensor([0.2, 0.5, 0.8]), validate_args=False)
    assert d.cdf(tg.tensor([[-1.0], [0.0], [1.0], [3.0]])).tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2


@pytest.mark.parametrize("b", [0.5, 2.0])
def test_the_last_quantile_of_kumaraswamy_has_gradients(b):
    """It is 1 whatever the concentrations are (their gradients were NaN)."""
    a, b = (tg.tensor(x, dtype=tg.float64, requires_grad=True) for x in (2.0, b))
    q = tg.tensor([0.3, 1.0], dtype=tg.float64)
    y = tg.distributions.Kumaraswamy(a, b).icdf(q)
    assert y[1].item() == 1.0
    assert [g.item() for g in tg.autograd.grad(y[1], [a, b], retain_graph=True)] == [0.0, 0.0]
    of_b = tg.autograd.grad(y[0], b)[0].item()
    up, down = (tg.distributions.Kumaraswamy(a.detach(), b.detach() + h).icdf(q)[0].item() for h in (1e-6, -1e-6))
    assert of_b == pytest.approx((up - down) / 2e-6, rel=1e-6)


def test_a_number_of_failures_has_the_dtype_of_the_chances():
    """It went by way of float32."""
    d = D.NegativeBinomial(1.7654321, t(CHANCE))
    assert d.total_count.tolist() == [1.7654321] * N
    close(d.log_prob(t(COUNTS * 1.0)), stats.nbinom(1.7654321, 1 - CHANCE).logpmf(COUNTS))


@pytest.mark.parametrize("density", [
    lambda a: D.Gamma(a, a).log_prob(a),
    lambda a: D.Uniform(a - 1, a + 1).log_prob(a),
    lambda a: D.Beta(a, a).entropy(),
    lambda a: D.kl_divergence(D.Normal(a, a), D.Normal(0.0, 1.0)),
    lambda a: D.Categorical(tg.stack([a, 1 - a])).log_prob(tg.tensor(1)),
    lambda a: D.MultivariateNormal(tg.stack([a, a * a]), tg.diag(tg.stack([a, a]))).log_prob(tg.stack([a, a])),
])
def test_of_each_example_of_a_vmap(density, run):
    """The examples have no values to check, which was an error."""
    chances = t(CHANCE)
    for f in (density, tg.grad(density)):
        close(run(tg.vmap(f))(chances), tg.stack([f(a) for a in chances]))


@pytest.mark.usefixtures("device")
def test_on_devices(run):
    """Every density and entropy in one program, with a gradient."""
    def fn(a, b, chance, counts):
        some = [D.Normal(a, b), D.LogNormal(a, b), D.Laplace(a, b), D.Cauchy(a, b), D.Gumbel(a, b), D.Exponential(b), D.Gamma(b, b + 1),
                D.Beta(b, b + 1), D.StudentT(b + 2, a, b)]
        several = [D.Bernoulli(chance), D.Geometric(chance), D.Poisson(b)]
        densities = [d.log_prob(chance) for d in some] + [d.log_prob(counts) for d in several]
        return [*densities, *(d.entropy() for d in (*some, *several[:2])), *tg.autograd.grad(tg.stack(densities).sum(), (a, b))]

    given = [t(np.array(x, np.float64)).requires_grad_() for x in (ANY, POSITIVE, CHANCE, COUNTS % 2)]
    found = [x.detach().numpy() for x in run(fn)(*given)]
    previous = tg.device()
    tg.set_device("numpy")
    try:
        wanted = [x.detach().numpy() for x in fn(*(t(x.detach().numpy()).requires_grad_() for x in given))]
    finally:
        tg.set_device(previous)
    for f, w in zip(found, wanted, strict=True):
        close(f, w)


def test_checks_can_be_left_out():
    assert np.isnan(D.Normal(0.0, -1.0, validate_args=False).log_prob(tg.tensor(0.0)).item())
    D.Distribution.set_default_validate_args(False)
    try:
        D.Normal(0.0, -1.0)
    finally:
        D.Distribution.set_default_validate_args(True)
    assert tg.trace(lambda x: D.Normal(x, -1.0).mean)(tg.ones(3)).tolist() == [1.0] * 3          # a trace has no values to check


def test_mixtures(run):
    weights, loc, scale = t(CHANCE.reshape(11, 3)), t(ANY.reshape(11, 3)), t(POSITIVE.reshape(11, 3))
    x = t(ANY[1::3].copy())
    d = D.MixtureSameFamily(D.Categorical(weights), D.Normal(loc, scale))
    w = CHANCE.reshape(11, 3) / CHANCE.reshape(11, 3).sum(1, keepdims=True)
    reference = stats.norm(ANY.reshape(11, 3), POSITIVE.reshape(11, 3))
    close(d.log_prob(x), np.log((w * reference.pdf(ANY[1::3, None])).sum(1)))
    close(d.cdf(x), (w * reference.cdf(ANY[1::3, None])).sum(1))
    mean = (w * reference.mean()).sum(1)
    close(d.mean, mean)
    close(d.variance, (w * (reference.var() + reference.mean()**2)).sum(1) - mean**2)
    assert (d.batch_shape, d.batch_shape.numel(), d.event_shape, d.expand((2, 11)).batch_shape) == ((11,), 11, (), (2, 11))
    drawn = d.sample((20000,))
    assert drawn.shape == (20000, 11)
    assert (abs(drawn.mean(0) - d.mean) < 5 * d.stddev / 20000**0.5).all()
    assert (abs(drawn.var(0) / d.variance - 1) < 0.1).all()

    def loss(logits, loc, scale):
        pairs = D.Normal(loc.unsqueeze(-1), scale.unsqueeze(-1).expand(11, 3, 2))
        d = D.MixtureSameFamily(D.Categorical(logits=logits), D.Independent(pairs, 1))
        return d.log_prob(tg.stack([x, x * 0.5], -1)).sum()

    tg.testing.gradcheck(loss, tuple(p.clone().requires_grad_() for p in (weights, loc, scale)))
    found = run(loss)(weights, loc, scale)
    parts = reference.logpdf(ANY[1::3, None]) + reference.logpdf(ANY[1::3, None] * 0.5) + CHANCE.reshape(11, 3)
    shift = np.log(np.exp(CHANCE.reshape(11, 3)).sum(1))
    close(found, (np.log(np.exp(parts).sum(1)) - shift).sum())
    pairs = D.MixtureSameFamily(D.Categorical(tg.ones(3)), D.MultivariateNormal(tg.zeros(3, 4), t(COVARIANCE).float()))
    assert (pairs.sample((7, 2)).shape, pairs.mean.shape, pairs.event_shape) == ((7, 2, 4), (4,), (4,))


@pytest.mark.parametrize(("wrong", "error", "match"), [
    (lambda: D.MixtureSameFamily(D.Normal(0.0, 1.0), D.Normal(tg.zeros(3), 1.0)), ArgumentError, "takes a Categorical and a Distribution"),
    (lambda: D.MixtureSameFamily(D.Categorical(tg.ones(4)), D.Normal(tg.zeros(3), 1.0)), ShapeError, r"\(4,\) do not fit .* batch \(3,\)"),
    (lambda: D.MixtureSameFamily(D.Categorical(tg.ones(5, 3)), D.Normal(tg.zeros(3), 1.0)), ShapeError, "do not fit"),
    (lambda: D.MixtureSameFamily(D.Categorical(tg.ones(3)), D.Exponential(tg.ones(3))).log_prob(tg.tensor(-1.0)), ArgumentError, "support"),
    (lambda: D.HalfNormal(-1.0), ArgumentError, "parameter scale"),
    (lambda: D.HalfNormal(1.0).log_prob(tg.tensor(-1.0)), ArgumentError, "support"),
])
def test_mistakes_with_mixtures_and_halves(wrong, error, match):
    with pytest.raises(error, match=match):
        wrong()


def test_kl_of_half_normals():
    p, q = D.HalfNormal(t(POSITIVE)), D.HalfNormal(t(POSITIVE[::-1].copy()))
    x = p.icdf(tg.linspace(0.5 / 20001, 1 - 0.5 / 20001, 20001, dtype=tg.float64).unsqueeze(1))
    close(D.kl_divergence(p, q), (p.log_prob(x) - q.log_prob(x)).mean(0), 2e-3)


def test_a_traced_function_reaches_a_distribution():
    """Its tensors are watched: the closure variable is a distribution, or an attribute of one's object."""
    prior = D.Independent(D.Normal(tg.zeros(65), tg.ones(65)), 1)
    flow = D.TransformedDistribution(D.Normal(tg.zeros(5), tg.ones(5)), [D.AffineTransform(tg.full((5,), 2.0), tg.ones(5))])

    @tg.trace
    def density(x):
        return prior.log_prob(x).sum(), flow.log_prob(x[:, :5]).sum()

    x = tg.ones(3, 65)
    for shift in (0.0, 1.5):
        prior.base_dist.loc = tg.full((65,), shift)
        first, second = density(x)
        close(first, 3 * 65 * stats.norm(shift).logpdf(1.0), 1e-5)
        close(second, 15 * stats.norm(2).logpdf(1.0), 1e-5)


def test_what_is_no_probability_draws_nan():
    drawn = tg.bernoulli(tg.tensor([1.0, 1.5, 0.0, -0.5, np.nan])).numpy()
    np.testing.assert_array_equal(drawn, [1.0, np.nan, 0.0, np.nan, np.nan])


# ------------------------------------------------------------------------------------------------------ relaxed, of low rank, angles


def integrated(f, a=0.0, b=1.0, points=200):
    """The integral of a function of a tensor of (points, 1), for each of what it is of, by Gauss's rule."""
    x, w = np.polynomial.legendre.leggauss(points)
    return (w[:, None] * f(t((a + b) / 2 + (b - a) / 2 * x[:, None])).numpy()).sum(0) * (b - a) / 2


UNIT = {
    "kumaraswamy": lambda: D.Kumaraswamy(t(POSITIVE + 1), t(POSITIVE[::-1] + 1)),
    "continuous_bernoulli": lambda: D.ContinuousBernoulli(t(np.r_[CHANCE[:-1], 0.5002])),
    "continuous_bernoulli_logits": lambda: D.ContinuousBernoulli(logits=t(ANY)),
    "relaxed_bernoulli": lambda: D.RelaxedBernoulli(t(2.0), logits=t(ANY / 3)),
}


@pytest.mark.parametrize("name", UNIT)
def test_on_the_unit_interval(name):
    """Densities add up to 1; moments, entropy and cdf are integrals; samples are spread evenly by the cdf."""
    d = UNIT[name]()
    density = lambda x: d.log_prob(x).exp()
    close(integrated(density), np.ones(N), 1e-5)
    tg.manual_seed(3)
    x = d.rsample((4000,))
    assert (x.shape, x.dtype) == ((4000, N), tg.float64)
    if name != "relaxed_bernoulli":
        mean = integrated(lambda x: density(x) * x)
        close(d.mean, mean, 1e-6)
        close(d.variance, integrated(lambda x: density(x) * x**2) - mean**2, 1e-6)
        close(d.entropy(), -integrated(lambda x: density(x) * d.log_prob(x)), 1e-5)
        close(d.cdf(t(np.full(N, 0.4))), integrated(density, 0.0, 0.4), 1e-3)
        close(d.cdf(d.icdf(t(CHANCE))), CHANCE, 1e-9)
    spread = (d.cdf(x) if name != "relaxed_bernoulli" else (2.0 * x.logit() - t(ANY / 3)).sigmoid()).numpy()
    for q in (0.1, 0.5, 0.9):
        assert (np.abs((spread <= q).mean(0) - q) < 5 * np.sqrt(q * (1 - q) / 4000)).all(), q


def test_relaxed_choices(run):
    """Rows add up to 1, tend to one-hot ones, and have a derivative; the density of two choices is that of RelaxedBernoulli."""
    logits = t(np.stack([ANY / 3, np.zeros(N)], -1))
    p = t(np.stack([CHANCE, 1 - CHANCE], -1))
    found = run(lambda logits, p: D.RelaxedOneHotCategorical(t(0.7), logits=logits).log_prob(p))(logits, p)
    close(found, D.RelaxedBernoulli(t(0.7), logits=t(ANY / 3)).log_prob(t(CHANCE)))
    logits.requires_grad_()
    tg.manual_seed(1)
    x = D.RelaxedOneHotCategorical(t(0.05), logits=logits).rsample((2000,))
    close(x.detach().sum(-1), np.ones((2000, N)), 1e-12)
    np.testing.assert_allclose(x.detach().round().mean(0)[:, 0], 1 / (1 + np.exp(-ANY / 3)), atol=0.06)
    x.square().mean().backward()
    assert (logits.grad != 0).all()


def test_logistic_normal():
    """The density of its two probabilities is the normal one of their odds, stretched."""
    d = D.LogisticNormal(t(ANY[:, None]), t(POSITIVE[:, None]))
    assert (d.batch_shape, d.event_shape, d.expand((3, N)).sample().shape) == ((N,), (2,), (3, N, 2))
    p = np.stack([CHANCE, 1 - CHANCE], -1)
    close(d.log_prob(t(p)), stats.norm(ANY, POSITIVE).logpdf(np.log(CHANCE / (1 - CHANCE))) - np.log(CHANCE * (1 - CHANCE)))
    with pytest.raises(MissingRuleError, match="no closed form"):
        d.cdf(t(p))


def test_low_rank_normal(run):
    w, diagonal, at = _A[:, :, :2], np.exp(_A[:, 0]), _A[1, :3]
    low = D.LowRankMultivariateNormal(t(at), t(w), t(diagonal))
    full = [w[i] @ w[i].T + np.diag(diagonal[i]) for i in range(3)]
    x = run(lambda x, *parts: D.LowRankMultivariateNormal(*parts).log_prob(x))(t(_A[2]).unsqueeze(1), t(at), t(w), t(diagonal))
    close(x, np.stack([stats.multivariate_normal(at[i], full[i]).logpdf(_A[2]) for i in range(3)], -1))
    close(low.entropy(), [stats.multivariate_normal(at[i], full[i]).entropy() for i in range(3)])
    close(low.covariance_matrix, full)
    close(low.precision_matrix, np.linalg.inv(full))
    close(low.variance, np.diagonal(full, 0, 1, 2))
    tg.manual_seed(2)
    drawn = low.rsample((20000,)).numpy()
    for i in range(3):
        np.testing.assert_allclose(np.cov(drawn[:, i].T), full[i], atol=0.15)


def test_multinomial(run):
    p = np.exp(_A[0, 0:3]) / np.exp(_A[0, 0:3]).sum(-1, keepdims=True)
    d, counts = D.Multinomial(9, t(p)), np.array([4.0, 0.0, 3.0, 2.0])
    close(d.log_prob(t(counts)), [stats.multinomial(9, row).logpmf(counts) for row in p])
    close(run(lambda p: D.Multinomial(9, p).entropy())(t(p)), [stats.multinomial(9, row).entropy() for row in p])
    close(d.variance, 9 * p * (1 - p))
    tg.manual_seed(4)
    x = d.sample((4000,)).numpy()
    assert (x.sum(-1) == 9).all()
    np.testing.assert_allclose(x.mean(0), 9 * p, atol=0.12)


def test_angles():
    d = D.VonMises(t(ANY), t(10 * POSITIVE))
    close(d.log_prob(t(ANY[::-1].copy())), stats.vonmises(10 * POSITIVE, ANY).logpdf(ANY[::-1]))
    tg.manual_seed(6)
    x = d.sample((4000,)).numpy()
    assert (np.abs(x) <= np.pi).all()
    np.testing.assert_allclose(np.cos(x - ANY).mean(0), 1 - d.variance.numpy(), atol=0.05)
    np.testing.assert_allclose(np.sin(x - ANY).mean(0), 0.0, atol=0.06)


@pytest.mark.parametrize("size", [0.05, 0.7, 3.0, 40.0, 3000.0])
def test_gamma_numbers_move_with_their_shape(size):
    """So that the share of smaller numbers stays: the derivative is -(dP/da) / density, which SciPy's gammainc tells by differences."""
    tg.manual_seed(8)
    a = tg.full((257,), size, dtype=tg.float64, requires_grad=True)
    z = D.Gamma(a, 1.0).rsample()
    z.sum().backward()
    x, h = z.detach().numpy(), 1e-4 * size
    steps = [special.gammainc(size + k * h, x) for k in (-2, -1, 1, 2)]
    moved = (steps[0] - 8 * steps[1] + 8 * steps[2] - steps[3]) / (12 * h)
    some = (special.gammainc(size, x) > 0.01) & (special.gammainc(size, x) < 0.99)
    np.testing.assert_allclose(a.grad.numpy()[some], (-moved / stats.gamma(size).pdf(x))[some], rtol=1e-6)


def test_samples_of_gammas_have_the_derivative_of_their_mean(run):
    """d E[x] / d parameter, within the error of 20,000 samples; traced, too."""
    a, b = t(np.array([0.6, 2.0, 9.0])), t(np.array([1.5, 3.0, 0.8]))
    for make in (D.Gamma, D.Beta, D.FisherSnedecor):
        p, q = (a, b) if make is not D.FisherSnedecor else (a + 8, b + 8)
        tg.manual_seed(9)
        found = run(lambda p, q, make=make: tg.grad(lambda p, q: make(p, q).rsample((20000,)).mean(0).sum(), (0, 1))(p, q))(p, q)
        wanted = tg.grad(lambda p, q, make=make: make(p, q).mean.sum(), (0, 1))(p, q)
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(f.numpy(), w.numpy(), rtol=0.1, atol=0.01)
    rows = t(np.array([[0.6, 2.0, 9.0], [1.5, 3.0, 0.8]]))
    found = tg.grad(lambda c: D.Dirichlet(c).rsample((20000,)).mean(0)[:, 1].sum())(rows)
    np.testing.assert_allclose(found.numpy(), tg.grad(lambda c: D.Dirichlet(c).mean[:, 1].sum())(rows).numpy(), atol=0.01)


def test_stick_breaking_and_other_transforms():
    x, T = t(_A[0]), D.transforms
    for made in (T.StickBreakingTransform(), T.SoftplusTransform(), T.PowerTransform(2.5), D.LowerCholeskyTransform(),
                 T.ComposeTransform([T.AffineTransform(0.5, 2.0), T.StickBreakingTransform()]),
                 T.IndependentTransform(T.ExpTransform(), 1)):
        given = x.abs() + 0.1 if isinstance(made, T.PowerTransform) else x.tril() if isinstance(made, D.LowerCholeskyTransform) else x
        y = made(given)
        close(made.inv(y), given)
        assert (tuple(y.shape), tuple(made.inv.forward_shape(y.shape))) == (tuple(made.forward_shape(x.shape)), (4, 4))
    made = T.StickBreakingTransform()
    for row in x:
        jacobian = tg.jacobian(lambda r: made(r)[:-1])(row)
        close(made.log_abs_det_jacobian(row, made(row)), tg.linalg.slogdet(jacobian)[1])
    flow = D.TransformedDistribution(D.Normal(t(_A[0]), 1.0), [T.IndependentTransform(T.ExpTransform(), 1)])
    assert (flow.batch_shape, flow.event_shape, flow.expand((2, 4)).sample().shape) == ((4,), (4,), (2, 4, 4))
    close(flow.log_prob(t(np.exp(_A[1]))), stats.norm(_A[0], 1.0).logpdf(_A[1]).sum(-1) - _A[1].sum(-1))


def test_a_distribution_of_ones_own_expands_as_torchs_do():
    """By the protocol that torch's classes have: `_get_checked_instance`, and attributes that the subclass has set already."""
    class Triangle(D.Distribution):
        def __init__(self, peak):
            self.peak = peak
            super().__init__(peak.shape)

        def expand(self, batch_shape, _instance=None):
            new = self._get_checked_instance(Triangle, _instance)
            new.peak = self.peak.expand(batch_shape)
            super(Triangle, new).__init__(batch_shape)
            return new

    class Tilted(D.Normal):
        def __init__(self, loc, scale, tilt):
            super().__init__(loc, scale)
            self.tilt = tilt

        def expand(self, batch_shape, _instance=None):
            new = self._get_checked_instance(Tilted, _instance)
            new.tilt = self.tilt.expand(batch_shape) + 1
            return super().expand(batch_shape, _instance=new)

    class Diagonal(D.Independent):                              # zuko's are made so
        def __init__(self, loc, scale):
            super().__init__(D.Normal(loc, scale), 1)
            self.given = "diagonal"

        def expand(self, batch_shape, _instance=None):
            return super().expand(batch_shape, self._get_checked_instance(Diagonal, _instance))

    class Later(D.MultivariateNormal):                          # gpytorch's computes its factor when it is asked for
        def __init__(self, loc, factor):
            self.loc, self.factor = loc, factor
            D.Distribution.__init__(self, loc.shape[:-1], loc.shape[-1:], validate_args=False)

        @property
        def _unbroadcasted_scale_tril(self):
            return self.factor

    class Further(Triangle):
        def __init__(self, peak, more):
            super().__init__(peak)
            self.more = more

    found = Triangle(tg.ones(3)).expand((2, 3))
    assert (type(found), found.batch_shape, found.peak.shape) == (Triangle, (2, 3), (2, 3))
    tilted = Tilted(tg.zeros(3), tg.ones(3), tg.ones(3)).expand((2, 3))
    assert (type(tilted), tilted.batch_shape, tilted.tilt.tolist()) == (Tilted, (2, 3), [[2.0] * 3] * 2)
    assert tilted.log_prob(tg.zeros(2, 3)).shape == (2, 3)
    diagonal = Diagonal(tg.zeros(3), tg.ones(3)).expand((2,))
    assert (type(diagonal), diagonal.batch_shape, diagonal.event_shape, diagonal.given) == (Diagonal, (2,), (3,), "diagonal")
    x, loc, factor = tg.randn(3), tg.zeros(3), 2 * tg.eye(3)
    assert Later(loc, factor).log_prob(x).item() == D.MultivariateNormal(loc, scale_tril=factor).log_prob(x).item()
    mixture = D.MixtureSameFamily(D.Categorical(tg.ones(2)), D.MultivariateNormal(tg.zeros(2, 3), tg.eye(3))).expand((4,))
    assert mixture.sample().shape == (4, 3)
    with pytest.raises(NotImplementedError, match=r"^expand: Further has an __init__ of its own"):
        Further(tg.ones(3), 2).expand((2, 3))
    with pytest.raises(tg.TracegradError):
        D.Normal(tg.zeros(3), 1.0).expand("ab")
