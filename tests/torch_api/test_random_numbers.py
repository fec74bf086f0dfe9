"""Random numbers under the hook are those of torch's CPU generator: draws, first weights, dropout, batches, the state."""

from __future__ import annotations

import pytest

from tests.torch_api.both import beside_torch

DRAWS = """
import torch.nn.functional as F
D = torch.distributions
def draw(name, make):
    torch.manual_seed(7)
    say(name, lambda: [make(), torch.rand(1)])                  # the place in the stream, too
"""


def test_draws_have_torchs_bits():
    beside_torch(DRAWS + """
for n in (3, 15, 16, 37):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        draw(f"rand {n} {dtype.itemsize} {dtype.is_complex} {torch.finfo(dtype).max}", lambda: torch.rand(n, dtype=dtype))
        if dtype != torch.float64:
            draw(f"randn {n} {torch.finfo(dtype).max}", lambda: torch.randn(n, dtype=dtype))
draw("large", lambda: torch.randn(3, 10007))
draw("complex", lambda: torch.randn(20, dtype=torch.complex64))
draw("complex in bounds", lambda: torch.empty(20, dtype=torch.complex64).uniform_(-1, 2))
draw("complex layer", lambda: torch.nn.Linear(3, 4, dtype=torch.complex64).weight)
draw("complex normal", lambda: torch.empty(20, dtype=torch.complex64).normal_(1.0, 2.0))
draw("integers", lambda: (torch.randint(0, 10, (4,)), torch.randint(-5, 2**33, (4,)), torch.randint(2**28, (3,)),
                          torch.randint_like(torch.zeros(3), 5)))
draw("order", lambda: [torch.randperm(n) for n in (0, 1, 50, 200, 201, 777, 5000)])
draw("bernoulli", lambda: (torch.bernoulli(torch.full((9,), 0.3)), torch.empty(9).bernoulli_(0.3),
                           torch.empty(5, dtype=torch.bool).bernoulli_(),
                           torch.bernoulli(torch.full((4,), 0.5, dtype=torch.float64)), torch.bernoulli(torch.ones(5), 0.4)))
chances = torch.linspace(0, 1, 6, requires_grad=True) * 0.5
chances.tolist()
draw("chances with a history", lambda: [(y.detach(), torch.tensor(y.requires_grad)) for y in (torch.bernoulli(chances),)])
draw("choices", lambda: (torch.multinomial(torch.arange(1.0, 9), 4), torch.multinomial(torch.ones(3, 5), 20, replacement=True),
                         torch.multinomial(torch.ones(3, 5), 1), torch.multinomial(torch.ones(4), 1, replacement=True)))
draw("normal", lambda: (torch.normal(0.0, 1.0, (20,)), torch.normal(2.0, 3.0, (5,)), torch.normal(torch.arange(20.0), 0.5)))
draw("scaled", lambda: (torch.empty(20).uniform_(-2, 5), torch.empty(20).normal_(1, 0.02), torch.empty(9).exponential_(2)))
draw("one factor", lambda: (torch.empty(3008).normal_(0, 0.02), torch.empty(20007).normal_(),
                            torch.empty(32).normal_(0, 0), torch.empty(40).normal_(-1, 0)))
def in_place(write):
    # Of a tensor, a view, what is turned, a leaf with a gradient, and what shares its memory; and of another dtype.
    x, turned, base, cube = torch.ones(3, 7), torch.ones(7, 3).t(), torch.ones(4, 20), torch.ones(2, 3, 5)
    leaf, shared = torch.ones(20, requires_grad=True), x.view(21)
    with torch.no_grad():
        for part in (x, turned, base[1], base[:, 3:5], base[:, 7:14], leaf, leaf.data, cube.permute(2, 0, 1)):
            write(part)
    (leaf * 2).sum().backward()
    kept = x.clone()
    write(x)
    return [x, shared, kept, turned, base, cube, leaf.detach(), leaf.grad, write(torch.ones(5).double())]
for name, write in dict(uniform=lambda x: x.uniform_(-1, 2), normal=lambda x: x.normal_(1, 2), bernoulli=lambda x: x.bernoulli_(0.3),
                        chances=lambda x: x.bernoulli_(torch.linspace(0, 1, x.shape[-1])),
                        named=lambda x: x.bernoulli_(p=torch.linspace(0, 1, x.numel()).reshape(x.shape)),
                        exponential=lambda x: x.exponential_(), integers=lambda x: x.random_(9),
                        cauchy=lambda x: x.cauchy_(), geometric=lambda x: x.geometric_(0.3),
                        log=lambda x: x.log_normal_(), own=lambda x: x.uniform_(generator=torch.Generator().manual_seed(2))).items():
    draw(f"in place {name}", lambda: in_place(write))
draw("others", lambda: (torch.empty(9).cauchy_(), torch.empty(9).geometric_(0.3), torch.empty(9).log_normal_()))
for dtype in (torch.int64, torch.int32, torch.uint8, torch.float32, torch.bool):
    draw(f"any {torch.zeros(1, dtype=dtype).element_size()} {dtype.is_floating_point}",
         lambda: (torch.empty(5, dtype=dtype).random_(), torch.empty(5).random_(10)))
draw("like", lambda: (torch.rand_like(torch.ones(3, 4)), torch.randn_like(torch.ones(3, 7))))
for k, laid in enumerate([torch.ones(3, 7).t(), torch.ones(3, 5, 4).permute(2, 0, 1), torch.ones(6, 6)[::2].t(),
                          torch.ones(3, 1, 4).transpose(0, 1)]):
    for dtype in (torch.float32, torch.float64):
        draw(f"laid {k} {dtype.itemsize}", lambda: (torch.rand_like(laid, dtype=dtype), torch.randn_like(laid, dtype=dtype)))
draw("dropout", lambda: (F.dropout(torch.ones(20), 0.3), F.dropout2d(torch.ones(2, 5, 2, 2)), F.dropout1d(torch.ones(2, 5, 3)),
                         torch.nn.Dropout(0.1)(torch.ones(30)), torch.native_dropout(torch.ones(9), 0.5, True)))
draw("generators", lambda: (torch.rand(3, generator=torch.Generator().manual_seed(3)), torch.randperm(9, generator=torch.Generator())))
draw("distributions", lambda: (D.Normal(0.0, 1.0).sample((20,)), D.Uniform(0.0, 2.0).sample((5,)),
                               D.Bernoulli(torch.tensor(0.3)).sample((5,)), D.Categorical(torch.ones(4)).sample((6,)),
                               D.Categorical(torch.ones(2, 4)).sample(), D.Exponential(2.0).sample((5,))))
""", 1e-7)


