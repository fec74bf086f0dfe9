"""tracegrad's modules beside torch's on the samples of torch's module database: `differences` is where to start reading.

Every sample is a constructor's arguments and a call's. Both modules get the same state dict; what they say of themselves, results,
gradients (of inputs and parameters, and second ones), buffers afterwards and errors are compared: untraced, traced, of operands that
are not contiguous, and frozen. `python -m tests.nn.beside_torch.module_db_torch [part of a name ...]` prints all that differs.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

import tracegrad as tg
from tests.ops.beside_torch import op_db_torch
from tests.ops.beside_torch.op_db_torch import Skip, described, disagreement, leaves, total, values

QUANTIZABLE = "NonDynamicallyQuantizableLinear", "Linear"
Found = Iterator[tuple[str, str]]
RANDOM = ("Dropout", "RReLU", "FractionalMaxPool")


def module_class(info: Any) -> Any:
    """tracegrad's module of that name, or None."""
    if not info.module_cls.__module__.startswith("torch.nn.modules"):
        return None
    return getattr(tg.nn, info.module_cls.__name__, None)


def converted(x: Any) -> Any:
    """A torch argument as tracegrad has it: functions, modules and packed sequences, too."""
    if isinstance(x, torch.nn.utils.rnn.PackedSequence):
        return tg.nn.utils.rnn.PackedSequence(*(None if f is None else converted(f) for f in x))
    if isinstance(x, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)):
        sizes = x.linear1.in_features, x.self_attn.num_heads, x.linear1.out_features, x.dropout.p
        return getattr(tg.nn, type(x).__name__)(
            *sizes, converted(x.activation), x.norm1.eps, x.self_attn.batch_first, x.norm_first, x.linear1.bias is not None)
    if isinstance(x, torch.nn.Module):
        return getattr(tg.nn, type(x).__name__)()
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(converted(v) for v in x)
    if isinstance(x, dict):
        return {k: converted(v) for k, v in x.items() if k != "device"}
    if getattr(x, "__module__", "").startswith("torch") and hasattr(x, "__name__") and callable(x):
        name = x.__name__.removeprefix("boolean_dispatch")
        return getattr(tg.nn.functional, name, None) or getattr(tg.nn, name)
    if callable(x) and getattr(x, "__module__", "").startswith("torch"):
        raise Skip(repr(x))
    return op_db_torch.converted(x)


def strided(x: Any) -> Any:
    """The same values, not contiguous."""
    if isinstance(x, torch.Tensor) and x.ndim and x.is_floating_point() and x.is_leaf:
        y = torch.stack([x.detach(), x.detach()], -1)[..., 0]
        return y.requires_grad_(x.requires_grad)
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(strided(v) for v in x)
    return {k: strided(v) for k, v in x.items()} if isinstance(x, dict) else x


def flat(results: Any) -> list[Any]:
    """Tensors of results, packed sequences' among them."""
    return [r for r in leaves(tuple(results) if hasattr(results, "_fields") else results) if r is not None]


def said(module: Any) -> dict[str, Any]:
    """What a module says of itself."""
    return {
        "state dict": [(k, tuple(v.shape), str(v.dtype).removeprefix("torch.")) for k, v in module.state_dict().items()],
        "parameters": [(k, p.requires_grad) for k, p in module.named_parameters()],
        "buffers": [k for k, _ in module.named_buffers()],
        "modules": [(k, type(m).__name__.replace(*QUANTIZABLE)) for k, m in module.named_modules()],
        "repr": repr(module).replace(*QUANTIZABLE),
    }


