"""Parameters that share memory with what they were made of, beside torch: programs whose printed numbers must be torch's."""

import pytest

import tracegrad as tg

torch = pytest.importorskip("torch")


def _numbers(*tensors):
    return [round(float(x), 4) for t in tensors for x in t.detach().reshape(-1)]


def parts_of_a_flat_tensor(lib, trace):
    flat = lib.arange(6.0)
    p, q = lib.nn.Parameter(flat[:2]), lib.nn.Parameter(flat[2:].view(2, 2))
    flat.add_(1)
    yield p, q
    with lib.no_grad():
        p.mul_(10)
        q[0, 1] = 5.0
    yield flat, p, q
    for optimizer in (lib.optim.SGD([p, q], lr=0.1, momentum=0.9), lib.optim.Adam([p, q], lr=0.1)):
        def step(optimizer=optimizer):
            optimizer.zero_grad()
            ((p * p).sum() + (q * p).sum()).backward()
            optimizer.step()

        step = trace(step)
        for _ in range(4):
            step()
            yield flat, p, q, p.grad, q.grad
    flat.zero_()
    yield p, q


def what_is_written_later(lib, trace):
    x = lib.arange(3.0)
    p = lib.nn.Parameter(x)
    x.add_(1)
    yield x, p
    view = x[1:]
    view.fill_(9)
    with lib.no_grad():
        p[0] = 7
    yield x, p, view
    again, buffer = lib.nn.Parameter(x), lib.nn.Buffer(x)
    (again * again).sum().backward()
    lib.optim.SGD([again], lr=0.25).step()
    yield x, p, view, again, buffer, again.grad
    p.data = lib.zeros(3)
    x.add_(1)
    yield x, p, again, buffer


def leaves_that_are_views(lib, trace):
    y = lib.arange(4.0)
    z = y.view(2, 2).requires_grad_()
    y.add_(1)
    (z * z).sum().backward()
    yield z, z.grad
    for written in (z, z[0], z.view(-1)):
        with pytest.raises(RuntimeError, match="leaf"):
            written.add_(1)
    with lib.no_grad():
        z[0].add_(1)
        z.view(-1)[3] = 50
    yield y, z
    w = lib.nn.Parameter(z.data[0])
    w.data.add_(1)
    yield y, z, w
    z.data = lib.zeros(2, 2)
    w.data.add_(1)
    yield y, z, w


def layers_laid_into_one_tensor(lib, trace):
    flat, at = lib.arange(6.0) / 8, 0
    layer = lib.nn.Linear(2, 2)
    for name in ("weight", "bias"):
        shape = getattr(layer, name).shape
        setattr(layer, name, lib.nn.Parameter(flat[at:at + shape.numel()].view(shape)))
        at += shape.numel()
    optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
    loss = trace(lambda x: (layer(x) ** 2).sum())
    for _ in range(4):
        optimizer.zero_grad()
        loss(lib.ones(1, 2)).backward()
        optimizer.step()
        yield flat, layer.weight, layer.bias
    flat.fill_(1)
    yield loss(lib.ones(1, 2)),


PROGRAMS = [parts_of_a_flat_tensor, what_is_written_later, leaves_that_are_views, layers_laid_into_one_tensor]


@pytest.mark.parametrize("trace", [lambda f: f, tg.trace], ids=["untraced", "traced"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_torch(program, trace):
    wanted = [_numbers(*row) for row in program(torch, lambda f: f)]
    found = [_numbers(*row) for row in program(tg, trace)]
    assert found == [pytest.approx(row, rel=1e-4, abs=1e-4) for row in wanted]


def test_a_traced_step_sees_that_a_view_stops_requiring_grad():
    flat = tg.arange(4.0)
    p, q = tg.nn.Parameter(flat[:2]), tg.nn.Parameter(flat[2:])

    @tg.trace
    def loss():
        return (p * q).sum()

    loss().backward()
    assert p.grad.tolist() == [2, 3]
    p.requires_grad_(False)
    q.grad = None
    loss().backward()
    assert p.grad.tolist() == [2, 3]
    assert q.grad.tolist() == [0, 1]


def test_what_nobody_else_has_is_let_go_of():
    layer = tg.nn.Module()
    layer.weight = tg.nn.Parameter(tg.arange(6.0).reshape(2, 3).t())
    assert layer.weight._base is None
    assert layer.weight.tolist() == [[0, 3], [1, 4], [2, 5]]
