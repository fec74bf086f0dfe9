"""Who may write in place is known from handles, never from reference counts: with counts that are shifted, or of an interpreter that

collects nothing, each holder of a value (see ownership_programs.py) still sees it, and where nobody holds it, its own memory is written.
"""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.tensors import ownership_programs
from tracegrad.errors import IndexOutOfRange
from tracegrad.graph.canonical import resolve
from tracegrad.runtime.buffer import Buffer, HostBuffer
from tracegrad.tensors import ownership as owning
from tracegrad.tensors.tensor import held_elsewhere

ROOT = pathlib.Path(__file__).parents[2]
NAMES = [*ownership_programs.HOLDERS, *ownership_programs.SHARERS]


@pytest.mark.parametrize("folder", ["tracegrad", "runtime", "codegen"])
def test_nobody_counts_references(folder):
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        assert not [word for word in ("getrefcount", "get_referrers", "get_objects", "getweakref") if word in text], path


@one_of(8, ("name", "mode"), [(name, ownership_programs.MODES[(k + j) % 4]) for k, name in enumerate(NAMES) for j in range(4)])
def test_a_value_stays_what_it_was_for_its_holder(kernels, name, mode):
    ownership_programs.check(name, mode)


@pytest.mark.long
@pytest.mark.parametrize("write", ownership_programs.WRITES)
@pytest.mark.parametrize("mode", ["untraced", "argument", "closure"])
@pytest.mark.parametrize("name", NAMES)
def test_all_ways_to_write(device, name, mode, write):
    for leaf in (False, True):
        ownership_programs.check(name, mode, write, leaf)


@pytest.mark.parametrize("program", ownership_programs.OTHERS, ids=lambda p: p.__name__)
def test_programs_with_holders(device, program):
    program()


SHIFTED = """
import sys
real = sys.getrefcount
def count(x):
    {body}
sys.getrefcount = count
from tests.tensors.ownership_programs import main
main({shift!r})
"""
SHIFTS = {"less": "return real(x) - 2", "more": "return real(x)", "none": "raise RuntimeError('no such count')"}


@pytest.mark.long
@pytest.mark.parametrize("shift", SHIFTS)
def test_counts_that_are_shifted_change_nothing(shift):
    """As on another interpreter. (Of the values that functions bind at import there is none, either: the process begins with it.)"""
    found = subprocess.run([sys.executable, "-c", SHIFTED.format(body=SHIFTS[shift], shift=shift)], cwd=ROOT, capture_output=True,
                           text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300, check=False)
    assert found.stdout.endswith(f"done with {shift}\n"), found.stderr


class Kept:
    """A weak reference whose object is never gone: garbage that nobody has collected."""

    def __init__(self, thing):
        self.thing = thing

    def __call__(self):
        return self.thing


@pytest.fixture
def uncollected(monkeypatch, kernels):
    """An interpreter on which what nobody holds is still there."""
    monkeypatch.setattr(owning, "_ref", Kept)


@one_of(6, ("name", "mode"), [(name, ownership_programs.MODES[1:][k % 3]) for k, name in enumerate(NAMES)])
def test_garbage_counts_as_a_holder(uncollected, name, mode):
    ownership_programs.check(name, mode)


@pytest.mark.parametrize("program", [ownership_programs.shared_by_two, ownership_programs.put_off], ids=lambda p: p.__name__)
def test_programs_with_garbage(uncollected, monkeypatch, program):
    for eager in (False, True):
        monkeypatch.setattr(tg.config, "eager", eager)
        program()


# ------------------------------------------------------------------------------------------------------------ in place still


@pytest.fixture
def copies(monkeypatch, kernels):
    """How many Buffers were copied, as a list of one number."""
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter never writes in place")
    count, real = [0], Buffer.copy

    def copy(self):
        count[0] += 1
        return real(self)

    monkeypatch.setattr(Buffer, "copy", copy)
    return count


def place(p):
    return resolve(p._n).value.mem.int_ptr


@pytest.mark.parametrize("mode", ["argument", "closure", "optimizer"])
@pytest.mark.parametrize("leaf", [False, True], ids=["tensor", "leaf"])
def test_nothing_is_copied_where_nobody_holds_the_value(copies, mode, leaf):
    p = tg.tensor(ownership_programs.START).requires_grad_(leaf or mode == "optimizer")
    step = ownership_programs.stepper(p, mode)
    step()
    before = place(p)
    for k in range(3):
        step()
        (p.detach() * 2).numpy(), p.sum().item(), p.tolist(), p[1:3].detach().numpy(), repr(p), p.detach().numpy()
        np.asarray(p.detach()), np.asarray(p[:2].detach())
        with tg.no_grad():
            y = p * 3
        np.testing.assert_array_equal(y.numpy(), (ownership_programs.START + k + 2) * 3)
    step()
    assert copies == [0]
    assert place(p) == before


@one_of(4, "name", ownership_programs.HOLDERS)
def test_a_holder_costs_a_copy_and_no_more(copies, name):
    """The memory is written again once the holder is gone, and its own memory is written while it is there."""
    p = tg.tensor(ownership_programs.START)
    step = ownership_programs.stepper(p, "closure")
    for _ in range(2):
        step()
    found = ownership_programs.HOLDERS[name][0](p)
    for _ in range(3):
        step()
    assert copies[0] <= 1
    del found
    gc.collect()
    copies[0] = 0
    before = place(p)
    step()
    step()
    assert copies == [0]
    assert place(p) == before


