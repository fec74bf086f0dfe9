"""Discrete Fourier transforms (`tg.fft`) and spectrograms."""

from tracegrad.ops.fourier import spectrogram, transforms

__all__ = ["spectrogram", "transforms"]
