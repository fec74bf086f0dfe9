"""Every exception that tracegrad raises on purpose.

    TracegradError
    ├── ShapeError (ValueError, RuntimeError)        shapes that do not fit together
    ├── DTypeError (TypeError, RuntimeError)         a dtype an operation or a device cannot take
    ├── ArgumentError (ValueError, RuntimeError)     any other bad argument
    │   └── ArgumentTypeError (also TypeError)       ... that is of a wrong Python type: a word where a number is wanted
    │       └── IndexTypeError (also IndexError)     ... and stands between brackets: x[1.5]
    ├── DLPackError (BufferError)        DLPack cannot hand an array over as it was asked to
    ├── IndexOutOfRange (IndexError, RuntimeError)   an index outside its dimension
    ├── MissingRuleError (NotImplementedError)       a method that this object has not: a density without a closed form, ...
    ├── LinAlgError (numpy's, RuntimeError)  a matrix without the inverse or the factorisation that was asked for
    ├── AutogradError (RuntimeError)     backward on freed history, a non-scalar root, a modified saved tensor, ...
    ├── DistributedError (RuntimeError)  another rank failed, is too slow, or does something else
    ├── TraceError (RuntimeError)        something that @trace cannot capture, or a tracer that leaked
    ├── GraphError (AssertionError)      the checker found a malformed graph: a bug of tracegrad, please report it
    ├── CompilerBug (AssertionError)     the code generator did what must not happen: a bug of tracegrad, please report it
    └── DeviceError (RuntimeError)
        ├── NoDriverError                no OpenCL driver, or none that was asked for
        ├── UnsupportedError             the device lacks what the program needs (fp64, fp16, ...)
        ├── OutOfMemoryError             an allocation failed, or a size that cannot be had was asked for
        └── BuildError                   the driver rejected a kernel; carries the source and the build log

What Python and NumPy call a ValueError or a TypeError is a RuntimeError in torch: the first are both, so that `except` clauses of
programs for either work.

A message begins with the function the user called, gives the shapes or dtypes seen and the way out, and ends with the line of
the user's program that was running.
"""

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

__all__ = ["ArgumentError", "ArgumentTypeError", "AutogradError", "BuildError", "CompilerBug", "DLPackError", "DTypeError", "DeviceError",
           "DistributedError", "GraphError", "IndexOutOfRange", "IndexTypeError", "LinAlgError", "MissingRuleError", "NoDriverError",
           "OutOfMemoryError", "ShapeError", "TraceError", "TracegradError", "UnsupportedError"]


# Where our code is, and what stands between it and the user where it enters a context.
_HERE = os.path.dirname(__file__)
INTERNAL = (_HERE, os.path.dirname(_HERE) + "/codegen", os.path.dirname(_HERE) + "/runtime", contextlib.__file__,
            "<frozen ")                   # Python's own, such as runpy


def printable(text: str) -> str:
    """Text of the user's, such as a line or the name of a file, as a part of a line of ours that can be written anywhere.

    A tab is a space, and \N{REPLACEMENT CHARACTER} stands for what ends a line, controls a terminal, or is not Unicode (a byte of a file's
    name that is not UTF-8).
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else " " if c in "\t\xa0" else "\N{REPLACEMENT CHARACTER}" for c in text])


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame outside tracegrad, from this one outwards."""
    while frame is not None and frame.f_code.co_filename.startswith(INTERNAL):
        frame = frame.f_back
    return frame


def user_line(frame: FrameType | None = None) -> str:
    """The nearest line outside tracegrad on the Python stack (default: the caller's), as "file:line"; "" if there is none."""
    frame = user_frame(frame or sys._getframe(1))
    return "" if frame is None else f"{printable(frame.f_code.co_filename)}:{frame.f_lineno}"


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the user's line, however deep the caller is."""
    frame = user_frame(sys._getframe(1)) or sys._getframe(1)
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, registry=registry)


def type_name(x: Any) -> str:
    """The name of a value's class for a message; with its package where another package's class is called Tensor, too."""
    cls = type(x)
    package = cls.__module__.partition(".")[0]
    return f"{package}.Tensor" if cls.__name__ == "Tensor" and package != __name__.partition(".")[0] else cls.__name__


