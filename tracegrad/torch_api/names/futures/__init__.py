"""torch.futures: values that another thread, or a later line, gives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError, warn


class Future:
    """A value that `set_result` gives. Callbacks are called there, in that thread; those that are added later at once.

    >>> import tracegrad.torch_api.names.futures as futures
    >>> f = futures.Future()
    >>> doubled = f.then(lambda f: f.value() * 2)
    >>> f.set_result(21)
    >>> doubled.wait()
    42
    """

    def __init__(self, *, devices: Any = None) -> None:
        self._done = threading.Condition()
        self._found: Any = None
        self._error: BaseException | None = None
        self._finished = False
        self._callbacks: list[Callable[[Future], Any]] = []

    @classmethod
    def __class_getitem__(cls, kind: Any) -> Any:
        return cls

    def done(self) -> bool:
        """Whether there is a result, or an error."""
        return self._finished

    def wait(self) -> Any:
        """The result, once it is there; raises the error that was set."""
        with self._done:
            self._done.wait_for(lambda: self._finished)
        return self.value()

    def value(self) -> Any:
        """The result; raises the error that was set, and ArgumentError where there is none yet."""
        if not self._finished:
            raise ArgumentError("Future.value: there is no result yet; wait() waits for it")
        if self._error is not None:
            raise self._error
        return self._found

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A Future of what callback(this future) returns. Its error is a RuntimeError of the new one."""
        after = Future()

        def go_on(this: Future) -> None:
            try:
                found = callback(this)
            except Exception as error:
                text = f"Got the following error when running the callback: {type(error).__name__}: {error}"
                after.set_exception(RuntimeError(text))
            else:
                after.set_result(found)

        self._call(go_on)
        return after

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call callback(this future) when it is done. Its errors are warnings."""
        def go_on(this: Future) -> None:
            try:
                callback(this)
            except Exception as error:
                warn(f"Future: got the following error when running the callback: {type(error).__name__}: {error}")

        self._call(go_on)

    def set_result(self, result: Any) -> None:
        """Give the result. Raises ArgumentError where there is one."""
        self._finish(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Give an error, which `wait` and `value` raise."""
        if not isinstance(result, Exception):
            raise ArgumentTypeError(f"Future.set_exception: takes an Exception, got {type(result).__name__}")
        self._finish(None, result)

    def _call(self, callback: Callable[[Future], Any]) -> None:
        with self._done:
            if not self._finished:
                self._callbacks.append(callback)
                return
        callback(self)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        with self._done:
            if self._finished:
                raise ArgumentError("Future.set_result: the Future is completed; it can be marked completed once only")
            self._found, self._error, self._finished = result, error, True
            self._done.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def collect_all(futures: list[Future]) -> Future:
    """A Future of the list itself, done when all of them are; its error is that of one of them."""
    every, left, lock = Future(), [len(futures)], threading.Lock()

    def one_more(this: Future) -> None:
        with lock:
            left[0] -= 1
            last = not left[0]
        if last:
            failed = [f._error for f in futures if f._error is not None]
            every._finish(futures, failed[0] if failed else None)

    for f in futures:
        f._call(one_more)
    if not futures:
        every.set_result([])
    return every


def wait_all(futures: list[Future]) -> list[Any]:
    """The results of all, once they are there; raises an error that one of them has."""
    return [f.value() for f in collect_all(futures).wait()]
