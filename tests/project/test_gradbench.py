"""The tool for GradBench: its protocol, and each eval against NumPy and finite differences."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from benchmarks.gradbench import against, contribute
from benchmarks.gradbench.against import EVALS
from benchmarks.gradbench.evals import lstm
from benchmarks.gradbench.runs import array
from benchmarks.gradbench.tool import answers
from tests.helpers.marks import one_of
from tracegrad.support.plan import Loop

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "gradbench" / "evals"

RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.standard_normal(shape).tolist()


def ask(module, function, given):
    message = {"id": 3, "kind": "evaluate", "module": module, "function": function, "input": given}
    (line,) = answers([json.dumps(message)])
    found = json.loads(line)
    assert found["id"] == 3
    assert found["success"], found["error"]
    assert all(t["name"] == "evaluate" and t["nanoseconds"] > 0 for t in found["timings"])
    return found["output"]


def check_gradient(module, primal, gradient, given, keys, pick=lambda value: value):
    """The derivative in the inputs named, in order and flat, against differences of the primal."""
    found = ask(module, gradient, given)
    found = np.concatenate([np.ravel(found[key]) for key in keys] if isinstance(found, dict) else [np.ravel(found)])
    expected = []
    for key in keys:
        flat = np.array(given[key], float)
        for place in np.ndindex(flat.shape):
            two = []
            for h in (1e-6, -1e-6):
                moved = flat.copy()
                moved[place] += h
                two.append(pick(ask(module, primal, given | {key: moved.tolist()})))
            expected.append((two[0] - two[1]) / 2e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_every_eval_is_run_and_short():
    assert {path.stem for path in HERE.glob("*.py")} - {"__init__", "solver"} == {*EVALS}
    assert all(len([*filter(str.strip, (HERE / f"{name}.py").read_text().split("\n"))]) <= 40 for name in EVALS)


def test_the_readmes_table_is_what_was_measured():
    """Every figure of the derivatives stands in docs/measurements.md."""
    root = HERE.parents[2]
    measured = (root / "docs" / "measurements.md").read_text().partition("\n## GradBench\n")[2]
    table = (root / "README.md").read_text().partition("| | over JAX and PyTorch | over C++ |\n")[2].partition("\n\n")[0]
    names = re.findall(r"(?m)^\| ([^|]+) \|", table)
    assert len(names) >= 10
    figures = {figure for line in table.splitlines()[1:] for figure in re.findall(r"\d[\d.]*(?: to \d[\d.]*)?", line.split("|", 2)[2])}
    assert [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", measured)] == []


def test_the_protocol():
    messages = [{"id": 0, "kind": "start", "eval": "hello"}, {"id": 1, "kind": "define", "module": "hello"},
                {"id": 2, "kind": "define", "module": "nothing"}, {"id": 3, "kind": "analysis", "of": 2, "valid": True}]
    start, define, missing, analysis = map(json.loads, answers(map(json.dumps, messages)))
    assert start == {"id": 0, "tool": "tracegrad"}
    assert define == {"id": 1, "success": True}
    assert missing["success"] is False
    assert "nothing" in missing["error"]
    assert analysis == {"id": 3}


def test_it_runs_as_often_as_asked():
    given = {"x": [1.0, 2.0], "min_runs": 5, "min_seconds": 0}
    message = {"id": 0, "kind": "evaluate", "module": "lse", "function": "primal", "input": given}
    (line,) = answers([json.dumps(message)])
    assert len(json.loads(line)["timings"]) == 5


def test_hello():
    assert ask("hello", "square", 3.0) == 9.0
    assert ask("hello", "double", 3.0) == 6.0


def test_log_sum_exp():
    x = numbers(7)
    assert ask("lse", "primal", {"x": x}) == pytest.approx(np.logaddexp.reduce(x))
    np.testing.assert_allclose(ask("lse", "gradient", {"x": x}), np.exp(x) / np.exp(x).sum())


def test_least_squares():
    x, t = numbers(5), np.linspace(-1, 1, 8)
    powers = t[:, None] ** np.arange(5)
    wrong = np.sign(t) - powers @ x
    assert ask("llsq", "primal", {"x": x, "n": 8}) == pytest.approx(0.5 * (wrong**2).sum())
    np.testing.assert_allclose(ask("llsq", "gradient", {"x": x, "n": 8}), -powers.T @ wrong)


def test_k_means():
    points = np.array(numbers(20, 2))
    given = {"points": points.tolist(), "centroids": points[-3:].tolist()}
    distances = ((points[:, None] - points[None, -3:]) ** 2).sum(-1)
    assert ask("kmeans", "cost", given) == pytest.approx(distances.min(1).sum())
    nearest = distances.argmin(1)
    means = [points[nearest == k].mean(0) for k in range(3)]
    np.testing.assert_allclose(ask("kmeans", "dir", given), points[-3:] - means, atol=1e-12)


def test_ode():
    x = np.array([0.5, 0.7, 1.2])
    y = ask("ode", "primal", {"x": x.tolist(), "s": 10})                    # polynomials of t up to t³: exact
    np.testing.assert_allclose(y, np.cumprod(x) * [2.0, 2.0, 4 / 3])
    last = y[-1]
    np.testing.assert_allclose(ask("ode", "gradient", {"x": x.tolist(), "s": 10}), last / x)


def test_determinant():
    a = np.array(numbers(5, 5))
    given = {"A": a.ravel().tolist(), "ell": 5}
    assert ask("det", "primal", given) == pytest.approx(np.linalg.det(a))
    np.testing.assert_allclose(ask("det", "gradient", given), (np.linalg.det(a) * np.linalg.inv(a).T).ravel(), rtol=1e-9)


def test_gaussian_mixture():
    scipy_stats = pytest.importorskip("scipy.stats")
    d, k, n = 3, 2, 6
    given = {"d": d, "k": k, "n": n, "m": 1, "gamma": 2, "x": numbers(n, d), "alpha": numbers(k), "mu": numbers(k, d), "q": numbers(k, d),
             "l": numbers(k, 3)}
    phi = np.exp(given["alpha"]) / np.exp(given["alpha"]).sum()
    expected, densities = 0.0, 0.0
    for j in range(k):
        factor = np.diag(np.exp(given["q"][j]))
        factor[[1, 2, 2], [0, 0, 1]] = given["l"][j]
        inverse = factor.T @ factor
        densities = densities + phi[j] * scipy_stats.multivariate_normal.pdf(given["x"], given["mu"][j], np.linalg.inv(inverse))
        expected += scipy_stats.wishart.logpdf(inverse, d + 2, np.eye(d) / 4)
    assert ask("gmm", "objective", given) == pytest.approx(np.log(densities).sum() + expected)
    check_gradient("gmm", "objective", "jacobian", given, ["alpha", "mu", "q", "l"])


def test_lstm():
    given = {"main_params": numbers(4, 12), "extra_params": numbers(3, 3), "state": numbers(4, 3)}
    given["sequence"] = (1.0 * (RNG.random((5, 3)) < 0.5)).tolist()

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    main, extra, state = (np.array(given[key]) for key in ("main_params", "extra_params", "state"))
    total = 0.0
    for seen, wanted in zip(given["sequence"], given["sequence"][1:], strict=False):
        x = seen * extra[0]
        for i in (0, 2):
            f, n, o, c = np.split(np.concatenate([x, state[i], x, state[i]]) * main[i] + main[i + 1], 4)
            state[i + 1] = state[i + 1] * sigmoid(f) + sigmoid(n) * np.tanh(c)
            x = state[i] = sigmoid(o) * np.tanh(state[i + 1])
        y = x * extra[1] + extra[2]
        total += (wanted * (y - np.log(np.exp(y).sum() + 2))).sum()
    assert ask("lstm", "objective", given) == pytest.approx(-total / 12)
    check_gradient("lstm", "objective", "jacobian", given, ["main_params", "extra_params"])


@pytest.mark.long
def test_the_iterations_of_six_layers_are_one_launch():
    """The suite's largest; launch by launch its gradient takes seven times as long."""
    arrays = [array(numbers(*shape)) for shape in ((12, 56), (3, 14), (12, 14), (6, 14))]
    gradients = tg.trace(lstm.gradients)
    gradients(*arrays)
    assert not any(isinstance(step, Loop) for step in gradients.plan.steps)


