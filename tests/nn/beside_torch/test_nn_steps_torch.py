"""Twenty steps of training of each layer that people use, in float64, against torch: parameters, statistics and losses within 1e-9."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_numpy"), pytest.mark.filterwarnings("ignore")]
RNG = np.random.default_rng(17)


def attention(t: Any) -> Any:
    layer = t.nn.MultiheadAttention(8, 4).double()
    return layer, lambda x: layer(x, x, x)[0]


def cell(kind: str) -> Any:
    def make(t: Any) -> Any:
        layer = getattr(t.nn, kind)(5, 7).double()

        def run(x: Any) -> Any:
            state = None
            for row in x:
                state = layer(row, state)
            return state[0] if isinstance(state, tuple) else state
        return layer, run
    return make


def plain(make: Any) -> Any:
    def build(t: Any) -> Any:
        layer = make(t).double()

        def run(x: Any) -> Any:
            y = layer(x)
            return y[0] if isinstance(y, tuple) else y
        return layer, run
    return build


def after(first: Any, second: Any) -> Any:
    """A layer without parameters of its own, behind one that has some."""
    return plain(lambda t: t.nn.Sequential(first(t), second(t)))


def parameters(t: Any) -> Any:
    module = t.nn.Module()
    module.items = t.nn.ParameterList([t.nn.Parameter(t.ones(5, dtype=t.float64) * k) for k in (0.5, 1.5)])
    module.layers = t.nn.ModuleList([t.nn.Linear(5, 5).double(), t.nn.Linear(5, 3).double()])
    module.named = t.nn.ModuleDict({"a": t.nn.Linear(3, 2).double()})
    return module, lambda x: module.named["a"](module.layers[1](module.layers[0](x * module.items[0]).tanh() + module.items[1]))


def tables(mode: str) -> Any:
    def make(t: Any) -> Any:
        layer = t.nn.EmbeddingBag(13, 5, mode=mode).double()
        return layer, lambda x: layer((x.abs() * 4).long() % 13)
    return make


conv1, conv2, conv3 = (lambda t: t.nn.Conv1d(3, 4, 3)), (lambda t: t.nn.Conv2d(3, 4, 3)), (lambda t: t.nn.Conv3d(3, 4, 2))
ROWS, IMAGES, VOLUMES, SIGNALS, SEQUENCE = (33, 5), (2, 3, 9, 8), (2, 3, 5, 6, 4), (4, 3, 13), (7, 3, 5)
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "LSTM": (plain(lambda t: t.nn.LSTM(5, 7, num_layers=2, bidirectional=True)), SEQUENCE),
    "GRU": (plain(lambda t: t.nn.GRU(5, 7, num_layers=2)), SEQUENCE), "RNN": (plain(lambda t: t.nn.RNN(5, 7)), SEQUENCE),
    "LSTMCell": (cell("LSTMCell"), SEQUENCE), "GRUCell": (cell("GRUCell"), SEQUENCE), "RNNCell": (cell("RNNCell"), SEQUENCE),
    "MultiheadAttention": (attention, (7, 3, 8)),
    "TransformerEncoderLayer": (plain(lambda t: t.nn.TransformerEncoderLayer(8, 2, 13, dropout=0.0)), (7, 3, 8)),
    "TransformerEncoder": (plain(lambda t: t.nn.TransformerEncoder(t.nn.TransformerEncoderLayer(8, 2, 13, 0.0), 2, t.nn.LayerNorm(8))),
                           (7, 3, 8)),
    "BatchNorm1d": (plain(lambda t: t.nn.Sequential(t.nn.Linear(5, 7), t.nn.BatchNorm1d(7))), ROWS),
    "BatchNorm2d": (after(conv2, lambda t: t.nn.BatchNorm2d(4)), IMAGES),
    "BatchNorm3d": (after(conv3, lambda t: t.nn.BatchNorm3d(4)), VOLUMES),
    "GroupNorm": (after(conv2, lambda t: t.nn.GroupNorm(2, 4)), IMAGES),
    "InstanceNorm": (after(conv2, lambda t: t.nn.InstanceNorm2d(4, affine=True, track_running_stats=True)), IMAGES),
    "LayerNorm": (plain(lambda t: t.nn.LayerNorm(5)), ROWS), "RMSNorm": (plain(lambda t: t.nn.RMSNorm(5)), ROWS),
    "ConvTranspose1d": (plain(lambda t: t.nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1)), SIGNALS),
    "ConvTranspose2d": (plain(lambda t: t.nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1)), IMAGES),
    "ConvTranspose3d": (plain(lambda t: t.nn.ConvTranspose3d(3, 2, 2, dilation=2)), VOLUMES),
    "MaxPool1d": (after(conv1, lambda t: t.nn.MaxPool1d(3, 2)), SIGNALS), "MaxPool2d": (after(conv2, lambda t: t.nn.MaxPool2d(2)), IMAGES),
    "MaxPool3d": (after(conv3, lambda t: t.nn.MaxPool3d(2, 1)), VOLUMES), "AvgPool1d": (after(conv1, lambda t: t.nn.AvgPool1d(3)), SIGNALS),
    "AvgPool2d": (after(conv2, lambda t: t.nn.AvgPool2d(3, 1, 1)), IMAGES),
    "AvgPool3d": (after(conv3, lambda t: t.nn.AvgPool3d(2)), VOLUMES),
    "AdaptiveAvgPool2d": (after(conv2, lambda t: t.nn.AdaptiveAvgPool2d((3, 2))), IMAGES),
    "AdaptiveMaxPool2d": (after(conv2, lambda t: t.nn.AdaptiveMaxPool2d(3)), IMAGES),
    "LPPool2d": (after(lambda t: t.nn.Sequential(conv2(t), t.nn.Sigmoid()), lambda t: t.nn.LPPool2d(2, 2)), IMAGES),
    "Upsample": (after(conv2, lambda t: t.nn.Upsample(scale_factor=2, mode="bilinear")), IMAGES),
    "PixelShuffle": (after(conv2, lambda t: t.nn.PixelShuffle(2)), IMAGES),
    "Bilinear": (lambda t: (layer := t.nn.Bilinear(5, 5, 3).double(), lambda x: layer(x, x.sin())), ROWS),
    "EmbeddingBag": (tables("mean"), (7, 4)), "EmbeddingBag, max": (tables("max"), (7, 4)),
    "containers": (parameters, ROWS),
    "weight_norm": (plain(lambda t: t.nn.utils.parametrizations.weight_norm(t.nn.Linear(5, 3))), ROWS),
    "spectral_norm": (plain(lambda t: t.nn.utils.parametrizations.spectral_norm(t.nn.Linear(5, 3))), ROWS),
    "PReLU": (after(lambda t: t.nn.Linear(5, 7), lambda t: t.nn.PReLU(7)), ROWS),
}  # fmt: skip
# eps: some gradients are 0 but for rounding (of a bias before a batch norm, of keys' biases), which a small one would make steps of.
OPTIMIZERS: list[Any] = [
    lambda t, p: t.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True), lambda t, p: t.optim.Adam(p, lr=0.01, eps=1e-3),
    lambda t, p: t.optim.AdamW(p, lr=0.01, amsgrad=True, eps=1e-3), lambda t, p: t.optim.RMSprop(p, lr=0.01, eps=1e-2),
    lambda t, p: t.optim.Adagrad(p, lr=0.05, eps=1e-3), lambda t, p: t.optim.RAdam(p, lr=0.01, eps=1e-3)]  # fmt: skip


def values(module: Any) -> dict[str, Any]:
    return {name: np.asarray(v.detach().numpy()) for name, v in module.state_dict().items()}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_twenty_steps(name: str, traced: bool) -> None:
    make, shape = LAYERS[name]
    optimizer = OPTIMIZERS[list(LAYERS).index(name) % len(OPTIMIZERS)]
    data = RNG.standard_normal((20, *shape))
    (mine, run), (theirs, reference) = make(tg), make(torch)
    theirs.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in values(mine).items()})
    goal = RNG.standard_normal(tuple(reference(torch.tensor(data[0])).shape))
    theirs.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in values(mine).items()})     # as running statistics were before
    losses: list[list[float]] = []
    for t, module, call in ((tg, mine, run), (torch, theirs, reference)):
        opt = optimizer(t, module.parameters())

        def step(x: Any, y: Any, opt: Any = opt, call: Any = call) -> Any:
            opt.zero_grad()
            loss = ((call(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        do = tg.trace(step) if traced and t is tg else step
        losses.append([float(do(t.tensor(x), t.tensor(goal))) for x in data])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9, atol=1e-12)
    expected = values(theirs)
    assert set(values(mine)) == set(expected)
    for key, value in values(mine).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-9, atol=1e-11, err_msg=key)
