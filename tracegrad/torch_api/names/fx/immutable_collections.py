"""torch.fx.immutable_collections: lists and dictionaries of a node's arguments, which are changed by `node.args = ...` alone."""

from __future__ import annotations

from typing import Any, NoReturn

from tracegrad.errors import UnsupportedError

__all__ = ["immutable_dict", "immutable_list"]


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(f"{type(self).__name__!r} object does not support mutation: a node knows its users by its arguments; assign new "
                           "ones to node.args or node.kwargs")


class immutable_list(list[Any]):
    """A list that does not change."""

    __delitem__ = __iadd__ = __imul__ = __setitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> Any:
        return immutable_list, (tuple(self),)


class immutable_dict(dict[str, Any]):
    """A dictionary that does not change."""

    __delitem__ = __ior__ = __setitem__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return immutable_dict, (tuple(self.items()),)
