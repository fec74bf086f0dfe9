"""The command line, `python -m tracegrad`: `devices`, `doctor`, `bench`, `page` and `profile` of a function, `run` of a torch program."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

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
    parser = argparse.ArgumentParser(prog="python -m tracegrad", description="tracegrad: autograd for any OpenCL device.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    text = "measure this machine against its own limits, in a minute; paste the result into an issue"
    measures = commands.add_parser("bench", help=text, description=text[0].upper() + text[1:] + ".")
    measures.add_argument("--row", action="store_true", help="print a row for the table in docs/devices.md")
    text = "run a program written for torch, on an OpenCL device"
    run = commands.add_parser("run", help=text, description=text[0].upper() + text[1:] + ".")
    run.add_argument("--device", help="where its tensors are, and what 'cuda' and 'mps' lead to; default: the default device, and no CUDA")
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    run.add_argument("program", help="the script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    text = "run a script, and write the page of one of its traced functions"
    page = commands.add_parser("page", help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    page.add_argument("function", help="script.py:function, a traced function that the script calls")
    page.add_argument("-o", "--output", help="the file; default: the function's name, and .html")
    page.add_argument("--runs", type=int, default=3, help="how often its latest call is run again for its times; 0: not at all")
    text = "run a script, and print where the time of one of its traced functions goes"
    profile = commands.add_parser("profile", help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    profile.add_argument("function", help="script.py:function, a traced function that the script calls")
    profile.add_argument("--runs", type=int, default=9, help="how often its latest call is run again")
    for command in (page, profile):
        command.epilog = "Other arguments are the script's, and so is all behind --."
    given, arguments = _parsed(parser, sys.argv[1:] if argv is None else argv)
    chosen = given.command
    if chosen is None:
        parser.print_help(sys.stderr)
        return 2
    if chosen == "run" and not given.module and not Path(given.program).exists():
        parser.error(f"run: there is no script {given.program!r}")
    try:
        if chosen == "run" and given.device:
            find_device(given.device)                         # a device that is not there is no error of the program's
        elif chosen in ("page", "profile"):
            if chosen == "page" and given.output:
                check_place(f"-o {given.output}", given.output)
            name, traced = _traced(given.function, arguments)
            if chosen == "profile":
                print(traced.profile(given.runs))
            else:
                path = given.output or f"{name}.html"
                traced.page(path, given.runs)
                print(f"wrote {path}")
        elif chosen == "bench":
            print(bench.row() if given.row else bench.report())
        elif chosen in _COMMANDS:
            print(_COMMANDS[chosen][0]())
            return int(chosen == "doctor" and any(f.level == "problem" for f in doctor.findings()))
    except TracegradError as error:
        print(f"{chosen}: {error}", file=sys.stderr)
        return 1
    if chosen == "run":                                       # its errors are the program's
        programs.run([given.program, *given.arguments], given.device, given.module)
    return 0


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What `argv` says, and what of it is for the script of `page` and `profile`: their own options may stand on either side of it."""
    if not argv or argv[0] not in ("page", "profile"):
        return parser.parse_args(argv), []
    end = argv.index("--") if "--" in argv else len(argv)
    given, others = parser.parse_known_args(argv[:end])
    return given, [*others, *argv[end + 1:]]


def _traced(function: str, arguments: Sequence[str]) -> tuple[str, Traced]:
    """Run a script, and find a traced function of its own: its name, and itself."""
    script, _, name = function.rpartition(":")
    if not script or not Path(script).is_file():
        raise ArgumentError(f"{function!r} names no script; give script.py:function")
    before = sys.argv, sys.path[:], config.hold
    sys.argv, sys.path[:0], config.hold = [script, *arguments], [str(Path(script).resolve().parent)], True
    try:
        space = runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:], config.hold = before
    found = space.get(name.split(".")[0])
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    if not isinstance(found, Traced):
        traced = sorted(key for key, value in space.items() if isinstance(value, Traced))
        raise ArgumentError(f"{script} has no traced function {name!r}; it has {', '.join(traced) or 'none'}: decorate it with @tg.trace")
    if not found.compilations:
        raise ArgumentError(f"{script} does not call {name}: call it where the script runs as __main__, with the arguments to look at")
    return name, found


if __name__ == "__main__":
    sys.exit(main())
