"""What kinds of kernels there are (`grouping`), which nodes become which (`fusion`, by `access_maps`), what is computed twice rather
than stored (`rematerialization`), what is written in place (`donation`), what the host computes (`host_scalars`)."""
