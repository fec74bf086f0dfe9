"""backward, autograd.grad, hooks, grad_fn and gradcheck, sentence by sentence, with torch's meanings."""

import re

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.functions import square
from tests.helpers.values import close, f64
from tracegrad.errors import AutogradError, DTypeError, ShapeError
from tracegrad.testing import GradcheckError, gradcheck, gradgradcheck

pytestmark = pytest.mark.usefixtures("device")


def test_several_roots(run):
    x, y = f64(1.0, 2.0), f64(3.0, 4.0)

    @run
    def step():
        x.grad = y.grad = None
        tg.backward([(x * y).sum(), x * x], [None, tg.tensor([1.0, 10.0], dtype=tg.float64)])
        return x.grad, y.grad

    for _ in range(2):
        gx, gy = step()
        close(gx, [3 + 2, 4 + 40])
        close(gy, [1.0, 2.0])
    assert tg.autograd_backward is tg.backward


def test_a_root_that_another_root_depends_on(run):
    x = f64(2.0)

    @run
    def step():
        x.grad = None
        a = x * x
        tg.backward([a.sum(), (a * 3).sum()])
        return x.grad

    close(step(), [16.0])


def test_gradients_accumulate_until_zeroed(run):
    x = f64(1.0, 2.0)

    @run
    def loss():
        return (x * x).sum()

    for k in (1, 2, 3):
        loss().backward()
        close(x.grad, [2.0 * k, 4.0 * k])
    same = x.grad
    x.grad.zero_()
    close(x.grad, [0.0, 0.0])
    loss().backward()
    assert x.grad is same
    close(x.grad, [2.0, 4.0])
    x.grad = None
    loss().backward()
    close(x.grad, [2.0, 4.0])


def test_gradients_accumulate_inside_a_trace():
    x = f64(1.0, 2.0)

    @tg.trace
    def step():
        (x * x).sum().backward()

    for k in (1, 2, 3):
        step()
        close(x.grad, [2.0 * k, 4.0 * k])

    @tg.trace
    def zeroed():
        x.grad.zero_()
        (x * x).sum().backward()
        (x * 3).sum().backward()

    for _ in range(3):
        zeroed()
        close(x.grad, [5.0, 7.0])


def test_a_root_that_is_no_scalar_needs_its_cotangent(run):
    x = f64(1.0, 2.0)
    with pytest.raises(AutogradError, match=r"backward: root 0 has shape \(2,\); only a root of one element .* grad_tensors or .*sum\(\)"):
        run(lambda x: (x * x).backward())(x)
    with pytest.raises(AutogradError, match="root 1 has shape"):
        run(lambda x: tg.backward([x.sum(), x * 2], [None, None]))(x)
    with pytest.raises(ShapeError, match=r"the cotangent of root 0 has shape \(3,\), the root \(2,\)"):
        run(lambda x: (x * x).backward(tg.ones(3, dtype=tg.float64)))(x)
    with pytest.raises(AutogradError, match="2 roots but 1 grad_tensors"):
        tg.backward([x.sum(), x.sum()], [None])
    with pytest.raises(AutogradError, match=r"root 0 .* does not require grad"):
        tg.backward(f64(1.0, grad=False))


def test_the_history_is_freed_and_a_second_backward_says_so(run):
    x = f64(1.0, 2.0)

    def twice(x):
        loss = (x * x).sum()
        loss.backward()
        loss.backward()

    with pytest.raises(AutogradError, match=r"history of .* was freed by an earlier backward; pass retain_graph=True"):
        run(twice)(x)


def test_a_value_survives_its_history():
    x = f64(1.0, 2.0)
    y = square()(x)
    z = y * y
    z.sum().backward()
    close(y, [1.0, 4.0])
    close(z, [1.0, 16.0])
    with pytest.raises(AutogradError, match="was freed"):
        y.sum().backward()
    with pytest.raises(AutogradError, match="was freed"):
        (y * 2).sum().backward()


