"""tracegrad beside torch on the samples of torch's operator database: `differences` is where to start reading.

Every sample of an operation is given to both: results (values, dtypes, shapes), gradients, what works in place, and errors are compared.
`python -m tests.ops.beside_torch.op_db_torch [part of a name ...]` prints what differs, and what
tests/ops/beside_torch/test_op_db_torch.py makes of it.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import gradcheck_wrapper_hermitian_input, op_db

import tracegrad as tg
from tests.helpers.values import plain
from tests.public.coverage import ELSEWHERE
from tracegrad.nn import functional as F

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex128)
SPACES = {
    "nn.functional": F,
    "special": tg.special,
    "linalg": tg.linalg,
    "fft": getattr(tg, "fft", None),
    "masked": tg.masked,
    "signal.windows": tg.signal.windows,
}
RANDOM = (
    "dropout", "rand", "bernoulli", "multinomial", "normal", "uniform", "exponential", "cauchy", "geometric", "rrelu", "empty",
    "pca_lowrank", "svd_lowrank", "fractional_max_pool", "multi_head_attention_forward",
)  # fmt: skip
# Every list of samples asks for the name of torch's test, by reading the source of the whole stack: longer than all the rest takes.
common_utils.extract_test_fn = lambda: None


class Skip(Exception):
    """The sample is about something that is not here: sparse tensors, ..."""


OWN = {  # how the database calls an operation, where its samples do not have the function's own order: (function, *arguments) -> result
    "einsum": lambda f, tensors, equation: f(equation, *tensors),
    "polygamma": lambda f, x, n: f(n, x),
    "special.polygamma": lambda f, x, n: f(n, x),
    "nn.functional.embedding": lambda f, weight, index, **named: f(index, weight, **named),
    "nn.functional.embedding_bag": lambda f, weight, index, **named: f(index, weight, **named),
    "linalg.pinv.singular": lambda f, a, b: f(a @ b.mT),
    "linalg.lstsq.grad_oriented": lambda f, a, b, driver: f(a, b, driver=driver)[:2],
    "svd_lowrank": lambda f, a, b, **named: f(a @ b.mT, **named),
    "pca_lowrank": lambda f, a, b, **named: f(a @ b.mT, **named),
    "normal.in_place": lambda f, x, *rest: x.clone().normal_(*rest),
    "normal.number_mean": lambda f, std, mean, *rest, **named: f(mean, std, *rest, **named),
    "trace": lambda f, x: x.trace(),
    "where": lambda f, x, condition, other: f(condition, x, other),
    "zero_": lambda f, x: x.clone().zero_(),
    "resize_": lambda f, x, *rest: x.detach().clone().resize_(*rest),
    "resize_as_": lambda f, x, *rest: x.detach().clone().resize_as_(*rest),
    "max_pool2d_with_indices_backward": lambda f, x, **named: _pooled_backward(x, **named),
    "to": lambda f, x, *rest, **named: f(x, *("numpy" if a == "cpu" else a for a in rest), **named),
}


def _pooled_backward(x: Any, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, **_: Any) -> Any:
    """As the database calls it: the gradient of ones."""
    args = kernel_size, kernel_size if stride is None else stride, padding, dilation, ceil_mode
    out, indices = F.max_pool2d(x, *args, return_indices=True)
    return tg.max_pool2d_with_indices_backward(tg.ones_like(out), x, *args, indices)


def called(op: Any) -> Callable[..., Any]:
    """What to call with the samples of an operation."""
    fn = function(op.name)
    assert fn is not None, op.name
    own = OWN.get(f"{op.name}.{op.variant_test_name}", OWN.get(op.name))
    return fn if own is None else lambda *args, **named: own(fn, *args, **named)


def function(name: str) -> Callable[..., Any] | None:
    """tracegrad's function of that name in the database, or None. (jiterator: tests/custom/test_jiterator.py, for torch has it on CUDA
    only.)"""
    if name.startswith("jiterator"):
        return None
    space, _, short = ELSEWHERE.get(name, name).rpartition(".")
    if space in SPACES:
        return getattr(SPACES[space], short, None)
    if space:
        owner: Any = tg
        for part in space.split("."):
            owner = getattr(owner, part, None)
        return getattr(owner, short, None)
    found = getattr(tg, short, None)
    if callable(found):
        return found
    found = getattr(tg.Tensor, short, getattr(tg.Tensor, f"{short}_", None))
    return found.fget if isinstance(found, property) else found


def converted(x: Any) -> Any:
    """A torch argument as tracegrad has it."""
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.device.type != "cpu" or x.ndim > 64:
            raise Skip(f"{x.dtype}, {x.layout}, {x.device}")
        x = x.resolve_neg().resolve_conj()
        return tg.tensor(x.detach() if x.dtype == torch.bfloat16 else x.detach().numpy(), requires_grad=x.requires_grad)
    if isinstance(x, torch.dtype):
        try:
            return np.dtype(str(x).removeprefix("torch."))
        except TypeError:
            raise Skip(str(x)) from None
    if type(x).__name__ == "LinearCrossEntropyOptions":
        raise Skip("torch's order of the work")
    if isinstance(x, torch.nn.PairwiseDistance):
        return tg.nn.PairwiseDistance()
    if isinstance(x, torch.Size):
        return tuple(x)
    if isinstance(x, (tuple, list)):
        return type(x)(converted(v) for v in x) if not hasattr(x, "_fields") else tuple(converted(v) for v in x)
    if isinstance(x, dict):
        if x.get("layout", torch.strided) is not torch.strided:
            raise Skip("layout")
        return {k: converted(v) for k, v in x.items() if k != "device" and not isinstance(v, (torch.layout, torch.memory_format))}
    return x


def leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, (tuple, list)):
        for v in x:
            yield from leaves(v)
    elif isinstance(x, dict):
        yield from leaves([*x.values()])
    else:
        yield x


def values(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        x = x.detach().resolve_conj().resolve_neg()
        return x.contiguous().view(torch.int16).numpy(force=True).view(tg.bfloat16) if x.dtype == torch.bfloat16 else x.numpy(force=True)
    return x.detach().numpy() if isinstance(x, tg.Tensor) else x


def disagreement(found: Any, wanted: Any, tolerance: float, exact: bool = True) -> str:
    """What differs of two results, or ""."""
    mine, theirs = [*leaves(found)], [*leaves(wanted)]
    if len(mine) != len(theirs):
        return f"{len(mine)} results, not {len(theirs)}"
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(b, torch.Tensor) and b.layout is not torch.strided:
            raise Skip("sparse result")
        a, b = values(a), values(b)
        if isinstance(b, np.ndarray) != isinstance(a, np.ndarray):
            return f"{type(a).__name__}, not {type(b).__name__}"
        if not isinstance(b, np.ndarray):
            if isinstance(b, (torch.Size, torch.dtype)):
                b = converted(b)
            if a != b and not (a != a and b != b):
                return f"{a!r}, not {b!r}"
            continue
        if a.shape != b.shape:
            return f"shape {a.shape}, not {b.shape}"
        if a.dtype != b.dtype:
            return f"{a.dtype}, not {b.dtype}"
        if not exact or not b.size:
            continue
        a, b = plain(a), plain(b)
        if b.dtype.kind not in "fc":
            if not np.array_equal(a, b):
                return f"values {text(a)}, not {text(b)}"
            continue
        scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
        with np.errstate(all="ignore"):
            ok = np.allclose(a, b, rtol=tolerance, atol=tolerance * max(min(scale, 1e3), 0.1), equal_nan=True)
        if not ok:
            return f"values {text(a)}, not {text(b)}"
    return ""


def text(a: Any) -> str:
    return np.array2string(np.asarray(a).reshape(-1)[:6], precision=5, separator=",", max_line_width=10**6)


def total(results: Any, library: Any) -> Any:
    """A number that depends on all results, differently on each element."""
    out: Any = None
    for r in leaves(results):
        if hasattr(r, "requires_grad") and r.requires_grad:
            n = r.numel()
            weights = plain((0.5 + (np.arange(n) % 7) / 7.0).reshape(tuple(r.shape)).astype(values(r).dtype))
            part = (r * (torch.tensor(weights) if library is torch else tg.tensor(weights)).to(r.dtype)).sum()
            if weights.dtype.kind == "c":
                part = part.real + 0.5 * part.imag
            out = part if out is None else out + part
    return out


def tolerance_of(dtype: Any) -> float:
    return 1e-7 if dtype in (torch.float64, torch.complex128) else 2e-2 if dtype == torch.bfloat16 else 1e-4


LARGE = 20_000  # elements of a sample's operands: such take the interpreter seconds


def samples(op: Any, dtype: Any, most: int = 24) -> list[Any]:
    """The samples of an operation: at most about `most` of them, from all over the list, and of large ones at most about 4."""
    torch.manual_seed(0)
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    small, large = [], []
    for s in op.sample_inputs("cpu", dtype, requires_grad=grad):
        if op.gradcheck_wrapper is gradcheck_wrapper_hermitian_input and op.variant_test_name == "hermitian":
            s.input = ((s.input + s.input.mH) / 2).detach().requires_grad_(grad)        # as the database differentiates it
        size = sum(a.numel() for a in leaves([s.input, s.args, s.kwargs]) if isinstance(a, torch.Tensor))
        (large if size > LARGE else small).append(s)
    return small[:: max(1, len(small) // most)] + large[:: max(1, len(large) // min(4, most))]


def differences(op: Any, dtypes: Any = DTYPES, most: int = 24, errors: bool = True) -> Iterator[tuple[str, str]]:
    """(what, text) for all that differs in the samples of an operation: `most` or so of each dtype, and those of errors."""
    fn = called(op)
    random = any(word in op.name for word in RANDOM)
    for dtype in dtypes:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype, most):
            yield from differences_of(op, fn, sample, dtype, random)
    for error in op.error_inputs("cpu") if errors and op.error_inputs_func is not None else ():
        sample = error.sample_input
        try:
            args = converted([sample.input, *sample.args])
            kwargs = converted(sample.kwargs)
        except Skip:
            continue
        try:
            result = [values(r) for r in leaves(fn(*args, **kwargs))]
        except (tg.TracegradError, TypeError, ValueError):
            continue
        except Exception as e:  # an error of another kind is one, too
            yield "error", f"{described(args, kwargs)}: {type(e).__name__}: {e}"
            continue
        yield "error", f"{described(args, kwargs)}: no error ({error.error_regex[:80]!r}), but {result[0] if result else None!r:.60}"


def described(args: Any, kwargs: Any) -> str:
    def word(a: Any) -> str:
        if isinstance(a, tg.Tensor):
            return f"{a.dtype}{list(a.shape)}" + (f"={a.detach().numpy().tolist()}" if a.numel() <= 3 else "")
        if isinstance(a, (list, tuple)):
            return "(" + ", ".join(map(word, a)) + ")"
        return repr(a)

    return ", ".join([*map(word, args), *(f"{k}={word(v)}" for k, v in kwargs.items())])[:200]


def differences_of(op: Any, fn: Any, sample: Any, dtype: Any, random: bool) -> Iterator[tuple[str, str]]:
    try:
        args, kwargs = converted([sample.input, *sample.args]), converted(sample.kwargs)
    except Skip:
        return
    what = described(args, kwargs)
    tolerance = tolerance_of(dtype)
    random = random or bool(sample.kwargs.get("dropout_p"))
    theirs_error = None
    try:
        wanted = op.op(sample.input, *sample.args, **sample.kwargs)
    except Exception as e:
        theirs_error = e
    if theirs_error is not None:
        return
    try:
        found = fn(*args, **kwargs)
        results = [values(r) for r in leaves(found)]  # so that errors come now
    except Exception as e:
        yield "raises", f"{what}: {type(e).__name__}: {str(e).splitlines()[0]}"
        return
    del results
    process = sample.output_process_fn_grad
    try:
        processed, theirs = process(found), process(wanted)
    except Exception as e:
        yield "process", f"{what}: {type(e).__name__}: {str(e).splitlines()[0]}"
        return
    try:
        problem = disagreement(processed, theirs, tolerance, not random)
    except Skip:
        return
    if problem:
        yield "value", f"{what}: {problem}"
        return
    if op.supports_autograd and (dtype.is_floating_point or dtype.is_complex) and not random:
        yield from gradients(what, [sample.input, *sample.args, sample.kwargs], [args, kwargs], processed, theirs, tolerance)
    inplace = op.inplace_variant
    if inplace is not None and isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input:
        yield from in_place(op, sample, args, kwargs, what, tolerance, random)


def gradients(what: str, given: Any, mine: Any, found: Any, wanted: Any, tolerance: float) -> Iterator[tuple[str, str]]:
    reference = total(wanted, torch)
    if reference is None:
        if any(isinstance(r, tg.Tensor) and r.requires_grad for r in leaves(found)):
            yield "gradient", f"{what}: has one, torch has not"
        return
    both = zip(leaves(given), leaves(mine), strict=False)
    pairs = [(a, b) for a, b in both if isinstance(a, torch.Tensor) and a.requires_grad and a.is_leaf]
    try:
        expected = torch.autograd.grad(reference, [a for a, _ in pairs], allow_unused=True)
    except Exception:
        return
    own = total(found, tg)
    if own is None and all(e is None or not np.any(values(e)) for e in expected):
        return  # no gradient, where torch has zeros
    if own is None:
        yield "gradient", f"{what}: has none"
        return
    try:
        own.backward()
        gradients = [None if b.grad is None else values(b.grad) for _, b in pairs]
    except Exception as e:
        yield "gradient", f"{what}: {type(e).__name__}: {str(e).splitlines()[0]}"
        return
    for g, e in zip(gradients, expected, strict=True):
        if (g is None and e is None) or (e is None and not np.any(g)) or (g is None and not np.any(values(e))):
            continue
        if g is None or e is None:
            yield "gradient", f"{what}: {g}, torch {e}"
        elif problem := disagreement(tg.tensor(g), e, tolerance * 10):
            yield "gradient", f"{what}: {problem}"


def in_place(op: Any, sample: Any, args: Any, kwargs: Any, what: str, tolerance: float, random: bool) -> Iterator[tuple[str, str]]:
    name = f"{op.name}_" if getattr(op.inplace_variant, "__name__", "<lambda>") == "<lambda>" else op.inplace_variant.__name__
    if "." in op.name:
        return
    try:
        target = sample.input.detach().clone()
        wanted = op.inplace_variant(target, *sample.args, **sample.kwargs)
    except Exception:
        return
    method = getattr(tg.Tensor, name, None)
    if method is None:
        yield "in place", f"no method {name}"
        return
    try:
        with tg.no_grad():
            own = args[0].detach().clone()
            found = method(own, *args[1:], **kwargs)
            problem = disagreement(found, wanted, tolerance, not random)
            same = found is own
    except Skip:
        return
    except Exception as e:
        yield "in place", f"{name} {what}: {type(e).__name__}: {str(e).splitlines()[0]}"
        return
    if problem:
        yield "in place", f"{name} {what}: {problem}"
    elif not same:
        yield "in place", f"{name} {what}: is another tensor"


def unexplained(reasons: Sequence[tuple[str, str, str, str]], name: str, kind: str, line: str) -> bool:
    """Whether no row of a table (names, kinds of difference, words of it, why) says why a difference stays."""
    return not any(re.fullmatch(names, name) and re.fullmatch(kinds, kind) and re.search(words, line) for names, kinds, words, _ in reasons)


def main() -> None:
    words = sys.argv[1:]
    tg.set_device("numpy")
    warnings.simplefilter("ignore")
    missing = sorted({op.name for op in op_db if function(op.name) is None})
    for op in op_db:
        if function(op.name) is None or (words and not any(w == op.name or (w[-1] == "*" and op.name.startswith(w[:-1])) for w in words)):
            continue
        seen: dict[str, int] = {}
        try:
            for kind, line in differences(op):
                seen[kind] = seen.get(kind, 0) + 1
                if seen[kind] <= 3:
                    print(f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} [{kind}] {line}", flush=True)
        except Exception as e:
            print(f"{op.name} [HARNESS] {type(e).__name__}: {e}", flush=True)
        for kind, n in seen.items():
            if n > 3:
                print(f"{op.name} [{kind}] ... {n} in all", flush=True)
    if not words:
        print("missing:", *missing)


if __name__ == "__main__":
    main()
