"""Optimizers and learning-rate schedulers with torch's names and meanings. Start at `optimizer.Optimizer.step`; a file for each family."""

from __future__ import annotations

from tracegrad.optim import lr_scheduler, swa_utils
from tracegrad.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from tracegrad.optim.adaptive import Adadelta, Adagrad, RMSprop
from tracegrad.optim.lbfgs import LBFGS
from tracegrad.optim.matrix import Adafactor, Muon
from tracegrad.optim.optimizer import Optimizer
from tracegrad.optim.param_group import ParamGroup
from tracegrad.optim.sgd import ASGD, SGD, Rprop

__all__ = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "Optimizer", "ParamGroup",
           "RAdam", "RMSprop", "Rprop", "SGD", "lr_scheduler", "swa_utils"]
