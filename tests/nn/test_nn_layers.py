"""Layers that are more than a functional call, against numpy: norms, dropout of channels, shuffles, bags, activations, losses."""

import copy
import itertools
import math
from contextlib import nullcontext

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ArgumentError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(19)


def normal(*shape):
    return RNG.normal(size=shape) * 3


def check(module, expected, *inputs, rtol=1e-9, grad=True):
    """The value, traced and untraced; and the gradient by finite differences."""
    given = [tg.tensor(x, requires_grad=grad and x.dtype.kind == "f") for x in inputs]
    for run in (module, tg.trace(module)):
        np.testing.assert_allclose(run(*given).detach().numpy(), expected, rtol=rtol, atol=1e-12)
    if grad:
        assert tg.testing.gradcheck(module, tuple(given))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "CELU": lambda x: np.where(x > 0, x, np.exp(x) - 1), "Hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "Hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "Softsign": lambda x: x / (1 + abs(x)), "Tanhshrink": lambda x: x - np.tanh(x),
    "Softshrink": lambda x: np.sign(x) * np.maximum(abs(x) - 0.5, 0), "Hardshrink": lambda x: np.where(abs(x) > 0.5, x, 0),
    "LogSigmoid": lambda x: np.log(sigmoid(x)), "Hardtanh": lambda x: np.clip(x, -1, 1), "ReLU6": lambda x: np.clip(x, 0, 6),
    "SELU": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
    "PReLU": lambda x: np.where(x > 0, x, 0.25 * x),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    x = normal(13, 5)
    check(getattr(nn, name)().double(), ACTIVATIONS[name](x), x)


def test_activations_with_arguments():
    x = normal(7, 6, 3)
    check(nn.Threshold(0.5, -2.0), np.where(x > 0.5, x, -2.0), x)
    check(nn.CELU(2.0), np.where(x > 0, x, 2 * (np.exp(x / 2) - 1)), x)
    check(nn.GLU(1), x[:, :3] * sigmoid(x[:, 3:]), x)
    e = np.exp(-x)
    check(nn.Softmin(1), e / e.sum(1, keepdims=True), x)
    e = np.exp(x)
    check(nn.Softmax2d(), e / e.sum(0, keepdims=True), x)
    slopes = nn.PReLU(6, init=0.1).double()
    slopes.weight.data = tg.arange(6.0, dtype=tg.float64)
    check(slopes, np.where(x > 0, x, np.arange(6.0)[:, None] * x), x)
    check(nn.RReLU().eval(), np.where(x > 0, x, x * (1 / 8 + 1 / 3) / 2), x)
    tg.manual_seed(0)
    slope = (nn.RReLU(0.2, 0.4)(tg.tensor(-np.ones(1000)))).numpy()
    assert -0.4 <= slope.min() < -0.39
    assert -0.21 < slope.max() <= -0.2


@pytest.mark.parametrize(("kind", "shape"), [
    ("InstanceNorm1d", (4, 3, 13)), ("InstanceNorm2d", (4, 3, 7, 5)), ("InstanceNorm3d", (2, 3, 4, 5, 2))])
def test_instance_norms(kind, shape):
    x = normal(*shape)
    axes = tuple(range(2, x.ndim))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    expected = (x - mean) / np.sqrt(var + 1e-5)
    check(getattr(nn, kind)(3), expected, x, grad=x.size < 200)
    np.testing.assert_allclose(getattr(nn, kind)(3)(tg.tensor(x[1])).numpy(), expected[1], rtol=1e-9)
    tracking = getattr(nn, kind)(3, affine=True, track_running_stats=True, momentum=0.3).double()
    tracking(tg.tensor(x))
    np.testing.assert_allclose(tracking.running_mean.numpy(), 0.3 * mean.mean(0).ravel(), rtol=1e-9)
    np.testing.assert_allclose(tracking.running_var.numpy(), 0.7 + 0.3 * x.var(axes, ddof=1).mean(0), rtol=1e-9)
    shaped = [t.numpy().reshape(3, *[1] * len(axes)) for t in (tracking.running_mean, tracking.running_var)]
    np.testing.assert_allclose(tracking.eval()(tg.tensor(x)).detach().numpy(), (x - shaped[0]) / np.sqrt(shaped[1] + 1e-5), rtol=1e-9)
    with pytest.raises(ShapeError, match=f"{kind}: made for 3 channels"):
        tracking(tg.tensor(np.concatenate([x, x], 1)))


