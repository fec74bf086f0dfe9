"""Hooks on steps of a history (`grad_fn.register_hook`, `register_prehook`), with torch's meanings."""

import gc
from functools import partial

import pytest

import tracegrad as tg
from tests.helpers.values import close, f64
from tracegrad.autograd.hooks import accumulating

pytestmark = pytest.mark.usefixtures("device")


def product():
    a, b = f64(1.0, 2.0), f64(3.0, 5.0)
    return a, b, a * b


def listed(tensors):
    return [None if t is None else t.tolist() for t in tensors]


def test_hooks_come_in_torchs_order_and_their_answers_go_on():
    a, b, y = product()
    seen = []

    def on_tensor(g):
        seen.append(("tensor", g.tolist()))
        return g * 2

    def before(grads):
        seen.append(("before", listed(grads)))
        return (grads[0] + 1,)

    def after(inputs, outputs):
        seen.append(("after", listed(inputs), listed(outputs)))
        return inputs[0] * 10, inputs[1]

    y.register_hook(on_tensor)
    y.grad_fn.register_prehook(before)
    handle = y.grad_fn.register_hook(after)
    y.sum().backward(retain_graph=True)
    assert seen == [("tensor", [1.0, 1.0]), ("before", [[2.0, 2.0]]), ("after", [[9.0, 15.0], [3.0, 6.0]], [[3.0, 3.0]])]
    close(a.grad, [90.0, 150.0])
    close(b.grad, [3.0, 6.0])
    handle.remove()
    a.grad = None
    y.sum().backward()
    close(a.grad, [9.0, 15.0])
    assert [s[0] for s in seen] == ["tensor", "before", "after", "tensor", "before"]


def test_a_step_is_not_made_for_a_gradient_that_nobody_asks_for():
    a, _, y = product()
    seen = []
    y.grad_fn.register_hook(lambda *_: seen.append("y"))
    a.register_hook(lambda g: seen.append("a"))
    tg.autograd.grad((y * 2).sum(), y, retain_graph=True)            # the way ends at y
    assert seen == []
    (a * y.detach()).sum().backward()
    assert seen == ["a"]


def test_places_without_a_gradient_are_none():
    a, b, _ = product()
    y = a * b.detach()
    seen = []
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(listed(inputs)))
    y.sum().backward()
    assert seen == [[[3.0, 5.0], None]]
    y = a * b
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0], None))
    y.sum().backward()
    assert b.grad is None
    y = a * b
    y.grad_fn.register_prehook(lambda outputs: (None,))
    a.grad = None
    y.sum().backward()
    assert a.grad is None


@pytest.mark.parametrize(("answer", "error", "message"), [
    (lambda inputs: inputs[:1], RuntimeError, "1 values for 2 gradients"),
    (lambda inputs: (inputs[0], 3.0), TypeError, "returns tensors, got a? ?float"),
    (list, TypeError, "a tuple or None"),
    (lambda inputs: (inputs[0][:1], inputs[1]), RuntimeError, r"\(1,\) tensor"),
])
def test_wrong_answers(answer, error, message):
    _, _, y = product()
    y.grad_fn.register_hook(lambda inputs, outputs: answer(inputs))
    with pytest.raises(error, match=message):
        y.sum().backward()


def test_a_gradient_where_none_is_computed():
    a, b, _ = product()
    y = a * b.detach()
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0], inputs[0]))
    with pytest.raises(RuntimeError, match="where no gradient is computed"):
        y.sum().backward()


def test_hooks_of_accumulate_grad():
    a, _, y = product()
    step = y.grad_fn.next_functions[0][0]
    assert step.variable is a
    seen = []
    step.register_hook(lambda inputs, outputs: seen.append(("after", inputs, listed(outputs), a.grad.tolist())))
    a.register_post_accumulate_grad_hook(lambda p: seen.append("added"))
    step.register_prehook(lambda outputs: (outputs[0] * 2,))
    y.sum().backward(retain_graph=True)
    assert seen == ["added", ("after", (), [[6.0, 10.0]], [6.0, 10.0])]
    close(tg.autograd.grad(y.sum(), a, retain_graph=True)[0], [3.0, 5.0])        # nothing is accumulated there
    assert len(seen) == 2
    y.sum().backward(inputs=[a])
    assert seen[3] == ("after", (), [[6.0, 10.0]], [12.0, 20.0])


