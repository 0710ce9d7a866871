"""The contents of a simulated disk: files and directories, in the page cache and durably, and what a power loss
leaves of them.

A sync of a file makes all its bytes durable, a sync of a directory its entries. `sim.machine.disk` has the rules of
what remains after a power loss.
"""

from __future__ import annotations

from random import Random

import attrs

SECTOR_BYTES = 512


@attrs.define(eq=False)
class Inode:
    """A file's bytes, in the page cache and durably."""

    data: bytearray = attrs.Factory(bytearray)
    durable_size: int = 0
    """`data[:durable_size]` is durable."""
    durable_rest: bytes = b""
    """Durable bytes after `data[:durable_size]` that an unsynced truncation has removed from the cache."""
    lost: list[tuple[int, int]] = attrs.Factory(list)
    """Ranges of bytes that a failed sync has dropped; a power loss turns them into zeros."""
    modified_ms: int = 0
    handles: int = 0
    linked: bool = True
    notes: dict[object, object] = attrs.Factory(dict)
    """Notes that other modules keep about the file. Each module uses a separate key."""

    def truncate(self, size: int) -> None:
        if size < self.durable_size:
            self.durable_rest = bytes(self.data[size : self.durable_size]) + self.durable_rest
            self.durable_size = size
        del self.data[size:]

    def sync(self) -> None:
        self.durable_size = len(self.data)
        self.durable_rest = b""
        self.lost = [
            (start, min(end, self.durable_size)) for start, end in self.lost if start < self.durable_size
        ]

    def fail_sync(self) -> None:
        if self.durable_size < len(self.data):
            self.lost.append((self.durable_size, len(self.data)))

    def lose_power(self, random: Random | None) -> None:
        """Keep only the durable bytes. With `random` a random part of the other bytes may remain, too."""
        content = self.data[: self.durable_size] + self.durable_rest
        arrived = self.durable_size < len(self.data) or len(self.durable_rest) > 0
        if random is not None and arrived and random.random() < 0.75:
            content = _torn(self.data, self.durable_size, random)
        for start, end in self.lost:
            end = min(end, len(content))
            content[start:end] = bytes(max(end - start, 0))
        self.data, self.durable_size, self.durable_rest, self.lost = content, len(content), b"", []


def _torn(data: bytearray, durable_size: int, random: Random) -> bytearray:
    """Cut `data` at a random size. Unsynced sectors of the rest may become zeros."""
    size = random.choice((len(data), random.randint(durable_size, len(data))))
    content = data[:size]
    chance = random.choice((0.0, 0.0, 0.1, 0.5))
    position = durable_size
    while position < size:
        end = min((position // SECTOR_BYTES + 1) * SECTOR_BYTES, size)
        if random.random() < chance:
            content[position:end] = bytes(end - position)
        position = end
    return content


@attrs.define(eq=False)
class Folder:
    """A directory's entries, in the page cache and durably."""

    entries: dict[str, Inode | Folder] = attrs.Factory(dict)
    durable: dict[str, Inode | Folder] = attrs.Factory(dict)
    pending: list[tuple[str, Inode | Folder | None, str | None]] = attrs.Factory(list)
    """Changes that are not durable yet, in order. A change is (name, node, None) for a new name, (name, None, None)
    for a removed name, or (name, node, old name) for a rename.
    """
    modified_ms: int = 0
    locked_by: object | None = None
    """The directory handle that holds the lock; None if unlocked."""

    def change(self, name: str, node: Inode | Folder | None, old_name: str | None = None) -> None:
        _apply(self.entries, name, node, old_name)
        self.pending.append((name, node, old_name))

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, *change)
        self.pending.clear()

    def lose_power(self, random: Random | None) -> None:
        if random is not None and self.pending:
            for change in self.pending[: random.randint(0, len(self.pending))]:
                _apply(self.durable, *change)
        self.pending.clear()
        self.entries = dict(self.durable)


def _apply(
    entries: dict[str, Inode | Folder], name: str, node: Inode | Folder | None, old_name: str | None
) -> None:
    if old_name is not None:
        entries.pop(old_name, None)
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def path_parts(path: str) -> list[str]:
    """Split a path into names. Empty names, as between two slashes, are dropped."""
    return [part for part in path.split("/") if part]
