"""Intel's CPU driver, told that there are no work-items to join. Start at `one_item`.

It makes each kernel several times: as it is written, and for 4, 8 or 16 work-items side by side. Our kernels for CPUs have work-groups of
one item, with vectors of their own. Without the other versions a DCGAN's build takes 3.9 s of processor time instead of 10.6, a
convnet's 1.2 instead of 2.1, and calls as long as before (measured for 15 rows of `make bench`).
"""

from __future__ import annotations

import pyopencl as cl

from tracegrad.support.plan import required

_ONE = required((1, 1, 1))
_HINTED = f"__attribute__((intel_vec_len_hint(1))) {_ONE}"


def is_intel(device: cl.Device) -> bool:
    """Whether Intel's driver for CPUs is the driver."""
    return bool(device.type & cl.device_type.CPU) and "Intel" in device.platform.name


def one_item(source: str) -> str:
    """The text with that said of kernels that require work-groups of one item; its lines are those of before."""
    return source.replace(_ONE, _HINTED)
