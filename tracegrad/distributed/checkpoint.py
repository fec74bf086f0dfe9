"""Checkpoints that all ranks write together, each a part, and that any number of ranks reads: `save`, `load`, `Shard`.

`get_state_dict` and `set_state_dict` are a model's and its optimizer's state, in which what lies on the ranks by parts is a Shard.

A folder has files of bytes, one of each rank, and an index of where in them each tensor's pieces are. A save writes new files, and puts the
new index in the place of the old one when all ranks have written: a program that is killed leaves the last whole checkpoint.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracegrad.distributed.fsdp import sharding_of
from tracegrad.distributed.functional import start, values
from tracegrad.distributed.world import ProcessGroup, member
from tracegrad.errors import ArgumentError, DistributedError, ShapeError
from tracegrad.runtime.disk import replaced
from tracegrad.support.dtypes import as_dtype
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor, from_array

__all__ = ["Shard", "get_state_dict", "load", "save", "set_state_dict"]
_INDEX, _FILES = "index.json", "*.shard"


class Shard:
    """In a state: this rank's piece of a tensor that lies on all ranks of the group, one piece after the other along a dimension."""

    def __init__(self, tensor: Tensor, dim: int = 0) -> None:
        if not -tensor.ndim <= dim < tensor.ndim:
            raise ShapeError(f"Shard: a tensor of shape {tuple(tensor.shape)} has no dimension {dim}")
        self.tensor, self.dim = tensor, dim % tensor.ndim


def save(state_dict: Any, checkpoint_id: str | os.PathLike[str], group: ProcessGroup | None = None) -> None:
    """Write nested dicts and lists of tensors, Shards, numbers, strings and None into a folder. All ranks of the group call it.

    A tensor is the same on all ranks, and one of them writes it. The folder's last checkpoint stays until this one is whole.
    Raises ArgumentError for other objects, and DistributedError on all ranks if one cannot write.

        tg.distributed.checkpoint.save({"model": model.state_dict(), "rows": Shard(rows)}, "checkpoint")
    """
    own, folder = member("save", group), Path(checkpoint_id)
    token = _all(own, uuid.uuid4().hex)[0]
    loads, pieces, plain = [0] * own.size(), [], {}
    error = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{token}-{own.rank()}.shard", "wb") as file:
            for name, item in _items(state_dict, "save"):
                tensor = item.tensor if isinstance(item, Shard) else item
                if not isinstance(tensor, Tensor):
                    plain[name] = item
                    continue
                writer = min(range(own.size()), key=loads.__getitem__)
                if isinstance(item, Tensor):
                    loads[writer] += tensor.numel() * tensor.element_size()
                if isinstance(item, Shard) or writer == own.rank():
                    dim = item.dim if isinstance(item, Shard) else None
                    pieces.append((name, f"{tensor.dtype}".replace("tracegrad.", ""), list(tensor.shape), dim, file.name, file.tell()))
                    file.write(np.ascontiguousarray(values("save", tensor)).tobytes())
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ArgumentError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    found = _all(own, (error, pieces))
    _agree(own, [e for e, _ in found])
    if own.rank() == 0:
        try:
            with replaced(folder / _INDEX) as file:
                file.write(json.dumps({"tensors": _index([p for _, p in found]), "values": plain}).encode())
            for old in folder.glob(_FILES):
                if not old.name.startswith(token):
                    old.unlink()
        except (OSError, TypeError) as caught:
            error = f"{type(caught).__name__}: {caught}"
    _agree(own, _all(own, error))


def _index(by_rank: list[list[Any]]) -> dict[str, Any]:
    """Of each tensor: its dtype, shape and dimension, and its pieces (file, offset, length along the dimension) in the order of ranks."""
    found: dict[str, Any] = {}
    for name, dtype, shape, dim, file, offset in (p for pieces in by_rank for p in pieces):
        entry = found.setdefault(name, {"dtype": dtype, "shape": shape, "dim": dim, "pieces": []})
        if entry["pieces"]:
            entry["shape"][dim] += shape[dim]
        entry["pieces"].append([Path(file).name, offset, shape[dim] if dim is not None else None])
    return found


def load(state_dict: Any, checkpoint_id: str | os.PathLike[str], group: ProcessGroup | None = None) -> None:
    """Write what `save` wrote, with any number of ranks, into a state's tensors; numbers and strings take the place of the state's.

    A Shard gets its rank's piece of the whole, by the lengths of all ranks' Shards; a Tensor the whole. All ranks of the group call it.
    Raises ArgumentError for a folder without a whole checkpoint and for a name that is not in it, and ShapeError.
    """
    own, folder = member("load", group), Path(checkpoint_id)
    items = list(_items(state_dict, "load"))
    lengths = _all(own, {name: item.tensor.shape[item.dim] for name, item in items if isinstance(item, Shard)})
    try:
        index = json.loads((folder / _INDEX).read_text())
    except FileNotFoundError:
        raise ArgumentError(f"load: there is no whole checkpoint in {str(folder)!r}; give the folder of a save that ended") from None
    for name, item in items:
        tensor = item.tensor if isinstance(item, Shard) else item
        if name not in index["tensors" if isinstance(tensor, Tensor) else "values"]:
            raise ArgumentError(f"load: the checkpoint has no {name!r}; it has {', '.join([*index['tensors'], *index['values']][:8])}, ...")
        if not isinstance(tensor, Tensor):
            _put(state_dict, name, index["values"][name])
            continue
        entry = index["tensors"][name]
        shape, first = tuple(tensor.shape), None
        if isinstance(item, Shard):
            first = item.dim, sum(there[name] for there in lengths[:own.rank()])
            shape = (*shape[:item.dim], sum(there[name] for there in lengths), *shape[item.dim + 1:])
        if shape != tuple(entry["shape"]):
            raise ShapeError(f"load: {name!r} has shape {tuple(entry['shape'])} in the checkpoint and {shape} here")
        whole = _read(folder, entry)
        if first is not None:
            whole = np.take(whole, range(first[1], first[1] + tensor.shape[first[0]]), first[0])
        with no_grad():
            tensor.copy_(from_array(np.ascontiguousarray(whole).reshape(tensor.shape), tensor.device))


