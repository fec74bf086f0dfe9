"""The documents: code blocks run and print what the ```text block behind them says, names exist, figures say how to repeat them."""

import argparse
import importlib
import os
import re
import subprocess
import sys

import pytest

import tracegrad as tg
from benchmarks import first_call, loops, small_matrices
from docs.extensions.blocks import BLOCK, run, same
from tests.helpers.marks import DEVICES, one_of
from tests.project.documents import ROOT, broken_links, misplaced, unknown

DOCS = ROOT / "docs"
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(p for p in sorted(DOCS.rglob("*.md")) if p.name != "coverage.md")]
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if BLOCK.search(page.read_text())]
KERNELS = re.compile(r"\.(profile|memory)\(\)")             # a page with these shows what only a device with kernels has


@one_of(3, ("page", "device"), [(page, DEVICES[(k + j) % 3]) for k, page in enumerate(PAGES) for j in range(3)], indirect=["device"],
        ids=lambda value: getattr(value, "stem", value))
def test_page(page, device):
    if device.kind == "numpy" and any(KERNELS.search(block[1]) for block in BLOCK.finditer(page.read_text())):
        pytest.skip("the interpreter has no kernels to profile")
    tg.manual_seed(0)
    for name, printed, said in run(page, {"__name__": f"docs_{page.stem}"}):
        assert same(printed, said), f"{name} printed something else"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_files_classes_and_dotted_names_in_backticks_exist(page):
    assert unknown(page.read_text()) == []
    assert misplaced(page.read_text()) == []
    assert broken_links(page) == []


def test_names_that_do_not_exist_are_found():
    wrong = ["Primitive.nothing", "Unheardof", "_" + "UNHEARD_OF", "tg.nothing", "tracegrad.execute.compile.Node",
             "tracegrad.graph.primitive.nothing", "tracegrad/nowhere.py"]
    assert unknown(" ".join(f"`{name}`" for name in [*wrong, "docs/tour.md", "Primitive.vjp", "Primitive", "tg.sum", "x + 1"])) == wrong
    said = "`codegen/compiler.py` (`unheard_of`, `passes`) and `runtime/queries.py` (`_CORES`)"
    assert misplaced(said) == ["unheard_of in codegen/compiler.py"]


def test_the_op_that_contributing_shows_is_one(tmp_path):
    """In a process of its own, since it enters the registry: the tests of the registry pass for it, and so does a kernel."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = BLOCK.findall(page)
    (name,) = re.findall(r'name, domain = "(\w+)"', block[0])
    plugin = tmp_path / "contributed.py"
    plugin.write_text(f"import numpy as np\nfrom tracegrad.graph.operation_families import Float\n\n{block[0]}")
    tests = [f"tests/ops/test_{kind}.py" for kind in ("registry", "registry_device")]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n0", "-p", "contributed", "-k", name, *tests], cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 5


def rows(page, after=""):
    """The cells of a page's tables, row by row, without their heads."""
    text = (DOCS / page).read_text().partition(after)[2]
    lines = re.findall(r"(?m)^\|(.+)\|$", re.sub(r"(?m)^\|.*\|\n\|[-| ]+\|$", "", text))
    return [[cell.strip() for cell in line.split("|")] for line in lines]


class _Parsed(Exception):
    """The arguments of a benchmark are right."""


def _parsed(module, words, monkeypatch):
    """The settings of `python -m module *words`, which is run as far as that. SystemExit where an argument is wrong."""
    real = argparse.ArgumentParser.parse_args

    def parse_args(self, *args):
        raise _Parsed(real(self, *args))

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patch.setattr(sys, "argv", [module, *words])
        with pytest.raises(_Parsed) as parsed:
            importlib.import_module(module).main()
    return parsed.value.args[0]


def test_every_figure_names_the_command_that_repeats_it_or_the_day(monkeypatch):
    measured = rows("measurements.md", "## ")
    assert len(measured) > 80
    for what, figure, repeat in measured:
        assert re.search(r"\d", figure) or "noise" in figure, what
        if re.fullmatch(r"once, 20\d\d-\d\d-\d\d", repeat):
            continue
        command = re.fullmatch(r"`python -m (benchmarks\.\w+|pytest)((?: [\w./-]+)*)`", repeat)
        assert command, f"{what}: {repeat}"
        module, words = command[1], command[2].split()
        if module == "pytest":
            assert (ROOT / words[0]).exists(), repeat
            continue
        settings = vars(_parsed(module, words, monkeypatch))
        names = {"benchmarks.loops": ("cases", loops.CASES), "benchmarks.small_matrices": ("names", small_matrices.MATRICES),
                 "benchmarks.first_call": ("names", first_call.OWN)}
        if module in names:
            field, known = names[module]
            assert set(settings[field]) <= known.keys(), repeat


def test_a_word_leaves_the_glossary_when_it_leaves_the_code():
    code = "\n".join(path.read_text() for folder in ("tracegrad", "codegen", "runtime") for path in (ROOT / folder).rglob("*.py"))
    words = [word for cells in rows("glossary.md", "## Words of the code that differ") for word in re.findall(r"`([^`]+)`", cells[0])]
    assert words
    assert [word for word in words if not re.search(rf"\b{word}\b", code)] == []


def test_a_decision_takes_ten_lines_at_most():
    paragraphs = re.split(r"\n(?=- |\n|\*\*)", (DOCS / "design.md").read_text())
    assert [p for p in paragraphs if len(p.strip().splitlines()) > 10 or max(map(len, p.splitlines()), default=0) > 160] == []
