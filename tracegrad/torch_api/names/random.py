"""torch.random: see `torch_api/random_numbers.py`."""

from __future__ import annotations

from tracegrad.torch_api.random_numbers import default_generator, get_rng_state, manual_seed, set_rng_state

__all__ = ["default_generator", "get_rng_state", "manual_seed", "set_rng_state"]
