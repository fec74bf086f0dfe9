"""The bar that tells what is being compiled (runtime/programs/progress.py): in terminals, never in pipes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from tracegrad.runtime.programs import progress as module
from tracegrad.runtime.programs.progress import progress

pytest.importorskip("rich")

PROGRAM = """
import time
from tracegrad.runtime.programs import progress
progress.AFTER = 0.0
with progress.progress("some kernels", 3) as advance:
    time.sleep(0.3)
    advance(2)
    time.sleep(0.3)
print("after")
"""

COMPILES = """
import random
import tracegrad as tg
from tracegrad.runtime.programs import progress
progress.AFTER = 0.0
a = random.random()
f = tg.trace(lambda x: (x * a).sin().sum())
f(tg.ones(100_000)).item()
"""


def _in_a_terminal(program: str, **environment: str) -> str:
    """What a program prints to stderr, which is a terminal."""
    pty = pytest.importorskip("pty")
    mine, its = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stderr=its, stdout=subprocess.DEVNULL,
                          env=os.environ | {"TERM": "xterm", "COLUMNS": "100"} | environment) as process:
        os.close(its)
        found = b""
        while True:
            try:
                more = os.read(mine, 4096)
            except OSError:                                # the program has ended
                break
            if not more:
                break
            found += more
        process.wait()
    os.close(mine)
    assert process.returncode == 0, found
    return found.decode()


def test_a_terminal_shows_what_is_built_and_how_much_is_done() -> None:
    text = _in_a_terminal(PROGRAM)
    for part in ("some kernels", "0/3", "2/3"):
        assert part in text


def test_what_is_compiled_is_told() -> None:
    """Lowering, then building, of a traced function; nothing stays on the screen."""
    text = _in_a_terminal(COMPILES)
    for part in ("writes kernels for", "builds kernels"):
        assert part in text


@pytest.mark.parametrize("way", ["pipe", "switch"])
def test_logs_and_whoever_turns_it_off_see_nothing(way: str) -> None:
    if way == "switch":
        assert _in_a_terminal(PROGRAM, TRACEGRAD_PROGRESS="0") == ""
    else:
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("after\n", "")


def test_other_threads_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what they compile."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert module._wanted()
    found = []
    thread = threading.Thread(target=lambda: found.append(module._wanted()))
    thread.start()
    thread.join()
    assert found == [False]


def test_an_error_goes_through_and_the_bar_goes() -> None:
    with pytest.raises(ValueError, match="no such kernel"), progress("something", 2):
        raise ValueError("no such kernel")
