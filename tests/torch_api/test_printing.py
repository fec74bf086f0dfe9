"""Tensors print under the hook as they do with torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch


def test_texts_are_torchs():
    beside_torch("""
torch.manual_seed(0)
tensors = dict(
    number=torch.tensor(1.5), whole=torch.tensor([1.0, 2.0, 300.0]), mixed=torch.tensor([[1.5, 2.0], [-3.25, 1000.0]]),
    zero=torch.zeros(2, 3), product=torch.ones(2, requires_grad=True) * 2, total=torch.ones(2, requires_grad=True).sum(),
    powers=torch.tensor([1e-6, 1.0, 1e5]), large=torch.tensor([1e9, 1.0]), special=torch.tensor([float("nan"), float("inf"), -1.5]),
    infinite=torch.tensor([float("inf"), 2.0]), integers=torch.tensor([[1, -20], [300, 4]]), bools=torch.tensor([True, False]),
    half=torch.tensor([1.5, 2.0]).half(), other=torch.tensor([1.5], dtype=torch.float64), int32=torch.tensor([1], dtype=torch.int32),
    complex=torch.tensor([1 + 2j, -3.5j]), empty=torch.zeros(0), empty2=torch.zeros(0, 3), none=torch.zeros(0, dtype=torch.int64),
    random=torch.randn(3, 4), wide=torch.randn(30), cube=torch.randn(2, 2, 3), long=torch.arange(2000), big=torch.randn(50, 60),
    deep=torch.zeros(2, 1, 1, 2), leaf=torch.ones(2, requires_grad=True), parameter=torch.nn.Parameter(torch.ones(2, 2)),
    meta=torch.zeros(2, device="meta"), halves=torch.randn(3, 3).bfloat16(),
    many=torch.randn(3, 40, requires_grad=True, dtype=torch.float64))
for name, tensor in tensors.items():
    say(name, lambda: repr(tensor))
    say(name + " in text", lambda: f"{tensor} {tensor.shape}")
say("numbers", lambda: f"{torch.tensor(1.23456):.2f} {torch.tensor(3)} {torch.tensor([1])}")
torch.set_printoptions(precision=2, sci_mode=False, linewidth=60)
say("options", lambda: (str(torch.randn(3, 12)), str(torch.tensor([1e-6, 1.0]))))
torch.set_printoptions(profile="full")
say("full", lambda: str(torch.arange(1200)))
""")


def test_modules_and_distributions_are_torchs():
    beside_torch("""
from torch import nn
import torch.distributions as td
modules = '''nn.FractionalMaxPool2d(2, output_size=3)|nn.FractionalMaxPool3d(2, output_ratio=0.5)|nn.MaxUnpool1d(2)|nn.MaxUnpool2d(2, 2)
nn.MaxUnpool3d(2, padding=1)|nn.EmbeddingBag(5, 3, padding_idx=1)|nn.EmbeddingBag(5, 3, max_norm=2.0, mode='sum')
nn.Embedding(5, 3, padding_idx=1, max_norm=2.0, norm_type=1.0, scale_grad_by_freq=True)|nn.CosineSimilarity()|nn.PairwiseDistance()
nn.TripletMarginWithDistanceLoss()|nn.ParameterDict({'a': torch.zeros(2)})|nn.ParameterList([torch.zeros(2, 3)])
nn.utils.weight_norm(nn.Linear(2, 3))|nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))'''
for text in modules.replace(chr(10), "|").split("|"):
    say(text, lambda: repr(eval(text)))
say("sizes", lambda: [nn.MaxUnpool2d(2).kernel_size, nn.FractionalMaxPool2d(2, output_size=3).output_size])
distributions = '''td.Normal(torch.zeros(1), torch.ones(1))|td.Beta(1.0, 2.0)|td.Chi2(2.0)|td.HalfCauchy(1.0)|td.HalfNormal(1.0)
td.InverseGamma(1.0, 2.0)
td.LogNormal(0.0, 1.0)|td.LogisticNormal(torch.zeros(2), torch.ones(2))|td.MultivariateNormal(torch.zeros(2), torch.eye(2))
td.MultivariateNormal(torch.zeros(2), precision_matrix=torch.eye(2))|td.MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2))
td.Pareto(1.0, 2.0)|td.RelaxedBernoulli(torch.tensor(1.0), torch.tensor(0.5))|td.RelaxedOneHotCategorical(torch.tensor(1.0), torch.ones(3))
td.TransformedDistribution(td.Normal(0.0, 1.0), [td.ExpTransform()])|td.Gumbel(0.0, 1.0)|td.Weibull(1.0, 2.0)|td.Kumaraswamy(1.0, 2.0)
td.Wishart(torch.tensor(3.0), torch.eye(2))|td.OneHotCategorical(torch.ones(3))|td.Multinomial(3, torch.ones(3))'''
for text in distributions.replace(chr(10), "|").split("|"):
    made = eval(text)
    say(text, lambda: [repr(made), repr(made.expand((2, *made.batch_shape)))])
for text in '''td.ComposeTransform([td.ExpTransform(), td.AffineTransform(0.0, 1.0)])|td.ExpTransform().inv|td.identity_transform
td.IndependentTransform(td.ExpTransform(), 1)'''.replace(chr(10), "|").split("|"):
    say(text, lambda: repr(eval(text)))
say("supports", lambda: [td.Binomial(3, 0.5).has_enumerate_support, sorted(td.LogisticNormal.arg_constraints),
                         str(td.NegativeBinomial.arg_constraints)])
def refused(probs):
    try:
        return td.NegativeBinomial(3.0, probs) is None
    except ValueError:
        return True
say("refused", lambda: [refused(1.0), refused(0.5)])
""")
