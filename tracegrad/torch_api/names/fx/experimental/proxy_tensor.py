"""torch.fx.experimental.proxy_tensor: no such mode is on."""

from __future__ import annotations


def get_proxy_mode() -> None:
    """None: graphs are recorded by `trace` and `torch.fx`."""
