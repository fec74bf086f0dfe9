"""The examples of docstrings run, with tg, nn and np at hand; where one says what is printed, that is printed."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn

MODULES = [info.name for info in pkgutil.walk_packages(tg.__path__, "tracegrad.")
           if not info.name.startswith(("tracegrad.codegen", "tracegrad.runtime")) and not info.name.endswith(("__main__", "as_torch"))]


class Said(doctest.OutputChecker):
    """Most examples say nothing of what is printed."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def examples():
    """Each docstring with an example, once."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for case in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"tg": tg, "np": np, "nn": nn}):
            if case.examples:
                found.setdefault(case.name, case)
    return found


CASES = examples()


@pytest.mark.parametrize("name", CASES)
def test_examples_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tg.manual_seed(0)
    said: list[str] = []
    found = doctest.DocTestRunner(checker=Said(), verbose=False, optionflags=doctest.ELLIPSIS).run(CASES[name], out=said.append)
    assert not found.failed, "".join(said)
