"""A program under tracegrad's names and under torch, each in a process of its own. Start at `beside_torch`.

Those of one side are forks of one process, which imports (of torch: 2 s) once.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_SAY = """
import json, os, sys, warnings
def plain(x):
    "Nested lists and dicts of numbers, strings and None."
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return plain(torch.view_as_real(x) if x.is_complex() else x.double().tolist() if x.is_floating_point() else x.tolist())
    if isinstance(x, (list, tuple)):
        return [plain(y) for y in x]
    if isinstance(x, dict):
        return {str(k): plain(y) for k, y in x.items()}
    return x if x is None or isinstance(x, (bool, int, float, str)) else str(x)
def say(name, make):
    "Report what make() returns, or its error's type."
    try:
        value = plain(make())
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
    print("=" + json.dumps([name, value]))
"""
_FORKS = """
for line in sys.stdin:
    text, written = json.loads(line)
    child = os.fork()
    if not child:                                       # its names are those of __main__, as classes that it pickles need it
        os.dup2(os.open(written, os.O_WRONLY), 1)
        os.dup2(1, 2)
        exec(compile(text, "<program>", "exec"))
        sys.exit()
    print(os.waitpid(child, 0)[1], flush=True)
"""


@functools.cache
def starter(ours: bool) -> subprocess.Popen[str]:
    """A process that has `torch` and `say`, and reads lines: a program and the file for what it prints. It answers with how each ended."""
    first = "import tracegrad.as_torch\n" if ours else ""
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", f"{first}import torch\n{_SAY}{_FORKS}"], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    atexit.register(process.communicate)                    # there are no more lines: it ends
    return process


def reports(text: str, ours: bool) -> dict[str, Any]:
    """What a program says, by name. It has `torch`, and `say(name, make)`."""
    process = starter(ours)
    assert process.stdin is not None
    assert process.stdout is not None
    with tempfile.NamedTemporaryFile("r") as printed:
        process.stdin.write(json.dumps((textwrap.dedent(text), printed.name)) + "\n")
        process.stdin.flush()
        status = process.stdout.readline().strip()
        said = printed.read()
    assert status == "0", said
    return dict(json.loads(line[1:]) for line in said.splitlines() if line.startswith("="))


def beside_torch(text: str, tolerance: float = 0.0) -> None:
    """Assert that a program reports the same under both; floats may differ by `tolerance` times their size (at least 1)."""
    pytest.importorskip("torch")
    ours, theirs = reports(text, True), reports(text, False)
    assert ours.keys() == theirs.keys()
    wrong = {name: (ours[name], theirs[name]) for name in theirs if not _alike(ours[name], theirs[name], tolerance)}
    assert not wrong, "\n".join(f"{name}:\n  {a}\n  torch: {b}" for name, (a, b) in wrong.items())


def _alike(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(b, list):
        return isinstance(a, list) and len(a) == len(b) and all(_alike(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(_alike(a[k], b[k], tolerance) for k in b)
    if isinstance(b, float) and isinstance(a, float):
        return a == b or (a != a and b != b) or abs(a - b) <= tolerance * max(abs(b), 1.0)
    return type(a) is type(b) and bool(a == b)
