"""examples/tensor_parallel.py: layers that are cut over the ranks give the losses and gradients of whole ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.ranks import example, losses

LAYERS = """
    import runpy
    made = runpy.run_path("examples/tensor_parallel.py", run_name="example")
    F64 = {"dtype": tg.float64}
    def begin(*shape):
        return tg.from_numpy(np.random.default_rng(0).normal(size=shape)).requires_grad_()
    low, high = made["own_range"](7)
    x, weights = begin(3, 5), tg.from_numpy(np.random.default_rng(1).normal(size=(3, 4)))
    tg.manual_seed(0)
    parts = made["ColumnParallelLinear"](5, 7), made["RowParallelLinear"](7, 4)
    tg.manual_seed(0)
    whole = nn.Linear(5, 7, **F64), nn.Linear(7, 4, **F64)
    def results(layers):
        x.grad = None
        y = layers[1](tg.tanh(layers[0](x)))
        (y * weights).sum().backward()
        return y, x.grad, *(p.grad for layer in layers for p in layer.parameters())
    found, wanted = results(parts), results(whole)
    cut = [slice(None), slice(None), slice(low, high), slice(low, high), (slice(None), slice(low, high)), slice(None)]
    for a, b, where in zip(found, wanted, cut, strict=True):
        same(a, b.detach().numpy()[where], 1e-12)

    x, weights = begin(2, 3, 12), begin(2, 3, 12).detach()
    tg.manual_seed(0)
    part = made["ParallelAttention"](12, 4)
    tg.manual_seed(0)
    linear, out = nn.Linear(12, 36, **F64), nn.Linear(12, 12, **F64)
    def attention(x):
        q, k, v = (h.reshape(2, 3, 4, 3).transpose(1, 2) for h in linear(x).chunk(3, -1))
        return out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 3, 12))
    grads = []
    for layer in (part, attention):
        x.grad = None
        y = layer(x)
        (y * weights).sum().backward()
        grads.append((y, x.grad))
    for a, b in zip(*grads, strict=True):
        same(a, b.detach().numpy(), 1e-12)
    first, last = (3 * n for n in made["own_range"](4))
    same(part.weight.grad, linear.weight.grad.numpy().reshape(3, 12, 12)[:, first:last].reshape(-1, 12), 1e-12)
    same(part.out.weight.grad, out.weight.grad.numpy()[:, first:last], 1e-12)

    tokens = tg.tensor([[0, 6, 2], [5, 3, 1]])
    tg.manual_seed(0)
    part = made["VocabParallelEmbedding"](7, 4)
    tg.manual_seed(0)
    whole = nn.Embedding(7, 4, **F64)
    scale = begin(2, 3, 4).detach()
    for layer in (part, whole):
        (layer(tokens) * scale).sum().backward()
    same(part(tokens), whole(tokens).detach().numpy())
    same(part.weight.grad, whole.weight.grad.numpy()[low:high])

    logits = begin(5, 7)
    mine = logits.detach()[:, low:high].clone().requires_grad_()
    targets = tg.tensor([6, 0, 3, 2, 6])
    loss = made["vocab_parallel_cross_entropy"](mine, targets, low)
    loss.backward()
    expected = nn.functional.cross_entropy(logits, targets)
    expected.backward()
    same(loss, expected.detach().numpy(), 1e-12)
    same(mine.grad, logits.grad.numpy()[:, low:high], 1e-11)
"""
PROGRAM = example("tensor_parallel", "--steps", "41")


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_layers_and_their_gradients_are_those_of_whole_ones(ranks, count):
    """Also where the parts of ranks differ in size."""
    ranks(count, LAYERS)


@pytest.mark.long
def test_any_number_of_ranks_has_the_losses_of_one(ranks):
    found, parameters = {}, {}
    for count in (1, 2, 3):
        told = ranks(count, PROGRAM)
        found[count] = losses(told)
        parameters[count] = int(re.search(r"this one has (\d+) parameters", told)[1])
    assert len(found[1]) == 3
    assert found[1][-1] < 0.8 * found[1][0]
    for count in (2, 3):
        np.testing.assert_allclose(found[count], found[1], atol=2e-9)
        assert parameters[count] < 1.05 * parameters[1] / count
