"""Memory shared with numpy and DLPack: what leaves never changes under its holder, what enters is never written.

Every test runs on the default device and on the interpreter; `tests/runtime/test_runtime.py` has what concerns drivers.
"""

from __future__ import annotations

import array
import gc
import mmap
import resource
import subprocess
import sys

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.errors import ArgumentError, AutogradError, DLPackError, DTypeError, TraceError
from tracegrad.execute.devices import obstacle
from tracegrad.runtime import staging
from tracegrad.tensors.creation import from_data

N = 1 << 19  # float32s: above the size up to which copying is preferred to sharing
KINDS = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


@pytest.fixture
def shares(device):
    """The device, if arrays pass it without a copy."""
    if not device.in_host_memory:
        pytest.skip("this device has memory of its own")
    return device


@pytest.fixture(params=[np.asarray, np.from_dlpack], ids=["asarray", "from_dlpack"])
def export(request):
    return request.param


def aligned(values):
    """A copy of an array that starts where every driver can share it."""
    block = np.empty(values.nbytes + 4096, np.uint8)
    found = block[-block.ctypes.data % 4096 :][: values.nbytes].view(values.dtype).reshape(values.shape)
    found[...] = values
    return found


def numbers(n=N):
    return aligned(np.arange(n, dtype=np.float32))


def frozen(n=N):
    found = numbers(n)
    found.flags.writeable = found.base.flags.writeable = False
    return found


# ---------------------------------------------------------------------------------------------------------------- leaving


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_an_export_is_the_tensors_own_memory_and_read_only(shares, export, kind, shape):
    values = np.ones(shape, kind)
    x = tg.tensor(values)
    if kind == "bfloat16" and export is np.from_dlpack:
        with pytest.raises((BufferError, RuntimeError)):    # numpy has no such dtype
            export(x)
        return
    first, second = export(x), export(x)
    np.testing.assert_array_equal(first, values)
    assert (first.dtype, first.shape) == (values.dtype, values.shape)
    assert np.shares_memory(first, second) or not first.size
    assert not first.flags.writeable
    if first.size:
        with pytest.raises(ValueError, match="WRITEABLE"):
            first.flags.writeable = True
    assert not np.shares_memory(x.numpy(), first)
    assert x.numpy().flags.writeable


def test_copies_that_were_asked_for_can_be_written(device):
    x = tg.tensor(numbers(8))
    for made in (x.numpy(), np.array(x), np.asarray(x, copy=True), np.asarray(x, np.float64), np.from_dlpack(x, copy=True)):
        made[:] = -1
    assert x.tolist() == list(range(8))


def test_pending_work_is_computed_and_shared(shares, export):
    x = tg.tensor(numbers(8))
    y = (x * 2).reshape(2, 4)
    np.testing.assert_array_equal(export(y), numbers(8).reshape(2, 4) * 2)
    assert np.shares_memory(export(y), export(y))
    np.testing.assert_array_equal(export(x[1:7:2]), [1, 3, 5])


@pytest.mark.parametrize("how", ["untraced", "traced", "optimizer", "assignment"])
def test_an_export_survives_updates_in_place(shares, export, how):
    w = tg.tensor(numbers(), requires_grad=True)
    optimizer = tg.optim.SGD([w], lr=1.0)

    def update():
        if how == "optimizer":
            optimizer.zero_grad()
            w.sum().backward()
            optimizer.step()
            return
        with tg.no_grad():
            if how == "assignment":
                w[:] = w - 1.0
            else:
                w.sub_(1.0)

    step = update if how == "untraced" else tg.trace(update)
    seen = [export(w.detach())]
    for _ in range(3):
        step()
        seen.append(export(w.detach()))
        step()                                                  # this one must leave the array just taken alone
    for k, found in enumerate(seen):
        np.testing.assert_array_equal(found, numbers() - max(0, 2 * k - 1), err_msg=f"export {k}")


