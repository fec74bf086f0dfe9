"""Programs whose kernels several processes compile: what they compute, who compiles what, and what is left when a process fails."""

from __future__ import annotations

import functools
import operator
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyopencl as cl
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.runtime.test_kernel_cache import replace, several
from tracegrad.runtime.drivers.pocl_cpu import is_pocl
from tracegrad.runtime.programs import build, build_worker, builders, packing

ROOT = Path(__file__).parents[2]

# A traced step of a dozen kernels that share nothing, in both directions, beside numpy; then who made PoCL's kernels, and who is left.
PROGRAM = """
    import os, sys, time
    import numpy as np
    import tracegrad as tg
    from tracegrad.runtime.programs import builders, build
    from tracegrad.runtime.programs.builders import Builder, builders as others

    tg.config.eager = False
    builders.LENGTH, builders.START, builders.PACK, builders.OPERATIONS = 500, 0, 1500, 10
    build.LENGTH, build.START, build.OPERATIONS = 500, 0, 10
    {before}
    asked, waited = [], []
    ask, wait = Builder.ask, Builder.wait
    Builder.ask = lambda self, number, folder: (asked.append(number), ask(self, number, folder))[1]
    Builder.wait = lambda self, seconds: (waited.append(wait(self, seconds)), waited[-1])[1]

    @tg.trace
    def step(x, w):
        h = x
        for i in range(3):
            h = (h @ w).tanh() + h.cumsum(1) / (40 + i) + h.softmax(0)
        return tg.grad(lambda x: ((x @ w).exp().mean(0) * h.detach().sum(1)[:48]).sum())(x), h

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((200, 48)).astype(np.float32) * 0.1, rng.standard_normal((48, 48)).astype(np.float32) * 0.1
    gradient, h = step(tg.tensor(a), tg.tensor(b))
    want = a
    for i in range(3):
        e = np.exp(want - want.max(0))
        want = np.tanh(want @ b) + want.cumsum(1) / (40 + i) + e / e.sum(0)
    np.testing.assert_allclose(h.numpy(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), (np.exp(a @ b) / 200 * want.sum(1)[:48]) @ b.T, rtol=1e-4, atol=1e-5)
    print(len(asked), waited, [b.alive for b in others._all])
"""


