"""PoCL's build without its header: the functions that a text calls are declared in front of it. Start at `declared`.

PoCL 3.0 has clang read the declarations of all of OpenCL's functions, 13,000 lines, for every program: 75 ms of processor time, where a
small kernel takes 10. The header has a guard; where that is defined, clang knows OpenCL's types and macros, and none of its functions.
Our kernels call few of them. Each that is declared here is declared for all types that the header has it for, but half: overloads are
found as with the header. A text that calls another does not build, and is then built with the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyopencl as cl

GUARD = "-D_OPENCL_H_"
_FLOATS = ("float", "double")
_NUMBERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", *_FLOATS)
_WIDTHS = ("", "2", "3", "4", "8", "16")
_ITEMS = ("get_global_id", "get_local_id", "get_group_id", "get_global_size", "get_local_size", "get_num_groups")
_FLOAT_CALLS = ("sqrt(x)", "floor(x)", "ceil(x)", "rint(x)", "trunc(x)", "fabs(x)", "fmod(x, x)", "copysign(x, x)", "fma(x, x, x)",
                "lgamma(x)", "nextafter(x, x)")
_OF_FLOATS = {name: given.count("x") for name, _, given in (call.partition("(") for call in _FLOAT_CALLS)}   # and how many operands
_CALL = r"\b(get_\w+|convert_\w+|min|max|atom(?:ic)?_(?:add|min|max)|" + "|".join(_OF_FLOATS) + r")\("
_HALF = r"\bhalf(?:2|3|4|8|16)?\b"            # the type, and no name with that word in it
_CONVERSION = rf"convert_({'|'.join(_NUMBERS)})(2|3|4|8|16)?"
_ATTRIBUTES = "__attribute__((overloadable, const))"


def applies(device: cl.Device) -> bool:
    """Whether the driver is one that takes programs so."""
    return "PoCL 3.0" in device.platform.version


def declared(source: str) -> str | None:
    """The text with what it calls declared in front, to be built with GUARD; None if it may need the header."""
    if "half" in source and re.search(_HALF, source):      # (a text of 600 KB is searched in 29 ms, for a word in 0.4)
        return None
    names = dict.fromkeys(re.findall(_CALL, source))
    return "".join(f"{line}\n" for name in names for line in declarations(name)) + source


def declarations(name: str) -> Iterator[str]:
    """How the header declares a function; nothing for one that is not known here."""
    if name in _ITEMS:
        yield f"size_t {_ATTRIBUTES} {name}(uint);"
    elif name in ("min", "max"):
        for type_ in _NUMBERS:
            for width in _WIDTHS:
                one = type_ + width
                yield f"{one} {_ATTRIBUTES} {name}({one}, {one});"
                if width:
                    yield f"{one} {_ATTRIBUTES} {name}({one}, {type_});"
    elif name in _OF_FLOATS:
        for type_ in _FLOATS:
            for width in _WIDTHS:
                yield f"{type_}{width} {_ATTRIBUTES} {name}({', '.join([type_ + width] * _OF_FLOATS[name])});"
    elif name.startswith("atom"):
        for type_ in ("int", "uint") if name.startswith("atomic") else ("long", "ulong"):
            for space in ("__global", "__local"):
                yield f"{type_} __attribute__((overloadable)) {name}(volatile {space} {type_} *, {type_});"
    elif found := re.fullmatch(_CONVERSION, name):
        result, width = found[1], found[2] or ""
        for type_ in _NUMBERS:
            yield f"{result}{width} {_ATTRIBUTES} {name}({type_}{width});"
