"""Kernels that are remembered one by one (runtime/programs/build.py): what a driver gets, and what it gets once."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tests.execute.test_plan_files import X, cache, graph_of, on_a_driver, planned, process  # noqa: F401  (fixtures)
from tests.helpers import corpus
from tests.helpers.plan_audit import misnamed
from tracegrad.execute.devices import upload
from tracegrad.runtime.drivers import intel_cpu, pocl_header
from tracegrad.runtime.drivers.pocl_cpu import is_pocl
from tracegrad.runtime.launch import Executable
from tracegrad.runtime.programs import bare_kernel, build, build_worker, packing
from tracegrad.support.plan import Function, Parameter


def plan_of(name, target="avx2"):
    return planned(graph_of(eval(f"lambda x, y, c: {corpus.ROWS[name]}", vars(corpus)), X, X[::-1].copy(), 0.5), corpus.TARGETS[target])


@pytest.mark.long
@pytest.mark.parametrize("target", corpus.TARGETS)
@pytest.mark.parametrize("name", corpus.ROWS)
def test_what_a_driver_gets_is_the_source_but_for_names(name, target):
    plan = plan_of(name, target)
    assert not misnamed(plan)
    assert len(plan.functions) == plan.source.count("__kernel void ")
    assert not any("//" in f.body for f in plan.functions)
    assert not re.search(r"\b[xy]\w*_i?\d*\b(?!\s*\()", "".join(f.text("@").partition(")")[0] for f in plan.functions))       # users' names


@pytest.mark.parametrize("name", corpus.ROWS)
def test_only_what_a_kernel_uses_goes_along(name):
    plan = plan_of(name)
    for function in plan.functions:
        parts = [plan.parts[i] for group in function.above for i in group]
        for i, part in enumerate(parts):
            others = "\n".join([*parts[:i], *parts[i + 1:], function.text("@")])
            for defined in re.findall(r"^TG \w+ (\w+)\(|^#define ([A-Z]\w+)\(|^constant \w+ (\w+)\[", part, re.MULTILINE)[:1]:
                word = next(filter(None, defined))
                stem = re.sub(r"^(LOAD|STORE)_(?!STRIDED)\w+|^([A-Z]+\d+(?:_IF)?)_[a-z]+\d+$", r"\1\2", word)       # of one type
                owners = re.findall(r"^TG \w+ (\w+)\(", part, re.MULTILINE) or [stem]
                assert any(re.search(rf"\b{o}\b", others) for o in owners), f"{word} is not used by {function.entry}"


def test_users_names_do_not_tell_kernels_apart():
    def keys(code):
        return [f.key for f in planned(graph_of(eval(code, {"tg": tg}), X, X)).functions]

    assert keys("lambda x, y: (x * y + 1).exp()") == keys("lambda weight, out: (weight * out + 1).exp()")
    assert keys("lambda x, y: (x * y + 1).exp()") != keys("lambda x, y: (x * y + 2).exp()")
    assert keys("lambda x, y: (x * y + 1).exp()") != keys("lambda x, y: (x * y + 1).sin()")


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(tg.config, "eager", False)
    before = tg.report()

    def since():
        now = tg.report()
        return {k: now[k] - before[k] for k in ("built", "loaded", "shared")}

    return since


@pytest.mark.usefixtures("on_a_driver")
def test_a_program_that_shares_kernels_with_an_earlier_one_builds_the_new_ones(counted):
    x, y = tg.tensor(np.resize(X, (257, 300))), tg.tensor(np.resize(X, (129, 1000)))        # large enough not to be merged
    first = tg.trace(lambda x: (x * 2.125).sin())
    second = tg.trace(lambda value, other: ((value * 2.125).sin(), other.exp() * 1.125))
    a = first(x).numpy()
    assert counted() == {"built": 1, "loaded": 0, "shared": 0}
    b, c = second(x, y)
    kernels = len(second.plan.functions)
    assert kernels == 2
    assert counted() == {"built": 2, "loaded": 0, "shared": 1}
    np.testing.assert_array_equal(a, b.numpy())
    np.testing.assert_allclose(c.numpy(), np.exp(y.numpy()) * 1.125, rtol=1e-5)


@pytest.mark.usefixtures("on_a_driver")
def test_damaged_binaries_are_built_again(cache, counted):  # noqa: F811
    x = tg.tensor(X)
    traced = tg.trace(lambda x: (x * 2.375).cos())
    wanted = traced(x).numpy()
    plan, device = traced.plan, tg.device()
    folder = build.BINARIES.path
    (file,) = folder.iterdir()
    whole = file.read_bytes()

    def again():
        traced._seen().program.executable = None
        return Executable(plan, device).run([upload(device, X)])[0].download(X.shape, X.dtype)

    np.testing.assert_array_equal(again(), wanted)
    assert counted() == {"built": 1, "loaded": 1, "shared": 0}              # nobody held the first
    file.write_bytes(whole[:-5])
    np.testing.assert_array_equal(again(), wanted)
    assert counted()["built"] == 2
    assert file.stat().st_size > 100                                        # and it was written anew
    build.BINARIES.put(file.name, b"no binary of any driver")
    np.testing.assert_array_equal(again(), wanted)
    assert counted()["built"] == 3
    file.unlink()                                                           # the kernel's place is known, the program is gone
    np.testing.assert_array_equal(again(), wanted)
    assert counted()["built"] == 4


TWO = """
import json, sys
import numpy as np
import tracegrad as tg

