"""Fourier transforms: which kernel does one (lower.py), in local memory (lines_gpu.py), by a CPU's vectors (vectors_cpu.py); few points,
in registers (butterflies.py).
"""
