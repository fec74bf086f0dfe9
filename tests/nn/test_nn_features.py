"""Hooks, lookups, registration, functional calls and parametrizations of modules."""

import copy
import pickle

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn.utils import parametrizations, parametrize

pytestmark = pytest.mark.usefixtures("on_numpy")


class Squared(nn.Module):
    def forward(self, x, scale=1.0):
        return x * x * scale


# -------------------------------------------------------------------------------------------------------------------- hooks


def test_forward_hooks(run):
    layer = Squared()
    layer.register_forward_pre_hook(lambda m, args: args[0] + 1.0)
    layer.register_forward_pre_hook(lambda m, args: (args[0] * 2.0,), prepend=True)
    with layer.register_forward_hook(lambda m, args, out: out + args[0]):
        layer.register_forward_hook(lambda m, args, kwargs, out: out * kwargs["scale"], with_kwargs=True)
        assert run(lambda x: layer(x, scale=2.0))(tg.tensor([1.0, 2.0])).tolist() == [2 * (9 * 2 + 3), 2 * (25 * 2 + 5)]
    assert run(lambda x: layer(x, scale=3.0))(tg.tensor([1.0])).tolist() == [3 * 9 * 3]
    layer = Squared()
    handle = layer.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": 5.0}), with_kwargs=True)
    assert layer(tg.ones(1)).tolist() == [5.0]
    handle.remove()
    handle.remove()
    assert layer(tg.ones(1)).tolist() == [1.0]
    layer.register_forward_pre_hook(lambda m, args, kwargs: 3, with_kwargs=True)
    with pytest.raises(ArgumentError, match="must return None or"):
        layer(tg.ones(1))


def test_a_new_hook_shows_in_a_traced_function():
    layer = Squared()
    traced = tg.trace(layer)
    assert traced(tg.tensor([3.0])).tolist() == [9.0]
    handle = layer.register_forward_hook(lambda m, args, out: out + 1.0)
    assert traced(tg.tensor([3.0])).tolist() == [10.0]
    handle.remove()
    assert traced(tg.tensor([3.0])).tolist() == [9.0]


def test_always_called_hooks():
    seen = []
    layer = Squared()
    layer.register_forward_hook(lambda m, args, out: seen.append(out), always_call=True)
    layer.register_forward_hook(lambda m, args, out: seen.append("late"))
    with pytest.raises(TypeError):
        layer("text")
    assert seen == [None]


def test_full_backward_hooks():
    seen = {}
    layer = nn.Linear(3, 2).double()
    x = tg.tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)
    layer.register_full_backward_hook(lambda m, gi, go: seen.update(gi=gi, go=go))
    (layer(x) ** 2).sum().backward()
    y = x.detach().numpy() @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(seen["go"][0].numpy(), 2 * y)
    np.testing.assert_allclose(seen["gi"][0].numpy(), 2 * y @ layer.weight.detach().numpy())
    np.testing.assert_allclose(x.grad.numpy(), seen["gi"][0].numpy())
    weight_grad = layer.weight.grad.numpy()
    layer.zero_grad()
    x.grad = None
    more = layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * 10.0,))
    handle = layer.register_full_backward_pre_hook(lambda m, go: (go[0] * 2.0,))
    (layer(x) ** 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 40 * y @ layer.weight.detach().numpy())
    np.testing.assert_allclose(layer.weight.grad.numpy(), 2 * weight_grad)
    handle.remove()
    more.remove()
    layer(tg.tensor(np.ones((2, 3)))).sum().backward()                      # an input without a gradient
    assert seen["gi"] == (None,)
    assert seen["go"][0].tolist() == [[1.0, 1.0]] * 2


