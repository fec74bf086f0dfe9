"""The examples of docstrings run, with tg, nn and np at hand; where one says what is printed, that is printed."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn

MODULES = [info.name for info in pkgutil.walk_packages(tg.__path__, "tracegrad.")
           if not info.name.startswith(("tracegrad.codegen", "tracegrad.runtime", "tracegrad.torch_api.names"))
           and not info.name.endswith(("__main__", "as_torch"))]
UNDER_TORCHS_NAMES = """
import doctest, importlib, pkgutil
import tracegrad.as_torch, torch
from tracegrad.torch_api import names
finder, tried = doctest.DocTestFinder(exclude_empty=True), 0
for info in pkgutil.walk_packages(names.__path__, "tracegrad.torch_api.names."):
    for case in finder.find(importlib.import_module(info.name), extraglobs={"torch": torch}):
        if case.examples:
            found = doctest.DocTestRunner(CHECKER(), verbose=False, optionflags=doctest.ELLIPSIS).run(case)
            assert not found.failed, case.name
            tried += 1
assert tried > 3
"""

REFERENCE = sorted((Path(__file__).resolve().parents[2] / "docs" / "book" / "api").glob("*.md"))
PAGES = [re.findall(r"automodule:: ([\w.]+)", page.read_text())[0] for page in REFERENCE]
# The docstrings of all public functions and classes, as the reference has them.
PUBLIC = {f"{page}.{name}": inspect.getdoc(thing) or "" for page in PAGES for name in importlib.import_module(page).__all__
          if isinstance(thing := getattr(importlib.import_module(page), name), (types.FunctionType, type))}

# What says the shapes, the dtypes and the errors: any of these words counts, so that what is missing is missing.
PARTS = {
    "shapes": r"\bshapes?\b|\bdim(s|ensions?)?\b|\b[Ee]lements?\b|\bscalars?\b|\bnumbers?\b|\([\w*.]+(, ?[\w*.+ -]+)*,?\)",
    "dtypes": r"\bdtypes?\b|\bfloat(s|16|32|64)?\b|\bint(s|egers?|32|64)?\b|\bbool(s|eans?)?\b|\bcomplex\b|\breal\b",
    "errors": r"\b[Rr]aises?\b|\b\w*Error\b|\brefused\b",
    "example": r"(?m)^ *>>> ",
}
# How many public docstrings of a page lack a part. A number here may only fall: who adds a function writes what it needs.
LACKING = {                         # shapes, dtypes, errors, an example
    "tracegrad.distributions": (0, 15, 27, 0),          # of 64
    "tracegrad.fft": (0, 0, 0, 0),                      # of 22
    "tracegrad.func": (0, 0, 1, 0),                     # of 15
    "tracegrad.linalg": (0, 1, 0, 3),                   # of 46
    "tracegrad.nn.functional": (0, 1, 1, 9),           # of 129
    "tracegrad.nn.init": (1, 1, 2, 0),                  # of 15
    "tracegrad.nn": (0, 6, 8, 0),                       # of 162
    "tracegrad.optim.lr_scheduler": (0, 15, 0, 0),      # of 16
    "tracegrad.optim": (0, 3, 2, 0),                    # of 16
    "tracegrad.special": (0, 0, 0, 2),                  # of 56
    "tracegrad": (36, 64, 47, 90),                     # of 631
}


class Said(doctest.OutputChecker):
    """Most examples say nothing of what is printed."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def examples():
    """Each docstring with an example, once."""
    found, finder, names = {}, doctest.DocTestFinder(exclude_empty=True), {"tg": tg, "np": np, "nn": nn}
    for name in MODULES:
        module = importlib.import_module(name)
        for case in finder.find(module, extraglobs=names):
            if case.examples:
                found.setdefault(case.name, case)
    seen = {inspect.cleandoc(case.docstring) for case in found.values()}
    for name, docstring in PUBLIC.items():              # those that no module holds by their name: what a loop or a decorator exports
        if ">>>" in docstring and docstring not in seen:
            seen.add(docstring)
            found[name] = doctest.DocTestParser().get_doctest(docstring, dict(names), name, None, None)
    return found


CASES = examples()


@pytest.mark.parametrize("name", CASES)
def test_examples_run(name, monkeypatch, tmp_path):
    """As users run them: numpy does what is small."""
    monkeypatch.setattr(tg.config, "eager", True)
    monkeypatch.chdir(tmp_path)
    tg.manual_seed(0)
    said: list[str] = []
    found = doctest.DocTestRunner(checker=Said(), verbose=False, optionflags=doctest.ELLIPSIS).run(CASES[name], out=said.append)
    assert not found.failed, "".join(said)


def test_examples_under_torchs_names_run(tmp_path):
    """In a process where `torch` is this library."""
    checker = inspect.getsource(Said).replace("class Said", "class CHECKER")
    done = subprocess.run([sys.executable, "-c", f"import doctest\n{checker}\n{UNDER_TORCHS_NAMES}"], cwd=tmp_path, capture_output=True,
                          text=True, check=False, env={**os.environ, "PYTHONPATH": str(Path(tg.__file__).parents[1])})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_what_public_docstrings_lack_gets_less(page):
    docstrings = {name: text for name, text in PUBLIC.items() if name.rpartition(".")[0] == page}
    missing = {part: [name for name, text in docstrings.items() if not re.search(pattern, text)] for part, pattern in PARTS.items()}
    for (part, names), limit in zip(missing.items(), LACKING[page], strict=True):
        assert len(names) <= limit, f"{len(names)} docstrings lack {part}, {limit} did before: one of {names}"
        assert len(names) > limit - 5, f"only {len(names)} docstrings lack {part}: lower the limit"
