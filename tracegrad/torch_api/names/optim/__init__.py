"""torch.optim's modules with names that tracegrad has no need of."""

from tracegrad.torch_api.names.optim import optimizer as _optimizer  # noqa: F401  (what it gives `Optimizer`)
