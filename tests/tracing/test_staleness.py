"""@trace is never stale: whatever state or memory a function depends on, a traced call does what the plain one does, or says why not.

Each scenario is a function of `wrap`; it runs with the identity and with tg.trace and must return the same values.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import importlib
import itertools
import math
import os
import random
import sys
import threading
import types
import weakref

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.graph.ir import Graph
from tracegrad.tracing import fast_replay, guards
from tracegrad.tracing.content_guards import same
from tracegrad.tracing.replay import Replay

SCENARIOS = []
ERRORS = []
HERE = sys.modules[__name__]


@pytest.fixture(autouse=True)
def _on_the_interpreter():
    """What is tested is what a replay reads and writes, not how it computes."""
    before = tg.device()
    tg.set_device("numpy")
    yield
    tg.set_device(before)


def scenario(fn):
    SCENARIOS.append(fn)
    return fn


def error(words, kind=tg.TraceError):
    """A scenario that works untraced and raises under trace."""
    def mark(fn):
        ERRORS.append(pytest.param(fn, kind, words, id=fn.__name__))
        return fn
    return mark


def v(*values):
    return tg.tensor(np.array(values, dtype=np.float64))


def seen(x):
    """Values to compare."""
    if isinstance(x, tg.Tensor):
        return x.detach().tolist()
    if isinstance(x, dict):
        return {key: seen(y) for key, y in x.items()}
    return [seen(y) for y in x] if isinstance(x, (list, tuple)) else x


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda f: f.__name__)
def test_a_replay_does_what_the_function_does(run):
    assert seen(run(tg.trace)) == seen(run(lambda f: f))


@pytest.mark.parametrize(("run", "kind", "words"), ERRORS)
def test_what_a_replay_cannot_do_is_an_error(run, kind, words):
    run(lambda f: f)
    with pytest.raises(kind, match=words):
        run(tg.trace)


# ---------------------------------------------------------------------------------------------------------------- shared memory


@scenario
def the_same_tensor_given_twice(wrap):
    f, x, y = wrap(lambda a, b: a * 2 + b), v(1, 2), v(10, 20)
    return [f(x, x), f(x, y), f(y, x), f(y, y)]


@scenario
def writing_one_of_two_arguments(wrap):
    @wrap
    def f(a, b):
        a.add_(1.0)
        return a * b

    x, y = v(1, 2), v(10, 20)
    return [f(x, x), f(x, y), f(y, y), x, y]


@scenario
def a_view_and_its_base(wrap):
    @wrap
    def f(a, b):
        a.add_(1.0)
        return b * 2

    x, other = v(1, 2), v(7)
    return [f(x, x[0:1]), f(x, other), f(x, x[1:2]), x]


@scenario
def two_views_of_one_base(wrap):
    @wrap
    def f(a, b):
        a.add_(1.0)
        return a + b

    x, y = v(1, 2, 3, 4), v(5, 6, 7, 8)
    return [f(x[:2], x[2:]), f(x[:2], x[1:3]), f(x[:2], y[:2]), x, y]


@scenario
def writing_a_view(wrap):
    @wrap
    def f(a):
        a.mul_(3.0)

    x = v(1, 2, 3)
    for i in range(3):
        f(x[i:i + 1])
    return x


@scenario
def an_argument_that_is_also_in_the_closure(wrap):
    c, other = v(1, 2), v(5, 6)
    f = wrap(lambda a: a + c * 10)
    return [f(c), f(other), f(c)]


@scenario
def writing_an_argument_that_is_also_in_the_closure(wrap):
    c, other = v(1, 2), v(5)

    @wrap
    def f(a):
        a.add_(1.0)
        return c.sum()

    return [f(other), f(c), f(c[:1]), f(c[1:]), f(other), c, other]


@scenario
def a_returned_view_of_an_argument(wrap):
    f, out = wrap(lambda x: (x[0:1], x.detach(), x)), []
    for _ in range(2):
        x = v(1, 2)
        view, detached, same = f(x)
        view.add_(10.0)
        detached.mul_(2.0)
        out += [x, view, same is x]
    return out


@scenario
def nested_results(wrap):
    f = wrap(lambda x: (x, (x * 2,), [x * 3, {"a": (x * 4,)}], ()))
    return [(*f(v(i))[:3], f(v(i))[1].__class__ is tuple, f(v(i))[3] == ()) for i in range(2)]


@scenario
def results_that_share_memory(wrap):
    @wrap
    def f(x):
        y = x * 2
        return y, y[0:1], y, (x + 1)[1:], (x + 2).reshape(2, 1)

    out = []
    for _ in range(2):
        a, b, c, d, e = f(v(1, 2))
        a.add_(1.0)
        b.mul_(5.0)
        out += [a, b, c, d, e, a is c]
    return out


# -------------------------------------------------------------------------------------------------------------------- gradients


@scenario
def gradients_of_each_call_s_arguments(wrap):
    @wrap
    def f(x):
        (x * x).sum().backward()

    x, y = v(1, 2).requires_grad_(), v(5, 6).requires_grad_()
    for t in (x, y, x, x, y):
        f(t)
    out = [x.grad.clone(), y.grad.clone()]
    x.grad = None
    f(x)
    return [*out, x.grad]


@scenario
def reading_the_gradient_of_an_argument(wrap):
    f = wrap(lambda x: x.grad * 2 if x.grad is not None else x.detach() - 1)
    x, y, z = (v(1, 2).requires_grad_() for _ in range(3))
    x.sum().backward()
    (y * 5).sum().backward()
    return [f(t) for t in (x, y, z, x, z, y)]


@scenario
def a_held_gradient_goes_on_accumulating(wrap):
    w = v(1, 2).requires_grad_()

    @wrap
    def f(x):
        (w * x).sum().backward()

    f(v(1, 1))
    held = w.grad
    f(v(1, 1))
    return [held, held is w.grad]


@scenario
def the_gradient_itself_is_returned(wrap):
    w = v(1, 2).requires_grad_()

    @wrap
    def f(x):
        w.grad = None
        (w * x).sum().backward()
        return w.grad

    return [f(v(i, 1)) is w.grad for i in range(3)]


@scenario
def backward_after_a_call_that_wrote_its_leaf(wrap):
    w, buffer = v(1, 2, 3).requires_grad_(), v(1, 1, 1)

    @wrap
    def f():
        before = (w * w * buffer).sum()
        with tg.no_grad():
            w[1:] *= 2.0
            buffer.add_(1.0)
        after = (w * w * buffer * 10).sum()
        with tg.no_grad():
            w.mul_(2.0)
        return before + after + w.sum() * 1000

    out = []
    for _ in range(2):
        f().backward()
        out += [w.grad.clone(), w.detach().clone()]
    return out


@scenario
def hooks_of_each_call_s_arguments(wrap):
    @wrap
    def f(x):
        (x * x).sum().backward()

    x, y = v(1, 2).requires_grad_(), v(5, 6).requires_grad_()
    f(x)
    y.register_hook(lambda g: g * 10)
    f(y)
    f(x)
    return [x.grad, y.grad]


@scenario
def a_hook_set_inside(wrap):
    @wrap
    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return (y * y).sum()

    out = []
    for _ in range(2):
        x = v(1, 2).requires_grad_()
        f(x).backward()
        out.append(x.grad)
    return out


@error("requires_grad_ at .*cannot start or stop requiring grad.*detach")
def requires_grad_inside(wrap):
    return wrap(lambda x: (x.requires_grad_() ** 2).sum())(v(1, 2))


# ------------------------------------------------------------------------------------------------------------ changes of objects


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("scale",)


class Base:
    scale = 2.0


class Derived(Base):
    def times(self, x):
        return x * 2.0


class Dynamic:
    def __init__(self):
        self.table = {"scale": 2.0}

    def __getattr__(self, name):
        try:
            return self.__dict__["table"][name]
        except KeyError:
            raise AttributeError(name) from None


class Operators:
    """What Python calls by itself."""

    def __init__(self):
        self.scale = 2.0

    def __add__(self, x): return x + self.scale
    def __rmul__(self, x): return x * self.scale
    def __getitem__(self, i): return self.scale + i
    def __iter__(self): return iter([self.scale])
    def __enter__(self): return self.scale
    def __exit__(self, *exc): return None


def changing(read, change, make=lambda: None):
    """A scenario: a traced function of what `read(state)` gives, before and after `change(state)`."""
    def run(wrap):
        state = make()
        f = wrap(lambda x: x * read(state))
        before = f(v(1))
        undo = change(state)
        after = f(v(1))
        if callable(undo):
            undo()
        return [before, after]
    return run


def attribute(name, value, of=None):
    def change(state):
        target = of or state
        old = target.__dict__.get(name, None) if isinstance(target, type) else None
        setattr(target, name, value)
        return (lambda: setattr(target, name, old) if old is not None else delattr(target, name)) if isinstance(target, type) else None
    return change


def helper(x, scale=2.0):
    return x * scale


def set_(o, **attributes):
    for name, value in attributes.items():
        setattr(o, name, value)
    return o


def deep():
    inner = [2.0]
    s = inner
    for _ in range(2000):
        s = [s]
    return inner, s


CHANGES = {
    "item of an array": (lambda a: a[0], lambda a: a.__setitem__(0, 7.0), lambda: np.array([2.0, 3.0])),
    "member of a set": (lambda s: 2.0 if 3 in s else 1.0, lambda s: s.add(3), lambda: {1}),
    "other member of a set": (lambda s: 2.0 if 3 in s else 1.0, lambda s: (s.remove(1), s.add(3)), lambda: {1}),
    "deque": (lambda d: d[0], lambda d: d.rotate(), lambda: collections.deque([1.0, 2.0])),
    "bytearray": (lambda b: b[0], lambda b: b.__setitem__(0, 5), lambda: bytearray(b"\x02")),
    "order of a dict": (lambda d: functools.reduce(lambda a, b: a * 3 + b, d.values()), lambda d: d.update(a=d.pop("a")),
                        lambda: {"a": 1.0, "b": 2.0}),
    "mapping proxy": (lambda p: p[0]["k"], lambda p: p[1].update(k=5.0), lambda: (types.MappingProxyType(d := {"k": 2.0}), d)),
    "ChainMap": (lambda c: c["k"], lambda c: c.maps[0].update(k=5.0), lambda: collections.ChainMap({"k": 2.0})),
    "environment": (lambda _: float(os.environ.get("TG_TEST_SCALE", "2")), lambda _: os.environ.update(TG_TEST_SCALE="5")),
    "attribute of a class": (lambda o: o.scale, attribute("scale", 5.0, Base), Derived),
    "attribute that hides a class's": (lambda o: o.scale, attribute("scale", 5.0), Derived),
    "attribute of a base class": (lambda _: Derived.scale, attribute("scale", 5.0, Base)),
    "attribute of a subclass": (lambda _: Derived.scale, attribute("scale", 5.0, Derived)),
    "method": (lambda o: o.times(1.0), lambda o: setattr(o, "times", lambda x: x * 9), Derived),
    "slot": (lambda o: o.scale, attribute("scale", 5.0), lambda: set_(Slotted(), scale=2.0)),
    "tensor in a slot": (lambda o: o.scale, lambda o: setattr(o, "scale", v(5)), lambda: set_(Slotted(), scale=v(2))),
    "getattr of a literal": (lambda o: getattr(o, "scale"), attribute("scale", 5.0), lambda: Plain(scale=2.0)),  # noqa: B009
    "getattr of a computed name": (lambda o: getattr(o, f"scale{1}"), attribute("scale1", 5.0), lambda: Plain(scale1=2.0)),
    "vars": (lambda o: vars(o)["sc" + "ale"], attribute("scale", 5.0), lambda: Plain(scale=2.0)),
    "__getattr__": (lambda o: o.scale, lambda o: o.table.update(scale=5.0), Dynamic),
    "operators": (lambda o: (o + 1.0) + (1.0 * o) + o[0] + sum(o), attribute("scale", 5.0), Operators),
    "globals()": (lambda _: globals()["WATCHED"], lambda _: globals().update(WATCHED=5.0), lambda: globals().update(WATCHED=2.0)),
    "a global that hides a builtin": (lambda _: abs(-1.0),
                                      lambda _: (setattr(HERE, "abs", lambda x: x * 5), lambda: delattr(HERE, "abs"))[1]),
    "default argument": (lambda o: o.f(1.0), lambda o: setattr(o.f, "__defaults__", (5.0,)),
                         lambda: Plain(f=types.FunctionType(helper.__code__, globals(), argdefs=(2.0,)))),
    "code": (lambda o: o.f(1.0), lambda o: setattr(o.f, "__code__", (lambda x: x * 5).__code__),
             lambda: Plain(f=types.FunctionType(helper.__code__, globals(), argdefs=(2.0,)))),
    "partial": (lambda p: p(1.0), lambda p: setattr(p.args[0], "scale", 5.0),
                lambda: functools.partial(lambda o, x: o.scale * x, Plain(scale=2.0))),
    "context variable": (contextvars.ContextVar.get, lambda c: (c.set(5.0), None)[1], lambda: contextvars.ContextVar("scale", default=2.0)),
    "weak reference": (lambda o: o[0]().scale, lambda o: setattr(o[1], "scale", 5.0), lambda: (weakref.ref(p := Plain(scale=2.0)), p)),
    "thread-local": (lambda t: t.scale, attribute("scale", 5.0), lambda: set_(threading.local(), scale=2.0)),
    "sign of zero": (lambda o: 1.0 / tg.full((), o.zero), attribute("zero", -0.0), lambda: Plain(zero=0.0)),
    "int to float": (lambda o: (tg.ones(1, dtype=tg.int64) * o.k).dtype.itemsize, attribute("k", 2.0), lambda: Plain(k=2)),
    "deep structure": (lambda s: functools.reduce(lambda a, _: a[0], range(2000), s[1])[0], lambda s: s[0].__setitem__(0, 5.0), deep),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, monkeypatch):
    monkeypatch.delenv("TG_TEST_SCALE", raising=False)
    run = changing(*CHANGES[name])
    traced = seen(run(tg.trace))
    monkeypatch.delenv("TG_TEST_SCALE", raising=False)
    assert traced == seen(run(lambda f: f))


@scenario
def the_order_of_a_dict_argument(wrap):
    f = wrap(lambda d: functools.reduce(lambda a, b: a * 3 + b, d.values()))
    return [f({"a": v(1), "b": v(2)}), f({"b": v(2), "a": v(1)}), f({"b": v(1), "a": v(2)})]


@scenario
def objects_as_arguments(wrap):
    @dataclasses.dataclass(eq=False)
    class Config:
        x: tg.Tensor
        scale: float = 2.0

    f, c = wrap(lambda c: c.x * c.scale), Config(v(1))
    out = [f(c)]
    c.scale = 5.0
    out.append(f(c))
    c.x = v(4)
    return [*out, f(c), f(Config(v(2), 3.0))]


def test_the_default_device_is_part_of_a_call_without_tensors():
    f = tg.trace(lambda: tg.ones(2))
    for device in ("numpy", *tg.devices()[:1], "numpy"):
        found = tg.set_device(device)
        assert f().device is found


@scenario
def a_python_float_fills_a_tensor(wrap):
    f = wrap(lambda x, k: x ** k + tg.full((1,), k, dtype=tg.float64))
    return [f(v(2), 2.0), f(v(2), 3.0)]


@scenario
def numpy_floats_are_python_s(wrap):
    """As in torch: they do not promote, and a schedule that numpy computes does not compile anew."""
    f = wrap(lambda x, k: x * k)
    out = [(y := f(tg.ones(1), np.float64(k))).dtype.name + str(y.tolist()) for k in (1.5, 2.5)]
    assert len(getattr(f, "compilations", "1")) == 1
    return out


def test_recordings_of_one_signature_do_not_pile_up():
    w = v(1.0)
    f = tg.trace(lambda x: x * w)
    for i in range(40):
        w = v(i)
        assert f(v(2)).item() == 2 * i
    assert len(f.compilations) == 40
    assert max(map(len, f._replays.values())) == 32


@scenario
def what_the_body_sets_up_once(wrap):
    o = Plain(cache={})

    @wrap
    def f(x):
        if "scale" not in o.cache:
            o.cache["scale"] = 3.0
        return x * o.cache["scale"]

    return [f(v(i)) for i in range(4)]


# -------------------------------------------------------------------------------------------------------- what cannot be replayed


@error("changes Python state that it reads .n was 1 and is 2.*argument")
def a_counter(wrap):
    n = 0

    @wrap
    def f(x):
        nonlocal n
        n += 1
        return x * n

    return [f(v(1)) for _ in range(3)]


@error("n was 1 and is 2")
def a_counter_in_a_new_attribute(wrap):
    o = Plain()

    @wrap
    def f(x):
        o.n = getattr(o, "n", 0) + 1
        return x * o.n

    return [f(v(1)) for _ in range(3)]


@error("a list of 1 items has 2 now")
def appending(wrap):
    log = []

    @wrap
    def f(x):
        log.append(1)
        return x * len(log)

    return [f(v(1)) for _ in range(3)]


@error("a Random holds something else")
def python_s_random_numbers(wrap):
    f = wrap(lambda x: x * random.random())
    return [f(v(1)) for _ in range(3)]


@error("a Generator holds something else")
def numpy_s_random_numbers(wrap):
    rng = np.random.default_rng(0)
    f = wrap(lambda x: x * rng.random())
    return [f(v(1)) for _ in range(3)]


@error("a list_iterator holds something else")
def an_iterator(wrap):
    numbers = iter([1.0, 2.0, 3.0])
    f = wrap(lambda x: x * next(numbers))
    return [f(v(1)) for _ in range(3)]


@error("changes a list or dict among its arguments.*return")
def a_changed_argument(wrap):
    @wrap
    def f(d):
        d["y"] = d["x"] * 2

    f({"x": v(1)})


@error("returns a generator")
def a_generator(wrap):
    @wrap
    def f(x):
        yield x

    f(v(1))


@error("returns a Plain.*return tensors")
def an_object(wrap):
    wrap(lambda x: Plain(x=x))(v(1))


@error("manual_seed outside")
def a_seed(wrap):
    def f(x):
        tg.manual_seed(3)
        return x + tg.rand(2)

    wrap(f)(v(1, 2))


@error("manual_seed outside")
def a_seed_that_is_set_already(wrap):
    @wrap
    def f(x):
        tg.manual_seed(3)
        return x + tg.rand(2)

    tg.manual_seed(3)
    f(v(1, 2))


@error("manual_seed outside")
def a_seed_in_a_fork(wrap):
    @wrap
    def f(x):
        with tg.random.fork_rng():
            tg.manual_seed(3)
            return x + tg.rand(2)

    f(v(1, 2))


@error("register_hook of a tensor from outside.*remove")
def a_hook_that_is_left(wrap):
    w = v(1, 2).requires_grad_()
    f = wrap(lambda x: (w.register_hook(lambda g: g * 2), x * 2)[1])
    try:
        f(v(1, 2))
    finally:
        (w * 1).sum().backward()
        assert seen(w.grad) == ([2, 2] if f.__class__.__name__ == "function" else [1, 1])


@error("register_post_accumulate_grad_hook of a tensor from outside.*remove")
def a_hook_on_a_leaf_that_is_left(wrap):
    w = v(1, 2).requires_grad_()
    wrap(lambda x: (w.register_post_accumulate_grad_hook(lambda p: None), x * 2)[1])(v(1, 2))


@error("more than 100000 Python objects.*tensor")
def too_much_to_watch(wrap):
    table = [[i] for i in range(100_001)]
    wrap(lambda x: x * table[3][0])(v(1))


@error(r"neither a tensor nor hashable: \['set'\].*tuples, lists and dicts", tg.ArgumentError)
def an_argument_that_cannot_be_a_key(wrap):
    wrap(lambda x, s: x * len(s))(v(1), {1})


def test_a_failed_call_leaves_everything():
    w, x = v(1, 2).requires_grad_(), v(1, 1)

    @tg.trace
    def f(bad):
        tg.rand(3)
        x.add_(1.0)
        (w * x).sum().backward()
        with tg.no_grad():
            w.mul_(2.0)
            if bad:
                raise ValueError("stop")

    tg.manual_seed(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="stop"):
            f(True)
    assert (seen(w), seen(x), w.grad, w._version, x._version) == ([1, 2], [1, 1], None, 0, 0)
    assert tg.is_grad_enabled()
    first = tg.rand(1).item()
    tg.manual_seed(1)
    assert tg.rand(1).item() == first
    f(False)
    assert (seen(w), seen(x), seen(w.grad)) == ([2, 4], [2, 2], [2, 2])


@pytest.mark.parametrize("drawn_after", [False, True])
def test_what_a_trace_draws_in_a_fork_of_the_stream_does_not_count(drawn_after):
    def f(x):
        with tg.random.fork_rng():
            y = x + tg.rand(2)
        return (y, tg.rand(2)) if drawn_after else (y,)

    found = []
    for g in (f, tg.trace(f)):
        tg.manual_seed(5)
        found.append([seen(t) for _ in range(4) for t in (*g(v(1, 2)), tg.rand(1))])
    assert found[1] == found[0]


def test_a_recording_does_not_mind_what_another_thread_draws_meanwhile():
    @tg.trace
    def f(x):
        other = threading.Thread(target=lambda: (tg.manual_seed(1), tg.rand(3).tolist()))
        other.start()
        other.join()
        return x * 2

    assert [seen(f(v(1, 2))) for _ in range(2)] == [[2, 4], [2, 4]]


GRADIENTS = {
    "read after": lambda w, x, g: ((w * x).sum().backward(), g.clone())[1],
    "read before": lambda w, x, g: (g.clone(), (w * x).sum().backward(), g * 2)[::2],
    "zeroed": lambda w, x, g: (g.zero_(), (w * x).sum().backward(), w.grad.mul_(2), g + 0, w.grad + 0)[3:],
    "clipped": lambda w, x, g: ((w * x).sum().backward(), g.mul_(0.5 / (g.norm() + 1)), w.grad.clone())[2],
    "only read": lambda w, x, g: w.grad + g.sum(),
    "returned": lambda w, x, g: ((w * x).sum().backward(), w.grad)[1],
    "set to None": lambda w, x, g: ((w * x).sum().backward(), setattr(w, "grad", None), g * 1)[2],
    "with create_graph": lambda w, x, g: ((w * w * x).sum().backward(create_graph=True), w.grad.detach() * 1, g * 1)[1:],
}


@pytest.mark.parametrize("how", ["held", "a part", "an argument", "later"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_that_the_function_reaches_otherwise_too(name, how):
    """What backward adds to w.grad is in the tensor that lies there, and the other way round."""
    def program(wrap):
        w, buffer = v(1, 2).requires_grad_(), v(1, 0, 0, 3)
        w.grad = v(1, 1) if how == "later" else buffer[1:3] if how == "a part" else buffer[:2].clone()
        held = buffer if how in ("a part", "later") else w.grad

        @wrap
        def f(w, x, given=None):
            return GRADIENTS[name](w, x, (held if given is None else given)[:2])

        found = []
        for k in range(4):
            if how == "later" and k == 2:
                w.grad = buffer[1:3]
            if w.grad is None:
                w.grad = held if held.shape == w.shape else held[1:3]
            result = f(w, v(k, 1), w.grad) if how == "an argument" else f(w, v(k, 1))
            found.append([seen(t) for t in (result if isinstance(result, tuple) else (result,))])
            found.append((seen(buffer), seen(held), None if w.grad is None else seen(w.grad)))
        return found

    np.testing.assert_equal(program(tg.trace), program(lambda f: f))


@pytest.mark.parametrize("how", ["one", "parts", "one later", "parts later", "no longer one"])
def test_two_tensors_whose_gradients_share_memory(how):
    def program(wrap):
        a, b, buffer = v(1, 2).requires_grad_(), v(3, 4).requires_grad_(), v(0, 0, 0)

        def share():
            a.grad, b.grad = (buffer[:2], buffer[1:]) if "parts" in how else (buffer[:2].clone(),) * 2

        @wrap
        def f(x):
            (a * x).sum().backward()
            (b * x * 2).sum().backward()
            return a.grad + b.grad

        a.grad, b.grad = v(1, 1), v(2, 2)
        if "later" not in how:
            share()
        found = []
        for k in range(5):
            if k == 2 and "l" in how:
                share()
                if how == "no longer one":
                    b.grad = v(7, 7)
            found.append([seen(t) for t in (f(v(k, 2)), a.grad, b.grad, buffer)])
        return found

    assert program(tg.trace) == program(lambda f: f)


class Counting:
    __slots__ = ("last",)

    def __init__(self):
        self.last = 0.0

    def __iter__(self):
        return self

    def __next__(self):
        self.last += 1
        return self.last


def doubling():
    last = 1.0
    while True:
        last *= 2
        yield last


def as_many_as_known():
    known = []
    while True:
        known.append(0)
        yield float(len(known))


def delegating():
    yield from doubling()


NUMBERS = [1.0, 2.0, 3.0, 4.0, 5.0]
ITERATORS = {
    "generator": doubling, "generator with a list": as_many_as_known, "delegating": delegating,
    "expression": lambda: (x * 2 for x in NUMBERS), "list": lambda: iter(NUMBERS),
    "map of zip": lambda: map(max, zip(NUMBERS, NUMBERS, strict=True)),
    "enumerate": lambda: map(max, enumerate(NUMBERS)), "filter": lambda: filter(None, NUMBERS),
    "cycle": lambda: itertools.cycle([1.0, 2.0]), "chain": lambda: itertools.chain(NUMBERS, NUMBERS), "slots": Counting,
    "islice": lambda: itertools.islice(NUMBERS, 4),
    "accumulate": lambda: itertools.accumulate(NUMBERS), "tee": lambda: itertools.tee(NUMBERS)[1],
    "product": lambda: map(sum, itertools.product(NUMBERS, NUMBERS)), "calls": lambda: iter(iter(NUMBERS).__next__, 9.0),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_that_a_body_advances_is_an_error_and_one_that_others_advance_is_not(name):
    iterator, plain = ITERATORS[name](), ITERATORS[name]()
    f = tg.trace(lambda x: x * next(iterator))
    assert seen(f(v(1))) == [next(plain)]
    with pytest.raises(tg.TraceError, match="changes Python state that it reads"):
        f(v(1))

    held = {"batches": ITERATORS[name](), "scale": 3.0}
    g = tg.trace(lambda x: x * held["scale"])
    for _ in range(3):
        assert seen(g(v(1))) == [3]
        next(held["batches"])
    assert len(g.compilations) == 1 or name == "slots"       # attributes are watched


def test_a_generator_that_calls_a_traced_function_which_names_it():
    f = tg.trace(lambda x: x * 2 if running is not None else x)

    def steps():
        for k in range(4):
            yield seen(f(v(k)))

    running = steps()
    assert list(running) == [[0], [2], [4], [6]]
    assert len(f.compilations) == 1


SWITCHES = {
    "grad mode": (lambda: tg.set_grad_enabled(False), lambda: tg.set_grad_enabled(True)),
    "default dtype": (lambda: tg.set_default_dtype(tg.float64), lambda: tg.set_default_dtype(tg.float32)),
    "default device": (lambda: tg.set_default_device("cpu"), lambda: tg.set_device("numpy")),
    "precision": (lambda: tg.set_float32_matmul_precision("medium"), lambda: tg.set_float32_matmul_precision("highest")),
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("restored", [False, True])
def test_a_body_that_leaves_a_global_switch_changed_is_not_replayed(name, restored):
    change, restore = SWITCHES[name]

    @tg.trace
    def f(x):
        change()
        y = x * 2
        if restored:
            restore()
        return y

    try:
        assert seen(f(v(1, 2))) == [2, 4]
        if not restored:
            restore()
            with pytest.raises(tg.TraceError, match=f"f: its body changes Python state.*{name}"):
                f(v(1, 2))
    finally:
        restore()
    if restored:
        assert seen(f(v(3, 4))) == [6, 8]
        assert len(f.compilations) == 1


@pytest.mark.parametrize(("kind", "name"), [(tg.nn.Linear, "forward"), (tg.nn.Module, "__call__")])
def test_a_method_of_a_layer_that_is_replaced(kind, name, monkeypatch):
    """Of the class, after it was recorded; and what the one in its place reads is watched."""
    model = tg.nn.Sequential(tg.nn.Linear(2, 2), tg.nn.ReLU())
    f, x, scale = tg.trace(lambda x: model(x) * 1), tg.ones(1, 2), 7
    first = seen(f(x))
    monkeypatch.setattr(kind, name, lambda self, x: x * scale)
    assert seen(f(x)) == [[7, 7]]
    scale = 8
    assert seen(f(x)) == [[8, 8]]
    monkeypatch.undo()
    assert seen(f(x)) == first


def test_a_body_that_sets_equal_slices_ranges_and_tuples_is_replayed():
    """They cannot be changed, so whose they are says nothing: it was an error, which said that `s was slice(0, 2) and is slice(0, 2)`."""
    class State:
        pass

    state, n = State(), 2

    @tg.trace
    def f(x):
        state.part, state.range, state.pair = slice(0, n), range(n), (0, (n,))
        return x[state.part]

    for _ in range(4):
        assert seen(f(v(1, 2, 3))) == [1, 2]
    assert f.compilations[1:] == ["nothing was kept of the call before"]
    n = 3
    for _ in range(3):
        assert seen(f(v(1, 2, 3))) == [1, 2, 3]
    assert same((tg, (1,)), (tg, (1,)))
    assert not any([same((0, 1), (0, True)), same(slice(0, 1), slice(0.0, 1)), same(([],), ([],)), same((1,), (1, 2))])


def test_a_hook_that_a_body_registers_and_removes_leaves_those_outside():
    w = v(1, 2).requires_grad_()
    w.register_hook(lambda g: g * 3)

    @tg.trace
    def f(x):
        handle = w.register_hook(lambda g: g * 2)
        (w * x).sum().backward()
        handle.remove()
        found, w.grad = w.grad, None
        return found

    for _ in range(2):
        assert seen(f(v(1, 2))) == [6, 12]
        (w * 1).sum().backward()
        assert seen(w.grad) == [3, 3]
        w.grad = None


@pytest.mark.recall
def test_the_short_way_of_a_call_sees_what_the_long_one_does(monkeypatch):
    """A call like the latest one takes fewer checks (`Replay.fast_replay`): whatever differs from that one must be seen all the same."""
    ways = []
    real = Replay.fast_replay.func

    def again(self):
        def noted(args):
            result = real(self)(args)
            ways.append(result is not None)
            return result

        return noted

    monkeypatch.setattr(Replay, "fast_replay", property(again))
    world = {"k": 2.0}

    def plain(x, y):
        scale = world["k"] if not tg.is_grad_enabled() else 3.0 * world["k"]
        return x * y * scale, (x + y) * (100.0 if x.requires_grad else 1.0)

    f = tg.trace(plain)

    def call(short, *args, **kwargs):
        """Twice: the first may have to record."""
        for k in range(2):
            ways.clear()
            wanted, found = plain(*args, **kwargs), f(*args, **kwargs)
            assert seen(found) == seen(wanted)
            assert [(t.dtype, t.shape, t.requires_grad, t.device) for t in found] == [
                (t.dtype, t.shape, t.requires_grad, t.device) for t in wanted]
            assert (k == 0 or ways == [True]) if short else True not in ways

    a, b = v(1, 2, 3), v(4, 5, 6)
    call(True, a, b)
    call(True, b, a)
    call(True, a + 0.0, b)                               # pending: the long way computes it, the next call is short
    world["k"] = 5.0
    call(True, a, b)
    a.add_(1.0)                                          # another value in the same tensor
    assert seen(f(a, b)) == seen(plain(a, b))
    call(False, a, a)                                    # one tensor twice
    call(True, a[:2], b[1:])                             # views
    call(True, a[:2], b[1:])
    call(False, a[:2], a[1:])                            # of one base
    call(False, a.reshape(3), a)
    part, b[1] = b[1:], 7.0                              # whose base was written since
    part[1] = 8.0
    call(True, a[:2], part)
    call(False, a, y=b)
    call(True, v(1), v(2))
    call(True, v(1).float(), v(2).float())
    call(True, v(1), 2.0)
    call(True, v(1), -0.0)
    call(False, v(1), 2.0 + 1.0j)
    call(False, a, b.clone().requires_grad_())
    call(False, a.clone().requires_grad_(), b)
    with tg.no_grad():
        call(False, a.clone().requires_grad_(), b)       # no history, but the body can ask whether it requires grad
        call(True, a, b)
    call(True, a, b)
    hooked = a.clone().requires_grad_()
    hooked.register_hook(lambda g: g)
    call(False, hooked, b)
    call(True, a, b)
    outer = tg.trace(lambda x, y: [t + 1.0 for t in f(x, y)])
    assert seen(outer(a, b)) == [seen(t + 1.0) for t in plain(a, b)]
    assert seen(tg.vmap(f)(a, b)) == seen(plain(a, b))
    with pytest.raises(TypeError):
        f(a)
    call(True, a, b)
    w = v(7)
    g = tg.trace(lambda x: x * w)                         # a tensor that is reached may be given as an argument, too
    for x in (v(2), v(3), w, v(2)):
        ways.clear()
        assert seen(g(x)) == seen(x * w)
        assert ways == []


@pytest.mark.recall
def test_a_fast_replay_compares_what_is_static(monkeypatch):
    """Whole numbers, words, flags, None: of the same type and value; floats may be any."""
    ways = []
    real = Replay.fast_replay.func
    monkeypatch.setattr(Replay, "fast_replay", property(lambda self: lambda args: ways.append(real(self)(args)) or ways[-1]))

    def body(x, k, scale, word, flag):
        times = {None: 5.0, True: 7.0, False: 11.0}[flag] if type(flag) is not int else 13.0
        return sum([x * scale] * k, x) + len(word) * times

    f = tg.trace(body)
    x = v(1, 2)
    for given in ((2, 3.0, "ab", None), (2, math.inf, "ab", None), (3, 3.0, "ab", None), (3, 3.0, "abc", True), (3, 3.0, "abc", 1),
                  (True, 3.0, "abc", 1), (1, 3.0, "abc", False), (1, 3, "abc", False)):
        for _ in range(3):
            assert seen(f(x, *given)) == seen(body(x, *given)), given
        assert ways[-1] is not None, given               # the third call is like the second
    assert len(f.compilations) == 7                      # infinity is a float like another


@pytest.mark.recall
@pytest.mark.parametrize("written", [guards.WRITTEN, 0])
def test_a_fast_replay_compares_each_kind_of_place(written, monkeypatch):
    """Globals, variables, attributes, items, lengths, builtins, contents: what was changed is seen, what is put back is recalled."""
    monkeypatch.setattr(guards, "WRITTEN", written)
    made = []
    real = Replay.fast_replay.func
    monkeypatch.setattr(Replay, "fast_replay", property(lambda self: lambda args: made.append(real(self)(args)) or made[-1]))

    class Scale:
        __slots__ = ("by",)

        def __init__(self):
            self.by = 2.0

    here, numbers, table, variable = Scale(), [1.0, 2.0], {"a": 3.0}, -0.0
    lookup = {"abs": abs}

    def body(x, y):
        return x * here.by * sum(numbers) + table["a"] * len(table) * math.copysign(abs(4.0), variable) + y

    def change(what):
        nonlocal variable
        if what == "variable":
            variable = 0.0 if math.copysign(1.0, variable) < 0 else -0.0
        elif what == "attribute":
            here.by = 5.0 - here.by
        elif what == "item":
            numbers[0] = 5.0 - numbers[0]
        elif what == "length":
            numbers.pop() if len(numbers) > 2 else numbers.append(7.0)
        elif what == "builtin":
            globals().pop("abs") if "abs" in globals() else globals().update(abs=lambda x: -lookup["abs"](x))
        elif what == "contents":
            table.pop("b") if "b" in table else table.update(b=1.0)

    f = tg.trace(body)
    x, y = v(1, 2), v(3, 4)
    for what in ("nothing", "variable", "attribute", "item", "length", "builtin", "contents"):
        for _ in range(2):                               # changed, and put back
            change(what)
            for _ in range(3):
                assert seen(f(x, y)) == seen(body(x, y)), what
            assert made[-1] is not None, what            # the third call is like the second


@pytest.mark.recall
def test_many_arguments_are_no_fast_replay():
    """Its text would be long; what such a call computes is the same."""
    f = tg.trace(lambda *xs: sum(xs))
    for count in (fast_replay.MOST - 1, fast_replay.MOST):
        xs = [v(float(i)) for i in range(count)]
        for _ in range(3):
            assert seen(f(*xs)) == [sum(range(count))]
        assert f._latest.short == (count < fast_replay.MOST)


def test_arguments_of_the_recording_are_not_kept():
    f = tg.trace(lambda x, d: (x * 2, d["y"] + x))
    x, y = v(1, 2), v(3, 4)
    f(x, {"y": y})
    refs = [weakref.ref(x), weakref.ref(y)]
    del x, y
    assert [r() for r in refs] == [None, None]


def test_writing_views_in_a_loop_does_not_gather_work():
    x = tg.zeros(4)
    f = tg.trace(lambda a: a.add_(1.0))
    for i in range(40):
        f(x[i % 4:i % 4 + 1])
    assert len(list(Graph.capture([], [x._n]))) < 20
    assert x.tolist() == [10, 10, 10, 10]


def test_threads_that_call_one_traced_function():
    """The recording and the grad mode belong to a thread; replays follow one another."""
    f = tg.trace(lambda x, k: ((x * k).sin() + x).sum() if tg.is_grad_enabled() else (x * k).sum())
    wrong = []

    def work(n):
        rng = np.random.default_rng(n)
        for i in range(25):
            a, k = rng.standard_normal(3 + i % 4), float(rng.standard_normal())
            grad = bool((i + n) % 2)
            with tg.set_grad_enabled(grad):
                found = f(tg.tensor(a), k).item()
            wanted = (np.sin(a * k) + a).sum() if grad else (a * k).sum()
            if abs(found - wanted) > 1e-9:
                wrong.append((n, i, found, wanted))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_what_an_installed_package_holds_is_not_watched(tmp_path, monkeypatch, folder):
    """Where pip installs it, and where Debian's Python has it."""
    home = tmp_path / folder
    home.mkdir()
    (home / "huge_table.py").write_text("table = [[k] for k in range(100_001)]\n\n\ndef scaled(x):\n    return x * len(table)\n")
    monkeypatch.syspath_prepend(str(home))
    scaled = importlib.import_module("huge_table").scaled
    del sys.modules["huge_table"]
    assert tg.trace(lambda x: scaled(x) + 1)(v(2.0)).tolist() == [200_003.0]


def test_classes_of_executed_text_are_the_users():
    """Whatever the text calls its module, which nobody has imported: a method that is replaced is seen."""
    names = {"__name__": "nobodys", "tg": tg}
    exec("class Model:\n    def scaled(self, x):\n        return x * 2\n\n\nmodel = Model()\nrun = lambda x: model.scaled(x) + 1\n", names)
    f = tg.trace(names["run"])
    assert [f(v(3.0)).tolist() for _ in range(3)] == [[7.0]] * 3
    names["Model"].scaled = lambda self, x: x * 5
    assert f(v(3.0)).tolist() == [16.0]
