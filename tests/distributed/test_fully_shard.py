"""fully_shard: training by parts is training on one rank, what a rank holds, and checkpoints under other numbers of ranks."""

from __future__ import annotations

import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ArgumentError, ArgumentTypeError

# Models, their batches, and their training: whole on this rank with all of the batch, or by parts with this rank's part of it.
TRAINING = """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 6), nn.LayerNorm(6)
        self.block = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))
        self.scale = nn.Parameter(tg.ones(1), requires_grad=False)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embedding.weight
    def forward(self, tokens):
        return self.out(self.norm(self.block(self.embedding(tokens)) * self.scale))
class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(11, 5), nn.LSTM(5, 6, num_layers=2, batch_first=True), nn.Linear(6, 11)
    def forward(self, tokens):
        return self.out(self.lstm(self.embedding(tokens))[0])
class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)])
    def forward(self, tokens):
        h = self.embedding(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)
def shard(model):
    for part in (*getattr(model, "layers", ()), *(getattr(model, name) for name in ("block", "lstm") if hasattr(model, name))):
        dist.fully_shard(part)
    return dist.fully_shard(model)
def wrapped(model, how):
    return {"whole": lambda m: m, "parts": shard, "copies": nn.parallel.DistributedDataParallel}[how](model)
def batches(steps):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 11, size=(24, 5)) for _ in range(steps)]
def step_of(model, optimizer, traced, clip=None):
    def step(tokens):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, 11), tokens[:, 1:].reshape(-1))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else loss
        optimizer.step()
        return loss, norm
    return tg.trace(step) if traced else step
def train(make, how, traced=False, steps=4, clip=None, Optimizer=tg.optim.Adam, **options):
    tg.manual_seed(0)
    model = wrapped(make().to(tg.float64), how)
    optimizer = Optimizer([p for p in model.parameters() if p.requires_grad], lr=0.05, **options)
    step = step_of(model, optimizer, traced, clip)
    norms = [step(tg.from_numpy(tokens if how == "whole" else tokens[rank::size]))[1] for tokens in batches(steps)]
    return model, optimizer, norms
def whole(model):
    found = []
    for p in model.parameters():
        parts = [None] * size
        dist.all_gather_object(parts, p.detach().numpy())
        s = tg.distributed.fsdp.sharding_of(p)
        found.append(np.concatenate(parts) if s is not None and size > 1 else parts[0])
    return found
def equal(model, expected):
    for a, b in zip(whole(model), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
"""


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_training_by_parts_is_that_of_one_rank(ranks, count):
    """Blocks and model, tied and frozen parameters, fewer rows than ranks, traced and not; with what a rank holds counted."""
    ranks(count, TRAINING + """
model, _, norms = train(Tied, "whole", clip=0.5)
expected = [p.detach().numpy() for p in model.parameters()]
total = sum(p.nbytes for p in model.parameters())
for traced in (False, True):
    model, optimizer, found = train(Tied, "parts", traced, clip=0.5)
    equal(model, expected)
    same(tg.stack(found), tg.stack(norms).numpy(), 1e-9)             # clip_grad_norm_: of all parts
    mine = [p.nbytes for p in model.parameters()]
    everybody = [None] * size
    dist.all_gather_object(everybody, sum(mine))
    assert sum(everybody) == total and max(everybody) <= total / size + 9 * 8 * len(mine), everybody
    assert sum(p.grad.nbytes for p in model.parameters() if p.requires_grad) == sum(mine) - model.scale.nbytes
    moments = [v.nbytes for s in optimizer.state.values() for v in s.values() if v.ndim]
    assert sum(moments) == 2 * (sum(mine) - model.scale.nbytes)
    assert model.out.weight is model.embedding.weight
for Optimizer in (tg.optim.LBFGS, tg.optim.Adafactor, tg.optim.Muon):
    told = raises(tg.errors.ArgumentError, lambda: Optimizer([model.embedding.weight]))
    assert f"{Optimizer.__name__}: params: a parameter of shape (11, 6) lies on the ranks by parts" in told, told
    assert isinstance(model, dist.FSDPModule) and isinstance(model, Tied) and type(model).__name__ == "FSDPTied"
""")