def test_backward_hooks_see_what_forward_hooks_made_of_the_result():
    layer, seen = nn.Linear(12, 7).double(), {}
    layer.register_forward_hook(lambda m, args, out: out * 3.0)
    layer.register_full_backward_hook(lambda m, gi, go: seen.update(gi=gi[0].detach(), go=go[0].detach()))
    x = tg.tensor(np.ones((5, 12)), requires_grad=True)
    layer(x).sum().backward()
    assert seen["go"].tolist() == np.ones((5, 7)).tolist()              # 3 where it is the gradient of what forward returned
    np.testing.assert_allclose(seen["gi"].numpy(), np.tile(3.0 * layer.weight.detach().numpy().sum(0), (5, 1)))


def test_full_backward_hooks_in_a_trace_and_of_several_outputs():
    layer = nn.LSTM(3, 4)
    x = tg.tensor(np.ones((5, 2, 3), np.float32), requires_grad=True)
    layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3.0,))

    def gradient(x):
        return tg.grad(lambda x: (layer(x)[0] ** 2).sum())(x)

    hooked = gradient(x).detach().numpy()
    traced = tg.trace(gradient)(x).detach().numpy()
    layer._tg_hooks.clear()
    np.testing.assert_allclose(hooked, 3 * gradient(x).detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(traced, hooked, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------------ lookups


def test_lookups_by_dotted_names():
    net = nn.Sequential({"a": nn.Linear(2, 3), "b": nn.Sequential(nn.BatchNorm1d(3))})
    assert net.get_parameter("a.weight") is net.a.weight
    assert net.get_buffer("b.0.running_mean") is net.b[0].running_mean
    assert net.get_submodule("") is net
    for lookup, name in ((net.get_submodule, "a.x"), (net.get_parameter, "a.nothing"), (net.get_buffer, "b.0.weight")):
        with pytest.raises(AttributeError, match=f"{lookup.__name__}: Sequential has no"):
            lookup(name)
    net.set_submodule("b.0", nn.Identity())
    assert isinstance(net.b[0], nn.Identity)
    with pytest.raises(AttributeError, match="set_submodule"):
        net.set_submodule("b.9", nn.Identity())


def test_duplicates():
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, shared)
    assert len(list(net.named_children())) == 1
    assert len(list(net.named_parameters(remove_duplicate=False))) == 4
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(net.state_dict(prefix="model.", keep_vars=True))[0].startswith("model.")  # noqa: RUF015
    assert net.state_dict(keep_vars=True)["1.bias"] is shared.bias


def test_registration():
    m = nn.Module()
    m.register_buffer("b", tg.ones(2), persistent=False)
    assert list(m.state_dict()) == []
    m.register_buffer("b", tg.ones(2))
    assert list(m.state_dict()) == ["b"]
    for call, match in ((lambda: m.register_buffer("forward", tg.ones(1)), "has an attribute 'forward'"),
                        (lambda: m.register_buffer("a.b", tg.ones(1)), "without a dot"),
                        (lambda: m.register_buffer("c", 3), "must be a Tensor or None, got int"),
                        (lambda: m.register_parameter("c", tg.ones(1)), "must be a Parameter"),
                        (lambda: m.register_module("c", 3), "must be a Module or None, got int"), (lambda: m.train(1), "True or False")):
        with pytest.raises(ArgumentError, match=match):
            call()
    assert m.type("float64").b.dtype == tg.float64
    both = nn.Sequential(nn.Linear(2, 2))
    for call in (lambda: both.register_parameter("0", nn.Parameter(tg.ones(1))), lambda: both.register_buffer("0", tg.ones(1)),
                 lambda: both[0].register_buffer("weight", tg.ones(1)), lambda: both[0].add_module("bias", both)):
        with pytest.raises(ArgumentError, match="already"):      # it was two things of one name: in state_dict() and elsewhere
            call()


def test_containers_are_lists_and_dictionaries():
    layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    layers.insert(1, nn.Linear(2, 2))
    assert [type(m).__name__ for m in layers] == ["ReLU", "Linear", "Tanh"]
    assert isinstance(layers.pop(0), nn.ReLU)
    assert [name for name, _ in layers.named_children()] == ["0", "1"]
    del layers[0]
    assert isinstance(layers[0], nn.Tanh)
    table = nn.ModuleDict([("a", nn.ReLU())])
    table.update({"b": nn.Tanh()})
    assert isinstance(table.pop("a"), nn.ReLU)
    assert list(table.keys()) == ["b"]
    with pytest.raises(ArgumentError, match="'c': expected a Module"):
        table["c"] = 3
    numbers = nn.ParameterList([tg.ones(2), nn.Parameter(tg.zeros(3))])
    numbers[0] = tg.zeros(5)
    assert [p.shape for p in numbers[0:2]] == [(5,), (3,)]
    assert list(numbers.state_dict()) == ["0", "1"]
    with pytest.raises(IndexError):
        numbers[2]
    named = nn.ParameterDict({"keys": tg.ones(2)})
    named["other"] = tg.ones(1)
    assert list(named.state_dict()) == ["keys", "other"]
    assert list(named.keys()) == ["keys", "other"]
    assert repr(named).splitlines()[1] == "    (keys): Parameter containing: [torch.FloatTensor of size 2]"


def test_functional_calls():
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()
    x = tg.tensor(np.random.default_rng(0).normal(size=(5, 3)))
    w = tg.tensor(np.ones((2, 3)))
    y = nn.utils.functional_call(net, {"0.weight": w}, x)
    np.testing.assert_allclose(y.detach().numpy(), np.tanh(x.numpy().sum(1, keepdims=True) + net[0].bias.detach().numpy()))
    params = {name: p.detach() for name, p in net.named_parameters()}
    grads = tg.grad(lambda p: (nn.utils.functional_call(net, p, x) ** 2).sum())(params)
    (net(x) ** 2).sum().backward()
    for name, p in net.named_parameters():
        np.testing.assert_allclose(grads[name].numpy(), p.grad.numpy(), rtol=1e-12)
    with pytest.raises(ArgumentError, match=r"unexpected 0\.wait"):
        nn.utils.functional_call(net, {"0.wait": w}, x)
    with pytest.raises(ArgumentError, match=r"missing 0\.bias"):
        nn.utils.functional_call(net, {"0.weight": w}, x, strict=True)


def test_functional_calls_with_tied_weights_and_keywords_and_what_a_module_assigns():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", tg.zeros(()))
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x, scale=1.0):
            self.count = self.count + 1
            return self.second(self.first(x)) * scale

    net, x, eye = Counting(), tg.ones(5, 3), tg.eye(3)
    with tg.no_grad():
        net.first.weight.copy_(3 * eye)
    given = {"first.weight": 2 * eye, "count": tg.tensor(7.0)}
    np.testing.assert_array_equal(tg.func.functional_call(net, given, None, {"x": x, "scale": 10.0}).numpy(), np.full((5, 3), 40.0))
    assert given["count"].item() == 8                # as in torch: the mapping has what the module assigned, the module what it had
    assert net.count.item() == 0
    assert net.first.weight is net.second.weight
    np.testing.assert_array_equal(tg.func.functional_call(net, given, x, tie_weights=False).detach().numpy(), np.full((5, 3), 6.0))
    both = {"first.weight": 2 * eye, "second.weight": 5 * eye}
    np.testing.assert_array_equal(tg.func.functional_call(net, both, x, tie_weights=False).numpy(), np.full((5, 3), 10.0))
    with pytest.raises(ArgumentError, match=r"first\.weight and second\.weight are one tensor"):
        tg.func.functional_call(net, both, x)


