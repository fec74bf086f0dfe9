"""grad, value_and_grad, vjp, jvp, jacobian, hessian, vmap: against closed forms and loops, nested, and inside @trace."""

import itertools
from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.values import close
from tracegrad.autodiff import derivatives as autodiff
from tracegrad.nn import functional as F

RNG = np.random.default_rng(3)


def draw(*shape):
    return tg.tensor(RNG.standard_normal(shape))


@pytest.fixture(autouse=True)
def _needs_float64(device):
    if device.kind != "numpy" and not device.target.fp64:
        pytest.skip("the device has no float64")


def test_value_and_grad_of_several_arguments_and_containers():
    a, b = draw(3), draw(3)
    value, (ga, gb) = tg.value_and_grad(lambda a, b: (a * b["w"]).sum() + b["b"], argnums=(0, 1))(
        a, {"w": b, "b": tg.tensor(1.0, dtype=tg.float64)}
    )
    close(value, (a.numpy() * b.numpy()).sum() + 1)
    close(ga, b)
    close(gb["w"], a)
    assert gb["b"].item() == 1


def test_auxiliary_results_pass_through():
    (value, aux), g = tg.value_and_grad(lambda x: ((x**2).sum(), {"double": x * 2}), has_aux=True)(tg.tensor([1.0, 2.0]))
    assert value.item() == 5
    close(aux["double"].detach(), [2, 4])
    close(g, [2, 4])
    assert tg.grad(lambda x: (x.sum(), 7), has_aux=True)(tg.ones(2))[1] == 7


def test_results_of_plain_arguments_have_no_history():
    x = draw(3)
    assert not tg.grad(lambda x: (x**3).sum())(x).requires_grad
    assert not tg.hessian(lambda x: (x**3).sum())(x).requires_grad
    assert not any(t.requires_grad for t in tg.jvp(lambda x: x**3, (x,), (x,)))


def test_results_belong_to_the_callers_history():
    x = draw(3).requires_grad_()
    (tg.grad(lambda y: (y**3).sum())(x) * 2).sum().backward()
    close(x.grad, 12 * x.detach().numpy())


def test_an_inner_variable_is_not_the_outer_one():
    """d/dx of x * d/dy (x + y) at y = 1 is 1, not 2 (Siskind & Pearlmutter 2005: perturbation confusion)."""

    def outer(x):
        return x * tg.grad(lambda y: x + y)(tg.ones((), dtype=tg.float64))

    assert tg.grad(outer)(tg.tensor(3.0, dtype=tg.float64)).item() == 1
    assert (
        tg.jvp(
            lambda x: x * tg.jvp(lambda y: x + y, (tg.ones((), dtype=tg.float64),), (tg.ones((), dtype=tg.float64),))[1],
            (tg.tensor(3.0, dtype=tg.float64),),
            (tg.ones((), dtype=tg.float64),),
        )[1].item()
        == 1
    )


def test_vjp_and_jvp_are_transposes():
    w = draw(4, 3)
    x, t, c = draw(3), draw(3), draw(4)

    def f(x):
        return (w @ x).tanh().softmax(0) + x.amax()

    out, tangent = tg.jvp(f, (x,), (t,))
    again, pull = tg.vjp(f, x)
    close(out, again)
    close((tangent * c).sum(), (pull(c)[0] * t).sum())


def test_forward_mode_looks_at_a_history_once(monkeypatch):
    """Indices, products and solutions are pushed forward by transposing twice: each looked for its probe in the whole history."""
    def loop(x, iterations):
        for k in range(iterations):
            step = tg.linalg.solve(tg.eye(4, dtype=x.dtype) + tg.outer(x, x), x)
            x = x + 0.1 * tg.stack([x[k % 4] * step[1], x[2].sin(), step[3], x[0].conj()])
        return (x * x).sum()

    seen = [0]
    real = autodiff.topological

    def topological(*args, **more):
        order = real(*args, **more)
        seen[0] += len(order)
        return order

    monkeypatch.setattr(autodiff, "topological", topological)
    x, counts = tg.linspace(0.1, 1.0, 4, dtype=tg.float64), []
    for iterations in (10, 40):
        seen[0] = 0
        tg.jvp(tg.grad(lambda x, iterations=iterations: loop(x, iterations)), (x,), (x,))           # nobody looks at the values
        counts.append(seen[0])
    assert counts[1] < 5 * counts[0]


