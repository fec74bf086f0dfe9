"""docs/tour.md tells the truth: what it names exists, and is called in the order of its lists."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tracegrad as tg
from tests.project.documents import found

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tour.md"
TEXT = PAGE.read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))
NAME = re.compile(r"`(tracegrad\.[\w.<>]+)`")
RUNS = ["Untraced, the first time", "Untraced, the second time", "Untraced, the hundredth time",
        "Traced, the first call", "Traced, the second call"]
TRACED = [name for name in RUNS if name.startswith("Traced")]

# Runs the page's program in a process of its own, as users have it, and prints the functions that each run called, in order.
PROGRAM = """
import json, re, sys
namespace = {}
for block in re.findall(r"^```python\\n(.*?)^```", open("docs/tour.md").read(), re.DOTALL | re.MULTILINE):
    exec(compile(block, "tour.py", "exec"), namespace)
import tracegrad as tg

def calls(fn, *args):
    seen = []
    def hook(frame, event, argument):
        if event == "call":
            seen.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))
    sys.setprofile(hook)
    try:
        fn(*args)
    finally:
        sys.setprofile(None)
    return seen

untraced = [calls(namespace["step"]) for _ in range(100)]
runs = {"Untraced, the first time": untraced[0], "Untraced, the second time": untraced[1], "Untraced, the hundredth time": untraced[-1]}
if tg.device().kind != "numpy":
    for name in ("Traced, the first call", "Traced, the second call"):
        namespace["w"].grad = None
        runs[name] = calls(namespace["traced"], namespace["x"], namespace["w"])
print(json.dumps(runs))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    """By section: the file and first line of each function that its run calls. With the settings and the empty caches of a new user."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("TRACEGRAD_") or k == "TRACEGRAD_DEVICE"}
    settings |= {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made: dict[str, list[list[Any]]] = json.loads(done.stdout)
    return made


def code(name: str) -> list[Any]:
    """File and first line of the function `name`; of a class, those of its constructor; what decorators are put around is the function."""
    outer, _, inner = name.partition(".<locals>.")
    thing = found(outer)
    thing = inspect.unwrap(thing.__init__ if inspect.isclass(thing) else thing)
    assert hasattr(thing, "__code__"), f"docs/tour.md: {name} is not a function that Python calls"
    made = thing.__code__
    if inner:
        made = next(c for c in made.co_consts if getattr(c, "co_name", "") == inner)
    return [made.co_filename, made.co_firstlineno]


def listed(section: str) -> list[str]:
    """The functions that a section's lists follow: those at the beginning of an item, and behind "then" and "later"."""
    return re.findall(r"(?:^- |, then |, later )`(tracegrad\.[\w.<>]+)`", SECTIONS[section], re.MULTILINE)


def gone(section: str) -> list[str]:
    """What a section says is no longer called."""
    told = re.search(r"^No longer called:(.*?)\.$", SECTIONS[section], re.DOTALL | re.MULTILINE)
    return NAME.findall(told[1]) if told else []


def not_in_order(names: Iterable[str], places: Sequence[Any], calls: Sequence[Any]) -> str:
    """The first of `names` that is not called after those before it; "" if all are. places: where each is defined."""
    at = 0
    for name, place in zip(names, places, strict=True):
        while at < len(calls) and calls[at] != place:
            at += 1
        if at == len(calls):
            return name
        at += 1
    return ""


def _skip_elsewhere(section: str) -> None:
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter compiles nothing, so all work is its own")
    if section not in TRACED and not tg.device().in_host_memory:
        pytest.skip("untraced work is NumPy's where the host shares the device's memory")


def test_the_page_has_a_list_for_each_run_and_is_two_pages_long() -> None:
    assert list(SECTIONS) == RUNS
    assert all(len(listed(name)) >= 5 for name in RUNS)
    assert len(TEXT.splitlines()) <= 120


@pytest.mark.parametrize("name", sorted(set(NAME.findall(TEXT))))
def test_what_the_page_names_exists(name: str) -> None:
    found(name.partition(".<locals>.")[0])


@pytest.mark.parametrize("section", RUNS)
def test_the_functions_of_a_list_are_called_in_its_order(section: str, runs: dict[str, list[list[Any]]]) -> None:
    _skip_elsewhere(section)
    names = listed(section)
    assert not_in_order(names, [code(n) for n in names], runs[section]) == ""


@pytest.mark.parametrize("section", [name for name in RUNS if gone(name)])
def test_what_is_no_longer_called_is_not(section: str, runs: dict[str, list[list[Any]]]) -> None:
    _skip_elsewhere(section)
    assert [n for n in gone(section) if code(n) in runs[section]] == []


def test_the_check_sees_another_order_and_a_call_that_is_missing() -> None:
    assert not_in_order("ab", "ab", "xaxbx") == ""
    assert not_in_order("ba", "ba", "xaxbx") == "a"
    assert not_in_order("abc", "abc", "ab") == "c"
    assert not_in_order("aa", "aa", "ab") == "a"
