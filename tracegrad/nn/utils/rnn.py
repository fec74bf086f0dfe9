"""Sequences of different lengths in one batch, torch.nn.utils.rnn's names: padded tensors and packed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.tensors.tensor import Tensor, from_own


class PackedSequence(NamedTuple):
    """Sequences without their padding: the first step of each, from the longest sequence to the shortest, then the second, ...

    data: (the sum of all lengths, *). batch_sizes: how many sequences have a first step, a second, ... sorted_indices: which sequence
    of the batch stands at each place, None if they were sorted already; unsorted_indices: the inverse. All but data are Python numbers:
    they decide what is computed, so a traced function takes them as static.
    """

    data: Tensor
    batch_sizes: tuple[int, ...]
    sorted_indices: tuple[int, ...] | None = None
    unsorted_indices: tuple[int, ...] | None = None

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With its data on another device or of another dtype, as `Tensor.to` takes them."""
        return self._replace(data=self.data.to(*args, **kwargs))

    def lengths(self) -> list[int]:
        """The length of each sequence, in the order of the batch."""
        longest_first = [sum(size > k for size in self.batch_sizes) for k in range(self.batch_sizes[0])]
        return longest_first if self.unsorted_indices is None else [longest_first[k] for k in self.unsorted_indices]


def _converted(name: str) -> Any:
    def convert(self: PackedSequence, *args: Any, **kwargs: Any) -> PackedSequence:
        return self._replace(data=getattr(self.data, name)(*args, **kwargs))

    convert.__name__, convert.__doc__ = name, f"With its data as `Tensor.{name}` gives it."
    return convert


for _name in ("cpu", "cuda", "double", "float", "half", "long", "int", "short", "char", "byte", "pin_memory"):
    setattr(PackedSequence, _name, _converted(_name))
for _name in ("is_cuda", "is_pinned"):
    setattr(PackedSequence, _name, property(attrgetter(f"data.{_name}")))


