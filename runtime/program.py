"""From OpenCL C text to a built program, with a cache on disk. Start at `build`.

PoCL and NVIDIA keep built programs themselves; for other drivers pyopencl's binary cache does it, in tracegrad's own
folder. A program is built for the one OpenCL device its plan runs on, without fast-math, which breaks our polynomials.
"""

from __future__ import annotations

import re
import tempfile
import threading
import warnings
import weakref

import pyopencl as cl

from tracegrad.config import config
from tracegrad.errors import BuildError
from tracegrad.runtime.device import Device
from tracegrad.runtime.icd import cache_folder

_built: weakref.WeakValueDictionary[tuple[int, int, str], cl.Program] = weakref.WeakValueDictionary()
_QUIET = ["-w"]  # PoCL counts warnings on the terminal, and `x != x` is one
_lock = threading.Lock()                   # also guards the warning filter, which is the process's

# "tempfile_x.cl:3:7: error: text" (clang), "error: tempfile_x.cl:3:7: text" (PoCL), "2:3:7: error: text" (Intel)
_CLANG = re.compile(r":(\d+):\d+: (?:fatal )?error: (.*)")
_POCL = re.compile(r"error: [^\n]*?:(\d+):\d+: (.*)")
_KERNEL = re.compile(r"\bvoid\s+(\w+)\s*\(")


def build(device: Device, source: str, small: bool = False) -> cl.Program:
    """The program of `source` on `device`, or on its single-threaded side if `small`; the same text is built once.

    Raises BuildError, which names the line at fault and carries the source and the driver's log.
    """
    cl_device = device.cl_basic if small and device.cl_basic is not None else device.cl_device
    key = (device.context.int_ptr, cl_device.int_ptr, source)
    with _lock:
        program = _built.get(key)
        if program is None:
            program = _built[key] = _build(device.context, cl_device, source)
        return program


def _build(context: cl.Context, cl_device: cl.Device, source: str) -> cl.Program:
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as nowhere:
        warnings.simplefilter("ignore", cl.CompilerWarning)
        try:
            folder = str(cache_folder("programs")) if config.cache else nowhere
            program = cl.Program(context, source)
            program.build(_QUIET, devices=[cl_device], cache_dir=folder)
            return program
        except cl.Error as error:
            log = str(error)
    raise BuildError(f"build: {_explain(source, log)}; correct the text if it is yours, else please report it "
                     "(the exception's .source and .log hold the rest)", source, log)


def _explain(source: str, log: str) -> str:
    """One line on what the driver disliked: the kernel, the line's number and text, the driver's words."""
    found = _CLANG.search(log) or _POCL.search(log)
    lines = source.splitlines()
    if found is None or not 1 <= int(found[1]) <= len(lines):
        first = next((line for line in log.splitlines() if "error" in line.lower()), log.strip().split("\n")[0])
        return f"the driver rejected a kernel: {first}"
    number = int(found[1])
    names = [name for line in lines[:number] for name in _KERNEL.findall(line)]
    where = f"{names[-1]}, line {number}" if names else f"line {number}"
    code, _, origin = lines[number - 1].strip().partition("  // ")
    return f"the driver rejected {where}: `{code.strip()}`{f' (from {origin.strip()})' if origin else ''}: {found[2].strip()}"
