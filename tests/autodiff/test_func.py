"""torch.func's and torch.autograd.functional's forms of the transforms: nested arguments and results, tuples of argnums, aux, chunks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import func
from tracegrad.autograd import functional
from tracegrad.errors import ArgumentError, DeviceError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(0)
W, X = (tg.tensor(RNG.normal(size=shape), device="numpy") for shape in ((5, 7), 7))


def close(a, b):
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy() if isinstance(b, tg.Tensor) else b, atol=1e-12)


def layer(parameters, x):
    return {"y": (parameters["w"] @ x + parameters["b"]).tanh(), "norm": (x * x).sum()}


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 100])
@pytest.mark.parametrize("jacobian", [func.jacrev, func.jacfwd])
def test_jacobians_of_structures(jacobian, chunk_size, run):
    parameters = {"w": W, "b": tg.ones(5, dtype=tg.float64)}
    both = run(jacobian(layer, argnums=(0, 1), chunk_size=chunk_size))(parameters, X)
    y = layer(parameters, X)["y"].numpy()
    slope = np.diag(1 - y * y)
    assert set(both) == {"y", "norm"}
    by_parameters, by_x = both["y"]
    close(by_x, slope @ W.numpy())
    close(by_parameters["b"], slope)
    close(by_parameters["w"], np.einsum("ij,k->ijk", slope, X.numpy()))
    close(both["norm"][1], 2 * X.numpy())
    close(both["norm"][0]["w"], np.zeros((5, 7)))


@pytest.mark.parametrize("jacobian", [func.jacrev, func.jacfwd])
def test_jacobians_with_aux(jacobian):
    found, aux = jacobian(lambda x: (x.sin(), {"kept": x * 2}), has_aux=True)(X)
    close(found, np.diag(np.cos(X.numpy())))
    close(aux["kept"], 2 * X.numpy())
    with pytest.raises(ArgumentError, match=r"has_aux is for a function that returns a pair"):
        jacobian(lambda x: x, has_aux=True)(X)
    with pytest.raises(ArgumentError, match="chunk_size must be positive"):
        jacobian(lambda x: x, chunk_size=0)(X)


def test_hessian_of_a_vector_and_of_a_dict():
    close(func.hessian(lambda x: x ** 3)(X[:3]), np.einsum("ij,jk->ijk", np.eye(3), np.diag(6 * X[:3].numpy())))
    h = func.hessian(lambda d: (d["a"] * d["b"]).sum() + (d["a"] ** 3).sum())({"a": X[:3], "b": X[3:6]})
    close(h["a"]["a"], np.diag(6 * X[:3].numpy()))
    close(h["a"]["b"], np.eye(3))
    close(h["b"]["b"], np.zeros((3, 3)))


def test_linearize_runs_the_function_once():
    runs = []

    def f(x, y):
        runs.append(1)
        return (x * y).sin(), x.sum()

    value, push = func.linearize(f, X, X + 1)
    tangents = (X * 2, X.cos())
    _, expected = func.jvp(f, (X, X + 1), tangents)
    runs.clear()
    for a, b in zip(push(*tangents), expected, strict=True):
        close(a, b)
    assert not runs
    close(value[0], (X * (X + 1)).sin())
    with pytest.raises(ShapeError, match="linearize: tangent 1 has shape"):
        push(X, X[:3])


def test_aux_of_vjp_jvp_and_grad():
    value, pull, aux = func.vjp(lambda x: (x.sin(), "aux"), X, has_aux=True)
    assert aux == "aux"
    close(pull(value)[0], (X.sin() * X.cos()))
    assert func.jvp(lambda x: (x.sin(), "aux"), (X,), (X,), has_aux=True)[2] == "aux"
    gradient, (value, aux) = func.grad_and_value(lambda x: (x.sin().sum(), "aux"), has_aux=True)(X)
    close(gradient, X.cos())
    close(value, X.sin().sum())
    assert aux == "aux"


class TestVmap:
    def test_dims_in_the_structure_of_the_arguments(self, run):
        a, b = tg.tensor(RNG.normal(size=(4, 7))), tg.tensor(RNG.normal(size=(7, 4)))
        f = run(func.vmap(lambda d, c: {"p": d["a"] * d["b"] + c, "c": c}, in_dims=({"a": 0, "b": 1}, None), out_dims={"p": 1, "c": None}))
        out = f({"a": a, "b": b}, X)
        close(out["p"], (a.numpy() * b.numpy().T + X.numpy()).T)
        close(out["c"], X)

    @pytest.mark.parametrize("chunk_size", [1, 4, 5, 33])
    def test_chunks(self, chunk_size):
        a = tg.tensor(RNG.normal(size=(3, 13)))
        f = lambda x, k: (x.cumsum(0), x.sum() * k)
        whole = func.vmap(f, (1, None), (1, 0))(a, 2.0)
        for found, expected in zip(func.vmap(f, (1, None), (1, 0), chunk_size=chunk_size)(a, 2.0), whole, strict=True):
            close(found, expected)

    def test_keyword_arguments_are_not_mapped(self):
        assert func.vmap(lambda x, w: x @ w)(tg.ones(5, 3), w=tg.ones(3, 2)).shape == (5, 2)

    @pytest.mark.parametrize(("options", "message"), [
        (dict(in_dims=({"a": 0}, 0)), r"in_dims .* does not fit the structure of the arguments"),
        (dict(in_dims=(0,)), r"in_dims has 1 entries for 2 arguments"),
        (dict(in_dims=(0.5, 0)), r"in_dims holds dimensions \(int\) or None, got 0.5"),
        (dict(out_dims=None), r"out_dims is None for a result that depends on a mapped argument"),
        (dict(out_dims=[0, {"y": 0}]), r"out_dims .* does not fit the structure of the results"),
        (dict(randomness="own"), r"randomness must be 'error', 'different' or 'same', got 'own'"),
        (dict(chunk_size=0), r"chunk_size must be positive"),
    ])
    def test_errors(self, options, message):
        with pytest.raises(ArgumentError, match=message):
            func.vmap(lambda a, b: a * b, **options)(tg.ones(3, 2), tg.ones(3, 2))

    def test_randomness(self):
        """As in torch: forbidden unless it is said whether examples share their numbers. "different": those of one draw for the batch."""
        x, draw = tg.ones(13, 7), lambda a: a * 0 + tg.rand(7)
        for f in (draw, lambda a: tg.nn.functional.dropout(a, 0.5), lambda a: tg.randperm(3), lambda a: tg.multinomial(a, 2)):
            with pytest.raises(ArgumentError, match=r"vmap: a random function was called inside; pass randomness='different'"):
                func.vmap(f)(x)
        assert func.vmap(lambda a: tg.nn.functional.dropout(a, 0.5, training=False))(x).shape == (13, 7)
        for mode, trace in itertools.product(("same", "different"), (tg.trace, lambda f: f)):
            tg.manual_seed(5)
            found, after = trace(func.vmap(draw, randomness=mode))(x), tg.rand(3)
            tg.manual_seed(5)
            expected = tg.rand(13, 7) if mode == "different" else tg.rand(7).expand(13, 7)
            close(found, expected)
            close(after, tg.rand(3))
        tg.manual_seed(5)
        close(func.vmap(draw, randomness="different", chunk_size=4)(x), (tg.manual_seed(5), tg.rand(13, 7))[1])

    def test_randomness_of_vmaps_in_each_other(self):
        x = tg.ones(5, 3)
        expected = {("different", "different"): lambda: tg.rand(5, 3, 2), ("same", "same"): lambda: tg.rand(2).expand(5, 3, 2),
                    ("different", "same"): lambda: tg.rand(5, 2)[:, None].expand(5, 3, 2),
                    ("same", "different"): lambda: tg.rand(3, 2).expand(5, 3, 2)}
        for (outer, inner), whole in expected.items():
            tg.manual_seed(1)
            found = func.vmap(func.vmap(lambda a: a * 0 + tg.rand(2), randomness=inner), randomness=outer)(x)
            tg.manual_seed(1)
            close(found, whole())
        with pytest.raises(ArgumentError, match="randomness='different'"):
            func.vmap(func.vmap(lambda a: a * tg.rand(2), randomness="same"))(x)

    def test_randomness_in_derivatives_and_loops(self):
        x = tg.tensor(RNG.normal(size=(33, 9)), requires_grad=True)
        masks = func.vmap(func.grad(lambda a: tg.nn.functional.dropout(a, 0.5).sum()), randomness="different")(x)
        assert set(masks.numpy().ravel().tolist()) == {0.0, 2.0}
        assert len(set(map(tuple, masks.tolist()))) > 20
        ys = func.vmap(lambda a: tg.scan(lambda c, z: (c, tg.rand(())), a[0], a)[1], randomness="different")(x)
        assert len(set(ys.numpy().ravel().tolist())) == 33 * 9
        same = func.vmap(lambda a: a[:4] * 0 + tg.randn(4), randomness="same")(x)
        close(same, same[:1].expand(33, 4))
        with pytest.raises(ArgumentError, match="random counts"):
            func.vmap(tg.poisson, randomness="different")(x.detach().abs())

    def test_a_result_dimension_out_of_range(self):
        with pytest.raises(ShapeError, match=r"out_dims 2 is out of range for a result of 2 dimensions"):
            func.vmap(lambda a: a, out_dims=2)(tg.ones(3, 2))


def test_an_ensemble():
    models = [tg.nn.Sequential(tg.nn.Linear(7, 5), tg.nn.BatchNorm1d(5)).double().eval() for _ in range(3)]
    parameters, buffers = func.stack_module_state(models)
    assert parameters["0.weight"].shape == (3, 5, 7)
    assert parameters["0.weight"].requires_grad
    assert not buffers["1.running_mean"].requires_grad
    x = tg.tensor(RNG.normal(size=(13, 7)))
    out = func.vmap(lambda p, b: func.functional_call(models[0], (p, b), x))(parameters, buffers)
    for model, found in zip(models, out, strict=True):
        close(found, model(x))
    with pytest.raises(ArgumentError, match="given in several mappings"):
        func.functional_call(models[0], ({"0.bias": x}, {"0.bias": x}), x)
    with pytest.raises(ArgumentError, match="of several classes"):
        func.stack_module_state([models[0], tg.nn.ReLU()])
    with pytest.raises(ArgumentError, match="in training mode"):
        func.stack_module_state([models[0], tg.nn.Sequential(tg.nn.Linear(7, 5), tg.nn.BatchNorm1d(5))])
    with pytest.raises(ArgumentError, match="at least one model"):
        func.stack_module_state([])


class TestFunctional:
    """tg.autograd.functional: derivatives at given inputs."""

    @pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
    def test_jacobian(self, strategy):
        f = lambda x, y: (x * y[:5], y.sum())
        (by_x, by_y), (sum_x, sum_y) = functional.jacobian(f, (X[:5], X), strategy=strategy)
        close(by_x, np.diag(X[:5].numpy()))
        close(by_y, np.eye(5, 7) * X[:5].numpy()[:, None])
        close(sum_x, np.zeros(5))
        close(sum_y, np.ones(7))
        close(functional.jacobian(lambda x: x.sin(), X), np.diag(np.cos(X.numpy())))
        with pytest.raises(ArgumentError, match="strategy"):
            functional.jacobian(f, (X, X), strategy="backwards")

    @pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
    def test_hessian(self, strategy):
        (aa, ab), (ba, bb) = functional.hessian(lambda a, b: (a ** 2 * b).sum(), (X, X + 2), outer_jacobian_strategy=strategy)
        close(aa, np.diag(2 * (X.numpy() + 2)))
        close(ab, np.diag(2 * X.numpy()))
        close(ba, ab)
        close(bb, np.zeros((7, 7)))

    def test_products(self):
        f = lambda x: (W @ x).exp().sum() * x.sum()
        v = X.cos()
        h = functional.hessian(f, X)
        for product, expected in ((functional.hvp, h @ v), (functional.vhp, v @ h)):
            value, found = product(f, X, v)
            close(value, f(X))
            close(found, expected)
        g = lambda x, y: (x * y, x.sum())
        value, (by_x, by_y) = functional.vjp(g, (X, X + 1), (v, tg.tensor(2.0, dtype=tg.float64)))
        close(by_x, (v * (X + 1) + 2))
        close(by_y, v * X)
        close(functional.jvp(g, (X, X + 1), (v, v))[1][0], v * (X + 1) + X * v)
        close(functional.vjp(lambda x: x.sum(), X)[1], np.ones(7))
        with pytest.raises(ShapeError, match="hvp: v is needed"):
            functional.hvp(f, X)

    def test_results_have_a_history_if_that_is_asked_for(self):
        x = X.clone().requires_grad_()
        assert not functional.jacobian(lambda x: x.sin(), x).requires_grad
        functional.jacobian(lambda x: x.sin(), x, create_graph=True).sum().backward()
        close(x.grad, -np.sin(X.numpy()))


@pytest.mark.parametrize("call", [
    lambda x, g: func.vjp(lambda t: t.sin(), x)[1](g),
    lambda x, g: func.jvp(lambda t: t.sin(), (x,), (g,)),
    lambda x, g: func.linearize(lambda t: t.sin(), x)[1](g),
    lambda x, g: x.clone().requires_grad_().sin().backward(g),
    lambda x, g: tg.autograd.grad(x.clone().requires_grad_().sin(), x, g),
])
def test_what_is_given_for_a_tensor_has_its_shape_and_device(call):
    with pytest.raises(ShapeError, match=r"has shape \(3,\), the \w+ \(7,\)"):
        call(X, X[:3])
    with pytest.raises(DeviceError, match=r"is on .*, the \w+ on .*; move it with to\(device\)"):
        call(X, X.to("cpu"))


class Sorted(tg.Function):
    """The example of torch's notes on custom Functions under func."""

    @staticmethod
    def forward(x, dim):
        index = tg.argsort(x, dim)
        return tg.take_along_dim(x, index, dim), index, tg.argsort(index, dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])

    @staticmethod
    def backward(ctx, grad, *_):
        return tg.take_along_dim(grad, ctx.saved_tensors[1], ctx.dim), None

    @staticmethod
    def jvp(ctx, tangent, _):
        return tg.take_along_dim(tangent, ctx.saved_tensors[0], ctx.dim), None, None


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("function", [
    lambda x: Sorted.apply(x, -1), lambda x: (*tg.sort(x, -1), x > 0), lambda x: (x.sort()[0], x.argsort())])
