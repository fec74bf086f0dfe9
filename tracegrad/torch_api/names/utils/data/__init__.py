"""torch.utils.data, beside what tracegrad.utils.data has."""
