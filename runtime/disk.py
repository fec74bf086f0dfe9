"""What is kept on disk from one process to the next: files by name, each with the hash of its contents. Start at `Folder`.

`replaced` writes a file of the user's so that it is whole at all times.

A file that is damaged, cut short, of another version, under a wrong name or somebody else's is as good as none: whoever needs it makes it
again. A process sees all of a file or nothing, whatever others do at the same time. Nothing in a file is ever executed as Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import platformdirs

from tracegrad.config import config

_MAGIC = "tracegrad 1"
_SWEEP = 32                    # files that a process writes between two looks at the folder's size
_DRAFT = ".draft"
_ABANDONED = 3600.0            # seconds after which a draft's writer is dead


def cache_folder(name: str) -> Path:
    """The folder where tracegrad keeps its `name` files for this user (not created)."""
    return Path(platformdirs.user_cache_dir("tracegrad", appauthor=False)) / name


def _library() -> str:
    """What tells this state of the library from others: names, sizes and times of its files, and numpy's version. "" if there are none."""
    found = []
    top = os.path.dirname(os.path.dirname(__file__))
    for folder, _, files in os.walk(top, followlinks=True):
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                status = os.stat(path)
                found.append((path[len(top):], status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr((np.__version__, sorted(found))).encode()).hexdigest() if found else ""


LIBRARY = _library()           # at import: what is changed later is not what runs; a part of the names of what depends on our code


class Folder:
    """The files of one kind, in tracegrad's folder for this user. When there are too many, the least recently used go.

    `config.cache` off: nothing is found, nothing is kept. Whatever goes wrong with a file is no error.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._written = 0

    @property
    def path(self) -> Path:
        """Where they are (it need not exist)."""
        return cache_folder(self.name)

    def get(self, name: str) -> bytes | None:
        """What was put under `name`, which tells what it is for."""
        if not config.cache:
            return None
        path = self.path / name
        try:
            with path.open("rb") as file:
                if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid not in (os.getuid(), 0):
                    return None
                head, contents = file.readline(256), file.read()
        except OSError:
            return None
        if head != _head(name, contents):
            return None
        with contextlib.suppress(OSError):                 # the folder may be one to read only
            os.utime(path)                                 # what was used last goes last
        return contents

    def put(self, name: str, contents: bytes) -> None:
        """Keep `contents` under `name`, in place of what is there."""
        if not config.cache:
            return
        with contextlib.suppress(OSError):                 # no place to keep it
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path, suffix=_DRAFT, delete=False) as draft:
                try:
                    draft.write(_head(name, contents) + contents)
                    draft.close()
                    os.replace(draft.name, self.path / name)
                except OSError:
                    os.unlink(draft.name)
                    raise
            if self._written % _SWEEP == 0:
                self.sweep()
            self._written += 1

    def known(self, asked: Any) -> Any:
        """What was found out when this was asked before, as JSON has it; None if it was not."""
        kept = self.get(_question(asked))
        return None if kept is None else json.loads(kept)

    def answer(self, asked: Any, find: Callable[[], Any]) -> Any:
        """What find() found out when this was asked for the first time: lists, tables, numbers and texts, as JSON has them."""
        found = self.known(asked)
        if found is None:
            found = find()
            self.put(_question(asked), json.dumps(found).encode())
        return found

    def sweep(self) -> None:
        """Make room: at more than config.cache_size MiB the oldest files go, down to three quarters of that."""
        now, found, total = time.time(), [], 0
        for entry in os.scandir(self.path):
            with contextlib.suppress(OSError):             # another process was quicker
                status = entry.stat()
                if entry.name.endswith(_DRAFT):
                    if now - status.st_mtime > _ABANDONED:
                        os.unlink(entry.path)
                    continue
                found.append((status.st_mtime, status.st_size, entry.path))
                total += status.st_size
        limit = config.cache_size << 20
        if total <= limit:
            return
        for _, size, path in sorted(found):
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
            if total <= 0.75 * limit:
                return


def _head(name: str, contents: bytes) -> bytes:
    return f"{_MAGIC} {name} {hashlib.sha256(contents).hexdigest()}\n".encode()


def _question(asked: Any) -> str:
    """The name of the file with the answer."""
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file to write, which takes the place of the one at `path` when it is whole; until then, and on an error, that one stays.

    What is no regular file (a pipe), and a file in a folder where none can be made, is written over. Raises OSError.
    """
    target = os.path.realpath(path)                     # a link stays a link
    name = ""
    if not os.path.exists(target) or os.path.isfile(target):
        with contextlib.suppress(OSError):
            number, name = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)[:50]}.")
            os.close(number)
    if not name:
        with open(path, "wb") as file:
            yield file
        return
    try:
        with open(name, "wb") as draft:
            yield draft
            draft.flush()
            os.fsync(draft.fileno())
        os.chmod(name, os.stat(target).st_mode & 0o777 if os.path.exists(target) else 0o666 & ~_mask())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
