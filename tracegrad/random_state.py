"""The state of the random stream: a seed and how many numbers were drawn. The numbers themselves are made on the device (Philox)."""

from __future__ import annotations

import os

from tracegrad.errors import ArgumentError

_state = [int.from_bytes(os.urandom(4), "little"), 0]


def manual_seed(seed: int) -> None:
    """Start the stream `seed` from its beginning; the same on every device. ArgumentError unless it is an int from 0 to 2**63 - 1."""
    if not hasattr(seed, "__index__") or not 0 <= seed < 2**63:
        raise ArgumentError(f"manual_seed: the seed must be an int from 0 to 2**63 - 1, got {seed!r}")
    _state[:] = [int(seed), 0]


def seed() -> int:
    """The present stream."""
    return _state[0]


def offset() -> int:
    """How many numbers were drawn from it."""
    return _state[1]


def advance(count: int) -> None:
    """Count `count` numbers as drawn."""
    _state[1] += count


def get_rng_state() -> tuple[int, int]:
    """Seed and offset, for `set_rng_state`."""
    return _state[0], _state[1]


def set_rng_state(state: tuple[int, int]) -> None:
    """Continue a stream where `get_rng_state` saw it."""
    _state[:] = state
