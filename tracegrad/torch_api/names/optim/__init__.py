"""torch.optim's modules with names that tracegrad has no need of."""
