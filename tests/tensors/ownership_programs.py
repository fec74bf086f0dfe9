"""Programs in which somebody holds the value that a step writes in place. Start at `check`; test_ownership.py runs them.

`HOLDERS`: how a value is held, and what it is to show afterwards. `STEPS`: what writes. Whoever holds the value of a tensor as it was sees
that for good, and whoever shares memory with the tensor, as torch means it, sees each update.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tracegrad as tg

START = np.arange(1.0, 7.0, dtype=np.float32)
HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}
SHARERS: dict[str, Callable[[Any], Any]] = {}


def _numpy(x: Any) -> Any:
    return x.detach().numpy()


def holder(read: Callable[[Any], Any] = _numpy) -> Any:
    """Register a function that holds a tensor's present value. read(what it gives): that value, to be compared with a copy."""
    def register(fn: Any) -> Any:
        HOLDERS[fn.__name__] = fn, read
        return fn
    return register


for _name, _fn in {
    "times one": lambda p: p * 1, "clone": lambda p: p.clone(), "detached clone": lambda p: p.detach().clone(),
    "pending": lambda p: p + 0.0, "two operations": lambda p: (p + 1) - 1, "deep copy": copy.deepcopy,
    "pickled": lambda p: pickle.loads(pickle.dumps(p)), "a view of a clone": lambda p: p.clone().reshape(2, 3).reshape(6),
    "traced clone": tg.trace(lambda p: p.clone()), "traced reshape": tg.trace(lambda p: p.reshape(2, 3).reshape(-1) * 1.0),
    "traced twice": lambda p: tg.trace(lambda q: (q * 1, q + 0))(p)[0], "stacked": lambda p: tg.stack([p, p])[0],
    "made of numpy": lambda p: tg.asarray(np.asarray(p.detach())), "a tensor of a tensor": lambda p: p.detach().clone().requires_grad_(),
    "no_grad": lambda p: tg.no_grad()(lambda: p * 1)(), "computed": lambda p: _computed(p * 1), "concatenated": lambda p: tg.cat([p]),
    "where": lambda p: tg.where(p > 0, p, p), "float64 and back": lambda p: p.to(tg.float64).to(tg.float32),
    "inference": lambda p: tg.inference_mode()(p.clone)(), "detach of what was computed": lambda p: (p * 1).detach(),
}.items():
    HOLDERS[_name] = _fn, _numpy


def _computed(x: Any) -> Any:
    x.detach().numpy()
    return x


@holder(np.asarray)
def exported(p: Any) -> Any:
    return np.asarray(p.detach())


@holder(np.asarray)
def by_dlpack(p: Any) -> Any:
    return np.from_dlpack(p.detach())


@holder(np.asarray)
def by_memoryview(p: Any) -> Any:
    return memoryview(np.asarray(p.detach()))


@holder(lambda found: np.asarray(found).reshape(6))
def by_an_array_of_it(p: Any) -> Any:
    return np.asarray(p.detach()).reshape(2, 3)[::1].view()


@holder(lambda found: np.concatenate([np.atleast_1d(x) for x in found]))
def by_parts_of_an_export(p: Any) -> Any:
    array = np.asarray(p.detach())
    return [array[:2], array[2:]]


@holder(lambda found: np.array([x.item() for x in found]))
def by_an_iterator(p: Any) -> Any:
    return iter(p.detach() * 1)


@holder(lambda found: found[0].detach().numpy())
def twice_in_a_list(p: Any) -> Any:
    q = p * 1
    return [q, q, {"q": q}]


@holder(lambda found: next(found).detach().numpy())
def in_a_frame(p: Any) -> Any:
    def hold() -> Any:
        q = p * 1
        yield q
        yield q

    found = hold()
    next(found)
    return found


@holder(lambda error: error.__traceback__.tb_next.tb_frame.f_locals["q"].detach().numpy())
def in_a_traceback(p: Any) -> Any:
    def fail() -> None:
        q = p * 1
        raise ValueError(q.shape)

    try:
        fail()
    except ValueError as error:
        return error


@holder(lambda found: found())
def in_a_closure(p: Any) -> Any:
    q = p * 1
    return lambda: q.detach().numpy()


