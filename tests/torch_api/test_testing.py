"""torch.testing: what `assert_close` compares, refuses and says, and the tensors of `make_tensor`, beside torch's."""

import pytest

import tracegrad as tg
from tests.torch_api.both import beside_torch


def test_assert_close_compares_and_says_what_torch_does():
    beside_torch("""
        import collections, numpy as np
        close, x = torch.testing.assert_close, torch.tensor([1., 2., 3.])
        nan, inf, param = x * float("nan"), x * float("inf"), torch.nn.Parameter(x)
        pairs = [(x, x + 1), (x, x.double()), (x, x[:2]), (1., 2.), (1, 1.0), (True, False), (None, x), (None, None), ([x, x], [x, x + 1]),
                 ({"a": x}, {"a": x + 1}), ({"a": x}, {"b": x}), ([x], [x, x]), (x, nan), (nan, nan), (x, inf), (inf, inf),
                 (x.long(), x.long() + 1), (torch.tensor(1.), torch.tensor(2.)), (x.bool(), ~x.bool()), ((x,), [x]), (1, 2),
                 ([1, 2], [1, 3]), ({"a": [1, 2]}, {"a": [1, 3]}), (np.ones(2), np.ones(2) + 1), (1 + 1j, 1 + 2j),
                 (x.half(), x.half() + 1), (x.bfloat16(), x.bfloat16() * 1.01), (param, x), (x, x + 1e-6), (x[:0], x[:0]), ("a", "a"),
                 (x[0], 1.0), (x, [1., 2., 3.]), (collections.OrderedDict(a=x), {"a": x}), (np.float32(1), 1.0)]
        for i, (a, b) in enumerate(pairs):
            def text(f):
                try:
                    return f()
                except (AssertionError, ValueError) as error:
                    return f"{isinstance(error, AssertionError)}: {error}".replace("assert_close: ", "")
                except TypeError as error:
                    return "TypeError"
            say(f"plain {i}", lambda: text(lambda: close(a, b)))
            say(f"exact {i}", lambda: text(lambda: close(a, b, rtol=0, atol=0, check_dtype=False)))
            say(f"nan {i}", lambda: text(lambda: close(a, b, equal_nan=True, msg=lambda m: "Said: " + m)))
            say(f"class {i}", lambda: text(lambda: close(a, b, allow_subclasses=False, msg="short") if a is not param else None))
        say("layout", lambda: text(lambda: close(torch.eye(2).to_sparse(), torch.eye(2))))
        say("sparse", lambda: text(lambda: close(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())))
        say("one tolerance", lambda: text(lambda: close(x, x, rtol=1.0)).partition(".")[0])
        say("a parameter is no tensor", lambda: text(lambda: close(param, x, allow_subclasses=False)))
        say("as before", lambda: text(lambda: torch.testing.assert_allclose(nan, nan)))
        say("wider", lambda: text(lambda: torch.testing.assert_allclose(x, x + 1e-4)))
    """)


def test_make_tensor_draws_what_torch_draws():
    beside_torch("""
        for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64, torch.complex64):
            torch.manual_seed(1)
            say(f"{dtype}", lambda: torch.testing.make_tensor(2, 3, dtype=dtype, device="cpu"))
            say(f"{dtype} apart", lambda: torch.testing.make_tensor((4,), dtype=dtype, device="cpu", noncontiguous=True))
            say(f"{dtype} no zero", lambda: torch.testing.make_tensor((4, 5), dtype=dtype, device="cpu", exclude_zero=True, low=0, high=2))
        say("grad", lambda: torch.testing.make_tensor(2, dtype=torch.float32, device="cpu", low=1, requires_grad=True).requires_grad)
        for asked in (dict(low=float("nan")), dict(low=3, high=2), dict(low=1e300, high=2e300)):
            def refused():
                try:
                    return torch.testing.make_tensor(2, dtype=torch.float32, device="cpu", **asked) and 0
                except ValueError:
                    return "ValueError"
            say(str(asked), refused)
    """, 1e-13)


def test_backends_of_compile_have_names():
    beside_torch("""
        import torch._dynamo
        say("both", lambda: ["inductor" in names() for names in (torch._dynamo.list_backends, torch.compiler.list_backends)])
    """)


def test_gradcheck_in_fast_mode_calls_the_function_a_few_times_and_still_finds_what_is_wrong():
    """Each element of 400 is asked about without fast_mode: 800 calls."""
    calls = []

    class Wrong(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, ct):
            return ct * 0.99

    def sines(x, y):
        calls.append(1)
        return x.sin() @ y, torch_like(y)

    def torch_like(y):
        return tg.complex(y, y) * (1 + 2j)

    x, y = (tg.randn(20, 20, dtype=tg.float64, requires_grad=True) for _ in range(2))
    for forward in (False, True):
        assert tg.testing.gradcheck(sines, (x, y), fast_mode=True, check_forward_ad=forward, check_backward_ad=not forward)
    assert tg.testing.gradgradcheck(sines, (x, y), fast_mode=True)
    assert len(calls) < 100
    z = tg.randn(3, dtype=tg.float64, requires_grad=True)
    with pytest.raises(tg.testing.GradcheckError, match=r"d output 0\[\d\] / d input 0\[\d\]"):
        tg.testing.gradcheck(Wrong.apply, z, fast_mode=True)


def test_gradcheck_of_what_requires_no_grad_asks_for_zeros():
    x = tg.tensor([-1.0, 2.0], dtype=tg.float64, requires_grad=True)
    assert tg.testing.gradcheck(lambda x: (x > 0).double(), x)
    with pytest.raises(tg.testing.GradcheckError, match=r"is 0, finite differences give 2"):
        tg.testing.gradcheck(lambda x: x.detach() * 2, x)
