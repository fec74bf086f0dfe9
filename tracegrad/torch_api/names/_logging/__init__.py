"""torch._logging: what torch's compiler, which does not run here, would print."""

from typing import Any


def set_logs(**_: Any) -> None:
    """Nothing. `TRACEGRAD_DEBUG=1` prints what is compiled here."""
