"""Errors: each names what the user called, what it saw, the user's line and a way out; and what fails changes nothing."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.graph.operators import FOURIER, FUNCTIONAL, LINALG, PUBLIC, SPECIAL
from tracegrad.nn import functional as F
from tracegrad.runtime import device as runtime_device
from tracegrad.runtime.programs import build as runtime_program

HUGE = 1 << 42                    # elements: more than any buffer


@pytest.fixture
def opencl():
    """The default device; the test is about OpenCL."""
    found = tg.device()
    if found.kind == "numpy":
        pytest.skip("needs an OpenCL device")
    return found


def test_the_users_line_is_none_of_pythons_own_modules():
    """functional_call enters a context of contextlib's, which looks at the names."""
    model = tg.nn.Linear(2, 2)
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(tg.ArgumentError, match="unexpected bais") as told:
        tg.func.functional_call(model, {"bais": tg.ones(2)}, tg.ones(2))
    assert told.value.line == f"{__file__}:{line}"


BAD_CALLS = [
    # what is called, the error, words of the message
    ("add: shapes", lambda a: a + tg.ones(4), tg.ShapeError, ["add", "(2, 3)", "(4,)", "reshape or unsqueeze"]),
    ("matmul", lambda a: a @ tg.ones(2, 2), tg.ShapeError, ["matmul", "(2, 3)", "(2, 2)", "transpose"]),
    ("mm", lambda a: tg.mm(a, tg.ones(3)), tg.ShapeError, ["mm", "(3,)"]),
    ("reshape", lambda a: a.reshape(4, 2), tg.ShapeError, ["reshape", "6", "(4, 2)"]),
    ("reshape: -1", lambda a: a.reshape(-1, -1), tg.ShapeError, ["reshape", "-1"]),
    ("expand", lambda a: a.expand(5, 3), tg.ShapeError, ["expand", "(2, 3)", "(5, 3)"]),
    ("cat: shapes", lambda a: tg.cat([a, tg.ones(2, 2)]), tg.ShapeError, ["cat", "(2, 3)", "(2, 2)", "dim 0"]),
    ("cat: nothing", lambda a: tg.cat([]), tg.ArgumentError, ["cat", "at least one tensor"]),
    ("stack: nothing", lambda a: tg.stack([]), tg.ArgumentError, ["stack", "at least one tensor"]),
    ("sum: dim", lambda a: a.sum(2), tg.IndexOutOfRange, ["sum", "dim 2", "-2 to 1"]),
    ("max: dim", lambda a: a.max(-3), tg.IndexOutOfRange, ["max", "dim -3"]),
    ("softmax: dim", lambda a: a.softmax(7), tg.IndexOutOfRange, ["softmax", "dim 7"]),
    ("transpose: dim", lambda a: a.transpose(0, 2), tg.IndexOutOfRange, ["transpose", "dim 2"]),
    ("index", lambda a: a[0, 3], tg.IndexOutOfRange, ["getitem", "index 3", "(2, 3)"]),
    ("too many indices", lambda a: a[0, 0, 0], tg.IndexOutOfRange, ["getitem", "3 indices", "(2, 3)"]),
    ("index of floats", lambda a: a[tg.ones(2)], tg.DTypeError, ["getitem", "float32"]),
    ("mask", lambda a: a[tg.ones(3, dtype=tg.bool_)], tg.IndexOutOfRange, ["getitem", "(3,)", "(2, 3)"]),
    ("gather", lambda a: a.gather(0, tg.ones(2, 3)), tg.DTypeError, ["gather", "float32", "long"]),
    ("bitwise", lambda a: a & 1, tg.DTypeError, ["bitwise_and", "float32", "cast"]),
    ("int too large", lambda a: tg.tensor([1], dtype=tg.int8) + 1000, tg.DTypeError, ["add: ", "1000", "int8", "cast"]),
    ("list operand", lambda a: tg.exp([1.0]), tg.DTypeError, ["exp", "list", "tg.tensor"]),
    ("in place: shape", lambda a: tg.ones(3).add_(a), tg.ShapeError, ["add_", "(2, 3)", "(3,)"]),
    ("in place: dtype", lambda a: tg.ones(2, 3, dtype=tg.int64).mul_(a), tg.DTypeError, ["mul_", "float32", "int64"]),
    ("item", lambda a: a.item() + 1, tg.ShapeError, ["item", "(2, 3)"]),
    ("bool", lambda a: not a, tg.ShapeError, ["bool", "(2, 3)", "any()"]),
    ("ones: size", lambda a: tg.ones(-1), tg.ArgumentError, ["ones", "-1"]),
    ("zeros: word", lambda a: tg.zeros("a"), tg.ArgumentError, ["zeros", "'a'"]),
    ("eye", lambda a: tg.eye(-1), tg.ArgumentError, ["eye", "-1"]),
    ("linspace", lambda a: tg.linspace(0, 1, -4), tg.ArgumentError, ["linspace", "-4"]),
    ("arange", lambda a: tg.arange(0, 1, 0), tg.ArgumentError, ["arange", "step"]),
    ("randint", lambda a: tg.randint(5, 5, (3,)), tg.ArgumentError, ["randint", "5"]),
    ("randint of floats", lambda a: tg.randint(2.5, 7.5, (3,)), tg.ArgumentError, ["randint", "2.5"]),
    ("randint beyond the dtype", lambda a: tg.randint(0, 300, (3,), dtype=tg.uint8), tg.DTypeError, ["randint", "uint8", "299"]),
    ("seed", lambda a: tg.manual_seed(-1), tg.ArgumentError, ["manual_seed", "-1"]),
    ("optimizer", lambda a: tg.optim.SGD([tg.ones(2, requires_grad=True)], momentum=-1.0), tg.ArgumentError, ["SGD", "momentum"]),
    ("tensor: ragged", lambda a: tg.tensor([[1], [1, 2]]), tg.ArgumentError, ["tensor", "ragged"]),
    ("tensor: words", lambda a: tg.tensor("abc"), tg.DTypeError, ["tensor", "str"]),
    ("tensor: complex", lambda a: tg.tensor(1j, dtype=tg.float32), tg.DTypeError, ["tensor", "complex", "float32"]),
    ("dtype", lambda a: tg.zeros(3, dtype="float31"), tg.DTypeError, ["dtype: ", "float31", "tg.float32"]),
    ("requires_grad", lambda a: tg.tensor([1], requires_grad=True), tg.DTypeError, ["requires_grad", "int64"]),
    ("full: no number", lambda a: tg.full((2,), "a"), tg.DTypeError, ["full: ", "number", "str"]),
    ("full: does not fit", lambda a: tg.full((2,), -1, dtype=tg.uint8), tg.DTypeError, ["full: ", "-1", "uint8"]),
    ("tensor: does not fit", lambda a: tg.tensor([1, 300], dtype=tg.uint8), tg.DTypeError, ["tensor: ", "300", "uint8", "wider"]),
    ("randint: does not fit", lambda a: tg.randint(-5, 5, (2,), dtype=tg.uint8), tg.DTypeError, ["randint: ", "-5", "uint8"]),
    ("fill_: does not fit", lambda a: a.to(tg.int8).fill_(300), tg.DTypeError, ["fill_: ", "300", "int8"]),
    ("setitem: does not fit", lambda a: a.to(tg.int8).__setitem__(0, 300), tg.DTypeError, ["setitem: ", "300", "int8"]),
    ("setitem: words", lambda a: a.__setitem__(0, None), tg.DTypeError, ["setitem: ", "NoneType"]),
    ("arange: not finite", lambda a: tg.arange(float("inf")), tg.ArgumentError, ["arange: ", "inf"]),
    ("expand: negative", lambda a: a.expand(-2, 2, 3), tg.ShapeError, ["expand: ", "(-2, 2, 3)"]),
    ("broadcast_to", lambda a: tg.broadcast_to(a, (2, 4)), tg.ShapeError, ["broadcast_to: ", "(2, 3)", "(2, 4)"]),
    ("copy_", lambda a: a.copy_(tg.ones(4)), tg.ShapeError, ["copy_: ", "(4,)", "(2, 3)"]),
    ("repeat: negative", lambda a: a.repeat(-1, 2), tg.ArgumentError, ["repeat: ", "(-1, 2)"]),
    ("dim: bool", lambda a: a.sum(dim=True), tg.ArgumentError, ["sum: ", "dim", "True"]),
    ("transpose: 0-d", lambda a: tg.ones(()).transpose(0, 3), tg.IndexOutOfRange, ["transpose: ", "3"]),
    ("select: no integer", lambda a: a.select(0, 1.0), tg.ArgumentError, ["select: ", "index", "1.0"]),
    ("split: sizes", lambda a: a.split([1, -1, 2]), tg.ShapeError, ["split: ", "-1"]),
    ("split: 0-d", lambda a: tg.ones(()).split(1), tg.ShapeError, ["split: ", "()"]),
    ("roll", lambda a: a.roll((1, 2), 0), tg.ArgumentError, ["roll: ", "(1, 2)"]),
    ("stack: number", lambda a: tg.stack([a, [1.0]]), tg.DTypeError, ["stack: ", "list", "tg.tensor"]),
    ("gather: list", lambda a: a.gather(0, [[0]]), tg.DTypeError, ["gather: ", "index", "list"]),
    ("index_add: dtype", lambda a: a.long().index_add(0, tg.tensor([0]), a[:1]), tg.DTypeError, ["index_add: ", "float32", "int64"]),
    ("index_copy: shape", lambda a: a.index_copy(0, tg.tensor([0]), a), tg.ShapeError, ["index_copy: ", "(2, 3)", "(1, 3)"]),
    ("masked_fill: mask", lambda a: a.masked_fill(tg.ones(4) > 0, 1), tg.ShapeError, ["masked_fill: ", "(4,)", "(2, 3)"]),
    ("masked_fill: value", lambda a: a.masked_fill(a > 0, a), tg.ShapeError, ["masked_fill: ", "(2, 3)", "tg.where"]),
    ("index into nothing", lambda a: a[:0][tg.tensor([0])], tg.IndexOutOfRange, ["getitem: ", "size 0"]),
    ("logical_and", lambda a: tg.logical_and(a, tg.ones(4)), tg.ShapeError, ["logical_and: ", "(2, 3)", "(4,)"]),
    ("where: no mask", lambda a: tg.where(a, a, 0.0), tg.DTypeError, ["where: the condition must be bool, got float32"]),
    ("where: one operand", lambda a: tg.where(a > 0, a), tg.ArgumentError, ["where: ", "input and other"]),
    ("max of nothing", lambda a: a[:0].max(), tg.ArgumentError, ["max: ", "(0, 3)"]),
    ("norm: dtype", lambda a: a.norm(dtype=tg.int64), tg.DTypeError, ["norm: ", "int64"]),
    ("pad: value", lambda a: tg.nn.functional.pad(a, (1, 1), "reflect", 5.0), tg.ArgumentError, ["pad: ", "reflect", "5.0"]),
    ("operator", lambda a: a.long().__itruediv__(2), tg.DTypeError, ["/=: ", "float32", "int64"]),
    ("size", lambda a: a.size(2), tg.IndexOutOfRange, ["size: ", "dim 2"]),
    ("device", lambda a: a.to("no such thing"), tg.NoDriverError, ["device: ", "no such thing", "doctor"]),
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("call", "error", "words"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS])
def test_bad_calls(call, error, words):
    a = tg.arange(6.0).reshape(2, 3)
    with pytest.raises(error) as caught:
        call(a)
    message = str(caught.value)
    assert message.startswith(words[0])
    for word in words:
        assert word in message
    assert message.endswith(f"(at {__file__}:{call.__code__.co_firstlineno})")
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_line_is_that_of_the_user_also_deep_inside():
    def loss(w):
        hidden = (w @ tg.ones(3, 4)).relu()
        return tg.nn.functional.mse_loss(hidden, tg.ones(2, 5))          # does not fit

    line = loss.__code__.co_firstlineno + 2
    for call in (loss, tg.grad(loss), tg.trace(loss), tg.trace(tg.grad(loss))):
        with pytest.raises(tg.ShapeError) as caught:
            call(tg.ones(2, 3))
        assert caught.value.line == f"{__file__}:{line}"
        assert str(caught.value).startswith("mse_loss: ")


