"""Recurrent layers and cells against numpy loops in float64: lengths, layers, directions, packed sequences, gradients, traces, errors."""

import copy
import math
import pickle

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import topological
from tracegrad.nn.utils import rnn

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(7)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(kind, x, state, w):
    """One time step of one direction, from the published formulas."""
    a, b = x @ w["weight_ih"].T + w.get("bias_ih", 0.0), state[0] @ w["weight_hh"].T + w.get("bias_hh", 0.0)
    n = state[-1].shape[-1]
    if kind == "RNN":
        return (np.tanh(a + b),)
    if kind == "GRU":
        r, z = sigmoid(a[:, :n] + b[:, :n]), sigmoid(a[:, n:2 * n] + b[:, n:2 * n])
        return ((1 - z) * np.tanh(a[:, 2 * n:] + r * b[:, 2 * n:]) + z * state[0],)
    i, f, g, o = (s(v) for s, v in zip((sigmoid, sigmoid, np.tanh, sigmoid), np.split(a + b, 4, axis=1), strict=True))
    c = f * state[1] + i * g
    h = o * np.tanh(c)
    return (h @ w["weight_hr"].T if "weight_hr" in w else h), c


def reference(kind, layer, x, initial, lengths=None):
    """(L, N, in) through all layers; outputs and last states. lengths: where each sequence ends."""
    weights = {k: v.detach().numpy() for k, v in layer.named_parameters()}
    lengths = [x.shape[0]] * x.shape[1] if lengths is None else lengths
    last = []
    for k in range(layer.num_layers):
        outs = []
        for end in (f"_l{k}", f"_l{k}_reverse")[:1 + layer.bidirectional]:
            w = {name.removesuffix(end): v for name, v in weights.items() if name.endswith(end)}
            sequences = []
            states = []
            for n, size in enumerate(lengths):
                state = tuple(s[len(last), n:n + 1] for s in initial)
                out = np.zeros((x.shape[0], initial[0].shape[-1]))
                for t in reversed(range(size)) if end.endswith("reverse") else range(size):
                    state = step(kind, x[t, n:n + 1], state, w)
                    out[t] = state[0]
                sequences.append(out)
                states.append(state)
            outs.append(np.stack(sequences, 1))
            last.append(tuple(np.concatenate(s) for s in zip(*states, strict=True)))
        x = np.concatenate(outs, -1)
    return x, tuple(np.stack(s) for s in zip(*last, strict=True))


def zeros(layer, n):
    sizes = [getattr(layer, "proj_size", 0) or layer.hidden_size, layer.hidden_size][:2 if isinstance(layer, nn.LSTM) else 1]
    return tuple(np.zeros((layer.num_layers * (1 + layer.bidirectional), n, size)) for size in sizes)


