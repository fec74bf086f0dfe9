"""The command line: `python -m tracegrad devices` and `python -m tracegrad doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tracegrad.errors import TracegradError
from tracegrad.execute import matrix_trial
from tracegrad.runtime import doctor

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
    chosen = parser.parse_args(argv).command
    try:
        print(_COMMANDS[chosen][0]())
        return int(chosen == "doctor" and any(f.level == "problem" for f in doctor.findings()))
    except TracegradError as error:
        print(f"{chosen}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
