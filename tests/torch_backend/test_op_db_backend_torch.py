"""torch's operator database under torch.compile's backend, beside eager mode: values and gradients, and which operators torch computes.

A sample's function goes to AOTAutograd as torch.compile's graphs do, without its reading of bytecode. The tables name every operator that
is left to torch, with an operation of the database that shows it: they may only become shorter.
`python -m tests.torch_backend.test_op_db_backend_torch [part of a name ...]` prints what differs, and the tables' lines.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.marks import one_of

torch: Any = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's operator database needs expecttest")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from functorch.compile import aot_function
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.utils import _pytree as pytree

    import tracegrad as tg
    from tests.ops.beside_torch.op_db_torch import LARGE, RANDOM, disagreement, leaves, op_db, samples, total
    from tracegrad.torch_backend import compiler

pytestmark = pytest.mark.filterwarnings("ignore")
MOST = 2                         # samples of an operation

# What torch computes between the kernels: the operator, and an operation of the database that has it.
BY_TORCH = {
    "aten._embedding_bag.default": "nn.functional.embedding_bag",
    "aten._embedding_bag_backward.default": "nn.functional.embedding_bag",
    "aten._embedding_bag_per_sample_weights_backward.default": "nn.functional.embedding_bag",
    "aten._histogramdd_bin_edges.default": "histogramdd",
    "aten._histogramdd_from_bin_cts.default": "histogramdd",
    "aten._linalg_det.default": "linalg.det",
    "aten._linalg_slogdet.default": "logdet",
    "aten._linalg_solve_ex.default": "linalg.solve_ex",
    "aten._segment_reduce_backward.default": "_segment_reduce.offsets",
    "aten.resize.default": "resize_as_",
    "torch_nn._linear_cross_entropy_batch_chunked.default": "nn.functional.linear_cross_entropy.chunked",
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": "nn.functional.linear_cross_entropy.chunked_none",
}
# Graphs that torch runs as a whole: why, and an operation of the database that has one.
WHOLE = {
    "an argument that is no dense tensor on the CPU (FakeTensor)": "to_sparse",
    "aten._to_sparse.default, whose result is no dense tensor on the CPU": "to_sparse",
    "aten._to_sparse.sparse_dim, whose result is no dense tensor on the CPU": "to_sparse",
}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


OPS = {name_of(op): op for op in op_db if torch.float32 in op.supported_dtypes("cpu")}


def differences(op: Any) -> Iterator[str]:
    """What differs in the samples of an operation. Left out are those that torch itself cannot do, in eager mode or as a graph."""
    for sample in samples(op, torch.float32, MOST)[:MOST]:
        flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [k for k, x in enumerate(flat) if isinstance(x, torch.Tensor)]
        if any(flat[k].layout is not torch.strided for k in places) or sum(flat[k].numel() for k in places) > LARGE:
            continue
        if op.name == "native_layer_norm" and sample.input.shape[-1] == 1:           # its derivative is 0; torch's own is off by 5e-5
            continue

        def fn(*tensors: Any, sample: Any = sample, flat: Any = flat, spec: Any = spec, places: Any = places) -> Any:
            own = list(flat)
            for k, x in zip(places, tensors, strict=True):
                own[k] = x
            first, args, kwargs = pytree.tree_unflatten(own, spec)
            return tuple(x for x in leaves(sample.output_process_fn_grad(op.op(first, *args, **kwargs)))
                         if isinstance(x, torch.Tensor) and x.layout is torch.strided)

        tensors = [flat[k] for k in places]
        try:
            wanted = _both(fn, tensors)
        except Exception:
            continue
        what = ", ".join(str(list(x.shape)) for x in tensors)
        compiled = aot_function(fn, **compiler.for_aot_autograd())
        try:
            found = _both(compiled, tensors)
            if any(word in op.name for word in RANDOM):
                found = _both(compiled, tensors)     # AOTAutograd's first call draws, too
        except (DataDependentOutputException, DynamicOutputShapeException):         # torch.compile breaks such graphs
            continue
        except Exception as error:
            yield f"{what}: {type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        for kind, mine, theirs in zip(("value", "gradient"), found, wanted, strict=True):
            if problem := disagreement(mine, theirs, 1e-4, exact=not (kind == "value" and "empty" in op.name)):
                yield f"{kind} of {what}: {problem}"
                break


def _both(fn: Any, tensors: list[Any]) -> tuple[list[Any], list[Any]]:
    """The results and the gradients of what requires them, with a seed; zeros where there is none."""
    torch.manual_seed(42)                            # as the database's functions do themselves, in eager mode
    given = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]
    results = list(fn(*given))
    asked = [x for x in given if x.requires_grad]
    number = total(results, torch)
    gradients = torch.autograd.grad(number, asked, allow_unused=True) if number is not None and asked else []
    gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, asked, strict=False)]
    return [x.detach().resolve_conj().resolve_neg() for x in results], gradients


def compared(op: Any) -> tuple[list[str], set[str]]:
    """What differs, and what is left to torch: ("aten.x.y", ...)."""
    said: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_say", said.add)
        found = list(differences(op))
    return found, {text.removeprefix("torch computes ").removeprefix("torch runs a graph as it is, because of ") for text in said}


@one_of(60, "name", sorted(OPS))
@pytest.mark.usefixtures("on_numpy")
def test_samples(name: str) -> None:
    found, left = compared(OPS[name])
    assert not found, "\n".join(found)
    unknown = {text for text in left if text.partition(" ")[0] not in BY_TORCH and text not in WHOLE}
    assert not unknown, f"left to torch: {sorted(unknown)}"


@pytest.mark.long
@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("what", "name"), [*BY_TORCH.items(), *WHOLE.items()])
def test_the_tables_are_not_longer_than_they_must_be(what: str, name: str) -> None:
    _, left = compared(OPS[name])
    assert any(text == what or text.startswith(f"{what} ") for text in left), f"{what} is no longer left to torch: remove its line"


def main() -> None:
    if "--kernels" not in sys.argv:
        tg.set_device("numpy")
    warnings.simplefilter("ignore")
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    left: dict[str, str] = {}
    for name, op in OPS.items():
        if words and not any(word in name for word in words):
            continue
        found, said = compared(op)
        for line in found[:3]:
            print(f"{name}: {line}", flush=True)
        for text in said:
            if left.setdefault(text, name) == name:
                print(f"    {name}: left to torch: {text}", flush=True)


if __name__ == "__main__":
    main()
