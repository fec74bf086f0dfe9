"""Attention with all its arguments, and the transformer, against numpy in float64; gradients, traces, errors."""

import math

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ArgumentError, DTypeError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(17)
PADDING = np.arange(9) >= np.array([[9], [6], [3]])
MASK = RNG.random((7, 9)) < 0.3
MASK[:, 0] = False


def parameters(module):
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


def attention(w, q, k, v, heads, allowed=None, extra_bias=None, zero=False):
    """(N, L, E), (N, S, E'), (N, S, E''): one head and one sample after the other. allowed: (N, heads, L, S) bools."""
    e = q.shape[-1]
    ws = np.split(w["in_proj_weight"], 3) if "in_proj_weight" in w else [w[f"{c}_proj_weight"] for c in "qkv"]
    bs = np.split(w["in_proj_bias"], 3) if "in_proj_bias" in w else [0.0] * 3
    q, k, v = (x @ a.T + b for x, a, b in zip((q, k, v), ws, bs, strict=True))
    out = np.zeros_like(q)
    weights = []
    for n in range(q.shape[0]):
        kn, vn = k[n], v[n]
        if extra_bias is not None:
            kn, vn = np.vstack([kn, extra_bias[0]]), np.vstack([vn, extra_bias[1]])
        if zero:
            kn, vn = np.vstack([kn, np.zeros(e)]), np.vstack([vn, np.zeros(e)])
        per_head = []
        for h in range(heads):
            part = slice(h * e // heads, (h + 1) * e // heads)
            s = q[n][:, part] @ kn[:, part].T / math.sqrt(e // heads)
            if allowed is not None:
                s[:, :allowed.shape[-1]][~allowed[n, h]] = -np.inf
            p = np.exp(s - s.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            per_head.append(p)
            out[n][:, part] = p @ vn[:, part]
        weights.append(per_head)
    return out @ w["out_proj.weight"].T + w.get("out_proj.bias", 0.0), np.array(weights)


@pytest.mark.parametrize("options", [{}, dict(bias=False), dict(kdim=5, vdim=6), dict(add_bias_kv=True), dict(add_zero_attn=True),
                                     dict(add_bias_kv=True, add_zero_attn=True, batch_first=True)])
@pytest.mark.parametrize("masks", ["none", "bool", "float", "per head", "padding", "both"])
def test_attention(options, masks):
    layer = nn.MultiheadAttention(8, 4, **options).double()
    q, k, v = RNG.normal(size=(3, 7, 8)), RNG.normal(size=(3, 9, layer.kdim)), RNG.normal(size=(3, 9, layer.vdim))
    per_head = RNG.random((12, 7, 9)) < 0.3
    per_head[:, :, 0] = False
    allowed = np.ones((3, 4, 7, 9), bool)
    given = {}
    if masks in ("bool", "both"):
        given["attn_mask"] = tg.tensor(MASK)
    if masks == "float":
        given["attn_mask"] = tg.tensor(np.where(MASK, -np.inf, 0.0))
    if masks in ("bool", "float", "both"):
        allowed &= ~MASK
    if masks == "per head":
        given["attn_mask"] = tg.tensor(per_head)
        allowed &= ~per_head.reshape(3, 4, 7, 9)
    if masks in ("padding", "both"):
        given["key_padding_mask"] = tg.tensor(PADDING)
        allowed &= ~PADDING[:, None, None]
    w = parameters(layer)
    bias = (w["bias_k"][0], w["bias_v"][0]) if "bias_k" in w else None
    expected, weights = attention(w, q, k, v, 4, allowed, bias, layer.add_zero_attn)
    turned = [tg.tensor(x if layer.batch_first else x.swapaxes(0, 1)) for x in (q, k, v)]
    for average in (True, False, None):
        y, got = layer(*turned, need_weights=average is not None, average_attn_weights=bool(average), **given)
        y = y.detach().numpy()
        np.testing.assert_allclose(y if layer.batch_first else y.swapaxes(0, 1), expected, rtol=1e-9, atol=1e-12)
        if average is None:
            assert got is None
        else:
            np.testing.assert_allclose(got.detach().numpy(), weights.mean(1) if average else weights, rtol=1e-9, atol=1e-12)


def test_a_position_that_may_attend_to_nothing():
    layer = nn.MultiheadAttention(8, 2, bias=False, batch_first=True).double()
    x = tg.tensor(RNG.normal(size=(2, 5, 8)), requires_grad=True)
    mask = np.zeros((5, 5), bool)
    mask[2] = True
    for need in (True, False):
        y, w = layer(x, x, x, attn_mask=tg.tensor(mask), need_weights=need)
        assert not y.detach().numpy()[:, 2].any()
        (y ** 2).sum().backward()
        assert np.isfinite(x.grad.numpy()).all()
        if need:
            assert not w.detach().numpy()[:, 2].any()


def test_dropout_acts_on_the_weights_while_training():
    tg.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5)
    x = tg.randn(33, 2, 8)
    _, w = layer(x, x, x, average_attn_weights=False)
    assert 0.4 < (w.detach().numpy() == 0).mean() < 0.6
    assert (layer.eval()(x, x, x)[1].detach().numpy() > 0).all()


def layer_norm(x, w, b):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def reference(w, x, memory, heads, norm_first, causal):
    """A decoder layer, or an encoder layer where memory is None; (N, L, E)."""
    def part(prefix):
        return {k.removeprefix(prefix): v for k, v in w.items() if k.startswith(prefix)}

    def norm(k, x):
        return layer_norm(x, w[f"norm{k}.weight"], w[f"norm{k}.bias"])

    n, length = x.shape[:2]
    allowed = np.broadcast_to(np.tril(np.ones((length, length), bool)), (n, heads, length, length)) if causal else None
    parts = [lambda x: attention(part("self_attn."), x, x, x, heads, allowed)[0]]
    if memory is not None:
        parts.append(lambda x: attention(part("multihead_attn."), x, memory, memory, heads)[0])
    parts.append(lambda x: np.maximum(x @ w["linear1.weight"].T + w["linear1.bias"], 0) @ w["linear2.weight"].T + w["linear2.bias"])
    for k, f in enumerate(parts, 1):
        x = x + f(norm(k, x)) if norm_first else norm(k, x + f(x))
    return x


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_layers(norm_first, batch_first, causal, run):
    options = dict(dim_feedforward=13, dropout=0.0, norm_first=norm_first, batch_first=batch_first, dtype="float64")
    encoder, decoder = nn.TransformerEncoderLayer(8, 2, **options), nn.TransformerDecoderLayer(8, 2, **options)
    x, memory = RNG.normal(size=(3, 7, 8)), RNG.normal(size=(3, 9, 8))

    def turned(x):
        return x if batch_first else x.swapaxes(0, 1)

    a, b = tg.tensor(turned(x)), tg.tensor(turned(memory))
    y = run(lambda a: encoder(a, is_causal=causal))(a)
    np.testing.assert_allclose(turned(y.detach().numpy()), reference(parameters(encoder), x, None, 2, norm_first, causal), rtol=1e-9,
                               atol=1e-11)
    mask = tg.ones(7, 7, dtype=tg.bool_).triu(1) if causal else None
    y = run(lambda a, b: decoder(a, b, tgt_mask=mask))(a, b)
    np.testing.assert_allclose(turned(y.detach().numpy()), reference(parameters(decoder), x, memory, 2, norm_first, causal), rtol=1e-9,
                               atol=1e-11)


def test_stacks_and_the_whole():
    model = nn.Transformer(8, 2, 2, 3, 13, 0.0, batch_first=True).double()
    assert len(model.encoder.layers) == 2
    assert [n for n, _ in model.decoder.named_children()] == ["layers", "norm"]
    src, tgt = RNG.normal(size=(3, 9, 8)), RNG.normal(size=(3, 7, 8))
    w = parameters(model)

    def under(prefix):
        return {k.removeprefix(prefix): v for k, v in w.items() if k.startswith(prefix)}

    memory = src
    for k in range(2):
        memory = reference(under(f"encoder.layers.{k}."), memory, None, 2, False, False)
    memory = layer_norm(memory, w["encoder.norm.weight"], w["encoder.norm.bias"])
    y = tgt
    for k in range(3):
        y = reference(under(f"decoder.layers.{k}."), y, memory, 2, False, True)
    y = layer_norm(y, w["decoder.norm.weight"], w["decoder.norm.bias"])
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype="float64")
    got = model(tg.tensor(src), tg.tensor(tgt), tgt_mask=mask, tgt_is_causal=True)
    np.testing.assert_allclose(got.detach().numpy(), y, rtol=1e-8, atol=1e-10)
    alone = model(tg.tensor(src[1]), tg.tensor(tgt[1]), tgt_mask=mask)
    np.testing.assert_allclose(alone.detach().numpy(), y[1], rtol=1e-8, atol=1e-10)
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 13), 2)
    first, second = (parameters(layer) for layer in stack.layers)
    assert all((first[name] == second[name]).all() for name in first)
    assert stack.layers[0].linear1.weight is not stack.layers[1].linear1.weight


