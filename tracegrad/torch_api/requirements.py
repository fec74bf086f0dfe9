"""Which torch packages find when they ask before they import it: `importlib.metadata.version("torch")` and `find_spec`."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VERSION = "2.13.0"


class _Distribution(importlib.metadata.Distribution):
    """The distribution `torch`, without files."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n" if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


class _Finder(importlib.metadata.DistributionFinder):
    """Finds it. Modules are another finder's."""

    def find_spec(self, *_: Any, **__: Any) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        return [_Distribution()] if name in (None, "torch") else []


def answer() -> None:
    """From now on this process finds the distribution torch, of the version whose names are here."""
    sys.meta_path.insert(0, _Finder())
