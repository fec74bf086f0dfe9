"""Tables of rows that are looked up by integer index."""

from __future__ import annotations

from typing import Any

from tracegrad.creation import empty
from tracegrad.errors import ArgumentError
from tracegrad.modes import no_grad
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.tensor import Tensor


class Embedding(Module):
    """A table (num_embeddings, embedding_dim) of rows looked up by integer index: (*) -> (*, embedding_dim). Rows start standard normal.

    padding_idx: a row that starts as zeros and gets no gradient.
    """

    weight: Parameter

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"Embedding: padding_idx {padding_idx} is not among the {num_embeddings} rows")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
