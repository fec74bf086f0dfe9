"""What a forward graph hands to its backward graph, in fewer tensors: see `packed`."""

from __future__ import annotations

from typing import Any

_FEW = 4                # tensors of a kind that are handed over one by one
_SMALL = 1 << 16        # bytes of a tensor up to which handing it over takes longer than copying it


def packed(forward: Any, backward: Any, results: int) -> None:
    """Have small tensors of one shape and dtype handed over as one, of which the backward graph makes views.

    results: how many of the forward graph's are the user's. Torch and tracegrad do as much for a tensor that is saved as for a small
    kernel: a recurrent network has six of each step.
    """
    output = forward.graph.output_node()
    given = output.args[0]
    readers = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    users = {x for x in given[:results] if x is not None}
    alike: dict[Any, list[Any]] = {}
    for node in dict.fromkeys(given[results:]):
        if node not in users and node.name in readers and _is_small(node):
            value = node.meta["val"]
            alike.setdefault((tuple(value.shape), value.dtype), []).append(node)
    for nodes in alike.values():
        if len(nodes) > _FEW:
            whole = _stacked(forward.graph, output, nodes)
            _as_one(backward.graph, [readers[node.name] for node in nodes], whole)
            gone = set(nodes[1:])
            _replace_outputs(output, [(k, whole if x is nodes[0] else x) for k, x in enumerate(output.args[0])
                                      if k < results or x not in gone])
    forward.recompile()
    backward.recompile()


def _is_small(node: Any) -> bool:
    """Whether a node's value is a small tensor, row by row, of which torch need not know whether it was written."""
    import torch  # noqa: PLC0415

    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or node.meta.get("saved_tensor_with_no_vc_check"):
        return False
    known = all(isinstance(n, int) for n in value.shape) and value.layout == torch.strided and value.is_contiguous()
    return known and 0 < value.numel() * value.itemsize <= _SMALL


def _stacked(graph: Any, output: Any, nodes: list[Any]) -> Any:
    """A node of the values of `nodes`, one after the other."""
    from torch import ops  # noqa: PLC0415

    with graph.inserting_before(output):
        parts = [_call(graph, ops.aten.unsqueeze.default, node, 0) for node in nodes]
        return _call(graph, ops.aten.cat.default, parts, name="saved_together")         # which no node of either graph is called


def _as_one(graph: Any, readers: list[Any], whole: Any) -> None:
    """One placeholder in the place of the first of `readers`, and views of it in the place of all."""
    from torch import ops  # noqa: PLC0415

    with graph.inserting_before(readers[0]):
        given = graph.placeholder(whole.name)
    given.meta["val"] = whole.meta["val"]
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for k, reader in reversed([*enumerate(readers)]):
        with graph.inserting_after(last):
            reader.replace_all_uses_with(_call(graph, ops.aten.select.int, given, 0, k))
    for reader in readers:
        graph.erase_node(reader)


def _call(graph: Any, target: Any, *args: Any, name: str | None = None) -> Any:
    """A node that calls an operator, and what torch tells of its result."""
    from torch.fx.node import map_arg  # noqa: PLC0415

    node = graph.create_node("call_function", target, args, name=name)
    given = map_arg(args, lambda x: x.meta["val"])
    node.meta["val"] = target(*given)
    return node


def _replace_outputs(output: Any, kept: list[tuple[int, Any]]) -> None:
    """kept: of each output that stays, where it was and what it is now."""
    output.args = (type(output.args[0])(x for _, x in kept),)
    told = output.meta.get("desc")
    if told is not None:
        output.meta["desc"] = [told[k] for k, _ in kept]