def test_a_leaf_goes_whose_hook_knows_it():
    """Hooks on accumulation that refer to their leaf do not keep it: while it is there, no backward is recalled."""
    gc.collect()
    before = len(accumulating)
    owner = {"leaf": f64(1.0, 2.0)}
    owner["leaf"].register_post_accumulate_grad_hook(partial(_frees, owner))
    (owner["leaf"] ** 2).sum().backward()
    assert owner["leaf"].grad is None
    assert len(accumulating) == before + 1
    del owner
    gc.collect()
    assert len(accumulating) == before


def _frees(owner, leaf):
    assert owner["leaf"] is leaf
    leaf.grad = None


def test_the_step_of_a_custom_function_has_all_its_results():
    class Two(tg.Function):
        @staticmethod
        def forward(ctx, x, scale, y):
            return x * scale, y * 1.0

        @staticmethod
        def backward(ctx, gx, gy):
            return gx * 2.0, None, gy * 3.0

    a, b = f64(1.0), f64(2.0)
    p, q = Two.apply(a, 2.0, b)
    assert p.grad_fn is q.grad_fn
    seen = []
    p.grad_fn.register_hook(lambda inputs, outputs: seen.append((listed(inputs), listed(outputs))))
    q.grad_fn.register_prehook(lambda outputs: (*outputs[:1], outputs[1] * 10) if outputs[1] is not None else None)
    (p + q).sum().backward()
    p, q = Two.apply(a, 2.0, b)
    p.grad_fn.register_hook(lambda inputs, outputs: seen.append(listed(outputs)))
    p.sum().backward()
    assert seen == [([[2.0], [30.0]], [[1.0], [10.0]]), [[1.0], None]]


def test_a_recalled_backward_calls_hooks_that_come_later():
    """Of six equal steps two have hooks: those are made at length, those after them as before."""
    a, b, _ = product()
    grads, calls = [], []

    def doubled(inputs, outputs):
        calls.append(len(inputs))
        return tuple(g * 2 for g in inputs)

    for k in range(6):
        y = (a * b).sin()
        if k in (3, 5):
            y.grad_fn.register_hook(doubled)
        (y * y).sum().backward()
        grads.append(a.grad.tolist())
        a.grad = b.grad = None
    assert calls == [1, 1]
    for k, g in enumerate(grads):
        close(tg.tensor(g, dtype=tg.float64), [x * (2 if k in (3, 5) else 1) for x in grads[0]])


def test_hooks_are_differentiated_with_create_graph():
    a, b, _ = product()
    y = a * b
    y.grad_fn.register_hook(lambda inputs, outputs: tuple(None if g is None else g * g for g in inputs))
    (g,) = tg.autograd.grad(y.sum(), a, create_graph=True)
    g.sum().backward()
    close(b.grad, [6.0, 10.0])


def test_one_object_of_a_step_and_what_is_noted_there():
    _, _, y = product()
    assert y.grad_fn is y.grad_fn
    y.grad_fn.metadata["mark"] = 1
    assert y.grad_fn.metadata == {"mark": 1}
    assert y.exp().grad_fn.metadata == {}


def test_fused_attention_whose_product_is_watched():
    """The gradient is that of one operation only where nobody sees what lies between."""
    tg.manual_seed(0)
    q, k, v = (tg.randn(64, 16, dtype=tg.float64, requires_grad=True) for _ in range(3))
    shapes = []
    out = tg.softmax(q @ k.mT, -1) @ v
    out.grad_fn.register_hook(lambda inputs, outputs: shapes.append([tuple(t.shape) for t in inputs]))
    out.sum().backward()
    assert shapes == [[(64, 64), (64, 16)]]
