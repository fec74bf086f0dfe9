"""tracegrad beside torch eager and jax.jit. Start at `run.py`; one file a workload stands in `workloads/`."""