def states(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("length", [1, 7, 33, 65])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_lengths(kind, length, run):
    layer = getattr(nn, kind)(5, 7).double()
    x = RNG.normal(size=(length, 3, 5))
    y, last = run(layer)(tg.tensor(x))
    expected, expected_last = reference(kind, layer, x, zeros(layer, 3))
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-10, atol=1e-12)
    for a, b in zip(states(last), expected_last, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [
    dict(num_layers=2, bias=False), dict(bidirectional=True), dict(num_layers=2, bidirectional=True, batch_first=True), dict(proj_size=3)])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_options(kind, options):
    if "proj_size" in options and kind != "LSTM":
        with pytest.raises(TypeError, match="proj_size"):
            getattr(nn, kind)(5, 7, **options)
        return
    layer = getattr(nn, kind)(5, 7, **options).double()
    x = RNG.normal(size=(13, 4, 5))
    initial = tuple(RNG.normal(size=s.shape) for s in zeros(layer, 4))
    expected, expected_last = reference(kind, layer, x, initial)
    hx = tuple(map(tg.tensor, initial)) if kind == "LSTM" else tg.tensor(initial[0])
    y, last = layer(tg.tensor(x.swapaxes(0, 1) if layer.batch_first else x), hx)
    np.testing.assert_allclose(y.detach().numpy(), expected.swapaxes(0, 1) if layer.batch_first else expected, rtol=1e-10, atol=1e-12)
    for a, b in zip(states(last), expected_last, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=1e-10, atol=1e-12)
    single = tuple(tg.tensor(s[:, 2]) for s in initial)
    y, last = layer(tg.tensor(x[:, 2]), single if kind == "LSTM" else single[0])
    np.testing.assert_allclose(y.detach().numpy(), expected[:, 2], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(states(last)[0].detach().numpy(), expected_last[0][:, 2], rtol=1e-10, atol=1e-12)


@one_of(3, "kind", ["RNN", "LSTM", "GRU"])
def test_gradients(kind):
    layer = getattr(nn, kind)(2, 3, bidirectional=True).double()
    x = tg.tensor(RNG.normal(size=(4, 2, 2)), requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]
    assert tg.testing.gradcheck(lambda x, *ps: nn.utils.functional_call(layer, dict(zip(names, ps, strict=True)), x)[0],
                                (x, *layer.parameters()))
    assert tg.testing.gradgradcheck(lambda x: (layer(x)[0] ** 2).sum(), (x,))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("sort", [True, False])
def test_packed_sequences(kind, sort, run):
    lengths = [9, 6, 6, 1] if sort else [2, 9, 1, 5]
    layer = getattr(nn, kind)(5, 7, num_layers=2, bidirectional=True).double()
    x = RNG.normal(size=(9, 4, 5))

    @run
    def forward(x):
        y, last = layer(rnn.pack_padded_sequence(x, lengths, enforce_sorted=sort))
        return rnn.pad_packed_sequence(y, padding_value=0.5)[0], states(last)

    y, last = forward(tg.tensor(x))
    expected, expected_last = reference(kind, layer, x, zeros(layer, 4), lengths)
    padding = np.arange(9)[:, None] >= np.array(lengths)
    np.testing.assert_allclose(y.detach().numpy(), np.where(padding[..., None], 0.5, expected), rtol=1e-10, atol=1e-12)
    for a, b in zip(last, expected_last, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_sequences_that_numpy_holds_are_padded_as_others_are(dtype, monkeypatch):
    """At once, whatever their lengths, where nothing is to be differentiated."""
    monkeypatch.setattr(tg.config, "eager", True)
    parts = [tg.tensor((RNG.normal(size=(n, 3)) * 9).astype(dtype)) for n in (4, 0, 7, 1)]
    for first in (True, False):
        for side in ("left", "right"):
            for value in (0, 2.0) if dtype is not np.bool_ else (False, True):
                found = rnn.pad_sequence(parts, first, value, side)
                with monkeypatch.context() as patch:
                    patch.setattr(rnn, "_padded_at_once", lambda *given: None)
                    wanted = rnn.pad_sequence(parts, first, value, side)
                assert (found.shape, found.dtype, found._base) == (wanted.shape, wanted.dtype, None)
                np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    with pytest.raises(DTypeError):
        rnn.pad_sequence(parts, padding_value="a")
    w = tg.ones(2, 3, requires_grad=True)
    rnn.pad_sequence([w * 2.0, tg.zeros(3, 3)]).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), 2.0)


