"""Fourier transforms in local memory: the kernel (lines.py), and a few points in registers (butterflies.py)."""