@pytest.mark.parametrize("wrap", [lambda f: f, tg.trace], ids=["plain", "traced"])
def test_jacobian_and_hessian(wrap):
    x = draw(3)
    v = x.numpy()
    close(wrap(tg.jacobian(lambda x: tg.stack([x[0] * x[1], x[2].sin()])))(x), [[v[1], v[0], 0], [0, 0, np.cos(v[2])]])
    close(wrap(tg.jacfwd(lambda x: x**2))(x), np.diag(2 * v))
    close(
        wrap(tg.hessian(lambda x: x[0] * x[1] ** 2 * x[2]))(x),
        [[0, 2 * v[1] * v[2], v[1] ** 2], [2 * v[1] * v[2], 2 * v[0] * v[2], 2 * v[0] * v[1]], [v[1] ** 2, 2 * v[0] * v[1], 0]],
    )
    gradient, product = tg.hvp(lambda x: (x**4).sum(), (x,), (tg.ones(3, dtype=tg.float64),))
    close(gradient, 4 * v**3)
    close(product, 12 * v**2)


MAPPED = {
    "elementwise": lambda x: (x.sin() * 2 + x).relu(),
    "broadcasting": lambda x: x + x[:, 0],
    "comparison and where": lambda x: tg.where(x > 0, x, -x * 0.5),
    "movement": lambda x: x.t().reshape(-1)[1:].flip(0),
    "padding": lambda x: F.pad(x, (1, 2)),
    "concatenation with a constant": lambda x: tg.cat([x, tg.ones(1, 3, dtype=tg.float64)]),
    "expand": lambda x: x[:, :1].expand(3, 4),
    "reduction": lambda x: x.sum(0) + x.amax(1).mean(),
    "softmax": lambda x: x.softmax(1),
    "argmax": lambda x: x.argmax(0),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(dim=1)[0],
    "product": lambda x: x @ x.t(),
    "product with a shared matrix": lambda x: x @ tg.ones(3, 2, dtype=tg.float64),
    "gather": lambda x: x[tg.tensor([2, 0])],
    "scatter": lambda x: tg.zeros(4, 3, dtype=tg.float64).index_add(0, tg.tensor([1, 3, 1]), x),
    "convolution": lambda x: F.conv1d(x[None], tg.ones(1, 3, 2, dtype=tg.float64))[0],
    "convolution with mapped weights": lambda x: F.conv1d(tg.ones(1, 3, 4, dtype=tg.float64), x[None])[0],
    "gradient inside": tg.grad(lambda y: (y**3).sum()),
    "independent of x": lambda x: tg.arange(3),
}


@one_of(4, "name", MAPPED)
def test_vmap_is_a_loop(name):
    x = draw(5, 3, 3)
    fn = MAPPED[name]
    close(tg.vmap(fn)(x), np.stack([fn(x[i]).numpy() for i in range(5)]))


@pytest.mark.parametrize("change", [
    lambda x: x.mul_(3.0), lambda x: x[1:].mul_(x[:1]), lambda x: x[::2].copy_(x[1::2] * 2), lambda x: x.zero_().add_(1),
])
def test_derivatives_are_of_what_fn_got_though_it_changes_its_argument_in_place(run, change):
    def fn(x, way=lambda x: x):
        x = way(x)
        change(x)
        return x * x.roll(1)

    def total(x, way=lambda x: x):
        return fn(x, way).sum()

    def everything(x, v, way=lambda x: x):
        def f(x):
            return fn(x, way)

        value, pull = tg.vjp(f, x)
        return (value, *pull(v), tg.jvp(f, (x,), (v,))[1], tg.linearize(f, x)[1](v), tg.grad(total)(x, way), tg.jacrev(fn)(x, way),
                tg.jacfwd(fn)(x, way), tg.hessian(total)(x, way), tg.hvp(lambda x: total(x, way), (x,), (v,))[1])

    x, v = draw(12), draw(12)
    before = x.numpy()
    for found, expected in zip(run(everything)(x, v), everything(x, v, tg.clone), strict=True):
        close(found, expected)
    close(x, before)


def test_vmap_gives_views_as_they_are_in_the_end(run):
    def fn(x):
        y = x * 2
        first, row = y[:3], y.reshape(4, 3)[1]
        y.add_(x)
        row.mul_(-1)
        return first, row, y

    x = draw(37, 12)
    y = x.numpy() * 3
    y[:, 3:6] *= -1
    for found, expected in zip(run(tg.vmap(fn))(x), (y[:, :3], y[:, 3:6], y), strict=True):
        close(found, expected)


