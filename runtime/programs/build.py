"""From OpenCL C text to built kernels, which are remembered one by one, in memory and on disk. Start at `kernels`.

Of a plan's kernels those that no earlier program had are built, as one driver program. That is kept on disk under the hash of the kernels
in it, and for each kernel which program it is in. So another process, or another plan, builds what is new and loads the rest. What is kept
is the driver's binary, or the text where the driver has a cache of its own that knows texts: PoCL compiles every kernel a second
time, for any size of work-groups, when it is asked for a binary (a transformer's step: 8 s instead of 4 for a cold first call). A program
is built for the one OpenCL device its plan runs on, without fast-math, which breaks our polynomials.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.config import config
from tracegrad.errors import BuildError, CompilerBug
from tracegrad.runtime.device import Device
from tracegrad.runtime.disk import Folder
from tracegrad.runtime.drivers.intel_cpu import is_intel, one_item
from tracegrad.runtime.drivers.pocl_constants import present
from tracegrad.runtime.drivers.pocl_conversions import by_halves
from tracegrad.runtime.drivers.pocl_cpu import PLATFORM, is_pocl
from tracegrad.runtime.drivers.pocl_halves import any_address
from tracegrad.runtime.drivers.pocl_header import GUARD, applies, declared
from tracegrad.runtime.programs import build_worker, packing
from tracegrad.runtime.programs.bare_kernel import bare_kernel
from tracegrad.runtime.programs.builders import LENGTH, OPERATIONS, START, amount, builders, shares, side_by_side
from tracegrad.runtime.programs.packing import packed, parts_of, taken
from tracegrad.runtime.programs.progress import progress
from tracegrad.support.cache import Cache, listed
from tracegrad.support.plan import Function, Plan


class Built:
    """A driver program that has some kernels. parts: of those that are parts of others."""

    __slots__ = ("__weakref__", "parts", "program")

    def __init__(self, program: cl.Program, text: str = "") -> None:
        self.program, self.parts = program, parts_of(text)

    def kernel(self, name: str) -> tuple[cl.Kernel, Sequence[int] | None]:
        """A kernel by name, and at which places its arguments are; None: one after the other."""
        part = self.parts.get(name)
        if part is None:
            return bare_kernel(self.program, name), None
        kernel = bare_kernel(self.program, part.name)
        kernel.set_arg(0, np.int32(part.number))
        for place, size in part.unused:
            kernel.set_arg(place, bytes(size) if size else None)
        return kernel, part.places


Kernels = dict[str, tuple[Built, str]]     # the entries of a plan -> the program that each is in, and what it is called there

BINARIES, PLACES = Folder("binaries"), Folder("kernels")
_CACHING = (PLATFORM, "NVIDIA CUDA")      # platforms that keep what they built themselves (as pyopencl has it, too)
# What a file begins with that holds no binary, but what a driver was given, and for which options. (Without the 2 constants may be absent.)
_GIVEN = {b"given 2\n": (), b"given 2 without a header\n": (GUARD,)}
counts: Counter[str] = Counter()           # kernels that were built, read from the disk, or known already; driver programs built, read
_programs: weakref.WeakValueDictionary[tuple[int, int, str], cl.Program] = weakref.WeakValueDictionary()       # by text
_known: weakref.WeakValueDictionary[tuple[int, int, str], Built] = weakref.WeakValueDictionary()          # by the keys of their kernels
_QUIET = ["-w"]                            # PoCL counts warnings on the terminal, and `x != x` is one
_loading: weakref.WeakSet[Device] = weakref.WeakSet()      # devices whose compiler is, or was, loaded
listed("programs of drivers", _programs)
listed("built kernels", _known)
listed("devices whose compiler is loaded", _loading)
_rejected = Cache("rejected kernels", 100)  # by context, device, text and options: the driver's log. Who asks again is not to wait again.
_lock = threading.Lock()                   # also guards the warning filter, which is the process's

# "tempfile_x.cl:3:7: error: text" (clang), "error: tempfile_x.cl:3:7: text" (PoCL), "2:3:7: error: text" (Intel)
_CLANG = r":(\d+):\d+: (?:fatal )?error: (.*)"
_POCL = r"error: [^\n]*?:(\d+):\d+: (.*)"
_KERNEL = r"\bvoid\s+(\w+)\s*\("


def build(device: Device, source: str, small: bool = False) -> cl.Program:
    """The program of `source` on `device`, or on its single-threaded side if `small`; the same text is built once.

    Raises BuildError, which names the line at fault and carries the source and the driver's log.
    """
    with _lock:
        return _whole(device, _side(device, small), source)


def kernels(device: Device, plan: Plan, small: bool = False) -> Kernels:
    """Where the kernels of a plan are: in programs that are there, that are on the disk, or in one that is built. Raises BuildError."""
    side = _side(device, small)
    with _lock:
        theirs: Kernels = {}
        if not plan.functions:
            whole = Built(_whole(device, side, plan.foreign or plan.source))
            return {launch.entry: (whole, launch.entry) for launch in plan.launches}
        if plan.foreign:
            program, ours = Built(_whole(device, side, plan.foreign)), {function.entry for function in plan.functions}
            theirs = {launch.entry: (program, launch.entry) for launch in plan.launches if launch.entry not in ours}
        found: dict[str, Built] = {}
        new: dict[str, Function] = {}
        for function in plan.functions:
            built = _known.get((device.context.int_ptr, side.int_ptr, function.key))
            if built is None:
                new[function.key] = function
            else:
                found[function.key] = built
        counts["known"] += len(found)
        if new:
            try:
                found |= _made(device, side, new, plan)
            except BuildError as error:                    # say it in the text that has the user's names and lines
                whole = Built(_whole(device, side, plan.source))
                if config.check:
                    raise CompilerBug("kernels: a plan's kernels build together, and not by themselves") from error
                return theirs | {function.entry: (whole, function.entry) for function in plan.functions}
        for key, built in found.items():
            _known[device.context.int_ptr, side.int_ptr, key] = built
        return theirs | {function.entry: (found[function.key], _called(function.key)) for function in plan.functions}


def load_compiler(device: Device, name: str, operations: int = 0) -> None:
    """Have PoCL load its compiler, in a thread, for what is about to be compiled; `name` tells it from anything else.

    operations: how many different ones are lowered meanwhile; if they are many, there will be work for other processes. PoCL reads a
    library of 7 MB when it builds the first program (0.3 s), which needs neither Python nor the program. It reads nothing for a text that
    it has built before, so this one has a name in it. (Others load theirs in less than a tenth.)
    """
    side = device.first_side
    if operations >= OPERATIONS and _one_at_a_time(side):
        builders.begin(side)
    if not is_pocl(side) or device in _loading:
        return
    _loading.add(device)
    text = f"__kernel void loads_{name[:32]}() {{}}\n"

    def load() -> None:                                    # (without _build, which sets the warning filter, under the lock)
        with contextlib.suppress(cl.Error), tempfile.TemporaryDirectory() as nowhere:
            cl.Program(device.context, text).build([*_QUIET, *([GUARD] if applies(side) else [])], devices=[side], cache_dir=nowhere)

    threading.Thread(target=load, name="tracegrad: loads the driver's compiler").start()


def _one_at_a_time(side: cl.Device) -> bool:
    """Whether a driver compiles for one thread of a process at a time, and others can take some of that from it."""
    return is_pocl(side) or is_intel(side)


def _side(device: Device, small: bool) -> cl.Device:
    return device.cl_basic if small and device.cl_basic is not None else device.cl_device


def _called(key: str) -> str:
    """The name of a kernel in a driver program."""
    return f"k{key[:16]}"


def _whole(device: Device, side: cl.Device, source: str) -> cl.Program:
    """The program of a text, with all that is in it."""
    key = (device.context.int_ptr, side.int_ptr, source)
    program = _programs.get(key)
    if program is None:
        name = _name(device, side, source)
        loaded = _loaded(device, side, name)
        program = loaded.program if loaded is not None else None
        if program is None:
            given = _given(side, source)
            program = _build(device.context, side, source, given)
            counts["programs"] += 1
            _keep(program, name, given, side)
        _programs[key] = program
    return program


def _made(device: Device, side: cl.Device, new: dict[str, Function], plan: Plan) -> dict[str, Built]:
    """Kernels that no program in memory has: from the disk, or built."""
    found: dict[str, Built] = {}
    name = _name(device, side, *sorted(new))
    built = _loaded(device, side, name)                    # they were built together before
    if built is not None:
        counts["read"] += len(new)
        return dict.fromkeys(new, built)
    groups: dict[str, list[str]] = {}
    for key in new:
        place = PLACES.get(_name(device, side, key))
        if place is not None:
            groups.setdefault(place.decode("ascii", "replace"), []).append(key)
    for other, keys in groups.items():
        built = _loaded(device, side, other)
        if built is not None and {_called(k) for k in keys} <= _names(built):
            counts["read"] += len(keys)
            found |= dict.fromkeys(keys, built)
    rest = {key: function for key, function in new.items() if key not in found}
    if rest:
        counts["built"] += len(rest)
        with progress(f"tracegrad builds kernels for {device.name}", len(rest)) as advance:
            found |= _compiled(device, side, list(rest.values()), plan, advance)
    return found


def _compiled(device: Device, side: cl.Device, functions: Sequence[Function], plan: Plan, advance: Callable[[int], None]
              ) -> dict[str, Built]:
    """Kernels that nobody has: built, by several processes if there is much to build. advance: told how many more are done."""
    others = builders.begin(side, amount(functions) // LENGTH, START) if _one_at_a_time(side) else []
    if not others:
        return _program(device, side, functions, text_of(functions, plan.parts, is_pocl(side)))
    jobs = []                                              # the kernels of each program, and its text
    for packs in shares(functions, others):
        share = [function for pack in packs for function in pack]
        texts = [packing.text_of(pack, _called, idle=True) for pack in packs]
        jobs.append((share, _text(share, texts, plan.parts) if is_pocl(side) else text_of(share, plan.parts)))
    found: dict[str, Built] = {}

    def first() -> cl.Program:
        found.update(_program(device, side, *jobs[0]))
        return next(iter(found.values())).program

    programs = [(_given_first(side, text), _idle(share, text, plan) if is_pocl(side) else None) for share, text in jobs]
    binaries = side_by_side(device.context, side, programs, others[:len(jobs) - 1], first, lambda number: advance(len(jobs[number][0])))
    for (share, text), binary in zip(jobs[1:], binaries, strict=True):
        program = None if binary is None else _of_binary(device, side, binary)
        if program is None:
            found |= _program(device, side, share, text)   # in no time, where the driver's cache has it
        else:
            found |= _kept(device, side, share, text, program, _given(side, text))
    return found


def _idle(functions: Sequence[Function], text: str, plan: Plan) -> list[build_worker.Kernel]:
    """How to launch the kernels of a text that can do nothing, once for each machine code that PoCL makes for a plan's launches.

    It has one for each work-group, and another where there are more than 65,535 work-items along an axis.
    """
    parts, keys = parts_of(text), {function.entry: function.key for function in plan.functions}
    kernels = {name: (part.name, taken(function, part)) for function in functions if (part := parts.get(name := _called(function.key)))}
    found: dict[tuple[str, tuple[int, ...], tuple[int, ...], bool], tuple[int, ...]] = {}
    for step in plan.launches:
        kernel = kernels.get(_called(keys.get(step.entry, "")))              # ("": a kernel that the user wrote)
        if kernel is not None and step.local_size is not None and 0 not in step.global_size:
            found.setdefault((*kernel, step.local_size, max(step.global_size) > 0xFFFF), step.global_size)
    return [(name, sizes, global_size, local_size) for (name, sizes, local_size, _), global_size in found.items()]


def _program(device: Device, side: cl.Device, functions: Sequence[Function], text: str) -> dict[str, Built]:
    """Kernels, built as one driver program and kept on disk."""
    given = _given_first(side, text)
    program = _lean(device.context, side, text, given) if GUARD in given[1] else None
    if program is None:
        given = _given(side, text)
        program = _build(device.context, side, text, given)
    return _kept(device, side, functions, text, program, given)


def _kept(device: Device, side: cl.Device, functions: Sequence[Function], text: str, program: cl.Program, given: tuple[str, list[str]]
          ) -> dict[str, Built]:
    """The kernels of a program that was built, kept on disk."""
    counts["programs"] += 1
    keys = sorted(function.key for function in functions)
    name = _name(device, side, *keys)
    if _keep(program, name, given, side):
        for key in keys:
            PLACES.put(_name(device, side, key), name.encode())
    return dict.fromkeys(keys, Built(program, text))


def text_of(functions: Sequence[Function], parts: Sequence[str], pack: bool = False) -> str:
    """Kernels as one program: what they need, once, and the kernels. pack: several of them as one (see `packing.py`)."""
    return _text(functions, packed(functions, _called) if pack else [f.text(_called(f.key)) for f in functions], parts)


def _text(functions: Sequence[Function], texts: Sequence[str], parts: Sequence[str]) -> str:
    above = [dict.fromkeys(part for f in functions for part in f.above[group]) for group in range(max(len(f.above) for f in functions))]
    return "\n".join([*(parts[i] for group in above for i in group), *texts]) + "\n"


# ---------------------------------------------------------------------------------------------------------------- on disk


def _name(device: Device, side: cl.Device, *what: str) -> str:
    """The name of a file that holds something for a device."""
    platform = side.platform
    asked = (platform.name, platform.version, side.name, side.version, side.driver_version, device.compiled_for)
    return hashlib.sha256(repr((asked, what)).encode()).hexdigest()


def _loaded(device: Device, side: cl.Device, name: str) -> Built | None:
    """The program that was kept under a name; None if there is none that the driver takes."""
    binary = BINARIES.get(name)
    if binary is None:
        return None
    try:
        for kind, options in _GIVEN.items():
            if binary.startswith(kind):
                text = binary[len(kind):].decode()
                built = Built(build_worker.built(device.context, side, text, [*_QUIET, *options]), text)
                counts["programs read"] += 1
                return built
    except (cl.Error, ValueError):
        return None
    program = _of_binary(device, side, binary)
    counts["programs read"] += program is not None
    return None if program is None else Built(program)


def _of_binary(device: Device, side: cl.Device, binary: bytes) -> cl.Program | None:
    """The program of a binary; None if the driver does not take it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            program: cl.Program = cl.Program(device.context, [side], [binary]).build(_QUIET, devices=[side])
            return program
    except (cl.Error, ValueError):
        return None


