"""Helpers on parameters and sequences, torch.nn.utils' names."""

from __future__ import annotations

from tracegrad.nn.utils import parametrizations, parametrize, prune, rnn
from tracegrad.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from tracegrad.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from tracegrad.nn.utils.deprecated_norms import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from tracegrad.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights
from tracegrad.nn.utils.stateless import functional_call

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "functional_call", "fuse_conv_bn_eval", "fuse_conv_bn_weights",
           "fuse_linear_bn_eval", "fuse_linear_bn_weights", "get_total_norm", "parameters_to_vector", "parametrizations", "parametrize",
           "prune", "remove_spectral_norm", "remove_weight_norm", "rnn", "spectral_norm", "vector_to_parameters", "weight_norm"]
