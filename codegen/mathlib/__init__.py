"""The functions that kernels call, as OpenCL C. Start at `library`; the other files are its templates and tables."""