def test_bundle_adjustment():
    given = {"n": 3, "m": 2, "p": 4, "cam": numbers(11), "x": numbers(3), "w": 0.7, "feat": numbers(2)}

    def both(given):
        out = ask("ba", "objective", given)
        return np.array(out["reproj_error"]["elements"])

    error = ask("ba", "objective", given)
    assert error["reproj_error"]["repeated"] == error["w_err"]["repeated"] == 4
    assert error["w_err"]["element"] == pytest.approx(1 - 0.7**2)
    found = ask("ba", "jacobian", given)
    assert found["rows"][:4] == [0, 15, 30, 45]
    assert found["rows"][-1] == 2 * 4 * 15 + 4
    assert found["cols"][:15] == [*range(11), 33, 34, 35, 39]
    assert found["cols"][-1] == 33 + 6 + 3
    columns = []
    for key in ("cam", "x", "w"):
        flat = np.atleast_1d(np.array(given[key], float))
        for place in range(len(flat)):
            ends = []
            for h in (1e-6, -1e-6):
                moved = flat.copy()
                moved[place] += h
                ends.append(both(given | {key: moved.tolist() if key != "w" else moved.item()}))
            columns.append((ends[0] - ends[1]) / 2e-6)
    np.testing.assert_allclose(np.reshape(found["vals"][:30], (2, 15)), np.array(columns).T, rtol=1e-5, atol=1e-6)
    assert found["vals"][-1] == pytest.approx(-1.4)


