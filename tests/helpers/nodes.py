"""What the tests of the ops share: run functions of Nodes on numpy arrays with the interpreter, and differentiate them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegrad.autodiff import derivatives
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import placeholder
from tracegrad.ops.arrays.complex_numbers import real


def inputs(arrays: Sequence[Any]) -> tuple[list[Node], list[Node]]:
    """Placeholders for the arrays, and the nodes to build on: differentiable where they are floats or complex."""
    leaves = [placeholder(Aval(np.shape(a), np.asarray(a).dtype)) for a in arrays]
    return leaves, [derivatives.variable(n) if n.dtype.kind in "fc" else n for n in leaves]


def run_graph(graph: Graph, values: Sequence[Any]) -> list[Any]:
    """The graph's outputs by the ops' numpy rules: nothing else of tracegrad stands between a rule and its test."""
    value: dict[Node, Any] = {n: np.asarray(x, dtype=n.dtype) for n, x in zip(graph.inputs, values, strict=True)}
    with np.errstate(all="ignore"):
        for node in graph:
            if node not in value:
                value[node] = np.asarray(node.fn.numpy(*[value[o] for o in node.operands], **node.attrs))
    return [value[n] for n in graph.outputs]


def evaluate(fn: Callable[..., Any], *arrays: Any) -> Any:
    """fn(*nodes) computed for those arrays; tuples and lists of results come back as lists."""
    leaves, nodes = inputs(arrays)
    result = fn(*nodes)
    several = isinstance(result, (tuple, list))
    values = run_graph(Graph.capture(leaves, list(result) if several else [result]), arrays)
    return values if several else values[0]


def gradients(fn: Callable[..., Any], arrays: Sequence[Any], weights: Any = None) -> list[Any]:
    """The gradients of sum(fn(*arrays) * weights) with respect to each array (zeros where there is no path, None for integers)."""
    leaves, nodes = inputs(arrays)
    out = fn(*nodes)
    ct = placeholder(out.aval)
    weights = np.ones(out.shape, out.dtype) if weights is None else weights
    cts = derivatives.vjp([out], nodes, [ct])
    found = [c for c in cts if c is not None]
    values = iter(run_graph(Graph.capture([*leaves, ct], found), [*arrays, weights]))
    return [next(values) if c is not None else np.zeros_like(a) if np.asarray(a).dtype.kind in "fc" else None
            for c, a in zip(cts, arrays, strict=True)]


def central_differences(value: Callable[..., float], arrays: Sequence[Any], step: float = 1e-6) -> list[Any]:
    """The gradient of a scalar function of arrays by central differences (None for integers); of complex ones d/d(re) + i d/d(im)."""
    out: list[Any] = []
    for i, a in enumerate(arrays):
        if np.asarray(a).dtype.kind not in "fc":
            out.append(None)
            continue
        g = np.zeros(a.shape, a.dtype)
        for at in np.ndindex(a.shape):
            for way in (1, 1j) if a.dtype.kind == "c" else (1,):
                pair = []
                for sign in (1, -1):
                    moved = a.copy()
                    moved[at] += sign * step * way
                    pair.append(value(*arrays[:i], moved, *arrays[i + 1:]))
                g[at] += way * (pair[0] - pair[1]) / (2 * step)
        out.append(g)
    return out


def inner(a: Any, b: Any) -> float:
    """The inner product of two arrays as real vectors."""
    return float(np.sum(np.real(np.conj(a) * b)))


def drawn(rng: Any, like: Any) -> Any:
    """Numbers from -1 to 1 in the shape of `like`, complex if that is."""
    real = rng.uniform(-1, 1, np.shape(like))
    return np.asarray(real + 1j * rng.uniform(-1, 1, np.shape(like))) if np.iscomplexobj(like) else real


def check_gradient(fn: Callable[..., Any], *arrays: Any, order: int = 2, tolerance: float = 2e-6) -> None:
    """The vjp of fn against central differences; for order 2 the vjp of the vjp too; jvp against vjp. Arrays of float64 or

    complex128.
    """
    rng = np.random.default_rng(7)
    leaves, nodes = inputs(arrays)
    out = fn(*nodes)
    weights = rng.uniform(0.5, 1.5, out.shape)
    if out.dtype.kind == "c":
        weights = np.asarray(weights * np.exp(1j * rng.uniform(-3, 3, out.shape)))

    def weighted(*xs: Any) -> float:
        return inner(weights, evaluate(fn, *xs))

    found = gradients(fn, arrays, weights)
    for g, expected in zip(found, central_differences(weighted, arrays), strict=True):
        if g is not None:
            assert g.shape == expected.shape
            np.testing.assert_allclose(g, expected, rtol=tolerance, atol=tolerance)
    floats = [i for i, a in enumerate(arrays) if np.asarray(a).dtype.kind in "fc"]
    tangents = {i: drawn(rng, arrays[i]) for i in floats}
    given = {i: placeholder(nodes[i].aval) for i in floats}
    forward = derivatives.jvp([out], [nodes[i] for i in floats], [given[i] for i in floats])[0]
    pushed = 0.0 if forward is None else inner(weights, run_graph(
        Graph.capture([*leaves, *given.values()], [forward]), [*arrays, *tangents.values()])[0])
    pulled = sum(inner(found[i], tangents[i]) for i in floats)
    np.testing.assert_allclose(pushed, pulled, rtol=1e-9, atol=1e-9, err_msg="jvp and vjp disagree")
    if order > 1:
        probes = [drawn(rng, arrays[i]) for i in floats]

        def derivative(*xs: Any) -> Node:
            ct, primals = xs[0], xs[1:]
            pulled_back = derivatives.vjp([fn(*primals)], [primals[i] for i in floats], [ct])
            total: Any = real(ct.sum() * 0.0)
            for part, probe in zip(pulled_back, probes, strict=True):
                if part is not None:
                    total = total + real((part * placeholders[id(probe)]).sum())
            return total

        placeholders = {id(p): placeholder(Aval(p.shape, p.dtype)) for p in probes}
        _check_second(derivative, [weights, *arrays], probes, [placeholders[id(p)] for p in probes], tolerance)


def _check_second(derivative: Callable[..., Node], arrays: Sequence[Any], probes: Sequence[Any], holders: list[Node],
                  tolerance: float) -> None:
    leaves, nodes = inputs(arrays)
    out = derivative(*nodes)
    cts = derivatives.vjp([out], nodes, [derivatives.ones_like(out)])
    graph = Graph.capture([*leaves, *holders], [out, *[c for c in cts if c is not None]])

    def run(*xs: Any) -> list[Any]:
        return run_graph(graph, [*xs, *probes])

    values = iter(run(*arrays)[1:])
    for c, expected, a in zip(cts, central_differences(lambda *xs: float(run(*xs)[0]), arrays), arrays, strict=True):
        got = next(values) if c is not None else np.zeros_like(a)
        if expected is not None:
            np.testing.assert_allclose(got, expected, rtol=10 * tolerance, atol=10 * tolerance, err_msg="second derivative")
