"""Writes the tool into a checkout of GradBench, in the form that its CONTRIBUTING asks for.

    python -m benchmarks.gradbench.contribute CHECKOUT

`tools/tracegrad` gets the Dockerfile, the README and the list of evals; `python/gradbench/gradbench/tools/tracegrad` gets the Python, as a
package of theirs, laid out by ruff with their settings. README.md beside this file says what to do with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gradbench.against import EVALS

HERE = Path(__file__).resolve().parent


def write(checkout: Path) -> None:
    """Write both folders; what stands in them goes away."""
    tool, package = checkout / "tools" / "tracegrad", checkout / "python" / "gradbench" / "gradbench" / "tools" / "tracegrad"
    if not tool.parent.is_dir() or not package.parent.is_dir():
        raise SystemExit(f"{checkout} is no checkout of GradBench: it needs the folders {tool.parent} and {package.parent}")
    for folder in (tool, package):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "upstream", tool)
    (tool / "evals.txt").write_text("".join(f"{name}\n" for name in sorted(EVALS)))
    for path in (HERE / "tool.py", HERE / "runs.py", *(HERE / "evals").glob("*.py")):
        into = package / str(path.relative_to(HERE)).replace("tool.py", "run.py")             # as their tools' are called
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_text(path.read_text().replace("benchmarks.gradbench", "gradbench.tools.tracegrad"))
    for words in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *words, str(package)], cwd=checkout, check=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
