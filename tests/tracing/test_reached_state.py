"""What a traced function reaches by ways that its globals and closure do not show: imports in its body, attributes of functions,
metaclasses, buffers, shapes of tensors from outside. The call after a change does what the plain function does."""

import argparse
import collections
import ctypes
import dataclasses
import datetime
import decimal
import fractions
import functools
import operator
import queue
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg

CASES = []


def case(make):
    """make(): a function of a tensor, and what changes the world between two calls."""
    CASES.append(pytest.param(make, id=make.__name__))
    return make


@case
def a_module_imported_in_the_body():
    module = sys.modules["imported_in_a_body"] = types.ModuleType("imported_in_a_body")
    module.scale = 2.0

    def f(x):
        import imported_in_a_body as settings  # noqa: PLC0415
        return x * settings.scale

    return f, lambda: setattr(module, "scale", 3.0)


@case
def a_name_imported_in_the_body():
    module = sys.modules["imported_in_a_body"] = types.ModuleType("imported_in_a_body")
    module.scale = 2.0

    def f(x):
        from imported_in_a_body import scale  # noqa: PLC0415
        return x * scale

    return f, lambda: setattr(module, "scale", 3.0)


@case
def a_module_of_a_package_imported_in_the_body():
    package, module = types.ModuleType("package_of_a_body"), types.ModuleType("package_of_a_body.settings")
    package.settings, module.scale = module, 2.0
    sys.modules |= {"package_of_a_body": package, "package_of_a_body.settings": module}
    names = {"__name__": "package_of_a_body.model", "__package__": "package_of_a_body"}
    exec("def f(x):\n    from . import settings\n    from .settings import scale\n    return x * settings.scale + scale\n", names)
    return names["f"], lambda: setattr(module, "scale", 3.0)


@case
def an_attribute_of_a_function():
    def scaled(x):
        return x * scaled.scale

    scaled.scale = 2.0
    return lambda x: scaled(x) + 1, lambda: setattr(scaled, "scale", 3.0)


@case
def an_attribute_that_a_function_gives_itself():
    def f(x):
        if not hasattr(f, "scale"):
            f.scale = 2.0
        return x * f.scale

    return f, lambda: setattr(f, "scale", 3.0)


@case
def a_property_of_a_metaclass():
    class Meta(type):
        @property
        def scale(cls):
            return cls._scale

    class Settings(metaclass=Meta):
        _scale = 2.0

    return lambda x: x * Settings.scale, lambda: setattr(Settings, "_scale", 3.0)


@case
def an_instance_that_new_gives():
    class Single:
        _one = None

        def __new__(cls):
            if cls._one is None:
                cls._one = super().__new__(cls)
                cls._one.scale = 2.0
            return cls._one

    Single()
    return lambda x: x * Single().scale, lambda: setattr(Single(), "scale", 3.0)


@case
def an_implementation_registered_later():
    @functools.singledispatch
    def scale(of):
        return 2.0

    return lambda x: x * scale("a"), lambda: scale.register(str, lambda of: 3.0)


@case
def an_attrgetter():
    o = types.SimpleNamespace(settings=types.SimpleNamespace(scale=2.0))
    get = operator.attrgetter("settings.scale")
    return lambda x: x * get(o), lambda: setattr(o.settings, "scale", 3.0)


@case
def a_memoryview():
    held = memoryview(bytearray(b"abc"))
    return lambda x: x * held[0], lambda: operator.setitem(held, 0, 5)


@case
def a_number_of_ctypes():
    number = ctypes.c_int(2)
    return lambda x: x * number.value, lambda: setattr(number, "value", 3)


@case
def an_array_of_objects():
    held = np.array([{"scale": 2.0}], dtype=object)
    return lambda x: x * held[0]["scale"], lambda: held[0].update(scale=3.0)


@case
def a_container_of_another_package():
    matrix = pytest.importorskip("scipy.sparse").csr_matrix(np.eye(2))
    return lambda x: x * float(matrix[0, 0]), lambda: operator.setitem(matrix, (0, 0), 3.0)


@case
def the_shape_of_a_tensor_outside():
    held = tg.ones(2)
    return lambda x: x * held.shape[0], lambda: setattr(held, "data", tg.ones(5))


@case
def the_length_of_a_tensor_outside():
    held = tg.ones(2, 3)
    return lambda x: x * len(held), held.t_


