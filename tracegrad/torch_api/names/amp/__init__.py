"""torch.amp, beside what tracegrad.amp has."""
