"""What data sets do, one sample at a time: a few operations on few elements each, untraced, with indices and lengths that differ.

An iteration is COUNT samples. They are others each time, more than any cache of calls holds, as in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from benchmarks.workloads.base import Arrays, Iteration, Workload

COUNT, ROWS, LENGTH = 16, 4096, 64
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


class Samples(Workload):
    """`make`: what gives the results of the samples of these numbers. t: the framework, of which torch has the names."""

    def prepared(self, t: Any, **inputs: Any) -> Callable[[range], tuple[Any, ...]]:
        raise NotImplementedError

    def tracegrad(self, **inputs: Any) -> Iteration:
        import tracegrad as tg

        return self._iterate(self.prepared(tg, **inputs))

    def torch(self, **inputs: Any) -> Iteration:
        import torch
        import torch.utils.data

        return self._iterate(self.prepared(torch, **inputs))

    @staticmethod
    def _iterate(samples: Callable[[range], tuple[Any, ...]]) -> Iteration:
        starts: Iterator[int] = count(0, COUNT)

        def run() -> tuple[Any, ...]:
            start = next(starts) % ROWS
            return samples(range(start, start + COUNT))

        return run


def images(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.integers(0, 256, (rows, 32, 32, 3)).astype(np.uint8)


def lengths(sentences: np.ndarray) -> list[int]:
    """Of sentences, by their first words."""
    return [1 + int(n) % LENGTH for n in sentences[:, 0]]


class Rows(Samples):
    name, title = "sample-rows", "16 samples of a TensorDataset: a row of 32 features and a label each"

    def data(self, rng: np.random.Generator) -> Arrays:
        return {"x": rng.standard_normal((ROWS, 32), dtype=np.float32), "y": rng.integers(0, 10, ROWS)}

    def prepared(self, t, x, y):
        dataset = t.utils.data.TensorDataset(x, y)
        return lambda numbers: tuple([part for i in numbers for part in dataset[i]])

    def reference(self, x, y):
        return tuple([part for i in range(COUNT) for part in (x[i], y[i])])


class Values(Rows):
    name, title = "sample-values", "16 rows of 3 MB as NumPy arrays, and their labels as numbers"

    def data(self, rng: np.random.Generator) -> Arrays:
        return {"x": rng.standard_normal((ROWS, 192), dtype=np.float32), "y": rng.integers(0, 10, ROWS)}

    def prepared(self, t, x, y):
        def samples(numbers: range) -> tuple[Any, ...]:
            found = [(x[i].numpy(), y[i].item()) for i in numbers]
            return t.from_numpy(found[0][0]), t.tensor(sum(label for _, label in found))

        return samples

    def reference(self, x, y):
        return x[0], y[:COUNT].sum()


class Padded(Samples):
    name, title = "sample-padded", "16 sentences of up to 64 words: zeros, and a slice written"

    def data(self, rng: np.random.Generator) -> Arrays:
        return {"x": rng.integers(1, 1000, (ROWS, LENGTH))}

    def prepared(self, t, x):
        words = x.numpy()
        sentences = [row[:n].tolist() for row, n in zip(words, lengths(words), strict=True)]

        def padded(sentence: list[int]) -> Any:
            row = t.zeros(LENGTH, dtype=t.int64)
            row[:len(sentence)] = t.tensor(sentence)
            return row

        return lambda numbers: tuple([padded(sentences[i]) for i in numbers])

    def reference(self, x):
        return tuple([np.where(np.arange(LENGTH) < n, row, 0) for row, n in zip(x[:COUNT], lengths(x[:COUNT]), strict=True)])


class PaddedBatch(Padded):
    name, title = "sample-pad-sequence", "pad_sequence of 16 sentences of up to 64 words"

    def prepared(self, t, x):
        words = x.numpy()
        sentences = [t.from_numpy(row[:n].copy()) for row, n in zip(words, lengths(words), strict=True)]
        pad = t.nn.utils.rnn.pad_sequence
        return lambda numbers: (pad([sentences[i] for i in numbers], batch_first=True),)

    def reference(self, x):
        rows = np.stack(super().reference(x))
        return (rows[:, :max(lengths(x[:COUNT]))],)


class Images(Samples):
    name, title = "sample-images", "16 images of 32 x 32: bytes to floats, channels in front, normalized"

    def data(self, rng: np.random.Generator) -> Arrays:
        return {"x": images(rng, ROWS)}

    def prepared(self, t, x):
        arrays = [a.copy() for a in x.numpy()]
        mean, std = t.tensor(MEAN)[:, None, None], t.tensor(STD)[:, None, None]
        return lambda numbers: tuple([(t.from_numpy(arrays[i]).permute(2, 0, 1).float().div(255) - mean) / std for i in numbers])

    def reference(self, x):
        return tuple(((x[:COUNT].astype(np.float64) / 255 - MEAN) / STD).transpose(0, 3, 1, 2))


class Batches(Samples):
    """Four batches of so many images, which are there as floats."""

    tolerance = 0.0
    size: int

    def data(self, rng: np.random.Generator) -> Arrays:
        return {"x": rng.standard_normal((4 * self.size, 3, 32, 32), dtype=np.float32)}


class Stacked(Batches):
    name, title = "sample-stack", "64 images of 3 x 32 x 32, float32, stacked"
    size = 64

    def prepared(self, t, x):
        one_by_one = [t.from_numpy(a.copy()) for a in x.numpy()]
        batches = [one_by_one[k:k + 64] for k in range(0, len(one_by_one), 64)]
        return lambda numbers: (t.stack(batches[numbers.start // COUNT % len(batches)]),)

    def reference(self, x):
        return (x[:64],)


class Collated(Batches):
    name, title = "sample-collate", "default_collate of 32 images of 3 x 32 x 32 and their labels"
    size = 32

    def prepared(self, t, x):
        samples = [(t.from_numpy(a.copy()), k % 10) for k, a in enumerate(x.numpy())]
        batches = [samples[k:k + 32] for k in range(0, len(samples), 32)]
        collate = t.utils.data.default_collate
        return lambda numbers: tuple(collate(batches[numbers.start // COUNT % len(batches)]))

    def reference(self, x):
        return x[:32], np.arange(32) % 10


class Labels(Samples):
    name, title = "sample-labels", "16 labels and boxes: tensor(label), tensor([x, y, width, height])"

    def data(self, rng: np.random.Generator) -> Arrays:
        return {"y": rng.integers(0, 10, ROWS), "boxes": rng.random((ROWS, 4), dtype=np.float32)}

    def prepared(self, t, y, boxes):
        known = list(zip(y.numpy().tolist(), boxes.numpy().tolist(), strict=True))
        return lambda numbers: tuple([part for i in numbers for part in (t.tensor(known[i][0]), t.tensor(known[i][1]))])

    def reference(self, y, boxes):
        return tuple([part for i in range(COUNT) for part in (y[i], boxes[i])])


class Crops(Samples):
    name, title = "sample-crops", "16 random crops: two draws of randint, read by item(), and the part of the image"

    def data(self, rng: np.random.Generator) -> Arrays:
        return {"x": rng.standard_normal((3, 40, 40), dtype=np.float32)}

    def prepared(self, t, x):
        def crop() -> Any:
            i, j = t.randint(0, 9, (1,)).item(), t.randint(0, 9, (1,)).item()
            return x[:, i:i + 32, j:j + 32]

        return lambda numbers: tuple([crop() for _ in numbers])

    def view(self, results: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple([np.zeros(a.shape) for a in results])               # draws differ

    def reference(self, x):
        return tuple([np.zeros((3, 32, 32))] * COUNT)


SAMPLES: list[Workload] = [Rows(), Values(), Padded(), PaddedBatch(), Images(), Stacked(), Collated(), Labels(), Crops()]
