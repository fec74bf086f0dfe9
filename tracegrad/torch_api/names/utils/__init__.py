"""torch.utils' names that are not in `tracegrad.utils`."""