def _keep(program: cl.Program, name: str, given: tuple[str, list[str]], side: cl.Device) -> bool:
    """Keep a program for later, as a binary or as what the driver was given for it; whether that can be done."""
    if side.platform.name.strip() in _CACHING:
        text, options = given
        kind = next(kind for kind, more in _GIVEN.items() if options == [*_QUIET, *more])
        BINARIES.put(name, kind + text.encode())
        return True
    try:
        made: Any = program.get_info(cl.program_info.BINARIES)
    except cl.Error:
        return False
    binaries = [b for b in made if b]
    if len(binaries) == 1:
        BINARIES.put(name, binaries[0])
    return len(binaries) == 1


def _names(built: Built) -> set[str]:
    try:
        return {*built.program.kernel_names.split(";"), *built.parts}
    except (cl.Error, AttributeError):
        return set()


# ------------------------------------------------------------------------------------------------------------- the driver


def _given_first(cl_device: cl.Device, source: str) -> tuple[str, list[str]]:
    """What a driver is given for a source to begin with: for PoCL, a text that declares what it needs of the header, if there is one."""
    lean = declared(source) if applies(cl_device) else None
    return _given(cl_device, source) if lean is None else _given(cl_device, lean, [GUARD])


def _given(cl_device: cl.Device, source: str, options: Sequence[str] = ()) -> tuple[str, list[str]]:
    """What a driver is given for a source."""
    text = present(by_halves(any_address(source))) if is_pocl(cl_device) else one_item(source) if is_intel(cl_device) else source
    return text, [*_QUIET, *options]


