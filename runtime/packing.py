"""Several small kernels as one kernel, for drivers that take long for each. Start at `packed`.

PoCL makes machine code kernel by kernel, and starts a linker for each: 15 to 25 ms of processor time on top of what a kernel's text takes,
a third of a DCGAN's first step (98 kernels). So some kernels become functions of one kernel, which is told by its first argument which of
them to be. Its other arguments are what any of them takes, by type and in order; those that one of them does not take are null. A launch
takes as long as before: PoCL inlines the functions, `restrict` and all, and where to go is decided once a work-item. They are `noinline`
for clang, which comes before PoCL and would otherwise inline and optimize them, too (a neural ODE's build: 2.0 s instead of 1.5).
A kernel with arrays of its own stays one: with PoCL 3.1 such a function gave wrong numbers (topk), while what clang has put into registers
before PoCL sees it is only a function of values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracegrad.plan import Function

_KERNEL = re.compile(r"(?P<group>__attribute__\(\([^\n]*\)\)\n)__kernel void @\((?P<declared>[^\n]*)\) \{\n(?P<body>.*)", re.DOTALL)
_ARRAY = re.compile(r"^ *(?:const )?\w+ (?:\w+, )*\w+\[", re.MULTILINE)      # of a work-item's own
_NOTE = re.compile(r"^// part (\w+) (\w+) (\d+) ([\d,]*) ([\w ,]*)$", re.MULTILINE)
MOST = 16                                  # parts of a kernel, at most
LENGTH = 30_000                            # and characters of their texts (more in one kernel gains little), and arguments
ARGUMENTS = 40
_POINTER = "__global void *"
_SIZES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8, "double": 8}


@dataclass(frozen=True)
class Part:
    """A kernel that is a part of the driver's kernel `name`: the first argument is `number`, its own are at `places`.

    unused: the other arguments, each with the bytes of its type (0: a pointer).
    """

    name: str
    number: int
    places: tuple[int, ...]
    unused: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Kernel:
    function: Function
    group: str
    body: str
    declared: tuple[str, ...]
    types: tuple[str, ...]                 # of the parameters, as the whole kernel has them


def _taken_apart(function: Function) -> _Kernel | None:
    """What a kernel's text consists of; None if it cannot be a part."""
    found = _KERNEL.fullmatch(function.text)
    if found is None or "__local" in function.text or "barrier(" in function.text or _ARRAY.search(function.text):
        return None
    declared = tuple(found["declared"].split(", ")) if found["declared"] else ()
    types = []
    for one in declared:
        if one.startswith("__global ") and "*" in one:
            types.append(_POINTER)
        else:
            type_ = one.removeprefix("const ").rpartition(" ")[0]
            if type_ not in _SIZES:
                return None
            types.append(type_)
    return _Kernel(function, found["group"], found["body"], declared, tuple(types))


def packed(functions: Sequence[Function], called: Callable[[str], str]) -> list[str]:
    """The texts of kernels, in which those that have room in one are parts of it. called: what a kernel is called, given its key."""
    texts: list[str] = []
    packs: dict[str, list[_Kernel]] = {}                   # by the work-groups they require, one that is not full

    def close(pack: list[_Kernel]) -> None:
        texts.append(_one(pack, called) if len(pack) > 1 else pack[0].function.text.replace("@", called(pack[0].function.key)))

    for function in functions:
        kernel = _taken_apart(function)
        if kernel is None:
            texts.append(function.text.replace("@", called(function.key)))
            continue
        pack = packs.setdefault(kernel.group, [])
        together = [*pack, kernel]
        if pack and (len(together) > MOST or sum(len(k.body) for k in together) > LENGTH or len(_types(together)) >= ARGUMENTS):
            close(pack)
            together = [kernel]
        packs[kernel.group] = together
    for pack in packs.values():
        close(pack)
    return texts


def _types(kernels: Sequence[_Kernel]) -> list[str]:
    """The types of arguments that do for each of the kernels."""
    count: Counter[str] = Counter()
    for kernel in kernels:
        count |= Counter(kernel.types)
    return sorted(count.elements(), key=lambda type_: (type_ != _POINTER, type_))


def _one(kernels: Sequence[_Kernel], called: Callable[[str], str]) -> str:
    """The kernel that is all of them, in front of it what `parts_of` reads."""
    types = _types(kernels)
    name = called(kernels[0].function.key) + "p"
    notes, functions, cases = [], [], []
    for number, kernel in enumerate(kernels):
        own = called(kernel.function.key)
        free = {type_: iter([i for i, t in enumerate(types) if t == type_]) for type_ in set(types)}
        places = [next(free[type_]) for type_ in kernel.types]
        given = [f"({d.rpartition('*')[0]}*)a{i}" if t == _POINTER else f"a{i}"
                 for i, d, t in zip(places, kernel.declared, kernel.types, strict=True)]
        unused = [f"{i + 1} {0 if t == _POINTER else _SIZES[t]}" for i, t in enumerate(types) if i not in places]
        notes.append(f"// part {own} {name} {number} {','.join(str(i + 1) for i in places)} {','.join(unused)}")
        functions.append(f"static __attribute__((noinline)) void {own}({', '.join(kernel.declared)}) {{\n{kernel.body}")
        cases.append(f"    case {number}: {own}({', '.join(given)}); break;")
    declared = ", ".join(["int part", *(f"{t}{' ' * (t != _POINTER)}a{i}" for i, t in enumerate(types))])
    whole = [f"{kernels[0].group}__kernel void {name}({declared}) {{", "  switch (part) {", *cases, "  }", "}"]
    return "\n".join([*notes, *functions, *whole])


def parts_of(text: str) -> dict[str, Part]:
    """The kernels that are parts of others in a program's text, by what they are called."""
    found = {}
    for own, name, number, places, unused in _NOTE.findall(text):
        pairs = [one.split(" ") for one in unused.split(",") if one]
        found[own] = Part(name, int(number), tuple(int(p) for p in places.split(",") if p), tuple((int(i), int(n)) for i, n in pairs))
    return found
