"""Fourier transforms as kernels: how they are composed (transforms.py), and the operation of one kernel (lines.py)."""
