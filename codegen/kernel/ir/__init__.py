"""The kernel IR: expressions, statements, kernels, and their text."""