def test_two_devices_in_one_operation(opencl):
    a, b = tg.ones(3), tg.ones(3, device="numpy")
    for call in (lambda: a + b, lambda: tg.cat([a, b]), lambda: a.where(b > 0, 0), lambda: a @ b, lambda: tg.stack([b, a])):
        with pytest.raises(tg.DeviceError, match="different devices") as caught:
            call()
        assert opencl.name in str(caught.value)
        assert "numpy" in str(caught.value)
    with pytest.raises(tg.DeviceError, match="grad"):
        a.grad = b
    assert (a + b.to(a.device)).tolist() == [2, 2, 2]
    assert a.copy_(b * 3).tolist() == [3, 3, 3]                           # copy_ moves, as in torch
    assert a.device is opencl


def test_float64_on_a_device_without_it(opencl, kernels, monkeypatch):
    a = tg.ones(3)
    before = (a * 2).tolist()
    monkeypatch.setattr(opencl, "target", dataclasses.replace(opencl.target, fp64=False))
    x = tg.tensor(np.ones(3))
    y = x.sin() * 3                                                       # the line that is to blame
    line = sys._getframe().f_lineno - 1
    with pytest.raises(tg.UnsupportedError, match="no float64; use float32") as caught:
        y.numpy()
    assert f"{__file__}:{line}" in str(caught.value)
    assert f"(at {__file__}:{line + 3})" in str(caught.value)
    with pytest.raises(tg.UnsupportedError):
        tg.trace(lambda a: a.double().sum())(a)
    assert (a * 2).tolist() == before                                     # float32 goes on, whatever else is pending
    lr = 0.1                                                              # Python floats are not float64
    np.testing.assert_allclose(tg.trace(lambda a, lr: a - lr * 0.5)(a, lr).numpy(), 0.95)
    monkeypatch.undo()
    np.testing.assert_allclose(y.numpy(), np.sin(1) * 3)


