"""tg.utils.data: what batches are made of, in which order, and what is refused. (Beside torch: test_data_torch.py.)"""

from __future__ import annotations

from collections import Counter, namedtuple

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad import nn
from tracegrad.nn import functional as F
from tracegrad.utils import data
from tracegrad.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset


class Squares(Dataset):
    """Numbers and their squares, one by one."""

    def __init__(self, n):
        self.n, self.asked = n, []

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        self.asked.append(i)
        return np.float32(i), {"square": i * i, "name": f"n{i}"}

    def __len__(self):
        return self.n


class Stream(IterableDataset):
    def __init__(self, first, n):
        self.first, self.n = first, n

    def __iter__(self):
        return iter(range(self.first, self.first + self.n))

    def __len__(self):
        return self.n


@one_of(2, "n", [1, 7, 12, 100])
@pytest.mark.parametrize("size", [1, 4, 12, 33])
@pytest.mark.parametrize("drop", [False, True])
def test_rows_of_tensors_come_in_order_in_batches(n, size, drop):
    x, y = tg.arange(3.0 * n).reshape(n, 3), tg.arange(n)
    back = list(range(n - 1, -1, -2))
    for dataset, rows in ((TensorDataset(x, y), list(range(n))), (Subset(TensorDataset(x, y), back), back)):
        loader = DataLoader(dataset, size, drop_last=drop)
        batches = list(loader)
        wanted = [rows[k:k + size] for k in range(0, len(rows), size)]
        wanted = [w for w in wanted if len(w) == size or not drop]
        assert len(loader) == len(batches) == len(wanted)
        for (a, b), at in zip(batches, wanted, strict=True):
            np.testing.assert_array_equal(a.numpy(), x.numpy()[at])
            assert b.tolist() == at
            assert b.dtype == tg.int64


