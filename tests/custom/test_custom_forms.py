"""The other forms of a custom Function that torch documents: setup_context, a jvp of one's own, once_differentiable."""

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.values import close, f64
from tracegrad.autograd.function import once_differentiable
from tracegrad.autograd.functional import jacobian
from tracegrad.errors import ArgumentError, AutogradError
from tracegrad.testing import gradcheck, gradgradcheck

pytestmark = pytest.mark.usefixtures("device")


class Linear(tg.autograd.Function):
    @staticmethod
    def forward(input, weight, bias=None):
        output = input.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    @staticmethod
    def setup_context(ctx, inputs, output):
        input, weight, *bias = inputs
        ctx.save_for_backward(input, weight)
        ctx.biased = bool(bias) and bias[0] is not None

    @staticmethod
    def backward(ctx, grad):
        input, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(input), grad.sum(0) if ctx.biased and ctx.needs_input_grad[2] else None


class CubeAndSlope(tg.autograd.Function):
    """Saves an output that it returns for this purpose, as torch's page does."""

    @staticmethod
    def forward(x):
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, grad, grad_slope):
        x, slope = ctx.saved_tensors
        return grad * slope + grad_slope * 6 * x


def drawn(*shapes):
    rng = np.random.default_rng(3)
    return [tg.tensor(rng.standard_normal(shape), requires_grad=True) for shape in shapes]


def test_setup_context(run):
    x, w, b = drawn((13, 7), (5, 7), (5,))
    fn = run(Linear.apply)
    close(fn(x, w, b), x.detach().numpy() @ w.detach().numpy().T + b.detach().numpy())
    close(fn(x, w), x.detach().numpy() @ w.detach().numpy().T)
    assert gradcheck(fn, (x, w, b))
    assert gradcheck(fn, (x, w, None))
    assert gradgradcheck(fn, (x, w))


def test_setup_context_sees_what_was_given():
    seen = []

    class Scaled(tg.Function):
        @staticmethod
        def forward(x, factor=2.0, *, offset=1.0):
            return x * factor + offset

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append(inputs[1:])
            ctx.factor = inputs[1] if len(inputs) > 1 else 2.0
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None, None

    x = f64(1.0, 2.0)
    for args, kwargs in (((x,), {}), ((x, 3.0), {}), ((x, 3.0), {"offset": 4.0})):
        result = Scaled.apply(*args, **kwargs)
        close(tg.autograd.grad(result.sum(), x)[0], [args[1] if len(args) > 1 else 2.0] * 2)
    assert seen == [(2.0,), (3.0,), (3.0, 4.0)]                   # defaults of positional arguments included, as torch has it
    with pytest.raises(ArgumentError, match=r"Scaled.apply: .*its signature is forward\(x, factor=2.0, \*, offset=1.0\)"):
        Scaled.apply(x, 1, 2, 3)


def test_setup_context_in_every_transform(run):
    x = tg.linspace(-1, 1, 13, dtype=tg.float64)
    cube = run(lambda x: CubeAndSlope.apply(x)[0])
    v = x.numpy()
    close(tg.func.grad(lambda x: cube(x).sum())(x), 3 * v**2)
    close(tg.func.vmap(tg.func.grad(cube))(x), 3 * v**2)
    close(tg.func.hessian(lambda x: cube(x).sum())(x), np.diag(6 * v))
    close(tg.func.jvp(cube, (x,), (tg.ones_like(x),))[1], 3 * v**2)
    close(jacobian(cube, x), np.diag(3 * v**2))


def test_a_jvp_of_ones_own_is_forward_mode(run):
    """Three times the derivative, so that one sees which rule was used."""

    class Exp(tg.Function):
        @staticmethod
        def forward(x, y):
            return x.exp(), x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(output[0], *inputs)

        @staticmethod
        def backward(ctx, grad, grad_product):
            x, y = ctx.saved_tensors
            return grad * x.exp() + grad_product * y, grad_product * x

        @staticmethod
        def jvp(ctx, dx, dy):
            result, x, y = ctx.saved_tensors
            return 3 * dx * result, dx * y + dy * x

    x, y = (t.detach() for t in drawn((17,), (17,)))
    fn = run(Exp.apply)
    _, (a, b) = tg.func.jvp(fn, (x, y), (tg.ones_like(x), 2 * tg.ones_like(y)))
    close(a, 3 * np.exp(x.numpy()))
    close(b, y.numpy() + 2 * x.numpy())
    _, (a, b) = tg.func.jvp(lambda x: fn(x, y), (x,), (tg.ones_like(x),))          # y has no tangent: zeros
    close(b, y.numpy())
    close(tg.func.grad(lambda x: fn(x, y)[0].sum())(x), np.exp(x.numpy()))
    # forward over forward: the rule is differentiated like everything else
    twice = tg.func.jvp(lambda x: tg.func.jvp(lambda x: fn(x, y)[0], (x,), (tg.ones_like(x),))[1], (x,), (tg.ones_like(x),))[1]
    close(twice, 9 * np.exp(x.numpy()))


