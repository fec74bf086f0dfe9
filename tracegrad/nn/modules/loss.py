"""Losses: each is a function and its arguments. Start at `_Loss`."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import with_older_reduction
from tracegrad.nn.modules.distance import PairwiseDistance
from tracegrad.nn.modules.function import FunctionModule
from tracegrad.tensors.tensor import Tensor


class _Loss(FunctionModule):
    """Base of losses: `reduction` is "mean", "sum" or "none"."""

    shown = ()

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls) and cls.__module__ == __name__:               # of a user's loss arguments are its own
            cls.__init__ = with_older_reduction(cls.__init__)  # type: ignore[method-assign]
        super().__init_subclass__()

    @with_older_reduction
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(f"{type(self).__name__}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]    # of two tensors, as torch's
        return self._of(input, target)


class MSELoss(_Loss):
    """(input - target)². Of the shapes and dtypes of nn.functional.mse_loss; raises what that raises.

    >>> nn.MSELoss()(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "mse_loss"


class L1Loss(_Loss):
    """|input - target|. Of the shapes and dtypes of nn.functional.l1_loss; raises what that raises.

    >>> nn.L1Loss()(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "l1_loss"


class NLLLoss(_Loss):
    """Minus the log-probability of the target class; input: log-probabilities (N, C, *). weight: (C), a factor per class, a buffer.

    Of the shapes and dtypes of nn.functional.nll_loss; raises what that raises.

    >>> nn.NLLLoss()(tg.tensor([[-1.0, -0.5]]), tg.tensor([1]))
    """

    function = "nll_loss"

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index


class CrossEntropyLoss(_Loss):
    """Minus the log of the softmax probability of the target; input: logits (N, C, *), target: class numbers (N, *) or probabilities.

    weight: (C), a factor per class, kept as a buffer. Of the shapes and dtypes of nn.functional.cross_entropy; raises what that raises.

    >>> nn.CrossEntropyLoss()(tg.tensor([[1.0, 2.0, 0.5]]), tg.tensor([1]))
    """

    function = "cross_entropy"

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of sigmoid(input), without overflow. weight, pos_weight: factors of each element, of the positive ones.

    Of the shapes and dtypes of nn.functional.binary_cross_entropy_with_logits; raises what that raises.

    >>> nn.BCEWithLogitsLoss()(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "binary_cross_entropy_with_logits"

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)


class BCELoss(_Loss):
    """Binary cross-entropy of probabilities. weight: a factor of each element, a buffer.

    Of the shapes and dtypes of nn.functional.binary_cross_entropy; raises what that raises.

    >>> nn.BCELoss()(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "binary_cross_entropy"

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class SmoothL1Loss(_Loss):
    """(input - target)² / (2 beta) where |input - target| is below beta, else |input - target| - beta / 2.

    Of the shapes and dtypes of nn.functional.smooth_l1_loss; raises what that raises.

    >>> nn.SmoothL1Loss()(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "smooth_l1_loss"

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta


class HuberLoss(_Loss):
    """(input - target)² / 2 where |input - target| is at most delta, else delta (|input - target| - delta / 2) (Huber 1964).

    Of the shapes and dtypes of nn.functional.huber_loss; raises what that raises.

    >>> nn.HuberLoss()(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "huber_loss"

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not isinstance(delta, (float, int)):
            raise TypeError(f"HuberLoss: delta must be a float or int, got: {type(delta)}")
        self.delta = delta


class KLDivLoss(_Loss):
    """target (log target - input), for input in log space; log_target: target is, too. reduction "batchmean": sum / batch size.

    Of the shapes and dtypes of nn.functional.kl_div; raises what that raises.

    >>> nn.KLDivLoss(reduction="sum")(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "kl_div"

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__("sum" if reduction == "batchmean" else reduction)
        self.reduction, self.log_target = reduction, log_target


class PoissonNLLLoss(_Loss):
    """exp(input) - target input (log_input=False: input - target log(input + eps)); full: with Stirling's term, for targets above 1.

    Of the shapes and dtypes of nn.functional.poisson_nll_loss; raises what that raises.

    >>> nn.PoissonNLLLoss()(tg.tensor([0.5, 0.2]), tg.tensor([1.0, 0.0]))
    """

    function = "poisson_nll_loss"

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps


class GaussianNLLLoss(_Loss):
    """(log(var) + (input - target)² / var) / 2, of (input, target, var); var at least eps. full: + log(2 pi) / 2.

    Of the shapes and dtypes of nn.functional.gaussian_nll_loss; raises what that raises.

    >>> nn.GaussianNLLLoss()(tg.ones(2), tg.zeros(2), tg.ones(2))
    """

    function = "gaussian_nll_loss"

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:  # type: ignore[override]
        return self._of(input, target, var)


class MarginRankingLoss(_Loss):
    """max(0, -target (input1 - input2) + margin), of (input1, input2, target), target 1 or -1.

    Of the shapes and dtypes of nn.functional.margin_ranking_loss; raises what that raises.

    >>> nn.MarginRankingLoss()(tg.ones(2), tg.zeros(2), tg.ones(2))
    """

    function = "margin_ranking_loss"

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return self._of(input1, input2, target)


class HingeEmbeddingLoss(_Loss):
    """input where target is 1, max(0, margin - input) where it is -1.

    Of the shapes and dtypes of nn.functional.hinge_embedding_loss; raises what that raises.

    >>> nn.HingeEmbeddingLoss()(tg.ones(2), tg.tensor([1.0, -1.0]))
    """

    function = "hinge_embedding_loss"

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class CosineEmbeddingLoss(_Loss):
    """1 - cos(input1, input2) where target is 1, max(0, cos - margin) where it is -1, of (input1, input2, target).

    Of the shapes and dtypes of nn.functional.cosine_embedding_loss; raises what that raises.

    >>> nn.CosineEmbeddingLoss()(tg.ones(2, 3), tg.ones(2, 3), tg.ones(2))
    """

    function = "cosine_embedding_loss"

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return self._of(input1, input2, target)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target input)), target 1 or -1. Of the shapes and dtypes of nn.functional.soft_margin_loss; raises what that raises.

    >>> nn.SoftMarginLoss()(tg.ones(2), tg.tensor([1.0, -1.0]))
    """

    function = "soft_margin_loss"


class MultiLabelMarginLoss(_Loss):
    """The sum of max(0, 1 - x[t] + x[i]) over a sample's labels t (up to the first -1) and all other classes i, over their number.

    Of the shapes and dtypes of nn.functional.multilabel_margin_loss; raises what that raises.

    >>> nn.MultiLabelMarginLoss()(tg.ones(3), tg.tensor([1, -1, 0]))
    """

    function = "multilabel_margin_loss"


class MultiLabelSoftMarginLoss(_Loss):
    """The mean over classes of binary cross-entropies of logits with targets 0 or 1, times weight (C), a buffer.

    Of the shapes and dtypes of nn.functional.multilabel_soft_margin_loss; raises what that raises.

    >>> nn.MultiLabelSoftMarginLoss()(tg.ones(2, 3), tg.ones(2, 3))
    """

    function = "multilabel_soft_margin_loss"

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class MultiMarginLoss(_Loss):
    """The sum over the other classes of max(0, margin - x[target] + x[i])^p, over their number, times weight[target], a buffer.

    Of the shapes and dtypes of nn.functional.multi_margin_loss; raises what that raises.

    >>> nn.MultiMarginLoss()(tg.ones(2, 3), tg.tensor([0, 1]))
    """

    function = "multi_margin_loss"

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.p, self.margin = p, margin


class TripletMarginLoss(_Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d the p-norm; swap: d(positive, negative) where that is smaller.

    Of the shapes and dtypes of nn.functional.triplet_margin_loss; raises what that raises.

    >>> nn.TripletMarginLoss()(tg.zeros(2, 3), tg.ones(2, 3), tg.ones(2, 3))
    """

    function = "triplet_margin_loss"

    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:  # type: ignore[override]
        return self._of(anchor, positive, negative)


class TripletMarginWithDistanceLoss(_Loss):
    """TripletMarginLoss with a distance of one's own: a function of two tensors (the Euclidean one if None).

    Of the shapes and dtypes of nn.functional.triplet_margin_with_distance_loss; raises what that raises.

    >>> nn.TripletMarginWithDistanceLoss()(tg.zeros(2, 3), tg.ones(2, 3), tg.ones(2, 3))
    """

    function = "triplet_margin_with_distance_loss"

    def __init__(self, *, distance_function: Any = None, margin: float = 1.0, swap: bool = False, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.margin, self.swap = margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:  # type: ignore[override]
        return self._of(anchor, positive, negative)


class CTCLoss(_Loss):
    """Minus the log-probability of label sequences over all alignments (Graves et al. 2006): (log_probs, targets, their lengths).

    Of the shapes and dtypes of nn.functional.ctc_loss; raises what that raises.

    >>> nn.CTCLoss()(tg.zeros(4, 1, 3), tg.tensor([[1, 2]]), [4], [2])
    """

    function = "ctc_loss"

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:  # type: ignore[override]
        return self._of(log_probs, targets, input_lengths, target_lengths)