def test_integer_results_have_tangents_of_zero(function, traced):
    """As in torch, in forward mode (they were a DTypeError); reverse mode refuses them there, too."""
    rng = np.random.default_rng(5)
    x, v = (tg.tensor(rng.normal(size=(7, 10))) for _ in range(2))
    order = np.argsort(x.numpy(), -1)
    moved = np.take_along_axis(v.numpy(), order, -1)
    wrap = tg.trace if traced else lambda f: f
    for _ in range(3):
        values, tangents = wrap(lambda x, v: tg.func.jvp(function, (x,), (v,)))(x, v)
        pushed = tg.func.linearize(function, x)[1](v)
        for found in (tangents, pushed):
            np.testing.assert_array_equal(found[0].numpy(), moved)
            for value, tangent in zip(values[1:], found[1:], strict=True):
                assert (tangent.dtype, tangent.shape, bool(tangent.any())) == (value.dtype, value.shape, False)
        columns = wrap(tg.func.jacfwd(function))(x)
        np.testing.assert_array_equal(tg.einsum("ijkl,kl->ij", columns[0], v).numpy(), moved)
        assert [(c.dtype, c.shape, bool(c.any())) for c in columns[1:]] == [(t.dtype, (7, 10, 7, 10), False) for t in values[1:]]
    for transform in (tg.func.jacrev(function), lambda x: tg.func.vjp(function, x)):
        with pytest.raises(tg.DTypeError, match="can only differentiate"):
            transform(x)


