"""How long the programs of the gallery take who runs one for the first time. Start at `main`.

    python -m benchmarks.gallery                  # all of them: the table of docs/gallery.md
    python -m benchmarks.gallery ising vae

Each is a process of its own that finds nothing kept on disk, so it compiles all that it needs. Processor seconds are those of all cores,
and of the processes that build kernels, too. What else the machine does makes the time that passes longer, and those hardly.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GALLERY = Path(__file__).resolve().parents[1] / "examples" / "gallery"
PROGRAMS = sorted(path.stem for path in GALLERY.glob("*.py") if path.stem != "show")


def first_run(name: str) -> tuple[float, float]:
    """The seconds that a program takes, with its picture and its page, and those of processors. CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"XDG_CACHE_HOME": folder, "POCL_CACHE_DIR": f"{folder}/pocl"}
        used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, str(GALLERY / f"{name}.py"), "--out", folder], env=os.environ | caches, stdout=subprocess.DEVNULL,
                       check=True)
        passed, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        return passed, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=f"default: all; {', '.join(PROGRAMS)}")
    args = parser.parse_args()
    if unknown := {*args.names} - {*PROGRAMS}:
        parser.error(f"no program is called {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    print("| program | seconds of processors | that passed |\n|---|---|---|")
    for name in args.names or PROGRAMS:
        passed, used = first_run(name)
        print(f"| {name} | {used:.0f} | {passed:.0f} |", flush=True)


if __name__ == "__main__":
    main()
