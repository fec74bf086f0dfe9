"""The state of the random stream: a seed and how many numbers were drawn. The numbers themselves are made on the device (Philox).

`Generator` is a stream of its own; `using` makes one the present stream. After `as_torch()` untraced numbers are those of torch's CPU
generator, made on the host (`mersenne`): a stream then has such a generator, too.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError, TraceError
from tracegrad.support.modes import state, unusual


def _fresh() -> int:
    return int.from_bytes(os.urandom(4), "little")


class Stream:
    """Where a stream is: its seed, how many numbers were drawn, and, made when it is first asked for, torch's generator with that seed."""

    __slots__ = "offset", "seed", "twister"

    def __init__(self, seed: int, offset: int = 0) -> None:
        self._place(seed, offset)

    def start(self, seed: int, offset: int = 0) -> None:
        """Go on at this place. TraceError of the default stream in a trace, where only the recording would do it."""
        if state.trace is not None and self is _state:
            raise TraceError(f"{state.trace.name}: seeds the random numbers, or sets their state, which a replay would not do; call "
                             "manual_seed outside the traced function")
        self._place(seed, offset)

    def _place(self, seed: int, offset: int) -> None:
        self.seed, self.offset = seed, offset
        self.twister: Any = None

    def torchs(self) -> Any:
        """torch's generator (`mersenne.generator.Mersenne`)."""
        if self.twister is None:
            self.twister = _torchs[0](self.seed)
        return self.twister


_state = Stream(_fresh())
_torchs: list[Any] = []                                         # the class of torch's generator, after as_torch()


class _Present(threading.local):
    """Per thread: seed and offset of the stream that is drawn from."""

    stream = _state


_present = _Present()


class Generator:
    """A random stream of its own: what draws takes it as generator=..., and the others go on undisturbed. Untraced only.

    device: accepted; a stream is the same on every device.
    `manual_seed` raises ArgumentError unless the seed is an int from 0 to 2**63 - 1.

    >>> g = tg.Generator().manual_seed(1)
    >>> tg.rand(3, generator=g)
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self._stream = Stream(67280421310721)                   # torch's: the same for each

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream `seed` from its beginning; returns the generator."""
        self._stream.start(_checked(seed))
        return self

    def seed(self) -> int:
        """Start a stream that nobody knows; returns its seed."""
        self._stream.start(_fresh())
        return self._stream.seed

    def initial_seed(self) -> int:
        """The stream's seed."""
        return self._stream.seed

    def get_state(self) -> Any:
        """Seed and offset, for `set_state`."""
        return self._stream.seed, self._stream.offset

    def set_state(self, state: Any) -> Generator:
        """Continue where `get_state` saw it; returns the generator."""
        self._stream.start(*state)
        return self

    def clone_state(self) -> Generator:
        """Another generator at the same place of the same stream."""
        return type(self)(self.device).set_state(self.get_state())


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
    if state.trace is not None and generator._stream is not _state:
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

    >>> g = tg.manual_seed(0)
    """
    return default_generator.manual_seed(seed)


def reseed() -> int:
    """Start a stream that nobody knows; returns its seed. (torch.seed)

    >>> seed = tg.seed()
    """
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default stream.

    >>> g = tg.manual_seed(5)
    >>> tg.initial_seed()
    5
    """
    return _state.seed


def seed() -> int:
    """The present stream."""
    return _present.stream.seed


def offset() -> int:
    """How many numbers were drawn from it."""
    return _present.stream.offset


def advance(count: int) -> None:
    """Count `count` numbers as drawn."""
    _present.stream.offset += count


def as_torch(generator: Any) -> None:
    """From now on untraced numbers are made on the host, as torch's CPU generator makes them. generator: its class."""
    _torchs[:] = [generator]


def is_torchs() -> bool:
    """Whether numbers that are drawn now are those of torch's generator."""
    return bool(_torchs) and state.trace is None and not (state.scopes and any(scope.many for scope in state.scopes))


def torchs(count: int) -> Any:
    """torch's generator, for `count` numbers of the stream. None where they are Philox's: without as_torch(), in traces and vmap."""
    if not _torchs or (unusual[0] and not is_torchs()):
        return None
    stream = _present.stream
    stream.offset += count
    return stream.twister or stream.torchs()


def get_rng_state() -> tuple[int, int]:
    """Seed and offset, for `set_rng_state`.

    >>> state = tg.get_rng_state()
    >>> a = tg.rand(2)
    >>> tg.set_rng_state(state)
    >>> (tg.rand(2) == a).all()
    Tensor(True, device='cpu')
    """
    return _state.seed, _state.offset


def set_rng_state(new_state: Any) -> None:
    """Continue a stream where `get_rng_state` saw it. Raises ArgumentError for what is no such state.

    >>> tg.set_rng_state(tg.get_rng_state())
    """
    if not isinstance(new_state, tuple) or len(new_state) != 2 or any(type(n) is not int or n < 0 for n in new_state):
        raise ArgumentError(f"set_rng_state: expected a pair of ints, what get_rng_state gives, got {new_state!r}")
    _state.start(*new_state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, device_type: Any = None) -> Iterator[None]:
    """The default stream is afterwards where it was before (enabled=False: goes on). devices: accepted, as there is one stream."""
    if state.trace is not None:                             # a trace counts what it draws, and the stream goes on by that in a replay
        trace, drawn = state.trace, state.trace.draws
        try:
            yield
        finally:
            if enabled:
                trace.draws = drawn
        return
    before = copy.deepcopy(_state.twister) if enabled else None, *get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(before[1:])
            _state.twister = before[0]
