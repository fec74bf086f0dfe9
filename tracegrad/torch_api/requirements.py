"""Which torch packages find when they ask before they import it: `importlib.metadata.version("torch")`. See `hook.Finder`."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

VERSION = "2.14.1"


class Torch(importlib.metadata.Distribution):
    """The distribution `torch`, of the version whose names are here, without files."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n" if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)
