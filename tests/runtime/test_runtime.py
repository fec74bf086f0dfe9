"""The runtime alone: devices, buffers, programs, and plans written by hand. Every device present runs every test."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from tracegrad.config import config
from tracegrad.errors import ArgumentError, BuildError, DeviceError, NoDriverError, OutOfMemoryError, UnsupportedError
from tracegrad.runtime import capabilities, disk, doctor, queries
from tracegrad.runtime import device as runtime_device
from tracegrad.runtime.buffer import Buffer, empty, make_room, obstacle, upload, wrap
from tracegrad.runtime.capabilities import Capabilities
from tracegrad.runtime.device import SMALL_WORK, Device, devices, find
from tracegrad.runtime.doctor import devices_report, doctor_report, findings
from tracegrad.runtime.drivers import icd, trial
from tracegrad.runtime.launch import Executable
from tracegrad.runtime.programs import build_worker
from tracegrad.runtime.programs.build import build
from tracegrad.runtime.queries import kind_of, target_of
from tracegrad.support.device_kinds import KINDS
from tracegrad.support.plan import HostStep, Launch, Plan, Scalar, Slot

F = np.dtype("float32")
SOURCE = """
__kernel void add(__global const float *a, __global const float *b, __global float *c) { int i = get_global_id(0); c[i] = a[i] + b[i]; }
__kernel void scale(__global const float *a, __global float *b, const float s) { int i = get_global_id(0); b[i] = a[i] * s; }
__kernel void count(__global float *a, const long n, const char k) { int i = get_global_id(0); a[i] += n + k; }
__kernel void slow(__global float *a) {
    int i = get_global_id(0);
    float x = a[i];
    for (int k = 0; k < 2000; k++) x = x * 0.5f + 1.0f;
    a[i] = x;
}
"""


@pytest.fixture(params=range(len(devices())), ids=lambda i: devices()[i].driver)
def device(request: pytest.FixtureRequest) -> Device:
    found: Device = devices()[request.param]
    return found


@pytest.fixture
def pair() -> Device:
    """A device with two queues."""
    found = [device for device in devices() if device.cl_basic is not None]
    if not found:
        pytest.skip("needs PoCL with its basic and pthread devices")
    return found[0]


class TestCapabilities:
    """What is found out by trying."""

    @pytest.fixture
    def ask(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Capabilities, bool]]:
        """What a driver of some version can do, and whether it was tried; answers are kept in an empty folder."""
        real = devices()[0]
        side, probe = real.cl_basic or real.cl_device, capabilities.probe
        tries: list[Any] = []

        def counted(context: Any, device: Any) -> Capabilities:
            tries.append(device)
            return probe(context, side)

        def ask(version: str = "1", platform: str = "a driver") -> tuple[Capabilities, bool]:
            tries.clear()
            fake = SimpleNamespace(platform=SimpleNamespace(name=platform, version=version), name="a device", driver_version=version)
            return capabilities.capabilities(real.context, fake), bool(tries)

        monkeypatch.setattr(capabilities, "probe", counted)
        monkeypatch.setattr(disk, "cache_folder", lambda name: tmp_path / name)
        monkeypatch.setattr(config, "cache", True)
        return ask

    @pytest.mark.parametrize(("name", "old", "new"), [
        ("clang_builtins", "__builtin_convertvector(", "__builtin_nowhere("),          # does not build
        ("clang_builtins", "__builtin_floorf(", "(1.0f + "),                           # builds, and is wrong
        ("clang_builtins", "void probe_clang", "void another"),                          # builds, and cannot be launched
        ("long_loops", "i < in[0]", "i < in[0] && i < 65535"),                         # what llvmpipe does
        ("wide_comparisons", "x = in[0]", "x = in[0] & 0x7fffffff"),                   # as if the sign were lost
    ])
    def test_what_fails_is_not_there(self, ask: Any, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
        real = devices()[0].capabilities
        assert ask() == (real, True)
        trial = capabilities.TRIALS[name]
        assert old in trial.source
        monkeypatch.setitem(capabilities.TRIALS, name, replace(trial, source=trial.source.replace(old, new)))
        assert ask() == (replace(real, **{name: False}), True)

    @pytest.mark.parametrize("version", capabilities.KNOWN)
    def test_a_driver_whose_answers_are_known_is_not_tried(self, ask: Any, version: str) -> None:
        assert ask(f"OpenCL 3.0 {version}-rc2  Linux") == (capabilities.KNOWN[version], False)
        platform, _, number = version.rpartition(" ")
        assert ask(f"{number}10.0", platform) == (capabilities.KNOWN[version], False)
        assert ask("2024.1", platform) == (devices()[0].capabilities, True)

    def test_what_is_known_of_a_driver_is_what_trials_show(self, device: Device) -> None:
        """Of each driver here: known or not, these are its answers."""
        if device.kind == "gpu":
            pytest.skip("GPUs are not tried")
        assert device.capabilities == capabilities.probe(device.context, device.first_side)

    def test_a_driver_is_tried_once(self, ask: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        found, tried = ask()
        assert tried
        assert ask() == (found, False)
        assert ask("2") == (found, True)
        for file in (tmp_path / "capabilities").iterdir():
            file.write_text("{half of a file")
        assert ask() == (found, True)
        monkeypatch.setattr(config, "cache", False)
        assert ask() == (found, True)
        monkeypatch.setattr(config, "cache", True)
        (tmp_path / "a file").touch()
        monkeypatch.setattr(disk, "cache_folder", lambda name: tmp_path / "a file" / name)
        assert ask() == (found, True)                                 # no folder to keep it in: no error

    @pytest.mark.parametrize(("type_", "preferred", "plain"), [("CPU", 8, True), ("CPU", 1, False), ("CPU", 0, False), ("GPU", 4, False)])
    def test_a_target_says_what_the_device_says(self, type_: str, preferred: int, plain: bool) -> None:
        """The name of a driver decides nothing."""
        fake = SimpleNamespace(
            type=getattr(cl.device_type, type_), platform=SimpleNamespace(name="Portable Computing Language"), extensions="cl_khr_fp64",
            local_mem_type=cl.device_local_mem_type.LOCAL, local_mem_size=1 << 15, max_compute_units=7, max_work_group_size=512,
            native_vector_width_float=16, preferred_vector_width_float=preferred)
        target = target_of(fake, kind_of(fake), plain)
        assert (target.plain_math, target.clang_builtins, target.fp64, target.cores) == (plain, plain, True, 7)
        assert (target.kind, target.simd_bytes) == (("cpu", 64) if type_ == "CPU" else ("gpu", 16))

    @pytest.mark.parametrize(("vendor", "state", "preferred", "fast"), [
        (0x8086, "Not affected\n", 8, True), (0x8086, "Vulnerable\n", 8, True), (0x8086, "Mitigation: Microcode\n", 8, False),
        (0x8086, "Unknown: Dependent on hypervisor status\n", 8, False), (0x8086, None, 8, False), (0x1022, "Not affected\n", 8, False),
        (0x8086, "Not affected\n", 1, False)])
    def test_gathers_are_used_where_they_are_fast(self, monkeypatch, tmp_path, vendor, state, preferred, fast) -> None:
        """By Intel's processors, where the system tells that nothing slows them down; not where the driver makes the vectors."""
        told = tmp_path / "state"
        if state is not None:
            told.write_text(state)
        monkeypatch.setattr(queries, "_DOWNFALL", told)
        fake = SimpleNamespace(
            type=cl.device_type.CPU, platform=SimpleNamespace(name="a driver"), extensions="", vendor_id=vendor, max_compute_units=2,
            local_mem_type=cl.device_local_mem_type.LOCAL, local_mem_size=1 << 15, max_work_group_size=512,
            native_vector_width_float=16, preferred_vector_width_float=preferred)
        assert target_of(fake, "cpu", True).gathers is fast
        assert target_of(fake, "cpu", False).gathers is False

    @pytest.mark.parametrize(("vendor", "asked", "cores", "lanes"), [
        (0x10DE, {"warp_size_nv": 32}, 128, 32), (0x1002, {"wavefront_width_amd": 32}, 128, 32), (0x1002, {}, 128, 64),
        (0x8086, {}, 16, 16), (0x5143, {}, 128, 64), (0, {}, 128, 32)])
    def test_what_a_core_of_a_gpu_is(self, vendor: int, asked: dict[str, int], cores: int, lanes: int) -> None:
        fake = SimpleNamespace(
            type=cl.device_type.GPU, platform=SimpleNamespace(name="a driver"), extensions="", vendor_id=vendor, max_compute_units=128,
            local_mem_type=cl.device_local_mem_type.LOCAL, local_mem_size=1 << 15, max_work_group_size=512, **asked)
        target = target_of(fake, "gpu", False)
        assert (target.cores, target.lanes, target.resident >= 1024) == (cores, lanes, True)

    def test_a_driver_that_is_wrong_is_told_once(self, monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
        """Loops that end early also mean that a work-item gets little to do."""
        monkeypatch.setattr(runtime_device, "capabilities", lambda *_: Capabilities(True, False, False))
        fresh = Device(device.cl_device)
        fresh.kind = "cpu"
        assert (fresh.target.kind, fresh.target.clang_builtins) == ("gpu", False)
        plan = Plan("", (), (), (), ())
        with pytest.warns(RuntimeWarning, match="may be wrong") as told:
            Executable(plan, fresh)
        assert [word in str(warning.message) for warning, word in zip(told, ("loops", "widened"), strict=True)] == [True, True]
        Executable(plan, fresh)                                       # warnings are errors in tests

    def test_a_gpu_is_not_tried(self, monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
        monkeypatch.setattr(runtime_device, "capabilities", lambda *_: pytest.fail("tried"))
        fresh = Device(device.cl_device)
        fresh.kind = "gpu"
        assert fresh.target.clang_builtins is False


def slot(kind: Any, n: int = 64, **rest: Any) -> Slot:
    return Slot(kind, (n,), F, **rest)


def add_plan(n: int = 64, work: int = 0) -> Plan:
    launch = Launch("add", (n,), None, (0, 1, 2), work=work)
    return Plan(SOURCE, (launch,), (slot("input", n), slot("input", n), slot("output", n)), (0, 1), (2,))


def scale_plan(slots: tuple[Slot, ...], out: int, outputs: tuple[int, ...], work: int = 0) -> Plan:
    return Plan(SOURCE, (Launch("scale", slots[0].shape, None, (0, out, Scalar(0, F)), work=work),), slots, (0,), outputs, 1)


def numbers(n: int = 64) -> np.ndarray[Any, Any]:
    return np.arange(n, dtype=F)


def read(buffer: Buffer, n: int = 64) -> np.ndarray[Any, Any]:
    return buffer.download((n,), F)


class TestDevices:
    def test_found_by_index_kind_and_name(self, device: Device) -> None:
        assert find(devices().index(device)) is device
        assert find(device.kind).kind == device.kind
        assert find(device.driver.upper()).driver == device.driver
        assert find(device) is device

    def test_a_driver_s_name_comes_before_a_device_s(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """PoCL on a CPU of Intel's is not what `intel` asks for, if their driver is there."""
        class Named:
            undecided = ()

            def __init__(self, name: str, driver: str, platform: str) -> None:
                self.name, self.driver, self.platform, self.kind = name, driver, platform, "cpu"

        pocl = Named("Intel(R) Xeon(R) Processor", "PoCL 3.0", "Portable Computing Language")
        intel = Named("Intel(R) Xeon(R) Processor", "Intel(R) OpenCL", "Intel(R) OpenCL")
        for present in ([pocl, intel], [intel, pocl]):
            monkeypatch.setattr(runtime_device, "devices", lambda present=present: present)
            assert find("intel") is intel
            assert find("PoCL") is pocl
            assert find("xeon") is present[0]
        monkeypatch.setattr(runtime_device, "devices", lambda: [pocl])
        assert find("intel") is pocl

    def test_default_is_the_configured_one_or_the_best(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "device", "")
        assert find() is devices()[0]
        monkeypatch.setattr(config, "device", str(len(devices()) - 1))
        assert find() is devices()[-1]

    def test_no_match_lists_what_is_present(self) -> None:
        with pytest.raises(NoDriverError, match=r"device: none matches 'warp drive'.*doctor"):
            find("warp drive")
        with pytest.raises(NoDriverError):
            find(99)

    def test_target_is_plausible(self, device: Device) -> None:
        target = device.target
        assert target.simd_bytes in (16, 32, 64)
        assert target.cores >= 1
        assert device.max_buffer > 1 << 20

    def test_reports(self) -> None:
        assert devices()[0].name in devices_report()
        assert "default device" in doctor_report()
        assert all(finding.text for finding in findings())

    def test_no_driver_names_the_way_out(self) -> None:
        script = "from tracegrad.runtime.device import find; find()"
        environment = {**os.environ, "OCL_ICD_VENDORS": os.devnull, "PYTHONPATH": os.getcwd()}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
        assert "NoDriverError" in done.stderr
        assert "pip install" in done.stderr

    def test_small_plans_run_in_the_calling_thread(self, pair: Device) -> None:
        most = pair.small_work()
        assert most >= SMALL_WORK
        for launches in (1, 2, 30):
            most = pair.small_work(launches)
            assert pair.is_small(replace(add_plan(), steps=add_plan(work=most // launches - 1).steps * launches))
            assert not pair.is_small(replace(add_plan(), steps=add_plan(work=most // launches + 1).steps * launches))
            assert launches == 1 or most > pair.small_work(launches - 1)
        one = add_plan(n=1, work=12 * pair.small_work())                    # threads cannot share a work-item
        assert pair.is_small(one)
        assert not pair.is_small(replace(one, steps=one.steps * 2))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_forked_child_gets_an_error_instead_of_a_hang(self, device: Device) -> None:
        device.finish()
        upload(device, numbers(1 << 20))
        child = os.fork()
        if child == 0:
            try:
                empty(device, 64).write(numbers(16))
            except DeviceError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


class TestIntelFromPip:
    @pytest.fixture
    def installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        monkeypatch.setattr(icd, "cache_folder", lambda name: tmp_path / name)
        monkeypatch.setattr(icd, "intel_library", lambda: Path("/opt/lib/libintelocl.so"))
        monkeypatch.setattr(icd, "nvidia_library", lambda: None)
        monkeypatch.setattr(icd, "system_icds", list)
        monkeypatch.setattr(sys, "platform", "linux")
        for name in icd.VARIABLES:
            monkeypatch.setenv(name, "")
        return tmp_path

    def test_writes_an_icd_file_and_points_the_loader_at_it(self, installed: Path) -> None:
        folder = icd.enable_unregistered()
        assert folder is not None
        assert os.environ["OCL_ICD_VENDORS"] == str(folder)
        assert installed in folder.parents
        assert [path.read_text() for path in folder.iterdir()] == ["/opt/lib/libintelocl.so\n"]
        assert icd.enable_unregistered() == folder

    def test_keeps_the_systems_drivers(self, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (installed / "pocl.icd").write_text("libpocl.so")
        monkeypatch.setattr(icd, "system_icds", lambda: [installed / "pocl.icd"])
        folder = icd.enable_unregistered()
        assert folder is not None
        assert sorted(path.name for path in folder.iterdir()) == ["pocl.icd", "tracegrad-intel-cpu.icd"]

    def test_leaves_the_users_choice_alone(self, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OCL_ICD_VENDORS", "/somewhere/else")
        assert icd.enable_unregistered() is None
        assert os.environ["OCL_ICD_VENDORS"] == "/somewhere/else"


class TestNvidiaInAContainer:
    """The driver's library is there, the .icd file that names it is not."""

    @pytest.fixture
    def library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        found = tmp_path / "lib" / icd.NVIDIA
        found.parent.mkdir()
        found.touch()
        monkeypatch.setattr(icd, "LIBRARIES", (tmp_path / "none", found.parent))
        monkeypatch.setattr(icd, "cache_folder", lambda name: tmp_path / name)
        monkeypatch.setattr(icd, "intel_library", lambda: None)
        monkeypatch.setattr(icd, "system_icds", list)
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setenv("LD_LIBRARY_PATH", "")
        for name in icd.VARIABLES:
            monkeypatch.setenv(name, "")
        return found

    def test_it_is_registered(self, library: Path) -> None:
        folder = icd.enable_unregistered()
        assert folder is not None
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"tracegrad-nvidia.icd": f"{library}\n"}

    def test_the_library_path_comes_first(self, library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / icd.NVIDIA).touch()
        monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
        assert icd.nvidia_library() == tmp_path / icd.NVIDIA

    def test_a_system_that_names_it_is_left_alone(self, library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "nvidia.icd").write_text("libnvidia-opencl.so.1")
        monkeypatch.setattr(icd, "system_icds", lambda: [tmp_path / "nvidia.icd"])
        assert icd.enable_unregistered() is None

    def test_the_doctor_says_what_to_write(self, library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(doctor, "system_icds", list)
        finding, = doctor._nvidia([], [])
        assert (finding.level, str(library) in finding.text) == ("problem", True)
        assert finding.fix.endswith(f"echo {library} > /etc/OpenCL/vendors/nvidia.icd")
        assert doctor._nvidia([], ["OCL_ICD_VENDORS"])[0].fix == "unset OCL_ICD_VENDORS"
        assert doctor._nvidia(["NVIDIA CUDA OpenCL 3.0"], [])[0].level == "ok"
        (tmp_path / "nvidia.icd").write_text("libnvidia-opencl.so.1")
        monkeypatch.setattr(doctor, "system_icds", lambda: [tmp_path / "nvidia.icd"])
        assert doctor._nvidia(["NVIDIA CUDA OpenCL 3.0"], []) == []


class TestBuffers:
    @pytest.mark.parametrize("n", [0, 1, 1000, 1 << 19])          # the last is larger than SMALL_UPLOAD
    @pytest.mark.parametrize("enter", [upload, wrap])
    def test_round_trip(self, device: Device, n: int, enter: Callable[..., Buffer]) -> None:
        array = numbers(n)
        buffer = enter(device, array)
        assert buffer.nbytes == 4 * n
        np.testing.assert_array_equal(read(buffer, n), array)
        np.testing.assert_array_equal(buffer.view((n,), F), array)

    @pytest.mark.parametrize("n", [16, 1 << 19])
    def test_upload_copies(self, device: Device, n: int) -> None:
        array = numbers(n)
        buffer = upload(device, array)
        array[:] = -1
        np.testing.assert_array_equal(read(buffer, n), numbers(n))

    def test_strided_and_read_only_arrays(self, device: Device) -> None:
        array = numbers(64).reshape(8, 8).T
        array.flags.writeable = False
        np.testing.assert_array_equal(upload(device, array).download((8, 8), F), array)
        assert "contiguous" in obstacle(device, array) or not device.in_host_memory
        np.testing.assert_array_equal(wrap(device, array.T).download((8, 8), F), array.T)

    @pytest.mark.parametrize("dtype", ["bool", "float16", "int64", "uint8"])
    def test_scalars_and_other_dtypes(self, device: Device, dtype: str) -> None:
        for array in (np.ones((), dtype), np.ones((2, 3), dtype)):
            buffer = upload(device, array)
            for back in (buffer.download(array.shape, dtype), buffer.view(array.shape, dtype)):
                assert back.shape == array.shape
                np.testing.assert_array_equal(back, array)

    def test_view_is_read_only_and_keeps_the_memory(self, device: Device) -> None:
        view = upload(device, numbers(1 << 19)).view((1 << 19,), F)
        gc.collect()
        others = [upload(device, np.zeros(1 << 19, F)) for _ in range(3)]
        np.testing.assert_array_equal(view, numbers(1 << 19))
        assert not view.flags.writeable
        assert others

    def test_a_block_of_the_pool_stays_mapped_until_it_goes_back(self, device: Device) -> None:
        """Arrays of its memory, one after the other, show what commands wrote; while there is one, nobody else gets the memory."""
        if not device.in_host_memory:
            pytest.skip("it has memory of its own")
        made = empty(device, 4096)
        made.write(numbers(1024))
        array = made.contents((1024,), F)
        blocks, kept = len(device.mapped), array.copy()
        del made
        for value in (1.0, 2.0):
            other = empty(device, 4096)
            other.write(np.full(1024, value, F))
            assert not np.shares_memory(array, other.contents((1024,), F))
            np.testing.assert_array_equal(other.contents((1024,), F), np.full(1024, value, F))
            np.testing.assert_array_equal(array, kept)
        assert blocks <= len(device.mapped) <= blocks + 2
        make_room(device)
        assert not device.mapped
        np.testing.assert_array_equal(array, kept)
        np.testing.assert_array_equal(other.contents((1024,), F), np.full(1024, 2.0, F))

    def test_a_driver_that_works_on_a_copy_is_not_asked_to_share(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(capabilities, "_reads", lambda device, array: False)
        monkeypatch.delitem(device.__dict__, "host_alignment", raising=False)
        try:
            assert (device.host_alignment, device.in_host_memory) == (0, False)
            assert "memory of its own" in obstacle(device, numbers())
            assert not np.shares_memory((buffer := upload(device, numbers())).view((64,), F), buffer.view((64,), F))
        finally:
            device.__dict__.pop("host_alignment", None)

    def test_dropped_memory_is_used_again(self, device: Device) -> None:
        kept = [empty(device, 1 << 20)]
        held = device.pool.managed_bytes
        for _ in range(5):
            kept[0] = empty(device, 1 << 20)
        assert device.pool.managed_bytes <= held + (1 << 21)

    def test_out_of_memory_leaves_everything_usable(self, device: Device) -> None:
        buffer = upload(device, numbers())
        with pytest.raises(OutOfMemoryError, match=r"1125899906842624 bytes .* wanted on .* at most"):
            empty(device, 1 << 50)
        np.testing.assert_array_equal(read(buffer), numbers())
        assert empty(device, 1 << 20).nbytes == 1 << 20


class TestPrograms:
    def test_same_text_is_built_once(self, device: Device) -> None:
        assert build(device, SOURCE) is build(device, SOURCE)

    def test_error_names_the_line(self, device: Device) -> None:
        source = "__kernel void fine(__global float *a) { a[0] = 1; }\n__kernel void broken(__global float *a)\n{\n    a[0] = missing;\n}\n"
        with pytest.raises(BuildError) as caught:
            build(device, source)
        assert "broken, line 4" in str(caught.value)
        assert "`a[0] = missing;`" in str(caught.value)
        assert caught.value.source == source
        assert "missing" in caught.value.log

    def test_a_rejected_text_is_built_once(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        source, given = "__kernel void rejected(__global float *a) { a[0] = nowhere; }\n", []
        monkeypatch.setattr(build_worker, "built", lambda *args, built=build_worker.built: (given.append(args), built(*args))[1])
        found = []
        for _ in range(3):
            with pytest.raises(BuildError, match="nowhere") as caught:
                build(device, source)
            found.append((caught.value.source, caught.value.log))
        assert len(given) == 1
        assert found == [found[0]] * 3

    def test_without_the_cache(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "cache", False)
        assert build(device, "__kernel void uncached(__global float *a) { a[0] = 1; }").kernel_names == "uncached"


class TestLaunch:
    def test_one_launch(self, device: Device) -> None:
        run = Executable(add_plan(), device).run
        a, b = upload(device, numbers()), upload(device, numbers() * 2)
        np.testing.assert_array_equal(read(run([a, b])[0]), numbers() * 3)
        np.testing.assert_array_equal(read(run([b, b])[0]), numbers() * 4)      # the inputs that changed are bound again
        first, second = run([a, a])[0], run([b, a])[0]
        np.testing.assert_array_equal(read(first), numbers() * 2)               # a live output is not written again
        np.testing.assert_array_equal(read(second), numbers() * 3)

    def test_temps_constants_and_several_launches(self, device: Device) -> None:
        slots = (slot("input"), slot("temp", block=0), slot("constant", data=np.array([10], F)), slot("temp", block=1), slot("output"))
        steps = (
            Launch("add", (64,), (16,), (0, 0, 1)), Launch("add", (64,), None, (1, 2, 3)), Launch("add", (64,), None, (3, 1, 4)),
        )
        executable = Executable(Plan(SOURCE, steps, slots, (0,), (4, 2, 0), blocks=(256, 256)), device)
        a = upload(device, numbers())
        for _ in range(2):
            total, ten, same = executable.run([a])
            np.testing.assert_array_equal(read(total), numbers() * 4 + 10)
            np.testing.assert_array_equal(read(ten), np.full(64, 10, F))
            assert same is a
            executable.release()
            make_room(device)
        ten.write(np.zeros(64, F))                                              # a constant handed out is a copy
        np.testing.assert_array_equal(read(executable.run([a])[0]), numbers() * 4 + 10)

    def test_aliased_output_is_the_inputs_buffer(self, device: Device) -> None:
        a = upload(device, numbers())
        out, = Executable(scale_plan((slot("input"), slot("output", alias=0)), 1, (1,)), device).run([a], [3.0])
        assert out is a
        np.testing.assert_array_equal(read(a), numbers() * 3)

    def test_memory_of_an_array_is_never_written(self, device: Device) -> None:
        if not device.in_host_memory:
            pytest.skip("this device has memory of its own")
        block = np.zeros(4096 + 256, np.uint8)
        array = block[-block.ctypes.data % 4096:][:256].view(F)
        array[:] = numbers()
        a = wrap(device, array)
        in_place = Executable(scale_plan((slot("input"), slot("output", alias=0)), 1, (1,)), device)
        with pytest.raises(ArgumentError, match="an array's own memory"):
            in_place.run([a], [3.0])
        out, = in_place.run([a.copy()], [3.0])
        np.testing.assert_array_equal(read(out), numbers() * 3)
        same, = Executable(Plan("", (), (slot("input"),), (0,), (0,)), device).run([a])
        device.finish()
        array[:] = -1                                                           # what was passed through is a copy
        np.testing.assert_array_equal(read(same), numbers())
        np.testing.assert_array_equal(read(a), array)

    def test_scalars(self, device: Device) -> None:
        run = Executable(scale_plan((slot("input"), slot("output")), 1, (1,)), device).run
        one = upload(device, np.ones(64, F))
        values: list[Any] = [2, -2.5, 0.0, -0.0, float("nan"), float("inf"), 1e300, np.float64(0.1), np.float32(0.5), True, np.array(4.0)]
        for value in values:
            with np.errstate(over="ignore"):
                expected = np.full(64, value).astype(F)
            result = read(run([one], [value])[0])
            np.testing.assert_array_equal(result, expected)
            np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))
        with pytest.raises(ArgumentError, match="'two' is not one float32"):
            run([one], ["two"])  # type: ignore[list-item]

    def test_a_scalar_as_two_dtypes(self, device: Device) -> None:
        args = (1, Scalar(0, np.dtype("int64")), Scalar(0, np.dtype("int8")))
        plan = Plan(SOURCE, (Launch("count", (64,), None, args),), (slot("input"), slot("output", alias=0)), (0,), (1,), 1)
        out, = Executable(plan, device).run([upload(device, numbers())], [5])
        np.testing.assert_array_equal(read(out), numbers() + 10)

    def test_plans_without_launches_and_empty_arrays(self, device: Device) -> None:
        plan = Plan("", (), (slot("input"), slot("output", 0)), (0,), (0, 1, 0))
        a = upload(device, numbers())
        same, nothing, again = Executable(plan, device).run([a])
        assert same is a is again
        assert read(nothing, 0).size == 0
        none = upload(device, numbers(0))
        out, = Executable(add_plan(0), device).run([none, none])
        assert out.nbytes == 0

    def test_host_step(self, device: Device) -> None:
        slots = (slot("input"), slot("temp", block=0), slot("temp", block=1), slot("output"))
        inner = Executable(add_plan(), device)

        def sort_down(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            doubled, = inner.run([upload(device, x)] * 2)                       # a host step may use the device itself
            return np.sort(read(doubled))[::-1]

        steps = (Launch("add", (64,), None, (0, 0, 1)), HostStep(sort_down, (1,), (2,)), Launch("add", (64,), None, (2, 2, 3)))
        executable = Executable(Plan(SOURCE, steps, slots, (0,), (3,), blocks=(256, 256)), device)
        np.testing.assert_array_equal(read(executable.run([upload(device, numbers())])[0]), numbers()[::-1] * 8)

    def test_host_step_that_fails_leaves_the_executable_usable(self, device: Device) -> None:
        wrong = [np.zeros(3, F)]
        slots = (slot("input"), slot("output"))
        executable = Executable(Plan("", (HostStep(lambda x: wrong[0], (0,), (1,), "my_step"),), slots, (0,), (1,)), device)
        a = upload(device, numbers())
        with pytest.raises(ArgumentError, match=r"my_step: returned an array of shape \(3,\), \(64,\) was declared"):
            executable.run([a])
        wrong[0] = numbers()
        np.testing.assert_array_equal(read(executable.run([a])[0]), numbers())

    def test_a_plan_inside_itself_is_refused(self, device: Device) -> None:
        a = upload(device, numbers())
        plan = Plan("", (HostStep(lambda x: executable.run([a]), (0,), (1,)),), (slot("input"), slot("output")), (0,), (1,))
        executable = Executable(plan, device)
        with pytest.raises(DeviceError, match="a step of"):
            executable.run([a])

    def test_bad_inputs(self, device: Device) -> None:
        executable, a = Executable(add_plan(), device), upload(device, numbers())
        with pytest.raises(ArgumentError, match="takes 2 buffers and 0 scalars, got 1 and 0"):
            executable.run([a])
        with pytest.raises(ArgumentError, match="input 1 must have 256 bytes"):
            executable.run([a, upload(device, numbers(8))])
        np.testing.assert_array_equal(read(executable.run([a, a])[0]), numbers() * 2)

    def test_malformed_plans_are_refused_before_they_crash_a_driver(self, device: Device) -> None:
        slots = (slot("input"), slot("output"))
        for steps, inputs, message in (
            ((Launch("scale", (64,), None, (0, 1)),), (0,), "scale takes 3 arguments, the plan gives 2"),
            ((Launch("absent", (64,), None, (0, 1)),), (0,), "no kernel absent"),
            ((), (), "is no input of the plan"),
        ):
            with pytest.raises(ArgumentError, match=message):
                Executable(Plan(SOURCE, steps, slots, inputs, (1,)), device)

    def test_failed_allocation_leaves_the_executable_usable(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        executable, a = Executable(add_plan(), device), upload(device, numbers())
        monkeypatch.setattr("tracegrad.runtime.launch.empty", lambda device, n: empty(device, 1 << 50))
        with pytest.raises(OutOfMemoryError):
            executable.run([a, a])
        monkeypatch.undo()
        np.testing.assert_array_equal(read(executable.run([a, a])[0]), numbers() * 2)

    def test_missing_float64_is_said(self, device: Device) -> None:
        plan = Plan("", (), (Slot("input", (4,), np.dtype("float64")),), (0,), (0,))
        if device.target.fp64:
            Executable(plan, device)
        else:
            with pytest.raises(UnsupportedError, match="no float64"):
                Executable(plan, device)

    def test_profile(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "profile", True)
        executable, a = Executable(add_plan(), device), upload(device, numbers())
        executable.run([a, a])
        executable.run([a, a])
        times, = executable.profile()
        assert (times.entry, times.calls) == ("add", 2)
        assert times.seconds >= 0
        monkeypatch.undo()
        np.testing.assert_array_equal(read(executable.run([a, a])[0]), numbers() * 2)
        assert not device.profiling                     # switched off, it leaves no queues that record times

    def test_an_executable_does_not_outlive_its_last_reference(self, device: Device) -> None:
        executable = Executable(add_plan(), device)
        alive = weakref.ref(executable)
        del executable
        gc.collect()
        assert alive() is None


class TestInFlight:
    """What is dropped or handed to the other queue while the device is busy."""

    N = 1 << 14

    def slow(self, device: Device) -> Executable:
        if device.driver == "Oclgrind":
            pytest.skip("a simulator is never busy, only slow")
        launch = Launch("slow", (self.N,), None, (1,), work=1 << 40)
        return Executable(Plan(SOURCE, (launch,), (slot("input", self.N), slot("output", self.N, alias=0)), (0,), (1,)), device)

    def test_queues_keep_their_order(self, pair: Device) -> None:
        large, small = self.slow(pair), Executable(add_plan(self.N), pair)
        assert small.small
        assert not large.small
        a = upload(pair, numbers(self.N))
        for _ in range(5):
            out, = large.run([a])
            total, = small.run([out, out])
            out, = large.run([total])
            np.testing.assert_allclose(read(out, self.N), 2.0)

    def test_dropped_buffers_are_not_overwritten_by_later_ones(self, device: Device) -> None:
        large, add, results, sums = self.slow(device), Executable(add_plan(self.N, 1 << 40), device), [], []
        for _ in range(8):
            results.append(large.run([upload(device, numbers(self.N))])[0])
            large.run([upload(device, numbers(self.N))])                        # dropped at once
            big = upload(device, np.zeros(1 << 19, F))                          # takes pooled memory
            pending, = large.run([upload(device, numbers(self.N))])
            sums.append(add.run([wrap(device, numbers(self.N)), pending])[0])   # its array dies with it
        device.finish()
        assert big.nbytes == 1 << 21
        for result in results:
            np.testing.assert_allclose(read(result, self.N), 2.0)
        for total in sums:
            np.testing.assert_allclose(read(total, self.N), numbers(self.N) + 2.0)

    @pytest.mark.matrix
    def test_what_was_flushed_is_waited_for(self, device: Device) -> None:
        """Also by rusticl of Mesa 22.3, whose clFinish waits for nothing once all was flushed."""
        large, add = self.slow(device), Executable(add_plan(self.N, 1 << 40), device)
        for k in range(20):                                                     # into the same memory
            out, = add.run([large.run([upload(device, numbers(self.N))])[0], upload(device, np.full(self.N, k, F))])
            with device.lock:
                device.use(device.queue).flush()
            np.testing.assert_allclose(out.view((self.N,), F), 2.0 + k)

    def test_a_queue_that_waits_for_what_was_not_flushed_only(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        """Is found out, and waited for by a marker: a driver's queues are made such here."""
        flushed: set[int] = set()
        flush, finish, marker = cl.CommandQueue.flush, cl.CommandQueue.finish, cl.enqueue_marker

        def flush_it(queue: cl.CommandQueue) -> None:
            flushed.add(queue.int_ptr)
            flush(queue)

        def mark(queue: cl.CommandQueue) -> cl.Event:
            flushed.discard(queue.int_ptr)
            return marker(queue)

        monkeypatch.setattr(cl.CommandQueue, "flush", flush_it)
        monkeypatch.setattr(cl.CommandQueue, "finish", lambda queue: None if queue.int_ptr in flushed else finish(queue))
        monkeypatch.setattr(cl, "enqueue_marker", mark)
        monkeypatch.setattr(capabilities, "_TRIES", 1000)      # on a busy machine the kernels may have run before they are looked at
        assert not capabilities.finish_waits(device.context, device.cl_device)
        monkeypatch.setitem(device.__dict__, "capabilities", replace(device.capabilities, finish_waits=False))
        self.test_what_was_flushed_is_waited_for(device)

    def test_threads(self, device: Device) -> None:
        executables = [Executable(scale_plan((slot("input"), slot("output")), 1, (1,), work), device) for work in (0, 1 << 40)]
        failures: list[str] = []

        def work(seed: int) -> None:
            a = upload(device, np.full(64, seed, F))
            for i in range(30):
                out, = executables[i % 2].run([a], [i])
                if not np.array_equal(read(out), np.full(64, seed * i, F)):
                    failures.append(f"{seed} * {i}")

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


# ---------------------------------------------------------------------------------------------------- which CPU driver is the default


def driver(name: str, version: str = "1") -> Any:
    return SimpleNamespace(driver=name, platform=name, name="cpu", kind="cpu", traits=KINDS["cpu"],
                           cl_device=SimpleNamespace(platform=SimpleNamespace(version=version), driver_version=version))


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, trial.Score]:
    """What the trial of a driver gives, by name; the folder of what was tried is empty."""
    table: dict[str, trial.Score] = {}
    monkeypatch.setattr(disk, "cache_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(trial, "score", lambda device: table[device.driver])
    monkeypatch.setattr(config, "cache", True)
    return table


def test_the_faster_driver_is_the_default_build_time_included(trials: dict[str, trial.Score]) -> None:
    a, b, c = driver("a"), driver("b"), driver("c")
    trials |= {"a": trial.Score(0.1, 2e-3), "b": trial.Score(1.0, 1e-3), "c": trial.Score(float("inf"), float("inf"))}
    assert trial.faster([a, b]) is b                                # 4.1 s and 3 s
    assert trial.faster([b, a]) is b
    assert trial.faster([c, a]) is a                                # one that fails is never chosen
    trials["a"] = trial.Score(0.1, 1e-6)
    assert trial.faster([a, b]) is b                                # kept on disk
    assert trial.faster([driver("a", "2"), b]).driver == "a"        # another version is tried again
    assert trial.faster([a]) is a


def test_a_damaged_outcome_is_tried_again(trials: dict[str, trial.Score], tmp_path: Path) -> None:
    trials |= {"a": trial.Score(0.1, 2e-3), "b": trial.Score(0.1, 1e-3)}
    for text in ("", "[[1, 2]]", "[[1, 2], [null, 3]]", "{"):
        assert trial.faster([driver("a"), driver("b")]).driver == "b"
        (path,) = (tmp_path / "trials").iterdir()
        path.write_text(text)
    assert trial.faster([driver("a"), driver("b")]).driver == "b"


def test_without_a_cache_nothing_is_tried(trials: dict[str, trial.Score], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cache", False)
    assert trial.faster([driver("a"), driver("b")]).driver == "a"


def test_the_trial_runs_on_the_devices_here(device: Any) -> None:
    found = trial.score(device)
    assert 0 < found.run
    assert 0 < found.build < 60
    assert found.total == found.build + trial.RUNS * found.run


UNDECIDED = """
import os, sys
import numpy as np
import tracegrad as tg
from tracegrad.runtime import device, doctor
from tracegrad.runtime.drivers import trial

found = device.devices()
tried = sorted((d for d in found if "PoCL" in d.driver), key=lambda d: d.driver)
if len(tried) < 2:
    print("one driver")
    sys.exit()
device.contenders = lambda given: [d for d in tried]
calls = []
def score(d):
    calls.append(d.driver)
    assert d.context                                      # as a trial makes one
    return trial.Score(0.1, 1e-3 if d.driver == wanted else 2e-3)
trial.score = score
wanted, first = tried[1].driver, tried[0].driver
default = tg.device()
x = tg.arange(12.0).reshape(3, 4)
y = (x * 2).sum(1)
assert y.tolist() == [12.0, 44.0, 76.0]
assert (calls, tg.device().driver) == ([], first), "a trial before the first program"
f = tg.trace(lambda x: (x * 3).sum(0))
assert f(x).tolist() == [36.0, 45.0, 54.0, 63.0]
assert (calls, tg.device().driver) == ([], first), "a trial before the first result"
assert tg.device() is default and x.device is default and device.find("") is default
device._try(tried)                                        # as at the end
assert calls == [first, wanted], calls
assert (tg.device().driver, device.remembered(tried).driver) == (first, wanted)
doctor.contenders = device.contenders
assert doctor._trial()[0].text.startswith("that of the next process")
print("stayed")
"""

LOOKED = UNDECIDED.partition("f = tg.trace")[0] + """
from tracegrad.execute.devices import list_devices
assert {d.driver for d in list_devices()} == {d.driver for d in found}
assert calls == [first, wanted], calls
assert tg.device() is default and default.driver == wanted and x.device is default
assert (x + y[:, None]).tolist()[0] == [12.0, 13.0, 14.0, 15.0]
assert device.find("") is default and calls == [first, wanted]
doctor.contenders = lambda given: sorted(tried, key=lambda d: d.driver)
assert doctor._trial()[0].text.startswith("the default CPU driver")
print("decided")
"""

ALLOCATED = UNDECIDED.partition("y = (x")[0] + """
big = tg.tensor(np.ones((600, 600), np.float32))          # in the driver's memory
default.decide()
assert (tg.device().driver, sorted(calls)) == (first, sorted([first, wanted]))
assert tg.trace(lambda x: (x * 2).sum())(big).item() == 720000.0
print("stayed")
"""

ASKED = UNDECIDED.partition("y = (x")[0] + """
tg.set_device(first)
f = tg.trace(lambda x: (x * 3).sum(0))
assert f(x).tolist() == [36.0, 45.0, 54.0, 63.0]
assert (calls, tg.device().driver) == ([], first)
print("asked for")
"""


@pytest.mark.parametrize(("end", "program"), [("stayed", UNDECIDED), ("decided", LOOKED), ("stayed", ALLOCATED),
                                              ("asked for", ASKED)])
def test_the_default_driver_is_found_out_when_a_process_ends_or_somebody_asks(program: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "pocl").mkdir()
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path / "pocl"), "TRACEGRAD_DEVICE": "",
             "TRACEGRAD_EAGER": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    if done.stdout.strip() == "one driver":
        pytest.skip("one driver only")
    assert done.stdout.strip() == end


def test_building_a_kernel_prints_nothing():
    """PoCL's compiler counts its warnings on the terminal: a test for NaN (`x != x`) is one."""
    script = """
import tracegrad as tg
f = tg.trace(lambda x: (x.sort(1).values, x.topk(5, 1).values, x.mode(0)[0]))
print(*f(tg.arange(6 * 41.).reshape(6, 41)))
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "TRACEGRAD_CACHE": "0", "POCL_KERNEL_CACHE": "0"},
                          capture_output=True, text=True, check=True)
    assert not done.stderr
