"""torch.utils.flop_counter. Summaries of models make a counter, also where they run nothing under it."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import UnsupportedError


class FlopCounterMode:
    """A counter of what has been computed under it, which is nothing: it cannot be entered."""

    def __init__(self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None) -> None:
        self.depth, self.display = depth, display

    def __enter__(self) -> FlopCounterMode:
        raise UnsupportedError("FlopCounterMode: operations are not counted; tg.trace(f).profile() tells the times of kernels")

    def __exit__(self, *_: Any) -> None:
        """Never reached."""

    def get_total_flops(self) -> int:
        """0."""
        return 0

    def get_flop_counts(self) -> dict[str, dict[Any, int]]:
        """Those of all modules, "Global", and of each: none."""
        return {"Global": {}}
