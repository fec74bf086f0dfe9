"""What a traced function reaches by ways that its globals and closure do not show: imports in its body, attributes of functions,
metaclasses, buffers, shapes of tensors from outside. The call after a change does what the plain function does."""

import ctypes
import functools
import operator
import subprocess
import sys
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
