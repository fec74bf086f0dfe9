"""The state of the random stream: a seed and how many numbers were drawn. The numbers themselves are made on the device (Philox).

`Generator` is a stream of its own; `using` makes one the present stream.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError, TraceError
from tracegrad.support.modes import state


def _fresh() -> int:
    return int.from_bytes(os.urandom(4), "little")


_state = [_fresh(), 0]


class _Present(threading.local):
    """Per thread: seed and offset of the stream that is drawn from."""

    stream = _state


_present = _Present()


class Generator:
    """A random stream of its own: what draws takes it as generator=..., and the others go on undisturbed. Untraced only.

    device: accepted; a stream is the same on every device.

    >>> g = tg.Generator().manual_seed(1)
    >>> tg.rand(3, generator=g)
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self._stream = [67280421310721, 0]                      # torch's: the same for each

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream `seed` from its beginning; returns the generator."""
        self._stream[:] = [_checked(seed), 0]
        return self

    def seed(self) -> int:
        """Start a stream that nobody knows; returns its seed."""
        self._stream[:] = [_fresh(), 0]
        return self._stream[0]

    def initial_seed(self) -> int:
        """The stream's seed."""
        return self._stream[0]

    def get_state(self) -> tuple[int, int]:
        """Seed and offset, for `set_state`."""
        return self._stream[0], self._stream[1]

    def set_state(self, state: tuple[int, int]) -> Generator:
        """Continue where `get_state` saw it; returns the generator."""
        self._stream[:] = state
        return self

    def clone_state(self) -> Generator:
        """Another generator at the same place of the same stream."""
        return Generator(self.device).set_state(self.get_state())


default_generator = Generator()
default_generator._stream = _state


@contextmanager
def using(call: str, generator: Any) -> Iterator[None]:
    """Draw from the generator, for the function `call`; from the present stream if it is None."""
    if generator is None:
        yield
        return
    if not isinstance(generator, Generator):
        raise ArgumentTypeError(f"{call}: generator must be a tg.Generator, got {type(generator).__name__}")
    if state.trace is not None and generator is not default_generator:
        raise TraceError(f"{call}: a generator cannot be drawn from inside @trace ({state.trace.name}), where every replay goes on in the "
                         "default stream (tg.manual_seed); draw outside and pass the numbers, or leave generator out")
    before, _present.stream = _present.stream, generator._stream
    try:
        yield
    finally:
        _present.stream = before


def _checked(seed: Any) -> int:
    if not hasattr(seed, "__index__") or not 0 <= seed < 2**63:
        raise ArgumentError(f"manual_seed: the seed must be an int from 0 to 2**63 - 1, got {seed!r}")
    return int(seed)


def manual_seed(seed: int) -> Generator:
    """Start the stream `seed` from its beginning; the same on every device. ArgumentError unless it is an int from 0 to 2**63 - 1.

    Returns the default generator, as torch does.
    """
    return default_generator.manual_seed(seed)


def reseed() -> int:
    """Start a stream that nobody knows; returns its seed. (torch.seed)"""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default stream."""
    return _state[0]


def seed() -> int:
    """The present stream."""
    return _present.stream[0]


def offset() -> int:
    """How many numbers were drawn from it."""
    return _present.stream[1]


def advance(count: int) -> None:
    """Count `count` numbers as drawn."""
    _present.stream[1] += count


def get_rng_state() -> tuple[int, int]:
    """Seed and offset, for `set_rng_state`."""
    return _state[0], _state[1]


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Continue a stream where `get_rng_state` saw it."""
    _state[:] = new_state


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, device_type: Any = None) -> Iterator[None]:
    """The default stream is afterwards where it was before (enabled=False: goes on). devices: accepted, as there is one stream."""
    before = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(before)
