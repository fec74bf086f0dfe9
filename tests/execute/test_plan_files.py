"""Plans on disk (tracegrad/execute/plan_files.py, runtime/disk.py): what is kept, under which name, what another process makes of it, and
of files that are damaged."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import threading
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers import corpus
from tracegrad.codegen.compiler import compile_graph
from tracegrad.execute import plan_files
from tracegrad.execute.compile import executable_graph
from tracegrad.execute.program import Program
from tracegrad.graph.operation_families import Elementwise
from tracegrad.graph.primitive import REGISTRY
from tracegrad.graph.printing import namer
from tracegrad.support.plan import HostStep, Target
from tracegrad.support.tuning import Tuning, tuned

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder of its own, and plans kept as users have them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tg.config, "check", False)
    monkeypatch.setattr(tg.config, "cache", True)
    return tmp_path / "tracegrad" / "plans"


def graph_of(fn, *args):
    """What a trace of fn captures, without what only derivatives look at."""
    previous = tg.device()
    tg.set_device("numpy")
    try:
        traced = tg.trace(fn)
        traced(*(tg.tensor(a) if isinstance(a, np.ndarray) else a for a in args))
        return executable_graph(traced._seen().program.graph)
    finally:
        tg.set_device(previous)


def key_of(graph, target=None, donate=None, results=()):
    return plan_files.key(graph, target or Target(), donate or {}, results)


def planned(graph, target=None):
    """The plan as programs keep it, without the statements of its kernels."""
    return replace(compile_graph(graph, target or Target(), name=namer(graph)), kernels=())


def same(a, b):
    """Whether two plans are equal, arrays by their bytes."""
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a).__name__ == "OnHost":
        return same((a.fn, a.operands), (b.fn, b.operands))
    return a == b or a is b


X = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)


# --------------------------------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize("target", ["avx2", "gpu"])
@pytest.mark.parametrize("name", corpus.ROWS)
def test_a_plan_that_is_stored_and_read_is_the_plan(name, target):
    graph = graph_of(eval(f"lambda x, y, c: {corpus.ROWS[name]}", vars(corpus)), X, X[::-1].copy(), 0.5)
    key, plan = key_of(graph, corpus.TARGETS[target]), planned(graph, corpus.TARGETS[target])
    assert key is not None
    assert plan_files.load(key) is None
    plan_files.store(key, plan)
    found = plan_files.load(key)
    assert found is not plan
    assert same(found, plan)


def test_host_steps_scalars_and_constants_come_back():
    def f(x, c):
        values, vectors = tg.linalg.eigh(x.t() @ x)
        z = tg.fft.fft(x.to(tg.complex64))
        return tg.host_call(np.sort, values) * (c * 2.5 + 1) + vectors.sum(0), z.abs() * tg.tensor([0.5 * i for i in range(40)])

    graph = graph_of(f, X, 0.25)
    key, plan = key_of(graph), planned(graph)
    plan_files.store(key, plan)
    found = plan_files.load(key)
    assert same(found, plan)
    host = [s for s, _ in found.each() if isinstance(s, HostStep)]
    assert {s.name for s in host} >= {"eigh", "sort"}
    assert found.scalar_program
    assert found.all_scalars([0.25]) == plan.all_scalars([0.25])
    sort = next(s for s in host if s.name == "sort")
    np.testing.assert_array_equal(sort.fn(np.arange(40, 0, -1, np.float32))[0], np.arange(1, 41))


# ------------------------------------------------------------------------------------------------------------------- names


def test_equal_programs_have_equal_names_and_others_do_not(monkeypatch):
    def make(code):
        return graph_of(eval(code, {"tg": tg, "F": F}), X, X)

    base = "lambda x, y: (x * 2.0 + y).sum(1)"
    name = key_of(make(base)).name
    assert key_of(make(base)).name == name
    others = [
        "lambda x, y: (x * 3.0 + y).sum(1)", "lambda x, y: (x * 2.0 + x).sum(1)", "lambda x, y: (x * 2.0 + y).sum(0)",
        "lambda x, y: (x * 2.0 + y.double()).sum(1)", "lambda x, y: (x * 2.0 + y).amax(1)", "lambda x, y: (x * 2.0 - y).sum(1)",
        "lambda x, y: (x * 2.0 + y).sum(1, keepdim=True)", "lambda a, y: (a * 2.0 + y).sum(1)", "lambda x, y: (y * 2.0 + x).sum(1)",
        "lambda x, y: (x * 2.0 + y).sum(1) * -0.0", "lambda x, y: (x * 2.0 + y).sum(1) * 0.0",
        "lambda x, y: ((x * 2.0 + y).sum(1), x * 1.5)",
        "lambda x, y: x.roll(1, 0)", "lambda x, y: x.roll(2, 0)", "lambda x, y: x.roll(1, 1)",
    ]
    names = [key_of(make(code)).name for code in others]
    assert len({name, *names}) == 1 + len(others)
    graph = make(base)
    changed = [
        key_of(graph, Target(cores=5)), key_of(graph, Target("gpu")), key_of(graph, donate={0: 0}), key_of(graph, results=["total"])]
    with tuned(Tuning(unrolled=3)):
        changed.append(key_of(graph))
    monkeypatch.setattr(tg.config, "fuse", False)
    changed.append(key_of(graph))
    monkeypatch.undo()
    monkeypatch.setattr(tg.config, "check", False)
    monkeypatch.setattr(plan_files, "LIBRARY", "another version")
    changed.append(key_of(graph))
    assert len({name, *(k.name for k in changed)}) == 1 + len(changed)


def test_the_order_of_operands_of_loops_and_what_they_close_over_count():
    def scanned(body):
        return graph_of(lambda x, y: tg.scan(eval(f"lambda c, r: {body}"), x[0], y), X, X)

    first = key_of(scanned("(c * 0.5 + r, c)")).name
    assert key_of(scanned("(c * 0.5 + r, c)")).name == first
    assert key_of(scanned("(c * 0.25 + r, c)")).name != first
    assert key_of(scanned("(c * 0.5 + r, r)")).name != first


def test_one_call_and_two_calls_of_a_host_function_are_two_programs():
    def one(x, y):
        a = tg.host_call(np.sort, x)
        return a, a

    def two(x, y):
        return tg.host_call(np.sort, x), tg.host_call(np.sort, x)

    assert key_of(graph_of(one, X, X)).name != key_of(graph_of(two, X, X)).name


def test_the_text_of_a_line_counts(tmp_path):
    """Names and comments in the kernels are made of it."""
    names = []
    for text in ("total = (x * 2.0).sum(1)", "other = (x * 2.0).sum(1)"):
        path = tmp_path / "program.py"
        path.write_text(f"def f(x):\n    {text}\n    return {text.split()[0]}\n")
        linecache.clearcache()
        world = {}
        exec(compile(path.read_text(), str(path), "exec"), world)
        names.append(key_of(graph_of(world["f"], X)).name)
    assert names[0] != names[1]


def test_what_is_not_kept(monkeypatch):
    plain = tg.elementwise("x * 2 + 1")
    folded = tg.elementwise("x * 2 + 1", numpy=lambda x: x * 2 + 1)
    with monkeypatch.context() as patch:                    # which has no numpy function: the recording is made, and not run
        patch.setattr(Program, "__call__", lambda self, values, lines=None: (_ for _ in ()).throw(NotImplementedError))
        found = tg.trace(lambda x: plain(x) + 1)
        with pytest.raises(NotImplementedError):
            found(tg.tensor(X, device="numpy"))
    assert key_of(executable_graph(found._seen().program.graph)) is not None
    assert key_of(graph_of(lambda x: folded(x) + 1, X)) is None

    class Mine(Elementwise):
        name = "mine_for_a_test"
        differentiable = False
        nin = 1

        def numpy(self, x):
            return x + 1

        def opencl(self, x):
            return f"({x} + 1)"

    try:
        assert key_of(graph_of(lambda x: REGISTRY["mine_for_a_test"](x) + 1, X)) is None
    finally:
        del REGISTRY["mine_for_a_test"]


def test_switches(monkeypatch):
    graph = graph_of(lambda x: x * 2, X)
    assert key_of(graph) is not None
    monkeypatch.setattr(tg.config, "cache", False)
    assert key_of(graph) is None
    monkeypatch.setattr(tg.config, "cache", True)
    monkeypatch.setattr(tg.config, "check", True)           # kernels are verified as they are written
    assert key_of(graph) is None


# ------------------------------------------------------------------------------------------------------------------- files


def stored():
    graph = graph_of(lambda x, y: (x * y).sum(1), X, X)
    key, plan = key_of(graph), planned(graph)
    plan_files.store(key, plan)
    return key, plan


DAMAGE = {
    "empty": lambda b: b"", "cut": lambda b: b[:-7], "cut in the head": lambda b: b[:20], "longer": lambda b: b + b"x",
    "a bit": lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:], "a bit of the head": lambda b: bytes([b[0] ^ 1]) + b[1:],
    "foreign": lambda b: b"#!/bin/sh\necho hello\n", "zeros": lambda b: bytes(len(b)),
    "another magic": lambda b: b.replace(b"tracegrad 1", b"tracegrad 0"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_as_good_as_none_and_is_written_anew(cache, damage):
    key, plan = stored()
    path = cache / key.name
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    assert plan_files.load(key) is None
    plan_files.store(key, plan)
    assert path.read_bytes() == whole
    assert same(plan_files.load(key), plan)


@pytest.mark.parametrize("contents", [
    b"", b"\0" * 8, b"\xff" * 40, (2).to_bytes(8, "little") + b"{}", (4).to_bytes(8, "little") + b"null",
    (9).to_bytes(8, "little") + b'{"Plan":1}',
    (11).to_bytes(8, "little") + b'{"Plan":[]}', (9).to_bytes(8, "little") + b'{"op":"no', (16).to_bytes(8, "little") + b'{"op":"nothing"}',
])
def test_a_whole_file_that_holds_no_plan_is_ignored(cache, contents):
    key, _ = stored()
    plan_files.FOLDER.put(key.name, contents)
    assert plan_files.FOLDER.get(key.name) == contents
    assert plan_files.load(key) is None


def test_a_file_under_another_name_is_ignored(cache):
    key, _ = stored()
    other = "0" * 64
    (cache / other).write_bytes((cache / key.name).read_bytes())
    assert plan_files.FOLDER.get(key.name) is not None
    assert plan_files.FOLDER.get(other) is None


def test_a_file_of_somebody_else_is_ignored(cache, monkeypatch):
    key, _ = stored()
    assert plan_files.load(key) is not None
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    monkeypatch.setattr(os, "fstat", lambda fd, fstat=os.fstat: _Status(fstat(fd), 4712))
    assert plan_files.load(key) is None


class _Status:
    def __init__(self, status, uid):
        self.st_uid, self.st_size = uid, status.st_size


def test_without_a_place_to_keep_them_plans_are_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    key, _ = stored()
    assert plan_files.load(key) is None


def test_the_folder_is_bounded_and_the_latest_stay(cache, monkeypatch):
    monkeypatch.setattr(tg.config, "cache_size", 1)
    for i in range(400):
        plan_files.FOLDER.put(f"file{i:04}", os.urandom(10_000))
        path = cache / f"file{i:04}"
        os.utime(path, (1e9 + i, 1e9 + i))
        if i == 50:
            kept = plan_files.FOLDER.get("file0000")         # used: it is the latest now
            assert kept is not None
    plan_files.FOLDER.sweep()
    names = sorted(p.name for p in cache.iterdir())
    assert sum(p.stat().st_size for p in cache.iterdir()) <= 1 << 20
    assert names[-1] == "file0399"
    assert "file0000" in names
    assert "file0001" not in names
    assert len(names) > 50


def test_drafts_of_dead_processes_go_and_those_of_living_ones_stay(cache):
    stored()
    old, new = cache / "a.draft", cache / "b.draft"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1e9, 1e9))
    plan_files.FOLDER.sweep()
    assert not old.exists()
    assert new.exists()


def test_writers_and_readers_at_once_see_whole_files_only(monkeypatch):
    monkeypatch.setattr(tg.config, "cache_size", 1)
    contents = {f"name{k}": os.urandom(20_000 + k) for k in range(8)}
    wrong = []

    def write():
        for _ in range(20):
            for name, c in contents.items():
                plan_files.FOLDER.put(name, c)
                plan_files.FOLDER.sweep()

    def read():
        for _ in range(40):
            for name, c in contents.items():
                found = plan_files.FOLDER.get(name)
                if found is not None and found != c:
                    wrong.append(name)

    threads = [threading.Thread(target=t) for t in (write, write, read, read)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert all(plan_files.FOLDER.get(name) == c for name, c in contents.items())


# --------------------------------------------------------------------------------------------------------------- processes

PROGRAM = """
import json, sys
import numpy as np
import tracegrad as tg
import tracegrad.nn.functional as F

