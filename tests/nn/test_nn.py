"""Modules: registration, names, modes, saving; layers against the functional forms and numpy; traced training equals untraced."""

import copy
import inspect
import math
import pickle

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.errors import ArgumentError, ShapeError, TraceError
from tracegrad.nn import functional as F

# What a layer computes is tested on every device with the functions that it calls.
pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(5)


def random(*shape, dtype="float32"):
    return tg.tensor(RNG.normal(size=shape).astype(dtype))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.rest = nn.Sequential(nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 3, bias=False))
        self.scale = nn.Parameter(tg.ones(3))
        self.register_buffer("hidden", tg.zeros(2), persistent=False)

    def forward(self, x):
        return self.rest(self.norm(self.first(x))) * self.scale


# ------------------------------------------------------------------------------------------------------------ bookkeeping


def test_names_in_order_of_assignment():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == ["scale", "first.weight", "first.bias", "norm.weight", "norm.bias", "rest.2.weight"]
    assert [n for n, _ in net.named_buffers()] == ["hidden", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "norm", "rest", "rest.0", "rest.1", "rest.2"]
    assert "hidden" not in net.state_dict()
    assert net.rest[2].bias is None
    assert net.get_submodule("rest.2") is net.rest[2]
    assert all(p.requires_grad and p.is_leaf and isinstance(p, nn.Parameter) for p in net.parameters())


def test_shared_parameters_are_found_once():
    a = nn.Linear(3, 3)
    model = nn.Sequential(a, nn.Tanh(), a)
    assert len(list(model.parameters())) == 2
    assert set(model.state_dict()) >= {"0.weight", "0.bias"}


def test_attributes():
    m = nn.Module()
    m.w = nn.Parameter(tg.ones(2))
    assert "w" in dict(m.named_parameters())
    with pytest.raises(ArgumentError, match="expected a Parameter"):
        m.w = tg.ones(2)
    m.w = None
    assert list(m.parameters()) == []
    del m.w
    with pytest.raises(AttributeError, match="no attribute 'w'"):
        m.w
    m.w = 3
    m.w = nn.Linear(1, 1)
    assert "w" not in vars(m)

    class Early(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="super"):
        Early()
    with pytest.raises(NotImplementedError, match="forward"):
        m(1)


def test_modes_and_apply():
    net = Net().eval()
    assert not any(m.training for m in net.modules())
    assert net.train().rest[1].training
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen[-1] == "Net"
    assert len(seen) == 7
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())


def test_repr():
    assert repr(Net()) == """\
Net(
  (first): Linear(in_features=4, out_features=8, bias=True)
  (norm): BatchNorm1d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
  (rest): Sequential(
    (0): ReLU()
    (1): Dropout(p=0.25, inplace=False)
    (2): Linear(in_features=8, out_features=3, bias=False)
  )
)"""
    assert repr(nn.Conv2d(3, 6, 3, padding=1, groups=3)) == "Conv2d(3, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=3)"
    assert repr(nn.Softmax(dim=1)) == "Softmax(dim=1)"
    assert repr(nn.Parameter(tg.zeros(1))).startswith("Parameter containing:\nTensor(")


