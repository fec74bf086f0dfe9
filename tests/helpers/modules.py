"""Modules of a test's own, from files that it wrote."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType


def imported(path: bytes | str | Path) -> ModuleType:
    """The module of a file, run. It is called as its file, and is not in sys.modules."""
    spec = importlib.util.spec_from_file_location("module_of_a_test", os.fsdecode(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