def test_a_traced_results_history_is_freed_too():
    x = f64(1.0, 2.0)
    loss = tg.trace(lambda x: (x * x).sum())(x)
    loss.backward(retain_graph=True)
    loss.backward()
    close(x.grad, [4.0, 8.0])
    assert loss.item() == 5.0
    with pytest.raises(AutogradError, match="was freed"):
        loss.backward()


def test_retain_graph_keeps_it(run):
    x = f64(1.0, 2.0)

    @run
    def step():
        x.grad = None
        loss = (x * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return x.grad

    close(step(), [4.0, 8.0])


def test_create_graph_gives_differentiable_gradients(run):
    x = f64(1.0, 2.0)

    @run
    def step():
        x.grad = None
        (x ** 3).sum().backward(create_graph=True)
        g = x.grad
        assert g.requires_grad
        x.grad = None
        (g * g).sum().backward()
        return x.grad

    close(step(), 2 * 3 * np.array([1.0, 4.0]) * 6 * np.array([1.0, 2.0]))


def test_gradients_without_create_graph_have_no_history():
    x = f64(1.0)
    (x * x).sum().backward()
    assert not x.grad.requires_grad
    (x * x).sum().backward(create_graph=True)
    (x * x).sum().backward()
    close(x.grad, [6.0])


def test_autograd_grad(run):
    x, y, unused = f64(1.0, 2.0), f64(3.0, 4.0), f64(1.0)

    def both(x, y):
        return tg.autograd.grad([(x * y).sum(), (x * x)], [x, y], [None, tg.tensor([1.0, 10.0], dtype=tg.float64)])

    gx, gy = run(both)(x, y)
    close(gx, [5.0, 44.0])
    close(gy, [1.0, 2.0])
    assert x.grad is None
    assert not gx.requires_grad
    with pytest.raises(AutogradError, match=r"input 1 .* was not used .* allow_unused=True"):
        run(lambda x, u: tg.autograd.grad(x.sum(), [x, u]))(x, unused)
    assert tg.autograd.grad(x.sum(), [x, unused], allow_unused=True)[1] is None
    with pytest.raises(AutogradError, match=r"input 0 .* does not require grad"):
        tg.autograd.grad(x.sum(), f64(1.0, grad=False))


def test_autograd_grad_of_an_intermediate(run):
    def fn(x):
        a = x * 2
        return tg.autograd.grad((a * a).sum(), a)[0]

    close(run(fn)(f64(1.0, 2.0)), [4.0, 8.0])


def test_autograd_grad_of_higher_order(run):
    def third(x):
        (g,) = tg.autograd.grad((x ** 4).sum(), x, create_graph=True)
        (h,) = tg.autograd.grad(g.sum(), x, create_graph=True)
        return tg.autograd.grad(h.sum(), x)[0]

    close(run(third)(f64(1.0, 2.0)), [24.0, 48.0])


def test_a_hook_sees_and_replaces_the_gradient(run):
    x = f64(1.0, 2.0)
    seen = []

    def step(x):
        a = x * 3
        a.register_hook(lambda g: seen.append(tuple(g.shape)))
        a.register_hook(lambda g: g * 10)
        return tg.autograd.grad((a * a).sum(), x)[0]

    close(run(step)(x), np.array([1.0, 2.0]) * 18 * 10)
    assert seen[0] == (2,)


def test_a_leafs_hook_stays_and_can_be_removed(run):
    w = f64(1.0, 2.0)
    handle = w.register_hook(lambda g: g * 2)

    @run
    def step():
        w.grad = None
        (w * w).sum().backward()
        g = w.grad * 1.0
        with tg.no_grad():
            w.sub_(0.5 * w.grad)
        return g

    for _ in range(3):
        before = w.detach().numpy()
        close(step(), 4 * before)
    handle.remove()
    before = w.detach().numpy()
    close(step(), 2 * before)


def test_a_hook_on_a_tensor_without_grad_is_an_error():
    with pytest.raises(AutogradError, match="register_hook: the tensor does not require grad"):
        f64(1.0, grad=False).register_hook(print)
    with pytest.raises(AutogradError, match="retain_grad: the tensor does not require grad"):
        f64(1.0, grad=False).retain_grad()


def test_what_runs_after_a_gradient_is_there_is_not_differentiated():
    def descend(w):
        w.sub_(w.grad)                                      # an error of a leaf where grad is enabled
        w.grad = None

    w = tg.ones(2, requires_grad=True)
    w.register_post_accumulate_grad_hook(descend)
    for k in range(3):
        (w * 3).sum().backward()
        close(w.detach(), [-2 - 3 * k] * 2)
        assert tg.is_grad_enabled()
    with pytest.raises(AutogradError, match="a leaf tensor that requires grad was modified in place"):
        (w * 3).sum().backward(create_graph=True)


def test_retain_grad(run):
    x = f64(1.0, 2.0)

    @run
    def step():
        a = x * 3
        a.retain_grad()
        assert a.retains_grad
        b = a * a
        b.sum().backward()
        assert b.grad is None
        return a.grad

    close(step(), [6.0, 12.0])


def test_retain_grad_on_the_way_to_inputs(run):
    x, w = f64(1.0, 2.0), f64(1.0, 1.0)

    @run
    def step():
        a = x * 3
        b = a * w
        other = w * 2
        for y in (a, b, other):
            y.retain_grad()
        total = (b * b + other).sum()
        tg.autograd.grad(total, b, retain_graph=True)
        assert (a.grad, other.grad) == (None, None)
        tg.autograd.grad(total, x, retain_graph=True)
        x.grad = None
        total.backward(inputs=[x])
        assert other.grad is None
        return a.grad, b.grad

    for _ in range(3):
        a, b = step()
        close(a, [12.0, 24.0])
        close(b, [18.0, 36.0])


def test_is_leaf():
    x = f64(1.0)
    assert x.is_leaf
    assert not (x * 2).is_leaf
    assert (x * 2).detach().is_leaf
    assert f64(1.0, grad=False).is_leaf
    assert (f64(1.0, grad=False) * 2).is_leaf
    with tg.no_grad():
        assert (x * 2).is_leaf


def test_grad_fn_can_be_walked_to_the_leaves():
    x, y = f64(1.0), f64(2.0)
    out = (x * y).sin().sum()
    names, leaves, stack = [], [], [out.grad_fn]
    while stack:
        fn = stack.pop()
        names.append(fn.name())
        if fn.variable is not None:
            leaves.append(fn.variable)
        stack += [f for f, _ in fn.next_functions if f is not None]
    assert names == ["sum", "sin", "mul", "AccumulateGrad", "AccumulateGrad"]
    assert {id(t) for t in leaves} == {id(x), id(y)}
    assert x.grad_fn is None
    assert (x * 2).grad_fn.next_functions[1] == (None, 0)


def test_grad_fn_of_a_custom_function_with_several_outputs():
    class Two(tg.Function):
        @staticmethod
        def forward(ctx, x, scale, y):
            return x * scale, y * 1.0

        @staticmethod
        def backward(ctx, gx, gy):
            return gx * 2.0, None, gy

    x, y = f64(1.0), f64(2.0)
    a, b = Two.apply(x, 2.0, y)
    assert a.grad_fn.name() == b.grad_fn.name() == "Two"
    assert [f.variable for f, _ in a.grad_fn.next_functions] == [x, y]
    assert (b * 2).grad_fn.next_functions[0][1] == 1


# --------------------------------------------------------------------------------------------------------------- 9. gradcheck


def test_gradcheck_shows_the_worst_element(run):
    x = tg.tensor(np.array([[1.0, 3.0], [0.5, 2.0]]), requires_grad=True)
    wrong = square(slope=lambda x: x * tg.where(x > 2.0, 2.5, 2.0))                # at the largest element
    with pytest.raises(AutogradError) as caught:
        gradcheck(run(wrong), x)
    message = str(caught.value)
    assert re.match(r"gradcheck: d output 0\[0, 1\] / d input 0\[0, 1\] is 7\.5, finite differences give (6|5\.999|6\.000)", message)
    assert "the worst of 1 wrong elements of 16" in message
    assert "the input there is 3" in message
    assert "[[1.  3. ]" in message
    assert not gradcheck(run(wrong), x, raise_exception=False)


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
@pytest.mark.parametrize("dtype", [tg.float64, tg.complex128])
def test_gradcheck_of_nothing(shape, dtype):
    """No element is wrong, as in torch (it was an error of a reshape)."""
    x = tg.zeros(shape, dtype=dtype, requires_grad=True)
    for fn in (lambda x: x * 2, lambda x: x.sum()):
        assert gradcheck(fn, x, check_forward_ad=True)
    assert gradgradcheck(lambda x: (x * x).sum(), x)


def test_gradgradcheck_finds_a_wrong_second_derivative(run):
    x = f64(1.0, 3.0)
    second = square(slope=lambda x: 2.0 * x.detach())                              # a value without history
    assert gradcheck(run(second), x)
    with pytest.raises(AutogradError, match=r"gradgradcheck: d gradient 0\[\d\] / d input 0\[\d\] is 0, finite differences give"):
        gradgradcheck(run(second), x, [tg.ones(2, dtype=tg.float64)])
    assert not gradgradcheck(run(second), x, raise_exception=False)


def test_gradcheck_of_several_inputs_and_outputs(run):
    x, y = f64(1.0, 3.0), f64(0.5)
    assert gradcheck(run(lambda x, y, k: (x * y * k, y.sin(), (x > 0).sum())), (x, y, 2))
    assert gradgradcheck(run(lambda x, y, k: (x * y * k, y.sin())), (x, y, 2))


def test_gradcheck_refuses_what_it_cannot_check():
    with pytest.raises(DTypeError, match=r"gradcheck: input 0 is float32; finite differences need float64 \(x.double\(\)\)"):
        gradcheck(tg.sin, tg.ones(2, requires_grad=True))
    with pytest.raises(AutogradError, match="gradcheck: no input requires grad"):
        gradcheck(tg.sin, f64(1.0, grad=False))
    with pytest.raises(GradcheckError, match=r"d output 0.* is 0, finite differences give 1"):
        gradcheck(lambda x: x.detach(), f64(1.0))
    with pytest.raises(DTypeError, match="gradcheck: the function returned no float tensor"):
        gradcheck(lambda x: x > 0, f64(1.0))


class _Nothing(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * float("nan")


@pytest.mark.parametrize("power", [2, 3.0, -1])
def test_no_anomaly_is_found_where_no_gradient_goes(run, device, power):
    """The exponent's gradient would be the logarithm of a negative number; nobody asked for it, also where it is a tensor."""
    x = tg.tensor([-1.0, 2.0, -4.0], requires_grad=True)
    with tg.autograd.detect_anomaly():
        run(lambda x: (x**power).sum())(x).backward()
        np.testing.assert_allclose(x.grad.numpy(), power * x.detach().numpy() ** (power - 1))
        p = tg.full((3,), power, dtype=tg.float32, requires_grad=True)
        assert tg.autograd.grad((x**p).sum(), [x])[0].isfinite().all()
        with pytest.raises(RuntimeError, match="the gradient of operand 1 of pow"):
            (x**p).sum().backward()


def test_anomalies_are_found(run, device):
    """The first step of a backward that gives NaN is named, with the line of its forward pass; what is not NaN goes on as always."""
    where = r"computed at .*test_backward.py:\d+, holds NaN \(1 of 3 elements\)"
    x = tg.tensor([1.0, 0.0, 4.0], requires_grad=True)

    def loss(x):
        y = x.sqrt()
        return (y * 0).sum()

    with tg.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match=f"^backward: the gradient of sqrt, {where}") as told:
            run(loss)(x).backward()
        line = loss.__code__.co_firstlineno + 1
        assert f"test_backward.py:{line}," in str(told.value)
        assert x.grad is None
        with pytest.raises(RuntimeError, match=f"the gradient of operand 0 of div, {where}"):
            tg.autograd.grad((0 * (x * x / (x - 1))).sum(), [x])
        with pytest.raises(RuntimeError, match=r"_Nothing.*holds NaN \(3 of 3 elements\)"):
            _Nothing.apply(x).sum().backward()
        with pytest.raises(RuntimeError, match=rf"the gradient of sqrt, {where}"):
            run(tg.func.grad(loss))(x.detach())
        model = tg.nn.Sequential(tg.nn.Linear(3, 7), tg.nn.LayerNorm(7), tg.nn.GELU(), tg.nn.Linear(7, 2))
        tg.nn.functional.cross_entropy(run(model)(tg.ones(5, 3)), tg.tensor([0, 1, 0, 1, 1])).backward()
        assert model[0].weight.grad.isfinite().all()
        assert tg.is_anomaly_enabled()
    with tg.autograd.detect_anomaly(check_nan=False):
        assert not tg.is_anomaly_check_nan_enabled()
        run(loss)(x).backward()
    assert not tg.is_anomaly_enabled()
    assert np.isnan(x.grad.numpy()).tolist() == [False, True, False]
    tg.autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(RuntimeError, match="the gradient of sqrt"):
            loss(x).backward()
    finally:
        tg.autograd.set_detect_anomaly(False)
    for _ in range(4):                                  # nothing is recalled of what was looked at, nor the other way
        x.grad = None
        loss(x).backward()
        with tg.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="the gradient of sqrt"):
            loss(x).backward()