tg.config.eager = False
x = tg.tensor(np.linspace(-1, 1, 77100, dtype=np.float32).reshape(257, 300))
out = []
if sys.argv[0].endswith("first.py"):
    traced = tg.trace(lambda x: (x * 2.625).tanh())
    out.append(traced(x).numpy().tobytes().hex())
out.append(tg.trace(lambda v: ((v * 2.625).tanh(), v[:200].exp() * 1.375))(x)[0].numpy().tobytes().hex())
json.dump({"out": out, **{k: tg.report()[k] for k in ("built", "loaded", "shared")}}, sys.stdout)
"""


@pytest.mark.usefixtures("on_a_driver")
def test_another_process_finds_kernels_in_whatever_program_they_were_built(tmp_path):
    first = process(tmp_path, TWO, "first.py")
    second = process(tmp_path, TWO, "second.py")
    assert first["shared"] == 1
    assert first["built"] >= 2
    assert (second["built"], second["loaded"]) == (0, first["built"])       # of two programs, in one plan
    assert second["out"] == first["out"][1:]


def several(count):
    """Kernels as drivers get them: each adds its number to a row, some with a scalar, some with an int as well."""
    made = []
    for i in range(count):
        numbers = *[Parameter("int", "_2")] * (i % 3 > 0), *[Parameter("float", "_3")] * (i % 2)
        parameters = Parameter("float", "_1", True, True, True), *numbers, Parameter("float", "_4", True, False, True)
        more = (" + _2" if i % 3 else "") + (" + _3" if i % 2 else "")
        body = f"  _4[get_global_id(0)] = _1[get_global_id(0)] + {i}.0f{more};"
        made.append(Function(f"entry{i}", f"{i:x}".ljust(32, "_"), parameters, body, ((),)))
    return made


def test_some_kernels_are_parts_of_one(monkeypatch):
    monkeypatch.setattr(packing, "MOST", 4)
    functions = several(10)
    texts = packing.packed(functions, str)
    parts = packing.parts_of("\n".join(texts))
    assert len(texts) == 3
    assert sorted(parts) == [f.key for f in functions]
    assert [parts[functions[i].key].number for i in range(10)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    for i, part in enumerate(parts[functions[i].key] for i in range(10)):
        assert len(part.places) == 2 + (i % 3 > 0) + i % 2
        declared = re.search(rf"__kernel void {part.name}\((.*)\)", "\n".join(texts))[1].split(", ")
        assert sorted([0, *part.places, *(place for place, _ in part.unused)]) == list(range(len(declared)))
        assert [declared[p].rpartition("a")[0].strip() for p in part.places] == [
            "__global void *", *["int"] * (i % 3 > 0), *["float"] * (i % 2), "__global void *"]


def test_what_cannot_be_a_part_stays_a_kernel():
    plain, other, local, last = several(4)
    other, local = replace(other, group=(2, 1, 1)), replace(local, cooperates=True)
    texts = packing.packed([plain, other, local, last], str)
    assert sorted(text.count("__kernel void") for text in texts) == [1, 1, 1]
    assert sorted(packing.parts_of("\n".join(texts))) == [plain.key, last.key]


def test_the_arrays_of_parts_have_room_on_a_threads_stack():
    functions = [replace(f, arrays=packing.ARRAYS // 4 if i else packing.ARRAYS) for i, f in enumerate(several(9))]
    texts = packing.packed(functions, str)
    assert sorted(text.count("// part") for text in texts) == [0, 4, 4]


@pytest.mark.usefixtures("on_a_driver")
@pytest.mark.parametrize("pack", [True, False])
def test_parts_compute_what_kernels_do(pack):
    device = tg.device()
    functions = several(9)
    text = build.text_of(functions, (), pack)
    built = build.Built(build.build(device, text), text)
    x = np.arange(5, dtype=np.float32)
    for i, function in enumerate(functions):
        kernel, places = built.kernel(build._called(function.key))
        given, out = upload(device, x), upload(device, np.zeros_like(x))
        arguments = [given.mem, *[np.int32(40)] * (i % 3 > 0), *[np.float32(0.5)] * (i % 2), out.mem]
        for place, argument in zip(range(9) if places is None else places, arguments, strict=False):
            kernel.set_arg(place, argument)
        cl.enqueue_nd_range_kernel(device.use(device.queue), kernel, (5,), (1,))
        device.finish()
        np.testing.assert_array_equal(out.download(x.shape, x.dtype), x + i + 40 * (i % 3 > 0) + 0.5 * (i % 2))


def signatures(name, text):
    """The result and the operands' types of each declaration of a function, but for those with half."""
    found = set()
    declaration = rf"^([\w ]+?) (?:__ovld|__attribute__\(\(overloadable)[^\n]*?\b{name}\(([^)]*)\);"
    for result, operands in re.findall(declaration, text, re.MULTILINE):
        types = [re.sub(r"(?<=[\s*])\w+$", "", one.strip().replace("unsigned int", "uint")).replace(" ", "") for one in operands.split(",")]
        if "half" not in f"{result} {operands}":
            found.add((result.replace("unsigned int", "uint"), *types))
    return found


