"""Every op of the registry on the default OpenCL device, against its numpy rule: every case, every dtype it takes, edge values.

All cases of an op go into one program, because compiling is what takes the time. Dtypes that the device lacks are found by asking it.
"""

from typing import Any

import numpy as np
import pytest

from tests.helpers.values import plain
from tests.ops.test_registry import EDGES, OPS, accepts, cases, operands
from tracegrad.codegen.compiler import compile_graph
from tracegrad.errors import NoDriverError
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.operation_families import Elementwise
from tracegrad.graph.primitive import bind, placeholder
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.ops.primitives import movement as mv
from tracegrad.runtime import buffer, device
from tracegrad.runtime.launch import Executable
from tracegrad.support.dtypes import dtype_kind, finfo, is_half

INTEGERS = [0, 1, -1, 7, -8, 100]
WITH_EDGES = [op for op in OPS if isinstance(op, Elementwise) and not op.cases and op.nin < 3 and op.kinds != "c"]


@pytest.fixture(scope="module")
def on() -> Any:
    try:
        return device.find("")
    except NoDriverError as error:
        pytest.skip(str(error))


def dtypes_of(on: Any) -> list[Any]:
    names = ["bool", "uint8", "uint32", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "complex64"]
    names += ["float64", "complex128"] * on.target.fp64
    return [np.dtype(name) for name in names]


class Batch:
    """Results to compute in one program, and what they should be."""

    def __init__(self) -> None:
        self.leaves: list[Node] = []
        self.values: list[Any] = []
        self.results: list[Node] = []
        self.labels: list[str] = []

    def leaf(self, array: Any) -> Node:
        array = np.asarray(array)
        self.values.append(array)
        self.leaves.append(placeholder(Aval(array.shape, array.dtype)))
        return self.leaves[-1]

    def add(self, op: Any, arrays: Any, attrs: Any, turned: bool = False) -> bool:
        """op on those arrays; turned: read through movement ops, as views of other buffers. False if it does not take them."""
        try:
            op.aval(*[Aval(a.shape, a.dtype) for a in arrays], **attrs)
        except TypeError:                                       # a DTypeError
            return False
        nodes = [view(self.leaf(turn(a))) if turned else self.leaf(a) for a in arrays]
        self.results.append(bind(op, tuple(nodes), attrs))
        self.labels.append(f"{op.name}{attrs} of {', '.join(f'{a.dtype}{list(a.shape)}' for a in arrays)}{' views' if turned else ''}")
        return True

    def check(self, on: Any) -> None:
        graph = Graph.capture(self.leaves, self.results)
        wanted = interpret(graph, self.values)
        executable = Executable(compile_graph(graph, on.target), on)
        found = executable.run([buffer.upload(on, v) for v in self.values])
        for label, node, value, expected in zip(self.labels, self.results, found, wanted, strict=True):
            agree(value.download(node.shape, node.dtype), expected, label, sums=node.fn.family != "elementwise")


def turn(array: Any) -> Any:
    """What `view` makes into `array`: transposed, each second element of the last dimension, backwards."""
    moved = np.transpose(array)
    return np.repeat(moved, 2, axis=-1)[..., ::-1].copy() if array.ndim else array


def view(x: Node) -> Node:
    if not x.shape:
        return x
    n = x.shape[-1]
    back = mv.flip(x, (len(x.shape) - 1,))
    half = mv.slice_(back, (0,) * len(x.shape), x.shape, (*[1] * (len(x.shape) - 1), 2)) if n else back
    return mv.permute(half, tuple(reversed(range(len(x.shape)))))


def agree(found: Any, expected: Any, label: str, sums: bool) -> None:
    """Equal, or for floats within a few units in the last place: of the largest result if they are sums, whose terms may cancel."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), label
    if dtype_kind(expected.dtype) not in "fc":
        np.testing.assert_array_equal(found, expected, err_msg=label)
        return
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 4e-6, "float64": 1e-13, "complex64": 4e-6,
                 "complex128": 1e-13}[expected.dtype.name]
    scale = np.max(np.abs(expected).astype(np.float64), initial=0, where=np.isfinite(expected)) if sums else 0
    least = float(finfo(expected.dtype).tiny) * 4               # devices may flush denormal numbers
    found, expected = plain(found), plain(expected)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=max(least, tolerance * scale), err_msg=label)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("turns", [8, pytest.param(1, marks=[pytest.mark.matrix, pytest.mark.long])], ids=["dtypes by turns", "each dtype"])
def test_every_case_of_every_op(op: Any, on: Any, turns: int) -> None:
    batch, tried = Batch(), 0
    for number, (shapes, attrs) in enumerate(cases(op)):
        for dtype in [dtype for dtype in dtypes_of(on) if accepts(op, dtype)][number % turns::turns]:
            arrays = operands(op, shapes, dtype)
            if op.family == "host_call" and not on.target.fp64:                    # its cases are matrices in float64
                arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]
            if not on.target.fp64:
                arrays = [a.astype(np.complex64) if a.dtype == np.complex128 else a for a in arrays]
            if any(a.dtype not in dtypes_of(on) for a in arrays):
                continue
            if batch.add(op, arrays, attrs):
                tried += 1
                plain = dtype.name in ("float32", "int64") and all(a.size for a in arrays) and bool(arrays)
                if plain:
                    batch.add(op, arrays, attrs, turned=True)
    assert tried
    batch.check(on)


@pytest.mark.parametrize("op", WITH_EDGES, ids=lambda op: op.name)
@pytest.mark.parametrize("turns", [4, pytest.param(1, marks=pytest.mark.long)], ids=["integers by turns", "each dtype"])
def test_edge_values(op: Any, on: Any, turns: int) -> None:
    """Infinities, NaN, -0.0, huge and small numbers, in vectors and in the scalar rest; the ends of the integers' ranges."""
    batch = Batch()
    for number, dtype in enumerate(dtypes_of(on), WITH_EDGES.index(op)):
        if dtype.kind in "iu" and number % turns:
            continue
        if not accepts(op, dtype) or dtype.kind in "bc" or is_half(dtype):             # complex ones: tests/ops/complex/test_complex.py
            continue
        if dtype.kind == "f":
            values = np.array([*EDGES, *np.random.default_rng(0).uniform(*op.domain, 10)], dtype)
        else:
            info = np.iinfo(dtype)
            values = np.array([v for v in (*INTEGERS, info.min, info.max) if info.min <= v <= info.max], dtype)
        inside = (values >= op.domain[0]) & (values <= op.domain[1])
        last = values if op.domain[0] < 0 or dtype.kind == "f" else values[inside]      # shifts, powers of integers
        grid = [np.ascontiguousarray(g) for g in np.meshgrid(*[values] * (op.nin - 1), last)]
        batch.add(op, grid, {})
    batch.check(on)
