"""Cases of torch's names: each is written once, `lambda t, F, x, ...`, with t a namespace (tracegrad, torch, or functions of Nodes)
and F its nn.functional. `checks` makes the tests of a table of them: against numpy or scipy, finite differences, a trace, and torch (slow).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.nodes import evaluate, inputs, run_graph
from tracegrad.autodiff import derivatives
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, SPECIAL
from tracegrad.graph.primitive import placeholder
from tracegrad.nn import functional

NODES = SimpleNamespace(
    **{**{f"{kind}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "float") for bits in (16, 32, 64)}, **PUBLIC},
    special=SimpleNamespace(**SPECIAL),
)
NODES_F = SimpleNamespace(**FUNCTIONAL)
F64 = 1e-12


class Case:
    """fn(t, F, *arrays), and what it is: expected(*arrays), or None where only torch and differences tell."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *arrays: Any,
        expected: Callable[..., Any] | None = None,
        gradient: int = 2,
        tolerance: float = F64,
        traced: bool = True,
        torch: bool = True,
        torch_gradient: bool = True,
        singles: bool = True,
        torch_tolerance: float = 1e-10,
        differences: bool = True,
    ) -> None:
        self.fn, self.arrays, self.expected, self.gradient = fn, [np.asarray(a) for a in arrays], expected, gradient
        self.tolerance, self.traced, self.torch, self.torch_gradient, self.singles = tolerance, traced, torch, torch_gradient, singles
        self.differences = differences
        self.torch_tolerance = torch_tolerance  # more than tolerance where torch is less accurate


def leaves(result: Any) -> list[Any]:
    """The arrays of a result: of a tensor, of tuples and lists of them, of Python values."""
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in leaves(part)]
    if isinstance(result, tg.Tensor):
        return [result.detach().numpy()]
    return [result.detach().numpy() if hasattr(result, "detach") else np.asarray(result)]


def ours(case: Case, arrays: Sequence[Any], traced: bool = False) -> list[Any]:
    def fn(*xs: Any) -> Any:
        return case.fn(tg, functional, *xs)

    return leaves((tg.trace(fn) if traced else fn)(*map(tg.tensor, arrays)))


def agree(found: Sequence[Any], wanted: Sequence[Any], tolerance: float, what: str, dtype: bool = True) -> None:
    assert len(found) == len(wanted), what
    for a, b in zip(found, wanted, strict=True):
        b = np.asarray(b)
        assert a.shape == b.shape, f"{what}: {a.shape}, expected {b.shape}"
        assert not dtype or a.dtype == b.dtype, f"{what}: {a.dtype}, expected {b.dtype}"
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)


def check_directions(fn: Callable[..., Any], *arrays: Any, order: int = 2, tolerance: float = 3e-6) -> None:
    """The vjp of fn along random directions against central differences, jvp against vjp, and for order 2 the vjp's own vjp.

    A direction moves all elements at once, so the cost does not grow with their number (tests.helpers.nodes.check_gradient moves one by
    one).
    """
    rng = np.random.default_rng(7)
    floats = [k for k, a in enumerate(arrays) if a.dtype.kind == "f"]
    holders, nodes = inputs(arrays)
    out = fn(*nodes)
    ct, tangents = placeholder(Aval(out.shape, out.dtype)), [placeholder(Aval(arrays[k].shape, arrays[k].dtype)) for k in floats]
    weights = rng.uniform(0.5, 1.5, out.shape)
    directions = [rng.uniform(0.5, 1.5, arrays[k].shape) * rng.choice([-1.0, 1.0], arrays[k].shape) for k in floats]

    def moved(step: float) -> list[Any]:
        steps = dict(zip(floats, directions, strict=True))
        return [a + step * steps[k] if k in steps else a for k, a in enumerate(arrays)]

    def slope(value: Callable[[list[Any]], float], h: float = 1e-6) -> float:
        return (value(moved(h)) - value(moved(-h))) / (2 * h)

    wrt = [nodes[k] for k in floats]
    pulled = [p for p in zip(derivatives.vjp([out], wrt, [ct]), tangents, directions, strict=True) if p[0] is not None]
    along: Any = sum(((p * t).sum() for p, t, _ in pulled), start=(out * 0.0).sum())  # <gradient, direction>
    pushed = derivatives.jvp([out], wrt, tangents)[0]
    graph = Graph.capture([*holders, ct, *tangents], [along, out if pushed is None else pushed])
    by_vjp, by_jvp = run_graph(graph, [*arrays, weights, *directions])
    expected = slope(lambda xs: float(np.sum(evaluate(fn, *xs) * weights)))
    scale = max(1.0, abs(expected))
    assert abs(by_vjp - expected) <= tolerance * scale, f"gradient along a direction: {by_vjp}, by differences {expected}"
    if pushed is not None:
        np.testing.assert_allclose(np.sum(by_jvp * weights), by_vjp, rtol=1e-9, atol=1e-9 * scale, err_msg="jvp and vjp disagree")
    if order < 2:
        return
    second: list[Node | None] = derivatives.vjp([along], wrt, [derivatives.ones_like(along)])
    bend: Any = sum(((p * t).sum() for p, t in zip(second, tangents, strict=True) if p is not None), start=along * 0.0)
    graph = Graph.capture([*holders, ct, *tangents], [bend, along])
    found = run_graph(graph, [*arrays, weights, *directions])[0]
    expected = slope(lambda xs: float(run_graph(graph, [*xs, weights, *directions])[1]))
    assert abs(found - expected) <= 10 * tolerance * max(1.0, abs(expected)), f"second derivative: {found}, by differences {expected}"


