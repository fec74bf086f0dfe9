"""torch.random's names: the state of the default random stream. What draws from it is in `tg` itself (rand, randn, ...)."""

from __future__ import annotations

from tracegrad.support.random_state import default_generator, fork_rng, get_rng_state, initial_seed, manual_seed, set_rng_state
from tracegrad.support.random_state import reseed as seed

__all__ = ["default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]
