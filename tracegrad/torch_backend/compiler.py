"""The backend: what torch.compile calls with each graph (`backend`), and a graph of aten operators as a traced function (`Program`).

AOTAutograd has made the forward and the backward graph: functions without mutation, of aten operators that torch's decompositions take
apart. Tensors on the CPU are shared both ways; nothing here writes them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from tracegrad.custom.host_call import host_call
from tracegrad.errors import TracegradError
from tracegrad.support import dtypes
from tracegrad.support.cache import Cache, memoize
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_backend.operators import find
from tracegrad.torch_backend.runs import Run, run_of
from tracegrad.torch_backend.saved import packed
from tracegrad.torch_backend.tensor_layouts import COPIED, Argument, Layout, Number, name_of, overlaps, to_numpy, to_torch
from tracegrad.tracing.trace import trace
from tracegrad.tracing.varying import mark_dynamic

# Views that torch makes of a result or of an argument, in place of a copy that the program would write. All others leave out elements or
# repeat them.
_WHOLE = {f"aten.{name}.default" for name in ("_conj", "_neg_view", "alias", "detach", "permute", "squeeze", "t", "unsqueeze", "view")} | {
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.transpose.int"}
_ABOUT_MEMORY = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})     # arguments without a meaning here
_AS_STRIDED = "aten.as_strided.default"
_SIZES = 64       # programs of one graph whose sizes vary, one for each tuple of sizes


class _Refused(Exception):
    """A graph that torch is to run; the message is why."""


class _IsConstant(Exception):
    """An operator that cannot have an integer argument as an operand."""


@memoize(1024)
def _say(what: str) -> None:
    """Warn, the first time that it is called with this text."""
    import warnings  # noqa: PLC0415

    warnings.warn(f'torch.compile(backend="tracegrad"): {what}', RuntimeWarning, stacklevel=2)


def backend(gm: Any, example_inputs: Sequence[Any], **options: Any) -> Any:
    """A function that computes a graph of torch's, with its gradients; torch.compile(model, backend="tracegrad") calls this.

    gm: the torch.fx.GraphModule that torch recorded. example_inputs: its arguments. Operators that tracegrad does not have are computed
    by torch between the kernels, graphs that it cannot take by torch as a whole; a RuntimeWarning names the operator, once. Raises
    TypeError for options: there are none.
    """
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415  (who uses torch.compile has loaded it)

    given = (options.pop("options", None) or {}) | options
    if given:
        raise TypeError(f'torch.compile(backend="tracegrad") has no options, got {", ".join(given)}')
    return aot_autograd(**for_aot_autograd())(gm, example_inputs)


def for_aot_autograd() -> dict[str, Any]:
    """What AOTAutograd is given: the compiler of each kind of graph, torch's rules, and how forward and backward are parted."""
    return {"fw_compiler": _compiled, "bw_compiler": _compiled, "inference_compiler": partial(_compiled, inference=True),
            "decompositions": _decompositions(), "partition_fn": _parted}


def _parted(joint: Any, inputs: Any, **options: Any) -> tuple[Any, Any]:
    """The forward and the backward graph. A view is made again in the backward graph: handing one over takes as long as a small kernel."""
    from functorch.compile import min_cut_rematerialization_partition  # noqa: PLC0415
    from torch._functorch import config  # noqa: PLC0415

    with config.patch(recompute_views=True):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    packed(forward, backward, options["num_fwd_outputs"])
    return forward, backward


def _decompositions() -> Any:
    """torch's rules for operators that are not mapped. Those of random numbers stay, for the same numbers as without torch.compile."""
    from torch import Tag, ops  # noqa: PLC0415
    from torch._decomp import core_aten_decompositions, get_decompositions  # noqa: PLC0415

    more = [ops.aten._native_batch_norm_legit, ops.aten._native_batch_norm_legit_functional, ops.aten._native_batch_norm_legit_no_training,
            ops.aten.native_batch_norm, ops.aten.log_sigmoid_forward, ops.aten._batch_norm_with_update_functional.default,
            ops.aten.batch_norm_backward.default, ops.aten.rrelu_with_noise_backward]
    rules = {**core_aten_decompositions(), **get_decompositions(more), ops.aten.unbind.int: _unbind}
    mapped = ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return {op: rule for op, rule in rules.items() if op is not mapped and Tag.nondeterministic_seeded not in getattr(op, "tags", ())}


