"""Fourier transforms as kernels: how they are composed (transforms.py), and the operations of one kernel (lines_gpu.py, vectors_cpu.py)."""