def test_half_precision_needs_no_half_arithmetic(opencl):
    x = tg.tensor([1.0, 2.0], dtype=tg.float16)
    assert (x * 2).dtype == tg.float16
    assert (x * 2 + x.sum()).tolist() == [5.0, 7.0]


def test_no_driver(monkeypatch):
    monkeypatch.setattr(runtime_device, "_devices", [])
    monkeypatch.setattr(runtime_device, "_discover", list)
    monkeypatch.setattr(runtime_device, "chosen", [])
    for call in (lambda: tg.tensor([1.0]), lambda: tg.zeros(3), lambda: tg.set_device("gpu"), tg.trace(lambda: tg.ones(3))):
        with pytest.raises(tg.NoDriverError) as caught:
            call()
        assert "pip install pocl-binary-distribution" in str(caught.value)
        assert "python -m tracegrad doctor" in str(caught.value)
        assert __file__ in str(caught.value)
    assert tg.devices() == []
    assert tg.tensor([1.0], device="numpy").tolist() == [1.0]             # the interpreter needs none
    monkeypatch.undo()
    assert (tg.ones(2) + 1).tolist() == [2, 2]


def test_an_unknown_device_leaves_the_default():
    before = tg.device()
    with pytest.raises(tg.NoDriverError, match="nonsense") as caught:
        tg.set_device("nonsense")
    assert all(device.name in str(caught.value) for device in tg.devices())
    assert tg.device() is before


