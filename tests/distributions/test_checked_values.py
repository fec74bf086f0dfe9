"""What distributions check of their parameters and of values, where NumPy holds these and where it does not: `satisfied`."""

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import distributions as D
from tracegrad.config import config
from tracegrad.distributions.distribution import satisfied
from tracegrad.errors import ArgumentError


@pytest.fixture(autouse=True)
def numpy_computes(monkeypatch):
    monkeypatch.setattr(config, "eager", True)


def of_history(x):
    return tg.tensor(x, requires_grad=True) * 1.0


def computed(x):
    y = of_history(x)
    y.tolist()
    return y


def written(x):
    y = tg.ones(len(x), requires_grad=True)
    y.data.copy_(tg.tensor(x))
    return y


def overwritten(x):
    """A view of what is written after it was taken."""
    y = tg.ones(2, len(x))
    view = y[1]
    y.copy_(tg.tensor([x, x]))
    return view


# how a tensor of these numbers comes about
FORMS = {
    "plain": tg.tensor,
    "double": lambda x: tg.tensor(np.array(x)),
    "half": lambda x: tg.tensor(x, dtype=tg.float16),
    "bfloat16": lambda x: tg.tensor(x, dtype=tg.bfloat16),
    "leaf": lambda x: tg.tensor(x, requires_grad=True),
    "of_history": of_history,
    "computed": computed,
    "detached": lambda x: of_history(x).detach(),
    "written": written,
    "overwritten": overwritten,
    "expanded": lambda x: tg.tensor(x, requires_grad=True).expand(3, len(x)),
    "reshaped": lambda x: tg.tensor(x).reshape(len(x), 1).t(),
    "part": lambda x: tg.tensor([-1.0, *x, float("nan"), 9.0])[1:-2],
    "part of history": lambda x: tg.tensor([-1.0, *x, float("nan"), 9.0], requires_grad=True)[1:-2],
    "picked": lambda x: tg.tensor([-1.0, *x, float("nan")])[[*range(1, len(x) + 1)]],
}
GOOD, BAD = [0.5, 0.25, 1.0], ([0.5, -0.25, 1.0], [0.5, 0.25, float("nan")], [0.0, 0.25, float("inf") - float("inf")])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_value_is_checked(form):
    make = FORMS[form]
    for _ in range(4):                                  # calls are known from the third on
        D.Normal(0.0, make(GOOD))
        D.Bernoulli(make(GOOD))
        D.Uniform(-1.0, make(GOOD)).log_prob(make(GOOD) * 0.5)
        for bad in BAD:
            with pytest.raises(ArgumentError, match=r"Normal: parameter scale .* has to satisfy GreaterThan"):
                D.Normal(0.0, make(bad))
            with pytest.raises(ArgumentError, match=r"Exponential\.log_prob: value has to be in the support"):
                D.Exponential(1.0).log_prob(make(bad))


C = D.constraints
CONSTRAINTS = [C.real, C.positive, C.nonnegative, C.unit_interval, C.boolean, C.nonnegative_integer, C.positive_integer, C.real_vector,
               C.positive_vector, C.less_than(1.0), C.half_open_interval(0.0, 1.0), C.integer_interval(0, 2), C.independent(C.boolean, 2),
               C.interval(tg.tensor([0.0, 1.0]), tg.tensor(2.0)), C.greater_than(tg.tensor(0.5)), C.interval(0.1, 0.7)]
VALUES = [[[0.0, 1.0]], [[1.0, 2.0]], [[0.5, -0.0]], [[-1.0, 1.0]],
          [[float("nan"), 1.0]], [[float("inf"), 1.0]], [[0.1, 0.7]], [[3.0, 0.0]]]


@pytest.mark.parametrize("dtype", [tg.float32, tg.float64, tg.float16, tg.int64, tg.int32, tg.uint8])
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_arrays_satisfy_what_tensors_do(constraint, dtype):
    for value in VALUES:
        x = tg.tensor(np.nan_to_num(np.array(value), posinf=7.0).astype(dtype) if dtype.kind in "iu" else np.array(value, dtype))
        assert satisfied(constraint, x) == bool(constraint.check(x).all()), (constraint, x)


@pytest.mark.recall
@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"half", "bfloat16", "of_history", "overwritten", "part of history"}))
def test_what_numpy_holds_is_asked_as_an_array(form, monkeypatch):
    asked = []
    check = C.greater_than.check
    monkeypatch.setattr(C.greater_than, "check", lambda self, x: asked.append(type(x)) or check(self, x))
    for _ in range(3):
        x = FORMS[form](GOOD)
        tg.synchronize()                                        # what is pending nobody holds yet
        D.Normal(0.0, x)
    assert asked[-1] is np.ndarray


@pytest.mark.recall
@pytest.mark.parametrize("name", ["simplex", "one_hot"])
def test_vectors_that_numpy_holds_are_asked_as_they_stand(name, monkeypatch):
    constraint, seen = getattr(C, name), []
    check = type(constraint).check
    monkeypatch.setattr(type(constraint), "check", lambda self, value: seen.append(type(value)) or check(self, value))
    vector = [0.0, 1.0, 0.0]
    for rows, holds in (([vector, vector], True), ([vector, [0.5, 0.6, 0.0]], False), ([vector, [-1.0, 1.0, 1.0]], False)):
        x = tg.tensor(rows)
        assert satisfied(constraint, x) is holds
        assert satisfied(constraint, x.reshape(1, 2, 3)) is holds
        assert satisfied(constraint, x.t()) is bool(check(constraint, x.t()).all())         # by columns
    assert {*seen} == {np.ndarray}
    assert satisfied(constraint, tg.tensor(vector).expand(2, 3))


def test_an_empty_value_satisfies():
    assert satisfied(C.positive, tg.zeros(0))
    assert satisfied(C.positive, tg.tensor([-1.0]).expand(0, 1))


def test_a_users_constraint_is_asked_for_tensors():
    seen = []

    class Small(C.less_than):
        def check(self, value):
            seen.append(type(value))
            return value.abs() < self.upper_bound

    assert not satisfied(Small(1.0), tg.tensor([-2.0]))
    assert satisfied(C.independent(Small(1.0), 1), tg.tensor([0.5]))
    assert seen == [tg.Tensor, tg.Tensor]


def test_a_vector_needs_a_dimension():
    with pytest.raises(ArgumentError, match=r"independent\.check: expected value\.dim\(\) >= 1"):
        satisfied(C.real_vector, tg.tensor(1.0))


def test_nothing_is_checked_without_values():
    scale = tg.tensor([-1.0, 2.0])
    tg.trace(lambda s: D.Normal(0.0, s).mean)(scale)
    tg.vmap(lambda s: D.Normal(0.0, s).mean)(scale)