@case
def the_dtype_of_an_unused_parameter():
    model = tg.nn.Module()
    model.dummy = tg.nn.Parameter(tg.empty(0))
    return lambda x: x.to(model.dummy.dtype), model.double


class Numbers(list):
    """A container of the user's: it has attributes and methods, too."""

    scale = 2.0

    def total(self):
        return sum(self) * self.scale


class Words(str):
    pass


class Point(collections.namedtuple("Point", "x y")):
    def norm(self):
        return self.x * self.y


@case
def an_attribute_of_a_list():
    numbers = Numbers([1.0])
    return lambda x: x * numbers.scale, lambda: setattr(numbers, "scale", 3.0)


@case
def what_a_method_of_a_list_reads():
    numbers = Numbers([1.0])
    return lambda x: x * numbers.total(), lambda: setattr(numbers, "scale", 3.0)


@pytest.mark.parametrize("make", [
    lambda: type("Table", (dict,), {})(a=1.0), lambda: type("Row", (tuple,), {})([1.0]), lambda: type("Bag", (set,), {})([1]),
    lambda: type("Fixed", (frozenset,), {})([1]), lambda: type("Queue", (collections.deque,), {})([1]),
    lambda: type("Ordered", (collections.OrderedDict,), {})(a=1.0), lambda: type("Word", (str,), {})("a"),
    lambda: type("Number", (int,), {})(1), lambda: type("Real", (float,), {})(1.0), lambda: type("Array", (np.ndarray,), {})((1,)),
    lambda: type("Call", (functools.partial,), {})(abs), lambda: type("Text", (bytearray,), {})(b"a"),
    lambda: type("Weight", (tg.nn.Parameter,), {})(tg.ones(1)), collections.Counter, collections.OrderedDict,
], ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("of_class", [True, False])
def test_an_attribute_of_a_container_of_the_users(make, of_class):
    held = make()
    (type(held) if of_class and type(held).__module__ != "collections" else held).scale = 2.0
    f = tg.trace(lambda x: x * held.scale)
    assert [f(tg.ones(1)).tolist() for _ in range(2)] == [[2.0]] * 2
    held.scale = 3.0                                         # hides that of the class
    assert f(tg.ones(1)).tolist() == [3.0]


@case
def a_method_of_a_named_tuple():
    point = Point(1.0, 2.0)
    return lambda x: x * point.norm(), lambda: setattr(Point, "norm", lambda self: 3.0)


@case
def another_word_that_equals():
    """Words are equal by their letters; the code reads what else they hold."""
    held = types.SimpleNamespace(word=Words("a"))
    held.word.scale = 2.0

    def change():
        held.word = Words("a")
        held.word.scale = 3.0

    return lambda x: x * held.word.scale, change


@case
def another_class():
    class Double:
        def __call__(self, x):
            return x * 2

    class Triple(Double):
        def __call__(self, x):
            return x * 3

    o = Double()
    return lambda x: o(x), lambda: setattr(o, "__class__", Triple)  # noqa: PLW0108


@case
def another_class_of_a_layer():
    class Scaled(tg.nn.Linear):
        def forward(self, x):
            return super().forward(x) * 3

    layer = tg.nn.Linear(2, 2)
    return lambda x: layer(x), lambda: setattr(layer, "__class__", Scaled)  # noqa: PLW0108


@case
def values_of_a_dictionary():
    scales = {"a": 1.0}
    values = scales.values()
    return lambda x: x * sum(values), lambda: scales.update(a=3.0)


@case
def a_key_that_equals():
    table = {1: 0}
    return lambda x: x * (2.0 if next(iter(table)) is True else 3.0), lambda: (table.clear(), table.update({True: 0}))


@case
def a_member_of_a_set_that_equals():
    members = {1}
    return lambda x: x * (2.0 if next(iter(members)) is True else 3.0), lambda: (members.clear(), members.add(True))


@case
def a_computed_name_of_a_namespace():
    settings = argparse.Namespace(scale=2.0)
    return lambda x: x * functools.reduce(getattr, ["scale"], settings), lambda: setattr(settings, "scale", 3.0)


@case
def a_computed_name_of_a_simple_namespace():
    settings = types.SimpleNamespace(scale1=2.0)
    return lambda x: x * getattr(settings, f"scale{1}"), lambda: setattr(settings, "scale1", 3.0)


@case
def an_event():
    event = threading.Event()
    return lambda x: x * 2 if event.is_set() else x, event.set


@case
def the_size_of_a_queue():
    waiting = queue.Queue()
    return lambda x: x * waiting.qsize(), lambda: waiting.put(1)


@case
def the_rate_of_a_scheduler():
    scheduler = tg.optim.lr_scheduler.StepLR(tg.optim.SGD([tg.nn.Parameter(tg.ones(1))], lr=2.0), 1)
    return lambda x: x * scheduler.get_last_lr()[0], scheduler.step


@case
def the_scale_of_losses():
    scaler = tg.amp.GradScaler("cpu", init_scale=2.0)
    return scaler.scale, lambda: scaler.update(3.0)


@pytest.mark.parametrize("make", CASES)
def test_a_change_is_seen(make):
    f, change = make()
    traced, x = tg.trace(f), tg.tensor([1.0, 2.0])
    assert [traced(x).tolist() for _ in range(3)] == [f(x).tolist()] * 3
    change()
    found, wanted = traced(x), f(x)
    assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())
    assert traced(x).tolist() == wanted.tolist()


