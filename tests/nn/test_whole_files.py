"""A file of tg.save and its like is the old one or the new one, whole, whenever the process that writes it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.runtime import disk
from tracegrad.torch_api import names as torch_names

ROOT = Path(__file__).parents[2]
WRITERS = {
    "tg.save": (tg.save, lambda path: tg.load(path)["w"]),
    "nn.save_file": (nn.save_file, lambda path: nn.load_file(path)["w"]),
    "torch.save": (lambda state, path: torch_names.save({"w": state["w"].tolist()}, path),
                   lambda path: tg.tensor(torch_names.load(path)["w"])),
}
KILLED = """
import os, sys
import tracegrad as tg
from tracegrad import nn
from tracegrad.torch_api import names as torch_names
save = {"tg.save": tg.save, "nn.save_file": nn.save_file, "torch.save": torch_names.save}[sys.argv[2]]
def kill(*args):
    os.kill(os.getpid(), 9)
os.fsync = kill                     # what was written is in the system's hands, and the file not yet in its place
save({"w": tg.zeros(100000) if sys.argv[2] != "torch.save" else [0.0] * 100000}, sys.argv[1])
"""


@pytest.mark.parametrize("writer", WRITERS)
def test_a_process_that_is_killed_leaves_the_last_whole_file(writer, tmp_path):
    save, load = WRITERS[writer]
    path = tmp_path / "state"
    save({"w": tg.ones(3)}, path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), writer], env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=100,
                          check=False)
    assert done.returncode == -9
    assert load(path).tolist() == [1, 1, 1]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def fails():
        with disk.replaced(path) as file:
            file.write(b"ne")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


def test_modes_links_pipes_and_folders_that_are_not_there(tmp_path):
    path, link = tmp_path / "state", tmp_path / "link"
    tg.save({"w": tg.ones(3)}, path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~disk._mask()
    path.chmod(0o640)
    link.symlink_to(path)
    tg.save({"w": tg.zeros(2)}, link)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert tg.load(path)["w"].tolist() == [0, 0]
    tg.save({"w": tg.ones(3)}, os.devnull)
    assert not os.path.isfile(os.devnull)
    with pytest.raises(FileNotFoundError, match="nowhere/state"):
        tg.save({}, tmp_path / "nowhere" / "state")
