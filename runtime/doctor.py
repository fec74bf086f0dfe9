"""What `python -m tracegrad devices` and `doctor` print. Start at `doctor_report`; `findings` is the same as data."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import pyopencl as cl

from tracegrad.config import PREFIX, config
from tracegrad.errors import DeviceError
from tracegrad.runtime.device import Device, devices, find
from tracegrad.runtime.disk import cache_folder
from tracegrad.runtime.drivers.icd import SYSTEM_VENDORS, VARIABLES, intel_library, nvidia_library, platforms, system_icds
from tracegrad.runtime.drivers.trial import RUNS, contenders, faster, scores
from tracegrad.runtime.programs.build import build

_PROBE = "__kernel void probe(__global float *x) { x[get_global_id(0)] = 1.0f; }\n"
_SWITCHES = ("TRACEGRAD_DEVICE", "POCL_DEVICES", "RUSTICL_ENABLE", *VARIABLES)


@dataclass(frozen=True)
class Finding:
    """One thing the doctor noticed. `fix` is the one command or setting that helps, if something is to be done."""

    level: Literal["ok", "hint", "problem"]
    text: str
    fix: str = ""


def devices_report() -> str:
    """The devices as a table, the default one marked with *."""
    found = devices()
    if not found:
        return "no OpenCL device; `python -m tracegrad doctor` says what to do"
    try:
        default = find()
        default.decide()
        why = ""
    except DeviceError as error:
        default, why = None, f"\nno device is the default: {error}"
    rows: list[tuple[str, ...]] = [("", "", "name", "kind", "driver", "cores", "vector", "local", "fp64", "memory")]
    rows += [(str(i), "*" if device is default else "", *_capabilities(device)) for i, device in enumerate(found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows) + why


def doctor_report(more: Sequence[Finding] = ()) -> str:
    """Drivers, what each can do, what is missing and the one command that fixes it. more: what others have found."""
    marks = {"ok": "  ok      ", "hint": "  hint    ", "problem": "  PROBLEM "}
    lines = [devices_report(), ""]
    for finding in (*findings(), *more):
        lines.append(marks[finding.level] + finding.text)
        if finding.fix:
            lines.append(" " * 10 + "-> " + finding.fix)
    return "\n".join(lines)


def findings() -> list[Finding]:
    """Everything worth telling about this machine's OpenCL, the problems with their fixes."""
    return [*_loader(), *_drivers(), *_devices()]


def _capabilities(device: Device) -> tuple[str, ...]:
    return tuple(value for _, value in device.facts())


def _trial() -> list[Finding]:
    """Why it is this CPU driver, where several are installed."""
    tried = contenders(devices())
    if len(tried) < 2:
        return []
    if config.device or not config.cache:
        why = "one was asked for" if config.device else "TRACEGRAD_CACHE=0 keeps no trial's outcome"
        return [Finding("ok", f"of {len(tried)} CPU drivers the faster is not looked for: {why}")]
    what = "; ".join(f"{d.driver}: {s.build:.2f} s to build, {1e3 * s.run:.2f} ms a run" if s.total < float("inf") else
                     f"{d.driver}: fails" for d, s in zip(tried, scores(tried), strict=True))
    whose = "the default CPU driver" if find() is faster(tried) else "that of the next process (this one had begun to compute)"
    return [Finding("ok", f"{whose} is the faster of {len(tried)} in a trial ({RUNS} runs count beside the build): {what}")]


def _loader() -> list[Finding]:
    present = platforms()
    version = importlib.metadata.version("pyopencl")
    found = [Finding("ok", f"Python {sys.version.split()[0]}, pyopencl {version}, {len(present)} OpenCL platforms")]
    found += [Finding("ok", f"{name}={os.environ[name]}") for name in _SWITCHES if name in os.environ]
    found += _misspelt()
    icds = ", ".join(path.name for path in system_icds()) or "none"
    found.append(Finding("ok", f"drivers registered in {SYSTEM_VENDORS}: {icds}"))
    return found


def _misspelt() -> list[Finding]:
    """Variables that look like a setting of ours, and are none: nobody reads them."""
    known = [f"{PREFIX}{field.name.upper()}" for field in fields(config)]
    found = []
    for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known):
        near = difflib.get_close_matches(name, known, 1)
        found.append(Finding("hint", f"{name} is set, but there is no such setting{f'; did you mean {near[0]}?' if near else ''}"))
    return found


