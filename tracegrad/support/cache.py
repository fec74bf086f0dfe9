"""Every cache of the process: what it is called, what it holds, what it may hold, how often it was of use. Start at `Cache`.

`tg.report()` shows them all, and a test finds any that is not listed here. They have one policy: what was not used for longest goes first.
`memoize` is functools.lru_cache, listed; `listed` names a table that limits itself, as one of weak references does.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from types import CodeType, FunctionType
from typing import Any, TypeVar

_T = TypeVar("_T")


class Cache(dict[Any, Any]):
    """A dict that forgets: `cache[key]` is the value, or None; `cache[key] = value` notes it.

    name: what `tg.report()` calls it; several caches with one name are shown as one. budget: how much it holds at most, in entries, or in
    what `weigh(key, value)` says of them. uses(value): how often a value was of use, where it counts that itself; others add to `hits`.
    dropped(key, value): is called when an entry is forgotten.

    Entries are of two generations. The dict has the young ones; when they weigh half the budget, they become the old ones, and those that
    were old are forgotten. A look-up that finds an old entry makes it young. So what is used stays, and a hit among the young costs what
    a dict's look-up costs: to move an entry at each hit, or to mark it, would be a tenth of what some of these caches save. Once it was
    looked up, `key in cache` tells whether there is an entry (its value may be None).
    """

    __slots__ = ("__weakref__", "_old", "_weights", "budget", "dropped", "hits", "lock", "misses", "name", "uses", "weigh", "weight")
    __hash__ = object.__hash__  # type: ignore[assignment]          # a cache is itself, whatever it holds

    def __init__(self, name: str, budget: int, weigh: Callable[[Any, Any], int] | None = None,
                 uses: Callable[[Any], int] | None = None, dropped: Callable[[Any, Any], None] | None = None) -> None:
        super().__init__()
        self.name, self.budget, self.weigh, self.uses, self.dropped = name, budget, weigh, uses, dropped
        self.lock = threading.RLock()
        self.hits = self.misses = self.weight = 0
        self._old: dict[Any, Any] = {}
        self._weights: dict[Any, int] = {}              # of the entries, where they differ
        _caches.add(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __missing__(self, key: Hashable) -> Any:
        with self.lock:
            if key not in self._old:
                self.misses += 1
                return None
            self[key] = value = self._old.pop(key)
            return value

    def __setitem__(self, key: Any, value: Any) -> None:
        with self.lock:
            if self.weigh is None:
                self.weight = len(self)
                weight = 0 if super().__contains__(key) else 1
            else:
                weight = self.weigh(key, value)
                self.weight -= self._weights.pop(key, 0)
            if self.weight + weight > max(1, self.budget // 2) and self:
                super().pop(key, None)
                before = self.weight
                self._age()
                if before + weight > self.budget:           # an entry of more than half the budget has no old ones beside it
                    self._age()
            if self.weigh is not None:
                self._weights[key] = weight
            self._old.pop(key, None)
            self.weight += weight
            super().__setitem__(key, value)

    def _age(self) -> None:
        """The young entries are the old ones now."""
        old, self._old = self._old, dict(self)
        super().clear()
        self._weights.clear()
        self.weight = 0
        for key, value in old.items():
            self._drop(key, value)

    def _drop(self, key: Any, value: Any) -> None:
        if self.uses is not None and value is not None:
            self.hits += self.uses(value)
        if self.dropped is not None:
            self.dropped(key, value)

    def take(self, key: Any) -> Any:
        """The value, or None; it is no entry any more."""
        value = self[key]
        with self.lock:
            if super().pop(key, None) is not None:
                self.weight -= self._weights.pop(key, 0) if self.weigh is not None else 1
        return value

    def entries(self) -> list[tuple[Any, Any]]:
        """All keys and values."""
        with self.lock:
            return [*self._old.items(), *self.items()]

    def size(self) -> int:
        """What all entries weigh."""
        with self.lock:
            if self.weigh is None:
                return len(self) + len(self._old)
            return sum(self._weights.values()) + sum(self.weigh(*entry) for entry in self._old.items())

    def clear(self) -> None:
        """Forget everything."""
        with self.lock:
            self._age()
            self._age()

    def used(self) -> int:
        """How many look-ups found something, as far as that is counted."""
        return self.hits + (0 if self.uses is None else sum(self.uses(value) for _, value in self.entries() if value is not None))


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
_tables: dict[str, Any] = {}                # by name: what limits itself


def listed(name: str, table: _T) -> _T:
    """`table`, which has a length and limits itself, under this name in `tg.report()`."""
    _tables[name] = table
    return table


def is_own(value: object) -> bool:
    """Whether it is a cache, or a listed table of what is alive: these change by themselves, and mean nothing to a user's program."""
    weak = weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet
    return isinstance(value, Cache) or (isinstance(value, weak) and any(table is value for table in _tables.values()))


def memoize(budget: int | None) -> Callable[[Callable[..., _T]], functools._lru_cache_wrapper[_T]]:
    """Decorator: the function's results are kept for `budget` arguments, those used last; None: there are only so many arguments."""
    def attach(fn: Callable[..., _T]) -> functools._lru_cache_wrapper[_T]:
        return listed(f"{fn.__module__.removeprefix('tracegrad.')}.{fn.__qualname__}", functools.lru_cache(budget)(fn))

    return attach


@memoize(2000)
def code_of(source: str) -> CodeType:
    """The code of the function that a text of ours defines: functions that differ in what they name only have one text."""
    module = compile(source, "<a routine of tracegrad>", "exec")           # made of names from here
    return next(part for part in module.co_consts if isinstance(part, CodeType))


def written(parameters: str, lines: Iterable[str], names: dict[str, Any], keep: bool = True) -> Callable[..., Any]:
    """The function of these lines. names: what they name beside the parameters: its last arguments, which nobody gives. keep: its code."""
    code = (code_of if keep else code_of.__wrapped__)("\n ".join([f"def function({', '.join([parameters, *names])}):", *lines]))
    return FunctionType(code, {}, "function", tuple(names.values()))


def caches(*names: str) -> list[Cache]:
    """All caches, or those of these names."""
    return [c for c in list(_caches) if not names or c.name in names]


def tables() -> dict[str, Any]:
    """What limits itself, by name."""
    return dict(_tables)


def clear(names: Iterable[str]) -> None:
    """Forget what the caches of these names hold. A name that no cache has is a KeyError."""
    for name in names:
        found = caches(name)
        if not found:
            raise KeyError(name)
        for cache in found:
            cache.clear()


def statistics() -> dict[str, dict[str, int]]:
    """By name, of those that were asked: entries, size and budget (of several together), hits and misses as far as they are counted."""
    found: dict[str, dict[str, int]] = {}
    for cache in sorted(caches(), key=lambda c: c.name):
        total = found.setdefault(cache.name, dict(entries=0, size=0, budget=0, hits=0, misses=0))
        more = dict(entries=len(cache.entries()), size=cache.size(), budget=cache.budget, hits=cache.used(), misses=cache.misses)
        for what, count in more.items():
            total[what] += count
    for name, table in sorted(_tables.items()):
        if not hasattr(table, "cache_info"):
            found[name] = dict(entries=len(table), size=len(table))
        else:
            info = table.cache_info()
            found[name] = dict(entries=info.currsize, size=info.currsize, hits=info.hits, misses=info.misses)
            if info.maxsize is not None:
                found[name]["budget"] = info.maxsize
    return {name: counts for name, counts in found.items() if counts["entries"] or counts.get("misses")}