def test_other_norms():
    x = normal(5, 7, 3)
    check(nn.RMSNorm(3, eps=0.1).double(), x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 0.1), x)
    square = np.stack([(x[:, max(0, c - 1):c + 2] ** 2).sum(1) / 3 for c in range(7)], 1)
    check(nn.LocalResponseNorm(3, alpha=0.7, beta=0.5, k=2.0), x / (2.0 + 0.7 * square) ** 0.5, x)
    volume = normal(3, 2, 4, 5, 3)
    layer = nn.BatchNorm3d(2).double()
    expected = (volume - volume.mean((0, 2, 3, 4), keepdims=True)) / np.sqrt(volume.var((0, 2, 3, 4), keepdims=True) + 1e-5)
    np.testing.assert_allclose(layer(tg.tensor(volume)).detach().numpy(), expected, rtol=1e-9)
    layer.reset_running_stats()
    assert layer.running_var.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("kind", "shape"), [("Dropout1d", (40, 50, 7)), ("Dropout2d", (40, 50, 3, 4)), ("Dropout3d", (40, 50, 2, 3, 2))])
def test_channel_dropout(kind, shape):
    tg.manual_seed(0)
    layer = getattr(nn, kind)(0.25)
    y = layer(tg.ones(*shape)).numpy().reshape(2000, -1)
    assert (y == y[:, :1]).all()
    assert set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}
    assert (y[:, 0] == 0).mean() == pytest.approx(0.25, abs=0.04)
    with pytest.warns(UserWarning, match="dropout1d") if kind == "Dropout2d" else nullcontext():
        single = layer(tg.ones(*shape[1:])).numpy().reshape(150 if kind == "Dropout2d" else 50, -1)     # (N, C, L), as in torch
    assert (single == single[:, :1]).all()
    x = tg.ones(*shape)
    assert layer.eval()(x) is x
    with pytest.warns(UserWarning, match="3d") if kind == "Dropout3d" else pytest.raises(ShapeError, match=kind.lower()):
        layer(tg.ones(2))


def test_alpha_dropout_keeps_mean_and_variance():
    tg.manual_seed(0)
    x = tg.randn(40000)
    y = nn.AlphaDropout(0.3)(x).numpy()
    assert y.mean() == pytest.approx(0.0, abs=0.02)
    assert y.std() == pytest.approx(1.0, abs=0.02)
    _, counts = np.unique(y, return_counts=True)
    assert counts.max() / len(y) == pytest.approx(0.3, abs=0.01)
    assert not nn.AlphaDropout(1.0)(x).numpy().any()


def test_shuffles_and_shapes():
    x = normal(2, 18, 4, 5)
    expected = np.empty((2, 2, 12, 15))
    for i in range(3):
        for j in range(3):
            expected[:, :, i::3, j::3] = x[:, 3 * i + j::9]
    check(nn.PixelShuffle(3), expected, x, grad=False)
    check(nn.PixelUnshuffle(3), x, expected, grad=False)
    check(nn.Unflatten(1, (3, -1)), x.reshape(2, 3, 6, 4, 5), x, grad=False)
    with pytest.raises(ShapeError, match="multiple of upscale_factor"):
        nn.PixelShuffle(3)(tg.ones(1, 8, 2, 2))
    check(nn.ConstantPad2d((1, 2, 3, 0), 1.5), np.pad(x, ((0, 0), (0, 0), (3, 0), (1, 2)), constant_values=1.5), x, grad=False)
    check(nn.ReflectionPad2d(2), np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect"), x, grad=False)
    check(nn.ReplicationPad1d((1, 3)), np.pad(x[0], ((0, 0), (0, 0), (1, 3)), mode="edge"), x[0], grad=False)
    check(nn.CircularPad2d(1), np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="wrap"), x, grad=False)
    check(nn.ZeroPad1d(2), np.pad(x[0], ((0, 0), (0, 0), (2, 2))), x[0], grad=False)
    with pytest.raises(ArgumentError, match="4 of them"):
        nn.ZeroPad2d((1, 2))