def _unbind(x: Any, dim: int = 0) -> list[Any]:
    """As views that torch's partitioner makes again in the backward graph: those of unbind itself it hands over, one by one."""
    from torch import ops  # noqa: PLC0415

    return [ops.aten.select.int(x, dim, k) for k in range(x.shape[dim])]


def _compiled(gm: Any, example_inputs: Sequence[Any], inference: bool = False) -> Any:
    """A function that takes a list of a graph's arguments, and empties it."""
    from functorch.compile import make_boxed_func  # noqa: PLC0415

    try:
        _without_tokens(gm)
        _check(gm)
        return make_boxed_func(_of_any_size(gm, inference) if _sizes_vary(gm) else Program(gm, inference))
    except _Refused as refused:
        _say(f"torch runs a graph as it is, because of {refused}")
        return make_boxed_func(gm.forward)


def _placeholders(gm: Any) -> list[Any]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def _sizes_vary(gm: Any) -> bool:
    import torch  # noqa: PLC0415

    return any(not isinstance(node.meta["val"], torch.Tensor) for node in _placeholders(gm))


def _without_tokens(gm: Any) -> None:
    """Operators that torch orders by tokens, and that have no result (they raise errors), as plain calls: those are in order anyway."""
    for node in list(gm.graph.nodes):
        if str(node.target) == "with_effects" and not node.args[1]._schema.returns:
            token, operator, *args = node.args
            with gm.graph.inserting_before(node):
                gm.graph.call_function(operator, tuple(args), dict(node.kwargs)).meta["val"] = None
            for user in list(node.users):
                user.replace_all_uses_with(token)
                gm.graph.erase_node(user)
            gm.graph.erase_node(node)
    gm.recompile()


def _check(gm: Any) -> None:
    """Raise _Refused for what no part of a program can stand for."""
    import torch  # noqa: PLC0415

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val")
            if not isinstance(value, (int, torch.SymInt)) and not _plain(value):
                raise _Refused(f"an argument that is no dense tensor on the CPU ({type(value).__name__})")
        elif node.op == "get_attr":
            if not _plain(getattr(gm, node.target, None)):
                raise _Refused(f"the constant {node.target}")
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            if node.target._schema.is_mutable:
                raise _Refused(f"{node.target}, which changes its argument")
            results = [x for x in _listed(node.meta.get("val")) if x is not None and not isinstance(x, (int, torch.SymInt))]
            if not all(map(_plain, results)):
                raise _Refused(f"{node.target}, whose result is no dense tensor on the CPU")
        elif node.op != "output" and getattr(node.target, "__module__", "") not in ("_operator", "math"):
            raise _Refused(f"{node.target}")


def _plain(value: Any) -> bool:
    """Whether a tensor lies in memory, on the CPU, and is of a dtype that tracegrad has."""
    import torch  # noqa: PLC0415

    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return False
    return hasattr(dtypes, name_of(value.dtype))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _of_any_size(gm: Any, inference: bool) -> Callable[..., Any]:
    """A graph some of whose arguments are integers: a program for each tuple of sizes, with kernels that sizes share."""
    import torch  # noqa: PLC0415
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # noqa: PLC0415

    programs = Cache("torch.compile's sizes", _SIZES)
    varying = [_symbolic(node.meta["val"]) for node in _placeholders(gm)]
    numbers = _numbers(gm)

    def run(*args: Any) -> Any:
        key = tuple((x.shape, x.stride()) if isinstance(x, torch.Tensor) else None if k in numbers else x for k, x in enumerate(args))
        program = programs[key]
        if program is None:
            graph = torch.fx.Graph()
            graph.output(graph.graph_copy(gm.graph, {}))
            own = torch.fx.GraphModule(gm, graph)
            FakeTensorProp(own, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*args)
            try:
                program = Program(own, inference, varying, numbers)
            except _Refused as refused:
                _say(f"torch runs a graph as it is, because of {refused}")
                program = gm.forward
            programs[key] = program
        try:
            return program(*args)
        except _IsConstant:
            numbers.clear()
            return run(*args)

    return run


