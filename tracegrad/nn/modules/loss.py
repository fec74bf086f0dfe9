"""Losses: each is a function and its arguments. Start at `_Loss`."""

from __future__ import annotations

from typing import ClassVar

from tracegrad.errors import ArgumentError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.tensor import Tensor


class _Loss(Module):
    """Base of losses: `reduction` is "mean", "sum" or "none"."""

    function: ClassVar[str] = ""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(f"{type(self).__name__}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return getattr(F, self.function)(input, target, reduction=self.reduction)  # type: ignore[no-any-return]


class MSELoss(_Loss):
    """(input - target)²."""

    function = "mse_loss"


class L1Loss(_Loss):
    """|input - target|."""

    function = "l1_loss"


class NLLLoss(_Loss):
    """Minus the log-probability of the target class; input: log-probabilities (N, C, *). weight: (C), a factor per class, a buffer."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class CrossEntropyLoss(_Loss):
    """Minus the log of the softmax probability of the target; input: logits (N, C, *), target: class numbers (N, *) or probabilities.

    weight: (C), a factor per class, kept as a buffer.
    """

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of sigmoid(input), without overflow. weight, pos_weight: factors of each element, of the positive ones."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight)


class BCELoss(_Loss):
    """Binary cross-entropy of probabilities. weight: a factor of each element, a buffer."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class SmoothL1Loss(_Loss):
    """(input - target)² / (2 beta) where |input - target| is below beta, else |input - target| - beta / 2."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """(input - target)² / 2 where |input - target| is at most delta, else delta (|input - target| - delta / 2) (Huber 1964)."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


class KLDivLoss(_Loss):
    """target (log target - input), for input in log space; log_target: target is, too. reduction "batchmean": sum / batch size."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__("sum" if reduction == "batchmean" else reduction)
        self.reduction, self.log_target = reduction, log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(input, target, self.reduction, self.log_target)
