"""torch.utils._triton: kernels in Triton's language are not run here."""

from __future__ import annotations


def has_triton() -> bool:
    return False


has_triton_package = has_triton_tma = has_triton
