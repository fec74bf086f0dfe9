"""A reshape is a view where its elements need not be moved, else a copy, as in torch and NumPy: what is written to it tells."""

from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.tensors.attributes import _reshaped

pytestmark = pytest.mark.usefixtures("device")


def parts(rng, n):
    """Random factors of n, with ones among them."""
    found = []
    while n > 1:
        found.append(int(rng.choice([d for d in range(2, n + 1) if n % d == 0])))
        n //= found[-1]
    return [*found, 1][:: rng.choice([-1, 1])]


def test_steps_are_numpys():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        memory = np.arange(720).reshape(parts(rng, 720))
        a = memory.transpose(rng.permutation(memory.ndim)) if rng.random() < 0.5 else memory
        a = a[tuple(slice(rng.integers(0, min(2, n)), None, rng.choice([1, 1, 2])) for n in a.shape)]
        a = np.broadcast_to(a, (3, *a.shape)) if rng.random() < 0.2 else a
        new = parts(rng, a.size)
        wanted = a.reshape(new)
        found = _reshaped(a.shape, [s // a.itemsize for s in a.strides], new)
        assert (found is not None) == (wanted.__array_interface__["data"] == a.__array_interface__["data"]), (a.shape, a.strides, new)
        if found is not None:
            assert [s * a.itemsize for s, n in zip(found, new, strict=True) if n != 1] == [
                s for s, n in zip(wanted.strides, new, strict=True) if n != 1]


VIEWS = {
    "transposed": lambda x: x.permute(1, 2, 0).reshape(-1, 3), "flat": lambda x: x.permute(2, 0, 1).flatten(),
    "columns": lambda x: x[:, :, 1:3].reshape(-1, 2), "rows": lambda x: x[:, 1:3].reshape(3, -1),
    "second": lambda x: x[:, :, ::2].reshape(-1),
    "cut": lambda x: x.permute(1, 0, 2).reshape(16, 3, 5, 4), "first": lambda x: x[1].reshape(-1), "kept": lambda x: x.reshape(3, -1),
    "unflat": lambda x: x[:, 1:].unflatten(2, (4, 5)), "again": lambda x: x.reshape(48, 20)[:, 5:10].reshape(3, 16, 5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_tells(run, name):
    a = np.arange(3 * 16 * 20, dtype=np.float64).reshape(3, 16, 20)
    x, numpy_x = tg.tensor(a), a.copy()

    def fn(x):
        x = x * 1.0
        y = VIEWS[name](x)
        y[..., 0] = -1.0
        y.mul_(2)
        return x, y

    found, view = run(fn)(x)
    numpy_view = {"transposed": lambda x: x.transpose(1, 2, 0).reshape(-1, 3), "flat": lambda x: x.transpose(2, 0, 1).reshape(-1),
                  "second": lambda x: x[:, :, ::2].reshape(-1), "cut": lambda x: x.transpose(1, 0, 2).reshape(16, 3, 5, 4),
                  "unflat": lambda x: x[:, 1:].reshape(3, 15, 4, 5)}.get(name, VIEWS[name])(numpy_x)
    numpy_view[..., 0] = -1.0
    numpy_view *= 2
    np.testing.assert_array_equal(view.numpy(), numpy_view)
    np.testing.assert_array_equal(found.numpy(), numpy_x)


@one_of(2, ("n", "size", "step"), [(13, 3, 3), (13, 2, 3), (33, 1, 7), (31, 4, 9), (12, 5, 6)])
@pytest.mark.parametrize("traced", [False, True])
def test_windows_are_views(n, size, step, traced):
    """What is written into windows that do not overlap reaches what they were cut from, its history too; and they see what it becomes."""
    a, weights = np.arange(2.0 * n).reshape(2, n), np.cos(np.arange(2.0 * n)).reshape(2, n)
    where = np.zeros(n, bool)
    for k in range(0, n - size + 1, step):
        where[k:k + size] = True

    def write(x):
        y = x * 2
        windows = y.unfold(1, size, step)
        windows.mul_(3.0)
        y.add_(1.0)
        return y, windows.sum()

    x = tg.tensor(a, requires_grad=True)
    y, total = (tg.trace(write) if traced else write)(x)
    (y * tg.tensor(weights)).sum().backward()
    assert y.tolist() == np.where(where, a * 6, a * 2).__add__(1).tolist()
    assert total.item() == (np.where(where, a * 6 + 1, 0)).sum()
    np.testing.assert_allclose(x.grad.numpy(), weights * np.where(where, 6, 2))


def test_windows_that_overlap_are_not_written():
    x = tg.arange(7.0)
    windows = x.unfold(0, 3, 2)
    with pytest.raises(tg.ArgumentError, match=r"mul_: .*windows that overlap.*clone\(\)"):
        windows.mul_(2.0)
    x.zero_()
    assert windows.sum().item() == 0
    assert x.tolist() == [0] * 7


STRIDED = [
    ((3, 2), (7, 1), 0), ((2, 3), (1, 7), 1), ((3,), (13,), 2), ((2, 1, 3), (20, 5, 3), 0), ((4,), (4,), 0), ((), (), 3),
    ((2, 2), (2, 1), 5),
]


@one_of(2, ("strided", "n"), product(STRIDED, [47, 65, 257]))
def test_as_strided_is_a_view(strided, n):
    size, stride, offset = strided
    memory = np.arange(2.0 * n).reshape(2, n)
    x = tg.tensor(memory)
    view = x.as_strided(size, stride, offset)
    wanted = np.lib.stride_tricks.as_strided(memory.reshape(-1)[offset:], size, [8 * s for s in stride])
    np.testing.assert_array_equal(view.numpy(), wanted)
    view *= -2
    wanted *= -2
    np.testing.assert_array_equal(x.numpy(), memory)
    x += 1
    np.testing.assert_array_equal(view.numpy(), wanted + 1)


@pytest.mark.parametrize("name", ["atleast_1d", "atleast_2d", "atleast_3d", "positive", "resolve_conj", "conj", "adjoint"])
def test_what_has_nothing_to_compute_is_a_view(name):
    x = tg.zeros(12, 65)
    for found in (getattr(tg, name)(x), *([getattr(x, name)()] if hasattr(x, name) else [x.H, x.mH])):
        found += 1
    assert x.min() == x.max() > 1
    z = tg.ones(3, 3, dtype=tg.complex64)
    getattr(tg, name)(z).add_(1j)
    assert (z == 1).all() == (name in ("conj", "adjoint"))              # of complex numbers these compute: no views


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_a_diagonal_lies_apart(order, offset):
    """Each element of it lies a row and a column on, so most that reshape it copy, where torch and NumPy do."""
    for a, b in ((0, 1), (2, 1), (0, 2)):
        memory = np.zeros((3, 4, 3))
        wanted = np.diagonal(memory.transpose(order), offset, a, b)
        wanted.flags.writeable = True
        x = tg.tensor(memory)
        x.permute(*order).diagonal(offset, a, b).reshape(-1).fill_(1)
        flat = wanted.view()
        try:
            flat.shape = (wanted.size,)             # raises where the elements would have to be moved
        except AttributeError:
            flat = wanted.copy().reshape(-1)
        flat[:] = 1
        np.testing.assert_array_equal(x.numpy(), memory)


def test_ravel_copies_what_does_not_lie_row_by_row():
    x = tg.zeros(3, 4)
    for view in (x.T, x[:, 0], x[::2]):
        view.ravel().fill_(1)
    assert not x.any()
    x[1:].ravel().fill_(1)
    assert x.sum() == 8


def test_views_of_each_of_several():
    x, y = tg.zeros(3, 1), tg.zeros(2)
    rows, columns = tg.meshgrid(x[:, 0], y, indexing="xy")
    wide, long = tg.broadcast_tensors(x, y)
    x += 1
    y += 2
    assert [t.sum() for t in (rows, columns, wide, long)] == [6, 12, 6, 12]
    tg.broadcast_tensors(x, tg.zeros(3, 1))[0].fill_(5)
    assert x.sum() == 15


@pytest.mark.parametrize("view", [lambda x: tg.einsum("...->...", x), lambda x: tg.einsum("ij->ji", x), lambda x: tg.einsum("ii->i", x),
                                  lambda x: x.sum_to_size(3, 3)])
def test_what_only_turns_a_tensor_is_a_view(view):
    """As in torch: what is written there reaches the tensor. A sum does not."""
    x = tg.arange(9.0).reshape(3, 3)
    y = view(x)
    y.mul_(-1)
    assert y.tolist() == view(x).tolist()
    assert x[2, 2].item() == -8
    tg.einsum("ij->i", x).zero_()
    x.sum_to_size(1, 3).zero_()
    assert x[2, 2].item() == -8


@pytest.mark.parametrize("copied", [lambda x, **out: tg.permute_copy(x, (1, 0), **out), lambda x, **out: tg.view_copy(x, (6,), **out)])
def test_a_copy_of_a_view_is_the_tensor_that_it_is_written_into(copied):
    x = tg.arange(6.0).reshape(2, 3)
    out = tg.zeros(copied(x).shape)
    assert copied(x, out=out) is out
    assert out.tolist() == copied(x).tolist()
