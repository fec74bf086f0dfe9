"""bfloat16 wherever a dtype can be: conversion, exchange, sums, sorts, random numbers, modules. (Its roundings:
tests/ops/arrays/test_halves.py.)"""

from __future__ import annotations

import copy
import io
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import DEVICES, RUNS, one_of
from tests.helpers.values import plain
from tracegrad import nn
from tracegrad.nn import functional as F
from tracegrad.support.dtypes import SUPPORTED, dtype_kind, is_half

BITS = np.arange(1 << 16, dtype=np.uint16)
ALL = BITS.view(tg.bfloat16)
NUMBERS = ALL[~np.isnan(plain(ALL))]
CASTS = [d for d in SUPPORTED if d != tg.bfloat16]


def words(x):
    return np.asarray(x.detach() if isinstance(x, tg.Tensor) else x).view(np.uint16)


# ------------------------------------------------------------------------------------------------------------------ conversion


def test_every_number_is_a_float_and_back(device, run):
    wide, back = run(lambda x: (x.float(), x.float().bfloat16()))(tg.tensor(NUMBERS))
    np.testing.assert_array_equal(wide.numpy().view(np.uint32), words(NUMBERS).astype(np.uint32) << 16)
    np.testing.assert_array_equal(words(back), words(NUMBERS))


def test_a_float_is_rounded_to_the_nearest_ties_to_even(device, run):
    rng = np.random.default_rng(0)
    near = rng.choice([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], 3000).astype(np.uint32)
    x = ((rng.integers(0, 1 << 16, 3000).astype(np.uint32) << 16) | near).view(np.float32)
    largest = np.array([3.3895314e38, 3.3961775e38, -3.4028235e38, np.inf, -np.inf], np.float32)       # the second is a tie, to infinity
    x = np.concatenate([x[np.abs(x) > 2.0**-126], [0.0, -0.0], largest]).astype(np.float32)
    found = run(lambda x: x.bfloat16())(tg.tensor(x))
    bits = x.view(np.uint32).astype(np.uint64)
    wanted = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    np.testing.assert_array_equal(words(found)[~np.isnan(x)], wanted[~np.isnan(x)])
    assert np.isnan(plain(found.numpy())[np.isnan(x)]).all()


def test_nan_stays_one(device, run):
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    narrow, sums, known = run(lambda x: (x.bfloat16(), x.bfloat16() + 1.0, x.bfloat16() != x.bfloat16()))(tg.tensor(x))
    assert np.isnan(plain(narrow.numpy())).all()
    assert np.isnan(plain(sums.numpy())).all()
    assert known.numpy().all()


@one_of(2, ("device", "run"), [(device, RUNS[(k + j) % 2]) for k, device in enumerate(DEVICES) for j in range(2)], indirect=True)
def test_casts_between_it_and_every_other_dtype(device, run):
    rng = np.random.default_rng(1)
    for dtype in CASTS:
        if dtype.itemsize == 8 and dtype.kind in "fc" and not getattr(device.target, "fp64", True):
            continue
        x = (rng.standard_normal(333) * 100).astype(tg.bfloat16)
        x = np.abs(x) if dtype.kind in "ub" else x
        narrow = x.astype(np.float32).astype(dtype)
        there, back = run(lambda x, y, dtype=dtype: (x.to(dtype), (y.real if dtype.kind == "c" else y).to(tg.bfloat16)))(
            tg.tensor(x), tg.tensor(narrow))
        np.testing.assert_array_equal(there.numpy(), narrow, err_msg=str(dtype))
        np.testing.assert_array_equal(plain(back.numpy()), plain(narrow.real.astype(np.float32).astype(tg.bfloat16)), err_msg=str(dtype))


# -------------------------------------------------------------------------------------------------------------------- exchange


def test_exchange_with_numpy_keeps_every_bit(device):
    for made in (tg.tensor(ALL), tg.asarray(ALL), tg.from_numpy(ALL), tg.frombuffer(ALL.tobytes(), dtype="bfloat16")):
        assert made.dtype == tg.bfloat16
        np.testing.assert_array_equal(words(made), BITS)
        for back in (made.numpy(), np.asarray(made), pickle.loads(pickle.dumps(made)).numpy(), copy.deepcopy(made).numpy()):
            assert back.dtype == tg.bfloat16
            np.testing.assert_array_equal(words(back), BITS)
    assert tg.tensor(ALL[0x3F80]).item() == 1.0
    assert tg.tensor(NUMBERS[:99]).tolist() == plain(NUMBERS[:99]).tolist()


