"""Modules beside torch's own, in float64: the same state dict, outputs, gradients. Run where torch is installed (`make test-all`)."""

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_numpy")]
RNG = np.random.default_rng(11)


def leaves(value):
    """The tensors of nested tuples, in order."""
    if value is None:
        return []
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def array(x):
    return x.detach().numpy()


def convert(value, to):
    if isinstance(value, np.ndarray):
        return to(value)
    if isinstance(value, (tuple, list)):
        return type(value)(convert(v, to) for v in value)
    return value


def compare(make, *args, train=True, rtol=1e-9, atol=1e-11, forward=None, **kwargs):
    """make(nn) on both sides with torch's initial values; arrays among the arguments become tensors, floats require grad."""
    theirs = make(torch.nn).double().train(train)
    ours = make(nn).double().train(train)
    state = {k: v.numpy() for k, v in theirs.state_dict().items()}
    assert list(ours.state_dict()) == list(state)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in state.items()}
    ours.load_state_dict({k: np.array(v) for k, v in state.items()})
    results = []
    for module, lib in ((ours, tg), (theirs, torch)):
        inputs = []

        def to(a, lib=lib, inputs=inputs):
            t = lib.tensor(a)
            if a.dtype.kind == "f" and np.isfinite(a).all():
                t.requires_grad_()
                inputs.append(t)
            return t

        given = [convert(a, to) for a in args], {k: convert(v, to) for k, v in kwargs.items()}
        out = (forward or (lambda m, *a, **k: m(*a, **k)))(module, *given[0], **given[1])
        flat = leaves(out)
        loss = sum((t * lib.tensor(np.cos(np.arange(t.numel())).reshape(tuple(t.shape)))).sum()
                   for t in flat if str(t.dtype).endswith("float64"))
        if loss.requires_grad:
            loss.backward()
        results.append(([array(t) for t in flat], [x.grad for x in inputs], {k: p.grad for k, p in module.named_parameters()},
                        {k: array(b) for k, b in module.named_buffers()}))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        if b is not None:
            np.testing.assert_allclose(array(a), array(b), rtol=rtol, atol=atol)
    for (name, a), (_, b) in zip(results[0][2].items(), results[1][2].items(), strict=True):
        if b is not None:
            np.testing.assert_allclose(array(a), array(b), rtol=rtol, atol=atol, err_msg=name)
    for (name, a), (_, b) in zip(results[0][3].items(), results[1][3].items(), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=name)


def normal(*shape):
    return RNG.normal(size=shape)


# ------------------------------------------------------------------------------------------------------------ recurrent


@pytest.mark.parametrize("length", [1, 7, 33, 65])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_lengths(kind, length):
    compare(lambda lib: getattr(lib, kind)(5, 7), normal(length, 3, 5))


@pytest.mark.parametrize("options", [
    dict(num_layers=2), dict(bidirectional=True), dict(num_layers=3, bidirectional=True, batch_first=True), dict(bias=False, num_layers=2)])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_options(kind, options):
    def make(lib):
        return getattr(lib, kind)(5, 7, **options)
    compare(make, normal(4, 6, 5))
    compare(make, normal(6, 5))
    n = 4 if options.get("batch_first") else 6
    rows = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    h = normal(rows, n, 7)
    compare(make, normal(4, 6, 5), (h, normal(rows, n, 7)) if kind == "LSTM" else h)


def test_projections_and_relu():
    compare(lambda lib: lib.LSTM(5, 7, num_layers=2, proj_size=3, bidirectional=True), normal(6, 4, 5),
            (normal(4, 4, 3), normal(4, 4, 7)))
    compare(lambda lib: lib.RNN(5, 7, nonlinearity="relu"), normal(6, 4, 5))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("sort", [True, False])
def test_packed(kind, sort):
    lengths = [9, 6, 6, 1] if sort else [2, 9, 1, 5]

    def forward(module, x):
        lib = (nn if isinstance(x, tg.Tensor) else torch.nn).utils.rnn
        packed = lib.pack_padded_sequence(x, lengths, enforce_sorted=sort)
        y, last = module(packed)
        return lib.pad_packed_sequence(y)[0], last, y.data
    compare(lambda lib: getattr(lib, kind)(5, 7, num_layers=2, bidirectional=True), normal(9, 4, 5), forward=forward)


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells(kind):
    pair = (normal(4, 7), normal(4, 7))
    compare(lambda lib: getattr(lib, kind)(5, 7), normal(4, 5), pair if kind == "LSTMCell" else pair[0])
    compare(lambda lib: getattr(lib, kind)(5, 7, bias=False), normal(5))


# ------------------------------------------------------------------------------------------------------------ attention