def test_zero_grad():
    net = nn.Linear(2, 1)
    net(random(3, 2)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert not net.weight.grad.numpy().any()
    net.zero_grad()
    assert net.weight.grad is None


def test_containers():
    model = nn.Sequential({"a": nn.Linear(2, 3), "b": nn.ReLU()})
    assert [n for n, _ in model.named_children()] == ["a", "b"]
    assert isinstance(model[1], nn.ReLU)
    assert len(model[:1]) == 1
    layers = nn.ModuleList([nn.Linear(2, 2)]).append(nn.Linear(2, 2))
    assert len(list(layers.parameters())) == 4
    layers[-1] = nn.ReLU()
    assert len(list(layers.parameters())) == 2
    assert list(nn.ModuleDict({"x": nn.ReLU()})) == ["x"]
    assert len(list(nn.ParameterList([tg.ones(1), tg.ones(2)]).parameters())) == 2
    with pytest.raises(IndexError):
        layers[2]
    with pytest.raises(ArgumentError, match="expected a Module"):
        layers.append(3)


# ------------------------------------------------------------------------------------------------------------------ saving


def test_state_dict_round_trip(tmp_path):
    one, other = Net(), Net()
    one(random(5, 4))
    nn.save_file(one.state_dict(), tmp_path / "net.safetensors", {"epoch": "3"})
    result = other.load_state_dict(nn.load_file(tmp_path / "net.safetensors"))
    assert result == ([], [])
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_state_dict_shares_values():
    layer = nn.Linear(2, 2)
    saved = layer.state_dict()
    with tg.no_grad():
        layer.weight.zero_()
    assert not saved["weight"].numpy().any()
    assert not saved["weight"].requires_grad


def test_a_state_dict_may_lack_the_count_of_batches():
    """As in torch: checkpoints from before it was counted have none."""
    net = nn.Sequential(nn.Linear(12, 5), nn.BatchNorm1d(5))
    net(tg.ones(65, 12))
    old = {k: 2 * v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    assert str(net.load_state_dict(old)) == "<All keys matched successfully>"
    assert str(type(net.load_state_dict(old))(["a"], [])) == "_IncompatibleKeys(missing_keys=['a'], unexpected_keys=[])"       # as torch
    assert net[1].num_batches_tracked.item() == 1
    assert net[1].weight.tolist() == [2.0] * 5
    with pytest.raises(tg.ArgumentError, match=r"missing 1\.running_mean"):
        net.load_state_dict({k: v for k, v in old.items() if k != "1.running_mean"})
    with pytest.raises(TypeError, match="expected a Parameter or None, got Tensor"):
        net[1].weight = tg.ones(5)


def test_load_state_dict_refuses_what_does_not_fit():
    layer = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match=r"missing bias; unexpected extra"):
        layer.load_state_dict({"weight": np.zeros((2, 2)), "extra": np.zeros(1)})
    result = layer.load_state_dict({"weight": np.zeros((2, 2)), "extra": np.zeros(1)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["bias"], ["extra"])
    assert not layer.weight.detach().numpy().any()
    assert layer.weight.dtype == tg.float32
    with pytest.raises(ShapeError, match=r"weight has shape \(3, 2\), expected \(2, 2\)"):
        layer.load_state_dict({"weight": np.zeros((3, 2)), "bias": np.zeros(2)})


def test_to_and_deepcopy():
    net = Net()
    opt = optim.SGD(net.parameters(), lr=0.1)
    weight = net.first.weight
    net.double()
    assert net.first.weight is weight
    assert weight.dtype == tg.float64
    assert weight.requires_grad
    assert net.norm.num_batches_tracked.dtype == tg.int64
    assert opt.param_groups[0]["params"][1] is weight
    net(random(5, 4, dtype="float64")).sum().backward()
    assert weight.grad.dtype == tg.float64
    twin = copy.deepcopy(net)
    assert isinstance(twin.first.weight, nn.Parameter)
    assert twin.first.weight is not weight
    np.testing.assert_array_equal(twin.first.weight.detach().numpy(), weight.detach().numpy())


# ------------------------------------------------------------------------------------------------------------------ layers


def test_functional_all_is_complete_and_sorted():
    assert list(F.__all__) == sorted(F.__all__)
    assert set(F.__all__) >= {
        "avg_pool2d", "batch_norm", "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv_transpose2d", "cross_entropy", "dropout",
        "embedding", "gelu", "layer_norm", "linear", "log_softmax", "max_pool2d", "mse_loss", "nll_loss", "pad", "relu",
        "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "softplus", "tanh"}
    assert all(callable(getattr(F, name)) for name in F.__all__)


def test_nn_all_is_complete_and_sorted():
    assert nn.__all__ == sorted(nn.__all__)
    layers = {n for n, c in vars(nn.modules).items() if inspect.isclass(c) and issubclass(c, nn.Module) and not n.startswith("_")}
    assert layers <= set(nn.__all__)


@pytest.mark.parametrize(("layer", "shape", "expected"), [
    (lambda: nn.Linear(4, 3), (2, 5, 4), (2, 5, 3)),
    (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), (1, 2, 8), (1, 4, 4)),
    (lambda: nn.Conv2d(2, 4, 3, padding="same", groups=2), (1, 2, 5, 6), (1, 4, 5, 6)),
    (lambda: nn.ConvTranspose1d(3, 2, 4, stride=2), (1, 3, 5), (1, 2, 12)),
    (lambda: nn.ConvTranspose2d(3, 2, 2, stride=2, output_padding=1), (1, 3, 3, 3), (1, 2, 7, 7)),
    (lambda: nn.LayerNorm((3, 4)), (2, 3, 4), (2, 3, 4)),
    (lambda: nn.LayerNorm(4, bias=False), (2, 3, 4), (2, 3, 4)),
    (lambda: nn.GroupNorm(2, 4), (2, 4, 5), (2, 4, 5)),
    (lambda: nn.BatchNorm2d(3), (2, 3, 4, 5), (2, 3, 4, 5)),
    (lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False), (5, 3), (5, 3)),
    (lambda: nn.MaxPool2d(2), (1, 2, 6, 6), (1, 2, 3, 3)),
    (lambda: nn.AvgPool2d(3, stride=1, padding=1), (1, 2, 6, 6), (1, 2, 6, 6)),
    (lambda: nn.AvgPool2d(2, divisor_override=3), (1, 2, 6, 6), (1, 2, 3, 3)),
    (lambda: nn.AdaptiveAvgPool2d(1), (1, 2, 6, 6), (1, 2, 1, 1)),
    (lambda: nn.AdaptiveAvgPool2d((None, 2)), (1, 2, 6, 6), (1, 2, 6, 2)),
    (nn.Flatten, (2, 3, 4), (2, 12)),
    (lambda: nn.Sequential(nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.LeakyReLU(0.2), nn.Softplus()), (2, 3), (2, 3)),
    (lambda: nn.Sequential(nn.ELU(), nn.Softmax(-1), nn.LogSoftmax(dim=0), nn.Identity(), nn.ReLU(inplace=True)), (2, 3), (2, 3)),
])
def test_shapes_and_gradients(layer, shape, expected):
    module = layer()
    y = module(random(*shape))
    assert y.shape == expected
    if list(module.parameters()):
        (y * y).sum().backward()
        assert all(p.grad is not None and np.isfinite(p.grad.numpy()).all() for p in module.parameters())


def test_initial_values_are_torchs():
    tg.manual_seed(0)
    for module, fan_in in ((nn.Linear(100, 50), 100), (nn.Conv2d(8, 16, 5), 200), (nn.Conv2d(8, 16, 5, groups=2), 100)):
        bound = 1 / math.sqrt(fan_in)
        for p in module.parameters():
            values = p.detach().numpy()
            assert 0.5 * bound < np.abs(values).max() <= bound
        assert module.weight.detach().numpy().std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    table = nn.Embedding(100, 50, padding_idx=-1).weight.detach().numpy()
    assert table[:99].std() == pytest.approx(1.0, rel=0.1)
    assert not table[99].any()
    w = tg.empty(60, 40)
    assert nn.init.kaiming_normal_(w, nonlinearity="relu").numpy().std() == pytest.approx(math.sqrt(2 / 40), rel=0.1)
    assert np.abs(nn.init.xavier_uniform_(w).numpy()).max() <= math.sqrt(6 / 100)
    assert nn.init._calculate_fan_in_and_fan_out(tg.ones(3, 4, 5, 7)) == (4 * 35, 3 * 35)
    assert nn.init.xavier_normal_(w).numpy().std() == pytest.approx(math.sqrt(2 / 100), rel=0.1)
    assert np.abs(nn.init.trunc_normal_(w, std=2.0).numpy()).max() <= 2
    np.testing.assert_array_equal(nn.init.eye_(w).numpy(), np.eye(60, 40))
    with pytest.raises(ShapeError, match="two dimensions"):
        nn.init.xavier_uniform_(tg.empty(3))


def test_batch_norm_statistics():
    for momentum, weights in ((0.3, [0.3, 0.3]), (None, [1.0, 0.5])):
        layer = nn.BatchNorm1d(3, momentum=momentum)
        mean, var = np.zeros(3), np.ones(3)
        for w in weights:
            x = random(6, 3)
            y = layer(x)
            v = x.numpy()
            np.testing.assert_allclose(y.detach().numpy(), (v - v.mean(0)) / np.sqrt(v.var(0) + 1e-5), rtol=1e-4, atol=1e-5)
            mean, var = (1 - w) * mean + w * v.mean(0), (1 - w) * var + w * v.var(0, ddof=1)
        assert layer.num_batches_tracked.item() == 2
        np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(layer.running_var.numpy(), var, rtol=1e-4)
        x = random(1, 3)
        np.testing.assert_allclose(layer.eval()(x).detach().numpy(), (x.numpy() - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="made for 3 channels"):
        layer(random(2, 4))
    with pytest.raises(ShapeError, match="takes 4 dimensions"):
        nn.BatchNorm2d(3)(random(2, 3))


def test_dropout():
    tg.manual_seed(0)
    layer = nn.Dropout(0.25)
    y = layer(tg.ones(4000)).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}
    assert y.mean() == pytest.approx(1.0, abs=0.05)
    x = tg.ones(3)
    assert layer.eval()(x) is x


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention(batch_first):
    layer = nn.MultiheadAttention(6, 2, batch_first=batch_first)
    x = random(2, 5, 6)
    mask = tg.ones(5, 5, dtype=tg.bool_).triu(1)
    given = x if batch_first else x.transpose(0, 1)
    y, weights = layer(given, given, given, attn_mask=mask)
    w, b = layer.in_proj_weight.detach().numpy(), layer.in_proj_bias.detach().numpy()
    q, k, v = np.split(x.numpy() @ w.T + b, 3, axis=-1)
    heads, weights_of = [], []
    for h in (slice(0, 3), slice(3, 6)):
        s = q[..., h] @ k[..., h].transpose(0, 2, 1) / math.sqrt(3)
        s = np.where(mask.numpy(), -np.inf, s)
        p = np.exp(s - s.max(-1, keepdims=True))
        weights_of.append(p / p.sum(-1, keepdims=True))
        heads.append(weights_of[-1] @ v[..., h])
    expected = np.concatenate(heads, -1) @ layer.out_proj.weight.detach().numpy().T
    got = y.detach().numpy() if batch_first else y.detach().numpy().transpose(1, 0, 2)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weights.detach().numpy(), np.mean(weights_of, 0), rtol=1e-4, atol=1e-6)
    each = layer(given, given, given, attn_mask=mask, average_attn_weights=False)[1]
    np.testing.assert_allclose(each.detach().numpy(), np.stack(weights_of, 1), rtol=1e-4, atol=1e-6)
    lean, nothing = layer(given, given, given, attn_mask=mask, need_weights=False)
    assert nothing is None
    np.testing.assert_allclose(lean.detach().numpy(), y.detach().numpy(), rtol=1e-4, atol=1e-6)
    single, _ = layer(x[0], x[0], x[0], is_causal=True)
    np.testing.assert_allclose(single.detach().numpy(), expected[0], rtol=1e-4, atol=1e-5)


