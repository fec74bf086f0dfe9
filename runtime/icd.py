"""Which OpenCL drivers the loader can see. Start at `enable_intel`.

An OpenCL loader reads small .icd files, each naming a driver library. The loader inside the pyopencl wheel (ocl-icd)
reads the ones in /etc/OpenCL/vendors *and*, whatever the environment says, the driver that `pocl-binary-distribution`
puts beside pyopencl. OCL_ICD_VENDORS (or OPENCL_VENDOR_PATH) replaces the first place by another folder, a single .icd
file or a library; OCL_ICD_FILENAMES, which other loaders know, is ignored.

Intel's CPU driver from pip (`intel-opencl-rt`) ships an .icd file that names a placeholder path, so no loader finds it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

import platformdirs

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")


def cache_folder(name: str) -> Path:
    """The folder where tracegrad keeps its `name` files for this user (not created)."""
    return Path(platformdirs.user_cache_dir("tracegrad", appauthor=False)) / name


def intel_library() -> Path | None:
    """The driver library of the pip package intel-opencl-rt, or None where that is not installed."""
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = sorted(Path(os.path.abspath(str(f.locate()))) for f in files if f.name == "libintelocl.so")
    return found[0] if found and found[0].exists() else None


def system_icds() -> list[Path]:
    """The .icd files that the system's packages installed."""
    return sorted(SYSTEM_VENDORS.glob("*.icd"))


def enable_intel() -> Path | None:
    """Let the loader find Intel's CPU driver when it came from pip; return the folder of .icd files used, or None if nothing was done.

    Works by pointing OCL_ICD_VENDORS at a generated folder that holds the system's .icd files and one for Intel; no
    installed file is touched. Does nothing where the user has set that variable, where a system package already names
    the driver, or once the process has asked OpenCL for its platforms (the loader reads the folder once).
    """
    ours = cache_folder("icd")
    chosen = [value for value in map(os.environ.get, VARIABLES) if value]
    if not sys.platform.startswith("linux") or any(ours not in Path(value).parents for value in chosen):
        return None
    library = intel_library()
    texts = {path.name: path.read_text() for path in system_icds() if os.access(path, os.R_OK)}
    if library is None or any("libintelocl" in text for text in texts.values()):
        return None
    texts["tracegrad-intel-cpu.icd"] = f"{library}\n"
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