def test_two_inputs():
    a, b = normal(7, 5), normal(7, 3)
    layer = nn.Bilinear(5, 3, 4).double()
    w, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    check(layer, np.einsum("ni,oij,nj->no", a, w, b) + bias, a, b)
    with pytest.raises(ShapeError, match="bilinear: takes"):
        layer(tg.tensor(b), tg.tensor(a))
    c = normal(7, 5)
    check(nn.PairwiseDistance(keepdim=True), np.linalg.norm(a - c + 1e-6, axis=1, keepdims=True), a, c)
    check(nn.CosineSimilarity(), (a * c).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(c, axis=1), a, c)
    p, q = RNG.uniform(0.1, 0.9, (7, 5)), RNG.uniform(0.1, 0.9, (7, 5))
    check(nn.BCELoss(), -(q * np.log(p) + (1 - q) * np.log(1 - p)).mean(), p, q)
    d = abs(a - c)
    check(nn.SmoothL1Loss(beta=0.5), np.where(d < 0.5, d ** 2, d - 0.25).mean(), a, c)
    check(nn.HuberLoss("sum", 0.5), np.where(d < 0.5, d ** 2 / 2, 0.5 * (d - 0.25)).sum(), a, c)
    check(nn.KLDivLoss("batchmean"), (q * (np.log(q) - np.log(p))).sum() / 7, np.log(p), q)
    assert np.isnan(nn.KLDivLoss("batchmean")(tg.zeros(0, 5), tg.zeros(0, 5)).item())
    with pytest.raises(ArgumentError, match="reduction"):
        nn.HuberLoss("all")


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_embedding_bags(mode):
    layer = nn.EmbeddingBag(11, 4, mode=mode, padding_idx=3).double()
    w = layer.weight.detach().numpy()
    reduce = {"mean": np.mean, "sum": np.sum, "max": np.max}[mode]

    def bag(rows):
        rows = [r for r in rows if r != 3]
        return reduce(w[rows], axis=0) if rows else np.zeros(4)

    index = RNG.integers(0, 11, (5, 7))
    index[2] = 3
    np.testing.assert_allclose(layer(tg.tensor(index)).detach().numpy(), [bag(row) for row in index], rtol=1e-12)
    flat, ends = RNG.integers(0, 11, 13), [0, 4, 4, 9, 13]
    expected = [bag(flat[a:b]) for a, b in itertools.pairwise(ends)]
    for offsets in (ends[:-1], tg.tensor(ends[:-1])):
        np.testing.assert_allclose(layer(tg.tensor(flat), offsets).detach().numpy(), expected, rtol=1e-12)
    layer(tg.tensor(index)).sum().backward()
    assert not layer.weight.grad.numpy()[3].any()
    for call, match in ((lambda: layer(tg.tensor(flat)), "without offsets, or"), (lambda: layer(tg.tensor(flat), [1, 2]), "rise from 0"),
                        (lambda: layer(tg.tensor(flat), [0, 5, 4]), "rise from 0"), (lambda: nn.EmbeddingBag(3, 2, mode="min"), "mode")):
        with pytest.raises((ArgumentError, ShapeError), match=match):
            call()


def test_weights_of_bags():
    layer = nn.EmbeddingBag(11, 4, mode="sum").double()
    index, factors = RNG.integers(0, 11, (5, 7)), normal(5, 7)
    got = layer(tg.tensor(index), per_sample_weights=tg.tensor(factors)).detach().numpy()
    np.testing.assert_allclose(got, (layer.weight.detach().numpy()[index] * factors[..., None]).sum(1), rtol=1e-10)
    assert 0.5 < layer.weight.detach().numpy().std() < 1.5
    assert math.isfinite(got.sum())