def test_few_doubles_have_torchs_bits():
    """Numbers that are drawn in pairs, by the C library's functions: those of vectors round otherwise."""
    beside_torch(DRAWS + """
draw("doubles", lambda: torch.stack([torch.randn(5, dtype=torch.float64) for _ in range(100)]))
""")


def test_normal_numbers_that_are_made_ahead_have_torchs_bits():
    """Draws in a row, then others; the state between them is saved, copied and set."""
    beside_torch(DRAWS + """
def rows():
    found = []
    for count in (16, 64, 256, 1024, 2048):
        for others in (lambda: torch.rand(3), lambda: torch.randn(5), lambda: torch.randperm(7), lambda: torch.randn(20),
                       lambda: torch.randn(32, dtype=torch.bfloat16).float(), torch.get_rng_state, lambda: torch.empty(48).normal_(3, 2)):
            found += [torch.randn(count) for _ in range(5)] + [others(), torch.randn(48)]
    return found
draw("rows", rows)

def states():
    found = [torch.randn(4, 16) for _ in range(7)]
    now = torch.get_rng_state()
    found += [torch.randn(4, 16) for _ in range(3)]
    with torch.random.fork_rng():
        found += [torch.randn(64), torch.rand(2)]
    found += [torch.randn(64)]
    torch.set_rng_state(now)
    found += [torch.randn(64) for _ in range(9)]
    torch.manual_seed(3)
    return found + [torch.randn(64), now]
draw("states", states)
""")


