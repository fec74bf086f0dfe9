"""`python -m tracegrad run`: a program written for torch, run as it stands. Start at `run`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from tracegrad.torch_api import hook


def run(program: Sequence[str], device: str | None = None, module: bool = False) -> None:
    """Run a script, or with `module` a module, as `python` would: under the name __main__, with its arguments, and its folder on the path.

    program: the script or module, and its arguments. device: see `hook.install`.

    Raises FileNotFoundError or ImportError where there is no such program.
    """
    name, *arguments = program
    hook.install(device)
    sys.argv = [name, *arguments]
    sys.path.insert(0, "" if module else str(Path(name).resolve().parent))
    if module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")