def _numbers(gm: Any) -> set[int]:
    """The integers among a graph's arguments that are no sizes, and that operators read in the place of tensors: one program is for all."""
    import torch  # noqa: PLC0415

    sizes: set[Any] = set()
    for node in gm.graph.nodes:
        for x in _listed(node.meta.get("val")):
            if isinstance(x, torch.Tensor):
                told = [n for n in (*x.shape, *x.stride(), x.storage_offset()) if isinstance(n, torch.SymInt)]
                sizes.update(*[n.node.expr.free_symbols for n in told])
    return {k for k, node in enumerate(_placeholders(gm))
            if isinstance(node.meta["val"], torch.SymInt) and sizes.isdisjoint(node.meta["val"].node.expr.free_symbols)
            and all(user.op == "output" or _reads_value(user, node) for user in node.users)}


def _reads_value(user: Any, number: Any) -> bool:
    """Whether an operator takes an integer where it also takes a tensor or a number of any kind."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    given = {argument.name: x for argument, x in zip(schema.arguments, user.args, strict=False)} | user.kwargs
    kinds = [str(argument.type) for argument in schema.arguments if given.get(argument.name) is number]
    return bool(kinds) and all(kind in ("Tensor", "number") for kind in kinds)


def _symbolic(value: Any) -> list[int]:
    """The dimensions of an argument whose sizes vary."""
    return [d for d, n in enumerate(getattr(value, "shape", ())) if not isinstance(n, int)]


def _views(node: Any, follow: Callable[[Any], bool]) -> tuple[Any, list[Any]]:
    """What a node is a view of, and the views on the way from there, as far as they are to be followed."""
    chain: list[Any] = []
    while node.op == "call_function" and follow(node):
        chain.insert(0, node)
        node = node.args[0]
    return node, chain


def _is_whole(node: Any) -> bool:
    return str(node.target) in _WHOLE


def _is_view(node: Any) -> bool:
    """Whether an operator's result, or the item of its results, shares its argument's memory."""
    if node.target is operator.getitem:
        return node.args[0].op == "call_function" and _is_view(node.args[0])
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return bool(returns) and all(x.alias_info is not None and not x.alias_info.is_write for x in returns)


def _draws(node: Any) -> bool:
    """Whether an operator draws random numbers. Attention does where its dropout is not 0."""
    from torch import Tag  # noqa: PLC0415

    if Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
    rate = next((a.default_value for a in node.target._schema.arguments if a.name == "dropout_p"), None)
    return rate is None or bool(given.get("dropout_p", rate))


def _memory_of(node: Any) -> Any:
    """Whose memory an as_strided is about."""
    return _views(node.args[0], lambda x: _is_view(x) and str(x.target) not in ("aten._conj.default", "aten._neg_view.default"))[0]


class Program:
    """A graph whose sizes are known: a function of torch tensors. Raises _Refused where a size depends on values."""

    def __init__(self, gm: Any, inference: bool = False, varying: Sequence[Sequence[int]] = (), numbers: Collection[int] = ()) -> None:
        """inference: there is no backward graph. varying: dimensions of each argument that have other sizes in the graph's other programs.

        numbers: the places of arguments that are integers of any value; a call raises _IsConstant where that cannot be.
        """
        import torch  # noqa: PLC0415

        for node in gm.graph.nodes:
            for value in _listed(node.meta.get("val")):
                sizes = value.shape if isinstance(value, torch.Tensor) else [value]
                if any(isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)) for n in sizes):
                    raise _Refused(f"{node.target}, whose size depends on values")
        self._gm = gm
        self._arguments = _placeholders(gm)
        self._numbers = {self._arguments[k] for k in numbers}
        self._constants = [node for node in gm.graph.nodes if node.op == "get_attr"]
        self._outputs = gm.graph.output_node().args[0]
        wanted = [x for x in self._outputs if isinstance(x, torch.fx.Node) and not isinstance(x.meta["val"], int)]
        given = {*self._arguments, *self._constants}
        views = {x: _views(x, _is_view) for x in wanted}
        # Of a part of these a view is made. Of others only the part is computed.
        kept = given | {_views(x, _is_whole)[0] for x in wanted} | {views[x][0] for x in wanted if Layout(x.meta["val"]).overlaps}
        if inference:                                   # else AOTAutograd has seen to results that share memory
            kept |= {base for base, n in Counter(base for base, _ in views.values()).items() if n > 1}
        # output node -> (what torch makes it of, by which views)
        self._views = {x: found if found[0] in kept else _views(x, _is_whole) for x, found in views.items()}
        # operators without a result: they raise errors where values are wrong (a matrix is singular), once these are there
        self._checks = [node for node in gm.graph.nodes
                        if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns]
        wanted = [base for base, _ in self._views.values()] + [x for node in self._checks for x in node.all_input_nodes]
        self._computed = [x for x in dict.fromkeys(wanted) if x not in given and isinstance(x.meta["val"], torch.Tensor)]
        self._needed = self._reached()
        strided = {_memory_of(node) for node in self._needed if str(node.target) == _AS_STRIDED}
        if any(x.meta["val"].storage_offset() or not Layout(x.meta["val"]).dense for x in strided):
            raise _Refused("aten.as_strided of a part of a tensor")
        self._from_start = strided & given                # must begin where their memory does: torch has no guard for that
        self._read = [node for node in (*self._arguments, *self._constants) if node in self._needed]
        dims = dict(zip(self._arguments, varying, strict=False))
        self._given = {node: Number() if node in self._numbers else Argument(node.meta["val"], dims.get(node, ())) for node in self._read}
        self._layouts = [Layout(node.meta["val"]) for node in self._computed]
        self._left = False                              # to torch: the first call failed
        self._alike: list[int] | None = None            # results to copy, whose memory is or may be another one's; known after a call
        self._run: Run | None = None                    # what most calls are

        def graph(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self._body(tensors)

        self._traced: Any = trace(graph, dynamic=None if varying else False)

    def _reached(self) -> set[Any]:
        """The nodes that the results are made of."""
        found: set[Any] = set()
        waiting = list(self._computed)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += node.all_input_nodes
        return {node for node in found if node in self._numbers or not isinstance(node.meta.get("val"), int)}

    # -------------------------------------------------------------------------------------------------------- a call

    def __call__(self, *args: Any) -> list[Any]:
        values: dict[Any, Any] = dict(zip(self._arguments, args, strict=True))
        values |= {node: getattr(self._gm, node.target) for node in self._constants}
        if self._left or any(values[node].storage_offset() for node in self._from_start):
            return self._gm(*args)  # type: ignore[no-any-return]
        made = None if self._run is None else self._run([values[node] for node in self._given])
        if made is None:
            made = self._by_tensors(values)
        if made is None:
            return self._gm(*args)  # type: ignore[no-any-return]
        values |= zip(self._computed, made, strict=True)
        for node in self._checks:
            node.target(*self._with(node.args, values), **self._with(node.kwargs, values))
        return [self._output(node, values) for node in self._outputs]

    def _by_tensors(self, values: dict[Any, Any]) -> list[Any] | None:
        """The results of the traced function. None if its first call fails: the graph is left to torch."""
        try:
            with no_grad():
                given = [x.of(values[node]) for node, x in self._given.items()] if self._computed else []
                if self._alike is None:
                    for x, argument in zip(given, self._given.values(), strict=True):
                        mark_dynamic(x, argument.varying)
                results = self._traced(*given) if given or self._computed else ()
                # from here on the arguments may be written
                made = [layout.in_torch(x) for layout, x in zip(self._layouts, results, strict=True)]
        except TracegradError as error:
            if self._alike is not None:
                raise
            self._left = True                               # such as float64 on a device that has none
            _say(f"torch runs a graph as it is, because of an error: {error}")
            return None
        if self._alike is None:
            shared = overlaps([values[node] for node in self._read if node not in self._numbers], made)
            self._alike = sorted({*shared, *(k for k, x in enumerate(results) if x._n.aval.nbytes <= COPIED)})
        for k in self._alike:
            made[k] = made[k].clone()
        if given:
            self._run = run_of(self._traced._seen(), list(self._given.values()), self._layouts)
        return [layout.as_promised(x) for layout, x in zip(self._layouts, made, strict=True)]

    def _output(self, node: Any, values: dict[Any, Any]) -> Any:
        if node in self._numbers:
            return values[node]
        if node not in self._views:
            return self._known(node)
        base, chain = self._views[node]
        x = values[base]
        for view in chain:
            x = view.target(x, *self._with(view.args[1:], {}), **self._with(view.kwargs, {}))
        return x

    # ------------------------------------------------------------------------------------------------- the recording

    def _body(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The graph on tracers, node by node."""
        self._drawn: list[Tensor] = []
        values = {node: x.permute(given.inverse) for (node, given), x in zip(self._given.items(), tensors, strict=True)}
        for node in self._gm.graph.nodes:
            if node in self._needed and node not in values:
                values[node] = self._apply(node, values)
        return tuple(values[node].permute(layout.order).contiguous() for node, layout in zip(self._computed, self._layouts, strict=True))

    def _known(self, node: Any) -> Any:
        return getattr(node, "meta", {}).get("val", node)

    def _with(self, given: Any, values: dict[Any, Any]) -> Any:
        """Arguments of a node, with values in place of nodes: those of sizes are known."""
        from torch.fx.node import map_arg  # noqa: PLC0415

        return map_arg(given, lambda node: values[node] if node in values else node.meta["val"])

    def _apply(self, node: Any, values: dict[Any, Any]) -> Any:
        if node.target is operator.getitem:
            return values[node.args[0]][node.args[1]]
        name, random = str(node.target), _draws(node)           # what draws is torch's, so that its seeds hold
        if name == _AS_STRIDED:
            return self._as_strided(node, values)
        function = None if random else find(name)
        reason = "it is not mapped"
        if function is not None:
            args = [_own(x) for x in self._with(node.args, values)]
            kwargs = {key: _own(x) for key, x in self._with(node.kwargs, values).items() if key not in _ABOUT_MEMORY}
            try:
                result = function(*args, **kwargs)
            except (TracegradError, TypeError) as error:
                reason = str(error).splitlines()[0]
            else:
                reason = _difference(result, node.meta["val"])
                if not reason:
                    return result
        if not self._numbers.isdisjoint(node.all_input_nodes):
            raise _IsConstant
        if not random:
            _say(f"torch computes {name} ({reason})")
        return self._by_torch(node, values, random)

    def _as_strided(self, node: Any, values: dict[Any, Any]) -> Any:
        """Elements of the memory of a result or an argument that fills it."""
        whole = _memory_of(node)
        x, size, stride, *offset = self._with((whole, *node.args[1:]), values)
        start = offset[0] if offset and offset[0] is not None else node.args[0].meta["val"].storage_offset()
        return x.permute(Layout(whole.meta["val"]).order).flatten().as_strided(size, stride, start)

    def _by_torch(self, node: Any, values: dict[Any, Any], random: bool) -> Any:
        """An operator computed by torch between the kernels. Those of random numbers stay in order: each has a token for the next one."""
        from torch import Tensor as TorchTensor  # noqa: PLC0415

        operands = [x for x in node.all_input_nodes if x in values]
        promised = _listed(node.meta["val"])
        tensors = [value for value in promised if isinstance(value, TorchTensor)]

        def run(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
            given = {x: to_torch(array, x.meta["val"]) for x, array in zip(operands, arrays, strict=False)}
            found = _listed(node.target(*self._with(node.args, given), **self._with(node.kwargs, given)))
            return [to_numpy(x) for x in found if isinstance(x, TorchTensor)] + [np.zeros((), np.int32)] * random

        run.__name__ = str(node.target).replace(".", "_")
        like = [(tuple(value.shape), getattr(dtypes, name_of(value.dtype))) for value in tensors]
        given = [values[x] for x in operands]
        if random:
            given += self._drawn
            like.append(((), dtypes.int32))
        found = iter(host_call(run, *given, like=like))
        results = [next(found) if isinstance(value, TorchTensor) else value for value in promised]
        self._drawn = [*found] or self._drawn
        return results if isinstance(node.meta["val"], (tuple, list)) else results[0]


# ------------------------------------------------------------------------------------------------------------------ values


def _own(x: Any) -> Any:
    """A dtype of torch's as tracegrad's, torch.fx's lists as lists; all else as it is."""
    if isinstance(x, (list, tuple)):
        return [*map(_own, x)]
    return getattr(dtypes, name_of(x)) if str(x).startswith("torch.") and hasattr(dtypes, name_of(x)) else x


def _difference(result: Any, promised: Any) -> str:
    """What a result has that torch's has not; empty if nothing."""
    for x, value in zip(_listed(result), _listed(promised), strict=False):
        if isinstance(x, Tensor) and value is not None:
            found, wanted = (tuple(x.shape), x.dtype), (tuple(value.shape), getattr(dtypes, name_of(value.dtype)))
            if found != wanted:
                return f"its result would be {found[1]}{list(found[0])}, not {wanted[1]}{list(wanted[0])}"
    return "" if len(_listed(result)) == len(_listed(promised)) else "it has another number of results"