# --------------------------------------------------------------------------------------------------------- parametrizations


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT


class Exponential(nn.Module):
    def forward(self, x):
        return x.exp()

    def right_inverse(self, value):
        return value.log()


def test_parametrizations_of_ones_own():
    layer = parametrize.register_parametrization(nn.Linear(4, 4), "weight", Symmetric())
    w = layer.weight.detach().numpy()
    np.testing.assert_array_equal(w, w.T)
    layer(tg.ones(2, 4)).sum().backward()
    assert layer.parametrizations.weight.original.grad.tolist() == np.triu(np.full((4, 4), 4.0) - 2 * np.eye(4)).tolist()
    with pytest.raises(ArgumentError, match="Symmetric, which computes it, has no right_inverse"):
        layer.weight = tg.ones(4, 4)
    positive = nn.Linear(3, 2)
    positive.weight.data = tg.full((2, 3), 2.0)
    parametrize.register_parametrization(positive, "weight", Exponential())
    np.testing.assert_allclose(positive.weight.detach().numpy(), 2.0, rtol=1e-6)
    positive.weight = tg.full((2, 3), 5.0)
    np.testing.assert_allclose(positive.parametrizations.weight.original.detach().numpy(), np.log(5.0), rtol=1e-6)
    twins = [copy.deepcopy(positive), pickle.loads(pickle.dumps(positive))]
    parametrize.remove_parametrizations(positive, "weight")
    assert type(positive) is nn.Linear
    assert [n for n, _ in positive.named_parameters()] == ["bias", "weight"]
    for twin in twins:
        assert parametrize.is_parametrized(twin, "weight")
        np.testing.assert_allclose(twin.weight.detach().numpy(), 5.0, rtol=1e-6)
    with pytest.raises(ArgumentError, match="no parametrization of 'weight'"):
        parametrize.remove_parametrizations(positive, "weight")
    with pytest.raises(ArgumentError, match="no parameter 'wait'"):
        parametrize.register_parametrization(positive, "wait", Exponential())
    with pytest.raises(ShapeError, match="unsafe=True"):
        parametrize.register_parametrization(positive, "weight", nn.Flatten(0))


