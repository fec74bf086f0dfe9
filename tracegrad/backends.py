"""torch.backends' names that programs set or ask before they start: of libraries that are not used here.

Their switches may be set as in torch, and change nothing: results are the same at every run without them.
"""

from __future__ import annotations

from typing import Any


class Backend:
    """A library of torch's. Only the switches that it has can be set."""

    _name: str

    def __init__(self, name: str, **switches: bool) -> None:
        vars(self).update(_name=name, **switches)

    def is_available(self) -> bool:
        """False."""
        return False

    is_built = is_available

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name not in vars(self):
            raise AttributeError(f"backends.{self._name} has no switch {name!r}, only {', '.join(n for n in vars(self) if n[0] != '_')}")
        vars(self)[name] = value

    def __repr__(self) -> str:
        return f"<backends.{self._name}: not used here>"


cudnn = Backend("cudnn", enabled=False, benchmark=False, deterministic=False, allow_tf32=False)
mps = Backend("mps")
cuda = Backend("cuda")
