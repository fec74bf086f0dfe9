"""Tables of rows that are looked up by integer index."""

from __future__ import annotations

from typing import Any

from tracegrad.creation import empty
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.modes import no_grad
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.operators import PUBLIC
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


class EmbeddingBag(Module):
    """Sums, means or largest elements of bags of rows of a table: (B, N) -> (B, embedding_dim), or of a flat (total) cut at `offsets`.

    mode: "mean", "sum" or "max". padding_idx: a row that counts in no bag and gets no gradient. include_last_offset: offsets ends with the
    total. A bag of nothing is zeros.

    >>> bag = nn.EmbeddingBag(10, 3, mode="sum")
    >>> y = bag(tg.tensor([1, 2, 4, 5, 4]), offsets=[0, 2])        # (2, 3): rows 1 + 2, and 4 + 5 + 4
    """

    weight: Parameter

    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str = "mean", include_last_offset: bool = False,
                 padding_idx: int | None = None, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if mode not in ("mean", "sum", "max"):
            raise ArgumentError(f"EmbeddingBag: mode must be 'mean', 'sum' or 'max', got {mode!r}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"EmbeddingBag: padding_idx {padding_idx} is not among the {num_embeddings} rows")
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    def forward(self, input: Tensor, offsets: Any = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """input: (B, N), or (total) with offsets, where each bag begins (a list or a tensor, which is read, so not inside @trace).

        per_sample_weights: a factor for each row, shaped like input; for mode "sum" only.
        """
        if (input.ndim == 2) == (offsets is not None) or input.ndim not in (1, 2):
            raise ShapeError(f"EmbeddingBag: input must be (B, N) without offsets or (total) with them, got {input.shape} and "
                             f"{'no ' if offsets is None else ''}offsets")
        if per_sample_weights is not None and (self.mode != "sum" or per_sample_weights.shape != input.shape):
            raise ArgumentError(f"EmbeddingBag: per_sample_weights are for mode 'sum' and of the input's shape {input.shape}, got "
                                f"{per_sample_weights.shape} and mode {self.mode!r}")
        filled: Any = None                              # which places hold a row; None for all
        if offsets is not None:
            starts = [int(n) for n in (offsets.tolist() if isinstance(offsets, Tensor) else offsets)]
            ends = starts[1:] if self.include_last_offset else [*starts[1:], input.shape[0]]
            starts = starts[:len(ends)]
            if starts[:1] != [0] or any(a > b for a, b in zip(starts, ends, strict=True)) or ends[-1] > input.shape[0]:
                raise ArgumentError(f"EmbeddingBag: offsets must rise from 0 to at most {input.shape[0]}, got {starts}")
            longest = max(1, *(b - a for a, b in zip(starts, ends, strict=True)))
            places = [[a + k if a + k < b else -1 for k in range(longest)] for a, b in zip(starts, ends, strict=True)]
            table = PUBLIC["tensor"](places, device=input.device)
            filled = table >= 0
            inside = table.clamp(min=0)
            input, per_sample_weights = input[inside], None if per_sample_weights is None else per_sample_weights[inside]
        if self.padding_idx is not None:
            kept = input != self.padding_idx
            filled = kept if filled is None else filled & kept
        rows: Any = F.embedding(input, self.weight, self.padding_idx)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if filled is None:
            return rows.amax(1) if self.mode == "max" else rows.sum(1) if self.mode == "sum" else rows.mean(1)  # type: ignore[no-any-return]
        filled = filled.unsqueeze(-1)
        if self.mode == "max":
            largest = PUBLIC["where"](filled, rows, float("-inf")).amax(1)
            return PUBLIC["where"](filled.any(1), largest, 0.0)  # type: ignore[no-any-return]
        total = PUBLIC["where"](filled, rows, 0.0).sum(1)
        if self.mode == "sum":
            return total  # type: ignore[no-any-return]
        return total / filled.to(dtype=rows.dtype).sum(1).clamp(min=1.0)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}{padding}"