def test_a_parametrization_on_top_of_another_leaves_the_original():
    layer = nn.Linear(12, 12)
    original = layer.weight.detach().numpy()
    parametrize.register_parametrization(layer, "weight", Symmetric())          # has no right_inverse: nothing is assigned through it
    parametrize.register_parametrization(layer, "weight", Exponential())
    np.testing.assert_array_equal(layer.parametrizations.weight.original.detach().numpy(), original)
    np.testing.assert_allclose(layer.weight.detach().numpy(), np.exp(np.triu(original) + np.triu(original, 1).T), rtol=1e-6)
    parametrize.register_parametrization(layer, "bias", Exponential())
    before = layer.bias.detach().numpy()
    parametrize.register_parametrization(layer, "bias", Exponential())
    np.testing.assert_allclose(layer.bias.detach().numpy(), np.exp(before), rtol=1e-6)


def test_a_parametrized_parameter_stays_the_one_that_an_optimizer_has():
    layer = nn.Linear(12, 12)
    weight, optimizer = layer.weight, tg.optim.SGD(layer.parameters(), lr=0.5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    assert layer.parametrizations.weight.original is weight
    trained = layer.weight.detach().numpy() - (2 - np.eye(12))
    layer(tg.ones(2, 12)).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(layer.weight.detach().numpy(), trained, rtol=1e-5, atol=1e-6)
    parametrize.remove_parametrizations(layer, "weight")
    assert layer.weight is weight
    np.testing.assert_allclose(weight.detach().numpy(), trained, rtol=1e-5, atol=1e-6)
    assert weight.grad is not None
    weight.data.fill_(2.0)
    parametrize.register_parametrization(layer, "weight", Exponential())
    np.testing.assert_allclose(weight.detach().numpy(), np.log(2.0), rtol=1e-6)
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    np.testing.assert_allclose(layer.weight.detach().numpy(), np.log(2.0), rtol=1e-6)
    assert layer.weight is weight


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm(dim, run):
    tg.manual_seed(0)
    layer = nn.Linear(5, 7).double()
    before = layer.weight.detach().numpy()
    parametrizations.weight_norm(layer, dim=dim)
    x = tg.tensor(np.random.default_rng(1).normal(size=(13, 5)))
    forward = run(layer)
    np.testing.assert_allclose(forward(x).detach().numpy(), x.numpy() @ before.T + layer.bias.detach().numpy(), rtol=1e-12)
    g, v = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    assert g.shape == {0: (7, 1), 1: (1, 5), None: ()}[dim]
    with tg.no_grad():
        g.mul_(3.0)
    np.testing.assert_allclose(forward(x).detach().numpy(), 3 * x.numpy() @ before.T + layer.bias.detach().numpy(), rtol=1e-12)
    forward(x).sum().backward()
    axes = {0: 1, 1: 0, None: (0, 1)}[dim]
    radial = (v.grad.numpy() * v.detach().numpy()).sum(axes)
    np.testing.assert_allclose(radial, 0.0, atol=1e-10)                      # the length of v does not matter


def test_spectral_norm():
    tg.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Conv2d(3, 5, 3).double(), n_power_iterations=3)
    original = layer.parametrizations.weight.original.detach().numpy()
    for _ in range(20):
        layer(tg.ones(1, 3, 4, 4, dtype=tg.float64))
    expected = original / np.linalg.norm(original.reshape(5, -1), 2)
    np.testing.assert_allclose(layer.weight.detach().numpy(), expected, rtol=1e-6)
    layer.eval()
    u = layer.parametrizations.weight[0]._u.numpy()
    layer(tg.ones(1, 3, 4, 4, dtype=tg.float64)).sum().backward()
    np.testing.assert_array_equal(layer.parametrizations.weight[0]._u.numpy(), u)
    assert np.isfinite(layer.parametrizations.weight.original.grad.numpy()).all()


