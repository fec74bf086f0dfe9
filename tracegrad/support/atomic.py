"""Files that are whole at all times, whenever a process that writes one is killed: `replaced`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file to write, which takes the place of the one at `path` when it is whole; until then, and on an error, that one stays.

    What is no regular file (a pipe), and a file in a folder where none can be made, is written over. Raises OSError.
    """
    target = os.path.realpath(path)                     # a link stays a link
    name = ""
    if not os.path.exists(target) or os.path.isfile(target):
        with suppress(OSError):
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
        with suppress(OSError):
            os.unlink(name)
        raise


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