def test_choices_of_what_numpy_holds_and_of_what_it_does_not_are_torchs():
    """Views, what has a history, halves and doubles; what is invalid is refused, and draws nothing."""
    beside_torch(DRAWS + """
w = torch.tensor([[0.1, 0.2, 0.7, 0.0], [1.0, 1.0, 1.0, 5.0]])
p = w.clone().requires_grad_()
forms = dict(plain=lambda: w, double=lambda: w.double(), leaf=lambda: p, part=lambda: torch.cat([w, -w], 1)[:, :4], row=lambda: w[1],
             of_history=lambda: (p * 2).abs(), softmax=lambda: torch.softmax(p * 0.5, -1), moved=lambda: w.t().contiguous().t(),
             expanded=lambda: w[1].expand(3, 4), none=lambda: w[:0])
for name, make in forms.items():
    for k, replacement in ((1, True), (1, False), (2, False), (3, True)):
        def several():
            found = []
            for _ in range(4):
                drawn = torch.multinomial(make(), k, replacement=replacement)
                found += [drawn, w[0][drawn], torch.zeros(4).index_add(0, drawn.reshape(-1), torch.ones(drawn.numel()))]
            return found
        draw(f"{name} {k} {replacement}", several)
draw("exponential", lambda: [torch.ones(3, 7).t().exponential_(2.0), torch.ones(2, 3, 4).permute(2, 0, 1).exponential_(),
                             torch.ones(6, 6)[::2].exponential_()])
def invalid():
    found = []
    for bad in ([[0.0, 0.0]], [[-1.0, 2.0]], [[float("nan"), 1.0]], [[float("inf"), 1.0]], [[1.0, 1.0], [0.0, 0.0]]):
        try:
            found.append((torch.multinomial(torch.tensor(bad), 1) * 0).tolist())
        except RuntimeError:
            found.append("refused")
    return found
say("invalid", invalid)
say("graph", lambda: [torch.multinomial(p, 1).requires_grad, torch.multinomial(p, 1).dtype == torch.int64])
""")


def test_draws_of_as_many_words_as_it_takes_are_torchs():
    """Rejection methods: the numbers, and where the stream is afterwards. Their gradients are torch's, too."""
    beside_torch(DRAWS + """
grid = torch.tensor([0.02, 0.3, 0.99, 1.0, 2.5, 9.9, 10.0, 40.0, 1000.0])
draw("poisson", lambda: (torch.poisson(grid), torch.poisson(torch.zeros(3)), torch.poisson(grid.double())))
draw("gamma", lambda: (torch._standard_gamma(grid), torch._standard_gamma(grid.double()), D.Gamma(grid, 2.0).sample((3,))))
draw("dirichlet", lambda: (torch._sample_dirichlet(grid), D.Dirichlet(grid.reshape(3, 3)).sample((2,)), D.Beta(grid, 0.5).sample()))
draw("few", lambda: D.Beta(torch.tensor(0.01), torch.tensor(0.01)).sample((9,)))
for n in (0.0, 1.0, 10.0, 400.0):
    for dtype in (torch.float32, torch.float64):
        p = torch.tensor([0.0, 0.01, 0.3, 0.5, 0.7, 0.999, 1.0], dtype=dtype)
        draw(f"binomial {n} {dtype.itemsize}", lambda: torch.binomial(torch.full_like(p, n), p))
draw("counts", lambda: (D.Poisson(grid).sample((2,)), D.Binomial(20, torch.tensor([0.2, 0.9])).sample((3,)),
                        D.NegativeBinomial(5, torch.tensor(0.3)).sample((3,)), D.Multinomial(9, torch.ones(4)).sample()))
draw("positive", lambda: (D.Chi2(grid).sample(), D.InverseGamma(grid[2:], 2.0).sample(), D.FisherSnedecor(grid[3:], 3.0).sample(),
                          D.Weibull(1.0, grid).sample(), D.Pareto(1.0, grid[3:]).sample(), D.HalfCauchy(2.0).sample((5,))))
T, x = D.transforms, torch.tensor([-200.0, -90.0, -1.0, 0.0, 17.0, 80.0])
for t in (T.SigmoidTransform(), T.StickBreakingTransform()):
    draw(type(t).__name__, lambda: (t(x), t.inv(t(x)), t.log_abs_det_jacobian(x, t(x))))
draw("ends", lambda: (T.SigmoidTransform().inv(torch.tensor([0.0, 1.0])), T._clipped_sigmoid(torch.tensor(99.0))))
draw("others", lambda: (D.StudentT(grid).sample(), D.Cauchy(0.0, 2.0).sample((3,)), D.VonMises(0.5, grid[:7]).sample((4,)),
                        D.Kumaraswamy(2.0, grid[:7]).sample(), D.LKJCholesky(3, 0.5).sample(), D.LogNormal(0.0, 1.0).sample((3,))))
draw("mixtures", lambda: (D.MixtureSameFamily(D.Categorical(torch.ones(2)), D.Normal(torch.zeros(2), torch.ones(2))).sample((9,)),
                          D.MixtureSameFamily(D.Categorical(torch.ones(4, 2)), D.Independent(D.Gamma(torch.ones(4, 2, 3), 1), 1)).sample()))
draw("slopes", lambda: (F.rrelu(torch.tensor([-1.0, 2.0, 0.0, -3.0]), training=True), F.alpha_dropout(torch.ones(9), 0.5, True)))
def slopes():
    a = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    w = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    for d in (D.Gamma(a, 2.0), D.Beta(a, 2.0), D.Dirichlet(a), D.StudentT(a), D.Weibull(a, 2.0), D.Cauchy(a, a)):
        (d.rsample((4,)).expand(4, 3) * w).sum().backward()
    return a.grad
draw("gradients", slopes)
""", 5e-4)


