"""Factorizations of large matrices on the device, block by block: Cholesky, LU, triangular systems."""
