"""Losses that hold layers: `AdaptiveLogSoftmaxWithLoss`, for very many classes, and `LinearCrossEntropyLoss`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.nn import functional as F
from tracegrad.nn.containers import ModuleList, Sequential
from tracegrad.nn.module import Module
from tracegrad.nn.modules.linear import Linear
from tracegrad.ops.arguments import integer, only_tensors
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.tensors.tensor import Tensor


class AdaptiveOutput(NamedTuple):
    """What AdaptiveLogSoftmaxWithLoss returns."""

    output: Any
    loss: Any


class AdaptiveLogSoftmaxWithLoss(Module):
    """A softmax over classes in clusters, the frequent ones first (Grave et al. 2017): forward(input, target) -> (output, loss).

    input (N, in_features) or (in_features), target (N) or () from 0 to n_classes - 1; output: the targets' log-probabilities (N);
    loss: minus their mean. cutoffs: where clusters begin, ascending, below n_classes. Cluster k has in_features / div_value**k features.
    Every cluster is computed for every row (torch looks which are needed), so it traces. dtype: float, of targets int64.
    Raises ArgumentError for other cutoffs, ShapeError and DTypeError for other inputs and targets, IndexOutOfRange for another class.

    >>> loss = nn.AdaptiveLogSoftmaxWithLoss(16, 1000, [10, 100])(tg.randn(5, 16), tg.randint(0, 1000, (5,))).loss
    """

    def __init__(self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        limits = [integer("AdaptiveLogSoftmaxWithLoss", "a cutoff", c) for c in cutoffs]
        if not limits or limits != sorted(set(limits)) or limits[0] <= 0 or limits[-1] > n_classes - 1:
            raise ArgumentError("AdaptiveLogSoftmaxWithLoss: cutoffs must be ascending integers, at least one, from 1 to "
                                f"n_classes - 1 = {n_classes - 1}, got {list(cutoffs)}")
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*limits, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = limits[0], len(limits)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, device=device, dtype=dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            inner, size = int(in_features // div_value ** (i + 1)), self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(Sequential(Linear(in_features, inner, bias=False, device=device, dtype=dtype),
                                        Linear(inner, size, bias=False, device=device, dtype=dtype)))

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        self.head.reset_parameters()
        for cluster in self.tail:
            for layer in cluster:
                layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> AdaptiveOutput:
        only_tensors("AdaptiveLogSoftmaxWithLoss", input_=input_, target_=target_)
        if target_.ndim > 1 or input_.ndim != target_.ndim + 1 or input_.shape[:-1] != target_.shape:
            raise ShapeError(f"AdaptiveLogSoftmaxWithLoss: takes an input (N, {self.in_features}) and a target (N), or "
                             f"({self.in_features}) and (), got {input_.shape} and {target_.shape}")
        chosen = in_range(target_._node(), self.n_classes, "AdaptiveLogSoftmaxWithLoss", "target", f"{self.n_classes} classes")
        target = input_._tensor_of(chosen).unsqueeze(-1)
        head = F.log_softmax(self.head(input_), dim=-1)
        place, added = target, None
        for i, (low, high) in enumerate(zip(self.cutoffs[:-1], self.cutoffs[1:], strict=True)):
            inside = (target >= low) & (target < high)
            place = PUBLIC["where"](inside, self.shortlist_size + i, place)
            within = F.log_softmax(self.tail[i](input_), dim=-1).gather(-1, (target - low).clamp(0, high - low - 1))
            share = PUBLIC["where"](inside, within, 0.0)
            added = share if added is None else added + share
        output = (head.gather(-1, place) + added).squeeze(-1)
        return AdaptiveOutput(output, -output.mean())

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities of all classes, (N, n_classes)."""
        head = F.log_softmax(self.head(input), dim=-1)
        parts = [head[..., :self.shortlist_size]]
        for i, cluster in enumerate(self.tail):
            parts.append(F.log_softmax(cluster(input), dim=-1) + head[..., self.shortlist_size + i].unsqueeze(-1))
        return PUBLIC["cat"](parts, -1)  # type: ignore[no-any-return]

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class of each row, (N); as in torch that of the shortlist, where the head prefers one to all clusters."""
        best = self.head(input).argmax(-1)
        return PUBLIC["where"](best < self.shortlist_size, best, self.log_prob(input).argmax(-1))  # type: ignore[no-any-return]


class LinearCrossEntropyLoss(Module):
    """Cross entropy of a linear layer's outputs: nn.functional.linear_cross_entropy with weights of its own.

    The logits are (N, num_classes, *out_features). weight, reduction, ignore_index, label_smoothing: as of nn.CrossEntropyLoss.
    dtype: float, of targets int64. Raises ArgumentError for another reduction, ShapeError for an input of another size.

    >>> nn.LinearCrossEntropyLoss(16, 10)(tg.randn(5, 16), tg.randint(0, 10, (5,)))
    """

    weight: Tensor | None

    def __init__(self, in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (), bias: bool = False, device: Any = None,
                 dtype: Any = None, reduction: str = "mean", weight: Tensor | None = None, ignore_index: int | None = None,
                 label_smoothing: float = 0.0, options: None = None) -> None:
        super().__init__()
        if weight is not None and weight.shape != (num_classes,):
            raise ShapeError(f"LinearCrossEntropyLoss: weight must be of shape {(num_classes,)}, got {weight.shape}")
        if not 0 <= label_smoothing <= 1:
            raise ArgumentError(f"LinearCrossEntropyLoss: label_smoothing must be from 0 to 1, got {label_smoothing}")
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(f"LinearCrossEntropyLoss: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.num_classes, self.out_features, self.reduction = num_classes, tuple(out_features), reduction
        self.ignore_index, self.label_smoothing, self.options = ignore_index, label_smoothing, options
        self.register_buffer("weight", weight)
        self.linear = Linear(in_features, math.prod(self.out_features, start=num_classes), bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        shape = (self.num_classes, *self.out_features)
        bias = None if self.linear.bias is None else self.linear.bias.reshape(shape)
        return F.linear_cross_entropy(input, self.linear.weight.reshape(*shape, self.linear.in_features), target, linear_bias=bias,
                                      weight=self.weight, reduction=self.reduction, ignore_index=self.ignore_index,
                                      label_smoothing=self.label_smoothing, options=self.options)

    def extra_repr(self) -> str:
        return (f"in_features={self.linear.in_features}, num_classes={self.num_classes}, out_features={self.out_features}, "
                f"bias={self.linear.bias is not None}, reduction={self.reduction}, ignore_index={self.ignore_index}, "
                f"label_smoothing={self.label_smoothing}")
