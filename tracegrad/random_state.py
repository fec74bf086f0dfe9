"""The state of the random stream: a seed and how many numbers were drawn. The numbers themselves are made on the device (Philox)."""

from __future__ import annotations

import os

_state = [int.from_bytes(os.urandom(4), "little"), 0]


def manual_seed(seed: int) -> None:
    """Start the stream `seed` (a non-negative int below 2**63) from its beginning; the same on every device."""
    _state[:] = [int(seed) & (2**63 - 1), 0]


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
