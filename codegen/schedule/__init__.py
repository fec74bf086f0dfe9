"""Which nodes become which kernels (`grouping`), what is computed twice rather than stored (`recompute`), what is written in
place (`donation`), what the host computes (`host_scalars`)."""