# ------------------------------------------------------------------------------------------------------------ state_dict


class Counted(nn.Linear):
    """A layer with state that is no tensor."""

    seen = 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def test_extra_state_is_saved_and_loaded():
    model, other = (nn.Sequential(nn.ReLU(), Counted(7, 3)) for _ in range(2))
    model[1].seen = 5
    state = model.state_dict(prefix="m.")
    assert list(state) == ["m.1.weight", "m.1.bias", "m.1._extra_state"]
    assert str(other.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
    assert other[1].seen == 5
    with pytest.raises(tg.ArgumentError, match=r"load_state_dict: Sequential: missing 1._extra_state; pass strict"):
        other.load_state_dict({k: v for k, v in model.state_dict().items() if "extra" not in k})
    with pytest.raises(tg.ArgumentError, match=r"unexpected 1\._extra_state"):
        nn.Sequential(nn.ReLU(), nn.Linear(7, 3)).load_state_dict(model.state_dict())


def test_hooks_of_state_dict():
    model, calls = nn.Sequential(nn.Linear(7, 3), nn.Linear(3, 2)), []
    pre = model[1].register_state_dict_pre_hook(lambda m, prefix, keep: calls.append((m is model[1], prefix, keep)))
    post = model.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update({f"{prefix}note": 1}))
    state = model.state_dict(prefix="a.", keep_vars=True)
    assert (calls, state.pop("a.note"), state["a.0.weight"] is model[0].weight) == ([(True, "a.1.", True)], 1, True)
    pre.remove()
    post.remove()
    before = {f"module.{k}": v.clone() * 2 for k, v in model.state_dict().items()}

    def strip(module, state, prefix, meta, strict, missing, unexpected, errors):
        for k in list(state):
            state[k.removeprefix("module.")] = state.pop(k)

    def lenient(module, keys):
        keys.missing_keys.clear()

    model.register_load_state_dict_pre_hook(strip)
    weight = model[1].weight.clone()
    model.load_state_dict(before)
    assert list(before) == ["module.0.weight", "module.0.bias", "module.1.weight", "module.1.bias"]     # the hook has a copy
    np.testing.assert_array_equal(model[1].weight.numpy(force=True), 2 * weight.numpy(force=True))
    before.pop("module.0.bias")
    with pytest.raises(tg.ArgumentError, match=r"missing 0\.bias"):
        model.load_state_dict(before)
    model.register_load_state_dict_post_hook(lenient)
    assert model.load_state_dict(before) == ([], [])
    model[0].register_load_state_dict_pre_hook(lambda *args: args[-1].append("too old"))
    with pytest.raises(tg.ArgumentError, match="load_state_dict: Sequential: too old"):
        model.load_state_dict(before)
    with pytest.raises(TypeError, match="load_state_dict: state_dict must be a mapping of names to tensors, got list"):
        model.load_state_dict([])


