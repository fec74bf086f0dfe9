"""The command line, `python -m tracegrad`: `devices`, `doctor`, `bench`, `page` and `profile` of a function, `run` of a torch program."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tracegrad
from tracegrad.config import config
from tracegrad.errors import ArgumentError, TracegradError, check_place
from tracegrad.execute import matrix_trial
from tracegrad.execute.devices import find_device
from tracegrad.runtime import doctor
from tracegrad.torch_api import programs
from tracegrad.tracing.trace import Traced
from tracegrad.utils import bench

_COMMANDS = {
    "devices": (doctor.devices_report, "list the OpenCL devices; the default one is marked with *"),
    "doctor": (lambda: doctor.doctor_report(matrix_trial.findings()),
               "list drivers, what each can do, what is missing and the one command that fixes it"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the command line; returns the exit status: 1 if the doctor found a problem or something failed."""
    parser, argv = _parser(), sys.argv[1:] if argv is None else argv
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    given, arguments = _parsed(parser, argv)
    chosen = given.command
    try:
        if chosen == "run":
            if given.device:
                find_device(given.device)                     # a device that is not there is no error of the program's
            programs.prepare(given.program, given.device, given.module)
        elif chosen in ("page", "profile"):
            if chosen == "page" and given.output:
                check_place(f"-o {given.output}", given.output)
            name, traced = _traced(given.function, arguments, given.module)
            if chosen == "profile":
                print(traced.profile(given.runs))
            else:
                path = given.output or f"{name}.html"
                traced.page(path, given.runs)
                print(f"wrote {path}")
        elif chosen == "bench":
            print(bench.row() if given.row else bench.report())
        else:
            print(_COMMANDS[chosen][0]())
            return int(chosen == "doctor" and any(f.level == "problem" for f in doctor.findings()))
    except TracegradError as error:
        print(f"{chosen}: {str(error).removeprefix(f'{chosen}: ')}", file=sys.stderr)
        return 1
    if chosen == "run":                                       # its errors are the program's
        programs.run([given.program, *given.arguments], given.module)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tracegrad", description="tracegrad: autograd for any OpenCL device.")
    parser.add_argument("--version", action="version", version=f"tracegrad {tracegrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    def command(name: str, text: str, **more: Any) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", **more)

    for name, (_, text) in _COMMANDS.items():
        command(name, text)
    measures = command("bench", "measure this machine against its own limits, in a minute; paste the result into an issue")
    measures.add_argument("--row", action="store_true", help="print a row for the table in docs/devices.md")
    run = command("run", "run a program written for torch, on an OpenCL device")
    run.add_argument("--device", help="where its tensors are, and what 'cuda' and 'mps' lead to; default: the default device, and no CUDA")
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    run.add_argument("program", help="the script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given").required = False
    page = command("page", "run a script, and write the page of one of its traced functions", allow_abbrev=False)
    page.add_argument("-o", "--output", help="the file; default: the function's name, and .html")
    page.add_argument("--runs", type=int, default=3, help="how often its latest call is run again for its times; 0: not at all")
    profile = command("profile", "run a script, and print where the time of one of its traced functions goes", allow_abbrev=False)
    profile.add_argument("--runs", type=int, default=9, help="how often its latest call is run again")
    for one in (page, profile):
        one.add_argument("-m", dest="module", action="store_true", help="it is module:function; the module is run as by python -m")
        one.add_argument("function", metavar="script.py:function",
                         help="a traced function that the script calls; where it calls one only, the script is enough")
        one.epilog = "Other arguments are the script's, and so is all behind --."
    return parser


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What `argv` says, and what of it is for the script of `page` and `profile`: their own options may stand on either side of it."""
    if argv[0] not in ("page", "profile"):
        return parser.parse_args(argv), []
    end = argv.index("--") if "--" in argv else len(argv)
    given, others = parser.parse_known_args(argv[:end])
    return given, [*others, *argv[end + 1:]]


def _traced(function: str, arguments: Sequence[str], module: bool) -> tuple[str, Traced]:
    """Run a script, or with `module` a module, and find a traced function of its own: its name, and itself."""
    script, colon, name = function.rpartition(":")
    script, name = (script, name) if colon else (function, "")
    before = sys.argv, sys.path[:], config.hold
    sys.argv, sys.path[:0], config.hold = [script, *arguments], [programs.folder_of(script, module)], True
    try:
        programs.check_program(script, module)
        if module:
            space = runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            space = runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:], config.hold = before
    there = dict(_traced_in(space))
    called = [key for key, value in there.items() if value.compilations]
    if not name and len(called) == 1:
        name = called[0]
    found = space.get(name.split(".")[0])
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    if not name and len(called) > 1:
        raise ArgumentError(f"{script} calls {len(called)} traced functions: {', '.join(called)}; give one, as {script}:{called[0]}")
    if not isinstance(found, Traced):
        what = f"no traced function {name!r}" if name else "no traced function that it calls"
        raise ArgumentError(f"{script} has {what}; it has {', '.join(sorted(there)) or 'none'}: decorate it with @tg.trace")
    if not found.compilations:
        raise ArgumentError(f"{script} does not call {name}: call it where the script runs as __main__, with the arguments to look at")
    return name, found


def _traced_in(space: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Traced]]:
    """The traced functions of a module, and those of the classes that it defines, by their names."""
    for key, value in space.items():
        if isinstance(value, Traced):
            yield of + key, value
        elif isinstance(value, type) and not of and value.__module__ == space.get("__name__"):
            yield from _traced_in(vars(value), f"{key}.")


def _as_process() -> int:
    """`main` of a process. A pipe whose reader has gone, and Ctrl-C in a command of our own, are no errors with a traceback."""
    own = sys.argv[1:2] not in (["run"], ["page"], ["profile"])
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())         # Python flushes once more when it ends
        return 1
    except KeyboardInterrupt:
        if not own:
            raise                                                              # the traceback says where the program was
        return 130
    return status


if __name__ == "__main__":
    sys.exit(_as_process())
