"""Calls that torch refuses, and that were taken: an error names the function that was called."""

from collections.abc import Callable
from typing import Any

import pytest

import tracegrad as tg
from tracegrad.nn import functional as F

SCORES = tg.zeros(5, 1, 3).log_softmax(-1)
LABELS = tg.ones(1, 2, dtype=tg.int64)
CALLS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "ctc_loss: input_lengths must be an integer, got 4.5": (lambda: F.ctc_loss(SCORES, LABELS, [4.5], [2]), tg.errors.ArgumentTypeError),
    "ctc_loss: target_lengths must be an integer, got 1.5": (lambda: F.ctc_loss(SCORES, LABELS, [4], [1.5]), tg.errors.ArgumentTypeError),
    "pdist: p must not be negative, got -1": (lambda: F.pdist(tg.ones(3, 2), -1.0), tg.ArgumentError),
    "norm: there is nothing along dimensions": (lambda: tg.norm(tg.ones(0), -0.5), tg.ArgumentError),
    "norm: p='nuc' without dim takes a matrix, got": (lambda: tg.norm(tg.ones(2, 2, 2), "nuc"), tg.ShapeError),
    "index_put: a value of shape": (lambda: tg.index_put(tg.ones(3, 2), (tg.tensor([1]),), tg.ones(7)), tg.ShapeError),
    "index_put: 1 indices for a tensor of 0 dimensions": (
        lambda: tg.index_put(tg.tensor(1.0), (tg.tensor([1]),), tg.ones(1)), tg.errors.IndexOutOfRange),
    "setitem: index 5 is out of range": (lambda: tg.ones(3).__setitem__(5, 1), tg.errors.IndexOutOfRange),
}


@pytest.mark.parametrize("message", CALLS)
def test_a_wrong_call(message: str) -> None:
    call, kind = CALLS[message]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", [
    "max", "min", "argmax", "argmin", "amax", "amin", "aminmax", "median", "nanmedian", "mode", "kthvalue", "sort",
])
def test_a_complex_number_has_no_order(name: str) -> None:
    """One of no dimensions was its own largest element."""
    for x in (tg.tensor(1j), tg.tensor([1j, 2.0])):
        with pytest.raises(tg.DTypeError, match="does not take complex64"):
            getattr(tg, name)(x, dim=0, **({"k": 1} if name == "kthvalue" else {}))