def test_every_sample_once_in_another_order_in_every_epoch():
    tg.manual_seed(3)
    loader = DataLoader(TensorDataset(tg.arange(100)), batch_size=7, shuffle=True)
    epochs = [[i for x, in loader for i in x.tolist()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    tg.manual_seed(3)
    assert epochs == [[i for x, in loader for i in x.tolist()] for _ in range(3)]
    given = [[i for x, in DataLoader(TensorDataset(tg.arange(40)), 9, True, generator=tg.Generator().manual_seed(5)) for i in x.tolist()]
             for _ in range(2)]
    assert given[0] == given[1] != list(range(40))


def test_samples_of_any_kind_are_collated():
    dataset = Squares(10)
    batches = list(DataLoader(dataset, batch_size=4))
    assert dataset.asked == list(range(10))
    x, rest = batches[1]
    assert (x.tolist(), x.dtype) == ([4, 5, 6, 7], tg.float32)
    assert (rest["square"].tolist(), rest["name"]) == ([16, 25, 36, 49], ["n4", "n5", "n6", "n7"])
    assert [len(batch[1]["name"]) for batch in batches] == [4, 4, 2]


def test_collate_and_convert():
    Point = namedtuple("Point", "x y")
    found = data.default_collate([Point(1, (2.5, [True, np.int16(3)])), Point(4, (5.5, [False, np.int16(6)]))])
    assert type(found) is Point
    assert found.x.tolist() == [1, 4]
    assert (found.y[0].tolist(), found.y[0].dtype) == ([2.5, 5.5], tg.float64)
    assert [(p.tolist(), p.dtype) for p in found.y[1]] == [([True, False], tg.bool_), ([3, 6], tg.int16)]
    assert data.default_collate([np.ones((2, 3)), np.zeros((2, 3))]).shape == (2, 2, 3)
    converted = data.default_convert({"a": np.arange(3), "b": ["x", 1, (np.float32(2),)]})
    assert converted["a"].tolist() == [0, 1, 2]
    assert converted["b"][:2] == ["x", 1]
    assert converted["b"][2][0].item() == 2
    with pytest.raises(tg.ArgumentError, match=r"samples have \[1, 2\] elements"):
        data.default_collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="not object"):
        data.default_collate([object()])


def test_streams():
    assert [b.tolist() for b in DataLoader(Stream(3, 7), batch_size=3)] == [[3, 4, 5], [6, 7, 8], [9]]
    assert [b.tolist() for b in DataLoader(Stream(3, 7), batch_size=3, drop_last=True)] == [[3, 4, 5], [6, 7, 8]]
    assert list(DataLoader(Stream(3, 2), batch_size=None)) == [3, 4]
    assert list(Stream(0, 2) + Stream(7, 2)) == [0, 1, 7, 8]
    assert (len(DataLoader(Stream(0, 2) + Stream(7, 5), 2)), len(DataLoader(Stream(0, 7), 2, drop_last=True))) == (4, 3)


def test_samplers():
    assert list(data.SequentialSampler("abc")) == [0, 1, 2]
    assert sorted(data.SubsetRandomSampler([4, 7, 9])) == [4, 7, 9]
    assert len(list(data.RandomSampler(range(5), num_samples=12))) == 12
    assert set(data.RandomSampler(range(5), num_samples=5)) == set(range(5))
    drawn = list(data.RandomSampler(range(3), replacement=True, num_samples=200))
    assert set(drawn) == {0, 1, 2}
    tg.manual_seed(0)
    count = Counter(data.WeightedRandomSampler([0.0, 1.0, 3.0], 1000))
    assert count[0] == 0
    assert 180 < count[1] < 320
    assert sorted(data.WeightedRandomSampler([0.5, 1.0, 3.0], 3, replacement=False)) == [0, 1, 2]
    batches = data.BatchSampler(data.SequentialSampler(range(7)), 3, True)
    assert (list(batches), len(batches)) == ([[0, 1, 2], [3, 4, 5]], 2)
    loader = DataLoader(TensorDataset(tg.arange(9)), batch_sampler=[[8, 0], [3], [4, 4, 4]])
    assert ([b.tolist() for b, in loader], len(loader), loader.batch_size) == ([[8, 0], [3], [4, 4, 4]], 3, None)
    assert [b.tolist() for b, in DataLoader(TensorDataset(tg.arange(9)), 2, sampler=[5, -1, 2])] == [[5, 8], [2]]


def test_datasets_side_by_side_and_behind_each_other():
    a, b = TensorDataset(tg.arange(4)), TensorDataset(tg.arange(10, 13))
    both = a + b
    assert [both[i][0].item() for i in (0, 3, 4, 6, -1, -7)] == [0, 3, 10, 12, 12, 0]
    assert (len(both), len(both + a)) == (7, 11)
    with pytest.raises(IndexError, match="index 7 is out of range for 7 samples"):
        both[7]
    rows = data.StackDataset(left=Squares(4), right=a)
    assert rows[2]["right"][0].item() == 2
    batch, = DataLoader(rows, batch_size=4)
    assert batch["left"][0].tolist() == batch["right"][0].tolist() == [0, 1, 2, 3]
    assert data.StackDataset(a, a)[1][1][0].item() == 1


@pytest.mark.parametrize(("n", "lengths", "wanted"), [(10, [3, 7], [3, 7]), (10, [0.75, 0.25], [8, 2]), (11, [0.5, 0.3, 0.2], [6, 3, 2]),
                                                      (1, [1.0], [1]), (5, [0, 5], [0, 5])])
def test_random_split(n, lengths, wanted):
    parts = data.random_split(range(n), lengths, generator=tg.Generator().manual_seed(1))
    assert [len(p) for p in parts] == wanted
    assert sorted(i for p in parts for i in p) == list(range(n))


@pytest.mark.parametrize(("call", "words"), [
    (lambda: TensorDataset(tg.ones(3), tg.ones(4)), r"\[3, 4\] rows"),
    (data.StackDataset, "either by position"), (lambda: data.ConcatDataset([]), "no datasets"),
    (lambda: data.ConcatDataset([Stream(0, 1)]), "ChainDataset"), (lambda: list(data.ChainDataset([Squares(1)])), "ConcatDataset"),
    (lambda: data.random_split(range(5), [2, 2]), "do not sum"), (lambda: data.random_split(range(5), [1.5, -0.5]), "between 0 and 1"),
    (lambda: DataLoader(Stream(0, 3), shuffle=True), "order of its own"),
    (lambda: DataLoader(range(3), shuffle=True, sampler=[1]), "not both"),
    (lambda: DataLoader(range(3), batch_size=2, batch_sampler=[[1]]), "leave batch_size"), (lambda: DataLoader(range(3), 0), "positive"),
    (lambda: DataLoader(range(3), None, drop_last=True), "needs batches"), (lambda: DataLoader(range(3), num_workers=-1), "num_workers"),
    (lambda: DataLoader(range(3), num_workers=1.5), "num_workers must be an integer"),
    (lambda: DataLoader(range(3), persistent_workers=True), "num_workers > 0"),
    (lambda: data.RandomSampler([1], num_samples=0), "positive"),
    (lambda: data.WeightedRandomSampler([[1.0]], 1), "is a vector"), (lambda: data.BatchSampler([1], 2.0, True), "positive integer"),
])  # fmt: skip
def test_what_is_refused(call, words):
    with pytest.raises(tg.ArgumentError, match=words):
        call()


def test_a_training_as_torch_users_write_it():
    tg.manual_seed(0)
    x = tg.randn(130, 5)
    y = (x.sum(1) > 0).long()
    train, valid = data.random_split(TensorDataset(x, y), [0.8, 0.2])
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = tg.optim.Adam(model.parameters(), lr=1e-2)

    @tg.trace
    def step(a, b):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(12):
        for a, b in DataLoader(train, batch_size=32, shuffle=True, num_workers=2, pin_memory=True):
            step(a, b)
    with tg.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in DataLoader(valid, batch_size=10))
    assert right > 0.85 * len(valid)
