"""Every environment switch, one table. Read at import; tests and users may also set the attributes of `config`."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

PREFIX = "TRACEGRAD_"         # of all our environment variables


@dataclass
class Config:
    """The switches. Each is read from the environment variable named beside it."""

    device: str = ""          # TRACEGRAD_DEVICE: index, kind (cpu, gpu), name substring, or "numpy" for the interpreter
    check: bool = False       # TRACEGRAD_CHECK: verify the graph after every pass, and every kernel
    debug: int = 0            # TRACEGRAD_DEBUG: 1 = a line per compiled plan, 2 = the kernels too
    eager: bool = True        # TRACEGRAD_EAGER: 0 = compile all untraced work, also what numpy does sooner than a driver builds it
    recall: bool = True       # TRACEGRAD_RECALL: 0 = do untraced work anew each time it comes, to find out whether recall is at fault
    fuse: bool = True         # TRACEGRAD_FUSE: 0 = one kernel per node, to find out whether fusion is at fault
    progress: bool = True     # TRACEGRAD_PROGRESS: 0 = no bars in a terminal or notebook while something is compiled
    hold: bool = False        # TRACEGRAD_HOLD: traced functions hold the arguments of their latest call, for profile() and page()
    profile: bool = False     # TRACEGRAD_PROFILE: record device times of each launch
    cache: bool = True        # TRACEGRAD_CACHE: 0 = keep nothing on disk (plans, built binaries, what is known of drivers)
    cache_size: int = 256     # TRACEGRAD_CACHE_SIZE: MiB of plans on disk, and of binaries, at most; the least recently used go
    programs: int = 256       # TRACEGRAD_PROGRAMS: programs that have kernels in the driver at a time; the least recently used lose them
    builders: int = 0         # TRACEGRAD_BUILDERS: processes that compile for a driver; 0: as many as there are cores, at most 4
    fourier: str = "auto"     # TRACEGRAD_FOURIER: tg.fft by the "host" or by "kernels"; auto: by whom it takes less time
    pending: int = 4000       # TRACEGRAD_PENDING: deferred nodes after which the pending work is run


def _parse(kind: str, text: str) -> Any:
    if kind == "bool":
        return text.lower() not in ("", "0", "false", "no", "off")
    return int(text) if kind == "int" else text


def _from_environment() -> Config:
    given = {f.name: os.environ.get(PREFIX + f.name.upper()) for f in fields(Config)}
    kinds = {f.name: str(f.type) for f in fields(Config)}
    return Config(**{name: _parse(kinds[name], text) for name, text in given.items() if text is not None})


config = _from_environment()
