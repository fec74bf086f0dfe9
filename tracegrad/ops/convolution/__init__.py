"""Convolutions, pools and resampling: what looks at windows."""

from tracegrad.ops.convolution import adaptive_pooling, convolution, convolution3d, max_pooling, pooling, resampling

__all__ = ["adaptive_pooling", "convolution", "convolution3d", "max_pooling", "pooling", "resampling"]
