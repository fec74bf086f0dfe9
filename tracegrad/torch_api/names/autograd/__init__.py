"""torch.autograd's names that are not in `tracegrad.autograd`: submodules, and the checks with all of torch's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad import testing
from tracegrad.errors import warn


def _not_made(call: str, **asked: bool) -> None:
    for name in [name for name, wanted in asked.items() if wanted]:
        warn(f"{call}: {name} is not made here; what else was asked for is checked")


def gradcheck(func: Callable[..., Any], inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
              raise_exception: bool = True, nondet_tol: float = 0.0, check_undefined_grad: bool = True,
              check_grad_dtypes: bool = False, check_batched_grad: bool = False,
              check_batched_forward_grad: bool = False, check_forward_ad: bool = False, check_backward_ad: bool = True,
              fast_mode: bool = False, masked: bool | None = None) -> bool:
    """`tg.testing.gradcheck`. The other arguments ask for checks that are torch's alone."""
    _not_made("gradcheck", check_batched_grad=check_batched_grad, check_batched_forward_grad=check_batched_forward_grad)
    return testing.gradcheck(func, inputs, eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
                             check_forward_ad=check_forward_ad, check_backward_ad=check_backward_ad, fast_mode=fast_mode)


def gradgradcheck(func: Callable[..., Any], inputs: Any, grad_outputs: Sequence[Any] | None = None, *, eps: float = 1e-6,
                  atol: float = 1e-5, rtol: float = 1e-3, gen_non_contig_grad_outputs: bool = False, raise_exception: bool = True,
                  nondet_tol: float = 0.0, check_undefined_grad: bool = True, check_grad_dtypes: bool = False,
                  check_batched_grad: bool = False, check_fwd_over_rev: bool = False, check_rev_over_rev: bool = True,
                  fast_mode: bool = False, masked: bool = False) -> bool:
    """`tg.testing.gradgradcheck`; the other arguments ask for checks that are torch's alone, as with `gradcheck`."""
    _not_made("gradgradcheck", check_batched_grad=check_batched_grad, check_fwd_over_rev=check_fwd_over_rev)
    return testing.gradgradcheck(func, inputs, grad_outputs, eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
                                 fast_mode=fast_mode)
