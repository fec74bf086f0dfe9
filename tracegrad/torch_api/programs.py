"""`python -m tracegrad run`: a program written for torch, run as it stands. Start at `run`."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from tracegrad.errors import ArgumentError
from tracegrad.torch_api import hook


def prepare(name: str, device: str | None = None, module: bool = False) -> None:
    """Make `import torch` give tracegrad's names, and put the folder of a script, or with `module` of a module, on the path.

    device: see `hook.install`. Raises ArgumentError where there is no such program.
    """
    if not module:
        check_program(name)
    hook.install(device)
    sys.path.insert(0, folder_of(name, module))
    if module:
        check_program(name, module)                            # a package is imported for that, and it may import torch


def run(program: Sequence[str], module: bool = False) -> None:
    """Run a script, or with `module` a module, as `python` would: under the name __main__, with its arguments.

    program: the script or module that `prepare` was given, and its arguments.
    """
    name, *arguments = program
    sys.argv = [name, *arguments]
    if module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def folder_of(name: str, module: bool = False) -> str:
    """What `python` puts on the path for a script, or with `module` for a module."""
    return "" if module else str(Path(name).resolve().parent)


def check_program(name: str, module: bool = False) -> None:
    """Raise ArgumentError where no script has the name, or with `module` no module that can be run."""
    if not module:
        if not Path(name).exists():
            raise ArgumentError(f"there is no script {name!r}")
        return
    if name.endswith(".py"):
        raise ArgumentError(f"{name!r} is a script's name; -m takes a module's, as {Path(name).stem}")
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise                                              # what a package of the program's imports is not there
        found = None
    if found is None:
        raise ArgumentError(f"there is no module {name!r} in this folder or among what is installed")
    if found.submodule_search_locations is not None and importlib.util.find_spec(f"{name}.__main__") is None:
        raise ArgumentError(f"{name!r} is a package without __main__.py; name one of its modules, as {name}.train")
