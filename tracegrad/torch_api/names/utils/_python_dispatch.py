"""torch.utils._python_dispatch: there are no tensors here that wrap others."""

from __future__ import annotations

from typing import Any


def is_traceable_wrapper_subclass(t: Any) -> bool:
    """False: no tensor holds others in its place."""
    return False


is_traceable_wrapper_subclass_type = is_traceable_wrapper_subclass
