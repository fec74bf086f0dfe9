"""The project around the code: what is packaged, what the README promises, whether the examples run. Needs no GPU."""

from __future__ import annotations

import html
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

import tracegrad as tg
from tests.helpers.mutations import stale

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXAMPLES = {"custom_function": [], "nan_hunt": [], "newton": [], "two_layer_net": ["--steps", "100"], "heat_inverse": [], "digits": [],
            "digits_mpi": ["--epochs", "2"], "tensor_parallel": ["--steps", "2"],
            "sharded_scan": ["--steps", "2"]}
SLOW, LONG = {"heat_inverse", "digits", "tensor_parallel", "sharded_scan"}, {"newton", "nan_hunt"}
MARKED = [pytest.param(n, marks=pytest.mark.slow if n in SLOW else pytest.mark.long if n in LONG else ()) for n in EXAMPLES]


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


def test_the_readme_opens_with_whom_it_is_for_a_picture_two_commands_tables_and_where_to_go():
    """In this order, before anything else; each table has torch or JAX beside tracegrad."""
    text = (ROOT / "README.md").read_text().partition("\n## ")[0]
    opening = " ".join(text.split("\n\n")[1].split())
    assert opening.count(". ") + opening.endswith(".") == 3
    assert "It is for people who" in opening
    parts = ["![", "```python", "make demo", "make test", "| | tracegrad | torch | torch.compile | jax.jit |",
             "| on a GPU | tracegrad | torch | JAX |", "| tracegrad | torch | torch.compile | jax.jit | tinygrad |",
             "| | over JAX and PyTorch | over C++ |", "*Where to go next.*"]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


PLAIN = """
import sys

class OnlyCore:
    \"\"\"Finds nothing of packages that a plain install does not bring.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in CORE and name.partition(".")[0] not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"a plain install has no {name}", name=name)

sys.meta_path.insert(0, OnlyCore())
"""
FILES = """
model = tg.nn.Sequential(tg.nn.Linear(3, 2), tg.nn.BatchNorm1d(2))
optimizer = tg.optim.Adam(model.parameters())
model(tg.rand(5, 3)).sum().backward()
optimizer.step()
for name in ("all.pt", "all.safetensors"):
    tg.save(model.state_dict() if "safe" in name else {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, FOLDER + name)
    found = tg.load(FOLDER + name)
model.load_state_dict(found)
tg.nn.save_file(model.state_dict(), FOLDER + "again")
assert tg.nn.load_file(FOLDER + "again")["0.weight"].tolist() == model[0].weight.tolist()
print("saved and loaded")
"""


def core_modules() -> set[str]:
    """The modules of the core dependencies, and of what these need."""
    wanted, seen, modules = list(PROJECT["project"]["dependencies"]), set(), set()
    while wanted:
        name, extras = re.match(r"([\w.-]+)(?:\[([^]]*)\])?", wanted.pop()).groups()
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:                # of another platform
            continue
        modules.update(path.parts[0].partition(".")[0] for path in found.files or ())
        for line in found.requires or ():
            extra = re.search(r"extra == ['\"](.*?)['\"]", line)
            if (line, extras) not in seen and (extra is None or extra[1] in (extras or "").split(",")):
                seen.add((line, extras))
                wanted.append(line)
    return modules