class TracegradError(Exception):
    """Base of all tracegrad errors. `line` is where the user's program was ("file:line"); the message ends with it.

    >>> try:
    ...     tg.ones(2) @ tg.ones(3)
    ... except tg.TracegradError as error:
    ...     message = str(error)
    """

    def __init__(self, message: str = "", line: str = "") -> None:
        """line: where the user's program was, where it is not the line that calls now."""
        self.line = line or user_line()
        message = "\n".join(map(printable, message.split("\n")))        # it may quote any text of the user's, as the name of a parameter
        super().__init__(message if not self.line or self.line in message else f"{message} (at {self.line})")

    def called(self, name: str) -> None:
        """Begin the message with `name`, what the user called, if it begins with what that is made of."""
        if not re.match(rf"{re.escape(name)}\b", str(self)):
            self.args = (f"{name}: {self}", *self.args[1:])

    def called_instead(self, name: str, is_function: Callable[[str], bool]) -> None:
        """Begin the message with `name`, what the user called, where it begins with a function that this calls."""
        word, colon, text = str(self).partition(": ")
        if colon and word != name and is_function(word):
            self.args = (f"{name}: {text}", *self.args[1:])


class ShapeError(TracegradError, ValueError, RuntimeError):
    """Shapes that do not fit together. A ValueError and a RuntimeError, too.

    >>> try:
    ...     tg.ones(2) + tg.ones(3)
    ... except tg.ShapeError as error:
    ...     message = str(error)
    """


class DTypeError(TracegradError, TypeError, RuntimeError):
    """A dtype that an operation or a device cannot take. A TypeError and a RuntimeError, too.

    >>> try:
    ...     tg.linalg.inv(tg.tensor([[1]]))
    ... except tg.DTypeError as error:
    ...     message = str(error)
    """


class ArgumentError(TracegradError, ValueError, RuntimeError):
    """A bad argument that is neither a shape nor a dtype. A ValueError and a RuntimeError, too.

    >>> try:
    ...     tg.zeros(-1)
    ... except tg.ArgumentError as error:
    ...     message = str(error)
    """


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of a Python type that cannot be meant, such as a word in place of a number. An ArgumentError and a TypeError, too.

    >>> try:
    ...     tg.ones(2).round(decimals=1.5)
    ... except tg.ArgumentTypeError as error:
    ...     message = str(error)
    """

    unread: Any = None          # the node of an integer tensor that stands where an integer is needed


class IndexTypeError(ArgumentTypeError, IndexError):
    """What is no index, between brackets: a float, a word. An ArgumentTypeError and an IndexError, too.

    >>> try:
    ...     tg.ones(2)[1.5]
    ... except tg.IndexTypeError as error:
    ...     message = str(error)
    """


def check_function(call: str, given: Any, instead: str = "") -> Any:
    """`given`. Raises ArgumentTypeError for what cannot be called. instead: what to do with a tensor."""
    if not callable(given):
        hint = f"; {instead}" if instead and hasattr(given, "requires_grad") else ""
        raise ArgumentTypeError(f"{call}: takes a function, got {type_name(given)}{hint}")
    return given


def check_place(call: str, path: Any) -> None:
    """Raise ArgumentError where no file can be written at `path`, before the work that makes its text."""
    folder = os.path.dirname(os.fspath(path)) or os.curdir
    if not os.path.isdir(folder):
        raise ArgumentError(f"{call}: there is no folder {folder!r}; make it first: os.makedirs({folder!r})")
    if os.path.isdir(path):
        raise ArgumentError(f"{call}: {os.fspath(path)!r} is a folder; name a file in it")


class DLPackError(TracegradError, BufferError):
    """DLPack cannot hand an array over as it was asked to: without a copy, to that device, with its history. A BufferError, too.

    >>> try:
    ...     np.from_dlpack(tg.ones(2, requires_grad=True))
    ... except tg.DLPackError as error:
    ...     message = str(error)
    """


class IndexOutOfRange(TracegradError, IndexError, RuntimeError):
    """An index outside its dimension. An IndexError and a RuntimeError, too.

    >>> try:
    ...     tg.ones(3)[5]
    ... except tg.IndexOutOfRange as error:
    ...     message = str(error)
    """


class LinAlgError(TracegradError, np.linalg.LinAlgError, RuntimeError):
    """A matrix that is singular, not positive definite, or whose factorisation did not converge. Raised when a value is read.

    NumPy's LinAlgError and a RuntimeError, too.

    >>> try:
    ...     tg.linalg.inv(tg.zeros(2, 2)).numpy()
    ... except tg.LinAlgError as error:
    ...     message = str(error)
    """

    position = -1             # where only the caller of the program knows the line: the operation's number in the program
    _told = False

    def of(self, place: str, who: str = "", position: int = -1) -> None:
        """Tell the line whose operation it was, too, where that is another one than the line that read the value.

        who: what the message begins with in place of the operation's name, "" if that is not known. The first one is the right one, since
        steps stand in steps; but a place in a program that is used for other lines, too (position >= 0), waits for one of this call.
        """
        if self._told:
            return
        self.position, self._told = position, position < 0
        if self._told:
            text = str(self)
            if who and ": " in text:
                text = who + text.partition(": ")[2]
            self.args = (f"{text}, in what {place} computes" if place and place not in text else text, *self.args[1:])


class MissingRuleError(TracegradError, NotImplementedError):
    """What is not known of an object: a distribution function without a closed form, samples without a derivative, or a derivative of
    `igamma` in its first operand.

    A NotImplementedError, too.

    >>> try:
    ...     tg.distributions.Beta(2.0, 3.0).cdf(tg.tensor(0.5))
    ... except tg.MissingRuleError as error:
    ...     message = str(error)
    """


class AutogradError(TracegradError, RuntimeError):
    """Differentiation was asked for something it cannot give. A RuntimeError, too.

    >>> try:
    ...     tg.ones(2).sum().backward()
    ... except tg.AutogradError as error:
    ...     message = str(error)
    """


class DistributedError(TracegradError, RuntimeError):
    """Several ranks do not go on together: one failed, is too slow, or does something else; or there is no process group.

    A RuntimeError, too.

    >>> try:
    ...     tg.distributed.get_rank()
    ... except tg.DistributedError as error:
    ...     message = str(error)
    """


class TraceError(TracegradError, RuntimeError):
    """Something that @trace cannot capture. A RuntimeError, too.

    >>> try:
    ...     tg.trace(lambda x: x + 1 if x > 0 else x)(tg.ones(()))
    ... except tg.TraceError as error:
    ...     message = str(error)
    """


class GraphError(TracegradError, AssertionError):
    """A malformed graph: a bug of tracegrad. An AssertionError, too."""


class CompilerBug(TracegradError, AssertionError):
    """The code generator did what must not happen; the message names the value it was about. An AssertionError, too."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}. This is a bug of tracegrad: please report it with the program, or with the script that "
                         "tests/helpers/standalone.py writes; with TRACEGRAD_DEVICE=numpy the program runs without generated code")