def test_a_module_that_the_body_imports_first(tmp_path, monkeypatch):
    """It is not there when the function is looked at: it is watched from the second call on."""
    (tmp_path / "first_imported_in_a_body.py").write_text("scale = 2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    @tg.trace
    def f(x):
        import first_imported_in_a_body  # noqa: PLC0415
        return x * first_imported_in_a_body.scale

    assert [f(tg.ones(1)).tolist() for _ in range(3)] == [[2.0]] * 3
    sys.modules["first_imported_in_a_body"].scale = 3.0
    assert f(tg.ones(1)).tolist() == [3.0]


def test_a_missing_module_is_no_change():
    """Imports that fail leave the recording as it is."""

    @tg.trace
    def f(x):
        try:
            import a_module_that_is_not_there  # noqa: F401, PLC0415
        except ImportError:
            return x * 2
        return x

    assert [f(tg.ones(1)).tolist() for _ in range(3)] == [[2.0]] * 3
    assert len(f.compilations) == 1


def test_numpys_generator_first_used_in_the_body():
    """numpy loads numpy.random when it is named, which is after the function was looked at."""
    program = ("import numpy as np, tracegrad as tg\nassert 'numpy.random' not in __import__('sys').modules\n"
               "f = tg.trace(lambda x: x + np.random.rand())\nf(tg.ones(1))\nf(tg.ones(1))\n")
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "changes Python state that it reads" in done.stderr


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: object
    words: tuple = ()


class Named:
    """Equal by its name; what the code reads is its scale."""

    def __init__(self, name, scale):
        self.name, self.scale = name, scale

    def __eq__(self, other):
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def times(self, x):
        return x * self.scale


def worded(scale):
    word = Words("a")
    word.scale = scale
    return word


ARGUMENTS = {
    "an int and a float": (lambda x, o: x * o.scale, [Frozen(2), Frozen(2.0), Frozen(True), Frozen(2)]),
    "signs of zero": (lambda x, o: x.float().copysign(tg.full((), o.scale)), [Frozen(0.0), Frozen(-0.0), Frozen(0.0)]),
    "nested": (lambda x, o: x * o.words[0][0].scale, [Frozen(1, ((Frozen(2),),)), Frozen(1, ((Frozen(2.0),),))]),
    "== of the user's": (lambda x, o: x * o.scale, [Named("a", 2), Named("a", 3), Named("a", 2.5), Named("a", 2)]),
    "a tensor in it": (lambda x, o: x * o.scale, [Named("a", tg.tensor([2])), Named("a", tg.tensor([3]))]),
    "attributes of a word": (lambda x, o: x * o.scale, [worded(2), worded(3), worded(2)]),
    "a bound method": (lambda x, f: f(x), [Named("a", 2).times, Named("a", 3).times]),
    "members of a frozenset": (lambda x, s: x * (2 if True in [m is True for m in s] else 3), [frozenset({1, 5}), frozenset({True, 5})]),
    "a range": (lambda x, r: x * r.step, [range(5, 5, 7), range(5, 5, 2)]),
    "a decimal": (lambda x, d: x * len(str(d)), [decimal.Decimal(2), decimal.Decimal("2.00")]),
    "a number of numpy's": (lambda x, n: tg.ones(1).copysign(tg.tensor(float(n))), [np.float32(0.0), np.float32(-0.0)]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_static_arguments_that_are_equal_and_not_alike(name):
    f, objects = ARGUMENTS[name]
    traced, x = tg.trace(f), tg.tensor([3])
    for o in objects * 2:
        found, wanted = traced(x, o), f(x, o)
        assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist()), o


@pytest.mark.parametrize("make", [
    lambda: Frozen(2, (Frozen(2.5, ("a", None)),)), lambda: Named("a", 2), lambda: range(2, 7), lambda: decimal.Decimal("2.5"),
    lambda: frozenset({1, "a", (2.5, None)}), lambda: worded(2), lambda: fractions.Fraction(2, 3), lambda: Point(2, Frozen(3)),
    lambda: datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC), lambda: Path("a"), lambda: np.float32(2.5),
], ids=lambda make: type(make()).__name__)
def test_static_arguments_that_are_made_anew_are_one_recording(make):
    f = tg.trace(lambda x, o: x * 2)
    for _ in range(3):
        f(tg.ones(1), make())
    assert len(f.compilations) == 1


def test_a_traced_backward_has_the_scale_of_its_step():
    """`GradScaler.update` gives another scale; the gradients of a replay have it, and `step` takes it from them."""
    def weights(wrap):
        w = tg.nn.Parameter(tg.ones(1))
        optimizer, scaler = tg.optim.SGD([w], lr=1.0), tg.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def forward_and_backward(x):
            optimizer.zero_grad()
            scaler.scale((w * x).sum()).backward()

        f, found = wrap(forward_and_backward), []
        for _ in range(5):
            f(tg.ones(1))
            scaler.step(optimizer)
            scaler.update()
            found.append(w.item())
        return found, f

    traced, f = weights(tg.trace)
    assert traced == weights(lambda f: f)[0] == [0.0, -1.0, -2.0, -3.0, -4.0]
    assert len(f.compilations) <= 5                          # a step that leaves the scale as it is is a replay


def test_a_scheduler_that_is_not_read_is_not_watched():
    scheduler = tg.optim.lr_scheduler.StepLR(tg.optim.SGD([tg.nn.Parameter(tg.ones(1))], lr=2.0), 1)
    f = tg.trace(lambda x: x if scheduler is None else x * 2)
    for _ in range(3):
        f(tg.ones(1))
        scheduler.step()
    assert len(f.compilations) == 1


def test_names_that_are_those_of_tables_in_modules_of_ours():
    """`leaves` in `tg.autograd`, and its `data`: it changes with each tensor, whatever the user calls a function."""
    def leaves(t):
        return [t.data]

    def f(x):
        gradient, = tg.autograd.grad((x * x).sum(), [x])
        return gradient + leaves(x)[0]

    traced = tg.trace(f)
    for _ in range(3):
        x = tg.ones(3, requires_grad=True)
        assert traced(x).tolist() == [3.0] * 3
    assert len(traced.compilations) == 1


@pytest.mark.parametrize(("owner", "name"), [(tg.Tensor, "relu"), (tg.Tensor, "__add__"), (tg.Tensor, "sum"), (tg.nn.functional, "gelu"),
                                             (tg.nn.functional, "linear"), (tg.nn.functional, "softmax")],
                         ids=lambda x: getattr(x, "__name__", x))
def test_methods_and_functions_that_are_replaced(monkeypatch, owner, name):
    layer, gelu, x = tg.nn.Linear(2, 2), tg.nn.GELU(), tg.tensor([-1.0, 2.0])
    calls = {"relu": lambda v: v.relu() * 2, "__add__": lambda v: v + v, "sum": lambda v: v.sum(), "gelu": gelu,
             "linear": layer, "softmax": lambda v: tg.nn.functional.softmax(v, -1)}
    f = tg.trace(calls[name])
    before = f(x)
    for factor in (3, 5):                                   # the second time it is no new name
        monkeypatch.setattr(owner, name, lambda *given, factor=factor, **options: given[0] * factor)
        for _ in range(3):
            assert f(x).tolist() == calls[name](x).tolist()
        assert f(x).tolist() != before.tolist()
    monkeypatch.undo()
    assert f(x).tolist() == before.tolist()
