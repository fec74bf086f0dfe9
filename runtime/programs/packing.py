"""Several small kernels as one kernel, for drivers that take long for each. Start at `packed`.

PoCL makes machine code kernel by kernel, and starts a linker for each: 15 to 25 ms of processor time on top of what a kernel's text takes,
a third of a DCGAN's first step (98 kernels). So some kernels become functions of one kernel, which is told by its first argument which of
them to be. Its other arguments are what any of them takes, by type and in order; those that one of them does not take are null. A launch
takes as long as before: PoCL inlines the functions, `restrict` and all, and where to go is decided once a work-item. They are `noinline`
for clang, which comes before PoCL and would otherwise inline and optimize them, too (a neural ODE's build: 2.0 s instead of 1.5).
The arrays of all parts lie side by side on a thread's stack, so there is a limit to them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from tracegrad.support.plan import Function, Plain, required

_NOTE = r"(?m)^// part (\w+) (\w+) (\d+) ([\d,]*) ([\w ,]*)$"
MOST = 16                                  # parts of a kernel, at most
LENGTH = 30_000                            # and characters of their texts (more in one kernel gains little), and arguments
ARGUMENTS = 40
ARRAYS = 1 << 18                           # and bytes of arrays, as many as one kernel has at most where it copies what it reads of
_POINTER = "__global void *"
_SIZES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "bfloat": 2,
          "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8, "double": 8}


class Part(Plain):
    """A kernel that is a part of the driver's kernel `name`: the first argument is `number`, its own are at `places`.

    unused: the other arguments, each with the bytes of its type (0: a pointer).
    """

    name: str
    number: int
    places: tuple[int, ...]
    unused: tuple[tuple[int, int], ...]


def _taken(function: Function) -> list[str]:
    """The types of its parameters, as the whole kernel has them."""
    return [_POINTER if p.pointer else p.type for p in function.parameters]


def packed(functions: Sequence[Function], called: Callable[[str], str]) -> list[str]:
    """The texts of kernels, in which those that have room in one are parts of it. called: what a kernel is called, given its key."""
    return [text_of(pack, called) for pack in packs(functions)]


def text_of(pack: Sequence[Function], called: Callable[[str], str], idle: bool = False) -> str:
    """The text of kernels that are one. idle: it can do nothing (as the part -1), if it can be told what to be."""
    together = len(pack) > 1 or (idle and can_be_part(pack[0]))
    return _one(pack, called) if together else pack[0].text(called(pack[0].key))


def can_be_part(function: Function) -> bool:
    """Whether a kernel can be a part of another."""
    return not function.cooperates and function.group is not None


def packs(functions: Sequence[Function], length: int = LENGTH) -> list[list[Function]]:
    """Which kernels are to be one; those that cannot be parts, and those that fill one, are alone. length: of the texts in one."""
    found: list[list[Function]] = []
    open_: dict[tuple[int, ...] | None, list[Function]] = {}      # by the work-groups they require, one that is not full

    for function in functions:
        if not can_be_part(function):
            found.append([function])
            continue
        pack = open_.setdefault(function.group, [])
        together = [*pack, function]
        if pack and (len(together) > MOST or sum(len(f.body) for f in together) > length or sum(f.arrays for f in together) > ARRAYS
                     or len(_types(together)) >= ARGUMENTS):
            found.append(pack)
            together = [function]
        open_[function.group] = together
    return [*found, *open_.values()]


def _types(functions: Sequence[Function]) -> list[str]:
    """The types of arguments that do for each of the kernels."""
    count: Counter[str] = Counter()
    for function in functions:
        count |= Counter(_taken(function))
    return sorted(count.elements(), key=lambda type_: (type_ != _POINTER, type_))


def _one(functions: Sequence[Function], called: Callable[[str], str]) -> str:
    """The kernel that is all of them, in front of it what `parts_of` reads."""
    types = _types(functions)
    name = called(functions[0].key) + "p"
    notes, parts, cases = [], [], []
    for number, function in enumerate(functions):
        own = called(function.key)
        free = {type_: iter([i for i, t in enumerate(types) if t == type_]) for type_ in set(types)}
        places = [next(free[type_]) for type_ in _taken(function)]
        given = [f"({p.whole_type})a{i}" if p.pointer else f"a{i}" for i, p in zip(places, function.parameters, strict=True)]
        declared = ", ".join([p.declaration for p in function.parameters])
        unused = [f"{i + 1} {0 if t == _POINTER else _SIZES[t]}" for i, t in enumerate(types) if i not in places]
        notes.append(f"// part {own} {name} {number} {','.join(str(i + 1) for i in places)} {','.join(unused)}")
        parts.append(f"static __attribute__((noinline)) void {own}({declared}) {{\n{function.body}\n}}")
        cases.append(f"    case {number}: {own}({', '.join(given)}); break;")
    declared = ", ".join(["int part", *(f"{t}{' ' * (t != _POINTER)}a{i}" for i, t in enumerate(types))])
    whole = [f"{required(functions[0].group)}__kernel void {name}({declared}) {{", "  switch (part) {", *cases, "  }", "}"]
    return "\n".join([*notes, *parts, *whole])


def taken(function: Function, part: Part) -> tuple[int, ...]:
    """What the kernel takes that a kernel is a part of, the number of the part aside: the bytes of each argument, 0 for a pointer."""
    own = zip(part.places, _taken(function), strict=True)
    sizes = {**dict(part.unused), **{place: 0 if type_ == _POINTER else _SIZES[type_] for place, type_ in own}}
    return tuple(sizes[place] for place in sorted(sizes))


def parts_of(text: str) -> dict[str, Part]:
    """The kernels that are parts of others in a program's text, by what they are called."""
    found = {}
    for own, name, number, places, unused in re.findall(_NOTE, text):
        pairs = [one.split(" ") for one in unused.split(",") if one]
        found[own] = Part(name, int(number), tuple(int(p) for p in places.split(",") if p), tuple((int(i), int(n)) for i, n in pairs))
    return found
