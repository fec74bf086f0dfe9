"""The backend: what torch.compile calls with each graph (`backend`), and a graph of aten operators as a traced function (`Program`).

AOTAutograd has made the forward and the backward graph: functions without mutation, of aten operators that torch's decompositions take
apart. Tensors on the CPU are shared both ways; nothing here writes them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np

from tracegrad.custom.host_call import host_call
from tracegrad.errors import DLPackError, TracegradError
from tracegrad.execute.devices import find_device
from tracegrad.graph.ir import Aval
from tracegrad.ops.primitives.movement import inverse
from tracegrad.runtime.device import Device
from tracegrad.support import dtypes
from tracegrad.support.cache import Cache, listed, memoize
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.from_data import from_dlpack
from tracegrad.tensors.tensor import Tensor, holding
from tracegrad.torch_backend.operators import find
from tracegrad.tracing.trace import trace

# Views that torch makes of a result or of an argument, in place of a copy that the program would write. Those of the second line leave
# out elements or repeat them: of arguments and of other results only, so that nothing is computed for them alone.
_WHOLE = {f"aten.{name}.default" for name in ("_conj", "_neg_view", "alias", "detach", "permute", "squeeze", "t", "unsqueeze", "view")} | {
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.transpose.int"}
_PARTS = {"aten.as_strided.default", "aten.diagonal.default", "aten.expand.default", "aten.select.int", "aten.slice.Tensor"}
_ABOUT_MEMORY = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})     # arguments without a meaning here
_SIZES = 64       # programs of one graph whose sizes vary, one for each tuple of sizes


class _Refused(Exception):
    """A graph that torch is to run; the message is why."""


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
    from functorch.compile import min_cut_rematerialization_partition  # noqa: PLC0415

    return dict.fromkeys(("fw_compiler", "bw_compiler", "inference_compiler"), _compiled) | {
        "decompositions": _decompositions(), "partition_fn": min_cut_rematerialization_partition}


def _decompositions() -> Any:
    """torch's rules for operators that are not mapped. Those of random numbers stay, for the same numbers as without torch.compile."""
    from torch import Tag, ops  # noqa: PLC0415
    from torch._decomp import core_aten_decompositions, get_decompositions  # noqa: PLC0415

    more = [ops.aten._native_batch_norm_legit, ops.aten._native_batch_norm_legit_functional, ops.aten._native_batch_norm_legit_no_training,
            ops.aten.native_batch_norm, ops.aten.log_sigmoid_forward]
    rules = {**core_aten_decompositions(), **get_decompositions(more)}
    mapped = ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return {op: rule for op, rule in rules.items() if op is not mapped and Tag.nondeterministic_seeded not in getattr(op, "tags", ())}


def _compiled(gm: Any, example_inputs: Sequence[Any]) -> Any:
    """A function that takes a list of a graph's arguments, and empties it."""
    from functorch.compile import make_boxed_func  # noqa: PLC0415

    try:
        _without_tokens(gm)
        _check(gm)
        return make_boxed_func(_of_any_size(gm) if _sizes_vary(gm) else Program(gm))
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
    return hasattr(dtypes, _name_of(value.dtype))


def _name_of(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return "bool_" if name == "bool" else name


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _of_any_size(gm: Any) -> Callable[..., Any]:
    """A graph some of whose arguments are sizes: a program for each tuple of them."""
    import torch  # noqa: PLC0415
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # noqa: PLC0415

    programs = Cache("torch.compile's sizes", _SIZES)

    def run(*args: Any) -> Any:
        key = tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in args)
        program = programs[key]
        if program is None:
            graph = torch.fx.Graph()
            graph.output(graph.graph_copy(gm.graph, {}))
            own = torch.fx.GraphModule(gm, graph)
            FakeTensorProp(own, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*args)
            try:
                program = Program(own)
            except _Refused as refused:
                _say(f"torch runs a graph as it is, because of {refused}")
                program = gm.forward
            programs[key] = program
        return program(*args)

    return run


class _Layout:
    """How a tensor of a graph lies in memory. (What torch records of one is slow to ask.)"""

    def __init__(self, value: Any) -> None:
        self.shape, self.stride = tuple(value.shape), tuple(value.stride())
        rows = tuple(range(len(self.shape)))
        # Its dimensions from the one with the largest stride to the smallest: row by row if it is dense.
        self.order = rows if 0 in self.shape else tuple(sorted(rows, key=lambda d: (-self.stride[d], d)))
        self.in_order, self.inverse = self.order == rows, inverse(self.order)
        room = 1
        self.dense = True                           # its elements fill a piece of memory, each place once
        for d in reversed(self.order):
            self.dense &= self.shape[d] <= 1 or self.stride[d] == room
            room *= self.shape[d]

    def in_torch(self, x: Tensor) -> Any:
        """A result, its dimensions in the order of memory, as torch's tensor. Waits for the values."""
        from torch import from_dlpack as to_torch  # noqa: PLC0415

        made = to_torch(x).contiguous()
        if type(x._device) is Device and x._device.in_host_memory:
            _results[made.data_ptr()] = x._n.value
        return made

    def as_promised(self, x: Any) -> Any:
        """What `in_torch` gave with the dimensions and the strides of torch's own result."""
        if self.dense:
            return x if x.shape == self.shape and x.stride() == self.stride else x.as_strided_(self.shape, self.stride)
        return x if self.in_order else x.permute(self.inverse)