def test_packing():
    x = RNG.normal(size=(6, 3, 2))
    packed = rnn.pack_padded_sequence(tg.tensor(x), tg.tensor([2, 6, 3]), enforce_sorted=False)
    np.testing.assert_array_equal(packed.data.numpy(), np.concatenate(
        [x[0, [1, 2, 0]], x[1, [1, 2, 0]], x[2, [1, 2]], x[3, [1]], x[4, [1]], x[5, [1]]]))
    assert packed.batch_sizes == (3, 3, 2, 1, 1, 1)
    assert (packed.sorted_indices, packed.unsorted_indices) == ((1, 2, 0), (2, 0, 1))
    padded, lengths = rnn.pad_packed_sequence(packed, batch_first=True, total_length=8)
    assert padded.shape == (3, 8, 2)
    assert lengths.tolist() == [2, 6, 3]
    parts = rnn.unpad_sequence(padded, lengths, batch_first=True)
    again = rnn.pad_sequence(parts, padding_value=-1.0)
    assert again.shape == (6, 3, 2)
    np.testing.assert_array_equal(again.numpy()[:, 0], np.concatenate([x[:2, 0], np.full((4, 2), -1.0)]))
    np.testing.assert_array_equal(rnn.pad_sequence(parts, padding_side="left").numpy()[:, 0], np.concatenate([np.zeros((4, 2)), x[:2, 0]]))
    np.testing.assert_array_equal(rnn.pack_sequence(parts, enforce_sorted=False).data.numpy(), packed.data.numpy())
    with pytest.raises(ArgumentError, match=r"lengths must fall.*enforce_sorted=False"):
        rnn.pack_padded_sequence(tg.tensor(x), [2, 6, 3])
    for wrong in ([7, 2, 1], [2, 1], [2, 1, 0]):
        with pytest.raises(ShapeError, match="do not fit input"):
            rnn.pack_padded_sequence(tg.tensor(x), wrong)
    with pytest.raises(ArgumentError, match="below the longest"):
        rnn.pad_packed_sequence(packed, total_length=5)
    with pytest.raises(ShapeError, match="first dimension only"):
        rnn.pad_sequence([tg.ones(2, 3), tg.ones(2, 4)])


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells_are_one_step_of_their_layer(kind):
    layer, cell = getattr(nn, kind.removesuffix("Cell"))(5, 7).double(), getattr(nn, kind)(5, 7).double()
    cell.load_state_dict({name.removesuffix("_l0"): v for name, v in layer.state_dict().items()})
    x = tg.tensor(RNG.normal(size=(1, 4, 5)))
    h = tuple(tg.tensor(RNG.normal(size=(4, 7))) for _ in zeros(layer, 4))
    _, last = layer(x, tuple(s.unsqueeze(0) for s in h) if len(h) == 2 else h[0].unsqueeze(0))
    got = states(cell(x[0], h if len(h) == 2 else h[0]))
    for a, b in zip(got, states(last), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy()[0], rtol=1e-12)
    alone = states(cell(x[0, 2]))
    np.testing.assert_allclose(alone[0].detach().numpy(), states(cell(x[0]))[0].detach().numpy()[2], rtol=1e-12)
    with pytest.raises(ShapeError, match=f"{kind}: input must be"):
        cell(tg.ones(4, 6, dtype=tg.float64))
    with pytest.raises(ShapeError, match="state must be"):
        cell(x[0], (h[0][:2], h[0]) if len(h) == 2 else h[0][:2])


