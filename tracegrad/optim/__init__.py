"""Optimizers and learning-rate schedulers with torch's names and meanings. Start at `optimizer.Optimizer.step`; a file for each family."""

from __future__ import annotations

from tracegrad.optim import lr_scheduler, swa_utils
from tracegrad.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from tracegrad.optim.adaptive import Adadelta, Adagrad, RMSprop
from tracegrad.optim.lbfgs import LBFGS
from tracegrad.optim.matrix import Adafactor, Muon
from tracegrad.optim.optimizer import Optimizer, ParamGroup
from tracegrad.optim.sgd import ASGD, SGD, Rprop

__all__ = ["ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "Optimizer",
           "ParamGroup", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils"]