class _Argument:
    """A tensor that a graph reads: what stands for torch's tensors in its calls.

    Sharing memory costs more than most kernels do, so what shares a tensor's memory is used again as long as that tensor lives (a
    parameter), and a result of another graph that comes here (what a backward pass needs of the forward) is the buffer that it was.
    """

    def __init__(self, value: Any) -> None:
        self.layout = _Layout(value)
        self.aval = Aval(tuple(value.shape[d] for d in self.layout.order), getattr(dtypes, _name_of(value.dtype)))
        self.attrs = {"aval": self.aval}
        self._latest: tuple[Any, int, Any, Tensor] | None = None           # torch's tensor, weakly; where its memory is; what shares that

    def of(self, x: Any) -> Tensor:
        """A torch tensor as tracegrad's, its dimensions in the order of its memory; a copy where its memory cannot be shared."""
        latest, place, device = self._latest, x.data_ptr(), find_device(None)
        if latest is not None and latest[0]() is x and latest[1] == place and latest[2] is device:
            return latest[3]
        buffer = _results.get(place) if self.layout.dense else None          # an expanded view has as many elements, too
        if buffer is not None and buffer.device is device and buffer.nbytes == self.aval.nbytes and not (x.is_conj() or x.is_neg()):
            return holding(device, self.aval, self.attrs, buffer)
        own = x.detach().resolve_conj().resolve_neg()
        own = own if self.layout.in_order else own.permute(self.layout.order)
        try:
            made = from_dlpack(own, copy=False)
        except DLPackError:
            return from_dlpack(own.contiguous())
        if own.data_ptr() == place:
            self._latest = ref(x, self._forget), place, device, made
        return made

    def _forget(self, gone: Any) -> None:
        if self._latest is not None and self._latest[0] is gone:
            self._latest = None


# Where a result's memory is in the host's -> its buffer, as long as torch has the tensor that shares it.
_results = listed("torch.compile's results", WeakValueDictionary[int, Any]())


def _views(node: Any, kinds: Any) -> tuple[Any, list[Any]]:
    """What a node is a view of, and the views on the way from there, of these kinds."""
    chain: list[Any] = []
    while node.op == "call_function" and str(node.target) in kinds:
        chain.insert(0, node)
        node = node.args[0]
    return node, chain


