"""Likeness and distance of vectors."""

from __future__ import annotations

from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.tensors.tensor import Tensor


class CosineSimilarity(Module):
    """x1·x2 / (max(|x1|, eps) max(|x2|, eps)) along dim.

    Of the shapes and dtypes of nn.functional.cosine_similarity; raises what that raises.

    >>> nn.CosineSimilarity(dim=0)(tg.tensor([3.0, 4.0]), tg.tensor([4.0, 3.0]))
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last dimension: (*, D), (*, D) -> (*), or (*, 1) with keepdim.

    Of the shapes and dtypes of nn.functional.pairwise_distance; raises what that raises.

    >>> nn.PairwiseDistance()(tg.tensor([3.0, 4.0]), tg.zeros(2))
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