@pytest.mark.parametrize("write", [lambda d: d.zero_(), lambda d: d.fill_(2.0), lambda d: d.copy_(tg.ones(3)),
                                   lambda d: d.__setitem__(..., tg.tensor([1.0, 2.0, 3.0]))])
def test_a_mapped_gradient_of_what_is_overwritten_by_what_is_not_mapped(write):
    """What a tensor is now and what it was have one shape, though one of them is mapped only."""
    def f(x):
        d, e = x * 2, (x * 1).detach()
        write(d)
        write(e)
        return (d * x + e * x * x).sum()

    x = tg.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]])
    wanted = np.stack([tg.grad(f)(row).numpy() for row in x])
    np.testing.assert_array_equal(tg.vmap(tg.grad(f))(x).numpy(), wanted)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("function", [
    lambda x, y: tg.func.vjp(lambda x: x + 1, x)[1](y)[0], lambda x, y: tg.func.jvp(lambda x: x + 1, (x,), (y,))[1],
    lambda x, y: tg.func.linearize(lambda x: x + 1, x)[1](y), lambda x, y: tg.autograd.grad(x + 1, x, y, create_graph=True)[0]])
@pytest.mark.parametrize("written", [False, True])
def test_a_cotangent_that_comes_out_as_it_went_in_keeps_its_history(traced, function, written):
    """A trace took the argument's node, which the pull handed on, for a leaf that the body had made: y had no gradient, without a word."""
    def fn(x, y):
        if written:
            with tg.no_grad():
                y.mul_(2)
        return function(x, y)

    fn = tg.trace(fn) if traced else fn
    for k in (1.0, 2.0, 3.0):
        x, y = tg.ones(3, requires_grad=True), tg.full((3,), k, requires_grad=True)
        out = fn(x, y)
        out.square().sum().backward()
        assert (y.grad.tolist(), x.grad) == ([2 * y.tolist()[0]] * 3, None)