def test_bits_are_seen_as_other_dtypes_and_back(device, run):
    for dtype in (np.int16, np.uint8, np.float16, np.int32, tg.bfloat16):
        seen, back = run(lambda x, dtype=dtype: ((x * 1.0).view(dtype), x.view(dtype).view(tg.bfloat16)))(tg.tensor(NUMBERS[:64]))
        assert seen.numpy().tobytes() == NUMBERS[:64].view(dtype).tobytes(), dtype
        np.testing.assert_array_equal(words(back), words(NUMBERS[:64]))


def test_unique_numbers_are_sorted_beside_nan(device):
    numbers = np.array([1.0, -7.25, np.nan, 3.0, -np.inf, 1e30, np.nan, -3.0, 1.0], np.float32)
    found, where, counts = tg.tensor(numbers).bfloat16().unique(return_inverse=True, return_counts=True)
    assert found.dtype == tg.bfloat16
    np.testing.assert_array_equal(plain(found.numpy())[:-2], [-np.inf, -7.25, -3.0, 1.0, 3.0, plain(np.float32(1e30).astype(tg.bfloat16))])
    assert np.isnan(plain(found.numpy())[-2:]).all()
    np.testing.assert_array_equal(where.numpy()[[0, 1, 3, 4, 5, 7, 8]], [3, 1, 4, 0, 5, 2, 3])
    np.testing.assert_array_equal(counts.numpy(), [1, 1, 1, 2, 1, 1, 1, 1])


def test_files_keep_every_bit(device, tmp_path):
    x, file = tg.tensor(ALL), io.BytesIO()
    tg.save({"x": x, "array": ALL, "number": ALL[7]}, file)
    file.seek(0)
    found = tg.load(file)
    nn.save_file({"x": x.reshape(256, 256)}, tmp_path / "x.safetensors")
    for back in (found["x"], found["array"], nn.load_file(tmp_path / "x.safetensors")["x"], tg.load(tmp_path / "x.safetensors")["x"]):
        np.testing.assert_array_equal(words(back).reshape(-1), BITS)
    assert words(found["number"]) == 7


def test_exchange_with_torch_keeps_every_bit(device, tmp_path):
    torch = pytest.importorskip("torch", reason="torch, whose tensors these are, is not installed")
    theirs = torch.from_numpy(BITS.view(np.int16).copy()).view(torch.bfloat16)
    for made in (tg.tensor(theirs), tg.as_tensor(theirs), tg.from_dlpack(theirs), tg.asarray(theirs)):
        np.testing.assert_array_equal(words(made), BITS)
        back = torch.from_dlpack(made)
        assert back.dtype == torch.bfloat16
        np.testing.assert_array_equal(back.view(torch.int16).numpy(), BITS.view(np.int16))
    turned = tg.from_dlpack(theirs.reshape(256, 256).T)
    np.testing.assert_array_equal(words(turned), BITS.reshape(256, 256).T)
    files = pytest.importorskip("safetensors.torch")
    files.save_file({"w": theirs}, tmp_path / "w.safetensors")
    np.testing.assert_array_equal(words(nn.load_file(tmp_path / "w.safetensors")["w"]), BITS)
    nn.save_file({"w": tg.tensor(theirs)}, tmp_path / "v.safetensors")
    assert files.load_file(tmp_path / "v.safetensors")["w"].view(torch.int16).equal(theirs.view(torch.int16))


# ----------------------------------------------------------------------------------------------------------------- arithmetic


def test_sums_are_counted_in_float32(device, run):
    """A bfloat16 counts to 256."""
    def fn(x, i):
        zeros = tg.zeros(3, dtype=tg.bfloat16)
        return (x.sum(), x.mean(), x.cumsum(0)[-1], x @ x, x.reshape(64, -1) @ x.reshape(-1, 64), x.reshape(64, -1).sum(0),
                zeros.index_add(0, i, x), F.conv1d(x.reshape(1, 16, -1), tg.ones(1, 16, 200, dtype=tg.bfloat16))[0, 0, 0])

    n = 4096
    found = run(fn)(tg.ones(n, dtype=tg.bfloat16), tg.zeros(n, dtype=tg.int64))
    for t, wanted in zip(found, (n, 1, n, n, 64, 64, [n, 0, 0], 3200), strict=True):
        assert t.dtype == tg.bfloat16
        np.testing.assert_array_equal(plain(t.numpy()), np.broadcast_to(np.array(wanted, np.float32), t.shape))