NAMES = (*pocl_header._ITEMS, *pocl_header._OF_FLOATS, "min", "max", "atomic_max", "convert_float", "convert_uchar4", "convert_long16")


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_declared_as_pocls_header_declares_them(name):
    package = pytest.importorskip("pocl_binary_distribution")
    header = Path(package.__file__).parent / ".libs/share/pocl/include/opencl-c.h"
    if not header.exists():
        pytest.skip("PoCL has no header there")
    wanted = {s for s in signatures(name, header.read_text()) if not s[1].startswith(("volatileint*", "volatileuint*"))}     # of OpenCL 2
    assert signatures(name, "\n".join(pocl_header.declarations(name))) == wanted


def test_what_is_not_declared_here_is_left_to_the_header():
    assert list(pocl_header.declarations("get_image_width")) == list(pocl_header.declarations("convert_int4_sat")) == []
    assert pocl_header.declared("__global half *x;") is None is pocl_header.declared("half4 x;")
    assert pocl_header.declared("float half_x = 0.5f * x;") == "float half_x = 0.5f * x;"
    text = "y = min(x, 3) + exp(x) + as_int(z) + minimum(x);"
    assert {line.split("(")[2].split()[-1] for line in pocl_header.declared(text).splitlines()[:-1]} == {"min"}


@pytest.mark.usefixtures("on_a_driver")
def test_a_text_that_needs_the_header_is_built_with_it(cache):  # noqa: F811
    device = tg.device()
    functions = [replace(f, body=f.body.replace("_1[", "sinpi(0.5f) * _1[")) for f in several(1)]
    text = build.text_of(functions, ())
    assert build._lean(device.context, device.cl_device, text, build._given_first(device.cl_device, text)) is None
    key, plan = {f.key: f for f in functions}, SimpleNamespace(parts=(), functions=functions, launches=())
    before = build.counts["programs"]
    build._made(device, device.cl_device, key, plan)
    assert build.counts["programs"] == before + 1
    assert list(build._made(device, device.cl_device, key, plan)) == list(key)                    # and from the disk
    assert build.counts["programs"] == before + 1