class Program:
    """A graph whose sizes are known: a function of torch tensors. Raises _Refused where a size depends on values."""

    def __init__(self, gm: Any) -> None:
        import torch  # noqa: PLC0415

        for node in gm.graph.nodes:
            for value in _listed(node.meta.get("val")):
                sizes = value.shape if isinstance(value, torch.Tensor) else [value]
                if any(isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)) for n in sizes):
                    raise _Refused(f"{node.target}, whose size depends on values")
        self._gm = gm
        self._arguments = _placeholders(gm)
        self._constants = [node for node in gm.graph.nodes if node.op == "get_attr"]
        self._outputs = gm.graph.output_node().args[0]
        wanted = [x for x in self._outputs if isinstance(x, torch.fx.Node) and not isinstance(x.meta["val"], int)]
        given = {*self._arguments, *self._constants}
        kept = given | {_views(x, _WHOLE)[0] for x in wanted}
        # output node -> (what torch makes it of, by which views)
        self._views = {x: whole if (whole := _views(x, _WHOLE | _PARTS))[0] in kept else _views(x, _WHOLE) for x in wanted}
        # operators without a result: they raise errors where values are wrong (a matrix is singular), once these are there
        self._checks = [node for node in gm.graph.nodes
                        if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns]
        wanted = [base for base, _ in self._views.values()] + [x for node in self._checks for x in node.all_input_nodes]
        self._computed = [x for x in dict.fromkeys(wanted) if x not in given and isinstance(x.meta["val"], torch.Tensor)]
        self._needed = self._reached()
        for node in self._needed:
            if str(node.target) == "aten.as_strided.default" and node.args[0].meta["val"].storage_offset():
                raise _Refused("aten.as_strided of a part of a tensor")
        self._read = [node for node in (*self._arguments, *self._constants) if node in self._needed]
        self._given = {node: _Argument(node.meta["val"]) for node in self._read}
        self._layouts = [_Layout(node.meta["val"]) for node in self._computed]
        self._left = False                              # to torch: the first call failed
        self._alike: list[int] | None = None            # results to copy, because they are the memory of another one; known after a call

        def graph(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self._body(tensors)

        self._traced = trace(graph)

    def _reached(self) -> set[Any]:
        """The nodes that the results are made of."""
        found: set[Any] = set()
        waiting = list(self._computed)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += node.all_input_nodes
        return {node for node in found if not isinstance(node.meta.get("val"), int)}

    # -------------------------------------------------------------------------------------------------------- a call

    def __call__(self, *args: Any) -> list[Any]:
        values: dict[Any, Any] = dict(zip(self._arguments, args, strict=True))
        values |= {node: getattr(self._gm, node.target) for node in self._constants}
        if self._left:
            return self._gm(*args)  # type: ignore[no-any-return]
        try:
            with no_grad():
                results = self._traced(*[x.of(values[node]) for node, x in self._given.items()]) if self._computed else ()
                # from here on the arguments may be written
                made = [layout.in_torch(x) for layout, x in zip(self._layouts, results, strict=True)]
        except TracegradError as error:
            if self._alike is not None:
                raise
            self._left = True                               # such as float64 on a device that has none
            _say(f"torch runs a graph as it is, because of an error: {error}")
            return self._gm(*args)  # type: ignore[no-any-return]
        if self._alike is None:
            self._alike = _overlaps([values[node] for node in self._read], made)
        for k in self._alike:
            made[k] = made[k].clone()
        values |= {node: layout.as_promised(x) for node, layout, x in zip(self._computed, self._layouts, made, strict=True)}
        for node in self._checks:
            node.target(*self._with(node.args, values), **self._with(node.kwargs, values))
        return [self._output(node, values) for node in self._outputs]

    def _output(self, node: Any, values: dict[Any, Any]) -> Any:
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
        values = {node: x.permute(given.layout.inverse) for (node, given), x in zip(self._given.items(), tensors, strict=True)}
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
        from torch import Tag  # noqa: PLC0415

        name, random = str(node.target), Tag.nondeterministic_seeded in node.target.tags         # those are torch's, so that its seeds hold
        function = None if random or name == "aten.as_strided.default" else find(name)
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
        if not random:
            _say(f"torch computes {name} ({reason})")
        return self._by_torch(node, values)

    def _by_torch(self, node: Any, values: dict[Any, Any]) -> Any:
        """An operator computed by torch between the kernels."""
        from torch import Tensor as TorchTensor  # noqa: PLC0415

        operands = [x for x in node.all_input_nodes if x in values]
        promised = _listed(node.meta["val"])
        tensors = [value for value in promised if isinstance(value, TorchTensor)]

        def run(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
            given = {x: _to_torch(array, x.meta["val"]) for x, array in zip(operands, arrays, strict=True)}
            found = _listed(node.target(*self._with(node.args, given), **self._with(node.kwargs, given)))
            return [_to_numpy(x) for x in found if isinstance(x, TorchTensor)]

        run.__name__ = str(node.target).replace(".", "_")
        like = [(tuple(value.shape), getattr(dtypes, _name_of(value.dtype))) for value in tensors]
        found = iter(host_call(run, *[values[x] for x in operands], like=like))
        results = [next(found) if isinstance(value, TorchTensor) else value for value in promised]
        return results if isinstance(node.meta["val"], (tuple, list)) else results[0]


# ------------------------------------------------------------------------------------------------------------------ values


def _own(x: Any) -> Any:
    """A dtype of torch's as tracegrad's, torch.fx's lists as lists; all else as it is."""
    if isinstance(x, (list, tuple)):
        return [*map(_own, x)]
    return getattr(dtypes, _name_of(x)) if str(x).startswith("torch.") and hasattr(dtypes, _name_of(x)) else x


def _difference(result: Any, promised: Any) -> str:
    """What a result has that torch's has not; empty if nothing."""
    for x, value in zip(_listed(result), _listed(promised), strict=False):
        if isinstance(x, Tensor) and value is not None:
            found, wanted = (tuple(x.shape), x.dtype), (tuple(value.shape), getattr(dtypes, _name_of(value.dtype)))
            if found != wanted:
                return f"its result would be {found[1]}{list(found[0])}, not {wanted[1]}{list(wanted[0])}"
    return "" if len(_listed(result)) == len(_listed(promised)) else "it has another number of results"


def _overlaps(given: Sequence[Any], made: Sequence[Any]) -> list[int]:
    """Which of the results lie in the memory of an argument or of a result before."""
    spans = [(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in (*given, *made)]
    return [k for k, (start, size) in enumerate(spans[len(given):]) if size and any(
        start < other + room and other < start + size for other, room in spans[:len(given) + k])]


def _to_torch(array: np.ndarray[Any, Any], promised: Any) -> Any:
    """A numpy array as a torch tensor with the strides that the graph says."""
    import torch  # noqa: PLC0415

    own = array if array.flags.writeable else array.copy()
    x = torch.from_numpy(own.view(np.int16)).view(torch.bfloat16) if own.dtype == dtypes.bfloat16 else torch.from_numpy(own)
    return x if x.stride() == promised.stride() else torch.empty_strided(x.shape, promised.stride(), dtype=x.dtype).copy_(x)


def _to_numpy(x: Any) -> np.ndarray[Any, Any]:
    import torch  # noqa: PLC0415

    x = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(dtypes.bfloat16)  # type: ignore[no-any-return]
    return x.numpy()  # type: ignore[no-any-return]