def test_updates_are_in_place_again_once_an_export_is_gone(shares):
    """The case that the holder pays for, and no other: the same memory is written unless somebody holds it."""
    if shares.kind == "numpy":
        pytest.skip("the interpreter never writes in place")
    x = tg.tensor(numbers())

    @tg.trace
    def step():
        x.add_(1.0)

    def place():
        return np.asarray(x).ctypes.data

    step()
    before = place()
    step()
    assert place() == before
    held = np.asarray(x)
    step()
    assert place() != before
    np.testing.assert_array_equal(held, numbers() + 2)


def test_an_export_outlives_its_tensor_and_the_reuse_of_memory(shares, export):
    expected = numbers() * 3
    kept = [export(tg.tensor(numbers()) * 3) for _ in range(3)]
    gc.collect()
    others = [(tg.tensor(numbers()) * -k) for k in range(6)]
    tg.flush()
    tg.synchronize()
    for found in kept:
        np.testing.assert_array_equal(found, expected)
    del kept
    np.testing.assert_array_equal(others[5].numpy(), numbers() * -5)


def test_a_traced_result_that_is_its_argument_is_held_too(shares, export):
    x = tg.tensor(numbers())

    @tg.trace
    def same(x):
        return x.reshape(-1, 8)

    y = same(x)
    found = export(y)
    del y

    @tg.trace
    def step(x):
        x.mul_(0.0)

    step(x)
    np.testing.assert_array_equal(found.reshape(-1), numbers())


def test_what_cannot_be_exported_says_why(device):
    x = tg.tensor(numbers(4), requires_grad=True)
    with pytest.raises(AutogradError, match=r"numpy\.asarray: .*requires grad.*detach"):
        np.asarray(x)
    for take, name in [(np.from_dlpack, "__dlpack__"), (tg.from_dlpack, "from_dlpack")]:
        with pytest.raises(DLPackError, match=rf"{name}: .*requires grad.*detach"):
            take(x)
    x = x.detach()
    with pytest.raises(ValueError, match="float32, not float64"):
        np.asarray(x, np.float64, copy=False)
    with pytest.raises(BufferError, match="flag"):
        x.__dlpack__(copy=False)
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream 1"):
        x.__dlpack__(stream=1)

    @tg.trace
    def look(x):
        return np.asarray(x)

    with pytest.raises(TraceError, match="asarray"):
        look(x)


def test_a_device_with_memory_of_its_own_copies(device, monkeypatch):
    monkeypatch.setattr(type(device), "in_host_memory", False)
    x = tg.tensor(numbers(4))
    assert not np.shares_memory(np.asarray(x), np.asarray(x)) or device.kind == "numpy"
    np.testing.assert_array_equal(np.from_dlpack(x), numbers(4))
    with pytest.raises(ValueError, match="memory of its own"):
        np.asarray(x, copy=False)
    with pytest.raises(BufferError, match="memory of its own"):
        np.from_dlpack(x, copy=False)
    with pytest.raises(ArgumentError, match="memory of its own"):
        tg.asarray(numbers(4), copy=False)


