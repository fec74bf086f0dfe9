"""Run by .ci/run with the installed wheel, outside the checkout (whose path is the argument): is everything there, and does it work?"""

import importlib
import pkgutil
import sys

import numpy as np

import tracegrad as tg

checkout = sys.argv[1]
names = ["tracegrad", *(module.name for module in pkgutil.walk_packages(tg.__path__, "tracegrad."))]
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
value, slope = value_and_slope(tg.from_numpy(x))
assert np.allclose(value.numpy(), (np.sin(x) * x).sum(), rtol=1e-4)
assert np.allclose(slope.numpy(), np.cos(x) * x + np.sin(x), atol=1e-5)
assert "__kernel" in str(value_and_slope.kernels())
print(f"{len(names)} modules import; a gradient came out right")
