"""Sizes that cannot be had are refused by the function that is asked for them, not when a value is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tracegrad import nn
from tracegrad.errors import OutOfMemoryError
from tracegrad.graph.ir import ADDRESSED, Aval

HUGE = 2**63
CALLS: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda x: tg.zeros(HUGE), "ones": lambda x: tg.ones(2**40, 2**40), "full": lambda x: tg.full((2**62,), 2.0),
    "empty": lambda x: tg.empty(2**70), "rand": lambda x: tg.rand(2**62), "randn": lambda x: tg.randn(2**31, 2**32),
    "randint": lambda x: tg.randint(0, 9, (2**62,)), "randperm": lambda x: tg.randperm(2**62), "arange": lambda x: tg.arange(HUGE),
    "linspace": lambda x: tg.linspace(0, 1, 2**62), "logspace": lambda x: tg.logspace(0, 1, 2**62), "eye": lambda x: tg.eye(2**32),
    "zeros_like": lambda x: tg.zeros_like(x, dtype=tg.float32).expand(2**62, 3),
                                          "empty_strided": lambda x: tg.empty_strided((2**62,), (1,)),
    "triu_indices": lambda x: tg.triu_indices(2**32, 2**32), "tril_indices": lambda x: tg.tril_indices(HUGE, 1),
    "expand": lambda x: x.expand(2**62, 3), "broadcast_to": lambda x: tg.broadcast_to(x, (2**62, 3)), "repeat": lambda x: x.repeat(2**62),
    "tile": lambda x: x.tile((2**62,)), "pad": lambda x: F.pad(x, (2**62, 2**62)), "one_hot": lambda x: F.one_hot(tg.arange(3), 2**62),
    "repeat_interleave": lambda x: x.repeat_interleave(2**62),
                                          "interpolate": lambda x: F.interpolate(tg.ones(1, 1, 3, 3), size=(2**40, 2**40)),
    "new_full": lambda x: x.new_full((HUGE,), 2), "resize_": lambda x: tg.ones(2, 2).resize_(2**62),
                                          "vander": lambda x: tg.vander(x, 2**61),
    "outer": lambda x: tg.outer(x[:1].expand(2**31), x[:1].expand(2**31)), "meshgrid": lambda x: tg.meshgrid(*[x[:1].expand(2**20)] * 4),
    "hann_window": lambda x: tg.hann_window(2**60), "bartlett_window": lambda x: tg.bartlett_window(HUGE),
    "bincount": lambda x: tg.bincount(tg.tensor([2**60])), "no element": lambda x: tg.zeros(0, HUGE),
    "Linear": lambda x: nn.Linear(2**40, 2**40), "Embedding": lambda x: nn.Embedding(2**50, 2**20), "LSTM": lambda x: nn.LSTM(2**31, 2**31),
    "Conv2d": lambda x: nn.Conv2d(2**30, 2**30, 3), "ZeroPad2d": lambda x: nn.ZeroPad2d(2**62)(tg.ones(1, 1, 3, 3)),
}
# What begins the message where it is not the call itself: what that makes its tensor with.
MADE_BY = {"zeros_like": "expand", "new_full": "full", "no element": "zeros", "Linear": "empty", "Embedding": "empty", "LSTM": "empty",
           "Conv2d": "empty", "ZeroPad2d": "pad"}


@pytest.mark.parametrize("name", CALLS)
def test_what_no_index_reaches_is_refused_by_the_call(name: str) -> None:
    x = tg.ones(3)
    with pytest.raises(OutOfMemoryError) as error:
        CALLS[name](x)
    text = str(error.value)
    assert text.startswith(f"{MADE_BY.get(name, name)}:")
    assert "test_impossible_sizes.py" in text


def test_a_draw_that_is_refused_draws_nothing() -> None:
    before = tg.get_rng_state()
    for draw in (lambda: tg.rand(2**62), lambda: tg.randn(2**40, 2**40), lambda: tg.randint(0, 9, (HUGE,))):
        with pytest.raises(OutOfMemoryError):
            draw()
    assert tg.get_rng_state() == before


def test_the_message_says_what_was_asked_for_and_what_there_is() -> None:
    with pytest.raises(OutOfMemoryError, match=r"zeros: a float32 tensor of shape \(9223372036854775808,\) has .* 36893488147419103232 "
                                               r"bytes; indices have 64 bits.*make it smaller") as error:
        tg.zeros(2**63)
    if tg.device().kind != "numpy":
        assert f"{tg.device().name} has " in str(error.value)
    assert Aval((ADDRESSED,), tg.uint8).nbytes == ADDRESSED


def test_parameters_are_stored_so_they_have_to_fit() -> None:
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter has no limit of its own")
    n = tg.device().max_buffer // 4 + 1
    for make in (lambda: nn.Linear(n, 1), lambda: nn.Parameter(tg.zeros(n)), lambda: nn.Embedding(n, 1), lambda: nn.Buffer(tg.zeros(n))):
        with pytest.raises(OutOfMemoryError, match=rf"{4 * n} bytes.*at most {tg.device().max_buffer}.*smaller"):
            make()


@pytest.mark.long
def test_what_is_never_stored_may_be_larger_than_the_device() -> None:
    """A tensor that is only reduced, or of which a part is taken, needs no memory."""
    if tg.device().kind == "numpy":
        pytest.skip("the interpreter computes every node")
    x = tg.zeros(2**33) + 1
    assert x[2**33 - 3:].tolist() == [1, 1, 1]
    with pytest.raises(OutOfMemoryError, match=r"34359738368 bytes"):
        x.numpy()