class Unversioned:
    """A consumer or exporter of before DLPack 1.0."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, stream=None):
        return self.x.__dlpack__()

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_consumers_that_know_no_flag_for_read_only_memory_get_a_copy(device):
    x = tg.tensor(numbers(8))
    found = np.from_dlpack(Unversioned(x))
    np.testing.assert_array_equal(found, numbers(8))
    assert not np.shares_memory(found, np.asarray(x))


# --------------------------------------------------------------------------------------------------------------- entering


ENTER = {
    "from_numpy": tg.from_numpy, "asarray": tg.asarray, "as_tensor": tg.as_tensor, "from_dlpack": tg.from_dlpack, "tensor": tg.tensor,
    "copy=True": lambda a: tg.asarray(a, copy=True), "argument": tg.trace(lambda x: x * 1.0),
}


@pytest.mark.parametrize("enter", ENTER.values(), ids=ENTER)
def test_by_default_later_changes_of_an_array_do_not_show(device, enter):
    """Also of one that others may write: the reason why None copies is that deferred work would compute with the new contents."""
    for hide in (lambda a: a, lambda a: np.lib.stride_tricks.as_strided(a, writeable=False)):
        a = numbers()
        x = enter(hide(a))
        y = x * 2
        a[:] = -1
        np.testing.assert_array_equal(y.numpy(), numbers() * 2)
        np.testing.assert_array_equal(x.numpy(), numbers())


def test_read_only_arrays_are_shared_by_default(shares, tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, numbers())
    text = np.frombuffer(numbers().tobytes(), np.float32)
    sources = [frozen(), frozen(2 * N).reshape(2, -1)[1:], np.load(path, mmap_mode="r"), np.asarray(tg.tensor(numbers()))]
    for source in [*sources, *([] if obstacle(shares, text) else [text])]:
        x = tg.asarray(source)
        assert np.shares_memory(np.asarray(x), source)
        np.testing.assert_array_equal((x + 1).numpy(), source + 1)
        assert not np.shares_memory(np.asarray(tg.asarray(source, copy=True)), source)


def test_a_result_of_kernels_leaves_as_one_array(shares):
    """Whose base holds the memory: there is no array between them. It is read-only for good, and enters again as it is."""
    if shares.kind == "numpy":
        pytest.skip("has no buffers")
    y = tg.trace(lambda x: x * 2 + 1)(tg.tensor(numbers()))
    a, value = np.asarray(y), y._n.value
    assert isinstance(a.base, staging.Placed)
    assert not a.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        a.flags.writeable = True
    assert np.shares_memory(np.asarray(tg.asarray(a)), a)
    y.zero_()
    np.testing.assert_array_equal(a, numbers() * 2 + 1)
    inside = value.contents(y.shape, y.dtype)                # an array of the runtime's own, which may be written
    inside.flags.writeable = False
    assert not staging.frozen(inside)


def test_read_only_views_of_what_can_be_written_are_copied(shares):
    block = bytearray(4 * N)
    a = numbers()
    views = [np.lib.stride_tricks.as_strided(a, writeable=False), np.frombuffer(memoryview(block).toreadonly(), np.float32),
             np.frombuffer(mmap.mmap(-1, 4 * N), np.float32)]
    views[-1].flags.writeable = False
    views.append(np.asarray(tg.asarray(a, copy=False)))
    for view in views:
        assert not np.shares_memory(np.asarray(tg.asarray(view)), view)


@pytest.mark.parametrize("enter", [tg.asarray, tg.from_dlpack])
@pytest.mark.parametrize("kind", KINDS)
def test_sharing_that_was_asked_for(shares, enter, kind):
    if kind == "bfloat16" and enter is tg.from_dlpack:
        pytest.skip("numpy does not export it")
    if kind == "float64" and not getattr(shares.target, "fp64", True):
        pytest.skip("no float64 here")
    a = aligned(np.ones((3, 5), kind))
    x = enter(a, copy=False)
    assert np.shares_memory(np.asarray(x), a)
    a[1] = 0
    np.testing.assert_array_equal(np.asarray(x), a)
    np.testing.assert_array_equal((x == 1).numpy(), a == 1)


def test_other_libraries_arrays(device):
    values = array.array("d", [1.0, 2.0])
    assert tg.asarray(values).dtype == tg.float64               # only Python's own numbers become the default dtype
    assert tg.asarray([1.0]).dtype == tg.float32
    assert tg.asarray(Unversioned(np.arange(3))).tolist() == [0, 1, 2]
    assert tg.from_dlpack(Unversioned(np.arange(3))).tolist() == [0, 1, 2]
    x = tg.tensor([1.0])
    assert tg.asarray(x) is tg.asarray(x, copy=False) is x
    assert tg.asarray(x, copy=True) is not x
    assert tg.from_dlpack(x).tolist() == [1.0]


@pytest.mark.parametrize("share", ["asked", "read-only"])
@pytest.mark.parametrize("how", ["untraced", "traced", "donated leaf", "item"])
def test_no_update_in_place_writes_a_shared_array(shares, share, how):
    a = numbers() if share == "asked" else frozen()
    x = tg.asarray(a, copy=False) if share == "asked" else tg.asarray(a)
    assert np.shares_memory(np.asarray(x), a)
    if how == "donated leaf":
        x.requires_grad_()

    def update():
        with tg.no_grad():
            if how == "item":
                x[0] += 1
            else:
                x.add_(1.0)

    step = update if how == "untraced" else tg.trace(update)
    for _ in range(3):
        step()
    expected = numbers()
    expected[slice(1) if how == "item" else slice(None)] += 3
    np.testing.assert_array_equal(x.detach().numpy(), expected)
    np.testing.assert_array_equal(a, numbers())


def test_only_the_tensor_itself_shows_changes_of_a_shared_array(shares):
    a = numbers()
    x = tg.asarray(a, copy=False)
    others = [x.clone(), tg.tensor(x), tg.trace(lambda x: x.clone())(x), tg.trace(lambda x: x.reshape(-1, 8).reshape(-1) * 1.0)(x)]
    for y in others:
        y.numpy()
    a[:] = 0
    for y in others:
        np.testing.assert_array_equal(y.numpy(), numbers())
    np.testing.assert_array_equal(x.numpy(), 0)


def test_a_tensor_holds_the_array_that_it_shares(shares):
    x = tg.asarray(numbers(), copy=False)
    y = x * 2
    gc.collect()
    others = [numbers() * 0 for _ in range(4)]
    np.testing.assert_array_equal(y.numpy(), numbers() * 2)
    y = x + 1
    tg.flush()
    del x                                                       # while it may still be read
    others += [numbers() * 0 for _ in range(4)]
    np.testing.assert_array_equal(y.numpy(), numbers() + 1)


def test_what_cannot_be_shared_says_why(shares):
    odd = np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32)
    for bad, words in [(numbers(8)[::2], "contiguous"), (numbers(8).reshape(2, 4).T, "contiguous"), (odd, "multiple of"),
                       ([1.0, 2.0], "list"), (3.0, "float")]:
        with pytest.raises(ArgumentError, match=f"asarray: copy=False.*{words}"):
            tg.asarray(bad, copy=False)
        assert tg.asarray(bad).tolist() == np.asarray(bad).tolist()
    with pytest.raises(ArgumentError, match=r"asarray: .*float32, not float64"):
        tg.asarray(numbers(8), dtype=tg.float64, copy=False)
    with pytest.raises(ArgumentError, match=r"asarray: .*float32"):
        tg.asarray(tg.ones(2), dtype=tg.float64, copy=False)
    with pytest.raises(DLPackError, match=r"from_dlpack: .*contiguous"):
        tg.from_dlpack(numbers(8)[::2], copy=False)
    with pytest.raises(DTypeError, match=r"from_dlpack: .*list.*asarray"):
        tg.from_dlpack([1.0])
    with pytest.raises(DTypeError, match=r"from_numpy: .*object"):
        tg.from_numpy(np.array([None]))

    @tg.trace
    def inside():
        return tg.asarray(numbers(2))

    with pytest.raises(TraceError, match=r"asarray at .*frozen"):
        inside()


def test_a_host_calls_function_may_write_into_its_arguments(shares):
    def clear(a):
        a[:] = 0
        return a

    a = numbers()
    x = tg.asarray(a, copy=False)
    for call in (tg.host_call, tg.trace(tg.host_call)):
        np.testing.assert_array_equal(call(clear, x).numpy(), 0)
        np.testing.assert_array_equal(x.numpy(), numbers())
    np.testing.assert_array_equal(a, numbers())


# ---------------------------------------------------------------------------------------------------------------- lifetime


def test_no_leak(shares):
    x = tg.tensor(numbers())                                    # 2 MB
    a = numbers()

    def use():
        np.asarray(x + 1.0)
        np.from_dlpack(x)
        x.__dlpack__(max_version=(1, 0))                        # a capsule that nobody consumes
        tg.asarray(a, copy=False).sum().item()

    for _ in range(50):
        use()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(500):
        use()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_repr_shows_what_torch_would(device):
    kind = getattr(tg.device(), "kind", None)
    w = tg.tensor([1.0, -2.5], requires_grad=True)
    for x, text in [
        (tg.tensor([[1.0, 2.0], [3.0, 4.5]]), "[[1. , 2. ],\n        [3. , 4.5]]"), (tg.tensor(3), "3"),
        (tg.tensor([True, False]), "[ True, False]"),
        (tg.tensor([1], dtype=tg.int32), "[1], dtype=int32"), (tg.tensor([0.5], dtype=tg.float16), "[0.5], dtype=float16"),
        (tg.tensor([[1.0, -0.1], [300.5, float("nan")]], dtype=tg.bfloat16),
         "[[ 1.000e+00, -1.001e-01],\n        [ 3.000e+02,        nan]], dtype=bfloat16"),
        (tg.zeros(0), "[]"), (tg.zeros(0, 3), "[], size=(0, 3)"), (tg.zeros(0, dtype=tg.int64), "[], dtype=int64"),
        (tg.arange(2000), "[   0,    1,    2, ..., 1997, 1998, 1999]"),
    ]:
        assert repr(x) == f"Tensor({text}, device={kind!r})"
    assert repr(w) == f"Tensor([ 1. , -2.5], device={kind!r}, requires_grad=True)"
    assert repr(w * 2) == f"Tensor([ 2., -5.], device={kind!r}, grad_fn=<mul>)"


def test_arrays_held_at_exit(shares):
    script = """
