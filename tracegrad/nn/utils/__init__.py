"""Helpers on parameters and sequences, torch.nn.utils' names."""

from __future__ import annotations

from tracegrad.nn.utils import parametrizations, parametrize, rnn
from tracegrad.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, get_total_norm
from tracegrad.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from tracegrad.nn.utils.stateless import functional_call

__all__ = ["clip_grad_norm_", "clip_grad_value_", "functional_call", "get_total_norm", "parameters_to_vector", "parametrizations",
           "parametrize", "rnn", "vector_to_parameters"]