class TestOutOfMemory:
    def test_bytes_are_stated_and_the_rest_goes_on(self, opencl):
        a = tg.arange(3.0)
        pending = a * 2
        huge = tg.zeros(HUGE)
        with pytest.raises(tg.OutOfMemoryError, match=str(4 * HUGE)) as caught:
            huge.numpy()
        assert "smaller batches" in str(caught.value)
        assert f"(at {__file__}" in str(caught.value)
        assert pending.tolist() == [0, 2, 4]                              # although `huge` is still pending
        assert (a + pending).tolist() == [0, 3, 6]
        assert tg.trace(lambda x: x + 1)(pending * 2).tolist() == [1, 5, 9]
        assert huge[:3].tolist() == [0, 0, 0]                             # a part of it needs no such memory
        with pytest.raises(tg.OutOfMemoryError):
            huge.numpy()
        del huge
        tg.flush()

    def test_synchronize_tells_and_computes_the_rest(self, opencl):
        a, huge = tg.ones(3), tg.zeros(HUGE)
        b = a * 2
        with pytest.raises(tg.OutOfMemoryError):
            tg.synchronize()
        assert b._n.value is not None
        del huge
        tg.synchronize()

    def test_what_is_pending_does_not_stop_operations(self, opencl, monkeypatch):
        monkeypatch.setattr(tg.config, "pending", 20)
        huge = tg.zeros(HUGE)
        xs = [tg.ones(2) * i for i in range(80)]
        assert [x.tolist()[0] for x in xs[::20]] == [0, 20, 40, 60]
        del huge

    def test_a_traced_step_leaves_its_parameters(self, opencl):
        w = tg.ones(3, requires_grad=True)
        counter = tg.zeros(())

        def step(n):
            loss = (w * w).sum()
            loss.backward()
            counter.add_(1)
            with tg.no_grad():
                w.sub_(w.grad)
                w.grad = None
            return loss, w.detach()[0] * tg.ones(n)

        traced = tg.trace(step)
        with pytest.raises(tg.OutOfMemoryError):
            traced(HUGE)
        assert (w.tolist(), counter.item(), w.grad, w._version) == ([1, 1, 1], 0, None, 0)
        assert w.requires_grad
        assert w.is_leaf
        loss, _ = traced(2)
        assert (loss.item(), w.tolist(), counter.item()) == (3, [-1, -1, -1], 1)

    def test_when_the_system_gives_no_more(self, opencl, tmp_path):
        """Below what the device claims to have: a limit of the process. In a process of its own, because drivers have crashed here."""
        if opencl.kind != "cpu" or sys.platform != "linux":
            pytest.skip("needs a device in the host's memory, and Linux's way to limit that")
        script = tmp_path / "limited.py"
        script.write_text(f"""
import resource
import tracegrad as tg
f = tg.trace(lambda k: tg.zeros({1 << 26}) + k)
(f(0.0)[0].item(), (tg.ones(3) * 2).tolist())                              # built before the limit
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
kept = []
try:
    for k in range(8):                                                     # 256 MB each
        kept.append(f(float(k)))
        tg.synchronize()
except tg.OutOfMemoryError as error:
    print(error)
print(len(kept), [x[0].item() for x in kept[:2]])
kept.clear()
print(f(5.0)[0].item())
""")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120,
                              env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])})
        assert done.returncode == 0, done.stderr
        message, kept, after = done.stdout.splitlines()
        assert message.startswith("out of memory: 268435456 bytes")
        assert str(script) in message
        assert kept.endswith("[0.0, 1.0]")
        assert after == "5.0"

    def test_backward_beside_it(self, opencl):
        w = tg.ones(3, requires_grad=True)
        huge = tg.zeros(HUGE)
        (w * w).sum().backward()
        assert w.grad.tolist() == [2, 2, 2]
        del huge