def test_losses():
    x, y = random(4, 3), random(4, 3)
    a, b = x.numpy(), y.numpy()
    assert nn.MSELoss()(x, y).item() == pytest.approx(((a - b) ** 2).mean(), rel=1e-5)
    assert nn.L1Loss(reduction="sum")(x, y).item() == pytest.approx(np.abs(a - b).sum(), rel=1e-5)
    target = tg.tensor([0, 2, 1, 0])
    logp = a - np.log(np.exp(a).sum(1, keepdims=True))
    picked = -logp[np.arange(4), target.numpy()]
    assert nn.CrossEntropyLoss()(x, target).item() == pytest.approx(picked.mean(), rel=1e-5)
    w = np.array([1.0, 2.0, 3.0], np.float32)
    weighted = nn.CrossEntropyLoss(weight=tg.tensor(w))(x, target).item()
    assert weighted == pytest.approx((picked * w[target.numpy()]).sum() / w[target.numpy()].sum(), rel=1e-5)
    assert nn.NLLLoss()(x.log_softmax(1), target).item() == pytest.approx(picked.mean(), rel=1e-5)
    assert nn.NLLLoss(weight=tg.tensor(w), ignore_index=1)(x.log_softmax(1), target).item() == pytest.approx(
        (picked * w[target.numpy()])[[0, 1, 3]].sum() / w[target.numpy()][[0, 1, 3]].sum(), rel=1e-5)
    t = (b > 0).astype(np.float32)
    expected = np.log1p(np.exp(-a)) * t + np.log1p(np.exp(a)) * (1 - t)
    np.testing.assert_allclose(nn.BCEWithLogitsLoss(reduction="none")(x, tg.tensor(t)).numpy(), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ArgumentError, match="reduction"):
        nn.MSELoss("average")