def test_what_vmap_maps_is_changed_in_place(run):
    def fn(a, b, c):
        a.mul_(c)
        b[1:].add_(a[1:])
        b[0] = a.sum()
        return b.sum()

    a, whole, c = draw(12, 20), draw(20, 65), draw(20)
    expected = a.numpy() * c.numpy()
    b = whole[:, 7:19].numpy() + expected.T
    b[0] = expected.sum(1)
    close(run(tg.vmap(fn, in_dims=(0, 1, None), chunk_size=5))(a, whole[:, 7:19], c), b.sum(0))
    close(a, expected)
    close(whole[:, 7:19], b)
    before = whole[:, :20].numpy()
    found = run(tg.vmap(tg.vmap(lambda x, y: x.sub_(y)), in_dims=(1, None)))(whole[:, :20], a[0])
    close(found, before.T - expected[0])
    close(whole[:, :20], found.t())
    expected = c.numpy() * 2
    close(run(tg.vmap(lambda x, y: (x.mul_(2), x + y)[1]))(c, c), expected * 2)
    close(c, expected)
    leaf = draw(3, 4).requires_grad_()
    expected = leaf.detach().numpy() * 2
    with pytest.raises(tg.AutogradError, match="vmap: a leaf tensor"):
        tg.vmap(lambda x: x.mul_(2))(leaf)
    with tg.no_grad():
        tg.vmap(lambda x: x.mul_(2))(leaf)
    close(leaf.detach(), expected)
    leaf.square().sum().backward()
    close(leaf.grad, expected * 2)


def test_vmap_of_autograd_grad(run):
    """The rows of a Jacobian, of a history from outside and of one from inside; whether or not it is to be kept."""
    def rows(x, options):
        x = x.detach().requires_grad_()
        y = (x ** 3).cumsum(0)
        return tg.vmap(lambda v: tg.autograd.grad(y, x, v, **options)[0])(tg.eye(x.shape[0], dtype=x.dtype))

    def inside(xs):
        def each(x):
            x = x.detach().requires_grad_()
            return tg.autograd.grad((x ** 3).cumsum(0)[-1], x)[0]

        return tg.vmap(each)(xs)

    x = draw(12)
    for options in ({}, {"retain_graph": True}, {"create_graph": True}):
        close(run(lambda x, options=options: rows(x, options))(x), np.tril(np.ones((12, 12))) * 3 * x.numpy() ** 2)
    xs = draw(65, 12)
    close(run(inside)(xs), 3 * xs.numpy() ** 2)


def under_no_grad(x):
    with tg.no_grad():
        x.mul_(2)


def a_view_under_no_grad(x):
    with tg.no_grad():
        x[1:].mul_(2)


def a_view_made_under_no_grad(x):
    with tg.no_grad():
        view = x[1:]
    view.mul_(2)


def an_element(x):
    with tg.no_grad():
        x[0] = 7.0


def a_setter(x):
    x.data = x.data * 2


def another_shape(x):
    x.data = tg.ones(x.numel() + 2, dtype=x.dtype)


def into(x):
    with tg.no_grad():
        tg.mul(x, 2, out=x)


@pytest.mark.parametrize("n", [3, 12, 65])
@pytest.mark.parametrize("then", [lambda x: x * x, lambda x: x.mul_(x)], ids=["read", "written"])
@pytest.mark.parametrize("change", [
    under_no_grad, a_view_under_no_grad, a_view_made_under_no_grad, an_element, a_setter, another_shape, into,
    lambda x: x.detach().mul_(2), lambda x: x.data.mul_(2), lambda x: x.data.__setitem__(0, 1.0),
])
def test_what_transforms_differentiate_is_not_written_where_nothing_is_recorded(run, change, then, n):
    """torch takes some of it, as if the value had always been that, refuses the same once it is written with a history, and in forward
    mode takes no notice of no_grad; here it is always an error, at that line."""
    def fn(x):
        change(x)
        return then(x).sum()

    x = draw(n)
    before = x.numpy()
    transforms = [
        tg.grad(fn), tg.jacrev(fn), tg.jacfwd(fn), tg.hessian(fn), lambda x: tg.jvp(fn, (x,), (x,)), lambda x: tg.vjp(fn, x)[1](x.sum()),
        lambda x: tg.vmap(tg.grad(fn))(x[None]), tg.grad(lambda x: tg.grad(fn)(x).sum()), tg.grad(lambda x: tg.vmap(fn)(x[None]).sum()),
    ]
    for transform in transforms:
        with pytest.raises(tg.TracegradError, match=r"(modified in place where no history is recorded|another shape|cannot be broadcast)"
                                                    r".*\(at .*test_transforms"):
            run(transform)(x)
        close(x, before)


