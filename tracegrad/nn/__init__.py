"""Layers, losses, initial values and saved models, with torch's names: `from tracegrad import nn`."""

from __future__ import annotations

from tracegrad.nn import functional, init, modules, parallel, utils
from tracegrad.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from tracegrad.nn.module import Module
from tracegrad.nn.modules import *
from tracegrad.nn.parameter import Buffer, Parameter, UninitializedParameter
from tracegrad.nn.saving import load_file, save_file

__all__ = ["Buffer", "Module", "ModuleDict", "ModuleList", "Parameter", "ParameterDict", "ParameterList", "Sequential",
           "UninitializedParameter", "functional", "init", "load_file", "modules", "parallel", "save_file", "utils"]
__all__ += modules.__all__
__all__.sort()