def checks(cases: dict[str, Case]) -> tuple[Any, ...]:
    """Tests of the table: values and a trace, gradients, torch. Assign them to names that pytest finds."""

    @pytest.mark.usefixtures("on_numpy")
    @pytest.mark.parametrize("name", cases)
    def values(name: str) -> None:
        case = cases[name]
        found = ours(case, case.arrays)
        if case.expected is not None:
            with np.errstate(all="ignore"):
                wanted = case.expected(*case.arrays)
            agree(found, list(wanted) if isinstance(wanted, (tuple, list)) else [wanted], case.tolerance, name)
        if case.traced:
            agree(ours(case, case.arrays, True), found, case.tolerance, f"{name}, traced")

    differentiable = [n for n, c in cases.items() if c.gradient and c.differences and any(a.dtype.kind == "f" for a in c.arrays)]

    @pytest.mark.usefixtures("on_numpy")
    @pytest.mark.parametrize("name", differentiable)
    def gradients(name: str) -> None:
        case = cases[name]

        def joined(*nodes: Any) -> Any:
            result = case.fn(NODES, NODES_F, *nodes)
            if not isinstance(result, (tuple, list)):
                return result
            return PUBLIC["cat"]([r.flatten() for r in result if r.dtype.kind == "f"])

        check_directions(joined, *case.arrays, order=case.gradient)

    compared = [n for n, c in cases.items() if c.torch]

    @pytest.mark.slow
    @pytest.mark.usefixtures("on_numpy")
    @pytest.mark.parametrize("name", compared)
    def as_in_torch(name: str) -> None:
        torch = pytest.importorskip("torch", reason="torch is the reference here, and is not installed")
        case = cases[name]
        for single in (False, True) if case.singles else (False,):
            arrays = [a.astype(np.float32) if single and a.dtype.kind == "f" else a for a in case.arrays]
            tolerance = 2e-5 if single else max(case.tolerance, case.torch_tolerance)
            theirs = [torch.tensor(a, requires_grad=a.dtype.kind == "f" and case.gradient > 0 and case.torch_gradient) for a in arrays]
            mine = [tg.tensor(a, requires_grad=a.dtype.kind == "f" and case.gradient > 0 and case.torch_gradient) for a in arrays]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")             # torch's, about its own functions
                wanted = case.fn(torch, torch.nn.functional, *theirs)
            found = case.fn(tg, functional, *mine)
            agree(leaves(found), leaves(wanted), tolerance, name)
            if not case.gradient or not case.torch_gradient:
                continue
            outs = [(_tensors(wanted), theirs), (_tensors(found), mine)]
            gradients = []
            for results, given in outs:
                total: Any = 0
                for r in results:
                    if r.requires_grad:
                        n = r.numel()
                        weights = (
                            (0.5 + np.arange(n) % 7 / 7.0)
                            .reshape(tuple(r.shape))
                            .astype(arrays[0].dtype if arrays[0].dtype.kind == "f" else np.float64)
                        )
                        total = total + (r * (torch.tensor(weights) if given is theirs else tg.tensor(weights))).sum()
                if isinstance(total, int):
                    gradients.append([])
                    continue
                total.backward()
                gradients.append([np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in given if x.requires_grad])
            agree(gradients[1], gradients[0], tolerance * 10, f"{name}, gradient", dtype=False)

    return values, gradients, as_in_torch


def _tensors(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in _tensors(part)]
    return [result] if hasattr(result, "requires_grad") else []