def test_orders_and_places(device, run):
    rng = np.random.default_rng(2)
    x = rng.choice(np.concatenate([NUMBERS[::97], [tg.bfloat16.type("nan")]]), 3000).astype(tg.bfloat16)
    x[:5] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    wide = plain(x)

    def fn(x):
        return (*x.sort(), x.argmax(), x.argmin(), *x.topk(7), x.amax(), x.cummax(0)[0], x.sort(descending=True)[0])

    for found, wanted in zip(run(fn)(tg.tensor(x)), run(fn)(tg.tensor(wide)), strict=True):
        np.testing.assert_array_equal(plain(found.numpy()), wanted.numpy())


def test_gathers_and_scatters_move_bits(device, run):
    table = ALL.reshape(256, 256)
    i = np.random.default_rng(3).permutation(256)

    def fn(t, i):
        return t[i], tg.zeros_like(t).index_copy(0, i, t), tg.where(t == t, t, t), tg.cat((t[1:], t[:1]))

    rows, put, chosen, joined = run(fn)(tg.tensor(table), tg.tensor(i))
    some = ~np.isnan(plain(table))
    np.testing.assert_array_equal(words(rows)[some[i]], words(table)[i][some[i]])
    np.testing.assert_array_equal(words(put)[i][some], words(table)[some])
    np.testing.assert_array_equal(words(chosen)[some], words(table)[some])
    np.testing.assert_array_equal(words(joined)[np.roll(some, -1, 0)], np.roll(words(table), -1, 0)[np.roll(some, -1, 0)])


def test_random_numbers(device, run):
    tg.manual_seed(3)
    u, z = run(lambda: (tg.rand(5000, dtype=tg.bfloat16), tg.randn(5000, dtype=tg.bfloat16)))()
    assert u.dtype == z.dtype == tg.bfloat16
    u, z = plain(u.numpy()), plain(z.numpy())
    assert (u * 256 == np.floor(u * 256)).all()
    assert u.min() == 0
    assert u.max() == 1 - 2.0**-8
    assert abs(z.mean()) < 0.1
    assert abs(z.std() - 1) < 0.05
    w = nn.init.kaiming_normal_(tg.empty(64, 64, dtype=tg.bfloat16))
    assert w.dtype == tg.bfloat16
    assert 0.1 < plain(w.numpy()).std() < 0.3


def test_a_model_in_bfloat16_learns(device):
    tg.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1)).bfloat16()
    x = tg.randn(64, 4, dtype=tg.bfloat16)
    y = x[:, :1] * 2 - x[:, 1:2]
    for make in (lambda p: tg.optim.AdamW(p, lr=0.01), lambda p: tg.optim.SGD(p, lr=0.02, momentum=0.9)):
        optimizer, losses = make(model.parameters()), []
        for _ in range(12):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
    assert all(p.dtype == p.grad.dtype == tg.bfloat16 for p in model.parameters())
    assert model.half()[0].weight.dtype == tg.float16


def test_it_may_be_the_default(device):
    before = tg.get_default_dtype()
    try:
        tg.set_default_dtype(tg.bfloat16)
        assert tg.tensor([1.5]).dtype == tg.ones(2).dtype == (tg.arange(3) / 2).dtype == nn.Linear(2, 2).weight.dtype == tg.bfloat16
    finally:
        tg.set_default_dtype(before)


# ----------------------------------------------------------------------------------------------------------------------- code


def test_kinds_of_floats_are_asked_by_dtype_kind():
    """numpy's kind of bfloat16 is "V": code that compares `.kind` with letters of floats does not know it."""
    assert [dtype_kind(d) for d in (tg.bfloat16, tg.float16, tg.int8)] == ["f", "f", "i"]
    assert [is_half(d) for d in (tg.bfloat16, tg.float16, tg.int16, tg.float32)] == [True, True, False, False]
    root, found = Path(tg.__file__).parent, []
    files = [path for folder in (root, (root / "codegen").resolve(), (root / "runtime").resolve()) for path in folder.rglob("*.py")]
    compared = re.compile(r'\.kind (?:[!=]=|(?:not )?in) "[biuc]*f[biufc]*"')
    for path in files:
        if path.name != "support/dtypes.py" and path.parent.name not in ("run", "expressions"):       # (of C's types in the latter)
            found += [f"{path.name}: {line.strip()}" for line in path.read_text().split("\n") if compared.search(line)]
    assert not found, "\n".join(found)