@pytest.mark.parametrize("make", [
    lambda: nn.Conv2d(3, 4, 3, groups=2), lambda: nn.Dropout(1.5), lambda: nn.Embedding(3, 2, padding_idx=3),
    lambda: nn.MultiheadAttention(5, 2), lambda: nn.GroupNorm(2, 3)])
def test_bad_arguments(make):
    with pytest.raises(ArgumentError):
        make()


# ------------------------------------------------------------------------------------------------------------------ traced


def train(traced, steps=4, make_optimizer=lambda p: optim.Adam(p, lr=0.05)):
    """Weights, statistics and losses after a few steps from the same start and the same random stream."""
    tg.manual_seed(1)
    net = Net()
    opt = make_optimizer(net.parameters())
    x, y = tg.randn(16, 4), tg.randint(0, 3, (16,))

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    run = tg.trace(step) if traced else step
    losses = [run(x, y).item() for _ in range(steps)]
    return net, losses, run


def test_traced_training_equals_untraced(device):
    plain, losses, _ = train(False)
    traced, traced_losses, run = train(True)
    np.testing.assert_allclose(traced_losses, losses, rtol=1e-4)
    for (name, a), (_, b) in zip(plain.state_dict().items(), traced.state_dict().items(), strict=True):
        # The norm takes the bias out again: its gradient is rounding errors, of which Adam makes steps, and the mean follows.
        if name not in ("first.bias", "norm.running_mean"):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-3, atol=1e-4, err_msg=name)
    assert traced.norm.num_batches_tracked.item() == 4
    assert len(run.compilations) == 1