def script(tmp_path, before="pass", **more):
    """PROGRAM in a process of its own, with caches of its own."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "POCL_CACHE_DIR": f"{tmp_path}/pocl", "PYTHONPATH": str(ROOT),
                   "TRACEGRAD_BUILDERS": "2", **more}
    (tmp_path / "pocl").mkdir(exist_ok=True)
    text = textwrap.dedent(PROGRAM).format(before=before)
    return subprocess.run([sys.executable, "-W", "error", "-c", text], env=environment, capture_output=True, text=True, check=False,
                          timeout=300)


def run(tmp_path, before="pass", **more):
    done = script(tmp_path, before, **more)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout.strip()


@pytest.fixture
def on_one_at_a_time():
    device = tg.device()
    if device.kind == "numpy" or not build._one_at_a_time(device.cl_device) or builders.os.name != "posix":
        pytest.skip("a driver that compiles for several threads at once")


@pytest.mark.usefixtures("on_one_at_a_time")
class TestProcesses:
    @pytest.mark.long
    def test_two_processes_compute_what_one_does(self, tmp_path):
        assert run(tmp_path) == "1 [True] [True]"
        made = sorted((tmp_path / "pocl").rglob("*.so"))
        assert len(made) > 3 or not is_pocl(tg.device().cl_device)
        assert run(tmp_path) == "0 [] []", "a second process finds plans and kernels"
        assert sorted((tmp_path / "pocl").rglob("*.so")) == made

    @pytest.mark.long
    def test_one_process_where_that_is_asked_for(self, tmp_path):
        assert run(tmp_path, TRACEGRAD_BUILDERS="1") == "0 [] []"

    @one_of(3, "code", ["raise SystemExit", "import time; time.sleep(100)", "print('x', flush=True); input(); input()"])
    def test_a_process_that_does_not_do_its_part(self, tmp_path, code):
        assert run(tmp_path, f'builders._RUN, builders.LATENESS = "{code}", 0.2').startswith("1 [False]")

    def test_a_process_that_cannot_be_started(self, tmp_path):
        assert run(tmp_path, "sys.executable = '/nowhere/python'") == "0 [] []"

    @pytest.mark.long
    def test_a_process_that_ended(self, tmp_path):
        assert run(tmp_path, "others.begin(tg.device().cl_device)[0]._process.kill(); time.sleep(0.3)") == "1 [True] [True]"

    def test_of_a_fork(self, tmp_path):
        """A child does not ask its parent's processes, nor does it end them."""
        before = ("mine = others.begin(tg.device().cl_device)[0]; pid = os.fork(); child = pid == 0; "
                  "pid and (os.waitpid(pid, 0), sys.exit(0 if mine.alive else 'ended by the child'))")
        # (PoCL's threads do not come along, so the child computes nothing: it looks whom it would ask)
        child = "theirs = others.begin(tg.device().cl_device)[0]; print(theirs is not mine, flush=True); others.stop(); os._exit(0)"
        done = script(tmp_path, f"{before}; {child}")
        assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr

    @pytest.mark.long
    def test_it_ends_with_who_started_it(self, tmp_path):
        process = int(run(tmp_path, "import atexit; atexit.unregister(others.stop); "
                                    "atexit.register(lambda: print(others._all[0]._process.pid))").split()[-1])
        end = time.monotonic() + 20
        while time.monotonic() < end and Path(f"/proc/{process}/cmdline").exists() and Path(f"/proc/{process}/cmdline").read_bytes():
            time.sleep(0.1)
        assert time.monotonic() < end

    def test_each_kernel_is_made_once(self, tmp_path):
        """Two that work side by side, here one after the other: the second does what the first left, and builds no program for nothing."""
        device = tg.device().cl_device
        if not is_pocl(device):
            pytest.skip("PoCL's")
        context = cl.Context([device])
        functions = several(6)
        texts = [packing.text_of(half, build._called, True) for half in (functions[:3], functions[3:])]
        programs = []
        for text in texts:
            part = next(iter(packing.parts_of(text).values()))
            sizes = packing.taken(next(f for f in functions if build._called(f.key) in text), part)
            programs.append(((text, ["-w"]), [(part.name, sizes, (n,), (1,)) for n in (3, 70_000)]))
        (tmp_path / "1 1").touch()                         # another has begun with it
        build_worker.work(context, device, programs, 1, tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["1 0", "1 1", "built 1"]
        build_worker.work(context, device, programs, 0, tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["0 0", "0 1", "1 0", "1 1", "built 0", "built 1"]


    def test_a_binary_that_is_wanted(self, tmp_path):
        """Only that of one's own program; what another left unfinished is none."""
        device = tg.device().cl_device
        context = tg.device().context
        programs = [((f"__kernel void k{n}(__global float *x) {{ x[0] = {n}; }}", ["-w"]), None) for n in range(3)]
        build_worker.work(context, device, programs, 1, tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == ["binary 1"]
        build_worker.work(context, device, programs, 0, tmp_path, build_worker.built(context, device, *programs[0][0]))
        assert [p.name for p in tmp_path.iterdir()] == ["binary 1"]
        made = build._of_binary(tg.device(), device, (tmp_path / "binary 1").read_bytes())
        assert made.kernel_names == "k1"
        assert build._of_binary(tg.device(), device, b"nothing") is None


class Other:
    def __init__(self, behind):
        self.behind = behind


def names(shares):
    return [[f.key for pack in share for f in pack] for share in shares]


def test_shares():
    """Every kernel once; about as much for each; less for who begins later; what is no part stays here; the same each time."""
    functions = [replace(f, body=f.body * (30 + 7 * i)) for i, f in enumerate(several(40))]
    functions[5], functions[11] = replace(functions[5], cooperates=True), replace(functions[11], group=None)
    for others in ([Other(0)], [Other(0), Other(0), Other(0)], [Other(20_000)]):
        found = builders.shares(functions, others)
        assert sorted(functools.reduce(operator.iadd, names(found), [])) == sorted(f.key for f in functions)
        assert {functions[5].key, functions[11].key} <= set(names(found)[0])
        assert names(found) == names(builders.shares(functions, others))
        amounts = [sum(builders.amount(pack) for pack in share) for share in found]
        behind = [0, *(other.behind for other in others)]
        assert len(amounts) == len(behind)
        ends = [a + b for a, b in zip(amounts, behind, strict=True)]
        assert max(ends) - min(ends) <= builders.PACK
    assert len(builders.shares(functions[:2], [Other(0)] * 3)) == 1, "two small ones are one kernel"


def test_a_kernel_alone_can_be_told_to_do_nothing():
    alone, other = several(2)
    assert "__kernel void" in packing.text_of([alone], str)
    assert "switch" not in packing.text_of([alone], str)
    assert "switch (part)" in packing.text_of([alone], str, idle=True)
    assert "switch" not in packing.text_of([replace(other, cooperates=True)], str, idle=True)


def test_what_a_kernel_of_parts_takes():
    functions = several(5)
    text = packing.packed(functions, str)[0]
    parts = packing.parts_of(text)
    declared = text.partition("__kernel void ")[2].partition("(")[2].partition(")")[0].split(", ")[1:]
    sizes = tuple(0 if "*" in d else 4 for d in declared)
    assert {packing.taken(f, parts[f.key]) for f in functions} == {sizes}
