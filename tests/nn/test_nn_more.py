"""Layers and helpers that torch has besides the usual ones: adaptive softmax, older norms, orthogonal weights, fusion, buffers, embeddings.

The slow tests compare with torch, in float64; the others with what the things are.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.nn import functional as F
from tracegrad.nn.utils import parametrizations, parametrize

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(4)


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy() if hasattr(b, "detach") else b, rtol=tolerance, atol=tolerance)


def copied(source: Any, target: Any, torch: Any) -> None:
    """The values of one model's state dict as another's, from tracegrad's to torch's."""
    target.load_state_dict({name: torch.from_numpy(value.detach().numpy()) for name, value in source.state_dict().items()})


# -------------------------------------------------------------------------------------------------------- losses with layers


def adaptive(t: Any, bias: bool = True) -> Any:
    return t.nn.AdaptiveLogSoftmaxWithLoss(13, 100, [7, 33], div_value=2.0, head_bias=bias).double()


def test_adaptive_softmax_is_a_softmax() -> None:
    tg.manual_seed(0)
    loss = adaptive(tg)
    x, target = tg.randn(65, 13, dtype=tg.float64), tg.randint(0, 100, (65,))
    found, whole = loss(x, target), loss.log_prob(x)
    close(whole.exp().sum(1), np.ones(65))
    close(found.output, whole.gather(1, target.unsqueeze(1)).squeeze(1))
    close(found.loss, -found.output.mean())
    one = loss(x[3], target[3])
    close(one.output, found.output[3])
    assert one.output.shape == ()
    predicted, head = loss.predict(x).numpy(), loss.head(x).argmax(1).numpy()
    assert (predicted == np.where(head < 7, head, whole.argmax(1).numpy())).all()
    traced = tg.trace(lambda x, t: loss(x, t).loss)
    close(traced(x, target), found.loss)
    assert tg.testing.gradcheck(lambda x: loss(x, target[:5]).loss, x[:5].clone().requires_grad_())
    with pytest.raises(tg.IndexOutOfRange, match=r"AdaptiveLogSoftmaxWithLoss.*100, out of range for 100 classes"):
        loss(x, target * 0 + 100).loss.item()
    with pytest.raises(ValueError, match=r"AdaptiveLogSoftmaxWithLoss: cutoffs .*99, got \[5, 5\]"):
        nn.AdaptiveLogSoftmaxWithLoss(3, 100, [5, 5])
    with pytest.raises(RuntimeError, match=r"AdaptiveLogSoftmaxWithLoss: .*\(65, 13\) and \(5,\)"):
        loss(x, target[:5])


@pytest.mark.slow
def test_adaptive_softmax_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for bias in (True, False):
        mine, theirs = adaptive(tg, bias), adaptive(torch, bias)
        copied(mine, theirs, torch)
        x, target = RNG.standard_normal((65, 13)), RNG.integers(0, 100, 65)
        a, b = mine(tg.tensor(x), tg.tensor(target)), theirs(torch.tensor(x), torch.tensor(target))
        a.loss.backward()
        b.loss.backward()
        close(a.output, b.output)
        assert (mine.predict(tg.tensor(x)).numpy() == theirs.predict(torch.tensor(x)).numpy()).all()
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            close(p.grad, q.grad)


def test_linear_cross_entropy_loss() -> None:
    x, target = tg.randn(7, 5, dtype=tg.float64), tg.tensor([0, 3, 1, 2, 9, 9, 0])
    loss = nn.LinearCrossEntropyLoss(5, 10, bias=True, weight=tg.rand(10, dtype=tg.float64), ignore_index=9, label_smoothing=0.1).double()
    expected = F.cross_entropy(loss.linear(x), target, loss.weight, ignore_index=9, label_smoothing=0.1)
    close(loss(x, target), expected)
    assert set(loss.state_dict()) == {"weight", "linear.weight", "linear.bias"}
    with pytest.raises(RuntimeError, match=r"LinearCrossEntropyLoss: weight must be of shape \(10,\)"):
        nn.LinearCrossEntropyLoss(5, 10, weight=tg.ones(3))


def test_weights_of_elements() -> None:
    x, y, w = (tg.rand(7, 5, dtype=tg.float64) for _ in range(3))
    for name, plain in (("mse_loss", (x - y) ** 2), ("l1_loss", (x - y).abs()), ("huber_loss", (x - y) ** 2 / 2)):
        loss = getattr(F, name)
        close(loss(x, y, weight=w), (plain * w).sum() / w.sum())
        close(loss(x, y, reduction="sum", weight=w), (plain * w).sum())
        close(loss(x, y, reduction="none", weight=w), plain * w)
        with pytest.raises(ValueError, match=rf"{name}: weight \(5,\)"):
            loss(x, y, weight=w[0])


# --------------------------------------------------------------------------------------------------------- weights from others


def test_older_weight_norm() -> None:
    layer = nn.Linear(7, 5).double()
    before = layer.weight.detach().clone()
    assert nn.utils.weight_norm(layer) is layer
    assert [n for n, _ in layer.named_parameters()] == ["bias", "weight_g", "weight_v"]
    assert layer.weight_g.shape == (5, 1)
    close(layer.weight, before)
    with tg.no_grad():
        layer.weight_g.mul_(2)
    close(layer.weight, before * 2)
    x = tg.randn(3, 7, dtype=tg.float64)
    close(tg.trace(layer.forward)(x), layer(x))
    (layer(x) ** 2).sum().backward()
    assert layer.weight_g.grad is not None
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        close(twin(x), layer(x))
        with tg.no_grad():
            twin.weight_g.mul_(3)
        close(twin.weight, before * 6)
    close(layer.weight, before * 2)
    with pytest.raises(RuntimeError, match=r"weight_norm: .*weight is computed already"):
        nn.utils.weight_norm(layer)
    nn.utils.remove_weight_norm(layer)
    assert type(layer) is nn.Linear
    assert isinstance(layer.weight, nn.Parameter)
    close(layer.weight, before * 2)
    with pytest.raises(ValueError, match=r"remove_weight_norm: Linear.weight is not"):
        nn.utils.remove_weight_norm(layer)
    with pytest.raises(ValueError, match=r"weight_norm: Linear has no parameter 'w'"):
        nn.utils.weight_norm(layer, "w")


@pytest.mark.parametrize("make", [lambda t: t.nn.Linear(7, 5), lambda t: t.nn.ConvTranspose2d(3, 4, 2)], ids=["Linear", "ConvTranspose2d"])
def test_older_spectral_norm(make: Any) -> None:
    layer = nn.utils.spectral_norm(make(tg).double(), n_power_iterations=30)
    shape = (5, 7) if isinstance(layer, nn.Linear) else (2, 3, 5, 6)
    x = tg.randn(*shape, dtype=tg.float64)
    layer(x)
    matrix = layer.weight_orig if isinstance(layer, nn.Linear) else layer.weight_orig.movedim(1, 0).flatten(1)
    close(layer.weight * tg.linalg.svdvals(matrix)[0], layer.weight_orig, 1e-6)
    assert {"weight_orig", "weight_u", "weight_v", "bias"} == set(layer.state_dict())
    layer.eval()
    u = layer.weight_u.clone()
    layer(x)
    close(layer.weight_u, u)
    twin = copy.deepcopy(layer)
    close(twin(x), layer(x))
    before = layer(x)
    nn.utils.remove_spectral_norm(layer)
    close(layer(x), before)
    assert set(layer.state_dict()) == {"weight", "bias"}
    layer.train()
    close(layer(x), before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_older_norms_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x = RNG.standard_normal((2, 3, 7, 6))
    for norm, dims in (("weight_norm", (0, 1, None)), ("spectral_norm", (None,))):
        for make in (lambda t: t.nn.Conv2d(3, 5, 3), lambda t: t.nn.ConvTranspose2d(3, 4, 2)):
            for dim in dims:
                mine, theirs = (getattr(t.nn.utils, norm)(make(t).double(), dim=dim) for t in (tg, torch))
                copied(mine, theirs, torch)
                steps = [t.optim.SGD(m.parameters(), lr=0.1) for t, m in ((tg, mine), (torch, theirs))]
                for _ in range(20):
                    losses = [(m(t.tensor(x)) ** 2).mean() for t, m in ((tg, mine), (torch, theirs))]
                    for step, loss in zip(steps, losses, strict=True):
                        step.zero_grad()
                        loss.backward()
                        step.step()
                assert set(mine.state_dict()) == set(theirs.state_dict())
                for name, value in mine.state_dict().items():
                    close(value, theirs.state_dict()[name], 1e-9)


def test_spectral_norm_of_transposed_convolutions_is_that_of_their_outputs() -> None:
    layer = parametrizations.spectral_norm(nn.ConvTranspose2d(3, 4, 2).double())
    assert layer.parametrizations.weight[0]._u.shape == (4,)


@pytest.mark.parametrize("map_", ["matrix_exp", "cayley", "householder", None])
@pytest.mark.parametrize("shape", [(7, 7), (13, 5), (5, 13), (3, 6, 4)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_orthogonal_weights(map_: str | None, shape: tuple[int, ...], dtype: str) -> None:
    if map_ == "householder" and dtype == "complex128":
        with pytest.raises(ValueError, match=r"orthogonal: 'householder' is for real"):
            parametrizations.orthogonal(holder(tg, shape, dtype), "w", map_)
        return
    for trivial in (True, False):
        if not trivial and map_ != "householder":
            continue
        module = parametrizations.orthogonal(holder(tg, shape, dtype), "w", map_, use_trivialization=trivial)
        orthonormal(module.w)
        optimizer = tg.optim.SGD(module.parameters(), lr=0.3)
        goal = tg.randn(*shape, dtype=getattr(tg, dtype))
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = ((module.w - goal).abs() ** 2).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] != losses[0]
        orthonormal(module.w)
        q, _ = tg.linalg.qr(tg.randn(*shape[:-2], max(shape[-2:]), min(shape[-2:]), dtype=getattr(tg, dtype)))
        q = q if shape[-2] >= shape[-1] else q.mT
        module.w = q                                            # assigned: what is orthogonal comes back
        close(module.w, q, 1e-9)
        close(tg.trace(lambda module=module: module.w * 1)(), q, 1e-9)


def holder(t: Any, shape: tuple[int, ...], dtype: str) -> Any:
    module = t.nn.Module()
    module.w = t.nn.Parameter(t.randn(*shape, dtype=getattr(t, dtype)))
    return module


def orthonormal(w: Any) -> None:
    tall = w if w.shape[-2] >= w.shape[-1] else w.mT
    close(tall.mH @ tall, np.broadcast_to(np.eye(tall.shape[-1]), (*tall.shape[:-2], *[tall.shape[-1]] * 2)), 1e-9)


def test_errors_of_orthogonal() -> None:
    with pytest.raises(ValueError, match=r"orthogonal: orthogonal_map must be"):
        parametrizations.orthogonal(nn.Linear(3, 3), "weight", "euler")
    with pytest.raises(ValueError, match=r"orthogonal: Linear has no parameter 'bias' of two"):
        parametrizations.orthogonal(nn.Linear(3, 3), "bias")
    layer = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"orthogonal: a value cannot be assigned"):
        parametrizations.orthogonal(layer, use_trivialization=False)


@pytest.mark.slow
def test_orthogonal_weights_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for map_ in ("matrix_exp", "cayley", "householder"):
        for shape in ((7, 7), (13, 5), (5, 13)):
            modules = [t.nn.utils.parametrizations.orthogonal(holder(t, shape, "float64"), "w", map_) for t in (tg, torch)]
            for m, t in zip(modules, (tg, torch), strict=True):
                m.start = t.eye(max(shape), dtype=t.float64)
            mine, theirs = modules
            theirs.parametrizations.w.original.data = torch.from_numpy(mine.parametrizations.w.original.detach().numpy())
            theirs.parametrizations.w[0].base = torch.from_numpy(mine.parametrizations.w[0].base.numpy())
            goal = RNG.standard_normal(shape)
            steps = [t.optim.SGD(m.parameters(), lr=0.05) for t, m in zip((tg, torch), modules, strict=True)]
            for _ in range(20):
                for t, m, step in zip((tg, torch), modules, steps, strict=True):
                    step.zero_grad()
                    ((m.w - t.tensor(goal)) ** 2).sum().backward()
                    step.step()
            close(mine.w, theirs.w, 1e-9)


def test_computed_attributes_and_parametrizations_together() -> None:
    layer = parametrizations.weight_norm(nn.utils.weight_norm(nn.Bilinear(3, 4, 5), "weight"), "bias")
    assert parametrize.type_before_parametrizations(layer) is nn.Bilinear
    with parametrize.cached():
        assert layer(tg.ones(2, 3), tg.ones(2, 4)).shape == (2, 5)
    parametrize.remove_parametrizations(layer, "bias")
    assert layer.weight.shape == (5, 3, 4)
    nn.utils.remove_weight_norm(layer)
    assert type(layer) is nn.Bilinear


def test_cached_parametrizations_are_one_tensor_until_the_outermost_block_ends() -> None:
    layer = parametrizations.weight_norm(nn.Linear(3, 4))
    assert layer.weight is not layer.weight
    with parametrize.cached():
        first = layer.weight
        with parametrize.cached():
            assert layer.weight is first
        assert layer.weight is first
        total = tg.trace(lambda: 2 * layer.weight.sum())
        for _ in range(3):
            assert total().item() == pytest.approx(2 * first.sum().item())
        (layer(tg.ones(3)).sum() + layer(tg.zeros(3)).sum()).backward()
    assert layer.weight is not first
    assert all(p.grad is not None for p in layer.parameters())


# -------------------------------------------------------------------------------------------------------------- the rest


def test_fused_batch_norms() -> None:
    for make, norm, shape, transpose in (
        (lambda b: nn.Conv2d(3, 5, 3, bias=b), nn.BatchNorm2d(5), (2, 3, 7, 6), False),
        (lambda b: nn.ConvTranspose1d(3, 5, 3, bias=b), nn.BatchNorm1d(5), (2, 3, 7), True),
        (lambda b: nn.Linear(7, 5, bias=b), nn.BatchNorm1d(5), (13, 7), None),
    ):
        for bias in (True, False):
            layer, bn = make(bias).double(), copy.deepcopy(norm).double()
            x = tg.randn(*shape, dtype=tg.float64)
            for part in (bn.running_mean, bn.running_var):
                part.uniform_(0.5, 2.0)
            nn.init.uniform_(bn.weight)
            nn.init.uniform_(bn.bias)
            layer.eval()
            bn.eval()
            fused = nn.utils.fuse_linear_bn_eval(layer, bn) if transpose is None else nn.utils.fuse_conv_bn_eval(layer, bn, transpose)
            close(fused(x), bn(layer(x)))
            assert isinstance(fused.bias, nn.Parameter)
            assert (layer.bias is None) is not bias
    with pytest.raises(ValueError, match=r"fuse_conv_bn_eval: fuses layers in eval mode"):
        nn.utils.fuse_conv_bn_eval(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5))
    with pytest.raises(ValueError, match=r"fuse_linear_bn_eval: .*num_features 3 .*out_features 5"):
        nn.utils.fuse_linear_bn_eval(nn.Linear(7, 5).eval(), nn.BatchNorm1d(3).eval())


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Buffer(tg.zeros(3))
        self.scratch = nn.Buffer(tg.ones(2), persistent=False)


def test_buffers() -> None:
    module = Counts()
    assert set(dict(module.named_buffers())) == {"steps", "scratch"}
    assert list(module.state_dict()) == ["steps"]
    assert not list(module.parameters())
    assert isinstance(module.steps, nn.Buffer)
    module.steps.add_(1)
    twin = copy.deepcopy(module)
    twin.steps.add_(1)
    assert (module.steps.tolist(), twin.steps.tolist()) == ([1, 1, 1], [2, 2, 2])
    assert list(pickle.loads(pickle.dumps(twin)).state_dict()) == ["steps"]
    module.steps = nn.Buffer(tg.zeros(5))
    assert module.steps.shape == (5,)


def test_biases_that_are_left_out() -> None:
    for layer in (nn.BatchNorm1d(5, bias=False), nn.GroupNorm(1, 5, bias=False), nn.InstanceNorm1d(5, affine=True, bias=False),
                  nn.SyncBatchNorm(5, bias=False)):  # fmt: skip
        assert [n for n, _ in layer.named_parameters()] == ["weight"]
        assert layer(tg.randn(3, 5, 7)).shape == (3, 5, 7)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    assert nn.SyncBatchNorm.convert_sync_batchnorm(model) is model
    tg.func.replace_all_batch_norm_modules_(model)
    assert model[1].running_mean is None
    assert not model[1].track_running_stats
    close(model.eval()(x := tg.randn(33, 3)), model.train()(x), 1e-5)


def test_embeddings_of_limited_norm() -> None:
    weight = RNG.standard_normal((13, 5)) * 3
    index = tg.tensor([[1, 2, 2], [12, 0, 2]])
    for p in (2.0, 1.0, float("inf")):
        table = nn.Embedding(13, 5, max_norm=1.5, norm_type=p, _weight=tg.tensor(weight))
        found = table(index)
        norms = np.linalg.norm(weight, p, 1)
        named = np.isin(np.arange(13), index.numpy()) & (norms > 1.5)
        expected = np.where(named[:, None], weight * 1.5 / (norms + 1e-7)[:, None], weight)
        close(table.weight, expected)
        close(found, expected[index.numpy()])
        found.sum().backward()
        assert table.weight.grad[2].tolist() == [3.0] * 5
    scaled = nn.Embedding(13, 5, padding_idx=0, scale_grad_by_freq=True, _weight=tg.tensor(weight))
    close(scaled(index), weight[index.numpy()])
    scaled(index).sum().backward()
    assert scaled.weight.grad.sum(1).tolist() == [0, 5, 5, *[0] * 9, 5]
    close(F.embedding_bag(index, scaled.weight, max_norm=1.5, mode="sum"), scaled.weight.detach().numpy()[index.numpy()].sum(1))
    for layer in (nn.Embedding, nn.EmbeddingBag):
        with pytest.raises(ValueError, match=rf"{layer.__name__}: sparse=True"):
            layer(3, 2, sparse=True)
    with pytest.raises(ValueError, match=r"Embedding: _weight must be \(3, 2\)"):
        nn.Embedding(3, 2, _weight=tg.ones(2, 2))


@pytest.mark.slow
def test_embeddings_of_torch() -> None:
    torch = pytest.importorskip("torch")
    weight, index = RNG.standard_normal((13, 5)) * 2, RNG.integers(0, 13, (7, 4))
    for options in ({"max_norm": 1.0}, {"max_norm": 1.0, "norm_type": 1.0}, {"scale_grad_by_freq": True, "padding_idx": 3}):
        for bag in ({}, {"mode": "sum"}, {"mode": "mean"}):
            out = []
            for t in (tg, torch):
                table = (t.nn.EmbeddingBag if bag else t.nn.Embedding)(13, 5, _weight=t.tensor(weight.copy()), **options, **bag)
                y = table(t.tensor(index))
                (y * y).sum().backward()
                out.append((y, table.weight, table.weight.grad))
            if bag and "scale_grad_by_freq" in options:      # torch 2.13 does not divide all rows of bags by how often they are read
                (y, _, grad), (other, _, _) = out
                close(y, other)
                read = tg.tensor(weight, requires_grad=True)
                there = (tg.tensor(index) != 3).double().unsqueeze(-1)
                rows = (read[tg.tensor(index)] * there).sum(1) / (there.sum(1) if bag["mode"] == "mean" else 1)
                (rows * rows).sum().backward()
                close(grad, read.grad / tg.tensor(np.maximum(np.bincount(index.ravel(), minlength=13), 1)).unsqueeze(-1))
                continue
            for a, b in zip(*out, strict=True):
                close(a, b)


def test_sequences_and_norms_of_gradients() -> None:
    given = [tg.arange(n).float() for n in (5, 3, 1)]
    assert [s.tolist() for s in nn.utils.rnn.unpack_sequence(nn.utils.rnn.pack_sequence(given))] == [s.tolist() for s in given]
    assert nn.utils.rnn.invert_permutation(tg.tensor([2, 0, 1])).tolist() == [1, 2, 0]
    assert nn.utils.rnn.invert_permutation(None) is None
    p = tg.ones(4, requires_grad=True)
    (p * 3).sum().backward()
    total = nn.utils.get_total_norm([p.grad])
    nn.utils.clip_grads_with_norm_(p, 1.0, total)
    close(p.grad, np.full(4, 0.5), 1e-5)


def test_backward_to_some_inputs_and_gradients_of_rows() -> None:
    x, w, unused = (tg.randn(7, dtype=tg.float64, requires_grad=True) for _ in range(3))
    middle = x * w
    (middle**2).sum().backward(inputs=[x, middle])
    close(x.grad, 2 * x * w * w)
    close(middle.grad, 2 * middle)
    assert w.grad is None
    tg.autograd.backward((x * w).sum(), inputs=x)
    close(x.grad, 2 * x * w * w + w)
    with pytest.raises(tg.AutogradError, match=r"backward: inputs is empty"):
        (x * w).sum().backward(inputs=[])
    grads = tg.autograd.grad((x * w).sum(), [x, unused], materialize_grads=True)
    assert grads[1].tolist() == [0.0] * 7
    (rows,) = tg.autograd.grad(x * w, x, tg.eye(7, dtype=tg.float64), is_grads_batched=True)
    close(rows, tg.diag(w))
    with pytest.raises(tg.AutogradError, match=r"grad: materialize_grads"):
        tg.autograd.grad((x * w).sum(), [x], allow_unused=False, materialize_grads=True)
    with pytest.raises(tg.AutogradError, match=r"is_grads_batched"):
        tg.autograd.grad(x * w, x, is_grads_batched=True)


def test_softmax_without_a_dim_warns() -> None:
    for shape, dim in (((7,), 0), ((3, 7), 1), ((3, 5, 7), 0), ((2, 3, 5, 7), 1)):
        x = tg.randn(*shape)
        with pytest.warns(UserWarning, match=f"softmax: dim was left out and is taken to be {dim}"):
            found = F.softmax(x)
        close(found, x.softmax(dim))


def test_other_names_of_arguments() -> None:
    x, v = tg.randn(3, 3), tg.randn(3)
    assert tg.dot(v, tensor=v).item() == tg.dot(v, v).item()
    assert [p.shape for p in tg.split(tensor=x, split_size_or_sections=2)] == [(2, 3), (1, 3)]
    assert tg.det(input=x).item() == tg.linalg.det(A=x).item()
    assert tg.vander(v, 2, True).shape == (3, 2)
    assert tg.gather(x, 0, tg.tensor([[0]]), sparse_grad=False).shape == (1, 1)
    assert tg.randperm(5, dtype=tg.int32).dtype == tg.int32
    assert tg.ones(2, requires_grad=True).numpy(force=True).tolist() == [1, 1]
    assert tg.asarray([1.0], requires_grad=True).requires_grad
    with pytest.raises(TypeError, match=r"sum.*unexpected keyword argument 'tensor'"):
        tg.sum(x, tensor=x)


def test_parameters_and_buffers_of_lists_have_the_dtype_of_tensor():
    assert nn.Parameter([1.0, 2.0]).dtype == nn.Parameter(3.0).dtype == nn.Buffer([1.0]).dtype == tg.float32
    assert nn.Buffer([1, 2]).dtype == tg.int64
    assert nn.Parameter(np.ones(2)).dtype == tg.float64
