"""Which OpenCL drivers the loader can see. Start at `platforms`, which has it see those that nobody registered.

An OpenCL loader reads small .icd files, each naming a driver library. The loader inside the pyopencl wheel (ocl-icd)
reads the ones in /etc/OpenCL/vendors *and*, whatever the environment says, the driver that `pocl-binary-distribution`
puts beside pyopencl. OCL_ICD_VENDORS (or OPENCL_VENDOR_PATH) replaces the first place by another folder, a single .icd
file or a library; OCL_ICD_FILENAMES, which other loaders know, is ignored.

Intel's CPU driver from pip (`intel-opencl-rt`) ships an .icd file that names a placeholder path, so no loader finds it. In containers
NVIDIA's driver is there (the container runtime mounts it), but not the .icd file that names it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

import pyopencl as cl

from tracegrad.config import config
from tracegrad.runtime.disk import cache_folder

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")


def intel_library() -> Path | None:
    """The driver library of the pip package intel-opencl-rt, or None where that is not installed."""
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = sorted(Path(os.path.abspath(str(f.locate()))) for f in files if f.name == "libintelocl.so")
    return found[0] if found and found[0].exists() else None


NVIDIA = "libnvidia-opencl.so.1"
LIBRARIES = tuple(map(Path, (                # where container runtimes and packages put drivers' libraries
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib", "/usr/local/cuda/compat",
)))


def nvidia_library() -> Path | None:
    """NVIDIA's OpenCL driver, in LD_LIBRARY_PATH or where libraries usually are; None where there is none."""
    given = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return next((folder / NVIDIA for folder in (*given, *LIBRARIES) if (folder / NVIDIA).exists()), None)


def unregistered() -> dict[str, Path]:
    """The drivers that are installed and that no .icd file of the system names, by the name of the file that would."""
    texts = [path.read_text() for path in system_icds() if os.access(path, os.R_OK)]
    found = {"tracegrad-intel-cpu.icd": ("libintelocl", intel_library()), "tracegrad-nvidia.icd": ("libnvidia-opencl", nvidia_library())}
    return {name: library for name, (word, library) in found.items() if library is not None and not any(word in text for text in texts)}


def system_icds() -> list[Path]:
    """The .icd files that the system's packages installed."""
    return sorted(SYSTEM_VENDORS.glob("*.icd"))


def enable_unregistered() -> Path | None:
    """Let the loader find the drivers that nobody registered; return the folder of .icd files used, or None if nothing was done.

    Works by pointing OCL_ICD_VENDORS at a generated folder that holds the system's .icd files and one for each of those drivers; no
    installed file is touched. Does nothing where the user has set that variable, where system packages already name the drivers,
    or once the process has asked OpenCL for its platforms (the loader reads the folder once).
    """
    ours = cache_folder("icd")
    chosen = [value for value in map(os.environ.get, VARIABLES) if value]
    if not sys.platform.startswith("linux") or any(ours not in Path(value).parents for value in chosen):
        return None
    missing = unregistered()
    if not missing:
        return None
    texts = {path.name: path.read_text() for path in system_icds() if os.access(path, os.R_OK)}
    texts |= {name: f"{library}\n" for name, library in missing.items()}
    try:
        folder = _write_once(ours, texts)
    except OSError:
        return None
    os.environ[VARIABLES[0]] = str(folder)
    return folder


def _write_once(parent: Path, texts: dict[str, str]) -> Path:
    """A folder under `parent` that holds exactly `texts`; its name is their hash, so processes cannot disturb each other."""
    folder = parent / hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    if not folder.is_dir():
        parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=parent))
        for name, text in texts.items():
            (draft / name).write_text(text)
        try:
            draft.rename(folder)
        except OSError:                     # another process was first: its folder holds the same
            if not folder.is_dir():
                raise
    return folder


def platforms() -> list[cl.Platform]:
    """The OpenCL platforms present, after making pip's drivers visible; empty where there is none."""
    os.environ.setdefault("POCL_DEVICES", "basic pthread")       # read by PoCL at the first query
    if not config.cache:
        os.environ.setdefault("POCL_KERNEL_CACHE", "0")
    enable_unregistered()
    try:
        return cl.get_platforms()
    except cl.Error:                                             # the loader's way of saying "none"
        return []


def driver_name(platform: cl.Platform) -> str:
    """A short name of the driver: "PoCL 3.0-rc2", "Intel(R) OpenCL", "rusticl", ..."""
    words = platform.version.split()
    return " ".join(words[words.index("PoCL"):][:2]) if "PoCL" in words else platform.name.strip()