@pytest.mark.parametrize("wrap", [lambda f: f, tg.trace])
def test_materialized_zeros_are_differentiated_again(wrap):
    """As in torch: of a function that is linear in x, the second derivative is zeros (the zeros required no grad: it was an error)."""
    def second(x, y):
        first, = tg.autograd.grad(y.sum(), x, create_graph=True, materialize_grads=True)
        return first, *tg.autograd.grad(first.sum(), x, materialize_grads=True)

    for found in wrap(second)(tg.ones(3, requires_grad=True), tg.ones(2, requires_grad=True)):
        assert found.tolist() == [0.0] * 3


@pytest.mark.parametrize("name", ["jacobian", "hessian", "vjp", "jvp", "hvp", "vhp"])
def test_functional_derivatives_with_a_graph_require_gradients(name):
    """As in torch, also at inputs that do not: `backward` of them was an error."""
    along = () if name in ("jacobian", "hessian", "vjp") else (tg.ones(2),)
    for given in (False, True):
        x = tg.tensor([1.0, 2.0], requires_grad=given)
        found = getattr(functional, name)(lambda x: (x ** 3).sum(), x, *along, create_graph=True)
        result = found[1] if isinstance(found, tuple) else found
        assert result.requires_grad
        result.sum().backward()
        assert (x.grad is not None) == given
        assert x.requires_grad == given