def differences(info: Any, dtypes: Any = (torch.float64, torch.float32), traced: bool = True, most: int = 1000) -> Found:
    """(what, text) for all that differs in the samples of a module: at most about `most` of each dtype and mode, from all over the list."""
    for dtype in dtypes:
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(0)
            samples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
            for sample in samples[:: max(1, -(-len(samples) // most))]:
                yield from differences_of(info, sample, dtype, training, traced)
    yield from differences_of_errors(info)


def differences_of(info: Any, sample: Any, dtype: Any, training: bool, traced: bool) -> Found:
    cls, given = module_class(info), sample.constructor_input
    what = f"{info.module_cls.__name__}({named(given)}) {str(dtype)[6:]} {'train' if training else 'eval'}"
    try:
        args, kwargs = converted([*given.args]), converted({**given.kwargs})
    except Skip:
        return
    theirs = info.module_cls(*given.args, **given.kwargs).to(dtype).train(training)
    try:
        ours = cls(*args, **kwargs).to(op_db_torch.converted(dtype)).train(training)
    except Exception as e:
        yield "constructor", f"{what}: {type(e).__name__}: {str(e).splitlines()[0]}"
        return
    if not info.is_lazy:
        yield from differences_of_state(what, ours, theirs)
    call = sample.forward_input
    if call is None:
        return
    what += f" of {named(call)}"
    for way in ("untraced", "traced", "strided", "copied"):
        if way == "traced" and not traced:
            continue
        inputs = strided([list(call.args), dict(call.kwargs)]) if way == "strided" else [list(call.args), dict(call.kwargs)]
        a, b = copy.deepcopy(ours), copy.deepcopy(theirs)
        if info.is_lazy:
            with tg.no_grad(), torch.no_grad():
                b(*inputs[0], **inputs[1]), a(*converted(inputs[0]), **converted(inputs[1]))
            yield from differences_of_state(what, a, b)
        if way == "copied":
            a.requires_grad_(False), b.requires_grad_(False)
        for kind, line in differences_of_calls(info, a, b, inputs, dtype, training, traced=way == "traced"):
            yield kind, f"{what}, {way}: {line}"
            break
        else:
            continue
        break


def named(given: Any) -> str:
    """The arguments in a line."""
    def plain(x: Any) -> Any:
        try:
            return converted(x)
        except Skip:
            return x

    return " ".join(described([*map(plain, given.args)], {k: plain(v) for k, v in given.kwargs.items()}).split())


def differences_of_state(what: str, ours: Any, theirs: Any) -> Found:
    a, b = said(ours), said(theirs)
    for key in a:
        if a[key] != b[key]:
            yield key, f"{what}: {a[key]!r}, not {b[key]!r}"
    mine, his = public(ours), public(theirs)
    for key in his:
        if key not in mine:
            yield "attribute", f"{what}: no {key} ({his[key]!r})"
        elif mine[key] != his[key]:
            yield "attribute", f"{what}: {key} is {mine[key]!r}, not {his[key]!r}"
    if a["state dict"] == b["state dict"]:
        ours.load_state_dict({k: tg.tensor(v.detach().numpy()) for k, v in theirs.state_dict().items()})
        theirs.load_state_dict({k: torch.tensor(v.detach().numpy()) for k, v in ours.state_dict().items()})


def public(module: Any) -> dict[str, Any]:
    """Attributes that are plain values."""
    found = {}
    for key in dir(module):
        if key.startswith("_") or key in ("T_destination", "dump_patches", "call_super_init"):
            continue
        value = getattr(module, key, None)
        if value is None or isinstance(value, (bool, int, float, str)):
            found[key] = value
        elif isinstance(value, (tuple, list)) and all(isinstance(v, (bool, int, float, str)) for v in value):
            found[key] = tuple(value)
    return found


def differences_of_calls(info: Any, ours: Any, theirs: Any, inputs: Any, dtype: Any, training: bool, traced: bool) -> Found:
    args, kwargs = inputs
    random = (any(word in info.module_cls.__name__ for word in RANDOM) and training) or (getattr(theirs, "dropout", 0.0) and training)
    tolerance = op_db_torch.tolerance_of(dtype)
    try:
        own_args, own_kwargs = converted(args), converted(kwargs)
    except Skip:
        return
    run = tg.trace(ours) if traced else ours
    for repeat in range(4 if traced else 1):
        state = torch.random.get_rng_state()
        try:
            wanted = theirs(*args, **kwargs)
        except Exception as e:
            try:
                run(*own_args, **own_kwargs)
            except Exception:
                return
            yield "raises not", f"torch: {type(e).__name__}: {str(e).splitlines()[0]}"
            return
        torch.random.set_rng_state(state)
        try:
            found = run(*own_args, **own_kwargs)
            [values(r) for r in flat(found)]
        except Exception as e:
            yield "raises", f"{type(e).__name__}: {str(e).splitlines()[0]}"
            return
        if problem := disagreement(flat(found), flat(wanted), tolerance, not random):
            yield "value", f"iteration {repeat}: {problem}"
            return
        for x, y in zip(flat(found), flat(wanted), strict=True):
            if isinstance(y, torch.Tensor) and x.requires_grad != y.requires_grad:
                yield "requires grad", f"{x.requires_grad}, not {y.requires_grad}"
        mine, his = dict(ours.named_buffers()), dict(theirs.named_buffers())
        for key, b in his.items():
            if problem := disagreement(mine[key], b, tolerance):
                yield "buffer", f"{key}: iteration {repeat}: {problem}"
        if not random:
            given = (ours, own_args, own_kwargs), (theirs, *inputs)
            yield from differences_of_gradients(*given, found, wanted, tolerance, info.supports_gradgrad)


def differences_of_gradients(mine: Any, his: Any, found: Any, wanted: Any, tolerance: float, second: bool) -> Found:
    """mine, his: the module and its arguments."""
    (ours, *mine), (theirs, *his) = mine, his
    reference, own = total(flat(wanted), torch), total(flat(found), tg)
    if reference is None:
        return
    both = zip(leaves(mine), leaves(his), strict=True)
    pairs = [("input", a, b) for a, b in both if isinstance(b, torch.Tensor) and b.requires_grad and b.is_leaf]
    parameters = dict(ours.named_parameters())
    pairs += [(k, parameters[k], p) for k, p in theirs.named_parameters() if p.requires_grad]
    if not pairs:
        return
    variables, names = ([p[1] for p in pairs], [p[2] for p in pairs]), [p[0] for p in pairs]
    try:
        expected = torch.autograd.grad(reference, variables[1], create_graph=True, allow_unused=True)
    except Exception:
        return
    for step in ("gradient", "second gradient"):
        try:
            got = tg.autograd.grad(own, variables[0], create_graph=True, allow_unused=True)
            [values(g) for g in got if g is not None]
        except Exception as e:
            yield step, f"{type(e).__name__}: {str(e).splitlines()[0]}"
            return
        for name, g, e in zip(names, got, expected, strict=True):
            if (g is None and e is None) or (g is None and not np.any(values(e))) or (e is None and not np.any(values(g))):
                continue
            if g is None or e is None:
                yield step, f"{name}: {g}, torch {e}"
            elif problem := disagreement(g, e, tolerance * 10):
                yield step, f"{name}: {problem}"
        if step == "gradient":
            if not second:
                return
            reference, own = total([(e * e) for e in expected if e is not None], torch), total([g * g for g in got if g is not None], tg)
            if reference is None or own is None:
                return
            try:
                expected = torch.autograd.grad(reference, variables[1], allow_unused=True)
            except Exception:
                return


def differences_of_errors(info: Any) -> Found:
    if info.module_error_inputs_func is None:
        return
    cls = module_class(info)
    for error in info.module_error_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=True):
        sample = error.module_error_input
        given, call = sample.constructor_input, sample.forward_input
        what = f"{info.module_cls.__name__}({named(given)})"
        late = error.error_on is ModuleErrorEnum.FORWARD_ERROR
        try:
            module = cls(*converted([*given.args]), **converted({**given.kwargs}))
            if late:
                module = module.to(np.float64)
                what += f" of {named(call)}"
                result = module(*converted([*call.args]), **converted({**call.kwargs}))
                [values(r) for r in flat(result)]
        except Skip:
            continue
        except error.error_type:
            continue
        except Exception as e:
            yield "error", f"{what}: {type(e).__name__}: {e}, not {error.error_type.__name__} {error.error_regex!r}"
            continue
        yield "error", f"{what}: no error ({error.error_type.__name__}: {error.error_regex!r})"


def main(words: list[str]) -> None:
    tg.set_device("numpy")
    warnings.simplefilter("ignore")
    for info in module_db:
        if module_class(info) is None or (words and not any(w in info.name for w in words)):
            continue
        seen: set[tuple[str, str]] = set()
        for kind, line in differences(info):
            if (kind, line) not in seen:
                seen.add((kind, line))
                print(f"{info.name} [{kind}] {line[:400]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