def test_many_tensors_are_written_in_place(copies):
    ws = [tg.tensor(ownership_programs.START * k).requires_grad_(k % 2 == 0) for k in range(1, 9)]

    @tg.trace
    def step():
        with tg.no_grad():
            for w in ws:
                w.add_(1)

    step()
    places = [place(w) for w in ws]
    kept = ws[3].detach().clone()
    kept.numpy()
    step()
    assert copies == [1]
    assert [place(w) == p for w, p in zip(ws, places, strict=True)] == [k != 3 for k in range(8)]
    np.testing.assert_array_equal(kept.numpy(), ownership_programs.START * 4 + 1)
    ws[1].sum().backward()                                      # the leaf is still the one that gradients go to
    np.testing.assert_array_equal(ws[1].grad.numpy(), np.ones(6))


def test_hooks_of_a_leaf_stay_when_it_is_written(copies):
    w, seen = tg.tensor(ownership_programs.START, requires_grad=True), []
    w.register_hook(lambda g: seen.append(g.shape))
    step = ownership_programs.stepper(w, "closure")
    for k in range(3):
        step()
        (w * 2).sum().backward()
        assert len(seen) == k + 1
    assert w.is_leaf
    np.testing.assert_array_equal(w.grad.numpy(), np.full(6, 6.0))


def test_mapped_memory_is_not_written(copies):
    """An array that the library itself made of a buffer's memory, of which the interpreter has not let go yet."""
    p = tg.tensor(ownership_programs.START)
    step = ownership_programs.stepper(p, "closure")
    step()
    if not tg.device().in_host_memory:
        pytest.skip("this device has memory of its own")
    array = resolve(p._n).value.contents((6,), np.float32)
    step()
    np.testing.assert_array_equal(array, ownership_programs.START + 1)
    np.testing.assert_array_equal(p.numpy(), ownership_programs.START + 2)


def test_a_step_that_fails_leaves_the_value(copies, monkeypatch):
    p = tg.tensor(ownership_programs.START)
    kept = p * 1
    kept.numpy()
    step = ownership_programs.stepper(p, "closure")
    step()
    later = tg.trace(lambda p: p.clone())(p)
    replay = step._latest
    real = replay.program

    class Failing:
        executable, written = real.executable, real.written

        def __call__(self, values):
            raise MemoryError

    replay.program = Failing()
    for _ in range(2):
        with pytest.raises(MemoryError):
            step()
    replay.program = real
    np.testing.assert_array_equal(p.numpy(), ownership_programs.START + 1)
    step()
    np.testing.assert_array_equal(p.numpy(), ownership_programs.START + 2)
    np.testing.assert_array_equal(later.numpy(), ownership_programs.START + 1)
    np.testing.assert_array_equal(kept.numpy(), ownership_programs.START)


def test_what_was_known_of_the_old_value_is_forgotten(monkeypatch):
    """A range of integers, by which an index would not be looked at."""
    monkeypatch.setattr(tg.config, "eager", True)
    for _ in range(3):
        places = tg.arange(12)                                  # remembered: a leaf that is known to lie in 0 to 11
    shift = tg.trace(lambda: places.add_(100))
    shift(), shift()
    with pytest.raises(IndexOutOfRange):
        tg.zeros(12)[places].numpy()


def test_a_handle_is_of_the_same_memory(copies):
    device = tg.device()
    x = tg.tensor(ownership_programs.START) * 1
    x.numpy()
    value = resolve(x._n).value
    other = value.handle()
    assert other is not value
    assert (other.mem, other.nbytes, other.serial) == (value.mem, value.nbytes, value.serial)
    array = ownership_programs.START.copy()
    held = HostBuffer(device, array)
    other = held.handle()
    assert other.mem.int_ptr != held.mem.int_ptr                # memory of its own: nobody writes the array
    assert held.handle().mem is held.mem                        # a kernel has needed it: as any other
    assert tg.asarray(array, copy=False)._n.value.handle() is None or not device.in_host_memory or device.host_alignment > 1


# ------------------------------------------------------------------------------------------------------------ others


def test_deferred_values_are_there_for_another_thread(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    for repeat in range(6):
        found = []
        with tg.no_grad():
            x = tg.tensor(ownership_programs.START)
            y, z = x * 2, x * 3
            del z
            thread = threading.Thread(target=lambda y=y, found=found: found.append(y.numpy()))
            thread.start()
            thread.join()
            after = y + 1
        np.testing.assert_array_equal(found[0], ownership_programs.START * 2)
        np.testing.assert_array_equal(after.numpy(), ownership_programs.START * 2 + 1, err_msg=str(repeat))


def test_only_what_is_held_is_looked_for():
    """`held_elsewhere`: those that nobody else has are others afterwards, which are the same; a leaf keeps its gradients."""
    w = tg.tensor(ownership_programs.START, requires_grad=True)
    lists = [[w * 1, w.detach()], [tg.tensor([1.0, 2.0], requires_grad=True)]]
    gone = weakref.ref(lists[0][0])
    assert not held_elsewhere(*lists)
    assert gone() is None
    (lists[1][0] * 2).sum().backward()
    np.testing.assert_array_equal(lists[1][0].grad.numpy(), [2, 2])
    lists[0][1].add_(1)                                         # still a view of the leaf
    np.testing.assert_array_equal(w.detach().numpy(), ownership_programs.START + 1)
    kept = lists[0][0]
    assert held_elsewhere(*lists)
    assert lists[0][0] is kept


def test_a_step_in_place_can_be_profiled(copies):
    """Its handles are others in each call; `profile` runs on the latest."""
    p = tg.tensor(ownership_programs.START)
    step = ownership_programs.stepper(p, "closure")
    for _ in range(4):
        step()
    step.profile(1)
    np.testing.assert_array_equal(p.numpy(), ownership_programs.START + 4)
