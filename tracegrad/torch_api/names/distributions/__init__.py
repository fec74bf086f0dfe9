"""torch.distributions' modules with names that tracegrad has no need of."""
