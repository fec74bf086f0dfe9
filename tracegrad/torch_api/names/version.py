"""torch.version: which torch has the names that are here, and no CUDA."""

from __future__ import annotations

from tracegrad.torch_api.requirements import VERSION as __version__

__all__ = ["__version__", "cuda", "debug", "git_version", "hip"]

cuda = hip = xpu = None
debug = False
git_version = "tracegrad"