def test_what_comes_back_beside_a_result_has_no_history_of_the_transform_s(run):
    def fn(x, w=1.0):
        return (x * x * w).sum(), {"twice": x * 2 * w, "same": x, "n": x.shape[0], "none": None}

    x, w = draw(12), draw(12).requires_grad_()

    def everything(x, *w):
        auxes = [
            tg.grad(fn, has_aux=True)(x, *w)[1], tg.value_and_grad(fn, has_aux=True)(x, *w)[0][1],
            tg.vjp(lambda x: fn(x, *w), x, has_aux=True)[2], tg.jvp(lambda x: fn(x, *w), (x,), (x,), has_aux=True)[2],
            tg.jacrev(fn, has_aux=True)(x, *w)[1], tg.jacfwd(fn, has_aux=True)(x, *w)[1],
        ]
        return [(a["twice"], a["same"]) for a in auxes if (a["n"], a["none"]) == (12, None)]

    found = run(everything)(x)
    assert len(found) == 6
    for twice, same in found:
        close(twice, x.numpy() * 2)
        assert not twice.requires_grad
        assert not same.requires_grad
    for twice, same in everything(x, w):
        assert twice.requires_grad                                          # that of w
        assert not same.requires_grad
    close(tg.grad(lambda y: (tg.grad(lambda x: ((x * x * y).sum(), x * y), has_aux=True)(y)[1] ** 2).sum())(x), 4 * x.numpy() ** 3)


@one_of(11, ("fn", "n", "dims"), product([
    lambda r: r, lambda r: r[1:], lambda r: r.reshape(-1, 1).t(), lambda r: r.add_(2), lambda r: r[1:].add_(2), lambda r: r.detach(),
    lambda r: r[::2].t(), lambda r: tg.vmap(lambda e: e)(r)[1:], lambda r: tg.vmap(lambda e: e.add_(5))(r).mul_(2),
], [3, 12, 65], [(0, 0), (1, 0), (1, 1)]))
def test_results_of_vmap_share_memory_as_in_torch(run, fn, n, dims):
    """With what was mapped: what is written to them later is written there."""
    def change(x):
        out = tg.vmap(fn, *dims)(x)
        out.add_(1)
        return out * 1

    x = draw(7, n) if dims[0] == 0 else draw(n, 7)
    rows = [(x if dims[0] == 0 else x.t())[i].clone() for i in range(7)]
    out = run(change)(x)
    each = [fn(row).add_(1) for row in rows]
    close(x, np.stack([row.numpy() for row in rows], dims[0]))
    close(out, np.stack([e.numpy() for e in each], dims[1]))


def test_results_of_vmap_share_memory_with_each_other_and_with_what_is_captured(run):
    x, w = draw(65, 12), draw(12, 3)

    def change(x, w):
        made, part, same = tg.vmap(lambda r: (lambda y: (y, y[1:], y))(r * 2))(x)
        made.add_(1)
        part.mul_(3)
        left, right = tg.vmap(lambda r: (lambda y: (y[:8], y[4:]))(r * 2), out_dims=(0, 1))(x)
        left.mul_(0)
        one, two = tg.vmap(lambda r: (lambda y: (y, y))(tg.zeros(3)), out_dims=None)(x)
        one.add_(two + 1)
        captured, row = tg.vmap(lambda r: (w, w[1]), out_dims=None)(x)
        captured.add_(1)
        row.mul_(2)
        copies = tg.vmap(lambda r: r, chunk_size=65)(x)
        copies.add_(100)
        with pytest.raises(tg.ArgumentError, match="several elements of an expanded tensor"):
            tg.vmap(lambda r: w)(x).add_(1)
        own = tg.vmap(lambda r: tg.zeros(3))(x)
        own.add_(1)
        return made * 1, part * 1, same * 1, right * 1, one, own

    twice = x.numpy() * 2 + 1
    twice[:, 1:] *= 3
    before, wanted = x.numpy(), w.numpy() + 1
    wanted[1] *= 2
    right = x.numpy()[:, 4:] * 2
    right[:, :4] = 0
    expected = twice, twice[:, 1:], twice, right.T, np.ones(3), np.ones((65, 3)), before, wanted
    for found, value in zip((*run(change)(x, w), x, w), expected, strict=True):
        close(found, value)