def test_a_plain_install_does_what_the_readme_says_and_saves_files(tmp_path):
    """With the core dependencies alone: every block of the README, `tg.save` and `tg.load`, files of safetensors."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "plain.py"
    files = [f"FOLDER = {str(tmp_path) + os.sep!r}", FILES]
    path.write_text("\n".join([f"CORE = {core_modules() | {'tracegrad'}!r}", PLAIN, *blocks, *files]))
    assert run(str(path)).endswith("saved and loaded\n")
    path.write_text("\n".join(["CORE = {'tracegrad'}", PLAIN, "import safetensors"]))
    with pytest.raises(AssertionError, match="a plain install has no safetensors"):
        run(str(path))


def test_every_example_is_listed():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", MARKED)
def test_example_runs_and_shows_a_kernel(name):
    assert "__kernel" in run(f"examples/{name}.py", *EXAMPLES[name])


@pytest.mark.parametrize("name", MARKED)
def test_example_runs_without_opencl_and_says_why_there_is_no_kernel(name):
    assert "\n// no kernels: this program ran on the device \"numpy\"" in run(f"examples/{name}.py", *EXAMPLES[name], "--device", "numpy")


@pytest.mark.parametrize("folder", ["tests/ops", "tests/distributed"])
@pytest.mark.parametrize("marks", [(), ("long",), ("matrix",), ("long", "matrix")], ids=" and ".join)
def test_ci_runs_every_test_that_is_not_slow(marks, folder):
    """`make test` leaves some to .ci/run: whatever marks a test has, one of the runs there selects it."""
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(r" make test\n", script)
    quick = shlex.join(["pytest", "tests", *PROJECT["tool"]["pytest"]["ini_options"]["addopts"]])
    for line in (quick, *re.findall(r"-m (pytest .* -m .*)", script)):
        words = shlex.split(line)
        chosen = Expression.compile(words[len(words) - words[::-1].index("-m")]).evaluate(lambda name: name in marks)
        there = f"--ignore={folder}" not in words and (folder in words or "tests/distributed" not in words)
        if chosen and there:
            return
    pytest.fail("no run selects it")


def test_every_error_that_is_put_in_on_purpose_still_can_be():
    assert stale() == []


@pytest.mark.slow
def test_benchmark_results_are_right():
    """Every row runs and agrees with its float64 reference (how fast is not asked)."""
    run("-m", "benchmarks.run", "--quick", "--contenders", "tracegrad", seconds=1800)


def cells(line):
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def test_the_readmes_table_is_what_was_measured():
    """Every figure of the table against other frameworks stands in benchmarks/RESULTS.md, in that row and column."""
    readme, results = ((ROOT / name).read_text().splitlines() for name in ("README.md", "benchmarks/RESULTS.md"))
    head = next(i for i, line in enumerate(readme) if line.startswith("| | tracegrad | torch |"))
    rows = [cells(line) for line in readme[head + 2:readme.index("", head)]]
    columns = cells(next(line for line in results if line.startswith("| workload | tracegrad |")))
    measured = {found[0]: dict(zip(columns, found, strict=True)) for found in map(cells, results) if len(found) == len(columns)}
    assert len(rows) >= 8
    for name, *times in rows:
        for key, time in zip(("tracegrad", "torch", "torch_compile", "jax"), times, strict=True):
            assert measured[name][key].startswith(f"{time} ["), (name, key)


def test_the_readmes_table_of_a_gpu_is_what_was_measured():
    readme, results = ((ROOT / name).read_text().splitlines() for name in ("README.md", "benchmarks/RESULTS-gpu.md"))
    head = readme.index("| on a GPU | tracegrad | torch | JAX |")
    rows = [cells(line) for line in readme[head + 2:readme.index("", head)]]
    columns = cells(next(line for line in results if line.startswith("| class | launches |")))
    measured = {found[0]: dict(zip(columns, found, strict=True)) for found in map(cells, results) if len(found) == len(columns)}
    assert len(rows) >= 8
    for name, *times in rows:
        assert times == [measured[name][key] for key in ("call, ms", "torch, ms", "JAX, ms")], name


def test_the_readmes_picture_is_that_of_the_program(monkeypatch):
    if tg.device().kind != "cpu":
        pytest.skip("the picture's kernel is a CPU's")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    picture = importlib.import_module("picture")
    shown = html.unescape((ROOT / "docs" / "picture.svg").read_text())
    f = picture.traced()
    assert all(f">{name}</text>" in shown for name in picture.operations(f))
    assert all(f">{line}</text>" in shown for line in picture.CODE.splitlines())
    assert "w_grad_i = " in shown
    assert all(f"{name}: {time:.0f} ms" in shown for name, time in picture.times().items())


def test_the_changelog_has_each_heading_once_what_was_wrong_first():
    unreleased = (ROOT / "CHANGELOG.md").read_text().partition("\n## [Unreleased]\n")[2].partition("\n## ")[0]
    assert re.findall(r"(?m)^### (.*)$", unreleased) == ["Fixed", "Added", "Changed"]
    assert re.findall(r"(?m)^(?!- |  |### |$).*$", unreleased) == []      # what a merge leaves of a bullet stands in none