def _labels(*shape):
    return tg.tensor(RNG.integers(0, 3, shape))


def _signs(*shape):
    return tg.tensor(RNG.choice([-1.0, 1.0], shape))


X1, X2, X3 = (lambda *shape: tg.tensor(normal(2, 4, *shape)),) * 3
# module -> (arguments of it, tensors, what F gives for them): modules that are one function of F
WRAPPERS = {
    "MaxPool3d": ((2,), lambda: [X3(6, 7, 5)], lambda F, x: F.max_pool3d(x, 2)),
    "AvgPool3d": ((3, 2, 1), lambda: [X3(6, 7, 5)], lambda F, x: F.avg_pool3d(x, 3, 2, 1)),
    "AdaptiveAvgPool1d": ((3,), lambda: [X1(31)], lambda F, x: F.adaptive_avg_pool1d(x, 3)),
    "AdaptiveAvgPool2d": (((3, None),), lambda: [X2(7, 5)], lambda F, x: F.adaptive_avg_pool2d(x, (3, None))),
    "AdaptiveAvgPool3d": ((2,), lambda: [X3(3, 7, 5)], lambda F, x: F.adaptive_avg_pool3d(x, 2)),
    "AdaptiveMaxPool1d": ((3, True), lambda: [X1(31)], lambda F, x: F.adaptive_max_pool1d(x, 3, True)),
    "AdaptiveMaxPool2d": ((3,), lambda: [X2(7, 5)], lambda F, x: F.adaptive_max_pool2d(x, 3)),
    "AdaptiveMaxPool3d": ((2,), lambda: [X3(3, 7, 5)], lambda F, x: F.adaptive_max_pool3d(x, 2)),
    "LPPool1d": ((2, 3), lambda: [X1(31)], lambda F, x: F.lp_pool1d(x, 2, 3)),
    "LPPool2d": ((2, 3, 2), lambda: [X2(7, 13)], lambda F, x: F.lp_pool2d(x, 2, 3, 2)),
    "LPPool3d": ((2, 2), lambda: [X3(5, 7, 4)], lambda F, x: F.lp_pool3d(x, 2, 2)),
    "MaxUnpool1d": ((2,), lambda: [*nn.functional.max_pool1d(X1(16), 2, return_indices=True)], lambda F, x, i: F.max_unpool1d(x, i, 2)),
    "MaxUnpool2d": ((2,), lambda: [*nn.functional.max_pool2d(X2(6, 8), 2, return_indices=True)], lambda F, x, i: F.max_unpool2d(x, i, 2)),
    "MaxUnpool3d": ((2,), lambda: [*nn.functional.max_pool3d(X3(4, 6, 2), 2, return_indices=True)],
                    lambda F, x, i: F.max_unpool3d(x, i, 2)),
    "ChannelShuffle": ((2,), lambda: [X2(3, 5)], lambda F, x: F.channel_shuffle(x, 2)),
    "Unfold": (((2, 3), 1, 1, 2), lambda: [X2(7, 6)], lambda F, x: F.unfold(x, (2, 3), 1, 1, 2)),
    "Fold": (((5, 6), 2), lambda: [tg.tensor(normal(2, 12, 20))], lambda F, x: F.fold(x, (5, 6), 2)),
    "Upsample": ((None, 2.5, "bilinear"), lambda: [X2(7, 6)], lambda F, x: F.interpolate(x, scale_factor=2.5, mode="bilinear")),
    "UpsamplingNearest2d": ((13,), lambda: [X2(7, 6)], lambda F, x: F.interpolate(x, 13)),
    "UpsamplingBilinear2d": ((None, 2), lambda: [X2(7, 6)],
                             lambda F, x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)),
    "ReflectionPad3d": ((2,), lambda: [X3(3, 4, 5)], lambda F, x: F.pad(x, (2,) * 6, "reflect")),
    "ReplicationPad3d": (((1, 2, 0, 3, 2, 1),), lambda: [X3(3, 4, 5)], lambda F, x: F.pad(x, (1, 2, 0, 3, 2, 1), "replicate")),
    "CircularPad3d": ((2,), lambda: [X3(3, 4, 5)], lambda F, x: F.pad(x, (2,) * 6, "circular")),
    "PoissonNLLLoss": ((), lambda: [X1(5), X1(5) ** 2], lambda F, x, y: F.poisson_nll_loss(x, y)),
    "GaussianNLLLoss": ((), lambda: [X1(5), X1(5), X1(5) ** 2], lambda F, x, y, v: F.gaussian_nll_loss(x, y, v)),
    "MarginRankingLoss": ((0.3,), lambda: [X1(5), X1(5), _signs(2, 4, 5)], lambda F, x, y, t: F.margin_ranking_loss(x, y, t, 0.3)),
    "HingeEmbeddingLoss": ((0.7,), lambda: [X1(5), _signs(2, 4, 5)], lambda F, x, t: F.hinge_embedding_loss(x, t, 0.7)),
    "CosineEmbeddingLoss": ((0.2,), lambda: [X1(), X1(), _signs(2)], lambda F, x, y, t: F.cosine_embedding_loss(x, y, t, 0.2)),
    "SoftMarginLoss": ((), lambda: [X1(5), _signs(2, 4, 5)], lambda F, x, t: F.soft_margin_loss(x, t)),
    "MultiLabelMarginLoss": ((), lambda: [X1(), _labels(2, 4)], lambda F, x, t: F.multilabel_margin_loss(x, t)),
    "MultiLabelSoftMarginLoss": ((), lambda: [X1(), _signs(2, 4) > 0], lambda F, x, t: F.multilabel_soft_margin_loss(x, t)),
    "MultiMarginLoss": ((2, 0.4), lambda: [X1(), _labels(2)], lambda F, x, t: F.multi_margin_loss(x, t, 2, 0.4)),
    "TripletMarginLoss": ((0.4,), lambda: [X1(), X1(), X1()], lambda F, x, y, z: F.triplet_margin_loss(x, y, z, 0.4)),
    "TripletMarginWithDistanceLoss": ((), lambda: [X1(), X1(), X1()], lambda F, x, y, z: F.triplet_margin_with_distance_loss(x, y, z)),
    "CTCLoss": ((), lambda: [X1(5).log_softmax(-1), _labels(4, 2) + 1, (2,) * 4, (2,) * 4],
                lambda F, x, t, n, m: F.ctc_loss(x, t, n, m)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_modules_that_are_one_function(name):
    arguments, make, expected = WRAPPERS[name]
    module, tensors = getattr(nn, name)(*arguments), make()
    found, wanted = module(*tensors), expected(nn.functional, *tensors)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for a, b in pairs:
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    assert repr(module).startswith(name)
    with pytest.raises((TypeError, ArgumentError)):
        getattr(nn, name)(*arguments, no_such_argument=1)


@pytest.mark.parametrize("call", [
    lambda: nn.Hardshrink(0.5, lambd=0.3), lambda: nn.Fold((4, 5), 3, kernel_size=2), lambda: nn.Hardtanh(-2.0, min_val=-1.0),
    lambda: nn.HingeEmbeddingLoss(0.5, margin=2.0), lambda: nn.TripletMarginLoss(1.0, 2.0, p=1.0),
    lambda: nn.BCELoss(None, True, size_average=False), lambda: nn.FractionalMaxPool2d(3, 2, output_size=4),
    lambda: nn.functional.mse_loss(tg.ones(7), tg.ones(7), True, size_average=False)])
def test_an_argument_given_twice_is_an_error(call):
    """The name won, and nobody was told."""
    with pytest.raises(TypeError, match=r"got (several|multiple) values for"):
        call()


def test_older_names_of_hardtanh():
    with pytest.warns(FutureWarning, match="min_value is deprecated; use min_val"):
        layer = nn.Hardtanh(min_value=-3.0, max_val=2.0)
    assert repr(layer) == "Hardtanh(min_val=-3.0, max_val=2.0)"


def test_activations_in_place():
    for layer in (nn.ReLU(True), nn.ELU(0.5, True), nn.SELU(inplace=True), nn.Hardtanh(-0.5, 0.5, True), nn.ReLU6(True), nn.Mish(True)):
        x = tg.tensor(normal(33))
        other = copy.deepcopy(layer)
        other.inplace = False
        expected = other(x).numpy()
        assert layer(x) is x
        np.testing.assert_array_equal(x.numpy(), expected)
    assert repr(nn.ReLU(True)) == "ReLU(inplace=True)"


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes_of_convolutions(mode):
    layer = nn.Conv2d(3, 4, (3, 2), padding=(2, 1), padding_mode=mode).double()
    x = normal(2, 3, 7, 6)
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (1, 1)), mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])
    np.testing.assert_allclose(layer(tg.tensor(x)).detach().numpy(),
                               nn.functional.conv2d(tg.tensor(padded), layer.weight, layer.bias).detach().numpy(), rtol=1e-12)
    with pytest.raises(ArgumentError, match="padding_mode"):
        nn.Conv2d(3, 4, 3, padding_mode="mirror")