def test_vmap_dimensions_in_and_out():
    a, b = draw(3, 4), draw(2, 3)
    close(tg.vmap(lambda a, b: a + b, in_dims=(1, None), out_dims=2)(a, b), (a.numpy().T[:, None, :] + b.numpy()).transpose(1, 2, 0))
    close(
        tg.vmap(lambda p, x: x @ p["w"] + p["b"], in_dims=(None, 0))({"w": b.t(), "b": tg.ones(2, dtype=tg.float64)}, draw(6, 3) * 0),
        np.ones((6, 2)),
    )
    close(tg.vmap(tg.vmap(lambda x, y: x * y))(a, a), a.numpy() ** 2)


def test_per_example_gradients():
    w, x = draw(3), draw(6, 3)
    per_example = tg.trace(tg.vmap(tg.grad(lambda w, x: (w @ x).tanh()), in_dims=(None, 0)))
    expected = (1 - np.tanh(x.numpy() @ w.numpy()) ** 2)[:, None] * x.numpy()
    close(per_example(w, x), expected)
    close(tg.grad(lambda w: tg.vmap(lambda x: (w @ x).tanh())(x).sum())(w), expected.sum(0))


def cubes(x):
    return (x**3).sum() + x[0] * x[1] * x[2]


def in_place(x):
    y = x * 1
    y[0] *= y[1]
    y.add_(x)
    y[1:] = y[1:] * y[:2]
    return y.sum()


def branches(x):
    return tg.cond(x.sum() > 0, lambda y: (y**2).sum(), lambda y: (y**3).sum(), x)


T = tg.tensor([1.0, 2.0, -1.0], dtype=tg.float64, device="numpy")
NESTED = {      # each with a place for tg.trace outside, between and inside; of a matrix whose rows are examples
    "grad": lambda a, b, c, f: lambda X: a(tg.grad(b(c(f))))(X[0]),
    "jacrev of grad": lambda a, b, c, f: lambda X: a(tg.jacrev(b(tg.grad(c(f)))))(X[0]),
    "jacfwd of grad": lambda a, b, c, f: lambda X: a(tg.jacfwd(b(tg.grad(c(f)))))(X[0]),
    "hvp": lambda a, b, c, f: lambda X: a(lambda x: tg.hvp(b(c(f)), (x,), (T,))[1])(X[0]),
    "jvp of jvp": lambda a, b, c, f: lambda X: a(lambda x: tg.jvp(b(lambda y: tg.jvp(c(f), (y,), (T,))[1]), (x,), (T,))[1])(X[0]),
    "grad of jvp": lambda a, b, c, f: lambda X: a(tg.grad(b(lambda y: tg.jvp(c(f), (y,), (T,))[1])))(X[0]),
    "vjp of grad": lambda a, b, c, f: lambda X: a(lambda x: tg.vjp(b(tg.grad(c(f))), x)[1](T)[0])(X[0]),
    "vmap of grad": lambda a, b, c, f: a(tg.vmap(b(tg.grad(c(f))))),
    "grad of vmap": lambda a, b, c, f: a(tg.grad(b(lambda Y: tg.vmap(c(f))(Y).sum()))),
    "vmap of hessian": lambda a, b, c, f: a(tg.vmap(b(tg.hessian(c(f))))),
    "vmap of jvp": lambda a, b, c, f: a(tg.vmap(b(lambda x: tg.jvp(c(f), (x,), (T,))[1]))),
    "jvp of vmap": lambda a, b, c, f: a(lambda Y: tg.jvp(b(tg.vmap(c(f))), (Y,), (tg.stack([T, T]),))[1]),
    "vmap": lambda a, b, c, f: a(tg.vmap(b(c(f)))),
}


