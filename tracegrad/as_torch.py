"""`import tracegrad.as_torch` before anything else, and `import torch` gives tracegrad's names in this process: see `torch_api`."""

from __future__ import annotations

from tracegrad.torch_api.hook import install

__all__ = ["install"]

install()
