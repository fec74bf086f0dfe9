"""Tables of rows that are looked up by integer index."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.filled import empty
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.tensors.tensor import Tensor


class _Table(Module):
    """What Embedding and EmbeddingBag have: a table of rows, and how they are looked up."""

    weight: Parameter
    shown: ClassVar[tuple[str, ...]] = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")        # in this order, unless default

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
                 norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Tensor | None = None,
                 _freeze: bool = False, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if sparse:
            raise ArgumentError(f"{type(self).__name__}: sparse=True is not supported: there are no sparse gradients; leave it out")
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = max_norm, norm_type, scale_grad_by_freq, sparse
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"{type(self).__name__}: padding_idx {padding_idx} is not among the {num_embeddings} rows")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        if _weight is not None:
            if _weight.shape != (num_embeddings, embedding_dim):
                raise ShapeError(f"{type(self).__name__}: _weight must be {(num_embeddings, embedding_dim)}, got {_weight.shape}")
            self.weight = Parameter(_weight, not _freeze)
            return
        self.weight = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype, device=device), not _freeze)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        init.normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def _fill_padding_idx_with_zero(self) -> None:
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, **options: Any) -> Any:
        """A layer with these rows (num_embeddings, embedding_dim), which are not trained if `freeze`. options: other arguments.

        >>> layer = nn.Embedding.from_pretrained(tg.eye(3))
        """
        if embeddings.ndim != 2:
            raise ShapeError(f"{cls.__name__}.from_pretrained: embeddings must be (num_embeddings, embedding_dim), got {embeddings.shape}")
        rows, size = embeddings.shape
        layer = cls(rows, size, padding_idx=padding_idx, device=embeddings.device, dtype=embeddings.dtype, **options)
        layer.weight = Parameter(embeddings, not freeze)
        return layer

    def extra_repr(self) -> str:
        defaults = dict(padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode=None)
        options = [f", {name}={value!r}" for name in self.shown if (value := getattr(self, name)) != defaults[name]]
        return f"{self.num_embeddings}, {self.embedding_dim}{''.join(options)}"


class Embedding(_Table):
    """A table (num_embeddings, embedding_dim) of rows looked up by integer index: (*) -> (*, embedding_dim). Rows start standard normal.

    padding_idx: a row that starts as zeros and gets no gradient. max_norm, norm_type, scale_grad_by_freq: as of nn.functional.embedding.
    Raises ArgumentError for sparse=True: gradients are dense. Of the shapes and dtypes of nn.functional.embedding; raises what that raises.

    >>> nn.Embedding(10, 3)(tg.tensor([1, 7])).shape
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq)


class EmbeddingBag(_Table):
    """Sums, means or largest elements of bags of rows of a table: (B, N) -> (B, embedding_dim), or of a flat (total) cut at `offsets`.

    mode: "mean", "sum" or "max". padding_idx: a row that counts in no bag and gets no gradient. include_last_offset: offsets ends with the
    total. A bag of nothing is zeros. Of the shapes and dtypes of nn.functional.embedding_bag; raises what that raises.

    >>> bag = nn.EmbeddingBag(10, 3, mode="sum")
    >>> y = bag(tg.tensor([1, 2, 4, 5, 4]), offsets=[0, 2])        # (2, 3): rows 1 + 2, and 4 + 5 + 4
    """

    shown = ("max_norm", "norm_type", "scale_grad_by_freq", "mode", "padding_idx")

    def __init__(self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
                 scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
                 include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None, dtype: Any = None) -> None:
        if mode not in ("mean", "sum", "max"):
            raise ArgumentError(f"EmbeddingBag: mode must be 'mean', 'sum' or 'max', got {mode!r}")
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight,
                         device=device, dtype=dtype)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, input: Tensor, offsets: Any = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """input: (B, N), or (total) with offsets, where each bag begins: a tensor, or a list, which is checked to rise from 0.

        per_sample_weights: a factor for each row, shaped like input; for mode "sum" only.
        """
        if isinstance(offsets, (list, tuple)):
            if [*offsets[:1]] != [0] or any(a > b for a, b in pairwise(offsets)) or offsets[-1] > input.shape[0]:
                raise ArgumentError(f"EmbeddingBag: offsets must rise from 0 to at most {input.shape[0]}, got {offsets}")
            offsets = tensor(offsets, device=input.device)
        return F.embedding_bag(input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, mode=self.mode,
                               per_sample_weights=per_sample_weights,
                               include_last_offset=self.include_last_offset, padding_idx=self.padding_idx)