@holder(lambda found: found[0].me.q.detach().numpy())
def in_a_cycle(p: Any) -> Any:
    class Holds:
        pass

    one = Holds()
    one.me, one.q = one, p * 1
    return [one]


def _gradient(found: Any) -> Any:
    v, loss = found
    v.grad = None
    loss.backward()
    return v.grad.numpy()


@holder(_gradient)
def saved_for_backward(p: Any) -> Any:
    v = tg.ones(6).requires_grad_()
    return v, (v * p.detach().clone()).sum()


@holder(_gradient)
def saved_of_the_tensor_itself(p: Any) -> Any:
    v = tg.ones(6).requires_grad_()
    return v, (v * (p * 1)).sum()


@holder(_gradient)
def saved_by_a_function(p: Any) -> Any:
    class Product(tg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, v: Any, q: Any) -> Any:
            ctx.save_for_backward(q)
            return v * q

        @staticmethod
        def backward(ctx: Any, ct: Any) -> Any:
            return ct * ctx.saved_tensors[0], None

    v = tg.ones(6).requires_grad_()
    return v, Product.apply(v, p.detach() * 1).sum()


@holder(_gradient)
def saved_by_a_traced_call(p: Any) -> Any:
    v = tg.ones(6).requires_grad_()
    return v, tg.trace(lambda v, q: (v * q).sum())(v, p.detach() * 1)


SHARERS |= {
    "itself": lambda p: p, "detach": lambda p: p.detach(), "view": lambda p: p.view(2, 3), "part": lambda p: p[1:4],
    "transposed": lambda p: p.view(2, 3).t(), "data": lambda p: p.data, "a view of a view": lambda p: p[1:5][1:3],
    "state": lambda p: {"p": p.detach()}["p"],
}


def _write(how: str) -> Callable[[Any], None]:
    def step(p: Any) -> None:
        with tg.no_grad():
            if how == "add_":
                p.add_(1)
            elif how == "+=":
                p += 1
            elif how == "item":
                p[:] = p + 1
            elif how == "parts":
                p[:2] += 1
                p[2:] += 1
            elif how == "copy_":
                p.copy_(p + 1)
            elif how == "twice":
                p.add_(2)
                p.sub_(1)
            else:
                p.detach().add_(1)
    return step


WRITES = ["add_", "+=", "item", "parts", "copy_", "twice", "detach"]
MODES = ["untraced", "argument", "closure", "optimizer"]


def stepper(p: Any, mode: str, write: str = "add_") -> Callable[[], None]:
    """What adds 1 to `p` in place."""
    step = _write(write)
    if mode == "untraced":
        return lambda: step(p)
    if mode == "argument":
        traced = tg.trace(step)
        return lambda: traced(p)
    if mode == "closure":
        return tg.trace(lambda: step(p))
    optimizer = tg.optim.SGD([p], lr=1.0)

    @tg.trace
    def update() -> None:
        optimizer.zero_grad()
        (-p).sum().backward()
        optimizer.step()

    return update


def check(name: str, mode: str, write: str = "add_", leaf: bool = False) -> None:
    """Whoever holds the value, or shares the memory, sees what is right, before and while the holder is there, and once it is gone."""
    p = tg.tensor(START).requires_grad_(leaf or mode == "optimizer")
    step, value, held = stepper(p, mode, write), START.copy(), []
    for _ in range(2):
        step()                                                 # recorded, and replayed with nobody there
        value = value + 1
    for repeat in range(3):
        if name in SHARERS:
            found, read = SHARERS[name](p), _numpy
            step()
            value = value + 1
            np.testing.assert_array_equal(read(found), SHARERS[name](tg.tensor(value)).numpy(), err_msg=f"{name} {mode} {write} {repeat}")
        else:
            make, read = HOLDERS[name]
            held.append((make(p), read, value))
            step()
            step()
            value = value + 2
    np.testing.assert_array_equal(_numpy(p), value, err_msg=f"the tensor; {name}, {mode}, {write}")
    while held:
        found, read, expected = held.pop()
        np.testing.assert_array_equal(read(found), expected, err_msg=f"{name}, {mode}, {write}, {len(held)}")
        del found
        step()
        value = value + 1
    np.testing.assert_array_equal(_numpy(p), value, err_msg=f"the tensor, at the end; {name}, {mode}, {write}")


