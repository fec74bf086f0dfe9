"""torch._dynamo.utils."""

from __future__ import annotations

from typing import Any


def is_compile_supported(device_type: Any) -> bool:
    """False: torch's compiler is not here."""
    return False
