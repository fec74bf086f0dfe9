"""L-BFGS: a quasi-Newton method for smooth losses without noise. Start at `LBFGS.step`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, TraceError
from tracegrad.graph.operators import PUBLIC
from tracegrad.optim.optimizer import Optimizer, at_least, in_reals
from tracegrad.optim.param_group import ParamGroup
from tracegrad.support.modes import enable_grad, no_grad, state
from tracegrad.tensors.tensor import Tensor

Evaluation = Callable[[float], tuple[float, Any, float]]     # step length -> loss, gradient, slope along the direction


class LBFGS(Optimizer):
    """Limited-memory BFGS (Nocedal & Wright 2006, algorithm 7.5), as torch.optim.LBFGS; one group of parameters.

    max_iter, max_eval: iterations and evaluations of the closure in a step (max_eval: 5/4 max_iter if None). tolerance_grad: ends where
    no element of the gradient is larger. tolerance_change: ends where loss and parameters move less. history_size: pairs of changes that
    are kept. line_search_fn: None (the step length is lr) or "strong_wolfe". maximize: the loss is to grow. Parameters may lie on several
    devices; the direction and its history lie on that of the first one. dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> model, x, y = nn.Linear(3, 2), tg.randn(10, 3), tg.randn(10, 2)
    >>> opt = tg.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = nn.functional.mse_loss(model(x), y)
    ...     loss.backward()
    ...     return loss
    >>> opt.step(closure)
    """

    _by_elements = False

    def __init__(self, params: Iterable[Any], lr: float = 1.0, max_iter: int = 20, max_eval: int | None = None,
                 tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
                 line_search_fn: str | None = None, *, maximize: bool = False) -> None:
        super().__init__(params, dict(lr=lr, max_iter=max_iter, max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
                                      tolerance_grad=tolerance_grad, tolerance_change=tolerance_change, history_size=history_size,
                                      line_search_fn=line_search_fn, maximize=maximize))
        if len(self.param_groups) != 1:
            raise ArgumentError("LBFGS: takes one group of parameters; its direction is that of all together")

    def _check(self, group: ParamGroup) -> None:
        for name in ("max_iter", "max_eval", "tolerance_grad", "tolerance_change"):
            at_least(name, group[name])
        at_least("history_size", group["history_size"], 1)
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise ArgumentError(f"line_search_fn: must be None or 'strong_wolfe', got {group['line_search_fn']!r}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Up to max_iter iterations. closure: computes the loss and its gradients anew; the loss it first gave is returned.

        Raises ArgumentError without a closure. It decides by values, so it raises TraceError inside @trace; the closure may call a
        traced function.
        """
        if closure is None:
            raise ArgumentError("LBFGS.step: needs a closure that computes the loss and its gradients; it is called several times")
        if state.trace is not None:
            raise TraceError(f"LBFGS.step: it decides by values, and inside @trace ({state.trace.name}) there are none; call step outside, "
                             "with a closure that calls a traced function")
        with no_grad():
            return self._minimize(closure)

    def _minimize(self, closure: Callable[[], Any]) -> Any:
        group, params = self.param_groups[0], self.param_groups[0]["params"]
        mine = self.state.setdefault(params[0], {})
        mine.setdefault("func_evals", 0)
        mine.setdefault("n_iter", 0)

        def evaluate() -> Any:
            with enable_grad():
                return closure()

        def least(loss: Any) -> float:
            return -float(loss) if group["maximize"] else float(loss)

        first = evaluate()
        loss, g, evaluations = least(first), self._flat_gradient(), 1
        mine["func_evals"] += 1
        if float(g.abs().max()) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, group["max_iter"] + 1):
            mine["n_iter"] += 1
            d = self._direction(group, mine, g)
            mine["prev_flat_grad"], mine["prev_loss"] = g.clone(), loss
            scale = min(1.0, 1.0 / float(g.abs().sum())) if mine["n_iter"] == 1 else 1.0
            t, slope = scale * group["lr"], float(g.dot(d))
            mine["d"], mine["t"] = d, t
            if slope > -group["tolerance_change"]:
                break
            before, done = loss, 0
            if group["line_search_fn"] is not None:
                start = [p.detach().clone() for p in params]

                def along(t: float, d: Any = d, start: list[Tensor] = start) -> tuple[float, Any, float]:
                    self._add(t, d)
                    value, gradient = least(evaluate()), self._flat_gradient()
                    for p, s in zip(params, start, strict=True):
                        p.copy_(s)
                    return value, gradient, float(gradient.dot(d))

                loss, g, t, done = _strong_wolfe(along, t, float(d.abs().max()), loss, g, slope, group["max_eval"] - evaluations)
                self._add(t, d)
                mine["t"] = t
            else:
                self._add(t, d)
                if iteration != group["max_iter"]:
                    loss, done = least(evaluate()), 1
                    g = self._flat_gradient()
            evaluations += done
            mine["func_evals"] += done
            if evaluations >= group["max_eval"] or float(g.abs().max()) <= group["tolerance_grad"] \
                    or float((d * t).abs().max()) <= group["tolerance_change"] or abs(loss - before) < group["tolerance_change"]:
                break
        return first

    def _direction(self, group: ParamGroup, mine: dict[str, Any], g: Any) -> Any:
        """Minus the gradient times the inverse Hessian as the kept pairs of changes estimate it (the two-loop recursion)."""
        if mine["n_iter"] == 1:
            mine.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -g
        y, s = g - mine["prev_flat_grad"], mine["d"] * mine["t"]
        ys = float(y.dot(s))
        if ys > 1e-10:
            for name, value in (("old_dirs", y), ("old_stps", s), ("ro", 1.0 / ys)):
                mine[name] = [*mine[name], value][-group["history_size"]:]
            mine["H_diag"] = ys / float(y.dot(y))
        pairs = list(zip(mine["old_dirs"], mine["old_stps"], mine["ro"], strict=True))
        q, shares = -g, []
        # Each share is looked at, so that what is computed at once is one iteration: the same program, however many pairs there are.
        for y, s, ro in reversed(pairs):
            shares.append(float(s.dot(q)) * ro)
            q = q - y * shares[-1]
        d = q * mine["H_diag"]
        for (y, s, ro), share in zip(pairs, reversed(shares), strict=True):
            d = d + s * (share - float(y.dot(d)) * ro)
        return d

    def _flat_gradient(self) -> Any:
        params = self.param_groups[0]["params"]
        parts = [in_reals(PUBLIC["zeros_like"](p) if p.grad is None else p.grad).reshape(-1) for p in params]
        found = PUBLIC["cat"]([part.to(params[0].device) for part in parts], 0)
        return -found if self.param_groups[0]["maximize"] else found

    def _add(self, t: float, d: Any) -> None:
        start = 0
        for p in map(in_reals, self.param_groups[0]["params"]):
            p.add_(d[start:start + p.numel()].reshape(p.shape).to(p.device), alpha=t)
            start += p.numel()

    def _tg_saved(self) -> dict[str, Any]:
        found = super()._tg_saved()
        for mine in found["state"].values():
            mine.update({k: list(v) for k, v in mine.items() if isinstance(v, list)})
        return found