@pytest.mark.long
def test_whole_tensors_go_when_backward_is_done(ranks):
    """Between two steps a rank has its parts alone: the nodes of all whole tensors that were ever made are gone."""
    ranks(2, TRAINING + """
import gc
from tracegrad.distributed import fsdp
alive = []
import weakref
real = fsdp._Whole.apply
def counted(*args):
    found = real(*args)
    alive.extend(weakref.ref(t._node()) for t in found)
    return found
fsdp._Whole.apply = counted
model, optimizer, _ = train(Tied, "parts", steps=3)
gc.collect()
assert len(alive) >= 18 and not any(ref() is not None for ref in alive), [ref() for ref in alive]
""")


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["LSTM", "Transformer"])
def test_models_on_ranks_are_those_of_one_rank(ranks, count, name):
    """By parts and with copies, untraced and traced: the parameters of one rank to rounding, and equal bits from run to run."""
    ranks(count, TRAINING + f"""
sgd = {{"Optimizer": tg.optim.SGD, "momentum": 0.9}}       # (Adam makes numbers of a gradient that is 0 but for rounding)
expected = [p.detach().numpy() for p in train({name}, "whole", True, **sgd)[0].parameters()]
for how in ("parts", "copies"):
    for traced in (False, True):
        model = train({name}, how, traced, **sgd)[0]
        equal(model, expected)
        for a, b in zip(whole(model), whole(train({name}, how, traced, **sgd)[0]), strict=True):
            assert a.tobytes() == b.tobytes()
""", seconds=500)


SAVED = """
state = dict(zip(("model", "optimizer"), dist.checkpoint.get_state_dict(model, optimizer)))
"""


@pytest.mark.long
@pytest.mark.parametrize("options", ["Optimizer=tg.optim.Adam, betas=(0.8, 0.99)", "Optimizer=tg.optim.SGD, momentum=0.9"])
def test_a_state_is_read_by_another_number_of_ranks(ranks, tmp_path, options):
    """Three ranks write; two, four and one go on from there, by parts or whole, as one rank would have."""
    ranks(3, TRAINING + f"model, optimizer, _ = train(Tied, 'whole', {options})\n"
          + "model, optimizer, _ = train(Tied, 'parts' if size > 1 else 'whole', " + options + ")" + SAVED
          + f"dist.checkpoint.save(state, {str(tmp_path)!r})")
    go_on = TRAINING + f"""
tg.manual_seed(0)
expected = train(Tied, "whole", steps=6, {options})[0]
for how in ("parts", "whole"):
    model, optimizer, _ = train(Tied, how, steps=1, {options.replace("0.8", "0.5").replace("0.9", "0.1")})
    {SAVED.strip()}
    dist.checkpoint.load(state, {str(tmp_path)!r})
    dist.checkpoint.set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step = step_of(model, optimizer, False)
    for tokens in batches(6)[4:]:
        step(tg.from_numpy(tokens if how == "whole" else tokens[rank::size]))
    equal(model, [p.detach().numpy() for p in expected.parameters()])
"""
    for count in (2, 4, 1):
        ranks(count, go_on)


def test_errors(monkeypatch):
    """One rank, without MPI."""
    monkeypatch.setattr(tg.distributed.world.importlib.util, "find_spec", lambda *_: None)
    tg.distributed.init_process_group()
    try:
        shard = tg.distributed.fully_shard
        with pytest.raises(ArgumentTypeError, match="fully_shard: expected a Module, got list"):
            shard([1])
        with pytest.raises(ArgumentError, match="fully_shard: ModuleList has no forward"):
            shard(nn.ModuleList([nn.Linear(2, 2)]))
        net = nn.Linear(2, 2)
        net.scale = nn.Parameter(tg.tensor(1.0))
        with pytest.raises(ArgumentError, match="fully_shard: scale has no dimensions"):
            shard(net)
        with pytest.raises(ArgumentError, match="fully_shard: weight is a lazy layer's"):
            shard(nn.LazyLinear(3))
        assert shard(net, ignored_params={net.scale}) is net
        with pytest.raises(ArgumentError, match="fully_shard: this FSDPLinear is sharded"):
            shard(net)
        with pytest.raises(ArgumentError, match="deepcopy: a FSDPLinear"):
            __import__("copy").deepcopy(net)
        with pytest.raises(ArgumentError, match=r"get_state_dict: the optimizer has a parameter of shape \(3, 1\)"):
            tg.distributed.checkpoint.get_state_dict(net, tg.optim.SGD([nn.Parameter(tg.ones(3, 1))], lr=0.1))
    finally:
        tg.distributed.destroy_process_group()