def test_a_state_that_does_not_fit_in_several_ways_is_told_of_once():
    with pytest.raises(tg.ArgumentError, match=r"missing bias; pass .*; weight has shape \(3, 3\), expected \(2, 2\)"):
        nn.Linear(2, 2).load_state_dict({"weight": tg.ones(3, 3)})


def test_load_state_dict_assigns_the_tensors_themselves():
    model = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))
    model[0].bias.requires_grad_(False)
    given = {k: v.clone().double() if v.dtype == tg.float32 else v.clone() + 3 for k, v in model.state_dict().items()}
    given["0.weight"] = nn.Parameter(given["0.weight"])
    old = model[0].weight
    model.load_state_dict(given, assign=True)
    assert model[0].weight is given["0.weight"] is not old
    assert [p.dtype for p in model.parameters()] == [tg.float64] * 4
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True]
    assert (model[1].running_mean is given["1.running_mean"], model[1].num_batches_tracked.item()) == (True, 3)
    with pytest.raises(tg.ShapeError, match=r"0\.weight has shape \(2, 7\), expected \(3, 7\)"):
        model.load_state_dict(given | {"0.weight": tg.ones(2, 7)}, assign=True)
    assert model[0].weight is given["0.weight"]


def test_containers_are_added_and_multiplied():
    a, b = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Tanh())
    both = a + b
    assert (list(both), len(a)) == ([*a, *b], 2)
    assert list(a * 2) == list(2 * a) == [*a, *a]
    a += b
    assert (type(a), len(a)) == (nn.Sequential, 3)
    modules = nn.ModuleList([nn.Linear(2, 3) for _ in range(3)]) + nn.Sequential(nn.ReLU())
    modules += [nn.ReLU()]
    assert repr(modules) == "ModuleList(\n  (0-2): 3 x Linear(in_features=2, out_features=3, bias=True)\n  (3-4): 2 x ReLU()\n)"
    assert (nn.Linear(2, 2)._get_name(), repr(nn.ModuleList())) == ("Linear", "ModuleList()")
    for bad in (lambda: a + nn.ReLU(), lambda: a * 0):
        with pytest.raises(tg.TracegradError, match="Sequential"):
            bad()


def test_buffers_and_modules_are_not_hidden_by_other_values():
    norm, model = nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(TypeError, match=r"BatchNorm1d.running_mean: a buffer is a Tensor or None, got int; `del` it first"):
        norm.running_mean = 3
    model.head = nn.ReLU()
    with pytest.raises(TypeError, match=r"Sequential.head: expected a Module or None, got function; `del` it first"):
        model.head = lambda x: x
    assert (norm.running_mean.tolist(), type(model.head)) == ([0.0] * 3, nn.ReLU)
    del norm.running_mean, model.head
    norm.running_mean, model.head = 3, abs
    assert (norm.running_mean, model.head, "running_mean" in norm.state_dict(), len(model)) == (3, abs, False, 1)
    norm.running_var = None
    norm.running_var = tg.ones(3)
    assert "running_var" in norm.state_dict()


# --------------------------------------------------------------------------------------------------- attributes of Parameters


