"""Custom Functions, sentence by sentence: untraced, traced, and differentiated again. The true values are float64 finite differences."""

import math

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.functions import double
from tests.helpers.values import close, f64
from tracegrad.errors import ArgumentError, AutogradError, ShapeError
from tracegrad.testing import gradcheck, gradgradcheck

pytestmark = pytest.mark.usefixtures("device")
LN2 = math.log(2.0)


def gradients(fn, *inputs):
    """d sum(fn) / d inputs, through backward() of a root outside the function."""
    for x in inputs:
        x.grad = None
    fn(*inputs).sum().backward()
    return [x.grad for x in inputs]


class Exp2(tg.Function):
    @staticmethod
    def forward(ctx, x):
        y = 2.0 ** x
        ctx.save_for_backward(y=y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return {"x": grad * ctx.saved_variables.y * LN2}


def exp2_forward(ctx, x):
    y = 2.0 ** x
    ctx.save_for_backward(y)
    return y


def exp2_backward(ctx, grad):
    (y,) = ctx.saved_tensors
    return grad * y * LN2


exp2 = tg.autograd_function(forward=exp2_forward, backward=exp2_backward)


# ------------------------------------------------------------------------------------------------------------- 1. defining


@pytest.mark.parametrize("call", [Exp2.apply, Exp2(), exp2], ids=["apply", "instance", "autograd_function"])
def test_three_ways_to_call(run, call):
    x = f64(1.0, 2.0, 3.0)
    fn = run(call)
    close(fn(x), [2.0, 4.0, 8.0])
    close(gradients(fn, x)[0], np.array([2.0, 4.0, 8.0]) * LN2)
    assert gradcheck(fn, x)
    assert gradgradcheck(fn, x)


def test_whole_step_is_one_program():
    x = f64(1.0, 2.0)

    @tg.trace
    def step():
        x.grad = None
        Exp2.apply(x).sum().backward()
        return x.grad

    for _ in range(3):
        close(step(), np.array([2.0, 4.0]) * LN2)


def test_the_function_shows_its_name():
    x = f64(1.0)
    y = Exp2.apply(x)
    assert y.grad_fn.name() == "Exp2"
    assert "grad_fn=<Exp2>" in repr(y)
    traced = tg.trace(Exp2.apply)
    traced(x)
    assert "Exp2" in [n.name for n in traced.graph]


class Affine(tg.Function):
    """Any kind of argument: tensors, numbers, defaults, keywords, containers, objects."""

    @staticmethod
    def forward(ctx, x, scale, *extra, power=1, bias=None, options=None):
        ctx.scale, ctx.power = scale, power
        ctx.save_for_backward(x)
        out = scale * x ** power
        for e in extra:
            out = out + e
        if bias is not None:
            out = out + bias
        return out * (options or {}).get("times", 1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return {"x": grad * ctx.scale * ctx.power * x ** (ctx.power - 1), "bias": grad, "extra_0": grad}


def test_arguments_of_any_kind_with_defaults_and_keywords(run):
    x, e, b = f64(1.0, 2.0), f64(5.0, 5.0), f64(7.0, 8.0)
    fn = run(lambda x, e, b: Affine.apply(x, 3, e, power=2, bias=b, options={"times": 1}))
    close(fn(x, e, b), [15.0, 25.0])
    gx, ge, gb = gradients(fn, x, e, b)
    close(gx, [6.0, 12.0])
    close(ge, [1.0, 1.0])
    close(gb, [1.0, 1.0])
    assert gradgradcheck(fn, (x, e, b))
    close(run(lambda x: Affine.apply(x, scale=2))(x), [2.0, 4.0])


def test_wrong_arguments_name_the_signature():
    with pytest.raises(ArgumentError, match=r"Exp2\.apply: .*signature is forward\(ctx, x\)"):
        Exp2.apply(f64(1.0), 2)


class Containers(tg.Function):
    @staticmethod
    def forward(ctx, x, others):
        ctx.seen = (x.requires_grad, x.is_leaf, x.grad_fn, others[0].requires_grad)
        return x * others[0]

    @staticmethod
    def backward(ctx, grad):
        assert list(ctx.needs_input_grad) == [True, False]
        return grad * 10.0, None


def test_containers_are_not_looked_into(run):
    x, w = f64(2.0), f64(3.0)
    fn = run(lambda x, w: Containers.apply(x, [w]))
    fn(x, w).backward()
    close(x.grad, [10.0])
    assert w.grad is None


def test_arguments_tell_of_their_history_and_what_is_made_of_them_has_none(run):
    """As in torch, whose forward gets the caller's own tensors, and does not record."""
    seen = []

    class Look(tg.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            seen.append((x.requires_grad, x.is_leaf, x.grad_fn is None, y.requires_grad, y.is_leaf, y.grad_fn))
            return y

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = f64(1.0)
    out = run(Look.apply)(x)
    assert seen.pop() == (True, True, True, False, True, None)
    assert out.requires_grad
    assert x.requires_grad
    run(lambda x: Look.apply(x * 3))(x)
    assert seen.pop() == (True, False, False, False, True, None)
    run(Look.apply)(x.detach())
    assert seen.pop() == (False, True, True, False, True, None)


class SinCos(tg.Function):
    @staticmethod
    def forward(ctx, x):
        s, c = x.sin(), x.cos()
        ctx.save_for_backward(s, c)
        return s, "note", c

    @staticmethod
    def backward(ctx, gs, note, gc):
        assert note is None
        s, c = ctx.saved_tensors
        return gs * c - gc * s


def test_several_outputs(run):
    x = f64(0.3, 0.7)

    def both(x):
        s, note, c = SinCos.apply(x)
        assert note == "note"
        return s * 2 + c

    fn = run(both)
    v = x.detach().numpy()
    close(gradients(fn, x)[0], 2 * np.cos(v) - np.sin(v))
    assert gradcheck(fn, x)
    assert gradgradcheck(fn, x)
    only = run(lambda x: SinCos.apply(x)[2])
    close(gradients(only, x)[0], -np.sin(v))
    assert gradgradcheck(only, x)


def test_no_tensor_result_is_an_error():
    class Nothing(tg.Function):
        @staticmethod
        def forward(ctx, x):
            return 3

    with pytest.raises(AutogradError, match=r"Nothing\.forward: returned no tensor \(got int\)"):
        Nothing.apply(f64(1.0))


def test_tensors_of_the_surroundings_are_not_tracked():
    w = f64(3.0)

    class Closes(tg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * w

        @staticmethod
        def backward(ctx, grad):
            return grad

    assert not Closes.apply(f64(2.0, grad=False)).requires_grad
    x = f64(2.0)
    Closes.apply(x).backward()
    assert w.grad is None
    close(x.grad, [1.0])


# ------------------------------------------------------------------------------------------------------------------ 2. ctx


class SavesAnything(tg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.note = "free attribute"
        ctx.kept = x * 1.0
        ctx.save_for_backward(x, 2.5, None, label="text", pair=[x * 3.0, "inside"], fn=math.sin)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        saved = ctx.saved_variables
        x, number, none, label, pair, fn = ctx.saved_tensors
        assert (number, none, label, fn, ctx.note) == (2.5, None, "text", math.sin, "free attribute")
        assert saved.label == saved["label"] == saved[3] == "text"
        assert saved.pair[1] == pair[1] == "inside"
        assert len(saved) == 6
        return grad * (x + saved["pair"][0] - 2.0 * ctx.kept)                      # x + 3 x - 2 x = 2 x


def test_save_for_backward_takes_any_object_by_position_and_name(run):
    x = f64(1.0, -2.0)
    fn = run(SavesAnything.apply)
    close(gradients(fn, x)[0], [2.0, -4.0])
    assert gradgradcheck(fn, x)


def test_an_unknown_saved_name_is_an_error():
    class Unknown(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(y=x)
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_variables["z"]

    x = f64(1.0)
    with pytest.raises(ArgumentError, match="saved_variables: there is no 'z'; known are y"):
        Unknown.apply(x).backward()


@pytest.mark.parametrize(("call", "arguments"), [
    ("save_for_backward", lambda x, y: (x,)), ("mark_dirty", lambda x, y: (x,)), ("mark_non_differentiable", lambda x, y: (y,)),
    ("set_materialize_grads", lambda x, y: (False,)),
])
def test_calling_twice_or_outside_forward_is_an_error(call, arguments):
    class Twice(tg.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 1.0
            getattr(ctx, call)(*arguments(x, y))
            getattr(ctx, call)(*arguments(x, y))
            return y

    with pytest.raises(AutogradError, match=f"Twice: ctx.{call} was called twice"):
        Twice.apply(f64(1.0))

    class Late(tg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            getattr(ctx, call)(*arguments(grad, grad))
            return grad

    x = f64(1.0)
    with pytest.raises(AutogradError, match=f"Late: ctx.{call} was called outside forward"):
        Late.apply(x).backward()


def test_marking_the_wrong_tensors_is_an_error():
    def function(mark, result=lambda x: x * 1.0):
        class Wrong(tg.Function):
            @staticmethod
            def forward(ctx, x):
                mark(ctx, x)
                return result(x)

        return Wrong.apply

    with pytest.raises(AutogradError, match=r"Wrong: ctx.mark_dirty takes tensors that are arguments of forward, got a float64\[1\]"):
        function(lambda ctx, x: ctx.mark_dirty(x * 1.0))(f64(1.0))
    with pytest.raises(AutogradError, match="takes tensors that are arguments of forward, got a int"):
        function(lambda ctx, x: ctx.mark_dirty(3))(f64(1.0))
    with pytest.raises(AutogradError, match=r"Wrong\.forward: a tensor marked dirty must be returned"):
        function(lambda ctx, x: ctx.mark_dirty(x))(f64(1.0))
    with pytest.raises(AutogradError, match="mark_non_differentiable takes output tensors, got str"):
        function(lambda ctx, x: ctx.mark_non_differentiable("y"))(f64(1.0))
    with pytest.raises(AutogradError, match="marked non-differentiable is not one of the outputs"):
        function(lambda ctx, x: ctx.mark_non_differentiable(x))(f64(1.0))
    with pytest.raises(AutogradError, match=r"Wrong\.forward: modified its argument 'x' in place without ctx.mark_dirty\(x\)"):
        function(lambda ctx, x: x.add_(1.0) * 2.0)(f64(1.0))


class SavesInput(tg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(operand=x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0 * ctx.saved_variables.operand


class SavesOutput(tg.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


def test_a_saved_input_modified_in_place_is_an_error(run):
    def loss(x):
        a = x * 1.0
        out = SavesInput.apply(a)
        a.add_(1.0)
        return tg.autograd.grad(out.sum(), x)[0]

    message = r"SavesInput: the saved tensor 'operand' \(float64\[2\]\) was modified in place .*version 0, now 1"
    with pytest.raises(AutogradError, match=message):
        run(loss)(f64(1.0, 2.0))


def test_a_saved_output_modified_in_place_is_an_error(run):
    def loss(x):
        out = SavesOutput.apply(x)
        out.mul_(2.0)
        return tg.autograd.grad(out.sum(), x)[0]

    with pytest.raises(AutogradError, match=r"SavesOutput: the saved tensor 0 .* was modified in place"):
        run(loss)(f64(1.0, 2.0))


@pytest.mark.parametrize("write", [
    lambda x: x.data.add_(1.0), lambda x: x.data[:1].mul_(3.0), lambda x: x.data.__setitem__(0, 5.0),
    lambda x: x.data[:1].__setitem__(0, 5.0),
    lambda x: x.data.data.view(2, 1).zero_(), lambda x: setattr(x, "data", x.data * 2.0)])
def test_what_is_written_through_data_does_not_count_as_in_torch(run, write):
    """And the derivative is that of the values that were used, as of built-in operations. A write that does count is still an error."""
    def loss(x, counts=False):
        a = x * 1.0
        out = SavesInput.apply(a)
        write(a)
        if counts:
            a.detach().add_(1.0)
        return tg.autograd.grad(out.sum(), x)[0]

    assert run(loss)(f64(1.0, 2.0)).tolist() == [2.0, 4.0]
    with pytest.raises(AutogradError, match="was modified in place"):
        run(lambda x: loss(x, True))(f64(1.0, 2.0))


def test_a_saved_leaf_may_be_written_through_data():
    for write in (lambda w: w.data.add_(1.0), lambda w: w.data.__setitem__(0, 5.0), lambda w: setattr(w, "data", w.data - 1.0)):
        w = f64(1.0, 2.0)
        out = SavesInput.apply(w)
        write(w)
        out.sum().backward()
        assert w.grad.tolist() == [2.0, 4.0]


def test_a_saved_leaf_modified_under_no_grad_is_an_error():
    w = f64(1.0, 2.0)
    out = SavesInput.apply(w)
    with tg.no_grad():
        w.add_(1.0)
    with pytest.raises(AutogradError, match="the saved tensor 'operand'"):
        out.sum().backward()


def test_a_saved_tensor_modified_through_a_view_is_an_error(run):
    def loss(x):
        a = x * 1.0
        out = SavesInput.apply(a)
        a[0] = 5.0
        return tg.autograd.grad(out.sum(), x)[0]

    with pytest.raises(AutogradError, match="the saved tensor 'operand'"):
        run(loss)(f64(1.0, 2.0))


def test_training_in_place_after_backward_is_no_modification(run):
    w = f64(1.0, 2.0)

    @run
    def loss():
        return SavesInput.apply(w).sum()

    for _ in range(3):
        w.grad = None
        loss().backward()
        close(w.grad, 2 * w.detach().numpy())
        with tg.no_grad():
            w -= 0.1 * w.grad


def test_needs_input_grad_by_name_and_position(run):
    seen = []

    class Needs(tg.Function):
        @staticmethod
        def forward(ctx, x, factor, w=None):
            seen.append((tuple(ctx.needs_input_grad), ctx.needs_input_grad.x, ctx.needs_input_grad["w"], ctx.needs_input_grad[1]))
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            assert ctx.needs_input_grad.x
            assert not ctx.needs_input_grad.w
            return {"x": grad}

    run(lambda x, w: Needs.apply(x, 2.0, w))(f64(1.0), f64(1.0, grad=False)).backward()
    assert seen[0] == ((True, False, False), True, False, False)
    with tg.no_grad():
        Needs.apply(f64(1.0), 2.0)
    assert seen[-1][0] == (False, False, False)


class AddOne(tg.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 3.0                                                          # not 1, so that one sees who was asked


def test_mark_dirty_continues_the_graph(run):
    x = f64(1.0, 2.0)

    def fn(x):
        a = x * 2.0
        before = a * 1.0
        b = AddOne.apply(a)
        assert b is a
        return a * a + before

    v = 2 * x.detach().numpy()
    close(run(fn)(x), (v + 1) ** 2 + v)
    close(gradients(run(fn), x)[0], 2 * (v + 1) * 3 * 2 + 2)
    second = tg.autograd.grad(tg.autograd.grad(run(fn)(x).sum(), x, create_graph=True)[0].sum(), x)[0]
    close(second, np.full(2, 2 * 3 * 2 * 3 * 2.0))


class AddOneUnmarked(tg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.add_(1.0)

    @staticmethod
    def backward(ctx, grad):
        return grad * 3.0


def test_what_is_changed_and_returned_is_dirty_without_the_mark(run):
    x = f64(1.0, 2.0)

    def fn(x):
        a = x * 2.0
        b = AddOneUnmarked.apply(a)
        assert b is a
        return a * a

    close(run(fn)(x), [9.0, 25.0])
    close(gradients(run(fn), x)[0], [2 * 3.0 * 3 * 2, 2 * 5.0 * 3 * 2])


def test_mark_dirty_of_a_view_writes_the_base(run):
    x = f64(1.0, 2.0)

    def fn(x):
        a = x * 2.0
        AddOne.apply(a[0])
        return a

    close(run(fn)(x), [3.0, 4.0])
    close(gradients(run(fn), x)[0], [6.0, 2.0])


def test_mark_dirty_of_a_leaf_is_an_error(run):
    with pytest.raises(AutogradError, match="a leaf tensor that requires grad"):
        run(AddOne.apply)(f64(1.0))


def test_mark_dirty_without_grad_modifies_the_tensor(run):
    x = f64(1.0, grad=False)
    run(AddOne.apply)(x)
    close(x, [2.0])
    assert x._version == 1


class MaxWithIndex(tg.Function):
    @staticmethod
    def forward(ctx, x):
        index = x.argmax(dim=1)
        rounded = x.sum(1).round()
        ctx.mark_non_differentiable(index, rounded)
        ctx.save_for_backward(index, tuple(x.shape))
        return x.max(dim=1)[0] if isinstance(x.max(dim=1), tuple) else x.amax(1), index, rounded

    @staticmethod
    def backward(ctx, grad, grad_index, grad_rounded):
        assert grad_index.shape == grad_rounded.shape == grad.shape
        index, shape = ctx.saved_tensors
        hit = index.unsqueeze(1) == tg.arange(shape[1]).unsqueeze(0)
        return (grad + grad_rounded).unsqueeze(1) * hit.to(dtype=grad.dtype)


def test_non_differentiable_outputs_get_zeros(run):
    x = tg.tensor(np.array([[1.0, 5.0, 2.0], [7.0, 3.0, 4.0]]), requires_grad=True)
    value, index, rounded = run(MaxWithIndex.apply)(x)
    assert (value.requires_grad, index.requires_grad, rounded.requires_grad) == (True, False, False)
    np.testing.assert_array_equal(index.numpy(), [1, 0])
    value.sum().backward()
    close(x.grad, [[0, 1, 0], [1, 0, 0]])
    fn = run(lambda x: MaxWithIndex.apply(x)[0])
    assert gradcheck(fn, x)
    _, tangent = tg.jvp(fn, (x.detach(),), (tg.ones_like(x),))
    close(tangent, [1.0, 1.0])


def two_outputs(materialize, seen):
    class TwoOutputs(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(materialize)
            return x * 2.0, x * 3.0

        @staticmethod
        def backward(ctx, ga, gb):
            seen.append((ga is None, gb is None))
            return (0 if ga is None else ga * 2.0) + (0 if gb is None else gb * 3.0)

    return TwoOutputs


@pytest.mark.parametrize("materialize", [True, False])
def test_set_materialize_grads(run, materialize):
    seen = []
    function = two_outputs(materialize, seen)
    x = f64(1.0, 2.0)
    close(gradients(run(lambda x: function.apply(x)[1]), x)[0], [3.0, 3.0])
    assert seen[0] == (not materialize, False)


# -------------------------------------------------------------------------------------------------------- 3. what backward gives


def returning(result, arguments=("x", "y")):
    """A Function x, y -> x * y whose backward gives `result(grad)`."""

    class Given(tg.Function):
        @staticmethod
        def forward(ctx, x, y, n=2):
            return x * y

        @staticmethod
        def backward(ctx, grad):
            return result(grad)

    return Given.apply


@pytest.mark.parametrize("result", [
    lambda g: {"x": g, "y": g * 5}, lambda g: (g, g * 5, None), lambda g: [g, g * 5], lambda g: {"y": g * 5, "x": g, "n": None},
    lambda g: (g, g * 5, None, None),
], ids=["dict", "tuple", "defaults left out", "dict with None", "trailing None"])
def test_gradients_by_name_or_in_order(run, result):
    x, y = f64(1.0, 2.0), f64(3.0, 4.0)
    gx, gy = gradients(run(returning(result)), x, y)
    close(gx, [1.0, 1.0])
    close(gy, [5.0, 5.0])


@pytest.mark.parametrize("result", [lambda g: {"y": g}, lambda g: {"x": None, "y": g}, lambda g: (None, g, None)])
def test_none_and_missing_names_mean_no_gradient(run, result):
    x, y = f64(1.0), f64(3.0)
    gx, gy = gradients(run(returning(result)), x, y)
    assert gx is None
    close(gy, [1.0])


@pytest.mark.parametrize(("result", "error", "message"), [
    (lambda g: {"z": g}, AutogradError, r"Given\.backward: returned a gradient for 'z'; forward's arguments are x, y, n"),
    (lambda g: (g,), AutogradError, r"Given\.backward: returned 1 gradient, expected 3, one for each of x, y, n"),
    (lambda g: g, AutogradError, r"Given\.backward: returned 1 gradient, expected 3"),
    (lambda g: (g, g, None, g), AutogradError, r"Given\.backward: returned 4 gradients, expected 3"),
    (lambda g: {"x": g, "n": g}, AutogradError, r"Given\.backward: returned a gradient for 'n', which is not a tensor; return None"),
    (lambda g: {"x": tg.ones(3, dtype=tg.float64)}, ShapeError, r"Given\.backward: the gradient for 'x' has shape \(3,\), expected \(2,\)"),
    (lambda g: {"x": 1.0}, AutogradError, r"Given\.backward: the gradient for 'x' is a float, expected a tensor or None"),
])
def test_wrong_results_of_backward_are_errors(run, result, error, message):
    x, y = f64(1.0, 2.0), f64(3.0, 4.0)
    with pytest.raises(error, match=message):
        run(lambda x, y: tg.autograd.grad(returning(result)(x, y).sum(), [x, y], allow_unused=True)[0])(x, y)


def test_a_gradient_is_summed_back_over_what_was_broadcast(run):
    x, y = f64(2.0), f64(3.0, 4.0, 5.0)
    gx, gy = gradients(run(returning(lambda g: {"x": g * 2, "y": g})), x, y)
    close(gx, [6.0])
    close(gy, [1.0, 1.0, 1.0])


def test_a_gradient_for_integers_is_an_error():
    class Index(tg.Function):
        @staticmethod
        def forward(ctx, x, i):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    x = f64(1.0)
    with pytest.raises(AutogradError, match=r"Index\.backward: returned a gradient for 'i', which is int64"):
        Index.apply(x, tg.tensor([1])).backward()


def test_backward_is_not_called_when_nothing_needs_it(run):
    called = []

    function = double(called=lambda: called.append(1))
    a, b = f64(1.0), f64(1.0, grad=False)
    fn = run(lambda a, b: a * function(b) + a * function(a).detach())
    fn(a, b).backward()
    assert not called


def test_backward_missing_is_an_error():
    class Forward(tg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

    x = f64(1.0)
    with pytest.raises(AutogradError, match="Forward has no backward"):
        Forward.apply(x).backward()


def test_gradients_take_the_arguments_dtype(run):
    x = tg.tensor([1.0, 2.0], dtype=tg.float32, requires_grad=True)
    y = f64(1.0, 2.0)
    gx, gy = gradients(run(returning(lambda g: (g, g, None))), x, y)
    assert (gx.dtype, gy.dtype) == (tg.float32, tg.float64)


# --------------------------------------------------------------------------------------- 6. right where others are silently wrong


class CubeThroughIntermediate(tg.Function):
    """x³ that saves x² computed in forward: neither an input nor an output."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx, grad):
        (square,) = ctx.saved_tensors
        return grad * 3.0 * square


def test_second_derivative_with_a_saved_intermediate(run):
    # pytorch/pytorch #58509, #76185, #104040: the saved intermediate counts as a constant there, and the second derivative is 0.
    x = f64(0.5, -1.5, 2.0)
    fn = run(CubeThroughIntermediate.apply)
    assert gradcheck(fn, x)
    assert gradgradcheck(fn, x)
    close(tg.hessian(lambda x: fn(x).sum())(x.detach()), np.diag(6 * x.detach().numpy()))
    third = tg.grad(lambda x: tg.grad(lambda x: tg.grad(lambda x: fn(x).sum())(x).sum())(x).sum())(x.detach())
    close(third, [6.0, 6.0, 6.0])


def test_double_backward_through_a_compiled_step():
    # pytorch/pytorch #91469, #183603: torch.compile does not support double backward, or ignores it.
    x, w = f64(0.5, -1.5, 2.0), f64(0.3, 0.2, 0.1)

    @tg.trace
    def penalty(x, w):
        y = (CubeThroughIntermediate.apply(x) * w).sum() + SavesInput.apply(w).sum()
        (g,) = tg.autograd.grad(y, x, create_graph=True)
        return (g * g).sum()

    assert gradcheck(penalty, (x, w))
    assert gradgradcheck(penalty, (x, w))

    @tg.trace
    def forward(x, w):
        return (CubeThroughIntermediate.apply(x) * w).sum()

    (g,) = tg.autograd.grad(forward(x, w), x, create_graph=True)
    (gg,) = tg.autograd.grad((g * g).sum(), w)
    close(gg, 2 * 9 * x.detach().numpy() ** 4 * w.detach().numpy())


class StraightThrough(tg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0                                                          # neither round's derivative nor the identity's


def test_the_users_backward_wins_over_the_true_derivative(run):
    # pytorch/pytorch #193279, #133491: a compiler that inlined the forward and dropped the custom backward or mark_dirty.
    x = f64(0.4, 1.6)
    fn = run(lambda x: StraightThrough.apply(x) * x)
    v = x.detach().numpy()
    close(gradients(fn, x)[0], 2.0 * v + np.round(v))

    @tg.trace
    def step(x):
        return tg.grad(lambda x: StraightThrough.apply(x).sum())(x)

    close(step(x), [2.0, 2.0])
    close(tg.jvp(fn, (x.detach(),), (tg.ones_like(x),))[1], 2.0 * v + np.round(v))
    # d/dx (2 x + round(x)), with round's derivative as the user gave it
    close(tg.hessian(lambda x: fn(x).sum())(x.detach()), np.diag([4.0, 4.0]))


def test_a_custom_function_inside_a_custom_function_keeps_its_backward(run):
    class Outer(tg.Function):
        @staticmethod
        def forward(ctx, x):
            y = StraightThrough.apply(x)
            ctx.save_for_backward(y)                                               # an intermediate, made by another Function
            return y * y

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            return grad * y * 10.0

    x = f64(0.4, 1.6)
    fn = run(Outer.apply)
    (g,) = tg.autograd.grad(fn(x).sum(), x, create_graph=True)
    close(g, [0.0, 20.0])
    close(tg.autograd.grad(g.sum(), x)[0], [20.0, 20.0])


def test_forward_mode_and_hessian_from_a_backward_alone(run):
    # google/jax #16049: no forward mode, hence no Hessian, through a function with a custom reverse rule.
    x = f64(0.5, -1.5)
    fn = run(lambda x: (CubeThroughIntermediate.apply(x) * Exp2.apply(x)).sum())

    def value(v):
        return np.sum(v ** 3 * 2 ** v)

    v, h = x.detach().numpy(), 1e-4
    _, tangent = tg.jvp(fn, (x.detach(),), (tg.tensor(np.array([1.0, -2.0])),))
    steps = np.array([1.0, -2.0]) * h
    np.testing.assert_allclose(tangent.numpy(), (value(v + steps) - value(v - steps)) / (2 * h), rtol=1e-6)
    numeric = np.zeros((2, 2))
    for i in range(2):
        for j in range(2):
            e, d = np.eye(2)[i] * h, np.eye(2)[j] * h
            numeric[i, j] = (value(v + e + d) - value(v + e - d) - value(v - e + d) + value(v - e - d)) / (4 * h * h)
    np.testing.assert_allclose(tg.hessian(fn)(x.detach()).numpy(), numeric, rtol=1e-5, atol=1e-6)
    with tg.no_grad():
        np.testing.assert_allclose(tg.hessian(fn)(x.detach()).numpy(), numeric, rtol=1e-5, atol=1e-6)


def test_forward_mode_of_a_backward_that_is_not_linear_is_an_error():
    class Clips(tg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            return grad.clamp(-1.0, 1.0)

    with pytest.raises(AutogradError, match="backward rule of Clips is not linear in its cotangent"):
        tg.jvp(Clips.apply, (f64(1.0, grad=False),), (f64(1.0, grad=False),))


def test_gradients_within_backward(run):
    """Checkpointing: backward computes the forward again and differentiates it."""

    class Checkpoint(tg.Function):
        @staticmethod
        def forward(ctx, x, fn):
            ctx.save_for_backward(x, fn)
            return fn(x)

        @staticmethod
        def backward(ctx, grad):
            x, fn = ctx.saved_tensors
            with tg.enable_grad():
                x = x if x.requires_grad else x.detach().requires_grad_()
                return tg.autograd.grad(fn(x), x, grad, create_graph=True)[0], None

    x = f64(0.4, 1.6)
    fn = run(lambda x: Checkpoint.apply(x, tg.sin))
    close(gradients(fn, x)[0], np.cos(x.detach().numpy()))
    assert gradgradcheck(fn, x)


def test_saved_tensors_have_the_history_that_they_had(run):
    """Also those that are no leaves: a backward that evaluates a function again, and differentiates it (as adjoints of integrals do)."""
    class Integral(tg.Function):
        @staticmethod
        def forward(ctx, f, a, *parameters):
            ctx.f = f
            ctx.save_for_backward(a, *parameters)
            return f(a)

        @staticmethod
        def backward(ctx, g):
            a, *parameters = ctx.saved_tensors
            with tg.enable_grad():
                y = ctx.f(a)
            return (None, None, *tg.autograd.grad(y, parameters, g, retain_graph=True))

    @run
    def step(w, a):
        factor = w * 2
        out = Integral.apply(lambda t: (t * factor).sin(), a, factor).sum()
        return tg.autograd.grad(out, w)[0]

    w, a = tg.tensor([0.5, 1.5], dtype=tg.float64, requires_grad=True), tg.tensor([1.0, 2.0], dtype=tg.float64)
    for _ in range(3):
        found = step(w, a)
        assert not found.requires_grad
        np.testing.assert_allclose(found.numpy(), 2 * a.numpy() * np.cos(2 * a.numpy() * w.detach().numpy()), rtol=1e-12)


@pytest.mark.parametrize("around", ["while", "scan", "cond"])
def test_a_backward_that_uses_vjp_in_a_loop_is_differentiated_again(around, on_numpy):
    """What stood for the loop's values was nobody's to `vjp`, which detached its results: second derivatives were short of a part."""
    class Wave(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin() * x

        @staticmethod
        def backward(ctx, ct):
            x, = ctx.saved_tensors
            return tg.vjp(lambda x: x.sin() * x, x)[1](ct)[0]

    def f(wave):
        return {
            "while": lambda x: tg.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, wave(h)), carried_inputs=(tg.tensor(0), x))[1],
            "scan": lambda x: tg.scan(lambda h, row: (wave(h) * row, None), x, tg.ones(2, dtype=tg.float64))[0],
            "cond": lambda x: tg.cond(x.sum() > 0, lambda h: wave(h) * h, lambda h: wave(h * 2), x),
        }[around]

    found = []
    for fn in (f(lambda x: x.sin() * x), tg.trace(f(Wave.apply))):
        x = tg.tensor([0.3, 0.5, -0.7], dtype=tg.float64, requires_grad=True)
        first, = tg.autograd.grad(fn(x).square().sum(), x, create_graph=True)
        found.append((first.tolist(), tg.autograd.grad(first.square().sum(), x)[0].tolist()))
    for wanted, got in zip(*found, strict=True):
        assert got == pytest.approx(wanted, rel=1e-9)
