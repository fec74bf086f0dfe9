"""torch.utils.weak: dictionaries by the identity of keys that they do not keep alive. Tensors here hash by identity as they are."""

from __future__ import annotations

from weakref import WeakKeyDictionary as WeakIdKeyDictionary
from weakref import WeakKeyDictionary as WeakTensorKeyDictionary
from weakref import ref as TensorWeakRef
from weakref import ref as WeakIdRef

__all__ = ["TensorWeakRef", "WeakIdKeyDictionary", "WeakIdRef", "WeakTensorKeyDictionary"]
