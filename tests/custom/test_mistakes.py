"""Mistakes in a Function of one's own: an error begins with what is wrong, and names the line of the rule and the way out."""

from __future__ import annotations

import inspect
import re
import traceback

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.values import close, f64
from tracegrad.errors import ArgumentError, ArgumentTypeError, AutogradError, ShapeError, TraceError


def saves(ctx, x):
    ctx.save_for_backward(x)
    return x * 2.0


def right(ctx, grad):
    return grad * 2.0


def made(forward=saves, backward=right):
    return type("Double", (tg.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def no_return(ctx, x):
    x * 2.0


def numbers(ctx, x):
    return 2.0


def by_numpy(ctx, x):
    return np.exp(x.detach())


def in_place(ctx, x):
    x.mul_(2.0)
    return x


def in_place_beside(ctx, x):
    x[0] = 1.0
    return x * 2.0


def gives_two(ctx, grad):
    return grad, grad


def gives_number(ctx, grad):
    return 2.0


def gives_sum(ctx, grad):
    return (grad * 2.0).sum()


def gives_one(ctx, grad):
    return (grad * 2.0).sum()[None]


def gives_part(ctx, grad):
    return grad[:1] * 2.0


def without_ctx(grad):
    return grad * 2.0


def x_pair():
    return f64(1.0, 2.0)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("forward", "backward", "error", "message"), [
    (no_return, right, AutogradError, r"Double\.forward: returned no tensor \(got NoneType\).*; it may lack a `return`"),
    (numbers, right, AutogradError, r"Double\.forward: returned no tensor \(got float\); outputs are one tensor or a tuple with tensors"),
    (in_place_beside, right, AutogradError, r"Double\.forward: modified its argument 'x' in place .*; compute a new tensor, or mark it"),
    (saves, gives_two, AutogradError, r"Double\.backward: returned 2 gradients, expected 1, one for each of x .*, or a dict by name"),
    (saves, gives_number, AutogradError, r"Double\.backward: the gradient for 'x' is a float, expected a tensor or None"),
    (saves, gives_sum, ShapeError, r"Double\.backward: the gradient for 'x' has shape \(\), expected \(2,\), as 'x' has"),
    (saves, gives_one, ShapeError, r"Double\.backward: the gradient for 'x' has shape \(1,\), expected \(2,\), as 'x' has"),
    (saves, gives_part, ShapeError, r"Double\.backward: the gradient for 'x' has shape \(1,\), expected \(2,\), as 'x' has"),
    (saves, without_ctx, AutogradError, r"Double\.backward: too many positional arguments; it is a static method that is called with ctx "
                                        r"and 1 gradient, and its signature is backward\(grad\)"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_rule_is_told_with_its_own_line(forward, backward, error, message, traced):
    fn = tg.grad(lambda x: made(forward, backward).apply(x).sum())
    with pytest.raises(error, match=message) as told:
        (tg.trace(fn) if traced else fn)(x_pair())
    wrong = backward if forward is saves else forward
    line = inspect.getsourcelines(wrong)[1]
    assert f"; {'backward' if forward is saves else 'forward'} is defined at {__file__}:{line} (at " in str(told.value)


def test_numpy_in_forward():
    with pytest.raises(AutogradError, match=r"Double\.forward: returned no tensor \(got ndarray\).*tg\.host_call"):
        made(by_numpy).apply(x_pair())
    line = inspect.getsourcelines(by_numpy)[1] + 1
    with pytest.raises(TraceError, match=rf"^numpy\.asarray\(\) at {re.escape(__file__)}:{line}: .*tg\.host_call$"):
        tg.trace(made(by_numpy).apply)(x_pair())


def test_in_place_on_a_leaf():
    with pytest.raises(AutogradError, match=r"Double\.forward: a leaf tensor .* \('x'\) was modified in place; .*x\.clone\(\)"):
        made(in_place).apply(x_pair())


@pytest.mark.parametrize("look", [lambda x: bool(x.sum() > 0), lambda x: x.sum().item(), lambda x: x.numpy()])
def test_a_look_at_values_in_a_traced_backward_names_the_line_in_it(look):
    def looks(ctx, grad):
        look(ctx.saved_tensors[0])
        return grad

    line = inspect.getsourcelines(look)[1]
    with pytest.raises(TraceError, match=rf"^\w+\(\) at {re.escape(__file__)}:{line}: inside @trace"):
        tg.trace(tg.grad(lambda x: made(saves, looks).apply(x).sum()))(x_pair())


def test_a_backward_without_return_is_a_warning_at_its_line():
    def forgot(ctx, grad):
        grad * 2.0

    x = x_pair()
    with pytest.warns(RuntimeWarning, match=r"Double\.backward: returned None, .*; is its `return` missing\?") as told:
        made(saves, forgot).apply(x).sum().backward()
    assert (told[0].filename, told[0].lineno) == (__file__, inspect.getsourcelines(forgot)[1])
    assert x.grad is None
    made(saves, lambda ctx, grad: (None,)).apply(x).sum().backward()                 # which is said on purpose: no warning
    assert x.grad is None


def test_no_gradient_for_no_gradient_is_no_mistake():
    """The first output is not used: torch's programs return None then."""
    class Two(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2.0, x * 3.0

        @staticmethod
        def backward(ctx, first, second):
            return None if first is None else first * 2.0

    x = x_pair()
    y, _ = Two.apply(x)
    y.sum().backward()
    close(x.grad, [2.0, 2.0])


def test_what_was_not_saved():
    def unpacks(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x

    def attribute(ctx, grad):
        return grad * ctx.factor

    with pytest.raises(ValueError, match="expected 1, got 0") as told:
        made(lambda ctx, x: x * 2.0, unpacks).apply(x_pair()).sum().backward()
    assert "Double: nothing was saved; call ctx.save_for_backward(...) in forward" in "".join(traceback.format_exception(told.value))
    with pytest.raises(ValueError, match="too many values") as told:
        made(lambda ctx, x: (ctx.save_for_backward(x, 2.0), x * 2.0)[1], unpacks).apply(x_pair()).sum().backward()
    assert told.value.__notes__ == ["Double: ctx.save_for_backward kept 2 objects"]
    with pytest.raises(AttributeError, match=r"Double: ctx has no 'factor'; forward \(or setup_context\) has to set it, as ctx\.factor = "):
        made(saves, attribute).apply(x_pair()).sum().backward()


def test_errors_of_the_users_own_stay():
    def own(ctx, grad):
        return grad * len(2)

    def wrong_value(ctx, grad):
        raise ValueError("mine")

    with pytest.raises(TypeError, match=r"^object of type 'int' has no len"):
        made(saves, own).apply(x_pair()).sum().backward()
    with pytest.raises(ValueError, match="mine") as told:
        made(saves, wrong_value).apply(x_pair()).sum().backward()
    assert not hasattr(told.value, "__notes__")


def test_called_in_another_way():
    with pytest.raises(ArgumentTypeError, match=r"^Double: the class itself takes no arguments; call Double\.apply\(\.\.\.\), or "):
        made()(x_pair())
    way = r"; forward is a static method, whose first parameter is ctx"
    with pytest.raises(ArgumentError, match=r"Double\.apply: too many positional arguments; its signature is forward\(x\)" + way):
        made(lambda x: x).apply(x_pair())
    with pytest.raises(ArgumentError, match=r"its signature is forward\(self, ctx, x\)" + way):
        made(lambda self, ctx, x: x).apply(x_pair())


def test_another_packages_tensor_is_told_from_ours():
    foreign = type("Tensor", (), {"__module__": "torch"})()
    with pytest.raises(TypeError, match=r"zeros_like: input must be a Tensor, got torch\.Tensor; use tg\.tensor"):
        tg.zeros_like(foreign)
    with pytest.raises(TypeError, match=r"add: expected a Tensor or a Python scalar, got torch\.Tensor"):
        tg.add(tg.ones(2), foreign)
    with pytest.raises(TypeError, match=r"grad: .* got torch\.Tensor; make one with tg\.tensor"):
        tg.grad(lambda x: x.sum())(foreign)
