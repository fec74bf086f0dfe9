"""`tg.debug`: where the numbers of a call go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.tracing.trace import Traced

if TYPE_CHECKING:
    from tracegrad.inspection.debugging import Debug


def debug(fn: Callable[..., Any], find: Sequence[str] = ("nan", "inf", "denormal")) -> Callable[..., Debug]:
    """A function that takes what fn takes, and tells which operation of that call is the first whose result is NaN, infinite or denormal.

    fn: a traced function, or one that can be traced, of tensors of any dtype. find: what to look for, some of "nan", "inf", "denormal".
    The answer (a `Debug`; false if nothing was found) has `first`: the operation, its line, forward or backward, the element, and what its
    operands are there; and `ranges`: the smallest and largest numbers of every intermediate, with a histogram. Arguments and constants are
    looked at, too.
    The call is computed by kernels, with a check of every intermediate in them. It changes nothing: tensors keep their values, and the next
    call draws the random numbers that this one did. In a loop (`tg.scan`) NumPy then finds the iteration. Raises ArgumentError for another
    kind in find, and TraceError where fn cannot be traced.

    >>> @tg.trace
    ... def loss(x):
    ...     return (x - x.amax()).log().mean()
    >>> print(tg.debug(loss)(tg.tensor([1.0, 2.0])))
    """
    traced = fn if isinstance(fn, Traced) else Traced(fn)
    return lambda *args, **kwargs: traced.debugged(args, kwargs, find)
