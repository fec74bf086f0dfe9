"""Fourier transforms: in local memory (lines_gpu.py, where those of vectors are sent on), by a CPU's vectors (vectors_cpu.py); a few points
in registers are butterflies.py.
"""