class DeviceError(TracegradError, RuntimeError):
    """Something about the OpenCL device or its driver. A RuntimeError, too.

    >>> try:
    ...     tg.ones(2) + tg.ones(2, device="numpy")
    ... except tg.DeviceError as error:
    ...     message = str(error)
    """


class NoDriverError(DeviceError):
    """No OpenCL driver, or none that was asked for. A DeviceError.

    >>> try:
    ...     tg.device("no such device")
    ... except tg.NoDriverError as error:
    ...     message = str(error)
    """


class UnsupportedError(DeviceError):
    """The device lacks a capability that the program needs. A DeviceError."""


class OutOfMemoryError(DeviceError):
    """An allocation on the device failed, or could not be tried. A DeviceError.

    >>> try:
    ...     tg.zeros(2**62)
    ... except tg.OutOfMemoryError as error:
    ...     message = str(error)
    """

    def on(self, device: Any) -> None:
        """Tell what the device has, where the message does not say it yet."""
        memory = getattr(device, "memory", 0)
        if memory and "GiB" not in str(self):
            self.args = (f"{self}; {device.name} has {memory / (1 << 30):.1f} GiB", *self.args[1:])


_OF_NUMPY = "array is too big", "Maximum allowed dimension"      # what its messages about sizes begin with


def of_memory(name: str, error: Exception) -> OutOfMemoryError | None:
    """What to raise in place of `error`, which came up in the function `name`, if it tells (or NumPy) of a size that cannot be had."""
    if isinstance(error, OutOfMemoryError):
        error.called(name)
        return error
    if isinstance(error, MemoryError) or (type(error) is ValueError and str(error).startswith(_OF_NUMPY)):
        return OutOfMemoryError(f"{name}: {str(error) or 'no memory is left'}; use smaller sizes")
    return None


class BuildError(DeviceError):
    """The driver rejected a kernel; `source` and `log` hold the text and the driver's words. A DeviceError.

    >>> try:
    ...     tg.elementwise("unknown(x)")(tg.ones(1000)).numpy()
    ... except tg.BuildError as error:
    ...     line = error.source.splitlines()[-2]
    """

    def __init__(self, message: str, source: str = "", log: str = "") -> None:
        super().__init__(message)
        self.source = source
        self.log = log