def test_nothing_is_made_for_a_constant_operand():
    """The gradients of a constant factor, divisor and exponent, which nobody asks for: of an exponent that would be nine operations."""
    x = f64(2.0, 3.0)
    for y, place, wanted in ((x**4, 1, 4 * x**3), (x * 3.0, 1, x * 0 + 3), (3.0 * x, 0, x * 0 + 3), (x / 3.0, 1, x * 0 + 1 / 3)):
        node = y._node()
        parts = node.fn.vjp(node, node, *node.operands)
        assert [part is None for part in parts] == [place == 0, place == 1]
        close(tg.autograd.grad(y.sum(), x)[0], wanted.detach().numpy())
    base, exponent = f64(2.0, 0.0), f64(3.0, 2.0)
    gx, ge = tg.autograd.grad((base**exponent * exponent / base.clamp(min=1.0)).sum(), [base, exponent])
    close(gx, [3 * 4 * 3 / 2 - 8 * 3 / 4, 0.0])
    close(ge, [(8 * np.log(2.0) * 3 + 8) / 2, 0.0])


@pytest.mark.parametrize(("hook", "error", "message"), [
    (lambda g: g[:1], tg.ShapeError, r"a gradient of shape \(1,\) for one of \(3,\)"),
    (lambda g: g.sum(), tg.ShapeError, r"a gradient of shape \(\) for one of \(3,\)"),
    (lambda g: g.double(), tg.DTypeError, "a gradient of float64 for one of float32"),
    (lambda g: 5, tg.ArgumentError, "must return a Tensor, or None to leave the gradient, got int"),
])
@pytest.mark.parametrize("leaf", [True, False])
def test_hooks_return_gradients_of_the_same_shape_and_dtype(hook, error, message, leaf):
    w = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = w * w
    (w if leaf else y).register_hook(hook)
    with pytest.raises(error, match=f"register_hook: the hook .*{message}"):
        y.sum().backward()
    assert w.grad is None