@one_of(2, "kind", ["LSTM", "GRU"])
def test_gradients_of_a_traced_call_on_the_device(kind, device):
    tg.manual_seed(3)
    layer = getattr(nn, kind)(6, 8)
    x = tg.randn(3, 5, 6)

    def step():
        (layer(x)[0] ** 2).mean().backward()

    def gradients():
        found = [p.grad.numpy() for p in layer.parameters()]
        layer.zero_grad()
        return found

    step()
    plain = gradients()
    tg.trace(step)()
    for a, b in zip(gradients(), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_dropout_acts_between_layers():
    tg.manual_seed(0)
    layer = nn.RNN(3, 4, num_layers=2, dropout=1.0)
    x, zero = tg.randn(5, 2, 3), tg.zeros(5, 2, 4)
    second = nn.RNN(4, 4)
    second.load_state_dict({name.replace("_l1", "_l0"): v for name, v in layer.state_dict().items() if "_l1" in name})
    np.testing.assert_allclose(layer(x)[0].detach().numpy(), second(zero)[0].detach().numpy(), rtol=1e-5, atol=1e-7)
    assert not np.allclose(layer.eval()(x)[0].detach().numpy(), second(zero)[0].detach().numpy())
    with pytest.warns(UserWarning, match="does nothing with num_layers=1"):
        nn.LSTM(3, 4, dropout=0.5)


def test_names_initial_values_and_copies():
    layer = nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)
    assert [n for n, _ in layer.named_parameters()][:10] == [
        f"{kind}_l0{end}" for end in ("", "_reverse") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")]
    assert layer.weight_ih_l1.shape == (16, 4)
    assert layer.weight_hr_l1_reverse.shape == (2, 4)
    assert [len(ws) for ws in layer.all_weights] == [5] * 4
    big = nn.GRU(50, 100)
    for p in big.parameters():
        assert 0.05 < np.abs(p.detach().numpy()).max() <= 0.1
        assert p.detach().numpy().std() == pytest.approx(0.1 / math.sqrt(3), rel=0.2)
    assert repr(layer) == "LSTM(3, 4, proj_size=2, num_layers=2, bidirectional=True)"
    x = tg.randn(5, 2, 3)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(twin(x)[0].detach().numpy(), layer(x)[0].detach().numpy())
    layer.flatten_parameters()


def test_bad_arguments():
    layer = nn.LSTM(3, 4)
    with pytest.raises(ShapeError, match=r"LSTM: input must be \(L, N, 3\).*got \(5, 2, 4\)"):
        layer(tg.ones(5, 2, 4))
    with pytest.raises(ShapeError, match=r"c_0 must be .* = \(1, 2, 4\), got \(2, 4\)"):
        layer(tg.ones(5, 2, 3), (tg.ones(1, 2, 4), tg.ones(2, 4)))
    with pytest.raises(DTypeError, match="h_0"):
        layer(tg.ones(5, 2, 3), (tg.ones(1, 2, 4, dtype=tg.float64), tg.ones(1, 2, 4)))
    with pytest.raises(ArgumentError, match="pair"):
        layer(tg.ones(5, 2, 3), tg.ones(1, 2, 4))
    with pytest.raises(ShapeError, match="length 0"):
        layer(tg.ones(0, 2, 3))
    for make, match in ((lambda: nn.LSTM(3, 4, proj_size=4), "proj_size"), (lambda: nn.RNN(3, 4, nonlinearity="sin"), "nonlinearity"),
                        (lambda: nn.GRU(3, 4, dropout=1.5), "dropout"), (lambda: nn.GRU(3, 0), "hidden_size"),
                        (lambda: nn.RNNCell(3, 4, nonlinearity="sin"), "nonlinearity")):
        with pytest.raises(ArgumentError, match=match):
            make()


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_untraced_a_layer_is_one_loop_that_the_next_step_knows(layer):
    """Whatever the length; and the loop of the next step is the same one, so nothing is looked at, lowered or built anew."""
    tg.manual_seed(0)
    model = layer(5, 7)
    x = tg.randn(33, 3, 5)

    def loops():
        y, _ = model(x)
        found = {n.fn for n in topological([y._node()]) if n.fn.family == "loop"}
        y.sum().backward()
        return found

    first = loops()
    assert len(first) == 1
    for _ in range(4):                      # the third call is made from what the second one made
        assert loops() == first


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_flags_and_sizes_of_other_kinds_are_refused(kind):
    """batch_first="False" was taken for True."""
    make = getattr(tg.nn, kind)
    for options, words in [({"batch_first": "False"}, "batch_first must be True or False"), ({"bias": 1}, "bias must be of type bool")]:
        with pytest.raises(TypeError, match=f"{kind}: {words}"):
            make(3, 5, **options)
    with pytest.raises(TypeError, match=f"{kind}: hidden_size must be of type int"):
        make(3, 5.0)
    with pytest.raises(ValueError, match=f"{kind}: input_size, hidden_size and num_layers must be at least 1"):
        make(0, 5)
    assert make(3, 5).mode == {"RNN": "RNN_TANH"}.get(kind, kind)