tg.config.eager = False
out = []

def say(*tensors):
    out.extend(np.ascontiguousarray(t.detach().numpy()).tobytes().hex() for t in tensors)

def arr(seed, *shape):
    return tg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))

@tg.trace
def small(x, c):
    return (x * c + 1).sin().softmax(1)

say(small(arr(0, 7, 33), 0.5))

tg.manual_seed(0)
net = tg.nn.Sequential(tg.nn.Linear(13, 33), tg.nn.ReLU(), tg.nn.Dropout(0.5), tg.nn.Linear(33, 5))
optimizer = tg.optim.AdamW(net.parameters(), lr=1e-2)

@tg.trace
def step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss

for _ in range(3):
    say(step(arr(1, 16, 13), tg.arange(16) % 5))
say(*net.parameters())

def double(a):
    return 2 * np.sort(a)

@tg.trace
def host(x, y):
    u, s, v = tg.linalg.svd(x.double(), full_matrices=False)
    a = tg.host_call(double, y)
    last, rows = tg.scan(lambda c, r: (c * 0.5 + r, c.sum()), y[0], y)
    k, z = tg.while_loop(lambda v: v[0] < 5, lambda v: (v[0] + 1, v[1] * 1.5), (tg.tensor(0), y[0]))
    return s, a, last, rows, z, tg.fft.fft(y.to(tg.complex64)).real

