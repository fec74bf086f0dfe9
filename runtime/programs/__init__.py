"""From OpenCL C text to built kernels: programs, the processes that build them, several kernels as one. Start at `program.kernels`."""
