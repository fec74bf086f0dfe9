"""The command line: `python -m tracegrad devices`, `doctor`, and `run`, which runs a program written for torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tracegrad.errors import TracegradError
from tracegrad.execute import matrix_trial
from tracegrad.runtime import doctor
from tracegrad.torch_api import programs

_COMMANDS = {
    "devices": (doctor.devices_report, "list the OpenCL devices; the default one is marked with *"),
    "doctor": (lambda: doctor.doctor_report(matrix_trial.findings()),
               "list drivers, what each can do, what is missing and the one command that fixes it"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the command line; returns the exit status: 1 if the doctor found a problem or something failed."""
    parser = argparse.ArgumentParser(prog="python -m tracegrad", description="tracegrad: autograd for any OpenCL device.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    text = "run a program written for torch, on an OpenCL device"
    run = commands.add_parser("run", help=text, description=text[0].upper() + text[1:] + ".")
    run.add_argument("--device", help="where its tensors are, and what 'cuda' and 'mps' lead to; default: the default device, and no CUDA")
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    run.add_argument("program", help="the script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    given = parser.parse_args(argv)
    chosen = given.command
    if chosen == "run":
        if not given.module and not Path(given.program).exists():
            parser.error(f"run: there is no script {given.program!r}")
        programs.run([given.program, *given.arguments], given.device, given.module)
        return 0
    try:
        print(_COMMANDS[chosen][0]())
        return int(chosen == "doctor" and any(f.level == "problem" for f in doctor.findings()))
    except TracegradError as error:
        print(f"{chosen}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