def hand_errors(theta, us, data):
    """Bone by bone and point by point, as ADBench describes a hand."""
    def around(axis, angle):
        k = np.cross(np.eye(3), axis)
        return np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * k @ k

    model, angles = data["model"], np.zeros((22, 3))
    for finger, (first, side, second, third) in enumerate(np.reshape(theta[6:], (5, 4))):
        angles[4 * finger + 2 : 4 * finger + 5] = [[first, 0, side], [second, 0, 0], [third, 0, 0]]
    absolute, positions = [], 0.0
    for bone, parent in enumerate(model["parents"]):
        bend = np.eye(4)
        bend[:3, :3] = around([0, 0, 1], angles[bone, 2]) @ around([1, 0, 0], angles[bone, 0])
        relative = np.array(model["base_relatives"][bone]) @ bend
        absolute.append(relative if parent == -1 else absolute[parent] @ relative)
        moved = np.array(model["base_positions"]) @ (absolute[-1] @ model["inverse_base_absolutes"][bone]).T
        positions = positions + np.array(model["weights"])[:, bone, None] * moved[:, :3]
    positions = positions * [-1 if model["is_mirrored"] else 1, 1, 1]
    angle = np.linalg.norm(theta[:3])
    whole = np.eye(3) if angle < 1e-4 else around(np.divide(theta[:3], angle), angle)
    positions = positions @ whole.T + theta[3:6]
    if not us:
        return np.ravel(data["points"] - positions[data["correspondences"]])
    corners = positions[np.array(model["triangles"])[data["correspondences"]]]
    return np.ravel([p - (u * c[0] + v * c[1] + (1 - u - v) * c[2]) for p, (u, v), c in zip(data["points"], us, corners, strict=True)])


@one_of(3, ("on_triangles", "mirrored", "turned"), product([False, True], [False, True], [1.0, 1e-5]))   # a turn below 1e-4 counts as none
def test_hand_tracking(on_triangles, mirrored, turned):
    parents = [-1, *(0 if bone % 4 == 1 else bone - 1 for bone in range(1, 21)), 0]
    model = {"bone_count": 22, "bone_names": ["bone"] * 22, "parents": parents, "base_relatives": numbers(22, 4, 4),
             "inverse_base_absolutes": numbers(22, 4, 4), "base_positions": numbers(6, 4), "weights": numbers(6, 22),
             "triangles": [[0, 1, 2], [2, 5, 3], [1, 4, 0]], "is_mirrored": mirrored}
    count = 3 if on_triangles else 6
    places = RNG.integers(0, count, 4).tolist()
    us = numbers(4, 2) if on_triangles else []
    theta = numbers(26)
    theta[:3] = [turned * t for t in theta[:3]]
    given = {"theta": theta, "us": us, "data": {"model": model, "correspondences": places, "points": numbers(4, 3)}}
    np.testing.assert_allclose(ask("ht", "objective", given), hand_errors(theta, us, given["data"]), rtol=1e-9, atol=1e-9)
    found, h, columns = np.array(ask("ht", "jacobian", given)), 1e-6, []
    for place in range(26):
        ends = [hand_errors([*theta[:place], theta[place] + h * way, *theta[place + 1 :]], us, given["data"]) for way in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * h))
    for place in range(2 * on_triangles):                   # each point's own u and v, in place of columns for all points'
        ends = [hand_errors(theta, (np.array(us) + way * h * np.eye(2)[place]).tolist(), given["data"]) for way in (1, -1)]
        columns.insert(place, (ends[0] - ends[1]) / (2 * h))
    scale = np.abs(columns).max()
    np.testing.assert_allclose(found, np.array(columns).T, atol=1e-7 * scale)


@pytest.mark.long
@pytest.mark.parametrize("modes", ["ff", "fr", "rf", "rr"])
def test_nested_descent(modes):
    """The suite's own numbers, which it wants to four digits."""
    assert ask("saddle", modes, {"start": [1.0, 1.0]}) == pytest.approx([8.246324826140356e-06] * 4, abs=1e-5)
    assert ask("particle", modes, {"w": 0.0}) == pytest.approx(0.2071918746486116, abs=1e-4)