import numpy as np, tracegrad as tg
block = np.zeros(1 << 22, np.uint8)
a = block[-block.ctypes.data % 4096:][:1 << 21].view(np.float32)
x = tg.ones(1 << 19) * 2
held = [np.asarray(x), x.__dlpack__(max_version=(1, 0)), np.from_dlpack(x), tg.asarray(a, copy=False) * 2]
tg.flush()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


def test_synchronize_waits_for_every_device(device, monkeypatch):
    waited = []
    for found in tg.devices():
        tg.ones(4, device=found).numpy()
        monkeypatch.setattr(found, "finish", lambda found=found: waited.append(found))
    tg.synchronize()
    assert set(tg.devices()) <= set(waited)


NUMBERS = [3, -1.5, 0, -0.0, 2**40, 2**63, 2**70, float("nan"), [1, 2], (1, 2), [1.5, -0.0], [[1, 2], [3, 4]], ((1.0,), (2.0,)), [1, 2.0],
           [2**63, 1], [1, True], True, [], [[]], [[1], [2, 3]]]


@pytest.mark.parametrize("dtype", [None, np.float32, np.float64, np.int64, np.int8, np.bool_, tg.float16, tg.bfloat16])
def test_python_numbers_make_what_arrays_of_them_make(dtype, monkeypatch):
    """In few steps, where they fit whatever they are."""
    def made(value):
        try:
            x = tg.tensor(value, dtype=dtype)
        except (tg.TracegradError, OverflowError, RuntimeWarning) as error:
            return type(error), str(error)
        return x.shape, x.dtype, x.numpy().tobytes()

    found = [made(value) for value in NUMBERS]
    monkeypatch.setattr(from_data, "_of_numbers", lambda *given: None)
    assert found == [made(value) for value in NUMBERS]