@pytest.mark.usefixtures("on_a_driver")
def test_from_the_disk_a_driver_is_given_what_it_was_given_before(cache, monkeypatch):  # noqa: F811
    """Nobody looks through a text again for what has to stand in front of it."""
    device = tg.device()
    if device.cl_device.platform.name.strip() not in build._CACHING:
        pytest.skip("the driver's binary is kept")
    functions = several(3)
    key, plan = {f.key: f for f in functions}, SimpleNamespace(parts=(), functions=functions, launches=())
    given = []
    real = build_worker.built
    monkeypatch.setattr(build_worker, "built", lambda context, side, *text: given.append(text) or real(context, side, *text))
    first = build._made(device, device.cl_device, key, plan)
    for name in ("declared", "any_address", "by_halves"):
        monkeypatch.setattr(build, name, lambda text: pytest.fail("looked through again"))
    again = build._made(device, device.cl_device, key, plan)
    assert given == [given[0]] * 2
    assert [built.parts for built in again.values()] == [built.parts for built in first.values()]


@pytest.mark.usefixtures("on_a_driver")
@pytest.mark.parametrize("name", ["0" * 64, "no name: the driver rejects it"])
def test_a_compiler_is_loaded_in_a_thread_once_for_a_device(name, monkeypatch):
    started = []

    class Noted(threading.Thread):
        def start(self):
            started.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Noted)
    monkeypatch.setattr(build, "_loading", set())
    device = tg.device()
    build.load_compiler(device, name)
    build.load_compiler(device, name)
    assert len(started) == is_pocl(device.cl_device)
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


def test_intels_driver_is_told_which_kernels_have_no_work_items_to_join():
    functions = [replace(f, group=group) for f, group in zip(several(4), [(1, 1, 1), (8, 1, 1), None, (1, 1, 1)], strict=True)]
    text = build.text_of(functions, ())
    hinted = intel_cpu.one_item(text)
    assert [line for line in hinted.splitlines() if "vec_len_hint" in line] == [
        "__attribute__((intel_vec_len_hint(1))) __attribute__((reqd_work_group_size(1, 1, 1)))"] * 2
    assert hinted.replace("__attribute__((intel_vec_len_hint(1))) ", "") == text
    assert hinted.count("\n") == text.count("\n")                    # errors name lines


@pytest.mark.usefixtures("on_a_driver")
def test_kernels_come_without_pyopencls_calls_and_everybody_elses_with_them(monkeypatch):
    asked: list[str] = []
    generate = bare_kernel._generate
    monkeypatch.setattr(bare_kernel, "_generate", lambda name, *args, **given: (asked.append(name), generate(name, *args, **given))[1])
    device = tg.device()
    text = "__kernel void twice(__global const float *a, __global float *b) { int i = get_global_id(0); b[i] = 2 * a[i]; }"
    made = cl.Program(device.context, text).build(devices=[device.cl_device])
    given = cl.Buffer(device.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=X.ravel())
    results = [cl.Buffer(device.context, cl.mem_flags.READ_WRITE, X.nbytes) for _ in range(2)]
    bare = bare_kernel.bare_kernel(made, "twice")
    assert not asked
    with pytest.raises(TypeError, match="set its arguments one by one"):
        bare(device.queue, (X.size,), None, given, results[0])
    bare.set_arg(0, given)
    bare.set_arg(1, results[0])
    cl.enqueue_nd_range_kernel(device.queue, bare, (X.size,), None)
    cl.Kernel(made, "twice")(device.queue, (X.size,), None, given, results[1])
    assert asked == ["twice"]
    for result in results:
        found = np.empty_like(X.ravel())
        cl.enqueue_copy(device.queue, found, result)
        np.testing.assert_array_equal(found, 2 * X.ravel())
    with pytest.raises(cl.Error):
        bare_kernel.bare_kernel(made, "nowhere")
    assert cl.Kernel(made, "twice").num_args == 2
    assert asked == ["twice", "twice"]
    tg.trace(lambda x: (x * 2.625).sin())(tg.tensor(X)).numpy()
    assert asked == ["twice", "twice"]