FLOAT_MASK = np.where(RNG.random((7, 9)) < 0.3, -np.inf, 0.0)
FLOAT_MASK[:, 0] = 0.0
BOOL_MASK = FLOAT_MASK < 0
PADDING = np.zeros((3, 9), bool)
PADDING[1, 6:] = PADDING[2, 3:] = True


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", [
    {}, {"attn_mask": BOOL_MASK}, {"attn_mask": FLOAT_MASK}, {"key_padding_mask": PADDING},
    {"attn_mask": BOOL_MASK, "key_padding_mask": PADDING}, {"attn_mask": np.stack([BOOL_MASK] * 12)}])
@pytest.mark.parametrize("options", [{}, dict(bias=False), dict(kdim=5, vdim=6), dict(add_bias_kv=True), dict(add_zero_attn=True)])
def test_attention(options, masks, need_weights):
    q, k, v = normal(7, 3, 8), normal(9, 3, options.get("kdim", 8)), normal(9, 3, options.get("vdim", 8))
    compare(lambda lib: lib.MultiheadAttention(8, 4, **options), q, k, v, need_weights=need_weights, **masks)


def test_attention_forms():
    q, k = normal(3, 7, 8), normal(3, 9, 8)
    compare(lambda lib: lib.MultiheadAttention(8, 4, batch_first=True), q, k, k, average_attn_weights=False)
    compare(lambda lib: lib.MultiheadAttention(8, 4), q[0], k[0], k[0], key_padding_mask=PADDING[1])
    compare(lambda lib: lib.MultiheadAttention(8, 4), q[0], k[0], k[0], average_attn_weights=False, attn_mask=FLOAT_MASK)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer_layers(norm_first, activation, batch_first):
    options = dict(dim_feedforward=13, dropout=0.0, norm_first=norm_first, activation=activation, batch_first=batch_first)
    x, memory = (normal(3, 7, 8), normal(3, 9, 8)) if batch_first else (normal(7, 3, 8), normal(9, 3, 8))
    causal = np.triu(np.ones((7, 7), bool), 1)
    compare(lambda lib: lib.TransformerEncoderLayer(8, 2, **options), x)
    compare(lambda lib: lib.TransformerEncoderLayer(8, 2, bias=False, **options), x, src_mask=causal, is_causal=True)
    compare(lambda lib: lib.TransformerDecoderLayer(8, 2, **options), x, memory, tgt_mask=causal, memory_key_padding_mask=PADDING)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")         # torch's, about its own fast path
def test_transformer():
    options = dict(num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=13, dropout=0.0)
    compare(lambda lib: lib.Transformer(8, 2, **options), normal(9, 3, 8), normal(7, 3, 8), src_key_padding_mask=PADDING,
            memory_key_padding_mask=PADDING, tgt_mask=np.triu(np.ones((7, 7), bool), 1), tgt_is_causal=True)
    compare(lambda lib: lib.Transformer(8, 2, batch_first=True, norm_first=True, **options), normal(3, 9, 8), normal(3, 7, 8))
    compare(lambda lib: lib.TransformerEncoder(lib.TransformerEncoderLayer(8, 2, 13, 0.0), 2, lib.LayerNorm(8)), normal(7, 3, 8))


# ------------------------------------------------------------------------------------------------------------ other layers