def shared_by_two() -> None:
    """Two tensors with one buffer, both written."""
    p = tg.tensor(START)
    q = tg.trace(lambda p: p.clone())(p)

    @tg.trace
    def both() -> None:
        p.add_(1)
        q.mul_(2)

    for k in range(1, 4):
        both()
        np.testing.assert_array_equal(p.numpy(), START + k)
        np.testing.assert_array_equal(q.numpy(), START * 2**k)


def put_off() -> None:
    """Values computed when they are called (execute/eager_executor.py) that somebody holds in one way or another."""
    for repeat in range(5):
        with tg.no_grad():
            x = tg.tensor(START)
            kept = [x * k for k in range(1, 9)]
            views = [k[1:3] for k in kept]
            parts = views.pop()
            x = x * 3.0
            first, kept = kept[0], kept[3:]
            both = (first + x) * 2.0
            sums = [k.sum() for k in kept]
            del first
            np.testing.assert_array_equal(both.numpy(), START * 8, err_msg=str(repeat))
            np.testing.assert_array_equal(parts.numpy(), START[1:3] * 8)
            for i, k in enumerate(kept, 4):
                np.testing.assert_array_equal(k.numpy(), START * i)
            for i, v in enumerate(views, 1):
                np.testing.assert_array_equal(v.numpy(), START[1:3] * i)
            np.testing.assert_array_equal([s.item() for s in sums], [START.sum() * k for k in range(4, 9)])


def detached_clones() -> None:
    """What is written to a detached copy stays there, also in a chain of views; of a tensor that somebody holds, that has it, too."""
    w = tg.tensor(START, requires_grad=True)
    for make in (lambda w=w: (w * 1).detach(), lambda: (w * 1)[None].detach()[0], lambda: w.clone().view(2, 3).detach().view(6)):
        y = make()
        y.add_(1)
        np.testing.assert_array_equal(y.numpy(), START + 1)
        np.testing.assert_array_equal(w.detach().numpy(), START)
    h = w * 2
    y = h.detach()
    y.add_(1)
    for x in (y, h.detach()):
        np.testing.assert_array_equal(x.numpy(), START * 2 + 1)
    (h * h).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), 4 * (START * 2 + 1))


def rolled() -> None:
    """Results of a loop's iterations, of which the body keeps some."""
    for keep in ("none", "carry", "result", "first", "all"):
        kept: list[Any] = []

        def body(c: Any, x: Any, keep: str = keep, kept: list[Any] = kept) -> Any:
            c = c * 0.5 + x
            y = c * 2
            if keep in ("carry", "all"):
                kept.append(c)
            if keep in ("result", "all") or (keep == "first" and not kept):
                kept.append(y)
            return c, y

        xs = tg.arange(24.0).reshape(12, 2)
        c, ys = tg.scan(body, tg.zeros(2), xs)
        expected, now = [], np.zeros(2, np.float32)
        for x in xs.numpy():
            now = now * 0.5 + x
            expected.append(now)
        np.testing.assert_array_equal(c.numpy(), expected[-1])
        np.testing.assert_array_equal(ys.numpy(), np.stack(expected) * 2)
        own = {"none": [], "carry": expected, "result": [e * 2 for e in expected], "first": [expected[0] * 2],
               "all": [v for e in expected for v in (e, e * 2)]}[keep]
        for found, value in zip(kept, own, strict=True):
            np.testing.assert_array_equal(found.numpy(), value)


OTHERS = [shared_by_two, put_off, detached_clones, rolled]


def main(shift: str) -> None:
    """All holders with one step, by kernels, then on the path of NumPy; what is deferred, detached and rolled in both."""
    for eager in (False, True):
        tg.config.eager = eager
        for name in (*HOLDERS, *SHARERS):
            check(name, "closure")
            check(name, "argument", "+=", leaf=True)
        for other in OTHERS:
            other()
    sys.stdout.write(f"done with {shift}\n")