@one_of(2, ("name", "f"), product(NESTED, [cubes, in_place, branches]))
def test_transforms_nest_with_each_other_and_with_trace_at_any_level(name, f):
    device = tg.device()
    tg.set_device("numpy")
    try:
        x = tg.tensor([[0.3, -0.7, 1.1], [-0.6, 1.4, -2.2]], dtype=tg.float64)
        none = lambda fn: fn
        wanted = NESTED[name](none, none, none, f)(x)
        for wraps in itertools.product((none, tg.trace), repeat=3):
            close(NESTED[name](*wraps, f)(x).numpy(), wanted.numpy())
    finally:
        tg.set_device(device)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tg.grad(lambda x: x * 2)(tg.ones(3)), tg.ShapeError, "one real float tensor of one element.*float32\\[3\\]"),
        (lambda: tg.grad(lambda x: x.sum())(tg.arange(3)), tg.DTypeError, "only differentiate with respect to .*, got int64"),
        (lambda: tg.grad(lambda x: x.sum(), argnums=2)(tg.ones(3)), tg.ArgumentError, "argnums 2 is out of range"),
        (lambda: tg.jvp(lambda x: x, (tg.ones(3),), (tg.ones(2),)), tg.ShapeError, "tangent 0 has shape"),
        (lambda: tg.vjp(lambda x: x, tg.ones(3))[1](tg.ones(2)), tg.ShapeError, "cotangent 0 has shape"),
        (lambda: tg.vmap(lambda x, y: x)(tg.ones(3), tg.ones(2)), tg.ShapeError, "different sizes"),
        (lambda: tg.vmap(lambda x: x, in_dims=None)(tg.ones(3)), tg.ArgumentError, "no argument is mapped"),
        (lambda: tg.vmap(lambda x: x.item())(tg.ones(3)), tg.TraceError, "no value"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_trace_of_a_tensor_is_its_diagonals_sum(device):
    x = draw(4, 4)
    close(tg.trace(x), np.trace(x.numpy()))


def test_checkpointed_blocks_have_the_derivatives_of_the_blocks(run, device):
    """torch.utils.checkpoint's names: blocks in a row, traced and untraced; the second derivative, too."""
    rng = np.random.default_rng(0)
    w = tg.tensor(rng.normal(size=(33, 33)) / 6, requires_grad=True)
    x = tg.tensor(rng.normal(size=(7, 33)))

    def loss(wrap):
        y = x
        for _ in range(3):
            y = wrap(lambda y, w: tg.tanh(y @ w), y, w)
        return (y * y).sum()

    def derivatives(wrap):
        g, = tg.autograd.grad(loss(wrap), w, create_graph=True)
        h, = tg.autograd.grad((g * g).sum(), w)
        return g, h

    found = run(lambda: derivatives(lambda f, *a: tg.utils.checkpoint.checkpoint(f, *a, use_reentrant=False)))()
    for seen, wanted in zip(found, derivatives(lambda f, *a: f(*a)), strict=True):
        np.testing.assert_allclose(seen.detach().numpy(), wanted.detach().numpy(), rtol=1e-9, atol=1e-13)
    layers = tg.nn.Sequential(tg.nn.Linear(33, 8), tg.nn.ReLU(), tg.nn.Linear(8, 2)).double()
    both = layers(x), tg.utils.checkpoint.checkpoint_sequential(layers, 2, x, use_reentrant=False)
    np.testing.assert_array_equal(both[0].detach().numpy(), both[1].detach().numpy())
    with pytest.raises(tg.ArgumentError, match="segments must be between 1 and the number of functions, 3, got 4"):
        tg.utils.checkpoint.checkpoint_sequential(layers, 4, x)


def test_a_constant_that_is_differentiated_is_none(device):
    """A variable whose value is a constant (rows of an identity, ones): the rules of products leave out true constants only."""
    f = lambda x: tg.cond(x.sum() > 0, lambda y: (y**2).sum(), lambda y: (y**3).sum(), x)
    x, rows = tg.tensor([0.3, -0.7, 1.1], dtype=tg.float64), tg.eye(3, dtype=tg.float64)
    for mapped in (tg.vmap, lambda fn: tg.trace(tg.vmap(fn))):
        close(mapped(lambda t: tg.jvp(tg.grad(f), (x,), (t,))[1])(rows).numpy(), 2 * np.eye(3))
    ones = lambda: tg.ones(2, dtype=tg.float64)
    for g, wanted in ((lambda x: x * 3.0 * x, 6.0), (lambda x: 2.0 / x, -2.0), (lambda x: x**x, 1.0),
                      (lambda x: (x * 2.0) ** (x * 2.0), 8 * np.log(2.0) + 8)):
        close(tg.trace(lambda g=g: tg.grad(lambda x: g(x).sum())(ones()))().numpy(), np.full(2, wanted))
