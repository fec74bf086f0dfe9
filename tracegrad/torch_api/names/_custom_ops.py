"""torch._custom_ops, the older name of `torch.library`'s functions."""

from __future__ import annotations

from tracegrad.torch_api.names.library import custom_op, register_fake

__all__ = ["custom_op", "impl_abstract"]

impl_abstract = register_fake
