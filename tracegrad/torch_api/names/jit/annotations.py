"""torch.jit.annotations: types of lists that a number stands for, too, and Python's own."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: UP035

__all__ = ["Any", "BroadcastingList1", "BroadcastingList2", "BroadcastingList3", "Dict", "List", "Optional", "Tuple", "Union"]

BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list
