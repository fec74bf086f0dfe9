"""nn.utils.prune: which elements are pruned, also of what was pruned before; training, traces, saving and removing; mistakes."""

import copy

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn.utils import prune

pytestmark = pytest.mark.usefixtures("on_numpy")
W = np.sin(np.arange(33.0 * 7)).reshape(33, 7)


def layer():
    made = nn.Linear(7, 33).double()
    made.weight.data = tg.tensor(W)
    return made


def test_the_least_elements_go_and_of_what_is_left_the_least():
    made = prune.l1_unstructured(layer(), "weight", 0.5)
    order = np.argsort(np.abs(W).reshape(-1))
    mask = np.ones(W.size)
    mask[order[:116]] = 0                                                # round(0.5 * 231), to even
    np.testing.assert_array_equal(made.weight_mask.numpy().reshape(-1), mask)
    np.testing.assert_array_equal(made.weight.detach().numpy().reshape(-1), W.reshape(-1) * mask)
    prune.l1_unstructured(made, "weight", 0.2)
    mask[order[116:116 + 23]] = 0
    np.testing.assert_array_equal(made.weight_mask.numpy().reshape(-1), mask)
    assert [name for name, _ in made.named_parameters()] == ["bias", "weight_orig"]
    assert prune.is_pruned(nn.Sequential(made))


def test_channels():
    made = prune.ln_structured(layer(), "weight", 3, n=2, dim=1)
    gone = np.argsort(np.linalg.norm(W, axis=0))[:3]
    wanted = np.ones(W.shape)
    wanted[:, gone] = 0
    np.testing.assert_array_equal(made.weight_mask.numpy(), wanted)
    prune.ln_structured(made, "weight", 0.5, n=1, dim=1)                  # of the four that are left
    left = [c for c in np.argsort(np.abs(W).sum(0)) if c not in gone]
    wanted[:, left[:2]] = 0
    np.testing.assert_array_equal(made.weight_mask.numpy(), wanted)
    prune.random_structured(made, "weight", 5, dim=0)
    assert int((made.weight_mask.sum(1) == 0).sum()) == 5


def test_at_random_by_masks_by_scores_and_of_all():
    made = prune.random_unstructured(layer(), "weight", 100)
    assert int(made.weight_mask.sum()) == W.size - 100
    scores = tg.arange(231.0).reshape(33, 7)
    made = prune.l1_unstructured(layer(), "weight", 7, importance_scores=scores)
    assert not made.weight_mask[0].any()
    prune.custom_from_mask(made, "bias", tg.arange(33) % 2)
    assert not made.bias[::2].any()
    model = nn.Sequential(layer(), nn.Linear(33, 2).double())
    prune.global_unstructured([(model[0], "weight"), (model[1], "weight")], prune.L1Unstructured, amount=0.25)
    every = np.abs(np.concatenate([model[k].weight_orig.detach().numpy().reshape(-1) for k in (0, 1)]))
    masks = np.concatenate([model[k].weight_mask.numpy().reshape(-1) for k in (0, 1)])
    np.testing.assert_array_equal(masks == 0, every < np.sort(every)[round(0.25 * every.size)])


class EveryOther(prune.BasePruningMethod):
    def compute_mask(self, t, default_mask):
        mask = default_mask.clone()
        mask.view(-1)[::2] = 0
        return mask


def test_training_keeps_zeros(run):
    made = layer()
    EveryOther.apply(made, "weight")
    opt, x = optim.SGD(made.parameters(), lr=0.1), tg.tensor(W)

    @run
    def step(x):
        opt.zero_grad()
        loss = made(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    losses = [step(x).item() for _ in range(3)]
    assert losses[2] < losses[0]
    assert not made.weight.detach().reshape(-1)[::2].any()
    np.testing.assert_array_equal(made.weight_orig.detach().numpy().reshape(-1)[::2], W.reshape(-1)[::2])
    EveryOther.apply(made, "weight")                                      # a trace sees the new mask
    assert step(x).item() != losses[2]
    assert int(made.weight_mask.sum()) == 57
    again = layer()
    prune.identity(again, "weight")
    again.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(again(x).detach().numpy(), made(x).detach().numpy())
    before = copy.deepcopy(made)(x)
    prune.remove(made, "weight")
    np.testing.assert_array_equal(made(x).detach().numpy(), before.detach().numpy())
    assert sorted(made.state_dict()) == ["bias", "weight"]
    assert not prune.is_pruned(made)


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda m: prune.l1_unstructured(m, "weight", 1.5), ArgumentError, "amount"),
    (lambda m: prune.l1_unstructured(m, "weight", 1000), ArgumentError, "more than the 231 elements"),
    (lambda m: prune.ln_structured(m, "bias", 0.5, 2, 0), ShapeError, "channels along dim 0"),
    (lambda m: prune.custom_from_mask(m, "weight", tg.ones(3)), ShapeError, r"\(3,\)"),
    (lambda m: prune.identity(m, "wait"), ArgumentError, "no parameter 'wait'"),
    (lambda m: prune.remove(m, "weight"), ArgumentError, "not what this removes"),
    (lambda m: prune.global_unstructured([(m, "weight")], prune.LnStructured, amount=1, n=2), ArgumentError, "must be unstructured"),
])
def test_mistakes_change_nothing(call, error, match):
    made = layer()
    with pytest.raises(error, match=match):
        call(made)
    assert [name for name, _ in made.named_parameters()] == ["weight", "bias"]
