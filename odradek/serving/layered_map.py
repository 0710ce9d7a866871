"""An immutable map. The cost of its next version depends on the number of changes, rather than on its size.

A version has a big `base` dict, which many versions share, and a small `overlay` dict with the changes since. When
the overlay outgrows the square root of the base, the two are merged into a new base. A change in a map of n keys
costs O(sqrt n) amortised. Copying a dict is so fast that a change among 10,000 topics is as cheap as one among ten. A
lookup takes one or two dict lookups.

The order of iteration depends on when layers were merged, so decisions must sort first. (The order in a HAMT would not
be stable either: it hashes keys, and hashes of text differ between processes.)
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Removed:
    """Marks a key of the base that this version does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "removed"


_REMOVED: Final = _Removed()
_OVERLAY_MIN = 16


class LayeredMap(Mapping[K, V], Generic[K, V]):
    """An immutable map; `changed` makes the next version."""

    __slots__ = ("_base", "_length", "_overlay")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self._base: dict[K, V] = dict(items) if items else {}
        self._overlay: dict[K, V | _Removed] = {}
        self._length = len(self._base)

    def __getitem__(self, key: K) -> V:
        overlay = self._overlay
        if overlay and key in overlay:
            value = overlay[key]
            if isinstance(value, _Removed):
                raise KeyError(key)
            return value
        return self._base[key]

    def get(self, key: K, default: Any = None) -> Any:
        overlay = self._overlay
        if overlay and key in overlay:
            value = overlay[key]
            return default if isinstance(value, _Removed) else value
        return self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        if key in self._overlay:
            return not isinstance(self._overlay[key], _Removed)
        return key in self._base

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        overlay = self._overlay
        for key in self._base:
            if key not in overlay:
                yield key
        for key, value in overlay.items():
            if not isinstance(value, _Removed):
                yield key

    def items(self) -> ItemsView[K, V]:
        return super().items() if self._overlay else self._base.items()

    def values(self) -> ValuesView[V]:
        return super().values() if self._overlay else self._base.values()

    def changed(self, changes: Mapping[K, V | None]) -> LayeredMap[K, V]:
        """Make the next version. A value of None removes the key, whether it exists or not."""
        if not changes:
            return self
        overlay: dict[K, V | _Removed] = dict(self._overlay)
        length = self._length
        for key, value in changes.items():
            before = key in self
            if value is None:
                length -= before
                if key in self._base:
                    overlay[key] = _REMOVED
                else:
                    overlay.pop(key, None)
            else:
                length += not before
                overlay[key] = value
        result: LayeredMap[K, V] = LayeredMap.__new__(LayeredMap)
        result._length = length
        if len(overlay) > _OVERLAY_MIN and len(overlay) ** 2 > len(self._base):
            base = dict(self._base)
            for key, entry in overlay.items():
                if isinstance(entry, _Removed):
                    del base[key]
                else:
                    base[key] = entry
            result._base, result._overlay = base, {}
        else:
            result._base, result._overlay = self._base, overlay
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(self) == len(other) and all(
            other.get(key, _REMOVED) == value for key, value in self.items()
        )

    __hash__ = None  # type: ignore[assignment]  # Python's way to mark a class as not hashable

    def __repr__(self) -> str:
        return f"LayeredMap({dict(self)!r})"
