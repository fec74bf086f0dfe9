"""torch.compile(model, backend="tracegrad"): graphs of aten operators that run as traced programs. Start at `compiler.backend`.

torch finds `backend` by the entry point `torch_dynamo_backends`. Nothing of tracegrad imports this package, and torch is imported when it
is called.
"""

from __future__ import annotations

from tracegrad.torch_backend.compiler import backend

__all__ = ["backend"]
