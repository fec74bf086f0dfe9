"""torch's own random numbers for programs written for torch: what its CPU generator makes, and its state as torch saves it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.support import random_state
from tracegrad.support.mersenne.generator import Mersenne
from tracegrad.tensors.tensor import Tensor, from_own
from tracegrad.torch_api import devices


class Generator(random_state.Generator):
    """torch.Generator. The state is the bytes that torch itself saves, and reads. device: which programs ask; the numbers are the same."""

    @property
    def device(self) -> Any:
        """The device that it was made for. Found when somebody asks: a program's workers may be forked before any is needed."""
        return devices.device(self._given or "cpu")  # type: ignore[call-arg]

    @device.setter
    def device(self, device: Any) -> None:
        self._given = device

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream `seed` from its beginning; returns the generator. Negative seeds count from 2**64 down, as in torch."""
        super().manual_seed(int(seed) % 2**63)
        return self

    def get_state(self) -> Tensor:
        """The state, for `set_state`."""
        return from_own(self._stream.torchs().save().copy(), "cpu")

    def set_state(self, state: Any) -> Generator:
        """Continue where `get_state` saw it; returns the generator."""
        generator = Mersenne(0)
        generator.load(np.asarray(state))
        self._stream.start(generator.seed % 2**63)
        self._stream.twister = generator
        return self


default_generator = Generator()
default_generator._stream = random_state._state


def install() -> None:
    """From now on untraced numbers are those that torch would draw."""
    random_state.as_torch(Mersenne)


def get_rng_state() -> Tensor:
    """The default generator's state: see `Generator.get_state`."""
    return default_generator.get_state()


def set_rng_state(new_state: Any) -> None:
    """Continue the default stream where `get_rng_state` saw it."""
    default_generator.set_state(new_state)


def manual_seed(seed: int) -> Generator:
    """Start the default stream `seed` from its beginning; returns the default generator."""
    return default_generator.manual_seed(seed)
