"""Many small matrices, side by side: factorizations, eigenvalues, exponentials."""