say(*host(arr(2, 6, 5), arr(3, 4, 7)))

@tg.trace
def pick(table, index):
    return table[index] * 2

say(pick(arr(4, 9, 3), tg.tensor([0, 8, 3])))
try:
    pick(arr(4, 9, 3), tg.tensor([0, 9, 3])).numpy()
    out.append("no error")
except tg.errors.IndexOutOfRange as error:
    out.append(str(error))

x = arr(5, 31, 7).requires_grad_()                          # untraced
(x.exp().sum(0) ** 2).mean().backward()
say(x.grad)
report = tg.report()
json.dump({"out": out, **{k: report[k] for k in ("lowered", "read", "built", "loaded")}, "networkx": "networkx" in sys.modules,
           "codegen": "tracegrad.codegen.compiler" in sys.modules, "kernels": str(step.kernels()), "explain": step.explain(),
           "source": host.source()}, sys.stdout)
"""


def process(tmp_path, program=PROGRAM, file="program.py"):
    """What a program prints in a process of its own, with the cache in tmp_path."""
    path = tmp_path / file
    path.write_text(program)
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path / "pocl"), "PYTHONPATH": str(ROOT)}
    (tmp_path / "pocl").mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, str(path)], env=given, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture
def on_a_driver():
    if tg.device().kind == "numpy":
        pytest.skip("the default device is the interpreter: it has no plans")


def test_a_second_process_lowers_nothing_and_computes_the_same_bits(tmp_path, cache, on_a_driver):
    first = process(tmp_path)
    files = {p.name for p in cache.iterdir()}
    second = process(tmp_path)
    assert first["lowered"] > 6
    assert (first["read"], first["codegen"]) == (0, True)
    assert (second["lowered"], second["read"]) == (0, first["lowered"])
    assert first["built"] > 10
    assert first["loaded"] == 0
    assert (second["built"], second["loaded"]) == (0, first["built"])
    assert not second["networkx"]
    assert not second["codegen"]
    for what in ("out", "kernels", "explain", "source"):
        assert second[what] == first[what]
    assert {p.name for p in cache.iterdir()} == files


def test_processes_at_once_do_not_disturb_each_other(tmp_path, on_a_driver):
    program = "import json, sys\nimport numpy as np\nimport tracegrad as tg\ntg.config.eager = False\nout = []\n" + "".join(
        f"out.append((tg.arange({n}).float() * {n} + {n % 3}).sum().item())\n" for n in (33,)) + "json.dump({'out': out}, sys.stdout)\n"
    found = []
    files = ["one.py", "two.py", "three.py"]               # each its own: one would read what another is writing
    threads = [threading.Thread(target=lambda file=file: found.append(process(tmp_path, program, file)["out"])) for file in files]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [[sum(i * n + n % 3 for i in range(n)) for n in (33,)]] * 3