def _cubic(x1: float, f1: float, g1: float, x2: float, f2: float, g2: float, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points with these slopes is least, within bounds (Nocedal & Wright 2006, equation 3.59)."""
    low, high = bounds if bounds is not None else (min(x1, x2), max(x1, x2))
    with np.errstate(all="ignore"):                         # along a line it is at infinity: the last of the bounds
        d1 = g1 + g2 - 3 * np.float64(f1 - f2) / (x1 - x2)
        square = d1 * d1 - g1 * g2
        if not square >= 0:
            return (low + high) / 2
        d2 = np.sqrt(square)
        at = x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2)) if x1 <= x2 else x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2))
    return (low + high) / 2 if np.isnan(at) else min(max(float(at), low), high)


def _strong_wolfe(along: Evaluation, t: float, d_norm: float, loss: float, g: Any, slope: float, max_ls: int,
                  c1: float = 1e-4, c2: float = 0.9, tolerance_change: float = 1e-9) -> tuple[float, Any, float, int]:
    """A step length for the strong Wolfe conditions (algorithms 3.5 and 3.6 there, with minFunc's safeguards (Schmidt 2005)),
    after max_ls iterations at most.

    Returns the loss and gradient there, the length, and how often `along` was called.
    """
    at = (t, *along(t))                                     # (length, loss, gradient, slope) of the newest point
    calls, trial, done = 1, 0, False
    before: tuple[float, float, Any, float] = (0.0, loss, g, slope)
    bracket: list[tuple[float, float, Any, float]] = []
    while trial < max_ls:
        if at[1] > loss + c1 * at[0] * slope or (trial > 1 and at[1] >= before[1]):
            bracket = [before, at]
        elif abs(at[3]) <= -c2 * slope:
            bracket, done = [at], True
        elif at[3] >= 0:
            bracket = [before, at]
        if bracket:
            break
        reach = at[0] + 0.01 * (at[0] - before[0]), at[0] * 10
        t = _cubic(before[0], before[1], before[3], at[0], at[1], at[3], reach)
        before, at = at, (t, *along(t))
        calls, trial = calls + 1, trial + 1
    if not bracket:
        bracket = [(0.0, loss, g, slope), at]
    stuck = False
    while not done and trial < max_ls and len(bracket) == 2:
        low, high = sorted(b[0] for b in bracket)
        if (high - low) * d_norm < tolerance_change:
            break
        best = 0 if bracket[0][1] <= bracket[1][1] else 1
        (x1, f1, _, g1), (x2, f2, _, g2) = bracket
        t = _cubic(x1, f1, g1, x2, f2, g2)
        margin = 0.1 * (high - low)                         # not too near to an end twice
        if min(high - t, t - low) < margin:
            if stuck or t >= high or t <= low:
                t = high - margin if abs(t - high) < abs(t - low) else low + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        at = (t, *along(t))
        calls, trial = calls + 1, trial + 1
        if at[1] > loss + c1 * t * slope or at[1] >= bracket[best][1]:
            bracket[1 - best] = at
        else:
            if abs(at[3]) <= -c2 * slope:
                done = True
            elif at[3] * (bracket[1 - best][0] - bracket[best][0]) >= 0:
                bracket[1 - best] = bracket[best]
            bracket[best] = at
    t, value, gradient, _ = min(bracket, key=lambda b: b[1])
    return value, gradient, t, calls