def test_parameters_take_attributes():
    layer = nn.Linear(7, 3)
    layer.bias.no_decay, layer.weight.tag = True, {"a": [1]}
    assert [name for name, p in layer.named_parameters() if getattr(p, "no_decay", False)] == ["bias"]
    assert layer.double().weight.tag == {"a": [1]}
    assert pickle.loads(pickle.dumps(layer.weight)).tag == copy.copy(layer.weight).tag == {"a": [1]}
    assert not hasattr(copy.deepcopy(layer.weight), "tag")                       # as in torch
    buffer = nn.Buffer(tg.ones(2))
    buffer.kind = "mean"
    assert pickle.loads(pickle.dumps(buffer)).kind == "mean"


def test_a_traced_function_sees_attributes_change():
    layer = nn.Linear(65, 1)
    x = tg.ones(65)
    reached = tg.trace(lambda: x * getattr(layer.bias, "scale", 1.0))
    given = tg.trace(lambda w: x * getattr(w, "scale", 1.0))
    seen = []
    for value in (None, None, 2.0, 3.0, tg.full((65,), 4.0), None):
        if value is not None:
            layer.bias.scale = value
        elif hasattr(layer.bias, "scale"):
            del layer.bias.scale
        seen.append([reached()[64].item(), given(layer.bias)[64].item()])
    assert seen == [[v, v] for v in (1.0, 1.0, 2.0, 3.0, 4.0, 1.0)]
    layer.bias.scale = tg.ones(65)
    assert (reached()[0].item(), given(layer.bias)[0].item()) == (1.0, 1.0)
    layer.bias.scale.mul_(5.0)
    assert (reached()[0].item(), given(layer.bias)[0].item()) == (5.0, 5.0)


def test_a_users_loss_has_its_own_arguments_by_position():
    class Overlap(nn.modules.loss._Loss):
        def __init__(self, mode, ignore_index=None, eps=1e-7):
            super().__init__()
            self.mode, self.ignore_index, self.eps = mode, ignore_index, eps

    class Weighted(nn.MSELoss):
        def __init__(self, reduction=None, weight=2.0):
            super().__init__()
            self.chosen, self.weight = reduction, weight

    loss, other = Overlap("binary", None, 0.5), Weighted(None, 3.0)
    assert (loss.mode, loss.ignore_index, loss.eps, loss.reduction) == ("binary", None, 0.5, "mean")
    assert (other.chosen, other.weight, other.reduction) == (None, 3.0, "mean")
    with pytest.warns(UserWarning, match="size_average"):
        assert nn.MSELoss(False).reduction == "sum"            # torch's older arguments, of its own losses


@pytest.mark.parametrize("name", sorted({name for name in (*dir(nn.Module), *vars(nn.Module())) if name.startswith("_tg_")}))
def test_modules_have_names_of_their_own(name):
    """A program's module may have any attribute and method that torch's Module does not have, as _hooks and _get."""
    def build(self):
        nn.Module.__init__(self)
        self.layer = nn.Linear(2, 2)
        setattr(self, name.removeprefix("_tg"), [])

    methods = {"__init__": build, "forward": lambda self, x: self.layer(x)}
    def build_only(self):
        nn.Module.__init__(self)
        self.layer = nn.Linear(2, 2)

    for more in ({}, {name.removeprefix("_tg"): lambda self: 1, "__init__": build_only}):
        model = type("Model", (nn.Module,), {**methods, **more})()
        handle = model.register_forward_hook(lambda module, args, result: result * 2)
        model.load_state_dict(model.state_dict())
        x = tg.ones(1, 2)
        np.testing.assert_allclose(model(x).numpy(force=True), 2 * model.layer(x).numpy(force=True))
        handle.remove()
        assert model.double().get_parameter("layer.weight").dtype == np.float64
        assert "(layer): Linear" in repr(model)
        model.register_buffer("more", x)
        del model.layer
        assert getattr(model, name.removeprefix("_tg")) == [] or more