def test_modes_record_anew():
    net = Net()
    forward = tg.trace(lambda x: net(x) * 1.0)
    x = random(5, 4)
    forward(x)
    net.eval()
    np.testing.assert_allclose(forward(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-5)
    assert len(forward.compilations) == 2
    net.train()
    forward(x)
    assert len(forward.compilations) == 2


def test_replaced_layers_and_loaded_weights_show():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    forward = tg.trace(net)
    x = random(3, 2)
    forward(x)
    net.load_state_dict({k: np.ones(v.shape) for k, v in net.state_dict().items()})
    np.testing.assert_allclose(forward(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-6)
    assert len(forward.compilations) == 1
    net[0] = nn.Linear(2, 2)
    np.testing.assert_allclose(forward(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-6)
    net[0].double().float()
    forward(x)


def test_modules_cannot_be_made_in_a_trace():
    with pytest.raises(TraceError, match="outside"):
        tg.trace(lambda x: nn.Linear(2, 2).forward(x))(random(3, 2))


# ------------------------------------------------------------------------------------------- parameters under several names


class Tied(nn.Module):
    """Two names of a weight, of a buffer and of a layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head, self.block = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(3, 3)
        self.head.weight, self.again = self.embedding.weight, self.block
        self.register_buffer("first", tg.ones(2))
        self.register_buffer("second", self.first)

    def forward(self, x):
        return self.head(self.again(self.block(self.embedding(x))))

    def is_tied(self):
        return (self.head.weight is self.embedding.weight and self.first is self.second and self.again is self.block
                and len(list(self.parameters())) == 3 and len(list(self.named_parameters(remove_duplicate=False))) == 6
                and len(list(self.buffers())) == 1 and len(self.state_dict()) == 8)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("saved", ["tensors", "parameters", "arrays", "a file", "one name"])
def test_what_is_tied_stays_tied_when_loaded(saved, assign, tmp_path):
    source, model = Tied(), Tied()
    state = source.state_dict(keep_vars=saved == "parameters")
    if saved == "arrays":
        state = {name: t.numpy() for name, t in state.items()}
    elif saved == "a file":
        tg.save(state, tmp_path / "x")
        state = tg.load(tmp_path / "x")
    elif saved == "one name":
        state = {name: state[name] for name in ("head.weight", "block.weight", "block.bias", "second")}
    model.load_state_dict(state, strict=saved != "one name", assign=assign)
    assert source.is_tied()
    assert model.is_tied()
    ids = tg.tensor([0, 4, 2])
    np.testing.assert_array_equal(model(ids).detach().numpy(), source(ids).detach().numpy())
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):                                     # and do not drift apart
        optimizer.zero_grad()
        (model(ids) ** 2).sum().backward()
        optimizer.step()
    assert model.is_tied()
    assert (model.embedding.weight is source.embedding.weight) == (assign and saved == "parameters")


def test_of_several_values_of_one_parameter_the_last_counts():
    state = {name: t.clone() for name, t in Tied().state_dict().items()}
    state["head.weight"].fill_(7)
    for assign in (False, True):
        model = Tied()
        model.load_state_dict(state, assign=assign)
        assert model.is_tied()
        assert (model.embedding.weight.detach().numpy() == 7).all()


def test_what_is_tied_stays_tied_when_moved_or_copied():
    model = Tied()
    for change in (lambda m: m.double(), lambda m: m.half(), lambda m: m.to("numpy"), lambda m: m.float(), copy.deepcopy,
                   lambda m: pickle.loads(pickle.dumps(m))):
        model = change(model)
        assert model.is_tied()
        assert model.head.weight.dtype == model.embedding.weight.dtype
    assert copy.deepcopy(model).embedding.weight is not model.embedding.weight


def test_modules_that_share_their_table_of_parameters_are_loaded_once():
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other._parameters = one._parameters
    model, apart = nn.Sequential(one, other), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.load_state_dict(apart.state_dict(), assign=True)
    assert model[0].weight is model[1].weight
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), apart[1].weight.detach().numpy())
    apart.load_state_dict(model.state_dict(), assign=True)
    assert len(list(apart.parameters())) == 4              # what is not tied does not become so
