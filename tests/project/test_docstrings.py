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
THINGS = {f"{page}.{name}": thing for page in PAGES for name in importlib.import_module(page).__all__
          if isinstance(thing := getattr(importlib.import_module(page), name), (types.FunctionType, type))}
PUBLIC = {name: inspect.getdoc(thing) or "" for name, thing in THINGS.items()}

# What says the shapes, the dtypes and the errors: any of these words counts, so that what is missing is missing.
PARTS = {
    "shapes": r"\b[Ss]hapes?\b|\bdim(s|ensions?)?\b|\b[Ee]lements?\b|\bscalars?\b|\bnumbers?\b|\([\w*.]+(, ?[\w*.+ -]+)*,?\)",
    "dtypes": r"\bdtypes?\b|\bfloat(s|16|32|64)?\b|\bint(s|egers?|32|64)?\b|\bbool(s|eans?)?\b|\bcomplex\b|\breal\b",
    "errors": r"\b[Rr]aises?\b|\b\w*Error\b|\brefused\b",
    "example": r"(?m)^ *>>> ",
}
TENSORS = ("shapes", "dtypes")
# For which names a part means nothing, and why. (What has no parameters has no errors to tell, and an exception has no tensors.)
MEANINGLESS = {
    (TENSORS, "a setting of the process, or a mode of the thread: no tensor goes in or comes out"): """
        are_deterministic_algorithms_enabled enable_grad get_default_dtype get_float32_matmul_precision get_num_threads
        is_anomaly_check_nan_enabled is_anomaly_enabled is_deterministic_algorithms_warn_only_enabled is_grad_enabled
        is_inference_mode_enabled no_grad set_float32_matmul_precision set_num_threads set_printoptions
        use_deterministic_algorithms""",
    (TENSORS, "devices, which have neither"): "device devices get_default_device set_default_device set_device",
    (TENSORS, "a random stream: seeds and places in it are ints"): "get_rng_state initial_seed seed set_rng_state",
    (TENSORS, "all work that is pending, whatever its tensors are"): "flush report synchronize",
    (TENSORS, "it keeps what the user's forward gives it, whatever that is"): "Context",
    (("dtypes",), "of any Python object"): "is_tensor typename",
    (("dtypes",), "constants, which tell how memory lies"): "layout memory_format",
    (("dtypes",), "the learning rate, of which LRScheduler tells"): """
        ChainedScheduler ConstantLR CosineAnnealingLR CyclicLR ExponentialLR LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR
        PolynomialLR ReduceLROnPlateau SequentialLR StepLR""",
    (("errors",), "takes anything and fails of nothing"): "flush is_conj is_neg is_tensor typename use_deterministic_algorithms",
    (("errors",), "constants, which nobody makes"): "layout memory_format",
    (("errors",), "NumPy's own class, with its docstring"): "dtype",
    (("example",), "a bug of tracegrad, which no program is known to show"): "CompilerBug GraphError",
    (("example",), "which device lacks what is not known here"): "UnsupportedError",
}


def needs(part: str, thing: object) -> bool:
    """Whether a docstring has to have the part, by the kind of thing that it is of."""
    if isinstance(thing, type) and issubclass(thing, Exception):
        return part not in TENSORS
    return part != "errors" or isinstance(thing, type) or bool(inspect.signature(thing).parameters)


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


def test_public_docstrings_are_complete():
    """All of them, but where the table above says why not; and it names only those that lack a part."""
    lack = {part: {name.rpartition(".")[2] for name, text in PUBLIC.items() if not re.search(pattern, text) and needs(part, THINGS[name])}
            for part, pattern in PARTS.items()}
    for (parts, reason), names in MEANINGLESS.items():
        found = set[str]().union(*(lack[part] for part in parts))
        assert found >= set(names.split()), f"no part is missing any more ({reason})"
    for part, names in lack.items():
        assert names <= {name for (parts, _), some in MEANINGLESS.items() if part in parts for name in some.split()}, part


def test_signatures_tell_the_parameters():
    """None leaves its arguments to another function, so that `help()`, editors and the reference show their names and defaults."""
    hidden = [name for name, thing in THINGS.items() if thing is not np.dtype
              and any(p.kind == p.VAR_KEYWORD and p.name == "kwargs" for p in inspect.signature(thing).parameters.values())]
    # The first takes none, and says what to call; the second takes any, as torch's does.
    assert sorted(hidden) == ["tracegrad.Function", "tracegrad.nn.Identity"]


def test_methods_tell_the_parameters():
    """In-place ones, too."""
    hidden = [name for name, method in inspect.getmembers(tg.Tensor, callable) if not name.startswith("__")
              and any(p.kind == p.VAR_KEYWORD and p.name == "kwargs" for p in inspect.signature(method).parameters.values())]
    assert not hidden