def test_convolutions_in_three_dimensions():
    layer, back = nn.Conv3d(3, 4, 2, stride=2).double(), nn.ConvTranspose3d(4, 3, 2, stride=2).double()
    x = tg.tensor(normal(2, 3, 5, 6, 7))
    y = layer(x)
    np.testing.assert_array_equal(y.detach().numpy(), nn.functional.conv3d(x, layer.weight, layer.bias, 2).detach().numpy())
    assert back(y, output_size=(5, 6, 7)).shape == x.shape
    with pytest.raises(ArgumentError, match="output_size"):
        back(y, output_size=(9, 6, 7))


def test_initial_values():
    for shape in ((13, 5), (5, 13), (7, 3, 3)):
        w = nn.init.orthogonal_(tg.zeros(*shape, dtype="float64"), gain=2.0).numpy().reshape(shape[0], -1)
        product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-12)
    w = nn.init.dirac_(tg.zeros(6, 3, 3, 3), groups=2)
    x = tg.randn(2, 6, 5, 5)
    np.testing.assert_array_equal(nn.functional.conv2d(x, w, padding=1, groups=2).numpy(), x.numpy())
    w = nn.init.sparse_(tg.ones(100, 7), 0.3).numpy()
    assert ((w == 0).sum(0) == 30).all()


