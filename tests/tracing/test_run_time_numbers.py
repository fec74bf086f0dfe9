"""A float that a traced function is given is a run-time number: the user's code takes it for a float, and goes the way it goes untraced."""

import functools
import numbers

import pytest

import tracegrad as tg

pytestmark = pytest.mark.usefixtures("on_numpy")


def by_match(x, n):
    match n:
        case float() | complex():
            return x * n
        case _:
            return x


@functools.singledispatch
def scaled(n, x):
    return x


@scaled.register
def _(n: float, x):
    return x * n


@pytest.mark.parametrize("f", [
    lambda x, n: x * n if isinstance(n, float) else x,
    lambda x, n: x * n if isinstance(n, (int, float)) else x,
    lambda x, n: x * n if isinstance(n, int) else x,
    lambda x, n: x * n if isinstance(n, complex) else x,
    lambda x, n: x * n if isinstance(n, numbers.Real) else x,
    lambda x, n: x * n if n.__class__ is float else x,
    lambda x, n: scaled(n, x),
    by_match,
])
def test_its_kind_is_that_of_the_number(f):
    x, traced = tg.tensor([1.0, 2.0]), tg.trace(f)
    for n in (3.0, 4.0, 2j):
        assert traced(x, n).tolist() == f(x, n).tolist()
    assert len(traced.compilations) == 2                # one for floats, one for complex numbers


def test_it_is_still_a_tensor_to_what_computes_with_it():
    """An attribute that it is assigned to, results, transforms and control flow."""
    held = type("Held", (), {})()

    @tg.trace
    def f(x, n):
        held.scale = n
        gradient = tg.grad(lambda a: (a * n).sum())(x)
        return n, gradient, tg.cond(x.sum() > n, lambda a: a * n, lambda a: a, x), tg.vmap(lambda a, b: a * b, in_dims=(0, None))(x, n)

    x = tg.ones(3)
    for n in (2.0, 4.0):
        number, gradient, chosen, mapped = f(x, n)
        assert float(number) == float(held.scale) == n
        assert gradient.tolist() == mapped.tolist() == [n] * 3
        assert chosen.tolist() == ([n] * 3 if n < 3 else [1.0] * 3)


@pytest.mark.parametrize("f", [
    lambda x, n: tg.nn.functional.interpolate(x, scale_factor=n),
    lambda x, n: tg.histc(x, 3, 0, n),
])
def test_what_takes_none_says_so(f):
    with pytest.raises(tg.errors.ArgumentTypeError, match=r"takes no run-time numbers here.*attribute or variable"):
        tg.trace(f)(tg.ones(1, 1, 4), 2.0)


def test_an_integer_that_is_a_tensor_is_told_by_its_shape():
    with pytest.raises(tg.errors.ArgumentTypeError, match=r"cat: dim must be an integer, got a tensor of float32\[2\]"):
        tg.cat([tg.ones(2)], tg.ones(2))


@pytest.mark.parametrize("fn", [tg.norm, tg.linalg.vector_norm, tg.linalg.norm, tg.linalg.matrix_norm, tg.linalg.cond,
                                lambda x, p: tg.cdist(x, x, p), tg.nn.functional.pdist, tg.nn.functional.normalize])
def test_the_order_of_a_norm_is_no_run_time_number(fn):
    """The error told of a placeholder."""
    with pytest.raises(tg.errors.ArgumentTypeError, match=r"takes no run-time numbers here.*attribute or variable"):
        tg.trace(fn)(tg.ones(2, 2), 3.0)
    with pytest.raises(tg.errors.ArgumentTypeError, match="must be a Python number"):
        fn(tg.ones(2, 2), tg.tensor(3.0))
