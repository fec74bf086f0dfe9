"""A call like the latest one, of a small function: one Python function without loops and look-ups. Start at `fast_replay`.

What such a call takes beside its kernels is Python's time, and more than half of that went into loops over one argument or one guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tracegrad.execute.devices import find_device, upload
from tracegrad.execute.program import Program
from tracegrad.graph.ir import Aval
from tracegrad.support.cache import written
from tracegrad.tensors.attributes import base_of
from tracegrad.tensors.tensor import Tensor, from_array, holding
from tracegrad.tracing.guards import GuardSet

PAIRS = 4               # tensors up to which each is compared with each other one: a set of their numbers takes longer
MOST = 256              # arguments and results; the text is six lines for each


def with_tensors(leaves: Sequence[Any]) -> Sequence[Any]:
    """The leaves of a call's arguments, with tensors for arrays."""
    return tuple([from_array(x, copy=None) if isinstance(x, np.ndarray) else x for x in leaves])


def fast_replay(arguments: Sequence[tuple[type, Any]], results: Sequence[tuple[Any, Aval, dict[str, Any]]], plain: str,
                guard_set: GuardSet, program: Program) -> Callable[[Sequence[Any]], Any]:
    """A function of a call's arguments, in a tuple, that gives what the call returns, or None where a longer way is needed.

    That is unless they are what `arguments` says, arrays or tensors without gradients or hooks, with values, none of them twice or a view;
    and where something that is reached is no longer what it was. arguments: the type of each, with a tensor's device and aval, or with the
    value of what is static (a float is whatever it is). results: what each is made with. plain: "tensor" or "tuple".
    """
    executable = None if program.left else program.executable              # who counts its runs has to hear of them
    names: dict[str, Any] = {"Tensor": Tensor, "ndarray": np.ndarray, "base_of": base_of, "find_device": find_device, "upload": upload,
                             "holding": holding, "run": program if executable is None else executable.short_run()}
    lines = [f"if len(args) != {len(arguments)}:", " return None", f"{''.join(f'a{i}, ' for i in range(len(arguments)))} = args"]
    given, numbers, tensors = list[str](), list[str](), list[str]()
    for i, (kind, what) in enumerate(arguments):
        if kind is Tensor:
            names |= {f"on{i}": what[0], f"aval{i}": what[1], f"dtype{i}": what[1].dtype, f"shape{i}": what[1].shape}
            lines += [f"if type(a{i}) is Tensor:", f" node = a{i}._n", f" v{i} = node.value",
                      f" if v{i} is None or node.aval is not aval{i} or node.needs_grad or a{i}._hooks or a{i}._device is not on{i}:",
                      "  return None",
                      f" if a{i}._base is not None:", f"  if not a{i}._is_current():", "   return None", f"  a{i} = base_of(a{i})",
                      f"elif type(a{i}) is ndarray and a{i}.dtype == dtype{i} and a{i}.shape == shape{i} and find_device() is on{i}:",
                      f" a{i} = v{i} = upload(on{i}, a{i}, None, kernel=True)",  # no tensor is needed; each is another, as one would be
                      "else:", " return None"]
            given.append(f"v{i}")
            tensors.append(f"a{i}")
        else:
            names |= {f"type{i}": kind, f"static{i}": what}
            lines += [f"if type(a{i}) is not type{i}{'' if kind is float else f' or a{i} != static{i}'}:", " return None"]
            (given if executable is None else numbers).extend([f"a{i}"] * (kind is float))
    if 1 < len(tensors) <= PAIRS:
        lines += [f"if {' or '.join(f'{a} is {b}' for a, b in combinations(tensors, 2))}:", " return None"]
    elif tensors:
        lines += [f"if len({{{', '.join(f'id({a})' for a in tensors)}}}) != {len(tensors)}:", " return None"]
    lines += guard_set.lines(names)
    values = ", ".join([f"({''.join(f'{value}, ' for value in of)})" for of in ([given] if executable is None else [given, numbers])])
    lines += [f"{''.join(f'r{i}, ' for i in range(len(results)))} = run({values})"]
    for i, (device, aval, attrs) in enumerate(results):
        names |= {f"to{i}": device, f"made{i}": aval, f"attrs{i}": attrs}
    made = "".join(f"holding(to{i}, made{i}, attrs{i}, r{i}), " for i in range(len(results)))
    return written("args", [*lines, f"return {made.removesuffix(', ') if plain == 'tensor' else f'({made})'}"], names)