def test_fractional_pools():
    tg.manual_seed(0)
    x = X3(9, 8, 7)
    y, places = nn.FractionalMaxPool3d(2, output_ratio=0.5, return_indices=True)(x)
    assert y.shape == (2, 4, 4, 4, 3)
    np.testing.assert_array_equal(y.numpy().reshape(8, -1), np.take_along_axis(x.numpy().reshape(8, -1), places.numpy().reshape(8, -1), 1))
    assert nn.FractionalMaxPool2d((2, 3), (5, 4))(X2(9, 8)).shape == (2, 4, 5, 4)
    with pytest.raises(ArgumentError, match="fractional_max_pool2d: give output_size"):
        nn.FractionalMaxPool2d(2)(X2(9, 8))


def test_a_batch_norm_whose_tracking_is_switched_off_counts_no_batches():
    layer, x = nn.BatchNorm1d(5, momentum=None).double(), tg.tensor(normal(10, 5))
    layer(x)
    layer.track_running_stats = False
    mean = layer.running_mean.tolist()
    layer(x * 3)
    layer.reset_running_stats()                             # forgets nothing, as torch's
    assert layer.num_batches_tracked.item() == 1
    assert layer.running_mean.tolist() == mean


def test_batch_norms_need_an_eps_in_training():
    for eps in (0.0, -1.0):
        layer = nn.BatchNorm1d(5, eps=eps)
        with pytest.raises(ValueError, match="batch_norm: eps must be positive in training, got"):
            layer(tg.randn(10, 5))
    nn.BatchNorm1d(5, eps=0.0).eval()(tg.randn(10, 5))