def _drivers() -> list[Finding]:
    """The drivers that are installed, in part or wholly, and those that could be."""
    names = [f"{platform.name} {platform.version}" for platform in platforms()]
    ours = str(cache_folder("icd"))
    hiding = [name for name in VARIABLES if os.environ.get(name) and not os.environ[name].startswith(ours)]
    found = []
    for word, library, command in (
        ("PoCL", _installed("pocl-binary-distribution"), "pip install pocl-binary-distribution"),
        ("Intel", intel_library(), "pip install intel-opencl-rt intel-cmplr-lib-rt"),
    ):
        if any(word in name for name in names):
            continue
        if library is None:
            note = "the CPU driver tracegrad is tuned for" if word == "PoCL" else "optional, x86"
            found.append(Finding("hint", f"{word}'s CPU driver ({note}) is not installed", command))
        elif hiding:
            found.append(Finding("hint", f"{word}'s CPU driver is installed, but {hiding[0]} hides it", f"unset {hiding[0]}"))
        else:
            text = f"{word}'s CPU driver is installed ({library}), but does not load: a file is missing, or OpenCL was used too early"
            found.append(Finding("problem", text, command.replace("install", "install --force-reinstall")))
    found += _nvidia(names, hiding)
    for platform in platforms():
        try:
            count = len(platform.get_devices())
        except cl.Error:
            count = 0
        if count == 0:
            fix = "RUSTICL_ENABLE=llvmpipe (or radeonsi, iris, ...)" if platform.name == "rusticl" else ""
            found.append(Finding("hint", f"the driver {platform.name} is installed but offers no device", fix))
    return found


def _nvidia(names: list[str], hiding: list[str]) -> list[Finding]:
    """NVIDIA's driver: mounted into containers, often without the file that names it."""
    library, seen = nvidia_library(), any("NVIDIA" in name for name in names)
    if library is None:
        if seen or not os.path.exists("/dev/nvidiactl"):
            return []
        return [Finding("problem", "an NVIDIA GPU is here, but not its OpenCL driver (libnvidia-opencl.so.1)",
                        "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility (or all)")]
    write = f"mkdir -p {SYSTEM_VENDORS} && echo {library} > {SYSTEM_VENDORS}/nvidia.icd"
    registered = any("libnvidia-opencl" in path.read_text() for path in system_icds() if os.access(path, os.R_OK))
    if seen:
        if registered:
            return []
        return [Finding("ok", f"NVIDIA's driver ({library}) has no .icd file: tracegrad registers it for itself (for others: {write})")]
    if hiding:
        return [Finding("hint", f"NVIDIA's driver is installed ({library}), but {hiding[0]} hides it", f"unset {hiding[0]}")]
    text = f"NVIDIA's driver is installed ({library}), but offers no platform: no GPU is visible, or OpenCL was used too early"
    return [Finding("problem", text, "nvidia-smi" if registered else write)]


def _installed(package: str) -> str | None:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[Finding]:
    """Whether each device builds a kernel, and what the default is."""
    present = devices()
    if not present:
        return [Finding("problem", "no OpenCL device: no kernel runs (TRACEGRAD_DEVICE=numpy interprets)", "see the hints above")]
    found = []
    for device in present:
        if device.compiled_for:
            found.append(Finding("ok", f"{device.driver} does not know this CPU, so it compiles for {device.compiled_for}"))
        try:
            build(device, _PROBE)
            found.append(Finding("ok", f"{device.name} ({device.driver}) builds kernels"))
        except (DeviceError, cl.Error) as error:
            found.append(Finding("problem", f"{device.name} ({device.driver}) cannot build a kernel: {error}"))
        found += [Finding("problem", f"{device.name} ({device.driver}): {doubt}", "pip install pocl-binary-distribution")
                  for doubt in device.capabilities.doubts()]
        if not device.target.fp64:
            found.append(Finding("hint", f"{device.name} ({device.driver}) has no float64: float64 tensors raise UnsupportedError there"))
    try:
        default = find()
        found.append(Finding("ok", f"default device: {default.name} ({default.driver})"))
        found += _trial()
    except DeviceError as error:
        found.append(Finding("problem", str(error), "unset TRACEGRAD_DEVICE"))
    return found
