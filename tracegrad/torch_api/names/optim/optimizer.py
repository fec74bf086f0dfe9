"""torch.optim.optimizer: what optimizers that programs bring ask for beside `Optimizer`."""

from __future__ import annotations

__all__ = ["required"]


class _Required:
    """The default of a hyperparameter that has to be given."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()