def test_instance_norms_without_a_weight_take_any_number_of_channels():
    x = tg.tensor(normal(4, 7, 10))
    with pytest.warns(UserWarning, match="InstanceNorm1d: made for 3 channels"):
        y = nn.InstanceNorm1d(3)(x)
    np.testing.assert_array_equal(y.numpy(), nn.InstanceNorm1d(7)(x).numpy())
    with pytest.raises(ShapeError, match="InstanceNorm1d: made for 3 channels"):
        nn.InstanceNorm1d(3, affine=True)(x)


def test_gaussian_nll_of_a_variance_for_any_one_dimension():
    x, y, var = tg.tensor(normal(4, 3, 10)), tg.tensor(normal(4, 3, 10)), tg.rand(4, 1, 10, dtype="float64") + 0.1
    full = nn.functional.gaussian_nll_loss(x, y, var.expand(4, 3, 10).clone(), reduction="none")
    np.testing.assert_allclose(nn.functional.gaussian_nll_loss(x, y, var, reduction="none").numpy(), full.numpy(), rtol=1e-14)
    for wrong in (var[:1], var.expand(4, 3, 10)[:, :2], var[0]):
        with pytest.raises(ShapeError, match="gaussian_nll_loss: var"):
            nn.functional.gaussian_nll_loss(x, y, wrong)


def test_what_packages_override_and_call():
    """Methods under torch's names, with an underscore: a convolution by another weight, blocks of a transformer's layer, checks."""
    class Doubled(nn.Conv2d):
        def forward(self, input):
            return self._conv_forward(input, self.weight * 2, None)

    x = tg.tensor(normal(2, 3, 6, 5))
    for mode in ("zeros", "reflect"):
        layer = Doubled(3, 4, 3, padding=1, padding_mode=mode).double()
        y = nn.Conv2d.forward(layer, x) - layer.bias.reshape(4, 1, 1)
        np.testing.assert_allclose(layer(x).detach().numpy(), 2 * y.detach().numpy(), rtol=1e-9, atol=1e-12)
    up = nn.ConvTranspose2d(3, 4, 3, stride=2)
    assert up._output_padding(x, (14, 12), up.stride, up.padding, up.kernel_size, 2, up.dilation) == (1, 1)

    class OfFive(nn.BatchNorm1d):
        def _check_input_dim(self, input):
            assert input.ndim == 5

    assert OfFive(3)(tg.randn(2, 3, 2, 2, 2)).shape == (2, 3, 2, 2, 2)

    class Still(nn.TransformerDecoderLayer):
        def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
            return tg.zeros_like(x)

        def _mha_block(self, x, mem, *rest):
            return super()._mha_block(x, mem, *rest) * 0

        def _ff_block(self, x):
            return super()._ff_block(x) * 0

    z = tg.tensor(normal(5, 2, 4))
    np.testing.assert_array_equal(Still(4, 2, 8, norm_first=True).double()(z, z).detach().numpy(), z.numpy())


def test_layers_begin_anew():
    for layer in (nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.RMSNorm(3), nn.PReLU(3), nn.BatchNorm1d(3)):
        before = [p.tolist() for p in layer.parameters()]
        with tg.no_grad():
            for p in layer.parameters():
                p.add_(2)
        layer.reset_parameters()
        assert [p.tolist() for p in layer.parameters()] == before


def test_parameter_dicts_are_dicts():
    layer = nn.ParameterDict({"a": tg.zeros(2)})
    assert layer.setdefault("b", tg.ones(1)).tolist() == [1.0]
    assert layer.setdefault("a", tg.ones(1)) is layer["a"]
    other = layer.copy()
    assert other["a"] is layer["a"]
    assert other.popitem()[0] == "b"
    assert [*layer.keys()] == ["a", "b"]
    assert [*layer.fromkeys(["x"], tg.ones(1))] == ["x"]