def test_a_transformer_in_training_drops_what_torch_drops():
    """torch draws in the order of memory, which after an attention with batch_first is (L, N, E)."""
    beside_torch(DRAWS + """
for batch_first in (True, False):
    for norm_first in (True, False):
        def trained():
            layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=batch_first, norm_first=norm_first)
            decoder = torch.nn.TransformerDecoderLayer(8, 2, 16, 0.3, batch_first=batch_first, norm_first=norm_first)
            x = torch.nn.TransformerEncoder(layer, 2)(torch.randn(3, 5, 8))
            y = decoder(torch.randn(3, 4, 8) if batch_first else torch.randn(4, 5, 8), x)
            y.square().sum().backward()
            return x, y, decoder.linear1.weight.grad, layer(torch.randn(4, 8))
        draw(f"{batch_first} {norm_first}", trained)
""", 2e-5)


def test_first_weights_are_torchs():
    beside_torch(DRAWS + """
from torch import nn
for name in "uniform normal trunc_normal xavier_uniform xavier_normal kaiming_uniform kaiming_normal orthogonal".split():
    draw(name, lambda: getattr(nn.init, name + "_")(torch.empty(6, 5)))
draw("truncated", lambda: nn.init.trunc_normal_(torch.empty(30), std=0.02))
draw("sparse", lambda: nn.init.sparse_(torch.empty(6, 4), 0.3))
for make in (lambda: nn.Linear(5, 7), lambda: nn.Conv2d(3, 4, 3), lambda: nn.ConvTranspose2d(3, 4, 3), lambda: nn.Conv1d(4, 4, 3, groups=2),
             lambda: nn.Embedding(7, 5, padding_idx=0), lambda: nn.LSTM(3, 4, 2, bidirectional=True), lambda: nn.GRU(3, 4),
             lambda: nn.LSTMCell(3, 4), lambda: nn.MultiheadAttention(8, 2), lambda: nn.EmbeddingBag(7, 5),
             lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2),
             lambda: nn.Transformer(8, 2, 1, 1, 16), lambda: nn.Bilinear(3, 4, 5), lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10])):
    draw(type(make()).__name__, lambda: dict(make().state_dict()))
""", 2e-6)