LAYERS = [
    (lambda lib: lib.BatchNorm3d(3), (4, 3, 2, 5, 3)), (lambda lib: lib.BatchNorm1d(5, momentum=None), (7, 5)),
    (lambda lib: lib.InstanceNorm1d(5), (4, 5, 13)), (lambda lib: lib.InstanceNorm1d(5), (5, 13)),
    (lambda lib: lib.InstanceNorm2d(3, affine=True, track_running_stats=True), (4, 3, 7, 5)),
    (lambda lib: lib.InstanceNorm2d(3, momentum=None, track_running_stats=True), (4, 3, 7, 5)),
    (lambda lib: lib.InstanceNorm3d(3, affine=True), (2, 3, 4, 5, 3)),
    (lambda lib: lib.RMSNorm((5, 3)), (7, 5, 3)), (lambda lib: lib.RMSNorm(5, eps=0.1, elementwise_affine=False), (7, 5)),
    (lambda lib: lib.LocalResponseNorm(3, alpha=0.7), (4, 7, 5, 3)), (lambda lib: lib.LocalResponseNorm(4, beta=0.5, k=2.0), (4, 7, 13)),
    (lambda lib: lib.PixelShuffle(3), (2, 18, 4, 5)), (lambda lib: lib.PixelUnshuffle(3), (2, 2, 6, 9)),
    (lambda lib: lib.Unflatten(1, (2, -1)), (3, 8, 5)), (lambda lib: lib.Flatten(0, 1), (3, 8, 5)),
    (lambda lib: lib.ConstantPad2d((1, 2, 3, 0), 1.5), (2, 3, 4, 5)), (lambda lib: lib.ZeroPad1d(2), (2, 3, 4)),
    (lambda lib: lib.ZeroPad3d(1), (1, 2, 3, 4, 5)), (lambda lib: lib.ReflectionPad1d((1, 2)), (2, 3, 4)),
    (lambda lib: lib.ReflectionPad2d(2), (2, 3, 4, 5)), (lambda lib: lib.ReplicationPad1d(3), (2, 3, 4)),
    (lambda lib: lib.ReplicationPad2d((1, 0, 2, 3)), (2, 3, 4, 5)), (lambda lib: lib.CircularPad1d(2), (2, 3, 4)),
    (lambda lib: lib.CircularPad2d((1, 2, 3, 1)), (2, 3, 4, 5)),
    (lambda lib: lib.Softmin(1), (7, 5)), (lambda lib: lib.Softmax2d(), (2, 3, 4, 5)), (lambda lib: lib.PReLU(), (7, 5)),
    (lambda lib: lib.PReLU(5), (7, 5, 3)), (lambda lib: lib.Threshold(0.3, -2.0), (7, 5)), (lambda lib: lib.GLU(1), (7, 8)),
    *[(lambda lib, n=n: getattr(lib, n)(), (33, 5)) for n in (
        "SELU", "LogSigmoid", "Hardtanh", "ReLU6", "CELU", "Hardsigmoid", "Hardswish", "Mish", "Softsign", "Tanhshrink", "Softshrink",
        "Hardshrink", "ELU", "GELU", "SiLU", "Softplus", "LeakyReLU", "Tanh", "Sigmoid")],
]


@pytest.mark.parametrize("k", range(len(LAYERS)))
@pytest.mark.parametrize("train", [True, False])
def test_layers(k, train):
    make, shape = LAYERS[k]
    compare(make, normal(*shape) * 3.0, train=train, rtol=1e-7 if "Hardsigmoid" in repr(make(nn)) else 1e-9)    # torch's 1/6 is a float32


def test_layers_of_two_inputs():
    compare(lambda lib: lib.Bilinear(5, 3, 7), normal(4, 5), normal(4, 3))
    compare(lambda lib: lib.Bilinear(5, 3, 7, bias=False), normal(2, 4, 5), normal(2, 4, 3))
    compare(lambda lib: lib.CosineSimilarity(), normal(4, 5), normal(4, 5))
    compare(lambda lib: lib.PairwiseDistance(3, keepdim=True), normal(4, 5), normal(4, 5))
    p, q = RNG.uniform(0.05, 0.95, (7, 5)), RNG.uniform(0.05, 0.95, (7, 5))
    compare(lambda lib: lib.BCELoss(), p, q)
    compare(lambda lib: lib.SmoothL1Loss(beta=0.5), normal(7, 5), normal(7, 5))
    compare(lambda lib: lib.HuberLoss(reduction="sum", delta=0.5), normal(7, 5), normal(7, 5))
    compare(lambda lib: lib.KLDivLoss(reduction="batchmean"), np.log(p), q)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_embedding_bags(mode):
    index = RNG.integers(0, 11, (5, 7))
    flat, offsets = RNG.integers(0, 11, 13), np.array([0, 4, 4, 9])
    for options in ({}, dict(padding_idx=3)):
        compare(lambda lib, options=options: lib.EmbeddingBag(11, 4, mode=mode, **options), index)
        compare(lambda lib, options=options: lib.EmbeddingBag(11, 4, mode=mode, **options), flat, offsets)
    compare(lambda lib: lib.EmbeddingBag(11, 4, mode=mode, include_last_offset=True), flat, np.array([0, 4, 9, 13]))
    if mode == "sum":
        compare(lambda lib: lib.EmbeddingBag(11, 4, mode="sum"), flat, offsets, per_sample_weights=normal(13))


def test_layers_are_of_the_kinds_that_torchs_are():
    """So isinstance in programs written for torch says the same. (A lazy layer is of its kind before it is one here.)"""
    names = [name for name in dir(torch.nn) if isinstance(getattr(nn, name, None), type) and not name.startswith("Lazy")]
    for a in names:
        kinds = [[b for b in names if issubclass(getattr(lib, a), getattr(lib, b))] for lib in (nn, torch.nn)]
        assert kinds[0] == kinds[1], a
        if issubclass(getattr(nn, a), nn.Module):               # `if hasattr(layer, "reset_parameters")` stands in many programs
            assert hasattr(getattr(nn, a), "reset_parameters") is hasattr(getattr(torch.nn, a), "reset_parameters"), a