@pytest.mark.parametrize(("returned", "error"), [
    (lambda g: (g, g), "returned 2 tangents, expected 1"), (lambda g: 1.0, r"tangent of output 0 is a float, expected a tensor of \[3\]"),
    (lambda g: g[:2], r"tangent of output 0 is a float64\[2\], expected a tensor of \[3\]"),
])
def test_wrong_tangents(returned, error):
    class Wrong(tg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def jvp(ctx, tangent):
            return returned(tangent)

    with pytest.raises(AutogradError, match=f"Wrong.jvp: (the )?{error}"):
        tg.func.jvp(Wrong.apply, (f64(1.0, 2.0, 3.0, grad=False),), (f64(1.0, 2.0, 3.0, grad=False),))


def test_once_differentiable(run):
    class Sine(tg.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            ctx.factor = factor
            return (x * factor).sin()

        @staticmethod
        @once_differentiable
        def backward(ctx, grad):
            assert not tg.is_grad_enabled()
            (x,) = ctx.saved_tensors
            return grad * ctx.factor * (x * ctx.factor).cos(), None

    (x,) = drawn((31,))
    fn = run(lambda x: Sine.apply(x, 2.0).sum())
    cosine = 2 * np.cos(2 * x.detach().numpy())
    fn(x).backward()
    close(x.grad, cosine)
    g, = tg.autograd.grad(fn(x), x, create_graph=True)
    close(g, cosine)
    with pytest.raises(AutogradError, match=r"Sine\.backward is marked with @once_differentiable: what it returns cannot be"):
        tg.autograd.grad((g * x).sum(), x)
    close(tg.autograd.grad((g.detach() * x).sum(), x)[0], cosine)


def test_an_unread_output_outlives_the_second_derivative_through_a_saved_one():
    """A backward that came by the saved output alone freed the call, which kept no value for the output that the user holds."""
    for step in (lambda y: y * 2, lambda y: y * y.detach()):
        x = tg.linspace(0.5, 2.0, 10, dtype=tg.float64).requires_grad_()
        y, slope = CubeAndSlope.apply(x)
        g, = tg.autograd.grad(step(y).sum(), x, create_graph=True)
        tg.autograd.grad(g.sum(), x)
        close(y.detach(), x.detach().numpy() ** 3)
        close(slope.detach(), 3 * x.detach().numpy() ** 2)


def test_defaults_are_bound_and_integers_have_no_tangent():
    class Picked(tg.Function):
        @staticmethod
        def forward(x, places, scale=2.0):
            return x[places] * scale

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, places, ctx.scale = inputs
            ctx.save_for_backward(places)
            ctx.save_for_forward(places)
            ctx.size = x.shape[0]

        @staticmethod
        def backward(ctx, grad):
            places, = ctx.saved_tensors
            return tg.zeros(ctx.size, dtype=grad.dtype).index_add(0, places, grad * ctx.scale), None, None

        @staticmethod
        def jvp(ctx, tangent, places_tangent, scale_tangent):
            assert places_tangent is None
            assert scale_tangent is None
            return tangent[ctx.saved_tensors[0]] * ctx.scale

    x, places = tg.linspace(0.5, 2.0, 10, dtype=tg.float64).requires_grad_(), tg.tensor([1, 4, 4])
    close(tg.autograd.grad(Picked.apply(x, places).sum(), x)[0], [0, 2, 0, 0, 4, 0, 0, 0, 0, 0])
    close(tg.func.jvp(lambda x: Picked.apply(x, places), (x,), (tg.ones_like(x),))[1], [2, 2, 2])


class BatchedCube(tg.Function):
    """x³ y and sin(x), whose batch is kept at the end; `seen`: what vmap was called with."""

    seen = []

    @staticmethod
    def forward(x, y):
        return x**3 * y, x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad, of_sine):
        x, y = ctx.saved_tensors
        return 3 * x**2 * y * grad + x.cos() * of_sine, x**3 * grad

    @staticmethod
    def vmap(info, in_dims, x, y):
        BatchedCube.seen.append((info.batch_size, info.randomness, in_dims, tuple(x.shape), tuple(y.shape)))
        x, y = (a.unsqueeze(-1) if d is None else a.movedim(d, -1) for a, d in zip((x, y), in_dims, strict=True))
        return BatchedCube.apply(x.expand(*x.shape[:-1], info.batch_size), y), (-1, -1)


def test_vmap_of_ones_own(run):
    """It was never called."""
    rng = np.random.default_rng(3)
    v, w = rng.normal(size=(12, 7, 10)), rng.normal(size=(7, 10))
    x, y = tg.tensor(v), tg.tensor(w)
    BatchedCube.seen.clear()
    cube, sine = run(tg.func.vmap(BatchedCube.apply, in_dims=(0, None)))(x, y)
    close(cube, v**3 * w)
    close(sine, np.sin(v))
    assert BatchedCube.seen[0] == (12, "error", (0, None), (12, 7, 10), (7, 10))
    close(run(tg.func.vmap(lambda x: BatchedCube.apply(y, x)[0], randomness="same", out_dims=2))(x), np.moveaxis(w**3 * v, 0, 2))
    assert BatchedCube.seen[-1][1:3] == ("same", (None, 0))
    close(run(tg.func.vmap(tg.func.vmap(lambda x: BatchedCube.apply(x, x)[0])))(x), v**4)
    count = len(BatchedCube.seen)
    close(run(tg.func.vmap(lambda x: BatchedCube.apply(y, y)[0] * x))(x), w**4 * v)
    assert len(BatchedCube.seen) == count                         # nothing is mapped: forward does it

    inside = run(tg.func.vmap(tg.func.grad(lambda x, y: BatchedCube.apply(x, y)[0].sum(), argnums=(0, 1)), in_dims=(0, None)))(x, y)
    close(inside[0], 3 * v**2 * w)
    close(inside[1], v**3)
    mapped = tg.func.vmap(BatchedCube.apply, in_dims=(0, None))
    close(run(tg.func.grad(lambda y: (mapped(x, y)[0] ** 2).sum()))(y), (2 * v**6 * w).sum(0))
    twice = tg.func.grad(lambda x: tg.func.grad(lambda z: BatchedCube.apply(z, y)[0].sum())(x).sum())
    close(run(tg.func.vmap(twice))(x), 6 * v * w)


def test_vmap_of_ones_own_is_told_of_lists(run):
    seen = []

    class OfList(tg.Function):
        @staticmethod
        def forward(xs, y, more):
            return xs[0] * xs[1] + y * more["z"][0]

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, xs, y, more):
            seen.append(in_dims)
            return xs[0] * xs[1] + y * more["z"][0], 0

    x, y = tg.arange(3.0), tg.tensor(2.0)
    found = run(tg.func.vmap(lambda x: OfList.apply([x, x + 1], x, {"z": (y, 3, None)})))(x)
    assert seen[-1] == ([0, 0], 0, {"z": (None, None, None)})
    close(found, np.arange(3.0) * np.arange(1.0, 4.0) + 2 * np.arange(3.0))


