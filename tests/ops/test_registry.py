"""Every op of the registry: shape rule = numpy, vjp = central differences, vjp of vjp, jvp = vjp transposed, edge values."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.nodes import check_gradient, evaluate
from tracegrad import ops  # noqa: F401 - fills the registry
from tracegrad.graph.ir import Aval, Graph, topological
from tracegrad.graph.leaf_operations import Bundle
from tracegrad.graph.operation_families import Elementwise
from tracegrad.graph.primitive import REGISTRY, bind, const, placeholder
from tracegrad.graph.substitution import substituted
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.ops.primitives.contraction import swap_last
from tracegrad.support.dtypes import dtype_kind

DTYPES = [np.dtype(d) for d in ("bool", "uint8", "uint32", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
                                 "float64", "complex64", "complex128")]
OPS = [op for name, op in sorted(REGISTRY.items())         # what programs hold: transfers lie between them (tests/tensors/test_transfer.py)
       if op.family not in ("leaf", "transfer") and not isinstance(op, Bundle) and name != "output"]
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, -1e30, np.inf, -np.inf, np.nan]


def draw(op: Any, shape: Any, dtype: Any, rng: Any) -> Any:
    """Values in the op's domain; distinct, so that no maximum is a tie and no comparison is at its edge."""
    if isinstance(shape, np.ndarray):
        return shape
    low, high = getattr(op, "domain", (-2.0, 2.0))
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "u":
        low = max(low, 0)
    if dtype.kind == "c":
        return np.asarray(rng.uniform(low, high, shape) + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
    return np.asarray(rng.uniform(low, high, shape)).astype(dtype)


def cases(op: Any) -> list[Any]:
    """(operand shapes or arrays, attributes) to test the op on."""
    if op.cases:
        return list(op.cases)
    assert isinstance(op, Elementwise), f"{op.name} has no cases"
    shapes = [((2, 3),) * op.nin, ((),) * op.nin, ((0, 3),) * op.nin, ((1,),) * op.nin]
    if op.nin > 1:
        shapes.append(((2, 3), (3,), (2, 1))[:op.nin])
    return [(s, {}) for s in shapes]


def accepts(op: Any, dtype: Any) -> bool:
    return dtype_kind(dtype) in getattr(op, "kinds", dtype_kind(dtype))


def operands(op: Any, shapes: Any, dtype: Any) -> list[Any]:
    rng = np.random.default_rng(3)
    out = [draw(op, s, dtype, rng) for s in shapes]
    if op.name == "where":
        out[0] = rng.random(shapes[0]) < 0.5
    return out


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_shape_rule_is_numpys(op: Any) -> None:
    tried = 0
    for shapes, attrs in cases(op):
        for dtype in DTYPES:
            arrays = operands(op, shapes, dtype)
            if not accepts(op, dtype):
                continue
            try:
                aval = op.aval(*[Aval(a.shape, a.dtype) for a in arrays], **attrs)
            except TypeError:               # a DTypeError: the op says that it does not take this dtype
                continue
            with np.errstate(all="ignore"):
                result = np.asarray(op.computed(arrays, attrs, aval.dtype))
            assert (result.shape, result.dtype) == (aval.shape, aval.dtype), (shapes, attrs, dtype)
            tried += 1
    assert tried


@pytest.mark.parametrize(("op", "dtype"), [
    (op, np.dtype(d)) for op in OPS if op.differentiable and op.name != "overwritten"
    for d in ("float64", "complex128") if accepts(op, np.dtype(d))
], ids=lambda p: getattr(p, "name", str(p)))
def test_derivatives_are_finite_differences(op: Any, dtype: Any) -> None:
    """Of complex numbers, too, in torch's convention. (`overwritten` has the gradient of a value that it does not compute with.)"""
    for shapes, attrs in cases(op):
        arrays = operands(op, shapes, dtype)
        if op.name == "cast":
            attrs = {**attrs, "dtype": dtype}
        if op.name == "variable":
            attrs = {"uid": -1}
        if all(a.size for a in arrays):
            try:
                op.aval(*[Aval(a.shape, a.dtype) for a in arrays], **attrs)
            except TypeError:                   # a DTypeError: it takes one of the two
                continue
            fixed = {i: const(1.75, np.dtype("float64")) for i in getattr(op, "constants", ())}     # operands without a derivative
            varied = [a for i, a in enumerate(arrays) if i not in fixed]
            check_gradient(lambda *xs, attrs=attrs, fixed=fixed: bind(op, _merged(_allowed(op, xs), fixed), attrs), *varied)


def _allowed(op: Any, xs: Any) -> Any:
    """The operands, made symmetric where the op takes only such ones."""
    return [(x + swap_last(x)) * 0.5 for x in xs] if getattr(op, "symmetric", False) else xs


def _merged(xs: Any, fixed: Any) -> tuple[Any, ...]:
    rest = iter(xs)
    return tuple(fixed[i] if i in fixed else next(rest) for i in range(len(xs) + len(fixed)))


@pytest.mark.parametrize("op", [op for op in OPS if not op.differentiable], ids=lambda op: op.name)
def test_ops_without_derivative_say_so(op: Any) -> None:
    with pytest.raises(RuntimeError, match="no derivative"):
        op.vjp(None, None)


@pytest.mark.parametrize("op", [op for op in OPS if isinstance(op, Elementwise) and "f" in op.kinds and not op.cases and op.nin < 3],
                         ids=lambda op: op.name)
def test_edge_values_pass_through_the_graph(op: Any) -> None:
    """Infinities, NaN and -0.0 give what numpy gives, and keep the dtype: no rule warns, promotes or drops a sign on the way."""
    for dtype in (np.float32, np.float64):
        grid = np.meshgrid(*[np.array(EDGES, dtype)] * op.nin)
        with np.errstate(all="ignore"):
            expected = op.numpy(*grid)
        result = evaluate(lambda *xs: bind(op, xs, {}), *grid)
        wanted = {"complex": np.result_type(dtype, 1j)}.get(op.name, np.bool_ if op.result == "bool" else dtype)
        assert result.dtype == expected.dtype == wanted
        np.testing.assert_array_equal(result, expected)


def test_every_op_has_a_docstring() -> None:
    for op in REGISTRY.values():
        assert type(op).__doc__, op.name


# Where names of ops may stand side by side, and why.
TABLES = {
    "codegen/graph/simplify.py": "rewriting rules, by the op that they start from",
    "codegen/mathlib": "names of C functions, some of which are ops' names",
    "codegen/mathlib/builtins.py": "names of C functions",
    "tracegrad/jiterator.py": "names of C functions",
    "tracegrad/torch_api/sparse/functions.py": "torch's names that sparse tensors have",
    "tracegrad/torch_backend/operators.py": "aten's names of functions; another is computed by torch, and said",
    "codegen/conv": "the three convolutions are one lowering's",
    "codegen/graph/fourier/transforms.py": "the three transforms that it composes",
    "codegen/lower/matrices/small_matrices.py": "the factorisations that it writes", "codegen/blocked/lower.py": "the ones that it writes",
    "tracegrad/inspection/python_": "how Python writes what is no plain call",
    "tracegrad/tensors/methods.py": "names of methods and in-place methods",
    "tracegrad/tensors/bases/view_steps.py": "how views are undone",
    "tracegrad/control_flow/cond.py": "the operations that it makes", "tracegrad/control_flow/functions.py": "the operations that it makes",
    "tracegrad/nn": "names of functions", "tracegrad/torch_api/dispatch": "torch's names of operators",
    "tracegrad/torch_api/overrides.py": "what torch calls Python's operators",
    "tracegrad/torch_api/names/fx/_code.py": "how Python's operators are written",
    "tracegrad/array_api": "names of functions", "tracegrad/masked.py": "names of functions",
}


@pytest.mark.parametrize("op", [op for op in OPS if op.of_value], ids=lambda op: op.name)
def test_what_has_a_derivative_of_its_value_reads_nothing_else(op: Any) -> None:
    x = placeholder(Aval((3,), np.dtype(np.float32)))
    y, ct = bind(op, (x,), {}), placeholder(x.aval)
    pulled = op.vjp(ct, y, x)[0]
    assert x not in topological([pulled], lambda n: n is y)
    assert y in topological([pulled])


@pytest.mark.parametrize("op", [op for op in OPS if op.scalar_polymorphic], ids=lambda op: op.name)
@pytest.mark.parametrize("first", [True, False])
def test_a_derivative_for_one_number_is_that_for_any(op: Any, first: bool) -> None:
    """What is written for 0.3 gives what is written for each of these (1 is written in another way by a division)."""
    x, number, ct = (placeholder(Aval(shape, np.dtype(np.float64))) for shape in ((12,), (), (12,)))

    def derivative(written_for: float) -> Any:
        c = const(written_for, np.dtype(np.float64))
        operands = (c, x) if first else (x, c)
        pulled = op.vjp(ct, bind(op, operands, {}), *operands)[first]
        return substituted([pulled], {c: number})[0] if c in topological([pulled]) else pulled

    rng = np.random.default_rng(0)
    values = [rng.uniform(0.5, 2.0, 12), rng.standard_normal(12)]
    for value in (0.3, 1.0, -1.0, 0.0, 2.0, 1e-30):
        if op.name == "div" and value == 0 and not first:
            continue
        found, wanted = (interpret(Graph.capture([x, ct, number], [derivative(w)]), [*values, np.asarray(value)])[0] for w in (0.3, value))
        np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_what_is_known_of_an_op_stands_in_its_class():
    """No tables of op names elsewhere: an op that is added would be missing in them, silently."""
    root = Path(__file__).parents[2]
    found = []
    for path in [p for folder in ("tracegrad", "codegen", "runtime") for p in (root / folder).rglob("*.py")]:
        name = path.relative_to(root).as_posix()
        if name.startswith(("tracegrad/ops/", "tracegrad/codegen/", "tracegrad/runtime/", *TABLES)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            entries = node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, (ast.Set, ast.Tuple, ast.List)) else []
            names = [e.value for e in entries if isinstance(e, ast.Constant) and e.value in REGISTRY]
            if len(set(names)) > 2 and set(names) - {"reshape", "permute", "expand", "slice", "pad", "flip", "copy", "detach", "variable"}:
                found.append(f"{name}:{node.lineno}: {names}")
    assert not found
