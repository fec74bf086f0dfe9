"""Programs that mpiexec starts as several ranks, oversubscribed and bounded in time (the fixture `ranks` of tests/distributed)."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
BEGIN = """
import os, time
import numpy as np
import tracegrad as tg
from tracegrad import nn
dist, F = tg.distributed, tg.distributed.functional
dist.init_process_group(timeout=30)
rank, size = dist.get_rank(), dist.get_world_size()
def same(x, expected, rtol=1e-6):
    np.testing.assert_allclose(x.detach().numpy() if isinstance(x, tg.Tensor) else x, expected, rtol=rtol, atol=1e-12)
def raises(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")
"""


def example(name: str, *arguments: str) -> str:
    """A program that runs an example, which makes its own process group, with these arguments."""
    return f"""
import runpy, sys
dist.destroy_process_group()
sys.argv[1:] = {[*arguments]}
runpy.run_path("examples/{name}.py", run_name="example")["main"]()
"""


def losses(printed: str) -> list[float]:
    """The losses that an example printed."""
    return [float(n) for n in re.findall(r"loss (\d+\.\d+)", printed)]


def run(command: list[str], text: str, code: int = 0, seconds: float = 100) -> str:
    """What the program printed. code: 0 or not 0, how it ends."""
    done = subprocess.run([*command, sys.executable, "-c", BEGIN + textwrap.dedent(text)], env=ENVIRONMENT, cwd=ROOT, capture_output=True,
                          text=True, timeout=seconds, check=False)
    assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
    return done.stdout + done.stderr


@functools.cache
def why_not() -> str:
    """Why two ranks cannot be started here; "" if they can."""
    install = "pip install 'tracegrad[mpi]'"
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed: {install}"
    if MPIEXEC is None:
        return f"there is no mpiexec: {install}"
    program = "from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.allreduce(1) != 2)"         # (what ranks print may be mixed)
    try:
        done = subprocess.run([MPIEXEC, "-n", "2", sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True,
                              timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "mpiexec did not start two ranks within a minute"
    if done.returncode:
        return f"mpiexec did not start two ranks: {(done.stderr or done.stdout).strip()[-200:]}"
    return ""