# ---------------------------------------------------------------------------------------------- a model and its optimizer
def get_state_dict(model: Any, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of a model and of an optimizer of its parameters, to `save` and to `load`, under any number of ranks.

    What `fully_shard` has put on the ranks by parts is a Shard, the rest a tensor or a number. In the optimizer's state parameters have
    the model's names for them. Tensors share their values with the model and the optimizer, so `load` writes into these;
    `set_state_dict` takes over the rest. Raises ArgumentError for a parameter of the optimizer's that the model does not have.

        state = dict(zip(("model", "optimizer"), tg.distributed.checkpoint.get_state_dict(model, optimizer)))
        tg.distributed.checkpoint.load(state, "checkpoint")
        tg.distributed.checkpoint.set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    """
    owners = dict(model.named_parameters(remove_duplicate=False))
    models = {name: _as_shard(owners.get(name), value) for name, value in model.state_dict().items()}
    names = _names("get_state_dict", model, optimizer)
    found: dict[str, Any] = {names[id(p)]: {k: _as_shard(p, v) for k, v in own.items()} for p, own in optimizer.state.items() if own}
    groups = [{k: [names[id(p)] for p in v] if k == "params" else list(v) if isinstance(v, tuple) else v for k, v in group.items()}
              for group in optimizer.param_groups]
    return models, {"state": found, "param_groups": groups}


def set_state_dict(model: Any, optimizer: Any, *, model_state_dict: Mapping[str, Any], optim_state_dict: Mapping[str, Any]) -> None:
    """Take over what `get_state_dict` returned, after `load` has written into it."""
    names = _names("set_state_dict", model, optimizer)
    numbers: dict[str, int] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            numbers.setdefault(names[id(p)], len(numbers))
    model.load_state_dict({name: _tensor(value) for name, value in model_state_dict.items()})
    state = {numbers[name]: {k: _tensor(v) for k, v in own.items()} for name, own in optim_state_dict["state"].items()}
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in optim_state_dict["param_groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _names(who: str, model: Any, optimizer: Any) -> dict[int, str]:
    names = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) not in names:
                raise ArgumentError(f"{who}: the optimizer has a parameter of shape {tuple(p.shape)} that the model does not have; "
                                    "give the model that it was made of")
    return names


def _as_shard(parameter: Tensor | None, value: Any) -> Any:
    """What belongs to a sharded parameter, as a Shard: rows of it or of what has its shape."""
    if parameter is None or sharding_of(parameter) is None or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return Shard(value)


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, Shard) else value


def _read(folder: Path, entry: dict[str, Any]) -> Any:
    """A whole tensor, of its pieces; those are mapped, so that what is not asked for is not read."""
    arrays, dtype = [], np.dtype(as_dtype(entry["dtype"]))
    for file, offset, length in entry["pieces"]:
        shape = list(entry["shape"])
        if length is not None:
            shape[entry["dim"]] = length
        count = int(np.prod(shape, dtype=np.int64))
        raw = np.memmap(folder / Path(file).name, np.uint8, "r", offset, (count * dtype.itemsize,)) if count else np.empty(0, np.uint8)
        arrays.append(raw.view(dtype).reshape(shape))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, entry["dim"])


def _items(state: Any, who: str, name: str = "") -> Iterator[tuple[str, Any]]:
    """What a nested state holds, by names such as "model/layers/0"."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            if not isinstance(key, (str, int)) or "/" in str(key):
                raise ArgumentError(f"{who}: a key of a state is a string without '/' or an integer, got {key!r} in {name or 'the state'}")
            yield from _items(value, who, f"{name}/{key}" if name else str(key))
    elif isinstance(state, (list, tuple)):
        for k, value in enumerate(state):
            yield from _items(value, who, f"{name}/{k}" if name else str(k))
    elif state is None or isinstance(state, (Tensor, Shard, bool, int, float, str)):
        yield name, state
    else:
        raise ArgumentError(f"{who}: {name or 'the state'} is a {type(state).__name__}; a state is dicts and lists of tensors, Shards, "
                            "numbers, strings and None")


def _put(state: Any, name: str, value: Any) -> None:
    """Set what stands under the name; what is in a tuple stays."""
    *path, last = name.split("/")
    for key in path:
        state = state[key if isinstance(state, Mapping) and key in state else int(key)]
    if not isinstance(state, tuple):
        state[last if isinstance(state, Mapping) and last in state else int(last)] = value


def _all(group: ProcessGroup, value: Any) -> list[Any]:
    return start("checkpoint", group, "", lambda e, a: e.objects(a), value).get()  # type: ignore[no-any-return]


def _agree(group: ProcessGroup, errors: list[str]) -> None:
    for rank, error in zip(group.ranks, errors, strict=True):
        if error:
            raise DistributedError(f"save: rank {rank} could not write its part: {error}; the last checkpoint stays")