def test_gradients():
    layer = nn.TransformerDecoderLayer(4, 2, 5, 0.0, activation="gelu", batch_first=True).double()
    x, memory = (tg.tensor(RNG.normal(size=(2, n, 4)), requires_grad=True) for n in (3, 4))
    names = [name for name, _ in layer.named_parameters()]
    assert tg.testing.gradcheck(lambda x, m, *ps: nn.utils.functional_call(layer, dict(zip(names, ps, strict=True)), (x, m)),
                                (x, memory, *layer.parameters()))


def test_a_traced_training_step_on_the_device(device):
    tg.manual_seed(2)
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = tg.randn(5, 13, 16)

    def step():
        (layer(x, x, x, is_causal=True, need_weights=False)[0] ** 2).mean().backward()

    found = []
    for run in (step, tg.trace(step)):
        run()
        found.append([p.grad.numpy() for p in layer.parameters()])
        layer.zero_grad()
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_bad_arguments():
    layer = nn.MultiheadAttention(8, 2)
    x = tg.ones(7, 3, 8)
    for call, error, match in (
            (lambda: layer(tg.ones(7, 3, 6), x, x), ShapeError, r"query must be \(length, N, 8\)"),
            (lambda: layer(x, x[0], x[0]), ShapeError, "key must be"), (lambda: layer(x, x[:, :2], x[:, :2]), ShapeError, "differ in N"),
            (lambda: layer(x, x, x, attn_mask=tg.ones(3, 7, 7)), ShapeError, r"attn_mask must be \(7, 7\) or \(6, 7, 7\)"),
            (lambda: layer(x, x, x, key_padding_mask=tg.ones(7, 3)), ShapeError, r"key_padding_mask must be \(3, 7\)"),
            (lambda: layer(x, x, x, attn_mask=tg.ones(7, 7, dtype=tg.int64)), DTypeError, "bools or floats, got int64"),
            (lambda: nn.MultiheadAttention(8, 3), ArgumentError, "multiple of num_heads"),
            (lambda: nn.TransformerEncoderLayer(8, 2, activation="sine"), ArgumentError, "activation"),
            (lambda: nn.TransformerEncoder(layer, 0), ArgumentError, "num_layers"),
            (lambda: nn.Transformer(8, 2, 1, 1, 5)(x, tg.ones(7, 2, 8)), ShapeError, "same N")):
        with pytest.raises(error, match=match):
            call()