def test_the_contribution_is_the_tool_as_a_package_of_the_suite(tmp_path):
    """In a process that finds no `benchmarks`."""
    package = tmp_path / "python" / "gradbench" / "gradbench" / "tools"
    package.mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    contribute.write(tmp_path)
    lines = (tmp_path / "tools" / "tracegrad" / "Dockerfile").read_text().splitlines()
    assert lines[-1] == "LABEL org.opencontainers.image.source=https://github.com/gradbench/gradbench"
    module = next(line for line in lines if line.startswith("ENTRYPOINT")).split('"')[5]
    assert (tmp_path / "tools" / "tracegrad" / "evals.txt").read_text().split() == sorted(EVALS)
    tool, code = tmp_path / "tools" / "tracegrad", package / "tracegrad"
    assert {path.name for path in tool.iterdir()} == {"Dockerfile", "README.md", "evals.txt"}
    assert {path.name for path in code.iterdir()} == {"run.py", "runs.py", "evals"}
    assert f"COPY {code.relative_to(tmp_path)} " in (tool / "Dockerfile").read_text()
    asked = [{"id": 0, "kind": "define", "module": "particle"},
             {"id": 1, "kind": "evaluate", "module": "hello", "function": "double", "input": 3.0}]
    (tmp_path / "tracegrad").symlink_to(Path(tg.__file__).parents[1] / "tracegrad")
    done = subprocess.run([sys.executable, "-m", module], cwd=tmp_path, input="".join(f"{json.dumps(m)}\n" for m in asked), text=True,
                          capture_output=True, check=True, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{tmp_path}/python/gradbench"})
    define, evaluated = map(json.loads, done.stdout.splitlines())
    assert define["success"], define
    assert evaluated["output"] == 6.0, evaluated


def test_the_contribution_passes_the_suites_linters(tmp_path):
    """Ruff with the settings of the suite's pyproject.toml; prettier wraps prose at 80 characters."""
    (tmp_path / "python" / "gradbench" / "gradbench" / "tools").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.ruff.lint]\nselect = ["E4", "E7", "E9", "F", "I", "RUF"]\nignore = ["E741"]\n')
    contribute.write(tmp_path)
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *words, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    text = (tmp_path / "tools" / "tracegrad" / "README.md").read_text()
    assert all(len(line) <= 80 for line in re.sub(r"(?s)```.*?```", "", text).splitlines())
    assert "\n## Commentary\n" in text                                   # as the suite's READMEs have, with a word about threads
    assert "`--multithreaded`" in text


EVAL = """
import json, sys
def say(**message):
    print(json.dumps(message), flush=True)
    return json.loads(sys.stdin.readline())
say(id=0, kind="start", eval="hello")
assert say(id=1, kind="define", module="hello")["success"]
for id, function in ((2, "square"), (4, "double")):
    found = say(id=id, kind="evaluate", module="hello", function=function, input=3.0, description="of 3")
    if found["success"]:
        say(id=id + 1, kind="analysis", of=id, valid=found["output"] == 9.0, error="9 is wanted")
"""
# Square is right, and takes 2 us; there is no double.
TOOL = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("function") == "double":
        sys.exit()
    timings = [{"name": "prepare", "nanoseconds": 1}, {"name": "evaluate", "nanoseconds": 3000}, {"name": "evaluate", "nanoseconds": 2000}]
    print(json.dumps({"id": message["id"], "success": True, "output": 9.0, "timings": timings}), flush=True)
"""


def test_evals_are_run_beside_other_tools(tmp_path):
    """On a suite of one eval, whose tool `pytorch` ends when it is asked for a derivative."""
    package = tmp_path / "python" / "gradbench" / "gradbench"
    for path, text in {package / "evals" / "hello" / "run.py": EVAL, package / "tools" / "pytorch" / "run.py": TOOL,
                       tmp_path / "tools" / "pytorch" / "evals.txt": "ba error\nhello\n",
                       tmp_path / "tools" / "jax" / "evals.txt": "gmm\n"}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    args = argparse.Namespace(tools=["tracegrad", "jax", "pytorch"], peer_python=sys.executable, rounds=2, limit=60.0, clock="")
    found = against.measure(tmp_path, "hello", args, [])
    square, double = ("of 3", "square"), ("of 3", "double")
    assert [*found["tracegrad"]] == [square, double]
    time, error = found["tracegrad"][square]
    assert time > 0
    assert not error
    assert found["tracegrad"][double][1] == "9 is wanted"                # the suite says so
    assert found["pytorch"][square] == (2.0, "")                        # the fastest run
    assert "no answer" in found["pytorch"][double][1]
    assert found["jax"] == {}
    first, second = against.rows("hello", found, ["jax", "pytorch"])
    assert first == f"| hello | of 3 | square | {time:.1f} | - | {time / 2:.2g} |"
    assert "(invalid)" in second
    assert against.spans("hello", found, [["jax", "pytorch"], []]) == f"| hello | - | {time / 2:.2g} to {time / 2:.2g} | - | - |"


def test_a_tool_that_does_not_answer_is_ended():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as tool:
        assert not against.answered(tool, "{}\n", 0.2)