class ByNumpy(tg.Function):
    """A product that only numpy can make, as torch's notes have it: values of the batch are there in vmap."""

    @staticmethod
    def forward(x, y):
        return tg.tensor(x.numpy() * y.numpy())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return ByNumpy.apply(grad, y), ByNumpy.apply(grad, x)

    @staticmethod
    def vmap(info, in_dims, x, y):
        x, y = (a.expand(info.batch_size, *a.shape) if d is None else a.movedim(d, 0) for a, d in zip((x, y), in_dims, strict=True))
        return ByNumpy.apply(x, y), 0


def test_vmap_of_ones_own_sees_values():
    rng = np.random.default_rng(4)
    v, w = rng.normal(size=(10, 12)), rng.normal(size=12)
    x, y = tg.tensor(v, requires_grad=True), tg.tensor(w)
    for _ in range(3):
        out = tg.func.vmap(ByNumpy.apply, in_dims=(0, None))(x, y)
        close(out, v * w)
        (grad,) = tg.autograd.grad((out**2).sum(), x)
        close(grad, 2 * v * w**2)
        close(tg.func.vmap(tg.func.grad(lambda x: (ByNumpy.apply(x, y) ** 2).sum()))(x), 2 * v * w**2)

    class Wrong(ByNumpy):
        @staticmethod
        def vmap(info, in_dims, x, y):
            return x

    with pytest.raises(AutogradError, match=r"Wrong.vmap: must return a pair, the results and their out_dims, got Tensor"):
        tg.func.vmap(Wrong.apply)(x, x)
    Wrong.vmap = staticmethod(lambda info, in_dims, x, y: (x, 1))
    with pytest.raises(tg.ShapeError, match=r"Wrong.vmap: out_dims 1 of a result of shape \(10, 12\) is no batch of 10"):
        tg.func.vmap(Wrong.apply)(x, x)
    Wrong.generate_vmap_rule = True
    with pytest.raises(AutogradError, match="generate_vmap_rule is True and there is a vmap"):
        tg.func.vmap(Wrong.apply)(x, x)