def pack_padded_sequence(input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False,
                         enforce_sorted: bool = True) -> PackedSequence:
    """The packed form of padded sequences.

    input: (L, N, *), or (N, L, *) with batch_first. lengths: N numbers from 1 to L, in a list or a tensor (not inside @trace).
    enforce_sorted: whether they must fall already; otherwise sequences are sorted, and unsorted again by `pad_packed_sequence`.
    Raises ShapeError if the numbers do not fit the input, ArgumentError if they should be sorted and are not.

    >>> packed = nn.utils.rnn.pack_padded_sequence(tg.randn(7, 3, 10), [7, 4, 2])
    """
    sizes = [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    x = input.transpose(0, 1) if batch_first else input
    if x.ndim < 2 or len(sizes) != x.shape[1] or not sizes or min(sizes) < 1 or max(sizes) > x.shape[0]:
        raise ShapeError(f"pack_padded_sequence: lengths {sizes} do not fit input {input.shape}: one number from 1 to the length for "
                         "each sequence")
    order = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    if enforce_sorted and order != list(range(len(sizes))):
        raise ArgumentError(f"pack_padded_sequence: lengths must fall with enforce_sorted=True, got {sizes}; pass enforce_sorted=False")
    batch_sizes = tuple(sum(n > t for n in sizes) for t in range(max(sizes)))
    rows = [t * len(sizes) + k for t, count in enumerate(batch_sizes) for k in order[:count]]
    data = x.reshape(-1, *x.shape[2:]).index_select(0, PUBLIC["tensor"](rows, device=x.device))
    if enforce_sorted:
        return PackedSequence(data, batch_sizes)
    return PackedSequence(data, batch_sizes, tuple(order), tuple(order.index(k) for k in range(len(order))))


def pad_packed_sequence(sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
                        total_length: int | None = None) -> tuple[Tensor, Tensor]:
    """The padded form (L, N, *), or (N, L, *) with batch_first, and the lengths (int64, in the order of the batch).

    total_length: L, if not the length of the longest. Raises ArgumentError if that is longer.
    """
    lengths = sequence.lengths()
    size = max(lengths) if total_length is None else total_length
    if size < max(lengths):
        raise ArgumentError(f"pad_packed_sequence: total_length {size} is below the longest sequence, {max(lengths)}")
    starts = [sum(sequence.batch_sizes[:t]) for t in range(len(sequence.batch_sizes))]
    places = sequence.unsorted_indices or range(len(lengths))
    rows = [[starts[t] + k if t < n else -1 for k, n in zip(places, lengths, strict=True)] for t in range(size)]
    data = sequence.data
    table = PUBLIC["tensor"](rows, device=data.device)
    flat = data.index_select(0, table.clamp(min=0).reshape(-1)).reshape(*table.shape, *data.shape[1:])
    filling = PUBLIC["full"]((), padding_value, dtype=data.dtype, device=data.device)       # (a number would make floats of integers)
    padded = PUBLIC["where"]((table >= 0).reshape(*table.shape, *[1] * (data.ndim - 1)), flat, filling)
    return padded.transpose(0, 1) if batch_first else padded, PUBLIC["tensor"](lengths)


def pad_sequence(sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right") -> Tensor:
    """Tensors (L_k, *) of different lengths as one, (L, N, *) or (N, L, *) with batch_first, filled up with padding_value.

    Raises ArgumentError for no tensors or another padding_side than "left" or "right", ShapeError if they differ in more than the length.
    """
    given: list[Any] = list(sequences)
    if not given or any(not isinstance(s, Tensor) for s in given):
        raise ArgumentError("pad_sequence: expected tensors, at least one")
    if padding_side not in ("left", "right"):
        raise ArgumentError(f"pad_sequence: padding_side must be 'left' or 'right', got {padding_side!r}")
    if any(s.ndim < 1 or s.shape[1:] != given[0].shape[1:] for s in given):
        raise ShapeError(f"pad_sequence: tensors may differ in their first dimension only, got {[s.shape for s in given]}")
    longest = max(s.shape[0] for s in given)
    if (known := _padded_at_once(given, longest, batch_first, padding_value, padding_side)) is not None:
        return known
    padded = []
    for s in given:
        filling = PUBLIC["full"]((longest - s.shape[0], *s.shape[1:]), padding_value, dtype=s.dtype, device=s.device)
        padded.append(PUBLIC["cat"]([s, filling] if padding_side == "right" else [filling, s], 0))
    return PUBLIC["stack"](padded, 0 if batch_first else 1)  # type: ignore[no-any-return]


def _padded_at_once(given: Sequence[Tensor], longest: int, batch_first: bool, value: float, side: str) -> Tensor | None:
    """`pad_sequence` of what NumPy holds all; else None. (Lengths differ from call to call, so no call would be known.)"""
    like, arrays = given[0], [s._held() for s in given]
    if any(a is None or a.dtype != arrays[0].dtype for a in arrays) or any(s._n.needs_grad or s.device is not like.device for s in given):
        return None
    sizes = (len(given), longest) if batch_first else (longest, len(given))
    padded: Tensor = PUBLIC["full"]((*sizes, *like.shape[1:]), value, dtype=like.dtype, device=like.device)
    if (filled := padded._held()) is None:
        return None
    made = filled.copy()
    rows = made if batch_first else made.swapaxes(0, 1)
    for row, array in zip(rows, arrays, strict=True):
        row[slice(len(array)) if side == "right" else slice(longest - len(array), None)] = array
    return from_own(made, like.device)


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """The packed form of tensors (L_k, *) of different lengths."""
    return pack_padded_sequence(pad_sequence(sequences), [s.shape[0] for s in sequences], enforce_sorted=enforce_sorted)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False) -> list[Tensor]:
    """The tensors (L_k, *) that `pad_sequence` made one of."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [row[:n] for row, n in zip(x, sizes, strict=True)]


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The tensors (L_k, *) that `pack_sequence` packed."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences, batch_first=True), batch_first=True)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The order that undoes an order of integers; None for None."""
    return None if permutation is None else permutation.argsort()


__all__ = ["PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence",
           "unpack_sequence", "unpad_sequence"]
