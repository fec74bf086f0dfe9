"""Batches of tg.utils.data beside torch's, wherever nothing is drawn."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

from torch.utils import data as torch_data  # noqa: E402

from tracegrad.utils import data  # noqa: E402


def plain(x):
    """What a batch is made of, in Python's terms."""
    if hasattr(x, "tolist"):
        return str(x.dtype).removeprefix("torch."), tuple(x.shape), x.tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return (type(x).__name__, [plain(v) for v in x]) if isinstance(x, (list, tuple)) else x


SAMPLES = {
    "numbers": lambda T, i: (i, i * 0.5, bool(i % 2)), "text": lambda T, i: {"t": f"s{i}", "n": [i, (i, b"x")]},
    "arrays": lambda T, i: [np.full((2, 3), i, np.float32), np.int16(i), np.array(i * 1.5)],
    "tensors": lambda T, i: {"x": T.tensor([1.0 * i, 2.0]), "y": (T.tensor(i), T.tensor(i > 3))},
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"batch_size": 4, "drop_last": True}, {"batch_size": None},
                                     {"batch_size": 2, "sampler": [7, 1, 1, 3, 0]}, {"batch_sampler": [[1, 2], [5]]}], ids=str)
@pytest.mark.parametrize("n", [8, 11])
def test_batches(kind, options, n):
    found = []
    for T, of in ((tg, data), (torch, torch_data)):
        class Made(of.Dataset):
            def __getitem__(self, i, T=T):
                return SAMPLES[kind](T, int(i))

            def __len__(self):
                return n

        class Stream(of.IterableDataset):
            def __iter__(self, made=Made):
                return iter([made()[i] for i in range(n)])

        loaders = [of.DataLoader(Made(), **options), of.DataLoader(of.Subset(Made(), list(range(n - 1, -1, -1))), **options),
                   of.DataLoader(of.ConcatDataset([Made(), Made()]), **options), of.DataLoader(of.StackDataset(Made(), Made()), **options)]
        if not options.keys() & {"sampler", "batch_sampler"}:
            loaders.append(of.DataLoader(Stream(), **options))
        found.append([(loader.batch_size, plain(list(loader))) for loader in loaders])
    assert found[0] == found[1]


@pytest.mark.parametrize(("n", "lengths"), [(10, [0.35, 0.35, 0.3]), (17, [0.1] * 10), (100, [0.333, 0.667]), (3, [0.5, 0.5])])
def test_lengths_of_random_parts(n, lengths):
    ours, theirs = ([len(part) for part in of.random_split(range(n), lengths)] for of in (data, torch_data))
    assert ours == theirs
