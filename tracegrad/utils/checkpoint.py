"""torch.utils.checkpoint's names: blocks whose values need not be kept for the backward pass.

In a trace, which values are kept between the passes and which are computed again is decided for the whole program, by what either costs
(`codegen.schedule.rematerialization`): there is nothing to be asked for block by block, and what these functions do is to run the block.
Where memory is what matters, a loop has a bound: `tg.scan(..., checkpoint=k)` keeps the carries of every k-th step only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tracegrad.errors import ArgumentError


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True,
               determinism_check: str = "default", debug: bool = False, **kwargs: Any) -> Any:
    """function(*args, **kwargs), whose derivatives are what they are without. (What torch's options choose between is the same here.)

    Which of the block's values are kept for the backward pass is decided by their cost: see `f.explain()`. Random numbers drawn in the
    block are never drawn twice.

    >>> x = tg.ones(3, requires_grad=True)
    >>> tg.utils.checkpoint.checkpoint(lambda x: (x * x).sum(), x, use_reentrant=False).backward()
    >>> x.grad
    Tensor([2., 2., 2.], device='cpu')
    """
    del use_reentrant, preserve_rng_state, debug
    if determinism_check not in ("default", "none"):
        raise ArgumentError(f"checkpoint: determinism_check is \"default\" or \"none\", not {determinism_check!r}")
    if not callable(function):
        raise ArgumentError(f"checkpoint: function must be callable, got {type(function).__name__}")
    return function(*args, **kwargs)


def checkpoint_sequential(functions: Iterable[Callable[..., Any]], segments: int, input: Any, use_reentrant: bool | None = None,
                          **kwargs: Any) -> Any:
    """The functions (a Sequential, or a list) one after the other, as `segments` blocks of `checkpoint`, on input.

    Raises ArgumentError where segments is not between 1 and the number of functions.

    >>> tg.utils.checkpoint.checkpoint_sequential([tg.exp, tg.log, tg.sqrt], 2, tg.tensor([4.0]), use_reentrant=False)
    Tensor([2.], device='cpu')
    """
    each = list(functions)
    if not 1 <= segments <= max(1, len(each)):
        raise ArgumentError(f"checkpoint_sequential: segments must be between 1 and the number of functions, {len(each)}, got {segments}")

    def block(x: Any) -> Any:
        for function in each:
            x = function(x)
        return x

    return checkpoint(block, input, use_reentrant=use_reentrant, **kwargs)
