"""The project around the code: what is packaged, what the README promises, whether the examples run. Needs no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers.mutations import stale

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXAMPLES = {"custom_function": [], "newton": [], "two_layer_net": ["--steps", "100"], "heat_inverse": [], "digits": []}
LONG = {"heat_inverse", "digits"}


def run(*command: str, seconds: int = 300) -> str:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_every_package_is_packaged():
    found = {str(init.parent.relative_to(ROOT)).replace(os.sep, ".")
             for folder in ("tracegrad", "tracegrad/codegen", "tracegrad/runtime") for init in (ROOT / folder).rglob("__init__.py")}
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def test_no_second_name_is_importable():
    for name in ("codegen", "runtime"):
        done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert f"import tracegrad.{name}, not {name}" in done.stderr


def test_readme_opens_with_a_program_that_runs_and_so_does_the_rest_of_it(tmp_path):
    """The first lines end in a gradient and a printed kernel; the later blocks go on from there."""
    first, *rest = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(first.splitlines()) <= 15
    path = tmp_path / "readme.py"
    path.write_text(first)
    shown = run(str(path))
    assert shown.startswith("Tensor([")
    assert "__global float *restrict w_grad" in shown
    assert "readme.py:6" in shown                               # the line of the loss, beside its statement
    path.write_text("\n".join([first, *rest]))
    last = run(str(path)).splitlines()[-1]
    before, after, *compilations = last.split(maxsplit=2)
    assert float(after) < float(before)
    assert compilations == ["['first call']"]


def test_every_example_is_listed():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in EXAMPLES])
def test_example_runs_and_shows_a_kernel(name):
    assert "__kernel" in run(f"examples/{name}.py", *EXAMPLES[name])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in EXAMPLES])
def test_example_runs_without_opencl_and_says_why_there_is_no_kernel(name):
    assert "\n// no kernels: this program ran on the device \"numpy\"" in run(f"examples/{name}.py", *EXAMPLES[name], "--device", "numpy")


def test_every_error_that_is_put_in_on_purpose_still_can_be():
    assert stale() == []


@pytest.mark.slow
def test_benchmark_results_are_right():
    """Every row runs and agrees with its float64 reference (how fast is not asked)."""
    run("-m", "benchmarks.run", "--quick", "--contenders", "tracegrad", seconds=1800)
