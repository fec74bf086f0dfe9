"""torch.jit.annotations: types of lists that a number stands for, too."""

from __future__ import annotations

BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list
