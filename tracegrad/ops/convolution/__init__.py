"""Convolutions, pools and resampling: what looks at windows."""

from tracegrad.ops.convolution import convolution, convolution3d, max_pooling, pooling, resampling

__all__ = ["convolution", "convolution3d", "max_pooling", "pooling", "resampling"]
