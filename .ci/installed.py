"""Run by .ci/run with the installed wheel and nothing else, outside the checkout (whose path is the argument): is all there, does it work?

What the README and the documents show runs, too: a plain install does what they say.
"""

import contextlib
import importlib
import io
import linecache
import pkgutil
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

import tracegrad as tg

checkout = sys.argv[1]
names = ["tracegrad", *(module.name for module in pkgutil.walk_packages(tg.__path__, "tracegrad.") if module.name != "tracegrad.as_torch")]
for name in names:
    file = importlib.import_module(name).__file__ or ""
    assert not file.startswith(checkout), f"{name} was imported from the checkout: {file}"
missing = {"tracegrad.codegen", "tracegrad.runtime", "tracegrad.ops", "tracegrad.nn"} - set(names)
assert not missing, f"the wheel lacks {missing}"

for name in ("codegen", "runtime"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise AssertionError(f"`import {name}` works: the wheel installs more than one name")


@tg.trace
def value_and_slope(x):
    return tg.value_and_grad(lambda x: (tg.sin(x) * x).sum())(x)


x = np.linspace(-1, 1, 1000, dtype=np.float32)
given = tg.from_numpy(x)                 # kept: profile() runs the call again
value, slope = value_and_slope(given)
assert np.allclose(value.numpy(), (np.sin(x) * x).sum(), rtol=1e-4)
assert np.allclose(slope.numpy(), np.cos(x) * x + np.sin(x), atol=1e-5)
assert "__kernel" in value_and_slope.kernels()
assert value_and_slope.graph.number_of_nodes()
assert "def value_and_slope" in value_and_slope.source()
assert value_and_slope.explain()
assert str(value_and_slope.profile())

with tempfile.TemporaryDirectory() as folder:
    model, other = tg.nn.Linear(3, 2), tg.nn.Linear(3, 2)
    value_and_slope.timeline(f"{folder}/trace.json")
    value_and_slope.page(f"{folder}/page.html", runs=1)
    assert "<script>" in Path(f"{folder}/page.html").read_text(encoding="utf-8")
    tg.save({"model": model.state_dict(), "epoch": 3}, f"{folder}/checkpoint.tg")
    tg.nn.save_file(model.state_dict(), f"{folder}/model.safetensors")
    for state in (tg.load(f"{folder}/checkpoint.tg")["model"], tg.load(f"{folder}/model.safetensors"),
                  tg.nn.load_file(f"{folder}/model.safetensors")):
        other.load_state_dict(state)
        assert np.array_equal(other.weight.detach().numpy(), model.weight.detach().numpy())

blocks = 0
for page in (Path(checkout, "README.md"), *sorted(Path(checkout, "docs").glob("*.md"))):
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        name = f"{page.name}, block {blocks}"
        linecache.cache[name] = (len(block[1]), None, block[1].splitlines(keepends=True), name)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block[1], name, "exec"), namespace)
        blocks += 1
print(f"{len(names)} modules import; a gradient came out right; files are written and read; {blocks} blocks of the documents run")

import tracegrad.as_torch  # noqa: E402  (last: from here on torch's names are tracegrad's)

assert importlib.import_module("torch").nn.Linear is tg.nn.Linear
