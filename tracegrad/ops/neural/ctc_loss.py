"""The loss of label sequences without an alignment (tracegrad.nn.functional.ctc_loss). Start at `ctc_loss`."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import PUBLIC, functional
from tracegrad.graph.primitive import cast, const, iota
from tracegrad.ops.arguments import integer, on_nodes
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import gather
from tracegrad.ops.arrays.pointwise import detach, eq, lt, maximum, ne
from tracegrad.ops.arrays.reductions import cumsum, logsumexp, mean, sum_
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape, unsqueeze
from tracegrad.ops.neural.losses import _reduced
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.float_functions import exp, log
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


@functional
def ctc_loss(log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
             zero_infinity: bool = False) -> Array:
    """Minus the log-probability of label sequences, summed over all alignments (Graves et al. 2006).

    log_probs: (T, N, C) or (T, C), log-softmax of the scores. targets: (N, S) or (S), or all sequences one after the other.
    Lengths: tensors (N), or sequences of integers; IndexOutOfRange if one is longer than what there is. "mean" divides by the target
    lengths first. zero_infinity: impossible alignments count 0.

    The recursion over T is a `scan`. Raises ShapeError unless log_probs are floats of such a shape.

    >>> nn.functional.ctc_loss(tg.zeros(4, 1, 3), tg.tensor([[1, 2]]), [4], [2])
    """
    alpha, rows, skips, into, out = _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank)
    if rows is not None:
        def step(alpha: Any, row: Any) -> Any:
            return _ctc_step(alpha, row[0], row[1], skips, into), None

        alpha, _ = PUBLIC["scan"](step, alpha, rows)
    return _ctc_sum(alpha, out, reduction, zero_infinity, log_probs.ndim == 2)


@on_nodes
def _ctc_loss(log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, blank: int) -> Any:
    """What ctc_loss's recursion starts from, with (log-probabilities of the states, numbers) of its steps, which states may follow the

    one before the last, and the lengths.
    """
    if log_probs.ndim not in (2, 3) or dtype_kind(log_probs.dtype) != "f":
        raise ShapeError(f"ctc_loss: log_probs must be floats (T, N, C) or (T, C), got {log_probs.aval}")
    alone = log_probs.ndim == 2
    x = unsqueeze(log_probs, 1) if alone else log_probs
    steps, n, c = x.shape
    if not 0 <= blank < c:
        raise ArgumentError(f"ctc_loss: blank must be from 0 to {c - 1}, got {blank}")
    labels = targets
    if targets.ndim == 1 and not alone:
        labels = _padded(targets, target_lengths, n, steps)
    elif targets.ndim == 1:
        labels = unsqueeze(targets, 0)
    if labels.ndim != 2 or labels.shape[0] != n:
        raise ShapeError(f"ctc_loss: targets {targets.shape} must be (N, S) for log_probs {log_probs.shape}")
    into, out = (_lengths("ctc_loss", what, v, n) for what, v in (("input_lengths", input_lengths), ("target_lengths", target_lengths)))
    s = labels.shape[1]
    into = in_range(into, steps + 1, "ctc_loss", "input_lengths", f"{steps} steps of log_probs")
    if targets.ndim == 2 or alone:
        out = in_range(out, s + 1, "ctc_loss", "target_lengths", f"{s} labels a sequence")
    labels = where(lt(iota((n, s), 1), unsqueeze(out, 1)), cast(labels, dtypes.int64), blank)        # padding may be anything
    labels = in_range(labels, c, "ctc_loss", "targets", f"{c} classes")
    width = 2 * s + 1
    # blank, label, blank, label, ..., blank
    states = mv.pad(labels, (0, 1), (0, 1), (0, 1), blank) if s else full_like_shape((n, 1), blank, dtypes.int64)
    never = full_like_shape((n, width), -float("inf"), x.dtype)
    skips = ne(states, blank) & ne(states, mv.pad(mv.narrow(states, 1, 0, max(0, width - 2)), (0, min(2, width)), (0, 0), None, blank))
    each = gather(x, 2, mv.expand(states, (steps, n, width)))
    place = iota((n, width), 1)
    nothing = where(eq(place, 0), 0.0, never)                       # of no steps: the empty sequence is certain
    first = where(lt(place, 2), mv.reshape(mv.narrow(each, 0, 0, 1), (n, width)), never) if steps else nothing
    alpha = where(eq(unsqueeze(into, 1), 0), nothing, first)
    rows = (mv.narrow(each, 0, 1, steps - 1), iota((steps - 1,), 0) + 1) if steps > 1 else None
    return alpha, rows, skips, into, out


@on_nodes
def _ctc_step(alpha: Array, row: Array, t: Array, skips: Array, into: Array) -> Array:
    """Of each state, the log-probability of its prefixes, a step later: those of the state itself, of the one before, of that before."""
    width = alpha.shape[1]
    wider = mv.pad(alpha, (0, 2), (0, 0), None, -float("inf"))
    one, two = mv.narrow(wider, 1, 1, width), where(skips, mv.narrow(wider, 1, 0, width), -float("inf"))
    most = detach(maximum(maximum(alpha, one), two))
    nothing = eq(most, -float("inf"))
    shift = where(nothing, 0.0, most)
    total = exp(alpha - shift) + exp(one - shift) + exp(two - shift)
    total = where(nothing, -float("inf"), log(where(nothing, 1.0, total)) + shift)
    return where(unsqueeze(lt(t, into), 1), total + row, alpha)


@on_nodes
def _ctc_sum(alpha: Array, out: Array, reduction: str, zero_infinity: bool, alone: bool) -> Any:
    """The loss, of the prefixes that are whole."""
    place = iota(alpha.shape, 1)
    ends = eq(place, unsqueeze(out * 2, 1)) | eq(place, unsqueeze(out * 2 - 1, 1))
    loss = -_log_sum(where(ends, alpha, -float("inf")), 1)
    never = eq(loss, float("inf"))
    if zero_infinity:
        loss = where(never, 0.0, loss)
    else:                                                   # infinity, whose derivative is NaN, as in torch
        reached = sum_(where(eq(alpha, -float("inf")), 0.0, alpha), 1) * 0.0
        loss = where(never, -log(where(never, reached, 1.0)), loss)
    if reduction == "mean":
        return mean(loss / cast(maximum(out, 1), loss.dtype))
    return _reduced("ctc_loss", mv.reshape(loss, ()) if alone else loss, reduction)


def _log_sum(x: Any, dim: int) -> Any:
    """logsumexp whose derivative is 0 where all terms are -inf (there 0 / 0 would make NaNs of other terms' gradients)."""
    nothing = eq(x.amax(dim, True), -float("inf"))
    total = logsumexp(where(nothing, 0.0, x), dim)
    return where(mv.reshape(nothing, total.shape), -float("inf"), total)


def _padded(targets: Node, lengths: Any, n: int, steps: int) -> Any:
    """The sequences of `targets`, one after the other, as rows (n, S); S is the longest, or `steps`: longer ones have no alignment."""
    if not isinstance(lengths, Node) and sum(map(int, lengths)) != targets.shape[0]:
        raise ShapeError(f"ctc_loss: targets {targets.shape} must hold the sum of the target lengths, {sum(map(int, lengths))}")
    most = min(targets.shape[0], steps if isinstance(lengths, Node) else max(map(int, lengths), default=0))
    sizes = unsqueeze(_lengths("ctc_loss", "target_lengths", lengths, n), 1)
    place = iota((n, most), 1)
    index = where(lt(place, sizes), place + cumsum(sizes, 0) - sizes, 0)
    return gather(targets, 0, in_range(index, targets.shape[0], "ctc_loss", "target_lengths", "targets").reshape(-1)).reshape(n, most)


def _lengths(name: str, what: str, value: Any, n: int) -> Any:
    if isinstance(value, Node):
        if value.aval.size != n or value.dtype.kind not in "iu":
            raise ShapeError(f"{name}: {what} {value.aval} must hold {n} integers")
        return cast(mv.reshape(value, (n,)), dtypes.int64)
    values = [integer(name, what, v) for v in (value if isinstance(value, (tuple, list)) else [value])]
    if len(values) != n:
        raise ShapeError(f"{name}: {what} must hold {n} integers, got {len(values)}")
    return mv.concat([mv.reshape(const(v, dtypes.int64), (1,)) for v in values], 0)
