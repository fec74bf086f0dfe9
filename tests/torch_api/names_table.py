"""The names of the installed torch beside tracegrad's: docs/torch_names.md. `make torch-names` writes it; test_names.py compares it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.torch_api.missing import MISSING, REASONS
from tracegrad.torch_api.requirements import VERSION

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "torch_names.md"
_OTHERS = {"typing", "builtins_", "functools", "collections", "enum"}              # modules whose names torch only uses
_ASK = """
import importlib, json, sys
import tracegrad.as_torch
from tracegrad.torch_api.modules import ABSENT
import torch
found = {}
for module, names in json.load(sys.stdin).items():
    owner = {"torch.Tensor": torch.Tensor, "torch.nn.Module": torch.nn.Module}.get(module)
    try:
        owner = owner or importlib.import_module(module)
    except ImportError:
        found[module] = []
        continue
    found[module] = [n for n in names if hasattr(owner, n) and n not in ABSENT.get(module, "").split()]
print(json.dumps(found))
"""


def public(module: str) -> list[str]:
    """The public names of one of torch's modules or classes, without its submodules."""
    owner: Any = importlib.import_module("torch")
    if module in ("torch.Tensor", "torch.nn.Module"):
        for part in module.split(".")[1:]:
            owner = getattr(owner, part)
        return sorted(n for n in dir(owner) if not n.startswith("_"))
    owner = importlib.import_module(module)

    def own(name: str) -> bool:
        value = getattr(owner, name, None)
        return not name.startswith("_") and hasattr(owner, name) and not isinstance(value, ModuleType) and (
            (getattr(value, "__module__", "") or "").partition(".")[0] not in _OTHERS)

    return sorted(n for n in getattr(owner, "__all__", None) or vars(owner) if own(n))


def here(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """Those of them that a program finds under the hook, by module."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _ASK], check=True, capture_output=True, text=True, input=json.dumps(names),
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def page() -> str:
    """The page's text."""
    names = {module: public(module) for module in MISSING}
    rows = [f"| `{module}` | {len(all_) - _count(module)} | {_count(module)} |" for module, all_ in names.items()]
    parts = [f"# torch's names\n\nEvery public name of torch {VERSION} in these modules is here, under `import tracegrad.as_torch`, "
             "but for those below. A test\nholds this page against the installed torch; `make torch-names` writes it. "
             "[torch.md](torch.md) says what programs can expect.\n\n| module | here | not here |\n|---|---|---|\n", "\n".join(rows) + "\n"]
    for module, by_reason in MISSING.items():
        if by_reason:
            parts.append(f"\n## `{module}`\n")
            parts += [f"\n{REASONS[reason]}:\n{_wrapped(sorted(listed.split()))}.\n" for reason, listed in by_reason.items()]
    return "".join(parts)


def _count(module: str) -> int:
    return sum(len(listed.split()) for listed in MISSING[module].values())


def _wrapped(words: list[str]) -> str:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 130:
            lines.append("")
        lines[-1] += f"{word}, "
    return "\n".join(line.rstrip() for line in lines).rstrip(", ")


if __name__ == "__main__":
    PAGE.write_text(page())
