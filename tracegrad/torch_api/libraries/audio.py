"""torchaudio's library: the loops that its filters need. Its alignments and losses are not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.tensors.tensor import Tensor, from_array


def _recursive_filter(waveform: Tensor, a_flipped: Tensor, padded: Tensor) -> None:
    """y[t] = x[t] - sum_k a[k] y[t - k], into padded (N, channels, order - 1 + time). x: (N, channels, time); a: (channels, order)."""
    x, a, y = waveform.detach().numpy(), a_flipped.detach().numpy(), padded.detach().numpy().copy()
    order = a.shape[1]
    for t in range(x.shape[2]):
        y[:, :, t + order - 1] = x[:, :, t] - (y[:, :, t:t + order] * a).sum(-1)
    padded.copy_(from_array(y, padded.device))


def _overdrive(waveform: Tensor, distorted: Tensor, last_in: Tensor, last_out: Tensor, output: Tensor) -> None:
    """A high-pass filter of `distorted`, mixed with the waveform, into output. All are (channels, time), the last ones (channels,)."""
    x, temp, y = waveform.detach().numpy(), distorted.detach().numpy(), output.detach().numpy().copy()
    before, filtered = last_in.detach().numpy(), last_out.detach().numpy()
    for t in range(x.shape[1]):
        filtered = temp[:, t] - before + 0.995 * filtered
        before = temp[:, t]
        y[:, t] = x[:, t] * 0.5 + filtered * 0.75
    output.copy_(from_array(y, output.device))


OPERATIONS: dict[str, Callable[..., Any]] = {"_torchaudio::cuda_version": lambda: None, "_torchaudio::is_align_available": lambda: False,
              "torchaudio::_lfilter_core_loop": _recursive_filter, "torchaudio::_overdrive_core_loop": _overdrive}