def test_batches_are_torchs():
    beside_torch(DRAWS + """
from itertools import islice
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset, WeightedRandomSampler, random_split
data = TensorDataset(torch.arange(20))
def two_epochs(**options):
    loader = DataLoader(data, batch_size=6, **options)
    return [batch[0] for epoch in range(2) for batch in loader]
draw("in order", two_epochs)
draw("shuffled", lambda: two_epochs(shuffle=True))
draw("generator", lambda: two_epochs(shuffle=True, generator=torch.Generator().manual_seed(1)))
draw("weighted", lambda: two_epochs(sampler=WeightedRandomSampler(torch.arange(1.0, 21), 15)))
draw("subset", lambda: two_epochs(sampler=SubsetRandomSampler(range(15))))
draw("replaced", lambda: two_epochs(sampler=RandomSampler(range(20), replacement=True, num_samples=40)))
draw("replaced, for ever", lambda: list(islice(RandomSampler(range(20), replacement=True, num_samples=10**10), 40)))      # as minGPT has it
draw("part", lambda: two_epochs(sampler=RandomSampler(range(20), num_samples=30)))
draw("first", lambda: next(iter(DataLoader(torch.arange(10), batch_size=3, shuffle=True))))
draw("split", lambda: [list(part.indices) for part in random_split(range(10), [7, 3])])
""")


def test_sobol_points_are_torchs():
    """Every bit, scrambled or not, in pieces, after points that are left out; a wrong number is an error."""
    pytest.importorskip("scipy")
    beside_torch(DRAWS + """
from torch.quasirandom import SobolEngine
for dimension in (1, 3, 40):
    for scramble in (False, True):
        def pieces():
            engine = SobolEngine(dimension, scramble=scramble)
            found = [engine.draw(1), engine.draw(5), engine.fast_forward(3).draw(2), repr(engine)]
            return [*found, engine.reset().draw_base2(3), engine.fast_forward(1000).draw(2, dtype=torch.float64), engine.num_generated]
        draw(f"{dimension} {scramble}", pieces)
draw("seeded", lambda: SobolEngine(2, scramble=True, seed=5).draw(4, dtype=torch.float64))
def refused(make):
    try:
        return make()
    except ValueError:
        return "ValueError"
say("errors", lambda: [refused(lambda: SobolEngine(0)), refused(lambda: SobolEngine(21202)), SobolEngine.MAXDIM,
                       refused(lambda: SobolEngine(2).fast_forward(3).draw_base2(2))])
""")


def test_the_state_is_torchs():
    """Byte for byte, in both directions, and with the second number of a pair."""
    beside_torch(DRAWS + """
def state():
    start = torch.get_rng_state()
    torch.randn(5)
    now = torch.get_rng_state()
    a = torch.randn(5)
    torch.set_rng_state(now)
    with torch.random.fork_rng():
        torch.rand(700)
    b = torch.randn(5)
    generator = torch.Generator().manual_seed(3)
    torch.rand(9, generator=generator)
    return start, now, a, b, torch.rand(3, generator=generator.clone_state()), generator.get_state(), torch.initial_seed()
draw("state", state)
""")


def test_blocks_do_not_change_the_stream():
    beside_torch(DRAWS + """
for block in (torch.no_grad, torch.inference_mode, torch.enable_grad):
    def inside():
        with block():
            return torch.randn(20), torch.rand(3), torch.nn.functional.dropout(torch.ones(9), 0.5), torch.empty(3).cauchy_()
    draw(block.__name__, inside)
""", 1e-6)


def test_a_script_prints_torchs_losses():
    beside_torch("""
from torch import nn
torch.manual_seed(0)
x = torch.randn(96, 5)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
losses = []
for epoch in range(4):
    for a, b in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
say("losses", lambda: losses)
""", 1e-5)


def test_laplace_and_wishart_draw_torchs_numbers():
    beside_torch(DRAWS + """
import torch.distributions as td
for shape in ((), (3,), (2, 20)):
    for dtype in (torch.float32, torch.float64):
        one = torch.ones((), dtype=dtype)
        draw(f"laplace {shape} {dtype}", lambda: td.Laplace(one, 2 * one).sample(shape))
        draw(f"wishart {shape} {dtype}", lambda: td.Wishart(4 * one, torch.eye(3, dtype=dtype) + 0.5).sample(shape))
    draw(f"wisharts {shape}", lambda: td.Wishart(torch.tensor([3.0, 5.0]), torch.eye(2)).rsample(shape))
""", 2e-6)