def _lean(context: cl.Context, cl_device: cl.Device, source: str, given: tuple[str, list[str]]) -> cl.Program | None:
    """The program, built without the driver's header; None if that cannot be."""
    try:
        return _build(context, cl_device, source, given)
    except BuildError:
        return None


def _build(context: cl.Context, cl_device: cl.Device, source: str, given: tuple[str, list[str]]) -> cl.Program:
    """The program of a source, for which the driver is given that."""
    key = context.int_ptr, cl_device.int_ptr, given[0], *given[1]
    log = _rejected[key]
    if log is None:
        try:
            return build_worker.built(context, cl_device, *given)
        except cl.Error as error:
            log = str(error)
            if error.code == cl.status_code.BUILD_PROGRAM_FAILURE:          # (else there was no memory, say)
                _rejected[key] = log
    raise BuildError(f"build: {_explain(source, log)}; correct the text if it is yours, else please report it "
                     "(the exception's .source and .log hold the rest)", source, log)


def _explain(source: str, log: str) -> str:
    """One line on what the driver disliked: the kernel, the line's number and text, the driver's words."""
    found = re.search(_CLANG, log) or re.search(_POCL, log)
    lines = source.splitlines()
    if found is None or not 1 <= int(found[1]) <= len(lines):
        first = next((line for line in log.splitlines() if "error" in line.lower()), log.strip().split("\n")[0])
        return f"the driver rejected a kernel: {first}"
    number = int(found[1])
    names = [name for line in lines[:number] for name in re.findall(_KERNEL, line)]
    where = f"{names[-1]}, line {number}" if names else f"line {number}"
    code, _, origin = lines[number - 1].strip().partition("  // ")
    return f"the driver rejected {where}: `{code.strip()}`{f' (from {origin.strip()})' if origin else ''}: {found[2].strip()}"
