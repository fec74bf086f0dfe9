"""Who of a machine's ranks was killed, and where: a process beside them that outlives them. Start at `main`, which is that process.

A rank that is killed, by a signal or for want of memory, says nothing, and most launchers then kill the other ranks, too. So each rank
keeps where it is in a file that all of them map, and a connection to the watcher. A connection that ends without a goodbye is a rank that
was killed. The watcher prints where it and the other ranks were, and tells those that still run.

This file is run by itself (`python -I -S watch.py folder count`): it imports nothing of tracegrad.
"""

from __future__ import annotations

import mmap
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOT = 1024                 # bytes in which a rank says where it is
_START = 30.0               # seconds that ranks and watcher have to find each other
_TOGETHER = 0.3             # seconds after the first rank that was killed: a launcher kills the others in less
_HELLO = "here:"


def start(count: int) -> str:
    """Start the watcher of so many ranks. Returns the folder in which they find it; "" where there can be none."""
    if not hasattr(socket, "AF_UNIX"):
        return ""
    try:
        folder = tempfile.mkdtemp(prefix="tg-")         # readable by this user alone; a socket's path is short
        Path(folder, "ranks").write_bytes(bytes(SLOT * count))
        # A session of its own: what kills the ranks' process group does not reach it.
        process = subprocess.Popen([sys.executable, "-I", "-S", __file__, folder, str(count)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, start_new_session=True)
        process.returncode = 0                          # nobody waits for it: it outlives this process
    except OSError:
        return ""
    return folder


class Watched:
    """A rank's side: `at` says where it is, `heard` what became of the others, `leave` that it ends as it should."""

    def __init__(self, folder: str, place: int, rank: int) -> None:
        """place: its number on this machine. Without a folder, or if the watcher cannot be found, all methods do nothing."""
        self.slot: memoryview | None = None
        self.line: socket.socket | None = None
        if not folder:
            return
        until = time.monotonic() + _START
        line = socket.socket(socket.AF_UNIX)
        while True:
            try:
                line.connect(f"{folder}/watch")
                break
            except OSError:
                if time.monotonic() > until:
                    line.close()
                    return
                time.sleep(0.01)
        with open(f"{folder}/ranks", "r+b") as file:
            self.slot = memoryview(mmap.mmap(file.fileno(), 0))[place * SLOT:(place + 1) * SLOT]
        line.sendall(f"{_HELLO}{place} {rank} {os.getpid()}\n".encode())
        line.setblocking(False)
        self.line = line
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=line.close)          # a child that lives on is not this rank

    def at(self, text: str) -> None:
        """Where this rank is from now on."""
        if self.slot is not None:
            data = text.encode()[:SLOT - 1]
            self.slot[:len(data) + 1] = data + b"\0"

    def heard(self) -> dict[int, str]:
        """What the watcher said since the last call: the rank that was killed, and where it was."""
        try:
            data = b"" if self.line is None else self.line.recv(1 << 16)
        except OSError:                             # nothing yet
            return {}
        return {int(rank): text for rank, text in (told.split(" ", 1) for told in data.decode(errors="replace").splitlines())}

    def leave(self, failing: bool = False) -> None:
        """This rank ends as it should; or it fails, has said why, and ends the others."""
        if self.line is not None:
            try:
                self.line.setblocking(True)
                self.line.sendall(b"failing\n" if failing else b"bye\n")
            except OSError:
                pass
            self.line.close()
            self.line = None


class _Rank:
    """A connection, and what the watcher knows of the rank."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.text, self.place, self.rank, self.process = line, "", -1, -1, 0

    def read(self) -> bool:
        """Read what it said. Whether it may say more."""
        try:
            data = self.line.recv(4096)
        except OSError:
            data = b""
        self.text += data.decode(errors="replace")
        if self.place < 0 and self.text.startswith(_HELLO) and "\n" in self.text:
            hello, self.text = self.text.split("\n", 1)
            self.place, self.rank, self.process = (int(n) for n in hello[len(_HELLO):].split())
        return bool(data)

    def shown(self, slots: mmap.mmap) -> str:
        where = slots[self.place * SLOT:(self.place + 1) * SLOT].split(b"\0", 1)[0].decode(errors="replace")
        return f"rank {self.rank} (process {self.process}) {where or 'had called no operation'}"


def main(folder: str, count: int) -> None:
    """Watch until all ranks have ended."""
    ranks: list[_Rank] = []
    choose = selectors.DefaultSelector()
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{folder}/watch")
    server.listen(count)
    server.settimeout(_START)
    try:
        while len(ranks) < count:
            rank = _Rank(server.accept()[0])
            rank.line.settimeout(_START)
            while rank.place < 0:                   # it says so when it has mapped the file
                if not rank.read():
                    return
            ranks.append(rank)
            choose.register(rank.line, selectors.EVENT_READ, rank)
        with open(f"{folder}/ranks", "r+b") as file:
            slots = mmap.mmap(file.fileno(), 0)
    except OSError:
        return                                      # a rank never came: the launcher has more to say
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
    killed: list[_Rank] = []
    first, told = 0.0, False
    while choose.get_map() or (killed and not told):
        wait = None if told or not killed else max(0.0, first + _TOGETHER - time.monotonic())
        for key, _ in choose.select(wait):
            rank = key.data
            if not rank.read():
                choose.unregister(rank.line)
                told |= "failing" in rank.text
                if "bye" not in rank.text:
                    first = first or time.monotonic()
                    killed.append(rank)
        if killed and not told and time.monotonic() >= first + _TOGETHER:
            told = True
            _tell(killed, [key.data for key in choose.get_map().values()], slots)


def _tell(killed: list[_Rank], left: list[_Rank], slots: mmap.mmap) -> None:
    one = f"{killed[0].shown(slots)} was killed, by a signal or for want of memory"
    others = "; then ended " + "; ".join(r.shown(slots) for r in killed[1:]) if killed[1:] else ""
    sys.stderr.write(f"tracegrad.distributed: {one}{others}\n")
    sys.stderr.flush()
    for rank in left:
        try:
            rank.line.sendall(f"{killed[0].rank} {one}\n".encode())
        except OSError:
            pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
