"""torch.utils.data._utils.worker: what programs that start workers of their own seed NumPy with."""

from __future__ import annotations

import numpy as np

from tracegrad.utils.data import get_worker_info as get_worker_info


def _generate_state(base_seed: int, worker_id: int) -> list[int]:
    """Four words of 32 bits for a worker, as torch has them: NumPy's SeedSequence."""
    words = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return [int(word) for word in np.random.SeedSequence(words).generate_state(4)]
