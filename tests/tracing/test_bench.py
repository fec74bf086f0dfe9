"""`python -m tracegrad profile` and `bench`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracegrad as tg
from tracegrad.__main__ import main
from tracegrad.utils import bench

DEVICES = Path(__file__).resolve().parents[2] / "docs" / "devices.md"

SCRIPT = """
import sys
import tracegrad as tg

@tg.trace
def step(x):
    return (x * 2.0).sin().sum()

def plain(x):
    return x

x = tg.ones(int(sys.argv[1]))
step(x)
"""


def needs_kernels():
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter has no kernels")


def test_profile_runs_a_script_and_prints_its_functions_table(tmp_path, capsys):
    needs_kernels()
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert main(["profile", "--runs", "2", f"{path}:step", "1000"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("step on ")
    assert out.count("median of 2 runs") == 1
    assert re.search(r"line 7$", out, re.MULTILINE)


def test_profile_names_what_a_script_has(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert main(["profile", f"{path}:plain", "10"]) == 1
    assert "has no traced function 'plain'; it has step" in capsys.readouterr().err


def test_bench_has_a_row_for_each_program(monkeypatch, capsys):
    needs_kernels()
    small = [(name, fn, [tuple(min(size, 64) for size in shape) for shape in shapes]) for name, fn, shapes in bench.PROGRAMS]
    monkeypatch.setattr(bench, "PROGRAMS", small)
    assert main(["bench"]) == 0
    head, device, limits, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("tracegrad ")
    assert str(tg.device()) in device
    assert re.search(r"[\d.]+ GB/s, \d+ Gflop/s in float32", limits)
    assert len(rows) == len(bench.PROGRAMS)
    for row, (name, _, _) in zip(rows, bench.PROGRAMS, strict=True):
        assert re.fullmatch(rf"{re.escape(name)} +\d+ +[\d.]+ ms +\d+% +(memory|arithmetic)", row)


def test_bench_goes_on_after_a_program_that_fails(monkeypatch):
    needs_kernels()
    monkeypatch.setattr(bench, "PROGRAMS", [("wrong shapes", lambda a, b: a @ b, [(2, 3), (4, 5)]), ("a sum", lambda x: x.sum(), [(8,)])])
    wrong, right = bench.report().splitlines()[-2:]
    assert "failed: matmul" in wrong
    assert re.search(r"a sum +\d", right)


def test_results_are_compared_with_numpys(monkeypatch):
    needs_kernels()

    def differs(x):
        return x.sum() + (1.0 if x.device.kind == "numpy" else 0.0)

    monkeypatch.setattr(bench, "PROGRAMS", [("a wrong sum", differs, [(8,)])])
    assert "failed: what " in bench.report().splitlines()[-1]


def test_a_row_for_the_table_of_devices(monkeypatch, capsys):
    needs_kernels()
    small = [(name, fn, [tuple(min(size, 8) for size in shape) for shape in shapes]) for name, fn, shapes in bench.PROGRAMS[:2]]
    monkeypatch.setattr(bench, "PROGRAMS", [*small, ("wrong shapes", lambda a, b: a @ b, [(2, 3), (4, 5)])])
    assert main(["bench", "--row"]) == 0
    name, driver, bandwidth, flops, *programs, release = capsys.readouterr().out.strip().strip("|").split(" | ")
    assert name.strip() == tg.device().name
    assert driver == tg.device().driver
    assert float(bandwidth) > 0
    assert re.fullmatch(r"\d+, (\d+|none)", flops)
    assert [bool(re.fullmatch(r"[\d.]+ ms, \d+%", cell)) for cell in programs] == [True, True, False]
    assert programs[-1] == "failed"
    assert re.search(r"20\d\d-\d\d-\d\d", release)


def test_the_table_of_devices_has_such_rows():
    head = "| " + " | ".join(bench.HEAD) + " |"
    text = DEVICES.read_text()
    assert head in text
    rows = text.partition(head)[2].split("\n\n")[0].strip().splitlines()[1:]
    assert len(rows) >= 4
    assert {row.count("|") for row in rows} == {head.count("|")}