class TestBuild:
    def test_a_kernel_that_the_driver_rejects(self, opencl, kernels, monkeypatch):
        monkeypatch.setattr(tg.config, "cache", False)       # on the disk it is what an earlier run had built
        x = tg.arange(4.0)
        x.tolist()
        real = runtime_program._build

        def broken(text):
            return text.replace(") {", ") { int broken = nowhere;", 1)

        monkeypatch.setattr(runtime_program, "_build", lambda c, d, source, given: real(c, d, broken(source), (broken(given[0]), given[1])))
        y = (x * 3 + 0.123).sin()
        with pytest.raises(tg.BuildError, match="driver rejected") as caught:
            y.numpy()
        assert "nowhere" in caught.value.source
        assert "nowhere" in caught.value.log
        assert __file__ in str(caught.value)
        with pytest.raises(tg.BuildError):
            tg.trace(lambda x: (x * 5 + 0.321).cos())(x)
        monkeypatch.undo()
        np.testing.assert_allclose(y.numpy(), np.sin(np.arange(4) * 3 + 0.123), rtol=1e-5)       # still pending, and fine


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("given", [2, 2.5, [1.0, 2.0], None, "x"], ids=repr)
def test_what_is_no_tensor_is_an_error_that_says_so(given):
    """In place of a function's first array: never an AttributeError from within."""
    x, raw = tg.ones(3, 3), []
    for space in (PUBLIC, FUNCTIONAL, SPECIAL, LINALG, FOURIER):
        for name, fn in space.items():
            try:
                parameters = [*inspect.signature(fn).parameters.values()]
            except ValueError:
                continue
            if parameters and parameters[0].annotation == "str":        # elementwise takes a text
                continue
            needed = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
            try:
                fn(given, *[x] * (needed - 1))
            except (tg.TracegradError, TypeError, ValueError, IndexError):
                pass                                        # a creation function takes other things, and says what
            except Exception as e:
                raw.append(f"{name}: {type(e).__name__}: {e}")
    assert not raw, "\n".join(raw)


def test_composed_functions_name_themselves_and_what_they_got():
    for fn, name in ((tg.clamp, "clamp"), (tg.clamp_max, "clamp_max"), (tg.isfinite, "isfinite"),
                     (F.mish, "mish"), (tg.special.entr, "entr")):
        with pytest.raises(tg.DTypeError, match=rf"^{name}: .*Tensor, got int; use tg.tensor"):
            fn(*(2, 3)[:2 if "clamp" in name else 1])
    with pytest.raises(tg.DTypeError, match=r"^masked_fill: a value of complex64 does not fit float32"):
        tg.masked_fill(tg.ones(2), tg.tensor(True), tg.tensor(1j))


@pytest.mark.usefixtures("on_numpy")
def test_limits_are_numbers_or_tensors():
    x = tg.tensor([-2.0, 0.5, 3.0])
    for limit in (1, 1.0, tg.tensor(1.0), tg.ones(3)):
        assert tg.clamp_min(x, limit).tolist() == x.clamp_min(limit).tolist() == tg.clamp_min(x, min=limit).tolist() == [1.0, 1.0, 3.0]
        assert tg.clamp_max(x, limit).tolist() == x.clamp_max(limit).tolist() == tg.clamp_max(x, max=limit).tolist() == [-2.0, 0.5, 1.0]
        assert tg.clamp(x, limit).tolist() == [1.0, 1.0, 3.0]
