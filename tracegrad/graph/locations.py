"""Lines of the user's program that nodes are made for. Start at `user_location`; `located` sets another line for a while."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import NamedTuple

from tracegrad.errors import INTERNAL, LinAlgError, printable
from tracegrad.support.cache import Cache
from tracegrad.support.source_lines import notice


class _Line(NamedTuple):
    filename: str
    line: int
    function: str
    derived: bool = False


class Location(_Line):
    """A line of the user's program. `derived` tells that a derivative rule made the node on that line's behalf.

    What does not tell lines apart: call: the function that the user called there, if it is known; position: of a node in a program that
    is used for other lines, too, the number of the node whose line it is (see Program.recorded); module: the path of the nn.Module whose
    call made it, "" where there was none (see nn/module_paths.py); role: what a function of tracegrad that was called there makes the node
    for, which is what kernels call it.
    """

    call: str = ""
    position: int = -1
    module: str = ""
    role: str = ""

    def having(self, call: str, position: int = -1, derived: bool = False, role: str = "") -> Location:
        """The same line with these."""
        found = Location(self.filename, self.line, self.function, derived)
        found.call, found.position, found.module, found.role = call, position, self.module, role
        return found

    def in_module(self, path: str) -> Location:
        """The same line, in the call of a module."""
        found = self.having(self.call, self.position, self.derived, self.role)
        found.module = path
        return found

    def of_role(self, role: str) -> Location:
        """The same line, of a node with that role."""
        key = self.filename, self.line, self.function, self.derived, self.call, self.module, role
        found = _roles.get(key)
        if found is None:
            found = _roles[key] = self.having(self.call, self.position, self.derived, role)
        return found

    @property
    def who(self) -> str:
        """What the message of an error begins with."""
        return self.call and f"{self.call}: {'in its derivative, ' if self.derived else ''}"

    def tell(self, error: LinAlgError) -> None:
        """The error is that of a node which stands here."""
        error.of(str(self), self.who, self.position)

    def __str__(self) -> str:
        return f"{printable(self.filename)}:{self.line}"


# By file names, whose hashes are known: that of a code object is computed from all its constants and names at every look-up.
LOCATIONS = 20_000
_internal = Cache("files", LOCATIONS)
_locations = Cache("lines", LOCATIONS)              # by file, line, function and call: Locations of lines that were asked for, made once
_roles = Cache("lines with roles", LOCATIONS)
# By the identity of code, the instruction and `call`: the code, which is kept alive, and what was found. (A frame's line takes a search.)
_instructions = Cache("lines of instructions", LOCATIONS)


class _Override(threading.local):
    """Per thread: the line on whose behalf nodes are being made, if it is not to be found on the stack."""

    location: Location | None = None


LINE = _Override()


def user_location(depth: int = 1, call: str = "") -> Location:
    """The nearest line outside tracegrad on the Python stack (or the line on whose behalf a derivative is being made).

    depth: so many calls lie between that line and here at least (looking at a frame costs as much as calling a function). call: what
    the user called there.
    """
    override = LINE.location
    if override is not None:
        return override
    frame, internal = sys._getframe(depth), _internal
    while True:
        name = frame.f_code.co_filename
        if internal[name] and (outer := frame.f_back) is not None:
            frame = outer
        elif name in internal:
            break
        else:
            internal[name] = name.startswith(INTERNAL)
    known: tuple[CodeType, Location] | None = _instructions[id(frame.f_code), frame.f_lasti, call]
    return _located(frame, call) if known is None else known[1]


def _located(frame: FrameType, call: str) -> Location:
    """The line where a frame is; `user_location` finds it from then on."""
    code = frame.f_code
    notice(frame)
    key = (code.co_filename, frame.f_lineno or 0, code.co_name, call)
    found: Location | None = _locations[key]
    if found is None:
        found = _locations[key] = Location(*key[:3])
        found.call = call
    _instructions[id(code), frame.f_lasti, call] = code, found
    return found


class located:
    """Nodes made inside carry `location`; what it gives has the one that holds, which may be set to another for each node of a loop."""

    __slots__ = ("_location", "_previous")

    def __init__(self, location: Location | None) -> None:
        self._location = location

    def __enter__(self) -> _Override:
        self._previous, LINE.location = LINE.location, self._location
        return LINE

    def __exit__(self, *exc: object) -> None:
        LINE.location = self._previous


_derived = Cache("lines of derivatives", LOCATIONS)


def derivative_of(location: Location) -> Location:
    """The same line, marked as derived."""
    key = location, location.call, location.module
    found: Location | None = _derived[key]
    if found is None:
        found = _derived[key] = location.having(location.call, derived=True)
    return found


def on_behalf_of(location: Location) -> located:
    """Nodes made inside carry `location`, marked as derived."""
    return located(derivative_of(location))
