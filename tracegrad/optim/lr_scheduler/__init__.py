"""Learning-rate schedulers, torch.optim.lr_scheduler's names. Start at `base.LRScheduler`.

`step()` once per epoch (or batch) sets the learning rate of every group. Most compute it from the present one, so that several can act on
one optimizer. A traced step reads the learning rate at every call: no scheduler compiles anything, nor does one that moves the momentum.
"""

from __future__ import annotations

from tracegrad.optim.lr_scheduler.base import LRScheduler
from tracegrad.optim.lr_scheduler.combined import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from tracegrad.optim.lr_scheduler.cyclic import CosineAnnealingLR, CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from tracegrad.optim.lr_scheduler.epochs import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = ["ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LRScheduler",
           "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR",
           "StepLR"]
