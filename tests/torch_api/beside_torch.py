"""Programs of programs/ under tracegrad's names and under torch: `make test-torch-programs`. Start at `main`.

Each program runs in two processes, one by `python -m tracegrad run`. Compared are the losses, the norms of all gradients, and what models
write. A gradient that is nothing but rounding errors in both (a bias before a normalization) is compared with the largest of the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[2]
PROGRAMS = {path.stem: path for path in sorted((Path(__file__).parent / "programs").glob("*_models.py"))}


def found(command: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    """What a program reports, by the names of its models."""
    done = subprocess.run([sys.executable, *command], check=False, capture_output=True, text=True, timeout=seconds,
                          env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"})
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if not rows:
        raise click.ClickException(f"{' '.join(command)}: {(done.stderr.strip() or 'says nothing').splitlines()[-1]}")
    return {row.pop("name"): row for row in rows}


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """What is not equal, as text; "" if all agrees.

    Losses agree to 1e-5, norms of gradients to 1e-3 of themselves or 1e-5 of the largest, words exactly.
    """
    if ours.keys() != theirs.keys():
        return f"other names: {sorted(ours.keys() ^ theirs.keys())[:3]}"
    largest = max(v for v in theirs.values() if isinstance(v, float))
    for name, value in theirs.items():
        if name == "loss" and abs(ours[name] - value) > 1e-5 * abs(value):
            return f"the loss is {ours[name]}, with torch {value}"
        if isinstance(value, float) and abs(ours[name] - value) > max(1e-3 * abs(value), 1e-5 * largest):
            return f"the gradient of {name} has the norm {ours[name]}, with torch {value}"
        if isinstance(value, list) and ours[name] != value:
            return f"{name}: {ours[name]}, with torch {value}"
    return ""


@click.command()
@click.argument("programs", nargs=-1, type=click.Choice(list(PROGRAMS)))
@click.option("--model", "models", multiple=True, help="Only these models.")
@click.option("--seconds", default=600.0, show_default=True, help="The longest that a program may take.")
def main(programs: tuple[str, ...], models: tuple[str, ...], seconds: float) -> None:
    """Run PROGRAMS (all if none is given) beside torch; the exit status is 1 if one fails or differs."""
    wrong = 0
    for program in programs or PROGRAMS:
        path = str(PROGRAMS[program])
        ours = found(["-m", "tracegrad", "run", path, *models], seconds)
        theirs = found([path, *models], seconds)
        for name, row in ours.items():
            times = row.pop("seconds"), theirs[name].pop("seconds")
            said = row["error"] if "error" in row else theirs[name].get("error") or difference(row, theirs[name])
            wrong += bool(said)
            click.echo(f"{program:22} {name:24} {said or 'agrees'}  {times[0]:6.1f} s, torch {times[1]:6.1f} s")
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main()
